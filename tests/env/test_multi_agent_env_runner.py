"""Environments of several agents on the host: what is recorded of each agent, and what is learned from it."""

import collections
import functools
import inspect
import itertools

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from envs.multi_agent_host import ComeAndGo
from jaxrl_stack.acting.agent_recording import AgentRecordings
from jaxrl_stack.acting.recording import Recording
from jaxrl_stack.acting.rollout import Rollout, RolloutRecording
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import joined
from jaxrl_stack.core.module_map import ModuleMap, single_agent
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.host_rollout import HostRollout
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.multi_agent_rollout import MultiAgentRollout
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.seeds import derived_seed

NUM_ENVS = 2


class RandomTurns(MultiAgentEnv):
    """Who observes, ends and gets rewards is random; now and then for everybody at once."""

    possible_agents = ("a", "b", "c")

    def __init__(self, config=None):
        super().__init__()
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(-10.0, 10.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(3))

    def reset(self, *, seed=None, options=None):
        MultiAgentEnv.reset(self, seed=seed)
        self.alive, self.seen = set(self.agents), set()
        return self._observed([*self._some(0.6), "a"]), {}

    def step(self, action_dict):
        rewards = {agent: self._number() for agent in self._some(0.6)}
        ends = [(agent, self._is(0.3)) for agent in sorted(self.seen) if agent in self.alive and self._is(0.1)]
        terminateds = {agent: is_terminated for agent, is_terminated in ends}
        truncateds = {agent: not is_terminated for agent, is_terminated in ends}
        obs = self._observed(self._some(0.5))
        self.alive -= terminateds.keys()
        over = self._is(0.08)
        kind = self._is(0.5)
        return obs, rewards, {**terminateds, "__all__": over and kind}, {**truncateds, "__all__": over and not kind}, {}

    def _is(self, chance):
        return bool(self.np_random.random() < chance)

    def _number(self):
        return float(self.np_random.integers(-3, 4))

    def _some(self, chance):
        return [agent for agent in self.agents if agent in self.alive and self._is(chance)]

    def _observed(self, agents):
        self.seen.update(agents)
        return {agent: self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32) for agent in agents}


class Together(RandomTurns):
    """Everybody observes in every step, and all end at once."""

    def step(self, action_dict):
        rewards = {agent: self._number() for agent in self.agents}
        over, kind = self._is(0.2), self._is(0.5)
        return self._observed(self.agents), rewards, {"__all__": over and kind}, {"__all__": over and not kind}, {}

    def _some(self, chance):
        return list(self.agents)


def logged(env_class):
    """The class with a log of all that goes in and out, ``log[vector_index]``."""
    log = collections.defaultdict(list)

    class Logged(env_class):
        def __init__(self, config):
            super().__init__(config)
            self.index = config.vector_index

        def reset(self, **kwargs):
            outcome = super().reset(**kwargs)
            log[self.index].append((None, outcome[0]))
            return outcome

        def step(self, action_dict):
            try:
                outcome = super().step(action_dict)
            except RuntimeError:
                log[self.index].append((dict(action_dict), None))
                raise
            log[self.index].append((dict(action_dict), *outcome))
            return outcome

    return Logged, log


def by_last_character(agent_id, episode, **kwargs):
    return "even" if str(agent_id)[-1] in "02468a" else "odd"


def config_of(env, env_config=None, **runners):
    return (
        PPOConfig()
        .environment(env, env_config=env_config or {})
        .multi_agent(policies={"even", "odd"}, policy_mapping_fn=by_last_character)
        .env_runners(num_env_runners=0, **{"num_envs_per_env_runner": NUM_ENVS, **runners})
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .debugging(seed=1)
    )


def steps_of_agents(log):
    """``{agent: [[obs, action, reward, terminated, truncated, obs that completed it], ...]}``, in a plain loop."""
    steps, held, alive = collections.defaultdict(list), {}, set()
    last = {}
    for action_dict, obs, *answer in log:
        if action_dict is None:
            held, last, alive = {}, dict(obs), set(obs)
            continue
        for agent, action in action_dict.items():
            held[agent] = [last[agent], action, 0.0]
        rewards, terminateds, truncateds, _ = answer
        for agent, reward in rewards.items():
            if agent in held:
                held[agent][2] += reward
        last.update(obs)
        alive |= obs.keys()
        terminated = {agent for agent in alive if terminateds.get("__all__") or terminateds.get(agent)}
        truncated = {a for a in alive if truncateds.get("__all__") or truncateds.get(a)} - terminated
        for agent in alive:
            if agent in held and (agent in obs or agent in terminated | truncated):
                steps[agent].append([*held.pop(agent), agent in terminated, agent in truncated, last[agent]])
        alive -= terminated | truncated
    return steps


