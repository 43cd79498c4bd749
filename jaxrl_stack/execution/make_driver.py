"""Which driver trains: the place is that of the environments, or of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.host_driver import HostDriver

if TYPE_CHECKING:
    from jaxrl_stack.env.registry import ResolvedEnv
    from jaxrl_stack.execution.driver import Driver


def make_driver(resolved: ResolvedEnv | None, *args: Any) -> Driver:
    """The driver of a training step over a source of experience.

    Args:
        resolved: The environment; one that JAX can trace is stepped inside of the program. None for a training step
            that needs none: it learns on the device from what it keeps.
        *args: See `Driver`.
    """
    return DeviceDriver(resolved, *args) if resolved is None or resolved.is_jax else HostDriver(*args)
