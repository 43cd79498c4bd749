"""Group of the Learner(s) of an algorithm."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts
from jaxrl_stack.core import COMPONENT_LEARNER
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.asynchronous_updates import AsynchronousUpdates
from jaxrl_stack.core.learner.joined_learners import STATE_AFTER_UPDATE, JoinedLearners
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_actor import module_states, weights_for_runners
from jaxrl_stack.core.learner.learner_state import STATE_COMPONENTS
from jaxrl_stack.core.learner.steps_trained import Timesteps
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import AnyRLModuleSpec, RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.utils.actor_backend import RAY
from jaxrl_stack.utils.call_results import RemoteCallResults, ResultOrError
from jaxrl_stack.utils.resources import in_last_bundles
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class LearnerGroup(Checkpointable):
    """One Learner in this process, or N Learners in Ray actors that update jointly.

    If ``num_learners=0``, the Learner is in this process and updates on all of its devices. With ``num_learners=N`` the
    group starts N actors, each with its own resources. ``jax.distributed`` joins their devices to one axis, so that an
    update of N learners is the update of one learner on N times as many devices; this process takes no part in it.
    ``train_batch_size_per_learner`` and ``minibatch_size`` are per learner.

    Joined processes fail together. If one is lost, all N restart from the last snapshot of their state in this process,
    and the failed call is repeated once. A snapshot is taken every ``learner_snapshot_interval`` updates, and after
    every change of weights, state or modules through this object. Updates after the snapshot are lost, but stay
    counted, so that ``weights_seq_no`` never decreases.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s); None takes the config's spec.
        learner: A built learner to use instead of building one.
        placement_group: Ray placement group whose last ``num_learners`` bundles are for the learners.
        actors: Running learner actors to use instead of starting new ones.

    Attributes:
        group_of_neighbours: Ray placement group with the bundles of learners, or of a local learner's aggregators; None
            without one.

    Raises:
        ValueError: If the config's ``num_learners`` does not allow a given learner or placement group.
    """

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        module_spec: AnyRLModuleSpec | None = None,
        learner: Learner | None = None,
        placement_group: Any = None,
        actors: JoinedLearners | None = None,
    ):
        self.config = config
        self.group_of_neighbours = placement_group
        self._learner: Learner | None = None
        self._actors: JoinedLearners | None = actors
        if actors is not None:
            return
        if config.num_learners:
            if learner is not None:
                raise ValueError(
                    f"LearnerGroup(learner=...) is for a learner of this process, but num_learners="
                    f"{config.num_learners} starts actors. Set num_learners=0, or leave learner out."
                )
            self._actors = JoinedLearners(config, placement_group, module_spec=module_spec)
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
        """Whether the learner is in this process."""
        return self._actors is None

    @property
    def is_remote(self) -> bool:
        """Whether the learners are Ray actors."""
        return self._actors is not None

    @property
    def local_learner(self) -> Learner | None:
        """The Learner in this process; None if the learners are Ray actors."""
        return self._learner

    @property
    def num_updates(self) -> int:
        """Number of updates so far. EnvRunners receive this number with the weights, as ``weights_seq_no``."""
        return self._local.num_updates if self._actors is None else self._actors.num_updates

    @property
    def has_host_connectors(self) -> bool:
        """Whether the learner pipeline has connectors that run on the host, on episodes, not in the compiled update.

        If so, `update_block` and `update_rows` raise an error: pass episodes to `update` instead.
        """
        return bool(self.host_connector_names)

    @property
    def host_connector_names(self) -> list[str]:
        """Names of the connectors in the learner pipeline that run on the host, on episodes, not in the compiled
        update.
        """
        return self._local.host_connector_names if self._actors is None else self._actors.info["host_connector_names"]

    @property
    def needs_all_final_obs(self) -> bool:
        """Whether connectors of the learner pipeline read the final observations of terminated episodes, in addition to
        the final observations of truncated episodes.
        """
        return self._local.needs_all_final_obs if self._actors is None else self._actors.info["needs_all_final_obs"]

    @property
    def declared_columns(self) -> dict[ModuleID, tuple[str, ...]]:
        """Names of the additional columns that losses, modules and connectors read from every sampled step, by module;
        see `Learner.declared_columns`.
        """
        return self._local.declared_columns if self._actors is None else self._actors.info["declared_columns"]

    def strategies_of_neighbours(self, number: int) -> list[Any]:
        """Returns Ray ``scheduling_strategy`` values that place `number` additional actors next to each learner: one
        value per additional actor; None lets Ray choose the node.

        Args:
            number: Number of actors per learner, of one CPU each.
        """
        if self._actors is None:
            return in_last_bundles(self.group_of_neighbours, number)
        return self._actors.strategies_of_neighbours(number)

    def __len__(self) -> int:
        """Number of learners in this group; 1 for a learner in this process."""
        return 1 if self._actors is None else self._actors.num_learners

    @property
    def _local(self) -> Learner:
        if self._learner is None:
            raise ValueError("This LearnerGroup was shut down. Build a new one: config.build_learner_group().")
        return self._learner

    def ping(self) -> list[str]:
        """Calls every learner to check that it is alive; returns ``"pong"`` for each."""
        return ["pong"] if self._actors is None else self._actors.call("ping")

    def get_stats(self) -> dict[str, Any]:
        """Returns numbers of learners, devices, restarts, pending updates, and env steps of dropped updates."""
        actors = self._actors
        return {
            "num_learners": len(self),
            "num_devices": self._local.num_devices if actors is None else actors.info["num_devices"] * len(self),
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
        timesteps: Timesteps = None,
        async_update: bool = False,
        return_state: bool = False,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> list[dict[str, Any]]:
        """Updates the modules on data that is split over the learners. Pass exactly one of the data arguments.

        Args:
            batch: ``{module_id: {column: [N, ...]}}`` (or ``{column: [N, ...]}`` for a single module), ready for the
                loss; split by rows, like the next two arguments.
            batches: Several such batches, which are concatenated.
            batch_refs: Ray references of such batches.
            episodes: Episodes of one or several agents; they pass through the learner pipeline. They are split into
                time slices with equal numbers of steps; the look-back of a slice is ``episode_lookback_horizon``.
            episodes_refs: Ray references of lists of episodes.
            data_iterators: Iterators over batches, one per learner.
            training_data: An object with one of these arguments as attribute.
            timesteps: Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``.
            async_update: Whether to return the results of finished earlier calls, without waiting for this one. If
                ``max_requests_in_flight_per_learner`` calls are unfinished, the data is dropped and counted (see
                `get_stats`). Only for learners that are actors.
            return_state: Whether the first result contains the new weights for env runners, under
                ``"_rl_module_state_after_update"``.
            num_total_minibatches: Number of gradient steps if above 0, instead of the number that the epochs need.
            num_epochs: Number of passes over the data.
            minibatch_size: Rows per gradient step and learner; None for all rows.
            shuffle_batch_per_epoch: Whether each of several epochs has its own random order.

        Returns:
            One dict of metrics per learner, in the form of `Learner.update`; metrics of the loss are means over all
            learners. With `async_update`, the dicts of all finished calls, one call after the other.

        Raises:
            ValueError: If not exactly one data argument is given, or sizes do not match.
            RuntimeError: If learners are lost again after a restart.
        """
        data = TrainingData.of(training_data, batch, batches, batch_refs, episodes, episodes_refs, data_iterators)
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

    def update_from_batch(self, batch: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Deprecated: use ``update(batch=batch)``."""
        warnings.warn("update_from_batch(batch) is now update(batch=batch).", DeprecationWarning, stacklevel=2)
        return self.update(batch=batch, **kwargs)

    def update_from_episodes(self, episodes: Sequence[Any], **kwargs: Any) -> list[dict[str, Any]]:
        """Deprecated: use ``update(episodes=episodes)``."""
        message = "update_from_episodes(episodes) is now update(episodes=episodes)."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.update(episodes=episodes, **kwargs)

    def update_block(
        self,
        experience: Experience,
        *,
        timesteps: Timesteps = None,
        async_update: bool = False,
        return_state: bool = False,
        **sizes: Any,
    ) -> list[dict[str, Any]]:
        """Updates the modules from sampled steps, in one compiled program; see `Learner.update_block`.

        The columns (environments) of all parts are split into consecutive runs of equal size, one per learner in
        order. Columns in Ray's object store are fetched by the learners that need them, not by this process.

        Args:
            experience: Columns ``[T, B, ...]``. All parts have the same T. With several learners they also have the
                same B, unless all parts are in this process.
            timesteps, async_update, return_state: See `update`.
            **sizes: See `Learner.update_block`.

        Returns:
            The result in the form of `update`.

        Raises:
            ValueError: If the experience is empty, or its columns cannot be split evenly.
            TypeError: If `experience` is not an Experience of steps.
            RuntimeError: See `update`.
        """
        if not Experience.check(experience, is_rows=False).parts:
            raise ValueError(
                "update_block(experience) got an Experience without steps. Pass "
                "Experience.of_steps({module_id: {column: array [T, B, ...]}})."
            )
        arguments = {"timesteps": timesteps, **sizes}
        if self._actors is None:
            self._check_is_not_async(async_update)
            return self._local_results(self._local.update_block(experience, **arguments), return_state)
        return self._actors.update(experience.deal_out(len(self)), arguments, async_update, return_state)

    def asynchronous_updates(self) -> AsynchronousUpdates:
        """Returns an object that sends updates to learner actors without waiting for the results.

        Raises:
            ValueError: If the learner is in this process.
        """
        if self._actors is None:
            raise ValueError(
                "Asynchronous updates need learners in Ray actors, but num_learners=0 makes the learner part of this "
                "process. Set learners(num_learners=1) or more."
            )
        return AsynchronousUpdates(self._actors)

    def update_rows(self, experience: Experience, *, timesteps: Timesteps = None) -> dict[Any, np.ndarray]:
        """Makes one gradient step on all rows of a batch, in one compiled program; see `Learner.update_rows`.

        Args:
            experience: Rows ``[N, ...]``, NumPy; learner i of L gets the rows ``i * N/L ... (i + 1) * N/L - 1``.
            timesteps: See `update`.

        Returns:
            ``{(module_id, name): float32 [N, ...]}``; `row_results` returns the metrics.

        Raises:
            ValueError: If the rows cannot be split evenly.
            TypeError: If `experience` is not an Experience of rows.
            FloatingPointError: See `Learner.update_rows`.
            RuntimeError: See `update`.
        """
        if self._actors is None:
            return self._local.update_rows(experience, timesteps=timesteps)
        return self._actors.update_rows(Experience.check(experience, is_rows=True), {"timesteps": timesteps})

    def evaluate_rows(
        self, experience: Experience, *, seed: int = 0, timesteps: Timesteps = None
    ) -> list[dict[str, Any]]:
        """Computes losses and metrics of a batch of rows without an update; returns one dict per learner.

        Args:
            experience: Rows ``[N, ...]``, NumPy; learner i of L gets the rows ``i * N/L ... (i + 1) * N/L - 1``.
            seed, timesteps: See `Learner.evaluate_rows`.

        Raises:
            ValueError: If the rows cannot be split evenly.
            TypeError: If `experience` is not an Experience of rows.
        """
        arguments = {"seed": seed, "timesteps": timesteps}
        if self._actors is None:
            return [self._local.evaluate_rows(experience, **arguments)]
        return self._actors.evaluate_rows(Experience.check(experience, is_rows=True), arguments)

    def row_results(self, num_updates: int = 1) -> list[dict[str, Any]]:
        """Returns the metrics and counters of the last `update_rows`, one dict per learner; see
        `Learner.row_results`.
        """
        if self._actors is None:
            return [self._local.row_results(num_updates)]
        return [call.get() for call in self.foreach_learner(operator.methodcaller("row_results", num_updates))]

    def _check_is_not_async(self, async_update: bool) -> None:
        if async_update:
            raise ValueError(
                "update(async_update=True) needs learners in Ray actors, but with num_learners=0 the learner is in "
                "this process. Set learners(num_learners=1) or more, or leave async_update out."
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
        """Calls ``func(learner, **kwargs)`` with every learner, and returns the results in the order of the learners.

        Changes that `func` makes must be the same in all learners. If learners are lost and restart, changes since the
        last snapshot are lost, too. Snapshots are taken every ``learner_snapshot_interval`` updates.

        Args:
            func: The function; the function and its result are pickled for learners that are actors.
            healthy_only: Ignored: either all learners are healthy, or all restart.
            remote_actor_ids: Indices of the learners to call, from 0; None calls all.
            timeout_seconds: Longest wait; learners that do not answer in time are missing in the results.
            return_obj_refs: Whether to return Ray references to the results.
            mark_healthy: Ignored, see `healthy_only`.
            **kwargs: Further arguments of `func`.

        Returns:
            The results in the order of the learners: ``[call.get() for call in results]``.

        Raises:
            Exception: The first error that `func` raised, after all learners have answered.
        """
        if self._actors is not None:
            return self._actors.foreach(func, kwargs, remote_actor_ids, timeout_seconds, return_obj_refs)
        results = RemoteCallResults()
        if remote_actor_ids is None or 0 in remote_actor_ids:
            results.add_result(0, ResultOrError(result=func(self._local, **kwargs)))
        return results

    # ---------------------------------------------------------------------------------------------- modules and state

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Changes settings that compiled updates take as arguments, such as ``lr``, in all learners; see
        `Learner.change_settings`.
        """
        if self._actors is None:
            self._local.change_settings(config)
        else:
            self._actors.change_settings(config)
        self.config = config

    def add_module(self, *, module_id: str, module_spec: RLModuleSpec, **more: Any) -> MultiRLModuleSpec:
        """Adds a module to all learners, see `Learner.add_module`."""
        return self._change_modules("add_module", module_id=module_id, module_spec=module_spec, **more)

    def remove_module(self, module_id: str, **more: Any) -> MultiRLModuleSpec:
        """Removes a module from all learners, see `Learner.remove_module`."""
        return self._change_modules("remove_module", module_id, **more)

    def change_modules(self, **changes: Any) -> MultiRLModuleSpec:
        """Adds some modules to all learners, and removes others; see `Learner.change_modules`."""
        return self._change_modules("change_modules", **changes)

    def _change_modules(self, method: str, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        change = operator.methodcaller(method, *args, **kwargs)
        return change(self._local) if self._actors is None else self._actors.change_modules(change)

    def _first(self, func: Callable[..., Any], **kwargs: Any) -> Any:
        """Calls ``func(learner, **kwargs)`` with the first learner and returns the result; all learners have the same
        state.
        """
        return func(self._local, **kwargs) if self._actors is None else self._actors.first(func, **kwargs)

    def _change(self, method: str, value: Any) -> None:
        """Changes all learners of the group: calls ``learner.method(value)``, for example
        ``learner.set_weights(weights)``.
        """
        if self._actors is None:
            getattr(self._local, method)(value)
        else:
            self._actors.change(method, value)

    def copied_modules(self) -> dict[str, RLModule]:
        """Builds copies of the learners' modules in this process, with the current weights. Returns ``{module_id:
        module}``.
        """
        modules = self._first(_spec_of_modules).build(seed=0)
        modules.set_state(self.get_weights())
        return dict(modules.items())

    def get_weights(self, module_ids: Collection[str] | None = None, *, inference_only: bool = False) -> dict[str, Any]:
        """Returns copies of the weights of the learners' modules.

        Args:
            module_ids: Ids of the modules; None for all.
            inference_only: Whether to leave out weights that only training needs.

        Returns:
            ``{module_id: {name: array}}``.

        Raises:
            KeyError: If a module does not exist.
        """
        return self._first(module_states, module_ids=module_ids, inference_only=inference_only)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Sets weights of the learners' modules to a result of `get_weights`; missing modules keep their weights."""
        self._change("set_weights", weights)

    def get_weights_ref(self) -> Any:
        """Puts the weights and the number of updates, as entries of an EnvRunner's state, into Ray's object store.
        Returns the Ray reference.

        All runners share one object: ``runner.set_state.remote(ref)``. A learner actor writes it into the object store
        itself, so that it does not pass through this process.

        Returns:
            Reference of ``{"rl_module": {"params": {ref: array}, "rest": {ref: array}}, "weights_seq_no": updates}``.
        """
        return RAY.put(weights_for_runners(self._local)) if self._actors is None else self._actors.weights_ref()

    def weights_for_runners(self) -> dict[str, Any]:
        """Returns the weights for env runners, see `Learner.weights_for_runners`."""
        return self._first(operator.methodcaller("weights_for_runners"))

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of the learners as ``{"learner": state}``; all learners have the same state.

        Args:
            components: ``"learner"`` or parts of it, such as ``"learner/rl_module"`` or ``"rl_module"``; None for all.
            not_components: Components to leave out.
            **kwargs: Ignored.
        """
        unwanted = _parts_of_learner(not_components or ())
        wanted = [part for part in _parts_of_learner(components or COMPONENT_LEARNER) if part not in unwanted]
        if not wanted:
            return {}
        return {COMPONENT_LEARNER: self._first(operator.methodcaller("get_state", wanted))}

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the state of all learners to a result of `get_state`; missing components keep their state."""
        if COMPONENT_LEARNER in state:
            self._change("set_state", state[COMPONENT_LEARNER])

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments of this group, for checkpoints: no positional arguments, and the keyword
        arguments ``config`` and ``module_spec``.
        """
        _, of_learner = self._first(operator.methodcaller("get_ctor_args_and_kwargs"))
        return (), {"config": self.config, "module_spec": of_learner["module_spec"]}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns the first learner as the component ``"learner"``, which checkpoints save; all learners have the same
        state.
        """
        return [(COMPONENT_LEARNER, self._first(operator.methodcaller("describe_component")))]

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        if isinstance(kwargs.get("module_spec"), MultiRLModuleSpec):
            check_fits_specs(kwargs["module_spec"], state.get(COMPONENT_LEARNER, {}).get("rl_module", {}))
        return super()._build_from_checkpoint(args, kwargs, state)

    def shutdown(self) -> None:
        """Ends the learners (and their Ray actors) of this group. Idempotent."""
        if self._actors is not None:
            self._actors.shutdown()
        elif self._learner is not None:
            self._learner.shutdown()
            self._learner = None

    # ------------------------------------------------------------------------------------------------------ old names

    def async_update(self, *args: Any, **kwargs: Any) -> Any:
        """Removed: use ``update(async_update=True)``."""
        raise ValueError("async_update(...) is gone. Use update(..., async_update=True) instead.")

    def load_module_state(self, *args: Any, **kwargs: Any) -> Any:
        """Removed: use `set_weights`."""
        raise ValueError(
            "load_module_state(...) is gone. Use set_weights({module_id: RLModule.from_checkpoint(path).get_state()}) "
            "for single modules, or Algorithm.from_checkpoint(path) for everything."
        )


def _spec_of_modules(learner: Learner) -> MultiRLModuleSpec:
    return MultiRLModuleSpec.from_module(learner.module)


def _parts_of_learner(components: str | Collection[str]) -> list[str]:
    """Converts names of components in a LearnerGroup's state to names of components in a Learner's state.

    ``"learner"`` becomes all `STATE_COMPONENTS`. Of other names, only the component remains: ``"learner/rl_module"``
    and ``"rl_module/default_policy"`` become ``"rl_module"``.
    """
    names = [components] if isinstance(components, str) else list(components)
    parts = [name.removeprefix(f"{COMPONENT_LEARNER}/").partition("/")[0] for name in names]
    return [part for name in parts for part in (STATE_COMPONENTS if name == COMPONENT_LEARNER else (name,))]
