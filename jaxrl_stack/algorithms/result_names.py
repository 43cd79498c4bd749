"""Names of the metrics in the training results of an algorithm, derived from its config."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from jaxrl_stack.utils.fingerprints import FINGERPRINT
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import NAN, empty_result, is_name_at_the_root

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def root_logger(config: AlgorithmConfig) -> MetricsLogger:
    """Metrics logger of an algorithm, in which callbacks cannot overwrite the standard entries of results."""
    return MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup, reserved=is_name_at_the_root)


def result_template(
    config: AlgorithmConfig, module_ids: Sequence[str], agent_ids: Iterable[Hashable]
) -> dict[str, Any]:
    """Template of an iteration's result: all metrics that a config reports, each with the value NaN.

    Args:
        config: The config.
        module_ids: Modules that sample and learn.
        agent_ids: Agents of the environment.
    """
    result = empty_result(
        module_ids,
        agent_ids=list(map(str, agent_ids)),
        loss_keys=config.learner_class.all_result_names(),
        evaluation=bool(config.evaluation_interval),
    )
    if config.results_dir and not config.num_learners:
        result[FINGERPRINT] = {"low": NAN, "high": NAN}
    return result


def known_result(config: AlgorithmConfig, module_ids: Sequence[str] = (DEFAULT_MODULE_ID,)) -> dict[str, Any] | None:
    """Template of an iteration's result: all metrics that a config reports, each with the value NaN. None if user code
    may report further metrics.
    """
    given = config.explicitly_set - {"env"}
    code = [type(config), config.algo_class, config.learner_class, *(config.stored_value(name) for name in given)]
    if given & {"rl_module_spec", "policies"} or not _is_of_package(code):
        return None
    return result_template(config, module_ids, [DEFAULT_AGENT_ID])


def _is_of_package(value: Any) -> bool:
    """Whether a value contains no user code: only data, and functions and classes of this package."""
    if isinstance(value, Mapping):
        return all(_is_of_package(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_of_package(item) for item in value)
    return not callable(value) or str(getattr(value, "__module__", "")).startswith("jaxrl_stack.")
