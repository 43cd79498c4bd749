"""Export of a policy to a folder, as a compiled program that runs without the policy's Python classes.

A folder holds ``program.jax_export`` (StableHLO, serialized by `jax.export`), ``arrays.npz`` (the weights that the
program reads, and the state before the first observation) and ``policy.json`` (spaces, shapes, dtypes, the program's
checksum). None of them holds Python code, and nothing is unpickled; but what is loaded runs as native code. Reading one
needs jax, numpy, flatbuffers and gymnasium (for spaces).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import export as jax_export

from jaxrl_stack.checkpoints.folder_replacement import replaced
from jaxrl_stack.policy.inputs import Acting, Given
from jaxrl_stack.utils.spaces import (
    MAX_SPACE_ELEMENTS,
    num_described_entries,
    shape_dtype_struct,
    space_from_dict,
    space_to_dict,
)

if TYPE_CHECKING:
    import gymnasium as gym

FORMATS = ("stablehlo",)
"""What `Policy.export` can write."""
FORMAT_VERSION = "1.0"
DESCRIPTION_FILE = "policy.json"
PROGRAM_FILE = "program.jax_export"
ARRAYS_FILE = "arrays.npz"


def write_stablehlo(
    path: str | os.PathLike[str],
    policy: Acting,
    act: Callable[..., Any],
    *,
    weights: Any,
    unread_observations: list[str],
    explore: bool,
    platforms: Sequence[str],
    batch_size: int | None,
    seed: int,
) -> str:
    """Compiles a policy and writes it to a folder; see `Policy.export`.

    Args:
        path: The folder.
        policy: Gives the spaces, the first state and a description.
        act: ``(weights, state, observations, prev_rewards, reset, key data, count) -> (actions, state, outputs)``.
        weights: Pytree of arrays.
        unread_observations: See `Acting.unread_observations`.
        explore: Whether the program samples actions.
        platforms: Platforms that it can run on.
        batch_size: The only batch size; None for any.
        seed: Seed of the random numbers of calls without a key.

    Returns:
        The folder's absolute path.

    Raises:
        ValueError: If something else is at `path`, or environments of one batch start with different states.
    """
    target = _checked_target(path)
    rows = _state_rows(policy.initial_state)
    weight_leaves, weight_structure = jax.tree.flatten(weights)
    _, state_structure = jax.tree.flatten(policy.initial_state(1))
    num_envs: Any = batch_size
    if num_envs is None:
        (num_envs,) = jax_export.symbolic_shape("b", constraints=["b >= 1"])

    def program(weight_leaves, state_leaves, *arguments):
        weights = jax.tree.unflatten(weight_structure, weight_leaves)
        state = jax.tree.unflatten(state_structure, state_leaves)
        actions, state, outputs = act(weights, state, *arguments)
        return actions, jax.tree.leaves(state), outputs

    def shape_of(leaf: Any, leading: tuple[Any, ...] = ()) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leading, *leaf.shape[len(leading) :]), leaf.dtype)

    def exported(function: Callable[..., Any], leaves: list[Any], num_envs: Any) -> jax_export.Exported:
        return jax_export.export(jax.jit(function), platforms=tuple(platforms))(
            [shape_of(leaf) for leaf in leaves],
            [shape_of(row.first, (num_envs,) if row.is_batched else ()) for row in rows],
            shape_dtype_struct(policy.observation_space, (num_envs,)),
            jax.ShapeDtypeStruct((num_envs,), np.float32),
            jax.ShapeDtypeStruct((num_envs,), np.bool_),
            jax.ShapeDtypeStruct((2,), np.uint32),
            jax.ShapeDtypeStruct((), np.uint32),
        )

    # Acting does not read all weights (value heads, say): those are no part of what is written. Only a program for a
    # batch size that is known tells which.
    kept = set(exported(program, weight_leaves, batch_size or 2).module_kept_var_idx)
    used = [index for index in range(len(weight_leaves)) if index in kept]

    def pruned(given, *arguments):
        leaves = [jax.numpy.zeros(leaf.shape, leaf.dtype) for leaf in weight_leaves]
        for index, leaf in zip(used, given, strict=True):
            leaves[index] = leaf
        return program(leaves, *arguments)

    try:
        final = exported(pruned, [weight_leaves[index] for index in used], num_envs)
    except Exception as error:
        if batch_size is None:
            error.add_note(
                "The policy was traced with a batch size that is not known. If the module or a connector needs to know "
                "it, export for one size: policy.export(path, batch_size=1)."
            )
        raise
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(weights)]
    arrays = {f"weight_{i}": np.asarray(weight_leaves[index]) for i, index in enumerate(used)}
    arrays |= {f"state_{i}": row.first for i, row in enumerate(rows)}
    about = {
        "format": "stablehlo",
        "format_version": FORMAT_VERSION,
        "jax_version": jax.__version__,
        "description": repr(policy),
        "platforms": list(final.platforms),
        "explore": bool(explore),
        "batch_size": batch_size,
        "seed": seed,
        "observation_space": space_to_dict(policy.observation_space),
        "unread_observations": unread_observations,
        "action_space": space_to_dict(policy.action_space),
        "weights": [{"name": names[index], **_shape_and_dtype(arrays[f"weight_{i}"])} for i, index in enumerate(used)],
        "state": [{"is_batched": row.is_batched, **_shape_and_dtype(row.first)} for row in rows],
        "outputs": _described(jax.tree.unflatten(final.out_tree, final.out_avals)),
    }
    program_bytes = bytes(final.serialize())
    about["program_sha256"] = _checksum(program_bytes)
    _write(target, about, program_bytes, arrays)
    return str(target)


@dataclasses.dataclass(frozen=True)
class _StateRow:
    """Array of the initial state in an exported policy: the row of one environment, ``[1, ...]``, or the whole array if
    all environments share the array.
    """

    first: np.ndarray
    is_batched: bool


def _state_rows(initial_state: Callable[[int], Any]) -> list[_StateRow]:
    two, three = (jax.tree.leaves(initial_state(n)) for n in (2, 3))
    rows = []
    for a, b in zip(two, three, strict=True):
        if jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
            raise ValueError(
                "The state of a connector or module holds a PRNG key, which an exported policy cannot store. Draw from "
                "`ctx.key` instead."
            )
        if a.shape == b.shape:
            rows.append(_StateRow(np.array(a), False))
            continue
        leaf = np.array(b)
        if a.shape[1:] != b.shape[1:] or not all(np.array_equal(leaf[:1], leaf[i : i + 1]) for i in range(3)):
            raise ValueError(
                f"An array {leaf.dtype}{list(leaf.shape)} in a connector's initial state differs between the "
                "environments of a batch, but an exported policy stores only the initial state of one environment. "
                "Return equal rows for all environments from the connector's init() and rebatch()."
            )
        rows.append(_StateRow(leaf[:1], True))
    return rows


def _shape_and_dtype(array: Any) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def _described(tree: Any) -> Any:
    """Describes the shapes and dtypes of an exported program's results as JSON, for people who read the file."""
    actions, state, outputs = jax.tree.map(lambda aval: f"{aval.dtype}{list(map(str, aval.shape))}", tree)
    return {"actions": actions, "state": state, "outputs": outputs}


