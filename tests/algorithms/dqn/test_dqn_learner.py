"""DQN's learner: its loss by hand, what each setting changes, target networks, optimizer."""

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.utils import counters

MID = "default_policy"
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
MASKED = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=BOX)
ROWS = 4


def config_of(observation_space=BOX, **training):
    return (
        DQNConfig()
        .environment(observation_space=observation_space, action_space=DISCRETE)
        .training(**{"grad_clip": None, "dueling": False, **training})
        .rl_module(model_config={"fcnet_hiddens": [], "head_fcnet_hiddens": []})
    )


def weights(part, kernel, bias=(0.0, 0.0, 0.0)):
    return {f"{part}/dense_0/kernel": np.float32(kernel), f"{part}/dense_0/bias": np.float32(bias)}


def learner_of(config, online=None, target=None):
    """A learner whose Q-values are linear in the observation: one row of the kernel for each of its two numbers."""
    learner = config.build_learner()
    if online is not None:
        learner.set_state({"rl_module": {MID: weights("af", online) | weights("_target_af", target)}})
    return learner


ONLINE = [[1.0, 2.0, 3.0], [0.0, 0.0, -4.0]]
TARGET = [[10.0, 20.0, 30.0], [5.0, 0.0, 0.0]]


def batch_of(**columns):
    """Observations pick rows of kernels: Q = (1, 2, 3) of obs; of next_obs, (0, 0, -4) online, (5, 0, 0) target."""
    batch = {
        "obs": np.tile(np.float32([[1.0, 0.0]]), (ROWS, 1)),
        "new_obs": np.tile(np.float32([[0.0, 1.0]]), (ROWS, 1)),
        "actions": np.int32([0, 1, 2, 0]),
        "rewards": np.float32([1.0, 1.0, 1.0, 1.0]),
        "terminateds": np.array([False, False, True, False]),
        "truncateds": np.array([False, True, False, False]),
        "n_step": np.float32([1, 2, 1, 3]),
        "weights": np.float32([1.0, 0.5, 1.0, 0.25]),
    }
    return {MID: batch | columns}


def update(learner, batch, **kwargs):
    rows = learner.update_rows(Experience.of_rows(batch), **kwargs)
    return learner.row_results()[MID], rows[(MID, "td_error")]


def test_loss_by_hand():
    # With double Q-learning action 0, the first of equals, is best in next_obs; the target says that it is worth 5.
    learner = learner_of(config_of(gamma=0.5), ONLINE, TARGET)
    targets = np.array([1 + 0.5 * 5, 1 + 0.25 * 5, 1.0, 1 + 0.125 * 5])
    q_values = np.array([1.0, 2.0, 3.0, 1.0])
    errors = np.abs(q_values - targets)
    huber = np.where(errors <= 1.0, 0.5 * errors**2, errors - 0.5)
    result, td_error = update(learner, batch_of())
    np.testing.assert_allclose(td_error, errors, rtol=1e-6)
    np.testing.assert_allclose(result["qf_loss"], np.mean(huber * [1.0, 0.5, 1.0, 0.25]), rtol=1e-6)
    assert result["total_loss"] == result["qf_loss"]
    assert (result["qf_mean"], result["qf_max"], result["qf_min"]) == (1.75, 3.0, 1.0)
    np.testing.assert_allclose(result["td_error_mean"], errors.mean(), rtol=1e-6)


def test_rows_that_do_not_count():
    learner = learner_of(config_of(gamma=0.5), ONLINE, TARGET)
    result, _ = update(learner, batch_of(loss_mask=np.array([True, True, False, False])))
    errors = np.array([2.5, 0.25])
    np.testing.assert_allclose(result["td_error_mean"], errors.mean(), rtol=1e-6)
    np.testing.assert_allclose(result["qf_loss"], (2.0 + 0.5 * 0.5 * 0.25**2) / 2, rtol=1e-6)
    assert (result["qf_mean"], result["qf_max"], result["qf_min"]) == (1.5, 2.0, 1.0)


def test_double_q_chooses_with_the_network_and_evaluates_with_the_target():
    online = [[1.0, 2.0, 3.0], [0.0, 9.0, -4.0]]
    batch = batch_of(terminateds=np.zeros(ROWS, bool), n_step=np.ones(ROWS, np.float32))
    q_values = np.array([1.0, 2.0, 3.0, 1.0])
    for double_q, value in ((True, 0.0), (False, 5.0)):
        learner = learner_of(config_of(gamma=0.5, double_q=double_q), online, TARGET)
        _, td_error = update(learner, batch)
        np.testing.assert_allclose(td_error, np.abs(q_values - (1 + 0.5 * value)), rtol=1e-6)


