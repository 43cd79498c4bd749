"""Re-exports the class `PiecewiseSchedule` under its RLlib import path."""

from jaxrl_stack.utils.schedules.schedule import PiecewiseSchedule

__all__ = ["PiecewiseSchedule"]
