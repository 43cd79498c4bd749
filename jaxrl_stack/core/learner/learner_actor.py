"""A Learner in a process of its own: what a `LearnerGroup` starts N of with ``num_learners=N``."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.row_blocks import module_of_columns
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.utils.actor_setup import set_up_actor
from jaxrl_stack.utils.compilation_cache import enable_compilation_cache

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec


class LostBlocksError(RuntimeError):
    """A block of an update is gone from Ray's object store, with the node that held it. Nothing was learned."""


@dataclasses.dataclass(frozen=True)
class BlockShare:
    """One learner's part of several blocks.

    Attributes:
        blocks: The blocks that it has columns of, or Ray references of them.
        start: Where its columns begin, in blocks after the start of the first one.
        length: How many columns it has, in blocks. None: all of them.
    """

    blocks: Sequence[Any]
    start: Fraction = Fraction(0)
    length: Fraction | None = None


@dataclasses.dataclass(frozen=True)
class RowShare:
    """One learner's part of a batch for `Learner.update_rows`.

    Attributes:
        batch: ``{module_id: {column: [N, ...]}}``, NumPy.
    """

    batch: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Request:
    """One update, as the driver asks for it.

    Attributes:
        data: `TrainingData` for `Learner.update`, a `BlockShare` for `Learner.update_block`, or a `RowShare` for
            `Learner.update_rows`.
        arguments: Keyword arguments of that method.
        wants_state: Whether to return the learner's whole state after the update, too.
        wants_weights: Whether to return what env runners need of it.
    """

    data: TrainingData | BlockShare | RowShare
    arguments: dict[str, Any]
    wants_state: bool = False
    wants_weights: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one learner's update came to.

    Attributes:
        metrics: What the Learner returned.
        num_updates: Updates that this learner has made.
        state: Its state, if it was asked for.
        weights: See `weights_for_runners`, if they were asked for.
        rows: What `Learner.update_rows` returned; None after other updates.
    """

    metrics: dict[str, Any]
    num_updates: int
    state: dict[str, Any] | None
    weights: dict[str, Any] | None
    rows: dict[Any, np.ndarray] | None = None


class LearnerActor:
    """Holds a Learner; `LearnerGroup` makes a Ray actor of it.

    `join` and `build` come before everything else: once JAX has started its backend, processes cannot be joined.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s); None takes the config's own.
        num_cpus: CPUs of this actor.
        num_gpus: GPUs of this actor.
    """

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        module_spec: RLModuleSpec | MultiRLModuleSpec | None,
        num_cpus: float,
        num_gpus: float,
    ):
        num_devices = 1 if config.num_cpus_per_learner in ("auto", None) else int(config.num_cpus_per_learner)
        set_up_actor(num_cpus=num_cpus, num_gpus=num_gpus, num_cpu_devices=max(1, num_devices))
        enable_compilation_cache(config.compilation_cache_dir or None)
        self._config = config
        self._module_spec = module_spec

    def free_address(self) -> str:
        """``"ip:port"`` of this process's node, a port that is free."""
        # Ray is imported only where it runs, and a checkout can be checked without it.
        import ray  # pyright: ignore[reportMissingImports]

        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as listener:
            listener.bind((address, 0))
            port = listener.getsockname()[1]
        return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"

    def join(self, address: str, num_learners: int, index: int) -> None:
        """Put the devices of all learners on one axis. Returns when all of them have called it.

        Args:
            address: From `free_address` of learner 0.
            num_learners: Number of learners.
            index: This one's number.
        """
        jax.distributed.initialize(
            address,
            num_processes=num_learners,
            process_id=index,
            # What this process is a part of is known; an environment such as Slurm's would give other numbers.
            cluster_detection_method="deactivate",
        )

    def leave(self) -> None:
        """Undo `join`; all learners have to do it. No update can follow."""
        jax.distributed.shutdown()

    def build(self) -> dict[str, Any]:
        """Build the learner.

        Returns:
            What the group says of it without asking again.
        """
        self.learner: Learner = self._config.learner_class(config=self._config, module_spec=self._module_spec)
        self.learner.build()
        return {
            "num_devices": len(self.learner.devices),
            "module_ids": self.learner.module_ids,
            "num_updates": self.learner.num_updates,
            "host_connector_names": self.learner.host_connector_names,
            "needs_all_final_obs": self.learner.needs_all_final_obs,
        }

    def ping(self) -> str:
        """Answer, to show that the actor lives."""
        return "pong"

    def apply(self, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        """``func(learner, **kwargs)``."""
        return func(self.learner, **kwargs)

    def call(self, method: str, value: Any) -> Any:
        """``learner.method(value)``; Ray puts the object in the place of a reference to it."""
        return getattr(self.learner, method)(value)

    def update(self, request: Request) -> Answer:
        """Make an update."""
        learner, data = self.learner, request.data
        metrics: dict[str, Any] = {}
        rows = None
        if isinstance(data, RowShare):
            rows = learner.update_rows(data.batch, **request.arguments)
        elif isinstance(data, TrainingData):
            metrics = learner.update(**data.given, **request.arguments)
        else:
            metrics = learner.update_block(self._assembled(data), **request.arguments)
        return Answer(
            metrics=metrics,
            num_updates=learner.num_updates,
            state=learner.get_state() if request.wants_state else None,
            weights=weights_for_runners(learner) if request.wants_weights else None,
            rows=rows,
        )

    def weights_for_runners(self) -> tuple[None, dict[str, Any]]:
        """Two results: one that says that all is well, and the weights, which need not be fetched to know that."""
        return None, weights_for_runners(self.learner)

    def _assembled(self, share: BlockShare) -> dict[str, dict[str, Any]]:
        """This learner's block.

        Raises:
            LostBlocksError: In all learners, if one of them cannot get a block.
            ValueError: See `assemble` and `_check_agreement`.
        """
        try:
            block = assemble(share, self.learner.module_ids)
        except LostBlocksError:
            # The others wait for this learner.
            self._check_agreement({})
            raise
        self._check_agreement(block)
        return block

    def _check_agreement(self, block: dict[str, dict[str, Any]]) -> None:
        """Make sure that all learners have blocks of the same shape: others would make other numbers of steps, and
        wait for each other forever.

        Args:
            block: This learner's; empty if it could not get it.

        Raises:
            LostBlocksError: In all learners, if one has none.
            ValueError: In all learners.
        """
        if self.learner.num_joined_learners == 1 or self.learner.axis_name is None:
            return
        shape = np.shape(jax.tree.leaves(block)[0])[:2] if block else (0, 0)
        sizes = self.learner.gathered([len(block), *shape])
        smallest, largest = sizes.min(axis=1), sizes.max(axis=1)
        if not smallest[0]:
            raise LostBlocksError("Another learner could not get a block of this update.")
        if (smallest != largest).any():
            raise ValueError(
                f"The learners' blocks differ: between [T={smallest[1]}, B={smallest[2]}] and [T={largest[1]}, "
                f"B={largest[2]}]. All runners of one update need the same num_envs_per_env_runner and number of "
                f"steps."
            )


def weights_for_runners(learner: Learner) -> dict[str, Any]:
    """The part of an env runner's state that comes from the learner, as NumPy arrays.

    Returns:
        ``{"rl_module": {"params": {ref: array}, "rest": {ref: array}}, "weights_seq_no": updates so far}``.
    """
    return {"rl_module": learner.weights_for_runners(), "weights_seq_no": learner.num_updates}


def module_states(learner: Learner, module_ids: Collection[str] | None, inference_only: bool) -> dict[str, Any]:
    """``{module_id: {name: array}}`` of the named modules, or of all.

    Raises:
        KeyError: For a module that is not there.
    """
    modules = learner.module
    wanted = list(modules) if module_ids is None else list(module_ids)
    unknown = [module_id for module_id in wanted if module_id not in modules]
    if unknown:
        raise KeyError(f"No module {unknown[0]!r}; there are {list(modules)}.")
    return {module_id: modules[module_id].get_state(inference_only=inference_only) for module_id in wanted}


# --------------------------------------------------------------------------------------------------------------- blocks


def assemble(share: BlockShare, module_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The columns of a share, as one block ``{module_id: {column: [T, B, ...]}}``.

    Args:
        share: Its blocks are ``{module_id: columns}``, ``columns`` of the only module, objects with an attribute
            ``columns`` of one of these kinds, or Ray references of any of them.
        module_ids: The learner's modules.

    Raises:
        LostBlocksError: If a block is not in Ray's object store any more.
        ValueError: If blocks differ in columns or number of steps, or the share would end within a column.
    """
    blocks = [_by_module(_resolved(block), module_ids) for block in share.blocks]
    for block in blocks[1:]:
        if jax.tree.structure(block) != jax.tree.structure(blocks[0]):
            first, other = ({mid: sorted(columns) for mid, columns in each.items()} for each in (blocks[0], block))
            raise ValueError(f"The blocks of one update differ in their columns: {first} and {other}.")
    shapes = {np.shape(jax.tree.leaves(block)[0])[:2] for block in blocks}
    if share.length is None or share.length == len(blocks):
        if len({num_steps for num_steps, _ in shapes}) > 1:
            raise ValueError(f"The blocks of one update differ in their numbers of steps: {_listed(shapes)}.")
        if len(blocks) == 1:
            return blocks[0]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *blocks)
    if len(shapes) > 1:
        raise ValueError(
            f"Blocks of which learners take parts must have the same shape; these have {_listed(shapes)}. Make the "
            f"number of blocks a multiple of num_learners."
        )
    ((_, num_columns),) = shapes
    start, stop = share.start * num_columns, (share.start + share.length) * num_columns
    if start.denominator > 1 or stop.denominator > 1:
        raise ValueError(
            f"Blocks of {num_columns} columns cannot be dealt out to learners that get {share.length} blocks each: "
            f"make num_envs_per_env_runner a multiple of {share.length.denominator}, or the number of env runners one "
            f"of num_learners."
        )

    def cut(*leaves: Any) -> np.ndarray:
        parts = [
            leaf[:, max(int(start) - i * num_columns, 0) : min(int(stop) - i * num_columns, num_columns)]
            for i, leaf in enumerate(leaves)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    return jax.tree.map(cut, *blocks)


def deal_out_blocks(blocks: Sequence[Any], num_learners: int) -> list[BlockShare]:
    """Deal the columns of blocks, laid end to end, out to learners in equal runs.

    Args:
        blocks: See `assemble`. Where they stay references, all blocks must have the same number of columns.
        num_learners: Number of learners.
    """
    # What else such an object holds stays here.
    blocks = [b if isinstance(b, Mapping) or is_reference(b) else b.columns for b in blocks]
    share = Fraction(len(blocks), num_learners)
    out = []
    for i in range(num_learners):
        start = i * share
        first, last = start.__floor__(), (start + share).__ceil__()
        out.append(BlockShare(blocks[first:last], start - first, share))
    return out


def _resolved(block: Any) -> Any:
    """The columns of a block, whatever stands for them."""
    for _ in range(2):  # A reference of an object whose columns are a reference is the deepest there is.
        if is_reference(block):
            block = _fetched(block)
        if not isinstance(block, Mapping) and not is_reference(block):
            block = block.columns
    return block


def _fetched(reference: Any) -> Any:
    # Ray is imported only where it runs, and a checkout can be checked without it.
    import ray  # pyright: ignore[reportMissingImports]
    import ray.exceptions  # pyright: ignore[reportMissingImports]

    try:
        return ray.get(reference)
    except ray.exceptions.ObjectLostError as error:
        raise LostBlocksError(f"A block that was sampled is lost: {error}") from error


def is_reference(value: Any) -> bool:
    """Whether a value is a Ray reference. Does not import Ray, which is there where a reference is."""
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(value, ray.ObjectRef)


def has_references(block: Any) -> bool:
    """Whether it takes Ray to see the columns of a block."""
    return is_reference(block) or (not isinstance(block, Mapping) and is_reference(block.columns))


def _by_module(columns: Mapping[str, Any], module_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    if all(key in module_ids for key in columns):
        return {module_id: dict(own) for module_id, own in columns.items()}
    return {module_of_columns(module_ids, "blocks"): dict(columns)}


def _listed(shapes: Collection[tuple[int, ...]]) -> str:
    return ", ".join(f"[T={t}, B={b}]" for t, b in sorted(shapes))
