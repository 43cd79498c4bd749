"""A discount per step of a JAX environment, in advantages of PPO and targets of Q-learning, computed by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.sac.sac import SACConfig
from jaxrl_stack.algorithms.td3.td3 import TD3Config
from jaxrl_stack.algorithms.tqc.tqc import TQCConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops import returns
from tests import programs

GAMMA, LENGTH = 0.9, 4
DISCOUNTS = [1.0, 0.5, 0.0, 0.8]


class Discounted(CounterEnv):
    """Four steps; step t, from 0 on, pays t + 1 and has the discount ``DISCOUNTS[t]``."""

    defaults = CounterEnv.defaults | {"terminate_at": LENGTH}

    def step_env(self, key, state, action, params):
        *step, _ = super().step_env(key, state, action, params)
        return *step, {"discount": jnp.asarray(DISCOUNTS)[state]}


def window(t, n, discounts):
    """``(discounted sum of rewards, product of the discounts)`` of n steps from step t on, or to the episode's end."""
    total, factor = 0.0, 1.0
    for k in range(min(n, LENGTH - t)):
        total += factor * GAMMA**k * (t + k + 1)
        factor *= discounts[t + k]
    return total, factor


def table(discounts):
    """`window` by t and n, float32 ``[LENGTH, LENGTH + 1, 2]``."""
    return np.array([[window(t, n, discounts) for n in range(LENGTH + 1)] for t in range(LENGTH)], np.float32)


class WatchedPPO(PPOLearner):
    columns_from_acting = (Columns.DISCOUNT,)
    discounts = DISCOUNTS

    def compute_loss_for_module(self, *, module_id, batch, **kwargs):
        expected = jnp.asarray(table(self.discounts))[batch[Columns.OBS][:, 0].astype(int), LENGTH, 0]
        error = self.masked_mean(jnp.abs(batch[Columns.VALUE_TARGETS] - expected), batch)
        self.metrics.log_value((module_id, "error"), error)
        return super().compute_loss_for_module(module_id=module_id, batch=batch, **kwargs)


class PlainPPO(WatchedPPO):
    """Does not read the discount."""

    columns_from_acting = property(lambda self: (Columns.ACTION_LOGP,))
    discounts = (1.0,) * LENGTH


class WatchedDQN(DQNLearner):
    columns_from_acting = (Columns.DISCOUNT,)

    def compute_loss_for_module(self, *, module_id, batch, **kwargs):
        where = batch[Columns.OBS][:, 0].astype(int), batch["n_step"].astype(int)
        rewards, product = jnp.moveaxis(jnp.asarray(table(DISCOUNTS))[where], -1, 0)
        for name, error in (("rewards", batch["rewards"] - rewards), ("product", batch["n_step_discount"] - product)):
            self.metrics.log_value((module_id, name), self.masked_mean(jnp.abs(error), batch))
        self.metrics.log_value((module_id, "longest"), batch["n_step"].max(), reduce="max")
        return super().compute_loss_for_module(module_id=module_id, batch=batch, **kwargs)


def train(config):
    algo = config.build_algo()
    result = algo.train()["learners"][DEFAULT_MODULE_ID]
    algo.stop()
    return result


def test_advantages_by_hand():
    columns = {"rewards": [[1.0], [2.0], [3.0]], "values": [[0.5], [0.25], [1.0]]}
    flags = {"terminateds": [[False], [False], [False]], "truncateds": [[False], [True], [False]]}
    arrays = {name: np.array(own) for name, own in (columns | flags).items()}
    truncation_values = np.array([[0.0], [4.0], [0.0]])
    advantages, targets = returns.gae(
        **{name: own.astype(np.float32) if own.dtype == float else own for name, own in arrays.items()},
        truncation_values=truncation_values.astype(np.float32),
        bootstrap_value=np.array([2.0], np.float32),
        gamma=0.9,
        lambda_=0.8,
        discounts=np.array([[0.5], [0.25], [0.1]], np.float32),
    )
    third = 3.0 + 0.9 * 0.1 * 2.0 - 1.0
    second = 2.0 + 0.9 * 0.25 * 4.0 - 0.25  # cut off: nothing of the third
    first = 1.0 + 0.9 * 0.5 * 0.25 - 0.5 + 0.9 * 0.5 * 0.8 * second
    np.testing.assert_allclose(advantages[:, 0], [first, second, third], rtol=1e-6)
    np.testing.assert_allclose(targets, advantages + arrays["values"], rtol=1e-6)


