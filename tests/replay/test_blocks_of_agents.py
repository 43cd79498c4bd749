"""Blocks of several agents in a replay buffer, out of a real runner, against a model of plain lists."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.experience import AgentTimes
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.replay import MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer
from jaxrl_stack.replay.device_replay import DeviceReplay

NUM_ENVS = 3
MODULE_OF = {"a": "p0", "b": "p1", "c": "p1"}


class Waits(MultiAgentEnv):
    """Agents observe at random, are paid while they wait, come late and end one by one; every observation is another
    number, and environments fail now and then."""

    possible_agents = tuple(MODULE_OF)
    fails_with = 0.0
    log = collections.defaultdict(list)
    numbers = itertools.count(1)

    def __init__(self, config):
        super().__init__()
        self.index, self.agents = config.vector_index, list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(0.0, 1e7, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(3))

    def reset(self, *, seed=None, options=None):
        MultiAgentEnv.reset(self, seed=seed)
        self.alive, self.seen = set(self.agents), set()
        obs = self._observed(["a", *self._some(0.5)])
        self.log[self.index].append((None, obs))
        return obs, {}

    def step(self, action_dict):
        if self._is(self.fails_with):
            self.log[self.index].append((dict(action_dict), None))
            raise RuntimeError("broken")
        rewards = {agent: float(self.np_random.integers(1, 9)) for agent in self._some(0.6)}
        ends = [(agent, self._is(0.5)) for agent in sorted(self.seen & self.alive) if self._is(0.1)][:1]
        terminateds = {agent: True for agent, is_terminated in ends if is_terminated}
        truncateds = {agent: True for agent, is_terminated in ends if not is_terminated}
        obs = self._observed(self._some(0.5))
        self.alive -= dict(ends).keys()
        kind, over = self._is(0.5), self._is(0.08) or not self.alive
        terminateds["__all__"], truncateds["__all__"] = over and kind, over and not kind
        self.log[self.index].append((dict(action_dict), obs, rewards, terminateds, truncateds))
        return obs, rewards, terminateds, truncateds, {}

    def _is(self, chance):
        return bool(self.np_random.random() < chance)

    def _some(self, chance):
        return [agent for agent in self.agents if agent in self.alive and self._is(chance)]

    def _observed(self, agents):
        self.seen.update(agents)
        return {agent: np.array([next(self.numbers)], np.float32) for agent in agents}


@dataclasses.dataclass
class Step:
    agent: str
    begins: int
    obs: float
    action: int
    reward: float = 0.0
    next_obs: float = 0.0
    terminated: bool = False
    truncated: bool = False


@dataclasses.dataclass(eq=False)
class Game:
    """An episode of an environment: the env steps that are stored, and the complete steps of its agents."""

    last: int = 0
    first: int = 0
    is_over: bool = False
    steps: list[Step] = dataclasses.field(default_factory=list)

    def __len__(self):
        return self.last - self.first


class Model:
    """The expected contents of a buffer, from a plain loop over the log of the environments."""

    def __init__(self, capacity):
        self.capacity, self.games = capacity, []
        self.running = [None] * NUM_ENVS
        self.held, self.seen, self.alive = ([{} for _ in range(NUM_ENVS)] for _ in range(3))
        self.read = [0] * NUM_ENVS

    def add(self, num_steps):
        outcomes = [self._read(env, num_steps) for env in range(NUM_ENVS)]
        self._make_room(sum(len(own) for spans in outcomes for own, _, _ in spans))
        for spans in outcomes:
            for own, game, is_over in spans:
                game.is_over |= is_over
                # What was evicted just now goes on as another game, with the same clock.
                if game not in self.games:
                    self.games.append(game)
                for steps in own:
                    for step in steps:
                        step.begins = max(step.begins, game.first)
                    game.steps += steps
                game.last += len(own)

    def _read(self, env, num_steps):
        """``[(complete steps of each env step, the game, whether it is over)]`` of a block."""
        spans, vector_steps = [], 0
        log = Waits.log[env]
        while vector_steps < num_steps or (self.read[env] < len(log) and log[self.read[env]][0] is None):
            actions, obs, *answer = log[self.read[env]]
            self.read[env] += 1
            if actions is None:
                self.running[env], self.held[env] = Game(), {}
                self.seen[env], self.alive[env] = dict(obs), set(obs)
                continue
            vector_steps += 1
            game = self.running[env]
            if not spans or spans[-1][1] is not game:
                spans.append([[], game, False])
            if obs is None:
                game.is_over = True
                spans.pop()
                continue
            t = game.last + len(spans[-1][0])
            spans[-1][0].append(self._stepped(env, t, actions, obs, *answer))
            spans[-1][2] = answer[1]["__all__"] or answer[2]["__all__"]
        return [span for span in spans if span[0]]

    def _stepped(self, env, t, actions, obs, rewards, terminateds, truncateds):
        held, seen, alive = self.held[env], self.seen[env], self.alive[env]
        for agent, action in actions.items():
            held[agent] = Step(agent, t, float(seen[agent][0]), int(action))
        for agent, reward in rewards.items():
            if agent in held:
                held[agent].reward += reward
        seen.update(obs)
        alive.update(obs)
        terminated = {agent for agent in alive if terminateds["__all__"] or agent in terminateds}
        truncated = {agent for agent in alive if truncateds["__all__"] or agent in truncateds} - terminated
        complete = [agent for agent in held if agent in obs or agent in terminated | truncated]
        steps = [held.pop(agent) for agent in complete]
        for step in steps:
            step.next_obs = float(seen[step.agent][0])
            step.terminated, step.truncated = step.agent in terminated, step.agent in truncated
        alive.difference_update(terminated | truncated)
        return steps

    def _make_room(self, size):
        while self.games and (excess := sum(map(len, self.games)) + size - self.capacity) > 0:
            oldest = self.games[0]
            if oldest.is_over or excess >= len(oldest):
                self.games.pop(0)
                oldest.first = oldest.last
            else:
                oldest.first += excess
            oldest.steps = [step for step in oldest.steps if step.begins >= oldest.first]

    def windows(self, n_step, gamma):
        """``{obs: (module, action, rewards, last step, length)}``."""
        out = {}
        for game in self.games:
            for step in game.steps:
                chain = [s for s in game.steps if s.agent == step.agent and s.begins >= step.begins][:n_step]
                reward = sum(gamma**i * s.reward for i, s in enumerate(chain))
                out[step.obs] = (MODULE_OF[step.agent], step.action, reward, chain[-1], len(chain))
        return out


LENGTHS = (1, 7, 2, 11, 5, 1, 1, 13, 9)


def blocks(seed, fails_with=0.0, lengths=LENGTHS):
    """Parts of so many steps that a runner samples, one after the other."""
    Waits.log.clear()
    config = (
        PPOConfig()
        .environment(type("Waits", (Waits,), {"fails_with": fails_with}))
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kw: MODULE_OF[agent_id])
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .fault_tolerance(restart_failed_sub_environments=True)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=seed)
    )
    runner = MultiAgentEnvRunner(config=config)
    for length in lengths:
        yield runner.sample_block(num_steps=length, keeps_times=True).part


def add(buffer, part):
    buffer.add_block(part.modules, part.times, starts=part.starts, serial=part.source.serial)


def filled(buffer_class, *, seed, capacity, fails_with=0.0):
    """``(buffer, model)`` after blocks of a runner."""
    buffer, model = buffer_class(capacity, seed=seed), Model(capacity)
    for part, length in zip(blocks(seed, fails_with), LENGTHS, strict=True):
        add(buffer, part)
        model.add(length)
    return buffer, model


def check_draws(buffer, model, number, n_step, gamma=0.9):
    """``(number of drawn transitions that are not the model's, observations that were drawn)``."""
    highest = n_step if isinstance(n_step, int) else n_step[1] - 1
    windows = {length: model.windows(length, gamma) for length in range(1, highest + 1)}
    found, wrong = set(), 0
    for module_id, rows in buffer.sample_batch(number, n_step=n_step, gamma=gamma).items():
        for i, obs in enumerate(rows["obs"][:, 0].tolist()):
            lengths = [highest] if isinstance(n_step, int) else range(n_step[0], n_step[1])
            found.add(obs)
            for length in lengths:
                module, action, reward, last, steps = windows[length].get(obs, (None, 0, 0.0, None, 0))
                if steps == rows["n_step"][i]:
                    break
            wrong += not (
                (module, action, steps) == (module_id, rows["actions"][i], rows["n_step"][i])
                and abs(reward - rows["rewards"][i]) < 1e-4
                # What comes after a terminated step counts nowhere.
                and (last.terminated or last.next_obs == rows["new_obs"][i, 0])
                and (last.terminated, last.truncated) == (rows["terminateds"][i], rows["truncateds"][i])
            )
    return wrong, found


BOTH = pytest.mark.parametrize(
    "buffer_class", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer]
)


