"""Runners that send their connector states in, and get the merged one back, against one runner that saw all."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
SIZES = (1, 2, 4)
FILTER, FRAMES = "MeanStdFilter", "FrameStacking"


def make_pipeline():
    return EnvToModulePipeline(
        SPACE, gym.spaces.Discrete(2), connectors=[FrameStackingEnvToModule(num_frames=3), MeanStdFilter()]
    )


PIPELINES = [make_pipeline() for _ in SIZES]
ALL = make_pipeline()


@functools.partial(jax.jit, static_argnames="is_frozen")
def step(state, obs, reset, is_frozen=False):
    context = ConnectorContext(reset=reset, update_statistics=not is_frozen)
    state, batch = ALL.apply(state, {DEFAULT_MODULE_ID: {"obs": obs}}, context)
    return state, batch[DEFAULT_MODULE_ID]["obs"]


class Simulation:
    """Three runners of different sizes, and one runner with all their environments."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.states = [pipeline.init(size) for pipeline, size in zip(PIPELINES, SIZES, strict=True)]
        self.of_all = ALL.init(sum(SIZES))
        self.is_first = True

    def sample(self):
        """A few steps of every runner; returns the last outputs: of the runners, and of the one with all."""
        scale = self.rng.choice([0.01, 1.0, 100.0])
        for _ in range(self.rng.integers(1, 6)):
            obs = (self.rng.normal(self.rng.normal(0, 5), scale, (sum(SIZES), 2))).astype(np.float32)
            reset = self.rng.random(sum(SIZES)) < (1.0 if self.is_first else 0.2)
            self.is_first = False
            outputs, start = [], 0
            for i, size in enumerate(SIZES):
                own = slice(start, start + size)
                self.states[i], output = step(self.states[i], obs[own], reset[own])
                outputs.append(output)
                start += size
            self.of_all, expected = step(self.of_all, obs, reset)
        return np.concatenate(outputs), np.asarray(expected)

    def synchronise(self, without=()):
        """Merge all states, and send the result to all runners but some."""
        saved = []
        for pipeline, state in zip(PIPELINES, self.states, strict=True):
            pipeline.state = state
            saved.append(pipeline.get_state())
        order = self.rng.permutation(len(saved))
        merged = ALL.merge_states([saved[i] for i in order])
        for i, pipeline in enumerate(PIPELINES):
            if i not in without:
                pipeline.set_state(merged)
                self.states[i] = pipeline.state
        return merged


def counts(state):
    parts = state[FILTER][DEFAULT_MODULE_ID]
    return {name: int(parts[name]["obs"].count[1]) for name in ("base", "delta")}


def assert_close(base, expected):
    assert int(base.count[1]) == int(expected.count[1])
    scale = np.sqrt(np.asarray(expected.variance))
    np.testing.assert_allclose(base.mean, expected.mean, rtol=1e-5, atol=1e-5 * scale.max())
    np.testing.assert_allclose(base.variance, expected.variance, rtol=1e-4)


def of_all(simulation):
    """Statistics of the runner with all environments."""
    return ALL[FILTER].merge(simulation.of_all[FILTER], None)[DEFAULT_MODULE_ID]["base"]["obs"]


@pytest.mark.parametrize("seed", range(5))
def test_runners_that_synchronise_know_what_one_runner_would(seed):
    simulation = Simulation(seed)
    for _ in range(6):
        simulation.sample()
        history = [state[FRAMES] for state in simulation.states]
        merged = simulation.synchronise()
        assert list(merged) == [FILTER]
        for before, state in zip(history, simulation.states, strict=True):
            jax.tree.map(np.testing.assert_array_equal, state[FRAMES], jax.tree.map(np.asarray, before))
            assert counts(state)["delta"] == 0
            assert_close(state[FILTER][DEFAULT_MODULE_ID]["base"]["obs"], of_all(simulation))
    # The statistics decide what comes out: without an update, all runners and the one with all environments agree.
    obs, reset = np.ones((7, 2), np.float32), np.zeros(7, bool)
    _, expected = step(simulation.of_all, obs, reset, is_frozen=True)
    start = 0
    for state, size in zip(simulation.states, SIZES, strict=True):
        _, got = step(state, obs[:size], reset[:size], is_frozen=True)
        np.testing.assert_allclose(got, expected[start : start + size], rtol=1e-3, atol=1e-4)
        start += size


@pytest.mark.parametrize("missing", range(3))
def test_a_runner_that_misses_a_synchronisation_catches_up_and_counts_nothing_twice(missing):
    simulation = Simulation(missing)
    sampled, lost = 0, 0
    for round_ in range(6):
        before = counts(simulation.states[missing])["delta"]
        simulation.sample()
        new = counts(simulation.states[missing])["delta"] - before
        sampled += new // SIZES[missing] * sum(SIZES)
        # What the runner saw before it missed the result is in the base; what it sees before the next one is not.
        lost += new if round_ == 3 else 0
        merged = simulation.synchronise(without=[missing] if round_ == 2 else [])
        base = merged[FILTER][DEFAULT_MODULE_ID]["base"]["obs"]
        assert int(base["count"][1]) == sampled - lost
        if round_ != 2:
            assert len({counts(state)["base"] for state in simulation.states}) == 1
    assert lost > 0


def test_merging_on_the_host_takes_numpy_states_and_large_counts():
    connector = MeanStdFilter(SPACE)
    rows = np.random.default_rng(0).normal(3.0, 2.0, (8, 2)).astype(np.float32)
    state, _ = connector.apply(connector.init(8), {DEFAULT_MODULE_ID: {"obs": jnp.asarray(rows)}}, ConnectorContext())
    delta = state[DEFAULT_MODULE_ID]["delta"]["obs"]
    large = delta._replace(count=jnp.array([3, 2**32 - 5], jnp.uint32))
    state = {DEFAULT_MODULE_ID: {"base": {"obs": large}, "delta": {"obs": delta}}}
    connector.state = state  # NumPy arrays from here on
    merged = connector.merge(connector.state, None)
    base = merged[DEFAULT_MODULE_ID]["base"]["obs"]
    np.testing.assert_array_equal(base.count, [4, 3])
    np.testing.assert_allclose(base.mean, rows.mean(0), rtol=1e-6)
    connector.set_state(connector.merge_states([connector.get_state()]))
    jax.tree.map(np.testing.assert_array_equal, connector.state, jax.tree.map(np.asarray, merged))