def _checked_target(path: str | os.PathLike[str]) -> Path:
    target = Path(path).absolute()
    is_export = (target / DESCRIPTION_FILE).is_file()
    if target.exists() and not is_export and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{target} exists and is no exported policy. Choose another path: export() overwrites only "
            "exported policies and empty folders."
        )
    return target


def _write(target: Path, about: dict[str, Any], program: bytes, arrays: Mapping[str, np.ndarray]) -> None:
    with replaced(target) as folder:
        (folder / DESCRIPTION_FILE).write_text(json.dumps(about, indent=2), encoding="utf-8")
        (folder / PROGRAM_FILE).write_bytes(program)
        # Bytes, whatever the dtype: a file of NumPy's has no bfloat16.
        as_bytes = {name: np.frombuffer(array.tobytes(), np.uint8) for name, array in arrays.items()}
        np.savez(folder / ARRAYS_FILE, allow_pickle=False, **as_bytes)


# ----------------------------------------------------------------------------------------------------------- reading


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ExportedState:
    """Immutable pytree with the state of an exported policy between the steps of unfinished episodes.

    Each call of `compute_actions` returns a new state, which the caller passes to the next call.

    Attributes:
        leaves: Arrays, as the program wants them.
        num_envs: Number of environments of the arrays.
    """

    leaves: tuple[Any, ...]
    num_envs: int = dataclasses.field(metadata={"static": True})