@BOTH
@pytest.mark.parametrize(("capacity", "fails_with"), [(1000, 0.0), (60, 0.0), (1000, 0.04), (60, 0.04)])
def test_it_holds_the_steps_of_the_newest_episodes(buffer_class, capacity, fails_with):
    for seed in range(2):
        buffer, model = filled(buffer_class, seed=seed, capacity=capacity, fails_with=fails_with)
        assert len(buffer) == sum(map(len, model.games)) <= capacity
        assert buffer.get_num_episodes() == len(model.games) == len(buffer.episodes)
        steps = [step for game in model.games for step in game.steps]
        assert buffer.get_num_agent_timesteps() == len(steps)
        for episode, game in zip(buffer.episodes, model.games, strict=True):
            assert (episode.env_t_started, episode.env_t) == (game.first, game.last)
            for agent, own in episode.agent_episodes.items():
                expected = [step.obs for step in game.steps if step.agent == agent]
                assert own.get_observations()[:-1, 0].tolist() == expected
                assert own.module_id == MODULE_OF[agent]
        for n_step in (1, 3, (1, 4)):
            wrong, found = check_draws(buffer, model, 300, n_step)
            assert not wrong
            assert len(found) > 0.8 * len(steps)


def test_100000_draws_are_those_of_the_model():
    total = 0
    for seed in range(10):
        kind = (MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer)[seed % 2]
        buffer, model = filled(kind, seed=seed, capacity=(80, 400)[seed % 3 > 0], fails_with=0.02 * (seed % 4 > 1))
        for n_step in (1, 4, (2, 5), (1, 3)):
            wrong, _ = check_draws(buffer, model, 1250, n_step)
            assert not wrong
            total += 2 * 1250
    assert total == 100_000


