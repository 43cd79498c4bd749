"""Re-exports the class `Scheduler` under its RLlib import path."""

from jaxrl_stack.utils.schedules import Scheduler

__all__ = ["Scheduler"]
