"""RLlib's DQN and SAC as contenders; runs in an environment with ``ray[rllib]`` and torch, and nothing of ours."""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from bench.peers import off_policy, protocol


def parts_of(algo: Any) -> Callable[[Mapping[str, Any]], dict[str, float]]:
    """Times the methods that a training step calls.

    RLlib's own timers are averages that remember the first call, which compiles, for hundreds of calls.
    """
    seconds: dict[str, float] = {}

    def watch(part: str, owner: Any, method: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            out = inner(*args, **kwargs)
            seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - started
            return out

        setattr(owner, method, timed)

    watch("sample", algo.env_runner, "sample")
    watch("add", algo.local_replay_buffer, "add")
    watch("draw", algo.local_replay_buffer, "sample")
    watch("update", algo.learner_group, "update")
    watch("priorities", algo.local_replay_buffer, "update_priorities")
    watch("sync", algo.env_runner_group, "sync_weights")

    def read(result: Mapping[str, Any]) -> dict[str, float]:
        out = dict(seconds)
        seconds.clear()
        return out

    return read


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    torch.set_num_threads(settings["torch_threads"])
    # RLlib uses Ray in one process, too.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    api = off_policy.Api({"DQN": DQNConfig, "SAC": SACConfig}, DefaultModelConfig, ray.shutdown, parts_of)
    return off_policy.make_work(api, settings)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
