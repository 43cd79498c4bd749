"""Factories of the replay buffers of a training step: on the host or on the devices, with or without initial recorded
steps.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.execution.device_program import MODULE_STREAMS
from jaxrl_stack.execution.device_ring import DeviceRing
from jaxrl_stack.execution.host_replay import HostReplay
from jaxrl_stack.execution.mixture import Mixture, RecordedRing, RecordedRows
from jaxrl_stack.execution.recorded_start import RecordedStart
from jaxrl_stack.execution.sources import Replay, num_learner_shares
from jaxrl_stack.replay.draw_forms import DrawForm, Transitions
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.utils.memory import MemoryEstimate
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.execution.facts import DeviceFacts, Facts

RECORDED_REMEDY = (
    "Name less data, offline_data(input_=...), or let the replay buffer begin with it: recorded_share=None."
)


def make_replays(
    facts: Facts, config: OffPolicyConfig, forms: Mapping[str, DrawForm], numbers: Mapping[str, int], num_updates: int
) -> dict[str, Replay]:
    """Creates a training step's replay buffers, ``{name: replay}``: on the device one for each module; on the host one
    that all modules share.

    Args:
        facts: Facts of the step's driver.
        config: The algorithm's config.
        forms: ``{module_id: form of the drawn items}``.
        numbers: ``{module_id: items of an update}``.
        num_updates: Draws of one training step.

    Raises:
        ValueError: If a replay does not fit into memory, or sizes in the config do not fit each other.
    """
    return facts.choose(host=_OnHost, device=_OnDevice)(facts, config, num_updates).replays(forms, numbers)


def drawn_memory(facts: Facts, forms: Mapping[str, DrawForm], numbers: Mapping[str, int]) -> MemoryEstimate:
    """Estimates the memory of the train batches that one update draws from replay buffers."""
    is_on_device = facts.choose(host=False, device=True)
    return MemoryEstimate.joined(
        [
            what.memory_estimate(numbers[mid], facts.recorded[mid].columns, is_on_device=is_on_device)
            for mid, what in forms.items()
        ]
    )


def split_batch(config: OffPolicyConfig, num_shares: int) -> tuple[int, int]:
    """Returns the numbers of sampled rows and of recorded rows in a train batch.

    Each number is a multiple of the number of devices or learner actors that share the batch.

    Raises:
        ValueError: If one of them would be empty.
    """
    assert config.recorded_share is not None, "there is a share to split off"
    total, share = int(config.total_train_batch_size), float(config.recorded_share)
    recorded = round(total * share / num_shares) * num_shares
    if not 0 < recorded < total:
        raise ValueError(
            f"training(recorded_share={share}) gives {recorded} recorded rows of {total} in a train batch (rounded to "
            f"a multiple of the {num_shares} devices or learners), but a batch needs both recorded and sampled rows. "
            f"Raise train_batch_size_per_learner={config.train_batch_size_per_learner}, or leave recorded_share out."
        )
    return total - recorded, recorded


def _buffer_of(config: OffPolicyConfig, own: Mapping[str, Any]) -> Any:
    """Creates the empty buffer of `replay_buffer_config`. A user's class receives only the arguments that its
    constructor has.
    """
    buffer_class = config.replay_buffer_class
    parameters = inspect.signature(buffer_class).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        own = {p.name: own[p.name] for p in parameters if p.name in own}
    return buffer_class(**{**own, **config.replay_buffer_kwargs})


@dataclasses.dataclass(frozen=True)
class _ReplayMaker(abc.ABC):
    """Factory of replay buffers in one kind of memory (host or device).

    Attributes:
        facts, config, num_updates: See `make_replays`.
    """

    facts: Facts
    config: OffPolicyConfig
    num_updates: int

    def replays(self, forms: Mapping[str, DrawForm], numbers: Mapping[str, int]) -> dict[str, Replay]:
        """Creates the replay buffers, ``{module_id: replay}``, one for each module. A subclass may instead create one
        buffer that all modules share. For the arguments, see `make_replays`.
        """
        return {mid: self._replay_of_module(mid, what, numbers[mid]) for mid, what in forms.items()}

    def _replay_of_module(self, module_id: str, what: DrawForm, number: int) -> Replay:
        config, facts, start = self.config, self.facts, None
        if config.reads_recorded_data:
            start = RecordedStart(config, facts.spaces[module_id], facts.acting_modules.get(module_id), what)
        if config.recorded_share is None:
            return self._replay(module_id, what, number, start)
        assert start is not None, "checked by the config"
        num_sampled, num_recorded = split_batch(config, num_learner_shares(facts))
        replay = self._replay(module_id, what, num_sampled, None)
        source = self._recorded(module_id, Transitions(config.n_step, config.clip_rewards), num_recorded, start)
        return self._mixture(replay, source, num_sampled)

    def _num_frames(self, module_id: str) -> int:
        return self.facts.num_stacked_frames()[module_id]

    @abc.abstractmethod
    def _replay(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart | None) -> Replay:
        """Creates a replay buffer for sampled steps."""

    @abc.abstractmethod
    def _recorded(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart) -> Replay:
        """Creates a replay buffer that contains only recorded steps."""

    @abc.abstractmethod
    def _mixture(self, replay: Replay, source: Replay, num_sampled: int) -> Mixture:
        """Returns a `Mixture`, which draws train batches from two replay buffers: one of sampled steps and one of
        recorded steps.

        Args:
            replay, source: Replays of sampled and of recorded steps.
            num_sampled: Sampled rows of a train batch.
        """


class _OnHost(_ReplayMaker):
    """Creates replay buffers in the memory of this process."""

    def replays(self, forms: Mapping[str, DrawForm], numbers: Mapping[str, int]) -> dict[str, Replay]:
        if self.config.is_multi_agent:
            return {ALL_MODULES: self._replay_of_agents(forms, numbers)}
        return super().replays(forms, numbers)

    def _replay_of_agents(self, forms: Mapping[str, DrawForm], numbers: Mapping[str, int]) -> HostReplay:
        """Creates one multi-agent buffer that stores the steps of all modules."""
        facts = self.facts
        frames = facts.num_stacked_frames()

        def make_buffer(config: OffPolicyConfig) -> Any:
            own = {
                "spaces": {mid: facts.spaces[mid] for mid in forms},
                "num_agents": {mid: facts.module_map.num_slots[mid] for mid in forms},
                "num_frames": {mid: frames[mid] for mid in forms},
                "store_infos": False,
                "extra_columns": sorted({name for what in forms.values() for name in what.extra_columns}),
                "seed": derived_seed("replay", config.root_seed),
            }
            buffer: Any = _buffer_of(config, own)
            buffer.module_ids = list(forms)
            return buffer

        capacity, recorded = self.config.replay_capacity, self._recorded_columns()
        return HostReplay(self.config, forms, numbers, make_buffer=make_buffer, capacity=capacity, recorded=recorded)

    def _recorded_columns(self) -> dict[str, Any]:
        return {mid: step.columns for mid, step in self.facts.recorded.items()}

    def _replay(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart | None) -> HostReplay:
        def make_buffer(config: OffPolicyConfig) -> EpisodeReplayBuffer:
            # Losses see what the module puts out now, not what it did then.
            seed, contents = derived_seed("replay", config.root_seed), self._contents(module_id)
            buffer = _buffer_of(config, {**contents, "extra_columns": what.extra_columns, "seed": seed})
            buffer.observation_space, buffer.action_space = self.facts.spaces[module_id]
            return buffer

        forms, numbers, capacity = {module_id: what}, {module_id: batch_size}, self.config.replay_capacity
        return HostReplay(
            self.config,
            forms,
            numbers,
            make_buffer=make_buffer,
            capacity=capacity,
            start=start,
            recorded=self._recorded_columns(),
        )

    def _recorded(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart) -> RecordedRows:
        def make_buffer(config: OffPolicyConfig) -> EpisodeReplayBuffer:
            seed = derived_seed("recorded replay", config.root_seed)
            return EpisodeReplayBuffer(start.num_steps, **self._contents(module_id), extra_columns=(), seed=seed)

        forms, numbers, capacity = {module_id: what}, {module_id: batch_size}, start.num_steps
        return RecordedRows(self.config, forms, numbers, make_buffer=make_buffer, capacity=capacity, start=start)

    def _contents(self, module_id: str) -> dict[str, Any]:
        """Returns constructor arguments of a replay buffer, ``{argument name: value}``, that describe one module's
        steps: spaces, whether infos are stored, and the number of stacked frames.
        """
        observation_space, action_space = self.facts.spaces[module_id]
        return {
            "observation_space": observation_space,
            "action_space": action_space,
            "store_infos": False,
            "num_frames": self._num_frames(module_id),
        }

    def _mixture(self, replay: Replay, source: Replay, num_sampled: int) -> Mixture:
        return Mixture(replay, source, num_sampled, np)


class _OnDevice(_ReplayMaker):
    """Creates replay buffers on the learner's devices."""

    facts: DeviceFacts

    def _replay(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart | None) -> DeviceRing:
        config, num_devices = self.config, self.facts.learner.num_devices
        num_envs, capacity = int(config.num_envs_per_env_runner), config.replay_capacity
        _check_divides("train_batch_size_per_learner", config.total_train_batch_size, num_devices)
        _check_divides("replay_buffer_config={'capacity': ...}", capacity, num_devices)
        length = config.get_rollout_fragment_length()
        longest = max(length, config.max_n_step)
        if capacity < num_envs * longest:
            raise ValueError(
                f"training(replay_buffer_config={{'capacity': {capacity}}}) holds {capacity // num_envs} steps per "
                f"environment, but n_step={config.n_step!r} with rollout_fragment_length={length} needs {longest} "
                f"steps per environment. Raise the capacity to at least {num_envs * longest}, or lower "
                f"num_envs_per_env_runner={num_envs}."
            )
        # Every agent of an environment has a column of its own.
        num_columns = self.facts.module_map.num_slots[module_id]
        ring = what.ring(
            capacity=capacity // num_devices * num_columns,
            num_envs=num_envs // num_devices * num_columns,
            batch_size=batch_size // num_devices,
            alpha=config.replay_alpha if config.uses_priorities else None,
            num_frames=self._num_frames(module_id),
        )
        return DeviceRing(
            self.facts.learner,
            module_id,
            what,
            ring,
            self._recorded_shapes(module_id),
            num_agents=num_columns if config.is_multi_agent else None,
            num_draws=self.num_updates,
            beta=config.replay_beta,
            stream=f"{MODULE_STREAMS}{module_id}" if config.is_multi_agent else "replay",
            start=start,
        )

    def _recorded(self, module_id: str, what: DrawForm, batch_size: int, start: RecordedStart) -> RecordedRing:
        num_devices, steps = self.facts.learner.num_devices, start.num_steps
        # Columns of some hundred steps: a step at the end of a column is cut off from the next one.
        num_columns = max(1, min(8, steps // (256 * num_devices)))
        ring = what.ring(
            capacity=steps // (num_devices * num_columns) * num_columns,
            num_envs=num_columns,
            batch_size=batch_size // num_devices,
            num_frames=self._num_frames(module_id),
        )
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], num_columns, *x.shape[2:]), x.dtype),
            self._recorded_shapes(module_id),
        )
        return RecordedRing(
            self.facts.learner,
            module_id,
            what,
            ring,
            shapes,
            num_draws=self.num_updates,
            stream="recorded_replay",
            start=start,
            title="recorded steps",
            remedy=RECORDED_REMEDY,
        )

    def _recorded_shapes(self, module_id: str) -> dict[str, Any]:
        """Shapes (``[1, B, ...]``) and dtypes of a module's columns for one step of all environments on a device."""
        return dict(self.facts.recorded_shapes[module_id])

    def _mixture(self, replay: Replay, source: Replay, num_sampled: int) -> Mixture:
        # In the program each device draws its part.
        return Mixture(replay, source, num_sampled // self.facts.learner.num_devices, jnp)


def _check_divides(name: str, number: int, num_devices: int) -> None:
    if number % num_devices:
        raise ValueError(
            f"The value {number} of training({name}) must be a multiple of the learner's {num_devices} devices. Set it "
            f"to {-(-number // num_devices) * num_devices}, or use fewer devices."
        )
