"""What IMPALA's and APPO's losses make of sampled blocks: time limits, masks, sequences, targets, several modules."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.appo import APPOConfig, APPOLearner
from jaxrl_stack.algorithms.appo.default_appo_rl_module import DefaultAPPORLModule
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from tests.core.test_recurrent_updates import LENGTH, LSTM, Unaware
from tests.core.test_recurrent_updates import block as block
from tests.ops.test_vtrace import by_definition

OBS_SPACE, ACTION_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(2)
NUM_STEPS, NUM_ENVS = 6, 4
GAMMA = 0.9
VARIANTS = {"mlp": {"fcnet_hiddens": [8]}, "shared": {"fcnet_hiddens": [8], "vf_share_layers": True}}


def config_of(config_class=IMPALAConfig, obs_space=OBS_SPACE, module_class=None, model=None, **training):
    spec = RLModuleSpec(module_class=module_class, model_config=model or VARIANTS["mlp"])
    return (
        config_class()
        .environment(observation_space=obs_space, action_space=ACTION_SPACE)
        .env_runners(rollout_fragment_length=NUM_STEPS)
        .training(gamma=GAMMA, lr=0.01, **training)
        .rl_module(rl_module_spec=spec)
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


def steps(seed=0, masked=False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shape = (NUM_STEPS, NUM_ENVS)
    columns = {
        Columns.OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.FINAL_OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.ACTIONS: rng.integers(0, 2, shape).astype(np.int32),
        Columns.ACTION_LOGP: np.log(rng.uniform(0.2, 0.9, shape)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=shape).astype(np.float32),
        Columns.TERMINATEDS: rng.random(shape) < 0.15,
        Columns.TRUNCATEDS: rng.random(shape) < 0.2,
    }
    return columns | ({Columns.LOSS_MASK: rng.random(shape) < 0.7} if masked else {})


def update(learner, columns, **sizes):
    return learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: columns}), **sizes)[DEFAULT_MODULE_ID]


def forward(module, obs):
    """``(log-probabilities of all actions, values)`` of observations ``[..., 3]``."""
    rows = {Columns.OBS: obs.reshape(-1, obs.shape[-1])}
    logits, values = jax.jit(
        lambda rows: (module.forward_train(rows)["action_dist_inputs"], module.compute_values(rows))
    )(rows)
    return np.asarray(jax.nn.log_softmax(logits)).reshape(*obs.shape[:-1], -1), np.asarray(values).reshape(
        obs.shape[:-1]
    )


def expected_of_impala(columns, logp, values, after):
    """``{metric: value}`` by hand.

    Args:
        columns: ``[T, B]``, one chunk per column.
        logp, values: ``[T, B]``, of the steps.
        after: ``[T, B]``, values of the states that steps led to.
    """
    mask = columns.get(Columns.LOSS_MASK, np.ones(values.shape, bool))
    last = [np.flatnonzero(column)[-1] if column.any() else 0 for column in mask.T]
    data = {
        "log_rhos": logp - columns[Columns.ACTION_LOGP],
        "rewards": columns[Columns.REWARDS],
        "values": values,
        "terminateds": columns[Columns.TERMINATEDS],
        "truncateds": columns[Columns.TRUNCATEDS],
        "truncation_values": after,
        "bootstrap_value": after[last, np.arange(len(last))],
        "mask": mask,
    }
    targets, advantages = by_definition(data, GAMMA)
    return {
        "mean_pi_loss": np.mean((-logp * advantages)[mask]),
        "mean_vf_loss": np.mean(0.5 * np.square(values - targets)[mask]),
        "pi_loss": np.sum((-logp * advantages)[mask]),
        "vf_loss": np.sum(0.5 * np.square(values - targets)[mask]),
    }


@pytest.mark.parametrize(("model", "masked"), [("mlp", True), ("shared", False)])
def test_the_loss_of_a_block_is_that_by_hand(model, masked):
    columns = steps(masked=masked)
    assert columns[Columns.TRUNCATEDS][:-1].any() and columns[Columns.TERMINATEDS][:-1].any()
    learner = config_of(model=VARIANTS[model]).build_learner()
    module = learner.module[DEFAULT_MODULE_ID]
    logits, values = forward(module, columns[Columns.OBS])
    logp = np.take_along_axis(logits, columns[Columns.ACTIONS][..., None], axis=-1)[..., 0]
    after = forward(module, columns[Columns.FINAL_OBS])[1]
    results = update(learner, columns)
    for name, value in expected_of_impala(columns, logp, values, after).items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_final_observations_are_read_only_where_they_are_needed():
    columns = steps(1)
    needed = columns[Columns.TRUNCATEDS] & ~columns[Columns.TERMINATEDS]
    needed[-1] = True
    spoilt = {**columns, Columns.FINAL_OBS: np.where(needed[..., None], columns[Columns.FINAL_OBS], np.nan)}
    found = []
    for own in (columns, spoilt):
        learner = config_of().build_learner()
        update(learner, own)
        found.append(learner.get_weights())
    jax.tree.map(np.testing.assert_array_equal, *found)


@functools.cache
def step_of(module):
    return jax.jit(lambda batch: (module.forward_train(batch), module.compute_values(batch)))


def expected_of_sequences(module, columns):
    """`expected_of_impala` of a recurrent module: its chunks as columns of their own, step by step."""
    chunks = []
    num_steps, num_columns = columns[Columns.REWARDS].shape
    for start in range(0, num_steps, LENGTH):
        for column in range(num_columns):
            state = jax.tree.map(lambda x, at=(start // LENGTH, column): x[at], columns[Columns.STATE_IN])
            rows = []
            for t in range(start, min(start + LENGTH, num_steps)):
                own = {name: columns[name][t, column] for name in columns if name != Columns.STATE_IN}
                if own[Columns.RESETS]:
                    state = module.get_initial_state()

                def at(obs, state):
                    batch = {Columns.OBS: obs[None, None], Columns.RESETS: np.zeros((1, 1), bool)}
                    batch[Columns.STATE_IN] = jax.tree.map(lambda x: np.asarray(x)[None], state)
                    out, values = step_of(module)(batch)
                    return out, float(values[0, 0])

                out, value = at(own[Columns.OBS], state)
                logp = float(jax.nn.log_softmax(out["action_dist_inputs"][0, 0])[own[Columns.ACTIONS]])
                state = jax.tree.map(lambda x: np.asarray(x)[0], out[Columns.STATE_OUT])
                rows.append((own, logp, value, at(own[Columns.FINAL_OBS], state)[1]))
            chunks.append(rows)
    found = []
    for rows in chunks:
        names = (Columns.ACTION_LOGP, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
        own = {name: np.array([row[0][name] for row in rows])[:, None] for name in names}
        found.append(
            (len(rows), expected_of_impala(own, *(np.array([row[i] for row in rows])[:, None] for i in (1, 2, 3))))
        )
    number = sum(length for length, _ in found)
    return {name: sum(own[name] for _, own in found) / number for name in ("pi_loss", "vf_loss")}


@pytest.mark.parametrize(("module_class", "num_steps"), [(None, 9), (Unaware, 8)])
def test_the_loss_of_sequences_is_that_of_their_steps(block, module_class, num_steps):
    """Chunks in whose middle episodes are cut, and of which, of 9 steps, the last ones are filled up."""
    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    learner = config_of(obs_space=space, module_class=module_class, model=LSTM).build_learner()
    reference = config_of(obs_space=space, model=LSTM).build_learner().module[DEFAULT_MODULE_ID]
    columns = {name: own[:num_steps] for name, own in block.items() if name not in ("action_dist_inputs", "state_in")}
    columns[Columns.STATE_IN] = jax.tree.map(lambda x: x[: -(-num_steps // LENGTH)], block[Columns.STATE_IN])
    results = update(learner, columns)
    expected = expected_of_sequences(reference, columns)
    np.testing.assert_allclose(results["mean_pi_loss"], expected["pi_loss"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["mean_vf_loss"], expected["vf_loss"], rtol=1e-4, atol=1e-5)


class UnawareAPPO(Unaware, DefaultAPPORLModule):
    """Networks with a target policy, by methods that were written without a thought of starts of episodes."""


def test_a_target_policy_that_knows_no_resets_learns_the_same(block):
    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    columns = {name: own for name, own in block.items() if name != "action_dist_inputs"}
    aware, unaware = (
        update(config_of(APPOConfig, space, module_class, LSTM, use_kl_loss=True).build_learner(), columns)
        for module_class in (None, UnawareAPPO)
    )
    for name in ("policy_loss", "vf_loss", "mean_IS", "var_IS", "entropy"):
        np.testing.assert_allclose(unaware[name], aware[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_two_devices_make_the_update_of_one():
    found = []
    for number in (1, 2):
        learner = config_of(APPOConfig).learners(num_cpus_per_learner=number, num_shuffle_shards=2).build_learner()
        results = update(learner, steps(2, masked=True), minibatch_size=2 * NUM_STEPS, num_epochs=2)
        found.append((learner.get_weights(), results))
    (one, of_one), (two, of_two) = found
    for ref, value in one.items():
        np.testing.assert_allclose(two[ref], value, atol=1e-5, err_msg=ref)
    for name in {"pi_loss", "vf_loss", "mean_IS", "var_IS"} & set(of_one):
        np.testing.assert_allclose(of_two[name], of_one[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_thresholds_can_be_left_out():
    found = [
        update(config_of(vtrace_clip_rho_threshold=bound).build_learner(), steps())["vf_loss"]
        for bound in (None, np.inf, 1.0)
    ]
    assert found[0] == found[1] != found[2]


class PlainDescent(APPOLearner):
    """Steps that change the policy a lot."""

    def configure_optimizers_for_module(self, module_id, config=None):
        parameters = self.get_parameters(self.module[module_id])
        self.register_optimizer(module_id=module_id, optimizer=optax.sgd, params=parameters, lr_or_lr_schedule=1.0)


def targets_of(learner):
    weights = learner.get_state()["rl_module"][DEFAULT_MODULE_ID]
    return np.array(weights["_old_pi/dense_0/kernel"]), np.array(weights["pi/dense_0/kernel"])


def test_target_networks_follow_when_enough_was_trained():
    """2 x 1 rounds of 2 batches of 12 steps, each trained with once: after 24 and 48 sampled steps."""
    sizes = {"target_network_update_freq": 2, "circular_buffer_num_batches": 1, "tau": 0.25}
    config = config_of(APPOConfig, train_batch_size_per_learner=12, circular_buffer_iterations_per_batch=1, **sizes)
    learner = config.build_learner()
    old, main = targets_of(learner)
    np.testing.assert_array_equal(old, main)
    for number in range(1, 5):
        experience = Experience.of_steps({DEFAULT_MODULE_ID: steps(number)})
        results = learner.update_block(experience, timesteps={"num_env_steps_sampled_lifetime": 12 * number})
        before, (old, main) = old, targets_of(learner)
        is_due = number % 2 == 0
        np.testing.assert_allclose(old, 0.25 * main + 0.75 * before if is_due else before, rtol=1e-6)
        assert not np.array_equal(old, main)
        assert results[DEFAULT_MODULE_ID]["num_target_updates"] == number // 2
        assert results[DEFAULT_MODULE_ID]["last_target_update_ts"] == number // 2 * 24


def test_the_kl_coefficient_adapts():
    far = config_of(APPOConfig, use_kl_loss=True, kl_target=1e-6, kl_coeff=0.5).learners(learner_class=PlainDescent)
    near = config_of(APPOConfig, use_kl_loss=True, kl_target=1e6, kl_coeff=0.5)
    off = config_of(APPOConfig, kl_coeff=0.5).learners(learner_class=PlainDescent)
    found = []
    for config in (far, near, off):
        learner = config.build_learner()
        found.append([update(learner, steps(seed))["curr_kl_coeff"] for seed in range(3)])
    # In the first update both policies are one.
    assert found == [[0.25, 0.375, 0.5625], [0.25, 0.125, 0.0625], [0.5, 0.5, 0.5]]


def test_entropy_coefficients_follow_their_schedule():
    learner = config_of(entropy_coeff=[[0, 0.5], [100, 0.25]]).build_learner()
    experience = Experience.of_steps({DEFAULT_MODULE_ID: steps()})
    found = [
        learner.update_block(experience, timesteps={"num_env_steps_sampled_lifetime": n})[DEFAULT_MODULE_ID]
        for n in (50, 100, 150)
    ]
    assert [own["curr_entropy_coeff"] for own in found] == [0.5, 0.375, 0.25]
