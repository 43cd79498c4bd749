"""Replay of several agents' episodes, against a model of plain lists: agents that wait, come, end and take turns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxrl_stack.env.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.replay_buffers import MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer

AGENTS = ("a", "b", "c")
MODULE_OF = {"a": "p0", "b": "p1", "c": "p1"}
CAPACITY = 60
BOTH = pytest.mark.parametrize(
    "buffer_class", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer]
)


@dataclasses.dataclass
class Step:
    """A step of an agent as the model has it; its observation is a number that no other one has."""

    episode: str
    agent: str
    begins: int
    obs: float
    reward: float
    next_obs: float
    terminated: bool = False
    truncated: bool = False


@dataclasses.dataclass
class Game:
    """Chunks of an episode, and the steps that each of them completes."""

    id_: str
    chunks: list[MultiAgentEpisode]
    steps: list[list[Step]]


def played(rng: np.random.Generator, number: int, num_steps: int) -> Game:
    """A game in which agents observe at random, are paid while they wait, join late, and end before the others."""
    id_, numbers = f"game-{number}", iter(np.arange(1, 100_000) + 1000.0 * number)
    seen = {agent: float(next(numbers)) for agent in AGENTS if rng.random() < 0.8} or {"a": float(next(numbers))}
    episode = MultiAgentEpisode(
        id_, observations=[dict(seen)], infos=[{agent: {} for agent in seen}], agent_module_ids=MODULE_OF
    )
    waits = {agent: [0, obs, 0.0] for agent, obs in seen.items()}  # beginning, observation, rewards since
    game, steps, over = Game(id_, [], []), [], set()
    for t in range(1, num_steps + 1):
        is_end = t == num_steps and rng.random() < 0.7
        alive = [agent for agent in AGENTS if agent not in over]
        actions = {agent: waits[agent][1] for agent in seen}
        seen = {agent: float(next(numbers)) for agent in alive if is_end or rng.random() < 0.6}
        if not seen:
            seen = {alive[0]: float(next(numbers))}
        rewards = {
            agent: float(rng.integers(1, 9))
            for agent in waits
            if agent in alive and (agent in seen or rng.random() < 0.5)
        }
        ends = {agent for agent in seen if agent in waits and len(alive) > 1 and rng.random() < 0.1 and not is_end}
        ends = set(sorted(ends)[: len(alive) - 1])
        kind = "terminated" if rng.random() < 0.5 else "truncated"
        flags = {agent: True for agent in ends} | ({"__all__": True} if is_end else {})
        episode.add_env_step(
            dict(seen),
            actions,
            rewards,
            {agent: {} for agent in seen},
            terminateds=flags if kind == "terminated" else {},
            truncateds=flags if kind == "truncated" else {},
        )
        for agent, reward in rewards.items():
            waits[agent][2] += reward
        for agent, obs in seen.items():
            if agent in waits:
                begins, before, reward = waits[agent]
                step = Step(id_, agent, begins, before, reward, obs)
                if is_end or agent in ends:
                    setattr(step, kind, True)
                steps.append(step)
            waits[agent] = [t, obs, 0.0]
        over |= ends
        seen = {agent: obs for agent, obs in seen.items() if agent not in ends}
        if not is_end and (t == num_steps or rng.random() < 0.15):
            game.chunks.append(episode)
            game.steps.append(steps)
            episode, steps = episode.cut(), []
    if is_end:
        game.chunks.append(episode)
        game.steps.append(steps)
    return game


class Model:
    """The episodes that a buffer should hold, as lists."""

    def __init__(self, capacity: int):
        self.capacity, self.games = capacity, {}

    def add(self, chunk: MultiAgentEpisode, steps: list[Step]) -> None:
        while self.games and (excess := sum(map(self.size, self.games)) + len(chunk) - self.capacity) > 0:
            oldest = next(iter(self.games))
            if oldest == chunk.id_ and len(self.games) == 1 and excess < self.size(oldest):
                first, last, own = self.games[oldest]
                first += excess
                self.games[oldest] = (first, last, [step for step in own if step.begins >= first])
            else:
                del self.games[oldest]
        first, _, own = self.games.get(chunk.id_, (chunk.env_t_started, 0, []))
        self.games[chunk.id_] = (first, chunk.env_t, own + steps)

    def size(self, id_: str) -> int:
        first, last, _ = self.games[id_]
        return last - first

    @property
    def steps(self) -> dict[float, Step]:
        return {step.obs: step for _, _, own in self.games.values() for step in own}

    def window(self, obs: float, n_step: int, gamma: float) -> tuple[float, Step, int]:
        """``(discounted rewards, last step, length)``."""
        first = self.steps[obs]
        chain = [s for s in self.games[first.episode][2] if s.agent == first.agent and s.begins >= first.begins]
        chain = chain[:n_step]
        return sum(gamma**i * step.reward for i, step in enumerate(chain)), chain[-1], len(chain)


def filled(buffer_class, seed=0, num_games=12, capacity=CAPACITY, **arguments):
    """``(buffer, model)`` after games whose chunks came in between each other."""
    rng = np.random.default_rng(seed)
    games = [played(rng, number, int(rng.integers(1, 40))) for number in range(num_games)]
    buffer, model = buffer_class(capacity, seed=seed, **arguments), Model(capacity)
    queues = [list(zip(game.chunks, game.steps, strict=True)) for game in games]
    while any(queues):
        at_once = [queue for queue in queues if queue][:3]
        chunk, steps = at_once[rng.integers(len(at_once))].pop(0)
        # Of a game whose part here was evicted, what comes later is another piece.
        buffer.add(chunk)
        model.add(chunk, steps)
    return buffer, model


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_it_holds_what_a_list_of_the_newest_games_holds(buffer_class, seed):
    buffer, model = filled(buffer_class, seed)
    assert {episode.id_ for episode in buffer.episodes} == set(model.games)
    assert buffer.get_num_timesteps() == len(buffer) == sum(map(model.size, model.games))
    steps = list(model.steps.values())
    assert buffer.get_num_agent_timesteps() == len(steps)
    assert set(buffer.get_module_ids()) == {"p0", "p1"}
    for module_id in ("p0", "p1"):
        own = {(step.episode, step.agent) for step in steps if MODULE_OF[step.agent] == module_id}
        assert buffer.get_num_episodes(module_id) == len(own)
        assert buffer.get_num_timesteps(module_id) == sum(MODULE_OF[step.agent] == module_id for step in steps)


@BOTH
@pytest.mark.parametrize("n_step", [1, 3, (1, 5)])
def test_windows_follow_the_agents_own_time_and_stop_at_its_end(buffer_class, n_step):
    for seed in range(4):
        buffer, model = filled(buffer_class, seed)
        drawn = buffer.sample_batch(200, n_step=n_step, gamma=0.9)
        for module_id, rows in drawn.items():
            found = set()
            for i, obs in enumerate(rows["obs"].tolist()):
                step = model.steps[obs]
                assert MODULE_OF[step.agent] == module_id and rows["actions"][i] == obs
                wanted = n_step if isinstance(n_step, int) else int(rows["n_step"][i])
                reward, last, length = model.window(obs, wanted, 0.9)
                assert rows["n_step"][i] == length and rows["new_obs"][i] == last.next_obs
                np.testing.assert_allclose(rows["rewards"][i], reward, rtol=1e-6)
                assert (rows["terminateds"][i], rows["truncateds"][i]) == (last.terminated, last.truncated)
                found.add(obs)
            assert len(found) > 0.8 * sum(MODULE_OF[step.agent] == module_id for step in model.steps.values())


@BOTH
def test_samples_are_episodes_of_the_modules_that_are_asked_for(buffer_class):
    buffer, model = filled(buffer_class)
    episodes = buffer.sample(batch_size_B=8, n_step=3, modules_to_sample=["p1"], include_infos=True)
    assert len(episodes) == 8 and all(isinstance(episode, SingleAgentEpisode) for episode in episodes)
    for episode in episodes:
        step = model.steps[episode.get_observations(0)]
        assert (episode.module_id, episode.agent_id) == ("p1", step.agent)
        assert episode.multi_agent_episode_id == step.episode and episode.get_infos() == [{}, {}]
    assert buffer.get_sampled_timesteps() == buffer.get_sampled_timesteps("p1") == 8
    assert buffer.get_sampled_timesteps("p0") == 0
    sequences = buffer.sample(16, batch_length_T=4)
    assert max(map(len, sequences)) > 1 and {episode.module_id for episode in sequences} == {"p0", "p1"}


@BOTH
def test_synchronized_rows_begin_in_the_same_env_steps(buffer_class):
    buffer, model = filled(buffer_class)
    together = {}
    for step in model.steps.values():
        together.setdefault((step.episode, step.begins), set()).add(step.obs)
    for _ in range(20):
        drawn = buffer.sample(1, replay_mode="synchronized")
        rows = [obs for columns in drawn.values() for obs in columns["obs"].tolist()]
        step = model.steps[rows[0]]
        assert set(rows) == together[step.episode, step.begins]
        for columns in drawn.values():
            assert columns["weights"].shape == columns["n_step"].shape == columns["rewards"].shape
    assert buffer.get_sampled_timesteps() == 20, "env steps"
    buffer.sample(16, replay_mode="synchronized")
    assert buffer.get_sampled_timesteps() == 36


@BOTH
def test_stored_episodes_are_those_that_were_added(buffer_class):
    game = played(np.random.default_rng(3), 1, 30)
    buffer = buffer_class(1000)
    buffer.add(game.chunks)
    (stored,) = buffer.episodes
    stored.validate()
    whole = game.chunks[0]
    for chunk in game.chunks[1:]:
        whole.concat_episode(chunk)
    assert (stored.env_t_started, stored.env_t, stored.is_done) == (0, whole.env_t, whole.is_done)
    for agent, episode in whole.agent_episodes.items():
        if len(episode):
            own = stored.agent_episodes[agent]
            assert own.id_ == episode.id_ and own.is_done == episode.is_done
            np.testing.assert_array_equal(own.get_observations(), episode.get_observations())
            assert stored.env_t_to_agent_t[agent].data == whole.env_t_to_agent_t[agent].data


@BOTH
def test_the_last_episode_stays_and_loses_its_oldest_steps_when_it_is_continued(buffer_class):
    rng = np.random.default_rng(5)
    game = played(rng, 1, 3 * CAPACITY)
    buffer, model = buffer_class(CAPACITY), Model(CAPACITY)
    for chunk, steps in zip(game.chunks, game.steps, strict=True):
        buffer.add(chunk)
        model.add(chunk, steps)
        assert len(buffer) == model.size(game.id_) <= max(CAPACITY, len(chunk))
    assert buffer.get_num_agent_timesteps() == len(model.steps)
    assert buffer.get_num_episodes() == 1 and buffer.get_added_timesteps() == 3 * CAPACITY
    buffer.add([played(rng, number, 40).chunks[0] for number in range(2, 9)])  # more at once than it holds
    assert len(buffer) <= CAPACITY and game.id_ not in {episode.id_ for episode in buffer.episodes}


@BOTH
def test_another_module_does_not_change_the_draws_of_the_others(buffer_class):
    def steps_of(agents):
        buffer = buffer_class(seed=1)
        episode = MultiAgentEpisode("one", observations=[dict.fromkeys(agents, 0.0)], agent_module_ids=MODULE_OF)
        for t in range(20):
            episode.add_env_step(dict.fromkeys(agents, t + 1.0), dict.fromkeys(agents, 0), dict.fromkeys(agents, 1.0))
        buffer.add(episode)
        return [buffer.sample_batch(16) for _ in range(2)]

    alone, beside = steps_of(("a",)), steps_of(("b", "a"))
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one["p0"]["obs"], other["p0"]["obs"])
        assert (other["p0"]["obs"] != other["p1"]["obs"]).any(), "each has random numbers of its own"


@BOTH
def test_it_goes_on_from_its_state_bit_for_bit(buffer_class, tmp_path):
    rng = np.random.default_rng(7)
    game = played(rng, 99, 50)
    buffer, _ = filled(buffer_class, seed=2)
    buffer.add(game.chunks[0])
    buffer.sample_batch(8)
    buffer.save_to_path(tmp_path / "saved")
    restored = buffer_class.from_checkpoint(tmp_path / "saved")
    for each in (buffer, restored):
        each.add(game.chunks[1:])
    getters = ("get_num_episodes", "get_num_episodes_evicted", "get_num_timesteps", "get_added_timesteps")
    for getter in (*getters, "get_sampled_timesteps"):
        for module_id in (None, "p0", "p1"):
            assert getattr(buffer, getter)(module_id) == getattr(restored, getter)(module_id), getter
    for mine, theirs in zip(buffer.sample_batch(32).values(), restored.sample_batch(32).values(), strict=True):
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name])
    synchronized = [each.sample(4, replay_mode="synchronized") for each in (buffer, restored)]
    np.testing.assert_equal(*synchronized)


def test_priorities_are_those_of_the_module():
    buffer, _ = filled(MultiAgentPrioritizedEpisodeReplayBuffer, alpha=1.0)
    drawn = buffer.sample_batch(400)
    errors = np.where(drawn["p1"]["obs"] == drawn["p1"]["obs"][0], 1000.0, 1e-3)
    buffer.update_priorities(errors, "p1")
    again = buffer.sample_batch(200, beta=1.0)
    assert np.mean(again["p1"]["obs"] == drawn["p1"]["obs"][0]) > 0.9
    assert again["p1"]["weights"].min() < 1e-2 and (again["p0"]["weights"] == 1).all()
    buffer.update_priorities({module_id: np.ones(200) for module_id in again})
    by_index = {module_id: columns["batch_indexes"] for module_id, columns in again.items()}
    buffer.update_priorities({module_id: np.ones(200) for module_id in again}, indices=by_index)


def test_new_steps_get_a_priority_of_their_own_per_module():
    game = played(np.random.default_rng(0), 1, 30)
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(seed=0)
    buffer.add(game.chunks[0], weight={"p0": 0.5})
    buffer.add(game.chunks[1:], weight={"p0": 1e-9})
    late = {step.obs for steps in game.steps[1:] for step in steps}
    drawn = buffer.sample_batch(100)
    assert not late & set(drawn["p0"]["obs"].tolist()) and late & set(drawn["p1"]["obs"].tolist())


@BOTH
def test_what_is_wrong_is_named(buffer_class):
    buffer = buffer_class()
    with pytest.raises(ValueError, match="is empty: add episodes"):
        buffer.sample(4)
    with pytest.raises(ValueError, match=r"capacity=0 must be an int >= 1"):
        buffer_class(0)
    with pytest.raises(TypeError, match="takes MultiAgentEpisodes, not SingleAgentEpisode"):
        buffer.add(SingleAgentEpisode())
    game = played(np.random.default_rng(3), 1, 30)
    buffer.add(game.chunks[0])
    with pytest.raises(ValueError, match=r"starts at env step 0, but in the replay buffer this episode ends at"):
        buffer.add(game.chunks[0])
    with pytest.raises(ValueError, match=r"modules_to_sample=\['p7'\] must be a list of modules that have steps"):
        buffer.sample(4, modules_to_sample=["p7"])
    with pytest.raises(ValueError, match="replay_mode='both' must be one of 'independent', 'synchronized'"):
        buffer.sample(4, replay_mode="both")
    if buffer_class is MultiAgentPrioritizedEpisodeReplayBuffer:
        with pytest.raises(ValueError, match=r"pass module_id, one of \['p0', 'p1'\]"):
            buffer.update_priorities(np.ones(4))
        with pytest.raises(ValueError, match=r"weight=-1 must be a priority > 0"):
            buffer.add(game.chunks[1], weight={"p0": -1})


@BOTH
def test_metrics_count_env_steps_and_module_steps(buffer_class):
    buffer, model = filled(buffer_class)
    buffer.sample_batch(8)
    metrics = buffer.get_metrics()
    added = {m: buffer.get_added_timesteps(m) for m in ("p0", "p1")}
    assert metrics["num_env_steps_added"].peek() == buffer.get_added_timesteps()
    assert {m: stat.peek() for m, stat in metrics["num_module_steps_added"].items()} == added
    assert {m: stat.peek() for m, stat in metrics["num_module_steps_sampled"].items()} == {"p0": 8, "p1": 8}
    assert metrics["num_env_steps_sampled"].peek() == 16
    assert metrics["num_episodes_stored"].peek() <= len(model.games) + 3
