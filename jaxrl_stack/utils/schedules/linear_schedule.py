"""RLlib's path of `LinearSchedule`."""

from jaxrl_stack.utils.schedules.schedule import LinearSchedule

__all__ = ["LinearSchedule"]
