"""What RLlib's own buffers do with the same data and the same random numbers; see make_replay_golden.py."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

GOLDEN = json.loads((pathlib.Path(__file__).parent / "replay_golden.json").read_text())
CLASSES = {cls.__name__: cls for cls in (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)}


def chunk(e, first, last, terminated, truncated, name=None):
    return SingleAgentEpisode(
        name or str(e),
        observations=[np.array([e, t], np.float32) for t in range(first, last + 1)],
        actions=list(range(first, last)),
        rewards=[100.0 * e + t for t in range(first, last)],
        terminated=terminated,
        truncated=truncated,
        t_started=first,
        len_lookback_buffer=0,
    )


def filled(buffer, seed=0):
    for e, (length, terminated, truncated) in enumerate(GOLDEN["episodes"]):
        if e == 3:
            buffer.add(chunk(e, 0, 4, False, False))
            buffer.add(chunk(e, 4, length, terminated, truncated))
        else:
            buffer.add(chunk(e, 0, length, terminated, truncated))
    buffer.rng = np.random.default_rng(seed)
    return buffer


@pytest.mark.parametrize("case", GOLDEN["transitions"], ids=lambda case: f"n_step={case['n_step']}")
def test_transitions(case):
    """RLlib, too, cuts windows at the end of an episode; its flags and n_step say otherwise then, and are left out."""
    buffer = filled(EpisodeReplayBuffer(1000), case["seed"])
    batch = buffer.sample_batch(48, n_step=case["n_step"], gamma=0.5)
    ours = np.column_stack([batch["obs"], batch["new_obs"][:, 1], batch["rewards"]])
    np.testing.assert_allclose(ours, case["items"][:48])
    np.testing.assert_array_equal(batch["n_step"], ours[:, 2] - ours[:, 1])


@pytest.mark.parametrize("case", GOLDEN["rows"], ids=lambda case: f"seed={case['seed']}")
def test_rows_of_frames(case):
    batch = filled(EpisodeReplayBuffer(1000), case["seed"]).sample(1, batch_length_T=12)
    assert batch.keys() == case["columns"].keys()
    for name, column in case["columns"].items():
        np.testing.assert_array_equal(batch[name], column, err_msg=name)


def test_sequences():
    """RLlib counts a step too many per sequence, and so stops earlier."""
    case = GOLDEN["sequences"]
    buffer = filled(EpisodeReplayBuffer(1000), case["seed"])
    sample = buffer.sample(30, n_step=1, batch_length_T=4, lookback=2, sample_episodes=True)
    ours = [[int(x.get_observations(0)[0]), x.t_started, len(x), x.is_terminated, x.is_truncated] for x in sample]
    assert len(ours) > len(case["items"]) > 5
    assert ours[: len(case["items"])] == case["items"]


@pytest.mark.parametrize("case", GOLDEN["prioritized"], ids=lambda c: f"alpha={c['alpha']}-n_step={c['n_step']}")
def test_prioritized(case):
    """RLlib draws again where a window does not fit into its episode."""
    buffer = filled(PrioritizedEpisodeReplayBuffer(1000, alpha=case["alpha"]), case["seed"])
    for items in case["rounds"]:
        state = buffer.rng.bit_generator.state
        # As many draws as give RLlib's number of whole windows.
        number = 0
        kept = np.zeros(0, bool)
        while kept.sum() < len(items):
            number += 1
            buffer.rng.bit_generator.state = state
            batch = buffer.sample_batch(number, n_step=case["n_step"], beta=case["beta"])
            kept = batch["n_step"] == case["n_step"]
        ours = np.column_stack([batch["obs"], batch["weights"]])[kept]
        np.testing.assert_allclose(ours, items, rtol=1e-6)
        buffer.update_priorities(ours[:, 1] + 1.0, indices=batch["batch_indexes"][kept])


@pytest.mark.parametrize("name", CLASSES)
def test_sizes_with_eviction(name):
    buffer = CLASSES[name](40)
    for (id_, first, length, terminated), expected in zip(GOLDEN["size_steps"], GOLDEN["sizes"][name], strict=True):
        buffer.add(chunk(ord(id_), first, first + length, terminated, False, id_))
        assert [
            buffer.get_num_episodes(),
            buffer.get_num_timesteps(),
            buffer.get_num_episodes_evicted(),
            buffer.get_added_timesteps(),
        ] == expected


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_metrics(name):
    buffer = filled(CLASSES[name](1000))
    buffer.sample(4, n_step=2, sample_episodes=True)
    paths = jax.tree_util.tree_flatten_with_path(buffer.get_metrics())[0]
    assert sorted("/".join(key.key for key in path) for path, _ in paths) == GOLDEN["metrics"][name]
