"""JAX environments: gymnax through the adapter, the checks of the interface, what a config's env means."""

from __future__ import annotations

import copy
import functools
import importlib
import pickle
import subprocess
import sys
from typing import ClassVar, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env import registry
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.env_settings import with_derived_fields
from jaxrl_stack.env.gymnax_import import import_gymnax
from jaxrl_stack.env.jax_env import (
    AutoResetJaxEnv,
    GymnaxEnv,
    JaxEnv,
    JaxStep,
    check_jax_env,
    gymnax_space_to_gymnasium,
)
from jaxrl_stack.env.registry import GYMNAX_IDS, register_env, resolve_env
from jaxrl_stack.utils import spaces

# Without the libraries that draw, which take longer to import than the rest.
gymnax, wrappers = import_gymnax(), importlib.import_module("gymnax.wrappers")
gymnax_spaces = gymnax.environments.spaces
NUM_ENVS, NUM_STEPS = 3, 20

# Environments that gymnax gives too narrow a space: MNIST's pixels are read as int8, so that bright ones
# become negative; MemoryChain's bits are -1 and 1, its bound below is 0; GaussianBandit's reward and time
# fall below 0.
OUTSIDE_OF_THEIR_SPACE = {"MNISTBandit-bsuite", "MemoryChain-bsuite", "GaussianBandit-misc"}


@pytest.fixture(autouse=True)
def _tiny_mnist(monkeypatch):
    """Stands in for the download of MNIST: ten images in the format of gymnax's own loader."""
    images = np.arange(10 * 28 * 28, dtype=np.int64).reshape(10, 28, 28).astype(np.int8)
    labels = np.arange(10, dtype=np.uint8)
    monkeypatch.setattr(gymnax.utils.load_mnist, "load_mnist", lambda: ((images, labels), (images, labels)))


@pytest.fixture
def _creators(monkeypatch):
    """Undoes registrations."""
    monkeypatch.setattr(registry, "_creators", {})


def unroll(env: JaxEnv, step, reset, num_steps: int = NUM_STEPS, **constants):
    """Random actions in `NUM_ENVS` environments; ``(first obs, steps [T, B, ...])``.

    ``params=env.params`` makes these a part of the program.
    """

    def run(key, params):
        key, reset_key = jax.random.split(key)
        obs, state = jax.vmap(reset, in_axes=(0, None))(jax.random.split(reset_key, NUM_ENVS), params)

        def body(state, key):
            action_key, step_key = jax.random.split(key)
            actions = spaces.sample(action_key, env.action_space, (NUM_ENVS,))
            after = jax.vmap(step, in_axes=(0, 0, 0, None))(
                jax.random.split(step_key, NUM_ENVS), state, actions, params
            )
            return after.state, after

        _, steps = jax.lax.scan(body, state, jax.random.split(key, num_steps))
        return obs, steps

    given = {} if constants else {"params": env.params}
    first, steps = jax.jit(functools.partial(run, **constants))(jax.random.key(0), **given)
    # Walk's state holds a key, which has no NumPy form.
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x), (first, steps))


def gymnax_reference(env: GymnaxEnv):
    """gymnax's own ``step``, with dtypes fixed by hand: the scan's carry has to keep its types."""

    def strong(tree):
        return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.result_type(x)), tree)

    def reset(key, params):
        obs, state = env.env.reset(key, params)
        return obs, strong(state)

    def step(key, state, action, params):
        obs, state, reward, terminated, truncated, info = env.env.step(key, state, action, params)
        return JaxStep(obs, strong(state), reward, terminated, truncated, info["final_observation"], {})

    return step, reset


def test_the_list_of_ids_is_gymnaxs():
    assert list(GYMNAX_IDS) == gymnax.registered_envs


@functools.cache
def env_of(env_id):
    return GymnaxEnv(env_id)


def kind_of(env_id):
    """What a network, a loss and a program are made for: the types, ranks and dtypes of an environment's spaces."""
    env = env_of(env_id)
    return [
        (type(space), len(space.shape), spaces.dtype_of(space)) for space in (env.observation_space, env.action_space)
    ]


def assert_within_its_space(env_id, obs):
    space = env_of(env_id).observation_space
    assert obs.dtype == spaces.dtype_of(space)
    assert spaces.validate_batch(space, obs) == obs.shape[: obs.ndim - len(space.shape)] and len(obs) > 0
    if env_id not in OUTSIDE_OF_THEIR_SPACE:
        low, high = (0, space.n - 1) if isinstance(space, Discrete) else (space.low, space.high)
        assert (obs >= np.asarray(low) - 1e-5).all() and (obs <= np.asarray(high) + 1e-5).all()


