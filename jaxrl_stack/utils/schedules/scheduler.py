"""RLlib's import path of the class `Scheduler`."""

from jaxrl_stack.utils.schedules import Scheduler

__all__ = ["Scheduler"]
