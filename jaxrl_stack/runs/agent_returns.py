"""Mean return of each agent, or of each policy if there are many agents: columns of a run's table, and values in a
result of ``train()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.utils.results import flatten_result

EVALUATED_RETURN = f"evaluation/{RETURN}"
SUM = "sum of all agents"
"""Name of `RETURN` next to the returns of agents."""
_AGENTS, _POLICIES = "agent_episode_returns_mean", "module_episode_returns_mean"
_MOST_AGENTS = 8
"""Of more agents, the returns of their policies are shown."""
_MOST_POLICIES = 16
"""Of more policies, only the sum is shown."""


def columns_of_agents(columns: Iterable[str], key: str = RETURN) -> dict[str, str]:
    """Selects a run's columns with the mean return of each agent, or of each policy if there are many agents.

    Args:
        columns: All columns of a run.
        key: Mean return of training or of evaluations; other keys have no parts.

    Returns:
        ``{name of the agent or policy: column}``: returns of at most 8 agents, else of policies. Empty with one agent,
        with one policy of many agents, and with more than 16 policies.
    """
    if key not in (RETURN, EVALUATED_RETURN):
        return {}
    place = key.rpartition("/")[0]
    names = list(columns)
    for kind, most in ((_AGENTS, _MOST_AGENTS), (_POLICIES, _MOST_POLICIES)):
        prefix = f"{place}/{kind}/"
        found = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
        if 1 < len(found) <= most:
            return found
        if len(found) <= 1:
            return {}
    return {}


def returns_of_agents(result: Mapping[str, Any]) -> dict[str, float]:
    """Reads the mean return of each agent, or of each policy if there are many agents, from a training result.

    Returns ``{name of the agent or policy: mean return}``.

    Args:
        result: Result of ``train()``.
    """
    own = result["env_runners"]
    parts = {"env_runners": {kind: own[kind] for kind in (_AGENTS, _POLICIES) if kind in own}}
    numbers = flatten_result(parts)
    return {name: float(numbers[column]) for name, column in columns_of_agents(numbers).items()}
