"""Replay of several agents on the host: stored steps, draws, skipped modules, priorities, metrics, checkpoints."""

from __future__ import annotations

import itertools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQN, DQNConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.replay import MultiAgentPrioritizedEpisodeReplayBuffer

ROWS = 8
UNIFORM = {"type": "MultiAgentEpisodeReplayBuffer", "capacity": 200}
PRIORITIZED = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 200, "alpha": 0.6, "beta": 0.4}


class Numbered(MultiAgentEnv):
    """Observations are (agent, episode, own step); rewards are those of `reward_of`.

    Settings: `num_agents` (2); `length` of episodes (4); `comes_at`, the env step of an environment at which agent 1
    begins (0); `forgets`, whether all episodes are alike (False).
    """

    def __init__(self, config=None):
        super().__init__()
        config = dict(config or {})
        self.length, self.comes_at = config.get("length", 4), config.get("comes_at", 0)
        self.forgets = config.get("forgets", False)
        self.possible_agents = self.agents = list(range(config.get("num_agents", 2)))
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(0.0, 1e4, (3,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        self.episode, self.total = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = 0 if self.forgets else self.episode + 1, 0
        self.there = {agent: 0 for agent in self.agents if agent == 0 or self.total >= self.comes_at}
        return self._seen(), {}

    def step(self, action_dict):
        self.t, self.total = self.t + 1, self.total + 1
        rewards = {agent: reward_of(agent, own) for agent, own in self.there.items()}
        self.there = {agent: own + 1 for agent, own in self.there.items()}
        if 1 in self.agents and 1 not in self.there and self.total >= self.comes_at and self.t < self.length:
            self.there[1] = 0
        return self._seen(), rewards, {"__all__": self.t == self.length}, {"__all__": False}, {}

    def _seen(self):
        return {agent: np.array([agent, self.episode, own], np.float32) for agent, own in self.there.items()}


class Pair(MultiAgentJaxEnv):
    """Agents 0 and 1 act in all four steps of an episode."""

    possible_agents = (0, 1)
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, 4.0, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))

    def reset_env(self, key, params):
        return self._seen(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        after = state + 1
        return self._seen(after), after, {0: 1.0, 1: 2.0}, {"__all__": after == 4}, {}, {}

    def _seen(self, state):
        return dict.fromkeys(self.possible_agents, state.astype(jnp.float32)[None])


def reward_of(agent, t):
    """Reward of an agent for its step t."""
    return (1.0 + t) * (1.0 + 9.0 * agent)


def own_policy(agent_id, episode, **kwargs):
    return f"p{agent_id}"


def shared_policy(agent_id, episode, **kwargs):
    return "p0"


def config_of(
    config_class=DQNConfig,
    *,
    agents=2,
    policies=("p0", "p1"),
    mapping=own_policy,
    to_train=None,
    replay=UNIFORM,
    env=Numbered,
    env_config=None,
    learning_starts=8,
    **training,
):
    return (
        config_class()
        .environment(env, env_config={"num_agents": agents, **(env_config or {})} if env is Numbered else {})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=4)
        .multi_agent(policies=set(policies), policy_mapping_fn=mapping, policies_to_train=to_train)
        .training(
            train_batch_size_per_learner=ROWS,
            replay_buffer_config=replay,
            num_steps_sampled_before_learning_starts=learning_starts,
            target_network_update_freq=8,
            **training,
        )
        .reporting(min_sample_timesteps_per_iteration=0, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


def trained(config, iterations):
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    return algo


def module_state(algo, module_id):
    """Parameters, target network, optimizer and random stream of a module."""
    state = jax.device_get(algo.learner.get_state())
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    own = {name: np.asarray(leaf) for name, leaf in named.items() if module_id in name}
    assert any("_target_" in name for name in own) and any("optim" in name for name in own)
    return own


def is_same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def check_transitions(batch, *, agents, gamma, length=4):
    """Each row is a window of one agent of `Numbered`: its return, its last observation, its end."""
    agent, episode, t = batch["obs"].T
    n = batch["n_step"]
    assert set(agent.tolist()) == set(agents)
    returns = [
        sum(gamma**k * reward_of(a, start + k) for k in range(int(num)))
        for a, start, num in zip(agent, t, n, strict=True)
    ]
    np.testing.assert_allclose(batch["rewards"], returns, rtol=1e-6)
    goes_on = ~batch["terminateds"]
    np.testing.assert_array_equal(batch["new_obs"][goes_on], np.stack([agent, episode, t + n], 1)[goes_on])
    np.testing.assert_array_equal(batch["terminateds"], t + n == length)
    assert not batch["truncateds"].any()


# ---------------------------------------------------------------------------------------------------------- the modules


def test_untrained_modules_store_nothing_and_keep_their_state():
    algo = config_of(to_train=["p0"]).build_algo()
    before = {mid: module_state(algo, mid) for mid in ("p0", "p1")}
    for _ in range(3):
        result = algo.train()
    buffer = algo.driver.replay_buffer
    assert buffer.get_module_ids() == ["p0"] and buffer.get_num_timesteps() == buffer.get_num_timesteps("p0") == 24
    assert is_same(before["p1"], module_state(algo, "p1")) and not is_same(before["p0"], module_state(algo, "p0"))
    assert np.isfinite(result["learners"]["p0"]["total_loss"])
    assert algo.memory_estimate()["replay"]["num_rows"] == 200
    algo.stop()


@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig])
def test_a_module_without_rows_keeps_its_state_until_its_agent_comes(config_class):
    # Agent 1 of both environments comes with their step 10: in the middle of the third round.
    algo = config_of(config_class, env_config={"comes_at": 10}).build_algo()
    start, buffer = module_state(algo, "p1"), algo.driver.replay_buffer
    for _ in range(2):
        before = module_state(algo, "p0")
        result = algo.train()
        assert not is_same(before, module_state(algo, "p0"))
        assert is_same(start, module_state(algo, "p1"))
        assert buffer.get_num_timesteps("p1") == 0
        assert np.isnan(result["learners"]["p1"][{DQNConfig: "total_loss", SACConfig: "qf_loss"}[config_class]])
    algo.train()
    assert (
        buffer.get_num_timesteps("p1") == 2 * 2 and buffer.get_num_timesteps("p0") == buffer.get_num_timesteps() == 24
    )
    assert not is_same(start, module_state(algo, "p1"))
    check_transitions(buffer.sample_batch(50, n_step=2, gamma=0.9)["p0"], agents=[0], gamma=0.9)
    late = buffer.sample_batch(50, n_step=2, gamma=0.9)["p1"]
    check_transitions(late, agents=[1], gamma=0.9, length=2)
    algo.stop()


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(("unit", "expected"), [("env_steps", [0, 0, 1]), ("agent_steps", [0, 1, 2])])
def test_learning_starts_after_steps_in_the_unit_that_is_counted(unit, expected, on_device):
    # A round has 8 steps in this unit: with two agents 8 env steps, or 4 of them.
    env = Pair() if on_device else Numbered
    config = config_of(learning_starts={"env_steps": 24, "agent_steps": 16}[unit], env=env)
    algo = config.multi_agent(count_steps_by=unit).build_algo()
    for num_updates in expected:
        algo.train()
        assert algo.driver.num_updates == num_updates
    assert algo.driver.num_env_steps == {"env_steps": 24, "agent_steps": 12}[unit]
    algo.stop()


