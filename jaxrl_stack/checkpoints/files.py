"""Checkpoints on disk: folders of JSON files and array files, written atomically, and checked when they are read,
because their content is not trusted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_stack.checkpoints.array_file import read_arrays, write_arrays
from jaxrl_stack.checkpoints.checksums import with_checksums
from jaxrl_stack.checkpoints.folder_replacement import put_back, replaced
from jaxrl_stack.checkpoints.names import (
    ALGORITHM_METADATA_FILE,
    ARRAYS_FILE,
    CLASS_AND_CTOR_ARGS_FILE,
    METADATA_FILE,
    PART_NAME,
    PICKLES,
    STATE_FILE,
    is_part_name,
    leads_out,
    short,
)
from jaxrl_stack.checkpoints.needed_code import note_written, written_here
from jaxrl_stack.checkpoints.newest import stored_iteration
from jaxrl_stack.checkpoints.plain_data import Decoder, Encoder, StoredArray, array_nodes, checksum
from jaxrl_stack.checkpoints.remote import Remote, located, place_of
from jaxrl_stack.checkpoints.saves import saves
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.memory import available_host_bytes, format_bytes

FORMAT_VERSION = "3.0"
MAX_JSON_BYTES = 1 << 26
"""Of all JSON files of a checkpoint together; far more than any state without its arrays."""
MAX_DEPTH = 100
"""Of lists and dicts inside each other; Python's own limit is not far above."""


@dataclasses.dataclass(frozen=True)
class Component:
    """Description of an object in a checkpoint: class, constructor arguments, metadata and components,
    without the states.

    Attributes:
        class_path: ``"module:Name"`` of its class; None for a class without such a name.
        ctor: JSON of its constructor's arguments, ``{"args": [...], "kwargs": {...}}``.
        left_out: ``{path: description}`` of arguments that are not data.
        metadata: Metadata as JSON.
        state_file: Name of the file with its state, without suffix.
        metadata_file: Name of the file with the metadata.
        is_optional: Whether it has no folder if its state is empty.
        parts: Components inside of this one, by name; the state has their states under these names.
    """

    class_path: str | None
    ctor: dict[str, Any]
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    state_file: str = STATE_FILE
    metadata_file: str = METADATA_FILE
    is_optional: bool = False
    parts: dict[str, Component] = dataclasses.field(default_factory=dict)

    def with_parts(self) -> Iterator[Component]:
        """Yields this `Component` (the description of an object in a checkpoint), and then recursively all components
        inside it.
        """
        yield self
        for part in self.parts.values():
            yield from part.with_parts()

    def all_left_out(self) -> dict[str, str]:
        """Returns the constructor arguments that the checkpoint omits because they are not data (such as code).

        The result, ``{path: description}``, contains the arguments of this component and of all components inside it.
        """
        return {where: text for one in self.with_parts() for where, text in one.left_out.items()}


# ----------------------------------------------------------------------------------------------------------- writing


@dataclasses.dataclass
class _Folder:
    """Contents of one checkpoint folder before they are written to disk: JSON files and arrays."""

    path: Path
    files: dict[str, str]
    arrays: dict[str, np.ndarray]