def assert_steps_keep(env_id, steps):
    """Steps ``[T, B, ...]`` have an environment's spaces and types."""
    for obs in (steps.obs, steps.final_obs):
        assert_within_its_space(env_id, obs)
    assert (steps.reward.dtype, steps.terminated.dtype, steps.truncated.dtype) == (jnp.float32, bool, bool)
    assert np.isfinite(steps.reward).all()
    ended = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.final_obs[~ended], steps.obs[~ended])


@pytest.mark.parametrize("env_id", GYMNAX_IDS)
def test_every_gymnax_env_keeps_its_spaces(env_id):
    """The parameters are constants, as they are where a program trains."""
    env = env_of(env_id)
    first, steps = unroll(env, env.step, env.reset, params=env.params)
    assert_within_its_space(env_id, first)
    assert steps.obs.shape[:2] == (NUM_STEPS, NUM_ENVS)
    assert_steps_keep(env_id, steps)


@pytest.mark.parametrize("env_id", GYMNAX_IDS)
def test_steps_of_every_gymnax_env_have_the_shapes_and_types_of_its_spaces(env_id):
    env, space = env_of(env_id), env_of(env_id).observation_space
    action = jax.eval_shape(lambda key: spaces.sample(key, env.action_space, ()), jax.random.key(0))
    first, state = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    after = jax.eval_shape(env.step, jax.random.key(0), state, action, env.params)
    for obs in (first, after.obs, after.final_obs):
        assert (obs.shape, obs.dtype) == (space.shape, spaces.dtype_of(space))
    assert jax.tree.map(jax.typeof, after.state) == jax.tree.map(jax.typeof, state)
    flags = [(x.shape, x.dtype) for x in (after.reward, after.terminated, after.truncated)]
    assert flags == [((), np.float32), ((), bool), ((), bool)]


class RecordedEnv(GymnaxEnv):
    """Hands out what a program that trains on it sees: the first observations of episodes, and all steps."""

    first: ClassVar[list[np.ndarray]] = []
    steps: ClassVar[list[JaxStep]] = []

    def reset(self, key, params):
        obs, state = super().reset(key, params)
        jax.debug.callback(self.first.append, obs)
        return obs, state

    def step_batch(self, keys, state, action, params):
        after = super().step_batch(keys, state, action, params)
        jax.debug.callback(self.steps.append, after._replace(state=None, info={}))
        return after


TRAINED = ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite", "DeepSea-bsuite", "FrozenLake-misc"]


def test_every_kind_of_gymnax_env_is_trained_on():
    assert all(any(kind_of(env_id) == kind_of(trained) for trained in TRAINED) for env_id in GYMNAX_IDS)


@pytest.mark.parametrize("env_id", TRAINED)
def test_gymnax_envs_can_be_trained_on(env_id):
    env = RecordedEnv(env_id)
    RecordedEnv.first.clear()
    RecordedEnv.steps.clear()
    batch = NUM_ENVS * NUM_STEPS
    # One small convolution: the default filters take most of the time, and Pong's size has none.
    filters = {"conv_filters": [[2, 4, 4]]} if len(env.observation_space.shape or ()) == 3 else {}
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size_per_learner=batch, minibatch_size=batch, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8], **filters})
    )
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    jax.effects_barrier()
    assert results[-1]["num_env_steps_sampled_lifetime"] == 2 * batch
    assert np.isfinite([result["learners"]["default_policy"]["total_loss"] for result in results]).all()
    steps = jax.tree.map(lambda *x: np.stack(x), *RecordedEnv.steps)
    assert steps.obs.shape[:2] == (2 * NUM_STEPS, NUM_ENVS)
    assert_within_its_space(env_id, np.stack(RecordedEnv.first))  # once where all are the same
    assert_steps_keep(env_id, steps)
    algo.stop()


