"""This project's PPO on Atari games, in ale-py's vector environment or wrapped one by one, as a contender."""

from __future__ import annotations

from typing import Any

from bench.peers import jaxrl_ppo, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    import gymnasium as gym

    from jaxrl_stack.env.registry import register_env, resolve_env
    from jaxrl_stack.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    resolve_env("ALE/Pong-v5")  # registers gymnasium's ids
    register_env("wrapped", lambda config: wrap_atari_for_new_api_stack(gym.make(**config), dim=84, framestack=4))
    return jaxrl_ppo.make(settings)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "ale-py", "gymnasium", "numpy"])
