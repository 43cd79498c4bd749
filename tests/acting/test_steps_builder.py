"""Recorded blocks and episodes as steps: each step once, in order, whole episodes as one piece."""

import itertools

import numpy as np
import pytest

from jaxrl_stack.acting import steps_builder
from jaxrl_stack.acting.steps_builder import StepsBuilder
from jaxrl_stack.acting.steps_of_episodes import ChunkJoiner
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode


class Envs:
    """Blocks of environments whose observation is ``(environment, episode, step)``, with what is to be recorded."""

    def __init__(self, num_envs, seed, resets_in_next_step=False):
        self._random = np.random.default_rng(seed)
        self._next_step = resets_in_next_step
        self._now = [[env, 0, 0] for env in range(num_envs)]
        self._over = [False] * num_envs
        self.steps = {}

    def block(self, num_steps):
        num_envs = len(self._now)
        obs, final = np.zeros((2, num_steps, num_envs, 3), np.float32)
        terminateds, truncateds = np.zeros((2, num_steps, num_envs), bool)
        mask = np.ones((num_steps, num_envs), bool)
        for t in range(num_steps):
            for i, now in enumerate(self._now):
                obs[t, i] = now
                if self._over[i]:
                    mask[t, i], self._over[i] = False, False
                    continue
                end = self._random.random() < 0.3
                terminateds[t, i], truncateds[t, i] = end, False
                if end and self._random.random() < 0.5:
                    terminateds[t, i], truncateds[t, i] = False, True
                self.steps.setdefault((now[0], now[1]), []).append((terminateds[t, i], truncateds[t, i]))
                final[t, i] = [now[0], now[1], now[2] + 1]
                now[1:] = [now[1] + 1, 0] if end else [now[1], now[2] + 1]
                self._over[i] = end and self._next_step
        columns = {"obs": {"a": obs}, "final_obs": {"a": final}, "actions": 100 * obs[..., 0] + obs[..., 2]}
        columns |= {"rewards": obs[..., 1], "terminateds": terminateds, "truncateds": truncateds}
        return {**columns, **({"loss_mask": mask} if self._next_step else {})}


def assert_whole(steps: Steps, envs: Envs):
    """All steps are there once, with what comes after them."""
    seen, ids = {}, {}
    starts = steps.piece_starts().tolist()
    for start, stop in itertools.pairwise(starts):
        piece = steps.rows(start, stop)
        obs = piece.columns["obs"]["a"]
        key = (int(obs[0, 0]), int(obs[0, 1]))
        assert ids.setdefault(key, piece.episode_ids[0]) == piece.episode_ids[0]
        done = seen.setdefault(key, [])
        numbers = len(done) + np.arange(piece.num_rows)
        np.testing.assert_array_equal(piece.t, numbers)
        np.testing.assert_array_equal(obs, [[*key, number] for number in numbers])
        np.testing.assert_array_equal(piece.columns["actions"][:-1], 100 * key[0] + numbers[:-1])
        assert piece.columns["actions"][-1] == 0 and piece.is_final.sum() == 1
        done += zip(*(piece.columns[name][:-1].tolist() for name in ("terminateds", "truncateds")), strict=True)
    assert seen == envs.steps
    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize("max_rows", [100, 3])
@pytest.mark.parametrize("resets_in_next_step", [False, True])
def test_every_step_is_in_one_piece_of_its_episode(resets_in_next_step, max_rows):
    envs, builder = Envs(5, 0, resets_in_next_step), StepsBuilder("run", max_rows)
    parts = [builder.add(envs.block(num_steps)) for num_steps in (1, 2, 7, 1, 3, 12)]
    assert builder.num_held
    parts.append(builder.cut())
    assert not builder.num_held and builder.cut() is None
    parts += [builder.add(envs.block(4)), builder.cut()]
    parts = [part for part in parts if part is not None]
    if max_rows > 50:
        first = Steps.concatenated(parts[:-3])
        assert first.num_pieces == len(first.episode_ids), "each episode is one piece"
    whole = Steps.concatenated(parts)
    # Pieces of an episode are handed out one after the other, but others lie between them.
    order = np.argsort([str(whole.episode_ids[i]).zfill(9) for i in whole.episode[whole.is_final]], kind="stable")
    starts = whole.piece_starts().tolist()
    assert_whole(Steps.concatenated([whole.rows(starts[i], starts[i + 1]) for i in order]), envs)


