"""Recognises names and calls of older RLlib versions, of RLlib's PyTorch classes and of other libraries, for errors and
warnings that name the replacement.
"""
