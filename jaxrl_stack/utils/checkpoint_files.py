"""Checkpoints on disk: folders of JSON files and files of arrays, written whole or not at all, read with suspicion."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_stack.utils.array_file import read_arrays, write_arrays
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.folder_replacement import put_back, replaced
from jaxrl_stack.utils.memory import available_host_bytes, format_bytes
from jaxrl_stack.utils.plain_data import Decoder, Encoder, StoredArray, array_nodes, checksum

FORMAT_VERSION = "3.0"
METADATA_FILE = "metadata.json"
ALGORITHM_METADATA_FILE = "rllib_checkpoint.json"
CLASS_AND_CTOR_ARGS_FILE = "class_and_ctor_args.json"
STATE_FILE = "state"
ARRAYS_FILE = "arrays.safetensors"
MAX_JSON_BYTES = 1 << 26
"""Of all JSON files of a checkpoint together; far more than any state without its arrays."""
MAX_DEPTH = 100
"""Of lists and dicts inside each other; Python's own limit is not far above."""
_NOT_IN_NAMES = r"<>:\"/\\|?*\x00-\x1f\ud800-\udfff"
PART_NAME = re.compile(f"[^{_NOT_IN_NAMES}.][^{_NOT_IN_NAMES}]*")
"""Names of components: names of folders on every system."""
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".dill", ".npy", ".npz")


@dataclasses.dataclass(frozen=True)
class Component:
    """What a checkpoint says of an object, besides its state.

    Attributes:
        class_path: ``"module:Name"`` of its class; None for one that cannot be named.
        ctor: JSON of its constructor's arguments, ``{"args": [...], "kwargs": {...}}``.
        left_out: ``{where: description}`` of arguments that are no data.
        metadata: What it has to say of itself, JSON.
        state_file: Name of the file with its state, without suffix.
        metadata_file: Name of the file with the metadata.
        is_optional: Whether it has no folder where its state is empty.
        parts: Components inside this one, by name; their states stand under these names in its state.
    """

    class_path: str | None
    ctor: dict[str, Any]
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    state_file: str = STATE_FILE
    metadata_file: str = METADATA_FILE
    is_optional: bool = False
    parts: dict[str, Component] = dataclasses.field(default_factory=dict)

    def all_left_out(self) -> dict[str, str]:
        """What was left out here and in all parts."""
        out = dict(self.left_out)
        for part in self.parts.values():
            out |= part.all_left_out()
        return out


# ----------------------------------------------------------------------------------------------------------- writing


@dataclasses.dataclass
class _Folder:
    """A folder that is to be written."""

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
    """Write a checkpoint: a folder that appears, or takes the place of the one before it, in one moment.

    Args:
        path: The folder; replaced if it is a checkpoint, or empty. With a scheme, such as ``"s3://..."``, or with a
            `filesystem`: a place elsewhere.
        component: What the state belongs to.
        state: Its state: nested dicts of arrays and plain values. What it holds is copied before this returns.
        filesystem: A ``pyarrow.fs.FileSystem`` that `path` is on.
        blocking: Wait until it is written. Otherwise a thread writes it; `wait_for_saves` waits for it, and reports
            what went wrong, as do the next `write` and `read` and the end of the process.

    Returns:
        The path, absolute if it is on this machine.

    Raises:
        ValueError: If `path` exists and is no checkpoint.
        TypeError: If the state holds something else than data.
        OSError: If the files cannot be written.
    """
    _raise_failed_saves()
    folders: list[_Folder] = []
    try:
        _lay_out(Path(), component, dict(state), folders, copies=not blocking)
    except RecursionError as error:
        raise ValueError(f"The state to save to {path} is nested too deeply, or holds itself.") from error
    size = sum(len(text) for folder in folders for text in folder.files.values())
    if size > MAX_JSON_BYTES:
        raise ValueError(
            f"The state to save to {path} has {format_bytes(size)} beside its arrays, more than "
            f"{format_bytes(MAX_JSON_BYTES)}: keep long lists of numbers in NumPy arrays."
        )
    place = _remote(path, filesystem)
    if isinstance(place, _Remote):
        task: Callable[[], None] = lambda: place.send(lambda local: _write_local(local, folders))  # noqa: E731
        shown = str(path)
        _saves.run(shown, task, blocking)
        return shown
    # A link stays one: what it points to is replaced.
    target = Path(os.path.realpath(place))
    check_target(target)
    _saves.run(str(target), lambda: _write_local(target, folders), blocking)
    return str(place.absolute())


