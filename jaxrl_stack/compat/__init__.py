"""Names and calls of older RLlib versions, of RLlib's PyTorch classes and of other libraries, with the
replacements that errors and warnings name.
"""
