"""RLModules that RLlib's example scripts import."""
