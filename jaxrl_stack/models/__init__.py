"""RLlib's package `models`: only `jaxrl_stack.models.utils` exists here; importing other names names the
replacement."""
