"""Soft actor-critic by hand, against NumPy loops, and against numbers that RLlib itself computed."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.core.distribution import SquashedGaussian
from jaxrl_stack.ops import q_learning as ql
from jaxrl_stack.ops import soft_actor_critic as sac

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "off_policy_golden.json").read_text())
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
LOG_ALPHA = jnp.log(jnp.array([0.5]))


def test_box_by_hand():
    q, twin, logp = jnp.array([3.0, 1.0]), jnp.array([2.0, 4.0]), jnp.array([-1.0, 2.0])
    values = sac.soft_values(q=q, q_twin=twin, logp=logp, log_alpha=LOG_ALPHA)
    np.testing.assert_allclose(values, [2.0 + 0.5, 1.0 - 1.0])
    np.testing.assert_allclose(sac.soft_values(q=q, logp=logp, log_alpha=LOG_ALPHA), [3.5, 0.0])
    np.testing.assert_allclose(
        sac.actor_rows(q=q, q_twin=twin, logp=logp, log_alpha=LOG_ALPHA), [-0.5 - 2.0, 1.0 - 1.0]
    )
    targets, weights = jnp.array([2.5, 4.0]), jnp.array([2.0, 0.5])
    rows = sac.critic_rows(q=q, q_twin=twin, targets=targets, weights=weights)
    np.testing.assert_allclose(rows.loss, [2 * 0.125, 0.5 * 2.5])
    np.testing.assert_allclose(rows.twin_loss, [2 * 0.125, 0.0])
    np.testing.assert_allclose(rows.td_error, [0.5, 1.5])
    one = sac.critic_rows(q=q, targets=targets, td_error_loss_fn="mse")
    assert one.twin_loss is None
    np.testing.assert_allclose(one.loss, [0.25, 9.0])
    np.testing.assert_allclose(one.td_error, [0.5, 3.0])
    rows = sac.temperature_rows(log_alpha=LOG_ALPHA, logp=logp, target_entropy=-2.0)
    np.testing.assert_allclose(rows, [-math.log(0.5) * -3.0, 0.0], atol=1e-6)


def test_discrete_by_hand():
    log_probs = jnp.log(jnp.array([[0.25, 0.75]]))
    q, twin = jnp.array([[3.0, 1.0]]), jnp.array([[2.0, 4.0]])
    mean_logp = 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    arguments = {"q": q, "q_twin": twin, "log_probs": log_probs, "log_alpha": LOG_ALPHA}
    np.testing.assert_allclose(sac.soft_values_discrete(**arguments), [1.25 - 0.5 * mean_logp], rtol=1e-6)
    np.testing.assert_allclose(sac.actor_rows_discrete(**arguments), [0.5 * mean_logp - 1.25], rtol=1e-6)
    rows = sac.temperature_rows_discrete(log_alpha=LOG_ALPHA, log_probs=log_probs, target_entropy=0.3)
    np.testing.assert_allclose(rows, [-math.log(0.5) * (mean_logp + 0.3)], rtol=1e-6)


def test_target_entropies():
    assert sac.box_target_entropy((3,)) == -3.0 and sac.box_target_entropy((2, 3)) == -6.0
    assert sac.discrete_target_entropy(4) == -1.0
    assert sac.discrete_target_entropy(4, ratio=0.98) == pytest.approx(0.98 * math.log(4))


def test_the_temperature_falls_while_the_entropy_is_above_its_target_and_rises_below():
    def slope(logp):
        rows = lambda log_alpha: sac.temperature_rows(log_alpha=log_alpha, logp=logp, target_entropy=-2.0)  # noqa: E731
        return jax.grad(lambda log_alpha: rows(log_alpha).mean())(LOG_ALPHA)[0]

    assert slope(jnp.array([0.0, 1.0])) > 0  # entropy -0.5: descending lowers alpha
    assert slope(jnp.array([3.0, 4.0])) < 0  # entropy -3.5


def test_gradients_reach_only_what_each_loss_trains():
    rng = np.random.default_rng(2)
    q, twin, logp, targets = jnp.asarray(rng.normal(size=(4, 8)), jnp.float32)
    log_probs = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(8, 3)), jnp.float32))
    q_values = jnp.asarray(rng.normal(size=(2, 8, 3)), jnp.float32)

    box = {"q": q, "q_twin": twin, "logp": logp, "log_alpha": LOG_ALPHA}
    discrete = {"q": q_values[0], "q_twin": q_values[1], "log_probs": log_probs, "log_alpha": LOG_ALPHA}
    target = {"log_alpha": LOG_ALPHA, "target_entropy": jnp.float32(-1.0)}
    critic = {"q": q, "q_twin": twin, "targets": targets}
    cases = [
        (sac.soft_values, box, set()),
        (sac.soft_values_discrete, discrete, set()),
        (sac.actor_rows, box, {"q", "q_twin", "logp"}),
        (sac.actor_rows_discrete, discrete, {"log_probs"}),
        (sac.temperature_rows, {"logp": logp, **target}, {"log_alpha"}),
        (sac.temperature_rows_discrete, {"log_probs": log_probs, **target}, {"log_alpha"}),
        (lambda **x: sac.critic_rows(**x).loss, critic, {"q"}),
        (lambda **x: sac.critic_rows(**x).twin_loss, critic, {"q_twin"}),
        (lambda **x: sac.critic_rows(**x).td_error, critic, set()),
    ]
    functions, arguments, expected = zip(*cases, strict=True)

    @jax.jit
    def gradients(arguments):
        sums = [lambda given, f=function: jnp.sum(f(**given)) for function in functions]
        return [jax.grad(total)(given) for total, given in zip(sums, arguments, strict=True)]

    found = [{name for name, gradient in own.items() if np.any(gradient)} for own in gradients(arguments)]
    assert found == list(expected)


def test_discrete_equals_a_loop():
    rng = np.random.default_rng(1)
    logits, q, twin = rng.normal(size=(3, 20, 4)).astype(np.float32) * 2
    arguments = {"q": q, "q_twin": twin, "log_probs": jax.nn.log_softmax(logits), "log_alpha": LOG_ALPHA}
    values, actor = jax.jit(lambda x: (sac.soft_values_discrete(**x), sac.actor_rows_discrete(**x)))(arguments)
    for n in range(20):
        weights = [math.exp(x) for x in logits[n]]
        probs = [w / sum(weights) for w in weights]
        value = sum(p * (min(a, b) - 0.5 * math.log(p)) for p, a, b in zip(probs, q[n], twin[n], strict=True))
        np.testing.assert_allclose(values[n], value, **CLOSE)
        np.testing.assert_allclose(actor[n], -value, **CLOSE)


@pytest.mark.parametrize("masked", [-np.inf, float(np.finfo(np.float32).min), -1e30, -200.0])
def test_an_action_of_probability_zero_adds_nothing(masked):
    logits = np.array([[1.0, masked, 0.5]], np.float32)
    q = np.array([[2.0, 1e9, 1.0]], np.float32)
    log_alpha = jnp.log(jnp.array([3.0]))

    def losses(logits, q):
        log_probs = jax.nn.log_softmax(logits)
        given = {"q": q, "log_probs": log_probs, "log_alpha": log_alpha}
        temperature = sac.temperature_rows_discrete(log_alpha=log_alpha, log_probs=log_probs, target_entropy=0.5)
        return sac.soft_values_discrete(**given), sac.actor_rows_discrete(**given), temperature

    both = jax.jit(lambda x, q: (losses(x, q), jax.jacobian(lambda y: losses(y, q)[1])(x)))
    ours, gradient = both(logits, q)
    expected, expected_gradient = both(logits[:, ::2], q[:, ::2])
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[0, 0, ::2], expected_gradient[0, 0], rtol=1e-5)
    assert gradient[0, 0, 1] == 0.0


def test_what_is_not_a_number_shows():
    log_probs = jnp.array([[-0.5, jnp.nan]])
    assert np.isnan(sac.soft_values_discrete(q=jnp.zeros((1, 2)), log_probs=log_probs, log_alpha=LOG_ALPHA)).all()


# ------------------------------------------------------------------------------------------------ RLlib
def golden_rows(case):
    golden = GOLDEN["sac"][case]
    dtypes = {"terminateds": bool, "truncateds": bool}
    if golden["settings"]["action_space"] == "discrete":
        dtypes["actions"] = np.int32
    batch = {k: np.asarray(v, dtypes.get(k, np.float32)) for k, v in golden["batch"].items()}
    forward = {k: np.asarray(v, np.float32) for k, v in golden["forward"].items()}
    return golden, batch, forward, np.log(np.float32([golden["settings"]["initial_alpha"]]))


def assert_golden(golden, losses, gradients, td_error):
    assert set(losses) == set(golden["losses"])
    for name, loss in losses.items():
        np.testing.assert_allclose(loss, golden["losses"][name], **CLOSE, err_msg=name)
    for name, (of, gradient) in gradients.items():
        np.testing.assert_allclose(gradient, golden["gradients"][name][of], **CLOSE, err_msg=f"{name} by {of}")
    np.testing.assert_allclose(td_error, golden["td_error"], **CLOSE)


@pytest.mark.parametrize("case", ["box_twin", "box_one_critic"])
def test_box_losses_and_gradients_equal_rllibs(case):
    golden, batch, forward, log_alpha = golden_rows(case)
    twin = golden["settings"]["twin_q"]
    assert sac.box_target_entropy((2,)) == golden["target_entropy"]

    def losses(x):
        next_values = sac.soft_values(q=x["q_target_next"], logp=x["logp_next_resampled"], log_alpha=x["log_alpha"])
        targets = ql.n_step_targets(
            rewards=batch["rewards"],
            next_values=next_values,
            terminateds=batch["terminateds"],
            n_step=batch["n_step"],
            gamma=golden["settings"]["gamma"],
        )
        rows = sac.critic_rows(
            q=x["qf_preds"], q_twin=x.get("qf_twin_preds"), targets=targets, weights=batch["weights"]
        )
        actor = sac.actor_rows(q=x["q_curr"], logp=x["logp_resampled"], log_alpha=x["log_alpha"])
        temperature = sac.temperature_rows(
            log_alpha=x["log_alpha"], logp=x["logp_resampled"], target_entropy=golden["target_entropy"]
        )
        out = {"qf_loss": rows.loss, "policy_loss": actor, "alpha_loss": temperature}
        if twin:
            out["qf_twin_loss"] = rows.twin_loss
        return {name: loss.mean() for name, loss in out.items()}, rows.td_error

    inputs = {**forward, "log_alpha": log_alpha}
    by, (values, td_error) = jax.jit(lambda x: (jax.jacobian(lambda x: losses(x)[0])(x), losses(x)))(inputs)
    pairs = [("qf_loss", "qf_preds"), ("policy_loss", "q_curr"), ("policy_loss", "logp_resampled")]
    pairs += [("alpha_loss", "log_alpha")] + [("qf_twin_loss", "qf_twin_preds")] * twin
    for loss, of in pairs:
        assert_golden(golden, values, {loss: (of, by[loss][of])}, td_error)
        # And nothing else: each loss trains what its optimizer owns.
        trained = {name for pair, name in pairs if pair == loss}
        assert {name for name, gradient in by[loss].items() if np.any(gradient)} == trained


def test_discrete_losses_and_gradients_equal_rllibs():
    golden, batch, forward, log_alpha = golden_rows("discrete_twin")
    assert sac.discrete_target_entropy(3) == golden["target_entropy"]

    def losses(x):
        next_values = sac.soft_values_discrete(
            q=x["q_target_next"], log_probs=x["action_log_probs_next"], log_alpha=x["log_alpha"]
        )
        targets = ql.n_step_targets(
            rewards=batch["rewards"],
            next_values=next_values,
            terminateds=batch["terminateds"],
            n_step=batch["n_step"],
            gamma=golden["settings"]["gamma"],
        )
        rows = sac.critic_rows(
            q=ql.select(x["qf_preds"], batch["actions"]),
            q_twin=ql.select(x["qf_twin_preds"], batch["actions"]),
            targets=targets,
            weights=batch["weights"],
        )
        actor = sac.actor_rows_discrete(
            q=x["qf_preds"], q_twin=x["qf_twin_preds"], log_probs=x["action_log_probs"], log_alpha=x["log_alpha"]
        )
        temperature = sac.temperature_rows_discrete(
            log_alpha=x["log_alpha"], log_probs=x["action_log_probs"], target_entropy=golden["target_entropy"]
        )
        out = {"qf_loss": rows.loss, "qf_twin_loss": rows.twin_loss, "policy_loss": actor, "alpha_loss": temperature}
        return {name: loss.mean() for name, loss in out.items()}, rows.td_error

    inputs = {**forward, "log_alpha": log_alpha}
    by, (values, td_error) = jax.jit(lambda x: (jax.jacobian(lambda x: losses(x)[0])(x), losses(x)))(inputs)
    gradients = {
        "qf_loss": ("qf_preds", by["qf_loss"]["qf_preds"]),
        "qf_twin_loss": ("qf_twin_preds", by["qf_twin_loss"]["qf_twin_preds"]),
        "alpha_loss": ("log_alpha", by["alpha_loss"]["log_alpha"]),
    }
    assert_golden(golden, values, gradients, td_error)
    # RLlib differentiates by the probabilities, of which it takes the logarithms: dp = p * dlog(p).
    by_probs = np.asarray(golden["gradients"]["policy_loss"]["action_probs"])
    by_log_probs = by["policy_loss"]["action_log_probs"]
    np.testing.assert_allclose(by_log_probs, forward["action_probs"] * by_probs, **CLOSE)
    # Down to the bias of the last layer, through the softmax: dlogit = dlog(p) - p * sum(dlog(p)).
    by_logits = by_log_probs - forward["action_probs"] * np.sum(by_log_probs, -1, keepdims=True)
    bias = golden["parameter_gradients"]["pi.net.mlp.0.bias"]
    np.testing.assert_allclose(by_logits.sum(0), bias, **CLOSE)


@pytest.mark.parametrize("case", ["box_twin", "box_one_critic"])
def test_log_probabilities_of_drawn_actions_equal_rllibs(case):
    _, _, forward, _ = golden_rows(case)
    for inputs, raw, logp in [
        ("action_dist_inputs", "raw_actions", "logp_resampled"),
        ("action_dist_inputs_next", "raw_actions_next", "logp_next_resampled"),
    ]:
        actions = np.tanh(forward[raw].astype(np.float64)).astype(np.float32)
        ours = jax.jit(lambda x, a: SquashedGaussian.from_logits(x).logp(a))(forward[inputs], actions)
        np.testing.assert_allclose(ours, forward[logp], rtol=1e-4, atol=1e-4)
