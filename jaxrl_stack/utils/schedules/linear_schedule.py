"""Linear decay."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.schedules.polynomial_schedule import PolynomialSchedule


class LinearSchedule(PolynomialSchedule):
    """From `initial_p` to `final_p` in a straight line over `schedule_timesteps`, then `final_p`."""

    def __init__(self, **kwargs: Any):
        """Args:
        **kwargs: Those of `PolynomialSchedule` except `power`.
        """
        super().__init__(power=1.0, **kwargs)
