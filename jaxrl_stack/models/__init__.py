"""RLlib's package `models`: only `jaxrl_stack.models.utils` exists here; imports of its other names
raise errors that name the replacement."""