def recorded_steps(blocks, agents_of):
    """The same out of blocks, by environment, and the final observations that each block has."""
    steps = collections.defaultdict(list)
    for block in blocks:
        for mid, columns in block.part.modules.items():
            mask = columns[Columns.LOSS_MASK]
            assert (np.sort(mask, axis=0)[::-1] == mask).all(), "valid rows come first"
            for row in range(mask.shape[1]):
                slot, env = divmod(row, NUM_ENVS)
                num = int(mask[:, row].sum())
                for t in range(num):
                    names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
                    needs_final = t == num - 1 or columns[Columns.TRUNCATEDS][t, row]
                    final = columns[Columns.FINAL_OBS][t, row] if needs_final else None
                    steps[env, agents_of[mid][slot]].append([*(columns[name][t, row] for name in names), final])
    return steps


@pytest.mark.parametrize("env", [TicTacToe, RandomTurns, Together])
def test_blocks_are_those_of_a_plain_loop_per_agent(env):
    env, log = logged(env)
    runner = MultiAgentEnvRunner(config=config_of(env))
    blocks = [runner.sample_block(num_steps=n) for n in (9, 1, 2, 14, 30)]
    recorded = recorded_steps(blocks, runner.module_map.agents_of)
    num_ends = 0
    for index in range(NUM_ENVS):
        for agent, expected in steps_of_agents(log[index]).items():
            found = recorded[index, agent]
            assert len(found) == len(expected)
            for own, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(own[0], wanted[0])
                assert own[1] == wanted[1] and own[2] == np.float32(wanted[2])
                assert (own[3], own[4]) == (wanted[3], wanted[4])
                if own[5] is not None and not wanted[3]:
                    np.testing.assert_array_equal(own[5], wanted[5])
                num_ends += wanted[3] or wanted[4]
    assert num_ends > 4
    counted = collections.Counter()
    for block in blocks:
        counted.update(block.report.agent_steps)
        assert block.num_env_steps == block.part.modules["even"][Columns.LOSS_MASK].shape[0] * NUM_ENVS
    assert counted == {a: sum(len(recorded[i, a]) for i in range(NUM_ENVS)) for a in runner.module_map.module_of}


class FailsNowAndThen(RandomTurns):
    """The environments fail in these steps and resets, also in two steps in a row."""

    failing_steps = {0: (13, 30, 31, 77), 1: (21, 90)}
    failing_resets = {0: (3,), 1: (4, 5)}

    def __init__(self, config):
        super().__init__(config)
        self.index = config.vector_index

    def reset(self, **kwargs):
        self._fail_in(self.failing_resets, "reset")
        return super().reset(**kwargs)

    def step(self, action_dict):
        self._fail_in(self.failing_steps, "step")
        return super().step(action_dict)

    def _fail_in(self, failing, what):
        self.calls[what, self.index] += 1
        if self.calls[what, self.index] in failing[self.index]:
            raise RuntimeError("it failed")


def times_of(log, index, blocks, module_of):
    """Times of the steps of one environment in a plain loop, as `AgentTimes` has them for all blocks together.

    Args:
        log: Of all environments.
        index: Of the environment.
        blocks: Number of the block of each vector step.
        module_of: ``(number of the episode, agent) -> module``.

    Returns:
        ``({(module, agent): [(begins, seen, starts)]}, counts, ends)``.
    """
    order = {place: number for number, place in enumerate(sorted(_resets_of(log)))}
    steps, held, going, alive = collections.defaultdict(list), {}, set(), set()
    counts, ends = [], []
    first, module = 0, None
    for entry, after in itertools.zip_longest(log[index], log[index][1:], fillvalue=((), None)):
        now, (action_dict, obs, *answer) = len(counts), entry
        if action_dict is None:
            module = functools.partial(module_of, order[now, index])
            held, going, alive, first = {}, set(), set(obs), now
            continue
        held |= dict.fromkeys(action_dict, now)
        counts.append(True)
        ends.append(obs is not None and after[0] is None)
        if obs is None:
            begin = max(first, blocks.index(blocks[now]))
            counts[begin:] = [False] * (now + 1 - begin)
            for own in steps.values():
                own[:] = [step for step in own if step[1] <= begin]
            continue
        alive |= obs.keys()
        ended = {agent for agent in alive if any(flags.get("__all__") or flags.get(agent) for flags in answer[1:3])}
        for agent in alive & held.keys() & (obs.keys() | ended):
            steps[module(agent), agent].append((held.pop(agent), now + 1, agent not in going))
            going.add(agent)
        alive -= ended
    return steps, counts, ends


