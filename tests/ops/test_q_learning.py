"""Q-learning by hand, against NumPy loops, against rlax, and against numbers that RLlib itself computed."""

import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import q_learning as ql
from jaxrl_stack.utils import counters

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "off_policy_golden.json").read_text())
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def rlax():
    with warnings.catch_warnings():
        # What rlax imports uses names that JAX is about to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        import rlax
    return rlax


def rows(seed=0, n=40, num_actions=5):
    rng = np.random.default_rng(seed)
    return {
        "q": rng.normal(size=(n, num_actions)).astype(np.float32),
        "online_next": rng.normal(size=(n, num_actions)).astype(np.float32),
        "target_next": rng.normal(size=(n, num_actions)).astype(np.float32) * 2,
        "actions": rng.integers(num_actions, size=n).astype(np.int32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "terminateds": rng.random(n) < 0.3,
        "n_step": rng.integers(1, 6, n).astype(np.int32),
        "weights": rng.uniform(0.1, 1.0, n).astype(np.float32),
        "mask": rng.random((n, num_actions)) < 0.5,
    }


# ------------------------------------------------------------------------------------------------ by hand
def test_targets_by_hand():
    targets = ql.n_step_targets(
        rewards=jnp.array([1.0, 1.0, 1.0, 2.0]),
        next_values=jnp.array([4.0, 4.0, jnp.nan, 8.0]),
        terminateds=jnp.array([False, False, True, False]),
        n_step=jnp.array([1, 2, 3, 3]),
        gamma=0.5,
    )
    # 1 + .5*4; 1 + .25*4; terminated: the next value is not even read; 2 + .125*8
    np.testing.assert_allclose(targets, [3.0, 2.0, 1.0, 3.0])


def test_losses_by_hand():
    prediction, target = np.float32([0.0, 0.0, 3.0, -1.0]), np.float32([0.5, 3.0, 0.0, 0.0])
    td_loss = jax.jit(ql.td_loss, static_argnums=2)
    np.testing.assert_allclose(td_loss(prediction, target, "huber"), [0.125, 2.5, 2.5, 0.5])
    np.testing.assert_allclose(td_loss(prediction, target, "mse"), [0.25, 9.0, 9.0, 1.0])
    slope = jax.jit(jax.vmap(jax.grad(ql.td_loss)))(prediction, target)
    np.testing.assert_allclose(slope, [-0.5, -1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match="td_error_loss_fn='l1' is unknown: give 'huber' or 'mse'"):
        ql.td_loss(prediction, target, "l1")


def test_rows_by_hand():
    out = jax.jit(ql.q_rows)(
        q_values=np.float32([[1.0, 2.0], [3.0, 4.0]]),
        actions=np.int32([1, 0]),
        targets=np.float32([2.5, 0.0]),
        weights=np.float32([0.5, 2.0]),
    )
    np.testing.assert_allclose(out.q_selected, [2.0, 3.0])
    np.testing.assert_allclose(out.td_error, [0.5, 3.0])
    np.testing.assert_allclose(out.loss, [0.5 * 0.125, 2 * 2.5])


def test_double_q_selects_with_one_network_and_evaluates_with_the_other():
    online, target = np.float32([[1.0, 9.0, 2.0]]), np.float32([[5.0, -1.0, 3.0]])
    next_actions = jax.jit(ql.next_actions)
    assert next_actions(target, online) == 1 and next_actions(target) == 0
    assert jax.jit(ql.select)(target, next_actions(target, online)) == -1.0
    mask = np.array([[False, False, True]])
    assert next_actions(target, online, mask) == 2 and next_actions(target, None, mask) == 2


def test_dueling_by_hand():
    values, advantages = np.float32([[10.0]]), np.float32([[1.0, 3.0, 8.0]])
    dueling = jax.jit(ql.dueling)
    np.testing.assert_allclose(dueling(values, advantages), [[7.0, 9.0, 14.0]])
    # Over the valid actions only: their mean is 2.
    mask = np.array([[True, True, False]])
    np.testing.assert_allclose(dueling(values, advantages, mask), [[9.0, 11.0, 16.0]])
    np.testing.assert_allclose(dueling(values, advantages, mask & ~mask), [[11.0, 13.0, 18.0]])


def test_dueling_over_atoms_by_hand():
    values = np.float32([[10.0, 20.0]])
    advantages = np.float32([[[1.0, 5.0], [3.0, 5.0], [8.0, 2.0]]])
    dueling_atoms = jax.jit(ql.dueling_atoms)
    out = dueling_atoms(values, advantages)
    np.testing.assert_allclose(out, [[[7.0, 21.0], [9.0, 21.0], [14.0, 18.0]]])
    # The value stream moves the expected value of every action; with one output for all atoms it could not.
    atoms = ql.support(0.0, 1.0, 2)
    expected_q = jax.jit(ql.expected_q)
    assert (np.asarray(expected_q(out, atoms)) > expected_q(advantages, atoms)).all()
    masked = dueling_atoms(values, advantages, np.array([[True, True, False]]))
    np.testing.assert_allclose(masked, [[[9.0, 20.0], [11.0, 20.0], [16.0, 17.0]]])
    with pytest.raises(AssertionError):
        ql.dueling_atoms(values[:, :1], advantages)


def test_projection_by_hand():
    atoms = ql.support(-1.0, 1.0, 5)
    np.testing.assert_allclose(atoms, [-1.0, -0.5, 0.0, 0.5, 1.0])
    returns = np.float32([[-7.0, 0.0, 0.1, 0.875, 3.0]])
    probs = np.float32([[0.1, 0.2, 0.3, 0.4, 0.0]])
    # -7 goes to the lowest atom; 0 is one; 0.1 is a fifth of the way to 0.5; 0.875 three quarters to 1.
    expected = [[0.1, 0.0, 0.2 + 0.24, 0.06 + 0.1, 0.3]]
    np.testing.assert_allclose(jax.jit(ql.project_onto_support)(returns, probs, atoms), expected, atol=1e-6)


def test_support_refuses_what_is_none():
    with pytest.raises(ValueError, match="num_atoms=1"):
        ql.support(-1.0, 1.0, 1)
    with pytest.raises(ValueError, match="v_min=2.0 and v_max=2.0"):
        ql.support(2.0, 2.0, 51)


# --------------------------------------------------------------------------------- second formulations
@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_q_learning_equals_a_loop(double_q, masked):
    data = rows()
    gamma = 0.9

    @jax.jit
    def ours(data):
        mask = data["mask"] if masked else None
        chosen = ql.next_actions(data["target_next"], data["online_next"] if double_q else None, mask)
        targets = ql.n_step_targets(
            rewards=data["rewards"],
            next_values=ql.select(data["target_next"], chosen),
            terminateds=data["terminateds"],
            n_step=data["n_step"],
            gamma=gamma,
        )
        return ql.q_rows(q_values=data["q"], actions=data["actions"], targets=targets, weights=data["weights"])

    out = ours(data)
    for i in range(len(data["q"])):
        by = data["online_next"][i] if double_q else data["target_next"][i]
        valid = [a for a in range(5) if data["mask"][i, a] or not masked] or [0]
        best = max(valid, key=lambda a: by[a])
        target = data["rewards"][i]
        if not data["terminateds"][i]:
            target += gamma ** data["n_step"][i] * data["target_next"][i, best]
        d = data["q"][i, data["actions"][i]] - target
        loss = d * d / 2 if abs(d) <= 1 else abs(d) - 0.5
        np.testing.assert_allclose(out.loss[i], data["weights"][i] * loss, **CLOSE)
        np.testing.assert_allclose(out.td_error[i], abs(d), **CLOSE)


def test_only_the_online_q_value_of_the_taken_action_gets_a_gradient():
    data = rows()

    def loss(q, online_next, target_next):
        chosen = ql.next_actions(target_next, online_next)
        targets = ql.n_step_targets(
            rewards=data["rewards"],
            next_values=ql.select(target_next, chosen),
            terminateds=data["terminateds"],
            n_step=1,
            gamma=0.9,
        )
        out = ql.q_rows(q_values=q, actions=data["actions"], targets=targets)
        return jnp.sum(out.loss + out.td_error + out.q_selected)

    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(data["q"], data["online_next"], data["target_next"])
    by_q, by_online, by_target = gradients
    taken = data["actions"][:, None] == np.arange(5)
    assert (np.asarray(by_q)[taken] != 0).all() and not np.asarray(by_q)[~taken].any()
    assert not by_online.any() and not by_target.any()


def test_no_gradient_flows_into_targets():
    data = rows()
    logits = jnp.zeros((40, 5, 3))
    atoms, probs = jnp.array([0.0, 1.0, 2.0]), jnp.full((40, 3), 1 / 3)

    def loss(targets, target_probs):
        expected = ql.q_rows(q_values=data["q"], actions=data["actions"], targets=targets)
        distributional = ql.categorical_q_rows(
            logits=logits, actions=data["actions"], target_probs=target_probs, atoms=atoms
        )
        return jnp.sum(expected.loss + expected.td_error + distributional.loss + distributional.td_error)

    assert not any(np.any(g) for g in jax.jit(jax.grad(loss, (0, 1)))(data["rewards"], probs))


def project_in_a_loop(returns, probs, atoms):
    """Algorithm 1 of Bellemare et al.: each atom's mass is split between the floor and the ceiling of its place."""
    out = np.zeros((len(returns), len(atoms)))
    dz = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for n, (row, mass) in enumerate(zip(returns, probs, strict=True)):
        for value, p in zip(row, mass, strict=True):
            b = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / dz
            low, high = int(np.floor(b)), int(np.ceil(b))
            out[n, low] += p * (1.0 if low == high else high - b)
            out[n, high] += p * (b - low)
    return out


@pytest.mark.parametrize(("v_min", "v_max", "num_atoms"), [(-10.0, 10.0, 51), (-3.0, 5.0, 9), (0.0, 1.0, 2)])
def test_projection_equals_its_algorithm_and_rlax(rlax, v_min, v_max, num_atoms):
    rng = np.random.default_rng(1)
    atoms = np.asarray(ql.support(v_min, v_max, num_atoms), np.float32)
    returns = rng.uniform(v_min - 3, v_max + 3, (30, 1)) + 0.9 * atoms
    returns[0] = atoms  # exactly on the atoms
    returns[1] = 0.25 * v_min + 0.75 * v_max  # terminated: all mass at one place
    returns = returns.astype(np.float32)
    probs = rng.dirichlet(np.ones(num_atoms), 30).astype(np.float32)
    oracle = jax.vmap(rlax.categorical_l2_project, (0, 0, None))
    project = jax.jit(lambda *args: (ql.project_onto_support(*args), oracle(*args)))
    ours, theirs = project(returns, probs, atoms)
    expected = project_in_a_loop(returns.astype(np.float64), probs, atoms.astype(np.float64))
    np.testing.assert_allclose(ours, expected, atol=5e-6)
    np.testing.assert_allclose(ours, theirs, atol=5e-6)
    np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(ours[0], probs[0], atol=5e-6)


def test_expected_and_categorical_losses_equal_rlax(rlax):
    data, num_atoms, gamma = rows(2), 11, 0.9
    rng = np.random.default_rng(3)
    logits, target_logits = rng.normal(size=(2, 40, 5, num_atoms)).astype(np.float32)
    atoms = ql.support(-2.0, 2.0, num_atoms)
    discounts = np.where(data["terminateds"], 0.0, gamma ** data["n_step"]).astype(np.float32)

    transition = {k: data[k] for k in ("rewards", "terminateds", "n_step")} | {"gamma": gamma}

    @jax.jit
    def ours():
        chosen = ql.next_actions(data["target_next"], data["online_next"])
        targets = ql.n_step_targets(next_values=ql.select(data["target_next"], chosen), **transition)
        next_probs = jax.nn.softmax(ql.select_atoms(target_logits, chosen))
        target_probs = ql.categorical_targets(next_probs=next_probs, atoms=atoms, **transition)
        out = ql.categorical_q_rows(
            logits=logits, actions=data["actions"], target_probs=target_probs, atoms=atoms, weights=data["weights"]
        )
        errors = targets - ql.select(data["q"], data["actions"])
        return errors, ql.td_loss(errors, jnp.zeros(40)), out

    @jax.jit
    def theirs():
        known = (data["actions"], data["rewards"], discounts)
        errors = jax.vmap(rlax.double_q_learning)(data["q"], *known, data["target_next"], data["online_next"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            losses = jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0))(
                atoms, logits, *known, atoms, target_logits, data["online_next"]
            )
        return errors, rlax.huber_loss(errors), losses

    (errors, huber, out), (their_errors, their_huber, oracle) = ours(), theirs()
    np.testing.assert_allclose(errors, their_errors, **CLOSE)
    np.testing.assert_allclose(huber, their_huber, **CLOSE)
    np.testing.assert_allclose(out.td_error, oracle, **CLOSE)
    np.testing.assert_allclose(out.loss, data["weights"] * oracle, **CLOSE)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [sum(p[n, data["actions"][n]] * np.asarray(atoms)) for n in range(40)]
    np.testing.assert_allclose(out.q_selected, expected, **CLOSE)


# --------------------------------------------------------------------------------------- epsilon-greedy
def test_epsilon_greedy_frequencies():
    q_values = jnp.broadcast_to(jnp.array([0.0, 3.0, 1.0, 2.0]), (20_000, 4))
    mask = jnp.array([True, False, True, True])
    drawn = jax.jit(ql.epsilon_greedy)
    free = np.bincount(drawn(KEY, q_values, 0.4), minlength=4) / 20_000
    np.testing.assert_allclose(free, [0.1, 0.7, 0.1, 0.1], atol=0.02)
    masked = np.bincount(drawn(KEY, q_values, 0.3, mask), minlength=4) / 20_000
    np.testing.assert_allclose(masked, [0.1, 0.0, 0.1, 0.8], atol=0.02)
    # A rate for each row.
    rates = jnp.where(jnp.arange(20_000) < 10_000, 0.0, 1.0)
    actions = np.asarray(drawn(KEY, q_values, rates))
    assert (actions[:10_000] == 1).all()
    np.testing.assert_allclose(np.bincount(actions[10_000:]) / 10_000, 0.25, atol=0.03)
    assert actions.dtype == np.int32


def test_no_masked_action_is_ever_taken():
    """Every mask of six actions, with Q-values that make the masked ones attractive."""
    masks = (np.arange(64)[:, None] >> np.arange(6)) & 1 == 1
    q_values = np.where(masks, -5.0, 100.0).astype(np.float32)
    q_values[:, 2] = 0.0  # a Q-value of zero masks nothing
    draw = jax.jit(jax.vmap(ql.epsilon_greedy, (0, None, None, None)))
    for epsilon in (0.0, 0.5, 1.0):
        seen = np.zeros_like(masks)
        for actions in np.asarray(draw(jax.random.split(KEY, 100), q_values, epsilon, masks)):
            assert masks[np.arange(1, 64), actions[1:]].all()
            assert actions[0] == 0  # no valid action
            seen[np.arange(64), actions] = True
        if epsilon == 1.0:
            np.testing.assert_array_equal(seen[1:], masks[1:])


def test_one_key_is_one_draw():
    q_values, draw = jnp.zeros((20_000, 7)), jax.jit(ql.epsilon_greedy)
    first = np.asarray(draw(KEY, q_values, 1.0))
    np.testing.assert_array_equal(first, draw(KEY, q_values, 1.0))
    assert (first != np.asarray(draw(jax.random.key(6), q_values, 1.0))).any()
    # Whether to explore and what to draw are independent: exploring rows draw all actions alike.
    explored = np.bincount(draw(KEY, q_values, 0.1), minlength=7)[1:] / 20_000
    np.testing.assert_allclose(explored, 0.1 / 7, atol=0.004)


# -------------------------------------------------------------------------------------- target networks
def test_target_update_is_due_after_that_many_sampled_steps():
    frequency, is_due = 500, jax.jit(ql.target_update_due)
    for start in (0, 2**32 - 700, 2**40):
        last, updates = counters.from_int(start), []
        for steps in range(start, start + 2001, 100):
            due = bool(is_due(counters.from_int(steps), last, frequency))
            if due:
                last = counters.from_int(steps)
                updates.append(steps - start)
        assert updates == [500, 1000, 1500, 2000]
    # A gap of more than 2**32 steps, and of less than that across the word's end.
    assert is_due(counters.from_int(2**33 + 5), counters.from_int(5), 2**31 - 1)
    assert not is_due(counters.from_int(2**32 + 1), counters.from_int(2**32 - 1), 3)
    assert is_due(counters.from_int(7), counters.from_int(7), 0)


def test_soft_update_averages_floats_and_copies_integers():
    online = {"w": jnp.array([1.0, jnp.inf]), "n": jnp.array(7)}
    target = {"w": jnp.array([3.0, 5.0]), "n": jnp.array(2)}
    moved = jax.jit(ql.soft_update)(online, target, 0.25)
    np.testing.assert_array_equal(moved["w"], [2.5, np.inf])
    assert moved["n"] == 7


@pytest.mark.parametrize("case", GOLDEN["soft_update"], ids=lambda case: f"tau={case['tau']}")
def test_soft_update_equals_rllibs(case):
    trees = {name: jax.tree.map(np.float32, case[name]) for name in ("online", "target", "result")}
    ours = ql.soft_update(trees["online"], trees["target"], case["tau"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, trees["result"])


# ----------------------------------------------------------------------------------------------- RLlib
def golden_rows(case):
    golden = GOLDEN["dqn"][case]
    integers = {"actions": np.int32, "terminateds": bool, "truncateds": bool, "loss_mask": bool}
    batch = {k: np.asarray(v, integers.get(k, np.float32)) for k, v in golden["batch"].items()}
    forward = {k: np.asarray(v, np.float32) for k, v in golden["forward"].items()}
    return golden, golden["settings"], batch, forward


@pytest.mark.parametrize("case", GOLDEN["dqn"])
def test_losses_and_gradients_equal_rllibs(case):
    golden, settings, batch, forward = golden_rows(case)
    chosen = ql.next_actions(forward["qf_target_next_preds"], forward.get("qf_next_preds"))
    assert ("qf_next_preds" in forward) == settings["double_q"]
    transition = {k: batch[k] for k in ("rewards", "terminateds", "n_step")} | {"gamma": settings["gamma"]}
    mask = batch.get("loss_mask", np.ones(len(chosen), bool))
    distributional = settings["num_atoms"] > 1

    def loss_of(output):
        if distributional:
            atoms = ql.support(settings["v_min"], settings["v_max"], settings["num_atoms"])
            out = ql.categorical_q_rows(
                logits=output,
                actions=batch["actions"],
                target_probs=ql.categorical_targets(
                    next_probs=ql.select_atoms(forward["qf_target_next_probs"], chosen), atoms=atoms, **transition
                ),
                atoms=atoms,
                weights=batch["weights"],
            )
        else:
            out = ql.q_rows(
                q_values=output,
                actions=batch["actions"],
                targets=ql.n_step_targets(next_values=ql.select(forward["qf_target_next_preds"], chosen), **transition),
                weights=batch["weights"],
                td_error_loss_fn=settings["td_error_loss_fn"],
            )
        return jnp.sum(jnp.where(mask, out.loss, 0.0)) / mask.sum(), out

    name = "qf_logits" if distributional else "qf_preds"
    output = forward[name][: len(mask)]
    (loss, out), gradient = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(output)
    out = jax.device_get(out)
    np.testing.assert_allclose(loss, golden["loss"]["loss"], **CLOSE)
    np.testing.assert_allclose(out.td_error, golden["td_error"], **CLOSE)
    np.testing.assert_allclose(gradient, np.asarray(golden["gradients"][name])[: len(mask)], **CLOSE)
    np.testing.assert_allclose(out.q_selected[mask].mean(), golden["loss"]["qf_mean"], **CLOSE)
    np.testing.assert_allclose(out.q_selected[mask].max(), golden["loss"]["qf_max"], **CLOSE)
    np.testing.assert_allclose(out.td_error[mask].mean(), golden["loss"]["td_error_mean"], **CLOSE)


@pytest.mark.parametrize("case", GOLDEN["dqn"])
def test_heads_equal_rllibs(case):
    golden, settings, _, forward = golden_rows(case)
    heads = {k: np.asarray(v, np.float32) for k, v in golden["heads"].items()}
    if settings["num_atoms"] == 1:
        ours = ql.dueling(heads["vf"], heads["af"]) if settings["dueling"] else heads["af"]
    else:
        # RLlib's value stream has one output for all atoms, so the distribution is that of the advantages alone.
        atoms = ql.support(settings["v_min"], settings["v_max"], settings["num_atoms"])
        np.testing.assert_allclose(atoms, forward["atoms"], **CLOSE)
        logits = heads["af"].reshape(len(heads["af"]), -1, len(atoms))
        ours = ql.expected_q(logits, atoms)
    np.testing.assert_allclose(ours, forward["qf_preds"], **CLOSE)
