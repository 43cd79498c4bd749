"""RLlib's import path of ModuleToAgentUnmapping, a connector that this package does not need; importing it raises an
error with the reason.
"""

from jaxrl_stack.compat.absent_connectors import absent

__getattr__ = absent(__name__)
