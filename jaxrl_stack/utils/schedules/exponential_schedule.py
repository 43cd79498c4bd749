"""Re-exports the class `ExponentialSchedule` under its RLlib import path."""

from jaxrl_stack.utils.schedules.schedule import ExponentialSchedule

__all__ = ["ExponentialSchedule"]
