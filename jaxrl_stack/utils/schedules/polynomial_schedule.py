"""RLlib's import path of the class `PolynomialSchedule`."""

from jaxrl_stack.utils.schedules.schedule import PolynomialSchedule

__all__ = ["PolynomialSchedule"]
