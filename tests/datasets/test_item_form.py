"""What minibatches are made of: every step once, whatever the length of pieces, sequences and burn-in."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.datasets.steps import Steps

pytestmark = pytest.mark.fast


def recorded(lengths):
    n = sum(lengths) + len(lengths)
    is_final = np.zeros(n, bool)
    is_final[np.cumsum(np.add(lengths, 1)) - 1] = True
    rows = np.arange(n, dtype=np.float32)
    columns = {
        Columns.OBS: {"a": rows, "b": np.stack([rows, -rows], axis=-1)},
        Columns.ACTIONS: np.arange(n),
        Columns.STATE_IN: {"h": rows[:, None] * 10},
    }
    episode = np.repeat(np.arange(len(lengths)), np.add(lengths, 1)).astype(np.int32)
    t = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    return Steps(columns, is_final, episode, t, [str(i) for i in range(len(lengths))])


@pytest.mark.parametrize("xp", [np, jnp])
def test_steps_have_the_observation_of_the_next_row(xp):
    steps = recorded((3, 1))
    items = ItemForm((Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS))
    assert items.read == (Columns.OBS, Columns.ACTIONS)
    rows = items.of(steps)
    np.testing.assert_array_equal(rows, [0, 1, 2, 4])
    columns = {name: steps.columns[name] for name in items.read}
    if xp is jnp:
        columns = {name: {k: jnp.asarray(x) for k, x in own.items()} for name, own in columns.items() if name == "obs"}
        columns[Columns.ACTIONS] = jnp.asarray(steps.columns[Columns.ACTIONS])
    batch = items.take(columns, {"more": xp.arange(6) * 2}, xp.asarray(rows[::-1].copy()), xp)
    np.testing.assert_array_equal(batch[Columns.OBS]["a"], [4, 2, 1, 0])
    np.testing.assert_array_equal(batch[Columns.NEXT_OBS]["b"][:, 1], [-5, -3, -2, -1])
    np.testing.assert_array_equal(batch["more"], [8, 4, 2, 0])


@pytest.mark.parametrize(("length", "burn_in"), [(1, 0), (3, 0), (4, 2), (5, 1), (50, 7)])
@pytest.mark.parametrize("lengths", [(1,), (4, 9, 1), (12, 3)])
def test_sequences_have_every_step_once_behind_its_burn_in(length, burn_in, lengths):
    steps = recorded(lengths)
    items = ItemForm((Columns.ACTIONS,), length, burn_in)
    found = items.take(steps.columns, {}, items.of(steps), np)
    mask, actions = found[Columns.LOSS_MASK], found[Columns.ACTIONS]
    assert mask.shape[1] == length
    np.testing.assert_array_equal(np.sort(actions[mask]), np.flatnonzero(~steps.is_final))
    for i, own in enumerate(mask):
        first = int(np.argmax(own))
        # As many steps of burn-in as there are, and all of a row from one piece.
        assert first == min(burn_in, steps.t[actions[i][first]])
        last = first + own.sum()
        np.testing.assert_array_equal(np.diff(actions[i][:last]), 1)
        assert own[first:last].all() and not own[last:].any()
        assert found[Columns.STATE_IN]["h"][i] == actions[i][0] * 10


def test_sequences_start_as_episodes_do_unless_states_were_recorded():
    items = ItemForm((Columns.ACTIONS,), 4, 0, {"h": np.full(1, 7.0)})
    assert Columns.STATE_IN not in items.read
    found = items.take(recorded((5,)).columns, {}, items.of(recorded((5,))), np)
    np.testing.assert_array_equal(found[Columns.STATE_IN]["h"], [[7.0], [7.0]])
