"""RLlib's import path of the buffer that episodes are made of."""
