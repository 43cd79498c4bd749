"""Twin delayed deep deterministic policy gradients: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.sac.sac import check_settings_of_modules
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, RUNNER, Section, static, traced
from jaxrl_stack.algorithms.td3.default_td3_rl_module import DefaultTD3RLModule
from jaxrl_stack.algorithms.td3.td3_catalog import TD3Catalog
from jaxrl_stack.algorithms.td3.td3_learner import TD3BCLearner, TD3Learner
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.execution.offline_transitions import OfflineTransitions, refuse_recurrent_networks
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.env.registry import ResolvedEnv
    from jaxrl_stack.execution.training_step import TrainingStep

_OF_SAMPLING = (
    "replay_buffer_config",
    "num_steps_sampled_before_learning_starts",
    "training_intensity",
    "recorded_share",
    "store_buffer_in_checkpoints",
)
"""Settings of replay and of the amount of sampling, which TD3+BC does not read."""


class TD3Config(OffPolicyConfig):
    """Settings of TD3 (Fujimoto et al., 2018, arXiv:1802.09477). If `bc_alpha` is set, the algorithm is TD3+BC
    (Fujimoto & Gu, 2021, arXiv:2106.06860), which learns from recorded data.

    ::

        algo = TD3Config().environment("gymnax/Pendulum-v1").training(policy_delay=2).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("twin_q", True, boolean, "Train two critics and use the minimum of their values.", LEARNER),
            static("policy_delay", 2, integer(1),
                "Number of updates of the critics per update of the policy and of the target networks.", LEARNER),
            static("smooth_target_policy", True, boolean,
                "Whether the target policy's actions have noise in the critics' targets.", LEARNER),
            traced("target_noise", 0.2, number(0, finite=True),
                "Standard deviation of that noise, in units of half the action range.", off=()),
            traced("target_noise_clip", 0.5, number(0, finite=True),
                "Largest absolute value of that noise.", off=()),
            traced("exploration_noise", 0.1, number(0, finite=True, or_schedule=True),
                "Standard deviation of the noise on actions while exploring, in units of half the action range; a "
                "schedule counts sampled env steps.",
                read_by=RUNNER, off=()),
            traced("random_timesteps", 10_000, integer(0),
                "Number of sampled env steps at the start of training with uniformly random actions; 0 with bc_alpha.",
                read_by=RUNNER, off=()),
            traced("bc_alpha", None, number(above=0, finite=True),
                "Weight of the critic's values relative to behaviour cloning. It selects TD3+BC, which learns from "
                "offline_data(input_=...) only; None trains in an environment."),
            traced("actor_lr", 3e-4, amount_or_schedule, "Learning rate of the policy.", check_when_set=False),
            traced("critic_lr", 3e-4, amount_or_schedule, "Learning rate of the critics.", check_when_set=False),
        ), also=("clip_actions",)),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "lr": None,
        "train_batch_size": 256,
        "train_batch_size_per_learner": 256,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
        "num_steps_sampled_before_learning_starts": 10_000,
        "tau": 0.005,
        "evaluation_config": {"explore": False},
        "min_time_s_per_iteration": 1,
        "min_sample_timesteps_per_iteration": 100,
    }

    _algorithm = "TD3"
    _default_learner_class = TD3Learner
    _default_module_class = DefaultTD3RLModule
    _default_catalog_class = TD3Catalog

    @property
    def is_online(self) -> bool:
        """Whether training samples from an environment; False with `bc_alpha`, for TD3+BC on recorded data."""
        return super().is_online and self.bc_alpha is None

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {"twin_q": self.twin_q}

    def get_default_learner_class(self) -> type[Learner]:
        """`TD3Learner`, or `TD3BCLearner` if `bc_alpha` is set."""
        return TD3Learner if self.bc_alpha is None else TD3BCLearner

    def traced_values(self) -> dict[str, Any]:
        """Values of the traced settings, ``{name: value}``, which compiled programs take as arguments.

        With `bc_alpha` (TD3+BC on recorded data), the value of `random_timesteps` is 0, so that no action is drawn
        uniformly at random. TD3+BC samples nothing at the start of training, and its steps are recorded rows.
        """
        values = super().traced_values()
        if self.bc_alpha is not None and "random_timesteps" in values:
            values["random_timesteps"] = np.zeros((), np.float32)
        return values

    def static_value(self, name: str) -> float | None:
        """Returns the value of a setting that compiled programs contain as a constant; None for all other settings.

        A setting is a constant, not an argument, of compiled programs if ``experimental(_static_settings=...)``
        contains the setting's `name`. With `bc_alpha` (TD3+BC on recorded data), the constant of `random_timesteps` is
        0, so that no action is drawn uniformly at random.
        """
        value = super().static_value(name)
        return 0 if name == "random_timesteps" and value is not None and self.bc_alpha is not None else value

    def _resolve_env(self) -> ResolvedEnv:
        if self.env is None and self.bc_alpha is None and self.reads_recorded_data:
            raise ValueError(
                "no environment is set: call config.environment('gymnax/Pendulum-v1'), for example, or "
                "training(bc_alpha=2.5) for TD3+BC, which learns from offline_data(input_=...) only."
            )
        return super()._resolve_env()

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        if self.bc_alpha is not None and self.input_ in (None, "sampler") and self.offline_data_class is None:
            self._value_error(
                f"training(bc_alpha={self.bc_alpha}) selects TD3+BC, which learns from recorded data only. Set "
                "offline_data(input_=[...]), or leave bc_alpha at None."
            )
        super().validate()
        if self.lr is not None:
            self._value_error(
                f"training(lr={self.lr!r}): policy and critics have separate learning rates. Set actor_lr and "
                "critic_lr, and leave lr at None."
            )
        check_settings_of_modules(self)
        if self.bc_alpha is not None:
            self._validate_recorded()

    def _validate_recorded(self) -> None:
        """Raises a ValueError if TD3+BC does not support the value of a setting.

        Also prints a notice for each setting that the user has set, but that has no effect with TD3+BC.
        """
        refuse_recurrent_networks(self)
        if self.n_step != 1:
            self._value_error(f"training(n_step={self.n_step!r}): TD3+BC has one-step targets. Leave n_step at 1.")
        for name in _OF_SAMPLING:
            if name in self.explicitly_set:
                notice_once(f"training({name}=...) has no effect with bc_alpha: TD3+BC samples no environment.")


class TD3Step(OffPolicyStep):
    """Training step of TD3: updates from a replay buffer, or with `bc_alpha` from recorded transitions."""

    @classmethod
    def for_config(cls, config: AlgorithmConfig) -> type[TrainingStep]:
        """Returns the class of the training step for a config. If `bc_alpha` is set, this is a class that trains on
        recorded transitions; otherwise, it is `cls`.
        """
        settings: Any = config
        return cls if settings.bc_alpha is None else OfflineTransitions.for_config(config)


class TD3(OffPolicyAlgorithm):
    """Twin delayed deep deterministic policy gradients; see the README of this folder."""

    training_step_class = TD3Step

    _default_config_class = TD3Config