def _resets_of(log):
    """``(vector step, environment)`` of all resets."""
    for index, entries in log.items():
        steps = itertools.accumulate((entry[0] is not None for entry in entries), initial=0)
        yield from ((step, index) for step, entry in zip(steps, entries, strict=False) if entry[0] is None)


@pytest.mark.parametrize(
    ("env", "is_mapped_by_episode", "is_watched"),
    [(TicTacToe, False, False), (ComeAndGo, True, True), *itertools.product([FailsNowAndThen], *[[False, True]] * 2)],
)
def test_times_of_steps_are_those_of_a_plain_loop(env, is_mapped_by_episode, is_watched):
    numbers = {}

    def by_number(agent_id, episode, **kwargs):
        return module_of(numbers.setdefault(episode.id_, len(numbers)), agent_id)

    def module_of(number, agent_id):
        mid = by_last_character(agent_id, None)
        return {"even": "odd", "odd": "even"}[mid] if is_mapped_by_episode and number % 3 == 1 else mid

    env, log = logged(env)
    env.calls = collections.Counter()
    config = config_of(env).fault_tolerance(restart_failed_sub_environments=True)
    config.multi_agent(policy_mapping_fn=by_number)
    if is_watched:
        config.callbacks(on_episode_step=lambda **kwargs: None)
    runner = MultiAgentEnvRunner(config=config)
    numbers.clear()
    lengths = [7, 1, 1, 1, 2, 5, 30, 3, 1, 13, 1, 40]
    parts = [runner.sample_block(num_steps=n, keeps_times=True).part for n in lengths]
    assert [part.source.serial for part in parts] == list(range(len(lengths)))
    blocks = np.repeat(np.arange(len(lengths)), lengths).tolist()
    begins_of_blocks = np.cumsum([0, *lengths[:-1]]).tolist()
    kinds = collections.Counter()
    for index in range(NUM_ENVS):
        steps, counts, ends = times_of(log, index, blocks, module_of)
        np.testing.assert_array_equal(np.concatenate([part.times.counts[:, index] for part in parts]), counts)
        np.testing.assert_array_equal(np.concatenate([part.times.ends[:, index] for part in parts]), ends)
        kinds.update(ends=sum(ends), dropped=counts.count(False))
        for mid, agents in runner.module_map.agents_of.items():
            for slot, agent in enumerate(agents):
                row, found = slot * NUM_ENVS + index, []
                for part, begin in zip(parts, begins_of_blocks, strict=True):
                    columns, times = part.modules[mid], part.times
                    number = int(columns[Columns.LOSS_MASK][:, row].sum())
                    assert times.agents == runner.module_map.agents_of
                    assert times.begins[mid].dtype == times.seen[mid].dtype == np.int32
                    assert times.begins[mid].shape == times.seen[mid].shape == columns[Columns.LOSS_MASK].shape
                    own = [(x[mid][:number, row] + begin).tolist() for x in (times.begins, times.seen)]
                    # Behind the first step of a block, steps begin episodes where the one before ended.
                    ended = (columns[Columns.TERMINATEDS] | columns[Columns.TRUNCATEDS])[:, row].tolist()
                    found += zip(*own, [bool(part.starts[mid][row]), *ended][:number], strict=True)
                assert found == steps[mid, agent]
                kinds.update(steps=len(found))
                kinds.update(blocks[seen - 1] - blocks[began] for began, seen, _ in found)
    assert kinds["steps"] > 100 and kinds["ends"] > 10
    # Steps over one and over two ends of blocks, and those that failures leave out.
    assert env.__base__ is not FailsNowAndThen or (kinds[1] and kinds[2] and kinds["dropped"])


def test_nothing_continues_what_a_reset_of_all_environments_has_cut_off():
    runner = MultiAgentEnvRunner(config=config_of(Faulty))
    parts = [runner.sample_block(num_steps=3).part for _ in range(2)]
    runner.make_env()
    parts += [runner.sample_block(num_steps=3).part for _ in range(2)]
    # The number says it to those who count episodes of environments.
    assert [part.source.serial for part in parts] == [0, 1, 3, 4]
    assert [part.starts["odd"].tolist() for part in parts] == [[True] * NUM_ENVS, [False] * NUM_ENVS] * 2


