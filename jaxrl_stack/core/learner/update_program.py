"""An update as a compiled program over the devices of a Learner."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import reductions
from jaxrl_stack.utils.devices import Device, map_over_devices


class UpdateProgram:
    """One update of a learner, compiled: ``(state, batch, settings, counter, ...) -> (new state, metrics)``.

    It donates the state. The metrics leave it as one vector, because fetching a dozen scalars takes longer than a
    small update; `unravel` makes them out of it.

    Args:
        function: Pure; its results are a state and a dict of scalars.
        devices: The devices to run on.
        axis_name: Name of their axis; None for an eager run.
        num_mapped: Further arguments after the counter, ``[D, ...]`` as the batch.
    """

    def __init__(self, function: Callable[..., Any], devices: list[Device], axis_name: str | None, num_mapped: int = 0):
        def program(*args: Any) -> tuple[Any, jax.Array]:
            state, metrics = function(*args)
            vector, self.unravel = reductions.ravel(metrics)
            return state, vector

        self.unravel: Callable[[Any], Any] = lambda vector: vector
        self._axis_name = axis_name
        self._call = map_over_devices(
            program,
            devices,
            axis_name=axis_name,
            in_axes=(None, 0, None, None, *(0,) * num_mapped),
            out_axes=(None, None),
            donate_argnums=(0,),
        )

    def __call__(self, state: Any, batch: Any, settings: Any, counter: Any, *mapped: Any) -> tuple[Any, jax.Array]:
        # NumPy arrays go to the devices in the call itself, in less time than it takes to place them one by one.
        return self._call(state, as_arrays(batch, self._axis_name), settings, counter, *mapped)


def as_arrays(batch: Any, axis_name: str | None) -> Any:
    """NumPy leaves as JAX arrays where no compiled program makes them such: in an eager run."""
    return jax.tree.map(jnp.asarray, batch) if axis_name is None else batch


def signature(tree: Any) -> tuple[Hashable, ...]:
    """Structure, shapes and dtypes of a pytree: what a program is compiled for."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)