class ExportedPolicy(Acting[ExportedState]):
    """Policy that was written by `Policy.export` and loaded by `load_exported`. Several threads may call it.

    Attributes:
        observation_space: Space of the environment's observations.
        action_space: Space of the environment's actions.
        explore: Whether the program samples actions.
        platforms: Platforms that it can run on.
        batch_size: The only batch size that it takes; None for any.
    """

    def __init__(
        self,
        program: jax_export.Exported,
        about: Mapping[str, Any],
        weights: Sequence[np.ndarray],
        state: Sequence[np.ndarray],
    ):
        self.observation_space: gym.Space = space_from_dict(about["observation_space"])
        # Exports of older releases do not have the entry.
        self._unread_observations = list(about.get("unread_observations", ()))
        self.action_space: gym.Space = space_from_dict(about["action_space"])
        self.explore: bool = about["explore"]
        self.platforms: tuple[str, ...] = tuple(program.platforms)
        self.batch_size: int | None = about["batch_size"]
        self._description: str = about["description"]
        self._is_batched = [leaf["is_batched"] for leaf in about["state"]]
        self._first_state = list(state)
        self._weights = [jax.numpy.asarray(array) for array in weights]
        super().__init__(about["seed"])
        self._key = jax.random.key_data(self._key)
        self._call = jax.jit(program.call)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._description}, platforms={list(self.platforms)})"

    @property
    def unread_observations(self) -> list[str]:
        return self._unread_observations

    def _initial_state(self, num_envs: int) -> ExportedState:
        leaves = tuple(
            np.repeat(leaf, num_envs, axis=0) if is_batched else leaf
            for leaf, is_batched in zip(self._first_state, self._is_batched, strict=True)
        )
        return ExportedState(leaves, num_envs)

    def _act(
        self, state: ExportedState, given: Given, explore: bool | None
    ) -> tuple[Any, ExportedState, dict[str, Any]]:
        if explore is not None and bool(explore) != self.explore:
            raise ValueError(
                f"explore={explore!r}: this policy was exported with explore={self.explore}. Export it with the other "
                f"value: policy.export(path, explore={bool(explore)})."
            )
        if given.key is not self._key:
            given = given._replace(key=jax.random.key_data(given.key))
        actions, leaves, outputs = self._call(self._weights, list(state.leaves), *given)
        actions, outputs = jax.device_get((actions, outputs))
        return actions, ExportedState(tuple(leaves), state.num_envs), outputs

    def _check_num_envs(self, num_envs: int) -> None:
        if num_envs < 1 or self.batch_size not in (None, num_envs):
            takes, remedy = "1 or more environments", "Pass at least one observation."
            if self.batch_size is not None:
                takes = f"exactly {self.batch_size} environment(s)"
                remedy = (
                    "For any number of environments, export the policy again: policy.export(path, batch_size=None)."
                )
            raise ValueError(
                f"This exported policy acts for {takes} at a time, got {num_envs} environment(s). {remedy}"
            )