def test_parts_have_times_where_a_replay_on_the_host_asks_for_them():
    assert MultiAgentEnvRunner(config=config_of(TicTacToe)).sample_block(num_steps=3).part.times is None
    algo = config_of(TicTacToe).build_algo()
    try:
        driver = algo.driver
        plans = [driver.plan_samples(4, num_shares=2, for_replay=for_replay) for for_replay in (False, True)]
        sampled = [driver.place.sample(TrainState(), plan)[1] for plan in plans]
        assert [[part.times is None for part in own.parts] for own in sampled] == [[True] * 2, [False] * 2]
        part = sampled[1].parts[0]
        half = part.run({mid: (1, 2) for mid in part.modules})
        assert half.times is None and half.starts == {mid: own[1:2] for mid, own in part.starts.items()}
        assert joined(sampled[1].parts).times is None
    finally:
        algo.stop()


def test_no_block_has_what_cannot_be_learned_from_behind_its_steps():
    runner = MultiAgentEnvRunner(config=config_of(RandomTurns))
    columns = runner.sample_block(num_steps=6).part.modules["even"]
    mask = columns[Columns.LOSS_MASK]
    for row in range(mask.shape[1]):
        last = max(int(mask[:, row].sum()) - 1, 0)
        behind = columns["action_logp"][last + 1 :, row]
        assert mask[:, row].sum() == 0 or (behind == columns["action_logp"][last, row]).all()
    assert (columns["action_logp"] < 0.0).all(), "zeros are no probabilities of a network"


def test_another_module_leaves_what_a_module_draws_alone():
    def actions(num_agents):
        config = config_of(MultiAgentCartPole, {"num_agents": num_agents})
        if num_agents == 1:
            config.multi_agent(policies={"even"})
        runner = MultiAgentEnvRunner(config=config)
        assert list(runner.module_map.agents_of) == ["even", "odd"][:num_agents]
        return runner.sample_block(num_steps=8).part.modules["even"][Columns.ACTIONS]

    alone = actions(1)
    np.testing.assert_array_equal(alone, actions(2))
    assert alone.min() < alone.max()


def test_episodes_are_those_that_environments_had():
    env, log = logged(TicTacToe)
    runner = MultiAgentEnvRunner(config=config_of(env))
    episodes = runner.sample(num_episodes=4)
    assert len(episodes) == 4 and all(episode.is_terminated or episode.is_truncated for episode in episodes)
    for episode in episodes:
        episode.validate()
        assert {agent: episode.module_for(agent) for agent in episode.agent_episodes} == {
            "player1": "odd",
            "player2": "even",
        }
    assert {len(episode) for episode in episodes} <= {
        sum(row[0] is not None for row in rows) for index in log for rows in _episodes_of(log[index])
    }
    chunks = runner.sample(num_timesteps=6)
    assert all(len(chunk) == 3 and not chunk.is_done for chunk in chunks)
    again = {chunk.id_: chunk for chunk in runner.sample(num_timesteps=6)}
    assert all(again[chunk.id_].env_t_started == 3 for chunk in chunks)


class LeavesEarly(MultiAgentEnv):
    """Agent "a" ends in step 3 of 5, in both ways by turns; observations are Dicts, or numbers around 50."""

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b"]
        number = Box(0.0, 100.0, (1,), np.float32)
        self.observation_space = Dict(x=number, y=Discrete(3)) if config["has_dicts"] else number
        self.action_space = Discrete(2)
        self.num_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.num_episodes = 0, self.num_episodes + 1
        return {"a": self._seen(), "b": self._seen()}, {}

    def step(self, action_dict):
        self.t += 1
        obs = {agent: self._seen() for agent in ("a", "b")[self.t > 3 :]}
        ends, runs = {"a": self.t == 3, "__all__": self.t == 5}, {"__all__": False}
        flags = (ends, runs) if self.num_episodes % 2 else ({"__all__": self.t == 5}, {"a": self.t == 3})
        return obs, dict.fromkeys(obs, 1.0), *flags, {}

    def _seen(self):
        x = (50 + self.np_random.normal(size=1)).astype(np.float32)
        return {"x": x, "y": int(self.np_random.integers(3))} if isinstance(self.observation_space, Dict) else x


@pytest.mark.parametrize("has_dicts", [False, True])
def test_an_agents_last_observation_is_the_modules_input(has_dicts):
    config = config_of(LeavesEarly, {"has_dicts": has_dicts})
    if not has_dicts:
        config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    episodes = MultiAgentEnvRunner(config=config).sample(num_episodes=4)
    ends = [(own.is_terminated, own.is_truncated) for own in (one.agent_episodes["a"] for one in episodes)]
    assert set(ends) == {(True, False), (False, True)} and [len(one) for one in episodes] == [5] * 4
    seen = [own.get_observations() for one in episodes for own in one.agent_episodes.values()]
    assert {x.shape[1:] for x in seen} == {(4,) if has_dicts else (1,)}
    assert has_dicts or max(np.abs(x).max() for x in seen) < 5.0


