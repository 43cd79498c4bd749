"""Parameters of JAX environments that each reset draws, and their place in observations, evaluation and populations."""

from __future__ import annotations

import json

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ray import tune

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv, JaxEnv
from jaxrl_stack.env.param_ranges import ParamRange
from jaxrl_stack.env.randomized_jax_env import with_randomized_params
from jaxrl_stack.env.watching import frame_of
from tests import programs

CARTPOLE = "gymnax/CartPole-v1"
KEY = jax.random.key(0)


class Gain(AutoResetJaxEnv):
    """Three steps (`length`) with the reward gain + offset; observations are [gain]."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, config):
        self._params = {"gain": np.float32(1), "length": np.int32(3), "offset": np.float32(0)}
        self._params |= {name: np.asarray(value, self._params[name].dtype) for name, value in config.items()}

    @property
    def params(self):
        return self._params

    def reset_env(self, key, params):
        return jnp.asarray(params["gain"])[None], 0

    def step_env(self, key, state, action, params):
        reward = params["gain"] + params["offset"]
        return jnp.asarray(params["gain"])[None], state + 1, reward, False, state + 1 >= params["length"], {}


class InPython(Gain):
    def step_env(self, key, state, action, params):
        _ = [None] * int(params["length"])
        return super().step_env(key, state, action, params)


class Broken(Gain):
    def step_env(self, key, state, action, params):
        raise NameError("name 'x' is not defined")


class OfSelf(Gain):
    """`Gain` that reads `offset` and `length` from itself, not from the argument `params`."""

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, action, {**self.params, "gain": params["gain"]})


class TwoGains(Gain):
    """`Gain` whose gain is the sum of `gains`."""

    params = {"gains": np.ones(2, np.float32)}

    def reset_env(self, key, params):
        return super().reset_env(key, {**self._params, "gain": params["gains"].sum()})

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, action, {**self._params, "gain": params["gains"].sum()})


class Picture(Gain):
    """`Gain` with images."""

    observation_space = Box(0, 255, (5, 5, 3), np.uint8)

    def reset_env(self, key, params):
        return jnp.arange(75, dtype=jnp.uint8).reshape(5, 5, 3), 0

    def step_env(self, key, state, action, params):
        return self.reset_env(key, params)[0], *super().step_env(key, state, action, params)[1:]


class OwnReset(JaxEnv):
    """`Gain` with a `step` that resets by itself."""

    observation_space, action_space = Gain.observation_space, Gain.action_space
    params = Gain({}).params

    def reset(self, key, params):
        return Gain({}).reset(key, params)

    def step(self, key, state, action, params):
        return Gain({}).step(key, state, action, params)


def randomized(env, given, *, privileged=False, env_config=None):
    config = PPOConfig().environment(randomized_params=given, privileged_params=privileged, env_config=env_config or {})
    return with_randomized_params(config, env)


def episode_of(env, num_steps=8):
    """``(first state, steps [T])`` of one environment."""
    obs, state = env.reset(KEY, env.params)

    def step(state, key):
        after = env.step(key, state, jnp.int32(0), env.params)
        return after.state, after

    return obs, state, jax.lax.scan(step, state, jax.random.split(KEY, num_steps))[1]


def draws_of(given, like, num_draws=4000):
    return np.asarray(jax.vmap(ParamRange.of(given, like).draw)(jax.random.split(KEY, num_draws)))


def test_draws_have_the_asked_for_distributions():
    uniform, log = draws_of((0.5, 2.0), 1.0), draws_of(("log", 0.01, 100.0), 1.0)
    assert 0.5 <= uniform.min() < 0.51 and 1.99 < uniform.max() <= 2.0 and abs(uniform.mean() - 1.25) < 0.02
    # In the logarithm, a quarter of the draws lies between two powers of ten.
    shares = np.histogram(log, [0.01, 0.1, 1.0, 10.0, 100.0])[0] / len(log)
    np.testing.assert_allclose(shares, 0.25, atol=0.03)
    values, counts = np.unique(draws_of((2, 4), 3), return_counts=True)
    assert values.tolist() == [2, 3, 4] and counts.min() > 1200
    values, counts = np.unique(draws_of([0.5, 8.0], 1.0), return_counts=True)
    assert values.tolist() == [0.5, 8.0] and counts.min() > 1800
    assert set(draws_of([False, True], True).tolist()) == {False, True}
    vectors = draws_of((0.0, 1.0), np.zeros(2), 500)
    assert abs(np.corrcoef(vectors.T)[0, 1]) < 0.15


def test_integers_are_drawn_up_to_the_limits_of_their_dtype():
    assert np.unique(draws_of((0, 255), np.uint8(3))).tolist() == list(range(256))
    assert {-128, 127} <= set(draws_of((-128, 127), np.int8(3)).tolist())
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    for bounds in ((low, high), (0, high)):
        shares = np.histogram(draws_of(bounds, np.int32(3)).astype(float), 4, tuple(map(float, bounds)))[0] / 4000
        np.testing.assert_allclose(shares, 0.25, atol=0.03)
    columns = draws_of(([0, low], [3, high]), np.zeros(2, np.int32)).T
    assert set(columns[0].tolist()) == {0, 1, 2, 3} and columns[1].min() < 0.9 * low and columns[1].max() > 0.9 * high
    assert set(draws_of(("log", high, high), np.int32(3)).tolist()) == {high}


@pytest.mark.parametrize(
    ("given", "like", "words"),
    [
        ((-1, 5), np.uint8(3), "the parameter is uint8, so give numbers from 0 to 255"),
        ([300], np.uint8(3), "from 0 to 255"),
        ((0, 2**31), np.int32(3), "from -2147483648 to 2147483647"),
        ((0.0, 1e300), 1.0, "the parameter is float32, so give numbers from -3.40"),
        ((-3e38, 3e38), 1.0, "high - low must be at most 3.40"),
        (("log", 1e-50, 1.0), 1.0, r"give \('log', low, high\) with low >= 1.17"),
    ],
)
def test_numbers_that_a_dtype_does_not_hold_are_refused(given, like, words):
    with pytest.raises(ValueError, match=words):
        ParamRange.of(given, like)


def test_parameters_are_scaled_to_one():
    np.testing.assert_allclose(ParamRange.of((1.0, 3.0), 1.0).scaled(np.array([1.0, 2.5, 3.0, 4.0])), [-1, 0.5, 1, 2])
    log = ParamRange.of(("log", 0.1, 10.0), 1.0)
    np.testing.assert_allclose(log.scaled(np.array([0.1, 1.0, 10.0])), [-1, 0, 1], atol=1e-6)
    choices = ParamRange.of([4.0, 1.0, 2.0], 1.0)
    np.testing.assert_allclose(choices.scaled(np.array([1.0, 2.0, 4.0])), [-1, -1 / 3, 1], rtol=1e-6)
    np.testing.assert_allclose(ParamRange.of([2.0], 1.0).scaled(np.array([2.0, 2.5])), [0, 0.5])


@pytest.mark.parametrize("env", [Gain({}), OwnReset()])
def test_each_reset_draws_and_an_episode_keeps_its_value(env):
    env = randomized(env, {"gain": (0.5, 2.0)}, privileged=True)
    obs, state, steps = episode_of(env)
    drawn = [state.params["gain"], *np.asarray(steps.state.params["gain"])]
    assert list(state.params) == ["gain"] and all(0.5 <= gain <= 2.0 for gain in drawn)
    # Episodes of three steps: the third one draws.
    assert drawn[0] == drawn[1] == drawn[2] != drawn[3] == drawn[5] != drawn[6]
    np.testing.assert_array_equal(steps.truncated, [False, False, True] * 2 + [False] * 2)
    np.testing.assert_allclose(steps.reward, drawn[:-1])
    # The final observation has the value of the episode that it ends, the next one that of its own.
    np.testing.assert_allclose(steps.final_obs["state"][:, 0], drawn[:-1])
    np.testing.assert_allclose(steps.obs["state"][:, 0], drawn[1:])
    scaled = (np.array(drawn) - 1.25) / 0.75
    np.testing.assert_allclose(steps.final_obs["privileged_state"][:, 0], scaled[:-1], atol=1e-6)
    np.testing.assert_allclose(steps.obs["privileged_state"][:, 0], scaled[1:], atol=1e-6)
    again = episode_of(env)
    assert all(map(np.array_equal, jax.tree.leaves((obs, state, steps)), jax.tree.leaves(again)))


def test_a_batch_steps_as_its_environments_do():
    env = randomized(Gain({}), {"gain": (0.5, 2.0), "length": [1, 2]})
    keys = jax.random.split(KEY, 4)
    _, states = jax.vmap(env.reset, (0, None))(keys, env.params)
    assert len(set(np.asarray(states.params["gain"]).tolist())) == 4
    actions = jnp.zeros(4, jnp.int32)
    for _ in range(3):
        batch = env.step_batch(keys, states, actions, env.params)
        alone = jax.vmap(env.step, (0, 0, 0, None))(keys, states, actions, env.params)
        assert all(map(np.array_equal, jax.tree.leaves(batch), jax.tree.leaves(alone)))
        states = batch.state


def test_draws_of_a_parameter_depend_on_no_other_one_and_change_nothing_else():
    one, two = ({"gain": (0.5, 2.0), **more} for more in ({}, {"offset": (0.0, 1.0)}))
    gains = [randomized(Gain({}), given).reset(KEY, Gain({}).params)[1].params["gain"] for given in (one, two)]
    assert gains[0] == gains[1]
    env = GymnaxEnv(CARTPOLE)
    plain, fixed = (episode_of(own, 60) for own in (env, randomized(env, {"gravity": (9.8, 9.8)})))
    assert plain[2].terminated.any()
    for name in ("obs", "final_obs", "reward", "terminated"):
        # Constants of a program are rounded in another order than its arguments.
        np.testing.assert_allclose(getattr(plain[2], name), getattr(fixed[2], name), rtol=1e-5, atol=1e-5)


def test_fields_that_gymnax_derives_follow_the_draws(caplog):
    env = randomized(GymnaxEnv(CARTPOLE), {"length": (0.25, 0.75), "masspole": (0.05, 0.15)})
    drawn = env.reset(KEY, env.params)[1].params
    np.testing.assert_allclose(drawn["polemass_length"], drawn["length"] * drawn["masspole"], rtol=1e-6)
    np.testing.assert_allclose(drawn["total_mass"], 1.0 + drawn["masspole"], rtol=1e-6)
    assert "keeps" not in caplog.text
    randomized(GymnaxEnv("gymnax/Acrobot-v1"), {"link_mass_1": (0.5, 2.0)})
    assert "randomized_params={'link_mass_1': ...}): gymnax/Acrobot-v1 keeps link_moi=1.0" in caplog.text
    randomized(GymnaxEnv(CARTPOLE), lambda key, params: params.replace(length=jax.random.uniform(key)))
    assert "keeps polemass_length=0.05" in caplog.text and "params.replace(polemass_length=...)" in caplog.text


@pytest.mark.parametrize("own", [0.05, 0.5])
def test_derived_fields_in_env_config_keep_their_values(own, caplog):
    # 0.05 is masspole * length.
    chosen = {"polemass_length": own}
    env = randomized(GymnaxEnv(CARTPOLE, chosen), {"length": (0.25, 0.75)}, env_config=chosen)
    assert list(env.reset(KEY, env.params)[1].params) == ["length"]
    randomized(env.unwrapped, lambda key, params: params.replace(length=jax.random.uniform(key)), env_config=chosen)
    assert "keeps" not in caplog.text


def test_a_parameter_without_effect_because_of_env_config_is_named():
    chosen = {"total_mass": 1.1}
    with pytest.raises(ValueError, match="do not read 'masscart'"):
        randomized(GymnaxEnv(CARTPOLE, chosen), {"masscart": (1.0, 2.0)}, env_config=chosen)


def test_bounds_of_observations_that_follow_from_draws_are_named(caplog):
    randomized(GymnaxEnv(CARTPOLE), {"x_threshold": (1.0, 3.0), "gravity": (5.0, 15.0)})
    assert "bounds of the observation space of gymnax/CartPole-v1 depend on 'x_threshold'" in caplog.text
    assert "'gravity'" not in caplog.text


def test_images_with_privileged_parameters_are_drawn_as_images():
    env = randomized(Picture({}), {"gain": (0.5, 2.0)}, privileged=True)
    obs, state = jax.device_get(env.reset(KEY, env.params))
    np.testing.assert_array_equal(frame_of(env, state, obs), frame_of(env.unwrapped, state.env, obs["state"]))


def test_frames_show_the_drawn_parameters():
    env = randomized(GymnaxEnv(CARTPOLE), {"length": (0.25, 0.75)})
    state = jax.device_get(env.reset(KEY, env.params)[1])
    short, drawn, own = (env.render(state._replace(params=params)) for params in ({"length": 0.25}, state.params, {}))
    plain = GymnaxEnv(CARTPOLE).render(state.env)
    assert not np.array_equal(short, own) and not np.array_equal(drawn, own) and np.array_equal(own, plain)


def test_a_function_draws_what_it_replaces():
    def around(key, params):
        return {**params, "gain": params["gain"] * jax.random.uniform(key, minval=0.5, maxval=1.5)}

    env = randomized(Gain({}), around)
    first = env.reset(KEY, env.params)[1].params
    doubled = env.reset(KEY, {**env.params, "gain": jnp.float32(2)})[1].params
    assert list(first) == ["gain"] and 0.5 <= first["gain"] <= 1.5 and doubled["gain"] == 2 * first["gain"]


@pytest.mark.parametrize(
    ("env", "given", "words"),
    [
        (
            Gain,
            {"mass": (1.0, 2.0)},
            r"\{'mass': \(1.0, 2.0\)\}\): Gain has no parameter 'mass'. It has gain, length, offs",
        ),
        (Gain, {"length": (1.5, 2.0)}, "'length'.*the parameter is int32, so give whole numbers"),
        (Gain, {"gain": ([1.0, 2.0], [2.0, 3.0])}, r"'gain'.*the parameter has shape \(\), so give numbers"),
        (InPython, {"gain": (1.0, 2.0), "length": (2, 3)}, "InPython uses 'length' in Python code"),
        (
            OfSelf,
            {"gain": (1.0, 2.0), "offset": (1.0, 2.0)},
            "OfSelf do not read 'offset' from their argument `params`",
        ),
        (OfSelf, lambda key, params: {**params, "offset": jnp.float32(1)}, "do not read 'offset'"),
        (
            lambda _: GymnaxEnv("gymnax/Pendulum-v1"),
            {"max_torque": (1.0, 4.0)},
            r"action space of gymnax/Pendulum-v1 depends on 'max_torque'.*env_config=\{'max_torque': 1.0\}",
        ),
        (
            lambda _: GymnaxEnv("gymnax/Pendulum-v1"),
            lambda key, params: params.replace(max_torque=jax.random.uniform(key)),
            "action space of gymnax/Pendulum-v1 depends on 'max_torque'",
        ),
        (Gain, lambda key, params: {}, "returned PyTreeDef.*Return params.replace"),
        (Gain, lambda key, params: params, "changes no parameter of Gain"),
        (
            Gain,
            lambda key, params: {**params, "gain": jnp.ones(2)},
            r"returned gain: float32\[2\], but Gain has gain: float32\[\]",
        ),
    ],
)
def test_parameters_that_cannot_be_drawn_are_named(env, given, words):
    with pytest.raises(ValueError, match=f"(?s)randomized_params=.*{words}"):
        randomized(env({}), given)


def test_an_error_of_the_environment_itself_is_raised_as_it_is():
    with pytest.raises(NameError, match="name 'x' is not defined"):
        randomized(Broken({}), {"gain": (1.0, 2.0)})


def test_a_value_without_logarithm_has_no_place_on_a_log_scale():
    with pytest.raises(ValueError, match="scales 'offset' by its logarithm.*but Gain has offset=0.0"):
        randomized(Gain({}), {"offset": ("log", 0.1, 1.0)}, privileged=True)
    trained, evaluated = (
        PPOConfig().environment(randomized_params={"gain": own}, privileged_params=True)
        for own in (("log", 0.1, 1.0), [0.0, 1.0])
    )
    with pytest.raises(ValueError, match=r"\{'gain': \[0.0, 1.0\]\}.*training scales 'gain' by its logarithm"):
        with_randomized_params(evaluated, Gain({}), trained=trained)


def test_a_mask_stays_where_modules_find_it():
    env = Gain({})
    env.observation_space = gym.spaces.Dict({"action_mask": Box(0, 1, (2,)), "observations": Gain.observation_space})
    with pytest.raises(
        ValueError, match=r"privileged_params=True.*Gain has the mask 'action_mask'.*action_mask_key='none'"
    ):
        randomized(env, {"gain": (0.5, 2.0)}, privileged=True)


def config_of(**environment):
    given = {"gain": (0.5, 2.0)}
    config = programs.ppo(Gain).environment(**{"randomized_params": given, "privileged_params": True, **environment})
    return config.evaluation(evaluation_interval=1, evaluation_duration=4)


def test_ranges_and_lists_stay_different_and_evaluation_draws_nothing_by_itself():
    config = config_of(randomized_params={"gain": (0.5, 2.0), "offset": [0.5, 2.0]})
    assert config.randomized_params == {"gain": ("uniform", 0.5, 2.0), "offset": [0.5, 2.0]}
    assert config.copy().update_from_dict(config.to_dict()).randomized_params == config.randomized_params
    as_json = config.copy().environment(randomized_params={"gain": ["log", 0.5, 2.0]})
    assert as_json.randomized_params == {"gain": ("log", 0.5, 2.0)}
    arrays = {
        "a": (np.array([0, 1]), jnp.array([2.5, 3.0])),
        "b": [np.float32(0.5), np.array(2)],
        "c": (1, np.int64(2)),
    }
    stored = config.copy().environment(randomized_params=arrays).randomized_params
    assert stored == {"a": ("uniform", [0, 1], [2.5, 3.0]), "b": [0.5, 2], "c": ("uniform", 1, 2)}
    assert config.copy().environment(randomized_params=json.loads(json.dumps(stored))).randomized_params == stored
    assert config.get_evaluation_config_object().randomized_params is None
    config.evaluation(evaluation_config={"randomized_params": {"gain": (3.0, 4.0)}})
    assert config.get_evaluation_config_object().randomized_params == {"gain": ("uniform", 3.0, 4.0)}


def test_training_draws_evaluation_has_the_true_values_and_a_resumed_run_continues(tmp_path):
    algo = config_of().build_algo()
    seen = algo.driver.evaluation.runner.env
    assert seen.observation_space == algo.driver.jax_env.observation_space
    # 1.0 is a third of the way from the lower bound.
    np.testing.assert_allclose(seen.reset(KEY, seen.params)[0]["privileged_state"], [-1 / 3], atol=1e-6)
    result = algo.train()
    assert result["evaluation"]["env_runners"]["episode_return_min"] == 3.0
    assert result["evaluation"]["env_runners"]["episode_return_max"] == 3.0
    assert 1.5 <= result["env_runners"]["episode_return_min"] < result["env_runners"]["episode_return_max"] <= 6.0
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = [algo.train(), algo.driver.shards.state]
    algo.stop()
    algo = PPO.from_checkpoint(path, allow=[Gain])
    resumed = [algo.train(), algo.driver.shards.state]
    algo.stop()
    losses = [result["learners"]["default_policy"]["total_loss"] for result, _ in (expected, resumed)]
    assert losses[0] == losses[1]
    states = [state.env_state for _, state in (expected, resumed)]
    assert states[0].params.keys() == {"gain"}
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, other)


def test_bounds_that_are_arrays_are_stored_in_checkpoints(tmp_path):
    config = programs.ppo(TwoGains).environment(randomized_params={"gains": (np.zeros(2), np.array([0.5, 2.0]))})
    algo = config.build_algo()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    algo = PPO.from_checkpoint(path, allow=[TwoGains])
    assert algo.config.randomized_params == {"gains": ("uniform", [0.0, 0.0], [0.5, 2.0])}
    algo.stop()


def test_evaluation_draws_what_its_config_says():
    config = config_of().evaluation(evaluation_config={"randomized_params": {"gain": [5.0]}})
    algo = config.build_algo()
    assert algo.evaluate()["env_runners"]["episode_return_mean"] == 15.0
    env = algo.driver.evaluation.runner.env
    algo.env_runner.config.environment(randomized_params={"gain": (0.0, 1.0)})
    with pytest.raises(
        ValueError, match=r"(?s)make_env\(\) cannot change to environment\(randomized_params=.*Build an algorithm"
    ):
        algo.env_runner.make_env()
    # On training's scale, whose upper bound is 2.
    np.testing.assert_allclose(env.reset(KEY, env.params)[0]["privileged_state"], [5.0], atol=1e-5)
    algo.stop()


def test_members_keep_their_own_values_of_other_parameters():
    config = config_of(env_config={"offset": tune.grid_search([0.0, 100.0])}, privileged_params=False)
    population = config.build_population()
    result = population.train()
    means = result["members"].column("env_runners/episode_return_mean")
    evaluated = result["members"].column("evaluation/env_runners/episode_return_mean")
    assert 1.5 < means[0] < 6.0 and 301.5 < means[1] < 306.0
    np.testing.assert_allclose(evaluated, [3.0, 303.0])
    population.stop()


def test_observations_have_one_number_per_randomized_parameter():
    env = randomized(Gain({}), {"gain": (0.5, 2.0), "length": (1, 3)}, privileged=True)
    assert env.observation_space == gym.spaces.Dict(
        {"state": Gain.observation_space, "privileged_state": Box(-np.inf, np.inf, (2,), np.float32)}
    )
