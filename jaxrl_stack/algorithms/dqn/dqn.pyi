# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
from collections.abc import Callable, Collection
from typing import Any, Literal, Self
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
import gymnasium as gym
from jaxrl_stack.algorithms.dqn.action_masks import OBSERVATIONS, FlattenBesideActionMask, has_action_mask
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.dqn_catalog import DQNCatalog, num_discrete_actions
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.settings import Section, Setting, boolean, integer, number, one_of
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core.learner.learner import Learner
class DQNConfig(OffPolicyConfig):
    'Settings of DQN (Mnih et al., 2015, doi:10.1038/nature14236) and of Rainbow (Hessel et al., 2018,\narXiv:1710.02298), whose parts can be switched on one by one.\n\n::\n\n    algo = DQNConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()'
    epsilon: float | list[list[float]] | list[tuple[int, float]]
    double_q: bool
    dueling: bool
    num_atoms: int
    v_min: float
    v_max: float
    noisy: bool
    sigma0: float
    td_error_loss_fn: Literal["huber", "mse"]
    adam_epsilon: float
    burn_in_len: int
    hiddens: list[int]
    categorical_distribution_temperature: float
    before_learn_on_batch: Callable[..., Any] | None
    def training(
        self,
        *,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
        replay_buffer_config: dict[str, Any] | type[NotProvided] = ...,
        num_steps_sampled_before_learning_starts: int | type[NotProvided] = ...,
        n_step: int | tuple[int, int] | type[NotProvided] = ...,
        training_intensity: float | None | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        store_buffer_in_checkpoints: bool | type[NotProvided] = ...,
        epsilon: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        double_q: bool | type[NotProvided] = ...,
        dueling: bool | type[NotProvided] = ...,
        num_atoms: int | type[NotProvided] = ...,
        v_min: float | type[NotProvided] = ...,
        v_max: float | type[NotProvided] = ...,
        noisy: bool | type[NotProvided] = ...,
        sigma0: float | type[NotProvided] = ...,
        td_error_loss_fn: Literal["huber", "mse"] | type[NotProvided] = ...,
        adam_epsilon: float | type[NotProvided] = ...,
        burn_in_len: int | type[NotProvided] = ...,
        hiddens: list[int] | type[NotProvided] = ...,
        categorical_distribution_temperature: float | type[NotProvided] = ...,
        before_learn_on_batch: Callable[..., Any] | None | type[NotProvided] = ...,
    ) -> Self:
        """Sets how the policy is trained.

        Args:
            gamma: Discount factor of the returns. Default: 0.99. Traced: other values do not recompile.
            lr: Learning rate. Default: 0.0005. Number or schedule [[0, value], [timestep, value], ...]; traced.
            grad_clip: Threshold of gradient clipping; None and 0 switch it off. Default: 40.0. Traced: other values do not recompile.
            grad_clip_by: What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients). Default: 'global_norm'.
            train_batch_size_per_learner: Env steps per update and learner; None takes the algorithm's default. Default: None.
            num_epochs: Passes over the train batch per update. Default: 1.
            minibatch_size: Rows per gradient step and learner; None takes the whole batch. Default: None.
            shuffle_batch_per_epoch: Shuffle the rows in every epoch (with more than one epoch). Default: False.
            replay_buffer_config: The replay buffer: its type, the steps that it holds (capacity) and, if it is prioritised, the exponents of priorities (alpha) and importance weights (beta). Merged with the present one unless the type changes. Default: {'type': 'PrioritizedEpisodeReplayBuffer', 'capacity': 5000….
            num_steps_sampled_before_learning_starts: Sampled env steps before the first update. Default: 1000.
            n_step: Steps of the returns; a range (lo, hi) draws them for each row, hi excluded. Default: 1.
            training_intensity: Rows trained per step sampled, as whole rounds of sampling per update or updates per round; None for one update per round of sampling. Default: None.
            target_network_update_freq: Sampled env steps between updates of the target networks; 0 updates them with every update. Default: 500.
            tau: Weight of the networks in an update of the target networks: 1 copies them. Default: 1.0. Traced: other values do not recompile.
            store_buffer_in_checkpoints: Whether checkpoints hold the replay buffer, so that a restored run continues exactly. Default: True.
            epsilon: Probability of a random action while exploring; a schedule counts sampled env steps. Default: [(0, 1.0), (10000, 0.05)]. Number or schedule [[0, value], [timestep, value], ...]; traced.
            double_q: The network chooses the action that a target is made of, the target network says its value. Default: True.
            dueling: Q-values out of two heads: values of states and advantages of actions. Default: True.
            num_atoms: Learn distributions of returns over so many atoms (51 in C51); 1 learns their means. Default: 1.
            v_min: The lowest atom; returns below it count as it. Default: -10.0.
            v_max: The highest atom; returns above it count as it. Default: 10.0.
            noisy: Noisy layers in the heads, which explore by themselves: use it with epsilon=0.0. Default: False.
            sigma0: Initial standard deviation of their noise, times the square root of a layer's inputs. Default: 0.5.
            td_error_loss_fn: Loss of a temporal-difference error: "huber" or "mse". Default: 'huber'.
            adam_epsilon: Epsilon of Adam. Default: 1e-08.
            burn_in_len: Steps that a recurrent network runs over before those that it learns from. Default: 0. Other values come later; it comes with recurrent networks.
            hiddens: Widths of the heads' hidden layers in RLlib's old stack. Default: [256]. No effect here: use rl_module(model_config={'head_fcnet_hiddens': [...]}).
            categorical_distribution_temperature: Temperature of actions drawn by their Q-values in RLlib's old stack. Default: 1.0. No effect here: exploration is epsilon-greedy; other ways go into RLModule._forward_exploration().
            before_learn_on_batch: A function of the train batch in RLlib's old stack. Default: None. No effect here: use connector pieces, learners(learner_connector=...).

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    _sections: Any
    _defaults: Mapping[str, Any]
    def __init__(self, algo_class: type | str | None=None):
        ...
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """An MLP with heads for Q-values."""
        ...
    def get_default_learner_class(self) -> type[Learner]:
        """DQNLearner."""
        ...
    def _default_env_to_module_pieces(self, observation_space: gym.Space) -> list[ConnectorV2]:
        ...
    def validate(self) -> None:
        """Checks all settings, alone and against each other.

    Raises:
        ValueError: Names the setting, its value and the remedy.
        NotImplementedError: If a setting asks for something that comes later."""
        ...
    def _validate_that_settings_have_an_effect(self) -> None:
        ...
class DQN(OffPolicyAlgorithm):
    'Deep Q-learning; see the README of this folder.'
    @classmethod
    def get_default_config(cls) -> DQNConfig:
        """A `DQNConfig` with its defaults."""
        ...
