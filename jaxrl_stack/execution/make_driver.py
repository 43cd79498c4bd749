"""Factory function of drivers. The driver's class depends on the source that training reads: a JAX environment, a host
environment or recorded data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.host_driver import HostDriver
from jaxrl_stack.execution.joined_driver import JoinedDriver

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.env.registry import ResolvedEnv
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.training_step import TrainingStep


def make_driver(
    resolved: ResolvedEnv | None,
    algorithm: Algorithm,
    config: AlgorithmConfig,
    step: TrainingStep,
    callbacks: CallbackList,
) -> Driver:
    """Creates the driver that runs a training step.

    The environment or data that the training step reads decides the driver's class. The returned driver can train and
    evaluate.

    The source of training decides. `HostDriver` trains on a host environment, or on rows from the host's memory
    (`TrainingStep.reads_on_host`). `DeviceDriver` trains on a JAX environment inside of its program, or on data that
    the step keeps on the devices. With learner actors, `HostDriver` sends them batches, and for JAX environments each
    actor runs a `DeviceDriver` (`JoinedDriver`). If the step samples no environment, an environment is for evaluation
    and for its spaces.

    Evaluation's config chooses its environment: every driver supports both kinds, or none (`make_evaluation`).

    Args:
        resolved: The config's environment, or None.
        algorithm, config, step, callbacks: See `Driver`.

    Raises:
        ValueError: If sizes, spaces or resources do not fit; names the settings.
    """
    of_driver = (algorithm, config, step, callbacks)
    is_jax = resolved is not None and resolved.is_jax
    if not is_jax if step.needs_env else step.reads_on_host:
        driver: Driver = HostDriver(*of_driver)
    else:
        driver_class = JoinedDriver if config.num_learners else DeviceDriver
        driver = driver_class(resolved if is_jax else None, *of_driver)
    try:
        driver.evaluation.start()
    except BaseException:
        driver.stop()
        raise
    return driver