def _episodes_of(log):
    rows = []
    for row in log:
        if row[0] is None and rows:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def test_a_mapping_is_asked_once_per_agent_and_episode_and_may_look_at_it():
    asked, order = collections.Counter(), {}

    def by_episode(agent_id, episode, **kwargs):
        asked[episode.id_, agent_id] += 1
        return "even" if order.setdefault(episode.id_, len(order)) % 2 else "odd"

    config = config_of(MultiAgentCartPole, {"num_agents": 2}).multi_agent(policy_mapping_fn=by_episode)
    runner = MultiAgentEnvRunner(config=config)
    assert runner.module_map.slots == {"even": (0, 1), "odd": (0, 1)}
    block = runner.sample_block(num_steps=60)
    assert set(asked.values()) == {1}
    masks = [columns[Columns.LOSS_MASK] for columns in block.part.modules.values()]
    assert sum(int(mask.sum()) for mask in masks) == block.part.num_agent_steps
    assert all(mask.shape == (60, 2 * NUM_ENVS) and mask.any() for mask in masks)


def test_agents_that_come_after_a_chunk_was_cut_are_asked_for_once():
    asked = collections.Counter()

    def noted(agent_id, episode, **kwargs):
        asked[episode.id_, agent_id] += 1
        return by_last_character(agent_id, episode)

    runner = MultiAgentEnvRunner(config=config_of(ComeAndGo).multi_agent(policy_mapping_fn=noted))
    asked.clear()
    for _ in range(8):
        runner.sample(num_timesteps=NUM_ENVS)
    assert set(asked.values()) == {1} and {agent for _, agent in asked} == {"a0", "a1", "a2"}
    runner.sample_block(num_steps=2)
    assert set(asked.values()) == {1}


def test_rows_that_wait_keep_their_histories_and_recurrent_states():
    config = config_of(TicTacToe).rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
    runner = MultiAgentEnvRunner(config=config)
    module = runner.module["even"]
    blocks = [runner.sample_block(num_steps=8).part.modules["even"] for _ in range(3)]
    for columns in blocks:
        state, mask = columns[Columns.STATE_IN], columns[Columns.LOSS_MASK]
        assert jax.tree.leaves(state)[0].shape[:2] == (2, NUM_ENVS)
        batch = {
            Columns.OBS: np.moveaxis(columns[Columns.OBS][:4], 0, 1),
            Columns.STATE_IN: jax.tree.map(lambda x: x[0], state),
            "resets": np.moveaxis(columns["resets"][:4], 0, 1),
        }
        logits = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        recorded = np.moveaxis(columns[Columns.ACTION_DIST_INPUTS][:4], 0, 1)
        valid = np.moveaxis(mask[:4], 0, 1)
        np.testing.assert_allclose(np.asarray(logits)[valid], recorded[valid], atol=1e-5)
    assert any(jax.tree.leaves(columns[Columns.STATE_IN])[0][0].any() for columns in blocks[1:])


def by_episode(agent_id, episode, **kwargs):
    return ("even", "odd")[(int(episode.id_, 16) + (agent_id == "player2")) % 2]


@pytest.fixture(scope="module")
def trained():
    """Weights of two policies that change sides before, and after two iterations, and the result of the second one."""
    model = {"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = config_of(TicTacToe, rollout_fragment_length=32).rl_module(model_config=model)
    config.multi_agent(policy_mapping_fn=by_episode).evaluation(evaluation_interval=2, evaluation_duration=3)
    algo = config.build_algo()
    before = algo.get_weights()
    algo.train()
    yield before, algo.train(), algo.get_weights()
    algo.stop()


def test_two_policies_are_trained_and_evaluated(trained):
    before, result, after = trained
    for mid in ("even", "odd"):
        pairs = zip(jax.tree.leaves(before[mid]), jax.tree.leaves(after[mid]), strict=True)
        assert any(not np.array_equal(one, other) for one, other in pairs)
        assert np.isfinite(result["learners"][mid]["total_loss"])
    runners = result["env_runners"]
    assert runners["num_env_steps_sampled"] == 64
    assert runners["agent_episode_returns_mean"].keys() == {"player1", "player2"}
    evaluated = result["evaluation"]["env_runners"]
    assert evaluated["num_episodes"] == 3
    returns = [evaluated["agent_episode_returns_mean"][agent] for agent in ("player1", "player2")]
    assert sum(returns) == pytest.approx(evaluated["episode_return_mean"])


class Faulty(MultiAgentEnv):
    """Two agents; what the first step returns is in the config."""

    def __init__(self, config):
        super().__init__()
        self.returns = dict(config)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, Box(-1.0, 1.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))
        if config.get("other_space"):
            self.observation_spaces["b"] = Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}, {}

    def step(self, action_dict):
        self.t += 1
        obs = {agent: np.zeros(2, np.float32) for agent in ("a", "b") if not (agent == "a" and self.t > 1)}
        obs |= self.returns.get("obs", {}) if self.t == 2 else {}
        rewards = dict.fromkeys(obs, self.returns.get("reward", 0.0) if self.t == 2 else 0.0)
        return obs, rewards, {"a": self.t == 1}, {}, {}


