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
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.algorithms.sac.sac_learner import SACLearner
from jaxrl_stack.algorithms.settings import Section, Setting, boolean, number
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.core.learner.learner import Learner
_OLD_MODEL: Any
_OLD_LEARNING_RATES: Any
_OLD_MODEL_CONFIG: dict[str, Any]
def _learning_rate(name: str, default: float, doc: str) -> Setting:
    ...
class SACConfig(OffPolicyConfig):
    'Settings of SAC (Haarnoja et al., 2018, arXiv:1812.05905).\n\n::\n\n    algo = SACConfig().environment("gymnax/Pendulum-v1").training(actor_lr=3e-4).build_algo()'
    twin_q: bool
    initial_alpha: float
    target_entropy: float | Literal['auto'] | None
    actor_lr: float | list[list[float]] | list[tuple[int, float]]
    critic_lr: float | list[list[float]] | list[tuple[int, float]]
    alpha_lr: float | list[list[float]] | list[tuple[int, float]]
    q_model_config: dict[str, Any]
    policy_model_config: dict[str, Any]
    optimization: dict[str, Any]
    _deterministic_loss: bool
    _use_beta_distribution: bool
    def training(
        self,
        *,
        clip_actions: bool | type[NotProvided] = ...,
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
        twin_q: bool | type[NotProvided] = ...,
        initial_alpha: float | type[NotProvided] = ...,
        target_entropy: float | Literal['auto'] | None | type[NotProvided] = ...,
        actor_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        critic_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        alpha_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        q_model_config: dict[str, Any] | type[NotProvided] = ...,
        policy_model_config: dict[str, Any] | type[NotProvided] = ...,
        optimization_config: dict[str, Any] | type[NotProvided] = ...,
        _deterministic_loss: bool | type[NotProvided] = ...,
        _use_beta_distribution: bool | type[NotProvided] = ...,
    ) -> Self:
        """Sets how the policy is trained.

        Args:
            clip_actions: Clip actions to the bounds of Box action spaces (if they are not normalized). Default: False.
            gamma: Discount factor of the returns. Default: 0.99. Traced: other values do not recompile.
            lr: Learning rate. Default: None. Number or schedule [[0, value], [timestep, value], ...]; traced.
            grad_clip: Threshold of gradient clipping; None and 0 switch it off. Default: None. Traced: other values do not recompile.
            grad_clip_by: What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients). Default: 'global_norm'.
            train_batch_size_per_learner: Env steps per update and learner; None takes the algorithm's default. Default: 256.
            num_epochs: Passes over the train batch per update. Default: 1.
            minibatch_size: Rows per gradient step and learner; None takes the whole batch. Default: None.
            shuffle_batch_per_epoch: Shuffle the rows in every epoch (with more than one epoch). Default: False.
            replay_buffer_config: The replay buffer: its type, the steps that it holds (capacity) and, if it is prioritised, the exponents of priorities (alpha) and importance weights (beta). Merged with the present one unless the type changes. Default: {'type': 'PrioritizedEpisodeReplayBuffer', 'capacity': 1000….
            num_steps_sampled_before_learning_starts: Sampled env steps before the first update. Default: 1500.
            n_step: Steps of the returns; a range (lo, hi) draws them for each row, hi excluded. Default: 1.
            training_intensity: Rows trained per step sampled, as whole rounds of sampling per update or updates per round; None for one update per round of sampling. Default: None.
            target_network_update_freq: Sampled env steps between updates of the target networks; 0 updates them with every update. Default: 0.
            tau: Weight of the networks in an update of the target networks: 1 copies them. Default: 0.005. Traced: other values do not recompile.
            store_buffer_in_checkpoints: Whether checkpoints hold the replay buffer, so that a restored run continues exactly. Default: True.
            twin_q: Train two critics and take the lower one of their values. Default: True.
            initial_alpha: Temperature at the start, the weight of the policy's entropy; it is then trained. Default: 1.0.
            target_entropy: Entropy in nats that the temperature holds the policy at. 'auto' (or None): minus the number of an action's components, for discrete actions -1. Default: 'auto'. Traced: other values do not recompile.
            actor_lr: Learning rate of the policy. Default: 3e-05. Number or schedule [[0, value], [timestep, value], ...]; traced.
            critic_lr: Learning rate of the critics. Default: 0.0003. Number or schedule [[0, value], [timestep, value], ...]; traced.
            alpha_lr: Learning rate of the temperature's logarithm. Default: 0.0003. Number or schedule [[0, value], [timestep, value], ...]; traced.
            q_model_config: Networks of the critics, in RLlib's old stack. Default: {'fcnet_hiddens': [256, 256], 'fcnet_activation': 'relu', '…. No effect here: rl_module(model_config=...) describes the networks.
            policy_model_config: Network of the policy, in RLlib's old stack. Default: {'fcnet_hiddens': [256, 256], 'fcnet_activation': 'relu', '…. No effect here: rl_module(model_config=...) describes the networks.
            optimization_config: Learning rates, in RLlib's old stack. Default: {'actor_learning_rate': 0.0003, 'critic_learning_rate': 0.0…. No effect here: Set training(actor_lr=..., critic_lr=..., alpha_lr=...).
            _deterministic_loss: A loss without drawn actions, in RLlib's old stack. Default: False. No effect here: Override DefaultSACRLModule.get_train_action_dist_cls() for other draws.
            _use_beta_distribution: A Beta distribution in the place of the squashed Gaussian, in RLlib's old stack. Default: False. No effect here: Override SACCatalog.get_action_dist_cls() for another distribution.

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
        """A policy and twin critics of MLPs."""
        ...
    def get_default_learner_class(self) -> type[Learner]:
        """SACLearner."""
        ...
    def validate(self) -> None:
        """Checks all settings, alone and against each other.

    Raises:
        ValueError: Names the setting, its value and the remedy.
        NotImplementedError: If a setting asks for something that comes later."""
        ...
class SAC(OffPolicyAlgorithm):
    'Soft actor-critic; see the README of this folder.'
    @classmethod
    def get_default_config(cls) -> SACConfig:
        """A `SACConfig` with its defaults."""
        ...
