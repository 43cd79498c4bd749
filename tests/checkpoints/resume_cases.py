"""Runs that are interrupted, and another process that goes on with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints.files import opened
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import (
    FlattenObservations,
    FrameStackingEnvToModule,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from jaxrl_stack.connectors.learner import ScaleRewards
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis.value_function_api import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.runs.history import History
from jaxrl_stack.utils.checkpoints import register_class
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.results import flatten_result

# ------------------------------------------------------------------------------------------------------- what they use


@register_class
def connectors(env, spaces, device):
    return [
        FrameStackingEnvToModule(num_frames=2),
        MeanStdFilter(),
        PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=1),
    ]


@register_class
def flat_connectors(env, spaces, device):
    return [*connectors(env, spaces, device), FlattenObservations()]


@register_class
def filter_alone(env, spaces, device):
    return MeanStdFilter()


@register_class
def halved(*spaces):
    return ScaleRewards(factor=0.5)


class CountsCalls(ConnectorV2):
    """RLlib's form of a connector, with a state of its own."""

    calls = 0

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        self.calls += 1
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = int(state["calls"])


class CountsSteps(ConnectorV2):
    """A number for all environments."""

    def init(self, num_envs):
        return {"steps": jnp.int32(0)}

    def apply(self, state, batch, ctx):
        return {"steps": state["steps"] + 1}, batch

    def rebatch(self, state, num_envs):
        return state


@register_class
def counting_calls(env, spaces, device):
    return CountsCalls()


@register_class
def counting_steps(env, spaces):
    return CountsSteps()


@register_class
class Numbers(RLlibCallback):
    """Numbers of several kinds that need whole episodes, and one per iteration."""

    def on_episode_start(self, *, episode, **kwargs):
        episode.custom_data["first"] = float(np.sum(episode.get_observations(0)))

    def on_episode_end(self, *, episode, metrics_logger, prev_episode_chunks=(), **kwargs):
        chunks = [*prev_episode_chunks, episode]
        # The first observation of all that belongs to the episode, and the sum of what it saw.
        metrics_logger.log_value("seen", sum(float(np.sum(c.get_observations())) for c in chunks), window=7)
        metrics_logger.log_value("first", chunks[0].custom_data["first"], reduce="ema", ema_coeff=0.1)
        metrics_logger.log_value("steps", sum(map(len, chunks)), reduce="lifetime_sum")

    def on_train_result(self, *, metrics_logger, result, **kwargs):
        metrics_logger.log_value(("mine", "most"), result["env_runners"]["num_episodes"], reduce="max", window=4)


class Noisy(RLModule, ValueFunctionAPI):
    """Dropout and batch statistics."""

    def setup(self):
        self.first = nnx.Linear(self.observation_space.shape[0], 4, rngs=self.rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=self.rngs)
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)
        self.pi = nnx.Linear(4, 2, rngs=self.rngs)
        self.vf = nnx.Linear(4, 1, rngs=self.rngs)

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.pi(self.norm(self.first(batch[Columns.OBS]), True))}

    def _forward_train(self, batch):
        hidden = self.dropout(self.norm(self.first(batch[Columns.OBS]), False))
        return {Columns.ACTION_DIST_INPUTS: self.pi(hidden)}

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.first(batch[Columns.OBS]))[..., 0]


class Marching(gym.Env):
    """Episodes of one length without random numbers of their own: what the actions were decides everything."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.length = config["length"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.x += 2 * int(action) - 1
        return np.float32([self.t, self.x]), float(abs(self.x)), self.t == self.length, False, {}


class RecordedCartPole(gym.Wrapper):
    """CartPole that writes down where its episodes start."""

    starts: list[tuple[float, ...]] = []

    def __init__(self, config=None):
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        self.starts.append(tuple(obs.tolist()))
        return obs, info


ALLOWED = (Noisy, Marching, RecordedCartPole, CountsCalls, CountsSteps)

# ------------------------------------------------------------------------------------------------------------- configs


def on_device(**env_runners) -> PPOConfig:
    return (
        PPOConfig()
        .environment("gymnax/CartPole-v1", env_config={"max_steps_in_episode": 11})
        .env_runners(
            **{
                "num_envs_per_env_runner": 8,
                "rollout_fragment_length": 4,
                "env_to_module_connector": filter_alone,
                **env_runners,
            }
        )
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .reporting(metrics_num_episodes_for_smoothing=20)
        .debugging(seed=3)
    )


def with_everything() -> PPOConfig:
    """`noisy`, with schedules, histories, statistics, callbacks, and two fragments per train batch."""
    return (
        on_device(env_to_module_connector=flat_connectors)
        .training(
            lr=[[0, 0.01], [2000, 0.001]],
            entropy_coeff=[[0, 0.02], [2000, 0.0]],
            kl_coeff=0.3,
            kl_target=0.001,
            grad_clip=0.5,
        )
        .learners(num_cpus_per_learner=2)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Noisy))
        .callbacks(Numbers)
    )


def noisy() -> PPOConfig:
    """A module with random layers and batch statistics, on two devices."""
    return on_device().learners(num_cpus_per_learner=2).rl_module(rl_module_spec=RLModuleSpec(module_class=Noisy))


def on_host(**env_runners) -> PPOConfig:
    """Episodes that end with every fragment: one that starts anew is one that goes on."""
    return (
        PPOConfig()
        .environment(Marching, env_config={"length": 8})
        .env_runners(
            **{
                "num_env_runners": 0,
                "num_envs_per_env_runner": 4,
                "rollout_fragment_length": 8,
                "env_to_module_connector": filter_alone,
                **env_runners,
            }
        )
        .training(
            train_batch_size_per_learner=32,
            minibatch_size=16,
            num_epochs=2,
            lr=[[0, 0.01], [400, 0.001]],
            entropy_coeff=[[0, 0.02], [400, 0.0]],
            kl_coeff=0.3,
            grad_clip=0.5,
        )
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .callbacks(Numbers)
        .reporting(metrics_num_episodes_for_smoothing=10)
        .debugging(seed=3)
    )


# ----------------------------------------------------------------------------------------------------- what they leave

_OF_THE_CLOCK = re.compile(
    r"(?<!life)time(?!steps)|_since_restore|throughput|duration|(^|/)sample$|(^|/)perf/|(^|/)pid$|^date$|^hostname$|/ids/"
)


def learned(result: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in equal runs: all but times and names."""
    flat = flatten_result({key: value for key, value in result.items() if key != "config"})
    return {key: _plain(value) for key, value in flat.items() if not _OF_THE_CLOCK.search(key)}


