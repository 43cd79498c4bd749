"""RLlib's package `models`: only `jaxrl_stack.models.utils` exists in this package; imports of other names raise errors
that name the replacement.
"""