@pytest.mark.parametrize(
    ("env_id", "env_config"),
    [
        ("CartPole-v1", {"max_steps_in_episode": 7}),  # truncates; random actions also make it fall
        ("Pendulum-v1", {"max_steps_in_episode": 6}),  # truncates only
        ("DeepSea-bsuite", {"size": 4}),  # has a step of its own, and ends both ways at once
        ("FrozenLake-misc", {}),  # integer observations
    ],
)
def test_steps_equal_gymnaxs_own(env_id, env_config):
    env = GymnaxEnv(env_id, env_config)
    obs, ours = unroll(env, env.step, env.reset)
    their_obs, theirs = unroll(env, *gymnax_reference(env))
    np.testing.assert_array_equal(obs, their_obs)
    assert (ours.terminated | ours.truncated).any()
    for field in ("obs", "state", "reward", "terminated", "truncated", "final_obs"):
        jax.tree.map(np.testing.assert_array_equal, getattr(ours, field), getattr(theirs, field))


def test_a_time_limit_truncates_and_keeps_the_final_observation():
    env = GymnaxEnv("CartPole-v1", {"max_steps_in_episode": 3})
    first, steps = unroll(env, env.step, env.reset, 6)
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.truncated[:, 0], [False, False, True] * 2)
    assert np.abs(steps.final_obs[2]).max() > 0.1  # the cart has been pushed about ...
    assert np.abs(steps.obs[2]).max() <= 0.05  # ... and the next episode starts near the middle
    assert np.abs(first).max() <= 0.05


def test_a_step_of_its_own_is_used():
    """DeepSea carries statistics over resets, StickyActionWrapper replays actions; not in `step_env`."""
    env = GymnaxEnv("DeepSea-bsuite", {"size": 3})
    _, steps = unroll(env, env.step, env.reset)
    assert (steps.state.total_bad_episodes[-1] > 1).all()
    # Its last row and its time limit fall together; both flags are kept.
    np.testing.assert_array_equal(steps.terminated, steps.truncated)
    np.testing.assert_array_equal(steps.terminated[:, 0], (np.arange(NUM_STEPS) + 1) % 3 == 0)

    sticky = GymnaxEnv(wrappers.StickyActionWrapper(gymnax.make("CartPole-v1")[0], 1.0), {"gravity": 5})
    key = jax.random.key(0)
    _, state = sticky.reset(key, sticky.params)
    after = sticky.step(key, state, 1, sticky.params)
    assert after.state.env_state.x_dot < 0  # pushed left by the replayed action 0
    assert sticky.params.gravity == 5.0


def test_env_config_sets_params_and_constructor_arguments():
    env = GymnaxEnv("gymnax/DeepSea-bsuite", {"size": 5, "deterministic": False})
    assert env.observation_space.shape == (5, 5)
    assert env.params.max_steps_in_episode == 5  # this default depends on the constructor's argument
    assert env.params.deterministic.dtype == bool and not env.params.deterministic
    env = GymnaxEnv("CartPole-v1", {"gravity": 10, "max_steps_in_episode": 50.0})
    assert (env.params.gravity, env.params.gravity.dtype) == (10.0, np.float32)
    assert (env.params.max_steps_in_episode, env.params.max_steps_in_episode.dtype) == (50, np.int32)
    assert GymnaxEnv("Pendulum-v1", {"max_torque": 0.5}).action_space == Box(-0.5, 0.5, (1,))
    chain = GymnaxEnv("DiscountingChain-bsuite", {"reward_timestep": [1, 2, 3, 4, 5]})
    np.testing.assert_array_equal(chain.params.reward_timestep, [1, 2, 3, 4, 5])


def test_fields_that_follow_from_others_are_computed_again(caplog):
    params = GymnaxEnv("gymnax/CartPole-v1", {"length": 1.0, "masspole": 0.5}).params
    np.testing.assert_allclose([params.polemass_length, params.total_mass], [0.5, 1.5])
    assert GymnaxEnv("gymnax/CartPole-v1", {"masscart": 3.0}).params.total_mass == pytest.approx(3.1)
    # A given value counts, and so does one that a user's own params have.
    assert GymnaxEnv("gymnax/CartPole-v1", {"length": 1.0, "polemass_length": 0.7}).params.polemass_length == (
        pytest.approx(0.7)
    )
    env, default = gymnax.make("CartPole-v1")
    own = GymnaxEnv(env, {"length": 1.0}, params=default.replace(polemass_length=0.7)).params
    assert own.polemass_length == pytest.approx(0.7)
    unchanged = GymnaxEnv("gymnax/CartPole-v1", {"gravity": 20.0}).params
    assert unchanged.total_mass == np.float32(default.total_mass)
    assert "link" not in caplog.text
    GymnaxEnv("gymnax/Acrobot-v1", {"link_length_1": 2.0})
    assert "keeps link_com_pos_1=0.5 and link_moi=1.0" in caplog.text


