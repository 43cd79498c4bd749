"""Algorithms, training steps, losses and optimizers of one's own, in the form that RLlib's documentation shows them."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from jaxrl_stack.algorithms.dqn import DQN, DQNConfig
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.sac import SAC, SACConfig
from jaxrl_stack.algorithms.sac.sac_learner import SACLearner
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.learner import ComputeReturnsToGo
from jaxrl_stack.core import DEFAULT_MODULE_ID, Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.execution.rollout_ops import synchronous_parallel_sample
from jaxrl_stack.utils.annotations import override
from jaxrl_stack.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

SMALL = {"fcnet_hiddens": [8], "head_fcnet_hiddens": []}


class Steps(gym.Env):
    """Five steps; the reward is the action, the observation how many steps were taken."""

    observation_space = gym.spaces.Box(0.0, 5.0, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(self, config: dict[str, Any] | None = None):
        self.num_steps = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.num_steps, 1.0], np.float32)

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return self._observation(), {}

    def step(self, action):
        self.num_steps += 1
        return self._observation(), float(np.sum(action)), self.num_steps == 5, False, {}


class ContinuousSteps(Steps):
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


# ------------------------------------------------------------------------------------------------------------- losses


class WeightPenalty:
    """Adds the mean square of all weights to the loss, as in the example of a loss function of one's own."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        base_loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        parameters = self.get_parameters(self.module[module_id])
        mean_square = jnp.mean(jnp.stack([jnp.square(w).mean() for w in parameters]))
        self.metrics.log_value(key=(module_id, "mean_square"), value=mean_square, window=1)
        return base_loss + config.learner_config_dict["penalty_coeff"] * mean_square


REPLAY = {"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 0}


@pytest.mark.parametrize(
    ("config", "base"),
    [
        (PPOConfig().environment(Steps).training(train_batch_size_per_learner=10, num_epochs=1, lr=0.01), PPOLearner),
        (DQNConfig().environment(Steps).training(**REPLAY, lr=0.01), DQNLearner),
        (SACConfig().environment(ContinuousSteps).training(**REPLAY, initial_alpha=0.5), SACLearner),
    ],
    ids=["ppo", "dqn", "sac"],
)
def test_a_term_of_ones_own_in_the_loss_of_every_algorithm(config, base):
    learner_class = type("Penalized", (WeightPenalty, base), {})
    config = config.env_runners(num_env_runners=0, rollout_fragment_length=10).rl_module(model_config=SMALL)
    if base is PPOLearner:
        config.training(minibatch_size=None)
    config.learners(learner_class=learner_class, learner_config_dict={"penalty_coeff": 1e6})
    algo = config.build_algo()
    before = algo.get_weights()[DEFAULT_MODULE_ID]
    result = algo.train()["learners"][DEFAULT_MODULE_ID]
    after = algo.get_weights()[DEFAULT_MODULE_ID]
    # Adam's first steps go by the signs of gradients alone: against those of the weights, in every part of the module.
    trained = [name for name in before if "target" not in name and np.abs(before[name]).max() > 0.1]
    assert all(np.abs(after[name]).sum() < np.abs(before[name]).sum() for name in trained) and len(trained) > 3
    # The term counts once in the total; everything else that was reported still is.
    assert result["total_loss"] == pytest.approx(1e6 * result["mean_square"], rel=0.05)
    assert set(base.all_result_names()) <= set(result)
    assert np.isfinite([result[name] for name in base.result_names]).all()
    algo.stop()


# --------------------------------------------------------------------------------------------------------- optimizers


class ConstantLR:
    """In the place of PyTorch's."""

    def __init__(self, optimizer, factor, total_iters):
        self.factor = factor * len(optimizer.param_groups)


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig().environment(CounterEnv).training(train_batch_size_per_learner=10, minibatch_size=10, num_epochs=1),
        DQNConfig().environment(Steps).training(**REPLAY).env_runners(rollout_fragment_length=8),
    ],
    ids=["ppo", "dqn"],
)
def test_learning_rate_schedulers(config):
    lr, factor, decay = 0.01, 0.5, 0.9
    config = config.training(lr=lr).env_runners(num_env_runners=0).rl_module(model_config=SMALL)
    with pytest.raises(ValueError, match=r"_torch_lr_scheduler_classes=.*optax.exponential_decay\(1.0"):
        config.copy().experimental(
            _torch_lr_scheduler_classes=[functools.partial(ConstantLR, factor=factor, total_iters=2)]
        ).build_algo()
    # A factor for two updates, and a decay after each.
    config.experimental(
        _torch_lr_scheduler_classes=[
            optax.piecewise_constant_schedule(factor, {2: 1.0 / factor}),
            optax.exponential_decay(1.0, transition_steps=1, decay_rate=decay),
        ]
    )
    algo = config.build_algo()
    for _ in range(4):
        rate = algo.train()["learners"][DEFAULT_MODULE_ID]["default_optimizer_learning_rate"]
        before = algo.learner_group.num_updates - 1
        assert rate == pytest.approx(lr * (factor if before < 2 else 1.0) * decay**before, rel=1e-4)
    algo.stop()


