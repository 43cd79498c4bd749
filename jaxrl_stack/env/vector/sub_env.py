"""Creation of a single environment of a vector; imports little, because each process of an async vector imports this
module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.env_contract import EnvContract
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv, policies_missing
from jaxrl_stack.utils.closing import close_env


def make_sub_env(
    name: str, creator: Callable[[EnvContext], Any], context: EnvContext, is_multi_agent: bool = False
) -> gym.Env:
    """Creates one `gymnasium.Env` of a vector environment, in this process or in the environment's own process.

    Args:
        name: Name of the environment in messages.
        creator: Takes the context, returns the environment.
        context: Config and place of the environment.
        is_multi_agent: Whether the config has policies for several agents.

    Raises:
        TypeError: If the creator returns no `gymnasium.Env`.
        ValueError: The environment has several agents and the config no policies for them, or the other way round.
    """
    try:
        env = creator(context)
    except Exception as error:
        error.add_note(f"While making environment({name!r}) with {context!r}.")
        raise
    if not isinstance(env, gym.Env):
        raise TypeError(
            f"environment({name!r}): its creator returned {env!r} for {context!r}. Return a gymnasium.Env, or, for all "
            "copies at once, a gymnasium.vector.VectorEnv."
        )
    inner: Any = env.unwrapped
    has_several = isinstance(inner, MultiAgentEnv)
    if has_several and not is_multi_agent:
        raise ValueError(policies_missing(f"environment({name!r})", inner.possible_agents))
    if is_multi_agent and not has_several:
        raise ValueError(
            f"multi_agent(policies=...) is for environments of several agents, and environment({name!r}) has one. "
            f"Leave multi_agent() out, or take a MultiAgentEnv."
        )
    return env


class CheckedEnv(gym.Wrapper):
    """Wrapper that checks the return values of an environment in its separate process; see `EnvContract`.

    Args:
        env: The environment.
        contract: Contract of this environment only.
        index: Index of the environment among the copies.
    """

    def __init__(self, env: gym.Env, contract: EnvContract, index: int):
        super().__init__(env)
        self._contract, self._index = contract, index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        outcome = self.env.reset(seed=seed, options=options)
        self._contract.check_reset(outcome, self._index)
        return outcome

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        self._contract.begin_step()
        self._contract.check_step(outcome, self._index)
        return outcome


def make_checked_env(name: str, creator: Callable[[EnvContext], Any], context: EnvContext) -> gym.Env:
    """Creates one environment of an asynchronous vector, in the process that steps this environment.

    See `make_sub_env`. If the environment has an observation space, wraps the environment in a `CheckedEnv`.
    """
    env, index = make_sub_env(name, creator, context), context.vector_index
    space = env.observation_space
    return env if space is None else CheckedEnv(env, EnvContract(space, name, context.worker_index, [index]), index)


def make_registered(spec: Any, disable_env_checker: bool, is_shown: bool, context: EnvContext) -> gym.Env:
    """Creates the environment of a gymnasium id.

    Args:
        spec: ``gymnasium.spec(id)``, with which the environment is created without a registry.
        disable_env_checker: Whether to omit gymnasium's checks of every observation.
        is_shown: Whether the environment renders in a window.
        context: Config of the environment.
    """
    shown = {"render_mode": "human"} if is_shown else {}
    return gym.make(spec, **{"disable_env_checker": disable_env_checker, **shown, **context})


def made_to_close_quietly(make: Callable[[], gym.Env]) -> gym.Env:
    """Creates an environment whose ``close()`` logs errors instead of raising them, because gymnasium's vector
    environments call ``close()`` themselves.
    """
    env: Any = make()
    close = env.close

    def close_quietly() -> None:
        env.close = close
        close_env(env)

    env.close = close_quietly
    return env
