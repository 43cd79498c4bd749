"""Unfinished episodes of gymnasium environments that continue after a restart, from seeds and recorded actions."""

from __future__ import annotations

import copy
import json

import gymnasium as gym
import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
import resume_cases as cases

from jaxrl_stack.acting.episode_forms import MultiAgentForm, SingleAgentForm
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.env.replayable_episodes import ReplayableEpisodes
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.vector.sync_vector_env import SyncHostVectorEnv
from jaxrl_stack.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from tests import programs

# ---------------------------------------------------------------------------------------------------- whole algorithms


def ppo():
    return programs.ppo("CartPole-v1")


def ppo_with_everything():
    """Stacked frames, a filter, an LSTM, a connector on the host, callbacks and earlier chunks of episodes."""
    config = programs.ppo("CartPole-v1", use_lstm=True, lstm_cell_size=4, max_seq_len=4)
    return config.env_runners(env_to_module_connector=all_connectors).callbacks(cases.Numbers)


def all_connectors(env, spaces, device):
    return [cases.CountsCalls(), *cases.flat_connectors(env, spaces, device)]


def sac():
    config = SACConfig().environment("Pendulum-v1")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=3, rollout_fragment_length=2)
    config.training(
        train_batch_size_per_learner=8,
        n_step=3,
        num_steps_sampled_before_learning_starts=12,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 60},
    )
    config.rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": [4]})
    return config.reporting(min_time_s_per_iteration=None, min_sample_timesteps_per_iteration=24).debugging(seed=1)


def without_ids(state):
    """State without the ids of episodes, which are drawn anew for each episode."""
    if isinstance(state, dict):
        return {name: without_ids(item) for name, item in state.items() if name not in ("id_", "ids")}
    return [without_ids(item) for item in state] if isinstance(state, list) else state


@pytest.mark.parametrize("make", [ppo, ppo_with_everything, sac])
def test_training_after_a_restart_equals_the_uninterrupted_run(make, tmp_path):
    config = make().env_runners(replayable_episodes=True)
    straight = config.build_algo()
    for _ in range(2):
        straight.train()
    straight.save_to_path(tmp_path)
    lengths = straight.get_state()["env_runner"]["running_episodes"]["lengths"]
    assert lengths.any()
    other = type(straight).from_checkpoint(tmp_path, allow=[*cases.ALLOWED, all_connectors])
    for _ in range(2):
        assert cases.learned(other.train()) == cases.learned(straight.train())
    assert other.env_runner.num_episodes_not_restored == 0
    cases.assert_same(without_ids(other.get_state()), without_ids(straight.get_state()))
    # The algorithm that went on takes its earlier state over, too.
    final = straight.get_state()
    straight.restore_from_path(tmp_path)
    for _ in range(2):
        straight.train()
    cases.assert_same(without_ids(straight.get_state()["learner_group"]), without_ids(final["learner_group"]))
    for algo in (straight, other):
        algo.stop()


# --------------------------------------------------------------------------------------------------------- one runner


class SeededCartPole(gym.Wrapper):
    """CartPole with faults, which writes down the seeds of its resets."""

    seeds: list[int | None] = []
    noise = np.random.default_rng(0)

    def __init__(self, config):
        super().__init__(gym.make("CartPole-v1"))
        self.config = config

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self.t += 1
        if self.config.get("fails_at") == self.t and self.config.vector_index == 1:
            raise RuntimeError("the simulator is gone")
        obs, *others, _ = self.env.step(action)
        if self.config.get("has_noise") and self.config.vector_index % 2:
            obs = obs + np.float32(self.noise.normal(scale=0.01))
        if self.config.get("is_nan_at") == self.t and self.config.vector_index == 1:
            obs = obs * np.float32(np.nan)
        return obs, *others, {"t": self.t}


def runner_of(config, **env_config):
    config = config.copy(copy_frozen=False).environment(SeededCartPole, env_config=env_config)
    return SingleAgentEnvRunner(config=config.env_runners(replayable_episodes=True))


