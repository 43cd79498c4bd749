"""Which module acts for which agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from jaxrl_stack.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID


@dataclasses.dataclass(frozen=True)
class ModuleMap:
    """Which module acts for which agent.

    Attributes:
        module_of: ``{agent id: module id}``.
    """

    module_of: Mapping[str, str]

    @property
    def module_id(self) -> str:
        """The module of the only agent."""
        (module_id,) = self.module_of.values()
        return module_id

    def numbers(self, key: str, number: float) -> dict[str, dict[str, float]]:
        """A number of the only agent under the keys of agents and of modules, which ``{}`` in `key` stands for."""
        (agent_id,) = self.module_of
        return {key.format("agent"): {agent_id: number}, key.format("module"): {self.module_id: number}}


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
