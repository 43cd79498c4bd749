"""SBX's SAC as a contender: Stable-Baselines3's interface on JAX; runs in an environment with ``sbx-rl``."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from bench.peers import protocol, sb3_off_policy


def make(settings: dict[str, Any]) -> protocol.Work:
    import torch
    from sbx import SAC

    # Its replay buffer returns torch tensors.
    torch.set_num_threads(settings["torch_threads"])
    return sb3_off_policy.make_work(SAC, settings)


if __name__ == "__main__":
    protocol.serve(make, ["sbx-rl", "jax", "jaxlib", "torch", "gymnasium", "numpy"])
