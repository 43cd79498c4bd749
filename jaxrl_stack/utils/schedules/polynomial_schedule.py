"""Re-exports the class `PolynomialSchedule` under its RLlib import path."""

from jaxrl_stack.utils.schedules.schedule import PolynomialSchedule

__all__ = ["PolynomialSchedule"]
