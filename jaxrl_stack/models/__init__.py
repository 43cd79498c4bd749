"""RLlib's folder of models: of it, `jaxrl_stack.models.utils` is here; importing the rest says what to use instead."""
