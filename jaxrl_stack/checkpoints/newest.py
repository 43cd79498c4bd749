"""The newest checkpoint in a run's directory."""

from __future__ import annotations

import re
from pathlib import Path

from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE

_NAME = re.compile(r"checkpoint_(\d+)")


def newest_checkpoint(path: str) -> str:
    """The newest complete checkpoint of an algorithm in the directory of a run.

    Args:
        path: Folder of a run of ``jaxrl train``, of a trial of Tune, or any other path.

    Returns:
        The ``checkpoint_<number>`` in it with the highest number. Without one, `path` itself, which may be a
        checkpoint, a path in an object store, or a missing path.
    """
    directory = Path(path)
    if not directory.is_dir() or (directory / ALGORITHM_METADATA_FILE).exists():
        return path
    found = {
        int(match[1]): folder
        for folder in directory.iterdir()
        if (match := _NAME.fullmatch(folder.name)) and (folder / ALGORITHM_METADATA_FILE).exists()
    }
    return str(found[max(found)]) if found else path