@pytest.mark.parametrize(
    ("env_config", "error", "message"),
    [
        (
            {"obs": {"a": np.zeros(2, np.float32)}},
            MultiAgentEnvError,
            "step 2.*observation of agent 'a', which has ended",
        ),
        ({"obs": {"x": np.zeros(2, np.float32)}}, MultiAgentEnvError, "step 2.*agent 'x'.*possible_agents"),
        ({"obs": {"b": np.full(2, np.nan, np.float32)}}, ValueError, "not finite, of agent 'b'"),
        ({"reward": float("inf")}, ValueError, r"a reward \(inf\) that is not finite, of agent 'b'"),
    ],
)
def test_what_environments_must_not_return(env_config, error, message):
    runner = MultiAgentEnvRunner(config=config_of(Faulty, env_config))
    with pytest.raises(error, match=message):
        runner.sample_block(num_steps=4)


def test_bad_policies():
    def one(agent_id, episode, **kwargs):
        return "even"

    def none(agent_id, episode, **kwargs):
        return "none"

    with pytest.raises(
        ValueError, match=r"'a' and 'b' to the module .* observation_spaces are .* to different modules"
    ):
        MultiAgentEnvRunner(config=config_of(Faulty, {"other_space": True}).multi_agent(policy_mapping_fn=one))
    with pytest.raises(ValueError, match=r"returns 'none' for the agent 'a'.*\['even', 'odd'\]"):
        MultiAgentEnvRunner(config=config_of(Faulty).multi_agent(policy_mapping_fn=none))
    with pytest.raises(ValueError, match=r"has one\. Leave multi_agent\(\) out"):
        MultiAgentEnvRunner(config=config_of("CartPole-v1"))


def test_the_episode_of_an_environment_that_fails_is_left_out():
    class Fails(RandomTurns):
        num_steps = 0

        def step(self, action_dict):
            type(self).num_steps += 1
            if self.num_steps == 30:
                raise RuntimeError("it failed")
            return super().step(action_dict)

    config = config_of(Fails).fault_tolerance(restart_failed_sub_environments=True)
    runner = MultiAgentEnvRunner(config=config)
    assert runner.sample_block(num_steps=5).num_env_steps == 10
    block = runner.sample_block(num_steps=15)
    assert block.num_env_steps < 30
    for columns in block.part.modules.values():
        mask = columns[Columns.LOSS_MASK]
        assert (np.sort(mask, axis=0)[::-1] == mask).all()
    assert runner.sample_block(num_steps=5).num_env_steps == 10


class AsItSamples(MultiAgentEnvRunner):
    """Has a `sample` of its own, so that episodes are learned from."""

    def sample(self, **kwargs):
        return super().sample(**kwargs)


def test_episodes_make_the_same_update_as_blocks():
    after = []
    for runner_class in (None, AsItSamples):
        config = config_of(RandomTurns, env_runner_cls=runner_class).training(minibatch_size=None, lr=0.1)
        algo = config.build_algo()
        result = algo.train()
        after.append(algo.get_weights())
        assert result["env_runners"]["num_env_steps_sampled"] == 64
        numbers = [result["env_runners"][f"num_{kind}_steps_sampled"] for kind in ("agent", "module")]
        assert sum(numbers[0].values()) == sum(numbers[1].values()) > 0
        algo.stop()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), *after)


