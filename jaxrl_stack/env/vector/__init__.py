"""Vector environments that are stepped in Python (host environments). One call steps all environments of a vector."""
