"""Names and calls of RLlib's past, of its PyTorch classes and of other libraries, and what to write instead."""
