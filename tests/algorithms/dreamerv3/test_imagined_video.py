"""What a world model imagines beside what happened."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import DreamerV3RLModule
from jaxrl_stack.algorithms.dreamerv3.imagined_video import Comparison, compare, longest_in_an_episode, write_comparison
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import batched_state

SPACE = gym.spaces.Dict(
    vector=gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), image=gym.spaces.Box(0, 255, (64, 64, 1), np.uint8)
)
NUM_WINDOWS, NUM_STEPS, GIVEN = 2, 6, 2


def windows(module: DreamerV3RLModule) -> dict:
    rng = np.random.default_rng(0)
    lead = (NUM_WINDOWS, NUM_STEPS)
    return {
        Columns.OBS: {
            "vector": 100 * rng.normal(size=(*lead, 3)).astype(np.float32),
            "image": rng.integers(0, 256, (*lead, 64, 64, 1), np.uint8),
        },
        Columns.ACTIONS: rng.integers(0, 3, lead, np.int32),
        Columns.REWARDS: rng.normal(size=lead).astype(np.float32),
        "is_first": np.zeros(lead, bool),
        Columns.STATE_IN: batched_state(module.get_initial_state(), NUM_WINDOWS),
    }


@pytest.fixture(scope="module")
def compared():
    module = DreamerV3RLModule(
        observation_space=SPACE, action_space=gym.spaces.Discrete(3), model_config={"model_size": "nano"}, rngs=0
    )
    columns = windows(module)
    changed = jax.tree.map(np.copy, columns)
    # What is not given is not looked at, and the last action leads to nothing that is shown.
    for leaf in changed[Columns.OBS].values():
        leaf[:, GIVEN:] = 0
    changed[Columns.ACTIONS][:, -1] = (changed[Columns.ACTIONS][:, -1] + 1) % 3
    other = jax.tree.map(np.copy, columns)
    other[Columns.ACTIONS][:, GIVEN] = (other[Columns.ACTIONS][:, GIVEN] + 1) % 3
    return [compare(module, each, GIVEN) for each in (columns, changed, other)]


def test_observations_are_imagined_from_what_is_given_and_from_actions(compared):
    whole, changed, other = compared
    for name, value in whole.imagined.items():
        assert value.shape == whole.observed[name].shape
        np.testing.assert_array_equal(value, changed.imagined[name])
        same = np.isclose(value, other.imagined[name], rtol=1e-4).all(axis=(0, *range(2, value.ndim)))
        # The action at the last but one known step leads to what comes after the next one.
        assert same[: GIVEN + 1].all() and not same[GIVEN + 1 :].any(), name
    np.testing.assert_array_equal(whole.imagined_rewards, changed.imagined_rewards)


def test_a_film_shows_a_column_for_each_window(compared, tmp_path):
    video = write_comparison(compared[0], SPACE, tmp_path / "film.gif", 5.0)
    assert video.path.stat().st_size > 0 and video.lengths == (NUM_STEPS,) * NUM_WINDOWS
    np.testing.assert_allclose(video.returns, compared[0].rewards.sum(axis=1), rtol=1e-5)
    assert f"{GIVEN} steps are given" in (video.note or "")
    vectors = Comparison(
        {"obs": np.zeros((1, 3, 2))}, {"obs": np.ones((1, 3, 2))}, np.zeros((1, 3)), np.zeros((1, 3)), 1
    )
    assert write_comparison(vectors, SPACE["vector"], tmp_path / "curves.gif", 5.0).lengths == (3,)


def test_windows_stay_in_one_episode():
    first = np.zeros((4, 6), bool)
    first[0, 2], first[1, 5], first[3, [0, 4]] = True, True, True
    columns = {"is_first": first, "obs": np.arange(24).reshape(4, 6), Columns.STATE_IN: np.arange(4)}
    chosen = longest_in_an_episode(columns, 3, least=4)
    np.testing.assert_array_equal(chosen["obs"], columns["obs"][[2, 1, 3], :4])
    assert chosen[Columns.STATE_IN].tolist() == [2, 1, 3]
    with pytest.raises(
        ValueError, match="3 recorded sequences with at least 5 steps .* shortest of the 3 longest .* has only 4"
    ):
        longest_in_an_episode(columns, 3, least=5)
