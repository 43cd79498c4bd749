"""Tasks of the DeepMind Control Suite as gymnasium environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from jaxrl_stack.env.wrappers.dm_env_wrapper import bounds_of, ends


class DMCEnv(gym.Env):
    """A task of `dm_control.suite` with flat observations or images, and actions in [-1, 1].

    A step that ends an episode terminates it if the discount is 0, and truncates it otherwise. Infos hold "discount"
    and the physics' "internal_state" from before the step. Other attributes are read from the suite's environment.

    Args:
        domain_name: Such as "cartpole".
        task_name: Such as "swingup".
        task_kwargs: Arguments of the task. The seed of `reset` replaces its argument "random".
        visualize_reward: Colours in images show the reward.
        from_pixels: Observe images, not the state.
        height: Height of images, in pixels.
        width: Likewise.
        camera_id: The camera of images.
        frame_skip: Number of times that each action is repeated; rewards are summed.
        environment_kwargs: Arguments of the suite's environment.
        channels_first: Images are ``[3, height, width]`` and not ``[height, width, 3]``.
        preprocess: Images are float32 in [-0.5, 0.5], not uint8.

    Raises:
        ImportError: `dm_control` is not installed.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        domain_name: str,
        task_name: str,
        task_kwargs: dict[str, Any] | None = None,
        visualize_reward: bool = False,
        from_pixels: bool = False,
        height: int = 64,
        width: int = 64,
        camera_id: int = 0,
        frame_skip: int = 2,
        environment_kwargs: dict[str, Any] | None = None,
        channels_first: bool = True,
        preprocess: bool = True,
    ):
        try:
            from dm_control import suite  # pyright: ignore[reportMissingImports] - optional
        except ImportError as error:
            raise ImportError(
                f"DMCEnv({domain_name!r}, {task_name!r}) needs dm_control ({error}): pip install 'dm-control'."
            ) from error
        self._env: Any = suite.load(
            domain_name=domain_name,
            task_name=task_name,
            task_kwargs=task_kwargs,
            visualize_reward=visualize_reward,
            environment_kwargs=environment_kwargs,
        )
        self.render_mode = "rgb_array"
        self.from_pixels, self.frame_skip = from_pixels, frame_skip
        self.channels_first, self.preprocess = channels_first, preprocess
        self.camera = {"height": height, "width": width, "camera_id": camera_id}
        self._low, self._high = bounds_of(self._env.action_spec())
        self.action_space = Box(-1.0, 1.0, self._low.shape, np.float32)
        bounds = [map(np.ravel, bounds_of(spec)) for spec in self._env.observation_spec().values()]
        low, high = (np.concatenate(parts).astype(np.float32) for parts in zip(*bounds, strict=True))
        self.state_space = self.observation_space = Box(low, high, dtype=np.float32)
        if from_pixels:
            shape = (3, height, width) if channels_first else (height, width, 3)
            self.observation_space = Box(-0.5, 0.5, shape, np.float32) if preprocess else Box(0, 255, shape, np.uint8)
        self.current_state: np.ndarray | None = None
        """State of the last step, float32, also if images are observed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self._env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Resets the task; returns its first observation and empty infos. A seed reseeds the task's random number
        generator.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._env.task.random.seed(seed)
        return self._observed(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Applies the action for `frame_skip` steps of the task, or until the episode ends; the returned reward is the
        sum over these steps.

        Raises:
            ValueError: The action is not in the action space.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"The action {action!r} is not in {self.action_space}. Give an action of this space.")
        infos = {"internal_state": self._env.physics.get_state().copy()}
        true_action = self._low + (action.astype(np.float64) + 1.0) / 2.0 * (self._high - self._low)
        reward = 0.0
        for _ in range(self.frame_skip):
            time_step = self._env.step(true_action)
            reward += time_step.reward or 0.0
            if time_step.last():
                break
        return self._observed(time_step), reward, *ends(time_step), infos | {"discount": time_step.discount}

    def render(
        self, mode: str = "rgb_array", height: int | None = None, width: int | None = None, camera_id: int | None = None
    ) -> np.ndarray:
        """Renders an image, uint8 ``[height, width, 3]``.

        Args:
            mode: "rgb_array".
            height: Height in pixels; None: the constructor argument.
            width: Width in pixels; None: the constructor argument.
            camera_id: The camera; None: the constructor argument.

        Raises:
            ValueError: For another mode.
        """
        if mode != "rgb_array":
            raise ValueError(f"{type(self).__name__}.render(mode={mode!r}) is not supported. Use mode='rgb_array'.")
        given = {"height": height, "width": width, "camera_id": camera_id}
        asked = {name: value for name, value in given.items() if value is not None}
        return self._env.physics.render(**{**self.camera, **asked})

    def _observed(self, time_step: Any) -> np.ndarray:
        observations: Mapping[str, Any] = time_step.observation
        self.current_state = np.concatenate([np.ravel(part) for part in observations.values()]).astype(np.float32)
        if not self.from_pixels:
            return self.current_state
        image = self.render()
        if self.channels_first:
            image = image.transpose(2, 0, 1).copy()
        return (image / 255.0 - 0.5).astype(np.float32) if self.preprocess else image


class ActionClip(gym.ActionWrapper):
    """Clips actions to [-1, 1], and declares this range as the action space."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.action_space = Box(-1.0, 1.0, env.action_space.shape, np.float32)

    def action(self, action: np.ndarray) -> np.ndarray:
        """Clips an action to [-1, 1]."""
        return np.clip(action, -1.0, 1.0)
