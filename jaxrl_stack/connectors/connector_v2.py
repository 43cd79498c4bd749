"""Connector interface, with two ways to write a connector: pure functions (`apply`), or RLlib's ``__call__``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts
from jaxrl_stack.checkpoints.plain_data import Constructible
from jaxrl_stack.connectors import batch_items
from jaxrl_stack.connectors.context import ConnectorContext, StandaloneModule
from jaxrl_stack.connectors.states import as_dict, restore, shape_problem, to_host
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.retracing import attributes_of, changed_attributes

PURE_SIGNATURE = """\
class MyConnector(ConnectorV2):
    def init(self, num_envs: int):              # arrays only; leave it out if there is no state
        return ()

    def apply(self, state, batch, ctx):         # pure: new values instead of changes in place
        return state, batch"""


class ConnectorV2(Checkpointable, Constructible):
    """Base class of connectors, which transform data between environment, module and learner.

    A subclass overrides one of two methods, and gets the base class for this method when it is defined:

    * `PureConnector`, by overriding ``apply``: pure functions over an explicit state, which JAX traces, so that the
      same connector runs in the compiled training step, on a host runner and standalone;
    * `HostConnector`, by overriding ``__call__`` (RLlib's form: episodes in, changes in place). It runs on the actor
      driver only, before all pure connectors. Its ``batch`` is a dict ``batch[column][(episode id,)] = [items]``,
      which the static methods read and change. In a learner pipeline, a connector that does not read episodes may
      also come after the conversion of episodes to arrays.

    Args:
        input_observation_space: Space of the input observations: of one environment, without batch axis. With
            ``multi_agent=True`` a mapping from module id to such a space.
        input_action_space: Space of the environment's actions, in the same form.
        **kwargs: ``multi_agent`` (bool, default False): whether spaces and batches have several module ids. A pipeline
            without it switches it off in its connectors: each module of a config has a separate pipeline.

    Raises:
        TypeError: An unknown keyword argument.

    Attributes:
        is_host_connector: Whether it overrides RLlib's ``__call__`` and hence cannot be compiled. False after the
            conversion of episodes to arrays in a learner pipeline, where ``__call__`` is compiled.
        needs_all_final_obs: Whether it also reads FINAL_OBS of steps that terminate an episode. A class may set it.
        columns_from_acting: Columns of every sampled step that a connector of the learner pipeline reads; see
            `Learner.columns_from_acting`. A class may set it.
        needs_sampled_steps: Whether it reads every sampled step once, with the environment's reward: rows that are
            drawn from replay, and ``clip_rewards``, are refused. A class may set it.
        sees_action_mask: Whether ``apply`` gets observations with their action mask, ``{"action_mask": mask,
            "observations": ...}``, and must return the mask. If a class of pure connectors sets False, ``apply`` gets
            only the value of "observations", and the pipeline adds the mask to the output. No effect for modules that
            do not use masks.
        mask_keys: Keys that a mask may have in the pipeline, which sets this; empty for no mask.
    """

    _ctor_args_and_kwargs: tuple[tuple, dict[str, Any]]
    _is_optional_in_checkpoints = True
    # One connector of a pipeline may draw from the pipeline's key, which saves a derivation in every step.
    draws_from_pipeline_key = False
    is_host_connector = False
    needs_all_final_obs = False
    columns_from_acting: tuple[str, ...] = ()
    needs_sampled_steps = False
    sees_action_mask = True
    mask_keys: tuple[str, ...] = ()
    # Host copy (NumPy) of a pure connector's state: what `get_state`, `set_state` and `__call__` work on.
    state: Any = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        form = cls._form()
        if form is None:
            return
        cls.is_host_connector = form is HostConnector
        if not issubclass(cls, form):
            bases = [form if base is ConnectorV2 else base for base in cls.__bases__]
            cls.__bases__ = tuple(bases if form in bases else [*bases, form])

    @classmethod
    def _form(cls) -> type[ConnectorV2] | None:
        """Returns the additional base class that a new connector class needs: `PureConnector`, `HostConnector` or None.

        Returns `PureConnector` if the connector overrides ``apply``, else `HostConnector` if the connector overrides
        ``__call__``. Returns None if the connector needs no additional base class.
        """
        for base in cls.__mro__:
            names = vars(base)
            if "is_host_connector" in names:
                return None
            if "apply" in names or "__call__" in names:
                return PureConnector if "apply" in names else HostConnector
        return None

    def __init__(
        self, input_observation_space: gym.Space | None = None, input_action_space: gym.Space | None = None, **kwargs
    ):
        self._multi_agent = bool(kwargs.pop("multi_agent", False))
        if kwargs:
            self._check_declared(kwargs.keys())
        self._input_observation_space = input_observation_space
        self._input_action_space = input_action_space
        self._outputs: Any = None
        self._state: Any = None

    def _check_declared(self, given: Collection[str]) -> None:
        """Raises a TypeError for constructor keyword arguments that no constructor in the class hierarchy declares,
        such as a typo.
        """
        declared = [p for cls in type(self).__mro__ for p in inspect.signature(cls.__init__).parameters.values()]
        known = {p.name for p in declared if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} - {"self"}
        if not known.issuperset(given):
            raise TypeError(
                f"{type(self).__name__} got unknown argument(s) {sorted(set(given) - known)}; it knows {sorted(known)}."
            )

    def _check_argument(self, name: str, value: Any, fits: bool, remedy: str) -> None:
        if not fits:
            raise ValueError(f"{type(self).__name__}({name}={value!r}): {remedy}.")

    def __new__(cls, *args, **kwargs):
        # Remembered here, not in __init__, so that a subclass need not know about it.
        self = super().__new__(cls)
        self._ctor_args_and_kwargs = (args, kwargs)
        return self

    def __repr__(self) -> str:
        args, kwargs = self._ctor_args_and_kwargs
        shown = [repr(arg) for arg in args] + [
            f"{name}={value!r}" for name, value in kwargs.items() if not name.startswith("input_")
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def acts_for(self, agents: Collection[Any] | None, known: Collection[Any]) -> bool:
        """Whether this connector belongs in the env-to-module pipeline of a module that acts for `agents`; True by
        default.

        Args:
            agents: Agents that the module acts for; None if the environment has one agent.
            known: All agents.

        Raises:
            ValueError: The connector is for only some of the module's agents, or for an agent that is not in `known`.
        """
        return True

    # --- Spaces

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Returns the observation space after the connector, by default the input observation space. Override this
        method if the connector changes observations.
        """
        return input_observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Returns the action space after the connector, by default the input action space. Override this method if the
        connector changes actions.
        """
        return input_action_space

    def _output_spaces(self) -> tuple[Any, Any]:
        if self._outputs is None:
            spaces: tuple[Any, Any] = self._input_observation_space, self._input_action_space
            self._outputs = (
                None if spaces[0] is None else self.recompute_output_observation_space(*spaces),
                None if spaces[1] is None else self.recompute_output_action_space(*spaces),
            )
        return self._outputs

    @property
    def observation_space(self) -> gym.Space:
        """Space of the output observations; None if the input space is unknown."""
        return self._output_spaces()[0]

    @property
    def action_space(self) -> gym.Space:
        """Space of the output actions; None if the input space is unknown."""
        return self._output_spaces()[1]

    @property
    def input_observation_space(self) -> gym.Space | None:
        """Space of the input observations. An assignment to this property recomputes the output spaces."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, value: gym.Space | None) -> None:
        self._set_input_spaces(value, self._input_action_space)

    @property
    def input_action_space(self) -> gym.Space | None:
        """Action space of the environment. An assignment to this property recomputes the output spaces."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, value: gym.Space | None) -> None:
        self._set_input_spaces(self._input_observation_space, value)

    def _set_input_spaces(self, observation_space, action_space) -> None:
        if (observation_space, action_space) == (self._input_observation_space, self._input_action_space):
            return  # keeps the host state
        self._input_observation_space = observation_space
        self._input_action_space = action_space
        self._outputs = None
        self._state = None  # its shapes follow the spaces

    def _observation_spaces(self) -> dict[str, gym.Space]:
        """Returns the input observation space of each module, ``{module_id: space}``."""
        return self._spaces_by_module(self._input_observation_space, "observation")

    def _action_spaces(self) -> dict[str, gym.Space]:
        """Returns the input action space of each module, ``{module_id: space}``."""
        return self._spaces_by_module(self._input_action_space, "action")

    def _spaces_by_module(self, space, kind: str) -> dict[str, gym.Space]:
        if space is None:
            raise ValueError(
                f"{type(self).__name__} needs the {kind} space of its input, but `input_{kind}_space` is None. Pass "
                f"`input_{kind}_space` to the constructor, or set this attribute of the connector or the pipeline."
            )
        return dict(space.items()) if self._multi_agent else {single_agent().module_id: space}

    def _map_spaces(self, function, *spaces):
        """Returns ``function(*spaces)``; in a multi-agent pipeline, calls ``function`` with the spaces of each module,
        and returns the results as a Dict space with module ids as keys.
        """
        if not self._multi_agent:
            return function(*spaces)
        return gym.spaces.Dict({module_id: function(*(sub[module_id] for sub in spaces)) for module_id in spaces[0]})

    def _space_of(self, spaces: Mapping[str, gym.Space], module_id: str) -> gym.Space:
        """Returns the space of a module from `spaces`, the observation or action spaces by module id.

        A single-agent connector has one space, which this method returns for every id.
        """
        if not self._multi_agent and len(spaces) == 1:
            return next(iter(spaces.values()))
        if module_id not in spaces:
            raise ValueError(
                f"{type(self).__name__} got a batch for module {module_id!r}, but its input spaces are for "
                f"{sorted(spaces)}. Add the module id to input_observation_space and input_action_space."
            )
        return spaces[module_id]

    @staticmethod
    def _with_columns(
        batch: Mapping[str, Any], make: Callable[[str, dict[str, Any]], Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Returns a new batch with each module's columns and the columns that ``make(module id, columns)`` returns. The
        returned columns replace columns with the same name.
        """
        return {module_id: {**columns, **make(module_id, columns)} for module_id, columns in batch.items()}

    def _state_keys(self, batch: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Returns a pair ``(key, module id)`` for every module in a batch; ``key`` is the module's key in this
        connector's state.

        A single-agent connector uses the same key for any module id: it keeps its state under the default id, so that
        the state does not depend on the name that the only module has.
        """
        if self._multi_agent:
            return [(module_id, module_id) for module_id in batch]
        if len(batch) != 1:
            raise ValueError(
                f"{type(self).__name__} supports only batches of one module; this batch has {sorted(batch)}. Create "
                "the connector and its pipeline with multi_agent=True and Dict input spaces: one space per module id."
            )
        return [(single_agent().module_id, next(iter(batch)))]

    # --- The pure core

    @property
    def num_stacked_frames(self) -> int:
        """Number of frames stacked along the last axis of the output observation; 1 without stacking.

        The newest frame is the last. A replay buffer needs to store only the newest frame.
        """
        return 1

    @property
    def takes_frames(self) -> bool:
        """Whether the connector, in a learner pipeline, accepts frame-stacked observations that are stored
        as one frame per step (see `core.frames`). If False, the connector receives stacked observations.
        """
        return False

    def earlier_frames(self, state: Any) -> Any:
        """Returns the earlier frames that a frame-stacking connector will stack with the next observation.

        The frames are concatenated along the last axis: ``[B, ..., (n - 1) * C]``. n is `num_stacked_frames`, which
        must be above 1, and C is the number of channels of a frame. `state` is the state of the connector. Works only
        in pipelines of one module.
        """
        raise NotImplementedError

    def init(self, num_envs: int) -> Any:
        """Returns the initial state: a pytree of arrays, ``()`` for a connector without state.

        Args:
            num_envs: Length B of the leading axis of per-env state (frame stacks and the like).
        """
        return ()

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Transforms a batch. Must be pure and jittable.

        Args:
            state: Returned by ``init`` or the last ``apply``.
            batch: ``{module_id: {column: pytree}}``; leaves ``[B, ...]`` next to the environment, ``[T, B,
                ...]`` in a learner pipeline.
            ctx: Module, key, settings, reset mask.

        Returns:
            ``(state, batch)``: state with the structure, shapes and dtypes that came in; a new batch.
        """
        raise NotImplementedError(
            f"{type(self).__name__} overrides neither `apply` nor `__call__`. Override `apply`:\n{PURE_SIGNATURE}"
        )

    def merge(self, state: Any, axis_name: str | None) -> Any:
        """Merges the statistics in this connector's state over all devices (`axis_name`), at the end of an iteration;
        by default returns the state unchanged.
        """
        return state

    def rebatch(self, state: Any, num_envs: int) -> Any:
        """Returns the state for a new set of environments. Statistics do not change, and per-environment values get
        their initial values.

        The default, ``init(num_envs)``, is right for a connector that keeps no statistics.
        """
        return self.init(num_envs)

    # --- Items in the batch of a host connector

    single_agent_episode_iterator = staticmethod(batch_items.single_agent_episode_iterator)
    add_batch_item = staticmethod(batch_items.add_batch_item)
    add_n_batch_items = staticmethod(batch_items.add_n_batch_items)
    foreach_batch_item_change_in_place = staticmethod(batch_items.foreach_batch_item_change_in_place)
    switch_batch_from_column_to_module_ids = staticmethod(batch_items.switch_batch_from_column_to_module_ids)

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
        """Runs the connector once, outside of compiled code; a pure connector (which overrides ``apply``) uses and
        updates its state in host memory.

        Args:
            rl_module: Module (RLModule or MultiRLModule) for connectors that ask for one.
            batch: ``{module_id: {column: arrays}}`` or, for one module, ``{column: arrays}``; what comes back
                has the same form.
            episodes: Not read by a pure connector, like the last two arguments; a pipeline hands them to its host
                connectors.
            explore: Sample actions (True, also for None) or take the greedy ones.
            shared_data: See ``episodes``.
            metrics: See ``episodes``.
            **kwargs: ``reset`` (bool ``[B]``, default all False), ``prev_actions``, ``prev_rewards``,
                ``key``, ``settings``, ``step``: fields of the ConnectorContext.

        Returns:
            The transformed batch, NumPy arrays unless the call is traced. Without ``key``, draws come from a fixed key
            and the number of calls so far.

        Raises:
            ValueError: The number of environments changed in the middle of the episodes whose history a
                connector keeps; or columns without a module id came with several modules.
        """
        raise NotImplementedError(
            f"{type(self).__name__} overrides neither `apply` nor `__call__`. Override `apply`:\n{PURE_SIGNATURE}"
        )

    def _resize(self, num_envs: int, all_reset: bool) -> None:
        """Prepares this connector's state in host memory for `num_envs` environments.

        Creates the state, or converts the existing state if the number of environments has changed. By default does
        nothing.

        Args:
            num_envs: New number of environments.
            all_reset: Whether all environments start a new episode, so that per-environment values may be dropped.
        """

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs) -> dict[str, Any]:
        """Returns the connector's state as nested dicts of NumPy arrays; empty for a connector without state."""
        return as_dict(self.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the connector's state to a result of ``get_state``; an empty dict changes nothing.

        Raises:
            ValueError: Names, shapes or dtypes do not fit this connector and its spaces.
        """

    def reset_state(self) -> None:
        """Resets the connector to its initial state: empty statistics, and initial per-environment values."""
        self._state = None

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merges the ``get_state()`` results of several EnvRunners into one state, in which statistics count each
        observation once.

        Returns:
            A state for ``set_state``. Empty by default: per-env state of different runners cannot be merged.
        """
        return {}

    def rebase_state(self, state: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of `state` with its merged statistics replaced by the merged statistics of `known`.

        `known` is another state of this connector. The copy keeps the statistics that `state` has collected since the
        last merge. By default returns `state`. Used if runners report at different times; see
        `ConnectorPipelineV2.merge_states`.
        """
        return state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments ``(args, kwargs)`` that create an equal connector, including the current
        input spaces.
        """
        args, kwargs = self._ctor_args_and_kwargs
        spaces = {
            "input_observation_space": self._input_observation_space,
            "input_action_space": self._input_action_space,
        }
        parameters = list(inspect.signature(type(self).__init__).parameters.values())[1:]
        num_nameless = sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
        names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            names += [name for name in spaces if name not in names]  # handed up to this class
        taken = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        takes_any = taken != {p.name for p in parameters}
        spaces = {name: space for name, space in spaces.items() if takes_any or name in taken}
        named = dict(zip(names, args[num_nameless:], strict=False))
        return args[:num_nameless], {**named, **kwargs, **spaces}


# `help` and `inspect.signature` read the signature off `__new__` where a class has one.
setattr(ConnectorV2.__new__, "__signature__", inspect.signature(ConnectorV2.__init__))  # noqa: B010 (a function)


class HostConnector(ConnectorV2):
    """Base class of connectors that override ``__call__`` (RLlib's form). They store their state themselves
    (`get_state`, `set_state`).

    In a learner pipeline, a connector whose ``__call__`` does not read ``episodes`` may come after the conversion of
    episodes to arrays. It is compiled there, like a pure connector, and has no state.
    """

    is_host_connector = True

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Calls ``__call__`` on the arrays in `batch` while JAX traces.

        Learner pipelines do this for host connectors that come after the conversion of episodes to arrays. These
        connectors cannot read episodes.

        Raises:
            TypeError: ``__call__`` read the episodes, returned no dict, or changed an attribute of the connector: it
                runs only while JAX traces, once for all batches.
        """
        given = {module_id: jax.tree.map(jnp.asarray, columns) for module_id, columns in batch.items()}
        module = None if ctx.pure is None else ctx.module
        before, none = attributes_of(self), cast(Any, _NoEpisodes(self))
        batch = self(rl_module=module, batch=given, episodes=none, explore=ctx.explore, shared_data={})
        if changed_attributes(before, attributes_of(self)):
            raise TypeError(
                f"{type(self).__name__}.__call__ changes attributes of the connector, but compiled code runs it only "
                "once, while JAX traces, and not for each batch. Store values that change in a state:\n"
                f"{PURE_SIGNATURE}"
            )
        if not isinstance(batch, dict):
            raise TypeError(
                f"{type(self).__name__}.__call__ returned {type(batch).__name__} instead of a dict. It must end with "
                "`return batch`."
            )
        return state, batch


class _NoEpisodes:
    """Placeholder for the argument ``episodes`` of ``__call__`` after episodes were converted to arrays; any use raises
    a `TypeError`.
    """

    def __init__(self, connector: ConnectorV2):
        self._connector = type(connector).__name__

    def _refuse(self, *_: Any) -> Any:
        raise TypeError(
            f"{self._connector}.__call__ reads `episodes`, but at this position in the pipeline the episodes are "
            f"already columns of `batch`. Read `batch`, or put the connector first: "
            f"pipeline.prepend({self._connector}(...))."
        )

    __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __getattr__ = _refuse


class PureConnector(ConnectorV2):
    """Base class of connectors that override ``apply``: pure functions with RLlib's connector API.

    `get_state` and friends work on ``state``, a host copy that pure code never sees.
    """

    is_host_connector = False
    _num_envs = 1
    _calls = 0

    def __call__(self, *, rl_module=None, batch=None, episodes=None, explore=None, **kwargs) -> dict[str, Any]:
        """Runs ``apply`` once with the state in host memory; see `ConnectorV2.__call__`."""
        fields = {name: kwargs[name] for name in CONTEXT_FIELDS if name in kwargs}
        nested, is_flat = nest(batch or {}, rl_module)
        if not nested and episodes and (columns := self._columns_of(episodes)):
            nested, is_flat = nest(columns, rl_module)
            fields = self._fields_from_episodes(episodes, nested) | fields
        size = self._batch_size(nested, episodes)
        fields.setdefault("reset", np.zeros(size, bool))
        self._resize(size, bool(np.all(fields["reset"])))
        if fields.get("key") is None:
            fields["key"] = self._next_key()
        ctx = ConnectorContext(
            pure=None if rl_module is None else StandaloneModule(rl_module, nested),
            explore=explore is None or bool(explore),
            **fields,
        )
        nested = jax.tree.map(_as_numpy, self._advance(nested, ctx))
        return next(iter(nested.values())) if is_flat else nested

    def _advance(self, batch: dict[str, Any], ctx: ConnectorContext) -> dict[str, Any]:
        """Calls ``apply`` with the state in host memory, and stores the new state."""
        self.state, batch = self.apply(self.state, batch, ctx)
        return batch

    def _next_key(self) -> jax.Array:
        """Returns the PRNG key for a call that passes no key, derived from the connector's class and the number of
        calls.
        """
        self._calls += 1
        return jax.random.fold_in(streams.named(jax.random.key(0), type(self).__name__), self._calls - 1)

    def _columns_of(self, episodes: Sequence[Any]) -> dict[str, Any]:
        """Builds the batch from `episodes` if `__call__` received no batch; returns {} by default."""
        return {}

    def _fields_from_episodes(self, episodes: Sequence[Any], module_ids: Iterable[str]) -> dict[str, Any]:
        """Returns ConnectorContext fields, such as previous actions, that can be read from unfinished episodes; {} by
        default.
        """
        return {}

    def _resize(self, num_envs: int, all_reset: bool) -> None:
        if self._state is None:
            self._state = to_host(self.init(num_envs))
        elif num_envs != self._num_envs:
            shapes = [jax.eval_shape(lambda n=n: self.init(n)) for n in (self._num_envs, num_envs)]
            if not all_reset and shape_problem(*shapes) is not None:
                raise ValueError(
                    f"{type(self).__name__} stores a history for each of {self._num_envs} environment(s), but the "
                    f"batch has {num_envs}. If all environments start again, pass `reset=np.ones({num_envs}, bool)`, "
                    "or call `reset_state()` first."
                )
            self._state = to_host(self.rebatch(self._state, num_envs))
        self._num_envs = num_envs

    def _batch_size(self, batch: Mapping[str, Any], episodes: Sequence[Any] | None) -> int:
        """Returns the number of environments in a batch with leading axis B."""
        leaves = jax.tree.leaves(batch)
        return np.shape(leaves[0])[0] if leaves else len(episodes or ()) or self._num_envs

    @property
    def state(self) -> Any:
        return to_host(self.init(self._num_envs)) if self._state is None else self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = to_host(value)

    def set_state(self, state: dict[str, Any]) -> None:
        if not state:
            return
        restored = restore(self.state, state, type(self).__name__)
        num_envs = self._fitting_num_envs(restored)
        self._state, self._num_envs = restored, num_envs

    def _fitting_num_envs(self, restored) -> int:
        """Returns a number of environments for which ``init(num_envs)`` has the same shapes as the restored state.

        Tries the current number first; raises a ValueError if no number fits.
        """
        problem = shape_problem(self.state, restored)
        candidates = sorted({np.shape(leaf)[0] for leaf in jax.tree.leaves(restored) if np.ndim(leaf)})
        for num_envs in [self._num_envs, *candidates]:
            expected = jax.eval_shape(lambda num_envs=num_envs: self.init(num_envs))
            if shape_problem(expected, restored) is None:
                return num_envs
        raise ValueError(
            f"The state for {type(self).__name__} does not fit the connector's spaces: {problem}. Load a state of a "
            "connector with the same class and spaces."
        )


_COLUMN_NAMES = {value for name, value in vars(Columns).items() if name.isupper()}
CONTEXT_FIELDS = ("reset", "prev_actions", "prev_rewards", "key", "settings", "step")


def _as_numpy(leaf: Any) -> Any:
    """Converts a JAX array to a writable NumPy array; tracers and other values do not change."""
    return np.array(leaf) if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) else leaf


def nest(batch: Mapping[str, Any], rl_module: Any) -> tuple[dict[str, Any], bool]:
    """Adds the level of module ids to a batch of one module, if missing; returns ``(batch, whether the level was
    added)``.
    """
    if set(batch) & _COLUMN_NAMES:
        return {single_agent(rl_module if isinstance(rl_module, MultiRLModule) else ()).module_id: dict(batch)}, True
    return {module_id: dict(sub) for module_id, sub in batch.items()}, False
