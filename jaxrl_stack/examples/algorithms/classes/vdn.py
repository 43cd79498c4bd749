"""Value decomposition networks (VDN): agents act independently and learn values whose sum is the team's value."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.examples.learners.classes.vdn_learner import VDNLearner
from jaxrl_stack.examples.rl_modules.classes.q_values_rlm import QValuesRLModule


class VDNConfig(AlgorithmConfig):
    """Config of `VDN`. It adds no settings to `AlgorithmConfig`. Each agent needs a separate policy, and all agents
    must act in every step.
    """

    def __init__(self, algo_class: Any = None):
        super().__init__(algo_class=algo_class or VDN)
        self.num_env_runners = 0
        self.num_epochs = 1
        self.minibatch_size = None
        self.lr = 1e-3

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Returns the spec of a `QValuesRLModule`."""
        return RLModuleSpec(module_class=QValuesRLModule)

    def get_default_learner_class(self) -> type[VDNLearner]:
        """Returns `VDNLearner`."""
        return VDNLearner

    def _default_learner_connectors(self) -> list[ConnectorV2]:
        return [AddNextObservationsFromEpisodesToTrainBatch()]

    def validate(self) -> None:
        """Raises ValueError for settings with which minibatches would contain different env steps for each module: VDN
        adds up the values of all modules for each env step.

        Raises:
            ValueError: `minibatch_size` is not None, or `num_epochs` is not 1.
        """
        super().validate()
        if self.minibatch_size is not None or self.num_epochs != 1:
            raise ValueError(
                f"training(minibatch_size={self.minibatch_size!r}, num_epochs={self.num_epochs!r}): VDN adds up the "
                "values of all modules for each env step, but minibatches contain different steps for each module. "
                "Leave both settings out."
            )


class VDN(Algorithm):
    """Value decomposition networks: Q-learning of a team of agents. Each train batch consists of new samples and gives
    one update. VDN has no replay buffer.
    """

    @classmethod
    def get_default_config(cls) -> VDNConfig:
        """Returns a `VDNConfig` with its defaults."""
        return VDNConfig()