def write(
    path: str | os.PathLike[str],
    component: Component,
    state: Mapping[str, Any],
    *,
    filesystem: Any = None,
    blocking: bool = True,
) -> str:
    """Writes a checkpoint folder atomically; replaces an earlier checkpoint at the path.

    Args:
        path: The folder; replaced if it is a checkpoint or empty. With a scheme, such as ``"s3://..."``, or with a
            `filesystem`, a path on another file system.
        component: Description of the object.
        state: State of the object: nested dicts of arrays and plain values, which are copied before this returns.
        filesystem: The ``pyarrow.fs.FileSystem`` of `path`.
        blocking: Whether to wait until it is written. Otherwise a thread writes it; `wait_for_saves` waits for it and
            reports errors, as do the next `write` and `read` and the end of the process.

    Returns:
        The path, absolute if it is on this machine.

    Raises:
        ValueError: If `path` exists and is not a checkpoint.
        TypeError: If the state contains anything but data.
        OSError: If the files cannot be written.
    """
    saves.raise_failed()
    try:
        folders = list(_folders(Path(), component, dict(state), copies=not blocking))
    except RecursionError as error:
        raise ValueError(
            f"The state to save to {path} is nested too deeply, or contains itself. Return flatter dicts from "
            "get_state()."
        ) from error
    _add_checksums(folders, component.metadata_file)
    size = sum(len(text) for folder in folders for text in folder.files.values())
    if size > MAX_JSON_BYTES:
        raise ValueError(
            f"The state to save to {path} has {format_bytes(size)} of data outside of arrays, more than the maximum of "
            f"{format_bytes(MAX_JSON_BYTES)}. Keep long lists of numbers in NumPy arrays."
        )
    place = place_of(path, filesystem)
    if isinstance(place, Remote):
        saves.run(str(path), lambda: place.send(lambda local: _write_local(local, folders)), blocking)
        return str(path)
    # A link stays one: what it points to is replaced.
    target = Path(os.path.realpath(place))
    check_target(target)
    saves.run(str(target), lambda: _write_local(target, folders), blocking)
    return str(place.absolute())


def check_target(target: Path) -> None:
    """Raises a ValueError if `target` is a file, or a folder that contains anything except a checkpoint. Writing a
    checkpoint to this path would destroy the content.
    """
    problem = None
    for _ in range(6):
        problem = _problem_with(target)
        if problem is None:
            return
        # Another thread or process may be exchanging its own checkpoint with this one between two of these looks.
        time.sleep(0.02)
    raise ValueError(problem)


def _problem_with(target: Path) -> str | None:
    try:
        entries = [*os.scandir(target)]
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return f"{target} exists and is no checkpoint; choose another path."
    metadata = _stored_metadata(target)
    if metadata is None:
        return f"{target} exists and is no checkpoint; choose another path." if entries else None
    parts = metadata.get("components")
    own = {
        *(ALGORITHM_METADATA_FILE, METADATA_FILE, CLASS_AND_CTOR_ARGS_FILE, ARRAYS_FILE),
        "arrays",  # a folder of versions before 3.0
        *(f"{metadata.get('state_file')}.json", *(map(str, parts) if isinstance(parts, list) else ())),
    }
    # Hidden files, as file systems and tuners make, do not count.
    foreign = sorted(e.name for e in entries if e.name not in own and not (e.name.startswith(".") and e.is_file()))
    if not foreign:
        return None
    return (
        f"{target} is a checkpoint, but its folder also contains {foreign[:5]}, which would be deleted. Move them, "
        f"or choose another path."
    )


def _stored_metadata(path: Path) -> dict[str, Any] | None:
    for name in (ALGORITHM_METADATA_FILE, METADATA_FILE):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            metadata = json.loads((path / name).read_text(encoding="utf-8"))
            if isinstance(metadata, dict) and "checkpoint_version" in metadata and "state_file" in metadata:
                return metadata
    return None


def _folders(path: Path, component: Component, state: dict[str, Any], *, copies: bool) -> Iterator[_Folder]:
    from jaxrl_stack import __version__

    parts = {name: state.pop(name) for name in component.parts if name in state}
    encoder = Encoder()
    plain = encoder.encode(state)
    if copies:
        encoder.arrays = {name: np.array(array) for name, array in encoder.arrays.items()}
    written = [name for name, part in parts.items() if part or not component.parts[name].is_optional]
    for name in written:
        if not is_part_name(name):
            raise ValueError(
                f"A component of a checkpoint cannot be called {name!r}: the name becomes the name of a folder. Use "
                "letters, digits and _."
            )
    contents = {
        component.metadata_file: {
            **component.metadata,
            "checkpoint_version": FORMAT_VERSION,
            "class_and_ctor_args_file": CLASS_AND_CTOR_ARGS_FILE,
            "state_file": component.state_file,
            "components": written,
            "jaxrl_stack_version": __version__,
            "jax_version": jax.__version__,
        },
        CLASS_AND_CTOR_ARGS_FILE: {
            "class": component.class_path,
            "ctor_args_and_kwargs": component.ctor,
            "left_out": component.left_out,
        },
        f"{component.state_file}.json": plain,
    }
    files = {name: _to_json(content, name) for name, content in contents.items()}
    inside = list(component.with_parts())
    note_written(files[CLASS_AND_CTOR_ARGS_FILE], [one.ctor for one in inside], [one.class_path for one in inside])
    yield _Folder(path, files, encoder.arrays)
    for name in written:
        part = parts[name]
        if not isinstance(part, Mapping):
            raise TypeError(
                f"The state of the component {name!r} must be a dict, not {type(part).__name__}. Return one from its "
                "get_state()."
            )
        yield from _folders(path / name, component.parts[name], dict(part), copies=copies)