def check_target(target: Path) -> None:
    """Raise a ValueError if something else than a checkpoint is at a path, which would be lost."""
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
        if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
            return None
        if not is_checkpoint(target):
            return f"{target} exists and is no checkpoint; choose another path."
        foreign = _foreign(target)
    except FileNotFoundError:
        return None
    if not foreign:
        return None
    return (
        f"{target} is a checkpoint with other things in its folder, which would be lost: {foreign[:5]}. Move them, "
        f"or choose another path."
    )


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of this format, whatever else may be in it."""
    return _stored_metadata(path) is not None


def _stored_metadata(path: Path) -> dict[str, Any] | None:
    for name in (ALGORITHM_METADATA_FILE, METADATA_FILE):
        try:
            metadata = json.loads((path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(metadata, dict) and "checkpoint_version" in metadata and "state_file" in metadata:
            return metadata
    return None


def _foreign(path: Path) -> list[str]:
    """What is in a checkpoint's folder and not of it; hidden files, as file systems and tuners make, aside."""
    metadata = _stored_metadata(path) or {}
    parts = metadata.get("components")
    own = {
        *(ALGORITHM_METADATA_FILE, METADATA_FILE, CLASS_AND_CTOR_ARGS_FILE, ARRAYS_FILE),
        "arrays",  # a folder of versions before 3.0
        *(f"{metadata.get('state_file')}.json", *(map(str, parts) if isinstance(parts, list) else ())),
    }
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.name not in own and not (entry.name.startswith(".") and entry.is_file())
    )


def _lay_out(
    path: Path, component: Component, state: dict[str, Any], folders: list[_Folder], *, copies: bool
) -> None:
    parts = {name: state.pop(name) for name in component.parts if name in state}
    encoder = Encoder()
    plain = encoder.encode(state)
    if copies:
        encoder.arrays = {name: np.array(array) for name, array in encoder.arrays.items()}
    written = [name for name, part in parts.items() if part or not component.parts[name].is_optional]
    for name in written:
        if not is_part_name(name):
            raise ValueError(f"A component cannot be called {name!r}: its name is that of a folder in checkpoints.")
    contents = {
        component.metadata_file: {
            **component.metadata,
            "checkpoint_version": FORMAT_VERSION,
            "class_and_ctor_args_file": CLASS_AND_CTOR_ARGS_FILE,
            "state_file": component.state_file,
            "components": written,
            **_versions(),
        },
        CLASS_AND_CTOR_ARGS_FILE: {
            "class": component.class_path,
            "ctor_args_and_kwargs": component.ctor,
            "left_out": component.left_out,
        },
        f"{component.state_file}.json": plain,
    }
    folders.append(_Folder(path, {name: _to_json(content, name) for name, content in contents.items()}, encoder.arrays))
    for name in written:
        part = parts[name]
        if not isinstance(part, Mapping):
            raise TypeError(f"The state of the component {name!r} is {type(part).__name__}; it must be a dict.")
        _lay_out(path / name, component.parts[name], dict(part), folders, copies=copies)


def is_part_name(name: Any) -> bool:
    """Whether a component can have this name, which becomes that of a folder."""
    return (
        isinstance(name, str)
        and PART_NAME.fullmatch(name) is not None
        and not name.lower().endswith((".json", ".safetensors", *_PICKLES))
    )


def _to_json(content: Any, name: str) -> str:
    if not _is_shallow(content):
        raise ValueError(f"{name} of a checkpoint would be nested deeper than {MAX_DEPTH} levels, or holds itself.")
    return json.dumps(content, indent=1, allow_nan=False)


