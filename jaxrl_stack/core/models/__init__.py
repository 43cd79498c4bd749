"""Networks: encoders, heads, and the catalogs that select them by space and model config."""
