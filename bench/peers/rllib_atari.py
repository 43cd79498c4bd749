"""RLlib's PPO on Atari games, wrapped one by one, as a contender."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from bench.peers import protocol, rllib_ppo


def make(settings: dict[str, Any]) -> protocol.Work:
    import ale_py
    import gymnasium as gym
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
    from ray.tune.registry import register_env

    gym.register_envs(ale_py)
    register_env("wrapped", lambda config: wrap_atari_for_new_api_stack(gym.make(**config), dim=84, framestack=4))
    return rllib_ppo.make(settings)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "ale-py", "gymnasium", "numpy"])