def _is_shallow(content: Any) -> bool:
    """Whether lists and dicts are inside each other at most `MAX_DEPTH` times."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return True
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    return False


def _versions() -> dict[str, str]:
    from jaxrl_stack import __version__

    return {"jaxrl_stack_version": __version__, "jax_version": jax.__version__}


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
        # Somebody may have put something else there meanwhile.
        check_target(target)


class _Saves:
    """Checkpoints that a thread is writing, one behind the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: list[tuple[str, concurrent.futures.Future[None]]] = []
        # Before the pools of this process close, at its end, which other file systems need; `atexit` is later.
        threading._register_atexit(self.wait)  # pyright: ignore[reportAttributeAccessIssue]

    def run(self, path: str, task: Callable[[], None], blocking: bool) -> None:
        """Run a task, in this thread or in the other one; tasks for one path run in order."""
        if blocking:
            self.wait(path)
            task()
            return
        with self._lock:
            waiting = [future for _, future in self._running if not future.done()]
            self._running.append((path, self._pool.submit(task)))
        # Each holds a copy of its state: whoever saves faster than the disk takes it has to wait.
        concurrent.futures.wait(waiting[: 1 - _MAX_WAITING])

    def wait(self, path: str | None = None) -> None:
        """Wait for the saves to a path, or to one that it is inside of, or for all; raises what went wrong."""
        self._collect(lambda key, future: path is None or f"{path}{os.sep}".startswith(f"{key}{os.sep}"))

    def raise_failed(self) -> None:
        """Raise what went wrong with saves that are finished."""
        self._collect(lambda key, future: future.done())

    def _collect(self, is_wanted: Callable[[str, concurrent.futures.Future[None]], bool]) -> None:
        with self._lock:
            wanted = [(key, future) for key, future in self._running if is_wanted(key, future)]
            self._running = [item for item in self._running if item not in wanted]
        errors = [(key, error) for key, future in wanted if (error := future.exception()) is not None]
        if errors:
            first = errors[0][1]
            for key, error in errors:
                first.add_note(f"While saving to {key} with blocking=False: {error!r}")
            raise first


_MAX_WAITING = 4
_saves = _Saves()
_raise_failed_saves = _saves.raise_failed


def wait_for_saves() -> None:
    """Wait until all checkpoints are written that were saved with ``blocking=False``.

    Raises:
        OSError: What went wrong on the way.
    """
    _saves.wait()


# ----------------------------------------------------------------------------------------------------------- reading