def _add_checksums(folders: Sequence[_Folder], metadata_file: str) -> None:
    """Adds checksums of all JSON files in a checkpoint to the checkpoint's metadata file.

    The metadata file is in the root folder, ``folders[0]``. It gets a checksum of the metadata, and a checksum of each
    other JSON file in the checkpoint.
    """
    files = {(own.path / name).as_posix(): text for own in folders for name, text in own.files.items()}
    metadata = json.loads(files.pop(metadata_file))
    folders[0].files[metadata_file] = _to_json(with_checksums(metadata, files), metadata_file)


def _to_json(content: Any, name: str) -> str:
    if not _is_shallow(content):
        raise ValueError(
            f"The content for {name} of a checkpoint is nested deeper than {MAX_DEPTH} levels, or contains itself. "
            "Return flatter dicts and lists from get_state() and get_ctor_args_and_kwargs()."
        )
    return json.dumps(content, indent=1, allow_nan=False)


def _is_shallow(content: Any) -> bool:
    """Whether the lists and dicts in JSON content are nested at most `MAX_DEPTH` levels deep."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return True
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    return False


def _write_local(target: Path, folders: list[_Folder]) -> None:
    with replaced(target) as aside:
        for folder in folders:
            place = aside / folder.path
            place.mkdir(exist_ok=True)
            for name, text in folder.files.items():
                with open(place / name, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            if folder.arrays:
                write_arrays(place / ARRAYS_FILE, folder.arrays)
        # Something else may be there meanwhile.
        check_target(target)


# ----------------------------------------------------------------------------------------------------------- reading


class Stored:
    """Folder of a component (a stored object) in a checkpoint on this machine. The constructor reads the component's
    metadata.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        metadata: Metadata of the component.
        metadata_file: Name of the metadata file.
        parts: Names of the components inside.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If its version is unknown, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], *, _reading: _Reading | None = None):
        self.path = Path(path).absolute()
        if _reading is None:
            saves.wait(os.path.realpath(self.path))
            for place in (*reversed(self.path.parents), self.path):
                if not place.exists():
                    put_back(Path(os.path.realpath(place)))
        names = [name for name in (ALGORITHM_METADATA_FILE, METADATA_FILE) if (self.path / name).is_file()]
        if not names:
            raise FileNotFoundError(
                f"No checkpoint at {self.path}: it has no {METADATA_FILE}. Pass a folder that save_to_path() wrote."
            )
        self._reading = _Reading(self.path, names[0]) if _reading is None else _reading
        self.metadata_file = names[0]
        self.metadata = self._json(names[0])
        version = self.metadata.get("checkpoint_version")
        if version != FORMAT_VERSION:
            hint = " (RLlib wrote it, with pickled files)" if "ray_commit" in self.metadata else ""
            raise ValueError(
                f"The checkpoint at {self.path} has version {short(version)}{hint}, but this release reads "
                f"{FORMAT_VERSION!r}. Load it with the release that wrote it, and copy the weights with get_weights() "
                "and set_weights()."
            )
        for name in os.listdir(self.path):
            if name.lower().endswith(PICKLES):
                raise ValueError(
                    f"The checkpoint at {self.path} contains {name}: pickled files can run code, and this package "
                    f"writes none. Do not use this checkpoint."
                )
        parts = self.metadata.get("components")
        if not isinstance(parts, list) or not all(map(is_part_name, parts)):
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: 'components' in {names[0]} must be a list of names, not "
                f"{short(parts)}. Use another checkpoint."
            )
        self.parts: tuple[str, ...] = tuple(parts)

    def __repr__(self) -> str:
        return f"Stored({str(self.path)!r}, {list(self.parts)})"

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def part(self, name: str) -> Stored:
        """Returns the component `name` inside this stored component, such as the learner inside a learner group.

        Raises:
            ValueError: If this component has no part with the name.
        """
        if name not in self.parts:
            raise ValueError(
                f"The checkpoint at {self.path} has no component {name!r}; it has {list(self.parts)}. Use a checkpoint "
                "with this component."
            )
        inside = self.path / name
        if inside.is_symlink():
            raise leads_out(self.path, name)
        return Stored(inside, _reading=self._reading)

    def _file(self, name: str) -> Path:
        file = self.path / name
        if not PART_NAME.fullmatch(name) or file.is_symlink():
            raise leads_out(self.path, name)
        if file.exists() and not file.is_file():
            raise ValueError(f"The checkpoint at {self.path} is damaged: {name} is not a file. Use another checkpoint.")
        return file

    def _json(self, name: str) -> dict[str, Any]:
        file = self._file(name)
        try:
            text = self._reading.text(file)
            content = json.loads(
                text, object_pairs_hook=_without_duplicates, parse_constant=_finite, parse_float=_finite
            )
            if not _is_shallow(content):
                raise ValueError("the file's lists and dicts are nested too deeply")
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: {name} cannot be read ({error}). Use another checkpoint."
            ) from error
        if not isinstance(content, dict):
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: {name} contains no JSON object. Use another checkpoint."
            )
        return content

    def component(self) -> Component:
        """Reads the description of this stored object: class, constructor arguments and metadata. Components inside the
        object are left out.
        """
        content = self._json(CLASS_AND_CTOR_ARGS_FILE)
        ctor, left_out = content.get("ctor_args_and_kwargs"), content.get("left_out")
        is_ctor = isinstance(ctor, dict) and isinstance(ctor.get("args"), list) and isinstance(ctor.get("kwargs"), dict)
        if not is_ctor or not isinstance(left_out, dict):
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: {CLASS_AND_CTOR_ARGS_FILE} is incomplete. Use another "
                "checkpoint."
            )
        assert isinstance(ctor, dict)
        return Component(content.get("class"), ctor, left_out, self.metadata)

    def code_written_here(self) -> dict[str, Any]:
        """Returns the classes and functions that this stored component and all components inside it refer to, if this
        process wrote the checkpoint; otherwise {}.

        The result is ``{"module:Name": class or function}``. Methods that load checkpoints, such as `from_checkpoint`,
        trust this code: users need not list it in their argument ``allow``.
        """
        file = self._file(CLASS_AND_CTOR_ARGS_FILE)
        return written_here(self._reading.text(file)) if file.is_file() else {}

    def state(self, loader: ClassLoader) -> dict[str, Any]:
        """Reads the stored states of this component and of all components inside it, as one nested dict.

        Raises:
            ValueError: If anything is damaged, does not fit into memory, or is not allowed.
        """
        everything = list(self._walk(()))
        arrays = [array_nodes(plain, f"The checkpoint at {stored.path}") for _, stored, plain in everything]
        self._check_fits(arrays)
        state: dict[str, Any] = {}
        for (names, stored, plain), described in zip(everything, arrays, strict=True):
            own = stored._decoded(plain, described, loader)
            inner = state
            for name in names:
                inner = inner.setdefault(name, {})
            # Parts come after their owners.
            inner.update(own)
        self._reading.check_same()
        return state

    def _walk(self, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Stored, dict[str, Any]]]:
        if len(names) > MAX_DEPTH:
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: the folders of its components are nested too deeply. Use "
                "another checkpoint."
            )
        state_file = self.metadata.get("state_file")
        if not isinstance(state_file, str):
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: 'state_file' in {self.metadata_file} must be a file name, "
                f"not {short(state_file)}. Use another checkpoint."
            )
        yield names, self, self._json(f"{state_file}.json")
        for name in self.parts:
            yield from self.part(name)._walk((*names, name))

    def _check_fits(self, arrays: list[dict[str, StoredArray]]) -> None:
        total = sum(array.num_bytes for of_one in arrays for array in of_one.values())
        available = available_host_bytes()
        if available is not None and total > available:
            raise ValueError(
                f"The arrays of the checkpoint at {self.path} need {format_bytes(total)} of memory, but only "
                f"{format_bytes(available)} are free. Free memory, or load the checkpoint on a machine with more "
                "memory. If the arrays cannot be so large, the checkpoint is damaged."
            )

    def _decoded(self, plain: dict[str, Any], described: dict[str, StoredArray], loader: ClassLoader) -> dict[str, Any]:
        arrays = self._read_arrays(described) if described else {}
        what = f"The checkpoint at {self.path}"
        state = Decoder(loader, arrays=arrays.__getitem__, what=what).decode(plain)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError(f"{what} is damaged: its state is not a dict with text keys. Use another checkpoint.")
        both = sorted({*state} & {*self.parts})
        if both:
            raise ValueError(
                f"{what} is damaged: the names {both} occur in its state file and also among its components. Use "
                "another checkpoint."
            )
        return state

    def _read_arrays(self, described: dict[str, StoredArray]) -> dict[str, np.ndarray]:
        file = self._file(ARRAYS_FILE)
        try:
            arrays = read_arrays(file, {name: (array.shape, array.dtype) for name, array in described.items()})
            for name, array in arrays.items():
                if checksum(array) != described[name].crc32:
                    raise ValueError(f"the checksum of the array {name} differs from the checksum in the JSON file")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"The checkpoint at {self.path} is damaged: {ARRAYS_FILE}: {error}. Use another checkpoint."
            ) from error
        return arrays


