"""Persistent cache of compiled programs, in a folder that only its owner can write to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
from pathlib import Path

import jax

from jaxrl_stack.utils.notices import notice_once

MAX_CACHE_BYTES = 4 << 30
"""Size to which a cache folder is reduced when the cache is enabled: the least recently used programs are deleted."""
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_ARM_FIELDS = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features")


def enable_compilation_cache(directory: str | None) -> None:
    """Enables JAX's persistent compilation cache in a directory, so that later processes load compiled programs instead
    of compiling.

    Compiled programs are native code for one type of CPU, so each type has a separate subfolder, which only its owner
    may write to. A subfolder that another user owns or may write to is not used; a warning says so. If the user has
    configured a directory in JAX, nothing changes.

    Args:
        directory: Folder; "auto" for ``$XDG_CACHE_HOME/jaxrl_stack/xla`` (default ``~/.cache``); None to do nothing.
    """
    if directory is None or jax.config.values["jax_compilation_cache_dir"]:
        return
    if directory == "auto":
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        directory = os.path.join(base, "jaxrl_stack", "xla")
    folder = Path(directory).absolute() / _kind_of_cpu()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _problem_with(folder)
        if problem is None:
            _evict(folder, MAX_CACHE_BYTES)
    except OSError as error:
        problem = f"it cannot be used ({error})"
    if problem is not None:
        notice_once(
            f"Compiled programs are not cached in {folder}: {problem}. Remove it, or choose another folder: "
            "resources(compilation_cache_dir='/path'), or None for no cache."
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _problem_with(folder: Path) -> str | None:
    """Reason not to load compiled programs from a folder, for example because other users can write to it; None if it
    is safe.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link"
    if found.st_uid != os.geteuid():
        return f"it belongs to the user with the id {found.st_uid}, not {os.geteuid()}, and programs in it would be run"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}), and programs in it would be run"
    return None


def _kind_of_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the cache subfolder for this machine's type of CPU. The name depends on the CPU's model and features,
    because XLA compiles native code for these.
    """
    fields = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        for line in first.splitlines():
            name, _, value = line.partition(":")
            if name.strip() in (*_CPU_FIELDS, *_ARM_FIELDS):
                fields.append(f"{name.strip()}={' '.join(sorted(value.split()))}")
    return f"{platform.machine() or 'cpu'}-{hashlib.sha256('|'.join(fields).encode()).hexdigest()[:12]}"


def _evict(folder: Path, max_bytes: int) -> None:
    """Deletes the least recently used compiled programs from the cache folder until the folder contains at most
    `max_bytes` bytes.
    """
    # JAX's own limit needs the package filelock, and takes a lock and looks at all entries for each program.
    with os.scandir(folder) as entries:
        files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
    # Where reading leaves no trace (mounted with noatime), the oldest ones go.
    files.sort(key=lambda file: max(file[0].st_atime, file[0].st_mtime))
    excess = sum(found.st_size for found, _ in files) - max_bytes
    for found, path in files:
        if excess <= 0:
            return
        if stat.S_ISREG(found.st_mode):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= found.st_size
