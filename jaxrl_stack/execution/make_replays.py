"""Makes the replay of each module of a training step: on the host or on the devices, with recorded steps or without."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.execution.device_ring import DeviceRing
from jaxrl_stack.execution.host_replay import HostReplay
from jaxrl_stack.execution.mixture import Mixture, RecordedRing, RecordedRows
from jaxrl_stack.execution.recorded_start import RecordedStart
from jaxrl_stack.execution.sources import Replay, Source
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.replay.draw_forms import DrawForm, Transitions
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.execution.device_driver import DeviceDriver
    from jaxrl_stack.execution.local_driver import LocalDriver

RECORDED_REMEDY = (
    "Name less data, offline_data(input_=...), or let the replay buffer begin with it: recorded_share=None."
)


def num_learner_shares(driver: LocalDriver) -> int:
    """Learners, or devices of the learner in this process, that each get an equal part of a train batch."""
    return int(driver.config.num_learners) if driver.learner is None else driver.learner.num_devices


def make_replay(
    driver: LocalDriver, config: OffPolicyConfig, module_id: str, what: DrawForm, num_updates: int
) -> Replay:
    """The replay of a module.

    Args:
        driver: Whose it is.
        config: The algorithm's config.
        module_id: The module.
        what: The form of what is drawn.
        num_updates: Draws of one training step.

    Raises:
        ValueError: If memory cannot hold it, or sizes in the config do not fit each other.
    """
    make = _device_ring if driver.is_on_device else _host_replay
    start = None
    if config.reads_recorded_data:
        start = RecordedStart(config, driver.spaces[module_id], driver.acting_modules.get(module_id), what)
    num_shares = num_learner_shares(driver)
    if config.recorded_share is None:
        number = what.num_items(int(config.total_train_batch_size), num_shares)
        return make(driver, config, module_id, what, num_updates, number, start)
    assert start is not None, "checked by the config"
    num_sampled, num_recorded = split_batch(config, num_shares)
    replay = make(driver, config, module_id, what, num_updates, num_sampled, None)
    uniform = Transitions(config.n_step, config.clip_rewards)
    make_recorded = _recorded_ring if driver.is_on_device else _recorded_rows
    source = make_recorded(driver, config, module_id, uniform, num_updates, num_recorded, start)
    # In the program each device draws its part.
    own, xp = (num_sampled // num_shares, jnp) if driver.is_on_device else (num_sampled, np)
    return Mixture(replay, source, own, xp)


def split_batch(config: OffPolicyConfig, num_shares: int) -> tuple[int, int]:
    """``(sampled rows, recorded rows)`` of an update, each a multiple of the shares.

    Raises:
        ValueError: If one of them would be empty.
    """
    assert config.recorded_share is not None, "there is a share to split off"
    total, share = int(config.total_train_batch_size), float(config.recorded_share)
    recorded = round(total * share / num_shares) * num_shares
    if not 0 < recorded < total:
        raise ValueError(
            f"training(recorded_share={share}) of train_batch_size_per_learner={config.train_batch_size_per_learner} "
            f"rows is {recorded} rows of {total}, as many for each of {num_shares} devices: raise the batch size, or "
            f"leave recorded_share out."
        )
    return total - recorded, recorded


# ---------------------------------------------------------------------------------------------------------- on the host


def _host_replay(
    driver: LocalDriver,
    config: OffPolicyConfig,
    module_id: str,
    what: DrawForm,
    num_updates: int,
    batch_size: int,
    start: RecordedStart | None,
) -> HostReplay:
    spaces, num_frames = driver.spaces[module_id], driver.num_stacked_frames()[module_id]
    # Losses see what the module puts out now, not what it did then.
    make = functools.partial(_empty_buffer, spaces=spaces, extra_columns=what.extra_columns, num_frames=num_frames)
    return HostReplay(
        config, module_id, what, batch_size, make_buffer=make, capacity=config.replay_capacity, start=start
    )


def _empty_buffer(
    config: OffPolicyConfig, *, spaces: tuple[Any, Any], extra_columns: tuple[str, ...], num_frames: int
) -> EpisodeReplayBuffer:
    """A buffer of the class in `replay_buffer_config`, which may be the user's."""
    buffer_class = config.replay_buffer_class
    observation_space, action_space = spaces
    own = {
        "observation_space": observation_space,
        "action_space": action_space,
        "extra_columns": extra_columns,
        "store_infos": False,
        "num_frames": num_frames,
        "seed": derived_seed("replay", config.root_seed),
    }
    parameters = inspect.signature(buffer_class).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        own = {p.name: own[p.name] for p in parameters if p.name in own}
    buffer = buffer_class(**{**own, **config.replay_buffer_kwargs})
    buffer.observation_space, buffer.action_space = observation_space, action_space
    return buffer


