"""Learners that RLlib's example scripts import."""
