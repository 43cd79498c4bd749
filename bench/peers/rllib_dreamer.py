"""RLlib's DreamerV3 as a contender; runs in an environment with ``ray[rllib]``, torch and Pillow, nothing of ours."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

from bench.peers import dreamer, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.dreamerv3 import DreamerV3Config

    torch.set_num_threads(settings["torch_threads"])
    # RLlib uses Ray in one process, too.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return dreamer.make_work(DreamerV3Config, settings, ray.shutdown)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
