"""Paths of data: local files and folders, object stores, and globs."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from pyarrow import fs

LOCAL = "local://"
UNFINISHED = ".writing"
"""Suffix of files that are being written; their names begin with a dot."""
_STORES = {"s3": "S3FileSystem", "gcs": "GcsFileSystem", "abs": "AzureFileSystem"}


def filesystem_of(filesystem: Any, kwargs: Mapping[str, Any] | None = None, *, setting: str) -> Any:
    """Creates a file system object from a setting such as `input_filesystem`.

    Args:
        filesystem: "gcs", "s3" or "abs", an object of pyarrow or fsspec, or None.
        kwargs: Arguments of what the names stand for.
        setting: Name of the setting, for errors.

    Raises:
        ValueError: It is another text, or an object that is no file system.
    """
    if filesystem is None or isinstance(filesystem, fs.FileSystem):
        return filesystem
    if isinstance(filesystem, str):
        if filesystem not in _STORES:
            raise ValueError(
                f"{setting}={filesystem!r} must be one of {', '.join(map(repr, _STORES))}, or a file system object of "
                "pyarrow or fsspec."
            )
        return getattr(fs, _STORES[filesystem])(**(kwargs or {}))
    if not hasattr(filesystem, "protocol"):
        raise ValueError(
            f"{setting}={filesystem!r} must be one of {', '.join(map(repr, _STORES))}, or a file system object of "
            "pyarrow or fsspec."
        )
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


@dataclasses.dataclass(frozen=True)
class Folder:
    """Folder on a local or remote file system."""

    filesystem: Any
    path: str

    @classmethod
    def of(cls, path: str | os.PathLike[str], filesystem: Any = None) -> Folder:
        """Creates a `Folder` object for the path or URI of a folder."""
        return cls(*resolved(path, filesystem))

    def make(self) -> None:
        self.filesystem.create_dir(self.path, recursive=True)

    def file(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        return self.filesystem.get_file_info(self.file(name)).type != fs.FileType.NotFound

    def open_output(self, name: str) -> Any:
        return self.filesystem.open_output_stream(self.file(name))

    def rename(self, name: str, new: str) -> str:
        """Renames a file in this folder; returns the new path."""
        self.filesystem.move(self.file(name), self.file(new))
        return self.file(new)

    def delete(self, name: str) -> None:
        self.filesystem.delete_file(self.file(name))


def resolved(path: str | os.PathLike[str], filesystem: Any = None) -> tuple[Any, str]:
    """Converts a path or URI to ``(file system, path)``.

    Args:
        path: ``local://`` in front of one says that it is on this machine; "~" is the home folder there.
        filesystem: File system of the path; None: by the path itself.
    """
    text = os.fspath(path)
    if text.startswith(LOCAL):
        text, filesystem = text.removeprefix(LOCAL), filesystem or fs.LocalFileSystem()
    if filesystem is None and "://" in text:
        return fs.FileSystem.from_uri(text)
    if "://" in text:
        text = text.partition("://")[2]
    filesystem = filesystem or fs.LocalFileSystem()
    if isinstance(filesystem, fs.LocalFileSystem):
        text = os.path.abspath(os.path.expanduser(text))
    return filesystem, text


def files_at(path: str | os.PathLike[str], filesystem: Any, suffixes: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Returns the files at a path or glob, or in a folder and its subfolders, sorted by path.

    Numbers in paths are compared by value.

    Names that begin with a dot or "_" are left out, and in folders and globs those without one of the suffixes.

    Returns:
        The file system, and paths on it; none if nothing is there.
    """
    text = os.fspath(path)
    pattern_at = re.search(r"[*?\[]", text)
    if pattern_at is None:
        found_on, place = resolved(text, filesystem)
        info = found_on.get_file_info(place)
        if info.type == fs.FileType.File:
            return found_on, [place]
        return found_on, _below(found_on, place, suffixes)
    base = text[: pattern_at.start()].rpartition("/")[0]
    found_on, place = resolved(base or ("/" if text.startswith("/") else "."), filesystem)
    pattern = re.compile(_glob(text[len(base) :].lstrip("/") if base else text.lstrip("/")))
    start = len(place.rstrip("/")) + 1
    infos = found_on.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
    matching = [info for info in infos if pattern.fullmatch(info.path[start:])]
    found = [info.path for info in matching if info.type == fs.FileType.File and _is_data(info.path[start:], suffixes)]
    for info in matching:
        if info.type == fs.FileType.Directory:
            found += _below(found_on, info.path, suffixes)
    return found_on, sorted(set(found), key=natural)


def unfinished_files(path: str | os.PathLike[str], filesystem: Any) -> list[str]:
    """Returns the incomplete files in a local folder: files that a run has begun to write, but has not completed.
    Returns [] for object stores and globs.
    """
    kind, found_on, place = _type_of(path, filesystem)
    if kind != fs.FileType.Directory or not isinstance(found_on, fs.LocalFileSystem):
        return []  # in stores there is no file before it is complete
    infos = found_on.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
    return [info.path for info in infos if info.base_name.startswith(".") and info.path.endswith(UNFINISHED)]


def is_file(path: str | os.PathLike[str], filesystem: Any) -> bool:
    """Whether a path is the path of an existing file; False for folders and globs."""
    return _type_of(path, filesystem)[0] == fs.FileType.File


def is_empty_folder(path: str | os.PathLike[str], filesystem: Any) -> bool:
    """Whether a path is an empty folder."""
    kind, found_on, place = _type_of(path, filesystem)
    return kind == fs.FileType.Directory and not found_on.get_file_info(fs.FileSelector(place, recursive=True))


def _type_of(path: str | os.PathLike[str], filesystem: Any) -> tuple[Any, Any, str]:
    """Returns ``(file type, file system, path)`` for a path or URI; the file type is None for a glob."""
    if re.search(r"[*?\[]", os.fspath(path)):
        return None, filesystem, os.fspath(path)
    found_on, place = resolved(path, filesystem)
    return found_on.get_file_info(place).type, found_on, place


def natural(text: str) -> list[Any]:
    """Returns a sort key that orders numbers in names by value: "b10" after "b9"."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text) if part]


def _below(filesystem: Any, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    start = len(folder.rstrip("/")) + 1
    files = [info.path for info in infos if info.type == fs.FileType.File and _is_data(info.path[start:], suffixes)]
    return sorted(files, key=natural)


def _is_data(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.endswith(suffixes) and not any(part.startswith((".", "_")) for part in name.split("/"))


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|.", re.DOTALL)
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _glob(pattern: str) -> str:
    """Converts a glob to a regular expression: "*" does not match "/", "**" does."""

    def translated(token: str) -> str:
        if token in _MEANINGS:
            return _MEANINGS[token]
        if len(token) > 1:
            return f"[^{token[2:]}" if token[1] == "!" else token
        return re.escape(token)

    return "".join(map(translated, _TOKENS.findall(pattern)))
