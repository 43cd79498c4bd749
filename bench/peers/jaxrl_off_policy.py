"""This project's DQN and SAC as contenders, through their public API."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from bench.peers import off_policy, protocol

TIMERS = {
    "sample": "env_runner_sampling_timer",
    "add": "replay_buffer_add_data_timer",
    "draw": "replay_buffer_sampling_timer",
    "update": "learner_update_timer",
    "priorities": "replay_buffer_update_prios_timer",
    "sync": "synch_weights",
}
"""Part of an iteration -> its timer; the device driver has none, since all of them are one program."""


def parts_of(algo: Any) -> Callable[[Mapping[str, Any]], dict[str, float]]:
    """Returns the timers of a result, without unused ones, which are NaN."""

    def read(result: Mapping[str, Any]) -> dict[str, float]:
        found = {part: result["timers"].get(name, math.nan) for part, name in TIMERS.items()}
        return {part: float(value) for part, value in found.items() if not math.isnan(value)}

    return read


def make(settings: dict[str, Any]) -> protocol.Work:
    from jaxrl_stack.algorithms.dqn import DQNConfig
    from jaxrl_stack.algorithms.sac import SACConfig
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    api = off_policy.Api({"DQN": DQNConfig, "SAC": SACConfig}, DefaultModelConfig, lambda: None, parts_of)
    return off_policy.make_work(api, settings)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "gymnasium", "gymnax", "numpy"])
