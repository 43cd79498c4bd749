"""JAX environment and the config of PPO for it. The environment is a corridor; an episode ends at the right end.

jaxrl train file skeleton.py
"""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack import AutoResetJaxEnv, PPOConfig


class SkeletonEnv(AutoResetJaxEnv):
    """Corridor with steps to the left and to the right. All functions are traced: use jnp.where instead of if."""

    def __init__(self, config: dict):
        self.length = config.get("length", 8)

    @property
    def observation_space(self):
        return gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return gym.spaces.Discrete(2)

    def reset_env(self, key, params):
        """Returns the first observation and state of an episode; random values come from the key."""
        state = {"position": jax.random.randint(key, (), 0, self.length // 2), "time": 0}
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        """Makes one step. `AutoResetJaxEnv` starts the next episode after the last step of an episode."""
        position = jnp.clip(state["position"] + jnp.where(action == 1, 1, -1), 0, self.length)
        state = {"position": position, "time": state["time"] + 1}
        reward = -1.0
        terminated = position == self.length  # nothing comes after it
        truncated = state["time"] >= 100  # cut off: what would have come after it counts
        return self._observe(state), state, reward, terminated, truncated, {}

    def render(self, state):
        """Returns a frame for videos: uint8 [height, width, 3]. Remove the method if there is nothing to show."""
        cells = np.full((1, self.length + 1, 3), 230, np.uint8)
        cells[0, -1] = (90, 170, 90)
        cells[0, state["position"]] = (40, 80, 160)
        return cells.repeat(40, axis=0).repeat(40, axis=1)

    def _observe(self, state):
        return jnp.stack([state["position"] / self.length])


config = (
    PPOConfig()
    .environment(SkeletonEnv, env_config={"length": 8})
    .env_runners(num_envs_per_env_runner=32)
    .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=4, lr=1e-3)
)
stop = {"env_runners/episode_return_mean": -7.0, "num_env_steps_sampled_lifetime": 200_000}
