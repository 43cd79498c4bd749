"""Checks of users' functions that create connectors, and selection of the connectors for one module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor


def num_positional_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], call: str) -> int:
    """Returns the number of positional arguments that a user's connector function accepts.

    If this number is n, the function gets the first n of ``(env, spaces, device)``, or of
    ``(observation_space, action_space)`` for learner connectors. A parameter with a default and another name belongs to
    the user (``n=n`` in a loop) and keeps its default.
    """
    if isinstance(function, type) and issubclass(function, ConnectorV2):
        return 0
    names = ("env", "spaces", "device") if "learner" not in call else ("observation_space", "action_space")
    names = names[: len(arguments)]
    count = 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return len(arguments)
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ValueError(
                f"{call}: the function has the keyword-only argument {parameter.name!r} without a default, but the "
                f"function is called with {', '.join(names)} by position. Move {parameter.name!r} before the *, or "
                f"give it a default."
            )
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and not any(name in parameter.name for name in names):
            break
        count += 1
    if count > len(arguments):
        raise ValueError(
            f"{call}: the function has {count} required arguments, but it is called with {', '.join(names)}. Give the "
            f"other arguments defaults."
        )
    return count


def connectors_for_agents(
    connectors: Sequence[ConnectorV2], agents: Collection[Any] | None, known: Collection[Any]
) -> list[ConnectorV2]:
    """Selects the env-to-module connectors for one module's pipeline.

    Leaves out connectors that process all agents' observations jointly and, if the module's agents are known,
    connectors for other agents.

    Args:
        connectors: All connectors that the user's function returned.
        agents: Agents of the module; empty if unknown, None in single-agent environments.
        known: All agents.

    Raises:
        ValueError: If a connector for several agents is used with one agent, a connector that takes all agents'
            observations comes after one that does not, or a connector is for only some of a module's agents.
    """
    of_modules = [own for own in connectors if not isinstance(own, MultiAgentObservationPreprocessor)]
    together = len(connectors) - len(of_modules)
    if together and (agents is None or any(own in of_modules for own in connectors[:together])):
        names = [type(own).__name__ for own in connectors]
        remedy = (
            "needs several agents, but this config has only one. Leave it out, or set multi_agent(policies=...)"
            if agents is None
            else "processes the observations of all agents, and must come before other connectors. Return it first"
        )
        raise ValueError(
            f"env_runners(env_to_module_connector=...) returned {names}. A MultiAgentObservationPreprocessor {remedy}."
        )
    if agents is not None and not agents:
        return of_modules
    return [own for own in of_modules if own.acts_for(agents, known)]
