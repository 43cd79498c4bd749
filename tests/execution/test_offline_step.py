"""Training on recorded steps: every step once per pass, exactly resumed, on the devices and streamed."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.offline.offline_data import OfflineData

BATCH = 16


def recorded(lengths=(5, 9, 1, 12, 7, 6), seed=0):
    """Pieces of so many steps: observation 0 is the number of the step among all, action whether 2 is positive."""
    n = sum(lengths) + len(lengths)
    ends = np.cumsum([length + 1 for length in lengths]) - 1
    is_final = np.zeros(n, bool)
    is_final[ends] = True
    obs = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    obs[:, 0] = 0
    obs[~is_final, 0] = np.arange(n - len(lengths))
    terminated = np.zeros(n, bool)
    terminated[ends[::2] - 1] = True
    columns = {
        Columns.OBS: obs,
        Columns.ACTIONS: ((obs[:, 2] > 0) & ~is_final).astype(np.int32),
        Columns.REWARDS: np.where(is_final, 0, obs[:, 1]).astype(np.float32),
        Columns.TERMINATEDS: terminated,
        Columns.TRUNCATEDS: np.zeros(n, bool),
    }
    episode = np.repeat(np.arange(len(lengths)), [length + 1 for length in lengths]).astype(np.int32)
    t = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    return Steps(columns, is_final, episode, t, [str(i) for i in range(len(lengths))])


class InMemory(OfflineData):
    """Steps that are there already."""

    inputs = [recorded()]
    weights = [1.0]

    def steps(self, columns, spaces):
        return [own.map_columns(lambda name, x: x) for own in self.inputs], self.weights


class Cloning(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls()
        actions = distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        numbers = batch[Columns.OBS][..., 0]
        logp = actions.logp(batch[Columns.ACTIONS])
        self.metrics.log_value((module_id, "number_sum"), self.masked_mean(numbers, batch))
        return -self.masked_mean(logp, batch)


class CloningStep(OfflineStep):
    pass


class CloningAlgorithm(PPO):
    training_step_class = CloningStep


def config(algo_class=CloningAlgorithm, **data):
    space = gym.spaces.Box(-np.inf, np.inf, (4,))
    return (
        PPOConfig(algo_class=algo_class)
        .environment(observation_space=space, action_space=gym.spaces.Discrete(2))
        .learners(learner_class=Cloning, add_default_connectors_to_learner_pipeline=False)
        .training(train_batch_size_per_learner=BATCH, minibatch_size=None, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .offline_data(**{"offline_data_class": InMemory, **data})
        .debugging(seed=3)
    )


def test_it_trains():
    algo = config().build_algo()
    first = algo.train()
    for _ in range(20):
        last = algo.train()
    print(
        first["learners"]["default_policy"], last["learners"]["default_policy"], last["num_env_steps_sampled_lifetime"]
    )
    algo.stop()


class Preparing(OfflineStep):
    columns = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
    prepared_from = (Columns.OBS, Columns.REWARDS)

    def prepare(self, module, columns, is_final, values):
        bias = module._pi.layers[-1].bias[...].sum() if hasattr(module, "_pi") else 0.0
        return {Columns.VALUE_TARGETS: columns[Columns.OBS][:, 0] + bias * 0}


class PreparingAlgorithm(PPO):
    training_step_class = Preparing


class Checking(Cloning):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        off = jnp.abs(batch[Columns.VALUE_TARGETS] - batch[Columns.OBS][..., 0]).max()
        self.metrics.log_value((module_id, "off"), off, reduce="max")
        assert batch[Columns.NEXT_OBS].shape == batch[Columns.OBS].shape
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def test_what_is_prepared_at_the_start_of_a_pass_is_in_minibatches():
    algo = config(PreparingAlgorithm).learners(learner_class=Checking).build_algo()
    result = algo.train()
    assert result["learners"]["default_policy"]["off"] == 0.0
    algo.stop()
