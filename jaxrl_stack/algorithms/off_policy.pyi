# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
import os
from collections.abc import Callable, Collection
from typing import Any, Literal, Never, TypeVar
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec
_Config = TypeVar("_Config")

import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.setting_checks import boolean, check_of, integer, number, one_of
from jaxrl_stack.algorithms.setting_values import is_search_space
from jaxrl_stack.algorithms.settings import ALGORITHM, LEARNER, Section, host, per_module, static, traced
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from jaxrl_stack.utils.notices import notice_once
_OF_SEVERAL_AGENTS: dict[type[Any], type[Any]]
_BASES: Any
_WITH_PRIORITIES: Any
REPLAY_BUFFERS: dict[str, type[Any]]
TD_ERROR_LOSS_FN: Any
DEFAULT_REPLAY_BUFFER: Any
_IMPORT_PATH: Any
_WANTED_TYPE: Any
_KEYS: Any
_ELSEWHERE: Any
_CHECKS: Any
@check_of('int | tuple[int, int]')
def n_step_problem(value: Any) -> str | None:
    ...
def _tuple_if_range(value: Any) -> Any:
    ...
@check_of('dict[str, Any]')
def replay_buffer_config_problem(value: Any) -> str | None:
    ...
def _keys_of(buffer_class: type[Any]) -> tuple[str, ...] | None:
    ...
def merged_replay_buffer_config(present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    ...
@functools.cache
def _imported(path: str) -> Any:
    ...
class OffPolicyConfig(AlgorithmConfig):
    replay_buffer_config: dict[str, Any]
    num_steps_sampled_before_learning_starts: int
    burn_in_len: int
    n_step: int | tuple[int, int]
    training_intensity: float | None
    recorded_share: float | None
    target_network_update_freq: int
    tau: float
    store_buffer_in_checkpoints: bool
    def training(
        self: _Config,
        *,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size: int | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
        replay_buffer_config: dict[str, Any] | type[NotProvided] = ...,
        num_steps_sampled_before_learning_starts: int | type[NotProvided] = ...,
        burn_in_len: int | type[NotProvided] = ...,
        n_step: int | tuple[int, int] | type[NotProvided] = ...,
        training_intensity: float | None | type[NotProvided] = ...,
        recorded_share: float | None | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        store_buffer_in_checkpoints: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    @property
    def reads_recorded_data(self) -> bool:
        ...
    @property
    def max_n_step(self) -> int:
        ...
    def get_rollout_fragment_length(self, worker_index: int=0) -> int:
        ...
    def _hint_of_one_env(self) -> str:
        ...
    @property
    def rounds_per_training_step(self) -> tuple[int, int]:
        ...
    @property
    def replay_buffer_class(self) -> type[Any]:
        ...
    def _of_other_agents(self, kind: Any, found: type[Any]) -> type[Any]:
        ...
    @property
    def replay_buffer_kwargs(self) -> dict[str, Any]:
        ...
    @property
    def replay_zero_init_states(self) -> bool:
        ...
    @property
    def uses_priorities(self) -> bool:
        ...
    @property
    def replay_capacity(self) -> int:
        ...
    @property
    def replay_alpha(self) -> float:
        ...
    @property
    def replay_beta(self) -> float:
        ...
    def _replay_value(self, name: str) -> Any:
        ...
    def validate(self) -> None:
        ...
    def _validate_updates(self) -> None:
        ...
    def _validate_for_device(self) -> None:
        ...
class OffPolicyAlgorithm(Algorithm):
    training_step_class: Any
