"""RLlib's import path of the class `LinearSchedule`."""

from jaxrl_stack.utils.schedules.schedule import LinearSchedule

__all__ = ["LinearSchedule"]
