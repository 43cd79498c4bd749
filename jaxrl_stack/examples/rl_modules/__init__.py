"""RLModules of RLlib's example scripts."""
