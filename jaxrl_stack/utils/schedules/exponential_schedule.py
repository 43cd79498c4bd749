"""RLlib's import path of the class `ExponentialSchedule`."""

from jaxrl_stack.utils.schedules.schedule import ExponentialSchedule

__all__ = ["ExponentialSchedule"]
