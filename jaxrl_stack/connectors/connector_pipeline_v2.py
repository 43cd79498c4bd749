"""Chain of connectors that is itself a connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.connectors.connector_v2 import CONTEXT_FIELDS, PURE_SIGNATURE, ConnectorV2, PureConnector, nest
from jaxrl_stack.connectors.context import ConnectorContext, StandaloneModule
from jaxrl_stack.connectors.describing import describe_members
from jaxrl_stack.connectors.host_connectors import run_host_connectors
from jaxrl_stack.connectors.markers import Marker
from jaxrl_stack.connectors.pure_pipeline import PurePipeline, naming
from jaxrl_stack.utils.action_masks import ACTION_MASK, OBSERVATIONS, mask_key_in
from jaxrl_stack.utils.spaces import zeros


class ConnectorPipelineV2(PureConnector):
    """Sequence of connectors with RLlib's API: host connectors first, then the pure connectors, which are compiled
    (`pure_part`).

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
        action_mask_key: Key of the action mask in the observations that enter, for modules that honour masks; None for
            no mask.

    Attributes:
        mask_lost_by: Name of the first connector whose output space is without the mask; None if there is none.
        num_changes: Number of times that a connector was added or removed.
        of_setting: Members that the function of a config's setting returned.

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
        action_mask_key: str | None = None,
        **kwargs,
    ):
        if action_mask_key is not None:
            self.mask_keys = tuple(dict.fromkeys((action_mask_key, ACTION_MASK)))
        self.mask_lost_by: str | None = None
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
            self._put(len(self._places), connector)
        if names is not None:
            if len(set(names)) != len(members) or len(names) != len(members):
                raise ValueError(
                    f"{type(self).__name__}(names={list(names)!r}): pass {len(members)} different names, one for each "
                    "connector."
                )
            given = iter(names)
            self._places = [(name if isinstance(own, Marker) else next(given), own) for name, own in self._places]
        self._fix_spaces()

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(repr(connector) for connector in self)}])"

    # --- Members

    @property
    def connectors(self) -> list[ConnectorV2]:
        """Connectors in the order in which they run. Each access returns a new list; ``append``, ``remove`` and similar
        methods change the pipeline.
        """
        return [connector for _, connector in self._members]

    @property
    def names(self) -> list[str]:
        """Names of the connectors, in the order in which they run."""
        return [name for name, _ in self._members]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConnectorV2]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type) -> ConnectorV2 | list[ConnectorV2]:
        """Returns the connector at an index or with a name, or a list of all connectors of a class."""
        if isinstance(key, int):
            return self._members[key][1]
        if isinstance(key, str):
            return self._places[self._index_of(key)][1]
        return [connector for connector in self if isinstance(connector, key)]

    def append(self, connector: ConnectorV2) -> None:
        """Adds a connector at the end of the pipeline."""
        self._insert(len(self._places), connector)

    def prepend(self, connector: ConnectorV2) -> None:
        """Adds a connector at the beginning of the pipeline."""
        self._insert(0, connector)

    def insert_before(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Inserts a connector before the first connector or marker (named position without effect) with the given name
        or class, and returns the inserted connector.

        Raises:
            ValueError: There is none.
            TypeError: A host connector would come after the place where episodes become arrays.
        """
        return self._insert(self._index_of(name_or_class), connector)

    def insert_after(self, name_or_class: str | type, connector: ConnectorV2) -> ConnectorV2:
        """Inserts a connector after the first connector or marker (named position without effect) with the given name
        or class; see `insert_before`.
        """
        return self._insert(self._index_of(name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type) -> None:
        """Removes the first connector or marker (named position without effect) with the given name or class from the
        pipeline.

        Raises:
            ValueError: There is none.
        """
        del self._places[self._index_of(name_or_class)]
        self.num_changes += 1
        self._fix_spaces()

    def _index_of(self, name_or_class: str | type) -> int:
        if not isinstance(name_or_class, str | type):
            raise TypeError(f"{name_or_class!r} is not the name or class of a connector. Choose from {self.names}.")
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
        self._put(index, connector)
        self._fix_spaces()
        return connector

    def _put(self, index: int, connector: ConnectorV2) -> None:
        if isinstance(connector, type) and issubclass(connector, ConnectorV2):
            raise TypeError(
                f"{connector.__name__} is a class; add an instance to the pipeline: {connector.__name__}()."
            )
        if not isinstance(connector, ConnectorV2):
            raise TypeError(
                f"{connector!r} ({type(connector).__name__}) is not a connector. Add a ConnectorV2 object to the "
                "pipeline."
            )
        if any(connector is place for _, place in self._places):
            raise ValueError(
                f"This {type(connector).__name__} object is in the pipeline already. Add a new one: "
                f"{type(connector).__name__}(...)."
            )
        before = [place for _, place in self._places[:index] if isinstance(place, Marker) and place.ends_episodes]
        if type(connector).is_host_connector and not isinstance(connector, ConnectorPipelineV2):
            # Whether it runs on episodes follows from where it stands, also where it is moved to.
            connector.is_host_connector = not (before and self.compiles_calls)
        if connector.is_host_connector and before:
            raise _misplaced(type(connector).__name__, type(before[0]).__name__, type(self).__name__)
        if not self._multi_agent:
            # Where there are several modules, each has a pipeline of its own, with its own spaces.
            connector._multi_agent = False
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
        """Sets the input spaces of each connector to the output spaces of the connector before it."""
        if self._are_spaces_chained:
            return
        spaces = self._input_observation_space, self._input_action_space
        self.mask_lost_by = None
        if spaces != (None, None):
            for name, connector in self._members:
                had_mask = mask_key_in(spaces[0], self.mask_keys) is not None
                with naming(name, self.names, type(self).__name__):
                    spaces = _spaces_after(connector, *spaces, self.mask_keys)
                if had_mask and mask_key_in(spaces[0], self.mask_keys) is None:
                    inner = getattr(connector, "mask_lost_by", None)
                    self.mask_lost_by = name if inner is None else f"{name}/{inner}"
        self._outputs = spaces
        self._are_spaces_chained = True

    def _output_spaces(self) -> tuple[Any, Any]:
        self._chain_spaces()
        return self._outputs

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Sets the pipeline's input spaces, and returns the observation space after the last connector."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Sets the pipeline's input spaces, and returns the action space after the last connector."""
        self._set_input_spaces(input_observation_space, input_action_space)
        return self.action_space

    # --- What is compiled

    @property
    def host_connectors(self) -> dict[str, ConnectorV2]:
        """Host connectors of this pipeline, ``{name: connector}``. Host connectors override RLlib's ``__call__`` and
        run on the host. Connectors in nested pipelines have names such as ``"outer/inner"``.
        """
        return {name: connector for name, connector in self._flat_members() if connector.is_host_connector}

    def checked_host_connectors(self) -> list[tuple[str, ConnectorV2]]:
        """Returns ``(name, connector)`` of the host connectors (which override ``__call__``); raises an error if one
        follows a pure connector (which overrides ``apply``).

        Raises:
            TypeError: One comes after a pure connector, or the pipeline's class itself overrides ``__call__``.
        """
        if self.is_host_connector:
            raise _overrides(type(self).__name__, "__call__")
        return self._leading_host_connectors()

    def _leading_host_connectors(self) -> list[tuple[str, ConnectorV2]]:
        self._chain_spaces()
        members = list(self._flat_members())
        first_pure = next((i for i, (_, member) in enumerate(members) if not member.is_host_connector), len(members))
        for name, member in members[first_pure:]:
            if member.is_host_connector:
                raise _misplaced(name, members[first_pure][0], type(self).__name__)
        return members[:first_pure]

    def _flat_members(self) -> Iterator[tuple[str, ConnectorV2]]:
        """Yields ``(name, connector)`` of all connectors; nested pipelines are expanded, with names
        ``"outer/inner"``.
        """
        for name, connector in self._members:
            if isinstance(connector, ConnectorPipelineV2) and not connector.is_host_connector:
                yield from ((f"{name}/{inner}", sub) for inner, sub in connector._flat_members())
            else:
                yield name, connector

    def pure_part(self) -> PurePipeline:
        """Returns the compiled part of the pipeline as a `PurePipeline`: the current connectors that override
        ``apply``.

        The connectors keep their names in this pipeline. The host connectors before them (which override ``__call__``)
        are left out. The result shares the states of this pipeline: ``pipeline.state = state`` shows in `get_state`.
        The input spaces of the result are the output spaces of the host connectors.

        Raises:
            TypeError: See `checked_host_connectors`; or the pipeline's class overrides `init`, `apply`, `merge` or
                `rebatch`.
        """
        return self._pure_after(self.checked_host_connectors())

    def _pure_after(self, on_host: Sequence[tuple[str, ConnectorV2]]) -> PurePipeline:
        """Returns a `PurePipeline` of the connectors after the given host connectors (which override ``__call__``). The
        input of the `PurePipeline` is the output of the last host connector.
        """
        for method in ("init", "apply", "merge", "rebatch"):
            if getattr(type(self), method) is not getattr(ConnectorPipelineV2, method):
                raise _overrides(type(self).__name__, method)
        self._chain_spaces()
        last = on_host[-1][1] if on_host else None
        return PurePipeline(
            label=type(self).__name__,
            members=tuple(
                (name, connector.pure_part() if isinstance(connector, ConnectorPipelineV2) else connector)
                for name, connector in self._members
                if not connector.is_host_connector
            ),
            input_observation_space=last.observation_space if last else self._input_observation_space,
            input_action_space=last.action_space if last else self._input_action_space,
            observation_space=self.observation_space,
            action_space=self.action_space,
            mask_keys=self.mask_keys,
        )

    def check_pure(self) -> None:
        """Raises a TypeError unless all connectors are pure functions, which can be compiled.

        Raises:
            TypeError: A host connector is in it; the message names it and shows the pure form.
        """
        names = [type(self).__name__] if self.is_host_connector else list(self.host_connectors)
        if names:
            raise TypeError(
                f"Connector(s) {', '.join(map(repr, names))} override `__call__` (RLlib's form, which runs on the "
                f"host), but this {type(self).__name__} is compiled. Write them as pure functions:\n{PURE_SIGNATURE}\n"
                "With host environments, such as gymnasium environments, the env-to-module and learner pipelines also "
                "support `__call__`."
            )

    def init(self, num_envs: int) -> dict[str, Any]:
        """Returns the initial states of all connectors, ``{name: state}``.

        Raises:
            TypeError: There is a host connector: only `pure_part` has a state then. So do the next three methods.
        """
        return self._whole().init(num_envs)

    def apply(self, state: dict[str, Any], batch: dict[str, Any], ctx: ConnectorContext):
        """Runs all connectors one after the other, see `PurePipeline.apply`."""
        return self._whole().apply(state, batch, ctx)

    def merge(self, state: dict[str, Any], axis_name: str | None) -> dict[str, Any]:
        """Merges statistics in the states of the pipeline's connectors over the devices; returns the new states."""
        return self._whole().merge(state, axis_name)

    def rebatch(self, state: dict[str, Any], num_envs: int) -> dict[str, Any]:
        """Returns the connectors' states for a new set of environments. Statistics do not change, and per-environment
        values get their initial values.
        """
        return self._whole().rebatch(state, num_envs)

    def _whole(self) -> PurePipeline:
        self.check_pure()
        return self._pure_after(())

    def blank_context(self, module_ids: Sequence[str], num_envs: int, **fields: Any) -> ConnectorContext:
        """Creates a connector context for tracing: previous actions and rewards are zeros, no environment is reset;
        `fields` are added to the context.
        """
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

    # --- Explaining

    def explain(self, batch: dict[str, Any], *, rl_module=None, ctx: ConnectorContext | None = None) -> None:
        """Prints the columns that each connector reads and writes, with dtypes and shapes; see `describe`."""
        print(self.describe(batch, rl_module=rl_module, ctx=ctx))

    def describe(self, batch: dict[str, Any], *, rl_module=None, ctx: ConnectorContext | None = None) -> str:
        """Describes the columns that each connector reads and writes, with dtypes and shapes, as text.

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
        return describe_members(
            self._members, nested, ctx, label=type(self).__name__, num_envs=size, mask_keys=self.mask_keys
        )

    def _batch_size(self, batch: Mapping[str, Any], episodes: Sequence[Any] | None) -> int:
        leaves = jax.tree.leaves(batch)
        if leaves:
            return np.shape(leaves[0])[self.env_axis]
        return super()._batch_size(batch, episodes)

    # --- RLlib's object interface

    def __call__(self, *, rl_module=None, batch=None, episodes=None, explore=None, **kwargs) -> dict[str, Any]:
        """Runs the host connectors on ``batch`` and ``episodes``, then the pure connectors on the result.

        See `ConnectorV2.__call__`. Unknown keyword arguments go to the host connectors.

        Raises:
            NotImplementedError: A batch of several modules, for a host connector.
        """
        columns = self._call_members(rl_module, self._given(batch), episodes, explore, kwargs)
        return self._handed_over(columns, rl_module, [] if batch else list(episodes or ()))

    def _given(self, batch: Any) -> Any:
        """Converts the argument `batch` of `__call__` to the batch that the first connector receives. By default
        returns `batch` unchanged; subclasses may override this method.
        """
        return batch

    def _handed_over(self, columns: dict[str, Any], rl_module: Any, episodes: Sequence[Any]) -> dict[str, Any]:
        """Converts the columns after the last connector to the result of `__call__`.

        By default returns `columns` unchanged; subclasses may override this method. `episodes` are the episodes that
        `__call__` received, or [] if `__call__` received a batch.
        """
        return columns

    def _call_members(self, rl_module: Any, batch: Any, episodes: Any, explore: Any, kwargs: dict[str, Any]) -> Any:
        given = {"rl_module": rl_module, "episodes": episodes, "explore": explore}
        if not self._leading_host_connectors():
            return super().__call__(batch=batch, **given, **kwargs)
        nested, is_flat = nest(batch or {}, rl_module)
        if len(nested) > 1:
            raise NotImplementedError(
                f"Host connectors (they override `__call__`) support only batches of one module; this batch has the "
                f"modules {sorted(nested)}. Pass one module's columns: batch=batch[{sorted(nested)[0]!r}]."
            )
        more = {name: value for name, value in kwargs.items() if name not in CONTEXT_FIELDS}
        columns = self._run_host_connectors(
            batch=next(iter(nested.values()), {}), **{**given, "episodes": list(episodes or ())}, **more
        )
        batch = columns if is_flat or not batch else dict.fromkeys(nested, columns)
        kwargs = self._fields_from_episodes(episodes or (), nest(batch, rl_module)[0]) | kwargs
        return super().__call__(batch=batch, **given, **kwargs)

    def _advance(self, batch: dict[str, Any], ctx: ConnectorContext) -> dict[str, Any]:
        self.state, batch = self._pure_after(self._leading_host_connectors()).apply(self.state, batch, ctx)
        return batch

    def _run_host_connectors(self, **arguments: Any) -> dict[str, Any]:
        """Runs the pipeline's host connectors (which override ``__call__``), and returns the columns of the resulting
        batch as arrays.
        """
        return run_host_connectors(self, **arguments)

    @property
    def state(self) -> dict[str, Any]:
        """Copies of the states of the pure connectors (which override ``apply``) in host memory, ``{name: state}``.

        The state of a nested pipeline is a dict of the same form.
        """
        self._chain_spaces()
        return {name: connector.state for name, connector in self._members if not connector.is_host_connector}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        for name, own in value.items():
            self._places[self._index_of(name)][1].state = own

    def _resize(self, num_envs: int, all_reset: bool) -> None:
        self._chain_spaces()
        for name, connector in self._members:
            with naming(name, self.names, type(self).__name__):
                connector._resize(num_envs, all_reset)

    def get_checkpointable_components(self) -> list[tuple[str, ConnectorV2]]:
        """Returns ``(name, connector)`` of all connectors, each a component of a checkpoint."""
        return list(self._members)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns constructor arguments ``(args, kwargs)`` that create an equal pipeline, with the same connectors,
        connector names and input spaces.
        """
        args, kwargs = super().get_ctor_args_and_kwargs()
        return args, {**kwargs, "connectors": self.connectors, "names": self.names}

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs) -> dict[str, Any]:
        """Returns the states of the pipeline's connectors, ``{name: state}``.

        Args:
            components: Names of the connectors to give; None gives all.
            not_components: Names of connectors to leave out.
            **kwargs: Handed to the connectors.
        """
        self._chain_spaces()
        wanted = selected(self.names, components, not_components, type(self).__name__)
        return {name: connector.get_state(**kwargs) for name, connector in self._members if name in wanted}

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the states of the pipeline's connectors from ``state``, ``{connector name: state}``; connectors that are
        missing in ``state`` keep their state.

        Raises:
            ValueError: A name that no connector has, or a state that does not fit its connector.
        """
        self._chain_spaces()
        for name, own in state.items():
            try:
                connector = self._places[self._index_of(name)][1]
            except ValueError as error:
                error.add_note(
                    "The state comes from a pipeline with this connector. Set "
                    f"{self.setting or 'the connectors'} as in that run, or load only the weights: "
                    "restore_from_path(path, component='learner_group')."
                )
                raise
            with naming(name, self.names, type(self).__name__):
                connector.set_state(own)

    def reset_state(self) -> None:
        """Resets every connector to its initial state."""
        for connector in self:
            connector.reset_state()

    def merge_states(self, states: list[dict[str, Any]], *, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Merges the pipeline states of several EnvRunners into one state, separately for each connector.

        Args:
            states: States of the runners. Without `known`: one per runner, all with the same merged statistics.
            known: Merged state of all earlier reports, if runners report at different times and each report contains
                only the observations since the runner's last report. These observations are added to `known`, and
                `states` may contain any number of reports per runner. None: the merged statistics are in `states`.

        Returns:
            A state for `set_state` of every runner. It lacks connectors without shared state (no state, or histories
            of a runner's environments): `set_state` does not change these.
        """
        merged = {}
        for name, connector in self._members:
            own = [state[name] for state in states if name in state]
            if known is not None and name in known:
                own = [known[name], *(connector.rebase_state(state, known[name]) for state in own)]
            if own:
                merged[name] = connector.merge_states(own)
        return {name: state for name, state in merged.items() if state}


