"""V-trace against the paper's sums, by hand, against other estimators, and against RLlib's numbers."""

import functools
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops.returns import gae
from jaxrl_stack.ops.vtrace import vtrace

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "impala_golden.json").read_text())
CLIPS = {"clip_rho_threshold": 0.9, "clip_c_threshold": 0.8, "clip_pg_rho_threshold": 1.1}


def block(seed, num_steps=17, num_envs=5, masked=False):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    return {
        "log_rhos": rng.normal(scale=0.5, size=shape).astype(np.float32),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "terminateds": rng.random(shape) < 0.15,
        "truncateds": rng.random(shape) < 0.15,
        "truncation_values": rng.normal(size=shape).astype(np.float32),
        "bootstrap_value": rng.normal(size=num_envs).astype(np.float32),
        "mask": rng.random(shape) < 0.7 if masked else np.ones(shape, bool),
    }


def by_definition(data, gamma, clip_rho_threshold=1.0, clip_c_threshold=1.0, clip_pg_rho_threshold=1.0):
    """Equation 1 as a sum over the steps that follow in the episode, without recursion."""
    rhos = np.exp(data["log_rhos"])
    targets, advantages = np.zeros_like(rhos), np.zeros_like(rhos)
    for b in range(rhos.shape[1]):
        rows = [t for t in range(len(rhos)) if data["mask"][t, b]]
        ends = [bool(data["terminateds"][t, b] or data["truncateds"][t, b]) for t in rows]
        discounts = [0.0 if data["terminateds"][t, b] else gamma for t in rows]
        after = []  # V(x_{t+1})
        for i, t in enumerate(rows):
            following = data["values"][rows[i + 1], b] if i + 1 < len(rows) else data["bootstrap_value"][b]
            after.append(data["truncation_values"][t, b] if data["truncateds"][t, b] else following)
        errors = [
            data["rewards"][t, b] + discount * value - data["values"][t, b]
            for t, discount, value in zip(rows, discounts, after, strict=True)
        ]
        v = []
        for i, s in enumerate(rows):
            total, trace = data["values"][s, b], 1.0
            for k in range(i, len(rows)):
                rho = rhos[rows[k], b]
                total += trace * min(clip_rho_threshold, rho) * errors[k]
                trace *= gamma * min(clip_c_threshold, rho)
                if ends[k]:
                    break
            v.append(total)
        for i, s in enumerate(rows):
            following = after[i] if ends[i] or i + 1 == len(rows) else v[i + 1]
            error = data["rewards"][s, b] + discounts[i] * following - data["values"][s, b]
            targets[s, b], advantages[s, b] = v[i], min(clip_pg_rho_threshold, rhos[s, b]) * error
    return targets, advantages


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("gamma", "clips"), [(0.99, {}), (0.9, CLIPS), (1.0, {"clip_rho_threshold": np.inf})])
def test_vtrace_equals_its_definition(gamma, clips, masked):
    data = block(0, masked=masked)
    found = jax.jit(vtrace)(gamma=gamma, **clips, **data)
    targets, advantages = by_definition(data, gamma, **clips)
    np.testing.assert_allclose(found.targets, targets, atol=2e-5)
    np.testing.assert_allclose(found.advantages, advantages, atol=2e-5)


def test_without_a_mask_all_rows_count():
    data = block(1)
    with_mask = jax.jit(vtrace)(gamma=0.97, **data)
    del data["mask"]
    jax.tree.map(np.testing.assert_array_equal, jax.jit(vtrace)(gamma=0.97, **data), with_mask)