class Stored:
    """A component's folder in a checkpoint on this machine. Opening it reads its metadata.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        metadata: Its metadata.
        metadata_file: Name of the file that has them.
        parts: Names of the components inside.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If its version is unknown, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], *, _reading: _Reading | None = None):
        self.path = Path(path).absolute()
        if _reading is None:
            _saves.wait(os.path.realpath(self.path))
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
                f"The checkpoint at {self.path} has version {short(version)}{hint}, and this release reads "
                f"{FORMAT_VERSION!r}: load it with the release that wrote it, and move its weights with get_weights() "
                f"and set_weights()."
            )
        for name in os.listdir(self.path):
            if name.lower().endswith(_PICKLES):
                raise ValueError(
                    f"The checkpoint at {self.path} contains {name}: pickled files can run code, and this project "
                    f"writes none. Somebody has put it there; do not use this checkpoint."
                )
        parts = self.metadata.get("components")
        if not isinstance(parts, list) or not all(map(is_part_name, parts)):
            raise ValueError(f"The checkpoint at {self.path} is damaged: its components are {short(parts)}.")
        self.parts: tuple[str, ...] = tuple(parts)

    def __repr__(self) -> str:
        return f"Stored({str(self.path)!r}, {list(self.parts)})"

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def part(self, name: str) -> Stored:
        """The component of that name.

        Raises:
            ValueError: If there is none.
        """
        if name not in self.parts:
            raise ValueError(f"The checkpoint at {self.path} has no component {name!r}; it has {list(self.parts)}.")
        inside = self.path / name
        if inside.is_symlink():
            raise _leads_out(self.path, name)
        return Stored(inside, _reading=self._reading)

    def _file(self, name: str) -> Path:
        file = self.path / name
        if not PART_NAME.fullmatch(name) or file.is_symlink():
            raise _leads_out(self.path, name)
        if file.exists() and not file.is_file():
            raise ValueError(f"The checkpoint at {self.path} is damaged: {name} is no file.")
        return file

    def _json(self, name: str) -> dict[str, Any]:
        file = self._file(name)
        try:
            text = self._reading.text(file)
            content = json.loads(
                text, object_pairs_hook=_without_duplicates, parse_constant=_no_number, parse_float=_finite
            )
            if not _is_shallow(content):
                raise ValueError("it is nested too deeply")
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"The checkpoint at {self.path} is damaged: {name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"The checkpoint at {self.path} is damaged: {name} holds no object.")
        return content

    def component(self) -> Component:
        """What was written of this component, without its parts."""
        content = self._json(CLASS_AND_CTOR_ARGS_FILE)
        ctor, left_out = content.get("ctor_args_and_kwargs"), content.get("left_out")
        is_ctor = (
            isinstance(ctor, dict) and isinstance(ctor.get("args"), list) and isinstance(ctor.get("kwargs"), dict)
        )
        if not is_ctor or not isinstance(left_out, dict):
            raise ValueError(f"The checkpoint at {self.path} is damaged: {CLASS_AND_CTOR_ARGS_FILE} is incomplete.")
        assert isinstance(ctor, dict)
        return Component(content.get("class"), ctor, left_out, self.metadata)

    def state(self, loader: ClassLoader) -> dict[str, Any]:
        """The state with those of all parts, as it was written: nothing is returned unless all of it can be read.

        Raises:
            ValueError: If anything is damaged, does not fit into memory or is not allowed.
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
            # Parts come behind their owners.
            inner.update(own)
        self.check_same()
        return state

    def check_same(self) -> None:
        """Raise a ValueError if another checkpoint has taken the place of this one since it was opened."""
        self._reading.check_same()

    def _walk(self, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Stored, dict[str, Any]]]:
        if len(names) > MAX_DEPTH:
            raise ValueError(f"The checkpoint at {self.path} is damaged: its components are nested too deeply.")
        state_file = self.metadata.get("state_file")
        if not isinstance(state_file, str):
            raise ValueError(f"The checkpoint at {self.path} is damaged: its state_file is {short(state_file)}.")
        yield names, self, self._json(f"{state_file}.json")
        for name in self.parts:
            yield from self.part(name)._walk((*names, name))

    def _check_fits(self, arrays: list[dict[str, StoredArray]]) -> None:
        total = sum(array.num_bytes for of_one in arrays for array in of_one.values())
        available = available_host_bytes()
        if available is not None and total > available:
            raise ValueError(
                f"The checkpoint at {self.path} says that its arrays have {format_bytes(total)}; "
                f"{format_bytes(available)} of memory are free. It is damaged, or needs a larger machine."
            )

    def _decoded(self, plain: dict[str, Any], described: dict[str, StoredArray], loader: ClassLoader) -> dict[str, Any]:
        arrays = self._read_arrays(described) if described else {}
        what = f"The checkpoint at {self.path}"
        state = Decoder(loader, arrays=arrays.__getitem__, what=what).decode(plain)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError(f"{what} is damaged: its state is no dict of names.")
        both = sorted({*state} & {*self.parts})
        if both:
            raise ValueError(f"{what} is damaged: its state holds {both}, which are components.")
        return state

    def _read_arrays(self, described: dict[str, StoredArray]) -> dict[str, np.ndarray]:
        file = self._file(ARRAYS_FILE)
        try:
            arrays = read_arrays(file, {name: (array.shape, array.dtype) for name, array in described.items()})
            for name, array in arrays.items():
                if checksum(array) != described[name].crc32:
                    raise ValueError(f"the array {name} is not what was written")
        except (OSError, ValueError) as error:
            raise ValueError(f"The checkpoint at {self.path} is damaged: {ARRAYS_FILE}: {error}.") from error
        return arrays


