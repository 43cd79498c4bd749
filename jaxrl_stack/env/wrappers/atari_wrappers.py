"""Standard preprocessing of Atari games as gymnasium wrappers.

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", Methods; the resets follow Machado
et al. 2018, "Revisiting the Arcade Learning Environment".
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from jaxrl_stack.utils.images import LUMA, area_mean
from jaxrl_stack.utils.notices import notice_once

_NOOP, _FIRE, _UP = 0, 1, 2


def is_atari(env: gym.Env | str) -> bool:
    """Whether an environment, or an id of gymnasium such as "ale_py:ALE/Pong-v5", is an Atari game with images."""
    if isinstance(env, str):
        return env.split(":")[-1].startswith("ALE/")
    shape = env.observation_space.shape
    return hasattr(env.unwrapped, "ale") and shape is not None and len(shape) > 1


def wrap_atari_for_new_api_stack(
    env: gym.Env, dim: int = 64, frameskip: int = 4, framestack: int | None = None, grayscale: bool = True
) -> gym.Env:
    """Wraps an Atari game with the standard preprocessing: small images in [-1, 1), frame skipping, random starts, and
    episodes that end when a life is lost.

    Wrappers, from the innermost: at most 108,000 frames per episode; each action is repeated `frameskip` times, with
    the maximum of the last two frames; images are shrunk to ``dim × dim`` and scaled to ``[-1, 1)``; 1 to 30 no-ops
    after a reset; the loss of a life ends an episode, and the next reset continues the game; FIRE and UP after a reset
    if the game waits for FIRE; the last `framestack` images are stacked. To clip rewards, set
    ``environment(clip_rewards=True)``.

    Args:
        env: ``gymnasium.make("ALE/<Game>-v5", frameskip=1)``, with RGB (or gray) images.
        dim: Height and width of the images.
        frameskip: Frames per action; 1 for every frame.
        framestack: Number of images to stack; None for one.
        grayscale: Gray instead of RGB images.

    Returns:
        An environment with observations float32 ``[dim, dim, C]``, C = (1 if grayscale else 3) × framestack; the latest
        image comes last.

    Raises:
        ValueError: A setting is below 1, or observations are no images of the requested kind.
    """
    for name, value in (("dim", dim), ("frameskip", frameskip), ("framestack", framestack or 1)):
        if value < 1:
            raise ValueError(f"wrap_atari_for_new_api_stack({name}={value!r}): must be at least 1.")
    skipped = 1 if env.spec is None else env.spec.kwargs.get("frameskip", 1)
    if frameskip > 1 and skipped != 1:
        notice_once(
            f"{env} skips frames itself (frameskip={skipped}), and wrap_atari_for_new_api_stack("
            f"frameskip={frameskip}) does so again. Give env_config={{'frameskip': 1}}, or frameskip=1 here."
        )
    env = gym.wrappers.TimeLimit(env, max_episode_steps=108_000)
    if frameskip > 1:
        env = MaxAndSkipEnv(env, frameskip)
    env = GrayScaleAndResize(env, dim, grayscale)
    env = NormalizedImageEnv(env)
    env = NoopResetEnv(env)
    env = EpisodicLifeEnv(env)
    if "FIRE" in env.unwrapped.get_action_meanings():  # type: ignore[attr-defined]
        env = FireResetEnv(env)
    if framestack is not None and framestack > 1:
        env = FrameStack(env, framestack)
    return env


class MaxAndSkipEnv(gym.Wrapper):
    """Repeats every action; returns the sum of the rewards, and the pixelwise maximum of the last two frames as the
    observation.

    The game draws some sprites in every other frame only. An episode that ends in between shows the frames that it had.

    Args:
        env: Environment with image observations.
        skip: Repetitions, at least 1.
    """

    def __init__(self, env: gym.Env, skip: int = 4):
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        before, total = frame, float(reward)
        for _ in range(self._skip - 1):
            if terminated or truncated:
                break
            before = frame
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
        return np.maximum(before, frame), total, terminated, truncated, info


class GrayScaleAndResize(gym.ObservationWrapper):
    """Resizes images to uint8 ``[dim, dim, C]`` by averaging areas, by default in gray.

    Args:
        env: Environment with uint8 observations ``[H, W, 3]`` or gray ``[H, W]``.
        dim: Height and width.
        grayscale: One channel of luma instead of three of RGB.

    Raises:
        ValueError: The observations are no such images.
    """

    def __init__(self, env: gym.Env, dim: int, grayscale: bool = True):
        super().__init__(env)
        space = env.observation_space
        shape: tuple[int, ...] = tuple(space.shape or ())
        is_rgb = len(shape) == 3 and shape[2] == 3
        if not (isinstance(space, Box) and space.dtype == np.uint8 and (is_rgb or len(shape) == 2)):
            raise ValueError(
                f"GrayScaleAndResize needs uint8 images [H, W, 3] or [H, W], but {env} has the "
                f"observation space {space}. Give env_config={{'obs_type': 'rgb'}}."
            )
        if not (is_rgb or grayscale):
            raise ValueError(
                f"GrayScaleAndResize(grayscale=False) needs RGB images [H, W, 3], but {env} has gray images {shape}. "
                "Give env_config={'obs_type': 'rgb'}."
            )
        self._to_gray = is_rgb and grayscale
        self._dim = dim
        self.observation_space = Box(0, 255, (dim, dim, 1 if grayscale else 3), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        image = observation.astype(np.float32)
        if self._to_gray:
            image = image @ LUMA
        small = area_mean(area_mean(image, self._dim, 0), self._dim, 1)
        return np.rint(small).astype(np.uint8).reshape(self.observation_space.shape)


WarpFrame = GrayScaleAndResize


class NormalizedImageEnv(gym.ObservationWrapper):
    """Converts uint8 images to float32 in [-1, 1): ``x / 128 - 1``.

    Args:
        env: Environment with image observations.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = Box(-1.0, 1.0, env.observation_space.shape, np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.astype(np.float32) / np.float32(128) - np.float32(1)


class ClipRewardEnv(gym.RewardWrapper):
    """Replaces each reward by its sign."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))


class NoopResetEnv(gym.Wrapper):
    """Repeats the no-op action for 1 to `noop_max` steps after a reset, so that games start in different states.

    Args:
        env: Environment whose action 0 is NOOP.
        noop_max: Largest number of steps; the number is drawn from the environment's ``np_random``.
    """

    def __init__(self, env: gym.Env, noop_max: int = 30):
        super().__init__(env)
        self._noop_max = noop_max

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(self.env.unwrapped.np_random.integers(1, self._noop_max + 1)):
            obs, info = _step_of_reset(self.env, _NOOP, options)
        return obs, info


class EpisodicLifeEnv(gym.Wrapper):
    """Terminates an episode when a life is lost in an Atari game.

    If the following `reset` has no seed, it continues the same game with a no-op step; every other `reset` starts a new
    game.

    Args:
        env: Environment with ``unwrapped.ale.lives()``.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._lives = 0
        self._game_runs = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._count()
        # Some games show 0 lives for a few frames before they say that they are over: then it is over when they say so.
        life_lost = 0 < lives < self._lives
        self._lives = lives
        self._game_runs = life_lost and not (terminated or truncated)
        return obs, reward, terminated or life_lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._game_runs and seed is None:
            obs, info = _step_of_reset(self.env, _NOOP, options)
        else:
            obs, info = self.env.reset(seed=seed, options=options)
        self._game_runs = False
        self._lives = self._count()
        return obs, info

    def _count(self) -> int:
        return self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]


class FireResetEnv(gym.Wrapper):
    """Presses FIRE, then UP, after a reset, because some games start only then.

    Args:
        env: Environment whose actions 1 and 2 are FIRE and UP (in some games another direction).
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        for action in (_FIRE, _UP):
            obs, info = _step_of_reset(self.env, action, options)
        return obs, info


def _step_of_reset(env: gym.Env, action: int, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """Makes one env step as part of a reset, such as a no-op; if this step ends the episode, resets the environment
    again.
    """
    obs, _, terminated, truncated, info = env.step(action)
    return env.reset(options=options) if terminated or truncated else (obs, info)


class FrameStack(gym.ObservationWrapper):
    """Stacks the last `k` images ``[H, W, C]`` to ``[H, W, k * C]``, the newest last; a reset fills the stack with the
    first image.

    Args:
        env: Environment with image observations.
        k: Number of images.
    """

    def __init__(self, env: gym.Env, k: int):
        super().__init__(gym.wrappers.FrameStackObservation(env, k, padding_type="reset"))
        space = env.observation_space
        assert isinstance(space, Box)
        low, high = (np.tile(bound, k) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.moveaxis(observation, 0, 2).reshape(self.observation_space.shape)
