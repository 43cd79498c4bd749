"""Re-exports the class `LinearSchedule` under its RLlib import path."""

from jaxrl_stack.utils.schedules.schedule import LinearSchedule

__all__ = ["LinearSchedule"]