def test_episodes_of_failed_environments_are_left_out():
    envs, builder = Envs(1, 1), StepsBuilder("run", 100)
    while builder.add(block := envs.block(1)) is not None or builder.num_held < 1:
        pass
    block = {**block, "loss_mask": np.zeros((1, 1), bool)}
    for column in ("terminateds", "truncateds"):
        block[column] = np.zeros((1, 1), bool)
    assert builder.add(block) is None and builder.num_held == 0
    assert builder.cut() is None


def test_steps_that_do_not_count_are_left_out():
    envs, builder = Envs(2, 2), StepsBuilder("run", 100)
    counts = np.ones((20, 2), bool)
    counts[:, 1] = False
    parts = (builder.add(envs.block(20), counts), builder.cut())
    steps = Steps.concatenated([part for part in parts if part is not None])
    assert set(steps.columns["obs"]["a"][:, 0].tolist()) == {0.0} and steps.num_steps == 20


def test_running_episodes_are_cut_when_they_take_too_much(monkeypatch):
    envs, builder = Envs(3, 3), StepsBuilder("run", 10_000)
    monkeypatch.setattr(steps_builder, "MOST_HELD_BYTES", 100)
    parts = [builder.add(envs.block(2)) for _ in range(9)]
    assert builder.num_held * 40 < 200
    assert sum(part.num_steps for part in parts if part is not None) + builder.num_held == 9 * 2 * 3


def test_episodes_that_were_running_go_on_with_their_numbers_of_steps():
    builder = StepsBuilder("run", 100)
    assert builder.restart(np.array([0, 5])) is None
    builder.add(Envs(2, 7).block(1))
    held = builder.restart()
    assert held is not None and sorted(held.t[~held.is_final].tolist()) == [0, 5]


def test_infos_of_observations_stand_beside_them():
    block = Envs(1, 3).block(2)
    block["terminateds"][:], block["truncateds"][:] = [[False], [True]], False
    block |= {"infos": np.array([["a"], ["b"]], object), "final_infos": np.array([["b"], ["c"]], object)}
    steps = StepsBuilder("run", 100).add(block)
    assert steps is not None and steps.columns["infos"].tolist() == ["a", "b", "c"]


def test_chunks_of_an_episode_become_one_piece():
    joiner = ChunkJoiner(100, has_infos=True)
    episode = SingleAgentEpisode("x", len_lookback_buffer=0)
    episode.add_env_reset(np.array([0.0]), {"n": 0})
    for i in range(5):
        episode.add_env_step(np.array([i + 1]), i, 0.5 * i, {"n": i + 1}, extra_model_outputs={"p": np.float32(i)})
        chunk, episode = episode, episode.cut(len_lookback_buffer=2)
        assert joiner.add([chunk.to_numpy()]) is None
    assert joiner.num_held == 5
    # Without another chunk it was given up.
    other = SingleAgentEpisode("y", len_lookback_buffer=0)
    other.add_env_reset(np.array([7.0]), {})
    other.add_env_step(np.array([8.0]), 1, 1.0, {}, terminated=True, extra_model_outputs={"p": np.float32(9)})
    steps = joiner.add([other])
    assert steps is not None and list(steps.episode_ids) == ["x", "y"] and joiner.num_held == 0
    np.testing.assert_array_equal(steps.columns["obs"][:, 0], [0, 1, 2, 3, 4, 5, 7, 8])
    np.testing.assert_array_equal(steps.columns["p"], [0, 1, 2, 3, 4, 0, 9, 0])
    np.testing.assert_array_equal(steps.t, [0, 1, 2, 3, 4, 5, 0, 1])
    assert [info.get("n") for info in steps.columns["infos"]] == [0, 1, 2, 3, 4, 5, None, None]
    assert steps.columns["terminateds"].tolist() == [False] * 6 + [True, False]
