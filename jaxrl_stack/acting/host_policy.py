"""Policy of a module on a host runner, with its pipelines: one jitted call per vector step, one array as result.

A step of a cheap environment takes microseconds, so the call is the bottleneck: every array that goes in or comes out
costs about as much as the arithmetic of a small network. All 32-bit results are therefore laid side by side in one
uint32 matrix ``[B, width]``, which is also how they are recorded; columns are views of the recording.
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
"""``env_to_module``, ``module_to_env`` and ``recurrent`` of a `ModuleState`: what stays on the policy's device from
call to call. The rest of it is kept on the host, where it is made."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class PackedColumns:
    """Form in which the results of a policy call are packed.

    Attributes:
        width: Columns of the matrix.
        columns: ``{column: pytree of slots}``.
        usable: Where it says, per environment, whether its observation has neither NaN nor infinity, and its action
            mask, if there is one, allows something.
        loose: ``(shape, dtype)`` of the arrays ``[B, ...]`` that do not fit the matrix (frames of bytes, say).
    """

    width: int
    columns: dict[str, Any]
    usable: packing.Slot
    loose: tuple[tuple[tuple[int, ...], np.dtype], ...]

    def read(self, name: str, matrix: np.ndarray, loose: Any = ()) -> Any:
        """One column."""
        slots = self.columns[name]
        if isinstance(slots, packing.Slot):  # most are; going through a tree takes ten times as long
            return slots.read(matrix, loose)
        return jax.tree.map(lambda slot: slot.read(matrix, loose), slots)

    def read_actions(self, matrix: np.ndarray, loose: Any = ()) -> tuple[Any, Any]:
        """``(the module's actions, those for the environments)``; one object if they are the same."""
        actions = self.read(Columns.ACTIONS, matrix, loose)
        return actions, actions if self._are_actions_for_env else self.read(Columns.ACTIONS_FOR_ENV, matrix, loose)

    @functools.cached_property
    def _are_actions_for_env(self) -> bool:
        return self.columns[Columns.ACTIONS] == self.columns[Columns.ACTIONS_FOR_ENV]


@dataclasses.dataclass
class _Acting:
    """The program of one mode. It takes only what it looks at: each array that is handed over costs time.

    Attributes:
        program: ``(fixed leaves, memory, counts, batch, varying leaves) -> (matrix, loose, memory)``.
        fixed: Positions of its arguments among the leaves of `HostPolicy._fixed`.
        varying: The same for what varies from step to step.
        leaves: Those leaves; None after they have changed.
    """

    program: Callable[..., Any]
    fixed: tuple[int, ...]
    varying: tuple[int, ...]
    leaves: tuple[jax.Array, ...] | None = None