def test_derived_fields_can_be_traced():
    _, default = gymnax.make("CartPole-v1")
    lengths = jnp.array([0.5, 1.0, 2.0])
    params = jax.vmap(lambda length: with_derived_fields("CartPole", default, {"length": length}))(lengths)
    np.testing.assert_allclose(params.polemass_length, 0.1 * lengths, rtol=1e-6)


def test_a_changed_pole_moves_as_gymnasiums_does():
    env = GymnaxEnv("gymnax/CartPole-v1", {"length": 1.0, "masspole": 0.3})
    host = gym.make("CartPole-v1").unwrapped
    host.length, host.masspole = 1.0, 0.3
    host.total_mass, host.polemass_length = host.masspole + host.masscart, host.masspole * host.length
    obs, state = env.reset(jax.random.key(0), env.params)
    host.reset(seed=0)
    host.state = np.asarray(obs, np.float64)
    for t in range(5):
        obs, state = env.step_env(jax.random.key(t), state, jnp.array(t % 2), env.params)[:2]
        np.testing.assert_allclose(obs, host.step(t % 2)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("env_config", "words"),
    [
        ({"gravty": 9.8}, ["'gravty'", "Did you mean 'gravity'", "max_steps_in_episode", "arguments: none"]),
        ({"max_steps_in_episode": 1.5}, ["1.5", "integer", "default 500"]),
        ({"gravity": [1.0, 2.0]}, ["'gravity'", "float of shape ()"]),
        ({"gravity": "low"}, ["'low'", "float"]),
    ],
)
def test_a_wrong_env_config_is_named(env_config, words):
    with pytest.raises(ValueError, match="env_config") as error:
        GymnaxEnv("CartPole-v1", env_config)
    for word in words:
        assert word in str(error.value)


def test_wrong_settings_of_classes_and_instances_are_named():
    with pytest.raises(ValueError, match="Did you mean 'size'.*arguments: size, action_mapping_key"):
        GymnaxEnv(type(gymnax.make("DeepSea-bsuite")[0]), {"sise": 3})
    with pytest.raises(ValueError, match="It is an instance"):
        GymnaxEnv(gymnax.make("DeepSea-bsuite")[0], {"size": 3})
    with pytest.raises(ValueError, match="bool"):
        GymnaxEnv("DeepSea-bsuite", {"deterministic": 0.5})


def test_unknown_ids_and_old_interfaces_are_refused():
    with pytest.raises(ValueError, match="gymnax has no environment 'CartPole-v2'. Did you mean 'gymnax/CartPole-v1'"):
        GymnaxEnv("CartPole-v2")
    with pytest.raises(TypeError, match="LegacyStepAPIWrapper"):
        GymnaxEnv(wrappers.LegacyStepAPIWrapper(gymnax.make("CartPole-v1")[0]))


def test_a_missing_data_set_is_explained(monkeypatch):
    def offline():
        raise OSError("no route to host")

    monkeypatch.setattr(gymnax.utils.load_mnist, "load_mnist", offline)
    with pytest.raises(RuntimeError, match="MNISTBandit-bsuite could not load the data.*no route to host"):
        GymnaxEnv("MNISTBandit-bsuite")


class OldStepEnv(gymnax.environments.environment.Environment):
    """A gymnax environment from before 1.0: five values."""

    def reset(self, key, params=None):
        return jnp.zeros(2), gymnax.environments.environment.EnvState(time=0)

    def step(self, key, state, action, params=None):
        return jnp.zeros(2), state, 0.0, False, {}

    def observation_space(self, params):
        return gymnax_spaces.Box(0, 1, (2,))

    def action_space(self, params=None):
        return gymnax_spaces.Discrete(2)


def test_an_old_step_is_refused_by_name():
    env = GymnaxEnv(OldStepEnv)
    with pytest.raises(ValueError, match="OldStepEnv.step returned 5 values with info keys .*, but gymnax 1.0 returns"):
        check_jax_env(env)


