"""LearnerGroup: the Learner(s) of an algorithm behind one interface."""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Component
from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from jaxrl_stack.core.learner.learner import STATE_COMPONENTS, Learner
from jaxrl_stack.core.learner.learner_actor import (
    Answer,
    BlockShare,
    LearnerActor,
    Request,
    RowShare,
    assemble,
    deal_out_blocks,
    has_references,
    module_states,
    weights_for_runners,
)
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec, check_fits_specs
from jaxrl_stack.utils.actor_manager import RemoteCallResults, ResultOrError

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

logger = logging.getLogger(__name__)

STATE_AFTER_UPDATE = "_rl_module_state_after_update"
"""Where ``update(return_state=True)`` puts the weights in the first learner's result."""
OTHERS_TIMEOUT_S = 10.0
"""How long to wait for the other learners' answers once one of them has failed: what fails in one fails in all, unless
that one took the others' partner away."""
CONSEQUENCES_TIMEOUT_S = 1.0
"""How long to wait for what the other learners have to say of one that died."""
JOIN_ATTEMPTS = 3
"""How often learners are started until they can be joined."""
LEAVE_TIMEOUT_S = 5.0
"""How long learners may take to part before they are ended."""


class LearnerGroup(Checkpointable):
    """The Learner in this process, or N Learners in Ray actors that update as one.

    With ``num_learners=0`` the Learner lives here and its update runs on all of its devices. With ``num_learners=N``
    there are N actors with resources of their own. ``jax.distributed`` joins their devices to one axis, so that an
    update of N learners is the update of one learner on N times as many devices; this process takes no part in it.
    ``train_batch_size_per_learner`` and ``minibatch_size`` are per learner.

    Joined processes live and die together. When one is lost, all N start again from the last state that this process
    has taken over, which it does every ``learner_snapshot_interval`` updates and behind every change of weights, state
    or modules through this object; the call that found out is made once more. The updates since then are lost, but
    stay counted, so that ``weights_seq_no`` never goes back.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s); None takes the config's own.
        learner: A built learner to hold instead of building one.
        placement_group: Ray placement group whose last ``num_learners`` bundles are the learners'.

    Raises:
        ValueError: If a placement group or a learner is given that the config has no use for.
    """

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        learner: Learner | None = None,
        placement_group: Any = None,
    ):
        self.config = config
        self._learner: Learner | None = None
        self._actors: _JoinedActors | None = None
        if config.num_learners:
            if learner is not None:
                raise ValueError(
                    f"LearnerGroup(learner=...) holds a learner of this process; num_learners={config.num_learners} "
                    f"asks for actors. Set num_learners=0, or leave learner out."
                )
            self._actors = _JoinedActors(config, module_spec, placement_group)
            return
        if placement_group is not None:
            raise ValueError(
                f"LearnerGroup(placement_group={placement_group!r}): with num_learners=0 the learner runs in this "
                f"process. Leave placement_group out, or set num_learners."
            )
        if learner is None:
            learner = config.learner_class(config=config, module_spec=module_spec)
            learner.build()
        self._learner = learner

    # -------------------------------------------------------------------------------------------------------- access

    @property
    def is_local(self) -> bool:
        """Whether the learner lives in this process."""
        return self._actors is None

    @property
    def is_remote(self) -> bool:
        """Whether learners are actors of their own."""
        return self._actors is not None

    @property
    def local_learner(self) -> Learner | None:
        """The learner of this process; None with actors."""
        return self._learner

    @property
    def num_updates(self) -> int:
        """Updates so far: the ``weights_seq_no`` of the current weights."""
        return self._local.num_updates if self._actors is None else self._actors.num_updates

    @property
    def has_host_pieces(self) -> bool:
        """Whether the learner pipeline has pieces that run on the host: then `update_block` cannot be used."""
        return bool(self.host_piece_names)

    @property
    def host_piece_names(self) -> list[str]:
        """Names of the learner pipeline's pieces that run on the host."""
        return self._local.host_piece_names if self._actors is None else self._actors.info["host_piece_names"]

    def __len__(self) -> int:
        """Number of learners, the local one included."""
        return 1 if self._actors is None else self._actors.num_learners

    @property
    def _local(self) -> Learner:
        if self._learner is None:
            raise ValueError("This LearnerGroup was shut down.")
        return self._learner

    def ping(self) -> list[str]:
        """An answer of every learner, ``"pong"``."""
        return ["pong"] if self._actors is None else self._actors.call("ping")

    def get_stats(self) -> dict[str, Any]:
        """Numbers about the group: learners, their devices, restarts, pending and dropped asynchronous updates."""
        actors = self._actors
        return {
            "num_learners": len(self),
            "num_devices": len(self._local.devices) if actors is None else actors.info["num_devices"] * len(self),
            "num_learner_restarts": 0 if actors is None else actors.num_restarts,
            "actor_manager_num_outstanding_async_reqs": 0 if actors is None else len(actors.pending),
            "learner_group_ts_dropped_lifetime": 0 if actors is None else actors.num_dropped_env_steps,
        }

    # -------------------------------------------------------------------------------------------------------- updates

    def update(
        self,
        *,
        batch: Any = None,
        batches: Sequence[Any] | None = None,
        batch_refs: Sequence[Any] | None = None,
        episodes: Sequence[Any] | None = None,
        episodes_refs: Sequence[Any] | None = None,
        data_iterators: Sequence[Any] | None = None,
        training_data: TrainingData | None = None,
        timesteps: dict[str, Any] | int | None = None,
        async_update: bool = False,
        return_state: bool = False,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> list[dict[str, Any]]:
        """Update the modules from exactly one of the data arguments, which is dealt out to the learners.

        Args:
            batch: ``{module_id: {column: [N, ...]}}`` (or ``{column: [N, ...]}`` for a single module), ready for the
                loss; split by rows, like the following two.
            batches: Several such batches, laid end to end.
            batch_refs: Ray references of such batches.
            episodes: Episodes; they pass through the learner connector pipeline. Split into time slices of the same
                number of steps; a slice's look-back is ``episode_lookback_horizon``.
            episodes_refs: Ray references of lists of episodes.
            data_iterators: Iterators over batches, one per learner.
            training_data: One of these as an object.
            timesteps: Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``.
            async_update: Do not wait: return the results of earlier such calls that are ready. With
                ``max_requests_in_flight_per_learner`` unfinished calls the data is dropped and counted
                (see `get_stats`). Only for learners that are actors.
            return_state: Put what env runners need of the new weights into the first result, under
                ``"_rl_module_state_after_update"``.
            num_total_minibatches: Number of gradient steps instead of what the epochs make, if above 0.
            num_epochs: Passes over the data.
            minibatch_size: Rows per gradient step and learner; None for all of them.
            shuffle_batch_per_epoch: Whether each of several epochs has its own random order.

        Returns:
            One dict of metrics per learner, as `Learner.update` returns it; metrics of the loss are means over all
            learners. With `async_update` those of all finished calls, one behind the other.

        Raises:
            ValueError: If not exactly one data argument is given, or sizes do not fit.
            RuntimeError: If learners are lost again as soon as they have started anew.
        """
        data = TrainingData.of(
            training_data,
            batch=batch,
            batches=batches,
            batch_refs=batch_refs,
            episodes=episodes,
            episodes_refs=episodes_refs,
            data_iterators=data_iterators,
        )
        arguments = {
            "timesteps": timesteps,
            "num_total_minibatches": num_total_minibatches,
            "num_epochs": num_epochs,
            "minibatch_size": minibatch_size,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
        }
        if self._actors is None:
            self._check_is_not_async(async_update)
            return self._local_results(self._local.update(**data.given, **arguments), return_state)
        shards = data.shard(len(self), len_lookback_buffer=self.config.episode_lookback_horizon)
        return self._actors.update(shards, arguments, async_update, return_state)

    def update_block(
        self,
        blocks: Sequence[Any],
        *,
        timesteps: dict[str, Any] | int | None = None,
        async_update: bool = False,
        return_state: bool = False,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> list[dict[str, Any]]:
        """Update from steps as they were sampled, in one compiled program; see `Learner.update_block`.

        The blocks' columns (environments), laid end to end, are dealt out in equal runs: the first learner gets the
        first ones. References are handed to the learners that need them and not fetched here.

        Args:
            blocks: ``{module_id: {column: [T, B, ...]}}``, columns of the only module, objects with such an attribute
                ``columns``, or Ray references of any of these. All have the same T. With several learners they have
                the same B, too, unless they are all here.
            timesteps: As for `update`, like all other arguments.

        Returns:
            What `update` returns.

        Raises:
            ValueError: If there are no blocks, or their columns cannot be dealt out evenly.
            RuntimeError: See `update`.
        """
        if not blocks:
            raise ValueError("update_block(blocks=[]): there is nothing to learn from. Pass at least one block.")
        arguments = {
            "timesteps": timesteps,
            "num_total_minibatches": num_total_minibatches,
            "num_epochs": num_epochs,
            "minibatch_size": minibatch_size,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
        }
        if self._actors is None:
            self._check_is_not_async(async_update)
            block = assemble(BlockShare(blocks), self._local.module_ids)
            return self._local_results(self._local.update_block(block, **arguments), return_state)
        if any(has_references(block) for block in blocks):
            shares = deal_out_blocks(blocks, len(self))
        else:
            # Only its own columns travel to each learner.
            module_ids = self._actors.info["module_ids"]
            whole = assemble(BlockShare(blocks), module_ids)
            shares = [BlockShare([assemble(share, module_ids)]) for share in deal_out_blocks([whole], len(self))]
        return self._actors.update(shares, arguments, async_update, return_state)

    def update_rows(
        self,
        batch: dict[str, dict[str, Any]],
        *,
        timesteps: dict[str, Any] | int | None = None,
    ) -> dict[Any, np.ndarray]:
        """One gradient step on all rows of a batch, in one compiled program; see `Learner.update_rows`.

        Args:
            batch: ``{module_id: {column: [N, ...]}}``, NumPy; learner i of L gets the rows ``i * N/L ...``.
            timesteps: As for `update`.

        Returns:
            ``{(module_id, name): float32 [N]}``; metrics are asked for with `row_results`.

        Raises:
            ValueError: If the rows cannot be dealt out evenly.
            FloatingPointError: See `Learner.update_rows`.
            RuntimeError: See `update`.
        """
        if self._actors is None:
            return self._local.update_rows(batch, timesteps=timesteps)
        return self._actors.update_rows(batch, {"timesteps": timesteps})

    def row_results(self, num_updates: int = 1) -> list[dict[str, Any]]:
        """One dict of metrics per learner, of the last `update_rows`; see `Learner.row_results`."""
        if self._actors is None:
            return [self._local.row_results(num_updates)]
        return [call.get() for call in self.foreach_learner(_row_results, num_updates=num_updates)]

    def _check_is_not_async(self, async_update: bool) -> None:
        if async_update:
            raise ValueError(
                "update(async_update=True) needs learners that are actors, and num_learners=0 learns in this process. "
                "Set learners(num_learners=1) or more, or leave async_update out."
            )

    def _local_results(self, metrics: dict[str, Any], return_state: bool) -> list[dict[str, Any]]:
        if return_state:
            metrics[STATE_AFTER_UPDATE] = weights_for_runners(self._local)
        return [metrics]

    def foreach_learner(
        self,
        func: Callable[..., Any],
        *,
        healthy_only: bool = True,
        remote_actor_ids: Collection[int] | None = None,
        timeout_seconds: float | None = None,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        **kwargs: Any,
    ) -> RemoteCallResults:
        """Call ``func(learner, **kwargs)`` with every learner.

        What it changes in several learners has to be the same in all of them. It is part of a state that lost learners
        restart from only behind the next ``learner_snapshot_interval`` updates.

        Args:
            func: The function; it and what it returns are pickled for learners that are actors.
            healthy_only: No effect: learners are healthy together, or start again together.
            remote_actor_ids: Numbers of the learners to call, from 0; None calls all.
            timeout_seconds: Longest wait; learners without an answer by then are left out of the results.
            return_obj_refs: Return Ray references to results instead of results.
            mark_healthy: No effect, see `healthy_only`.
            **kwargs: Further arguments of `func`.

        Returns:
            The outcomes in the order of the learners: ``[call.get() for call in results]``. An exception that `func`
            raises is an outcome, too (``call.ok`` is False).
        """
        del healthy_only, mark_healthy
        if self._actors is not None:
            return self._actors.foreach(func, kwargs, remote_actor_ids, timeout_seconds, return_obj_refs)
        results = RemoteCallResults()
        if remote_actor_ids is None or 0 in remote_actor_ids:
            results.add_result(0, ResultOrError.of(lambda: func(self._local, **kwargs)))
        return results

    # ---------------------------------------------------------------------------------------------- modules and state

    def add_module(
        self,
        *,
        module_id: str,
        module_spec: RLModuleSpec,
        config_overrides: dict[str, Any] | None = None,
        new_should_module_be_updated: Any = None,
    ) -> MultiRLModuleSpec:
        """See `Learner.add_module`."""
        return self._change_modules(
            "add_module",
            {
                "module_id": module_id,
                "module_spec": module_spec,
                "config_overrides": config_overrides,
                "new_should_module_be_updated": new_should_module_be_updated,
            },
        )

    def remove_module(self, module_id: str, *, new_should_module_be_updated: Any = None) -> MultiRLModuleSpec:
        """See `Learner.remove_module`."""
        return self._change_modules(
            "remove_module", {"module_id": module_id, "new_should_module_be_updated": new_should_module_be_updated}
        )

    def _change_modules(self, method: str, kwargs: dict[str, Any]) -> MultiRLModuleSpec:
        if self._actors is None:
            return getattr(self._local, method)(**kwargs)
        return self._actors.change_modules(method, kwargs)

    def get_weights(self, module_ids: Collection[str] | None = None, *, inference_only: bool = False) -> dict[str, Any]:
        """Copies of weights.

        Args:
            module_ids: The modules; None for all.
            inference_only: Leave out what only training needs.

        Returns:
            ``{module_id: {name: array}}``.

        Raises:
            KeyError: For a module that is not there.
        """
        if self._actors is None:
            return module_states(self._local, module_ids, inference_only)
        return self._actors.first(module_states, module_ids=module_ids, inference_only=inference_only)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over what `get_weights` returned; modules that it leaves out keep theirs."""
        if self._actors is None:
            self._local.set_weights(weights)
        else:
            self._actors.change(_set_weights, weights)

    def get_weights_ref(self) -> Any:
        """Ray reference of the part of an env runner's state that comes from the learners.

        One object, however many runners fetch it: ``runner.set_state.remote(ref)``. A learner that is an actor writes
        it into the object store itself, so that it does not pass through this process.

        Returns:
            Reference of ``{"rl_module": {"params": {ref: array}, "rest": {ref: array}}, "weights_seq_no": updates}``.
        """
        import ray  # pyright: ignore[reportMissingImports]

        return ray.put(weights_for_runners(self._local)) if self._actors is None else self._actors.weights_ref()

    def weights_for_runners(self) -> dict[str, Any]:
        """``{"params": {ref: array}, "rest": {ref: array}}``; see `Learner.weights_for_runners`."""
        if self._actors is None:
            return self._local.weights_for_runners()
        return self._actors.first(weights_for_runners)[COMPONENT_RL_MODULE]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """``{"learner": state}``; the state of all learners is the same.

        Args:
            components: ``"learner"`` or parts of it, such as ``"learner/rl_module"`` or ``"rl_module"``; None for all.
            not_components: Leave these out.
            **kwargs: None.
        """
        unwanted = _parts_of_learner(not_components or ())
        wanted = [part for part in _parts_of_learner(components or COMPONENT_LEARNER) if part not in unwanted]
        if not wanted:
            return {}
        if self._actors is None:
            return {COMPONENT_LEARNER: self._local.get_state(wanted)}
        return {COMPONENT_LEARNER: self._actors.first(_get_state, components=wanted)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; what is left out stays."""
        if COMPONENT_LEARNER not in state:
            return
        if self._actors is None:
            self._local.set_state(state[COMPONENT_LEARNER])
        else:
            self._actors.change(_set_state, state[COMPONENT_LEARNER])

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """``config`` and ``module_spec``."""
        learner = self.describe_learner()
        return (), {"config": self.config, "module_spec": learner.module_spec}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """The learner, ``"learner"``; all learners have the same state."""
        return [(COMPONENT_LEARNER, self.describe_learner().component)]

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        if isinstance(kwargs.get("module_spec"), MultiRLModuleSpec):
            check_fits_specs(kwargs["module_spec"], state.get(COMPONENT_LEARNER, {}).get("rl_module", {}))
        return super()._build_from_checkpoint(args, kwargs, state)

    def describe_learner(self) -> LearnerDescription:
        """What a checkpoint says of the learners, besides their state."""
        return _describe(self._local) if self._actors is None else self._actors.first(_describe)

    def shutdown(self) -> None:
        """End the learners. Idempotent."""
        if self._actors is not None:
            self._actors.shutdown()
        elif self._learner is not None:
            self._learner.shutdown()
            self._learner = None

    # ------------------------------------------------------------------------------------------------------ old names

    def update_from_batch(self, batch: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Old name of ``update(batch=...)``."""
        warnings.warn("update_from_batch(batch) is now update(batch=batch).", DeprecationWarning, stacklevel=2)
        return self.update(batch=batch, **kwargs)

    def update_from_episodes(self, episodes: Sequence[Any], **kwargs: Any) -> list[dict[str, Any]]:
        """Old name of ``update(episodes=...)``."""
        warnings.warn(
            "update_from_episodes(episodes) is now update(episodes=episodes).", DeprecationWarning, stacklevel=2
        )
        return self.update(episodes=episodes, **kwargs)

    def async_update(self, *args: Any, **kwargs: Any) -> Any:
        """Gone: ``update(async_update=True)``."""
        raise ValueError("async_update(...) is gone. Use update(..., async_update=True) instead.")

    def load_module_state(self, *args: Any, **kwargs: Any) -> Any:
        """Gone: `set_weights`."""
        raise ValueError(
            "load_module_state(...) is gone. Use set_weights({module_id: RLModule.from_checkpoint(path).get_state()}) "
            "for single modules, or Algorithm.from_checkpoint(path) for everything."
        )


@dataclasses.dataclass(frozen=True)
class LearnerDescription:
    """What a checkpoint says of a learner, besides its state.

    Attributes:
        component: The learner and its parts.
        module_spec: The spec that builds a module like its own.
    """

    component: Component
    module_spec: MultiRLModuleSpec


class _LostLearnersError(Exception):
    """A process was lost, or waits for others that have failed. The cause is what was raised first."""


@dataclasses.dataclass
class _Pending:
    """An update that was sent and not answered yet."""

    refs: list[Any]
    return_state: bool


class _JoinedActors:
    """The actors of a `LearnerGroup`, and what it takes to start them again.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s).
        placement_group: Its last bundles are the learners'.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        module_spec: RLModuleSpec | MultiRLModuleSpec | None,
        placement_group: Any,
    ):
        self.config = config
        self.num_learners = int(config.num_learners)
        self.num_updates = 0
        self.num_restarts = 0
        self.num_dropped_env_steps = 0
        self.pending: collections.deque[_Pending] = collections.deque()
        self.info: dict[str, Any] = {}
        self._module_spec = module_spec
        self._placement_group = placement_group
        self._module_changes: list[tuple[str, dict[str, Any]]] = []
        self._snapshot: dict[str, Any] = {}
        self._num_sent = 0
        self._sent_at_snapshot = 0
        self._actors: list[Any] = []
        self._lost: _LostLearnersError | None = None
        self._is_shut_down = False
        try:
            self._start()
            self._remember(self._gather([self._actors[0].apply.remote(_get_state, {})])[0], num_sent=0)
        except _LostLearnersError as lost:
            self._kill()
            raise RuntimeError(f"A learner was lost while the group was started: {lost.__cause__}") from lost.__cause__
        except BaseException:
            self._kill()
            raise

    # ------------------------------------------------------------------------------------------------- life and death

    def _start(self) -> None:
        for attempt in range(1, JOIN_ATTEMPTS + 1):
            self._make_actors()
            try:
                self._join()
                break
            except _LostLearnersError as lost:
                if attempt == JOIN_ATTEMPTS:
                    raise
                # Between the choice of a port and its use, somebody else may have taken it.
                logger.warning("The learners could not be joined and are started again. %s", lost.__cause__)
                self._kill()
        self.info = self._gather([actor.build.remote() for actor in self._actors])[0]

    def _join(self) -> None:
        """Put the devices of all actors on one axis.

        Raises:
            _LostLearnersError: If the coordinator's port is taken, or an actor died.
        """
        if self.num_learners > 1:
            (address,) = self._gather([self._actors[0].free_address.remote()])
            self._gather([a.join.remote(address, self.num_learners, i) for i, a in enumerate(self._actors)])

    def _make_actors(self) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        actor_class = ray.remote(LearnerActor)
        num_cpus, num_gpus = self._resources()
        config = ray.put(self.config)
        self._actors = [
            actor_class.options(
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                resources=dict(self.config.custom_resources_per_learner) or None,
                scheduling_strategy=self._scheduling_strategy(i),
                # One of several cannot come back alone.
                max_restarts=0,
            ).remote(config=config, module_spec=self._module_spec, num_cpus=num_cpus, num_gpus=num_gpus)
            for i in range(self.num_learners)
        ]

    def _resources(self) -> tuple[float, float]:
        """CPUs and GPUs of one actor."""
        num_cpus, num_gpus = self.config.num_cpus_per_learner, self.config.num_gpus_per_learner or 0
        if isinstance(num_cpus, str):  # "auto"
            num_cpus = 0 if num_gpus else 1
        return num_cpus, num_gpus

    def _scheduling_strategy(self, index: int) -> Any:
        if self._placement_group is None:
            return None
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            PlacementGroupSchedulingStrategy,
        )

        needs_any = any(self._resources()) or self.config.custom_resources_per_learner
        bundles = self._placement_group.bundle_specs
        if needs_any and len(bundles) < self.num_learners:
            raise ValueError(
                f"The placement group has {len(bundles)} bundles; num_learners={self.num_learners} needs as many."
            )
        return PlacementGroupSchedulingStrategy(
            placement_group=self._placement_group,
            placement_group_bundle_index=len(bundles) - self.num_learners + index if needs_any else -1,
            placement_group_capture_child_tasks=True,
        )

    def _restart(self, lost: _LostLearnersError) -> None:
        """Start all learners again from the last snapshot."""
        logger.warning(
            "A learner was lost; all %d start again from the last snapshot, which %d update(s) have followed. %s",
            self.num_learners,
            self._num_sent - self._sent_at_snapshot,
            lost.__cause__,
        )
        # The learners may have made updates of which nobody has heard but the runners.
        self.num_updates += len(self.pending)
        self._kill()
        self.num_restarts += 1
        self._start()
        for method, kwargs in self._module_changes:
            self._gather([a.apply.remote(_call_method, {"method": method, "kwargs": kwargs}) for a in self._actors])
        counted = {**self._snapshot["counters"], "num_updates": np.uint32(self.num_updates)}
        self._send_to_all(_set_state, {**self._snapshot, "counters": counted})
        self._num_sent = self._sent_at_snapshot

    def _kill(self) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        self.pending.clear()
        actors, self._actors = self._actors, []
        if ray.is_initialized():
            for actor in actors:
                ray.kill(actor)

    def shutdown(self) -> None:
        """Part and end the actors."""
        import ray  # pyright: ignore[reportMissingImports]

        if self._actors and self.num_learners > 1 and ray.is_initialized():
            # Whoever ends without having left takes the others down, with a page of messages each.
            ray.wait([a.leave.remote() for a in self._actors], num_returns=self.num_learners, timeout=LEAVE_TIMEOUT_S)
        self._kill()
        self._is_shut_down = True

    # ---------------------------------------------------------------------------------------------------------- calls

    def _with_restart(self, send: Callable[[], Any]) -> Any:
        """What `send` returns; if learners are lost on the way, all start again and `send` is called once more.

        Raises:
            RuntimeError: If they are lost again.
        """
        if self._is_shut_down:
            raise ValueError("This LearnerGroup was shut down.")
        for _ in range(2):
            try:
                if self._lost is not None:
                    self._restart(self._lost)
                    self._lost = None
                return send()
            except _LostLearnersError as lost:
                self._lost = lost
        assert self._lost is not None
        reason = self._lost.__cause__
        raise RuntimeError(f"Learners were lost again after they had been started anew: {reason}") from reason

    def _gather(self, refs: Sequence[Any]) -> list[Any]:
        """The results of one call of several actors.

        Raises:
            _LostLearnersError: If an actor died, or does not answer while another one has failed.
            Exception: What the calls raised.
        """
        results = []
        for outcome in self._outcomes(refs, others_timeout_seconds=OTHERS_TIMEOUT_S):
            assert outcome is not None, "there is no deadline while nothing has failed"
            if outcome.error is not None:
                raise outcome.error
            results.append(outcome.result)
        return results

    def _outcomes(
        self,
        refs: Sequence[Any],
        *,
        timeout_seconds: float | None = None,
        others_timeout_seconds: float | None = None,
    ) -> list[ResultOrError | None]:
        """Results or exceptions of the code that ran, in order; None for those that did not come in time.

        Args:
            refs: One per actor.
            timeout_seconds: Longest wait.
            others_timeout_seconds: Longest wait for the others once one has failed, after which they are given up.

        Raises:
            _LostLearnersError: See `_gather`.
        """
        import ray  # pyright: ignore[reportMissingImports]

        is_joint = others_timeout_seconds is not None
        outcomes: dict[Any, ResultOrError] = {}
        waiting = list(refs)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        failure: Exception | None = None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, waiting = ray.wait(waiting, timeout=left)
            if not ready:
                break
            outcome = outcomes[ready[0]] = ResultOrError.of(ray.get, ready[0])
            if outcome.error is None:
                continue
            if outcome.is_ray_error:
                # That the others could not reach it is only a consequence, which Ray prints if nobody fetches it.
                if waiting:
                    failed, _ = ray.wait(waiting, num_returns=len(waiting), timeout=CONSEQUENCES_TIMEOUT_S)
                    for ref in failed:
                        ResultOrError.of(ray.get, ref)
                is_reason = failure is not None and not _is_broken_program(failure)
                raise _LostLearnersError from failure if is_reason else outcome.error
            if failure is None and is_joint:
                failure, deadline = outcome.error, time.monotonic() + others_timeout_seconds
        if failure is not None and (waiting or _is_broken_program(failure)):
            raise _LostLearnersError from failure
        return [outcomes.get(ref) for ref in refs]

    def call(self, method: str) -> list[Any]:
        """A method of all actors."""
        return self._with_restart(lambda: self._gather([getattr(a, method).remote() for a in self._actors]))

    def first(self, func: Callable[..., Any], **kwargs: Any) -> Any:
        """``func(learner, **kwargs)`` of the first learner; all have the same state."""
        return self._with_restart(lambda: self._gather([self._actors[0].apply.remote(func, kwargs)]))[0]

    def foreach(
        self,
        func: Callable[..., Any],
        kwargs: dict[str, Any],
        ids: Collection[int] | None,
        timeout_seconds: float | None,
        return_obj_refs: bool,
    ) -> RemoteCallResults:
        """See `LearnerGroup.foreach_learner`."""
        chosen = list(range(self.num_learners)) if ids is None else list(ids)
        unknown = [i for i in chosen if i not in range(self.num_learners)]
        if unknown:
            raise ValueError(f"There is no learner {unknown[0]!r}; there are {list(range(self.num_learners))}.")

        def send() -> list[ResultOrError | None]:
            refs = [self._actors[i].apply.remote(func, kwargs) for i in chosen]
            if return_obj_refs:
                return [ResultOrError(result=ref) for ref in refs]
            return self._outcomes(refs, timeout_seconds=timeout_seconds)

        results = RemoteCallResults()
        for i, outcome in zip(chosen, self._with_restart(send), strict=True):
            if outcome is not None:
                results.add_result(i, outcome)
        return results

    def weights_ref(self) -> Any:
        """See `LearnerGroup.get_weights_ref`."""

        def send() -> Any:
            is_well, ref = self._actors[0].weights_for_runners.options(num_returns=2).remote()
            self._gather([is_well])
            return ref

        return self._with_restart(send)

    # --------------------------------------------------------------------------------------------- modules and state

    def _send_to_all(self, func: Callable[..., Any], value: Any) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        ref = ray.put(value)
        self._gather([actor.apply.remote(_with_reference, {"func": func, "refs": [ref]}) for actor in self._actors])

    def change(self, func: Callable[..., Any], value: Any) -> None:
        """``func(learner, value)`` of all learners: a change of state that is not lost."""
        self._with_restart(lambda: self._send_to_all(func, value))
        self._take_snapshot()

    def change_modules(self, method: str, kwargs: dict[str, Any]) -> MultiRLModuleSpec:
        """`Learner.add_module` or `remove_module` of all learners."""
        change = {"method": method, "kwargs": kwargs}
        specs = self._with_restart(
            lambda: self._gather([actor.apply.remote(_call_method, change) for actor in self._actors])
        )
        self._module_changes.append((method, kwargs))
        self._take_snapshot()
        self.info["module_ids"] = tuple(specs[0].rl_module_specs)
        return specs[0]

    def _take_snapshot(self) -> None:
        self._remember(self.first(_get_state), self._num_sent)

    def _remember(self, state: dict[str, Any], num_sent: int) -> None:
        self._snapshot, self._sent_at_snapshot = state, num_sent
        self.num_updates = max(self.num_updates, int(state["counters"]["num_updates"]))

    # -------------------------------------------------------------------------------------------------------- updates

    def update(
        self,
        shares: Sequence[TrainingData | BlockShare],
        arguments: dict[str, Any],
        async_update: bool,
        return_state: bool,
    ) -> list[dict[str, Any]]:
        """One update from every learner's share; see `LearnerGroup.update`."""
        if async_update:
            return self._update_async(shares, arguments, return_state)

        def send() -> list[Answer]:
            return self._gather(self._send_update(shares, arguments, return_state))

        return self._received(self._with_restart(send), return_state)

    def update_rows(self, batch: dict[str, dict[str, Any]], arguments: dict[str, Any]) -> dict[Any, np.ndarray]:
        """See `LearnerGroup.update_rows`."""
        sizes = {mid: len(next(iter(columns.values()))) for mid, columns in batch.items()}
        num = self.num_learners
        if any(n % num for n in sizes.values()):
            raise ValueError(
                f"A batch of {sizes} rows cannot be dealt out to {num} learners evenly: make its rows a multiple of "
                f"num_learners."
            )

        def share(i: int) -> RowShare:
            parts = {mid: slice(i * n // num, (i + 1) * n // num) for mid, n in sizes.items()}
            return RowShare({mid: jax.tree.map(lambda x, mid=mid: x[parts[mid]], own) for mid, own in batch.items()})

        shares = [share(i) for i in range(num)]
        answers = self._with_restart(lambda: self._gather(self._send_update(shares, arguments, False)))
        self._received(answers, False)
        rows = [answer.rows for answer in answers]
        return {key: np.concatenate([own[key] for own in rows]) for key in rows[0]}

    def _send_update(
        self, shares: Sequence[TrainingData | BlockShare | RowShare], arguments: dict[str, Any], return_state: bool
    ) -> list[Any]:
        self._num_sent += 1
        takes_snapshot = (self._num_sent - self._sent_at_snapshot) % self.config.learner_snapshot_interval == 0
        return [
            actor.update.remote(
                Request(share, arguments, takes_snapshot and i == 0, wants_weights=return_state and i == 0)
            )
            for i, (actor, share) in enumerate(zip(self._actors, shares, strict=True))
        ]

    def _received(self, answers: Sequence[Answer], return_state: bool) -> list[dict[str, Any]]:
        first = answers[0]
        self.num_updates = max(self.num_updates, first.num_updates)
        if first.state is not None:
            # Updates that were sent behind this one are still to come.
            self._remember(first.state, self._num_sent - len(self.pending))
        metrics = [answer.metrics for answer in answers]
        if return_state:
            metrics[0][STATE_AFTER_UPDATE] = first.weights
        return metrics

    def _update_async(
        self, shares: Sequence[TrainingData | BlockShare], arguments: dict[str, Any], return_state: bool
    ) -> list[dict[str, Any]]:
        results = self._with_restart(self._fetch_finished)
        if len(self.pending) >= self.config.max_requests_in_flight_per_learner:
            self.num_dropped_env_steps += sum(_num_env_steps(share, self.config) for share in shares)
        else:
            refs = self._send_update(shares, arguments, return_state)
            self.pending.append(_Pending(refs, return_state))
        return results

    def _fetch_finished(self) -> list[dict[str, Any]]:
        """The results of all asynchronous updates that are finished, oldest first."""
        import ray  # pyright: ignore[reportMissingImports]

        results = []
        while self.pending:
            oldest = self.pending[0]
            ready, waiting = ray.wait(oldest.refs, num_returns=len(oldest.refs), timeout=0)
            if waiting and all(ResultOrError.of(ray.get, ref).ok for ref in ready):
                break
            answers = self._gather(oldest.refs)
            self.pending.popleft()
            results += self._received(answers, oldest.return_state)
        return results


# -------------------------------------------------------------------------------------------------- called in learners


def _get_state(learner: Learner, components: Sequence[str] | None = None) -> dict[str, Any]:
    return learner.get_state(components)


def _set_state(learner: Learner, state: dict[str, Any]) -> None:
    learner.set_state(state)


def _describe(learner: Learner) -> LearnerDescription:
    return LearnerDescription(learner.describe_component(), MultiRLModuleSpec.from_module(learner.module))


def _set_weights(learner: Learner, weights: dict[str, Any]) -> None:
    learner.set_weights(weights)


def _row_results(learner: Learner, num_updates: int) -> dict[str, Any]:
    return learner.row_results(num_updates)


def _call_method(learner: Learner, method: str, kwargs: dict[str, Any]) -> Any:
    return getattr(learner, method)(**kwargs)


def _with_reference(learner: Learner, func: Callable[..., Any], refs: Sequence[Any]) -> Any:
    import ray  # pyright: ignore[reportMissingImports]

    return func(learner, *ray.get(list(refs)))


# ---------------------------------------------------------------------------------------------------------- small parts


def _is_broken_program(error: Exception) -> bool:
    """Whether a compiled program has failed half-way: the learner's state, which it was given, is gone then."""
    cause = getattr(error, "cause", error)
    # What fails between processes on the CPU is a ValueError.
    return isinstance(cause, jax.errors.JaxRuntimeError) or "Gloo" in str(cause)


def _num_env_steps(share: TrainingData | BlockShare, config: AlgorithmConfig) -> int:
    """Steps that are dropped with a share; a train batch's, where only fetching the data would tell."""
    known = share.num_steps if isinstance(share, TrainingData) else None
    return config.train_batch_size_per_learner if known is None else known


def _parts_of_learner(components: str | Collection[str]) -> list[str]:
    """``"learner"``, ``"learner/rl_module"`` or ``"rl_module"`` as parts of a Learner's state."""
    names = [components] if isinstance(components, str) else list(components)
    parts = [name.removeprefix(f"{COMPONENT_LEARNER}/").partition("/")[0] for name in names]
    return [part for name in parts for part in (STATE_COMPONENTS if name == COMPONENT_LEARNER else (name,))]