def columns_of(runner):
    block = runner.sample_block()
    return jax.tree.map(np.array, block.part.blocks["default_policy"].columns)


def test_environments_with_hidden_random_numbers_start_new_episodes_and_the_others_continue(caplog):
    first, second = (runner_of(ppo(), has_noise=True) for _ in range(2))
    columns_of(first)
    state = first.get_state()
    second.set_state(state)
    assert "copies 1, 3 of environment('SeededCartPole') started new episodes" in caplog.text
    assert "Copy 1 returned another observation after" in caplog.text and "self.np_random" in caplog.text
    assert second.num_episodes_not_restored == 2
    expected, given = columns_of(first), columns_of(second)
    for row in (0, 2):
        np.testing.assert_array_equal(given["obs"][:, row], expected["obs"][:, row])
        assert np.any(state["running_episodes"]["lengths"][row])
    # A checkpoint of the run that goes on says so, and a third one counts on.
    assert second.get_state()["running_episodes"]["num_not_restored"] == 2
    third = runner_of(ppo(), has_noise=True)
    third.set_state(second.get_state())
    assert third.num_episodes_not_restored == 4


def test_a_replaced_environment_is_restored_like_the_others(caplog):
    config = ppo().fault_tolerance(restart_failed_sub_environments=True)
    first, second = runner_of(config, fails_at=6), runner_of(config)
    columns_of(first)
    assert "the simulator is gone" in caplog.text
    second.set_state(first.get_state())
    assert second.num_episodes_not_restored == 0
    first.env.envs[1].config["fails_at"] = None
    expected, given = columns_of(first), columns_of(second)
    jax.tree.map(np.testing.assert_array_equal, given, expected)


@pytest.mark.parametrize("fault", ["fails_at", "is_nan_at"])
def test_a_failure_in_the_first_step_after_a_replay_is_tolerated(fault, caplog):
    config = ppo().fault_tolerance(restart_failed_sub_environments=True)
    first, second = runner_of(config), runner_of(config)
    columns_of(first)
    second.set_state(first.get_state())
    for runner in (first, second):
        runner.env.envs[1].config[fault] = runner.env.envs[1].t + 1
    expected, given = columns_of(first), columns_of(second)
    jax.tree.map(np.testing.assert_array_equal, given, expected)
    assert caplog.text.count("it is replaced") == 2


def test_a_recording_after_a_restore_has_the_infos_of_the_environments(tmp_path):
    def recording_to(folder):
        config = ppo().environment(SeededCartPole).env_runners(replayable_episodes=True)
        return OfflineSingleAgentEnvRunner(config=config.offline_data(output=folder, output_write_infos=True))

    first, second = recording_to(tmp_path / "first"), recording_to(tmp_path / "second")
    first.sample_block()
    state = first.get_state()
    second.set_state(state)
    second.sample_block()
    # Here all environments are reset, and the infos of resets are empty.
    second.set_state({"random": state["random"]})
    second.sample_block()
    second.stop()
    (file,) = (tmp_path / "second").iterdir()
    columns = pq.read_table(file).to_pydict()
    assert [json.loads(info).get("t", 0) for info in columns["infos"]] == columns["t"]
    assert 0 in columns["t"] and columns["t"][0] > 0


class Lists(RLlibCallback):
    """Appends to lists in `custom_data` and in the first info of a chunk."""

    def on_episode_step(self, *, episode, **kwargs):
        for entries in (episode.custom_data, episode.get_infos(0)):
            entries.setdefault("steps", []).append(episode.t)