class FailsOnce(MultiAgentEnv):
    """An agent ends, and two steps later the environment fails; in the environment after it nobody ends."""

    possible_agents = ("a", "b")
    num_made = 0

    def __init__(self, config=None):
        super().__init__()
        type(self).num_made += 1
        self.agents, self.is_first, self.t = list(self.possible_agents), self.num_made == 1, 0
        self.observation_spaces = dict.fromkeys(self.agents, Box(0.0, 100.0, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))

    def reset(self, *, seed=None, options=None):
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, action_dict):
        self.t += 1
        if self.is_first and self.t == 6:
            raise RuntimeError("it failed")
        obs = {agent: np.array([self.t], np.float32) for agent in action_dict}
        return (
            obs,
            dict.fromkeys(action_dict, 0.0),
            {"b": self.is_first and self.t == 4, "__all__": False},
            {"__all__": False},
            {},
        )


class ComesLate(FailsOnce):
    """Its second agent takes part only after 40 steps of an environment."""

    num_steps = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._seen(), {}

    def step(self, action_dict):
        self.t, self.num_steps = self.t + 1, self.num_steps + 1
        ends = {"__all__": self.t == 8}
        return self._seen(), dict.fromkeys(action_dict, 1.0), ends, {"__all__": False}, {}

    def _seen(self):
        return dict.fromkeys(self.agents if self.num_steps > 40 else ["a"], np.array([self.t], np.float32))


@pytest.mark.parametrize("runner_class", [None, AsItSamples], ids=["blocks", "episodes"])
def test_a_module_without_steps_is_not_updated_although_no_other_is_trained(runner_class):
    def by_id(agent_id, episode, **kwargs):
        return {"a": "even", "b": "odd"}[agent_id]

    config = config_of(ComesLate, env_runner_cls=runner_class)
    algo = config.multi_agent(policy_mapping_fn=by_id, policies_to_train=["odd"]).build_algo()
    try:
        weights = [algo.get_weights()]
        for _ in range(2):
            algo.train()
            weights.append(algo.get_weights())
        leaves = [[jax.tree.leaves(own[mid]) for mid in ("even", "odd")] for own in weights]
        changed = [
            [any(map(np.any, map(np.not_equal, *pair))) for pair in zip(before, after, strict=True)]
            for before, after in itertools.pairwise(leaves)
        ]
        assert changed == [[False, False], [False, True]]
    finally:
        algo.stop()


def test_whole_episodes_are_trained_on():
    ended = []
    config = config_of(TicTacToe, batch_mode="complete_episodes")
    config.callbacks(on_sample_end=lambda *, samples, **kwargs: ended.extend(samples))
    algo = config.build_algo()
    try:
        result = algo.train()
        assert all(episode.is_done and episode.env_t_started == 0 for episode in ended)
        # Rounds of one episode of each environment, until there are as many steps as a train batch has.
        assert sum(map(len, ended)) == result["num_env_steps_sampled_lifetime"] >= 64
        assert sum(map(len, ended[:-NUM_ENVS])) < 64
        assert all(np.isfinite(result["learners"][mid]["total_loss"]) for mid in ("even", "odd"))
    finally:
        algo.stop()


class LargerRewards(ConnectorV2):
    """A host connector of the learner pipeline, which makes the rewards of one module ten times as large."""

    seen = collections.Counter()

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.seen[episode.module_id] += len(episode)
            if episode.module_id == "odd":
                episode.set_rewards(new_data=10.0 * episode.get_rewards())
        return batch


def test_host_connectors_of_the_learner_pipeline_see_the_agents_episodes():
    config = config_of(MultiAgentCartPole, {"num_agents": 2}).training(gamma=0.0, lambda_=0.0)
    algo = config.learners(learner_connector=lambda obs_space, act_space: LargerRewards()).build_algo()
    try:
        result = algo.train()
        assert LargerRewards.seen == result["env_runners"]["num_module_steps_sampled"]
        # All targets are 1 and 10, and values next to 0.
        losses = [result["learners"][mid]["vf_loss_unclipped"] for mid in ("even", "odd")]
        assert losses[1] > 30 * losses[0]
    finally:
        algo.stop()


def test_steps_of_agents_are_counted_if_asked_for():
    config = config_of(RandomTurns).multi_agent(count_steps_by="agent_steps")
    runner = MultiAgentEnvRunner(config=config)
    for _ in range(3):
        steps = [episode.agent_steps() for episode in runner.sample(num_timesteps=20)]
        # The last step may complete one of every agent.
        assert 20 <= sum(steps) < 20 + NUM_ENVS * 3
    algo = config.build_algo()
    try:
        result = algo.train()
        runners = result["env_runners"]
        assert 64 <= sum(runners["num_agent_steps_sampled"].values()) < 64 + NUM_ENVS * 3
        assert sum(runners["num_agent_steps_sampled"].values()) != runners["num_env_steps_sampled"]
    finally:
        algo.stop()
    config = config_of(TicTacToe, rollout_fragment_length=7).multi_agent(count_steps_by="agent_steps")
    assert sum(e.agent_steps() for e in MultiAgentEnvRunner(config=config).sample()) in range(14, 14 + NUM_ENVS * 2)