class _Reading:
    """One checkpoint while it is read, by all its parts.

    Args:
        path: Its folder.
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
        """Raise a ValueError if another checkpoint has taken its place since."""
        if self._identify() != self._identity:
            raise ValueError(f"The checkpoint at {self._path} was replaced while it was read: load it again.")

    def text(self, file: Path) -> str:
        """The content of a file, within what all files together may have."""
        self._bytes_left -= os.stat(file).st_size
        if self._bytes_left < 0:
            raise ValueError(f"with it, the JSON files have more than {format_bytes(MAX_JSON_BYTES)}")
        return file.read_text(encoding="utf-8")


def _leads_out(path: Path, name: str) -> ValueError:
    return ValueError(
        f"The checkpoint at {path} refers to {short(name)}, which leads out of its folder. It is damaged, or somebody "
        f"has changed it; do not use it."
    )


def short(value: Any) -> str:
    """A value of a damaged file for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return content


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{short(text)} is out of range")
    return number


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], filesystem: Any = None) -> Iterator[Stored]:
    """A checkpoint, fetched to this machine if it is elsewhere.

    Args:
        path: The folder, or a place elsewhere; see `write`.
        filesystem: See `write`.
    """
    _raise_failed_saves()
    place = _remote(path, filesystem)
    if not isinstance(place, _Remote):
        stored = Stored(place)
        try:
            yield stored
        except (ValueError, OSError):
            stored.check_same()
            raise
        return
    _saves.wait(str(path))
    with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
        yield Stored(place.fetch(Path(folder) / "it"))


# --------------------------------------------------------------------------------------------------------- elsewhere

_WHOLE = ".whole"
_NAME = re.compile(f"[^{_NOT_IN_NAMES}]+")
_MAX_FILES = 100_000
_DOWNLOADS_AT_ONCE = 8
_BYTES_AT_ONCE = 1 << 22


@dataclasses.dataclass(frozen=True)
class _Remote:
    """A place on a file system that pyarrow reaches, where folders cannot be renamed, as in object stores.

    A checkpoint is copied to a place beside it first, and marked when all of it is there: from then on it counts, and
    whoever finds the mark goes on from there.
    """

    filesystem: Any
    path: str

    @property
    def _aside(self) -> str:
        return f"{self.path}.new"

    def send(self, write_local: Callable[[Path], None]) -> None:
        """Write a checkpoint here and copy it there; it takes the place of the one before it when all is there."""
        with tempfile.TemporaryDirectory(prefix="checkpoint_") as folder:
            local = Path(folder) / "it"
            write_local(local)
            self._put_in_place()
            self._check_target()
            self._delete(self._aside)
            _pyarrow_fs().copy_files(str(local), self._aside, destination_filesystem=self.filesystem)
        with self.filesystem.open_output_stream(f"{self._aside}/{_WHOLE}"):
            pass
        self._put_in_place()

    def fetch(self, local: Path) -> Path:
        """Copy the checkpoint to a folder of this machine."""
        fs = _pyarrow_fs()
        source = self.path
        parts = self.path.split("/")
        # One that is whole, but not yet in its place; this may be a component of it.
        for depth in range(len(parts), 0, -1):
            outer, inner = "/".join(parts[:depth]), parts[depth:]
            if outer and self._is_there(f"{outer}.new/{_WHOLE}"):
                source = "/".join([f"{outer}.new", *inner])
        if self.filesystem.get_file_info(source).type != fs.FileType.Directory:
            raise FileNotFoundError(f"No checkpoint at {self.path}.")
        self._download(source, local)
        return local

    def _download(self, source: str, local: Path) -> None:
        """Copy a folder to one that is not there yet.

        Names and sizes are those of somebody else: in object stores a key may hold "..", which is a name there and
        a way out of the folder here.

        Raises:
            ValueError: If a name leads out of the folder, or the disk cannot hold all files; nothing is written then.
        """
        fs = _pyarrow_fs()
        base = source.strip("/")
        infos = self.filesystem.get_file_info(fs.FileSelector(source, recursive=True))
        names = [_name_below(base, info.path) for info in infos]
        files = [(n, info) for n, info in zip(names, infos, strict=True) if info.type != fs.FileType.Directory]
        odd = [name for name, info in files if info.type != fs.FileType.File or info.size is None]
        if odd or len(infos) > _MAX_FILES:
            raise ValueError(
                f"{self.path} is no checkpoint of this project: it has {len(infos):,} files and folders"
                + (f", of which {short(odd[0])} is something else." if odd else ".")
            )
        size = sum(info.size for _, info in files)
        free = shutil.disk_usage(local.parent).free
        if size > free:
            raise ValueError(
                f"The checkpoint at {self.path} has {format_bytes(size)}, and {format_bytes(free)} are free in "
                f"{local.parent}. Point TMPDIR at a larger disk, or copy the checkpoint to a folder yourself."
            )
        for name, info in zip(names, infos, strict=True):
            folder = local / name if info.type == fs.FileType.Directory else (local / name).parent
            folder.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
            list(pool.map(lambda item: self._download_file(item[1], local / item[0]), files))

    def _download_file(self, info: Any, target: Path) -> None:
        missing = info.size
        with self.filesystem.open_input_stream(info.path, compression=None) as stream, open(target, "xb") as file:
            # One byte more than there should be: it may have grown since, or was never what it said.
            while content := stream.read(min(missing + 1, _BYTES_AT_ONCE)):
                missing -= len(content)
                if missing < 0:
                    break
                file.write(content)
        if missing:
            raise ValueError(f"{short(info.path)} has another size than its {info.size} bytes: load it again.")

    def _put_in_place(self) -> None:
        """Move a checkpoint that is whole from beside to its place."""
        mark = f"{self._aside}/{_WHOLE}"
        if not self._is_there(mark):
            return
        self._delete(self.path)
        _pyarrow_fs().copy_files(
            self._aside, self.path, source_filesystem=self.filesystem, destination_filesystem=self.filesystem
        )
        for file in (f"{self.path}/{_WHOLE}", mark):
            self.filesystem.delete_file(file)
        self._delete(self._aside)

    def _check_target(self) -> None:
        fs = _pyarrow_fs()
        there = self.filesystem.get_file_info(self.path).type
        selector = fs.FileSelector(self.path, allow_not_found=True)
        is_empty = there == fs.FileType.Directory and not self.filesystem.get_file_info(selector)
        is_checkpoint = any(self._is_there(f"{self.path}/{n}") for n in (METADATA_FILE, ALGORITHM_METADATA_FILE))
        if there != fs.FileType.NotFound and not is_empty and not is_checkpoint:
            raise ValueError(f"{self.path} exists and is no checkpoint; choose another path.")

    def _is_there(self, file: str) -> bool:
        return self.filesystem.get_file_info(file).type == _pyarrow_fs().FileType.File

    def _delete(self, folder: str) -> None:
        if self.filesystem.get_file_info(folder).type != _pyarrow_fs().FileType.NotFound:
            self.filesystem.delete_dir(folder)


