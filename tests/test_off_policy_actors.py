"""Off-policy training on host environments: the order of a training step, what replay holds, updates from rows."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQN, DQNConfig, DQNLearner
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FrameStacking, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.replay import EpisodeReplayBuffer, episode_replay_buffer
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.checkpoints import register_class
from jaxrl_stack.utils.metrics import TD_ERROR_KEY
from tests.pickled_by_value import pickled_by_value

ROWS = 8
TD_ERRORS = (DEFAULT_MODULE_ID, TD_ERROR_KEY)
PRIORITISED = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 500, "alpha": 0.6, "beta": 0.4}


class Scripted(gym.Env):
    """Observations say which environment, episode and step they are of; odd episodes terminate, even ones are cut."""

    observation_space = gym.spaces.Box(0.0, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.lengths = config.get("lengths", [4, 7, 3])
        generation = 50 if getattr(config, "recreated_worker", False) else 0
        self.index = 100 * getattr(config, "worker_index", 0) + getattr(config, "vector_index", 0) + generation
        self.episode, self.t = -1, 0

    def _obs(self):
        return np.array([self.index, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        ends = self.t == self.lengths[self.episode % len(self.lengths)]
        odd = bool(self.episode % 2)
        return self._obs(), 1000.0 * self.index + 10 * self.episode + self.t, ends and odd, ends and not odd, {}


def config(env=Scripted, *, num_envs=2, fragment=3, learning_starts=12, replay=None, env_config=None, **training):
    return (
        DQNConfig()
        .environment(env, env_config=env_config or {})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
        .training(
            replay_buffer_config=replay or PRIORITISED,
            train_batch_size_per_learner=ROWS,
            num_steps_sampled_before_learning_starts=learning_starts,
            target_network_update_freq=10,
            **training,
        )
        .reporting(min_sample_timesteps_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


@pytest.fixture(scope="module")
def ray_knows_this_module(ray_session):
    """Actors cannot import it by name."""
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


@pytest.fixture(scope="module")
def algo():
    algo = config().build_algo()
    yield algo
    algo.stop()


def logged_calls(algo, monkeypatch):
    """What a training step asks of the runner, the buffer and the learner, in its order."""
    runner, buffer = algo.env_runner, algo.driver.replay_buffer
    calls = []

    def logged(name, function):
        def call(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return call

    for name, owner, method in (
        ("sample", runner, "sample_block"),
        ("store", buffer, "add_block"),
        ("draw", buffer, "sample_batch"),
        ("update", algo.learner_group.local_learner, "update_rows"),
        ("prioritise", buffer, "update_priorities"),
        ("sync", runner, "share_weights"),
    ):
        monkeypatch.setattr(owner, method, logged(name, getattr(owner, method)))
    return calls


def rows(size=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return {
        DEFAULT_MODULE_ID: {
            "obs": rng.normal(size=(size, 3)).astype(np.float32),
            "new_obs": rng.normal(size=(size, 3)).astype(np.float32),
            "actions": rng.integers(0, 2, size).astype(np.int32),
            "rewards": rng.normal(size=size).astype(np.float32),
            "terminateds": rng.random(size) < 0.3,
            "truncateds": np.zeros(size, bool),
            "n_step": rng.integers(1, 4, size).astype(np.float32),
            "weights": rng.random(size).astype(np.float32) + 0.5,
        }
    }


def assert_close(left, right, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------- the training step


def test_learning_starts_behind_the_round_that_completes_the_warm_up(algo, monkeypatch):
    calls = logged_calls(algo, monkeypatch)
    first, second, third = ((algo.train(), list(calls), calls.clear())[:2] for _ in range(3))
    assert first[1] == ["sample", "store"] and first[0]["num_env_steps_sampled_lifetime"] == 6
    assert first[0]["env_runners"]["weights_seq_no"] == 0
    assert np.isnan(first[0]["learners"]["default_policy"]["total_loss"])
    # 12 steps: as many as learning waits for.
    assert second[1] == third[1] == ["sample", "store", "draw", "update", "prioritise", "sync"]
    learned = third[0]["learners"]["default_policy"]
    assert learned["weights_seq_no"] == 2 and np.isfinite(learned["total_loss"])
    assert learned["num_module_steps_trained"] == ROWS and learned["num_module_steps_trained_lifetime"] == 2 * ROWS
    replay = third[0]["replay_buffer"]
    assert replay["num_env_steps_added"] == 6 and replay["num_env_steps_added_lifetime"] == 18
    assert replay["num_env_steps_sampled_lifetime"] == 2 * ROWS and replay["num_env_steps_stored"] == 12
    timers = third[0]["timers"]
    for name in ("env_runner_sampling_timer", "replay_buffer_add_data_timer", "replay_buffer_sampling_timer"):
        assert timers[name] > 0
    assert timers["learner_update_timer"] > 0 and timers["replay_buffer_update_prios_timer"] > 0
    assert third[0]["env_runners"]["sample"] > 0 and third[0]["env_runners"]["env_step_timer"] > 0


def test_an_iteration_is_as_many_training_steps_as_its_minima_need():
    algo = config().reporting(min_sample_timesteps_per_iteration=20).build_algo()
    result = algo.train()
    assert result["num_training_step_calls_per_iteration"] == 4 and result["num_env_steps_sampled_lifetime"] == 24
    # Of four training steps the first one only samples.
    assert result["learners"]["__all_modules__"]["num_env_steps_trained"] == 3 * ROWS
    assert algo.driver.num_env_steps_trained == 3 * ROWS
    # Replayed rows are counted by updates, from which lost samples take nothing.
    counts = SimpleNamespace(num_updates=3, num_env_steps=24, num_env_steps_lost=1, plan=algo.driver.plan)
    assert algo.driver.step.num_env_steps_trained(counts) == 3 * ROWS
    algo.stop()


@pytest.mark.parametrize(
    ("intensity", "expected"),
    [
        (ROWS / 6 * 3, ["sample", "store"] + ["draw", "update", "prioritise"] * 3 + ["sync"]),
        (ROWS / 6 / 2, ["sample", "store"] * 2 + ["draw", "update", "prioritise"] + ["sync"]),
    ],
)
def test_rounds_follow_the_training_intensity(intensity, expected, monkeypatch):
    algo = config(training_intensity=intensity, learning_starts=0).build_algo()
    calls = logged_calls(algo, monkeypatch)
    algo.train()
    assert calls == expected
    algo.stop()


def test_runners_act_with_the_weights_of_the_last_update_which_other_updates_leave_alone(algo):
    algo.train()
    runner, learner = algo.env_runner, algo.learner
    held, _ = runner._policies.get_weights()
    assert_close(held, learner.weights_for_runners()["params"], 0)
    assert runner.get_state("weights_seq_no")["weights_seq_no"] == algo.driver.num_updates
    kept = {ref: leaf.copy() for ref, leaf in held.items()}
    weights = algo.get_weights()
    learner.update(batch=rows())  # It donates the whole state.
    assert_close(runner._policies.get_weights()[0], kept, 0)
    runner.sample_block(num_steps=2)
    algo.set_weights(weights)
    assert_close(runner._policies.get_weights()[0], kept, 0)


def test_nothing_is_compiled_behind_the_first_updates(algo):
    for _ in range(2):
        algo.train()
    assert [algo.train()["timers"]["compile_s"] for _ in range(3)] == [0.0, 0.0, 0.0]


def test_gone_on_with_other_values_of_traced_settings(monkeypatch):
    algo = config().build_algo()
    for _ in range(3):
        algo.train()
    (before,) = [weakref.ref(part) for part in vars(algo.driver.replay_buffer).values() if hasattr(part, "columns")]
    # The steps of before are let go of: where that has not happened, the next buffer does not fit.
    fits = lambda: 0 if before() is not None else 2**40  # noqa: E731
    monkeypatch.setattr(episode_replay_buffer, "available_host_bytes", fits)
    assert algo.reset(config().training(lr=0.5))
    assert len(algo.driver.replay_buffer) == algo.driver.num_updates == algo.driver.num_env_steps_trained == 0
    results = [algo.train() for _ in range(3)]
    assert results[-1]["learners"]["default_policy"]["default_optimizer_learning_rate"] == 0.5
    assert results[-1]["replay_buffer"]["num_env_steps_added_lifetime"] == 18
    algo.stop()


class ReportsEpsilon(DefaultDQNRLModule):
    def _forward_exploration(self, batch, t=None, epsilon=None, **kwargs):
        out = super()._forward_exploration(batch, t=t, epsilon=epsilon, **kwargs)
        return {**out, "epsilon": epsilon * np.ones(2, np.float32), "asked_at": t * np.ones(2, np.float32)}


def test_epsilon_follows_its_schedule_at_every_step():
    asked = config(epsilon=[(0, 1.0), (100, 0.0)]).rl_module(rl_module_spec=RLModuleSpec(ReportsEpsilon))
    runner = SingleAgentEnvRunner(config=asked)
    blocks = [runner.sample_block(num_steps=n).experience.modules[DEFAULT_MODULE_ID] for n in (3, 2)]
    steps = np.arange(5) * 2
    for name, expected in (("epsilon", 1.0 - steps / 100), ("asked_at", steps)):
        found = np.concatenate([block[name] for block in blocks])
        np.testing.assert_allclose(found, np.stack([expected, expected], 1), rtol=1e-6)
    # Steps of all runners count: as many as this one has made, times three.
    others = SingleAgentEnvRunner(config=asked, worker_index=1, num_workers=3)
    found = others.sample_block(num_steps=3).experience.modules[DEFAULT_MODULE_ID]["epsilon"][:, 0]
    np.testing.assert_allclose(found, 1.0 - np.arange(3) * 6 / 100, rtol=1e-6)
    for each in (runner, others):
        each.stop()


def test_epsilon_changes_at_once_and_not_with_the_next_weights():
    runner = SingleAgentEnvRunner(config=config(epsilon=1.0).rl_module(rl_module_spec=RLModuleSpec(ReportsEpsilon)))
    for epsilon in (1.0, 0.25):
        runner.change_settings({"epsilon": epsilon})
        found = runner.sample_block(num_steps=2).experience.modules[DEFAULT_MODULE_ID]["epsilon"]
        np.testing.assert_array_equal(found, np.full((2, 2), epsilon))
    runner.stop()


# -------------------------------------------------------------------------------------------------- what replay holds


def assert_scripted(buffer, *, lengths=(4, 7, 3)):
    """All stored episodes are runs of steps that an environment made one after the other.

    Returns:
        ``{(environment, episode, first step): steps}``.
    """
    found = {}
    for episode in buffer.episodes:
        obs = episode.get_observations()
        index, number, first = obs[0, -3:].tolist()
        steps = len(episode)
        stack = []
        for back in range(obs.shape[-1] // 3 - 1, -1, -1):
            at = first - back + np.arange(steps + 1)
            frame = np.stack([np.full(steps + 1, index), np.full(steps + 1, number), at], 1)
            stack.append(np.where(at[:, None] < 0, 0, frame))
        expected = np.concatenate(stack, axis=1)
        # What follows a termination is not read.
        known = slice(None, -1 if episode.is_terminated else None)
        np.testing.assert_array_equal(obs[known], expected[known])
        times = first + 1 + np.arange(steps)
        np.testing.assert_array_equal(episode.get_rewards(), np.float32(1000 * index + 10 * number + times))
        ends = first + steps == lengths[int(number) % len(lengths)]
        assert episode.is_terminated == (ends and number % 2 == 1)
        assert episode.is_truncated == (ends and number % 2 == 0)
        assert (int(index), int(number), int(first)) not in found
        found[int(index), int(number), int(first)] = steps
    return found


def test_transitions_are_what_the_environments_did():
    num_envs = 2
    algo = config(num_envs=num_envs, fragment=3, learning_starts=10**6).build_algo()
    for _ in range(11):
        algo.train()
    buffer = algo.driver.replay_buffer
    found = assert_scripted(buffer)
    # 33 steps of each environment: whole episodes over fragment borders, and the last one so far.
    for index in range(num_envs):
        expected = {(index, n, 0): steps for n, steps in enumerate([4, 7, 3, 4, 7, 3, 4, 1])}
        assert {key: steps for key, steps in found.items() if key[0] == index} == expected
    # Windows end with their episode; what follows a truncated one is its own last observation.
    batch = buffer.sample_batch(300, n_step=3, gamma=1.0)
    before, after, n = batch["obs"], batch["new_obs"], batch["n_step"]
    assert (batch["truncateds"] | batch["terminateds"]).any() and (n < 3).any()
    valid = ~batch["terminateds"]
    np.testing.assert_array_equal(after[valid], before[valid] + np.stack([0 * n, 0 * n, n], 1)[valid])
    algo.stop()


def test_observations_are_stored_as_the_module_saw_them_though_statistics_move_on():
    asked = config(num_envs=1).env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    algo = asked.build_algo()
    for _ in range(8):
        algo.train()
    lengths = [len(episode) for episode in algo.driver.replay_buffer.episodes]
    assert lengths == [4, 7, 3, 4, 6]
    stored = np.concatenate([episode.get_observations() for episode in algo.driver.replay_buffer.episodes])
    assert np.abs(stored).max() <= 10.0, "not those of the environment"
    algo.stop()


class Bytes(Scripted):
    observation_space = gym.spaces.Box(0, 255, (3,), np.uint8)

    def _obs(self):
        return super()._obs().astype(np.uint8)


class TakesBytes(DefaultDQNRLModule):
    def _observations(self, batch):
        return super()._observations(batch).astype(np.float32)


def test_bytes_stay_bytes():
    asked = config(Bytes).env_runners(add_default_connectors_to_env_to_module_pipeline=False)
    algo = asked.rl_module(rl_module_spec=RLModuleSpec(TakesBytes)).build_algo()
    for _ in range(3):
        algo.train()
    assert algo.driver.replay_buffer.sample_batch(4)["obs"].dtype == np.uint8
    assert algo.memory_estimate()["replay"]["columns"]["obs"] == 3 * 500
    algo.stop()


def test_environments_that_reset_on_the_next_step():
    asked = config("CartPole-v1", fragment=5, learning_starts=10**6)
    algo = asked.env_runners(gym_env_vectorize_mode="vector_entry_point").build_algo()
    for _ in range(30):
        algo.train()
    buffer, result = algo.driver.replay_buffer, algo.train()
    assert len(buffer) == result["num_env_steps_sampled_lifetime"] < 31 * 2 * 5
    ended = [episode for episode in buffer.episodes if episode.is_done]
    assert len(ended) == result["env_runners"]["num_episodes_lifetime"] > 5
    for episode in ended:
        obs = np.array(episode.get_observations())
        if episode.is_terminated:
            continue
        out = (np.abs(obs[:, 0]) > 2.4) | (np.abs(obs[:, 2]) > 0.2095)
        assert out[-1] and not out[:-1].any() and (np.abs(obs[0]) <= 0.05).all()
    algo.stop()


def test_steps_sampled_elsewhere_leave_a_gap():
    algo = config(num_envs=1, learning_starts=10**6, env_config={"lengths": [100]}).build_algo()
    algo.train()
    algo.env_runner.sample(num_timesteps=2)
    algo.train()
    assert assert_scripted(algo.driver.replay_buffer, lengths=(100,)) == {(0, 0, 0): 3, (0, 0, 5): 3}
    algo.stop()


def test_whole_episodes():
    algo = config(learning_starts=8).env_runners(batch_mode="complete_episodes").build_algo()
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 8  # one episode of four steps of each environment
    assert result["env_runners"]["weights_seq_no"] == 1
    result = algo.train()
    found = assert_scripted(algo.driver.replay_buffer)
    assert len(found) == 4 and sum(found.values()) == result["num_env_steps_sampled_lifetime"]
    algo.stop()


# ----------------------------------------------------------------------------------------------------------- learners


def learner(**learners):
    # Its observation space has no influence on a batch of rows.
    asked = config().learners(**learners)
    spaces = {DEFAULT_MODULE_ID: (Scripted.observation_space, Scripted.action_space)}
    return LearnerGroup(config=asked, module_spec=asked.get_multi_rl_module_spec(spaces=spaces))


@pytest.fixture(scope="module")
def one():
    """What three updates of one learner on one device come to."""
    group = learner()
    found = [group.update_rows(Experience.of_rows(rows(seed=i)), timesteps=20 * i) for i in range(3)]
    yield found, group.get_weights(), group.row_results(3)[0]
    group.shutdown()


def test_update_rows_is_a_step_of_the_update(one):
    group = learner()
    own = group.local_learner
    settings = own.placed_settings()
    state = own.state
    for i, expected in enumerate(one[0]):
        state, metrics, per_row = jax.jit(own.pure_update.step, static_argnames="axis_name")(
            state, rows(seed=i), settings, counters.from_int(20 * i), axis_name=None
        )
        np.testing.assert_allclose(expected[TD_ERRORS], per_row[TD_ERRORS], rtol=1e-5, atol=1e-6)
    assert expected[TD_ERRORS].shape == (ROWS,)
    own.place(jax.device_get(state))
    assert_close(one[1], group.get_weights())
    result = one[2]["default_policy"]
    assert result["total_loss"] == pytest.approx(float(metrics[DEFAULT_MODULE_ID, "total_loss"]), rel=1e-5)
    assert result["num_module_steps_trained"] == 3 * ROWS and result["weights_seq_no"] == 3
    group.shutdown()


def test_two_devices_are_one(one):
    group = learner(num_cpus_per_learner=2)
    for i, expected in enumerate(one[0]):
        found = group.update_rows(Experience.of_rows(rows(seed=i)), timesteps=20 * i)
        np.testing.assert_allclose(found[TD_ERRORS], expected[TD_ERRORS], rtol=1e-4, atol=1e-5)
    assert_close(group.get_weights(), one[1])
    with pytest.raises(ValueError, match="7.* rows cannot be split over the 2 devices"):
        group.update_rows(Experience.of_rows(rows(7)), timesteps=0)
    group.shutdown()


class OfThreeParts(DefaultDQNRLModule):
    """Observations may be dicts of their three numbers."""

    def _forward_train(self, batch, **kwargs):
        whole = {name: jnp.concatenate(jax.tree.leaves(batch[name]), axis=-1) for name in ("obs", "new_obs")}
        return super()._forward_train({**batch, **whole}, **kwargs)


def test_rows_of_nested_observations_count_as_rows(one):
    """Not their keys, whose number does not divide by two devices."""
    asked = config().learners(num_cpus_per_learner=2).rl_module(rl_module_spec=RLModuleSpec(module_class=OfThreeParts))
    spaces = {DEFAULT_MODULE_ID: (Scripted.observation_space, Scripted.action_space)}
    group = LearnerGroup(config=asked, module_spec=asked.get_multi_rl_module_spec(spaces=spaces))
    for i, expected in enumerate(one[0]):
        columns = rows(seed=i)[DEFAULT_MODULE_ID]
        parts = {name: dict(zip("abc", np.split(columns[name], 3, axis=1), strict=True)) for name in ("obs", "new_obs")}
        experience = Experience.of_rows({DEFAULT_MODULE_ID: {**columns, **parts}})
        assert experience.num_env_steps == experience.num_agent_steps == ROWS
        found = group.update_rows(experience, timesteps=20 * i)
        np.testing.assert_allclose(found[TD_ERRORS], expected[TD_ERRORS], rtol=1e-4, atol=1e-5)
    assert_close(group.get_weights(), one[1])
    assert group.row_results(3)[0]["default_policy"]["num_module_steps_trained"] == 3 * ROWS
    group.shutdown()


@pytest.mark.usefixtures("ray_knows_this_module")
def test_two_learners_are_one(one):
    group = learner(num_learners=2)
    for i, expected in enumerate(one[0]):
        found = group.update_rows(Experience.of_rows(rows(seed=i)), timesteps=20 * i)
        np.testing.assert_allclose(found[TD_ERRORS], expected[TD_ERRORS], rtol=1e-4, atol=1e-5)
    assert_close(group.get_weights(), one[1])
    assert group.num_updates == 3
    results = group.row_results(3)
    assert [r["default_policy"]["num_module_steps_trained"] for r in results] == [3 * ROWS // 2] * 2
    with pytest.raises(ValueError, match="7.*cannot be split evenly over 2 learners"):
        group.update_rows(Experience.of_rows(rows(7)), timesteps=0)
    group.shutdown()


def test_a_loss_that_is_not_finite_is_named():
    asked = config().debugging(check_nans=True)
    spaces = {DEFAULT_MODULE_ID: (Scripted.observation_space, Scripted.action_space)}
    group = LearnerGroup(config=asked, module_spec=asked.get_multi_rl_module_spec(spaces=spaces))
    batch = rows()
    batch[DEFAULT_MODULE_ID]["rewards"][2] = np.nan
    with pytest.raises(FloatingPointError, match="loss in module 'default_policy'"):
        group.update_rows(Experience.of_rows(batch), timesteps=0)
    group.shutdown()


# -------------------------------------------------------------------------------------------------------- checkpoints


def learned(result):
    own = result["learners"]["default_policy"]
    return {
        **{name: own[name] for name in ("total_loss", "td_error_mean", "num_module_steps_trained_lifetime")},
        "steps": result["num_env_steps_sampled_lifetime"],
        "stored": result["replay_buffer"]["num_env_steps_added_lifetime"],
        "episodes": result["env_runners"]["num_episodes_lifetime"],
    }


class SameAgain(Scripted):
    """All episodes are alike, so that nothing of the environment is lost with it."""

    def reset(self, *, seed=None, options=None):
        self.episode = -1
        return super().reset(seed=seed, options=options)


@register_class
def stacks(env, spaces, device):
    return FrameStacking(num_frames=3)


class StacksItsWay(FrameStacking):
    """What it does is not known: what it puts out is stored."""

    def apply(self, state, batch, ctx):
        return super().apply(state, batch, ctx)


def test_a_run_goes_on_exactly_with_its_replay(tmp_path):
    """Of stacked frames it has one per step, and learns from the same numbers as from whole stacks."""
    # Episodes end where fragments do: there is nothing in the environments that a checkpoint would not have.
    asked = config(SameAgain, fragment=4, env_config={"lengths": [4]})
    straight = asked.env_runners(env_to_module_connector=stacks).build_algo()
    whole = asked.copy().env_runners(env_to_module_connector=lambda *_: StacksItsWay(num_frames=3)).build_algo()
    for _ in range(4):
        assert learned(straight.train()) == pytest.approx(learned(whole.train()), rel=0, nan_ok=True)
    path = straight.save_to_path(tmp_path / "checkpoint")
    expected = [learned(straight.train()) for _ in range(3)]
    assert [learned(whole.train()) for _ in range(3)] == expected
    restored = DQN.from_checkpoint(path, allow=[SameAgain])
    assert [learned(restored.train()) for _ in range(3)] == expected
    assert all(np.isfinite(r["total_loss"]) for r in expected)
    buffers = [algo.driver.replay_buffer for algo in (straight, restored, whole)]
    left, *others = (buffer.sample_batch(50, n_step=(1, 4)) for buffer in buffers)
    left["new_obs"][left["terminateds"]] = others[1]["new_obs"][left["terminateds"]]
    for name, column in left.items():
        for right in others:
            np.testing.assert_array_equal(column, right[name], err_msg=name)
    assert [algo.memory_estimate()["replay"]["columns"]["obs"] for algo in (straight, whole)] == [500 * 12, 500 * 36]
    for algo in (straight, restored, whole):
        algo.stop()


def test_a_checkpoint_without_the_buffer_goes_on_with_an_empty_one(tmp_path):
    algo = config(store_buffer_in_checkpoints=False).build_algo()
    for _ in range(3):
        algo.train()
    assert "replay_buffer" not in algo.get_state()
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = DQN.from_checkpoint(path, allow=[Scripted])
    assert len(restored.driver.replay_buffer) == 0 and restored.driver.num_updates == 2
    assert np.isfinite(restored.train()["learners"]["default_policy"]["total_loss"])
    for each in (algo, restored):
        each.stop()


def test_a_restore_that_fails_late_leaves_the_buffer_as_it_was_without_a_copy(tmp_path, monkeypatch):
    algo = config().build_algo()
    for _ in range(3):
        algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.train()
    before, original, calls = algo.get_state(), algo.metrics.set_state, []

    def fail_once(state):
        calls.append(state)
        if len(calls) == 1:
            raise ValueError("no metrics")
        original(state)

    monkeypatch.setattr(algo.metrics, "set_state", fail_once)
    with monkeypatch.context() as m:
        m.setattr(EpisodeReplayBuffer, "get_state", None)  # It is not asked for.
        with pytest.raises(ValueError, match="no metrics"):
            algo.restore_from_path(path)
    after = algo.get_state()
    assert jax.tree.structure(after) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    with monkeypatch.context() as m:
        m.setattr(EpisodeReplayBuffer, "get_state", None)
        algo.restore_from_path(path)
        algo.restore_from_path(path, component="replay_buffer")
    assert len(algo.driver.replay_buffer) == 18
    algo.stop()


def check_no_item_crosses_episodes(buffer):
    """Windows and sequences have steps of one episode of a scripted environment, one after the other."""
    items = buffer.sample_batch(200, n_step=5)
    steps = np.where(items["terminateds"], np.nan, (items["new_obs"] - items["obs"])[:, -1])
    np.testing.assert_array_equal(steps[~items["terminateds"]], items["n_step"][~items["terminateds"]])
    rows = buffer.sample_sequences(50, batch_length_T=6)
    for obs, length in zip(rows["obs"], rows["seq_lens"], strict=True):
        np.testing.assert_array_equal(np.diff(obs[:length, -3:], axis=0), np.tile([0, 0, 1], (length - 1, 1)))


@pytest.mark.parametrize("case", ["frames", "lstm", "actor"])
def test_a_restored_run_goes_on_with_another_number_of_environments(case, tmp_path, request):
    """What was replayed stays, and new episodes begin."""
    asked = config(learning_starts=6, n_step=2)
    if case == "frames":
        asked.env_runners(env_to_module_connector=stacks)
    if case == "lstm":
        asked.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
    if case == "actor":
        request.getfixturevalue("ray_knows_this_module")
        asked.env_runners(num_env_runners=1)
    algo = asked.build_algo()
    for _ in range(3):
        algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = DQN.from_checkpoint(path, allow=[Scripted], num_envs_per_env_runner=5)
    buffer = restored.driver.replay_buffer
    num_before = len(buffer)
    for i in range(1, 4):
        result = restored.train()
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
        assert len(buffer) == num_before + 15 * i
        check_no_item_crosses_episodes(buffer)
    restored.stop()


# ------------------------------------------------------------------------------------------------------------- errors


class OnTheHost(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_learner_connectors_that_run_on_the_host_are_refused_by_name():
    asked = config().learners(learner_connector=lambda observation_space, action_space: OnTheHost())
    with pytest.raises(ValueError, match=r"OnTheHost.*apply\(self, state, batch, ctx\)"):
        asked.build_algo()


class WithoutErrors(DQNLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return self.masked_mean(fwd_out["qf_preds"].sum(axis=1), batch)


def test_a_loss_without_errors_per_row_cannot_be_prioritised():
    algo = config(learning_starts=0).learners(learner_class=WithoutErrors).build_algo()
    with pytest.raises(ValueError, match=r"WithoutErrors does not log.*reduce='item_series'"):
        algo.train()
    algo.stop()
    uniform = {"type": "EpisodeReplayBuffer", "capacity": 100}
    algo = config(learning_starts=0, replay=uniform).learners(learner_class=WithoutErrors).build_algo()
    assert np.isfinite(algo.train()["learners"]["default_policy"]["total_loss"])
    algo.stop()


class Halved(EpisodeReplayBuffer):
    def __init__(self, capacity, *, share=1.0, seed=None):
        super().__init__(int(capacity * share), seed=seed)


def test_a_buffer_class_of_ones_own():
    replay = {"type": Halved, "capacity": 100, "share": 0.5}
    algo = config(replay=replay, learning_starts=0).build_algo()
    algo.train()
    buffer = algo.driver.replay_buffer
    assert type(buffer) is Halved and buffer.capacity == 50 and len(buffer) == 6
    algo.stop()


def test_a_buffer_that_cannot_fit_is_refused_when_it_is_built():
    with pytest.raises(ValueError, match=r"replay buffer: .* cannot fit"):
        config(replay={**PRIORITISED, "capacity": 10**13}).build_algo()


# -------------------------------------------------------------------------------------------------------------- actors


def test_blocks_of_actors_never_join_another_stream(fake_ray):
    asked = (
        config(num_envs=1, learning_starts=20, replay={**PRIORITISED, "capacity": 10**5})
        .env_runners(num_env_runners=2, create_local_env_runner=False, env_to_module_connector=stacks)
        .fault_tolerance(restart_failed_env_runners=True)
    )
    algo = asked.build_algo()
    for _ in range(5):
        algo.train()
    fake_ray.lose(fake_ray.handles[0])
    for _ in range(3):
        algo.train()
    # The other one did its work meanwhile.
    assert algo.driver.num_env_steps == 8 * 6 == len(algo.driver.replay_buffer)
    while not algo.env_runner_group.num_remote_worker_restarts():
        fake_ray.sleep(0.05)
        algo.train()
    for _ in range(5):
        algo.train()
    found = assert_scripted(algo.driver.replay_buffer)
    assert {index for index, _, _ in found} == {100, 150, 200}
    # One frame of three is kept.
    assert algo.memory_estimate()["replay"]["columns"]["obs"] == 10**5 * 12
    assert algo.driver.num_updates > 0
    algo.stop()
