"""Learner in a Ray actor; a `LearnerGroup` with ``num_learners=N`` starts N of them."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core.experience import Experience, LostExperienceError, Share
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.utils.actor_setup import set_up_actor
from jaxrl_stack.utils.compilation_cache import enable_compilation_cache
from jaxrl_stack.utils.devices import gathered, num_cpu_devices

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import AnyRLModuleSpec


UpdateData = TrainingData | Experience | Share
"""Data of an update of one learner."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Result of an update in one learner actor: metrics and number of updates; on request also the learner's state and
    the weights for env runners.

    Attributes:
        metrics: Metrics that the Learner returned.
        num_updates: Number of updates that this learner has made.
        state: State of the learner; None if it was not requested.
        weights: Result of `weights_for_runners`; None if it was not requested.
        rows: Result of `Learner.update_rows`; None after other updates.
    """

    metrics: dict[str, Any]
    num_updates: int
    state: dict[str, Any] | None
    weights: dict[str, Any] | None
    rows: dict[Any, np.ndarray] | None = None


class LearnerActor:
    """Ray actor that owns one Learner; `LearnerGroup` starts and calls it.

    Call `join`, then `build`, before all other methods: processes cannot be joined after JAX has started its backend.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s); None takes the config's spec.
        num_cpus: CPUs of this actor.
        num_gpus: GPUs of this actor.
    """

    def __init__(
        self, *, config: AlgorithmConfig, module_spec: AnyRLModuleSpec | None, num_cpus: float, num_gpus: float
    ):
        set_up_actor(num_cpus=num_cpus, num_gpus=num_gpus, num_cpu_devices=num_cpu_devices(config))
        enable_compilation_cache(config.compilation_cache_dir or None)
        self._config = config
        self._module_spec = module_spec

    def free_address(self) -> str:
        """Returns ``"ip:port"`` with the address of this process's node and a free port."""
        # Imported here, so that the package can be used and checked without Ray.
        import ray  # pyright: ignore[reportMissingImports]

        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as listener:
            listener.bind((address, 0))
            port = listener.getsockname()[1]
        return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"

    def join(self, address: str, num_learners: int, index: int) -> None:
        """Connects this process with all other learners (``jax.distributed``). Returns when all learners have called
        `join`.

        Args:
            address: Result of `free_address` of learner 0.
            num_learners: Number of learners.
            index: Index of this learner.
        """
        jax.distributed.initialize(
            address,
            num_processes=num_learners,
            process_id=index,
            # The arguments are known; detection of a cluster such as Slurm would find other numbers.
            cluster_detection_method="deactivate",
        )

    def leave(self) -> None:
        """Disconnects this process from the other learners (undoes `join`). All learners must call `leave`; no update
        is possible afterwards.
        """
        jax.distributed.shutdown()

    def build(self) -> dict[str, Any]:
        """Builds the Learner of this actor.

        Returns:
            Properties of the learner that its group stores: number of devices and of updates, module ids, names of host
            connectors, `Learner.needs_all_final_obs` and `Learner.declared_columns`.
        """
        self.learner = self._make_learner()
        return {
            "num_devices": len(self.learner.devices),
            "module_ids": self.learner.module_ids,
            "num_updates": self.learner.num_updates,
            "host_connector_names": self.learner.host_connector_names,
            "needs_all_final_obs": self.learner.needs_all_final_obs,
            "declared_columns": self.learner.declared_columns,
        }

    def _make_learner(self) -> Learner:
        learner = self._config.learner_class(config=self._config, module_spec=self._module_spec)
        learner.build()
        return learner

    def ping(self) -> str:
        """Returns ``"pong"``, which shows that the learner actor is alive."""
        return "pong"

    def apply(self, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls ``func(learner, **kwargs)`` with the Learner of this actor, and returns the result."""
        return func(self.learner, **kwargs)

    def call(self, method: str, value: Any) -> Any:
        """Calls ``learner.method(value)`` in this actor and returns the result. If the caller passes a Ray reference as
        `value`, Ray replaces it by the referenced object.
        """
        return getattr(self.learner, method)(value)

    def update(
        self, data: UpdateData, arguments: dict[str, Any], *, wants_state: bool = False, wants_weights: bool = False
    ) -> Answer:
        """Updates the Learner of this actor with `data`, and returns the metrics and the number of updates.

        `data` is this learner's shard of the data of an update. On request, the answer also contains the learner's
        state and the weights for env runners. If `data` are rows (see `Learner.update_rows`), the answer has no
        metrics, but the values that the loss logged for each row.

        Args:
            data: `TrainingData` for `Learner.update`; rows for `Learner.update_rows`; other steps for
                `Learner.update_block`.
            arguments: Keyword arguments of that method.
            wants_state: Whether to return also the learner's state after the update.
            wants_weights: Whether to return also the weights for env runners.
        """
        learner = self.learner
        metrics: dict[str, Any] = {}
        rows = None
        if isinstance(data, TrainingData):
            metrics = learner.update(**data.given, **arguments)
        elif isinstance(data, Experience) and data.is_rows:
            rows = learner.update_rows(data, **arguments)
        else:
            metrics = learner.update_block(self._fetched(data), **arguments)
        return Answer(
            metrics=metrics,
            num_updates=learner.num_updates,
            state=learner.get_state() if wants_state else None,
            weights=weights_for_runners(learner) if wants_weights else None,
            rows=rows,
        )

    def weights_for_runners(self) -> tuple[None, dict[str, Any]]:
        """Returns two values: None, and the weights for env runners.

        Ray stores the two values as separate objects. The caller can wait for the first object to notice an error of
        the call, without fetching the weights.
        """
        return None, weights_for_runners(self.learner)

    def _fetched(self, data: Experience | Share) -> Experience:
        """Fetches this learner's steps from Ray's object store, and checks that the steps of all learners have equal
        shapes.

        Raises:
            LostExperienceError: In all learners, if one of them cannot fetch its steps.
            ValueError: See `Share.fetched` and `_check_agreement`.
        """
        try:
            experience = data.fetched()
        except LostExperienceError:
            # The others wait for this learner.
            self._check_agreement({})
            raise
        self._check_agreement(experience.modules)
        return experience

    def _check_agreement(self, block: dict[str, dict[str, Any]]) -> None:
        """Checks that the sampled steps of all learners have equal shapes.

        Otherwise learners would make different numbers of steps, and wait for each other forever.

        Args:
            block: Columns of this learner's block; {} if it could not fetch them.

        Raises:
            LostExperienceError: In all learners, if one has no block.
            ValueError: In all learners, if shapes differ.
        """
        if self.learner.num_joined_learners == 1 or self.learner.axis_name is None:
            return
        shape = np.shape(jax.tree.leaves(block)[0])[:2] if block else (0, 0)
        sizes = gathered(np.array([len(block), *shape], np.int32)).T
        smallest, largest = sizes.min(axis=1), sizes.max(axis=1)
        if not smallest[0]:
            raise LostExperienceError(
                "A learner could not fetch its samples, so all learners skipped the update. Sample again; the "
                "traceback of that learner's error shows the cause."
            )
        if (smallest != largest).any():
            raise ValueError(
                f"The samples of learners differ in shape, from [T={smallest[1]}, B={smallest[2]}] to "
                f"[T={largest[1]}, B={largest[2]}]. All EnvRunners need the same num_envs_per_env_runner "
                f"and number of steps."
            )


def weights_for_runners(learner: Learner) -> dict[str, Any]:
    """Returns the entries of an EnvRunner's state that come from the learner: weights and number of updates, as NumPy
    arrays.

    Returns:
        ``{"rl_module": {"params": {ref: array}, "rest": {ref: array}}, "weights_seq_no": updates so far}``.
    """
    return {"rl_module": learner.weights_for_runners(), "weights_seq_no": learner.num_updates}


def module_states(learner: Learner, module_ids: Collection[str] | None, inference_only: bool) -> dict[str, Any]:
    """Returns the weights and other variables of modules as NumPy arrays, ``{module_id: {"path/to/leaf": array}}``.

    Args:
        learner: The learner.
        module_ids: Ids of the modules; None for all.
        inference_only: Whether to leave out weights that only training needs.

    Raises:
        KeyError: If a module does not exist.
    """
    modules = learner.module
    wanted = list(modules) if module_ids is None else list(module_ids)
    unknown = [module_id for module_id in wanted if module_id not in modules]
    if unknown:
        raise KeyError(f"No module {unknown[0]!r} in this learner. Use one of {list(modules)}.")
    return {module_id: modules[module_id].get_state(inference_only=inference_only) for module_id in wanted}