def test_windows_have_the_discount_of_their_module():
    config = config_of(n_step=3, gamma=0.9)
    config.rl_module(algorithm_config_overrides_per_module={"p1": DQNConfig.overrides(gamma=0.5)})
    algo = trained(config, 2)
    (replay,) = algo.driver.step.replays.values()
    for _ in range(5):
        drawn = replay.draw(algo.driver.replay_buffer, None, None)[-1]
        for mid, agent, gamma in (("p0", 0, 0.9), ("p1", 1, 0.5)):
            assert drawn[mid].columns["obs"].shape == (ROWS, 3)
            check_transitions(drawn[mid].columns, agents=[agent], gamma=gamma)
    algo.stop()


def test_another_module_does_not_change_a_modules_steps_and_draws():
    several = trained(config_of(agents=2), 3)
    one = trained(config_of(agents=1, policies=("p0",)), 3)
    for _ in range(3):
        left, right = (algo.driver.replay_buffer.sample_batch(ROWS, n_step=(1, 4))["p0"] for algo in (several, one))
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
        for algo in (several, one):
            algo.train()
    for algo in (several, one):
        algo.stop()


def test_a_mapping_by_episode_puts_steps_into_the_module_that_acted():
    numbers: dict = {}
    counter = itertools.count()

    def number_of(episode):
        if episode.id_ not in numbers:
            numbers[episode.id_] = next(counter)
        return numbers[episode.id_]

    def mapping(agent_id, episode, **kwargs):
        # Of four episodes the first two have agent 0 as "p0", the others as "p1".
        return f"p{(agent_id + number_of(episode) // 2) % 2}"

    algo = trained(config_of(mapping=mapping), 4)
    batches = algo.driver.replay_buffer.sample_batch(200)
    for mid, batch in batches.items():
        check_transitions(batch, agents=[0, 1], gamma=0.99)
        agent, episode, _ = batch["obs"].T.astype(int)
        np.testing.assert_array_equal((agent + episode) % 2, int(mid[-1]))
    stored = algo.driver.replay_buffer.episodes
    assert len(stored) == 8
    for episode in stored:
        own = {agent: episode.module_for(agent) for agent in (0, 1)}
        number = int(episode.agent_episodes[0].get_observations(0)[1])
        assert own == {0: f"p{number % 2}", 1: f"p{(1 + number) % 2}"}
    algo.stop()


