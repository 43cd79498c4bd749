"""Recording of videos: episodes that a policy plays in a gymnasium environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.videos.episodes import PackedFrames, RecordedEpisode

if TYPE_CHECKING:
    from jaxrl_stack.policy.inputs import Acting


def play(policy: Acting[Any], env: gym.Env, episodes: int, *, seed: int, explore: bool | None) -> list[RecordedEpisode]:
    """Plays whole episodes with a policy, and returns their frames and rewards.

    Args:
        policy: Acts.
        env: Environment whose ``render()`` returns frames. It is not closed.
        episodes: Number of episodes.
        seed: Seed of the environment's first reset, and of sampled actions.
        explore: As for ``policy.compute_actions``.
    """
    recorded = []
    key, num_steps = stream_key(seed, Stream.SERVED_POLICY), 0
    for number in range(episodes):
        obs, _ = env.reset(seed=seed if number == 0 else None)
        frames, rewards = PackedFrames([_rendered(env)]), [0.0]
        state, is_over = None, False
        while not is_over:
            step_key = jax.random.fold_in(key, num_steps)
            action, state, _ = policy.compute_single_action(
                obs, state, prev_reward=rewards[-1], explore=explore, key=step_key
            )
            obs, reward, terminated, truncated, _ = env.step(action)
            frames.append(_rendered(env))
            rewards.append(float(reward))
            num_steps, is_over = num_steps + 1, terminated or truncated
        recorded.append(RecordedEpisode(frames, np.array(rewards[1:])))
    return recorded


def made(env: Any) -> tuple[gym.Env, bool]:
    """Returns an environment that renders frames: creates it from a gymnasium id, or checks a given environment. Also
    returns whether it was created.

    Raises:
        ValueError: If `env` is neither of them, or its ``render()`` returns no frames.
    """
    if isinstance(env, str) and env in gym.registry:
        return gym.make(env, render_mode="rgb_array"), True
    if not isinstance(env, gym.Env):
        raise ValueError(
            f"record(env={env!r}): pass a gymnasium.Env or a gymnasium id. For a JAX environment: "
            "GymnasiumFromJax('gymnax/CartPole-v1', render_mode='rgb_array'), from jaxrl_stack.env.jax_to_gymnasium."
        )
    if env.render_mode not in ("rgb_array", "rgb_array_list"):
        raise ValueError(
            f"record(env={env}): the environment gives no frames (render_mode={env.render_mode!r}). Make it with "
            "render_mode='rgb_array'."
        )
    return env, False


def _rendered(env: gym.Env) -> Any:
    frame: Any = env.render()
    return frame[-1] if isinstance(frame, list) else frame