# -------------------------------------------------------------------------------------------- an algorithm of one's own


class PolicyModule(RLModule):
    def setup(self):
        self.layer = nnx.Linear(self.observation_space.shape[0], self.model_config["hidden_dim"], rngs=self.rngs)
        self.head = nnx.Linear(self.model_config["hidden_dim"], self.action_space.n, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.head(nnx.tanh(self.layer(batch[Columns.OBS])))}


class ReinforceLearner(Learner):
    """Policy gradients without a baseline."""

    @override(Learner)
    def build(self) -> None:
        super().build()
        if self.config.add_default_connectors_to_learner_pipeline:
            self._learner_connector.prepend(ComputeReturnsToGo(gamma=self.config.gamma))

    @override(Learner)
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution_class = self.module[module_id].get_train_action_dist_cls()
        logp = distribution_class.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS])
        returns = batch[Columns.RETURNS_TO_GO]
        self.metrics.log_value((module_id, "return_to_go_max"), jnp.max(returns), reduce="max")
        return -self.masked_mean(logp * returns, batch)

    @override(Learner)
    def after_gradient_based_update(self, *, timesteps):
        if self.config.report_mean_weights:
            for module_id in self.module.keys():  # noqa: SIM118 - RLlib's form
                weights = np.mean([w.mean() for w in self.get_parameters(self.module[module_id])])
                self.metrics.log_value((module_id, "mean_weight"), weights, window=1)


class AddsToRewards(ConnectorV2):
    def __init__(self, *args, reward=0.0, **kwargs):
        super().__init__(*args, reward=reward, **kwargs)
        self.reward = reward

    def init(self, num_envs):
        return jnp.float32(0.0)

    def apply(self, state, batch, ctx):
        rewards = {
            mid: {**columns, Columns.REWARDS: columns[Columns.REWARDS] + self.reward} for mid, columns in batch.items()
        }
        return state + 1.0, rewards


def test_the_learner_pipeline_can_be_changed_once_it_is_built():
    config = ReinforceConfig().environment(Steps).training(gamma=1.0)
    learner = config.build_learner(env=Steps())
    episode = SingleAgentEpisode(
        observations=[np.zeros(2, np.float32)] * 4, actions=[0, 0, 0], rewards=[1.0, 1.0, 1.0], terminated=True,
        len_lookback_buffer=0, observation_space=Steps.observation_space, action_space=Steps.action_space,
    )  # fmt: skip

    def first_return():
        return learner.update(episodes=[episode])[DEFAULT_MODULE_ID]["return_to_go_max"]

    assert first_return() == 3.0
    learner._learner_connector.prepend(AddsToRewards(reward=1.0))
    assert first_return() == 6.0
    assert first_return() == 6.0
    assert jax.tree.leaves(learner.get_state()["connector"]["AddsToRewards"]) == [2.0]
    learner._learner_connector.remove(AddsToRewards)
    assert first_return() == 3.0 and learner.num_updates == 4


