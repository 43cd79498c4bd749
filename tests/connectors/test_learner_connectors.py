from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.learner import (
    ComputeReturnsToGo,
    FrameStacking,
    FrameStackingLearner,
    LearnerConnectorPipeline,
)
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.layouts import Layout, Layouts

BOX = gym.spaces.Box(-1.0, 1.0, (4, 1), np.float32)


def test_returns_to_go_match_a_loop_over_episodes():
    rng = np.random.default_rng(5)
    rewards = rng.normal(size=(12, 3)).astype(np.float32)
    terminateds, truncateds = (rng.random((12, 3)) < 0.15 for _ in range(2))
    mask = rng.random((12, 3)) < 0.85
    columns = {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds, "loss_mask": mask}
    connector = ComputeReturnsToGo(gamma=0.9)
    by_hand, planned, unmasked = (
        jax.jit(connector.apply)((), {DEFAULT_MODULE_ID: columns}, ConnectorContext(layouts=layouts))[1]
        for layouts in (None, *(Layouts({DEFAULT_MODULE_ID: Layout(is_masked=own)}) for own in (True, False)))
    )
    expected = np.zeros((12, 3))
    for env in range(3):
        after = 0.0
        for t in reversed(range(12)):
            if mask[t, env]:
                if terminateds[t, env] or truncateds[t, env]:
                    after = 0.0
                after = expected[t, env] = rewards[t, env] + 0.9 * after
    for out in (by_hand, planned):
        np.testing.assert_allclose(out[DEFAULT_MODULE_ID]["returns_to_go"], expected, rtol=1e-5, atol=1e-6)
    # A column of that name alone masks nothing.
    assert np.all(unmasked[DEFAULT_MODULE_ID]["returns_to_go"][~mask] != 0.0)


def test_a_discount_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"gamma=1.5.*number in \[0, 1\]"):
        ComputeReturnsToGo(gamma=1.5)


def test_frame_stacking_leaves_what_is_recorded_alone_and_misses_what_was_not_stacked():
    stacked_box = gym.spaces.Box(-1.0, 1.0, (4, 3), np.float32)
    actions = gym.spaces.Discrete(2)
    pipeline = LearnerConnectorPipeline(stacked_box, actions, connectors=[FrameStackingLearner(num_frames=3)])
    assert isinstance(pipeline[0], FrameStacking)
    assert pipeline.observation_space == stacked_box
    stacked = {DEFAULT_MODULE_ID: {"obs": np.ones((5, 2, 4, 3), np.float32)}}
    _, out = pipeline.apply(pipeline.init(2), stacked, ConnectorContext())
    np.testing.assert_array_equal(out[DEFAULT_MODULE_ID]["obs"], stacked[DEFAULT_MODULE_ID]["obs"])
    with pytest.raises(ValueError, match=r"Add FrameStackingEnvToModule\(num_frames=3\) to the env-to-module"):
        LearnerConnectorPipeline(BOX, actions, connectors=[FrameStackingLearner(num_frames=3)])


def test_explain_takes_the_environments_from_the_second_axis():
    pipeline = LearnerConnectorPipeline(BOX, gym.spaces.Discrete(2), connectors=[ComputeReturnsToGo(gamma=0.9)])
    flags = np.zeros((5, 2), bool)
    text = pipeline.describe({"rewards": np.zeros((5, 2), np.float32), "terminateds": flags, "truncateds": flags})
    assert "2 environments" in text and "+ default_policy/returns_to_go" in text