def test_gymnax_spaces_become_gymnasium_spaces():
    convert = gymnax_space_to_gymnasium
    limit = jnp.finfo(jnp.float32).max
    box = convert(gymnax_spaces.Box(jnp.array([-limit, 0.0]), jnp.array([limit, 1.0]), (2,)))
    np.testing.assert_array_equal(box.low, [-np.inf, 0.0])
    np.testing.assert_array_equal(box.high, [np.inf, 1.0])
    assert not box.is_bounded()
    assert convert(gymnax_spaces.Box(jnp.array([0.0]), 255, (4, 4), jnp.uint8)) == Box(0, 255, (4, 4), np.uint8)
    assert convert(gymnax_spaces.Box(-jnp.inf, 1e12, (2,), jnp.int32)) == Box(-(2**31), 2**31 - 1, (2,), np.int32)
    assert convert(gymnax_spaces.Box(0, 1, (2,), jnp.bool_)).dtype == bool
    nested = gymnax_spaces.Dict(
        {"b": gymnax_spaces.Discrete(3), "a": gymnax_spaces.Tuple([gymnax_spaces.Box(0, 1, ())])}
    )
    assert convert(nested) == Dict({"a": Tuple([Box(0.0, 1.0, ())]), "b": Discrete(3)})
    assert convert(Discrete(3, start=1)) == Discrete(3, start=1)
    with pytest.raises(TypeError, match="my env has the space"):
        convert(gymnax_spaces.Space(), "my env")


class Walk(NamedTuple):
    position: jax.Array
    key: jax.Array


class WalkEnv(AutoResetJaxEnv):
    """A user's environment: Python numbers everywhere, a typed key in its state."""

    observation_space = Dict({"position": Box(-9.0, 9.0, ()), "parity": Discrete(2)})
    action_space = Discrete(2)
    params = {"stride": np.float32(1.0)}

    def __init__(self, config=None, final_state_dtype=jnp.int32):
        super().__init__()
        self.dtype = final_state_dtype

    def reset_env(self, key, params):
        return {"position": 0, "parity": 0}, Walk(jnp.array(0), key)

    def step_env(self, key, state, action, params):
        position = state.position + 1
        obs = {"position": position * params["stride"], "parity": position % 2}
        return obs, Walk(position.astype(self.dtype), key), 1, position == 3, False, {"twice": 2}


def test_auto_reset_and_types_of_a_users_env():
    env = WalkEnv()
    check_jax_env(env)
    first, steps = unroll(env, env.step, env.reset, 4)
    assert first["position"].dtype == jnp.float32 and first["parity"].dtype == jnp.int32
    np.testing.assert_array_equal(steps.obs["position"][:, 0], [1.0, 2.0, 0.0, 1.0])
    np.testing.assert_array_equal(steps.final_obs["position"][:, 0], [1.0, 2.0, 3.0, 1.0])
    np.testing.assert_array_equal(steps.final_obs["parity"][:, 0], [1, 0, 1, 1])
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, False, True, False])
    np.testing.assert_array_equal(steps.reward, np.ones((4, NUM_ENVS), np.float32))
    # The next episode's key comes from the step that ended the last one: no two are the same.
    assert len({tuple(k) for k in np.asarray(jax.random.key_data(steps.state.key)).reshape(-1, 2)}) == 4 * NUM_ENVS


@pytest.mark.parametrize("make_env", [WalkEnv, lambda: GymnaxEnv("FourRooms-misc")], ids=["WalkEnv", "FourRooms-misc"])
def test_keys_of_steps_are_derived_before_the_first(make_env):
    env = make_env()
    keys = jax.random.split(jax.random.key(0), (NUM_STEPS, NUM_ENVS))
    _, first = jax.vmap(env.reset, in_axes=(0, None))(keys[0], env.params)
    actions = jnp.tile(jnp.arange(NUM_STEPS)[:, None] % env.action_space.n, (1, NUM_ENVS))

    def steps_with(step, keys):
        def body(state, inputs):
            after = step(inputs[0], state, inputs[1], env.params)
            return after.state, after

        steps = jax.jit(lambda keys: jax.lax.scan(body, first, (keys, actions))[1])(keys)
        is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(steps)]
        leaves = zip(jax.tree.leaves(steps), is_key, strict=True)
        return [jax.random.key_data(leaf) if own else leaf for leaf, own in leaves]

    one_by_one = steps_with(jax.vmap(env.step, in_axes=(0, 0, 0, None)), keys)
    for given in (keys, env.step_keys(keys)):
        jax.tree.map(np.testing.assert_array_equal, steps_with(env.step_batch, given), one_by_one)

    def splits(keys):
        return str(jax.make_jaxpr(env.step_batch)(keys, first, actions[0], env.params)).count("random_split")

    assert splits(jax.tree.map(lambda x: x[0], env.step_keys(keys))) == splits(keys[0]) - 1