# ----------------------------------------------------------------------------------------------------------- the buffer


class Logs(MultiAgentPrioritizedEpisodeReplayBuffer):
    """Keeps its calls."""

    def __init__(self, capacity, *, share, **more):
        self.calls = []
        super().__init__(int(capacity * share), **more)

    def sample_batch(self, *args, **kwargs):
        columns = super().sample_batch(*args, **kwargs)
        self.calls.append({mid: own["batch_indexes"].copy() for mid, own in columns.items()})
        return columns

    def update_priorities(self, priorities, module_id=None, *, indices=None):
        self.calls.append((module_id, np.asarray(indices).copy(), np.asarray(priorities)))
        super().update_priorities(priorities, module_id, indices=indices)


def test_a_buffer_class_of_the_user_draws_and_gets_the_priorities_of_each_modules_items():
    replay = {"type": Logs, "capacity": 400, "share": 0.5, "alpha": 0.6, "beta": 0.4}
    algo = trained(config_of(replay=replay, learning_starts=0), 3)
    buffer = algo.driver.replay_buffer
    assert type(buffer) is Logs and buffer.capacity == 200
    assert len(buffer.calls) == 3 * 3
    for i in range(0, 9, 3):
        drawn, *written = buffer.calls[i : i + 3]
        assert {mid for mid, *_ in written} == set(drawn) == {"p0", "p1"}
        for mid, indices, priorities in written:
            np.testing.assert_array_equal(indices, drawn[mid])
            assert priorities.shape == (ROWS,) and np.isfinite(priorities).all()
    # Rewards of the agents differ by a factor of ten, and so do the errors.
    means = {mid: np.mean([p for m, _, p in buffer.calls[1::3] + buffer.calls[2::3] if m == mid]) for mid in drawn}
    assert means["p1"] > 3 * means["p0"]
    algo.stop()


@pytest.fixture(scope="module")
def prioritized():
    algo = config_of(replay=PRIORITIZED).build_algo()
    results = [algo.train() for _ in range(3)]
    yield algo, results
    algo.stop()


def test_metrics_of_replay_are_in_total_and_by_module(prioritized):
    _, results = prioritized
    found = results[-1]["replay_buffer"]
    both = lambda number: {"p0": number, "p1": number}  # noqa: E731
    assert found["num_env_steps_added"] == 8 and found["num_env_steps_added_lifetime"] == 24
    assert found["num_module_steps_added"] == both(8) and found["num_module_steps_added_lifetime"] == both(24)
    assert found["num_episodes_added_lifetime"] == 6 and found["num_module_episodes_added_lifetime"] == both(6)
    assert found["num_module_steps_sampled"] == both(ROWS)
    assert found["num_module_steps_sampled_lifetime"] == both(3 * ROWS)
    assert found["num_env_steps_evicted_lifetime"] == 0 and found["num_module_steps_evicted_lifetime"] == both(0)
    for mid in ("p0", "p1"):
        learned = results[-1]["learners"][mid]
        assert learned["num_module_steps_trained_lifetime"] == 3 * ROWS and np.isfinite(learned["total_loss"])


