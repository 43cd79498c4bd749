"""Compiled program of a population: runs the program of the on-device driver for several members together."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM, NOT_FINITE
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.utils.members import map_members

if TYPE_CHECKING:
    from jaxrl_stack.execution.device_program import DeviceProgram


@struct.dataclass
class MemberStates:
    """States (learner, environments, replay buffer) of several members of a population.

    The program, which runs on each device, sees leaves ``[V, ...]``; its caller sees leaves ``[D, V, ...]``. D is the
    number of devices, and V the number of members on each device.

    Attributes:
        learner, runner, kept: See `TrainState`. Leaves that members share have no axis V.
        settings: Traced settings of the members.
        env_params: Leaves of ``env.params`` in which their environments differ, by name.
        is_live: bool, whether a member still trains, and has not diverged.
    """

    learner: Any
    runner: Any
    kept: Any
    settings: Any
    env_params: dict[str, Any]
    is_live: Any


@struct.dataclass
class HandedOut:
    """Metrics of a population's members, packed into one uint32 array with n values per member, so that one transfer
    brings all metrics to the host.

    Attributes:
        bits: uint32 ``[..., n]``: metrics, the window of episodes, whether a member is live, its number of updates.
        metrics: Metrics of the last update, for the layout of their part.
    """

    bits: Any
    metrics: Flat = struct.field(pytree_node=False)

    @classmethod
    def of(cls, metrics: Flat | None, window: Any, is_live: Any, num_updates: Any) -> HandedOut:
        """Packs one member's metrics and episode statistics into the uint32 array of a `HandedOut`.

        The array also contains the member's live flag and number of updates. `window` has the statistics of the
        member's last episodes, from `EpisodeWindow.packed`; without environments, `window` is ().
        """
        metrics = Flat.of({}) if metrics is None else metrics
        numbers = jnp.stack([is_live.astype(jnp.uint32), num_updates.astype(jnp.uint32)])
        episodes = [] if isinstance(window, tuple) else [window]
        bits = jnp.concatenate([jax.lax.bitcast_convert_type(metrics.vector, jnp.uint32), *episodes, numbers])
        return cls(bits, dataclasses.replace(metrics, vector=None))

    def read(self, bits: np.ndarray) -> tuple[dict[Any, Any], np.ndarray, np.ndarray, int]:
        """Unpacks the metrics of M members from their packed array.

        Args:
            bits: uint32 ``[M, n]``, on the host.

        Returns:
            ``(metrics, values [..., M]; windows [M, k]; bool [M], whether members are live; updates so far)``.
        """
        size = sum(math.prod(shape) for shape, _ in self.metrics.layout[1])
        vectors = np.ascontiguousarray(bits[:, :size]).view(np.float32)
        return self.metrics.unravel(vectors.T), bits[:, size:-2], bits[:, -2] > 0, int(bits[0, -1])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PopulationProgram:
    """Runs the on-device driver's program (`DeviceProgram`) for the V population members of each device.

    One call makes K training steps. Members are independent: no reduction, such as a mean, combines values of several
    members.

    Attributes:
        program: Program of one member.
        axes: Leaves of the members' states that differ between members; see `utils.members.member_axes`.
        loss_key: Last part of the name of a module's loss in metrics.
        env_may_return_nan: Whether members continue if their environment returned a non-finite number.
    """

    program: DeviceProgram
    axes: MemberStates
    loss_key: str
    env_may_return_nan: bool = False

    def __call__(self, members: MemberStates, timesteps: Any, num_warm_up: Any) -> tuple[Any, ...]:
        """Runs one call of the `DeviceProgram` (K training steps) for the V members of one device. JAX traces this
        method once for each V.

        Args:
            members: States of V members.
            timesteps: uint32[2], env steps that each of them has sampled so far.
            num_warm_up: See `DeviceProgram`.

        Returns:
            ``(members, timesteps, packed metrics of each)``; see `HandedOut`. A member with a non-finite loss, gradient
            or parameter is no longer live, and keeps its former learner and environments.
        """
        axes = self.axes
        if members.is_live.shape == (1,):
            # Alone, without an axis: products of one matrix are faster than those of a batch of one.
            only = map_members(lambda x: x[0], axes, members)
            member, timesteps, handed_out = self._member(only, timesteps, num_warm_up)
            new, handed_out = map_members(lambda x: x[None], axes, member), jax.tree.map(lambda x: x[None], handed_out)
        else:
            new, timesteps, handed_out = jax.vmap(self._member, in_axes=(axes, None, None), out_axes=(axes, None, 0))(
                members, timesteps, num_warm_up
            )
        return self._newest_if_live(new, members), timesteps, handed_out

    def _newest_if_live(self, new: MemberStates, old: MemberStates) -> MemberStates:
        """Returns the members' states after a call of the program. Members that have diverged or stopped keep the
        learner and environment states `old` from before the call.
        """

        def selected(new: Any, old: Any) -> Any:
            def own(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(is_live.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return map_members(own, (self.axes.learner, self.axes.runner), new, old)

        is_live, states = new.is_live, ((new.learner, new.runner), (old.learner, old.runner))
        learner, runner = jax.lax.cond(is_live.all(), lambda new, old: new, selected, *states)
        return dataclasses.replace(new, learner=learner, runner=runner)

    def _member(self, member: MemberStates, timesteps: Any, num_warm_up: Any) -> tuple[Any, ...]:
        program = self.program
        if member.env_params:
            assert program.rollout is not None
            rollout = dataclasses.replace(program.rollout, env_params=member.env_params)
            program = dataclasses.replace(program, rollout=rollout)
        learner, runner, kept, timesteps, learned, window, _ = program(
            member.learner, member.runner, member.kept, timesteps, member.settings, num_warm_up
        )
        is_live = jnp.logical_and(member.is_live, self._is_finite(learner, learned, window))
        # What is kept is as large as all else together, and not used any more by a member that has diverged.
        after = dataclasses.replace(member, learner=learner, runner=runner, kept=kept, is_live=is_live)
        return after, timesteps, HandedOut.of(learned, window, is_live, learner.num_updates)

    def _is_finite(self, learner: Any, learned: Flat | None, window: Any) -> jax.Array:
        """Whether a member's parameters, losses and gradient norms are finite after a call of the program; bool scalar.

        If the program steps environments and ``check_nans`` is not False, episode returns and last observations must
        also be finite.
        """
        checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(learner.params)]
        for path, value in () if learned is None else learned.tree().items():
            if path[0] == NOT_FINITE:
                checks.append(value == 0)
            elif path[-1].endswith((self.loss_key, GLOBAL_NORM)):
                checks.append(jnp.isfinite(value))
        if self.program.rollout is not None and not self.env_may_return_nan:
            checks.append(window[..., -1].all() > 0)
        return jnp.stack([jnp.all(check) for check in checks]).all()
