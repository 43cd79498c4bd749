"""RLlib's package `models`, of which only the module `jaxrl_stack.models.utils` is implemented. The import of another
RLlib name raises an ImportError that names the replacement.
"""