def _name_below(base: str, path: str) -> str:
    """The name of a file relative to the folder that it is in.

    Raises:
        ValueError: If it is none, such as one that leads out of the folder on this machine.
    """
    folder, name = f"{base}/", path.lstrip("/")
    parts = name.removeprefix(folder).split("/")
    is_name = name.startswith(folder) and all(_NAME.fullmatch(part) and part not in (".", "..") for part in parts)
    if not is_name:
        raise _leads_out(Path(base), path)
    return "/".join(parts)


def _remote(path: str | os.PathLike[str], filesystem: Any) -> _Remote | Path:
    """The place on another file system; a path if it is on this machine, where more can be promised."""
    text = os.fspath(path)
    if filesystem is None:
        if "://" not in text:
            return Path(text)
        filesystem, text = _pyarrow_fs().FileSystem.from_uri(text)
    if filesystem.type_name == "local":
        return Path(text)
    if filesystem.type_name == "subtree" and filesystem.base_fs.type_name == "local":
        base = Path(filesystem.base_path)
        place = Path(os.path.normpath(base / text.lstrip("/")))
        if not place.is_relative_to(base):
            raise ValueError(f"{text!r} leads out of {base}, which the file system is of.")
        return place
    return _Remote(filesystem, text.rstrip("/"))


def _pyarrow_fs() -> Any:
    try:
        return importlib.import_module("pyarrow.fs")
    except ImportError as error:
        raise ImportError(
            "Checkpoints on other file systems need pyarrow: pip install pyarrow, or save to a folder of this machine."
        ) from error
