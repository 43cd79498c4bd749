"""Factories of a driver's evaluations: in an environment, which may differ from the training environment, or on
held-out data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxrl_stack.execution.device_evaluation import DeviceEvaluation
from jaxrl_stack.execution.evaluation import Evaluation
from jaxrl_stack.execution.held_out_evaluation import HeldOutEvaluation, HeldOutRows
from jaxrl_stack.execution.host_evaluation import HostEvaluation
from jaxrl_stack.execution.no_evaluation import NoEvaluation

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.local_driver import LocalDriver


def make_evaluation(
    driver: Driver, *, on_device: Callable[[Driver, AlgorithmConfig], Evaluation] = DeviceEvaluation
) -> Evaluation:
    """Creates the `Evaluation` of a driver's modules. The environment in the evaluation config (a JAX
    environment, a host environment or none) decides the class.

    Args:
        driver: Driver with spaces and learners.
        on_device: Class of the evaluation in a JAX environment.

    Raises:
        ValueError: If a JAX environment has other spaces than training, or the networks of evaluation do not fit. For
            host environments, `Evaluation.start` raises it.
    """
    config = driver.config.get_evaluation_config_object()
    assert config is not None, "a driver has the config of training"
    if config.env is None:
        return NoEvaluation(driver, config)
    return (on_device if config.samples_on_device else HostEvaluation)(driver, config)


def make_data_evaluation(driver: LocalDriver) -> HeldOutEvaluation | None:
    """Creates the evaluation on held-out recorded steps; None if the training step holds out no steps.

    Args:
        driver: Driver with learners and a planned training step.

    Raises:
        ValueError: If the held-out rows do not fit modules or devices.
        TypeError: If they are not rows.
    """
    rows = driver.step.held_out_rows()
    return None if rows is None else HeldOutEvaluation(driver, HeldOutRows(driver, rows))
