"""Segments of episodes in time-major columns, against a loop over steps."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_stack.episodes.segments import Segment, segments


def by_step(terminateds, truncateds, mask, starts):
    """The segments, found step by step."""
    found = []
    for env in range(terminateds.shape[1]):
        steps, begins = [], bool(starts[env])
        for row in range(len(terminateds)):
            is_step = mask[row, env]
            flags = bool(terminateds[row, env]), bool(truncateds[row, env])
            if is_step:
                steps.append(row)
            if steps and (not is_step or any(flags)):
                ends = flags if is_step else (False, False)
                found.append(Segment(env, steps[0], steps[-1] + 1, begins, *ends))
                steps = []
            if not is_step or any(flags):
                begins = True
        if steps:
            found.append(Segment(env, steps[0], steps[-1] + 1, begins, False, False))
    return found


def random_block(rng):
    """``(terminateds, truncateds, mask, starts)`` of a block; None in place of a mask or of starts that say nothing."""
    shape = tuple(rng.integers(1, (12, 6)))
    rates = rng.choice([0.0, 0.1, 0.5, 1.0], 3)
    terminateds, truncateds, gaps = (rng.random(shape) < rate for rate in rates)
    starts = rng.random(shape[1]) < 0.5
    return terminateds, truncateds, ~gaps if rng.random() < 0.7 else None, starts if rng.random() < 0.7 else None


@pytest.mark.parametrize("seed", range(4))
def test_segments_are_those_of_a_loop_over_steps(seed):
    rng = np.random.default_rng(seed)
    for _ in range(50):
        terminateds, truncateds, mask, starts = random_block(rng)
        found = segments(terminateds, truncateds, mask=mask, starts=starts)
        whole = np.ones_like(terminateds) if mask is None else mask
        begins = np.zeros(terminateds.shape[1], bool) if starts is None else starts
        expected = by_step(terminateds, truncateds, whole, begins)
        assert list(found.each()) == expected
        assert found.has_ended.tolist() == [one.has_ended for one in expected]
        # Each step is in one segment, in which it follows the step before.
        rows, columns, numbers = found.steps()
        steps = [(row, one.env, n) for n, one in enumerate(expected) for row in range(one.start, one.stop)]
        assert list(zip(rows.tolist(), columns.tolist(), numbers.tolist(), strict=True)) == steps
        of_rows = found.numbers()
        np.testing.assert_array_equal(of_rows >= 0, whole)
        assert all(of_rows[row, column] == n for row, column, n in steps)
        # The last step of a column is one of an episode that continues, or no episode does.
        is_running = np.zeros(terminateds.shape[1], bool)
        is_running[found.env[found.is_running]] = True
        np.testing.assert_array_equal(is_running, whole[-1] & ~(terminateds | truncateds)[-1])


@pytest.mark.parametrize("seed", range(4))
def test_segments_of_two_blocks_continue_each_other(seed):
    rng = np.random.default_rng(seed)
    for _ in range(50):
        terminateds, truncateds, mask, starts = random_block(rng)
        at = int(rng.integers(1, len(terminateds) + 1)) % len(terminateds)
        whole = segments(terminateds, truncateds, mask=mask, starts=starts)
        if not at:
            continue
        early, late = (
            (terminateds[rows], truncateds[rows], None if mask is None else mask[rows])
            for rows in (slice(at), slice(at, None))
        )
        first = segments(*early[:2], mask=early[2], starts=starts)
        is_new = np.ones(terminateds.shape[1], bool)
        is_new[first.env[first.is_running]] = False
        running = {one.env: one for one in first.each() if one.stop == at and not one.has_ended}
        ended = [one for one in first.each() if running.get(one.env) != one]
        for one in segments(*late[:2], mask=late[2], starts=is_new).each():
            later = one._replace(start=one.start + at, stop=one.stop + at)
            if not one.begins:
                before = running.pop(one.env)
                later = later._replace(start=before.start, begins=before.begins)
            ended.append(later)
        assert sorted([*ended, *running.values()]) == list(whole.each())
