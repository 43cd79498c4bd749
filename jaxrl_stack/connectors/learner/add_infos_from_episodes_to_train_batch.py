"""Placeholder for RLlib's connector `AddInfosFromEpisodesToTrainBatch`, which this package does not have.

Importing the class from this module raises an error with the reason.
"""

from jaxrl_stack.compat.absent_connectors import absent

__getattr__ = absent(__name__)
