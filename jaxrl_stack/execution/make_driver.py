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

    A host environment that the step samples is stepped by `HostDriver`. Everything else runs on the device, with
    learner actors in each of these: a JAX environment, inside of the program, and a step that samples none and learns
    from what it keeps. Where such a step's config names a host environment, that is for evaluation.

    Which environment evaluation steps, its config says: any of these drivers takes either kind, or none
    (`make_evaluation`).

    Args:
        resolved: The config's environment; None without one.
        algorithm, config, step, callbacks: See `Driver`.

    Raises:
        ValueError: If sizes, spaces or resources do not fit; names the settings.
    """
    of_driver = (algorithm, config, step, callbacks)
    if step.needs_env and resolved is not None and not resolved.is_jax:
        driver: Driver = HostDriver(*of_driver)
    else:
        driver_class = JoinedDriver if config.num_learners else DeviceDriver
        driver = driver_class(resolved if resolved is not None and resolved.is_jax else None, *of_driver)
    try:
        driver.evaluation.start()
    except BaseException:
        driver.stop()
        raise
    return driver
