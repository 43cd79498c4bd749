"""Networks: encoders, heads, and the catalogs that choose them by space and model config."""
