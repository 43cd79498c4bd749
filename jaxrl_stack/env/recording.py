"""Video recording of gymnasium episodes. A separate env runner samples the episodes as in an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.callbacks.callbacks import HOOKS
from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.env import drawings
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, sample_for_evaluation
from jaxrl_stack.env.episode_quota import episode_quota
from jaxrl_stack.env.host_packages import render_modes
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.registry import get_env_creator, resolve_env
from jaxrl_stack.env.vector.suites import ALE_PREFIX
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import validate_batch
from jaxrl_stack.videos.episodes import PackedFrames, RecordedEpisode

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_NO_FRAMES = (
    "{env!r} gives no frames ({why}), so its video shows what the policy sees. Give it render() -> uint8 [height, "
    "width, 3] and metadata = {{'render_modes': ['rgb_array']}}, or what draws it: pip install 'jaxrl-stack[video]'."
)


def record_on_host(
    config: AlgorithmConfig, send_state: Callable[[EnvRunnerGroup], Any], *, seed: int, num_episodes: int
) -> tuple[list[RecordedEpisode], float]:
    """Samples the first `num_episodes` episodes of an evaluation in this process, and returns them with frames for a
    video.

    A separate runner samples them, with ``render_mode="rgb_array"`` if the environments support it. Of the users'
    callbacks, only `on_environment_created` is called.

    Args:
        config: The evaluation config, frozen.
        send_state: Function that sends weights and connector statistics to a group of runners.
        seed: Seed of the evaluation.
        num_episodes: Number of episodes ``n``: the first ``n // B + (i < n % B)`` of environment ``i`` of ``B``.

    Returns:
        ``(episodes, frames per second)``.

    Raises:
        TimeoutError: If the episodes are not over in time.
        Exception: Exceptions of the environments.
    """
    camera = _Camera(config.env, episode_quota(num_episodes, int(config.num_envs_per_env_runner)))
    group = EnvRunnerGroup(config=_watched(config, camera), num_env_runners=0, is_evaluation=True)
    try:
        send_state(group)
        timeout = config.evaluation_sample_timeout_s
        group.sample(sample_for_evaluation, [{"num_episodes": num_episodes}], seed=seed, timeout_seconds=timeout)
    finally:
        group.stop()
    return camera.episodes, camera.fps


def _watched(config: AlgorithmConfig, camera: _Camera) -> AlgorithmConfig:
    """Returns a copy of the config for an env runner that records videos.

    The runner's environments render frames if they can, and callbacks pass the starts and steps of episodes to
    `camera`.
    """
    own = config.copy(copy_frozen=False)
    told = CallbackList.from_config(config)
    own.callbacks(None, **dict.fromkeys(HOOKS))
    own.callbacks(
        on_environment_created=lambda **kwargs: told.on_environment_created(**kwargs),
        on_episode_start=camera.start,
        on_episode_step=camera.step,
    )
    own.env_runners(num_env_runners=0).offline_data(output=None)
    if _is_preprocessed_by_its_vector_version(own):
        own.freeze()
        return own
    own.env_runners(gym_env_vectorize_mode="sync")
    if _takes_render_mode(own):
        own.environment(env_config={"render_mode": "rgb_array", **own.env_config})
    own.freeze()
    return own


def _is_preprocessed_by_its_vector_version(config: AlgorithmConfig) -> bool:
    """Whether the config uses ale-py's vector version of the environment, which preprocesses observations itself.

    If so, videos must use the vector version too, because a single environment of the same id returns different
    observations and takes different arguments.
    """
    if config.gym_env_vectorize_mode != "vector_entry_point":
        return False
    spec = resolve_env(config.env, config.env_config).spec
    return spec is not None and f"{spec.namespace}/" == ALE_PREFIX


def _takes_render_mode(config: AlgorithmConfig) -> bool:
    """Whether the config's `env` is a gymnasium id whose environment supports ``render_mode="rgb_array"``. False for
    names that were registered with `register_env`.
    """
    if isinstance(config.env, str) and get_env_creator(config.env) is not None:
        return False
    spec = resolve_env(config.env, config.env_config).spec
    return spec is not None and "rgb_array" in render_modes(spec)


class _Camera:
    """Callbacks that record episodes for videos.

    At the start and after each step of such an episode, they render a frame of its environment. If the environment does
    not render, they draw the observations instead.

    Args:
        env: The config's setting `env`, for messages.
        quota: Number of episodes to record in each environment.

    Attributes:
        fps: Frames per second, from the environment's metadata; 30 without such an entry.
    """

    def __init__(self, env: Any, quota: list[int]):
        self._name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        self._quota = quota
        self._taken: list[list[_Taken]] = [[] for _ in quota]
        self._has_frames = True
        self._space: gym.Space | None = None
        self._spaces: dict[Any, gym.Space] = {}
        self.fps = 30.0

    def start(self, *, env: Any, env_index: int, **kwargs: Any) -> None:
        """Takes the first frame of an episode, if the environment renders."""
        own = self._taken[env_index]
        if own and not own[-1].is_over:
            own.pop()  # its environment failed
        if len(own) < self._quota[env_index]:
            own.append(_Taken())
            frame = self._rendered(env, env_index)
            if frame is not None:
                own[-1].frames.append(frame)

    def step(self, *, episode: Any, env: Any, env_index: int, rl_module: Any, **kwargs: Any) -> None:
        """Renders a frame after a step; if the episode has ended, the frame shows its last state."""
        own = self._taken[env_index]
        if not own or own[-1].is_over:
            return
        taken, frame = own[-1], self._rendered(env, env_index)
        if frame is not None:
            taken.frames.append(frame)
        elif isinstance(episode, MultiAgentEpisode):
            taken.panels.extend(self._panels(seen, episode, rl_module, env) for seen in _newly_seen(episode, taken))
        else:
            for observation in _newly_seen(episode, taken):
                space = self._space or _space_of(observation, rl_module.observation_space, env.single_observation_space)
                self._space = space
                taken.frames.append(drawings.observation(observation, space, env.single_observation_space))
            taken.actions.append(episode.get_actions(-1))
        if isinstance(episode, MultiAgentEpisode):
            taken.agents.append(_returns(episode))
        taken.rewards.append(_earned(episode, taken))
        taken.is_over = episode.is_done
        if taken.is_over and taken.panels:
            for frame in drawings.side_by_side(taken.panels, list(env.single_observation_space)):
                taken.frames.append(frame)
            taken.panels.clear()

    def _panels(self, seen: Mapping[Any, Any], episode: Any, rl_module: Any, env: Any) -> dict[Any, np.ndarray]:
        """Draws one image for each observation in `seen`, ``{agent: observation}``; returns ``{agent: image}``."""
        panels = {}
        for agent, observation in seen.items():
            if agent not in self._spaces:
                module = rl_module[episode.module_for(agent)]
                returned = env.single_observation_space[agent]
                self._spaces[agent] = _space_of(observation, module.observation_space, returned)
            panels[agent] = drawings.observation(observation, self._spaces[agent], env.single_observation_space[agent])
        return panels

    def _rendered(self, env: Any, env_index: int) -> Any:
        """Renders a frame of an environment.

        If an environment cannot be rendered, this and all later calls return None, so that a video does not mix
        rendered frames with drawings of observations.
        """
        if not self._has_frames:
            return None
        why = "it makes all its copies itself"
        copies = getattr(env.unwrapped, "envs", None)
        if copies is not None:
            one = copies[env_index]
            modes, why = one.metadata.get("render_modes", ()), f"its render_mode is {one.render_mode!r}"
            is_multi_agent = isinstance(one.unwrapped, MultiAgentEnv)
            if one.render_mode is None and "rgb_array" in modes:
                one.unwrapped.render_mode = "rgb_array"
            # RLlib's environments of several agents draw themselves without a render_mode.
            if one.render_mode in ("rgb_array", "rgb_array_list") or (is_multi_agent and not modes):
                self.fps = float(one.metadata.get("render_fps") or self.fps)
                try:
                    frame = one.render()
                except (gym.error.DependencyNotInstalled, NotImplementedError) as error:
                    why = str(error) or "render() is not implemented"
                else:
                    frame = frame[-1] if isinstance(frame, list) else frame
                    if frame is not None or not is_multi_agent:
                        return frame
                    why = "its render() returns None"
        self._has_frames = False
        notice_once(_NO_FRAMES.format(env=self._name, why=why))
        return None

    @property
    def episodes(self) -> list[RecordedEpisode]:
        """Episodes that were recorded to their end, ordered by environment."""
        note = None if self._has_frames else drawings.NOTE
        return [
            RecordedEpisode(taken.frames, np.array(taken.rewards), note, taken.agent_rewards, taken.actions)
            for own in self._taken
            for taken in own
            if taken.is_over
        ]


def _newly_seen(episode: Any, taken: _Taken) -> Iterator[Any]:
    """Yields the observations that a video must draw after a step.

    The first observation is the observation for which the policy chose the action of this step; it is omitted if the
    video contains it already. If the step ended the episode, the final observation follows.

    The newest observation of an unfinished episode is left out: until the policy acts on it, the episode contains it in
    the form that connectors get. The final observation has the form that the policy would have received.
    """
    if len(taken.frames) + len(taken.panels) <= len(taken.rewards):
        yield episode.get_observations(-2)
    if episode.is_done:
        yield episode.get_observations(-1)


def _earned(episode: Any, taken: _Taken) -> float:
    """Returns the reward of the episode's newest step. With several agents, returns the sum over all agents, including
    agents that did not act in this step.
    """
    if not isinstance(episode, MultiAgentEpisode):
        return float(episode.get_rewards(-1))
    before, taken.earned = taken.earned, sum(taken.agents[-1].values())
    return taken.earned - before


def _returns(episode: MultiAgentEpisode) -> dict[Any, float]:
    """Computes ``{agent: sum of its rewards in the episode so far}``. The sums include rewards after the agent's last
    action.
    """
    hanging = {agent: step.reward for agent, step in episode.hanging.items()}
    return {agent: own.get_return() + hanging.get(agent, 0.0) for agent, own in episode.agent_episodes.items()}


def _space_of(observation: Any, seen: gym.Space, returned: gym.Space) -> gym.Space:
    """Returns the space with which a video draws an observation.

    The space is `seen`, the policy's observation space, if the observation fits this space; else `returned`, the
    environment's observation space. An observation that does not fit `seen` was not changed by connectors.
    """
    try:
        validate_batch(seen, observation, 0)
    except ValueError:
        return returned
    return seen


@dataclasses.dataclass
class _Taken:
    """Video data of one episode: frames and rewards; for several agents, also drawings of each agent's observations,
    and each agent's returns.

    Attributes:
        frames: Frames of the video.
        rewards: One for each step.
        is_over: Whether the episode has ended.
        panels: Until the episode ends, drawings of the observations at each time: ``{agent: image}`` of the agents that
            observed. Only for several agents whose environment has no frames.
        earned: Sum of the rewards of all agents so far.
        agents: Returns so far after each step, ``{agent: return}``; only for several agents.
        actions: The policy's actions, one for each step; only for one agent whose environment has no frames.
    """

    frames: PackedFrames = dataclasses.field(default_factory=PackedFrames)
    rewards: list[float] = dataclasses.field(default_factory=list)
    is_over: bool = False
    panels: list[dict[Any, np.ndarray]] = dataclasses.field(default_factory=list)
    earned: float = 0.0
    agents: list[dict[Any, float]] = dataclasses.field(default_factory=list)
    actions: list[Any] = dataclasses.field(default_factory=list)

    @property
    def agent_rewards(self) -> dict[str, np.ndarray]:
        """Rewards of each agent, ``{agent name: float [T]}``; {} if the environment has a single agent."""
        ids = dict.fromkeys(agent for own in self.agents for agent in own)
        return {str(agent): np.diff([0.0, *(own.get(agent, 0.0) for own in self.agents)]) for agent in ids}
