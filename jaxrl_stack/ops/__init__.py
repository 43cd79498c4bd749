"""Array-in, array-out maths. Nothing in here knows about configs, modules or environments."""
