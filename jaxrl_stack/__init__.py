"""RLlib's new API stack on JAX: the same calls, compiled from environment to optimizer.

Importing this module is cheap: it starts no JAX backend and imports neither gymnax nor Ray. Public names live where
RLlib has them, with ``ray.rllib`` replaced by ``jaxrl_stack``, for example
``from jaxrl_stack.algorithms.ppo import PPOConfig``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from jaxrl_stack.tune.registration import install as _connect_with_tune
from jaxrl_stack.utils.coming import ComingModules
from jaxrl_stack.utils.torch_names import TorchNamesFinder

if TYPE_CHECKING:
    from jaxrl_stack import distributed
    from jaxrl_stack.utils.devices import use_cpu_devices

__version__ = "0.1.0"

__all__ = ["__version__", "distributed", "use_cpu_devices"]


if not any(isinstance(finder, TorchNamesFinder) for finder in sys.meta_path):
    sys.meta_path += [ComingModules(), TorchNamesFinder()]
# Imports nothing: it waits for ray.tune.
_connect_with_tune()


def __getattr__(name: str) -> Any:
    # Imported when asked for: their modules import jax.
    if name == "distributed":
        return importlib.import_module(f"{__name__}.distributed")
    if name == "use_cpu_devices":
        from jaxrl_stack.utils.devices import use_cpu_devices

        return use_cpu_devices
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
