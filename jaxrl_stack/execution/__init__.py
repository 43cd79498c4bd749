"""One file per shape of training step, and the two drivers that run it: on the device, and over actors."""