def test_metrics_have_returns_and_steps_by_agent_and_module(trained):
    config = config_of(TicTacToe).multi_agent(policy_mapping_fn=by_episode)
    runner = MultiAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=5)
    metrics = {name: jax.tree.map(lambda stats: stats.peek(), own) for name, own in runner.get_metrics().items()}
    returns, steps = collections.Counter(), collections.Counter()
    for episode in episodes:
        for agent, own in episode.agent_episodes.items():
            returns[episode.module_for(agent)] += own.get_return() / len(episodes)
            steps[episode.module_for(agent)] += len(own)
    assert metrics["module_episode_returns_mean"] == pytest.approx(returns)
    assert sum(metrics["agent_episode_returns_mean"].values()) == pytest.approx(metrics["episode_return_mean"])
    assert metrics["num_module_steps_sampled"] == steps
    assert sum(metrics["num_agent_steps_sampled_lifetime"].values()) == sum(steps.values())
    # Training and evaluation say so, too, although nothing of it follows from the agents' numbers.
    _, result, _ = trained
    evaluated, result = result["evaluation"]["env_runners"], result["env_runners"]
    assert sum(evaluated["module_episode_returns_mean"].values()) == pytest.approx(evaluated["episode_return_mean"])
    for kind in ("agent", "module"):
        assert sum(evaluated[f"num_{kind}_steps_sampled"].values()) == evaluated["num_env_steps_sampled"]
    assert sum(result["module_episode_returns_mean"].values()) == pytest.approx(result["episode_return_mean"])
    agent_steps = sum(result["num_agent_steps_sampled"].values())
    assert sum(result["num_module_steps_sampled"].values()) == agent_steps
    lifetime = sum(result["num_module_steps_sampled_lifetime"].values())
    assert lifetime == sum(result["num_agent_steps_sampled_lifetime"].values()) > agent_steps


def test_what_ended_in_an_episode_that_is_left_out_ends_nothing_else():
    config = config_of(FailsOnce, num_envs_per_env_runner=1)
    runner = MultiAgentEnvRunner(config=config.fault_tolerance(restart_failed_sub_environments=True))
    runner.sample_block(num_steps=2)
    block = runner.sample_block(num_steps=8)
    assert block.num_env_steps == 4
    for columns in block.part.modules.values():
        assert columns[Columns.LOSS_MASK][:, 0].tolist() == [True] * 4 + [False] * 4
        assert not columns[Columns.TERMINATEDS].any() and not columns[Columns.TRUNCATEDS].any()
        assert columns[Columns.OBS][:4, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


# ---------------------------------------------------------------------------------------- one runner over modules


@pytest.mark.parametrize(
    ("protocol", "classes"),
    [(Rollout, (HostRollout, MultiAgentRollout)), (RolloutRecording, (Recording, AgentRecordings))],
    ids=["rollouts", "recordings"],
)
def test_both_loops_have_the_same_protocol(protocol, classes):
    for name, member in vars(protocol).items():
        if name.startswith("_"):
            continue
        for own in classes:
            if inspect.isfunction(member):
                parameters = [inspect.signature(each).parameters.values() for each in (member, getattr(own, name))]
                named, has = ([(each.name, each.kind, each.default) for each in every] for every in parameters)
                assert named == has, (own, name)
            else:
                assert hasattr(own, name) or f"{name}:" in own.__doc__, (own, name)


def test_runners_share_all_methods_that_record_and_act():
    shared = ("sample", "sample_block", "act", "module", "get_state", "set_state", "acting_parts_of_modules", "reset")
    for runner_class in (SingleAgentEnvRunner, MultiAgentEnvRunner):
        assert [name for name in shared if getattr(runner_class, name) is not getattr(HostEnvRunner, name)] == []


def test_the_only_agent_has_values_without_module_ids():
    alone, several = single_agent(), ModuleMap({"a": "p0", "b": "p1"}, is_multi_agent=True)
    assert alone.unwrapped({"default_policy": 3}) == 3 and alone.by_module(3) == {"default_policy": 3}
    of_modules = {"p0": 3, "p1": 4}
    assert several.unwrapped(of_modules) == of_modules == several.by_module(of_modules)
    assert alone.seed_of("default_policy", 5) == 5
    assert several.seed_of("p0", 5) == derived_seed("policy of module/p0", 5) != several.seed_of("p1", 5)