class _Reading:
    """Access to the files of one checkpoint during reading, shared by all components of the checkpoint.

    Detects that the checkpoint was replaced during reading, and limits the total size of the JSON files that are read.

    Args:
        path: Folder of the checkpoint.
        metadata_file: Name of a file that every save writes.
    """

    def __init__(self, path: Path, metadata_file: str):
        self._path, self._metadata_file = path, metadata_file
        self._identity = self._identify()
        self._bytes_left = MAX_JSON_BYTES

    def _identify(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path / self._metadata_file)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def check_same(self) -> None:
        """Raises ValueError if the checkpoint was replaced by another one during reading."""
        if self._identify() != self._identity:
            raise ValueError(f"The checkpoint at {self._path} was replaced while it was read. Load it again.")

    def text(self, file: Path) -> str:
        """Reads a text file of the checkpoint; raises ValueError if all files read so far exceed the limit on their
        total size.
        """
        self._bytes_left -= os.stat(file).st_size
        if self._bytes_left < 0:
            raise ValueError(
                f"the checkpoint's JSON files are together larger than the maximum of {format_bytes(MAX_JSON_BYTES)}"
            )
        return file.read_text(encoding="utf-8")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} occurs twice")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {short(text)} is not finite as a 64-bit float")
    return number


@contextlib.contextmanager
def opened(path: Any, filesystem: Any = None) -> Iterator[Stored]:
    """Context manager that opens a checkpoint, after copying it to this machine if it is on another file system.

    Args:
        path: The folder, a path on another file system (see `write`), or an object with a path; see `located`.
        filesystem: See `write`.
    """
    saves.raise_failed()
    path, filesystem = located(path, filesystem)
    place = place_of(path, filesystem)
    if not isinstance(place, Remote):
        stored = Stored(stored_iteration(place))
        try:
            yield stored
        except (ValueError, OSError):
            stored._reading.check_same()
            raise
        return
    saves.wait(path)
    with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
        yield Stored(place.fetch(Path(folder) / "it"))
