"""Exponential decay."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.schedules.schedule import Schedule


class ExponentialSchedule(Schedule):
    """``initial_p·decay_rate^(t/T)``: after T timesteps, the value has shrunk by the factor `decay_rate`."""

    def __init__(
        self,
        schedule_timesteps: int,
        framework: str | None = None,
        initial_p: float = 1.0,
        decay_rate: float = 0.1,
    ):
        """Args:
        schedule_timesteps: T.
        framework: None or "jax".
        initial_p: Value at t = 0.
        decay_rate: Factor by which the value changes in T timesteps.

        Raises:
            ValueError: If `schedule_timesteps` is not positive.
        """
        super().__init__(framework)
        if schedule_timesteps <= 0:
            raise ValueError(f"schedule_timesteps={schedule_timesteps} must be positive.")
        self.schedule_timesteps = schedule_timesteps
        self.initial_p = initial_p
        self.decay_rate = decay_rate

    def _value(self, t: Any) -> Any:
        return self.initial_p * self.decay_rate ** (t / self.schedule_timesteps)
