"""Settings that change with the lifetime number of sampled steps."""

from jaxrl_stack.utils.schedules.arrays import (
    SCHEDULE_SIZE,
    ScheduleArrays,
    encode,
    is_schedule,
    schedule_problem,
    validate_schedule,
    value_at,
    values_at,
)
from jaxrl_stack.utils.schedules.schedule import (
    ConstantSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    PolynomialSchedule,
    Schedule,
)
from jaxrl_stack.utils.schedules.scheduler import Scheduler

__all__ = [
    "SCHEDULE_SIZE",
    "ConstantSchedule",
    "ExponentialSchedule",
    "LinearSchedule",
    "PiecewiseSchedule",
    "PolynomialSchedule",
    "Schedule",
    "ScheduleArrays",
    "Scheduler",
    "encode",
    "is_schedule",
    "schedule_problem",
    "validate_schedule",
    "value_at",
    "values_at",
]
