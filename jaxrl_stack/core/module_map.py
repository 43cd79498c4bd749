"""Mapping between agents and modules: which module acts for each agent, and conversion of batches between one array per
agent and one array per module.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Collection, Hashable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.seeds import derived_seed

ValueT = TypeVar("ValueT")

OPPONENTS = "opponents"
"""Id of the module whose rows the snapshots of a module play; it is never learned from."""


class AgentRows(NamedTuple):
    """Rows of a module that belong to one agent: one row for each of the environments `start` to `stop - 1`.

    Attributes:
        agent: Id of the agent.
        start: First environment of the range.
        stop: End of the range, excluded.
    """

    agent: Hashable
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class ModuleMap:
    """Static mapping between agents and RLModules; converts ``{agent id: array}`` to ``{module id: array}`` and back.

    Each agent has a slot in its module: for ``B`` environments, a module with ``S`` agents has ``S * B`` rows, which
    start with the rows of its first agent. With `ranges`, an agent has different modules in different environments.

    Attributes:
        module_of: ``{agent id: module id}`` for all possible agents.
        is_multi_agent: Whether environments have agent ids; else there is one agent without an id.
        slots: ``{module id: agents for which it may act}``, if each episode assigns its agents to modules; `module_of`
            then has the first module that may act for an agent. Empty: `module_of` is the assignment.
        assigned: ``{module id: agents that the mapping function assigned to it in calls so far}``, a subset of its
            slots. Empty: all agents of its slots.
        ranges: ``{module id: its rows in order}``, if the module of an agent depends on the environment's number. The
            rows of each agent cover all `num_envs` environments. Empty: `module_of` holds in all environments.
        num_envs: ``B``, number of environments of `ranges`; 0 without these.
        hero: Agent whose return is the return of its module, if the module's other agents are rivals of this one; None:
            the return of a module is the sum over its agents.
    """

    module_of: Mapping[Any, str]
    is_multi_agent: bool = False
    slots: Mapping[str, tuple[Hashable, ...]] = dataclasses.field(default_factory=dict)
    assigned: Mapping[str, tuple[Hashable, ...]] = dataclasses.field(default_factory=dict)
    ranges: Mapping[str, tuple[AgentRows, ...]] = dataclasses.field(default_factory=dict)
    num_envs: int = 0
    hero: Hashable | None = None

    @functools.cached_property
    def agents_of(self) -> dict[str, tuple[Hashable, ...]]:
        """Agents of each module, ``{module id: agents}``, in the order of the agents; modules without agents are
        missing.
        """
        if self.slots:
            return dict(self.slots)
        if self.ranges:
            return {mid: tuple(dict.fromkeys(own.agent for own in rows)) for mid, rows in self.ranges.items()}
        agents: dict[str, tuple[Hashable, ...]] = {}
        for agent_id, module_id in self.module_of.items():
            agents[module_id] = (*agents.get(module_id, ()), agent_id)
        return agents

    @property
    def num_slots(self) -> dict[str, int]:
        """Number of agents of each module, ``{module id: number}``."""
        return {module_id: len(agents) for module_id, agents in self.agents_of.items()}

    def num_rows(self, num_envs: int) -> dict[str, int]:
        """Returns the number of rows of each module for `num_envs` environments (one row per agent and environment),
        ``{module id: number}``.

        Args:
            num_envs: Number of environments; with `ranges` a multiple of `self.num_envs`.
        """
        if not self.ranges:
            return {mid: num_envs * number for mid, number in self.num_slots.items()}
        copies = num_envs // self.num_envs
        return {mid: copies * sum(own.stop - own.start for own in rows) for mid, rows in self.ranges.items()}

    @property
    def module_id(self) -> str:
        """Id of the module, for a map with only one module.

        Raises:
            ValueError: If there are several modules.
        """
        if len(self.agents_of) != 1:
            raise ValueError(
                f"ModuleMap.module_id needs a single module, but several modules act: {list(self.agents_of)}. Read "
                "ModuleMap.agents_of, {module id: agents}."
            )
        return next(iter(self.agents_of))

    def numbers(self, key: str, of_agents: Mapping[Any, Any], of_opponents: Any = 0) -> dict[str, dict[str, Any]]:
        """Converts a metric with one number per agent to two entries of the results: numbers per agent, and sums per
        module.

        The metric is ``{agent id: number}``. Each sum is over the agents of one module. If episodes assign agents to
        modules, the sums are missing.

        Args:
            key: Key in results; ``{}`` is replaced by "agent" and "module".
            of_agents: ``{agent id: number}`` for all agents.
            of_opponents: Part of the sum that belongs to snapshots of the only module, which is left out.
        """
        if self.slots:
            return {key.format("agent"): {str(agent): number for agent, number in of_agents.items()}}
        of_modules = {
            mid: sum(of_agents[agent] for agent in agents) - of_opponents for mid, agents in self.agents_of.items()
        }
        named = {str(agent): number for agent, number in of_agents.items()}
        return {key.format("agent"): named, key.format("module"): of_modules}

    def rows(self, of_agents: Mapping[Any, Any], axis: int = 0) -> dict[str, Any]:
        """Concatenates the arrays of each module's agents along the axis of environments: ``{agent id: array}`` to
        ``{module id: array}``.

        Args:
            of_agents: ``{agent id: pytree}``; leaves have ``B`` entries along `axis`.
            axis: Axis of the environments.

        Returns:
            ``{module id: pytree}``; leaves have ``S * B`` entries along `axis`.
        """
        rows = {}
        for module_id, ranges in self.ranges.items():
            parts = [_between(of_agents[agent], start, stop, axis) for agent, start, stop in ranges]
            rows[module_id] = _joined(parts, axis)
        if self.ranges:
            return rows
        for module_id, agents in self.agents_of.items():
            rows[module_id] = _joined([of_agents[agent_id] for agent_id in agents], axis)
        return rows

    def by_agent(self, rows: Mapping[str, Any], axis: int = 0) -> dict[Any, Any]:
        """Splits arrays ``{module id: array}`` along the axis of environments into one array per agent,
        ``{agent id: array}``.

        This method is the inverse of `rows`, which concatenates the arrays of each module's agents.
        """
        of_agents = {}
        if self.ranges:
            return self._by_agent_of_ranges(rows, axis)
        for module_id, agents in self.agents_of.items():
            for slot, agent_id in enumerate(agents):
                of_agents[agent_id] = _slot(rows[module_id], slot, len(agents), axis)
        return {agent_id: of_agents[agent_id] for agent_id in self.module_of}

    def _by_agent_of_ranges(self, rows: Mapping[str, Any], axis: int) -> dict[Any, Any]:
        parts: dict[Any, list[tuple[int, Any]]] = {agent_id: [] for agent_id in self.module_of}
        for module_id, ranges in self.ranges.items():
            first = 0
            for agent, start, stop in ranges:
                last = first + stop - start
                parts[agent].append((start, _between(rows[module_id], first, last, axis)))
                first = last
        ordered = {agent: sorted(own, key=operator.itemgetter(0)) for agent, own in parts.items()}
        return {agent: _joined([part for _, part in own], axis) for agent, own in ordered.items()}

    def key_of(self, module_id: str, key: jax.Array) -> jax.Array:
        """Returns the PRNG key of one module for one environment step: in multi-agent environments, derived from the
        step's key and the module's id; otherwise the step's key.

        With separate keys, modules do not affect each other's draws.

        Args:
            module_id: Id of the module.
            key: Key of the step.
        """
        return streams.named(key, f"module/{module_id}") if self.is_multi_agent else key

    def seed_of(self, module_id: str, seed: int) -> int:
        """Returns the random seed for computing the actions of one module on the host (see `HostPolicy`).

        In multi-agent environments, the seed is derived from `seed` and the module's id. Otherwise it is `seed`.

        Args:
            module_id: Id of the module.
            seed: Seed of the runner's policies.
        """
        return derived_seed(f"policy of module/{module_id}", seed) if self.is_multi_agent else seed

    def unwrapped(self, of_modules: Any) -> Any:
        """Converts ``{module id: value}`` to the form in which results and checkpoints contain the values.

        In multi-agent environments, returns the dict unchanged; for a single agent, returns only the value of the
        agent's module.

        Args:
            of_modules: ``{module id: value}``, or a MultiRLModule.
        """
        return of_modules if self.is_multi_agent else of_modules[self.module_id]

    def by_module(self, value: Any) -> Mapping[str, Any]:
        """Returns ``{module id: value}`` for a value in the form of results and checkpoints; inverse of `unwrapped`.

        In multi-agent environments, the argument `value` is this dict already, and is returned unchanged. For a single
        agent, `unwrapped` returns only the module's value; here, `value` becomes the only entry of the dict.
        """
        return value if self.is_multi_agent else {self.module_id: value}


def _joined(parts: Sequence[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)


def _between(rows: Any, start: int, stop: int, axis: int) -> Any:
    return jax.tree.map(lambda x: x[(slice(None),) * axis + (slice(start, stop),)], rows)


def _slot(rows: Any, slot: int, num_slots: int, axis: int) -> Any:
    if num_slots == 1:
        return rows

    def own(x: Any) -> Any:
        size = x.shape[axis] // num_slots
        return _between(x, slot * size, (slot + 1) * size, axis)

    return jax.tree.map(own, rows)


class PolicyTable(Plain):
    """Table of ``policy_mapping_fn``'s results by agent. Checkpoints can store the table in place of the function.

    Args:
        policies: ``{agent id: policy id}``.
    """

    def __init__(self, policies: Mapping[Any, str]):
        self._policies = dict(policies)

    def __call__(self, agent_id: Any, episode: Any = None, **kwargs: Any) -> str:
        """Looks up an agent in this table, and returns the id of the policy with which the agent acts.

        Raises:
            ValueError: If the table does not have the agent.
        """
        if agent_id not in self._policies:
            raise ValueError(
                f"The checkpoint has no policy for agent {agent_id!r}, only for {list(self._policies)}. Pass the "
                f"policy mapping function again: from_checkpoint(path, policy_mapping_fn=...)."
            )
        return self._policies[agent_id]

    def __repr__(self) -> str:
        return f"PolicyTable({self._policies})"

    def to_plain(self) -> dict[str, Any]:
        """Returns this `PolicyTable` as plain data for checkpoints, ``{"policies": {agent id: policy id}}``."""
        return {"policies": self._policies}

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> PolicyTable:
        """Creates a `PolicyTable` from a result of `to_plain`, ``{"policies": {agent id: policy id}}``."""
        return cls(**data)


class ByModule(Mapping[str, ValueT]):
    """Base class of mappings ``{module id: value}``. Subclasses add methods that act on the values of all modules.

    Args:
        of: Values by module.
    """

    def __init__(self, of: Mapping[str, ValueT]):
        self._of = dict(of)

    def __getitem__(self, module_id: str) -> ValueT:
        return self._of[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    # Views of a Mapping take several times as long as a dict's, and runners need them for each block.

    def items(self) -> ItemsView[str, ValueT]:
        return self._of.items()

    def values(self) -> ValuesView[ValueT]:
        return self._of.values()


def single_agent(
    module_ids: Collection[str] = (), needs: str = "batches of the form {module_id: columns}"
) -> ModuleMap:
    """Returns a `ModuleMap` (mapping of agents to modules) with one agent, which acts with one module.

    This map serves for an env with a single agent, and for a batch without module ids.

    Args:
        module_ids: Ids of the modules. The agent acts with the only one, or with "default_policy" if there are several
            or none.
        needs: Data that would identify the module, for the message.

    Raises:
        ValueError: If there are several modules, and none of them is "default_policy".
    """
    ids = list(module_ids)
    if len(ids) > 1 and DEFAULT_MODULE_ID not in ids:
        raise ValueError(
            f"None of the modules {ids} is {DEFAULT_MODULE_ID!r}, so it is unclear which module acts. Pass {needs}."
        )
    return ModuleMap({DEFAULT_AGENT_ID: ids[0] if len(ids) == 1 else DEFAULT_MODULE_ID})
