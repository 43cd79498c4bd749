from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID

RNG = np.random.default_rng(3)
BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = gym.spaces.Dict(
    {
        "x": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "y": gym.spaces.Tuple([gym.spaces.Discrete(4), gym.spaces.Box(0, 255, (), np.uint8)]),
    }
)


def nested(**columns):
    return {DEFAULT_MODULE_ID: columns}


@functools.cache
def compiled(connector):
    return jax.jit(connector.apply)


def filtered(connector, state, obs, mask=None, **fields):
    columns = {"obs": obs} if mask is None else {"obs": obs, "loss_mask": mask}
    state, batch = compiled(connector)(state, nested(**columns), ConnectorContext(**fields))
    return state, batch[DEFAULT_MODULE_ID]["obs"]


def statistics(state, path="obs"):
    """(count, mean, variance) of base and delta, by hand in float64."""
    parts = [state[DEFAULT_MODULE_ID][name][path] for name in ("base", "delta")]
    counts = [int(np.asarray(part.count)[0]) * 2**32 + int(np.asarray(part.count)[1]) for part in parts]
    means = [np.asarray(part.mean, np.float64) for part in parts]
    squares = [np.asarray(part.variance, np.float64) + mean**2 for part, mean in zip(parts, means, strict=True)]
    total = max(sum(counts), 1)
    mean = sum(c * m for c, m in zip(counts, means, strict=True)) / total
    return sum(counts), mean, sum(c * s for c, s in zip(counts, squares, strict=True)) / total - mean**2


def assert_seen(state, rows, path="obs"):
    count, mean, variance = statistics(state, path)
    assert count == len(rows)
    np.testing.assert_allclose(mean, rows.astype(np.float64).mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, rows.astype(np.float64).var(0), rtol=1e-4, atol=1e-6)


def test_observations_are_counted_before_they_are_normalised():
    connector = MeanStdFilter(BOX, clip_by_value=None)
    state, seen = connector.init(5), np.zeros((0, 3), np.float32)
    for _ in range(4):
        obs = RNG.normal(4.0, 2.0, (5, 3)).astype(np.float32)
        seen = np.concatenate([seen, obs])
        state, out = filtered(connector, state, obs)
        expected = (obs - seen.mean(0)) / (seen.std(0, ddof=1) + 1e-8)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert_seen(state, seen)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, lambda x, mean, std: np.clip((x - mean) / std, -10, 10)),
        ({"de_mean_to_zero": False}, lambda x, mean, std: np.clip(x / std, -10, 10)),
        ({"de_std_to_one": False}, lambda x, mean, std: np.clip(x - mean, -10, 10)),
        ({"clip_by_value": 0.5}, lambda x, mean, std: np.clip((x - mean) / std, -0.5, 0.5)),
        ({"clip_by_value": None, "de_std_to_one": False}, lambda x, mean, std: x - mean),
    ],
)
def test_settings(settings, expected):
    connector = MeanStdFilter(BOX, **settings)
    obs = RNG.normal(100.0, 30.0, (40, 3)).astype(np.float32)
    _, out = filtered(connector, connector.init(40), obs)
    np.testing.assert_allclose(out, expected(obs, obs.mean(0), obs.std(0, ddof=1)), rtol=1e-3, atol=1e-4)
    assert connector.observation_space.contains(np.asarray(out[0]))


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_bound_that_is_not_positive_is_refused(clip):
    with pytest.raises(ValueError, match=r"clip_by_value=.*positive number, or None"):
        MeanStdFilter(BOX, clip_by_value=clip)


def test_a_filter_that_only_clips():
    connector = MeanStdFilter(BOX, de_mean_to_zero=False, de_std_to_one=False, update_stats=False, clip_by_value=2.0)
    rows = np.array([[-5.0, 0.5, 3.0], [1.0, -2.5, 0.0]], np.float32)
    _, out = connector.apply(connector.init(2), nested(obs=rows), ConnectorContext())
    np.testing.assert_array_equal(out[DEFAULT_MODULE_ID]["obs"], np.clip(rows, -2.0, 2.0))


