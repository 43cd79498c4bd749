"""A chain of connectors that is itself a connector."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from jax.core import Tracer

from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.connectors.connector_v2 import (
    CONTEXT_FIELDS,
    PURE_SIGNATURE,
    ConnectorContext,
    ConnectorV2,
    PureConnector,
    StandaloneModule,
    nest,
)
from jaxrl_stack.connectors.host_connectors import run_host_connectors
from jaxrl_stack.connectors.markers import Marker
from jaxrl_stack.connectors.states import check_state, described, strong_array
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.retracing import impurity
from jaxrl_stack.utils.spaces import zeros


class ConnectorPipelineV2(PureConnector):
    """Connectors run one after the other; the state is ``{name: state of the connector}``.

    A connector's name is its class name; further ones of the same class get ``_1``, ``_2``, … Names stay what
    they are while others are inserted and removed around them, so states always find their connector. Spaces are
    chained: each connector's input spaces are the output spaces of the one before it.

    A `Marker` is a place, before and after which connectors can be inserted, and no member.

    Args:
        input_observation_space: Space of the observations that enter the first connector; None takes that
            one's own.
        input_action_space: Likewise for actions.
        connectors: The connectors, in order, and markers among them.
        names: The connectors' names, where these do not follow from the order: for pipelines whose members were moved.

    Attributes:
        num_changes: How often a connector was added or removed.
        of_setting: Those of the members that the function of a config's setting returned.

    Raises:
        TypeError: A member is not a ConnectorV2.
        ValueError: One object is a member twice, or there is not one name per connector.
    """

    _is_optional_in_checkpoints = False
    setting = ""  # of a config, whose function returns connectors for a pipeline of this class
    env_axis = 0  # where the environments are in a batch's leaves
    compiles_calls = False  # whether a `__call__` that stands where episodes have become arrays is compiled

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        connectors: Sequence[ConnectorV2] | None = None,
        names: Sequence[str] | None = None,
        **kwargs,
    ):
        places = list(connectors or ())
        members = [place for place in places if not isinstance(place, Marker)]
        if members and isinstance(members[0], ConnectorV2):
            if input_observation_space is None:
                input_observation_space = members[0].input_observation_space
            if input_action_space is None:
                input_action_space = members[0].input_action_space
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._places: list[tuple[str, ConnectorV2]] = []  # members and markers
        self._members: list[tuple[str, ConnectorV2]] = []
        self.num_changes = 0
        self.of_setting: Sequence[ConnectorV2] = ()
        self._are_spaces_chained = False
        for connector in places:
            self._place(len(self._places), connector)
        if names is not None:
            if len(set(names)) != len(members) or len(names) != len(members):
                raise ValueError(f"names={list(names)!r} are not one name for each of the {len(members)} connectors.")
            given = iter(names)
            self._places = [(name if isinstance(own, Marker) else next(given), own) for name, own in self._places]
        self._fix_spaces()

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(repr(connector) for connector in self)}])"

    # --- Members

    @property
    def connectors(self) -> list[ConnectorV2]:
        """The connectors in order; a new list, so that changes go through ``append``, ``remove``, …"""
        return [connector for _, connector in self._members]

    @property
    def names(self) -> list[str]:
        """The connectors' names in order."""
        return [name for name, _ in self._members]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConnectorV2]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type) -> ConnectorV2 | list[ConnectorV2]:
        """The connector at an index or of a name, or the list of all of a class."""
        if isinstance(key, int):
            return self._members[key][1]
        if isinstance(key, str):
            return self._places[self._index_of(key)][1]
        return [connector for connector in self if isinstance(connector, key)]

    def append(self, connector: ConnectorV2) -> None:
        """Add a connector after the last one."""
        self._insert(len(self._places), connector)

    def prepend(self, connector: ConnectorV2) -> None:
        """Add a connector before the first one."""
        self._insert(0, connector)

    def insert_before(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Add a connector before the first one, or the first marker, of that name or class, and return it.

        Raises:
            ValueError: There is none.
            TypeError: A host connector would come after the place where episodes become arrays.
        """
        return self._insert(self._index_of(name_or_class), connector)

    def insert_after(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Add a connector after the first one, or the first marker, of that name or class; see `insert_before`."""
        return self._insert(self._index_of(name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type) -> None:
        """Take out the first connector, or marker, of that name or class.

        Raises:
            ValueError: There is none.
        """
        del self._places[self._index_of(name_or_class)]
        self.num_changes += 1
        self._fix_spaces()

    def _index_of(self, name_or_class: str | type) -> int:
        if not isinstance(name_or_class, str | type):
            raise TypeError(f"{name_or_class!r} is no name or class of a connector; there are {self.names}.")
        if isinstance(name_or_class, str):
            wanted, matches = name_or_class, [name == name_or_class for name, _ in self._places]
        else:
            # The class itself wins over a subclass of it that comes earlier.
            wanted, matches = name_or_class.__name__, [type(place) is name_or_class for _, place in self._places]
            if not any(matches):
                matches = [isinstance(place, name_or_class) for _, place in self._places]
        if not any(matches):
            markers = [name for name, place in self._places if isinstance(place, Marker)]
            more = f" and the markers {markers}" if markers else ""
            raise ValueError(f"No connector {wanted!r} in this {type(self).__name__}; it has {self.names}{more}.")
        return matches.index(True)

    def _insert(self, index: int, connector: ConnectorV2) -> ConnectorV2:
        self._place(index, connector)
        self._fix_spaces()
        return connector

    def _place(self, index: int, connector: ConnectorV2) -> None:
        if isinstance(connector, type) and issubclass(connector, ConnectorV2):
            raise TypeError(
                f"{connector.__name__} is a class; add an instance to the pipeline: {connector.__name__}()."
            )
        if not isinstance(connector, ConnectorV2):
            raise TypeError(
                f"A pipeline's connectors are ConnectorV2 objects, got {connector!r} ({type(connector).__name__})."
            )
        if any(connector is place for _, place in self._places):
            raise ValueError(f"This {type(connector).__name__} object is in the pipeline already; add a second one.")
        before = [place for _, place in self._places[:index] if isinstance(place, Marker) and place.ends_episodes]
        if type(connector).is_host_connector and not isinstance(connector, ConnectorPipelineV2):
            # Whether it runs on episodes follows from where it stands, also where it is moved to.
            connector.is_host_connector = not (before and self.compiles_calls)
        if connector.is_host_connector and before:
            raise self._misplaced(type(connector).__name__, type(before[0]).__name__)
        base = name = type(connector).__name__
        suffix = 0
        taken = {name for name, _ in self._places}
        while name in taken:
            suffix += 1
            name = f"{base}_{suffix}"
        self._places.insert(index, (name, connector))
        self.num_changes += 1

    # --- Spaces

    def _set_input_spaces(self, observation_space, action_space) -> None:
        super()._set_input_spaces(observation_space, action_space)
        self._fix_spaces()

    def _fix_spaces(self) -> None:
        self._members = [place for place in self._places if not isinstance(place[1], Marker)]
        self._are_spaces_chained = False
        # With one of the two spaces still to come, a connector that needs both would fail without reason.
        if self._input_observation_space is not None and self._input_action_space is not None:
            self._chain_spaces()

    def _chain_spaces(self) -> None:
        """Hand every connector the output spaces of the one before it."""
        if self._are_spaces_chained:
            return
        spaces = self._input_observation_space, self._input_action_space
        if spaces != (None, None):
            for name, connector in self._members:
                with self._naming(name):
                    connector._set_input_spaces(*spaces)
                    spaces = connector.observation_space, connector.action_space
        self._outputs = spaces
        self._are_spaces_chained = True

    def _output_spaces(self) -> tuple[Any, Any]:
        self._chain_spaces()
        return self._outputs

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The last connector's output space, for the given input spaces, which the pipeline takes over."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The last connector's action space, for the given input spaces, which the pipeline takes over."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.action_space

    # --- The pure core

    @property
    def host_connectors(self) -> dict[str, ConnectorV2]:
        """Name -> connector written for RLlib's ``__call__``; in pipelines inside this one, ``"outer/inner"``."""
        return {name: connector for name, connector in self._flat_members() if connector.is_host_connector}

    def checked_host_connectors(self) -> list[tuple[str, ConnectorV2]]:
        """``(name, connector)`` of `host_connectors`, all of which come before the pure ones.

        Raises:
            TypeError: One comes after a pure connector, or the pipeline's class itself overrides ``__call__``.
        """
        if self.is_host_connector:
            raise TypeError(
                f"{type(self).__name__} overrides `__call__` of the pipeline. A pipeline's pure connectors are "
                "compiled into the step, without that call: put the code into a ConnectorV2 of its own and add "
                "it with `prepend`."
            )
        self._chain_spaces()
        members = list(self._flat_members())
        first_pure = next((i for i, (_, member) in enumerate(members) if not member.is_host_connector), len(members))
        for name, member in members[first_pure:]:
            if member.is_host_connector:
                raise self._misplaced(name, members[first_pure][0])
        return members[:first_pure]

    def _misplaced(self, name: str, other: str) -> TypeError:
        return TypeError(
            f"Host connector {name!r} comes after {other!r} in this {type(self).__name__}. Connectors that override "
            "`__call__` run on the episodes, before these become arrays and the other connectors are compiled: move it "
            f"to the front (`pipeline.remove(...)`, `pipeline.prepend(...)`), or write it as a pure function:\n"
            f"{PURE_SIGNATURE}"
        )

    @property
    def num_stacked_frames(self) -> int:
        """That of the last connector."""
        is_own = type(self).apply is ConnectorPipelineV2.apply
        return self._members[-1][1].num_stacked_frames if is_own and self._members else 1

    def earlier_frames(self, state: Any) -> Any:
        """Those of the last connector."""
        name, connector = self._members[-1]
        return connector.earlier_frames(state[name])

    @property
    def takes_frames(self) -> bool:
        """Whether all connectors do."""
        return type(self).apply is ConnectorPipelineV2.apply and all(own.takes_frames for own in self)

    def _flat_members(self) -> Iterator[tuple[str, ConnectorV2]]:
        """``(name, connector)`` without the pipelines around them; ``"outer/inner"`` in a pipeline inside."""
        for name, connector in self._members:
            if isinstance(connector, ConnectorPipelineV2) and not connector.is_host_connector:
                yield from ((f"{name}/{inner}", sub) for inner, sub in connector._flat_members())
            else:
                yield name, connector

    def pure_part(self) -> ConnectorPipelineV2:
        """The pipeline after its host connectors: what is compiled; the pipeline itself if it has none.

        It shares the connectors, under the same names: a state that is set here shows in the `get_state` of the
        whole pipeline, and the other way round. Its input spaces are the output spaces of the host connectors.
        Members that are added to one of the two later are not in the other.

        Raises:
            TypeError: See `checked_host_connectors`.
        """
        on_host = self.checked_host_connectors()
        if not on_host:
            return self
        last = on_host[-1][1]
        part = copy.copy(self)
        part._places = [
            (name, connector.pure_part() if isinstance(connector, ConnectorPipelineV2) else connector)
            for name, connector in self._places
            if not connector.is_host_connector
        ]
        part._input_observation_space, part._input_action_space = last.observation_space, last.action_space
        part._fix_spaces()
        return part

    def check_pure(self) -> None:
        """Make sure that the whole pipeline can be compiled.

        Raises:
            TypeError: A host connector is in it; the message names it and shows the pure form.
        """
        names = [type(self).__name__] if self.is_host_connector else list(self.host_connectors)
        if names:
            raise TypeError(_not_pure(names, f"this {type(self).__name__} is compiled"))

    @staticmethod
    def make_context(**fields: Any) -> ConnectorContext:
        """A `ConnectorContext`, for callers of a lower layer, which cannot import the class."""
        return ConnectorContext(**fields)

    def blank_context(self, module_ids: Sequence[str], num_envs: int, **fields: Any) -> ConnectorContext:
        """A context to trace with: zeros as previous actions and rewards, no reset, and these other fields."""
        spaces = {} if self._input_action_space is None else self._action_spaces()
        return ConnectorContext(
            key=jax.random.key(0),
            reset=np.zeros(num_envs, bool),
            prev_rewards={module_id: np.zeros(num_envs, np.float32) for module_id in module_ids},
            prev_actions={
                module_id: zeros(self._space_of(spaces, module_id), (num_envs,)) for module_id in module_ids if spaces
            },
            step=np.zeros(2, np.uint32),
            **fields,
        )

    def init(self, num_envs: int) -> dict[str, Any]:
        """Fresh state of all connectors, ``{name: state}``."""
        self._chain_spaces()
        state = {}
        for name, connector in self._members:
            with self._naming(name):
                state[name] = jax.tree.map(strong_array, connector.init(num_envs))
        return state

    def apply(self, state: dict[str, Any], batch: dict[str, Any], ctx: ConnectorContext):
        """Run all connectors in order. An exception inside one gets a note with its name and position.

        Raises:
            TypeError: There is a host connector, or one returned something else than ``(state, batch)``, or a state
                of other structure, shapes or dtypes.
        """
        self._chain_spaces()
        if set(state) != set(self.names):
            raise ValueError(
                f"The state given to this {type(self).__name__} is for the connectors {sorted(state)}, but it has "
                f"{sorted(self.names)}. Make the state with `pipeline.init(num_envs)` after the last change."
            )
        # Copies of the two dict levels: a connector that assigns a column in place does not reach the caller's
        # batch.
        batch = {module_id: dict(columns) for module_id, columns in batch.items()}
        new_state = {}
        for name, connector in self._members:
            with self._naming(name):
                if connector.is_host_connector:
                    raise TypeError(_not_pure([type(connector).__name__], "this pipeline is compiled"))
                own_ctx = _context_of(name, connector, ctx)
                self._check_draws(connector, state[name], batch, own_ctx)
                own_state, batch = _checked_output(connector.apply(state[name], batch, own_ctx))
                new_state[name] = check_state(state[name], own_state)
                if ctx.layouts is not None:
                    ctx = dataclasses.replace(ctx, layouts=ctx.layouts.masked_as(batch))
        return new_state, batch

    def _check_draws(self, connector: ConnectorV2, *args: Any) -> None:
        """Trace a user's connector twice where a pipeline is traced: what it draws without ``ctx.key`` differs.

        Raises:
            TypeError: If it does.
        """
        is_own = type(connector).__module__.startswith("jaxrl_stack.")
        if is_own or isinstance(connector, ConnectorPipelineV2):
            return
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
            return
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x)), args)
        difference = impurity(connector.apply, *shapes, thorough=True)
        if difference is not None:
            method = "apply" if isinstance(connector, PureConnector) else "__call__"
            raise TypeError(
                f"{type(connector).__name__}.{method} differs when it is traced again: {difference}. It runs while JAX "
                f"traces, once for all batches, so that random numbers of NumPy or Python are drawn once. Draw with "
                f"jax.random from `ctx.key`, the connector's own in every step:\n{PURE_SIGNATURE}"
            )

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            position = f"number {self.names.index(name) + 1} of {len(self)} of {type(self).__name__}"
            error.add_note(f"In connector {name!r}, {position}.")
            raise

    def merge(self, state: dict[str, Any], axis_name: str | None) -> dict[str, Any]:
        """Every connector's statistics merged over the devices."""
        return {name: connector.merge(state[name], axis_name) for name, connector in self._members}

    def rebatch(self, state: dict[str, Any], num_envs: int) -> dict[str, Any]:
        """Every connector's state for another set of environments."""
        return {name: jax.tree.map(strong_array, own.rebatch(state[name], num_envs)) for name, own in self._members}

    # --- Explaining

    def explain(self, batch: dict[str, Any], *, rl_module=None, ctx: ConnectorContext | None = None) -> None:
        """Print which columns each connector reads and makes, with dtypes and shapes; see `describe`."""
        print(self.describe(batch, rl_module=rl_module, ctx=ctx))

    def describe(self, batch: dict[str, Any], *, rl_module=None, ctx: ConnectorContext | None = None) -> str:
        """Which columns each connector reads and makes, with dtypes and shapes.

        Nothing is computed: the connectors are traced with the shapes of ``batch``.

        Args:
            batch: ``{module_id: {column: arrays}}`` or ``{column: arrays}``; ``jax.ShapeDtypeStruct`` leaves
                do, too.
            rl_module: Module for connectors that ask for one.
            ctx: Context; None makes one with a key, a reset mask, and zeros as previous actions and rewards.
        """
        nested, _ = nest(batch, rl_module)
        size = self._batch_size(nested, None)
        if ctx is None:
            pure = None if rl_module is None else StandaloneModule(rl_module, nested)
            ctx = self.blank_context(list(nested), size, pure=pure)
        self._chain_spaces()
        columns = _described_leaves(nested)
        lines = [f"{type(self).__name__}: {len(self)} connectors, {size} environments"]
        lines += ["in", *(f"    {column:<40} {what}" for column, what in columns.items())]
        for index, (name, connector) in enumerate(self._members):
            lines.append(f"{index + 1} {name}")
            if connector.is_host_connector:
                lines.append("    host connector: what it puts out is not known before it runs")
                break

            def run(batch, ctx, connector=connector):
                state = jax.tree.map(strong_array, connector.init(size))
                after, batch = _checked_output(connector.apply(state, batch, ctx))
                return check_state(state, after), batch

            with self._naming(name):
                state, nested = jax.eval_shape(run, nested, _context_of(name, connector, ctx))
            before, columns = columns, _described_leaves(nested)
            for column, what in columns.items():
                mark = " " if before.get(column) == what else "+" if column not in before else "*"
                lines.append(f"  {mark} {column:<40} {what}")
            lines += [f"  - {column}" for column in before if column not in columns]
            leaves = jax.tree.leaves_with_path(state)
            lines += [f"    state{jax.tree_util.keystr(path)}: {described(leaf)}" for path, leaf in leaves]
        return "\n".join(lines)

    def _batch_size(self, batch: Mapping[str, Any], episodes: Sequence[Any] | None) -> int:
        leaves = jax.tree.leaves(batch)
        if leaves:
            return np.shape(leaves[0])[self.env_axis]
        return super()._batch_size(batch, episodes)

    # --- RLlib's object interface

    def __call__(self, *, rl_module=None, batch=None, episodes=None, explore=None, **kwargs) -> dict[str, Any]:
        """Run the host connectors on ``batch`` and ``episodes``, and the pure ones on what those make.

        See `ConnectorV2.__call__`. Unknown keyword arguments go to the host connectors.

        Raises:
            NotImplementedError: A batch of several modules, for a host connector.
        """
        columns = self._call_members(rl_module, self._given(batch), episodes, explore, kwargs)
        return self._handed_over(columns, rl_module, [] if batch else list(episodes or ()))

    def _given(self, batch: Any) -> Any:
        """The batch of a call as connectors take it."""
        return batch

    def _handed_over(self, columns: dict[str, Any], rl_module: Any, episodes: Sequence[Any]) -> dict[str, Any]:
        """What a call returns of the columns after the last connector; `episodes` are those that it started from."""
        return columns

    def _call_members(self, rl_module: Any, batch: Any, episodes: Any, explore: Any, kwargs: dict[str, Any]) -> Any:
        pure = self if self.is_host_connector else self.pure_part()
        given = {"rl_module": rl_module, "episodes": episodes, "explore": explore}
        if pure is self:
            return super().__call__(batch=batch, **given, **kwargs)
        nested, is_flat = nest(batch or {}, rl_module)
        if len(nested) > 1:
            raise NotImplementedError(
                f"Host connectors take the columns of one module; the batch has the modules {sorted(nested)}."
            )
        more = {name: value for name, value in kwargs.items() if name not in CONTEXT_FIELDS}
        columns = self._run_host_connectors(
            batch=next(iter(nested.values()), {}), **{**given, "episodes": list(episodes or ())}, **more
        )
        batch = columns if is_flat or not batch else dict.fromkeys(nested, columns)
        # The part is made anew for each call; what a call leaves in it belongs to the whole pipeline.
        kwargs = self._fields_from_episodes(episodes or (), nest(batch, rl_module)[0]) | kwargs
        if kwargs.get("key") is None:
            kwargs["key"] = self._next_key()
        pure._num_envs = self._num_envs
        out = pure(batch=batch, **given, **kwargs)
        self._num_envs = pure._num_envs
        return out

    def _run_host_connectors(self, **arguments: Any) -> dict[str, Any]:
        """The host connectors' columns as arrays."""
        return run_host_connectors(self, **arguments)

    @property
    def state(self) -> dict[str, Any]:
        """Host copies of the connectors' states, ``{name: state}``."""
        self._chain_spaces()
        return {name: connector.state for name, connector in self._members}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        for name, own in value.items():
            self._places[self._index_of(name)][1].state = own

    def _resize(self, num_envs: int, all_reset: bool) -> None:
        self._chain_spaces()
        for name, connector in self._members:
            with self._naming(name):
                connector._resize(num_envs, all_reset)

    def get_checkpointable_components(self) -> list[tuple[str, ConnectorV2]]:
        """``(name, connector)`` of all members."""
        return list(self._members)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments that build this pipeline again, connectors included."""
        args, kwargs = super().get_ctor_args_and_kwargs()
        return args, {**kwargs, "connectors": self.connectors, "names": self.names}

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs) -> dict[str, Any]:
        """``{name: the connector's state}``.

        Args:
            components: Names of the connectors to give; None gives all.
            not_components: Names of connectors to leave out.
            **kwargs: Handed to the connectors.
        """
        self._chain_spaces()
        wanted = selected(self.names, components, not_components, type(self).__name__)
        return {name: connector.get_state(**kwargs) for name, connector in self._members if name in wanted}

    def set_state(self, state: dict[str, Any]) -> None:
        """Hand each named connector its state; those that ``state`` does not name keep theirs.

        Raises:
            ValueError: A name that no connector has, or a state that does not fit its connector.
        """
        self._chain_spaces()
        for name, own in state.items():
            connector = self._places[self._index_of(name)][1]
            with self._naming(name):
                connector.set_state(own)

    def reset_state(self) -> None:
        """Every connector back to its initial state."""
        for connector in self:
            connector.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state out of several runners', connector by connector; states find theirs by name.

        Returns:
            A state for `set_state` of every runner. Connectors that have nothing to share (no state, or a history of
            their runner's own environments) are not in it, and so keep theirs.
        """
        merged = {
            name: connector.merge_states([state[name] for state in states if name in state])
            for name, connector in self._members
            if any(name in state for state in states)
        }
        return {name: state for name, state in merged.items() if state}


def _context_of(name: str, connector: ConnectorV2, ctx: ConnectorContext) -> ConnectorContext:
    """The context with the connector's own key. The compiler removes keys that nothing draws from."""
    if ctx.key is None or connector.draws_from_pipeline_key:
        return ctx
    return dataclasses.replace(ctx, key=streams.named(ctx.key, name))


def _not_pure(names: Sequence[str], where: str) -> str:
    return (
        f"Connector(s) {', '.join(map(repr, names))} override `__call__` (RLlib's form, which runs on the "
        f"host), but {where}. Write them as pure functions:\n{PURE_SIGNATURE}\nor use a host environment, "
        "whose runners take host connectors."
    )


def _checked_output(result: Any) -> tuple[Any, dict[str, Any]]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"`apply` must return the tuple (state, batch), got {type(result).__name__}.")
    batch = result[1]
    if not isinstance(batch, dict) or not all(isinstance(columns, dict) for columns in batch.values()):
        raise TypeError(
            f"The batch that a connector returns is a dict {{module_id: {{column: arrays}}}}, got {_outline(batch)}."
        )
    return result


def _outline(batch: Any) -> str:
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key!r}: {type(value).__name__}" for key, value in batch.items()) + "}"
    return type(batch).__name__


def _described_leaves(batch: Mapping[str, Any]) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): described(leaf)
        for path, leaf in jax.tree.leaves_with_path(batch)
    }
