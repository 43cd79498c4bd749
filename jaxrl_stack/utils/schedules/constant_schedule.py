"""RLlib's import path of the class `ConstantSchedule`."""

from jaxrl_stack.utils.schedules.schedule import ConstantSchedule

__all__ = ["ConstantSchedule"]
