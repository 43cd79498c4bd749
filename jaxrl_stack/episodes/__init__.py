"""Episode classes: observations, actions and rewards on the host, with lookback steps."""