def test_a_step_batch_of_ones_own_gets_the_keys_as_they_are():
    class Mixin:
        def step_batch(self, keys, state, action, params):
            return super().step_batch(keys, state, action, params)

    class Mixed(Mixin, WalkEnv):
        pass

    keys = jax.random.split(jax.random.key(0), (NUM_STEPS, NUM_ENVS))
    for env in (RecordedEnv("CartPole-v1"), Mixed()):
        assert env.step_keys(keys) is keys


class BrokenEnv(JaxEnv):
    """Breaks one clause of the contract at a time."""

    observation_space = Box(0.0, 1.0, (2,))
    action_space = Discrete(2)

    def __init__(self, **replaced):
        super().__init__()
        self.replaced = replaced

    def reset(self, key, params):
        return jnp.zeros(2), {"t": jnp.int32(0)}

    def step(self, key, state, action, params):
        good = JaxStep(jnp.zeros(2), state, jnp.float32(0), jnp.bool_(False), jnp.bool_(False), jnp.zeros(2), {})
        return good._replace(**self.replaced)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("obs", lambda: jnp.zeros(3), "step's obs is float32\\[3\\], but should be float32\\[2\\]"),
        ("final_obs", lambda: jnp.zeros(2, jnp.int32), "step's final_obs is int32"),
        ("state", lambda: {"t": jnp.float32(0)}, "step's state\\['t'\\] is float32"),
        ("state", lambda: {}, "step's state has the structure"),
        ("reward", lambda: jnp.zeros(1), "step's reward is float32\\[1\\]"),
        ("terminated", lambda: jnp.float32(0), "step's terminated is float32"),
        ("truncated", lambda: jnp.int32(0), "step's truncated is int32"),
        ("info", lambda: {"x": 1}, "info\\['x'\\] is weakly typed \\(int32"),
    ],
)
def test_check_names_what_is_broken(part, value, words):
    check_jax_env(BrokenEnv())
    env = BrokenEnv(**{part: value()})
    with pytest.raises(ValueError, match=words):
        check_jax_env(env)


def test_auto_reset_refuses_a_state_that_changes_its_type():
    with pytest.raises(ValueError, match=r"WalkEnv: step's state.*position is float32\[\]"):
        check_jax_env(WalkEnv(final_state_dtype=jnp.float32))


class PlainHostEnv(gym.Env):
    """A host environment that remembers its config and whether it was closed."""

    observation_space = Box(0.0, 1.0, (2,))
    action_space = Discrete(2)
    closed = False

    def __init__(self, config=None):
        self.config = config

    def close(self):
        self.closed = True


class UnsetEnv(AutoResetJaxEnv):
    """Takes no settings."""

    observation_space = Box(0.0, 1.0, (2,))
    action_space = Discrete(2)

    def reset_env(self, key, params):
        return jnp.zeros(2), 0

    def step_env(self, key, state, action, params):
        return jnp.zeros(2), state, 0.0, False, False, {}


def test_jax_environments_resolve():
    cartpole = type(gymnax.make("CartPole-v1")[0])
    instance = WalkEnv()
    for env, name in [
        ("gymnax/CartPole-v1", "gymnax/CartPole-v1"),
        (cartpole, "CartPole"),
        (cartpole(), "CartPole-v1"),
    ]:
        resolved = resolve_env(env, {"gravity": 5.0})
        assert resolved.is_jax and resolved.name == name and resolved.hint is None
        made = resolved.make()
        assert isinstance(made, GymnaxEnv) and made.params.gravity == 5.0
    assert resolve_env("gymnax/CartPole-v1").make(EnvContext({"gravity": 7.0}, 0)).params.gravity == 7.0
    assert resolve_env(WalkEnv).is_jax and isinstance(resolve_env(WalkEnv).make(), WalkEnv)
    assert resolve_env(instance).make() is instance
    assert isinstance(resolve_env(f"{__name__}:WalkEnv").make(), WalkEnv)
    with pytest.raises(ValueError, match="which is an instance. Pass its class"):
        resolve_env(instance, {"a": 1})
    with pytest.raises(ValueError, match="UnsetEnv takes no settings"):
        resolve_env(UnsetEnv, {"a": 1}).make()
    with pytest.raises(ValueError, match="Did you mean 'gymnax/CartPole-v1'"):
        resolve_env("gymnax/Cartpole-v1")


