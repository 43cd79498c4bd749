"""Populations: each member is the run that it would be alone, whatever the others do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ray import tune

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.members import Member, listed_members
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.td3 import TD3Config
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.newest import checkpoints_in
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.origin import read_origin
from jaxrl_stack.runs.run import Run, find_runs
from jaxrl_stack.runs.seeds import run_seeds
from jaxrl_stack.utils import memory
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.fingerprints import fingerprint_of
from jaxrl_stack.utils.members import map_members
from jaxrl_stack.utils.named_leaves import is_key, named_leaves
from jaxrl_stack.utils.results import flatten_result
from tests import programs

CARTPOLE = "gymnax/CartPole-v1"


def on_policy(env=CARTPOLE, *, model=None, **env_runners):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=4, **env_runners)
        .rl_module(model_config=model or {"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=2)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
    )


def on_v_trace():
    """Three updates from every batch, of which the last ones see a target policy that has moved."""
    reused = {"circular_buffer_num_batches": 1, "circular_buffer_iterations_per_batch": 3}
    return (
        APPOConfig()
        .environment(CARTPOLE)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=16)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=2)
        .training(train_batch_size_per_learner=64, use_kl_loss=True, target_network_update_freq=0, **reused)
        .reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=150)
    )


def a_filter(env, spaces, device):
    return MeanStdFilter()


def off_policy(config, env, **training):
    replay = {"type": "EpisodeReplayBuffer", "capacity": 200}
    return (
        config.environment(env)
        .env_runners(num_envs_per_env_runner=4)
        .rl_module(model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=2)
        .training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=20)
        .training(**{"replay_buffer_config": replay, **training})
        .reporting(min_sample_timesteps_per_iteration=80, min_time_s_per_iteration=None)
    )


class Legal(ConfiguredEnv):
    """In step t action t % 3 is masked, and pays -1000; any other one pays 1. Over after 5 steps."""

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Dict(
        action_mask=gym.spaces.Box(0, 1, (3,), np.int8), observations=gym.spaces.Box(0, 9, (1,), np.float32)
    )

    def _obs(self, t):
        mask = (jnp.arange(3) != t % 3).astype(jnp.int8)
        return {"action_mask": mask, "observations": t[None].astype(jnp.float32)}

    def reset_env(self, key, params):
        return self._obs(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        t = state + 1
        return self._obs(t), t, jnp.where(action != state % 3, 1.0, -1000.0), t >= 5, False, {}


def prioritised_dqn():
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 200}
    return off_policy(DQNConfig(), Legal, replay_buffer_config=replay, n_step=(1, 3), target_network_update_freq=16)


class Brightness(ConfiguredEnv):
    """An image that is as bright as an episode is old; a step pays its action. Over after 3 or 7 steps."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 9, (6, 6, 1), np.float32)

    def _obs(self, t):
        return jnp.full((6, 6, 1), t, jnp.float32)

    def reset_env(self, key, params):
        return self._obs(0), (jnp.int32(0), jnp.where(jax.random.bernoulli(key), 3, 7))

    def step_env(self, key, state, action, params):
        t, length = state
        return self._obs(t + 1), (t + 1, length), action.astype(jnp.float32), t + 1 >= length, False, {}


CNN_LSTM = {"conv_filters": [[4, 3, 2]], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8}
CASES = {
    "APPO": on_v_trace,
    "PPO_cnn_lstm": lambda: on_policy(Brightness, model=CNN_LSTM),
    "DQN_prioritised_masks": prioritised_dqn,
    "TD3": lambda: off_policy(TD3Config(), "gymnax/Pendulum-v1", random_timesteps=20),
    "TQC": lambda: off_policy(TQCConfig(), "gymnax/Pendulum-v1"),
}
MEMBERS = [Member(3, {"gamma": 0.9}), Member(4, {"gamma": 0.99}), Member(5, {"gamma": 0.95})]
# Fingerprints: members are equal up to the order of sums.
NOT_COMPARED = ("time", "perf", "config", "date", "pid", "hostname", "fingerprint")


def numbers(result):
    flat = flatten_result(result)
    compared = {
        n: value for n, value in flat.items() if not n.startswith(NOT_COMPARED) and isinstance(value, int | float)
    }
    return {n: value for n, value in compared.items() if "throughput" not in n and "duration" not in n}


def assert_same_weights(states, i, algo):
    for ref, leaf in algo.learner.state.params.items():
        np.testing.assert_allclose(states.learner.params[ref][i], np.asarray(leaf), rtol=1e-4, atol=1e-5)


