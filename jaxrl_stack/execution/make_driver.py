"""Which driver trains: what training reads decides it. Evaluation has a source of its own."""

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
    """The driver of a training step over a source of experience, ready to train and to evaluate.

    What training reads decides: `HostDriver` trains on a host environment, or on rows that come from the host's memory
    (`TrainingStep.reads_on_host`); `DeviceDriver` on a JAX environment, which it steps inside of its program, or on
    what the step keeps on the devices. With learner actors, `HostDriver` sends them what they learn from, and each of
    them runs a `DeviceDriver` (`JoinedDriver`). An environment beside a step that samples none is for evaluation, and
    for its spaces.

    Which environment evaluation steps, its config says: any of these drivers takes either kind, or none
    (`make_evaluation`).

    Args:
        resolved: The config's environment; None without one.
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
