"""RLlib's path of `ConstantSchedule`."""

from jaxrl_stack.utils.schedules.schedule import ConstantSchedule

__all__ = ["ConstantSchedule"]
