"""Templates of programs. ``jaxrl new`` copies a template to a new file, which the user then changes."""