@pytest.mark.parametrize("learner", [WatchedPPO, PlainPPO])
def test_value_targets_of_ppo_are_the_discounted_returns(learner):
    # With lambda = 1 and whole episodes in a block, targets depend on no value.
    config = programs.ppo(Discounted).training(gamma=GAMMA, lambda_=1.0).learners(learner_class=learner)
    assert train(config)["error"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_dqn_draws_discounted_rewards_and_the_product_of_the_discounts(n_step):
    config = programs.dqn(Discounted).training(gamma=GAMMA, n_step=n_step).learners(learner_class=WatchedDQN)
    result = train(config)
    assert (result["rewards"], result["product"]) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert result["longest"] == n_step


@pytest.mark.parametrize("num_atoms", [1, 5])
def test_targets_of_dqn_are_discounted_by_the_product(num_atoms):
    env = Discounted()
    config = programs.dqn(Discounted).training(num_atoms=num_atoms, v_min=-5.0, v_max=5.0)
    config.environment(observation_space=env.observation_space, action_space=env.action_space)
    check_targets(config, np.arange(8, dtype=np.int32) % 2)


@pytest.mark.parametrize("config_class", [SACConfig, TD3Config, TQCConfig], ids=lambda own: own.__name__)
def test_targets_of_actor_critics_are_discounted_by_the_product(config_class):
    config = config_class().rl_module(model_config={"fcnet_hiddens": [4], "fusionnet_hiddens": None})
    config.environment(observation_space=Box(-1.0, 1.0, (1,)), action_space=Box(-1.0, 1.0, (1,)))
    check_targets(config.debugging(seed=0), np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None])


def check_targets(config, actions):
    """Losses of a batch with discounts are equal to losses with another gamma, or without a bootstrap."""
    rng = np.random.default_rng(0)
    rows = {
        "obs": rng.uniform(-1.0, 1.0, (8, 1)).astype(np.float32),
        "new_obs": rng.uniform(-1.0, 1.0, (8, 1)).astype(np.float32),
        "actions": actions,
        "rewards": rng.normal(size=8).astype(np.float32),
        "terminateds": np.zeros(8, bool),
        "truncateds": np.zeros(8, bool),
        "n_step": np.full(8, 2.0, np.float32),
        "weights": np.ones(8, np.float32),
    }

    def loss(gamma=GAMMA, **columns):
        given = {name: np.full(8, value) for name, value in columns.items()}
        learner = config.copy().training(gamma=gamma).build_learner()
        return learner.update(batch={**rows, **given})[DEFAULT_MODULE_ID]["qf_loss"]

    half = loss(discount=np.float32(0.3), n_step_discount=np.float32(0.25))
    assert half == pytest.approx(loss(gamma=GAMMA * 0.5), rel=1e-5)  # 0.25 in two steps
    assert loss(discount=np.float32(0.3), n_step_discount=np.float32(1.0)) == pytest.approx(loss(), rel=1e-5)
    ended = loss(discount=np.float32(0.3), n_step_discount=np.float32(0.0))
    assert ended == pytest.approx(loss(terminateds=True), rel=1e-5) and abs(ended - half) > 1e-4


def test_errors_say_where_there_is_no_discount():
    with pytest.raises(ValueError, match=r"the columns \['discount'\].*`info` of a single-agent JAX environment"):
        programs.ppo("CartPole-v1").learners(learner_class=WatchedPPO).build_algo()

    class Reading(DQNLearner):
        columns_from_acting = (Columns.DISCOUNT,)

    config = programs.dqn(Discounted, use_lstm=True, lstm_cell_size=4, max_seq_len=3)
    algo = config.learners(learner_class=Reading).build_algo()
    with pytest.raises(ValueError, match="Reading needs the product of the column 'discount' over n steps"):
        algo.train()
    algo.stop()
