"""Training environments of a compiled program, distributed over the learner's devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.episode_window import (
    EpisodeWindow,
    last_episodes,
    num_agent_steps,
    num_episodes,
    redistributed,
    without_episodes,
)
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.connectors.states import per_env_leaves
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR
from jaxrl_stack.env.connector_states import with_statistics
from jaxrl_stack.env.multi_agent_contract import notice_unclaimed_rewards
from jaxrl_stack.utils import devices, streams
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.acting.device_rollout import DeviceRollout, RunnerState
    from jaxrl_stack.env.module_pipelines import ModulePipelines
    from jaxrl_stack.utils.devices import Device


ROLLOUT = "rollout"
"""Key of the environments' state in the state of an EnvRunner."""
ROLLOUT_OF_OTHER_MODULES = "rollout_of_other_modules"
"""Key of the environments' saved state if, in the run that saved it, other modules acted for the agents."""


class TrainingShards:
    """States of the training environments on all D devices, as one `RunnerState` with leaves ``[D, ...]``, which the
    training program takes and returns.

    Args:
        rollout: The static parts of sampling; None without environments, when the state is a PRNG key of each device.
        pipelines: Pipelines whose pure parts are in the rollout; empty without environments.
        num_envs: Number of environments on all devices together.
        of_devices: The learner's devices.

    Attributes:
        state: The current state of the environments.
        window: Statistics of the last finished episodes, on the host, after the last call of the training program; None
            before the first call.
        is_finite: Whether the returns and last observations of that call are finite; see `DeviceProgram`.
    """

    def __init__(
        self, rollout: DeviceRollout | None, pipelines: ModulePipelines, num_envs: int, of_devices: Sequence[Device]
    ):
        self._pipelines = pipelines
        self._rollout, self._num_envs, self._devices = rollout, num_envs, list(of_devices)
        self._num_devices = len(devices.joined_devices(self._devices))
        # One program for all devices' shards, on the host: vmapping over devices would trace the env once more.
        self._init = jax.jit(self._first)
        self.state: Any = None
        self.window: Any = None
        self.is_finite = True

    def _first(self, key: jax.Array) -> Any:
        """Creates the initial environment state of one device: the state after a reset of the device's environments.

        The leaves have the shape ``[1, ...]``. If the training program steps no environments, the state is only a PRNG
        key.
        """
        rollout = self._rollout
        first = key if rollout is None else rollout.init(key, self._num_envs // self._num_devices)
        return jax.tree.map(lambda x: x[None], first)

    def shapes(self) -> Any:
        """Returns shapes and dtypes of one device's environment state, without the device axis.

        JAX caches the trace of the function that creates this state, so that a later `start` call does not trace the
        function again.
        """
        shard = jax.eval_shape(self._init, stream_key(0, Stream.ROLLOUT))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shard)

    def start(self, seed: int) -> None:
        """Resets all training environments, with PRNG keys from `seed`."""
        key = stream_key(seed, Stream.ROLLOUT)
        shards = [self._init(jax.random.fold_in(key, d)) for d in devices.device_numbers(self._devices)]
        self.state, self.window = devices.place_shards(shards, self._devices), None

    def take_window(self, packed: Any) -> None:
        """Sets `window` and `is_finite` from the array `packed` that the training program returned.

        Unpacks the array (see `EpisodeWindow.packed`). `window` gets the statistics of the last finished episodes.
        `is_finite` becomes False if an episode return or a last observation is not finite or, with one agent, if a
        discrete value in a last observation is outside of its space; otherwise it becomes True. If the array is empty,
        nothing changes.
        """
        if self._rollout is not None and len(packed):
            self.window, self.is_finite, unclaimed = EpisodeWindow.unpacked(np.asarray(packed), self._rollout.agents)
            if unclaimed:
                notice_unclaimed_rewards(self._rollout.env.name, unclaimed)

    def connector_state(self) -> dict[str, Any]:
        """Returns the states of the first device's env-to-module connectors, ``{module id: state}``."""
        return jax.tree.map(lambda x: x[0], devices.host_view(self.state.env_to_module))

    @property
    def num_episodes(self) -> int:
        """Number of episodes that the training environments have finished so far."""
        return 0 if self.window is None else num_episodes(self.window)

    def episode_statistics(self, seconds_per_step: float) -> EndedEpisodes:
        """Returns statistics (return, length, duration) of the last finished episodes of the training environments.

        The statistics come from `window`, oldest episode first; the result is empty if `window` is None. The duration
        of an episode is its length times `seconds_per_step`.
        """
        if self.window is None:
            return EndedEpisodes.of(())
        returns, lengths, _, agents = last_episodes(self.window)
        return EndedEpisodes(returns, lengths, durations=lengths * seconds_per_step, agent_returns=agents)

    @property
    def num_agent_steps(self) -> dict[Any, int]:
        """Number of steps that each agent of the training environments has completed so far; {} with one agent."""
        return {} if self.window is None else num_agent_steps(self.window)

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps so far in each environment's unfinished episode, int ``[envs]``, for the environments on this
        process's devices; empty if the training program steps no environments.
        """
        if self._rollout is None:
            return np.zeros(0, int)
        return np.asarray(devices.own_shards(self.state.episodes.episode_length)).reshape(-1)

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the training environments on all devices, as a flat dict of named arrays for
        checkpoints.
        """
        return named_leaves(devices.all_shards(self.state))

    def place(self, state: RunnerState | jax.Array) -> None:
        """Replaces the environments' state: copies a state with leaves ``[D, ...]`` for ``D`` devices, from the host or
        from other devices, to the learner's devices.
        """
        self.state = devices.place_sharded(state, self._devices)
        self.window = None if self._rollout is None else devices.all_shards(self.state.window)

    def set_state(self, runner: dict[str, Any]) -> bool:
        """Restores the training environments from the saved state of an EnvRunner.

        Returns True if all environments now have saved states or new episodes. Returns False if the environments keep
        their current states; even then, PRNG keys or connector statistics may have been loaded.

        Raises:
            ValueError: The state belongs to another environment or other connectors.
        """
        rollout = self._rollout
        if rollout is None:
            if ROLLOUT in runner:
                self.place(_restored_keys(runner[ROLLOUT], self.state.dtype, self._num_devices))
            return False
        stored = _acting_modules(runner[ROLLOUT]) if rollout.agents and ROLLOUT in runner else set(rollout.modules)
        if stored != set(rollout.modules):
            notice_once(
                f"The checkpoint's run had the policies {sorted(stored)} for its agents, this run has "
                f"{sorted(rollout.modules)}: all environments start new episodes."
            )
            runner = {ROLLOUT_OF_OTHER_MODULES if name == ROLLOUT else name: own for name, own in runner.items()}
        if ROLLOUT_OF_OTHER_MODULES in runner:
            self._start_anew(runner)
            return True
        if ROLLOUT in runner:
            self.place(_restored(runner[ROLLOUT], rollout, self._num_devices, self._num_envs))
            return True
        if runner.get(COMPONENT_ENV_TO_MODULE_CONNECTOR):
            self._pipelines.set_env_to_module(runner[COMPONENT_ENV_TO_MODULE_CONNECTOR])
            state, is_history = devices.all_shards(self.state), per_env_leaves(rollout.init_connectors)
            connectors = with_statistics(state.env_to_module, self._pipelines.env_to_module_states, is_history)
            self.place(state.with_env_to_module(connectors))
        return False

    def _start_anew(self, runner: Mapping[str, Any]) -> None:
        """Starts new episodes in all environments, because the restored state has another mapping of agents to modules.

        Restores only the PRNG keys, the connectors' running statistics and the statistics of finished episodes.

        Args:
            runner: State of the checkpoint's EnvRunner. PRNG keys and statistics of the last finished episodes
                continue; connector statistics are loaded for modules that this run has. If its agents have
                other names, the agents of this run count as having taken no part in these episodes.
        """
        rollout, stored = self._rollout, runner[ROLLOUT_OF_OTHER_MODULES]
        assert rollout is not None
        present: RunnerState = devices.all_shards(self.state)
        kept = {"key": present.key, "window": present.window}
        named = {name: leaf for name, leaf in stored.items() if name.partition("/")[0] in kept}
        if _of_agents(named) == _of_agents(named_leaves(kept)):
            saved: Any = from_named_leaves(kept, named, "the environments")
        else:
            kept["window"] = dataclasses.replace(present.window, agents={})
            saved = from_named_leaves(kept, {n: named[n] for n in named.keys() - _of_agents(named)}, "the environments")
            agents = {agent: without_episodes(own) for agent, own in present.window.agents.items()}
            saved["window"] = dataclasses.replace(saved["window"], agents=agents)
        connectors = runner.get(COMPONENT_ENV_TO_MODULE_CONNECTOR) or {}
        self._pipelines.set_env_to_module({mid: own for mid, own in connectors.items() if mid in self._pipelines})
        states = self._pipelines.env_to_module_states
        given = {mid: states[mid] for mid in states if mid in connectors}
        init = jax.jit(lambda key: rollout.init(key, self._num_envs // self._num_devices, given))
        keys = [streams.named(key, "other modules") for key in saved["key"]]
        self.place(dataclasses.replace(_started(init, keys), **saved))


def _acting_modules(stored: Mapping[str, Any]) -> set[str]:
    """Returns the ids of the modules that acted in a saved run.

    The ids are part of the array names in the run's saved environment state: ``"modules/<module id>/..."``.
    """
    return {name.split("/")[1] for name in stored if name.startswith("modules/")}


def _of_agents(named: Mapping[str, Any]) -> set[str]:
    """Returns the names of the arrays in `named`, a saved environment state, that contain per-agent statistics of
    finished episodes.
    """
    return {name for name in named if name.startswith("window/agents/")}


def _restored_keys(stored: Mapping[str, Any], dtype: Any, num_devices: int) -> jax.Array:
    """Restores the PRNG keys, one per device, from the saved state of a run whose training program stepped no
    environments.

    Such a state contains only these keys. If this run has another number of devices, derives new keys from the first
    saved key.
    """
    saved_devices = np.shape(next(iter(stored.values()), ()))[:1]
    keys = from_named_leaves(jax.ShapeDtypeStruct(saved_devices, dtype), stored, "the random numbers")
    if saved_devices == (num_devices,):
        return keys
    return jax.random.split(jax.random.fold_in(keys[0], num_devices), num_devices)


def _restored(stored: Mapping[str, Any], rollout: DeviceRollout, num_devices: int, num_envs: int) -> RunnerState:
    """Converts the saved state of the training environments to `num_devices` devices, with `num_envs` environments in
    total.

    With the same numbers of devices and environments, the result equals the saved state bit for bit. With another
    number of devices, the environments are distributed in their order, and PRNG keys are derived from the saved ones.
    With another number of environments, all of them start new episodes; statistics of connectors and episodes stay.
    """
    lengths = stored.get("episodes/episode_length")
    if lengths is None or np.ndim(lengths) != 2:
        raise ValueError(
            "The training program of this run steps JAX environments, but the saved state contains no states of JAX "
            "environments. Load the saved state into an algorithm with the environment(...) of the run that saved it."
        )
    saved_devices, saved_each = np.shape(lengths)
    per_device = num_envs // num_devices
    if rollout.opponents is not None and (saved_devices, saved_each) != (num_devices, per_device):
        raise ValueError(
            "multi_agent(opponents=...) assigns snapshots to environments, so the numbers of devices and environments "
            f"must not change. The checkpoint has {saved_each} environments on each of {saved_devices} device(s), this "
            f"run has {per_device} on each of {num_devices}. Use num_envs_per_env_runner={saved_devices * saved_each} "
            f"and {saved_devices} device(s)."
        )
    window_size = np.shape(stored["window/returns"])[-1]
    saved_rollout = dataclasses.replace(rollout, window_size=window_size)
    shapes = _shapes(saved_rollout, saved_each, saved_devices)
    saved: RunnerState = from_named_leaves(shapes, stored, "the environments")
    is_same_layout = (saved_devices, saved_each) == (num_devices, per_device)
    if is_same_layout and window_size == rollout.window_size:
        return saved
    window = redistributed(jax.tree.map(np.asarray, saved.window), num_devices, rollout.window_size)
    if rollout.opponents is not None:
        return dataclasses.replace(saved, window=window)
    keys = saved.key
    if not is_same_layout:
        keys = jax.random.split(jax.random.fold_in(saved.key[0], num_devices), num_devices)
    if saved_devices * saved_each == num_envs:
        is_per_env = per_env_leaves(lambda n: rollout.init(jax.random.key(0), n))
        dealt = jax.tree.map(
            lambda leaf, is_per_env: _dealt_out(leaf, num_devices, is_per_env),
            *(dataclasses.replace(tree, window=None, key=None) for tree in (saved, is_per_env)),
        )
        return dataclasses.replace(dealt, window=window, key=keys)
    notice_once(
        f"The checkpoint has {saved_devices * saved_each} environments, this run has {num_envs}: all of them start "
        "new episodes. Statistics and everything that was learned are kept."
    )
    connectors = jax.tree.map(lambda leaf: leaf[0], saved.env_to_module)
    init = jax.jit(lambda key: rollout.init(key, per_device, connectors))
    started = _started(init, [streams.named(key, "other environments") for key in keys])
    return dataclasses.replace(started, window=window, key=keys)


def _started(init: Callable[[jax.Array], RunnerState], keys: Iterable[jax.Array]) -> RunnerState:
    """Starts new episodes in the environments of ``D`` devices. Returns a `RunnerState` in host memory, with leaves
    ``[D, ...]`` and without PRNG keys.

    Args:
        init: A device's state from its key.
        keys: One for each device.
    """
    shards = [jax.device_get(dataclasses.replace(init(key), key=None)) for key in keys]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *shards)


def _shapes(rollout: DeviceRollout, num_envs: int, num_devices: int) -> RunnerState:
    """Returns the shapes and dtypes of a `RunnerState` of all devices, with a leading device axis."""
    shapes = jax.eval_shape(lambda key: rollout.init(key, num_envs), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_devices, *leaf.shape), leaf.dtype), shapes)


def _dealt_out(leaf: Any, num_devices: int, is_per_env: bool) -> np.ndarray:
    if is_per_env:
        return np.reshape(leaf, (num_devices, -1, *np.shape(leaf)[2:]))
    # Merged over the devices after every rollout, so the same on all of them.
    return np.broadcast_to(leaf[0], (num_devices, *np.shape(leaf)[1:]))
