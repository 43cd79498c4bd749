"""RLlib's path of `Scheduler`."""

from jaxrl_stack.utils.schedules import Scheduler

__all__ = ["Scheduler"]
