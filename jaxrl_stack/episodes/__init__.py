"""Episodes as host data: what was seen, done and received, with a look-back."""
