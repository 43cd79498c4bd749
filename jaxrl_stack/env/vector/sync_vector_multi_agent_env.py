"""RLlib's vector of multi-agent environments, which resets an ended episode in the following step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy as copy_values
from typing import Any

from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode

from jaxrl_stack.env.multi_agent_contract import AgentsOfEpisode
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.vector.interface import Seeds, one_per_env
from jaxrl_stack.env.vector.vector_multi_agent_env import VectorMultiAgentEnv
from jaxrl_stack.utils.multi_agent import ALL


class SyncVectorMultiAgentEnv(VectorMultiAgentEnv):
    """Multi-agent environments stepped one after the other in this process.

    The step after the last one of an episode only resets: its actions are ignored, its rewards are 0 and its flags
    False.

    Args:
        env_fns: Functions that create the environments, one each.
        copy: Hand out copies of observations; False: the environments' own.
        autoreset_mode: "next_step"; `SyncHostMultiAgentEnv` resets in the same step.

    Raises:
        ValueError: Another mode, or no environment.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], MultiAgentEnv]],
        copy: bool = True,
        autoreset_mode: str | AutoresetMode = "next_step",
    ):
        if autoreset_mode not in ("next_step", AutoresetMode.NEXT_STEP):
            raise ValueError(
                f"autoreset_mode={autoreset_mode!r}: give 'next_step'. For resets in the same step, use "
                "jaxrl_stack.env.vector.sync_host_multi_agent_env.SyncHostMultiAgentEnv."
            )
        if not env_fns:
            raise ValueError("env_fns=[]: give at least one function that makes an environment.")
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        self.copy, self.autoreset_mode = copy, "next_step"
        first = self.envs[0]
        self.metadata = {**first.metadata, "autoreset_mode": "next_step"}
        self.render_mode, self.spec = first.render_mode, first.spec
        for kind in ("observation_space", "action_space"):
            spaces = getattr(first, f"{kind}s")
            setattr(self, f"single_{kind}s", spaces)
            setattr(self, f"single_{kind}", getattr(first, kind) if spaces is None else Dict(spaces))
        self._agents = [AgentsOfEpisode(env, type(env).__name__, False) for env in self.envs]
        self._ended = [False] * self.num_envs

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> Any:
        seeds = [None] * self.num_envs if seed is None else one_per_env(seed, self.num_envs)
        outcomes = [
            agents.reset(env.reset(seed=own, options=options))
            for env, agents, own in zip(self.envs, self._agents, seeds, strict=True)
        ]
        self._ended = [False] * self.num_envs
        return self._handed_out([obs for obs, _ in outcomes]), [infos for _, infos in outcomes]

    def step(self, actions: Sequence[dict[Any, Any]]) -> Any:
        rows = []
        for i, (env, agents) in enumerate(zip(self.envs, self._agents, strict=True)):
            if self._ended[i]:
                obs, infos = agents.reset(env.reset())
                flags = {**dict.fromkeys(obs, False), ALL: False}
                rows.append((obs, dict.fromkeys(obs, 0.0), flags, dict(flags), infos))
                self._ended[i] = False
            else:
                row, self._ended[i] = agents.next(env.step(actions[i]))
                rows.append(row)
        obs, *more = map(list, zip(*rows, strict=True))
        return self._handed_out(obs), *more

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the attribute `name` of every environment, as a tuple. If the attribute is a method, calls it with
        the given arguments and returns the results.
        """
        found = self.get_attr(name)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns the attribute `name` of every environment, as a tuple."""
        return tuple(getattr(env, name) for env in self.envs)

    @property
    def np_random(self) -> tuple[Any, ...]:
        """Random number generators of the environments: a tuple with one generator per environment."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[Any, ...]:
        """Seed of each environment's random number generator; -1 if unknown."""
        return self.get_attr("np_random_seed")

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _handed_out(self, obs: list[Any]) -> list[Any]:
        return copy_values(obs) if self.copy else obs


__all__ = ["SyncVectorMultiAgentEnv"]
