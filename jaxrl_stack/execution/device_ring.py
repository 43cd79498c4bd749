"""Replay buffers on devices: each device has a ring buffer of steps, stored in arrays of the compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.execution.training_step import Draws, Kept, TrainState
from jaxrl_stack.replay.device_replay import REMEDY, DeviceReplay
from jaxrl_stack.replay.draw_forms import DrawForm
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.devices import all_shards, map_over_devices, own_shards, place_sharded
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.execution.recorded_start import RecordedStart


NUM_MODULE_STEPS_STORED = "num_module_steps_stored"


class DeviceRing:
    """Replay buffers on all devices: one `DeviceReplay` with a ring buffer on each of D devices.

    Outside of the compiled program, leaves of the state have the shape ``[D, ...]``.

    Args:
        learner: Learner with the devices.
        module_id: Module whose steps it stores.
        what: Form of the drawn items.
        ring: Static part of the ring of each device.
        recorded: Shapes of the columns that the environments of a device record, ``[T, B, ...]``.
        num_agents: Number of the module's agents; the batch axis B has one row per agent and environment. None for
            single-agent environments.
        num_draws: Draws of one training step.
        beta: Exponent of importance weights.
        stream: Name of its random stream.
        start: Recorded steps that it starts with, or None.
        title: Name of its contents, for memory errors.
        remedy: Remedy for memory errors.

    Attributes:
        ring: See above.

    Raises:
        ValueError: If it does not fit on the devices.
    """

    def __init__(
        self,
        learner: Learner,
        module_id: str,
        what: DrawForm,
        ring: DeviceReplay,
        recorded: Mapping[str, Any],
        *,
        num_agents: int | None = None,
        num_draws: int,
        beta: float = 0.0,
        stream: str = "replay",
        start: RecordedStart | None = None,
        title: str = "replay buffer",
        remedy: str = REMEDY,
    ):
        self._learner, self._module_id, self._what, self.ring = learner, module_id, what, ring
        self._recorded, self._beta, self._stream, self._start = recorded, beta, stream, start
        self.writes = what.writes
        self._num_agents = num_agents
        self.capacity = ring.num_rows * ring.num_envs * learner.num_devices // (num_agents or 1)
        self.draws = {stream: Draws(num_draws, ring.random_numbers, ring.num_random_numbers)}
        self.estimate = ring.memory_estimate(recorded).part(title, learner.num_devices, 1)
        require_device_memory(learner.devices, self.estimate, remedy)

        def added(kept: Any, columns: dict[str, Any]) -> tuple[Any]:
            return (self.add(kept, Experience.of_steps({module_id: columns})),)

        # Made where it stays: a copy of it on the way there may not fit.
        self._make = self._over_devices(lambda _: (ring.init(recorded),))
        self._add = self._over_devices(added, in_axes=(0, 0), donate_argnums=(0,))
        self._cut = self._over_devices(lambda kept: (ring.cut(kept),), donate_argnums=(0,))

    def _over_devices(
        self, function: Callable[..., Any], in_axes: tuple[int, ...] = (0,), donate_argnums: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        """Returns a function that runs `function` on each of the learner's devices (see `map_over_devices`). `function`
        must return a tuple with one element, because ``out_axes=(0,)`` has one entry.
        """
        learner = self._learner
        return map_over_devices(
            function,
            devices=learner.devices,
            axis_name=learner.axis_name,
            in_axes=in_axes,
            out_axes=(0,),
            donate_argnums=donate_argnums,
        )

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Does nothing when hyperparameters change: the compiled program receives the values of all hyperparameters
        that can change (traced settings) as arguments.
        """

    reset = change_settings

    # ---------------------------------------------------------------------------------------------------------- filling

    def init(self) -> Any:
        """Creates the replay buffers: empty, or filled with recorded steps. Episodes that are sampled later do not
        continue the recorded ones.
        """
        return self.filled() if self._start is None else self.cut(self.filled())

    def filled(self) -> Any:
        """Creates the ring buffers, and fills them with the recorded steps that the constructor received as `start`. If
        `start` is None, the ring buffers stay empty.
        """
        devices, num_devices = self._learner.devices, self._learner.num_devices
        (kept,) = self._make(np.zeros(len(devices), np.float32))
        if self._start is None:
            return kept
        like = {**self._recorded, Columns.FINAL_OBS: self._recorded[Columns.OBS]}
        for block in self._start.blocks(self.ring.num_envs * self._learner.num_devices, self.capacity):
            own = {
                name: jax.tree.map(lambda x, of: np.asarray(x, of.dtype), column, like[name])
                for name, column in block.items()
            }
            # Each device has its columns.
            shares = jax.tree.map(lambda x: np.stack(np.split(x, num_devices, axis=1)), own)
            (kept,) = self._add(kept, place_sharded(shares, devices))
        return kept

    def add(self, kept: Any, experience: Experience) -> Any:
        return self.ring.add(kept, experience.modules[self._module_id])

    def cut(self, kept: Any) -> Any:
        return self._cut(kept)[0]

    # ---------------------------------------------------------------------------------------------------------- drawing

    def can_draw(self, kept: Any) -> bool:
        """Returns True: every call of the program samples first, so the ring buffers contain steps when a batch is
        drawn.
        """
        return True

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, dict[str, Drawn]]:
        state, numbers = place.draw(state, self._stream)
        kept, columns, drawn = self._what.draw_from_ring(
            self.ring,
            kept,
            numbers,
            gamma=lambda: place.values(state)[self._module_id]["gamma"],
            beta=self._beta,
            axis_name=place.axis_name,
        )
        if kept.is_masked:
            # Where no agent of the module has a step yet, nothing is learned from what is drawn.
            can_draw = jnp.broadcast_to(self.ring.can_draw(kept), (self.ring.batch_size,))
            columns = {Columns.LOSS_MASK: can_draw, **columns}
        return kept, state, {self._module_id: Drawn(columns, drawn)}

    def write_back(self, kept: Any, drawn: Mapping[str, Drawn], logged: Mapping[str, Mapping[str, Any]]) -> Any:
        mid = self._module_id
        return self._what.write_to_ring(self.ring, kept, drawn[mid].items, logged[mid]) if mid in logged else kept

    def look_at(self, kept: Any, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        """Draws `number` items (transitions or sequences) from the ring buffer of this process's first device, without
        changing the buffer; returns columns ``[number, ...]``. See `Replay.look_at`.
        """
        ring = dataclasses.replace(self.ring, batch_size=number)

        def draw(kept: Any) -> tuple[dict[str, Any]]:
            key = jax.random.key(seed)
            return (what.draw_from_ring(ring, kept, key, gamma=lambda: 1.0, beta=0.0, axis_name=None)[1],)

        return jax.tree.map(lambda x: own_shards(x)[0], self._over_devices(draw)(kept)[0])

    # ---------------------------------------------------------------------------------------------------------- results

    def not_finite(self, kept: Any) -> dict[str, dict[str, np.ndarray]]:
        """Returns masks of the stored steps, True for steps that contain NaN or infinity.

        The masks are ``{module_id: {column: bool [D * B, L]}}``, newest step last. Each of the D devices of this
        process has a ring buffer with L steps for each of B environments. With several agents, B is the number of pairs
        of an environment and an agent. `DeviceReplay.not_finite` documents which columns are checked.
        """
        find = self._over_devices(lambda kept: (self.ring.not_finite(kept),))
        found = {name: own_shards(x).reshape(-1, x.shape[-1]) for name, x in find(kept)[0].items()}
        return {self._module_id: found} if found else {}

    def component(self, kept: Kept) -> RingContents:
        return RingContents(self, kept, self._learner)

    def results(self, kept: Any, num_env_steps: int) -> dict[str, Any]:
        sizes = all_shards(kept.size)
        # With masks each column has a size of its own.
        num_steps = int(sizes.sum()) if kept.is_masked else int(sizes.sum()) * self.ring.num_envs
        if self._num_agents is None:
            return {
                names.NUM_ENV_STEPS_STORED: num_steps,
                names.NUM_ENV_STEPS_ADDED_LIFETIME: num_env_steps,
                "capacity": self.capacity,
            }
        return {
            names.NUM_ENV_STEPS_STORED: min(num_env_steps, self.capacity),
            names.NUM_ENV_STEPS_ADDED_LIFETIME: num_env_steps,
            NUM_MODULE_STEPS_STORED: {self._module_id: num_steps},
            "capacity": self.capacity,
        }

    def get_state(self, kept: Any) -> dict[str, Any]:
        """Returns {}, because the PRNG key for drawing batches is part of the driver's state."""
        return {}

    def set_state(self, kept: Any, state: Mapping[str, Any]) -> Any:
        return kept


class RingContents(Checkpointable):
    """Contents of the ring buffers (replay buffers) of all devices, as an object that users and checkpoints access:
    saves, restores and empties the ring buffers.

    Args:
        replay: Replay of the rings.
        kept: Owner of the rings' arrays.
        learner: Learner with the devices.
    """

    def __init__(self, replay: DeviceRing, kept: Kept, learner: Learner):
        self._replay, self._kept, self._learner = replay, kept, learner

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the arrays of the ring buffers of all D devices, ``{array name: [D, ...]}``."""
        return named_leaves(all_shards(self._kept.value))

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the contents of the ring buffers from a state that `get_state` returned; does nothing for an empty
        state.

        The present rings are freed before the new ones are created, as both may not fit. If creation fails, the rings
        are empty.

        Raises:
            ValueError: If it has another capacity, other environments, or another number of devices. Nothing has
                changed then.
        """
        if state:
            self.take(self.checked(state))

    def checked(self, state: Mapping[str, Any]) -> Any:
        """Converts a saved state of the ring buffers to host arrays.

        Checks that the number of devices, the shapes and the dtypes are the same as in the present ring buffers.

        Raises:
            ValueError: See `set_state`.
        """
        num_devices = self._learner.num_devices
        saved = next((np.shape(leaf)[0] for leaf in state.values() if np.ndim(leaf)), num_devices)
        if saved != num_devices:
            raise ValueError(
                f"The replay buffer was saved on {saved} devices and cannot be restored on {num_devices}. Use {saved} "
                f"devices, or save checkpoints without the buffer: training(store_buffer_in_checkpoints=False)."
            )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_devices, *x.shape[1:]), x.dtype), self._kept.value)
        return from_named_leaves(shapes, state, "the replay buffer")

    def take(self, restored: Any) -> None:
        """Replaces the contents of the ring buffers on the devices with `restored`, the host arrays that `checked`
        returned for a saved state.
        """

        def placed() -> Any:
            self._kept.value = None
            return place_sharded(restored, self._learner.devices)

        self._kept.replace(placed, self._replay.init)

    def clear(self) -> bool:
        """Empties the replay buffers; returns True if they contained steps."""
        had_steps = bool(np.any(all_shards(self._kept.value.size)))
        self._kept.start(self._replay.init)
        return had_steps

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # `set_state` checks all before it changes anything, and a copy is as large as what is restored.
        return {}


