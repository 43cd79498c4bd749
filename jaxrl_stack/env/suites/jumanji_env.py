"""Jumanji: combinatorial problems and games. Ids are its own: "jumanji/Game2048-v1"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from jumanji import registration, specs

from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, arguments_of, masked_space


class JumanjiEnv(SuiteEnv):
    """A registered Jumanji environment; settings are arguments of its class.

    Observations become a Dict of their fields, of which an `action_mask` is set apart:
    ``{"action_mask": ..., "observations": ...}``, where "observations" is the field itself if there is one only. A
    last step with a discount of 0 terminates, any other last step truncates.
    """

    prefix = "jumanji"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return sorted(registration.registered_environments())

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        env: Any = registration.make(env_id)
        self.refuse_unknown(config, [name for name in arguments_of(type(env).__init__) if name != "viewer"])
        self.env: Any = registration.make(env_id, **config) if config else env
        if self.env.reward_spec.shape:
            raise ValueError(f"{self.name} gives a reward for each of its agents: this is for one agent only.")
        spec = self.env.observation_spec
        self._fields = sorted(_children(spec))
        self.observation_space = self._arranged({name: _space(child) for name, child in _children(spec).items()}, spec)
        self.action_space = _space(self.env.action_spec)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state, step = self.env.reset(jax.random.key_data(key))
        return self._observed(step), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        state, step = self.env.step(state, action)
        terminated = step.last() & (step.discount == 0)
        return self._observed(step), state, step.reward, terminated, step.last() & ~terminated, step.extras or {}

    def _observed(self, step: Any) -> Any:
        obs = step.observation
        if not self._fields:
            return obs
        parts = {name: getattr(obs, name) for name in self._fields}
        mask = parts.pop("action_mask", None)
        rest = next(iter(parts.values())) if len(parts) == 1 else parts
        return rest if mask is None else {"action_mask": mask, "observations": rest}

    def _arranged(self, parts: dict[str, Space], spec: Any) -> Space:
        if not parts:
            return _space(spec)
        mask = parts.pop("action_mask", None)
        rest = next(iter(parts.values())) if len(parts) == 1 else Dict({name: parts[name] for name in sorted(parts)})
        return rest if mask is None else masked_space(rest, mask.shape or ())

    def render(self, state: Any) -> np.ndarray:
        self.env.render(state)
        figure = self.env._viewer._get_fig_ax()[0]
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def _children(spec: Any) -> dict[str, Any]:
    return {name: child for name, child in vars(spec).items() if isinstance(child, specs.Spec)}


def _space(spec: Any) -> Space:
    match spec:
        case specs.DiscreteArray():
            return Discrete(int(spec.num_values))
        case specs.MultiDiscreteArray():
            return MultiDiscrete(np.asarray(spec.num_values))
        case specs.BoundedArray():
            low, high = (
                np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (spec.minimum, spec.maximum)
            )
        case specs.Array():
            dtype = np.dtype(spec.dtype)
            limits = np.iinfo(dtype) if dtype.kind in "iu" else None
            bounds = (limits.min, limits.max) if limits else (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
            low, high = (np.full(spec.shape, bound, dtype) for bound in bounds)
        case _:
            children = _children(spec)
            return Dict({name: _space(children[name]) for name in sorted(children)})
    return Box(low, high, tuple(spec.shape), np.dtype(spec.dtype).type)


__all__ = ["JumanjiEnv"]
