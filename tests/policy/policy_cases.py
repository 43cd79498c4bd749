"""Parts that the tests of policies share."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import io_callback

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import (
    EnvToModulePipeline,
    FlattenObservations,
    FrameStackingEnvToModule,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.jax_env import GymnaxEnv, JaxEnv
from jaxrl_stack.policy import Policy
from jaxrl_stack.utils.spaces import zeros

OBSERVATIONS = gym.spaces.Box(-2.0, 2.0, (3,), np.float32)
STEPS: list[dict[str, np.ndarray]] = []
"""What `RecordedJaxEnv` saw, one entry per vector step: obs, action, reward, ended, each ``[B, ...]``."""
EPISODES: list[list[tuple[Any, ...]]] = []
"""What `RecordedEnv` saw, one list ``[(obs, action, reward), ...]`` per episode."""


def config(env: Any, env_config: dict[str, Any]) -> PPOConfig:
    """PPO with a history, statistics and small networks; evaluation takes greedy actions."""
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=2,
            env_to_module_connector=lambda *args, **kwargs: [
                FrameStackingEnvToModule(num_frames=3),
                MeanStdFilter(),
                PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2),
            ],
        )
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8], "fcnet_activation": "tanh"})
        .learners(num_cpus_per_learner=1)
        .evaluation(evaluation_duration=3, evaluation_config={"explore": False})
        .debugging(seed=1)
    )


@dataclasses.dataclass(frozen=True)
class _Recorded:
    inner: Any
    obs: Any


jax.tree_util.register_dataclass(_Recorded)


class RecordedJaxEnv(JaxEnv):
    """A gymnax environment that writes down what it is asked and what it answers."""

    def __init__(self, config):
        super().__init__()
        self._env = GymnaxEnv(config["id"], {"max_steps_in_episode": 20})

    @property
    def observation_space(self):
        return self._env.observation_space

    @property
    def action_space(self):
        return self._env.action_space

    @property
    def params(self):
        return self._env.params

    def reset(self, key, params):
        obs, state = self._env.reset(key, params)
        return obs, _Recorded(state, obs)

    def step(self, key, state, action, params):
        step = self._env.step(key, state.inner, action, params)
        return step._replace(state=_Recorded(step.state, step.obs))

    def step_batch(self, keys, state, action, params):
        step = super().step_batch(keys, state, action, params)
        row = {"obs": state.obs, "action": action, "reward": step.reward, "ended": step.terminated | step.truncated}
        io_callback(lambda row: STEPS.append(jax.tree.map(np.array, row)), None, row, ordered=True)
        return step


class RecordedEnv(gym.Wrapper):
    """A gymnasium environment that writes down its episodes."""

    def __init__(self, config):
        super().__init__(gym.make(config["id"], max_episode_steps=20))

    def reset(self, **kwargs):
        self.obs, info = super().reset(**kwargs)
        self.episode: list[tuple[Any, ...]] = []
        EPISODES.append(self.episode)
        return self.obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.episode.append((np.array(self.obs), np.array(action), reward))
        self.obs = obs
        return obs, reward, terminated, truncated, info


class RecordingHostConnector(ConnectorV2):
    """RLlib's form of a connector: adds the number of the step and the last action to the observation."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (input_observation_space.shape[0] + 2,), np.float32)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            last = float(episode.get_actions(-1)) if len(episode) else -1.0
            observation = np.append(episode.get_observations(-1), np.float32([len(episode), last]))
            self.add_batch_item(batch, Columns.OBS, observation.astype(np.float32), episode)
        return batch


class CountingHostConnector(ConnectorV2):
    """Counts its calls, and keeps the count in a state of its own."""

    calls = 0

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        self.calls += 1
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


class Net(RLModule):
    """One hidden layer; a class outside of the package."""

    def setup(self):
        is_discrete = isinstance(self.action_space, gym.spaces.Discrete)
        size = int(self.action_space.n) if is_discrete else 2 * self.action_space.shape[0]
        self.hidden = nnx.Linear(self.observation_space.shape[0], 4, rngs=self.rngs)
        self.head = nnx.Linear(4, size, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.head(jnp.tanh(self.hidden(batch[Columns.OBS])))}


class WithCritic(Net):
    """Has parameters that acting does not read; `hidden` is one of them, too."""

    def setup(self):
        super().setup()
        self.critic = nnx.Linear(3, 1, rngs=self.rngs)
        self.head = nnx.Linear(3, 2, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        values = self.critic(batch[Columns.OBS])
        del values
        return {Columns.ACTION_DIST_INPUTS: self.head(batch[Columns.OBS])}


class Nested(RLModule):
    """Acts itself, in a nested action space."""

    def _forward(self, batch, **kwargs):
        obs = batch[Columns.OBS]
        return {Columns.ACTIONS: {"move": jnp.argmax(obs, -1), "at": jnp.tanh(obs[..., :2])}}


class KnowsItsBatch(Net):
    """Looks at the number of rows while it is traced."""

    def _forward(self, batch, **kwargs):
        rows = float(batch[Columns.OBS].shape[0])
        return {Columns.ACTION_DIST_INPUTS: super()._forward(batch)[Columns.ACTION_DIST_INPUTS] / rows}


class Memory(RLModule):
    """A module with a recurrent state: the running sum of its observations decides."""

    def get_initial_state(self):
        return {"sum": np.full(3, 0.5, np.float32)}

    def _forward(self, batch, **kwargs):
        total = batch[Columns.STATE_IN]["sum"][:, None] + jnp.cumsum(batch[Columns.OBS], axis=1)
        logits = jnp.stack([total.sum(-1), -total.sum(-1)], -1)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.STATE_OUT: {"sum": total[:, -1]}}


def policy(
    module_class: Any = Net,
    action_space: Any = None,
    connectors: Any = None,
    observation_space: gym.Space = OBSERVATIONS,
    **kwargs: Any,
) -> Policy:
    """A policy that was never trained, by default with a history, statistics and a discrete action space."""
    action_space = gym.spaces.Discrete(2) if action_space is None else action_space
    if connectors is None:
        connectors = [
            FrameStackingEnvToModule(num_frames=2),
            MeanStdFilter(),
            PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2),
            FlattenObservations(),
        ]
    env_to_module = EnvToModulePipeline(observation_space, action_space, connectors=connectors)
    module_to_env = ModuleToEnvPipeline(
        observation_space,
        action_space,
        connectors=[GetActions(), NormalizeAndClipActions(normalize_actions=True, clip_actions=False)],
    )
    rows = np.random.default_rng(0).normal(0.3, 0.7, (5, 3)).astype(np.float32)
    if "MeanStdFilter" in env_to_module.names and not env_to_module.host_connectors:
        env_to_module(batch={Columns.OBS: rows}, reset=np.ones(5, bool), **no_history(env_to_module, 5))
    module = module_class(
        observation_space=env_to_module.observation_space, action_space=env_to_module.action_space, rngs=3
    )
    return Policy(module, env_to_module, module_to_env, **kwargs)


def no_history(pipeline: Any, num_envs: int) -> dict[str, Any]:
    """Previous actions and rewards of episodes that have none."""
    return {
        "prev_actions": {"default_policy": zeros(pipeline.action_space, (num_envs,))},
        "prev_rewards": {"default_policy": np.zeros(num_envs, np.float32)},
    }


def observations(num_steps: int, num_envs: int) -> np.ndarray:
    """``[T, B, 3]``."""
    return np.random.default_rng(7).uniform(-2, 2, (num_steps, num_envs, 3)).astype(np.float32)