def assert_close(ours, alone):
    assert ours.keys() == alone.keys()
    for name, value in alone.items():
        assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), name


class Trained(NamedTuple):
    """A population after two iterations, its results, its states after the first one and those after both."""

    population: Population
    first: dict[str, Any]
    states: Any
    path: str
    second: dict[str, Any]
    later: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function of a case's name; what a population keeps at its best changes nothing else of it."""
    made = {}

    def of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            population = CASES[name]().reporting(results_dir=folder, keep_best=True).build_population(members=MEMBERS)
            first, states = population.train(), population.driver.states()
            path = population.save_to_path(folder / "population")
            second = population.train()
            made[name] = Trained(population, first, states, path, second, population.driver.get_state()["members"])
        return made[name]

    yield of
    for each in made.values():
        each.population.stop()


@pytest.mark.parametrize("name", CASES)
def test_each_member_is_the_run_that_it_would_be_alone(trained, name):
    make, (_, first, states, _, second, _) = CASES[name], trained(name)
    algo = None
    for i, member in enumerate(MEMBERS):
        config = member.config(make()).learners(num_cpus_per_learner=1)
        if algo is None:
            algo = config.build_algo()
        else:
            assert algo.reset(config)
        alone = algo.train()
        assert_close(numbers(first["members"][i]), numbers(alone))
        own = jax.tree.map(lambda x: np.asarray(x)[0], algo.driver.shards.state.window)
        ours = jax.tree.map(lambda x, i=i: x[i], states.runner.window)
        np.testing.assert_array_equal(ours.lengths, own.lengths)
        keys = [jax.random.key_data(key) for key in (states.runner.key[i], algo.driver.shards.state.key[0])]
        np.testing.assert_array_equal(*keys)
        assert_same_weights(states, i, algo)
        again = algo.train()
        for name in ("training_iteration", "num_env_steps_sampled_lifetime"):
            assert second["members"][i][name] == again[name]
    assert second["members"][0].keys() == {*alone, "fingerprint"}  # reported by runs with a folder
    assert second["members"][2]["config"]["gamma"] == 0.95
    if make().env is Legal:
        returns = second["members"].column("env_runners/episode_return_min")
        np.testing.assert_array_equal(returns, [5.0] * 3)
    algo.stop()


@pytest.fixture(scope="module")
def base():
    return on_policy()


@pytest.fixture(scope="module")
def population(base):
    """Four members with learning rates, of which the next two are made; tests begin with members of their own."""
    built = base.build_population(members=[Member(seed, {"lr": 1e-3}) for seed in range(4)])
    yield built
    built.stop()


def test_members_begin_differently_and_learn_with_their_own_settings(population):
    population.restart([Member(0, {"lr": 0.0}), Member(0, {"lr": 0.1})])
    before = population.driver.states().learner.params
    population.train()
    after = population.driver.states().learner.params
    moved = {ref: np.abs(after[ref] - before[ref]).reshape(2, -1).max(axis=1) for ref in after}
    assert max(m[0] for m in moved.values()) == 0.0 < min(m[1] for m in moved.values())


def test_blocks_of_any_size_train_the_same_members_by_one_program(base):
    members = [Member(seed) for seed in range(4)]  # all at once, they are the program of the population above
    expected = None
    for at_once in (1, None):
        population = base.build_population(members=members, members_at_once=at_once)
        population.train()
        clock = CompileClock()
        result = population.train()
        assert clock.compiles == 0
        returns = result["members"].column("env_runners/episode_return_mean")
        assert returns.shape == (4,) and len(set(returns)) == 4
        expected = returns if expected is None else expected
        np.testing.assert_allclose(returns, expected, rtol=1e-6)
        population.stop()


