"""Checksums of a checkpoint's JSON files, which contain the checksums of its arrays."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

CHECKSUMS_FILE = "checksums.json"
"""File in the folder of a checkpoint: ``{path of a JSON file in the folder: CRC-32}``."""


def text_checksum(text: str) -> int:
    """CRC-32 of a text in UTF-8."""
    return zlib.crc32(text.encode())


def json_checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of all JSON files of a checkpoint, by their paths in it.

    Args:
        folder: Folder of the checkpoint.
    """
    files = sorted(file for file in folder.rglob("*.json") if file.name != CHECKSUMS_FILE)
    return {file.relative_to(folder).as_posix(): zlib.crc32(file.read_bytes()) for file in files}


def checkpoint_checksum(folder: Path) -> int:
    """One number for the content of a checkpoint, arrays included by their stored checksums.

    Args:
        folder: Folder of the checkpoint.
    """
    return combined(json_checksums(folder))


def combined(checksums: Mapping[str, int]) -> int:
    """One number for checksums by path."""
    return zlib.crc32("\n".join(f"{path} {crc32}" for path, crc32 in sorted(checksums.items())).encode())
