"""Driver of a population: trains its members in one compiled program, distributed over devices."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.episode_window import EpisodeWindow
from jaxrl_stack.core.learner.traced_metrics import nest_metrics_of_members
from jaxrl_stack.execution.member_moves import Layout, MemberMoves
from jaxrl_stack.execution.member_statistics import num_episodes_of_members
from jaxrl_stack.execution.population_program import MemberStates, PopulationProgram
from jaxrl_stack.utils import counters, devices
from jaxrl_stack.utils.fingerprints import fingerprints_of_members
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.members import map_members, member_axes, split_fixed, stacked, with_fixed
from jaxrl_stack.utils.memory import TooManyError, available_memory, bytes_of_shapes, format_bytes
from jaxrl_stack.utils.named_leaves import from_named_leaves, is_key, named_leaves
from jaxrl_stack.utils.results import merge_nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_state import LearnerState
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.execution.device_driver import DeviceDriver
    from jaxrl_stack.execution.plans import Plan

CPU_MEMBERS = 16
"""Members that a CPU device trains at once: their arrays stay in its cache. An accelerator trains all at once."""
CPU_SHRINKAGE, SHRINKAGE = 4, 16
"""Ratio of a block size to the next smaller one on CPUs and on accelerators. Each size is a program to compile; on an
accelerator, padding costs little."""


class MemberStart(NamedTuple):
    """Initial values of one member of a population: config and environment parameters.

    Attributes:
        config: Config of the member, which differs from the template's in seed and traced settings only.
        env_params: Leaves of ``env.params`` in which members differ, by name; the same names for all.
    """

    config: AlgorithmConfig
    env_params: Mapping[str, Any]


class PopulationDriver:
    """Trains M members of a population (seeds and settings of one config) by calls of one compiled program.

    One call trains a *block*: V members on each of D devices. All blocks have the same size, so one program serves
    them; the last block is padded with copies of the last member, which are not reported. Slots are arranged by
    `Layout`; slot ``k`` has member ``running[k]``, at first member ``k``.

    Args:
        template: Built, untrained driver of one member on one device, with all fixed parts and initial states.
        starts: Initial values of the members.
        on: Devices for the members.
        at_once: Maximum of V; None for the number that fits the platform's caches.

    Attributes:
        template: The template. Its state belongs to no member.
        devices: Devices of the members.
        axes: Leaves of the members' states that differ between members.
        blocks: States of the running members, block by block.
        layout: Layout of the blocks; `keep` may choose another one.
        num_members: M.
        running: int64 ``[R]``, the members that `keep` has not stopped, in the order of their slots.
        num_env_steps: Env steps that each running member has sampled.
        num_env_steps_of_all: Env steps that all members together have sampled, with those of stopped members.
        num_updates: Updates that each running member has made.
        is_live: bool ``[M]``, False for diverged and stopped members.
        device_seconds: Time of the calls since the last reset to 0.
        compile_seconds: Seconds that other processes have spent compiling, 0.
        lacks_env_runners: Whether all EnvRunners are actors that are being restarted; False, as members have no actors.
        num_agent_steps: Steps of each of several agents; None, as members have one agent.
        num_opponent_steps: Steps of snapshots; 0, as members have none.
        num_env_steps_lost: Steps that no update has read; 0, as members have no actors.
        metrics: ``{module_id: {name: float64[M]}}`` of the last update, NaN for stopped members; {} before the first.
        window: Finished episodes of all members, fields ``[M, ...]``; None before the first call and without
            environments.
    """

    kind = "population"
    compile_seconds = 0.0
    lacks_env_runners = False
    num_agent_steps = None
    num_opponent_steps = 0
    num_env_steps_lost = 0

    def __init__(
        self,
        template: DeviceDriver,
        starts: Sequence[MemberStart],
        on: Sequence[devices.Device],
        at_once: int | None = None,
    ):
        self.template = template
        self.num_members = len(starts)
        # Fewer members than devices: the others would train copies.
        self.devices = list(on)[: self.num_members]
        num_devices = len(self.devices)
        each = -(-self.num_members // num_devices)
        if at_once is None:
            at_once = CPU_MEMBERS if self.devices[0].platform == "cpu" else each
        num_blocks = -(-each // at_once)
        self.layout = self._largest = Layout(tuple(self.devices), -(-each // num_blocks))
        self._moves: dict[Layout, MemberMoves] = {}
        self.room = -(-self.num_members // self.layout.block_size) * self.layout.block_size
        self.axes = self._member_axes(starts[0])
        # `results` writes shared leaves of trained members to the template.
        self._first_kept = template.kept
        self._program = PopulationProgram(
            program=template.program,
            axes=self.axes,
            loss_key=template.learner.TOTAL_LOSS_KEY,
            env_may_return_nan=template.config.check_nans is False,
        )
        self._call = devices.map_over_devices(
            self._program,
            self.devices,
            axis_name=template.learner.axis_name,
            in_axes=(0, None, None),
            out_axes=(0, None, 0),
            donate_argnums=(0, 1),
        )
        self._require_memory()
        self._start(starts)

    # -------------------------------------------------------------------------------------------------------- building

    def _member_axes(self, start: MemberStart) -> MemberStates:
        learner, shards = self.template.learner, self.template.shards
        runner = jax.tree.map(lambda _: 0, shards.state)
        settings = jax.tree.map(lambda _: 0, learner.settings())
        env_params = dict.fromkeys(start.env_params, 0)
        return MemberStates(_learner_axes(learner), runner, member_axes(self.template.kept), settings, env_params, 0)

    def memory_estimate(self) -> dict[str, int]:
        """Estimates the bytes that training the population takes on all devices, before members are created.

        Returns:
            "member": states of one member; "members": states of all; "at_once": rollouts and batches of members that
            are trained at the same time, twice, for the copies of an update, plus data that all members share.
        """
        template = self.template
        kept, fixed = split_fixed(template.kept)
        parts = (template.learner.state, template.shards.shapes(), kept)
        member = sum(_num_bytes(part) for part in parts)
        recorded = template.rollout_memory.num_bytes + template.train_batch_memory.num_bytes
        at_once = self._largest.block_size * 2 * recorded + len(self.devices) * _num_bytes(fixed)
        return {"member": member, "members": self.room * member, "at_once": at_once}

    def _require_memory(self) -> None:
        """Raises ValueError if the members need more memory than the devices have free.

        Raises:
            TooManyError: With the number of members that fit.
        """
        needed, num_devices = self.memory_estimate(), len(self.devices)
        free = [available_memory(device) for device in self.devices]
        if None in free:
            return
        # CPU devices share the memory of the host; each accelerator has its own.
        is_shared = self.devices[0].platform == "cpu"
        limit = min(size for size in free if size is not None) * (1 if is_shared else num_devices)
        if needed["members"] + needed["at_once"] <= limit:
            return
        fitting = max(0, (limit - needed["at_once"]) // needed["member"])
        sizes = {name: format_bytes(size) for name, size in needed.items()}
        raise TooManyError(
            f"A population of {self.num_members} members needs {sizes['members']} of memory ({sizes['member']} each) "
            f"and another {sizes['at_once']} while it trains, but {format_bytes(limit)} are free. Use at most "
            f"{fitting} members, lower the capacity of replay_buffer_config, or call run_seeds() or run_sweep(), "
            "which train as many members at a time as fit into memory.",
            num_fitting=fitting,
        )

    def restart(self, starts: Sequence[MemberStart]) -> None:
        """Replaces all members of the population by new members, without recompiling.

        `starts` has one entry (config and environment parameters) for each new member. The maximum number of entries is
        `room`: the initial number of members, rounded up to a multiple of the block size (number of members that one
        call of the program trains).
        """
        assert len(starts) <= self.room
        self.num_members = len(starts)
        self._start(starts)

    @property
    def num_running(self) -> int:
        """Number of running members, R. A running member is a member that `keep` has not stopped."""
        return len(self.running)

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_running // self.layout.block_size)

    @property
    def _members_of_slots(self) -> np.ndarray:
        """Index of the population member in each slot (row of the stacked states), int64.

        Slots without a member contain copies of the last running member, and have that member's index.
        """
        num_slots = self._num_blocks * self.layout.block_size
        return self.running[np.minimum(np.arange(num_slots), self.num_running - 1)]

    def _start(self, starts: Sequence[MemberStart]) -> None:
        """Creates new members from their configs and environment parameters, and resets the population's counters."""
        self.layout, self.running = self._largest, np.arange(self.num_members)
        self.blocks: list[MemberStates] = []
        self._timesteps: list[Any] = []
        kept, fixed = split_fixed(self._first_kept)
        # There is one on each device, for all blocks.
        self._fixed = devices.place_shards([devices.all_shards(fixed)] * len(self.devices), self.devices)
        filled, size = [starts[member] for member in self._members_of_slots], self.layout.block_size
        begun: tuple[MemberStart, MemberStates] | None = None
        for block in range(self._num_blocks):
            states = []
            for start in filled[block * size : (block + 1) * size]:
                if begun is None or begun[0] is not start:
                    begun = (start, self._begun(start))
                states.append(begun[1])
            axes = dataclasses.replace(self.axes, kept=None)
            placed = self._placed(stacked(axes, states), axes)
            seeds = [start.config.root_seed for start in filled[block * size :][:size]]
            self.blocks.append(dataclasses.replace(placed, kept=self._kept_of_seeds(self._kept_of_all(kept), seeds)))
            self._timesteps.append(devices.place_replicated(counters.zero(), self.devices))
        self.num_env_steps = self.num_updates = self._steps_of_stopped = 0
        self.is_live = np.ones(self.num_members, bool)
        self.device_seconds = 0.0
        self.metrics: dict[str, Any] = {}
        self.window: EpisodeWindow | None = None
        if self.template.program.rollout is None:
            # Nobody acts, so no episode ever ends.
            nothing = EpisodeWindow.empty(1)
            self.window = jax.tree.map(lambda x: np.stack([np.asarray(x)] * self.num_members), nothing)

    def _begun(self, start: MemberStart) -> MemberStates:
        """Returns the initial state of a new population member as host arrays.

        Weights, optimizer and environment states are the same as in a run of one algorithm with the member's config.
        The replay buffer (`MemberStates.kept`) is None; `_kept_of_all` creates it on the devices.

        Raises:
            ValueError: If the modules cannot be built from the seed.
        """
        template, config = self.template, start.config
        if not template.learner.reset(config):
            raise ValueError(
                "A population builds each member's modules from the member's seed, but this config has a module "
                "that is built already or was changed. Use rl_module(rl_module_spec=RLModuleSpec(...))."
            )
        template.shards.start(config.root_seed)
        learner = devices.host_view(template.learner.state)
        runner = jax.tree.map(lambda x: x[0], devices.all_shards(template.shards.state))
        settings = template.learner.settings()
        return MemberStates(learner, runner, None, settings, dict(start.env_params), np.True_)

    def _placed(self, block: MemberStates, axes: MemberStates) -> MemberStates:
        """Moves the states of a block (members trained by one call of the program) from the host to the devices.

        Leaves ``[D * V, ...]`` become ``[D, V, ...]``, for D devices with V members on each. Leaves that the members
        share, according to `axes`, are copied to each device.
        """
        num_devices = len(self.devices)

        def own(x: Any) -> Any:
            return x.reshape(num_devices, self.layout.at_once, *x.shape[1:])

        def shared(x: Any) -> Any:
            return np.broadcast_to(np.asarray(x), (num_devices, *np.shape(x)))

        return devices.place_sharded(map_members(own, axes, block, shared=shared), self.devices)

    def _kept_of_all(self, kept: Any) -> Any:
        """Copies one member's replay buffer to all members of a block (members trained by one call of the program).

        The copies are made on the devices, because they may not fit on the host.
        """
        if not jax.tree.leaves(kept):
            return kept
        first = devices.all_shards(kept)

        def copies(_: Any) -> tuple[Any, ...]:
            of_one = jax.tree.map(lambda x: jax.numpy.asarray(x[0]), first)
            repeated = lambda x: jax.numpy.broadcast_to(x, (self.layout.at_once, *x.shape))  # noqa: E731
            return (map_members(repeated, self.axes.kept, of_one),)

        make = devices.map_over_devices(
            copies,
            self.devices,
            axis_name=self.template.learner.axis_name,
            in_axes=(0,),
            out_axes=(0,),
            donate_argnums=(),
        )
        return make(np.zeros(len(self.devices), np.float32))[0]

    def _kept_of_seeds(self, kept: Any, seeds: Sequence[int]) -> Any:
        """Sets the fields of the members' stored data (replay buffer or data set) that depend on a member's seed.

        Such a field contains, for example, the keys of the shuffle order. Returns the changed data.
        """
        of_members = [self.template.step.kept_of_seed(seed) for seed in seeds]
        if not of_members[0]:
            return kept
        own = jax.tree.map(
            lambda *xs: np.stack(xs).reshape(len(self.devices), self.layout.at_once, *xs[0].shape), *of_members
        )
        return dataclasses.replace(kept, **devices.place_sharded(own, self.devices))

    # -------------------------------------------------------------------------------------------------------- training

    @property
    def num_env_steps_of_all(self) -> int:
        """Total number of env steps sampled by all members, including stopped ones."""
        return self.num_env_steps * self.num_running + self._steps_of_stopped

    @property
    def num_training_steps_per_call(self) -> int:
        """Number of training steps of each member in one call of the program."""
        return self.template.num_training_steps_per_call

    @property
    def plan(self) -> Plan:
        """Sizes of samples, updates and stored data of a training step, common to all members."""
        return self.template.plan

    @property
    def module_map(self) -> ModuleMap:
        """Mapping from agents to modules (policies), equal in all members."""
        return self.template.module_map

    @property
    def num_env_steps_trained(self) -> int:
        """Number of env steps that the updates of one running member have used since the start; the same number for all
        running members.
        """
        driver: Any = self  # has the counts that steps read
        return self.template.step.num_env_steps_trained(driver)

    @property
    def num_episodes(self) -> np.ndarray:
        """Number of finished episodes of each of the M members, int64 ``[M]``."""
        return np.zeros(self.num_members, np.int64) if self.window is None else num_episodes_of_members(self.window)

    def training_step(self) -> None:
        """Runs the compiled program once for every block (members that train together), and stores metrics and episode
        statistics in attributes.
        """
        started, template = time.perf_counter(), self.template
        num_warm_up = template.num_warm_up_steps(self.num_env_steps)
        num_calls = template.num_training_steps_per_call
        with deferred_interrupt():
            handed_out = []
            for i in range(self._num_blocks):
                block = dataclasses.replace(self.blocks[i], kept=with_fixed(self.blocks[i].kept, self._fixed))
                block, self._timesteps[i], of_block = self._call(block, self._timesteps[i], num_warm_up)
                kept, self._fixed = split_fixed(block.kept)
                self.blocks[i] = dataclasses.replace(block, kept=kept)
                handed_out.append(of_block)
            # Reading them waits, for all blocks: on an accelerator the next one runs while the first is read.
            bits = self._of_running([of_block.bits for of_block in handed_out])
            metrics, windows, is_live, self.num_updates = handed_out[0].read(bits)
            self.is_live = self.of_all(is_live, False)
            self.num_env_steps += num_calls * template.plan.num_env_steps
            if template.program.rollout is not None:
                self._note_window(EpisodeWindow.unpacked(windows).window)
            if metrics and (num_warm_up is None or num_warm_up < num_calls):
                nested = nest_metrics_of_members(metrics)
                self.metrics = jax.tree.map(lambda values: self.of_all(values, np.nan), nested)
        self.device_seconds += time.perf_counter() - started

    def _note_window(self, window: Any) -> None:
        """Stores the statistics of the last episodes of the R running members, fields ``[R, ...]``; stopped members
        retain their last values.
        """
        if self.num_running == self.num_members:
            self.window = window
        elif self.window is None:
            self.window = jax.tree.map(lambda own: self.of_all(own, 0), window)
        else:
            self.window = jax.tree.map(self._with_running, self.window, window)

    def _with_running(self, of_all: np.ndarray, of_running: np.ndarray) -> np.ndarray:
        changed = np.array(of_all)
        changed[self.running] = of_running
        return changed

    def of_all(self, of_running: np.ndarray, otherwise: Any) -> np.ndarray:
        """Expands an array of values of the R running members, ``[R, ...]``, to all M members, ``[M, ...]``; stopped
        members get the value `otherwise`.
        """
        if self.num_running == self.num_members:
            return np.asarray(of_running)
        shape, dtype = (self.num_members, *of_running.shape[1:]), np.result_type(of_running.dtype, otherwise)
        return self._with_running(np.full(shape, otherwise, dtype), of_running)

    def results(self) -> dict[str, Any]:
        """Entries of an iteration's result that are equal for all members, such as replay buffer sizes."""
        template = self.template
        template.num_env_steps = self.num_env_steps
        # The counters of the template's learner are those of every member.
        template.learner.state = dataclasses.replace(template.learner.state, num_updates=np.uint32(self.num_updates))

        def now(_: Any, of_block: Any) -> Any:
            return devices.place_sharded(devices.own_shards(of_block)[:1], template.learner.devices)

        axes, block = self.axes.kept, self.blocks[0].kept
        kept, fixed = split_fixed(template.kept)
        kept = map_members(lambda own, _: own, axes, kept, block, shared=now)
        template.step.kept.value = with_fixed(kept, fixed)
        return template.results()

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        """Returns the learner's metrics of the M members, ``{module_id: {metric: number or float64[M]}}``.

        These are the metrics of the members' last update, and the learner's counters, which cover the last
        `num_updates` updates. Call `results` first: it sets the total number of updates, from which lifetime counters
        are computed.
        """
        results: dict[str, Any] = {mid: dict(own) for mid, own in self.metrics.items()}
        merge_nested(results, self.template.training_counts(num_updates))
        return results

    def fingerprints(self) -> dict[str, np.ndarray]:
        """Fingerprints of the parameters of the M members, two 32-bit hashes each: ``{"low": float64[M], "high":
        float64[M]}``; NaN for stopped members.
        """
        found = self._of_running([fingerprints_of_members(block.learner.params) for block in self.blocks])
        of_all = self.of_all(found.astype(np.float64), np.nan)
        return {"low": of_all[:, 0], "high": of_all[:, 1]}

    def _of_running(self, parts: Sequence[Any]) -> np.ndarray:
        """Joins arrays of all blocks (members trained by one call of the program) to one array ``[R, ...]`` of running
        members.

        A block's array is ``[D, V, ...]``, for D devices with V members on each. The copies that fill the last block
        are dropped, so that the R running members remain.
        """
        all_of_them = np.concatenate([devices.own_shards(part) for part in parts])
        return all_of_them.reshape(-1, *all_of_them.shape[2:])[: self.num_running]

    # --------------------------------------------------------------------------------------------------- their states

    def states(self) -> MemberStates:
        """States of the R running members as host arrays ``[R, ...]``.

        Leaves that members share have no axis R; constant fields of stored data, such as a data set, are None.
        """
        return map_members(self._joined, self.axes, *self.blocks, shared=lambda x, *_: devices.own_shards(x)[0])

    def states_of(self, members: Sequence[int]) -> list[MemberStates]:
        """Returns copies of the given running members' states as host arrays, one `MemberStates` for each member,
        without stored data such as replay buffers (`kept` is None).
        """
        axes = dataclasses.replace(self.axes, kept=None)
        blocks = [dataclasses.replace(block, kept=None) for block in self.blocks]
        shared = lambda x, *_: np.array(devices.own_shards(x)[0])  # noqa: E731
        states = map_members(self._joined, axes, *blocks, shared=shared)
        rows = [self._slot_of(member) for member in members]
        return [map_members(lambda x, i=i: x[i] if is_key(x) else np.array(x[i]), axes, states) for i in rows]

    def _slot_of(self, member: int) -> int:
        (slot,) = np.flatnonzero(self.running == member)
        return int(slot)

    def _joined(self, *parts: Any) -> Any:
        """Copies one state array of all blocks of members to the host, and joins it to ``[R, ...]``, one row for each
        of the R running members.
        """
        return _concatenated([x.reshape(-1, *x.shape[2:]) for x in map(devices.own_shards, parts)])[: self.num_running]

    def set_states(self, states: MemberStates) -> None:
        """Restores the states of the running members from a result of the method `states`."""
        num_slots, size = self._num_blocks * self.layout.block_size, self.layout.block_size
        filled = np.minimum(np.arange(num_slots), self.num_running - 1)
        counter = counters.from_int(self.num_env_steps)
        self.blocks, self._timesteps = [], []
        for start in range(0, num_slots, size):
            of_block = map_members(lambda x, start=start: x[filled[start : start + size]], self.axes, states)
            self.blocks.append(self._placed(of_block, self.axes))
            self._timesteps.append(devices.place_replicated(counter, self.devices))
        self.is_live = self.of_all(np.array(states.is_live), False)

    def dealt_out(self, values: Any) -> list[Any]:
        """Distributes host values of all M members (leaves ``[M, ...]``) to the devices.

        Returns one pytree for each block (members trained by one call of the program), with leaves ``[D, V, ...]`` for
        D devices with V running members on each.
        """
        shape = (len(self.devices), self.layout.at_once)
        return [
            devices.place_sharded(jax.tree.map(lambda x: x[index].reshape(*shape, *x.shape[1:]), values), self.devices)  # noqa: B023
            for index in np.split(self._members_of_slots, self._num_blocks)
        ]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Overwrites running members with copies of other running members: weights, optimizers, settings, environments
        and replay buffers.

        Each member keeps its random streams, so that copies continue differently. Only the first call compiles.

        Args:
            sources: Indices of the members to copy.
            targets: Indices of the members that they replace, equally many.
        """
        moves = []
        for source, target in zip(map(self._slot_of, sources), map(self._slot_of, targets), strict=True):
            is_last = target == self.num_running - 1
            last = self._num_blocks * self.layout.block_size if is_last else target + 1
            moves += [(source, slot) for slot in range(target, last)]  # the last member with its copies
        self._move(moves, with_streams=False)

        def copied(of_all: np.ndarray) -> np.ndarray:
            changed = np.array(of_all)
            changed[list(targets)] = of_all[list(sources)]
            return changed

        self.is_live = copied(self.is_live)
        if self.window is not None:
            self.window = jax.tree.map(copied, self.window)

    def keep(self, members: Sequence[int]) -> None:
        """Stops all running members except `members`, moves the remaining ones into as few blocks (members trained by
        one call) as possible, and frees the other blocks.

        The program stays the same until the members fit into one block of a smaller size. Block sizes are the size at
        the beginning, divided by powers of `SHRINKAGE`; each has a program, which its first call compiles.

        Args:
            members: Indices of running members, at least one.
        """
        self._steps_of_stopped += self.num_env_steps * (self.num_running - len(members))
        kept = np.isin(self.running, members)
        number, layout = int(kept.sum()), self._layout_for(len(members))
        running = self.running.copy()
        free, late = np.flatnonzero(~kept[:number]), number + np.flatnonzero(kept[number:])
        moves = list(zip(late.tolist(), free.tolist(), strict=True))
        running[free] = running[late]
        if layout == self.layout:
            # A diverged member in a padding slot would slow down its block.
            num_slots = -(-number // layout.block_size) * layout.block_size
            has_diverged = ~self.is_live[self._members_of_slots[:num_slots]]
            last = late[free == number - 1]
            source = int(last[0]) if len(last) else number - 1
            moves += [(source, slot) for slot in range(number, num_slots) if has_diverged[slot] and slot not in late]
        self._move(moves, with_streams=True)
        self.running = running[:number]
        del self.blocks[self._num_blocks :], self._timesteps[self._num_blocks :]
        if layout != self.layout:
            states = self.states()
            self.layout = layout
            self.set_states(states)
        is_live = self.is_live.copy()
        is_live[np.setdiff1d(np.arange(self.num_members), self.running)] = False
        self.is_live = is_live
        self.metrics = jax.tree.map(lambda x: self.of_all(x[self.running], np.nan), self.metrics)

    def _layout_for(self, number: int) -> Layout:
        """Returns the smallest `Layout` whose block (members trained by one call of the program) has room for `number`
        members.

        If the largest layout's block has too little room, returns the largest layout.
        """
        ratio = CPU_SHRINKAGE if self.devices[0].platform == "cpu" else SHRINKAGE
        layout = self._largest
        while layout.at_once > 1:
            smaller = layout._replace(at_once=-(-layout.at_once // ratio))
            if number > smaller.block_size:
                break
            layout = smaller
        return layout

    def _move(self, moves: Sequence[tuple[int, int]], *, with_streams: bool) -> None:
        if self.layout not in self._moves:
            axis_name = self.template.learner.axis_name
            self._moves[self.layout] = MemberMoves(
                self.layout, axis_name, self.axes, self._with_streams, self.blocks[0]
            )
        self._moves[self.layout](self.blocks, moves, with_streams=with_streams)

    def _with_streams(self, block: MemberStates, value: Any) -> MemberStates:
        """Returns a copy of a block's states in which `value` replaces every random stream: the PRNG keys of learners,
        runners and data orders.
        """
        runner, kept = block.runner, block.kept
        if self.template.program.rollout is not None:
            runner = dataclasses.replace(runner, key=value)
        if names := self.template.step.kept_of_seed(0):
            kept = dataclasses.replace(kept, **dict.fromkeys(names, value))
        return dataclasses.replace(
            block, learner=dataclasses.replace(block.learner, key=value), runner=runner, kept=kept
        )

    def change_settings(self, starts: Mapping[int, MemberStart]) -> None:
        """Changes the members' environment parameters and traced settings (hyperparameters that are arguments of the
        compiled program) without recompiling.

        Args:
            starts: Config and numbers of each member that changes.

        Raises:
            ValueError: See `Learner.change_settings`. Nothing has changed then.
        """
        axes = self.axes.settings, self.axes.env_params
        values = map_members(self._joined, axes, *((block.settings, block.env_params) for block in self.blocks))
        before, treedef = jax.tree.flatten(jax.tree.map(lambda own: self.of_all(own, 0), values))
        after = [own.copy() for own in before]
        for member, start in starts.items():
            self.template.learner.change_settings(start.config)
            own = self.template.learner.settings(), dict(start.env_params)
            for of_all, value in zip(after, treedef.flatten_up_to(own), strict=True):
                of_all[member] = value
        changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if not np.array_equal(old, new)]
        dealt_out = self.dealt_out([after[i] for i in changed])
        for i, block in enumerate(self.blocks):
            leaves = jax.tree.leaves((block.settings, block.env_params))
            for place, leaf in zip(changed, dealt_out[i], strict=True):
                leaves[place] = leaf
            settings, env_params = jax.tree.unflatten(treedef, leaves)
            self.blocks[i] = dataclasses.replace(block, settings=settings, env_params=env_params)

    def hand_over(self, member: int, driver: DeviceDriver) -> None:
        """Loads a running member's state into the driver of a single run (on one device). This driver can then continue
        the member's training.
        """
        slot, states = self._slot_of(member), self.states()
        of_member = map_members(lambda x: x[slot], self.axes, states)
        driver.go_on_as(of_member.learner, of_member.runner, of_member.kept, num_env_steps=self.num_env_steps)

    def continue_from(self, driver: DeviceDriver) -> None:
        """Copies the state of the driver of a single run (on one device) to all running members: learner, environments,
        stored data and counters.

        Each member has other random streams, which depend on its seed and on the streams of the driver; settings and
        numbers of environments remain the members'. Diverged members train again.

        Args:
            driver: Driver with the same modules and environments.
        """
        states = self.states()
        kept = split_fixed(driver.kept)[0]
        source = {
            "learner": devices.host_view(driver.learner.state),
            "runner": jax.tree.map(lambda x: x[0], devices.all_shards(driver.shards.state)),
            "kept": jax.tree.map(lambda x: x[0], devices.all_shards(kept)),
        }

        def of_members(part: str, new: Any) -> Any:
            axes, own = getattr(self.axes, part), getattr(states, part)
            return map_members(_repeated, axes, own, new, shared=lambda _, value: np.asarray(value))

        members = jax.tree.map(
            lambda is_stream, own, value: _folded(own, value) if is_stream and is_key(own) else value,
            self._with_streams(jax.tree.map(lambda _: False, states), True),
            states,
            dataclasses.replace(
                states,
                **{part: of_members(part, new) for part, new in source.items()},
                is_live=np.ones(self.num_running, bool),
            ),
        )
        state: dict[str, Any] = {
            "members": named_leaves(members),
            "num_env_steps_sampled_lifetime": driver.num_env_steps,
            "num_updates": driver.num_updates,
        }
        if self.num_running < self.num_members:
            # Without "window": the driver has the episode statistics of the running members.
            state["stopped"] = {"running": self.running, "num_env_steps": self._steps_of_stopped}
        self.set_state(state)

    def get_state(self) -> dict[str, Any]:
        """Returns all values of the population that change in training, by name."""
        state: dict[str, Any] = {
            "members": named_leaves(self.states()),
            "num_env_steps_sampled_lifetime": self.num_env_steps,
            "num_updates": self.num_updates,
        }
        if self.num_running < self.num_members:
            window = named_leaves(() if self.window is None else self.window)
            state["stopped"] = {"running": self.running, "num_env_steps": self._steps_of_stopped, "window": window}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the population from a result of `get_state`: states of running members, counters, and which members
        are stopped.

        Raises:
            ValueError: If it has another number of members, or other modules, connectors or environments.
        """
        stopped: Mapping[str, Any] = state.get("stopped", {})
        running = np.asarray(stopped.get("running", np.arange(self.num_members)), np.int64)
        layout = self._layout_for(len(running)) if stopped else self._largest

        def shapes(block: Any) -> Any:
            return jax.ShapeDtypeStruct((len(running), *block.shape[2:]), block.dtype)

        template = map_members(shapes, self.axes, self.blocks[0], shared=_without_axis)
        states = from_named_leaves(template, state["members"], "the members")
        self.running, self.layout = running, layout
        self._steps_of_stopped = int(stopped.get("num_env_steps", 0))
        self.num_env_steps = int(state["num_env_steps_sampled_lifetime"])
        self.num_updates = int(state["num_updates"])
        self.set_states(states)
        if self.template.program.rollout is not None:
            windows = [block.runner.window for block in self.blocks]
            window = jax.tree.map(lambda *parts: self._of_running(parts), *windows)
            if stopped.get("window"):
                like = jax.tree.map(lambda own: self.of_all(own, 0), window)
                self.window = from_named_leaves(like, stopped["window"], "the stopped members")
            else:
                self._note_window(window)

    def stop(self) -> None:
        """Releases the memory that the population takes on the devices."""
        self.blocks, self._timesteps, self._fixed, self._first_kept = [], [], None, None


