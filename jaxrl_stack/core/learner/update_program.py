"""Compiled program of an update on the devices of a Learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.traced_metrics import MetricKey
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.utils import devices

AXIS_NAME = "devices"
"""Name of the mapped axis of every learner program."""


class UpdateProgram:
    """Compiled program of one update on a learner's devices; it is compiled for each combination of argument shapes.

    It donates the whole state except parameters and PRNG keys. Parameters become new arrays, so that a policy in this
    process can act with the old ones without a copy. Metrics are returned as one vector, because fetching a dozen
    scalars takes longer than a small update, and stay on the devices until they are fetched.

    Args:
        function: Pure, ``(state, batch, settings, counter, *mapped) -> (state, metrics)``, or ``(state, metrics,
            metrics per row)``.
        of_devices: Devices of the program.
        axis_name: Name of the device axis; None for an eager run.
        key_refs: Refs of the PRNG keys in the modules' other state.
        num_mapped: Number of further arguments after the counter, with leaves ``[D, ...]`` like the batch.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        of_devices: list[devices.Device],
        axis_name: str | None,
        *,
        key_refs: Sequence[str],
        num_mapped: int = 0,
    ):
        def program(params: Any, others: Any, bits: Any, batch: Any, settings: Any, counter: Any, *mapped: Any) -> Any:
            keys = jax.tree.map(jax.random.wrap_key_data, bits)
            state, metrics, *rows = function(_joined(params, others, keys), batch, settings, counter, *mapped)
            others, new_keys = self._split(state)
            unchanged = jax.tree.map(lambda new, old: new is old, new_keys, keys)
            bits = () if jax.tree.all(unchanged) else jax.tree.map(jax.random.key_data, new_keys)
            return state.params, others, bits, Flat.of(metrics), *(rows or ({},))

        self._num_devices = len(of_devices)
        self._is_eager = axis_name is None
        # Without an axis no reductions are compiled: they take half of the time of a small update on one device.
        self._is_mapped = self._is_eager or len(devices.joined_devices(of_devices)) > 1
        self._key_refs = key_refs
        self._bits: tuple[Any, Any] = (None, None)
        if self._is_mapped:
            self._call = devices.map_over_devices(
                program,
                of_devices,
                axis_name=axis_name,
                in_axes=(None, None, None, 0, None, None, *(0,) * num_mapped),
                out_axes=(None, None, None, None, 0),
                donate_argnums=(1,),
            )
        else:
            self._call = jax.jit(program, donate_argnums=(1,), out_shardings=devices.replicated_sharding(of_devices))

    def __call__(
        self, state: LearnerState, batch: Any, settings: Any, counter: np.ndarray, *mapped: Any, is_dealt: bool = True
    ) -> tuple[LearnerState, Flat, dict[MetricKey, np.ndarray]]:
        """Makes one update and waits until the update is finished. The caller may then overwrite its NumPy arrays,
        because no device reads them any more.

        Args:
            state: State of the learner; everything except parameters and PRNG keys is donated.
            batch: NumPy leaves ``[D, ...]``.
            settings: Settings on the devices.
            counter: uint32[2], lifetime env steps.
            *mapped: Further arguments like the batch.
            is_dealt: False for a batch of rows ``[N, ...]``, where N is a multiple of D.

        Returns:
            ``(state, metrics, values that were logged per row, float32 [N, ...])``.
        """
        if is_dealt and not self._is_mapped:
            batch, mapped = jax.tree.map(lambda x: x[0], (batch, mapped))
        elif self._is_mapped and not is_dealt:
            batch = jax.tree.map(lambda x: x.reshape(self._num_devices, -1, *x.shape[1:]), batch)
        others, keys = self._split(state)
        if self._bits[0] is not keys["key"]:
            self._bits = (keys["key"], jax.tree.map(jax.random.key_data, keys))
        # The call itself transfers NumPy arrays to the devices, which is faster than placing them one by one.
        params, others, bits, metrics, rows = self._call(
            state.params, others, self._bits[1], as_arrays(batch, self._is_eager), settings, counter, *mapped
        )
        if bits:
            keys = jax.tree.map(jax.random.wrap_key_data, bits)
        if not rows:
            metrics.vector.block_until_ready()
        rows = {path: self._fetched_row(row) for path, row in rows.items()}
        return _joined(params, others, keys), metrics, rows

    def _fetched_row(self, row: jax.Array) -> np.ndarray:
        """Fetches a metric with one value per row, ``[N, ...]``, from all devices to the host."""
        if not self._is_mapped:
            return np.asarray(row)
        shards = np.asarray(row) if self._is_eager else devices.own_shards(row)
        return shards.reshape(-1, *shards.shape[2:])

    def _split(self, state: LearnerState) -> tuple[LearnerState, dict[str, Any]]:
        """Removes the PRNG keys and the parameters from a learner state, because compiled programs take and return them
        as separate values. Returns ``(remaining state, keys)``.

        A key that a program takes and returns costs as much time as several arrays. Keys rarely change: programs derive
        their random numbers from them and from the number of updates.
        """
        rest = dict(state.rest)
        keys = {"key": state.key, "rest": {ref: rest.pop(ref) for ref in self._key_refs}}
        return dataclasses.replace(state, params={}, rest=rest, key=None), keys


def _joined(params: Any, others: LearnerState, keys: Mapping[str, Any]) -> LearnerState:
    """Inserts parameters and PRNG keys into the learner state `others`, which has neither, and returns the complete
    state. Inverse of `UpdateProgram._split`.
    """
    return dataclasses.replace(others, params=params, rest={**others.rest, **keys["rest"]}, key=keys["key"])


def fetched(metrics: Flat | None) -> dict[MetricKey, Any]:
    """Copies an update's metrics from the devices to the host, ``{path: value}``; {} if the program returned none."""
    return {} if metrics is None else metrics.unravel(np.asarray(devices.host_view(metrics.vector)))


def as_arrays(batch: Any, is_eager: bool) -> Any:
    """Converts NumPy arrays to JAX arrays if nothing is compiled (``disable_jit``); a compiled program converts
    its NumPy arguments itself.
    """
    return jax.tree.map(jnp.asarray, batch) if is_eager else batch


def signature(tree: Any) -> tuple[Hashable, ...]:
    """Returns a hashable key of a pytree's structure, shapes and dtypes, by which compiled programs are stored."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)
