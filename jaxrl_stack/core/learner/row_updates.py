"""Updates from rows that were drawn from replay, as one compiled program that keeps its metrics on the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.update_program import as_arrays
from jaxrl_stack.ops import reductions
from jaxrl_stack.utils.devices import (
    Device,
    all_shards,
    host_view,
    joined_devices,
    map_over_devices,
    replicated_sharding,
)

MetricKey = tuple[str, ...]


class RowUpdates:
    """`TracedUpdate.pure_step` over the devices of a Learner, one compiled program per shape of batch.

    It donates all of the state but the parameters: these become new arrays, so that a policy in this process acts with
    the old ones without a copy. Fetching metrics takes about as long as a small update: the last ones stay where they
    are until they are asked for.

    Args:
        pure_step: ``(state, batch, settings, counter, axis_name=...) -> (state, metrics, metrics per row)``.
        devices: The devices to run on.
        axis_name: Name of their axis; None for an eager run.
    """

    def __init__(self, pure_step: Callable[..., Any], devices: list[Device], axis_name: str | None):
        # Without an axis, reductions over it are not there at all: they are half of a small update on one device.
        self._is_mapped = axis_name is not None and len(joined_devices(devices)) > 1
        axis_of_step = axis_name if self._is_mapped else None

        def program(params: Any, others: Any, bits: Any, batch: Any, settings: Any, counter: Any) -> tuple[Any, ...]:
            keys = jax.tree.map(jax.random.wrap_key_data, bits)
            state = _joined(params, others, keys)
            state, metrics, rows = pure_step(state, batch, settings, counter, axis_name=axis_of_step)
            vector, self._unravel = reductions.ravel(metrics)
            self._row_keys = tuple(rows)
            table = jnp.stack([rows[key] for key in self._row_keys]) if rows else jnp.zeros((0, 0), jnp.float32)
            params, (others, new_keys) = state.params, self._split(state)
            unchanged = jax.tree.map(lambda new, old: new is old, new_keys, keys)
            self._keeps_keys = jax.tree.all(unchanged)
            bits = () if self._keeps_keys else jax.tree.map(jax.random.key_data, new_keys)
            return params, others, bits, vector, table

        self._num_devices = len(devices)
        self._axis_name = axis_name
        self._vector: Any = None
        self._keeps_keys = True
        self._streams: tuple[str, ...] | None = None
        self._bits: tuple[Any, Any] = (None, None)
        self._unravel: Callable[[Any], Any] = lambda vector: vector
        self._row_keys: tuple[MetricKey, ...] = ()
        if axis_name is None or self._is_mapped:
            self._call = map_over_devices(
                program,
                devices,
                axis_name=axis_name,
                in_axes=(None, None, None, 0, None, None),
                out_axes=(None, None, None, None, 0),
                donate_argnums=(1,),
            )
        else:
            self._call = jax.jit(program, donate_argnums=(1,), out_shardings=replicated_sharding(devices))

    def __call__(
        self, state: LearnerState, batch: Mapping[str, Mapping[str, Any]], settings: Any, counter: np.ndarray
    ) -> tuple[LearnerState, Any]:
        """One update.

        Args:
            state: Of the learner; all of it but the parameters is gone afterwards.
            batch: ``{module_id: {column: [N, ...]}}``, NumPy; N divides by the number of devices.
            settings: On the devices.
            counter: uint32[2], lifetime env steps.

        Returns:
            ``(state, what was logged per row)``; `rows` reads the latter.
        """
        if self._is_mapped or self._axis_name is None:
            batch = as_arrays(jax.tree.map(self._deal_out, batch), self._axis_name)
        others, keys = self._split(state)
        if self._bits[0] is not keys["key"]:
            self._bits = (keys["key"], jax.tree.map(jax.random.key_data, keys))
        params, others, bits, self._vector, table = self._call(
            state.params, others, self._bits[1], batch, settings, counter
        )
        if not self._keeps_keys:
            keys = jax.tree.map(jax.random.wrap_key_data, bits)
        return _joined(params, others, keys), table

    def _split(self, state: LearnerState) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a state has besides parameters and PRNG keys, and these keys.

        Each key that a program takes and returns costs as much as several arrays, and they hardly ever change: programs
        derive their random numbers from them and from the number of updates.
        """
        if self._streams is None:
            is_key = {ref: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for ref, leaf in state.rest.items()}
            self._streams = tuple(ref for ref, found in is_key.items() if found)
        rest = dict(state.rest)
        keys = {"key": state.key, "rest": {ref: rest.pop(ref) for ref in self._streams}}
        others = (rest, state.optimizers, state.extra, state.connector, state.timesteps, state.num_updates)
        return others, keys

    def _deal_out(self, x: Any) -> np.ndarray:
        return x.reshape(self._num_devices, -1, *x.shape[1:])

    def rows(self, table: Any) -> dict[MetricKey, np.ndarray]:
        """What the loss logged per row, ``{(module_id, name): float32 [N]}`` in the order of the batch."""
        if self._is_mapped:
            own = np.moveaxis(all_shards(table), 0, 1)  # [D, k, n] -> [k, D * n]
            own = own.reshape(own.shape[0], -1)
        else:
            own = np.asarray(table)
            own = own[0] if self._axis_name is None else own
        return dict(zip(self._row_keys, own, strict=True))

    def metrics(self) -> dict[MetricKey, np.ndarray]:
        """Metrics of the last update, ``{(module_id, name): float32}``; none before the first one."""
        return {} if self._vector is None else self._unravel(np.asarray(host_view(self._vector)))


def _joined(params: Any, others: tuple[Any, ...], keys: dict[str, Any]) -> LearnerState:
    """The inverse of `RowUpdates._split`."""
    rest, optimizers, extra, connector, timesteps, num_updates = others
    return LearnerState(
        params=params,
        rest={**rest, **keys["rest"]},
        optimizers=optimizers,
        extra=extra,
        connector=connector,
        timesteps=timesteps,
        num_updates=num_updates,
        key=keys["key"],
    )
