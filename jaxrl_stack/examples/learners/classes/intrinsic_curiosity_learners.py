"""Learners that train an intrinsic curiosity model together with the policy."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    NumpyToTensor,
)
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.examples.connectors.classes.intrinsic_rewards import AddIntrinsicRewards

ICM_MODULE_ID = "_intrinsic_curiosity_model"


class IntrinsicCuriosityModelConnector(AddIntrinsicRewards):
    """Learner connector that adds intrinsic rewards, times a weight, to the policy's rewards. By default, the module
    with the id `ICM_MODULE_ID` computes the intrinsic rewards; see `AddIntrinsicRewards`.
    """

    def __init__(self, *args: Any, module_id: str = ICM_MODULE_ID, **kwargs: Any):
        super().__init__(*args, module_id=module_id, **kwargs)


def add_intrinsic_curiosity_connectors(learner: Learner) -> None:
    """Adds two connectors to a learner's pipeline. One adds next observations to the train batch, the other adds
    intrinsic rewards to the policy's rewards.

    Args:
        learner: Its pipeline is changed, unless the config leaves out default connectors. Its config has
            ``learners(learner_config_dict={"intrinsic_reward_coeff": ..., "forward_loss_weight": ...})``: the weight of
            the intrinsic rewards, and that of the forward loss of an `IntrinsicCuriosityModel`.

    Raises:
        KeyError: One of these two is not set.
    """
    settings = learner.config.learner_config_dict
    missing = {"intrinsic_reward_coeff", "forward_loss_weight"} - settings.keys()
    if missing:
        raise KeyError(
            f"learners(learner_config_dict={settings}) lacks {sorted(missing)}, which curiosity needs. Add them, such "
            "as {'intrinsic_reward_coeff': 0.05, 'forward_loss_weight': 0.2}."
        )
    if learner.config.add_default_connectors_to_learner_pipeline:
        coefficient = settings["intrinsic_reward_coeff"]
        pipeline: Any = learner._learner_connector
        pipeline.insert_after(NumpyToTensor, IntrinsicCuriosityModelConnector(intrinsic_reward_coeff=coefficient))
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())


class PPOLearnerWithCuriosity(PPOLearner):
    """PPO with an intrinsic curiosity model, which learns from the same steps as the policy.

    The model's prediction errors, times a weight, are added to the rewards; see `add_intrinsic_curiosity_connectors`.
    """

    def build(self) -> None:
        super().build()
        add_intrinsic_curiosity_connectors(self)


class DQNLearnerWithCuriosity(DQNLearner):
    """DQN with an intrinsic curiosity model, trained on the replayed steps; use ``n_step=1``."""

    def build(self) -> None:
        super().build()
        add_intrinsic_curiosity_connectors(self)
