"""Functions that create environments with a fixed seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym


def create_cartpole_deterministic(config: Mapping[str, Any]) -> gym.Env:
    """Returns a new CartPole-v1 that has been reset with the seed ``config["seed"]`` (default 0)."""
    return _seeded("CartPole-v1", config)


def create_pendulum_deterministic(config: Mapping[str, Any]) -> gym.Env:
    """Returns a new Pendulum-v1 that has been reset with the seed ``config["seed"]`` (default 0)."""
    return _seeded("Pendulum-v1", config)


def _seeded(name: str, config: Mapping[str, Any]) -> gym.Env:
    env = gym.make(name)
    env.reset(seed=config.get("seed", 0))
    return env