def _plain(value: Any) -> Any:
    """As JSON says it; NaN is equal to itself there."""
    if isinstance(value, np.generic | jax.Array | np.ndarray):
        value = np.asarray(value).tolist()
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def columns_of(history: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the state of a history says, by column."""
    table = History()
    table.set_state(history)
    return {name: table[name] for name in table}


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    """``{path: leaf}`` of a state, without times."""
    if isinstance(state, dict):
        if "blocks" in state and "widths" in state:  # a table, some of whose columns are times
            state = columns_of(state)
        out: dict[str, Any] = {}
        if "stats_cls_identifier" in state and _OF_THE_CLOCK.search("/".join(state["key"])):
            return out
        for name, item in state.items():
            out |= leaves(item, f"{path}/{name}")
        return out
    if isinstance(state, list | tuple):
        return {path: f"{len(state)} items"} | {
            k: v for i, item in enumerate(state) for k, v in leaves(item, f"{path}/{i}").items()
        }
    if _OF_THE_CLOCK.search(path):
        return {}
    if isinstance(state, jax.Array) and jax.dtypes.issubdtype(state.dtype, jax.dtypes.prng_key):
        return {path: np.asarray(jax.random.key_data(state))}
    return {path: state}


def assert_same(state: Any, expected: Any) -> None:
    """Bit for bit, dtypes included."""
    state, expected = leaves(state), leaves(expected)
    assert not state.keys() ^ expected.keys()
    for path, wanted in expected.items():
        given = state[path]
        if isinstance(wanted, np.ndarray | np.generic | jax.Array):
            assert np.asarray(given).dtype == np.asarray(wanted).dtype, path
            np.testing.assert_array_equal(given, wanted, err_msg=path)
        else:
            assert _plain(given) == _plain(wanted), path


def stored(path: Any) -> dict[str, Any]:
    """The whole state in a checkpoint."""
    with opened(path) as checkpoint:
        return checkpoint.state(ClassLoader(ALLOWED))


# ------------------------------------------------------------------------------------------------- the other process


class OtherProcess:
    """A Python process of its own that goes on with checkpoints."""

    def __init__(self, **environment: str):
        here = Path(__file__).parent
        paths = os.pathsep.join([str(here), str(here.parent.parent)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import resume_cases; resume_cases.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths} | environment,
        )

    def ask(self, checkpoint: Any, iterations: int, save_to: Any, **settings: Any) -> None:
        """Let it go on with a checkpoint; `answer` waits."""
        assert self._process.stdin is not None
        request = {
            "checkpoint": str(checkpoint),
            "iterations": iterations,
            "save_to": str(save_to),
            "settings": settings,
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self) -> list[dict[str, Any]]:
        """The results of the iterations that were asked for."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
        raise AssertionError(f"The other process has ended: {self._process.wait()}")

    def close(self) -> None:
        self._process.communicate(timeout=60)


_ANSWER = "answer: "


def serve() -> None:
    """What the other process does."""
    for line in sys.stdin:
        request = json.loads(line)
        algo = PPO.from_checkpoint(request["checkpoint"], allow=ALLOWED, **request["settings"])
        results = [learned(algo.train()) for _ in range(request["iterations"])]
        algo.save_to_path(request["save_to"])
        algo.stop()
        print(_ANSWER + json.dumps(results), flush=True)
