"""Behaviour cloning: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.bc.bc_catalog import BCCatalog
from jaxrl_stack.algorithms.bc.bc_learner import BCLearner
from jaxrl_stack.algorithms.bc.default_bc_rl_module import DefaultBCRLModule
from jaxrl_stack.algorithms.marwil.marwil import MARWIL, MARWILConfig

__all__ = ["BC", "BCConfig"]


class BCConfig(MARWILConfig):
    """Settings of behaviour cloning.

    ::

        config = BCConfig().environment("CartPole-v1").offline_data(input_=["data/cartpole"])
        algo = config.training(train_batch_size_per_learner=1024).build_algo()
    """

    _defaults: Mapping[str, Any] = {"beta": 0.0, "materialize_data": False, "materialize_mapped_data": True}

    _algorithm = "BC"
    _default_learner_class = BCLearner
    _default_module_class = DefaultBCRLModule
    _default_catalog_class = BCCatalog

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if self.beta != 0:
            self._value_error(
                f"training(beta={self.beta}) weighs advantages, which behaviour cloning (BC) does not compute. Leave "
                "it at 0, or use MARWILConfig (from jaxrl_stack.algorithms.marwil import MARWILConfig)."
            )


class BC(MARWIL):
    """Behaviour cloning; see the README of this folder."""

    _default_config_class = BCConfig
