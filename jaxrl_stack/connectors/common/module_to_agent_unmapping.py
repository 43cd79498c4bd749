"""RLlib's path of ModuleToAgentUnmapping: importing that says why it is not here."""

from jaxrl_stack.compat.absent_connectors import absent

__getattr__ = absent(__name__)