def test_host_environments_resolve():
    resolved = resolve_env("CartPole-v1")
    assert not resolved.is_jax
    assert "use 'gymnax/CartPole-v1' to sample on the device" in resolved.hint
    made = resolved.make()
    assert isinstance(made, gym.Env)
    made.close()
    assert resolve_env("Blackjack-v1").hint is None
    for env in (PlainHostEnv, f"{__name__}:PlainHostEnv", "gymnasium.envs.classic_control:CartPoleEnv"):
        assert not resolve_env(env).is_jax
    assert resolve_env(PlainHostEnv, {"a": 1}).make().config == {"a": 1}


@pytest.mark.usefixtures("_creators")
def test_registered_names_resolve():
    made = []

    def host(config):
        made.append(PlainHostEnv(config))
        return made[-1]

    register_env("walk", WalkEnv)
    register_env("cart", lambda config: gymnax.make("CartPole-v1"))
    register_env("host", host)
    register_env("nothing", lambda config: None)
    assert resolve_env("walk").is_jax and isinstance(resolve_env("walk").make(), WalkEnv)
    # The creator has read the config: it is not applied to gymnax's params again.
    assert isinstance(resolve_env("cart", {"anything": 1}).make(), GymnaxEnv)
    resolved = resolve_env("host", {"a": 1})
    assert not resolved.is_jax and made[0].closed
    assert resolved.make().config == {"a": 1} and not made[1].closed
    assert isinstance(made[0].config, EnvContext)
    with pytest.raises(TypeError, match="'nothing' returned None"):
        resolve_env("nothing")
    register_env("CartPole-v1", WalkEnv)  # a registered name wins
    assert resolve_env("CartPole-v1").is_jax
    for arguments, error in [(("", WalkEnv), TypeError), (("x", 3), TypeError), (("gymnax/x", WalkEnv), ValueError)]:
        with pytest.raises(error, match="register_env"):
            register_env(*arguments)


@pytest.mark.parametrize(
    ("env", "error", "words"),
    [
        (None, ValueError, "no environment is set"),
        ("Catch-bsuite", ValueError, "Did you mean 'gymnax/Catch-bsuite'"),
        ("cartpole-v1", ValueError, "'CartPole-v1'"),
        ("nowhere_to_be_found:Env", ImportError, "nowhere_to_be_found"),
        ("envs.counter:NoSuchEnv", ValueError, "no class 'NoSuchEnv'"),
        (dict, TypeError, "Derive it from JaxEnv"),
        (PlainHostEnv(), TypeError, "register_env"),
        (lambda config: None, TypeError, "register_env"),
    ],
)
def test_what_is_no_environment_is_refused(env, error, words):
    with pytest.raises(error, match=words):
        resolve_env(env)


def test_resolving_a_name_imports_neither_gymnax_nor_ray():
    program = """
import sys
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.tune.registry import register_env
assert resolve_env("gymnax/CartPole-v1").is_jax
assert "gymnax/CartPole-v1" in resolve_env("CartPole-v1").hint
register_env("x", lambda config: None)
try:
    resolve_env("Cartpole")
except ValueError as error:
    assert "gymnax/CartPole-v1" in str(error), error
assert not {"gymnax", "ray"} & set(sys.modules)
import jax
assert not jax._src.xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_env_context_is_a_dict_with_a_place():
    context = EnvContext({"a": [1]}, worker_index=2, num_workers=3)
    assert context == {"a": [1]} and isinstance(context, dict)
    context.set_defaults({"a": 5, "b": 6})
    assert context == {"a": [1], "b": 6}
    moved = context.copy_with_overrides(worker_index=0, vector_index=4, remote=True, recreated_worker=True)
    assert (moved.worker_index, moved.vector_index, moved.remote, moved.num_workers) == (0, 4, True, 3)
    assert moved.recreated_worker and not context.recreated_worker
    moved["a"].append(2)
    assert context["a"] == [1]
    assert context.copy_with_overrides(env_config={"c": 1}) == {"c": 1}
    for again in (copy.deepcopy(context), pickle.loads(pickle.dumps(context))):
        assert isinstance(again, EnvContext) and again == context and vars(again) == vars(context)
