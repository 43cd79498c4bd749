"""The policy of a host runner: pipelines and module as one jitted call per vector step, with one array as result.

A step of a cheap environment takes microseconds, so the call is the bottleneck: every array that goes in or comes out
costs about as much as the arithmetic of a small network. All 32-bit results are therefore laid side by side in one
uint32 matrix ``[B, width]``, which is also how they are recorded; columns are views of the recording.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.policy_step import PolicyStep
from jaxrl_stack.utils import schedules, spaces

Mode = Literal["explore", "greedy", "random"]
"""Sample actions from the module's distribution, take the greedy ones, or draw from the action space."""


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Where one leaf of the results is: columns of the matrix, or a position among the loose arrays."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    is_packed: bool

    def read(self, matrix: np.ndarray, loose: Any) -> np.ndarray:
        """The leaf ``[..., B, *shape]`` out of a matrix ``[..., B, width]``; a view where that is possible."""
        if not self.is_packed:
            return loose[self.start]
        if self.shape == ():
            part = matrix[..., self.start]
        else:
            part = matrix[..., self.start : self.start + int(np.prod(self.shape))]
            part = part.reshape(*matrix.shape[:-1], *self.shape) if len(self.shape) > 1 else part
        return part != 0 if self.dtype == np.bool_ else part.view(self.dtype)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the results of a policy call are packed.

    Attributes:
        width: Columns of the matrix.
        columns: ``{column: pytree of slots}``.
        loose: ``(shape, dtype)`` of the arrays ``[B, ...]`` that do not fit the matrix (frames of bytes, say).
    """

    width: int
    columns: dict[str, Any]
    loose: tuple[tuple[tuple[int, ...], np.dtype], ...]

    def read(self, name: str, matrix: np.ndarray, loose: Any = ()) -> Any:
        """One column."""
        slots = self.columns[name]
        if isinstance(slots, _Slot):  # most are; going through a tree takes ten times as long
            return slots.read(matrix, loose)
        return jax.tree.map(lambda slot: slot.read(matrix, loose), slots)


@dataclasses.dataclass(frozen=True)
class _Acting:
    """The program of one mode.

    Attributes:
        program: Jitted `HostPolicy._act`.
        placeholders: Per argument that varies from step to step: arrays to pass in its place, since the program does
            not look at it; None for "it does".
    """

    program: Callable[..., Any]
    placeholders: tuple[Any, ...]


class HostPolicy:
    """Acts for ``B`` environments at a time.

    Args:
        step: Pipelines and module.
        settings: ``{module_id: {name: value or schedule}}`` of the traced settings, NumPy.
        static_settings: ``{module_id: {name: number}}`` of those that are constants of the program.
        device: Where it runs.
        seed: Of its random numbers.

    Attributes:
        records_obs: Whether the module's inputs are among the results: the pipeline changes the environment's
            observations.
    """

    def __init__(
        self,
        step: PolicyStep,
        *,
        settings: Mapping[str, Mapping[str, Any]],
        static_settings: Mapping[str, Mapping[str, Any]],
        device: Any,
        seed: int,
    ):
        self._step = step
        self._static_settings = static_settings
        self._device = device
        self._settings = self.place(settings)
        self.records_obs = len(step.env_to_module) > 0
        self._module: Any = None
        self._params: dict[str, Any] = {}
        self._rest: dict[str, Any] = {}
        self._layouts: dict[Mode, Layout] = {}
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._acting: dict[tuple[Mode, bool], _Acting] = {}
        self.set_weights(step.pure.params, step.pure.rest)
        self.reseed(seed)

    def place(self, tree: Any) -> Any:
        """Copies on the policy's device, which the program follows. Worth it for what several calls share."""
        return jax.tree.map(lambda x: jax.device_put(np.array(x), self._device), tree)

    # ----------------------------------------------------------------------------------------------------- state

    def reseed(self, seed: int) -> None:
        """Start the random numbers anew."""
        self._key = jax.device_put(np.array([0, seed & 0xFFFFFFFF], np.uint32), self._device)
        self._calls = 0

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over other values of the traced settings."""
        self._settings = self.place(settings)

    def set_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Take over parameters and the modules' other state; refs that are left out stay as they are."""
        self._module = None
        self._params = {**self._params, **self.place(dict(params))}
        streams = self._step.pure.stream_refs
        own = {ref: leaf for ref, leaf in self._step.pure.rest.items() if ref in streams}
        self._rest = {**own, **self._rest, **self.place({r: leaf for r, leaf in rest.items() if r not in streams})}

    def get_weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """``(params, rest)`` as NumPy arrays, without random streams."""
        streams = self._step.pure.stream_refs
        rest = {ref: leaf for ref, leaf in self._rest.items() if ref not in streams}
        return jax.device_get(self._params), jax.device_get(rest)

    @property
    def module(self) -> Any:
        """The acting module; one object until other weights come."""
        if self._module is None:
            self._module = self._step.pure.bind(self._params, self._rest)[self._step.module_id]
        return self._module

    # ---------------------------------------------------------------------------------------------------- acting

    def act(
        self,
        mode: Mode,
        connectors: Any,
        batch: dict[str, Any],
        reset: np.ndarray,
        prev_actions: Any,
        prev_rewards: np.ndarray,
        timesteps: np.ndarray,
        *,
        update_statistics: bool,
    ) -> tuple[np.ndarray, Any, Any]:
        """Actions of all environments.

        Args:
            mode: How to choose them.
            connectors: States of both pipelines.
            batch: ``{"obs": observations [B, ...]}`` and what host pieces added.
            reset: bool ``[B]``, first observation of an episode.
            prev_actions: The module's last actions ``[B, ...]``, zeros behind a reset.
            prev_rewards: float32 ``[B]``, likewise.
            timesteps: uint32[2], lifetime env steps; from `place`.
            update_statistics: Whether running statistics learn from these observations.

        Returns:
            ``(matrix uint32 [B, width], loose arrays, connectors)``; `layout` says what is where.
        """
        self._calls += 1
        varying = (np.uint32(self._calls & 0xFFFFFFFF), batch, reset, prev_actions, prev_rewards, timesteps)
        key = (mode, update_statistics)
        call = self._acting.get(key) or self._make_acting(key, connectors, varying)
        varying = [
            given if placeholder is None else placeholder
            for given, placeholder in zip(varying, call.placeholders, strict=True)
        ]
        matrix, loose, connectors = call.program(
            self._params, self._rest, self._settings, connectors, self._key, *varying
        )
        return np.asarray(matrix), loose, connectors

    def _make_acting(self, key: tuple[Mode, bool], connectors: Any, varying: tuple[Any, ...]) -> _Acting:
        """The program of one mode, and what it does not look at."""
        mode, update_statistics = key
        program = jax.jit(functools.partial(self._act, mode=mode, update_statistics=update_statistics))
        fixed = (self._params, self._rest, self._settings, connectors, self._key)
        jaxpr = program.trace(*fixed, *varying).jaxpr.jaxpr
        read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
        read |= {id(variable) for variable in jaxpr.outvars}
        position = len(jax.tree.leaves(fixed))
        placeholders = []
        for argument in varying:
            leaves, structure = jax.tree.flatten(argument)
            own = jaxpr.invars[position : position + len(leaves)]
            position += len(leaves)
            is_read = any(id(variable) in read for variable in own)
            # NumPy arrays are handed over whether they are read or not; arrays on the device cost nothing.
            blank = [jax.device_put(np.zeros(v.aval.shape, v.aval.dtype), self._device) for v in own]
            placeholders.append(None if is_read else jax.tree.unflatten(structure, blank))
        return self._acting.setdefault(key, _Acting(program, tuple(placeholders)))

    def act_once(
        self, env_to_module: Any, batch: dict[str, Any], key: jax.Array, timesteps: np.ndarray, *, explore: bool
    ) -> dict[str, Any]:
        """Actions for observations that are each the first of an episode, outside of any sampling.

        Args:
            env_to_module: State of that pipeline whose statistics to use.
            batch: ``{"obs": observations [n, ...]}`` and what host pieces added.
            key: PRNG key.
            timesteps: uint32[2], lifetime env steps.
            explore: Sample actions or take the greedy ones.

        Returns:
            The columns behind the module-to-env pipeline, NumPy ``[n, ...]``.
        """
        name = ("once", explore)
        if name not in self._programs:

            def once(params, rest, settings, env_to_module, batch, key, timesteps):
                values = self._current(settings, timesteps)
                weights = (params, rest, values, timesteps)
                return self._step.act_once(batch, key, env_to_module, weights, explore=explore)

            self._programs[name] = jax.jit(once)
        program = self._programs[name]
        return jax.device_get(program(self._params, self._rest, self._settings, env_to_module, batch, key, timesteps))

    def layout(self, mode: Mode) -> Layout:
        """How the results of `act` are packed; known once it has been called with that mode."""
        return self._layouts[mode]

    def observe_final(
        self, connectors: Any, observations: Any, prev_actions: Any, prev_rewards: np.ndarray, timesteps: np.ndarray
    ) -> Any:
        """What the module would see behind the last step, with the history of before any reset.

        Statistics learn nothing from it.

        Returns:
            The module's inputs ``[B, ...]``, NumPy.
        """
        if "final" not in self._programs:
            self._programs["final"] = jax.jit(self._observe_final)
        return jax.device_get(
            self._programs["final"](
                self._params,
                self._rest,
                self._settings,
                connectors,
                self._key,
                observations,
                prev_actions,
                prev_rewards,
                timesteps,
            )
        )

    # ---------------------------------------------------------------------------------------------------- traced

    def _current(self, settings: Any, timesteps: Any) -> dict[str, dict[str, Any]]:
        """The settings at a time."""
        values = jax.tree.map(
            lambda s: schedules.value_at(s, timesteps) if isinstance(s, schedules.ScheduleArrays) else s,
            settings,
            is_leaf=lambda s: isinstance(s, schedules.ScheduleArrays),
        )
        return {mid: {**own, **self._static_settings.get(mid, {})} for mid, own in values.items()}

    def _context(self, params, rest, settings, key, reset, prev_actions, prev_rewards, timesteps, **static) -> Any:
        mid = self._step.module_id
        return self._step.env_to_module.make_context(
            params=params,
            rest=rest,
            key=key,
            settings=self._current(settings, timesteps),
            step=timesteps,
            reset=reset,
            prev_actions={mid: prev_actions},
            prev_rewards={mid: prev_rewards},
            pure=self._step.pure,
            **static,
        )

    def _act(
        self,
        params,
        rest,
        settings,
        connectors,
        key,
        call,
        batch,
        reset,
        prev_actions,
        prev_rewards,
        timesteps,
        *,
        mode: Mode,
        update_statistics: bool,
    ):
        mid = self._step.module_id
        context = self._context(
            params,
            rest,
            settings,
            jax.random.fold_in(jax.random.wrap_key_data(key), call),
            reset,
            prev_actions,
            prev_rewards,
            timesteps,
            explore=mode != "greedy",
            update_statistics=update_statistics,
        )
        env_to_module, inputs = self._step.env_to_module.apply(connectors[0], {mid: batch}, context)
        if mode == "random":
            module_to_env = connectors[1]
            space: Any = self._step.env_to_module.input_action_space
            actions = spaces.sample(context.key, space, reset.shape)
            acted = {Columns.ACTIONS: actions, Columns.ACTIONS_FOR_ENV: actions}
        else:
            module_to_env, acted = self._step.act(connectors[1], inputs, context)
        results = {**inputs[mid], **acted}
        if not self.records_obs:
            del results[Columns.OBS]
        matrix, loose = self._pack(results, mode)
        return matrix, loose, (env_to_module, module_to_env)

    def _pack(self, results: dict[str, Any], mode: Mode) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        leaves, treedef = jax.tree.flatten(results)
        slots: dict[int, _Slot] = {}
        packed: list[jax.Array] = []
        loose: list[jax.Array] = []
        width = 0
        for leaf in leaves:
            if id(leaf) in slots:
                continue
            num_envs, *shape = leaf.shape
            if leaf.dtype.itemsize == 4 or leaf.dtype == jnp.bool_:
                slots[id(leaf)] = _Slot(width, tuple(shape), np.dtype(leaf.dtype), True)
                bits = (
                    leaf.astype(jnp.uint32)
                    if leaf.dtype == jnp.bool_
                    else jax.lax.bitcast_convert_type(leaf, jnp.uint32)
                )
                packed.append(bits.reshape(num_envs, -1))
                width += packed[-1].shape[1]
            else:
                slots[id(leaf)] = _Slot(len(loose), tuple(shape), np.dtype(leaf.dtype), False)
                loose.append(leaf)
        self._layouts[mode] = Layout(
            width,
            jax.tree.unflatten(treedef, [slots[id(leaf)] for leaf in leaves]),
            tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in loose),
        )
        return jnp.concatenate(packed, axis=1), tuple(loose)

    def _observe_final(
        self, params, rest, settings, connectors, key, observations, prev_actions, prev_rewards, timesteps
    ):
        reset = jnp.zeros(prev_rewards.shape, bool)
        context = self._context(
            params,
            rest,
            settings,
            jax.random.wrap_key_data(key),
            reset,
            prev_actions,
            prev_rewards,
            timesteps,
            explore=False,
            update_statistics=False,
        )
        batch = {self._step.module_id: {Columns.OBS: observations}}
        _, out = self._step.env_to_module.apply(connectors[0], batch, context)
        return out[self._step.module_id][Columns.OBS]
