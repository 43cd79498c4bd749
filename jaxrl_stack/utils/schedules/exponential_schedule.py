"""RLlib's path of `ExponentialSchedule`."""

from jaxrl_stack.utils.schedules.schedule import ExponentialSchedule

__all__ = ["ExponentialSchedule"]
