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

import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.off_policy_actor_driver import OffPolicyActorDriver
from jaxrl_stack.algorithms.off_policy_device_driver import OffPolicyDeviceDriver
from jaxrl_stack.algorithms.settings import Section, Setting, boolean, integer, is_search_space, number, short
from jaxrl_stack.execution import off_policy
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.replay_buffers import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
REPLAY_BUFFERS: dict[str, type[EpisodeReplayBuffer]]
_IMPORT_PATH: Any
_WANTED_TYPE: Any
_KEYS: Any
_ELSEWHERE: Any
_CHECKS: Any
def n_step_problem(value: Any) -> str | None:
    """What `n_step` must be: a number of steps, or a range (lo, hi) of them, hi excluded."""
    ...
def _tuple_if_range(value: Any) -> Any:
    ...
def replay_buffer_config_problem(value: Any) -> str | None:
    """What `replay_buffer_config` must be; classes that are named by their path are not imported yet."""
    ...
def _keys_of(buffer_class: type[EpisodeReplayBuffer]) -> tuple[str, ...] | None:
    """Names of a buffer's settings; None if it takes any."""
    ...
def merged_replay_buffer_config(present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A replay buffer's config with some of its settings changed; another type takes none of the present ones."""
    ...
@functools.cache
def _imported(path: str) -> Any:
    ...
class OffPolicyConfig(AlgorithmConfig):
    'Settings of the algorithms that learn from replay: DQN and SAC derive from it.'
    replay_buffer_config: dict[str, Any]
    num_steps_sampled_before_learning_starts: int
    n_step: int | tuple[int, int]
    training_intensity: float | None
    target_network_update_freq: int
    tau: float
    store_buffer_in_checkpoints: bool
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
    ) -> Self:
        """Sets how the policy is trained.

        Args:
            gamma: Discount factor of the returns. Default: 0.99. Traced: other values do not recompile.
            lr: Learning rate. Default: 0.001. Number or schedule [[0, value], [timestep, value], ...]; traced.
            grad_clip: Threshold of gradient clipping; None and 0 switch it off. Default: None. Traced: other values do not recompile.
            grad_clip_by: What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients). Default: 'global_norm'.
            train_batch_size_per_learner: Env steps per update and learner; None takes the algorithm's default. Default: None.
            num_epochs: Passes over the train batch per update. Default: 1.
            minibatch_size: Rows per gradient step and learner; None takes the whole batch. Default: None.
            shuffle_batch_per_epoch: Shuffle the rows in every epoch (with more than one epoch). Default: False.
            replay_buffer_config: The replay buffer: its type, the steps that it holds (capacity) and, if it is prioritised, the exponents of priorities (alpha) and importance weights (beta). Merged with the present one unless the type changes. Default: {'type': 'PrioritizedEpisodeReplayBuffer', 'capacity': 5000….
            num_steps_sampled_before_learning_starts: Sampled env steps before the first update. Default: 1000.
            n_step: Steps of the returns; a range (lo, hi) draws them for each row, hi excluded. Default: 1.
            training_intensity: Rows trained per step sampled, as whole rounds of sampling per update or updates per round; None for one update per round of sampling. Default: None.
            target_network_update_freq: Sampled env steps between updates of the target networks; 0 updates them with every update. Default: 0.
            tau: Weight of the networks in an update of the target networks: 1 copies them. Default: 1.0. Traced: other values do not recompile.
            store_buffer_in_checkpoints: Whether checkpoints hold the replay buffer, so that a restored run continues exactly. Default: True.

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
    @property
    def max_n_step(self) -> int:
        """The largest number of steps of a return."""
        ...
    def get_rollout_fragment_length(self, worker_index: int=0) -> int:
        """Steps per environment and sampling round; "auto" is `n_step`, the second entry of a range.

    Args:
        worker_index: Without effect: all EnvRunners take the same number of steps."""
        ...
    @property
    def rounds_per_training_step(self) -> tuple[int, int]:
        """(rounds of sampling, updates) of one training step.

    Without `training_intensity` one each. With it, rows trained per step sampled come as close to it as whole
    rounds can; a round counts the steps of all EnvRunner actors and, as RLlib does, of one runner more."""
        ...
    @property
    def replay_buffer_class(self) -> type[EpisodeReplayBuffer]:
        """The class of the replay buffer.

    Raises:
        ValueError: If its import path leads to no subclass of EpisodeReplayBuffer."""
        ...
    @property
    def replay_buffer_kwargs(self) -> dict[str, Any]:
        """Arguments of the replay buffer's constructor that this config sets."""
        ...
    @property
    def uses_priorities(self) -> bool:
        """Whether the replay buffer is prioritised."""
        ...
    @property
    def replay_capacity(self) -> int:
        """Steps that the replay buffer holds."""
        ...
    @property
    def replay_alpha(self) -> float:
        """Exponent of the priorities; 0 without them."""
        ...
    @property
    def replay_beta(self) -> float:
        """Exponent of the importance weights; 0 without priorities."""
        ...
    def _replay_value(self, name: str) -> Any:
        ...
    def validate(self) -> None:
        """Checks all settings, alone and against each other.

    Raises:
        ValueError: Names the setting, its value and the remedy.
        NotImplementedError: If a setting asks for something that comes later."""
        ...
    def _validate_updates(self) -> None:
        """Settings that divide an on-policy batch: an update from replay is one gradient step on all its rows."""
        ...
    def _validate_for_device(self) -> None:
        ...
class OffPolicyAlgorithm(Algorithm):
    'An algorithm that learns from replay.'
    pure_training_step: Any
    device_driver_class: Any
    actor_driver_class: Any
