"""RLlib's example scripts of several agents import from here."""
