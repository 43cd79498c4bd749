"""File names of a checkpoint, and checks of names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

METADATA_FILE = "metadata.json"
ALGORITHM_METADATA_FILE = "rllib_checkpoint.json"
CLASS_AND_CTOR_ARGS_FILE = "class_and_ctor_args.json"
STATE_FILE = "state"
ARRAYS_FILE = "arrays.safetensors"
NOT_IN_NAMES = r"<>:\"/\\|?*\x00-\x1f\ud800-\udfff"
PART_NAME = re.compile(f"[^{NOT_IN_NAMES}.][^{NOT_IN_NAMES}]*")
"""Names of components: names of folders on every system."""
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".dill", ".npy", ".npz")


def is_part_name(name: Any) -> bool:
    """Whether a name is valid for a component of a checkpoint. The name becomes the name of a folder."""
    return (
        isinstance(name, str)
        and PART_NAME.fullmatch(name) is not None
        and not name.lower().endswith((".json", ".safetensors", *PICKLES))
    )


def leads_out(path: Path, name: str) -> ValueError:
    """Creates the error for a checkpoint that refers to a path outside of its folder."""
    return ValueError(
        f"The checkpoint at {path} refers to {short(name)}, which leads out of its folder. It is damaged, or was "
        f"changed since; do not use it."
    )


def short(value: Any) -> str:
    """Returns the ``repr`` of a value for error messages, cut to about 100 characters. Values from damaged files may be
    long.
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