def test_masked_actions_are_not_bootstrapped_from():
    learner = learner_of(config_of(MASKED, gamma=0.5, double_q=False), ONLINE, TARGET)
    batch = batch_of(terminateds=np.zeros(ROWS, bool), n_step=np.ones(ROWS, np.float32))[MID]
    mask = np.int8([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0]])
    batch["obs"] = {"action_mask": np.ones((ROWS, 3), np.int8), "observations": batch["obs"]}
    batch["new_obs"] = {"action_mask": mask, "observations": batch["new_obs"]}
    _, td_error = update(learner, {MID: batch})
    targets = 1 + 0.5 * np.array([5.0, 0.0, 0.0, 5.0])
    np.testing.assert_allclose(td_error, np.abs([1.0, 2.0, 3.0, 1.0] - targets), rtol=1e-6)


def test_distributions_by_hand():
    """Two atoms, 0 and 1: a distribution is the probability p of 1."""
    config = config_of(gamma=0.5, num_atoms=2, v_min=0.0, v_max=1.0, double_q=False)
    learner = config.build_learner()
    # Logits of (0, 1) for each action: p = sigmoid(their difference).
    logit = lambda p: [0.0, np.log(p / (1 - p))]  # noqa: E731
    kernel = np.float32([[*logit(0.5), *logit(0.2), *logit(0.9)], [*logit(0.5), *logit(0.8), *logit(0.3)]])
    state = weights("af", kernel, np.zeros(6)) | weights("_target_af", kernel, np.zeros(6))
    learner.set_state({"rl_module": {MID: state}})
    batch = batch_of(
        rewards=np.float32([0.0, 0.25, 0.5, 0.25]),
        actions=np.int32([0, 1, 2, 0]),
        n_step=np.ones(ROWS, np.float32),
        weights=np.ones(ROWS, np.float32),
    )
    # In next_obs, 1 is best: 1 with probability 0.8. Mass at 0 goes to r, mass at 1 to r + 0.5 (terminated: to r).
    ones = np.array([0.2 * 0.0 + 0.8 * 0.5, 0.2 * 0.25 + 0.8 * 0.75, 0.5, 0.2 * 0.25 + 0.8 * 0.75])
    p = np.array([0.5, 0.2, 0.9, 0.5])
    expected = -(ones * np.log(p) + (1 - ones) * np.log(1 - p))
    result, td_error = update(learner, batch)
    np.testing.assert_allclose(td_error, expected, rtol=1e-5)
    np.testing.assert_allclose(result["qf_loss"], expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(result["qf_mean"], p.mean(), rtol=1e-5)


# -------------------------------------------------------------------------------------------------- target networks


def targets_of(learner):
    state = learner.module[MID].get_state()
    return state["_target_af/dense_0/kernel"], state["af/dense_0/kernel"]


def test_target_networks_follow_by_sampled_steps():
    learner = learner_of(config_of(target_network_update_freq=100, tau=0.25, lr=0.1), ONLINE, TARGET)
    first = np.float32(TARGET)
    for steps, updated_at, number in ((99, 0, 0), (100, 100, 1), (150, 100, 1), (199, 100, 1), (220, 220, 2)):
        before, _ = targets_of(learner)
        result, _ = update(learner, batch_of(), timesteps=steps)
        target, online = targets_of(learner)
        is_due = updated_at == steps
        np.testing.assert_allclose(target, 0.25 * online + 0.75 * before if is_due else before, rtol=1e-6)
        assert (result["num_target_updates"], result["last_target_update_ts"]) == (number, updated_at)
    assert not np.allclose(targets_of(learner)[0], first)


def test_targets_follow_every_update_with_frequency_0():
    learner = learner_of(config_of(target_network_update_freq=0, tau=1.0, lr=0.1), ONLINE, TARGET)
    for _ in range(2):
        update(learner, batch_of(), timesteps=7)
        np.testing.assert_array_equal(*targets_of(learner))


def test_the_state_of_the_module_holds_the_target_networks():
    learner = learner_of(config_of(target_network_update_freq=10, lr=0.1), ONLINE, TARGET)
    update(learner, batch_of(), timesteps=3)
    state = learner.get_state()
    other = learner_of(learner.config)
    other.set_state(state)
    for steps in (5, 12, 14):
        results = [update(each, batch_of(), timesteps=steps)[0] for each in (learner, other)]
        assert results[0] == results[1]
    np.testing.assert_array_equal(targets_of(learner), targets_of(other))
    assert results[0]["last_target_update_ts"] == 12


# --------------------------------------------------------------------------------------------------------- settings


def program(**training):
    """What an update is compiled from, and the initial parameters."""
    learner = config_of(**training).build_learner()
    # The hidden head of dueling and the atoms change shapes, all else the text.
    batch = jax.tree.map(jnp.asarray, batch_of())
    jaxpr = jax.make_jaxpr(lambda *arguments: learner.pure_update.step(*arguments, axis_name=None))(
        learner.state, batch, learner.settings(), counters.zero()
    )
    return str(jaxpr), learner.get_weights()


ATOMS = {"num_atoms": 5}
NOISY = {"noisy": True}


@functools.cache
def program_of_defaults(*names):
    """With `ATOMS` or `NOISY` where their names are given."""
    return program(**{name: value for name, value in (ATOMS | NOISY).items() if name in names})


def test_the_same_settings_make_the_same_program():
    assert program()[0] == program_of_defaults()[0]


@pytest.mark.parametrize(
    ("name", "value", "beside"),
    [
        ("double_q", False, {}),
        ("dueling", True, {}),
        ("num_atoms", 7, {}),
        ("v_min", -3.0, ATOMS),
        ("v_max", 3.0, ATOMS),
        ("noisy", True, {}),
        ("td_error_loss_fn", "mse", {}),
        ("adam_epsilon", 1e-3, {}),
        ("target_network_update_freq", 7, {}),
        ("grad_clip", 1.0, {}),
    ],
)
def test_every_setting_makes_another_program(name, value, beside):
    assert program(**beside, **{name: value})[0] != program_of_defaults(*beside)[0]


def test_sigma0_makes_other_parameters():
    base, other = program_of_defaults(*NOISY), program(**NOISY, sigma0=0.1)
    assert base[0] == other[0]
    changed = {ref.rpartition("/")[2] for ref in base[1] if not np.array_equal(base[1][ref], other[1][ref])}
    assert changed == {"kernel_sigma", "bias_sigma"}


def test_traced_settings_are_arguments_of_the_program():
    learner = config_of().build_learner()
    other = config_of(gamma=0.5, tau=0.1, epsilon=[[0, 1.0], [10, 0.5]], lr=0.3).build_learner()
    assert learner.config.shares_programs_with(other.config)
    ours, theirs = learner.settings()["modules"][MID], other.settings()["modules"][MID]
    for name in ("gamma", "tau", "epsilon"):
        pairs = zip(jax.tree.leaves(ours[name]), jax.tree.leaves(theirs[name]), strict=True)
        assert any(not np.array_equal(a, b) for a, b in pairs), name


def test_adam_has_that_epsilon_and_one_vector_of_parameters():
    config = config_of(adam_epsilon=0.5, lr=0.1, target_network_update_freq=1_000_000)
    learner = learner_of(config, ONLINE, TARGET)
    ((_, optimizer),) = learner.get_optimizers_for_module(MID)
    assert optimizer.is_flat
    before = targets_of(learner)[1]
    # Only action 0 is taken, with an error of 0.25 that ends the episode: the gradient is 0.25 times the observation.
    update(
        learner,
        batch_of(
            rewards=np.full(ROWS, 0.75, np.float32),
            actions=np.zeros(ROWS, np.int32),
            terminateds=np.ones(ROWS, bool),
            weights=np.ones(ROWS, np.float32),
        ),
    )
    moved = before - targets_of(learner)[1]
    # Adam's first step is lr g / (|g| + epsilon).
    np.testing.assert_allclose(moved, [[0.1 * 0.25 / 0.75, 0.0, 0.0], [0.0, 0.0, 0.0]], rtol=1e-4, atol=1e-7)


def test_modules_with_a_recurrent_state_need_a_learner_that_takes_sequences():
    class OfRows(DQNLearner):
        learns_from_sequences = False

    config = config_of().learners(learner_class=OfRows).rl_module(model_config={"use_lstm": True})
    with pytest.raises(NotImplementedError, match="recurrent state.*OfRows has learns_from_sequences = False"):
        config.build_learner()
