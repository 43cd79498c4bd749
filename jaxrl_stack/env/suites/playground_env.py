"""Adapter for MuJoCo Playground, with its ids, such as "playground/CartpoleBalance"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl_stack.env.quiet import WARP, without_lines
from jaxrl_stack.env.suites.brax_env import PhysicsEnv

with without_lines(*WARP):
    from mujoco_playground import registry


class PlaygroundEnv(PhysicsEnv):
    """Environment of MuJoCo Playground's registry.

    Settings in `env_config` are entries of the config that Playground has for this environment; names of nested entries
    have dots, as in "outer.inner".

    By default (`impl`: "jax"), the physics are computed by MJX in JAX, on any device; "warp" selects NVIDIA's physics.
    Robots for locomotion and manipulation come from mujoco_menagerie, which Playground downloads when the first such
    environment is created.
    """

    prefix = "playground"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return list(registry.ALL_ENVS)

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        whole = registry.get_default_config(env_id)
        if "impl" in whole:
            whole.impl = "jax"
        known = _dotted(whole.to_dict())
        self.refuse_unknown(config, list(known))
        whole.update_from_flattened_dict(config)
        self.env = registry.load(env_id, whole)
        self.episode_length, self.action_repeat = whole.episode_length, whole.action_repeat
        self.set_spaces()

    def model_and_positions(self, physics: Any) -> tuple[Any, Any]:
        return self.env.mj_model, physics.data.qpos


def _dotted(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    items: dict[str, Any] = {}
    for name, value in config.items():
        items |= _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return items


__all__ = ["PlaygroundEnv"]