def _spaces_after(
    connector: ConnectorV2, observation_space: Any, action_space: Any, mask_keys: tuple[str, ...]
) -> tuple[Any, Any]:
    """Returns the output spaces of a connector for given input spaces.

    If the connector does not receive the action mask, the mask is added to its output space.
    """
    if connector.mask_keys != mask_keys:
        connector.mask_keys, connector._outputs = mask_keys, None
    key = mask_key_in(observation_space, mask_keys)
    if key is None or connector.sees_action_mask or connector.is_host_connector:
        connector._set_input_spaces(observation_space, action_space)
        return connector.observation_space, connector.action_space
    connector._set_input_spaces(observation_space[OBSERVATIONS], action_space)
    kept = {key: observation_space[key], OBSERVATIONS: connector.observation_space}
    return gym.spaces.Dict(kept), connector.action_space


def _overrides(pipeline: str, method: str) -> TypeError:
    return TypeError(
        f"{pipeline} overrides `{method}`, which compiled code does not call: it calls the pipeline's connectors "
        "directly. Move the code to a ConnectorV2, and add this connector with `prepend`."
    )


def _misplaced(name: str, other: str, pipeline: str) -> TypeError:
    return TypeError(
        f"Host connector {name!r} comes after {other!r} in this {pipeline}. Host connectors (they override `__call__`) "
        "run on episodes, before these become arrays for the compiled connectors. Move it to the front "
        f"(`pipeline.remove(...)`, `pipeline.prepend(...)`), or write it as a pure function:\n{PURE_SIGNATURE}"
    )
