"""Trial of multi-agent environments before training: one reset and one step, with checks of the return values."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.env.multi_agent_contract import AgentsOfEpisode
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.utils.error import MultiAgentEnvError


def check_multiagent_environments(env: Any) -> None:
    """Resets a multi-agent environment, takes one step with random actions, and checks the return values.

    Args:
        env: The environment; it is left in the middle of an episode.

    Raises:
        ValueError: `env` is no `MultiAgentEnv`; it has no agents; the results of `reset` or `step` do not fit its
            agents or spaces; or its code raised an exception, which is the ``__cause__``.
    """
    if not isinstance(env, MultiAgentEnv):
        raise ValueError(f"The passed env is not a MultiAgentEnv: {env!r}. Derive its class from MultiAgentEnv.")
    name = type(env).__name__
    if not env.possible_agents:
        raise ValueError(f"{name} has no possible_agents. Set self.possible_agents to the ids of all of its agents.")
    agents = AgentsOfEpisode(env, name, check=True)
    obs, _ = _checked(name, "reset", lambda: agents.reset(env.reset(seed=42, options={})))
    actions = {agent: env.get_action_space(agent).sample() for agent in obs}
    _checked(name, "step", lambda: agents.next(env.step(actions)))


def _checked(name: str, method: str, run: Any) -> Any:
    try:
        return run()
    except MultiAgentEnvError as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(
            f"{name}.{method}() raised {error!r}. Correct this method; the traceback above shows the line."
        ) from error


__all__ = ["check_multiagent_environments"]