def test_eviction_counts_env_steps_for_all_modules():
    algo = config_of(replay={**UNIFORM, "capacity": 16}).build_algo()
    for _ in range(4):
        result = algo.train()
    buffer, found = algo.driver.replay_buffer, result["replay_buffer"]
    assert len(buffer) == buffer.get_num_timesteps("p0") == buffer.get_num_timesteps("p1") == 16
    assert found["num_env_steps_evicted_lifetime"] == 16
    assert found["num_module_steps_evicted_lifetime"] == {"p0": 16, "p1": 16}
    for mid, batch in buffer.sample_batch(100).items():
        assert batch["obs"][:, 1].min() == 2, f"older episodes of {mid} are gone"
    algo.stop()


def test_the_estimate_of_memory_counts_the_agents_of_each_module(prioritized):
    of_two = prioritized[0].memory_estimate()["replay"]
    shared = config_of(replay=PRIORITIZED, policies=("p0",), mapping=shared_policy).build_algo()
    one = config_of(replay=PRIORITIZED, agents=1, policies=("p0",)).build_algo()
    estimates = [algo.memory_estimate()["replay"] for algo in (shared, one)]
    assert [own["num_rows"] for own in (of_two, *estimates)] == [400, 400, 200]
    assert estimates[0]["columns"] == {name: 2 * size for name, size in estimates[1]["columns"].items()}
    for algo in (shared, one):
        algo.stop()


def test_a_buffer_that_cannot_fit_is_refused_with_the_agents_counted():
    with pytest.raises(ValueError, match=r"replay buffer: .* cannot fit"):
        config_of(replay={**UNIFORM, "capacity": 10**13}).build_algo()


@pytest.mark.parametrize("kind", ["EpisodeReplayBuffer", "jaxrl_stack.replay.EpisodeReplayBuffer"])
def test_a_buffer_of_one_agent_is_refused_with_several(kind):
    with pytest.raises(
        ValueError, match=r"EpisodeReplayBuffer.*one agent.*Use 'type': 'MultiAgentEpisodeReplayBuffer'"
    ):
        config_of(replay={"type": kind, "capacity": 100}).validate()


def test_a_buffer_of_several_agents_is_refused_with_one():
    config = DQNConfig().environment("CartPole-v1").training(replay_buffer_config=PRIORITIZED)
    with pytest.raises(ValueError, match=r"several agents.*Use 'type': 'PrioritizedEpisodeReplayBuffer'"):
        config.validate()


# ------------------------------------------------------------------------------------------- other ways of sampling


def test_complete_episodes_are_stored_as_they_are():
    algo = config_of(n_step=2).env_runners(batch_mode="complete_episodes").build_algo()
    for _ in range(3):
        result = algo.train()
    buffer = algo.driver.replay_buffer
    assert buffer.get_num_timesteps() == result["num_env_steps_sampled_lifetime"] == 24
    assert [len(episode) for episode in buffer.episodes] == [4] * 6
    for agent, batch in enumerate(buffer.sample_batch(100, n_step=2, gamma=0.9).values()):
        check_transitions(batch, agents=[agent], gamma=0.9)
    assert all(np.isfinite(result["learners"][mid]["total_loss"]) for mid in ("p0", "p1"))
    algo.stop()