class ReinforceConfig(AlgorithmConfig):
    report_mean_weights: bool = True

    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class or Reinforce)
        self.num_episodes_per_train_batch = 10
        self.num_env_runners = 1

    @override(AlgorithmConfig)
    def training(self, *, num_episodes_per_train_batch=NotProvided, **kwargs):
        super().training(**kwargs)
        if num_episodes_per_train_batch is not NotProvided:
            self.num_episodes_per_train_batch = num_episodes_per_train_batch
        return self

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self):
        return RLModuleSpec(module_class=PolicyModule, model_config={"hidden_dim": 8})

    @override(AlgorithmConfig)
    def get_default_learner_class(self):
        return ReinforceLearner


class Reinforce(Algorithm):
    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> AlgorithmConfig:
        return ReinforceConfig()

    @override(Algorithm)
    def training_step(self) -> None:
        with self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
            episodes, env_runner_results = self._sample_episodes()
        self.metrics.aggregate(env_runner_results, key=ENV_RUNNER_RESULTS)
        self.metrics.log_value("steps_win100", sum(map(len, episodes)), reduce="mean", window=100)
        with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
            sampled = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME))
            learner_results = self.learner_group.update(
                episodes=episodes, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: sampled}
            )
        self.metrics.aggregate(learner_results, key=LEARNER_RESULTS)
        with self.metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
            self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group, inference_only=True)

    def _sample_episodes(self):
        per_runner = self.config.num_episodes_per_train_batch // (self.config.num_env_runners or 1)
        sampled = self.env_runner_group.foreach_env_runner(
            lambda env_runner: (env_runner.sample(num_episodes=per_runner), env_runner.get_metrics()),
            local_env_runner=self.env_runner_group.num_remote_workers() <= 0,
        )
        return [episode for episodes, _ in sampled for episode in episodes], [metrics for _, metrics in sampled]


@pytest.mark.parametrize("env", [Steps, CounterEnv], ids=["host", "device"])
def test_an_algorithm_of_ones_own(env):
    config = (
        ReinforceConfig()
        .environment(env, env_config={"terminate_at": 5} if env is CounterEnv else {})
        .training(num_episodes_per_train_batch=4, lr=0.02, gamma=1.0)
        .env_runners(num_env_runners=0)
        .reporting(min_sample_timesteps_per_iteration=60)
    )
    algo = config.build_algo()
    before = algo.get_weights()[DEFAULT_MODULE_ID]
    for _ in range(2):
        result = algo.train()
    # An iteration lasts until the steps that this training step has sampled are enough: three times 4 episodes.
    assert result["num_training_step_calls_per_iteration"] == 3
    runners = result["env_runners"]
    assert runners["num_env_steps_sampled"] == 60 and runners["num_episodes"] == 12
    assert runners["num_env_steps_sampled_lifetime"] == result["num_env_steps_sampled_lifetime"] == 120
    assert runners["num_episodes_lifetime"] == 24 and algo.num_env_steps_sampled_lifetime == 120
    assert runners["episode_len_mean"] == 5.0 and result["steps_win100"] == 20.0
    for name in ("agent_episode_returns_mean", "module_episode_return_mean"):
        assert list(runners[name].values()) == [runners["episode_return_mean"]]
    # What the learners report is there, adds up over the iteration, and goes on.
    learned, total = result["learners"][DEFAULT_MODULE_ID], result["learners"]["__all_modules__"]
    assert learned["num_module_steps_trained"] == total["num_env_steps_trained"] == 60
    assert total["num_env_steps_trained_lifetime"] == 120
    assert learned["weights_seq_no"] == algo.learner_group.num_updates == 6
    assert np.isfinite(learned["total_loss"]) and np.isfinite(learned["mean_weight"])
    # The connector that build() put in front has run: returns are of whole episodes.
    assert 0.0 < learned["return_to_go_max"] <= runners["episode_return_max"]
    after = algo.get_weights()[DEFAULT_MODULE_ID]
    assert all(np.abs(after[name] - weight).max() > 0.0 for name, weight in before.items())
    assert algo.env_runner_group.num_remote_workers() == 0 and algo.env_runner_group.healthy_worker_ids() == []
    algo.stop()


