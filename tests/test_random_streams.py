"""Whatever draws random numbers has a stream of its own: no two of them say the same, wherever a policy acts."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.policy import Policy, load_exported
from jaxrl_stack.utils.streams import Stream, named, stream_key

NUM_STEPS = 2048


class OneStep(ConfiguredEnv):
    """Observation 0, one step per episode, cut off: all that varies was drawn elsewhere."""

    defaults = {"discrete": False}

    @property
    def observation_space(self):
        return gym.spaces.Box(-10.0, 10.0, (2,), np.float32)

    @property
    def action_space(self):
        return gym.spaces.Discrete(2) if self.settings["discrete"] else gym.spaces.Box(-10.0, 10.0, (1,), np.float32)

    def reset_env(self, key, params):
        return jnp.zeros((2,), jnp.float32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros((2,), jnp.float32), state, 0.0, False, True, {}


class GymnasiumOneStep(GymnasiumFromJax):
    def __init__(self, config):
        super().__init__(OneStep(config))


class ObservationNoise(ConnectorV2):
    """Uniform noise on one feature; with two actions, a sampler with the same key would follow it."""

    def __init__(self, *args, feature=0, **kwargs):
        super().__init__(*args, **kwargs)
        self._feature = feature

    def apply(self, state, batch, ctx):
        out = {}
        for module_id, columns in batch.items():
            obs = jnp.asarray(columns[Columns.OBS])
            noise = jax.random.uniform(ctx.key, (obs.shape[0],))
            out[module_id] = {**columns, Columns.OBS: obs.at[:, self._feature].add(noise)}
        return state, out


class ActionNoise(ConnectorV2):
    """Leaves its noise in a column."""

    def apply(self, state, batch, ctx):
        out = {}
        for module_id, columns in batch.items():
            noise = jax.random.uniform(ctx.key, (columns[Columns.ACTIONS].shape[0],))
            out[module_id] = {**columns, "action_noise": noise}
        return state, out


class DropoutPolicy(RLModule, ValueFunctionAPI):
    """Standard normal or fair actions, and a dropout layer whose mask is reported."""

    def setup(self):
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)
        self.critic = nnx.Linear(2, 1, rngs=self.rngs)

    def compute_values(self, batch, embeddings=None):
        return self.critic(batch[Columns.OBS])[..., 0]

    def _forward(self, batch, **kwargs):
        rows = batch[Columns.OBS].shape[0]
        mask = self.dropout(jnp.ones((rows,), jnp.float32), deterministic=False)
        return {Columns.ACTION_DIST_INPUTS: jnp.zeros((rows, 2), jnp.float32), "dropout": mask}


def config(driver, discrete):
    return (
        PPOConfig()
        .environment(OneStep if driver == "device" else GymnasiumOneStep, env_config={"discrete": discrete})
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=4,
            env_to_module_connector=lambda *args, **kwargs: [ObservationNoise(), ObservationNoise(feature=1)],
            module_to_env_connector=lambda *args, **kwargs: [ActionNoise()],
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=DropoutPolicy))
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


def signals_of(episodes):
    """``{consumer: float [N]}`` of episodes of one step."""
    observations = np.stack([np.asarray(episode.get_observations()) for episode in episodes])
    extra = {
        name: np.array([episode.get_extra_model_outputs(name)[0] for episode in episodes])
        for name in ("action_noise", "dropout")
    }
    return {
        "first connector": observations[:, 0, 0],
        "second connector": observations[:, 0, 1],
        "first connector, final observation": observations[:, 1, 0],
        "second connector, final observation": observations[:, 1, 1],
        "actions": np.array([np.ravel(episode.get_actions()[0])[0] for episode in episodes]),
        **extra,
    }


def assert_unrelated(signals):
    names = list(signals)
    values = np.stack([np.asarray(signals[name], np.float64) for name in names])
    assert (values.std(axis=1) > 0).all(), names
    n = len(names)
    # Also with what was drawn one and four rows before: the step before, for one and four environments.
    for lag in (0, 1, 4):
        related = np.abs(np.corrcoef(values[:, lag:], values[:, : values.shape[1] - lag])[:n, n:])
        related -= np.eye(n) * (lag == 0)
        first, second = np.unravel_index(related.argmax(), related.shape)
        assert related.max() < 0.1, (lag, names[first], names[second], related.max())


@pytest.mark.parametrize(("driver", "discrete"), [("device", False), ("host", True)])
def test_no_consumer_draws_what_another_one_drew_while_sampling(driver, discrete):
    algo = config(driver, discrete).build_algo()
    try:
        signals = signals_of(algo.env_runner.sample(num_timesteps=NUM_STEPS))
    finally:
        algo.stop()
    assert_unrelated(signals)
    for name in ("first connector", "first connector, final observation"):
        assert len(np.unique(signals[name])) > 0.99 * NUM_STEPS


def served(discrete):
    action_space = OneStep({"discrete": discrete}).action_space
    observation_space = OneStep({}).observation_space
    env_to_module = EnvToModulePipeline(
        observation_space, action_space, connectors=[ObservationNoise(), ObservationNoise(feature=1)]
    )
    module_to_env = ModuleToEnvPipeline(
        observation_space,
        action_space,
        connectors=[GetActions(), NormalizeAndClipActions(normalize_actions=False, clip_actions=False), ActionNoise()],
    )
    module = SeesItsInputs(observation_space=observation_space, action_space=action_space, rngs=0)
    return Policy(module, env_to_module, module_to_env, seed=5)


class SeesItsInputs(DropoutPolicy):
    """Reports what the env-to-module pipeline made."""

    def _forward(self, batch, **kwargs):
        return {**super()._forward(batch), "seen": batch[Columns.OBS]}


@pytest.mark.parametrize(("discrete", "exported"), [(True, False), (False, True)])
def test_no_consumer_draws_what_another_one_drew_while_serving(tmp_path, discrete, exported):
    policy = served(discrete)
    if exported:
        policy.export(tmp_path / "policy", explore=True)
        policy = load_exported(tmp_path / "policy")
    rows: list[dict[str, np.ndarray]] = []
    state = None
    for _ in range(16):
        arguments = {} if exported else {"explore": True}
        actions, state, outputs = policy.compute_actions(np.zeros((128, 2), np.float32), state, **arguments)
        rows.append(
            {
                "first connector": outputs["seen"][:, 0],
                "second connector": outputs["seen"][:, 1],
                "actions": np.reshape(actions, (128, -1))[:, 0],
                "action_noise": outputs["action_noise"],
                "dropout": outputs["dropout"],
            }
        )
    assert_unrelated({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


def test_pipelines_that_are_called_on_their_own_draw_differently():
    space = OneStep({}).observation_space
    batch = {Columns.OBS: np.zeros((NUM_STEPS, 2), np.float32)}
    noise = EnvToModulePipeline(space, space, connectors=[ObservationNoise()])(batch=batch)[Columns.OBS][:, 0]
    after = ModuleToEnvPipeline(space, space, connectors=[ActionNoise()])(
        batch={Columns.ACTIONS: np.zeros((NUM_STEPS, 2), np.float32)}
    )["action_noise"]
    alone = ObservationNoise(space, space)(batch=batch)[Columns.OBS][:, 0]
    assert_unrelated({"env_to_module": noise, "module_to_env": after, "alone": alone})


def test_streams_of_a_seed_are_different_keys():
    keys = [np.asarray(jax.random.key_data(stream_key(0, stream))) for stream in Stream]
    counted = [np.asarray(jax.random.key_data(jax.random.fold_in(keys_of, 1))) for keys_of in map(_typed, keys)]
    names = [np.asarray(jax.random.key_data(named(_typed(keys[0]), name))) for name in ("a", "b", "GetActions")]
    everything = [tuple(key.tolist()) for key in [*keys, *counted, *names]]
    assert len(set(everything)) == len(everything)


def _typed(bits):
    return jax.random.wrap_key_data(jnp.asarray(bits))
