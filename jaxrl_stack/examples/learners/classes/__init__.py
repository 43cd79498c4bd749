"""Learners of RLlib's example scripts."""
