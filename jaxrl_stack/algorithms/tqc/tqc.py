"""Truncated quantile critics: config and algorithm."""

from __future__ import annotations

from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
from jaxrl_stack.algorithms.setting_checks import integer
from jaxrl_stack.algorithms.settings import LEARNER, Section, static
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.algorithms.tqc.tqc_catalog import TQC_MODEL_CONFIG, TQCCatalog
from jaxrl_stack.algorithms.tqc.tqc_learner import TQCLearner
from jaxrl_stack.utils.notices import notice_once


class TQCConfig(SACConfig):
    """Settings of TQC (Kuznetsov et al., 2020, arXiv:2005.04269): SAC's settings and three settings of the critics.

    The three settings are the number of critics, the number of quantiles per critic, and the number of each critic's
    highest quantiles that the target leaves out.

    ::

        algo = TQCConfig().environment("gymnax/Pendulum-v1").training(n_critics=5).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("n_quantiles", TQC_MODEL_CONFIG["n_quantiles"], integer(1),
                "Number of quantiles of the return per critic.", LEARNER),
            static("n_critics", TQC_MODEL_CONFIG["n_critics"], integer(1),
                "Number of critics; twin_q has no effect.", LEARNER),
            static("top_quantiles_to_drop_per_net", TQC_MODEL_CONFIG["top_quantiles_to_drop_per_net"], integer(0),
                "Number of highest quantiles per critic that the target leaves out, below n_quantiles. A larger number "
                "reduces overestimation.", LEARNER),
        )),
    )
    # fmt: on

    _algorithm = "TQC"
    _default_learner_class = TQCLearner
    _default_module_class = DefaultTQCRLModule
    _default_catalog_class = TQCCatalog

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        own = self._model_config_auto_includes
        if own["top_quantiles_to_drop_per_net"] >= own["n_quantiles"]:
            self._value_error(
                f"training(top_quantiles_to_drop_per_net={own['top_quantiles_to_drop_per_net']}) must be below "
                f"n_quantiles={own['n_quantiles']}. Lower it."
            )
        if "td_error_loss_fn" in self.explicitly_set:
            notice_once(
                f"training(td_error_loss_fn={self.td_error_loss_fn!r}) has no effect: TQC's critics learn quantiles by "
                "their own Huber loss."
            )
        if "twin_q" in self.explicitly_set:
            notice_once(
                f"training(twin_q={self.twin_q}) has no effect. Set the number of TQC's critics with "
                f"n_critics={own['n_critics']}."
            )


class TQC(SAC):
    """Truncated quantile critics; see the README of this folder."""

    _default_config_class = TQCConfig
