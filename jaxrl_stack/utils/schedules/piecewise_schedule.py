"""RLlib's import path of the class `PiecewiseSchedule`."""

from jaxrl_stack.utils.schedules.schedule import PiecewiseSchedule

__all__ = ["PiecewiseSchedule"]
