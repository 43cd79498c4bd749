"""Names and calls of RLlib's past, its PyTorch classes and other libraries, with their replacements."""
