"""The environments that a training program steps, spread over the learner's devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.episode_window import EpisodeWindow, last_episodes, num_episodes
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR
from jaxrl_stack.env.runner_layout import restored_runner_state, with_connector_states
from jaxrl_stack.utils import devices
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.acting.device_rollout import DeviceRollout, RunnerState
    from jaxrl_stack.utils.devices import Device


class TrainingShards:
    """A `RunnerState` with leaves ``[D, ...]``, which a program takes and returns.

    Args:
        rollout: The static parts of sampling; None without environments, when the state is a PRNG key of each device.
        num_envs: Environments over all devices.
        of_devices: The learner's.

    Attributes:
        state: The state.
        window: Its finished episodes, on the host, as of the last call of the program; None before the first one.
    """

    def __init__(self, rollout: DeviceRollout | None, num_envs: int, of_devices: Sequence[Device]):
        self._rollout, self._num_envs, self._devices = rollout, num_envs, list(of_devices)
        # One program for all devices' shards, on the host: vmapping over devices would trace the env once more.
        first = (
            _first_key
            if rollout is None
            else functools.partial(_first_shard, rollout, num_envs // len(devices.joined_devices(self._devices)))
        )
        self._init = jax.jit(first)
        self.state: Any = None
        self.window: Any = None

    def start(self, seed: int) -> None:
        """Fresh environments."""
        key = stream_key(seed, Stream.ROLLOUT)
        shards = [self._init(jax.random.fold_in(key, d)) for d in devices.device_numbers(self._devices)]
        self.state, self.window = devices.place_shards(shards, self._devices), None

    def take_window(self, packed: Any) -> None:
        """Take note of what the program returned of the window; of none, nothing."""
        if len(packed):
            self.window = EpisodeWindow.unpacked(np.asarray(packed))

    def connector_state(self) -> Any:
        """State of the env-to-module pipeline as of the first device."""
        return jax.tree.map(lambda x: x[0], devices.host_view(self.state.env_to_module))

    @property
    def num_episodes(self) -> int:
        """Lifetime finished episodes."""
        return 0 if self.window is None else num_episodes(self.window)

    def episode_statistics(self, seconds_per_step: float) -> EndedEpisodes:
        """The last finished episodes, oldest first."""
        if self.window is None:
            return EndedEpisodes.of(())
        returns, lengths = last_episodes(self.window)
        return EndedEpisodes(returns, lengths, durations=lengths * seconds_per_step)

    @property
    def lengths(self) -> np.ndarray:
        """int ``[envs]``, steps of the running episodes of this process."""
        if self._rollout is None:
            return np.zeros(0, int)
        return np.asarray(devices.own_shards(self.state.episodes.episode_length)).reshape(-1)

    def get_state(self) -> dict[str, Any]:
        """All of it, as named leaves."""
        return named_leaves(devices.all_shards(self.state))

    def place(self, state: RunnerState) -> None:
        """Take over a state ``[D, ...]`` of the host, or a copy of this one."""
        self.state = devices.place_sharded(state, self._devices)
        self.window = None if self._rollout is None else devices.all_shards(self.state.window)

    def set_state(self, runner: dict[str, Any]) -> bool:
        """Take over what there is of it in the state of an EnvRunner; whether that were the environments themselves.

        Raises:
            ValueError: If it is of another environment or other connectors.
        """
        rollout = self._rollout
        if rollout is None:
            if "rollout" in runner:
                self.place(from_named_leaves(self.state, runner["rollout"], "the random numbers"))
            return False
        if "rollout" in runner:
            restored = restored_runner_state(
                runner["rollout"],
                rollout,
                num_devices=len(devices.joined_devices(self._devices)),
                num_envs=self._num_envs,
                fresh=lambda *arguments: jax.device_get(rollout.init(*arguments)),
            )
            self.place(restored)
            return True
        if runner.get(COMPONENT_ENV_TO_MODULE_CONNECTOR):
            pipeline = rollout.env_to_module
            pipeline.set_state(runner[COMPONENT_ENV_TO_MODULE_CONNECTOR])
            self.place(with_connector_states(devices.all_shards(self.state), rollout, pipeline.state))
        return False


def _first_key(key: jax.Array) -> jax.Array:
    return key[None]


def _first_shard(rollout: DeviceRollout, num_envs: int, key: jax.Array) -> RunnerState:
    """Freshly reset environments as one device's slice ``[1, ...]``."""
    return jax.tree.map(lambda x: x[None], rollout.init(key, num_envs))
