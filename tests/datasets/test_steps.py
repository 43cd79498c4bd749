"""Recorded steps in memory: pieces of episodes, their ranges, and several of them as one."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps


def steps(lengths, first=0):
    """Episodes of so many steps, each a piece, whose observations count."""
    sizes = np.asarray(lengths) + 1
    is_final = np.zeros(sizes.sum(), bool)
    is_final[np.cumsum(sizes) - 1] = True
    number = np.arange(len(is_final), dtype=np.float32)
    columns = {Columns.OBS: {"a": number[:, None]}, Columns.REWARDS: np.where(is_final, 0, number)}
    episode = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    t = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return Steps(columns, is_final, episode, t, [f"e{first + i}" for i in range(len(sizes))])


def test_it_counts_rows_steps_and_pieces():
    found = steps([3, 1, 2])
    assert (found.num_rows, found.num_steps, found.num_pieces) == (9, 6, 3)
    np.testing.assert_array_equal(found.piece_starts(), [0, 4, 6, 9])
    assert found.num_bytes == 9 * (4 + 4)


def test_a_range_has_its_episodes_and_cuts_no_piece():
    found = steps([3, 1, 2]).rows(4, 9)
    assert found.episode_ids == ["e1", "e2"] and found.episode.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(found.columns[Columns.OBS]["a"][:, 0], range(4, 9))
    with pytest.raises(ValueError, match="start=2 is within a chunk"):
        steps([3, 1]).rows(2, 6)
    with pytest.raises(ValueError, match="stop=5 is within"):
        steps([3, 1]).rows(0, 5)


def test_parts_are_put_together_and_an_episode_goes_on():
    first, second = steps([3, 1]), steps([2, 2], first=1)
    second.t[:3] += 1  # e1 continues with its second step
    found = Steps.concatenated([first, second, steps([1], first=9)])
    assert found.episode_ids == ["e0", "e1", "e2", "e9"]
    assert found.episode.tolist() == [0] * 4 + [1] * 2 + [1] * 3 + [2] * 3 + [3] * 2
    for part, at in ((first, 0), (second, 6)):
        np.testing.assert_array_equal(
            found.columns[Columns.REWARDS][at : at + part.num_rows], part.columns[Columns.REWARDS]
        )
    with pytest.raises(ValueError, match="no steps"):
        Steps.concatenated([])
    again = Steps.concatenated([first, steps([2], first=1)])
    assert again.episode_ids == ["e0", "e1", "e1"], "an id that is used again begins another episode"


def test_only_columns_of_all_parts_are_kept():
    more = steps([1])
    more = Steps({**more.columns, "extra": np.ones(2)}, more.is_final, more.episode, more.t, more.episode_ids)
    assert set(Steps.concatenated([more, steps([1])]).columns) == {Columns.OBS, Columns.REWARDS}
