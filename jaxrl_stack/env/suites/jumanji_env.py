"""Adapter for Jumanji's combinatorial problems and games, with Jumanji's ids, such as "jumanji/Game2048-v1"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Dict, Space
from jumanji import registration

from jaxrl_stack.env.suites.jumanji_spaces import (
    action_space_of,
    children_of,
    has_entry_per_action,
    own_action,
    space_of,
)
from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, arguments_of, masked_space
from jaxrl_stack.utils.notices import notice_once


class JumanjiEnv(SuiteEnv):
    """Registered Jumanji environment. Settings in `env_config` are constructor arguments, except `viewer`, of the
    Jumanji class of this environment.

    Observations become a Dict of their fields. If one of them is an `action_mask`, they become
    ``{"action_mask": ..., "observations": ...}``, where "observations" is the Dict of the other fields, or the only
    other field. A mask with a row for each of several actions is flattened; a mask over all combinations of actions is
    left out, because networks choose each action independently. A final step terminates the episode if its discount is
    0, else truncates it. Several agents are controlled by one policy: its action contains all agents' actions, their
    rewards are summed, and an episode terminates when every agent's discount is 0.
    """

    prefix = "jumanji"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return sorted(registration.registered_environments())

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        env_class = registration.load(registration._REGISTRY[env_id].entry_point)
        self.refuse_unknown(config, [name for name in arguments_of(env_class.__init__) if name != "viewer"])
        self.env: Any = registration.make(env_id, **config)
        fields = children_of(self.env.observation_spec)
        self._fields = sorted(fields)
        mask_shape = tuple(fields["action_mask"].shape) if "action_mask" in fields else None
        self.action_space = action_space_of(self.env.action_spec, mask_shape)
        self._has_mask = mask_shape is not None and has_entry_per_action(mask_shape, self.action_space)
        if mask_shape is not None and not self._has_mask:
            notice_once(
                f"{self.name}: the action mask {list(mask_shape)} is left out of the observations. It covers "
                f"combinations of {self.action_space}, but networks choose each component independently."
            )
        self.observation_space = self._observation_space(fields)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state, step = self.env.reset(jax.random.key_data(key))
        return self._observed(step), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        state, step = self.env.step(state, own_action(self.env.action_spec, action))
        reward, discount = jnp.sum(step.reward), jnp.max(step.discount)
        terminated = step.last() & (discount == 0)
        return self._observed(step), state, reward, terminated, step.last() & ~terminated, step.extras or {}

    def _observed(self, step: Any) -> Any:
        obs = step.observation
        if not self._fields:
            return obs
        parts = {name: getattr(obs, name) for name in self._fields}
        mask = parts.pop("action_mask", None)
        rest = next(iter(parts.values())) if len(parts) == 1 else parts
        return {"action_mask": mask.reshape(-1), "observations": rest} if self._has_mask else rest

    def _observation_space(self, fields: dict[str, Any]) -> Space:
        if not fields:
            return space_of(self.env.observation_spec)
        parts = {name: space_of(fields[name]) for name in self._fields if name != "action_mask"}
        rest = next(iter(parts.values())) if len(parts) == 1 else Dict(parts)
        return masked_space(rest, (math.prod(fields["action_mask"].shape),)) if self._has_mask else rest

    def render(self, state: Any) -> np.ndarray:
        self.env.render(state)
        figure = self.env._viewer._get_fig_ax()[0]
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


__all__ = ["JumanjiEnv"]
