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

from collections.abc import Mapping
from typing import Any
from jaxrl_stack.algorithms.bc.bc_catalog import BCCatalog
from jaxrl_stack.algorithms.bc.bc_learner import BCLearner
from jaxrl_stack.algorithms.bc.default_bc_rl_module import DefaultBCRLModule
from jaxrl_stack.algorithms.marwil.marwil import MARWIL, MARWILConfig
__all__ = ['BC', 'BCConfig']
class BCConfig(MARWILConfig):
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    def validate(self) -> None:
        ...
class BC(MARWIL):
    @classmethod
    def get_default_config(cls) -> BCConfig: ...
    _default_config_class: Any
