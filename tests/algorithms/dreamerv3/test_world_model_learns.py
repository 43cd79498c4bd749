"""A world model alone, on recorded random steps: it knows what comes next, and which action it comes of."""

from __future__ import annotations

import numpy as np

from bench.dreamer_world_model import LEAST_ACCURACY, MOST_ERROR, Settings, known_of, learned
from jaxrl_stack.replay import EpisodeReplayBuffer

EDGE = 8


def walks(num_steps: int, seed: int) -> EpisodeReplayBuffer:
    """Random walks to an edge: where one is, and which step led there; steps to the right have reward 1."""
    rng = np.random.default_rng(seed)
    rows, at = [], 0
    obs = np.zeros(2, np.float32)
    for _ in range(num_steps):
        action = int(rng.integers(2))
        move = 2 * action - 1
        at += move
        new = np.array([at / EDGE, move], np.float32)
        ended = abs(at) == EDGE
        rows.append((obs, action, np.float32(action), ended, False, new))
        at, obs = (0, np.zeros(2, np.float32)) if ended else (at, new)
    names = ("obs", "actions", "rewards", "terminateds", "truncateds", "final_obs")
    buffer = EpisodeReplayBuffer(capacity=num_steps, seed=seed)
    buffer.add_block({name: np.stack([row[i] for row in rows])[:, None] for i, name in enumerate(names)})
    return buffer


def test_what_is_imagined_is_what_the_actions_lead_to():
    """The full proof, on CartPole, is ``python -m bench.dreamer_world_model``."""
    settings = Settings(size="micro", updates=600, windows=8, length=20, lr=5e-3)
    known = known_of(learned(settings, walks(3000, seed=1)), walks(2000, seed=2))
    assert known.error <= MOST_ERROR
    # One step too early or too late, a reward is wrong every second time.
    assert known.reward_error <= 0.1
    assert known.accuracy >= LEAST_ACCURACY