class ActsItself(PolicyModule):
    """Explores by actions alone: always the second one."""

    def _forward_exploration(self, batch, **kwargs):
        return {Columns.ACTIONS: jnp.ones(len(batch[Columns.OBS]), jnp.int32)}


def test_actions_alone_are_enough_where_the_loss_needs_no_log_probabilities():
    config = ReinforceConfig().environment(CounterEnv, env_config={"terminate_at": 5})
    config.env_runners(num_env_runners=0).training(num_episodes_per_train_batch=2, lr=0.02)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=ActsItself, model_config={"hidden_dim": 4}))
    algo = config.build_algo()
    result = algo.train()
    assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
    (episode, *_) = algo.env_runner.sample(num_episodes=1)
    assert episode.get_actions().tolist() == [1] * 5 and Columns.ACTION_LOGP not in episode.extra_model_outputs
    algo.stop()


class Minimal(PPO):
    """PPO's training step, written out."""

    def training_step(self):
        episodes, env_runner_results = synchronous_parallel_sample(
            worker_set=self.env_runner_group, max_env_steps=self.config.total_train_batch_size, _return_metrics=True
        )
        self.metrics.aggregate(env_runner_results, key=ENV_RUNNER_RESULTS)
        results = self.learner_group.update(
            episodes=episodes,
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime + 10},
            num_epochs=2,
            minibatch_size=10,
        )
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group)


def test_a_training_step_that_samples_in_parallel():
    config = (
        PPOConfig(algo_class=Minimal)
        .environment(Steps)
        .env_runners(num_env_runners=0, rollout_fragment_length=10)
        .training(train_batch_size_per_learner=10, minibatch_size=10)
        .rl_module(model_config=SMALL)
    )
    algo = config.build_algo()
    for iteration in (1, 2):
        result = algo.train()
        assert result["num_env_steps_sampled_lifetime"] == 10 * iteration
        assert result["env_runners"]["num_episodes_lifetime"] == 2 * iteration
        assert result["env_runners"]["episode_len_mean"] == 5.0
        assert result["learners"][DEFAULT_MODULE_ID]["num_module_steps_trained_lifetime"] == 20 * iteration
        assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["vf_loss"])
    algo.stop()


# ------------------------------------------------------------------------------------------------------------ configs


def test_an_algorithm_says_what_a_trial_that_builds_it_needs():
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=1).learners(num_cpus_per_learner=2)
    config.learners(num_learners=1).resources(placement_strategy="SPREAD")
    for given in (config, config.to_dict()):
        request = config.algo_class.default_resource_request(given)
        assert request.bundles == [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 2.0}] and request.strategy == "SPREAD"
    with pytest.raises(ValueError, match="minibatch_size"):
        PPO.default_resource_request(config.copy(copy_frozen=False).training(minibatch_size=10_000))


def test_the_class_of_an_algorithm_is_in_its_config():
    assert [config().algo_class for config in (PPOConfig, DQNConfig, SACConfig)] == [PPO, DQN, SAC]
    assert PPOConfig().copy().algo_class is PPO and PPOConfig(algo_class=Minimal).algo_class is Minimal


def test_a_generic_config_becomes_that_of_its_algorithm():
    generic = AlgorithmConfig(algo_class=DQN).environment(Steps).training(lr=0.25).env_runners(num_env_runners=0)
    generic.rl_module(model_config=SMALL)
    algo = generic.build_algo()
    assert type(algo.config) is DQNConfig and algo.config.algo_class is DQN
    assert algo.config.lr == 0.25 and algo.config.train_batch_size_per_learner == DQNConfig().train_batch_size
    assert algo.config.target_network_update_freq == DQNConfig().target_network_update_freq
    algo.stop()


def test_a_generic_config_samples_at_random():
    config = AlgorithmConfig().environment(Steps).env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    runner = SingleAgentEnvRunner(config=config)
    for arguments in ({"random_actions": True}, {}):
        episodes = runner.sample(num_episodes=20, **arguments)
        assert [len(episode) for episode in episodes] == [5] * 20
        actions = np.concatenate([episode.get_actions() for episode in episodes])
        assert 0.2 < actions.mean() < 0.8
    runner.stop()