def test_a_member_that_diverges_is_frozen_and_leaves_the_others_as_they_are(base, caplog):
    healthy = [Member(0, {"env_config/gravity": 9.8}), Member(1, {"env_config/gravity": 5.0})]
    ill = [healthy[0], Member(1, {"env_config/gravity": math.nan})]
    states, results = [], []
    for members in (healthy, ill):
        population = base.build_population(members=members, seeds=None)
        results.append([population.train() for _ in range(2)][-1])
        states.append(population.driver.states())
        gravity = [member.settings["env_config/gravity"] for member in members]
        np.testing.assert_allclose(states[-1].env_params["gravity"], gravity)
        if members is ill:
            assert list(population.diverged) == [1] and population.diverged[1].iteration == 1
            assert "Member 1" in caplog.text and len(population.history.of_member(1)) == 1
            params = states[1].learner.params
            assert all(np.isfinite(leaf[1]).all() for leaf in params.values())
            assert results[-1]["population"]["num_live_members"] == 1
        population.stop()
    of_first = [jax.tree.leaves(jax.tree.map(lambda x: x[0], s.learner.params)) for s in states]
    for one, other in zip(*of_first, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(FloatingPointError, match=r"Member 1 \(env_config/gravity=NaN|nan"):
        base.build_population(members=ill, on_divergence="raise").train()


def test_it_goes_on_bit_for_bit_after_a_restore(trained):
    own = trained("DQN_prioritised_masks")
    restored = Population.from_checkpoint(own.path, allow=[Legal])
    result, second = restored.train(), restored.driver.get_state()["members"]
    for name, leaf in own.later.items():
        data = [
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in (leaf, second[name])
        ]
        np.testing.assert_array_equal(*data, err_msg=name)
    assert result["training_iteration"] == 2
    lengths = [one.history["env_runners/episode_len_mean"][:2] for one in (own.population, restored)]
    np.testing.assert_array_equal(*lengths)
    restored.stop()


def test_a_member_is_an_algorithm_that_trains_on_and_is_saved(population, tmp_path):
    population.restart([Member(seed, {"lr": 1e-3}) for seed in range(3)])
    for _ in range(2):
        population.train()
    algo = population.member(1)
    assert algo.config.seed == 1 and len(algo.history) == 2
    result, ours = algo.train(), population.train()["members"][1]
    since = {"iterations_since_restore": 1}
    assert_close(numbers(ours) | since, numbers(result))
    restored = PPO.from_checkpoint(algo.save_to_path(tmp_path / "member"))
    assert restored.iteration == 3
    best = population.member("best")
    returns = population.history["env_runners/episode_return_mean"][-1]
    assert best.config.seed == int(np.argmax(returns))
    with pytest.raises(IndexError, match="from 0 to 2"):
        population.member(3)
    for one in (algo, restored, best):
        one.stop()


def copied_on_the_host(driver, sources, targets):
    """States after a copy, with rows that NumPy picks; random streams stay where they are."""
    before, index = driver.states(), np.arange(driver.num_members)
    index[targets] = sources
    after = map_members(lambda x: x[index], driver.axes, before)
    learner = dataclasses.replace(after.learner, key=before.learner.key)
    return dataclasses.replace(after, learner=learner, runner=dataclasses.replace(after.runner, key=before.runner.key))


def assert_same_states(ours, expected):
    for (name, leaf), other in zip(named_leaves(ours).items(), named_leaves(expected).values(), strict=True):
        data = [jax.random.key_data(x) if is_key(x) else x for x in (leaf, other)]
        np.testing.assert_array_equal(*data, err_msg=name)


def test_copies_equal_rows_picked_on_the_host_and_compile_programs_once(base, trained):
    """Two devices, in blocks of one member each and with replays that share the head of their rings."""
    in_blocks = base.build_population(seeds=5, members_at_once=1)
    in_blocks.train()
    replays = trained("DQN_prioritised_masks").population
    cases = {
        in_blocks: [([0], [1]), ([1, 0, 2], [0, 1, 4]), ([4, 4, 2], [0, 1, 3]), ([1, 2, 3, 4, 0], [0, 1, 2, 3, 4])],
        replays: [([2], [0]), ([0, 1], [1, 0])],
    }
    for population, copies in cases.items():
        driver, clock = population.driver, CompileClock()
        begun = driver.states()
        for number, (sources, targets) in enumerate(copies):
            expected = copied_on_the_host(driver, sources, targets)
            clock.reset()
            driver.copy(sources, targets)
            assert number == 0 or clock.compiles == 0
            assert_same_states(driver.states(), expected)
        driver.set_states(begun)
    in_blocks.stop()


def test_copies_continue_differently_and_compile_no_training(base):
    population = base.build_population(seeds=4)
    population.train()
    population.copy([2], [0])
    clock = CompileClock()
    population.train()
    assert clock.compiles == 0
    # Episodes of the iteration follow those of the source.
    lifetime, episodes = (population.history[f"env_runners/num_episodes{name}"] for name in ("_lifetime", ""))
    assert lifetime[0, 0] != lifetime[0, 2]
    np.testing.assert_array_equal(episodes[1], lifetime[1] - lifetime[0, [2, 1, 2, 3]])
    after = population.driver.states()
    assert any(np.abs(leaf[0] - leaf[2]).max() > 0 for leaf in after.learner.params.values()), "their streams differ"
    with pytest.raises(ValueError, match="the list may contain only indices of members from 0 to 3"):
        population.copy([4], [0])
    with pytest.raises(ValueError, match="as many sources as targets"):
        population.copy([1, 2], [0, 0])
    population.stop()


def test_members_that_are_kept_train_as_if_the_others_still_ran(base, tmp_path):
    """Six members in three blocks of one on each of two devices; three of them are kept."""
    config = base.copy(copy_frozen=False).evaluation(evaluation_duration=1)
    members = [Member(seed, {"lr": 1e-3}) for seed in range(6)]
    whole, population = (config.build_population(members=members, members_at_once=1) for _ in range(2))
    for one in (whole, population):
        one.train()
    evaluated = whole.evaluate()
    population.evaluate()
    clock = CompileClock()
    population.keep([5, 1, 3], "stopped at rung 1")
    compiled = clock.compiles
    result = population.train()
    whole.train()
    ours = population.evaluate()
    assert clock.compiles == compiled and len(population.driver.blocks) == 2
    kept, ended = [1, 3, 5], [0, 2, 4]
    column = "env_runners/episode_return_mean"
    for name in ("learners/default_policy/total_loss", column):
        np.testing.assert_array_equal(population.history[name][:, kept], whole.history[name][:, kept])
        assert np.isnan(population.history[name][1, ended]).all()
    assert len(population.runs()[0].history) == 1 and len(population.runs()[1].history) == 2
    assert population.runs()[2].origin["stopped"]["reason"] == "stopped at rung 1"
    assert sorted(population.stopped) == ended
    assert result["population"]["num_live_members"] == 3 and result["population"]["best_member"] in kept
    assert result["population"]["num_env_steps_sampled_lifetime"] == 64 * 9
    assert np.isnan(result["members"][0]["learners"]["default_policy"]["total_loss"])
    assert np.isnan(ours.column(column)[ended]).all() and np.isfinite(ours.column(column)[kept]).all()
    assert np.isfinite(evaluated.column(column)).all() and repr(population).startswith("Population(3 of 6 x PPO")
    restored = Population.from_checkpoint(population.save_to_path(tmp_path / "population"))
    for one in (population, restored):
        one.copy([5], [3])
        one.change_settings({3: {"lr": 1e-2}})
    assert_same_states(restored.driver.states(), population.driver.states())
    assert restored.train()["members"][3]["config"]["lr"] == 1e-2 and sorted(restored.stopped) == ended
    population.train()
    np.testing.assert_array_equal(restored.history[column], population.history[column])
    # One combination, of which two stopped seeds have no return, and one member has changed its settings.
    (row,) = population.as_sweep().rows()
    assert row.num_seeds == np.isfinite(population.history[column]).any(axis=0).sum() == 4
    for call, message in (
        (lambda: population.keep([]), r"keep\(\[\]\): needs at least one member"),
        (lambda: population.keep([1, 1]), "each index only once"),
        (lambda: population.keep([6]), r"keep\(\[6\]\): the list may contain only indices of members from 0 to 5"),
        (lambda: population.keep([0]), r"keep\(\[0\]\): keep\(\) has stopped member 0"),
        (lambda: population.copy([0], [1]), "has stopped member 0"),
        (lambda: population.change_settings({2: {"lr": 1.0}}), "has stopped member 2"),
        (lambda: population.member(2), "has stopped this member"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    population.restart(members)
    assert population.train()["population"]["num_live_members"] == 6 and not population.stopped
    for one in (whole, population, restored):
        one.stop()


def test_few_kept_members_continue_in_a_smaller_block(population):
    members = [Member(seed, {"lr": 1e-3}) for seed in range(4)]
    returns = []
    for kept in (None, [3, 0]):
        population.restart(members)
        population.train()
        if kept:
            population.keep(kept)
        population.train()
        population.train()
        assert population.driver.layout.at_once == (1 if kept else 2)
        returns.append(population.history["env_runners/episode_return_mean"][:, [0, 3]])
    np.testing.assert_allclose(*returns, rtol=1e-6)


def test_a_member_that_has_diverged_trains_on_as_a_copy(population):
    population.restart([Member(0, {"lr": 1e-3}), Member(1, {"lr": 1e38}), Member(2, {"lr": 1e-3})])
    for _ in range(2):
        population.train()
    assert list(population.diverged) == [1]
    population.copy([0], [1])
    assert not population.diverged and population.driver.is_live.all()
    result = population.train()
    assert not population.diverged and result["members"][1]["config"]["lr"] == 1e-3
    loss = population.history["learners/default_policy/total_loss"]
    # Of the iteration in which it was frozen nothing counts.
    assert np.isnan(loss[1, 1]) and np.isfinite(loss[[0, 2], 1]).sum() >= 1 and np.isfinite(loss[:, [0, 2]]).all()
    assert population.history.num_iterations.tolist() == [3, 3, 3]
    population.copy([1], [2])
    assert population.train()["members"][2]["config"]["lr"] == 1e-3


def test_a_run_that_has_reached_its_goal_says_so_after_its_end_and_a_copy_has_to_reach_it(population):
    population.restart([Member(seed, {"lr": 1e-3}) for seed in range(3)])
    population.learn({"env_runners/episode_len_mean": 1}, progress=False)
    population.keep([1, 2], "stopped at a rung")
    end = population.runs()[0].origin["stopped"]
    assert end["reason"].startswith("env_runners/episode_len_mean = ")
    population.copy([1], [2])
    assert sorted(population.reached) == [0, 1]


def test_settings_of_members_change_without_compiling_anything(base, tmp_path):
    """Members with the same seed learn the same until one of them has another learning rate."""
    population = (
        base.copy()
        .evaluation(evaluation_duration=1)
        .build_population(members=[Member(0, {"lr": lr}) for lr in (1e-2, 2e-2)])
    )
    population.train()
    population.evaluate()
    clock = CompileClock()
    population.change_settings({1: {"lr": [[0, 3e-2], [10**6, 3e-2]], "gamma": 0.5}})
    result = population.train()
    population.evaluate()
    assert clock.compiles == 0
    rates = result["members"].column("learners/default_policy/default_optimizer_learning_rate")
    assert rates == pytest.approx([1e-2, 3e-2])
    assert population.history["config/lr"] == pytest.approx(np.array([[1e-2, 2e-2], [1e-2, 3e-2]]))
    assert population.history["config/gamma"].tolist() == [[0.99, 0.99], [0.99, 0.5]]
    assert result["members"][1]["config"]["gamma"] == 0.5
    # What a member is copied to has its settings, and so has the algorithm of it.
    population.copy([1], [0])
    algo = population.member(0)
    assert (algo.config.gamma, algo.config.seed) == (0.5, 0) and algo.history["config/lr"].tolist() == [1e-2, 1e-2]
    assert algo.train()["learners"]["default_policy"]["default_optimizer_learning_rate"] == pytest.approx(3e-2)
    assert algo.history["config/gamma"].tolist() == [0.99, 0.99, 0.5]
    algo.stop()
    restored = Population.from_checkpoint(population.save_to_path(tmp_path / "population"))
    assert restored.train()["members"][0]["config"]["gamma"] == 0.5
    assert restored.history["config/gamma"][-1].tolist() == [0.5, 0.5]
    for settings, message in (
        (
            {2: {"lr": 1.0}},
            r"change_settings\(\{2: ...\}\): keys must be indices of members from 0 to 1: change_settings\(\{0: \{",
        ),
        ({True: {"lr": 1.0}}, r"change_settings\(\{True: ...\}\): keys must be indices of members from 0 to 1"),
        ({"lr": 1.0}, r"change_settings\(\{'lr': ...\}\): keys must be indices of members from 0 to 1"),
        ({0: {"num_epochs": 3}}, "num_epochs=3.*a constant of the compiled programs"),
        ({0: {"env_config/gravity": 3.0}}, "env_config/gravity=3.0"),
    ):
        with pytest.raises(ValueError, match=message):
            population.change_settings(settings)
    for one in (restored, population):
        one.stop()


def test_until_counts_per_member_and_says_when_each_was_done(base):
    population = base.build_population(seeds=2)
    result = population.learn({"num_env_steps_sampled_lifetime": 150}, progress=False)
    assert result["done"] and result["num_env_steps_sampled_lifetime"] == 192
    assert [population.reached[i].iteration for i in range(2)] == [3, 3]
    result = population.learn(lambda r: r["env_runners"]["episode_len_mean"] > 0, until_any=True, progress=False)
    assert population.stop_reason.is_goal and result["training_iteration"] == 4
    with pytest.raises(ValueError, match="episode_reward_mean"):
        population.learn({"env_runners/episode_reward_mean": 1}, progress=False)
    frame = population.history.to_pandas()
    assert list(frame["member"]) == [0] * 4 + [1] * 4 and list(frame["seed"]) == [0] * 4 + [1] * 4
    population.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        population.train()


def test_search_spaces_of_a_config_become_members():
    config = (
        on_policy()
        .training(lr=tune.grid_search([1e-3, 1e-2]))
        .environment(env_config={"gravity": tune.grid_search([9.8, 5.0])})
    )
    base, members = listed_members(config, 2, 1)
    assert len(members) == 8 and base.lr == 1e-3 and base.env_config == {"gravity": 9.8}
    assert members[3] == Member(1, {"lr": 1e-3, "env_config/gravity": 5.0})
    own = members[6].config(base)
    assert (own.lr, own.env_config, own.seed) == (1e-2, {"gravity": 5.0}, 0)


REFUSED = {
    "no_members": ({"seeds": []}, "at least one"),
    "a_seed_twice": ({"seeds": [1, 1]}, "a seed twice"),
    "static": ({"members": [Member(0, {"num_epochs": 1}), Member(0, {"num_epochs": 2})]}, "differ in num_epochs"),
    "two_names": ({"members": [Member(0, {"lr": 1.0}), Member(0, {"gamma": 1.0})]}, "same settings"),
    "the_same": ({"members": [Member(0), Member(0)]}, "the same seed and settings"),
    "in_another_order": (
        {"members": [Member(0, {"lr": 1.0, "gamma": 0.5}), Member(0, {"gamma": 0.5, "lr": 1.0})]},
        "the same seed and settings",
    ),
    "unknown": ({"members": [Member(0, {"learning_rate": 0.1})]}, "learning_rate"),
    "divergence": ({"seeds": 1, "on_divergence": "stop"}, "on_divergence='stop'"),
    "at_once": ({"seeds": 1, "members_at_once": 0}, "members_at_once=0"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_members_is_refused(base, arguments, message):
    with pytest.raises((ValueError, AttributeError, TypeError), match=message):
        base.build_population(**arguments)


NOT_TOGETHER = {
    "host": (lambda c: c.environment("CartPole-v1"), "stepped on the host"),
    "learners": (lambda c: c.learners(num_learners=1), "are actors"),
    "eager": (lambda c: c.debugging(disable_jit=True), "disable_jit"),
    "callbacks": (lambda c: c.callbacks(on_train_result=lambda **_: None), "callbacks"),
    "trackers": (lambda c: c.reporting(loggers={"wandb": {}}), "loggers"),
    "evaluation_without_reset": (
        lambda c: c.evaluation(evaluation_interval=1, evaluation_force_reset_envs_before_iteration=False),
        "evaluation_force_reset_envs_before_iteration=False",
    ),
}


@pytest.mark.parametrize(("change", "reason"), NOT_TOGETHER.values(), ids=NOT_TOGETHER)
def test_configs_of_which_there_are_no_populations_say_why(change, reason):
    config = change(on_policy().learners(num_cpus_per_learner=1))
    with pytest.raises(ValueError, match=reason):
        config.build_population(seeds=2)


def test_steps_before_learning_starts_are_the_same_for_all():
    starts = "num_steps_sampled_before_learning_starts"
    with pytest.raises(ValueError, match=f"differ in {starts}"):
        prioritised_dqn().build_population(members=[Member(0, {starts: 20}), Member(0, {starts: 40})])


def test_training_with_a_filter_and_evaluation_of_all_members_are_those_of_each_alone(tmp_path):
    config = on_policy(env_to_module_connector=a_filter).evaluation(evaluation_interval=2, evaluation_duration=6)
    members = [Member(3, {"gamma": 0.9}), Member(4, {"gamma": 0.99}), Member(5, {"gamma": 0.95})]
    population = config.build_population(members=members)
    first = population.train()["members"]
    assert "evaluation" not in first[0]
    states = population.driver.states()
    results = population.train()["members"]
    again = population.evaluate()
    path = population.save_to_path(tmp_path / "population")
    restored = Population.from_checkpoint(path, allow=[a_filter])
    # Iterations up to the next evaluation report the last one.
    column = "evaluation/env_runners/episode_return_mean"
    ours, theirs = (one.train()["members"].column(column) for one in (population, restored))
    np.testing.assert_array_equal(theirs, ours)
    assert np.isfinite(theirs).all()
    algo = members[0].config(config).learners(num_cpus_per_learner=1).build_algo()
    for i in (0, 2):
        assert algo.reset(members[i].config(config).learners(num_cpus_per_learner=1))
        assert_close(numbers(first[i]), numbers(algo.train()))
        assert_same_weights(states, i, algo)
        alone = algo.train()
        ours, own = (numbers({"evaluation": one["evaluation"]}) for one in (results[i], alone))
        assert own["evaluation/env_runners/num_episodes"] == 6
        assert_close(
            {n: value for n, value in ours.items() if n in own and "sample" not in n.split("/")[-1]},
            {n: value for n, value in own.items() if "sample" not in n.split("/")[-1]},
        )
        assert again[i]["env_runners"]["episode_return_mean"] == algo.evaluate()["env_runners"]["episode_return_mean"]
    algo.stop()
    first, second = (one.evaluate().column("env_runners/num_episodes_lifetime") for one in (population, restored))
    np.testing.assert_array_equal(first, second)
    returns = population.history[column][-1]
    assert population.best_member() == int(np.argmax(returns))
    # Checkpoints of earlier versions lack the last evaluation.
    state = population.get_state()
    del state["evaluated"]
    restored.set_state(state)
    assert restored.best_member() == int(np.argmax(population.history["env_runners/episode_return_mean"][-1]))
    population.stop()
    restored.stop()


def test_other_members_begin_with_the_same_program(base):
    population = base.build_population(seeds=3)
    population.train()
    clock = CompileClock()
    population.restart([Member(1), Member(7)])
    result = population.train()
    assert clock.compiles == 0 and len(population) == len(result["members"]) == 2 and population.iteration == 1
    again = base.build_population(seeds=[7])
    alone = again.train()
    for name in ("env_runners/episode_len_mean", "learners/default_policy/total_loss"):
        ours, own = (one["members"].column(name) for one in (result, alone))
        np.testing.assert_allclose(ours[1], own[0], rtol=1e-4)
    population.restart([Member(i) for i in range(4)])
    assert len(population) == 4
    with pytest.raises(ValueError, match="5 members: this population has room for 4"):
        population.restart([Member(i) for i in range(5)])
    population.stop()
    again.stop()


def test_a_restart_begins_with_an_empty_replay_buffer():
    population = programs.dqn().build_population(seeds=2)
    first = population.driver.states()
    for _ in range(2):
        population.train()
    population.restart([Member(0), Member(1)])
    assert_same_states(population.driver.states(), first)
    population.stop()


def test_members_that_do_not_fit_are_refused_before_they_are_made_and_trained_in_waves(base, monkeypatch, capsys):
    population = base.build_population(seeds=4)
    needed = population.memory_estimate()
    assert needed["members"] == 4 * needed["member"]
    population.stop()
    monkeypatch.setattr(memory, "available_host_bytes", lambda: needed["at_once"] + 2 * needed["member"])
    with pytest.raises(ValueError, match=r"A population of 4 members needs .* Use at most 2 members"):
        base.build_population(seeds=4)
    trained = run_seeds(base, 4, {"training_iteration": 2})
    assert "4 runs in 2 waves of at most 2, which fit into memory." in capsys.readouterr().out
    assert [run.settings["seed"] for run in trained.runs] == [0, 1, 2, 3] and trained.is_one_program
    assert [len(history) for history in trained.histories] == [2] * 4


def test_files_of_members_are_read_as_runs(base, tmp_path):
    config = base.copy(copy_frozen=False).reporting(results_dir=tmp_path)
    population = config.build_population(members=[Member(0, {"lr": 1e-3}), Member(1, {"lr": 1e-2})])
    population.learn({"training_iteration": 2}, progress=False)
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["lr=0.001_seed=0", "lr=0.01_seed=1"]
    assert [run.settings["lr"] for run in runs] == [1e-3, 1e-2] and runs[0].title == "PPO on gymnax/CartPole-v1"
    np.testing.assert_array_equal(runs[1].history["training_iteration"], [1, 2])
    from_json = History.read(tmp_path / "lr=0.01_seed=1" / "result.json")
    assert from_json.columns == runs[1].history.columns
    for name in from_json:
        np.testing.assert_array_equal(from_json[name], runs[1].history[name])
    assert population.runs()[1].folder == runs[1].folder
    again = config.build_population(members=population.members)
    again.learn(1, progress=False)
    assert (tmp_path / "lr=0.001_seed=0_2" / "progress.csv").exists(), "other runs are left as they are"
    population.learn(1, progress=False)
    assert len(find_runs([tmp_path])[0].history) == 3
    for one in (population, again):
        one.stop()


def test_the_best_state_of_each_member_is_kept_and_saved_as_a_checkpoint_of_its_own(tmp_path):
    config = on_policy().reporting(results_dir=tmp_path, keep_best=True)
    population = config.build_population(seeds=2)
    weights, returns = [], []
    for _ in range(4):
        result = population.train()
        weights.append(population.driver.states().learner.params)
        returns.append(result["members"].column("env_runners/episode_return_mean"))
    population.learn(4, progress=False)
    places = np.nanargmax(population.history["env_runners/episode_return_mean"], axis=0)
    assert population.best is not None and [one.iteration for one in population.best] == [i + 1 for i in places]
    for i, best in enumerate(population.best):
        assert best.path == str(tmp_path / f"seed_{i}" / "best")
        algo = PPO.from_checkpoint(best.path)
        assert (algo.iteration, algo.config.seed, len(algo.history)) == (best.iteration, i, best.iteration)
        assert algo.num_env_steps_sampled_lifetime == 64 * best.iteration
        algo.stop()
    population.stop()


def test_a_population_stores_checkpoints_and_fingerprints_of_all_members(tmp_path):
    config = on_policy().reporting(results_dir=tmp_path, checkpoint_frequency=2, num_to_keep=2)
    population = config.build_population(seeds=3)
    population.learn(5, progress=False)
    folder = tmp_path / "population"
    assert population.directory == folder and population.history["fingerprint/high"].shape == (5, 3)
    found = checkpoints_in(folder, metadata_file=METADATA_FILE)
    assert list(found) == list(population.stored_checkpoints.paths) == [4, 5]
    origin = read_origin(folder)
    assert origin["num_members"] == 3 and origin["members"][2]["seed"] == 2 and origin["machine"]["devices"]
    assert (folder / "members.csv").exists() and checkpoints_in(folder) == {}
    # The fingerprint of a member is that of its algorithm.
    algo = population.member(2)
    last = [population.history[f"fingerprint/{which}"][-1, 2] for which in ("low", "high")]
    assert list(fingerprint_of(algo.learner.state.params).values()) == last
    assert Run.read(tmp_path / "seed_2").history["fingerprint/low"][-1] == last[0]
    algo.stop()
    # The same population again: equal bits of all members.
    again = Population.from_checkpoint(found[4])
    again.train()
    assert again.directory is None and "fingerprint/low" in again.history
    for which, own in again.driver.fingerprints().items():
        np.testing.assert_array_equal(own, population.history[f"fingerprint/{which}"][-1])
    again.stop()
    population.keep([0, 2])
    population.train()
    assert np.isnan(population.history["fingerprint/low"][-1]).tolist() == [False, True, False]
    # Another one in the same folder.
    population.restart([{"seed": 7}])
    population.learn(2, progress=False)
    assert population.directory == tmp_path / "population_2" and [*population.stored_checkpoints.paths] == [2]
    population.stop()


def test_a_member_at_its_best_goes_on_with_an_empty_replay_buffer(trained):
    population = trained("DQN_prioritised_masks").population
    population.train()
    assert population.best is not None
    best = population.best[1]
    algo = population.member(1, at_best=True)
    assert len(algo.history) == algo.iteration == best.iteration
    assert algo.history["env_runners/episode_return_mean"][-1] == best.value
    steps = algo.num_env_steps_sampled_lifetime
    result = algo.train()
    sampled = result["num_env_steps_sampled_lifetime"] - steps
    stored = [value for name, value in flatten_result(result).items() if name.endswith(names.NUM_ENV_STEPS_STORED)]
    assert 80 <= sampled < 100 and stored == [sampled]
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    algo.stop()


def test_a_population_that_keeps_no_best_member_has_none(population):
    with pytest.raises(ValueError, match="keep_best=True"):
        population.member(1, at_best=True)


def test_members_are_compared_as_a_sweep(base, tmp_path):
    settings = [{"lr": lr, "gamma": gamma} for lr in (1e-3, 1e-2) for gamma in (0.9, 0.99)]
    population = base.build_population(
        members=[Member(seed, own) for own in settings for seed in (0, 1)], members_at_once=2
    )
    population.train()
    sweep = population.as_sweep()
    assert sweep.names == ["lr", "gamma"] and [row.num_seeds for row in sweep.rows()] == [2] * 4
    assert len(sweep.to_pandas()) == 8 and sweep.best().settings in settings
    axes, _ = sweep.heat_map(tmp_path / "map.png").axes
    assert len(axes.texts) == 4
    population.plot(tmp_path / "curves.png", hue="lr")
    with pytest.raises(
        ValueError,
        match=r"plot\(hue='clip_param'\): .*differs between the members of the population, one of: lr, gamma",
    ):
        population.plot(hue="clip_param")
    population.stop()
