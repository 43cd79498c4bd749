"""A chain of connectors that is itself a connector."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import (
    CONTEXT_FIELDS,
    PURE_SIGNATURE,
    ConnectorContext,
    ConnectorV2,
    StandaloneModule,
    check_state,
    nest,
    strong_array,
)
from jaxrl_stack.connectors.host_pieces import run_host_front
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.spaces import zeros

if TYPE_CHECKING:
    import gymnasium as gym


class ConnectorPipelineV2(ConnectorV2):
    """Connectors run one after the other; the state is ``{piece name: state of the piece}``.

    A piece's name is its class name; further pieces of the same class get ``_1``, ``_2``, … Names stay what
    they are while pieces are inserted and removed around them, so states always find their piece. Spaces are
    chained: each piece's input spaces are the output spaces of the piece before it.

    Args:
        input_observation_space: Space of the observations that enter the first piece; None takes the first
            piece's.
        input_action_space: Likewise for actions.
        connectors: The pieces, in order.
        names: Their names, where these do not follow from the order: for pipelines whose pieces were moved.

    Raises:
        TypeError: A member is not a ConnectorV2.
        ValueError: One object is a member twice, or there is not one name per piece.
    """

    _is_optional_in_checkpoints = False
    env_axis = 0  # where the environments are in a batch's leaves

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        connectors: Sequence[ConnectorV2] | None = None,
        names: Sequence[str] | None = None,
        **kwargs,
    ):
        pieces = list(connectors or ())
        if pieces and isinstance(pieces[0], ConnectorV2):
            if input_observation_space is None:
                input_observation_space = pieces[0].input_observation_space
            if input_action_space is None:
                input_action_space = pieces[0].input_action_space
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._members: list[tuple[str, ConnectorV2]] = []
        self._are_spaces_chained = False
        for piece in pieces:
            self._insert(len(self._members), piece)
        if names is not None:
            if len(set(names)) != len(pieces) or len(names) != len(pieces):
                raise ValueError(f"names={list(names)!r} are not one name for each of the {len(pieces)} pieces.")
            self._members = list(zip(names, pieces, strict=True))
        self._fix_spaces()

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(repr(piece) for piece in self)}])"

    # --- Members

    @property
    def connectors(self) -> list[ConnectorV2]:
        """The pieces in order; a new list, so that changes go through ``append``, ``remove``, …"""
        return [piece for _, piece in self._members]

    @property
    def names(self) -> list[str]:
        """The pieces' names in order."""
        return [name for name, _ in self._members]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConnectorV2]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type) -> ConnectorV2 | list[ConnectorV2]:
        """The piece at an index or of a name, or the list of all pieces of a class."""
        if isinstance(key, int):
            return self._members[key][1]
        if isinstance(key, str):
            return self._members[self._index_of(key)][1]
        return [piece for piece in self if isinstance(piece, key)]

    def append(self, connector: ConnectorV2) -> None:
        """Add a piece behind the last one."""
        self._insert(len(self._members), connector)
        self._fix_spaces()

    def prepend(self, connector: ConnectorV2) -> None:
        """Add a piece before the first one."""
        self._insert(0, connector)
        self._fix_spaces()

    def insert_before(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Add a piece before the first one of that name or class, and return it."""
        self._insert(self._index_of(name_or_class), connector)
        self._fix_spaces()
        return connector

    def insert_after(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Add a piece behind the first one of that name or class, and return it."""
        self._insert(self._index_of(name_or_class) + 1, connector)
        self._fix_spaces()
        return connector

    def remove(self, name_or_class: str | type) -> None:
        """Take out the first piece of that name or class.

        Raises:
            ValueError: There is none.
        """
        del self._members[self._index_of(name_or_class)]
        self._fix_spaces()

    def _index_of(self, name_or_class: str | type) -> int:
        if not isinstance(name_or_class, str | type):
            raise TypeError(f"{name_or_class!r} is no name or class of a piece; the pieces are {self.names}.")
        matches: Sequence[Callable[[str, ConnectorV2], bool]]
        if isinstance(name_or_class, str):
            matches = [lambda name, piece: name == name_or_class]
        else:
            # The class itself wins over a subclass of it that stands further in front.
            matches = [
                lambda name, piece: type(piece) is name_or_class,
                lambda name, piece: isinstance(piece, name_or_class),
            ]
        for match in matches:
            for index, (name, piece) in enumerate(self._members):
                if match(name, piece):
                    return index
        wanted = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
        raise ValueError(f"No piece {wanted!r} in this {type(self).__name__}; its pieces are {self.names}.")

    def _insert(self, index: int, piece: ConnectorV2) -> None:
        if isinstance(piece, type) and issubclass(piece, ConnectorV2):
            raise TypeError(f"{piece.__name__} is a class; add an instance to the pipeline: {piece.__name__}().")
        if not isinstance(piece, ConnectorV2):
            raise TypeError(f"A pipeline's pieces are ConnectorV2 objects, got {piece!r} ({type(piece).__name__}).")
        if any(piece is member for member in self):
            raise ValueError(f"This {type(piece).__name__} object is in the pipeline already; add a second one.")
        base = name = type(piece).__name__
        suffix = 0
        while name in self.names:
            suffix += 1
            name = f"{base}_{suffix}"
        self._members.insert(index, (name, piece))

    # --- Spaces

    def _set_input_spaces(self, observation_space, action_space) -> None:
        super()._set_input_spaces(observation_space, action_space)
        self._fix_spaces()

    def _fix_spaces(self) -> None:
        self._are_spaces_chained = False
        # With one of the two spaces still to come, a piece that needs both would fail without reason.
        if self._input_observation_space is not None and self._input_action_space is not None:
            self._chain_spaces()

    def _chain_spaces(self) -> None:
        """Hand every piece the output spaces of the one before it."""
        if self._are_spaces_chained:
            return
        spaces = self._input_observation_space, self._input_action_space
        if spaces != (None, None):
            for index, (name, piece) in enumerate(self._members):
                with self._naming(index, name):
                    piece._set_input_spaces(*spaces)
                    spaces = piece.observation_space, piece.action_space
        self._outputs = spaces
        self._are_spaces_chained = True

    def _output_spaces(self) -> tuple[Any, Any]:
        self._chain_spaces()
        return self._outputs

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The last piece's output space, for the given input spaces, which the pipeline takes over."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The last piece's action space, for the given input spaces, which the pipeline takes over."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.action_space

    # --- The pure core

    @property
    def host_pieces(self) -> dict[str, ConnectorV2]:
        """Name -> piece written for RLlib's ``__call__``; in pipelines inside this one, ``"outer/inner"``."""
        found = {}
        for name, piece in self._members:
            if piece.is_host_piece:
                found[name] = piece
            elif isinstance(piece, ConnectorPipelineV2):
                found |= {f"{name}/{inner}": sub for inner, sub in piece.host_pieces.items()}
        return found

    def host_front(self) -> list[tuple[str, ConnectorV2]]:
        """``(name, piece)`` of the host pieces, all of which stand in front of the pure ones; names as in
        `host_pieces`.

        Raises:
            TypeError: A host piece stands behind a pure piece, or the pipeline's class itself overrides
                ``__call__``.
        """
        if self.is_host_piece:
            raise TypeError(
                f"{type(self).__name__} overrides `__call__` of the pipeline. A pipeline's pure pieces are "
                "compiled into the step, without that call: put the code into a ConnectorV2 of its own and add "
                "it with `prepend`."
            )
        self._chain_spaces()
        front = []
        pure_name = None
        for name, piece in self._flat_members():
            if not piece.is_host_piece:
                pure_name = pure_name or name
            elif pure_name is not None:
                raise TypeError(
                    f"Host piece {name!r} stands behind {pure_name!r} in this {type(self).__name__}. Pieces that "
                    "override `__call__` run on the episodes, before the compiled pieces: move it to the front "
                    f"(`pipeline.remove({name!r})`, `pipeline.prepend(...)`), or write it as a pure function:\n"
                    f"{PURE_SIGNATURE}"
                )
            else:
                front.append((name, piece))
        return front

    def _flat_members(self) -> Iterator[tuple[str, ConnectorV2]]:
        """``(name, piece)`` without the pipelines around them; ``"outer/inner"`` in a pipeline inside."""
        for name, piece in self._members:
            if isinstance(piece, ConnectorPipelineV2) and not piece.is_host_piece:
                yield from ((f"{name}/{inner}", sub) for inner, sub in piece._flat_members())
            else:
                yield name, piece

    def pure_part(self) -> ConnectorPipelineV2:
        """The pipeline behind its host pieces: what is compiled; the pipeline itself if it has none.

        It shares the pieces, under the same names: a state that is set here shows in the `get_state` of the
        whole pipeline, and the other way round. Its input spaces are the output spaces of the host pieces.
        Members that are added to one of the two later are not in the other.

        Raises:
            TypeError: See `host_front`.
        """
        front = self.host_front()
        if not front:
            return self
        spaces = front[-1][1].observation_space, front[-1][1].action_space
        part = copy.copy(self)
        part._members = [
            (name, piece.pure_part() if isinstance(piece, ConnectorPipelineV2) else piece)
            for name, piece in self._members
            if not piece.is_host_piece
        ]
        part._input_observation_space, part._input_action_space = spaces
        part._are_spaces_chained = False
        part._fix_spaces()
        return part

    def check_pure(self) -> None:
        """Make sure that the whole pipeline can be compiled.

        Raises:
            TypeError: A host piece is in it; the message names it and shows the pure form.
        """
        if self.is_host_piece:
            raise TypeError(_not_pure([type(self).__name__], "the environments run on the device"))
        if self.host_pieces:
            raise TypeError(_not_pure(list(self.host_pieces), f"{type(self).__name__} is compiled"))

    @staticmethod
    def make_context(**fields: Any) -> ConnectorContext:
        """A `ConnectorContext`, for callers of a lower layer, which cannot import the class."""
        return ConnectorContext(**fields)

    def init(self, num_envs: int) -> dict[str, Any]:
        """Fresh state of all pieces, ``{piece name: state}``."""
        self._chain_spaces()
        state = {}
        for index, (name, piece) in enumerate(self._members):
            with self._naming(index, name):
                state[name] = jax.tree.map(strong_array, piece.init(num_envs))
        return state

    def apply(self, state: dict[str, Any], batch: dict[str, Any], ctx: ConnectorContext):
        """Run all pieces in order. An exception inside a piece gets a note with its name and position.

        Raises:
            TypeError: A piece is a host piece, or returned something else than ``(state, batch)``, or a state
                of other structure, shapes or dtypes.
        """

        self._chain_spaces()
        if set(state) != set(self.names):
            raise ValueError(
                f"The state given to this {type(self).__name__} is for the pieces {sorted(state)}, but its "
                f"pieces are {sorted(self.names)}. Make the state with `pipeline.init(num_envs)` after the "
                "last change."
            )
        # Copies of the two dict levels: a piece that assigns a column in place does not reach the caller's
        # batch.
        batch = {module_id: dict(columns) for module_id, columns in batch.items()}
        new_state = {}
        for index, (name, piece) in enumerate(self._members):
            with self._naming(index, name):
                if piece.is_host_piece:
                    raise TypeError(_not_pure([type(piece).__name__], "this pipeline is compiled"))
                piece_ctx = _context_of(name, piece, ctx)
                piece_state, batch = _checked_output(piece.apply(state[name], batch, piece_ctx))
                new_state[name] = check_state(state[name], piece_state)
        return new_state, batch

    @contextlib.contextmanager
    def _naming(self, index: int, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"In connector {name!r}, piece {index + 1} of {len(self)} of {type(self).__name__}.")
            raise

    def merge(self, state: dict[str, Any], axis_name: str | None) -> dict[str, Any]:
        """Every piece's statistics merged over the devices."""
        return {name: piece.merge(state[name], axis_name) for name, piece in self._members}

    def rebatch(self, state: dict[str, Any], num_envs: int) -> dict[str, Any]:
        """Every piece's state for another set of environments."""
        return {name: jax.tree.map(strong_array, piece.rebatch(state[name], num_envs)) for name, piece in self._members}

    # --- Explaining

    def explain(
        self,
        batch: dict[str, Any],
        *,
        rl_module=None,
        ctx: ConnectorContext | None = None,
    ) -> None:
        """Print which columns each piece reads and leaves behind, with dtypes and shapes; see `describe`."""
        print(self.describe(batch, rl_module=rl_module, ctx=ctx))

    def describe(
        self,
        batch: dict[str, Any],
        *,
        rl_module=None,
        ctx: ConnectorContext | None = None,
    ) -> str:
        """Which columns each piece reads and leaves behind, with dtypes and shapes.

        Nothing is computed: the pieces are traced with the shapes of ``batch``.

        Args:
            batch: ``{module_id: {column: arrays}}`` or ``{column: arrays}``; ``jax.ShapeDtypeStruct`` leaves
                do, too.
            rl_module: Module for pieces that ask for one.
            ctx: Context; None makes one with a key, a reset mask, and zeros as previous actions and rewards.
        """
        nested, _ = nest(batch)
        size = self._batch_size(nested, None)
        if ctx is None:
            ctx = ConnectorContext(
                key=jax.random.key(0),
                reset=np.zeros(size, bool),
                prev_rewards={module_id: np.zeros(size, np.float32) for module_id in nested},
                prev_actions=self._zero_actions(size),
                step=np.zeros(2, np.uint32),
                pure=None if rl_module is None else StandaloneModule(rl_module),
            )
        self._chain_spaces()
        lines = [f"{type(self).__name__}: {len(self)} pieces, {size} environments"]
        columns = _described_columns(nested)
        lines += ["in", *(f"    {column:<40} {what}" for column, what in columns.items())]
        for index, (name, piece) in enumerate(self._members):
            lines.append(f"{index + 1} {name}")
            if piece.is_host_piece:
                lines.append("    host piece: what it puts out is not known before it runs")
                break
            with self._naming(index, name):
                piece_ctx = _context_of(name, piece, ctx)
                state = jax.eval_shape(lambda piece=piece: jax.tree.map(strong_array, piece.init(size)))
                piece_state, nested = _checked_output(jax.eval_shape(piece.apply, state, nested, piece_ctx))
                jax.eval_shape(check_state, state, piece_state)
            before, columns = columns, _described_columns(nested)
            for column, what in columns.items():
                mark = " " if before.get(column) == what else "+" if column not in before else "*"
                lines.append(f"  {mark} {column:<40} {what}")
            lines += [f"  - {column}" for column in before if column not in columns]
            leaves = jax.tree.leaves_with_path(state)
            lines += [f"    state{jax.tree_util.keystr(path)}: {_dtype_and_shape(leaf)}" for path, leaf in leaves]
        return "\n".join(lines)

    def _zero_actions(self, size: int):
        if self._input_action_space is None:
            return None
        return {module_id: zeros(space, (size,)) for module_id, space in self._action_spaces().items()}

    def _batch_size(self, batch: Mapping[str, Any], episodes: Sequence[Any] | None) -> int:
        leaves = jax.tree.leaves(batch)
        if leaves:
            return np.shape(leaves[0])[self.env_axis]
        return super()._batch_size(batch, episodes)

    # --- RLlib's object interface

    def __call__(
        self,
        *,
        rl_module=None,
        batch: dict[str, Any] | None = None,
        episodes: Sequence[Any] | None = None,
        explore: bool | None = None,
        shared_data: dict | None = None,
        metrics=None,
        **kwargs,
    ) -> dict[str, Any]:
        """Run the host pieces on ``batch`` and ``episodes``, and the pure ones on what they leave behind.

        See `ConnectorV2.__call__`. Unknown keyword arguments go to the host pieces.

        Raises:
            NotImplementedError: A batch of several modules, in front of a host piece.
        """
        pure = self if self.is_host_piece else self.pure_part()
        if pure is not self:
            nested, is_flat = nest(batch or {})
            if len(nested) > 1:
                raise NotImplementedError(
                    f"Host pieces take the columns of one module; the batch has the modules {sorted(nested)}."
                )
            module_id, columns = next(iter(nested.items()), (DEFAULT_MODULE_ID, {}))
            columns = self._run_host_front(
                batch=columns,
                rl_module=rl_module,
                episodes=list(episodes or ()),
                explore=explore,
                shared_data=shared_data,
                metrics=metrics,
                **{name: value for name, value in kwargs.items() if name not in CONTEXT_FIELDS},
            )
            batch = columns if is_flat or not batch else {module_id: columns}
            # The part is made anew for each call; what a call leaves in it belongs to the whole pipeline.
            kwargs = self._fields_from_episodes(episodes or ()) | kwargs
            if kwargs.get("key") is None:
                kwargs["key"] = self._next_key()
            pure._num_envs = self._num_envs
            out = pure(rl_module=rl_module, batch=batch, episodes=episodes, explore=explore, **kwargs)
            self._num_envs = pure._num_envs
            return out
        return super().__call__(
            rl_module=rl_module,
            batch=batch,
            episodes=episodes,
            explore=explore,
            shared_data=shared_data,
            metrics=metrics,
            **kwargs,
        )

    def _run_host_front(self, **arguments: Any) -> dict[str, Any]:
        """The host pieces' columns as arrays."""
        return run_host_front(self, **arguments)

    def _fields_from_episodes(self, episodes: Sequence[Any]) -> dict[str, Any]:
        """Fields of the ConnectorContext that running episodes tell."""
        del episodes
        return {}

    @property
    def state(self) -> dict[str, Any]:
        """Host copies of the pieces' states, ``{piece name: state}``."""
        self._chain_spaces()
        return {name: piece.state for name, piece in self._members}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        for name, piece_state in value.items():
            self._members[self._index_of(name)][1].state = piece_state

    def _resize(self, num_envs: int, all_reset: bool) -> None:
        self._chain_spaces()
        for index, (name, piece) in enumerate(self._members):
            with self._naming(index, name):
                piece._resize(num_envs, all_reset)

    def get_checkpointable_components(self) -> list[tuple[str, ConnectorV2]]:
        """``(name, piece)`` of all members."""
        return list(self._members)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments that build this pipeline again, pieces included."""
        args, kwargs = super().get_ctor_args_and_kwargs()
        return args, {**kwargs, "connectors": self.connectors, "names": self.names}

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs,
    ) -> dict[str, Any]:
        """``{piece name: its state}``.

        Args:
            components: Names of the pieces to give; None gives all.
            not_components: Names of pieces to leave out.
            **kwargs: Handed to the pieces.
        """
        self._chain_spaces()
        wanted = _names(components, self.names)
        unwanted = _names(not_components, [])
        for name in [*wanted, *unwanted]:
            self._index_of(name)
        return {
            name: piece.get_state(**kwargs) for name, piece in self._members if name in wanted and name not in unwanted
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Hand each named piece its state; pieces that ``state`` does not name keep theirs.

        Raises:
            ValueError: A name that no piece has, or a state that does not fit its piece.
        """
        self._chain_spaces()
        for name, piece_state in state.items():
            index = self._index_of(name)
            with self._naming(index, name):
                self._members[index][1].set_state(piece_state)

    def reset_state(self) -> None:
        """Every piece back to its initial state."""
        for piece in self:
            piece.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state out of several runners', piece by piece; states find their piece by name.

        Returns:
            A state for `set_state` of every runner. Pieces that have nothing to share (no state, or a history of
            their runner's own environments) are not in it, and so keep theirs.
        """
        merged = {
            name: piece.merge_states([state[name] for state in states if name in state])
            for name, piece in self._members
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
        "whose runners take host pieces."
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


def _names(names: str | Collection[str] | None, default: Sequence[str]) -> Sequence[str]:
    if names is None:
        return default
    return [names] if isinstance(names, str) else list(names)


def _described_columns(batch: Mapping[str, Any]) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): _dtype_and_shape(leaf)
        for path, leaf in jax.tree.leaves_with_path(batch)
    }


def _dtype_and_shape(leaf: Any) -> str:
    return f"{jnp.result_type(leaf).name}{list(np.shape(leaf))}"
