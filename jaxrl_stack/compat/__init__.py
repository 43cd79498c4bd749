"""Errors for names and calls of older RLlib versions, its PyTorch classes and other libraries; they name the
replacements.
"""
