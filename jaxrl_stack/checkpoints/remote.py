"""Checkpoints on file systems that pyarrow supports, such as object stores."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE, METADATA_FILE, NOT_IN_NAMES, leads_out, short
from jaxrl_stack.utils.memory import format_bytes
from jaxrl_stack.utils.optional_packages import optional_import

_WHOLE = ".whole"
_NAME = re.compile(f"[^{NOT_IN_NAMES}]+")
_MAX_FILES = 100_000
_DOWNLOADS_AT_ONCE = 8
_BYTES_AT_ONCE = 1 << 22


@dataclasses.dataclass(frozen=True)
class Remote:
    """Path on a file system supported by pyarrow that cannot rename folders, such as an object store.

    A checkpoint is first copied to a path next to it, and marked as complete after the copy. From then on it is valid,
    and a process that finds the mark continues the replacement.
    """

    filesystem: Any
    path: str

    @property
    def _aside(self) -> str:
        return f"{self.path}.new"

    def send(self, write_local: Callable[[Path], None]) -> None:
        """Writes a checkpoint and uploads it to this remote path, where it replaces the earlier checkpoint.

        The checkpoint is first written to a temporary local folder. Then the files are uploaded to a path next to this
        remote path. The replacement begins only after all files are uploaded.
        """
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
        """Copies the checkpoint at this remote path to a local folder."""
        fs = _pyarrow_fs()
        source = self.path
        parts = self.path.split("/")
        # One that is whole, but not yet in its place; this may be a component of it.
        for depth in range(len(parts), 0, -1):
            outer, inner = "/".join(parts[:depth]), parts[depth:]
            if outer and self._is_there(f"{outer}.new/{_WHOLE}"):
                source = "/".join([f"{outer}.new", *inner])
        if self.filesystem.get_file_info(source).type != fs.FileType.Directory:
            raise FileNotFoundError(f"No checkpoint at {self.path}. Pass a folder that save_to_path() wrote.")
        self._download(source, local)
        return local

    def _download(self, source: str, local: Path) -> None:
        """Copies a remote folder to a new local folder.

        Names and sizes are not trusted: a key of an object store may contain "..", which would lead out of the folder
        on this machine.

        Raises:
            ValueError: If a name leads out of the folder, or the disk is too small. Nothing is written then.
        """
        fs = _pyarrow_fs()
        base = source.strip("/")
        infos = self.filesystem.get_file_info(fs.FileSelector(source, recursive=True))
        names = [_name_below(base, info.path) for info in infos]
        files = [(n, info) for n, info in zip(names, infos, strict=True) if info.type != fs.FileType.Directory]
        odd = [name for name, info in files if info.type != fs.FileType.File or info.size is None]
        if odd or len(infos) > _MAX_FILES:
            raise ValueError(
                f"{self.path} is not a checkpoint that save_to_path() wrote: "
                + (
                    f"{short(odd[0])} is not a regular file. Pass another path."
                    if odd
                    else f"it has {len(infos):,} files and folders, more than the maximum of {_MAX_FILES:,}. Pass "
                    "another path."
                )
            )
        size = sum(info.size for _, info in files)
        free = shutil.disk_usage(local.parent).free
        if size > free:
            raise ValueError(
                f"The checkpoint at {self.path} has {format_bytes(size)}. Loading copies it to {local.parent}, where "
                f"only {format_bytes(free)} are free. Set TMPDIR to a folder of a larger disk, or copy the checkpoint "
                f"to a local folder and load the copy."
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
            raise ValueError(
                f"The size of the file {short(info.path)} changed during the copy; it was {info.size} bytes. Load the "
                "checkpoint again."
            )

    def _put_in_place(self) -> None:
        """Moves a complete checkpoint from the temporary remote path to its final path."""
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
            raise ValueError(f"{self.path} exists and is not a checkpoint. Use another path.")

    def _is_there(self, file: str) -> bool:
        return self.filesystem.get_file_info(file).type == _pyarrow_fs().FileType.File

    def _delete(self, folder: str) -> None:
        if self.filesystem.get_file_info(folder).type != _pyarrow_fs().FileType.NotFound:
            self.filesystem.delete_dir(folder)


def _name_below(base: str, path: str) -> str:
    """Returns the name of a remote file or folder, relative to the folder `base`.

    The folder `base` contains the file or folder. `path` is the full name on the remote file system. Parts of the
    result are separated by "/".

    Raises:
        ValueError: If it is invalid, for example if it leads out of the folder on this machine.
    """
    folder, name = f"{base}/", path.lstrip("/")
    parts = name.removeprefix(folder).split("/")
    is_name = name.startswith(folder) and all(_NAME.fullmatch(part) and part not in (".", "..") for part in parts)
    if not is_name:
        raise leads_out(Path(base), path)
    return "/".join(parts)


def located(path: Any, filesystem: Any) -> tuple[str, Any]:
    """Returns ``(path, filesystem)`` of a folder, or of an object that refers to a folder, such as Ray's
    ``Checkpoint``.

    Args:
        path: The folder; an object with a `path` and perhaps a `filesystem`, such as Ray's ``Checkpoint``; or an object
            with such a `checkpoint`, such as the result of ``Algorithm.save`` or of a trial.
        filesystem: File system of the folder; None for the object's.

    Raises:
        TypeError: If it is none of these.
    """
    found = getattr(path, "checkpoint", path)
    if isinstance(inner := getattr(found, "path", None), str):
        return inner, getattr(found, "filesystem", None) if filesystem is None else filesystem
    return os.fspath(found), filesystem


def place_of(path: str | os.PathLike[str], filesystem: Any) -> Remote | Path:
    """Converts a path to a `Remote` (path on a remote file system), or to a local path if the file system is local.

    Replacing a checkpoint is safer on a local file system, because local folders can be renamed.
    """
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
            raise ValueError(f"{text!r} leads out of {base}, the root of the file system. Use a path below it.")
        return place
    return Remote(filesystem, text.rstrip("/"))


def _pyarrow_fs() -> Any:
    return optional_import("pyarrow.fs", purpose="A checkpoint on another file system", install="pyarrow")
