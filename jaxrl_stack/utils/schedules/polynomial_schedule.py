"""Polynomial decay."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.schedules.schedule import Schedule, array_module


class PolynomialSchedule(Schedule):
    """``final_p + (initial_p - final_p)·(1 - t/T)^power`` for t up to T, then `final_p`."""

    def __init__(
        self,
        schedule_timesteps: int,
        final_p: float,
        framework: str | None = None,
        initial_p: float = 1.0,
        power: float = 2.0,
    ):
        """Args:
        schedule_timesteps: T, after which the value stays at `final_p`.
        final_p: Last value.
        framework: None or "jax".
        initial_p: Value at t = 0.
        power: Exponent; 1 is linear.

        Raises:
            ValueError: If `schedule_timesteps` is not positive.
        """
        super().__init__(framework)
        if schedule_timesteps <= 0:
            raise ValueError(f"schedule_timesteps={schedule_timesteps} must be positive.")
        self.schedule_timesteps = schedule_timesteps
        self.final_p = final_p
        self.initial_p = initial_p
        self.power = power

    def _value(self, t: Any) -> Any:
        t = array_module(t).minimum(t, self.schedule_timesteps)
        return (
            self.final_p + (self.initial_p - self.final_p) * (1.0 - t / self.schedule_timesteps) ** self.power
        )