@pytest.mark.parametrize("callback", [Lists, None])
def test_a_state_in_memory_is_unchanged_by_the_episodes_that_continue(callback):
    config = ppo() if callback is None else ppo().callbacks(callback)
    first, second = runner_of(config), runner_of(config)

    def sample(runner):
        # A user may write into the infos of the episodes, too.
        for episode in runner.sample(num_timesteps=8):
            for index in (0, -1):
                episode.get_infos(index).setdefault("seen", []).append(len(episode))

    sample(first)
    state = first.get_state()["running_episodes"]
    before = copy.deepcopy(state)
    sample(first)
    cases.assert_same(state, before)
    second.set_state({"random": first.get_state()["random"], "running_episodes": state})
    assert second.num_episodes_not_restored == 0
    sample(second)
    cases.assert_same(state, before)


def test_stored_episodes_of_jax_environments_share_no_custom_data_with_running_ones():
    spaces = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)
    single, several = SingleAgentForm(*spaces), MultiAgentForm({"a": "p"}, {"p": spaces})
    one, game, obs = single.new(), several.new(), np.zeros(2, np.float32)
    one.add_env_reset(obs)
    one.add_env_step(obs, 1, 0.0)
    game.add_env_reset(observations={"a": obs})
    for form, episode, parts in (
        (single, one, lambda episode: [episode]),
        (several, game, lambda episode: [episode, episode.agent_episodes["a"]]),
    ):
        for part in parts(episode):
            part.custom_data["seen"] = [1]
        state = {**form.stored([episode]), "lengths": [len(episode)]}
        for running in (episode, *form.restored(state)):
            for part in parts(running):
                part.custom_data["seen"].append(2)
        assert [part.custom_data["seen"] for part in parts(*form.restored(state))] == [[1]] * len(parts(episode))


def test_a_reset_with_a_config_counts_episodes_that_were_not_restored_from_zero():
    runner = runner_of(ppo())
    runner.set_state({"random": runner.get_state()["random"]})
    assert runner.num_episodes_not_restored == 4
    runner.reset(runner.config)
    assert runner.num_episodes_not_restored == 0
    assert runner.get_metrics()["num_episodes_not_restored"].peek() == 0


def test_every_reset_has_a_seed_that_no_other_environment_and_no_evaluation_has(monkeypatch):
    config = ppo().environment(SeededCartPole).evaluation(evaluation_interval=1)

    def seeds_of(config, **asked):
        monkeypatch.setattr(SeededCartPole, "seeds", seeds := [])
        runner = SingleAgentEnvRunner(config=config.copy(copy_frozen=False).env_runners(**asked))
        for _ in range(10):
            runner.sample_block()
        is_recorded = "running_episodes" in runner.get_state()
        assert is_recorded == (bool(asked) and not config.in_evaluation)
        return seeds

    trained = seeds_of(config, replayable_episodes=True)
    evaluated = seeds_of(config.get_evaluation_config_object(), replayable_episodes=True)
    assert len(set(trained)) == len(trained) > 8 and None not in trained
    # Evaluation, and training without the setting, seed the first reset only.
    assert not set(trained).intersection(evaluated) and evaluated[4:] == [None] * (len(evaluated) - 4)
    assert seeds_of(config)[4:7] == [None] * 3


def test_states_of_another_kind_start_new_episodes(caplog):
    runner = runner_of(ppo())
    columns_of(runner)
    state = runner.get_state()
    two = runner_of(ppo().env_runners(num_envs_per_env_runner=2))
    two.set_state({name: state[name] for name in ("random", "running_episodes")})
    assert "The checkpoint has num_envs_per_env_runner=4, this run 2" in caplog.text
    assert two.num_episodes_not_restored == 2
    del state["running_episodes"]
    runner.set_state(state)
    assert "saved without replayable_episodes=True" in caplog.text and runner.num_episodes_not_restored == 4
    columns_of(runner)


# ------------------------------------------------------------------------------------------------- seeds and actions


