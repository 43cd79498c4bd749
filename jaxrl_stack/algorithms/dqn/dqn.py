"""Deep Q-learning: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.dqn_catalog import DQN_MODEL_CONFIG, DQNCatalog, num_discrete_actions
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.off_policy import TD_ERROR_LOSS_FN, OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.setting_checks import anything, boolean, integer, number
from jaxrl_stack.algorithms.settings import RUNNER, Section, inert, per_module, traced
from jaxrl_stack.utils.notices import notice_once


class DQNConfig(OffPolicyConfig):
    """Settings of DQN (Mnih et al., 2015, doi:10.1038/nature14236) and of Rainbow (Hessel et al., 2018,
    arXiv:1710.02298). Each extension of Rainbow can be switched on separately.

    ::

        algo = DQNConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            traced("epsilon", [(0, 1.0), (10000, 0.05)], number(0, 1, or_schedule=True),
                "Probability of a random action in exploration; a schedule counts sampled env steps.",
                read_by=RUNNER),
            per_module("double_q", True, boolean,
                "Double Q-learning: the network chooses the action of a target, the target network evaluates it."),
            per_module("dueling", True, boolean,
                "Compute Q-values from two heads: state values and advantages of actions."),
            per_module("num_atoms", 1, integer(1),
                "Number of atoms of return distributions (51 in C51); 1 learns expected values."),
            per_module("v_min", -10.0, number(finite=True), "The lowest atom; lower returns are clipped to it."),
            per_module("v_max", 10.0, number(finite=True), "The highest atom; higher returns are clipped to it."),
            per_module("noisy", False, boolean,
                "Noisy layers in the heads, which explore without random actions: use it with epsilon=0.0."),
            per_module("sigma0", 0.5, number(0, finite=True),
                "Initial standard deviation of their noise, times the square root of a layer's inputs."),
            TD_ERROR_LOSS_FN,
            per_module("adam_epsilon", 1e-8, number(0, finite=True), "Epsilon of Adam."),
            inert("hiddens", [256], anything("list[int]"),
                "Widths of the heads' hidden layers in RLlib's old stack.",
                instead="use rl_module(model_config={'head_fcnet_hiddens': [...]})."),
            inert("categorical_distribution_temperature", 1.0, number(above=0),
                "Temperature of actions drawn by their Q-values in RLlib's old stack.",
                instead="exploration is epsilon-greedy; other ways go into RLModule._forward_exploration()."),
            inert("before_learn_on_batch", None, anything("Callable[..., Any]"),
                "A function of the train batch in RLlib's old stack.",
                instead="use connectors, learners(learner_connector=...)."),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "lr": 5e-4,
        "train_batch_size": 32,
        "grad_clip": 40.0,
        "target_network_update_freq": 500,
        "min_sample_timesteps_per_iteration": 1000,
        "evaluation_config": {"explore": False},
    }

    _algorithm = "DQN"
    _default_learner_class = DQNLearner
    _default_module_class = DefaultDQNRLModule
    _default_catalog_class = DQNCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        own = {name: getattr(self, "sigma0" if name == "std_init" else name) for name in DQN_MODEL_CONFIG}
        return super()._model_config_auto_includes | own

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if self.action_space is not None:
            num_discrete_actions(self.action_space)
        if self.num_atoms > 1 and not self.v_min < self.v_max:
            self._value_error(
                f"training(v_min={self.v_min}, v_max={self.v_max}): v_min must be below v_max for num_atoms="
                f"{self.num_atoms}. Set them to the smallest and the largest expected return."
            )
        self._validate_that_settings_have_an_effect()

    def _validate_that_settings_have_an_effect(self) -> None:
        for names, has_effect, why in (
            (("v_min", "v_max"), self.num_atoms > 1, "they belong to distributions of returns: set num_atoms=51"),
            (("td_error_loss_fn",), self.num_atoms == 1, "distributions are learned by their cross-entropy"),
            (("sigma0",), self.noisy, "it belongs to noisy layers: set noisy=True"),
        ):
            given = [name for name in names if name in self.explicitly_set]
            if given and not has_effect and not self.algorithm_config_overrides_per_module:
                values = ", ".join(f"{name}={vars(self)[name]!r}" for name in given)
                notice_once(f"training({values}) has no effect: {why}.")
        if self.noisy and "epsilon" not in self.explicitly_set:
            notice_once(
                "training(noisy=True): epsilon-greedy exploration is still enabled. To explore only by noise, as "
                "Rainbow does, set training(epsilon=0.0)."
            )


class DQN(OffPolicyAlgorithm):
    """Deep Q-learning; see the README of this folder."""

    _default_config_class = DQNConfig
