"""What the example environments share."""