def _learner_axes(learner: Learner) -> LearnerState:
    """Axes of a learner's state for `vmap`: 0 for leaves that differ between members, None for shared ones."""
    axes: LearnerState = member_axes(learner.state)
    extra = {name: None if name in learner.shared_extra else own for name, own in axes.extra.items()}
    return dataclasses.replace(axes, extra=extra)


def _repeated(own: Any, value: Any) -> Any:
    """Broadcasts the value of one member to the shape of `own`, an array of all members' values."""
    if is_key(own):
        bits: Any = np.broadcast_to(jax.random.key_data(value), jax.random.key_data(own).shape)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(own))
    return np.broadcast_to(np.asarray(value), own.shape)


def _folded(own: Any, keys: Any) -> Any:
    """Derives new PRNG keys for R members of a population that got copies of the same keys.

    Folds random bits, drawn from the member's present key ``own[i]``, into the copy ``keys[i]``. Arguments and result
    are arrays of keys ``[R]``.
    """
    seeds = jax.vmap(jax.random.bits)(own.reshape(-1))
    return jax.vmap(jax.random.fold_in)(keys.reshape(-1), seeds).reshape(own.shape)


def _num_bytes(tree: Any) -> int:
    is_key_type = lambda x: jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return bytes_of_shapes([x for x in jax.tree.leaves(tree) if not is_key_type(x)])


def _concatenated(parts: Sequence[Any]) -> Any:
    if is_key(parts[0]):
        bits: Any = np.concatenate([jax.random.key_data(part) for part in parts])
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(parts[0]))
    return np.concatenate(parts)


def _without_axis(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
