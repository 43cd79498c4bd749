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
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.settings import Section, Setting, boolean, number
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.execution import on_policy
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.module_to_env import ActionNoise
from jaxrl_stack.core.learner.learner import Learner
LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: Any
LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: Any
LEARNER_RESULTS_KL_KEY: Any
LEARNER_RESULTS_CURR_KL_COEFF_KEY: Any
LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY: Any
class PPOConfig(AlgorithmConfig):
    'Settings of PPO (Schulman et al., 2017, arXiv:1707.06347).\n\n::\n\n    algo = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()'
    use_critic: bool
    use_gae: bool
    lambda_: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    vf_loss_coeff: float
    entropy_coeff: float | list[list[float]] | list[tuple[int, float]]
    clip_param: float
    vf_clip_param: float
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
        use_critic: bool | type[NotProvided] = ...,
        use_gae: bool | type[NotProvided] = ...,
        lambda_: float | type[NotProvided] = ...,
        use_kl_loss: bool | type[NotProvided] = ...,
        kl_coeff: float | type[NotProvided] = ...,
        kl_target: float | type[NotProvided] = ...,
        vf_loss_coeff: float | type[NotProvided] = ...,
        entropy_coeff: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        clip_param: float | type[NotProvided] = ...,
        vf_clip_param: float | type[NotProvided] = ...,
    ) -> Self:
        """Sets how the policy is trained.

        Args:
            gamma: Discount factor of the returns. Default: 0.99. Traced: other values do not recompile.
            lr: Learning rate. Default: 5e-05. Number or schedule [[0, value], [timestep, value], ...]; traced.
            grad_clip: Threshold of gradient clipping; None and 0 switch it off. Default: None. Traced: other values do not recompile.
            grad_clip_by: What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients). Default: 'global_norm'.
            train_batch_size_per_learner: Env steps per update and learner; None takes the algorithm's default. Default: None.
            num_epochs: Passes over the train batch per update. Default: 30.
            minibatch_size: Rows per gradient step and learner; None takes the whole batch. Default: 128.
            shuffle_batch_per_epoch: Shuffle the rows in every epoch (with more than one epoch). Default: True.
            use_critic: Train a value function. Default: True.
            use_gae: Generalised advantage estimation; the only estimator there is. Default: True.
            lambda_: Trace decay of GAE: 1 gives returns with a bootstrap value, 0 one-step advantages. Default: 1.0. Traced: other values do not recompile.
            use_kl_loss: Add the divergence from the sampling policy to the loss. Default: True.
            kl_coeff: Initial weight of that divergence; it then adapts. Default: 0.2. Traced: other values do not recompile.
            kl_target: Divergence that its weight is adapted to. Default: 0.01. Traced: other values do not recompile.
            vf_loss_coeff: Weight of the value loss. Default: 1.0. Traced: other values do not recompile.
            entropy_coeff: Weight of the entropy bonus. Default: 0.0. Number or schedule [[0, value], [timestep, value], ...]; traced.
            clip_param: Probability ratios are clipped to 1 ± this. Default: 0.3. Traced: other values do not recompile.
            vf_clip_param: Upper bound of the squared value error. Large rewards need a larger one. Default: 10.0. Traced: other values do not recompile.

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
        """An MLP actor-critic."""
        ...
    def get_default_learner_class(self) -> type[Learner]:
        """PPOLearner."""
        ...
    def _default_learner_pieces(self) -> list[ConnectorV2]:
        ...
    def _check_action_noise(self, name: str, piece: ActionNoise) -> None:
        ...
    def validate(self) -> None:
        """Checks all settings, alone and against each other.

    Raises:
        ValueError: Names the setting, its value and the remedy.
        NotImplementedError: If a setting asks for something that comes later."""
        ...
class PPO(Algorithm):
    'Proximal policy optimisation; see the README of this folder.'
    pure_training_step: Any
    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """A `PPOConfig` with its defaults."""
        ...
