"""Vector of multi-agent environments stepped one after the other in this process; an ended episode is reset in the same
step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.env.multi_agent_contract import AgentsOfEpisode
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv, spaces_by_agent
from jaxrl_stack.env.vector.interface import Recover, Seeds, one_per_env
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.nested import owned
from jaxrl_stack.utils.spaces import map_parts


@dataclasses.dataclass(slots=True)
class MultiAgentVectorStep:
    """Result of one step of ``B`` multi-agent environments: lists of ``B`` dicts by agent.

    Attributes:
        obs: Observations to act on next: the first of an episode where `resets` is True.
        rewards: Rewards of this step.
        terminateds: Flags of this step, with ``"__all__"``.
        truncateds: Flags of this step, with ``"__all__"``.
        infos: Infos of this step (not of a reset).
        resets: bool ``[B]``, whether ``obs[i]`` are the first observations of an episode.
        final_obs: Observations of this step before the reset, if the step ended the episode; else None.
        reset_infos: Infos of the reset where `resets` is True; else empty.
        ends: Agents that this step terminated, and agents that it truncated; None if it ended no agent.
        failed: Indices of environments that failed in this step. New environments replaced them and were reset; the
            interrupted episodes have no end.
    """

    obs: list[dict[Any, Any]]
    rewards: list[dict[Any, Any]]
    terminateds: list[dict[Any, Any]]
    truncateds: list[dict[Any, Any]]
    infos: list[dict[Any, Any]]
    resets: list[bool]
    final_obs: list[dict[Any, Any] | None]
    reset_infos: list[dict[Any, Any]]
    ends: list[tuple[set[Any], set[Any]] | None] = dataclasses.field(default_factory=list)
    failed: Sequence[int] = ()


class SyncHostMultiAgentEnv:
    """``B`` multi-agent environments stepped one after the other; the counterpart of `SyncHostVectorEnv`, whose
    environments have one agent.

    An episode ends if a flag ``"__all__"`` is True, or, without such flags, with the end of its last agent. The
    environment is reset in the same step; `MultiAgentVectorStep.final_obs` has the last observations.

    Args:
        makers: Functions that create the environments, one each.
        name: Name of the environment in messages.
        check: Whether to check the values that `reset` and `step` return. Their agents are always checked.
        worker_index: Index of the runner, for messages.

    Attributes:
        envs: The environments.
        num_envs: ``B``.
        single_observation_space: Observations of all agents of one of them.
        single_action_space: Space of the agents' actions.

    Raises:
        TypeError: An environment is no `MultiAgentEnv`.
    """

    resets_in_next_step = False
    steps_in_turn = True

    def __init__(
        self, makers: Sequence[Callable[[], MultiAgentEnv]], name: str, check: bool = True, worker_index: int = 0
    ):
        self._name, self._makers = name, list(makers)
        self.envs: list[MultiAgentEnv] = []
        self._agents: list[AgentsOfEpisode] = []
        self._obs: list[dict[Any, Any]] = []
        self._spaces: dict[Any, gym.Space] = {}
        self._check, self._worker_index = check, worker_index
        # The environment that is being stepped or reset: the one that failed, if it raises.
        self._running: int | None = None
        try:
            for make in makers:
                self.envs.append(make())
                self._agents.append(self._watched(self.envs[-1], len(self._agents)))
        except BaseException:
            self.close()
            raise
        self.num_envs = len(self.envs)
        first: Any = self.envs[0].unwrapped
        self.single_observation_space: gym.Space = spaces_by_agent(first, "observation_space")
        self.single_action_space = spaces_by_agent(first, "action_space")

    @property
    def env(self) -> SyncHostMultiAgentEnv:
        """Object that callbacks get as argument `env`: this vector, whose `envs` lists the environments."""
        return self

    @property
    def unwrapped(self) -> SyncHostMultiAgentEnv:
        """This object itself, because vectors of multi-agent environments have no wrappers."""
        return self

    def observe_as(self, space: gym.Space) -> None:
        """Makes later observations have the dtypes of another space with the same structure and shapes."""
        self.single_observation_space = space
        self._spaces = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Starts new episodes in all environments.

        Args:
            seed: One seed per environment; with a single int, environment i gets ``seed + i``. None: random number
                generators continue.
            options: Passed to every environment.

        Returns:
            ``(observations, infos)``: lists of ``B`` dicts by agent.

        Raises:
            MultiAgentEnvError: The result of an environment does not fit its agents or spaces.
        """
        seeds = [None] * self.num_envs if seed is None else one_per_env(seed, self.num_envs)
        outcomes = [self._reset(i, seed=own, options=options) for i, own in enumerate(seeds)]
        self._obs, infos = [obs for obs, _ in outcomes], [infos for _, infos in outcomes]
        return list(self._obs), infos

    def step(
        self, actions: Sequence[dict[Any, Any]], recover: Recover | None = None, holds_ended: bool = False
    ) -> MultiAgentVectorStep:
        """Steps all environments.

        Args:
            actions: ``B`` dicts ``{agent: action}`` for the agents that have an observation; {} if no agent has one.
            recover: Function that replaces an environment that raised, so that the others continue. None: the exception
                is raised here.
            holds_ended: Do not reset environments whose episode ended: `obs` and `reset_infos` of these rows are
                undefined until `reset_ended`.

        Raises:
            MultiAgentEnvError: The result of an environment does not fit its agents or spaces; or an agent without an
                observation acts.
        """
        n = self.num_envs
        # The empty dicts stand where an environment has failed.
        obs, rewards, terminateds, truncateds, infos = ([{}] * n for _ in range(5))
        step = MultiAgentVectorStep(
            obs, rewards, terminateds, truncateds, infos, [False] * n, [None] * n, [{}] * n, [None] * n
        )
        failed = []
        for i, (env, agents) in enumerate(zip(self.envs, self._agents, strict=True)):
            agents.require_may_act(actions[i], self._obs[i])
            self._running = i
            try:
                columns, ended = agents.next(env.step(actions[i]))
                if self._spaces:
                    columns = (self._cast(columns[0]), *columns[1:])
            except Exception as error:
                failed.append(i)
                step.resets[i] = True
                step.obs[i], step.reset_infos[i] = self._recovered(i, error, recover)
                continue
            step.obs[i], step.rewards[i], step.terminateds[i], step.truncateds[i], step.infos[i] = columns
            step.ends[i] = agents.newest_ends
            if ended:
                step.resets[i] = True
                if not holds_ended:
                    # The reset may fill them again.
                    columns = (owned(dict(columns[0])), *columns[1:4], owned(dict(columns[4])))
                    step.infos[i] = columns[4]
                    step.obs[i], step.reset_infos[i] = self._reset_again(i, recover)
                step.final_obs[i] = columns[0]
        self._running, self._obs, step.failed = None, list(step.obs), failed
        return step

    def reset_ended(self, step: MultiAgentVectorStep, recover: Recover | None = None) -> None:
        """Resets the environments whose episodes ended in the last ``step(..., holds_ended=True)`` call.

        The argument `step` is the result of that call; writes the first observations and infos of the new episodes into
        it.
        """
        for i, final_obs in enumerate(step.final_obs):
            if final_obs is not None:
                step.obs[i], step.reset_infos[i] = self._reset_again(i, recover)
                self._obs[i] = step.obs[i]

    def renew(self, index: int | None = None) -> bool:
        """Replaces one environment by a new one, which must be reset afterwards.

        Args:
            index: Index of the environment; None for the one whose ``reset`` or ``step`` raised.

        Returns:
            Whether the environment was replaced. False if the failed one is unknown: then all environments must be
            created again.
        """
        index = self._running if index is None else index
        if index is None:
            return False
        close_env(self.envs[index])
        self.envs[index] = self._makers[index]()
        self._agents[index] = self._watched(self.envs[index], index)
        return True

    def reset_one(self, index: int, seed: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Starts a new episode in one environment. The function `recover` (an argument of `step`) calls this method
        after it has replaced a failed environment by `renew`.

        Returns:
            ``(observations, infos)`` by agent.
        """
        return self._reset(index, seed=seed)

    def discard(self) -> None:
        """Closes all environments after one of them has failed."""
        self.close()

    def close(self) -> None:
        """Closes all environments. Exceptions of their `close` methods are only logged. A second call does nothing."""
        while self.envs:
            close_env(self.envs.pop())

    def _watched(self, env: MultiAgentEnv, index: int) -> AgentsOfEpisode:
        if not isinstance(env.unwrapped, MultiAgentEnv):
            raise TypeError(
                f"environment({self._name!r}): {env!r} is no MultiAgentEnv. Derive its class from MultiAgentEnv."
            )
        copy = f", copy {index} in EnvRunner {self._worker_index}"
        return AgentsOfEpisode(env.unwrapped, self._name, self._check, copy)

    def _reset(self, index: int, **arguments: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self._running = index
        obs, infos = self._agents[index].reset(self.envs[index].reset(**arguments))
        self._running = None
        return self._cast(obs) if self._spaces else obs, infos

    def _cast(self, obs: dict[Any, Any]) -> dict[Any, Any]:
        """Converts a dict of observations by agent to the dtypes of the space that was passed to `observe_as`."""

        def cast(part: gym.Space, value: Any) -> Any:
            return np.asarray(value, part.dtype) if isinstance(part, gym.spaces.Box) else value

        return {agent: map_parts(cast, self._spaces[agent], value) for agent, value in obs.items()}

    def _reset_again(self, index: int, recover: Recover | None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        try:
            return self._reset(index)
        except Exception as error:
            return self._recovered(index, error, recover)

    def _recovered(self, index: int, error: Exception, recover: Recover | None) -> tuple[Any, dict[Any, Any]]:
        self._running = index
        if recover is None:
            raise error
        return recover(index, error)
