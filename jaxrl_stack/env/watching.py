"""Recording of episodes of JAX environments for videos: a rollout records states and observations, and frames are drawn
later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.device_rollout import DeviceRollout, RunnerState, StepKeys, Stepped, StepRecord
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env import drawings
from jaxrl_stack.env.jax_env import JaxEnv, JaxStep
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.randomized_jax_env import RandomizedJaxEnv
from jaxrl_stack.episodes.segments import segments
from jaxrl_stack.videos.episodes import RecordedEpisode

_MOST_PANELS = 4
"""Largest number of agents whose observations are drawn side by side. If an environment has more agents, all
observations are drawn as one."""


class Seen(NamedTuple):
    """State and observation of an environment at one time; a video frame is drawn from both. A pytree."""

    state: Any
    obs: Any


class _Watched(NamedTuple):
    """State of a `WatchedEnv`: the wrapped environment's state, and the state and observation at the end of the last
    step, before any reset.

    Attributes:
        now: State of the wrapped environment.
        led_to: State and observation after the last step or reset. If the step ended the episode, they precede the
            automatic reset.
    """

    now: Any
    led_to: Seen


class WatchedEnv(JaxEnv):
    """Wrapper for videos that stores the state and observation after each step, before any reset.

    Args:
        env: The environment.
    """

    def __init__(self, env: JaxEnv):
        super().__init__()
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    @property
    def params(self) -> Any:
        return self._env.params

    def who_acts(self, state: _Watched) -> dict[Any, jax.Array]:
        """Returns which agents act next, in a multi-agent environment; see `MultiAgentJaxEnv.who_acts`."""
        env: Any = self._env
        return env.who_acts(state.now)

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, _Watched]:
        obs, state = self._env.reset(key, params)
        return obs, _Watched(state, Seen(state, obs))

    def step(self, key: jax.Array, state: _Watched, action: Any, params: Any) -> JaxStep:
        step = self._env.step(key, state.now, action, params)
        last = self._env.last_state(key, state.now, action, params)
        return step._replace(state=_Watched(step.state, Seen(last, step.final_obs)))


BEFORE, AFTER = "seen_before", "seen_after"
"""Keys of a `WatchedRollout`'s records: states and observations before and after each step, as `Seen`."""


class WatchedRollout(DeviceRollout):
    """Rollout that records only the data that videos need.

    The data are states, observations, actions, rewards and, if the rollout records this column, ``Columns.LOSS_MASK``
    (False where an agent's step is not complete).
    """

    def step_envs(
        self, state: RunnerState, keys: StepKeys, context: Any, *, in_frames: Collection[str] = ()
    ) -> Stepped:
        before = Seen(state.env_state.now, state.obs)
        state, record = super().step_envs(state, keys, context, in_frames=in_frames)
        kept = (Columns.ACTIONS, Columns.REWARDS, Columns.LOSS_MASK)
        columns = {mid: {name: own[name] for name in kept if name in own} for mid, own in record.columns.items()}
        return state, StepRecord(columns, record.ended, {BEFORE: before, AFTER: state.env_state.led_to})


def watched(rollout: DeviceRollout) -> WatchedRollout:
    """Converts a rollout to a `WatchedRollout`, which acts in the same way, with the same random numbers, and also
    records states for videos.
    """
    fields = {field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout) if field.init}
    return WatchedRollout(**{**fields, "env": WatchedEnv(rollout.env)})


class _Running(NamedTuple):
    """Recorded data of an unfinished episode.

    Attributes:
        seen: State and observation at the start and after each step.
        rewards: Rewards of each step, by agent.
        actions: Action of each step; empty in multi-agent environments, whose actions are not recorded here.
    """

    seen: list[Seen]
    rewards: list[dict[Any, float]]
    actions: list[Any]


