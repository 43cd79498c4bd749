"""What `jaxrl data` says of recorded steps."""

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.datasets.summary import summary_of


def piece(name, rewards, actions, *, begin=0, terminated=False, truncated=False):
    """A piece of an episode; its final row has rewards and actions that count nowhere."""
    n = len(rewards)
    flags = np.zeros((2, n + 1), bool)
    flags[:, n - 1] = terminated, truncated
    actions = np.asarray(actions)
    columns = {
        "obs": np.zeros((n + 1, 3), np.float32),
        "actions": np.concatenate([actions, actions[:1] * 0 + 9]),
        "rewards": np.array([*rewards, 100.0], np.float32),
        "terminateds": flags[0],
        "truncateds": flags[1],
    }
    numbers = np.arange(n + 1, dtype=np.int32)
    return Steps(columns, numbers == n, np.zeros(n + 1, np.int32), numbers + begin, [name])


def test_episodes_are_counted_over_their_pieces():
    parts = [
        Steps.concatenated([piece("a", [1, 2], [0, 1]), piece("b", [5], [1], terminated=True)]),
        piece("a", [3], [1], begin=2, truncated=True),
        Steps.concatenated([piece("c", [7, 7], [1, 1]), piece("d", [9], [0], begin=4, terminated=True)]),
    ]
    found = summary_of(parts, gym.spaces.Discrete(3))
    assert (found.num_rows, found.num_steps, found.num_episodes) == (12, 7, 4)
    assert (found.num_terminated, found.num_truncated, found.num_cut) == (2, 1, 2)
    assert found.returns.tolist() == [6, 5] and found.lengths.tolist() == [3, 1]
    (actions,) = found.actions
    assert actions.labels == ("0", "1", "2") and actions.counts.tolist() == [2, 5, 0]
    assert found.columns["obs"] == "float32[3]" and found.columns["rewards"] == "float32"
    assert found.as_json()["returns"]["mean"] == 5.5


def test_where_no_episode_is_whole_all_are_shown():
    assert summary_of([piece("a", [1, 2], [0, 1])]).returns.tolist() == [3]


def test_continuous_actions_have_moments_of_all_steps():
    found = summary_of([piece("a", [0, 0], np.array([[1.0, -1.0], [3.0, -1.0]], np.float32))] * 2)
    first, second = found.action_moments
    assert (first.mean, first.std, first.min, first.max) == (2.0, 1.0, 1.0, 3.0)
    assert (second.std, second.min) == (0.0, -1.0)
    assert [own.name for own in found.actions] == ["actions[0]", "actions[1]"]
    assert found.actions[0].counts.sum() == 4


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="no steps"):
        summary_of([])