@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig])
def test_modules_with_a_recurrent_state_learn_from_sequences(config_class):
    config = config_of(config_class, env_config={"length": 6, "comes_at": 10}, learning_starts=24)
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4, "fcnet_hiddens": [4]})
    algo = config.build_algo()
    for _ in range(5):
        result = algo.train()
    loss = {DQNConfig: "total_loss", SACConfig: "qf_loss"}[config_class]
    assert all(np.isfinite(result["learners"][mid][loss]) for mid in ("p0", "p1"))
    (replay,) = algo.driver.step.replays.values()
    drawn = replay.draw(algo.driver.replay_buffer, None, None)[-1]
    for agent, mid in enumerate(("p0", "p1")):
        columns = drawn[mid].columns
        for obs, length in zip(columns["obs"], columns["seq_lens"], strict=True):
            assert (obs[:length, 0] == agent).all()
            np.testing.assert_array_equal(np.diff(obs[:length, 1:], axis=0), np.tile([0, 1], (length - 1, 1)))
    algo.stop()


# ---------------------------------------------------------------------------------------------------------- checkpoints


def learned(result):
    return {
        "losses": {mid: result["learners"][mid]["total_loss"] for mid in ("p0", "p1")},
        "steps": result["num_env_steps_sampled_lifetime"],
        "stored": result["replay_buffer"]["num_module_steps_added_lifetime"],
        "returns": result["env_runners"]["module_episode_returns_mean"],
    }


def same_columns(left, right):
    assert left.keys() == right.keys()
    for mid, own in left.items():
        for name, column in own.items():
            np.testing.assert_array_equal(column, right[mid][name], err_msg=f"{mid}/{name}")


@pytest.mark.parametrize("replay", [UNIFORM, PRIORITIZED], ids=["uniform", "prioritized"])
def test_a_restored_run_equals_the_uninterrupted_one(replay, tmp_path):
    # Episodes end with fragments: environments have nothing that a checkpoint lacks.
    straight = trained(config_of(replay=replay, env_config={"forgets": True}, n_step=(1, 3)), 3)
    path = straight.save_to_path(tmp_path / "checkpoint")
    expected = [learned(straight.train()) for _ in range(3)]
    restored = DQN.from_checkpoint(path, allow=[Numbered, own_policy])
    assert [learned(restored.train()) for _ in range(3)] == expected
    for mid in ("p0", "p1"):
        assert is_same(module_state(straight, mid), module_state(restored, mid))
    same_columns(*(algo.driver.replay_buffer.sample_batch(30, n_step=2) for algo in (straight, restored)))
    for algo in (straight, restored):
        algo.stop()


def test_a_checkpoint_without_the_buffer_continues_with_an_empty_one(tmp_path):
    algo = trained(config_of(store_buffer_in_checkpoints=False), 3)
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = DQN.from_checkpoint(path, allow=[Numbered, own_policy])
    assert len(restored.driver.replay_buffer) == 0 and restored.driver.num_updates == 3
    result = restored.train()
    assert len(restored.driver.replay_buffer) == 8
    assert all(np.isfinite(loss) for loss in learned(result)["losses"].values())
    for each in (algo, restored):
        each.stop()


# --------------------------------------------------------------------------------------------------------------- actors


@pytest.mark.usefixtures("fake_ray")
def test_env_runner_actors_fill_one_buffer_and_a_learner_actor_updates_both_modules():
    config = config_of(replay=PRIORITIZED, n_step=2, env_config={"length": 6, "comes_at": 10})
    config.env_runners(num_env_runners=2).learners(num_learners=1)
    algo = config.build_algo()
    for _ in range(4):
        result = algo.train()
    buffer = algo.driver.replay_buffer
    assert len(buffer) == buffer.get_num_timesteps("p0") == 4 * 16 == result["num_env_steps_sampled_lifetime"]
    assert 0 < buffer.get_num_timesteps("p1") < len(buffer)
    batches = buffer.sample_batch(200, n_step=2, gamma=0.9)
    check_transitions(batches["p0"], agents=[0], gamma=0.9, length=6)
    goes_on = (
        batches["p1"]["new_obs"][~batches["p1"]["terminateds"]] - batches["p1"]["obs"][~batches["p1"]["terminateds"]]
    )
    assert (goes_on[:, :2] == 0).all() and (goes_on[:, 2] >= 1).all()
    for mid in ("p0", "p1"):
        assert np.isfinite(result["learners"][mid]["total_loss"])
    assert result["learners"]["p0"]["num_module_steps_trained_lifetime"] == 4 * ROWS
    algo.stop()
