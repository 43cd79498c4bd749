"""Re-exports the class `ConstantSchedule` under its RLlib import path."""

from jaxrl_stack.utils.schedules.schedule import ConstantSchedule

__all__ = ["ConstantSchedule"]
