"""Data in which every number says where it is from, and what a replay buffer has to make of it, written as loops."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode


def reward_of(e, t):
    """Small whole numbers, so that sums are exact: reward of step t of episode e."""
    return np.asarray((np.asarray(e) * 37 + np.asarray(t) * 11) % 17 - 8, np.float32)


def action_of(e, t):
    return np.asarray(np.asarray(e) * 1000 + t, np.int32)


@dataclasses.dataclass
class Truth:
    """Episodes as they are, and how much of them a buffer has been given."""

    lengths: list[int] = dataclasses.field(default_factory=list)
    terminateds: list[bool] = dataclasses.field(default_factory=list)
    truncateds: list[bool] = dataclasses.field(default_factory=list)
    given: list[int] = dataclasses.field(default_factory=list)

    def new(self, rng: np.random.Generator, longest: int = 12) -> int:
        kind = rng.integers(3)
        self.lengths.append(int(rng.integers(1, longest + 1)))
        self.terminateds.append(bool(kind != 1))
        self.truncateds.append(bool(kind != 0))  # Both at once happens, too.
        self.given.append(0)
        return len(self.lengths) - 1

    def check(self, batch, wanted, gamma: float) -> None:
        """Every item of a `sample_batch`, against loops over the episodes."""
        for index, (e, t) in enumerate(np.asarray(batch["obs"], int).tolist()):
            limit = wanted if isinstance(wanted, int) else wanted[1] - 1
            known = self.given[e] - t
            k = int(batch["n_step"][index])
            assert known >= 1
            if isinstance(wanted, int):
                assert k == min(wanted, known)
            else:
                assert min(wanted[0], known) <= k <= min(limit, known)
            terminated = t + k == self.lengths[e] and self.terminateds[e]
            truncated = t + k == self.lengths[e] and self.truncateds[e]
            assert (batch["terminateds"][index], batch["truncateds"][index]) == (terminated, truncated)
            if truncated or not terminated:
                assert batch["new_obs"][index].tolist() == [e, t + k]
            assert batch["actions"][index] == action_of(e, t)
            expected = sum(gamma**i * float(reward_of(e, t + i)) for i in range(k))
            np.testing.assert_allclose(batch["rewards"][index], expected, rtol=1e-6, atol=1e-6)


def chunk(truth: Truth, e: int, first: int, last: int, **more) -> SingleAgentEpisode:
    """Steps ``[first, last)`` of an episode; notes that they are given."""
    assert truth.given[e] == first
    truth.given[e] = last
    is_end = last == truth.lengths[e]
    times = np.arange(first, last)
    return SingleAgentEpisode(
        more.pop("id_", f"e{e}"),
        observations=[np.array([e, t], np.float32) for t in range(first, last + 1)],
        actions=list(action_of(e, times)),
        rewards=reward_of(e, times).tolist(),
        terminated=is_end and truth.terminateds[e],
        truncated=is_end and truth.truncateds[e],
        extra_model_outputs={"where": [np.array([e, t], np.int32) for t in times]},
        t_started=first,
        len_lookback_buffer=0,
        **more,
    )


class Chunks:
    """B environments whose episodes come in chunks of random lengths."""

    def __init__(self, seed: int, num_envs: int = 3, longest: int = 12):
        self.rng, self.truth, self.longest = np.random.default_rng(seed), Truth(), longest
        self.now = [self.truth.new(self.rng, longest) for _ in range(num_envs)]

    def next(self) -> list[SingleAgentEpisode]:
        chunks = []
        for index, e in enumerate(self.now):
            first = self.truth.given[e]
            last = min(first + int(self.rng.integers(1, 6)), self.truth.lengths[e])
            chunks.append(chunk(self.truth, e, first, last))
            if last == self.truth.lengths[e]:
                self.now[index] = self.truth.new(self.rng, self.longest)
        return chunks


class Blocks:
    """B environments, recorded in blocks ``[T, B]``; `resets_take_a_row`: as in gymnasium's next-step mode."""

    def __init__(self, seed: int, num_envs: int = 3, longest: int = 12, resets_take_a_row: bool = False):
        self.rng, self.truth, self.longest = np.random.default_rng(seed), Truth(), longest
        self.now = [self.truth.new(self.rng, longest) for _ in range(num_envs)]
        self.waits = np.zeros(num_envs, bool)
        self.resets_take_a_row = resets_take_a_row

    def next(self, num_steps: int | None = None) -> dict[str, np.ndarray]:
        size = (num_steps or int(self.rng.integers(1, 7)), len(self.now))
        columns = {
            "obs": np.full((*size, 2), -1, np.float32),
            "final_obs": np.zeros((*size, 2), np.float32),
            "actions": np.full(size, -1, np.int32),
            "rewards": np.full(size, 1e9, np.float32),
            "terminateds": np.zeros(size, bool),
            "truncateds": np.zeros(size, bool),
            "where": np.full((*size, 2), -1, np.int32),
        }
        valid = np.ones(size, bool)
        for t, b in np.ndindex(size):
            if self.waits[b]:
                valid[t, b] = self.waits[b] = False
                continue
            e = self.now[b]
            step = self.truth.given[e]
            self.truth.given[e] = step + 1
            columns["obs"][t, b] = columns["where"][t, b] = e, step
            columns["actions"][t, b], columns["rewards"][t, b] = action_of(e, step), reward_of(e, step)
            is_end = step + 1 == self.truth.lengths[e]
            if is_end:
                columns["terminateds"][t, b] = self.truth.terminateds[e]
                columns["truncateds"][t, b] = self.truth.truncateds[e]
                self.now[b] = self.truth.new(self.rng, self.longest)
                self.waits[b] = self.resets_take_a_row
            if columns["truncateds"][t, b] or (t == size[0] - 1 and not columns["terminateds"][t, b]):
                columns["final_obs"][t, b] = e, step + 1
        return columns | ({"loss_mask": valid} if self.resets_take_a_row else {})


def contents(buffer) -> set[tuple[int, int]]:
    """``(episode, step)`` of all items."""
    return {
        (int(e), int(t)) for episode in buffer.episodes for e, t in episode.get_observations(slice(0, len(episode)))
    }
