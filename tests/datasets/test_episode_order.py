"""Rows in the order of their episodes, and pieces of episodes put together."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_stack.datasets.episode_order import JumbledRows, order_of
from jaxrl_stack.datasets.episode_pieces import episode_of_pieces


def order(ids, t=None, ended=(), file=None, continues=None):
    n = len(ids)
    flags = np.isin(np.arange(n), ended)
    files = np.zeros(n, int) if file is None else np.array(file)
    found = order_of(np.array(ids), None if t is None else np.array(t), flags, files, continues)
    rows = np.arange(n) if found.rows is None else found.rows
    return rows.tolist(), found.episode.tolist()


def test_rows_in_order_stay_where_they_are():
    found = order_of(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 3]), np.zeros(4, bool), np.zeros(4, int), None)
    assert found.rows is None and found.episode.tolist() == [0, 0, 1, 1]


def test_rows_of_an_id_follow_each_other_by_their_steps_or_as_they_are():
    assert order([0, 1, 0, 1], [0, 0, 1, 1]) == ([0, 2, 1, 3], [0, 0, 1, 1])
    assert order([0, 1, 0, 1], [1, 0, 0, 1]) == ([2, 0, 1, 3], [0, 0, 1, 1])
    assert order([1, 0, 1, 0]) == ([0, 2, 1, 3], [0, 0, 1, 1])


def test_an_id_that_is_used_again_is_several_episodes():
    # An environment's number, whose steps begin anew; the second episode is cut.
    assert order([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 0, 2], ended=[2]) == ([0, 2, 1, 3, 5, 4], [0, 0, 1, 1, 1, 2])
    # Ids of files: the same steps in both.
    assert order([0, 0, 0, 0], [0, 1, 0, 1], file=[0, 0, 1, 1])[1] == [0, 0, 1, 1]
    # The second file goes on with the third step.
    assert order([0, 0, 1, 0, 1], [0, 1, 0, 2, 1], file=[0, 0, 0, 1, 1]) == ([0, 1, 3, 2, 4], [0, 0, 0, 1, 1])
    with pytest.raises(JumbledRows) as raised:
        order([0, 0, 0, 0, 0], [0, 2, 1, 0, 1])
    assert raised.value.row == 2


def test_without_steps_an_episode_continues_in_the_next_file_where_its_observation_does():
    def continues(before, after):
        return after == before + 2

    ids, file = [0, 1, 0, 1], [0, 0, 1, 1]
    assert order(ids, file=file, continues=continues) == ([0, 2, 1, 3], [0, 0, 1, 1])
    assert order(ids, file=file) == ([0, 1, 2, 3], [0, 1, 2, 3]), "only rows beside each other continue"
    assert order([0, 0], file=[0, 1]) == ([0, 1], [0, 0])
    assert order([0, 0], file=[0, 1], ended=[0]) == ([0, 1], [0, 1])


def test_all_rows_are_there_once_whatever_their_order():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 40))
        lengths = rng.integers(1, 6, n)
        ids, t = np.repeat(np.arange(n), lengths), np.concatenate([np.arange(k) for k in lengths])
        shuffle = rng.permutation(len(ids))
        file = np.sort(rng.integers(0, 3, len(ids)))
        found = order_of(ids[shuffle], t[shuffle], np.zeros(len(ids), bool), file, None)
        rows = np.arange(len(ids)) if found.rows is None else found.rows
        assert sorted(rows.tolist()) == list(range(len(ids)))
        own_ids, own_t = ids[shuffle][rows], t[shuffle][rows]
        same = np.diff(found.episode) == 0
        assert (own_ids[1:] == own_ids[:-1])[same].all() and (np.diff(own_t) == 1)[same].all()
        assert found.episode[-1] + 1 == n


def pieces(*found):
    ids, begin, end, ended = zip(*found, strict=True)
    return episode_of_pieces(ids, np.array(begin), np.array(end), np.array(ended)).tolist()


def test_pieces_that_count_on_are_one_episode():
    assert pieces(("a", 0, 3, False), ("b", 0, 2, True), ("a", 3, 5, True)) == [0, 1, 0]
    assert pieces(("a", 3, 5, True), ("a", 0, 3, False)) == [0, 0], "in any order"
    assert pieces(("a", 0, 3, False), ("a", 7, 9, True)) == [0, 0], "what lies between was not recorded"


def test_pieces_that_begin_anew_are_other_episodes():
    assert pieces(("0", 0, 3, True), ("0", 0, 3, True)) == [0, 1]
    assert pieces(("0", 0, 3, True), ("0", 3, 5, True)) == [0, 1], "nothing follows an end"
    # Two files with the same ids, the first episodes of which are in two pieces.
    found = pieces(("0", 0, 4, False), ("0", 4, 6, True), ("0", 0, 4, False), ("0", 4, 9, True))
    assert found == [0, 0, 1, 1]
