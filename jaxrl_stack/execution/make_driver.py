"""Which driver trains: the place is that of the environments, or of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.host_driver import HostDriver
from jaxrl_stack.execution.joined_driver import JoinedDriver

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.registry import ResolvedEnv
    from jaxrl_stack.execution.driver import Driver


def make_driver(resolved: ResolvedEnv | None, algorithm: Algorithm, config: AlgorithmConfig, *more: Any) -> Driver:
    """The driver of a training step over a source of experience.

    Args:
        resolved: The environment; one that JAX can trace is stepped inside of the program. None for a training step
            that needs none: it learns on the device from what it keeps.
        algorithm, config, step, callbacks: See `Driver`. With learner actors, each of these runs the device's driver.
    """
    if resolved is not None and not resolved.is_jax:
        return HostDriver(algorithm, config, *more)
    driver_class = JoinedDriver if config.num_learners else DeviceDriver
    return driver_class(resolved, algorithm, config, *more)