@BOTH
def test_it_goes_on_from_its_state_bit_for_bit(buffer_class):
    buffer, restored = (buffer_class(60, seed=1) for _ in range(2))
    for number, part in enumerate(blocks(seed=1)):
        add(buffer, part)
        if number < 4:
            continue
        if number == 4:
            buffer.sample_batch(8)
            restored.set_state(buffer.get_state())
        else:
            add(restored, part)
        for mine, theirs in zip(buffer.sample_batch(32).values(), restored.sample_batch(32).values(), strict=True):
            np.testing.assert_equal(mine, theirs)
    assert [(e.env_t_started, e.env_t) for e in buffer.episodes] == [
        (e.env_t_started, e.env_t) for e in restored.episodes
    ]


@BOTH
def test_nothing_goes_on_where_a_block_is_missing(buffer_class):
    buffer = buffer_class(1000, seed=1)
    for number, part in enumerate(blocks(seed=2)):
        if number != 3:
            add(buffer, part)
    whole = buffer_class(1000, seed=1)
    for part in blocks(seed=2):
        add(whole, part)
    assert len(buffer) == len(whole) - LENGTHS[3] * NUM_ENVS
    assert buffer.get_num_episodes() >= whole.get_num_episodes()
    cut = [sum(episode.is_truncated for episode in of.episodes) for of in (buffer, whole)]
    assert cut[0] > cut[1]


def test_a_ring_on_the_device_has_the_same_transitions():
    buffer, rings = MultiAgentEpisodeReplayBuffer(10_000, seed=0), {}
    for part in blocks(seed=4, lengths=(11,) * 5):
        add(buffer, part)
        for module_id, columns in part.modules.items():
            num_rows = columns["loss_mask"].shape[1]
            ring = DeviceReplay(
                capacity=200 * num_rows, num_envs=num_rows, batch_size=4000, n_step=3, num_final_obs=50 * num_rows
            )
            _, state = rings.get(module_id) or (ring, ring.init(columns))
            rings[module_id] = ring, jax.jit(ring.add)(state, columns)
    drawn = buffer.sample_batch(4000, n_step=3, gamma=0.9)
    names = ("obs", "actions", "rewards", "n_step", "terminateds", "truncateds", "new_obs")

    def rows_of(columns):
        parts = [np.asarray(columns[name], np.float64).reshape(4000, -1) for name in names]
        # What comes after a terminated step counts nowhere.
        parts[-1] = np.where(parts[-3] > 0, 0.0, parts[-1])
        return {tuple(row) for row in np.concatenate(parts, axis=1).round(3).tolist()}

    for module_id, (ring, state) in rings.items():
        assert int(ring.num_steps(state)) == buffer.get_num_timesteps(module_id)
        found, _ = jax.jit(ring.sample)(state, jax.random.key(0), gamma=0.9)
        assert rows_of(found) == rows_of(drawn[module_id])
        assert len(rows_of(found)) == buffer.get_num_timesteps(module_id)


def test_modules_that_are_left_out_store_nothing_and_a_block_may_be_too_large():
    buffer = MultiAgentEpisodeReplayBuffer(1000)
    buffer.module_ids = ["p1"]
    parts = list(blocks(seed=0))
    for part in parts:
        add(buffer, part)
    assert buffer.get_module_ids() == ["p1"] and buffer.get_num_timesteps("p0") == 0
    assert {agent for episode in buffer.episodes for agent in episode.agent_episodes} == {"b", "c"}
    with pytest.raises(ValueError, match="A block of 39 env steps cannot be added to .* capacity=30: raise"):
        add(MultiAgentEpisodeReplayBuffer(30), parts[-2])


