"""Which module acts for which agent."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from jaxrl_stack.utils import streams
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.seeds import derived_seed

ValueT = TypeVar("ValueT")


@dataclasses.dataclass(frozen=True)
class ModuleMap:
    """Which module acts for which agent.

    An agent is a slot of its module: of ``B`` environments a module with ``S`` agents has ``S * B`` rows, those of its
    first agent first.

    Attributes:
        module_of: ``{agent id: module id}``, of all agents that there may be.
        is_multi_agent: Whether environments tell agents apart; else there is one, of which they know nothing.
        slots: ``{module id: agents that it may act for}``, where each episode says who acts for whom; `module_of` has
            the first module that may act for an agent then. Empty: `module_of` says it.
        assigned: ``{module id: agents that the mapping function was seen to give it}``, which are among its slots.
            Empty: its slots are.
    """

    module_of: Mapping[Any, str]
    is_multi_agent: bool = False
    slots: Mapping[str, tuple[Hashable, ...]] = dataclasses.field(default_factory=dict)
    assigned: Mapping[str, tuple[Hashable, ...]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def agents_of(self) -> dict[str, tuple[Hashable, ...]]:
        """``{module id: its agents}``, in the order of the agents; of modules that have agents."""
        if self.slots:
            return dict(self.slots)
        agents: dict[str, tuple[Hashable, ...]] = {}
        for agent_id, module_id in self.module_of.items():
            agents[module_id] = (*agents.get(module_id, ()), agent_id)
        return agents

    @property
    def num_slots(self) -> dict[str, int]:
        """``{module id: how many agents it acts for}``."""
        return {module_id: len(agents) for module_id, agents in self.agents_of.items()}

    @property
    def module_id(self) -> str:
        """The module of the only agent.

        Raises:
            ValueError: There are several modules.
        """
        if len(self.agents_of) != 1:
            raise ValueError(f"Which of the modules {list(self.agents_of)} is meant? Each acts for agents of its own.")
        return next(iter(self.agents_of))

    def numbers(self, key: str, of_agents: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
        """Numbers of agents, and their sums over the agents of each module.

        Where episodes say who acts for whom, there are no such sums.

        Args:
            key: What the results call them, ``{}`` for "agent" and "module".
            of_agents: ``{agent id: number}``, of all agents.
        """
        if self.slots:
            return {key.format("agent"): {str(agent): number for agent, number in of_agents.items()}}
        of_modules = {mid: sum(of_agents[agent] for agent in agents) for mid, agents in self.agents_of.items()}
        named = {str(agent): number for agent, number in of_agents.items()}
        return {key.format("agent"): named, key.format("module"): of_modules}

    def rows(self, of_agents: Mapping[Any, Any], axis: int = 0) -> dict[str, Any]:
        """Arrays of agents as those of modules.

        Args:
            of_agents: ``{agent id: pytree}``; leaves have ``B`` entries along `axis`.
            axis: Of the environments.

        Returns:
            ``{module id: pytree}``; leaves have ``S * B`` entries there.
        """
        rows = {}
        for module_id, agents in self.agents_of.items():
            own = [of_agents[agent_id] for agent_id in agents]
            rows[module_id] = (
                own[0] if len(own) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts, axis), *own)
            )
        return rows

    def by_agent(self, rows: Mapping[str, Any], axis: int = 0) -> dict[Any, Any]:
        """Arrays of modules as those of agents: what `rows` made, taken apart."""
        of_agents = {}
        for module_id, agents in self.agents_of.items():
            for slot, agent_id in enumerate(agents):
                of_agents[agent_id] = _slot(rows[module_id], slot, len(agents), axis)
        return {agent_id: of_agents[agent_id] for agent_id in self.module_of}

    def key_of(self, module_id: str, key: jax.Array) -> jax.Array:
        """The key that a module draws from in a step.

        With several agents it follows from the module's name, so that no module changes what another one draws.

        Args:
            module_id: The module.
            key: That of the step.
        """
        return streams.named(key, f"module/{module_id}") if self.is_multi_agent else key

    def seed_of(self, module_id: str, seed: int) -> int:
        """The seed of a policy on the host: with several agents it follows from the module's name, see `key_of`.

        Args:
            module_id: The module.
            seed: That of the runner's policies.
        """
        return derived_seed(f"policy of module/{module_id}", seed) if self.is_multi_agent else seed

    def unwrapped(self, of_modules: Any) -> Any:
        """Values of modules in the form that users and checkpoints see: where there is one agent, that of its module.

        Args:
            of_modules: ``{module id: value}``, or a MultiRLModule.
        """
        return of_modules if self.is_multi_agent else of_modules[self.module_id]

    def by_module(self, value: Any) -> Mapping[str, Any]:
        """``{module id: value}`` of what `unwrapped` returned."""
        return value if self.is_multi_agent else {self.module_id: value}


def _slot(rows: Any, slot: int, num_slots: int, axis: int) -> Any:
    if num_slots == 1:
        return rows

    def own(x: Any) -> Any:
        size = x.shape[axis] // num_slots
        return x[(slice(None),) * axis + (slice(slot * size, (slot + 1) * size),)]

    return jax.tree.map(own, rows)


class PolicyTable(Plain):
    """A ``policy_mapping_fn`` that checkpoints can hold: the policy of each agent.

    Args:
        policies: ``{agent id: policy id}``.
    """

    def __init__(self, policies: Mapping[Any, str]):
        self._policies = dict(policies)

    def __call__(self, agent_id: Any, episode: Any = None, **kwargs: Any) -> str:
        """The policy of an agent.

        Raises:
            ValueError: The table does not have the agent.
        """
        if agent_id not in self._policies:
            raise ValueError(
                f"The agent {agent_id!r} is new: the checkpoint has policies for {list(self._policies)}. Pass the "
                f"function again: from_checkpoint(path, policy_mapping_fn=...)."
            )
        return self._policies[agent_id]

    def __repr__(self) -> str:
        return f"PolicyTable({self._policies})"

    def to_plain(self) -> dict[str, Any]:
        """``{"policies": {agent id: policy id}}``."""
        return {"policies": self._policies}

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> PolicyTable:
        """The table that `to_plain` describes."""
        return cls(**data)


class ByModule(Mapping[str, ValueT]):
    """``{module id: value}``, for classes that say something to all values at once.

    Args:
        of: The values.
    """

    def __init__(self, of: Mapping[str, ValueT]):
        self._of = dict(of)

    def __getitem__(self, module_id: str) -> ValueT:
        return self._of[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    # Views of a Mapping take several times as long as those of the dict, and runners ask for each block.

    def items(self) -> ItemsView[str, ValueT]:
        return self._of.items()

    def values(self) -> ValuesView[ValueT]:
        return self._of.values()


def single_agent(
    module_ids: Collection[str] = (), needs: str = "batches of the form {module_id: columns}"
) -> ModuleMap:
    """The map where there is one agent, and for data that does not say whose it is.

    Args:
        module_ids: The modules that there are: the agent acts with "default_policy", or with the only one. Where none
            is known, it is "default_policy".
        needs: What would say which module it is, for the message.

    Raises:
        ValueError: If it could be any of them.
    """
    ids = list(module_ids)
    if len(ids) > 1 and DEFAULT_MODULE_ID not in ids:
        raise ValueError(
            f"None of the modules {ids} is called {DEFAULT_MODULE_ID!r}: which one is meant needs {needs}."
        )
    return ModuleMap({DEFAULT_AGENT_ID: ids[0] if len(ids) == 1 else DEFAULT_MODULE_ID})
