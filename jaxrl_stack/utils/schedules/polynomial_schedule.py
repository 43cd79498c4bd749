"""RLlib's path of `PolynomialSchedule`."""

from jaxrl_stack.utils.schedules.schedule import PolynomialSchedule

__all__ = ["PolynomialSchedule"]
