"""Placeholder for RLlib's connector `WriteObservationsToEpisodes`, which this package does not need.

Importing the class from this module raises an error with the reason.
"""

from jaxrl_stack.compat.absent_connectors import absent

__getattr__ = absent(__name__)