def test_frozen_statistics():
    obs = RNG.normal(2.0, 1.0, (6, 3)).astype(np.float32)
    connector = MeanStdFilter(BOX)
    state, _ = filtered(connector, connector.init(6), obs)
    frozen, by_context = filtered(connector, state, obs + 5.0, update_statistics=False)
    jax.tree.map(np.testing.assert_array_equal, frozen, state)
    frozen, by_setting = filtered(MeanStdFilter(BOX, update_stats=False), state, obs + 5.0)
    jax.tree.map(np.testing.assert_array_equal, frozen, state)
    np.testing.assert_array_equal(by_context, by_setting)
    assert float(np.min(by_context)) > 1.0  # seen through the old statistics, not through those of this batch


def test_masked_rows_are_normalised_but_not_counted():
    obs = RNG.normal(2.0, 1.0, (6, 3)).astype(np.float32)
    mask = np.array([True, False, True, True, False, True])
    connector = MeanStdFilter(BOX, clip_by_value=None)
    state, out = filtered(connector, connector.init(6), obs, mask)
    assert_seen(state, obs[mask])
    kept = obs[mask]
    np.testing.assert_allclose(out, (obs - kept.mean(0)) / kept.std(0, ddof=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mask", [None, np.array([True, True, False, True])])
def test_rows_that_are_not_finite_are_not_counted(value, mask):
    connector = MeanStdFilter(BOX)
    obs = RNG.normal(size=(4, 3)).astype(np.float32)
    state, _ = filtered(connector, connector.init(4), obs)
    broken = obs.copy()
    broken[1, 2] = value
    state, out = filtered(connector, state, broken, mask)
    counted = np.array([True, False, True, True]) & (True if mask is None else mask)
    assert_seen(state, np.concatenate([obs, obs[counted]]))
    assert np.isfinite(np.delete(out, 1, axis=0)).all()


def test_nested_spaces_keep_their_discrete_parts():
    connector = MeanStdFilter(NESTED)
    obs = {
        "x": RNG.normal(size=(5, 2)).astype(np.float32),
        "y": (np.arange(5) % 4, RNG.integers(0, 255, 5).astype(np.uint8)),
    }
    state, out = filtered(connector, connector.init(5), obs)
    np.testing.assert_array_equal(out["y"][0], obs["y"][0])
    assert out["y"][0].dtype == jnp.int32 and out["y"][1].dtype == jnp.float32
    pixels = obs["y"][1].astype(np.float64)
    np.testing.assert_allclose(out["y"][1], (pixels - pixels.mean()) / pixels.std(ddof=1), rtol=1e-4)
    assert set(state[DEFAULT_MODULE_ID]["base"]) == {"obs/x", "obs/y/1"}
    assert connector.observation_space.contains(
        jax.tree.map(lambda leaf: np.asarray(leaf[0]), out) | {"y": (int(out["y"][0][0]), np.asarray(out["y"][1][0]))}
    )


def test_constant_observations_come_out_as_zero():
    connector = MeanStdFilter(BOX)
    state = connector.init(7)
    for mask in (None, np.array([False, True, True, False, True, True, True])):
        state, out = filtered(connector, state, np.full((7, 3), 0.1, np.float32), mask)
        np.testing.assert_array_equal(out, np.zeros((7, 3)))
        state = connector.merge(state, None)


def test_merging_on_one_device_moves_the_delta_into_the_base():
    connector = MeanStdFilter(BOX)
    obs = RNG.normal(size=(8, 3)).astype(np.float32)
    state, _ = filtered(connector, connector.init(8), obs)
    merged = connector.merge(state, None)
    assert_seen(merged, obs)
    assert not np.any(merged[DEFAULT_MODULE_ID]["delta"]["obs"].count)
    jax.tree.map(np.testing.assert_array_equal, connector.merge(merged, None), merged)
    assert connector.rebatch(merged, 3) is merged


def test_devices_agree_bit_for_bit_and_nothing_counts_twice():
    num_devices, per_device, steps = jax.local_device_count(), 3, 4
    assert num_devices > 1
    connector = MeanStdFilter(BOX)
    rows = RNG.normal(5.0, 3.0, (3, num_devices, steps, per_device, 3)).astype(np.float32)
    mask = RNG.random((3, num_devices, steps, per_device)) < 0.7
    mask[0, 1] = False

    def iteration(state, rows, mask):
        def step(state, row):
            obs, valid = row
            batch = nested(obs=obs, loss_mask=valid)
            return connector.apply(state, batch, ConnectorContext(axis_name="devices"))

        state, _ = jax.lax.scan(step, state, (rows, mask))
        return connector.merge(state, "devices")

    program = jax.pmap(iteration, axis_name="devices")
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_devices), connector.init(per_device))
    for i in range(3):
        state = program(state, rows[i], mask[i])
        on_host = jax.tree.map(np.asarray, state)
        for leaf in jax.tree.leaves(on_host):
            np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        first = jax.tree.map(lambda leaf: leaf[0], on_host)
        assert_seen(first, rows[: i + 1][mask[: i + 1]])
        assert not np.any(first[DEFAULT_MODULE_ID]["delta"]["obs"].count)


