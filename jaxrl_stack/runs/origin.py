"""Origin of a run: its command, the versions of packages, and the git commit of the code."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxrl_stack

if TYPE_CHECKING:
    from jaxrl_stack.runs.stop import StopReason

ORIGIN_FILE = "run.json"
PARENT = "parent"
"""Key of the run that a run continues: ``{"folder": path, "iteration": number}``."""
POPULATION = "population"
"""Key of the folder with the checkpoints of the population that a run was a member of."""
_PACKAGE = Path(jaxrl_stack.__file__).parent
_DEPENDENCIES = ("jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "numpy", "ray")


def write_origin(
    directory: str | os.PathLike[str], command: Sequence[str] | None = None, *, algorithm: str | None = None
) -> None:
    """Writes the facts that `run_origin` returns (command, versions, git commit) to a run's ``run.json``."""
    text = json.dumps(run_origin(command, algorithm=algorithm), indent=2)
    Path(directory, ORIGIN_FILE).write_text(f"{text}\n", encoding="utf-8")


def read_origin(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the dict that `write_origin` wrote; {} if the file is missing or damaged."""
    try:
        found = json.loads(Path(directory, ORIGIN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def how_it_ended(reason: StopReason | None) -> dict[str, Any]:
    """Returns the entry ``stopped`` of a run's ``run.json``, which describes the end of the run.

    The entry contains the reason why the run ended, and whether the run reached its goal. Returns {} if the run has not
    ended.
    """
    return {} if reason is None else {"stopped": {"reason": str(reason), "is_goal": reason.is_goal}}


def write_end(directory: str | os.PathLike[str], reason: StopReason) -> None:
    """Writes to ``run.json``, in a run's directory, why the run ended and whether it reached its goal."""
    add_to_origin(directory, how_it_ended(reason))


def add_to_origin(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Adds the entries of `facts` to the JSON object in ``run.json`` in a run's directory. Existing entries with the
    same names are replaced.
    """
    text = json.dumps({**read_origin(directory), **facts}, indent=2)
    Path(directory, ORIGIN_FILE).write_text(f"{text}\n", encoding="utf-8")


def run_origin(command: Sequence[str] | None = None, *, algorithm: str | None = None) -> dict[str, Any]:
    """Facts for repeating a run that starts now (command, versions, git commit), as JSON.

    Args:
        command: Words of the command; None for this process's command.
        algorithm: Name of the algorithm.

    Returns:
        ``algorithm``, ``command`` (a line for a shell; None in a notebook), ``working_directory``,
        ``started`` (ISO 8601), ``versions`` (of Python and packages), ``platform``, ``hostname`` and ``git``, the
        `git_state` of ``working_directory`` and of ``jaxrl_stack``.
    """
    return {
        "algorithm": algorithm,
        "command": _line(_own_command() if command is None else command),
        "working_directory": os.getcwd(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "jaxrl_stack": jaxrl_stack.__version__,
            **installed_versions(_DEPENDENCIES),
        },
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "git": {
            "working_directory": git_state(os.getcwd()),
            # Installed into an environment that lies in some project's folder, it is no part of that.
            "jaxrl_stack": None if "site-packages" in _PACKAGE.parts else git_state(str(_PACKAGE)),
        },
    }


def git_state(directory: str) -> dict[str, Any] | None:
    """Commit of the git repository that contains a directory, and whether tracked files differ from this commit.

    Returns:
        ``{"commit": str, "dirty": bool}``; None without a commit or without git.
    """
    git = ["git", "--no-optional-locks", "-C", directory]
    try:
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _own_command() -> list[str]:
    if "ipykernel" in sys.modules:
        return []
    return [os.path.basename(sys.orig_argv[0]), *sys.orig_argv[1:]]


def _line(words: Sequence[str]) -> str | None:
    return shlex.join(words) if words else None


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the given packages, ``{package: version}``; packages that are not installed are omitted."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