class SeenEpisodes:
    """Collects the steps that `WatchedRollout`s record, and splits them into episodes for videos.

    Args:
        env: Environment that renders the frames.
        num_envs: ``B``.
        module_map: Map of agents to modules, for the rewards of agents.
    """

    def __init__(self, env: JaxEnv, num_envs: int, module_map: ModuleMap):
        self._env, self._module_map = env, module_map
        self._running = [_Running([], [], []) for _ in range(num_envs)]
        self._ended: list[list[RecordedEpisode]] = [[] for _ in range(num_envs)]

    def add(self, record: StepRecord, counts: np.ndarray) -> None:
        """Adds the steps of `record`, which a `WatchedRollout` recorded, to the episodes.

        The leaves of `record` are NumPy arrays ``[T, B, ...]``; `counts`, bool ``[T, B]``, selects the steps to add.
        """
        of_modules = {mid: own[Columns.REWARDS] for mid, own in record.columns.items()}
        of_agents = self._module_map.by_agent(of_modules, axis=1)
        ended, starts = np.asarray(record.ended), np.array([not running.seen for running in self._running])
        for segment in segments(ended, np.zeros_like(ended), mask=counts, starts=starts).each():
            index = segment.env
            if segment.begins:
                self._running[index] = _Running([copied_entry(record.seen[BEFORE], segment.start, index)], [], [])
            seen, rewards, actions = self._running[index]
            for t in range(segment.start, segment.stop):
                seen.append(copied_entry(record.seen[AFTER], t, index))
                rewards.append({agent: float(own[t, index]) for agent, own in of_agents.items()})
                if not self._module_map.is_multi_agent:
                    columns = next(iter(record.columns.values()))
                    actions.append(copied_entry(columns[Columns.ACTIONS], t, index))
            if segment.has_ended:
                self._ended[index].append(self._recorded(self._running[index]))
                self._running[index] = _Running([], [], [])

    def _recorded(self, running: _Running) -> RecordedEpisode:
        env, (seen, rewards, actions) = self._env, running
        of_agents = {}
        if self._module_map.is_multi_agent:
            of_agents = {str(agent): np.array([own[agent] for own in rewards]) for agent in self._module_map.module_of}
        frames, note = frames_and_note(env, seen)
        sums = np.array([sum(own.values()) for own in rewards])
        return RecordedEpisode(frames, sums, note, of_agents, actions if note else ())

    @property
    def episodes(self) -> list[RecordedEpisode]:
        """Ended episodes, ordered by environment."""
        return [episode for own in self._ended for episode in own]


@dataclasses.dataclass(frozen=True)
class Frames:
    """Iterable of an episode's video frames. Each frame is drawn only when it is read, because the stored environment
    states need less memory than frames.
    """

    draw: Callable[[Any], np.ndarray]
    moments: list[Any]

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.draw, self.moments)


def frames_and_note(env: JaxEnv, seen: list[Seen]) -> tuple[Frames, str | None]:
    """Returns the video frames of an episode, and a note for viewers if the frames show observations instead of the
    environment's own rendering.

    Args:
        env: The environment.
        seen: State and observation at the start and after each step.
    """
    note = drawings.NOTE if _own_frame(env, seen[0].state) is None else None
    return Frames(lambda one: frame_of(env, *one), seen), note


def frame_of(env: JaxEnv, state: Any, obs: Any) -> np.ndarray:
    """Draws the video frame of a state: the environment's own rendering, or a drawing of the observation if the
    environment's ``render`` returns None.
    """
    frame = _own_frame(env, state)
    if frame is not None:
        return np.asarray(frame)
    if isinstance(env, MultiAgentJaxEnv) and len(env.possible_agents) <= _MOST_PANELS:
        panels = {agent: drawings.observation(obs[agent], env.observation_spaces[agent]) for agent in obs}
        return next(drawings.side_by_side([panels], env.possible_agents))
    if isinstance(env, RandomizedJaxEnv):
        return drawings.observation(env.unwrapped_observation(obs), env.unwrapped.observation_space)
    return drawings.observation(obs, env.observation_space)


def _own_frame(env: JaxEnv, state: Any) -> np.ndarray | None:
    try:
        return env.render(state)
    except Exception as error:
        error.add_note(f"Raised while {env.source} was drawn.")
        raise


def copied_entry(tree: Any, *index: int) -> Any:
    """Returns the entry at `index` of every array in a pytree. Entries of NumPy arrays are copied; JAX arrays, such as
    PRNG keys, are only indexed.
    """
    return jax.tree.map(lambda leaf: leaf[index] if isinstance(leaf, jax.Array) else np.array(leaf[index]), tree)