def _recorded_rows(
    driver: LocalDriver,
    config: OffPolicyConfig,
    module_id: str,
    what: DrawForm,
    num_updates: int,
    batch_size: int,
    start: RecordedStart,
) -> Source:
    spaces, num_frames = driver.spaces[module_id], driver.num_stacked_frames()[module_id]

    def make(config: OffPolicyConfig) -> EpisodeReplayBuffer:
        return EpisodeReplayBuffer(
            start.num_steps,
            observation_space=spaces[0],
            action_space=spaces[1],
            extra_columns=(),
            store_infos=False,
            num_frames=num_frames,
            seed=derived_seed("recorded replay", config.root_seed),
        )

    return RecordedRows(config, module_id, what, batch_size, make_buffer=make, capacity=start.num_steps, start=start)


# -------------------------------------------------------------------------------------------------------- on the device


def _device_ring(
    driver: LocalDriver,
    config: OffPolicyConfig,
    module_id: str,
    what: DrawForm,
    num_updates: int,
    batch_size: int,
    start: RecordedStart | None,
) -> DeviceRing:
    own = cast("DeviceDriver", driver)
    num_devices, num_envs, capacity = (
        own.learner.num_devices,
        int(config.num_envs_per_env_runner),
        config.replay_capacity,
    )
    _check_divides("train_batch_size_per_learner", config.total_train_batch_size, num_devices)
    _check_divides("replay_buffer_config={'capacity': ...}", capacity, num_devices)
    length = config.get_rollout_fragment_length()
    longest = max(length, config.max_n_step)
    if capacity < num_envs * longest:
        raise ValueError(
            f"training(replay_buffer_config={{'capacity': {capacity}}}) holds {capacity // num_envs} steps "
            f"of each of num_envs_per_env_runner={num_envs} environments, and needs {longest} "
            f"(n_step={config.n_step!r}, rollout_fragment_length={length}). Raise the capacity to "
            f"at least {num_envs * longest}, or use fewer environments."
        )
    ring = what.ring(
        capacity=capacity // num_devices,
        num_envs=num_envs // num_devices,
        batch_size=batch_size // num_devices,
        alpha=config.replay_alpha if config.uses_priorities else None,
        num_frames=driver.num_stacked_frames()[module_id],
    )
    recorded = own.program.recorded[module_id]
    beta = config.replay_beta
    return DeviceRing(own.learner, module_id, what, ring, recorded, num_draws=num_updates, beta=beta, start=start)


def _recorded_ring(
    driver: LocalDriver,
    config: OffPolicyConfig,
    module_id: str,
    what: DrawForm,
    num_updates: int,
    batch_size: int,
    start: RecordedStart,
) -> Source:
    own = cast("DeviceDriver", driver)
    num_devices, steps = own.learner.num_devices, start.num_steps
    # Columns of some hundred steps: a step at the end of a column is cut off from the next one.
    num_columns = max(1, min(8, steps // (256 * num_devices)))
    ring: DeviceReplay = what.ring(
        capacity=steps // (num_devices * num_columns) * num_columns,
        num_envs=num_columns,
        batch_size=batch_size // num_devices,
        num_frames=driver.num_stacked_frames()[module_id],
    )
    return RecordedRing(
        own.learner,
        module_id,
        what,
        ring,
        _with_columns(own.program.recorded[module_id], num_columns),
        num_draws=num_updates,
        stream="recorded_replay",
        start=start,
        title="recorded steps",
        remedy=RECORDED_REMEDY,
    )


def _with_columns(recorded: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Shapes ``[T, B, ...]`` with another B."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], number, *x.shape[2:]), x.dtype), dict(recorded))


def _check_divides(name: str, number: int, num_devices: int) -> None:
    if number % num_devices:
        raise ValueError(
            f"training({name}) is {number}, which must divide by the {num_devices} devices of the learner: each "
            f"has an equal part. Use {-(-number // num_devices) * num_devices}, or fewer devices."
        )