class RingsOfModules(Checkpointable):
    """Contents of the ring buffers (replay buffers) of several modules, as an object that users and checkpoints access:
    saves and restores the ring buffers.

    Args:
        of_modules: ``{module_id: contents}``.
    """

    def __init__(self, of_modules: Mapping[str, RingContents]):
        self._of_modules = dict(of_modules)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the states of the ring buffers, ``{module_id: state}``."""
        return {module_id: own.get_state() for module_id, own in self._of_modules.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the modules' ring buffers from a state that `get_state` returned; does nothing for an empty state.

        If the state lacks a module, the module's buffer is emptied, because the episodes in it do not continue. Entries
        of other modules in the state are ignored.

        Raises:
            ValueError: If it has none of the modules, or the state of a module does not fit (`RingContents.set_state`).
                Nothing has changed then.
        """
        own = self._of_modules
        if not state:
            return
        if not own.keys() & state.keys():
            raise ValueError(
                f"The saved replay buffer has steps of the modules {sorted(state)[:5]}, but this algorithm has the "
                f"modules {sorted(own)}. Restore the state in an algorithm that has one of the saved modules, or save "
                f"the state without the buffer: get_state(not_components='replay_buffer')."
            )
        restored = {module_id: of.checked(state[module_id]) for module_id, of in own.items() if module_id in state}
        for module_id, rings in restored.items():
            own[module_id].take(rings)
        lost = [module_id for module_id, of in own.items() if module_id not in restored and of.clear()]
        if lost:
            notice_once(f"The restored state has no replay of the modules {lost}. Their replay starts empty.")

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # As of `RingContents`.
        return {}
