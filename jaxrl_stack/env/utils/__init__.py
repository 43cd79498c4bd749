"""Storage behind the episode classes."""
