"""One file per shape of training step; each is shared by the drivers."""
