"""Programs that ``jaxrl new`` copies, to be changed line by line."""
