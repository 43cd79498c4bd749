"""RLlib's path of `PiecewiseSchedule`."""

from jaxrl_stack.utils.schedules.schedule import PiecewiseSchedule

__all__ = ["PiecewiseSchedule"]
