"""Parallelised Q-network: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.dqn.dqn_catalog import num_discrete_actions
from jaxrl_stack.algorithms.pqn.default_pqn_rl_module import DefaultPQNRLModule
from jaxrl_stack.algorithms.pqn.pqn_catalog import PQN_MODEL_CONFIG, PQNCatalog
from jaxrl_stack.algorithms.pqn.pqn_learner import PQNLearner
from jaxrl_stack.algorithms.setting_checks import boolean, check_of, number
from jaxrl_stack.algorithms.settings import RUNNER, Section, per_module, static, traced
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.connectors.connector_v2 import ConnectorV2


@check_of("list[float] | tuple[float, ...]")
def _rates(value: Any) -> str | None:
    """Checks a list of exploration probabilities, one for each environment. Returns a description of valid values if
    `value` is invalid, else None.
    """
    one = number(0, 1)
    if isinstance(value, (list, tuple)) and value and all(one(rate) is None for rate in value):
        return None
    return "None, or a list with a probability for each environment, such as [0.4, 0.1, 0.02, 0.0]"


class PQNConfig(AlgorithmConfig):
    """Settings of PQN (Gallici et al., 2024, arXiv:2407.04811): Q-learning with lambda returns from many parallel
    environments, without a replay buffer and without target networks.

    ::

        algo = PQNConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            traced("lambda_", 0.65, number(0, 1),
                "Trace decay of the lambda returns: 1 gives returns with a bootstrap value, 0 one-step targets."),
            traced("epsilon", PQN_MODEL_CONFIG["epsilon"], number(0, 1, or_schedule=True),
                "Probability of a random action while exploring; a schedule counts sampled env steps.",
                read_by=RUNNER),
            static("epsilon_per_env", PQN_MODEL_CONFIG["epsilon_per_env"], _rates,
                "A probability of a random action for each environment of a runner, in place of epsilon. Where other "
                "numbers of environments explore, such as in an evaluation, rates repeat from the first.", RUNNER),
            per_module("layer_norm", PQN_MODEL_CONFIG["layer_norm"], boolean,
                "Layer normalisation before each activation, which keeps Q-values stable without target networks."),
            per_module("adam_epsilon", 1e-8, number(0, finite=True), "Epsilon of the optimizer, rectified Adam."),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "num_envs_per_env_runner": 64,
        "rollout_fragment_length": "auto",
        "lr": 2.5e-4,
        "grad_clip": 10.0,
        "train_batch_size": 2048,
        "num_epochs": 2,
        "minibatch_size": 128,
        "shuffle_batch_per_epoch": True,
        "evaluation_config": {"explore": False},
    }

    _algorithm = "PQN"
    _default_learner_class = PQNLearner
    _default_module_class = DefaultPQNRLModule
    _default_catalog_class = PQNCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {name: getattr(self, name) for name in PQN_MODEL_CONFIG}

    def _default_learner_connectors(self) -> list[ConnectorV2]:
        return [GeneralAdvantageEstimation(gamma=self.static_value("gamma"), lambda_=self.static_value("lambda_"))]

    def validate(self) -> None:
        super().validate()
        if self.action_space is not None:
            num_discrete_actions(self.action_space, "PQN")
        self.validate_train_batch_size_vs_rollout_fragment_length()
        self._validate_minibatch_size()
        self._validate_epsilon_per_env()

    def _validate_epsilon_per_env(self) -> None:
        rates = self.epsilon_per_env
        if rates is None:
            return
        if self.is_multi_agent:
            self._value_error(
                f"training(epsilon_per_env={list(rates)}) needs a single agent: with several agents, a "
                "row is an agent and not an environment. Use training(epsilon=...)."
            )
        if len(rates) != self.num_envs_per_env_runner and not self.in_evaluation:
            self._value_error(
                f"training(epsilon_per_env=...) has {len(rates)} rates for num_envs_per_env_runner="
                f"{self.num_envs_per_env_runner}: give one for each environment."
            )
        if "epsilon" in self.explicitly_set:
            notice_once(f"training(epsilon={self.epsilon!r}) has no effect: epsilon_per_env has the rates.")


class PQN(Algorithm):
    """Parallelised Q-network; see the README of this folder."""

    _default_config_class = PQNConfig
