"""Checksums of a checkpoint's JSON files, which contain the checksums of its arrays.

The metadata of a checkpoint has ``"checksums"``, CRC-32 of all other JSON files by path, and ``"checksum"`` of itself.
Loading does not check them, so that files may be edited; `changed_files` finds what has changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKSUM, CHECKSUMS = "checksum", "checksums"


def with_checksums(metadata: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Returns a checkpoint's metadata with checksums added: a checksum of the metadata, and a checksum of
    each other JSON file in the checkpoint.

    Args:
        metadata: Metadata of the checkpoint.
        files: Texts of its other JSON files, by path.
    """
    complete = {**metadata, CHECKSUMS: {path: zlib.crc32(text.encode()) for path, text in files.items()}}
    return {**complete, CHECKSUM: _checksum_of(complete)}


def _checksum_of(metadata: Mapping[str, Any]) -> int:
    own = {name: value for name, value in metadata.items() if name != CHECKSUM}
    return zlib.crc32(json.dumps(own, sort_keys=True).encode())


def changed_files(folder: Path, metadata_file: str) -> list[str]:
    """Lists the JSON files of a checkpoint that were changed, removed or added since the checkpoint was written.

    Args:
        folder: Folder of the checkpoint.
        metadata_file: Name of its metadata file.

    Returns:
        Paths in the folder; empty also for a checkpoint of an earlier version, which has no checksums.
    """
    try:
        metadata = json.loads((folder / metadata_file).read_text(encoding="utf-8"))
        known = metadata.get(CHECKSUMS, {})
        is_changed = CHECKSUM in metadata and metadata[CHECKSUM] != _checksum_of(metadata)
        stored = {str(path): int(crc32) for path, crc32 in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return [metadata_file]
    if not stored and not is_changed:
        return []
    now = _json_checksums(folder)
    now.pop(metadata_file, None)
    others = [path for path in sorted({*stored, *now}) if stored.get(path) != now.get(path)]
    return [*([metadata_file] if is_changed else []), *others]


def _json_checksums(folder: Path) -> dict[str, int]:
    files = sorted(folder.rglob("*.json"))
    return {file.relative_to(folder).as_posix(): zlib.crc32(file.read_bytes()) for file in files}


def checkpoint_checksum(folder: Path) -> int:
    """Checksum of a whole checkpoint, computed from its JSON files, which contain the checksums of the arrays.

    Args:
        folder: Folder of the checkpoint.
    """
    return zlib.crc32("\n".join(f"{path} {crc32}" for path, crc32 in _json_checksums(folder).items()).encode())