def test_runner_states_merge_over_many_synchronisations_without_drift():
    runners = [EnvToModulePipeline(BOX, connectors=[MeanStdFilter()]) for _ in range(3)]
    seen = []
    for number in range(6):
        for every, runner in enumerate(runners, start=1):
            if number % every == 0:  # the runners see different numbers of rows
                seen.append(RNG.normal(10.0, 2.0, (3, 3)).astype(np.float32))
                runner(batch={"obs": seen[-1]})
        merged = runners[0].merge_states([runner.get_state() for runner in runners])
        for runner in runners:
            runner.set_state(merged)
            assert_seen(runner.state["MeanStdFilter"], np.concatenate(seen))


def test_without_sending_the_result_back_deltas_still_count_once():
    runners = [MeanStdFilter(BOX) for _ in range(2)]
    seen = []
    for _ in range(3):
        for runner in runners:
            seen.append(RNG.normal(size=(4, 3)).astype(np.float32))
            runner(batch={"obs": seen[-1]})
        local = MeanStdFilter(BOX)
        local.set_state(local.merge_states([runner.get_state() for runner in runners]))
        assert_seen(local.state, np.concatenate(seen))


def test_a_runner_that_missed_a_synchronisation_is_not_counted_twice():
    runners = [MeanStdFilter(BOX) for _ in range(2)]
    rows = RNG.normal(size=(4, 3)).astype(np.float32)
    for runner in runners:
        runner(batch={"obs": rows})
    merged = runners[0].merge_states([runner.get_state() for runner in runners])
    runners[0].set_state(merged)  # runners[1] missed it: its delta is in the base already
    again = runners[0].merge_states([runner.get_state() for runner in runners])
    jax.tree.map(np.testing.assert_array_equal, again, merged)


def test_several_modules_have_statistics_of_their_own():
    spaces = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Box(-1, 1, (1,), np.float32)})
    connector = MeanStdFilter(spaces, multi_agent=True)
    batch = {"a": {"obs": np.ones((2, 3), np.float32)}, "b": {"obs": np.zeros((5, 1), np.float32)}}
    state, _ = connector.apply(connector.init(2), batch, ConnectorContext())
    assert state["a"]["delta"]["obs"].count[1] == 2 and state["b"]["delta"]["obs"].count[1] == 5
    with pytest.raises(ValueError, match="multi_agent=True"):
        MeanStdFilter(BOX).apply(MeanStdFilter(BOX).init(2), batch, ConnectorContext())
