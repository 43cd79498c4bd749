"""Soft actor-critic: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.off_policy import (
    DEFAULT_REPLAY_BUFFER,
    TD_ERROR_LOSS_FN,
    OffPolicyAlgorithm,
    OffPolicyConfig,
)
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.algorithms.sac.sac_learner import SACLearner
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, anything, boolean, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, inert, static, traced

_OLD_MODEL = "rl_module(model_config=...) describes the networks."
_OLD_LEARNING_RATES = "Set training(actor_lr=..., critic_lr=..., alpha_lr=...)."
_OLD_OPTIMIZATION = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "entropy_learning_rate": 3e-4}
_OLD_MODEL_CONFIG: dict[str, Any] = {
    "fcnet_hiddens": [256, 256],
    "fcnet_activation": "relu",
    "post_fcnet_hiddens": [],
    "post_fcnet_activation": None,
    "custom_model": None,
    "custom_model_config": {},
}


def check_settings_of_modules(config: Any) -> None:
    """Raises a ValueError if a setting has different values in ``rl_module(model_config=...)`` and ``training()``.

    An example of such a setting is ``twin_q``. Compares only the settings that the config adds to the model config:
    `own_settings` of the algorithm's default module class.

    Raises:
        ValueError: Names the setting and both values.
    """
    for name in config._default_module_class.own_settings:
        in_module, own = config.model_config[name], vars(config)[name]
        if in_module != own:
            config._value_error(
                f"rl_module(model_config={{{name!r}: {in_module!r}}}) differs from training({name}={own!r}). Set it "
                "only with training(), which passes it to the module."
            )


class SACConfig(OffPolicyConfig):
    """Settings of SAC (Haarnoja et al., 2018, arXiv:1812.05905).

    ::

        algo = SACConfig().environment("gymnax/Pendulum-v1").training(actor_lr=3e-4).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("twin_q", True, boolean, "Train two critics and use the minimum of their values.", LEARNER),
            static("initial_alpha", 1.0, number(above=0, finite=True),
                "Initial temperature, the weight of the policy's entropy; it is then trained.", LEARNER),
            traced("target_entropy", "auto", number(also=("auto", None), finite=True),
                "Target entropy of the policy in nats, for the temperature. 'auto' (or None) is minus the number of an "
                "action's components, and -1 for discrete actions.",
                off=("auto", None), type="float | Literal['auto'] | None"),
            TD_ERROR_LOSS_FN,
            traced("actor_lr", 3e-5, amount_or_schedule, "Learning rate of the policy.", check_when_set=False),
            traced("critic_lr", 3e-4, amount_or_schedule, "Learning rate of the critics.", check_when_set=False),
            traced("alpha_lr", 3e-4, amount_or_schedule,
                "Learning rate of the temperature's logarithm.", check_when_set=False),
            inert("q_model_config", _OLD_MODEL_CONFIG, anything("dict[str, Any]"),
                "Networks of the critics, in RLlib's old stack.", merge=True, instead=_OLD_MODEL),
            inert("policy_model_config", _OLD_MODEL_CONFIG, anything("dict[str, Any]"),
                "Network of the policy, in RLlib's old stack.", merge=True, instead=_OLD_MODEL),
            inert("optimization_config", _OLD_OPTIMIZATION, anything("dict[str, Any]"),
                "Learning rates, in RLlib's old stack.", attribute="optimization", instead=_OLD_LEARNING_RATES),
            inert("_deterministic_loss", False, boolean,
                "A loss without drawn actions, in RLlib's old stack.",
                instead="Override DefaultSACRLModule.get_train_action_dist_cls() for other draws."),
            inert("_use_beta_distribution", False, boolean,
                "A Beta distribution in the place of the squashed Gaussian, in RLlib's old stack.",
                instead="Override SACCatalog.get_action_dist_cls() for another distribution."),
        ), also=("clip_actions",)),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "lr": None,
        "train_batch_size": 256,
        "train_batch_size_per_learner": 256,
        "replay_buffer_config": {**DEFAULT_REPLAY_BUFFER, "capacity": 1_000_000},
        "num_steps_sampled_before_learning_starts": 1500,
        "tau": 0.005,
        "min_time_s_per_iteration": 1,
        "min_sample_timesteps_per_iteration": 100,
    }

    _algorithm = "SAC"
    _default_learner_class = SACLearner
    _default_module_class: type[DefaultSACRLModule] = DefaultSACRLModule
    _default_catalog_class = SACCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {
            name: getattr(self, name) for name in self._default_module_class.own_settings
        }

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if self.lr is not None:
            self._value_error(
                f"training(lr={self.lr!r}): policy, critics and temperature have separate learning rates. Set "
                "actor_lr, critic_lr and alpha_lr, and leave lr at None."
            )
        if self.grad_clip is not None and self.grad_clip <= 0:
            self._value_error(f"training(grad_clip={self.grad_clip!r}) must be above 0; None switches clipping off.")
        check_settings_of_modules(self)


class SAC(OffPolicyAlgorithm):
    """Soft actor-critic; see the README of this folder."""

    _default_config_class = SACConfig
