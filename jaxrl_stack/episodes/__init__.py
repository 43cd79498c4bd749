"""Episodes as host data: observations, actions and rewards, with a look-back."""
