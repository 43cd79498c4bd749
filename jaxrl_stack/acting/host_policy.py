"""Policy of a module on a host EnvRunner, with both connector pipelines: one jitted call per vector step (a step of all
environments).

A step of a cheap environment takes microseconds, so the call is the bottleneck: each argument or result array takes
about as long as the arithmetic of a small network. All 32-bit results are therefore packed into one uint32 matrix
``[B, width]``. They are recorded in this form; columns are views of the recording.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.acting.module_step import ModuleState, ModuleStep
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import mask_of
from jaxrl_stack.ops import packing, unrolled_threefry
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.action_masks import allows_an_action
from jaxrl_stack.utils.devices import replicated_sharding
from jaxrl_stack.utils.live_inputs import traced_once

Mode = Literal["explore", "greedy", "random"]
"""Sample actions from the module's distribution, take the greedy ones, or draw from the action space."""
Memory = tuple[Any, Any, Any]
"""``env_to_module``, ``module_to_env`` and ``recurrent`` of a `ModuleState`: they stay on the policy's device between
calls. The other fields are made and kept on the host."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class PackedColumns:
    """Positions of a policy call's results (actions, log-probabilities, ...) in a packed uint32 matrix ``[B, width]``.
    The matrix is copied from the device as one array.

    Attributes:
        width: Number of columns of the matrix.
        columns: ``{column: pytree of slots}``.
        usable: Slot of a flag per environment: its observation is finite, and its action mask, if any, allows an
            action.
        loose: ``(shape, dtype)`` of the arrays ``[B, ...]`` that do not fit the matrix, such as frames of bytes.
    """

    width: int
    columns: dict[str, Any]
    usable: packing.Slot
    loose: tuple[tuple[tuple[int, ...], np.dtype], ...]

    def read(self, name: str, matrix: np.ndarray, loose: Any = ()) -> Any:
        """Returns one result of a policy call, such as the log-probabilities, as a pytree of arrays ``[..., B, ...]``.

        Reads the arrays from the matrix of packed results, or from `loose`, the results that the matrix does not
        contain.

        Args:
            name: Name of the column.
            matrix: Packed results, uint32 ``[..., B, width]``.
            loose: The results that are not in the matrix, such as frames of bytes.
        """
        slots = self.columns[name]
        if isinstance(slots, packing.Slot):  # most are; mapping over a tree takes ten times as long
            return slots.read(matrix, loose)
        return jax.tree.map(lambda slot: slot.read(matrix, loose), slots)

    def read_actions(self, matrix: np.ndarray, loose: Any = ()) -> tuple[Any, Any]:
        """Reads the module's actions and the actions for the environments from the packed results of a policy call.

        If the environments take the module's actions unchanged, the results contain these actions only once, and both
        returned items are the same object.
        """
        actions = self.read(Columns.ACTIONS, matrix, loose)
        return actions, actions if self._are_actions_for_env else self.read(Columns.ACTIONS_FOR_ENV, matrix, loose)

    @functools.cached_property
    def _are_actions_for_env(self) -> bool:
        return self.columns[Columns.ACTIONS] == self.columns[Columns.ACTIONS_FOR_ENV]


@dataclasses.dataclass
class _Acting:
    """Compiled acting program for one mode (explore, greedy or random actions).

    The program's arguments include fixed arrays (weights, settings, PRNG key) and arrays that vary from step to step
    (such as previous actions). Arrays of these two kinds that do not affect the results are left out, because each
    argument costs time.

    Attributes:
        program: ``(fixed leaves, memory, counts, batch, varying leaves) -> (matrix, loose, memory)``.
        fixed: Positions of the fixed leaves among the leaves of `HostPolicy._fixed`.
        varying: Positions of the varying leaves among the leaves of the arguments that vary from step to step.
        leaves: The fixed leaves; None after they have changed.
    """

    program: Callable[..., Any]
    fixed: tuple[int, ...]
    varying: tuple[int, ...]
    leaves: tuple[jax.Array, ...] | None = None


class HostPolicy:
    """Computes actions of one module for ``B`` rows at a time; a row is an environment, or one agent in an environment.

    Args:
        step: Pipelines and module.
        settings: ``{module_id: {name: value or schedule}}`` of the traced settings, NumPy.
        static_settings: ``{module_id: {name: number}}`` of the settings that are constants of the program.
        device: Device of the program.
        seed: Seed of the random numbers. It must differ from the config's seed, whose streams the algorithm uses.

    Attributes:
        records_obs: Whether the module's inputs are among the results, because the pipeline changes the environments'
            observations.
        sharding: Sharding of all arguments: one device.
    """

    def __init__(
        self,
        step: ModuleStep,
        *,
        settings: Mapping[str, Mapping[str, Any]],
        static_settings: Mapping[str, Mapping[str, Any]],
        device: Any,
        seed: int,
    ):
        self._step = step
        self._static_settings = static_settings
        # The sharding of a learner's parameters on this device, so that acting can use them without a copy.
        self.sharding = replicated_sharding([device])
        self._settings = self.to_device(settings)
        self.records_obs = len(step.env_to_module) > 0
        self._bound: Any = None
        self._params: dict[str, Any] = {}
        self._rest: dict[str, Any] = {ref: step.pure.rest[ref] for ref in step.pure.stream_refs}
        self._packed: dict[Mode, PackedColumns] = {}
        self._once = jax.jit(self._act_once, static_argnames=("module_id", "explore"))
        self._final = jax.jit(self._observe_final)
        self._acting: dict[tuple[Mode, bool, int], _Acting] = {}
        self.set_weights(step.pure.params, step.pure.rest)
        self.reseed(seed)

    def to_device(self, tree: Any) -> Any:
        """Copies the arrays of a pytree to the policy's device. If several policy calls use the same arrays, one copy
        in advance saves time.
        """
        return jax.device_put(jax.tree.map(np.array, tree), self.sharding)

    # ----------------------------------------------------------------------------------------------------- state

    def reseed(self, seed: int) -> None:
        """Restarts the policy's random number generator, which draws the actions, from a seed."""
        self.set_random_state({"key": [0, seed & 0xFFFFFFFF], "num_calls": 0})

    def get_random_state(self) -> dict[str, Any]:
        """Returns the policy's random state ``{"key": uint32[2], "num_calls": int}``: the PRNG key, and the number of
        `act` calls that have used the key.
        """
        return {"key": np.asarray(self._key), "num_calls": self._count}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Sets the policy's random state to a result of `get_random_state`."""
        self._key = self.to_device(np.asarray(state["key"], np.uint32))
        # Counted on the host: as a second, independent result of the program, it would make XLA run the program's parts
        # in several threads, which takes five times as long for a small network.
        self._count = int(state["num_calls"])
        self._fixed_changed()

    @staticmethod
    def numbers_of(random: Mapping[str, Any]) -> list[int]:
        """Converts a random state (a result of `get_random_state`) to a list of integers, from which seeds can be
        derived.
        """
        return [*np.asarray(random["key"]).tolist(), int(random["num_calls"])]

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the values of settings that are arguments of the compiled policy program, such as ``epsilon``."""
        self._settings = self.to_device(settings)
        self._fixed_changed()

    @property
    def _fixed(self) -> tuple[Any, ...]:
        """Arguments of the compiled policy program that do not vary from step to step: parameters, other module state,
        settings and PRNG key.
        """
        return (self._params, self._rest, self._settings, self._key)

    def _fixed_changed(self) -> None:
        for call in self._acting.values():
            call.leaves = None

    @functools.cached_property
    def refs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names (refs) of the modules' arrays, as two tuples ``(params, rest)``: names of the parameters, and names of
        the other arrays except random streams.
        """
        pure = self._step.pure
        return tuple(pure.params), tuple(ref for ref in pure.rest if ref not in pure.stream_refs)

    def adopt_weights(self, params: Mapping[str, jax.Array], rest: Mapping[str, jax.Array]) -> None:
        """Uses the given arrays as the policy's weights, without copying them.

        Args:
            params: Arrays of all `refs` with `sharding`; must not be changed or donated while the policy uses them.
            rest: The same for the modules' other state.
        """
        self._bound = None
        self._params = dict(params)
        self._rest = {**self._rest, **rest}
        self._fixed_changed()

    def set_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Copies parameters and other module state to the device. Arrays whose names (refs) are missing in `params` and
        `rest` keep their values.

        Refs that are not needed for acting, such as critics, are ignored.
        """
        own_params, own_rest = self.refs
        params = self.to_device({ref: params[ref] for ref in own_params if ref in params})
        rest = self.to_device({ref: rest[ref] for ref in own_rest if ref in rest})
        self.adopt_weights({**self._params, **params}, rest)

    @property
    def current_weights(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Current weights ``(params, rest)``, two dicts ``{array name: array}`` on the policy's device: the modules'
        parameters, and the modules' other arrays except random streams.
        """
        streams = self._step.pure.stream_refs
        return self._params, {ref: leaf for ref, leaf in self._rest.items() if ref not in streams}

    def get_weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the current weights ``(params, rest)``, two dicts ``{array name: NumPy array}``: the modules'
        parameters, and the modules' other arrays except random streams.
        """
        return jax.device_get(self.current_weights)

    @property
    def modules(self) -> Any:
        """MultiRLModule with its initial weights; `current_modules` has the current weights."""
        return self._step.pure.template

    def module_of(self, module_id: str) -> Any:
        """Returns the acting module `module_id` with the current weights; the same object until the weights change.

        Raises:
            ValueError: If the module is ``learner_only`` or unknown.
        """
        return self.current_modules[self._step.of_module(module_id).module_id]

    @property
    def current_modules(self) -> Any:
        """MultiRLModule with the current weights; the same object until the weights change."""
        if self._bound is None:
            self._bound = self._step.pure.bind(self._params, self._rest)
        return self._bound

    # ---------------------------------------------------------------------------------------------------- acting

    def act(
        self,
        mode: Mode,
        memory: Memory,
        batch: dict[str, Any],
        reset: np.ndarray,
        prev_actions: Any,
        prev_rewards: np.ndarray,
        timesteps: int,
        valid: np.ndarray | None = None,
        *,
        update_statistics: bool,
        acts: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any, Memory]:
        """Computes the actions of all rows (environments, or agents in environments) for one vector step (a step of all
        environments).

        Args:
            mode: How actions are chosen.
            memory: Memory that the last call returned; at first the initial states of both pipelines and
                `initial_recurrent`.
            batch: ``{"obs": observations [B, ...]}`` and columns of host connectors.
            reset: bool ``[B]``, whether the observation is the first of an episode.
            prev_actions: The module's last actions ``[B, ...]``, zeros after a reset.
            prev_rewards: float32 ``[B]``, rewards of the last actions, zeros after a reset.
            timesteps: Lifetime env steps, at which schedules are evaluated.
            valid: bool ``[B]``, False where the next step only resets: running statistics ignore these observations.
                None, in every call, if there are no such steps.
            update_statistics: Whether running statistics learn from these observations.
            acts: bool ``[B]``, False for rows whose agent waits: they keep their histories and recurrent states, and
                running statistics ignore their observations. None, in every call, if all agents act in every step.

        Returns:
            ``(matrix uint32 [B, width], loose arrays, memory)``; `packed_columns` is the layout of the first two.
        """
        varying: tuple[Any, ...] = (reset, prev_actions, prev_rewards, valid if acts is None else acts, acts)
        key = (mode, update_statistics, len(reset))
        call = self._acting.get(key)
        if call is None:
            call = self._acting[key] = self._make_acting(mode, update_statistics, memory, batch, varying)
        if call.leaves is None:
            leaves = jax.tree.leaves(self._fixed)
            call.leaves = tuple(leaves[i] for i in call.fixed)
        wanted = ()
        if call.varying:
            leaves = jax.tree.leaves(varying)
            wanted = tuple(leaves[i] for i in call.varying)
        self._count += 1
        matrix, loose, memory = call.program(call.leaves, memory, self._counts(timesteps), batch, wanted)
        return np.asarray(matrix), loose, memory

    def _counts(self, timesteps: int) -> np.ndarray:
        """Returns the number of `act` calls and the lifetime env steps in one array, uint32[3].

        The entries are the number of `act` calls (low 32 bits), then the lifetime env steps as high word and low word.
        Both numbers are in one array, because each argument of the compiled program costs time.
        """
        return np.array([self._count & 0xFFFFFFFF, timesteps >> 32, timesteps & 0xFFFFFFFF], np.uint32)

    def _make_acting(
        self, mode: Mode, update_statistics: bool, memory: Memory, batch: dict[str, Any], varying: tuple[Any, ...]
    ) -> _Acting:
        function = functools.partial(self._act, mode=mode, update_statistics=update_statistics)
        # Leaves that matter; the others are zeros in the program, which removes the operations that only they lead to.
        once = traced_once(function, self._fixed, varying, memory, np.zeros(3, np.uint32), batch)
        self._packed[mode] = once.out[-1]
        needed = jax.tree.leaves(once.matters)
        shapes, structure = jax.tree.flatten(jax.eval_shape(lambda: (self._fixed, varying)))
        used = [i for i in range(len(shapes)) if needed[i]]
        num_fixed = len(jax.tree.leaves(self._fixed))

        def program(fixed_given, memory, counts, batch, varying_given):
            leaves = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
            for i, leaf in zip(used, (*fixed_given, *varying_given), strict=True):
                leaves[i] = leaf
            fixed, varying = jax.tree.unflatten(structure, leaves)
            return once.call(fixed, varying, memory, counts, batch)[:-1]

        fixed, rest = (tuple(i for i in used if (i < num_fixed) == of_fixed) for of_fixed in (True, False))
        return _Acting(jax.jit(program), fixed, tuple(i - num_fixed for i in rest))

    def act_once(
        self,
        env_to_module: Any,
        batch: dict[str, Any],
        key: jax.Array,
        timesteps: np.ndarray,
        *,
        module_id: str,
        explore: bool,
    ) -> dict[str, Any]:
        """Computes the action for the first observation of an episode, outside of any rollout.

        Args:
            env_to_module: State of the env-to-module pipeline, whose statistics are used.
            batch: ``{"obs": observation [1, ...]}`` and columns of host connectors.
            key: PRNG key.
            timesteps: uint32[2], lifetime env steps.
            module_id: The module that acts.
            explore: Whether to sample the action (True) or to take the greedy one.

        Returns:
            The columns after the module-to-env pipeline, see `ModuleStep.first_row`.

        Raises:
            ValueError: If the module is ``learner_only`` or unknown.
        """
        once = functools.partial(self._once, module_id=module_id, explore=explore)
        columns = jax.device_get(once(self._fixed[:3], env_to_module, batch, key, timesteps))
        return self._step.of_module(module_id).first_row(columns)

    def initial_recurrent(self, num_envs: int) -> Any:
        """Returns the module's recurrent state at the start of episodes, ``[B, ...]``; ``{}`` for a stateless
        module.
        """
        return self.to_device(self._step.initial_recurrent(num_envs))

    def has_packed_columns(self, mode: Mode) -> bool:
        """Whether `act` has been called with the given mode (explore, greedy or random actions), so that
        `packed_columns` is available.
        """
        return mode in self._packed

    def packed_columns(self, mode: Mode) -> PackedColumns:
        """Returns the positions of the results (actions, log-probabilities, ...) in the matrix that `act` returns.
        `act` must have been called with the given mode before.
        """
        return self._packed[mode]

    def observe_final(
        self, env_to_module: Any, observations: Any, prev_actions: Any, prev_rewards: np.ndarray, timesteps: int
    ) -> Any:
        """Computes the module's inputs from the observations after the last step and before any reset.

        Running statistics do not change.

        Returns:
            The module's inputs ``[B, ...]``, NumPy.
        """
        counts = self._counts(timesteps)
        return jax.device_get(self._final(self._fixed, env_to_module, counts, observations, prev_actions, prev_rewards))

    # ---------------------------------------------------------------------------------------------------- traced

    def _context(self, weights: Sequence[Any], timesteps: Any, **static: Any) -> Any:
        """Returns the values that connectors may read in a step, as a `ConnectorContext`.

        Settings with a schedule have their current values. `weights` is ``(params, rest, settings)``: parameters, other
        module state, and settings.
        """
        params, rest, settings = weights
        values = schedules.values_at(settings, timesteps, together=False)
        current = {mid: {**own, **self._static_settings.get(mid, {})} for mid, own in values.items()}
        return self._step.context(params, rest, current, timesteps, **static)

    def _act(self, fixed, varying, memory, counts, batch, *, mode: Mode, update_statistics: bool):
        *weights, key = fixed
        reset, prev_actions, prev_rewards, valid, acts = varying
        context = dataclasses.replace(
            self._context(weights, counts[1:], explore=mode != "greedy", update_statistics=update_statistics),
            key=jax.random.fold_in(unrolled_threefry.wrap_key_data(key), counts[0]),
        )
        step = dataclasses.replace(self._step, draws_actions=mode == "random")
        # Only running statistics read the mask here; it is recorded where the environments are stepped.
        columns = batch if valid is None else {**batch, Columns.LOSS_MASK: valid}
        env_to_module, module_to_env, recurrent = memory
        before = ModuleState(env_to_module, module_to_env, recurrent, prev_actions, prev_rewards, reset)
        state, inputs, acted = step.step(before, columns, context)
        if acts is not None:
            state = step.where_rows(acts, state, before)
        results = {**inputs, **acted}
        if not self.records_obs:
            del results[Columns.OBS]
        leaves, treedef = jax.tree.flatten(results)
        usable = _all_finite(batch[Columns.OBS], reset.shape[0])
        mask = mask_of(inputs[Columns.OBS])
        if mask is not None:
            # If an environment was only reset, the module does not act on the observation.
            is_ignored = False if valid is None else ~valid
            usable &= is_ignored | allows_an_action(self._step.env_to_module.input_action_space, mask)
        matrix, loose, slots = packing.pack([*leaves, usable])
        assert matrix is not None, "one column says what is usable"
        layout = PackedColumns(
            matrix.shape[1],
            jax.tree.unflatten(treedef, slots[:-1]),
            slots[-1],
            tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in loose),
        )
        return matrix, loose, (state.env_to_module, state.module_to_env, state.recurrent), layout

    def _act_once(self, weights, env_to_module, batch, key, timesteps, *, module_id: str, explore: bool):
        context = self._context(weights, timesteps, explore=explore)
        return self._step.of_module(module_id).act_once(batch, key, env_to_module, context)

    def _observe_final(self, fixed, env_to_module, counts, observations, prev_actions, prev_rewards):
        *weights, key = fixed
        context = dataclasses.replace(
            self._context(weights, counts[1:], explore=False, update_statistics=False),
            key=jax.random.fold_in(jax.random.wrap_key_data(key), counts[0]),
        )
        return self._step.observe_final(
            env_to_module, observations, context, prev_actions=prev_actions, prev_rewards=prev_rewards
        )


def _all_finite(observations: Any, num_envs: int) -> jax.Array:
    """Returns whether each environment's observations are free of NaN and infinity, bool ``[B]``."""
    finite = jnp.ones(num_envs, bool)
    for leaf in jax.tree.leaves(observations):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= jnp.isfinite(leaf).reshape(num_envs, -1).all(axis=1)
    return finite