class HostPolicy:
    """Acts with one module for ``B`` rows at a time, of environments or of agents in them.

    Args:
        step: Pipelines and module.
        settings: ``{module_id: {name: value or schedule}}`` of the traced settings, NumPy.
        static_settings: ``{module_id: {name: number}}`` of those that are constants of the program.
        device: Where it runs.
        seed: Of its random numbers; that of the config itself would repeat the streams of the algorithm.

    Attributes:
        records_obs: Whether the module's inputs are among the results: the pipeline changes the environment's
            observations.
        sharding: Of all that it runs with: one device.
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
        # That of a learner's parameters on this device, so that these can be acted with as they are.
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
        """Copies on the policy's device, which the program follows. Worth it for what several calls share."""
        return jax.device_put(jax.tree.map(np.array, tree), self.sharding)

    # ----------------------------------------------------------------------------------------------------- state

    def reseed(self, seed: int) -> None:
        """Start the random numbers anew."""
        self.set_random_state({"key": [0, seed & 0xFFFFFFFF], "num_calls": 0})

    def get_random_state(self) -> dict[str, Any]:
        """The key of the random numbers, uint32[2], and how many calls have drawn from it."""
        return {"key": np.asarray(self._key), "num_calls": self._count}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_random_state` returned."""
        self._key = self.to_device(np.asarray(state["key"], np.uint32))
        # Counted on the host: as a second result of the program, off the path to the first one, it would make XLA run
        # the program's parts in several threads, which takes five times as long for a small network.
        self._count = int(state["num_calls"])
        self._fixed_changed()

    @staticmethod
    def numbers_of(random: Mapping[str, Any]) -> list[int]:
        """The result of `get_random_state` as integers that seeds may follow from."""
        return [*np.asarray(random["key"]).tolist(), int(random["num_calls"])]

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over other values of the traced settings."""
        self._settings = self.to_device(settings)
        self._fixed_changed()

    @property
    def _fixed(self) -> tuple[Any, ...]:
        """Arguments that stay the same from step to step."""
        return (self._params, self._rest, self._settings, self._key)

    def _fixed_changed(self) -> None:
        for call in self._acting.values():
            call.leaves = None

    @functools.cached_property
    def refs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of what it acts with: ``(params, rest)``, without random streams."""
        pure = self._step.pure
        return tuple(pure.params), tuple(ref for ref in pure.rest if ref not in pure.stream_refs)

    def adopt_weights(self, params: Mapping[str, jax.Array], rest: Mapping[str, jax.Array]) -> None:
        """`set_weights` without a copy.

        Args:
            params: All `refs`, with `sharding`; arrays that are neither changed nor donated while they are acted with.
            rest: The same for the modules' other state.
        """
        self._bound = None
        self._params = dict(params)
        self._rest = {**self._rest, **rest}
        self._fixed_changed()

    def set_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Take over parameters and the modules' other state; refs that are left out stay as they are.

        Refs of what does not act, such as critics, are left aside.
        """
        own_params, own_rest = self.refs
        params = self.to_device({ref: params[ref] for ref in own_params if ref in params})
        rest = self.to_device({ref: rest[ref] for ref in own_rest if ref in rest})
        self.adopt_weights({**self._params, **params}, rest)

    @property
    def current_weights(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """``(params, rest)`` as arrays of its device, without random streams."""
        streams = self._step.pure.stream_refs
        return self._params, {ref: leaf for ref, leaf in self._rest.items() if ref not in streams}

    def get_weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """``(params, rest)`` as NumPy arrays, without random streams."""
        return jax.device_get(self.current_weights)

    @property
    def modules(self) -> Any:
        """The MultiRLModule with the weights that it was built with."""
        return self._step.pure.template

    def module_of(self, module_id: str) -> Any:
        """One of the modules that can act, with the current weights; one object until others come.

        Raises:
            ValueError: If that module is for learners only.
        """
        return self.current_modules[self._step.of_module(module_id).module_id]

    @property
    def current_modules(self) -> Any:
        """The MultiRLModule with the current weights; one object until others come."""
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
        """Actions of all environments.

        Args:
            mode: How to choose them.
            memory: What it returned last; `start` makes the first one.
            batch: ``{"obs": observations [B, ...]}`` and what host connectors added.
            reset: bool ``[B]``, first observation of an episode.
            prev_actions: The module's last actions ``[B, ...]``, zeros after a reset.
            prev_rewards: float32 ``[B]``, likewise.
            timesteps: Lifetime env steps, at which schedules are read.
            valid: bool ``[B]``, False where the next step only resets: nothing is learned from these observations.
                None, in all calls alike, where there are no such steps.
            update_statistics: Whether running statistics learn from these observations.
            acts: bool ``[B]``, False of rows whose agent waits: they keep their histories and recurrent states, and
                nothing is learned from their observations. None, in all calls alike, where everybody acts.

        Returns:
            ``(matrix uint32 [B, width], loose arrays, memory)``; `layout` says what is where.
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
        """Calls and lifetime env steps so far, uint32[3]. In one array: every other one would cost as much again."""
        return np.array([self._count & 0xFFFFFFFF, timesteps >> 32, timesteps & 0xFFFFFFFF], np.uint32)

    def _make_acting(
        self, mode: Mode, update_statistics: bool, memory: Memory, batch: dict[str, Any], varying: tuple[Any, ...]
    ) -> _Acting:
        function = functools.partial(self._act, mode=mode, update_statistics=update_statistics)
        # Which leaves matter; the others are blanks in the program, which removes what only they lead to.
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
        """Action for an observation that is the first of an episode, outside of any sampling.

        Args:
            env_to_module: State of that pipeline whose statistics to use.
            batch: ``{"obs": observation [1, ...]}`` and what host connectors added.
            key: PRNG key.
            timesteps: uint32[2], lifetime env steps.
            module_id: The module that acts.
            explore: Sample the action or take the greedy one.

        Returns:
            The columns after the module-to-env pipeline, see `ModuleStep.first_row`.

        Raises:
            ValueError: If the module is for learners only.
        """
        once = functools.partial(self._once, module_id=module_id, explore=explore)
        columns = jax.device_get(once(self._fixed[:3], env_to_module, batch, key, timesteps))
        return self._step.of_module(module_id).first_row(columns)

    def initial_recurrent(self, num_envs: int) -> Any:
        """The module's recurrent state at the start of episodes, ``[B, ...]``; ``{}`` if it has none."""
        return self.to_device(self._step.initial_recurrent(num_envs))

    def has_packed_columns(self, mode: Mode) -> bool:
        """Whether `act` has been called with that mode."""
        return mode in self._packed

    def packed_columns(self, mode: Mode) -> PackedColumns:
        """Form of the results of `act`; known once it has been called with that mode."""
        return self._packed[mode]

    def observe_final(
        self, env_to_module: Any, observations: Any, prev_actions: Any, prev_rewards: np.ndarray, timesteps: int
    ) -> Any:
        """Returns the inputs of the module after the last step, with the history of before any reset.

        Statistics learn nothing from it.

        Returns:
            The module's inputs ``[B, ...]``, NumPy.
        """
        counts = self._counts(timesteps)
        return jax.device_get(self._final(self._fixed, env_to_module, counts, observations, prev_actions, prev_rewards))

    # ---------------------------------------------------------------------------------------------------- traced

    def _context(self, weights: Sequence[Any], timesteps: Any, **static: Any) -> Any:
        """Context of a step: weights are ``(params, rest, settings)``, the settings as of this time."""
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
        # Which rows count is for statistics alone: it is recorded where the environments are stepped.
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
            # Where an environment was only reset, the observation is not acted on.
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
    """bool ``[B]``: no NaN and no infinity among an environment's observations. Integers have neither."""
    finite = jnp.ones(num_envs, bool)
    for leaf in jax.tree.leaves(observations):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= jnp.isfinite(leaf).reshape(num_envs, -1).all(axis=1)
    return finite