class Sums(gym.Env):
    """Observations are the seed and a weighted sum of all actions of the episode."""

    observation_space = gym.spaces.Dict({"seed": gym.spaces.Discrete(2**31), "sum": gym.spaces.Box(-1e9, 1e9, (2,))})
    action_space = gym.spaces.Dict(
        {"a": gym.spaces.Discrete(5), "b": gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (2,), np.float32)])}
    )

    def reset(self, *, seed=None, options=None):
        self.seed_of_reset, self.t, self.sum = seed, 0, np.zeros(2, np.float32)
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        self.sum = 0.9 * self.sum + action["a"] + action["b"][0]
        return self._obs(), float(self.sum[0]), False, self.t >= self.length, {}

    def _obs(self):
        return {"seed": self.seed_of_reset, "sum": np.float32(self.sum)}


def sums(*lengths):
    """Environments whose episodes have these lengths, and a recording of their seeds and actions."""

    def make(length):
        env = Sums()
        env.length = length
        return env

    vector = SyncHostVectorEnv([lambda n=n: make(n) for n in lengths], "Sums")
    episodes = ReplayableEpisodes(len(lengths), (3, 0))
    vector.seed_of_reset = episodes.next_seed
    return vector, episodes


def test_recorded_actions_are_those_since_the_last_reset_of_each_environment():
    lengths = (7, 90, 10_000)
    vector, episodes = sums(*lengths)
    generator, since_reset, returns = np.random.default_rng(0), [[], [], []], np.zeros(3)
    vector.reset(seed=[episodes.next_seed(i) for i in range(3)])
    for t in range(500):
        actions = {"a": generator.integers(5, size=3), "b": (generator.uniform(-1, 1, (3, 2)).astype(np.float32),)}
        episodes.add(actions)
        step = vector.step(actions)
        for i in range(3):
            since_reset[i].append((int(actions["a"][i]), actions["b"][0][i].copy()))
        actions["a"][:] = -1  # a policy may write into its results again
        returns = np.where(step.resets, 0.0, returns + step.rewards)
        since_reset = [[] if step.resets[i] else own for i, own in enumerate(since_reset)]
        if t not in (0, 6, 63, 64, 300, 499):
            continue
        state = episodes.get_state(are_running=True)
        assert state["lengths"].tolist() == [len(own) for own in since_reset] == [(t + 1) % n for n in lengths]
        joined = [pair for own in since_reset for pair in own]
        np.testing.assert_array_equal(state["actions"]["a"], [a for a, _ in joined])
        np.testing.assert_array_equal(state["actions"]["b"][0], [b for _, b in joined])
        others, restored = sums(*lengths)
        assert not restored.restore(state, others, step.obs, returns, others.renew).problems
        jax.tree.map(np.testing.assert_array_equal, others.obs, step.obs)
        # The next reset of each has the seed that it has in the run itself.
        later = restored.get_state(are_running=True)
        cases.assert_same(later, state)


def test_a_replay_that_differs_in_one_bit_of_an_observation_or_of_the_return_is_no_replay():
    vector, episodes = sums(9, 9, 9, 3)
    vector.reset(seed=[episodes.next_seed(i) for i in range(4)])
    returns = np.zeros(4)
    for _ in range(2):
        actions = {"a": np.array([1, 2, 3, 4]), "b": (np.full((4, 2), 0.5, np.float32),)}
        episodes.add(actions)
        returns += vector.step(actions).rewards
    state, obs = episodes.get_state(are_running=True), jax.tree.map(np.array, vector.obs)
    obs["sum"][1, 1] = np.nextafter(obs["sum"][1, 1], np.float32(9))
    returns[2] = np.nextafter(returns[2], 9.0)
    others, restored = sums(9, 9, 9, 2)
    problems = restored.restore(state, others, obs, returns, others.renew).problems
    assert problems == {
        1: "returned another observation after 2 replayed actions",
        2: "returned another return after 2 replayed actions",
        3: "ended its episode after 2 of 2 replayed actions",
    }
    # These have started their next episodes.
    assert restored.get_state(are_running=True)["lengths"].tolist() == [2, 0, 0, 0]
    assert restored.get_state(are_running=True)["num_resets"].tolist() == [1, 2, 2, 2]
    np.testing.assert_array_equal(others.obs["sum"][1:], np.zeros((3, 2)))