def load_exported(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Loads a policy that `Policy.export` wrote. Load only trusted files: they are executed as native code in this
    process.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If there is no exported policy.
        ValueError: If its version is unknown, or it is damaged.
    """
    folder = Path(path).absolute()
    if not (folder / DESCRIPTION_FILE).is_file():
        raise FileNotFoundError(
            f"No exported policy at {folder}: it has no {DESCRIPTION_FILE}. Write one with "
            f"policy.export({str(folder)!r})."
        )
    try:
        about = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        version = about["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / DESCRIPTION_FILE} is damaged: {error!r}. Export the policy again.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"The exported policy at {folder} has version {version!r}; this release reads {FORMAT_VERSION!r}. Load it "
            f"with the release that wrote it."
        )
    try:
        # Before anything is made that may be as large as a file says.
        _check_sizes(about, folder / ARRAYS_FILE)
        program = jax_export.deserialize(_checked_program(folder / PROGRAM_FILE, about))
        with open(folder / ARRAYS_FILE, "rb") as file, np.load(file, allow_pickle=False) as stored:
            weights = [_array(stored, f"weight_{i}", leaf) for i, leaf in enumerate(about["weights"])]
            state = [_array(stored, f"state_{i}", leaf) for i, leaf in enumerate(about["state"])]
        _check_arguments(program, weights, state, [leaf["is_batched"] for leaf in about["state"]])
        return ExportedPolicy(program, about, weights, state)
    except Exception as error:  # whatever a damaged file makes the readers of three formats raise
        reason = str(error).removesuffix(".")
        raise ValueError(f"The exported policy at {folder} is damaged: {reason}. Export the policy again.") from error


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checked_program(file: Path, about: Mapping[str, Any]) -> bytearray:
    """Reads the serialized program of an exported policy, ``program.jax_export``. If the export contains a checksum,
    checks that the program has this checksum.

    Raises:
        ValueError: If the two checksums differ.
    """
    content = file.read_bytes()
    # Exports of before there were checksums have none.
    expected = about.get("program_sha256")
    if expected is not None and _checksum(content) != expected:
        raise ValueError(f"the checksum of {file.name} differs from the checksum stored in {DESCRIPTION_FILE}")
    return bytearray(content)


def _check_sizes(about: Mapping[str, Any], arrays: Path) -> None:
    """Raises ValueError if the spaces of an exported policy are too large, or if the policy's arrays are compressed.

    The spaces are too large if they have more than `MAX_SPACE_ELEMENTS` entries. Loading such a policy could need far
    more memory than the size of the policy's files.
    """
    entries = sum(num_described_entries(about[name]) for name in ("observation_space", "action_space"))
    if entries > MAX_SPACE_ELEMENTS:
        raise ValueError(
            f"the arrays of the spaces in {DESCRIPTION_FILE} have {entries:,} entries in total, more than the maximum "
            f"of {MAX_SPACE_ELEMENTS:,}"
        )
    with zipfile.ZipFile(arrays) as stored:
        packed = [info.filename for info in stored.infolist() if info.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise ValueError(f"{arrays.name} contains the compressed array {packed[0]!r}, but export() compresses no array")


def _check_arguments(program: jax_export.Exported, weights: list, state: list, is_batched: list[bool]) -> None:
    """Raises a ValueError if the stored weights and states of an exported policy do not match the arguments of its
    program.
    """
    (arguments, _) = jax.tree.unflatten(program.in_tree, program.in_avals)
    for name, given, wanted, batched in (
        ("weights", weights, arguments[0], [False] * len(weights)),
        ("states", state, arguments[1], is_batched),
    ):
        expected = [(tuple(aval.shape), aval.dtype) for aval in wanted]
        # The first axis of what is batched has one row here, and any number in the program.
        fits = len(given) == len(expected) and all(
            array.shape[row:] == shape[row:] and array.ndim == len(shape) and array.dtype == dtype
            for array, row, (shape, dtype) in zip(given, map(int, batched), expected, strict=True)
        )
        if not fits:
            raise ValueError(
                f"the stored {name} do not match the arguments of {PROGRAM_FILE} in number, shape or dtype"
            )


def _array(stored: Any, name: str, leaf: Mapping[str, Any]) -> np.ndarray:
    shape, dtype = tuple(leaf["shape"]), jax.numpy.dtype(leaf["dtype"])
    data = stored[name]
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError(
            f"the stored array {name!r} has dtype {data.dtype} and shape {list(data.shape)}, but must be uint8 with "
            "one axis"
        )
    return np.frombuffer(data.tobytes(), dtype).reshape(shape)
