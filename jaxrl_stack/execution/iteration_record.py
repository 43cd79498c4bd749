"""Records of the updates and episodes of an iteration, as host arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.core.learner.minibatch_records import NUM_MINIBATCHES
from jaxrl_stack.utils.named_leaves import is_key

if TYPE_CHECKING:
    from jaxrl_stack.env.jax_env import JaxEnv

_MOST_BYTES = 1 << 28
"""Largest size of the recorded states of environments in an iteration."""


class EpisodeRecord(NamedTuple):
    """Record of an episode that ended in the iteration.

    Attributes:
        time: Step of the iteration with which it ended; None if unknown.
        env: Index of its environment; None if unknown.
        length: Number of steps.
        episode_return: Sum of its rewards.
        agent_returns: ``{agent: its part of the return}`` if there are several agents.
    """

    time: int | None
    env: int | None
    length: int
    episode_return: float
    agent_returns: dict[str, float]


class ColumnOrder(NamedTuple):
    """Layout of the batch axis of the columns ``[T, R * agents * B]`` that a device samples.

    The axis joins R sampling rounds, the agents of a module, and B environments. `place` converts an index on this axis
    to the sampling round, the agent and the environment.

    Attributes:
        num_envs: ``B``, number of environments of one device.
        num_steps: ``T``.
        num_shares: ``R``, number of successive sampling rounds of ``T`` steps.
        num_slots: Number of agents, by module.
        is_by_agent: Whether all sampling rounds of an agent are adjacent on the batch axis, by module.
    """

    num_envs: int
    num_steps: int
    num_shares: int
    num_slots: dict[str, int]
    is_by_agent: dict[str, bool]

    def place(self, module_id: str, column: int) -> tuple[int, int, int]:
        """Returns the sampling round, the agent (its index in the module) and the environment of `column`, an index on
        the batch axis.
        """
        num_slots = self.num_slots.get(module_id, 1)
        others, env = divmod(column, self.num_envs)
        if self.is_by_agent.get(module_id, False):
            slot, share = divmod(others, self.num_shares)
        else:
            share, slot = divmod(others, num_slots)
        return share, slot, env


class Drawings:
    """Renders frames from recorded states of JAX environments.

    Args:
        env: The environment.
        env_state: Present states of all environments (leaves ``[D, B, ...]``).
    """

    def __init__(self, env: JaxEnv, env_state: Any):
        self.fps, self._env = env.render_fps, env
        self._keys = jax.tree.map(lambda leaf: jax.random.key_impl(leaf) if is_key(leaf) else None, env_state)
        self._calls: list[tuple[int, Any]] = []
        self._num_bytes = 0

    def add(self, first_step: int, states: Any) -> None:
        """Stores the environment states of one call of the program, so that `frames` can render these states.

        The states are arrays ``[D, T, W, ...]`` for W environments on each of D devices. If all stored states together
        would take too much memory, does not store the new states.

        Args:
            first_step: Step of the iteration of the first state.
            states: The states before each step.
        """
        self._num_bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(states))
        if self._num_bytes <= _MOST_BYTES:
            self._calls.append((first_step, states))

    def frames(self, env: int, num_envs: int, steps: range) -> Iterator[np.ndarray]:
        """Yields a frame of one environment for each of the given steps, rendered from recorded states.

        The frame shows the state before the step. Skips steps without a recorded state.

        Args:
            env: Index of the environment.
            num_envs: Number of environments of a device.
            steps: Steps of the iteration.
        """
        d, b = divmod(env, num_envs)
        for first, states in self._calls:
            _, length, num_watched = jax.tree.leaves(states)[0].shape[:3]
            for step in steps if b < num_watched else ():
                if first <= step < first + length:
                    state = jax.tree.map(lambda x, t=step - first: x[d, t, b], states)
                    frame = self._env.render(jax.tree.map(_with_key, state, self._keys))
                    if frame is not None:
                        yield frame


def _with_key(leaf: Any, implementation: Any) -> Any:
    return leaf if implementation is None else jax.random.wrap_key_data(leaf, impl=implementation)


@dataclasses.dataclass
class IterationRecord:
    """Records of the updates and episodes of an iteration, which `inspect` shows to users.

    Attributes:
        columns: Layout of the batch axis of sampled columns; None if unknown.
        agents: Agents of JAX environments if there are several.
        drawings: Frames of episodes; None if the environment draws none.
        updates: `Record` of each update, NumPy leaves ``[D, minibatches, ...]``.
        episodes: Ended episodes, in the order of their ends.
        num_other_episodes: Number of further episodes that ended, of which nothing is known.
        num_steps: Vector steps so far, if the driver counts them.
        is_exact: Whether all recorded updates led to the parameters of training, bit for bit.
    """

    columns: ColumnOrder | None = None
    agents: tuple[Any, ...] = ()
    drawings: Drawings | None = None
    updates: list[dict[tuple[str, ...], np.ndarray]] = dataclasses.field(default_factory=list)
    episodes: list[EpisodeRecord] = dataclasses.field(default_factory=list)
    num_other_episodes: int = 0
    num_steps: int = 0
    is_exact: bool = True

    def add_update(self, record: dict[tuple[str, ...], np.ndarray]) -> None:
        """Appends the record of one update to `updates`, the list of all recorded updates. The record consists of
        arrays ``[D, minibatches, ...]`` of D devices.
        """
        number = record.pop((NUM_MINIBATCHES,), None)
        if number is not None:
            record = {path: leaf[:, : int(number.flat[0])] for path, leaf in record.items()}
        self.updates.append(record)

    def add_call(self, call: Any, num_training_steps: int = 1) -> None:
        """Appends the record of one call of the device program to this record.

        `call` is a `CallRecord` of arrays ``[D, ...]`` for D devices, with updates, episodes and environment states.

        Args:
            call: The record.
            num_training_steps: Number of training steps of the call.

        Raises:
            ValueError: If the training steps made more updates than planned, which have no room in the record.
        """
        number = int(call.num_updates[0])
        planned = next(iter(call.updates.values())).shape[1] // num_training_steps if number else 0
        if number > planned * num_training_steps:
            made = -(-number // num_training_steps)
            raise ValueError(
                f"inspect() records at most plan.num_updates={planned} updates of a training step, but the step made "
                f"{made}. Set self.num_updates = {made} in TrainingStep.plan()."
            )
        for i in range(number):
            self.add_update({path: leaf[:, i] for path, leaf in call.updates.items()})
        if isinstance(call.ended, tuple):  # no environments
            return
        if self.drawings is not None:
            self.drawings.add(self.num_steps, call.states)
        returns, lengths, *of_agents = np.moveaxis(call.ended, 2, 0)  # [D, T, B] each
        times, of_device, envs = np.nonzero(lengths.transpose(1, 0, 2))
        for t, d, b in zip(times.tolist(), of_device.tolist(), envs.tolist(), strict=True):
            parts = {str(agent): _as_float(own[d, t, b]) for agent, own in zip(self.agents, of_agents, strict=True)}
            own = (self.num_steps + t, d * lengths.shape[2] + b, int(lengths[d, t, b]), _as_float(returns[d, t, b]))
            self.episodes.append(EpisodeRecord(*own, parts))
        self.num_steps += lengths.shape[1]

    def add_ended(self, ended: EndedEpisodes, number: int) -> None:
        """Appends the last `number` episodes in `ended` to the list `episodes`.

        Host EnvRunners have finished the episodes in `ended`. If `ended` contains fewer than `number` episodes, adds
        the difference to `num_other_episodes`.
        """
        known = min(number, len(ended.returns))
        self.num_other_episodes += number - known
        for i in range(len(ended.returns) - known, len(ended.returns)):
            parts = {str(agent): float(own[i]) for agent, own in ended.agent_returns.items()}
            own = (None, None, int(ended.lengths[i]), float(ended.returns[i]))
            self.episodes.append(EpisodeRecord(*own, parts))


def _as_float(bits: np.ndarray) -> float:
    return float(np.asarray(bits, np.uint32).view(np.float32))