def test_vtrace_by_hand():
    column = lambda *x: np.array(x, np.float32)[:, None]  # noqa: E731
    flags = lambda *x: np.array(x, bool)[:, None]  # noqa: E731
    found = jax.jit(vtrace)(
        log_rhos=np.log(column(0.5, 2.0, 4.0, 0.25)),
        rewards=column(1, 2, 3, 4),
        values=column(1, 1, 1, 1),
        terminateds=flags(0, 1, 0, 0),
        truncateds=flags(0, 0, 1, 0),
        truncation_values=column(9, 9, 10, 9),
        bootstrap_value=np.array([20], np.float32),
        gamma=0.5,
        clip_rho_threshold=2.0,
        clip_c_threshold=1.0,
        clip_pg_rho_threshold=3.0,
    )
    # t=3: error 4 + 10 - 1 = 13; t=2 (truncated): 3 + 5 - 1 = 7; t=1 (terminated): 2 - 1 = 1; t=0: 1 + .5 - 1 = .5.
    # v_3 = 1 + .25 * 13; v_2 = 1 + 2 * 7; v_1 = 1 + 2 * 1 = 3; v_0 = 1 + .5 * .5 + .5 * .5 * (3 - 1).
    np.testing.assert_allclose(found.targets[:, 0], [1.75, 3.0, 15.0, 4.25], rtol=1e-6)
    # A_0 = .5 * (1 + .5 * 3 - 1).
    np.testing.assert_allclose(found.advantages[:, 0], [0.75, 2.0, 21.0, 3.25], rtol=1e-6)


@pytest.mark.parametrize("lambda_", [1.0, 0.6])
def test_on_policy_targets_are_lambda_returns(lambda_):
    """Where both policies are one, ``c_bar`` is the trace decay; of 1 these are n-step returns (section 4.1)."""
    data = block(2, masked=True)
    data["log_rhos"][:] = 0.0
    found = jax.jit(vtrace)(gamma=0.95, clip_c_threshold=lambda_, **data)
    del data["log_rhos"]
    _, returns = jax.jit(gae)(gamma=0.95, lambda_=lambda_, **data)
    np.testing.assert_allclose(found.targets, returns, atol=2e-5)


def test_a_step_that_terminates_and_is_truncated_does_not_bootstrap():
    data = {name: x[:1, :1] for name, x in block(3).items() if name != "bootstrap_value"}
    data["terminateds"][:] = data["truncateds"][:] = True
    found = jax.jit(vtrace)(gamma=0.9, bootstrap_value=np.array([1e6], np.float32), **data)
    rho = min(1.0, float(np.exp(data["log_rhos"][0, 0])))
    error = data["rewards"] - data["values"]
    np.testing.assert_allclose(found.targets, data["values"] + rho * error, rtol=1e-5)


def test_no_gradient_flows_through_it():
    data = block(4)

    def total(values, log_rhos):
        found = vtrace(gamma=0.9, **{**data, "values": values, "log_rhos": log_rhos})
        return jnp.sum(found.targets) + jnp.sum(found.advantages)

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(data["values"], data["log_rhos"])
    assert not any(np.any(gradient) for gradient in gradients)


def test_vtrace_agrees_with_rlax():
    with warnings.catch_warnings():
        # What rlax imports uses names that JAX is about to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        import rlax
    data = block(5)
    data["truncateds"][:] = False
    found = jax.jit(vtrace)(gamma=0.97, clip_pg_rho_threshold=0.9, **data)
    discounts = 0.97 * (1.0 - data["terminateds"].astype(np.float32))
    values = np.concatenate([data["values"], data["bootstrap_value"][None]])
    for b in range(values.shape[1]):
        own = functools.partial(rlax.vtrace_td_error_and_advantage, clip_pg_rho_threshold=0.9)
        arguments = (
            values[:-1, b],
            values[1:, b],
            data["rewards"][:, b],
            discounts[:, b],
            np.exp(data["log_rhos"][:, b]),
        )
        out = own(*arguments)
        np.testing.assert_allclose(found.targets[:, b] - data["values"][:, b], out.errors, atol=2e-5)
        np.testing.assert_allclose(found.advantages[:, b], out.pg_advantage, atol=2e-5)


@pytest.mark.parametrize("case", GOLDEN["vtrace"], ids=lambda case: str(case["settings"]))
def test_vtrace_is_rllibs(case):
    data = {name: np.asarray(own, np.float32) for name, own in case["inputs"].items()}
    discounts, no = data.pop("discounts"), np.zeros(data["rewards"].shape, bool)
    settings = {name: np.inf if bound is None else bound for name, bound in case["settings"].items()}
    found = jax.jit(vtrace)(
        **data,
        **settings,
        gamma=discounts.max(),
        terminateds=discounts == 0,
        truncateds=no,
        truncation_values=np.zeros_like(data["values"]),
    )
    np.testing.assert_allclose(found.targets, np.asarray(case["targets"]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.advantages, np.asarray(case["advantages"]), rtol=1e-5, atol=1e-5)