class Scripted:
    """Blocks of one environment, with steps of one agent of module "p0", as a runner gives them."""

    def __init__(self):
        self.obs = iter(np.arange(1.0, 100.0, dtype=np.float32))
        self.last = next(self.obs)

    def block(self, begins, seen, *, starts, num_steps=1):
        """`num_steps` env steps with complete steps that began and were complete then; `starts` of their row."""
        number = len(begins)
        obs = [self.last, *(next(self.obs) for _ in range(number))]
        self.last = obs[-1]

        def column(values, dtype=np.float32):
            out = np.zeros((num_steps, 1), dtype)
            out[:number, 0] = values
            return out

        columns = {
            "obs": column(obs[:-1])[..., None],
            "final_obs": column(obs[1:])[..., None],
            "actions": column(0, np.int32),
            "rewards": column(1.0),
            "terminateds": column(False, bool),
            "truncateds": column(False, bool),
            "loss_mask": column(True, bool) if number else np.zeros((num_steps, 1), bool),
        }
        counts = np.ones((num_steps, 1), bool)
        times = AgentTimes(
            {"p0": column(begins, np.int32)}, {"p0": column(seen, np.int32)}, counts, ~counts, {"p0": ("a",)}
        )
        return {"p0": columns}, times, {"p0": np.array([starts])}


def fed(buffer, blocks_of):
    for serial, (modules, times, starts) in blocks_of:
        buffer.add_block(modules, times, starts=starts, serial=serial)


@BOTH
def test_no_window_reaches_over_a_missing_block_in_which_an_agent_waited(buffer_class):
    runner, buffer = Scripted(), buffer_class(100, seed=0)
    fed(buffer, [(0, runner.block([0], [1], starts=True))])
    # Block 1 is lost; in block 2 the agent completes nothing, and in block 3 what began in block 1.
    runner.last = next(runner.obs)
    fed(buffer, [(2, runner.block([], [], starts=False)), (3, runner.block([-2], [1], starts=False))])
    drawn = buffer.sample_batch(50, n_step=2, gamma=1.0)["p0"]
    assert set(drawn["n_step"].tolist()) == {1.0} and buffer.get_num_episodes("p0") == 2
    assert sorted(len(episode) for episode in buffer.episodes) == [1, 2]


@BOTH
def test_a_restored_buffer_goes_on_with_new_episodes_whatever_the_number_of_the_next_block(buffer_class):
    runner, buffer = Scripted(), buffer_class(4, seed=0)
    fed(buffer, [(0, runner.block([0], [1], starts=True)), (1, runner.block([0], [1], starts=False))])
    restored = buffer_class(4, seed=0)
    restored.set_state(buffer.get_state())
    restored.end_streams()
    fed(restored, [(2 + n, runner.block([0], [1], starts=n == 0)) for n in range(6)])
    assert len(restored) == 4 == restored.get_num_timesteps("p0") and restored.get_num_episodes() == 1
    assert [len(episode) for episode in restored.episodes] == [4]


def test_steps_that_began_before_what_is_stored_are_in_its_episodes():
    buffer = MultiAgentEpisodeReplayBuffer(3)
    agents = {"a": "p0", "b": "p1"}
    episode = MultiAgentEpisode("one", observations=[dict.fromkeys(agents, 0.0)], agent_module_ids=agents)
    for t in range(8):
        seen = dict.fromkeys(agents if t == 7 else ["b"], t + 1.0)
        acts = dict.fromkeys(agents if t == 0 else ["b"], 0)
        episode.add_env_step(seen, acts, dict.fromkeys(seen, 1.0))
        buffer.add(episode)
        episode = episode.cut()
    (stored,) = buffer.episodes
    assert stored.env_t_started == 5
    assert {agent: len(own) for agent, own in stored.agent_episodes.items()} == {"a": 1, "b": 3}


def test_a_buffer_is_built_again_with_its_spaces_and_agents():
    spaces = {"p0": (Box(0.0, 1.0, (4,), np.float32), Discrete(2))}
    buffer = MultiAgentEpisodeReplayBuffer(10, spaces=spaces, num_agents={"p0": 2}, num_frames={"p0": 2}, seed=3)
    args, kwargs = buffer.get_ctor_args_and_kwargs()
    again = MultiAgentEpisodeReplayBuffer(*args, **kwargs)
    assert again.memory_estimate() == buffer.memory_estimate() and again.memory_estimate().num_rows == 20
    modules, times, _ = Scripted().block([0], [1], starts=True)
    with pytest.raises(ValueError, match=r"add_block\(starts=...\) lacks the modules \['p0'\]"):
        buffer.add_block(modules, times, starts={})
