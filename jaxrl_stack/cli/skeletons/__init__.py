"""What ``jaxrl new`` copies: programs that run, to be changed line by line."""
