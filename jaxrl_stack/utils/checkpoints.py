"""State on disk: arrays in one `.npz`, everything else as JSON; written aside and renamed, read without pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FORMAT_VERSION = "1.0"
METADATA_FILE = "metadata.json"
ARRAYS_FILE = "arrays.npz"
_KEY_SUFFIX = "#key:"


def save(path: str | os.PathLike[str], arrays: Any, metadata: dict[str, Any]) -> str:
    """Write a directory with a pytree of arrays and JSON metadata, whole or not at all.

    Args:
        path: The directory; replaced if it is a checkpoint already.
        arrays: Pytree of arrays on the host or on one device; typed PRNG keys are fine.
        metadata: JSON values.

    Returns:
        The absolute path.

    Raises:
        ValueError: If `path` exists and is no checkpoint.
    """
    target = Path(path).absolute()
    if target.exists() and not (target / METADATA_FILE).exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is no checkpoint; choose another path.")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        by_name: dict[str, Any] = dict(_flat(arrays))
        np.savez(aside / ARRAYS_FILE, **by_name)
        text = json.dumps({"checkpoint_version": FORMAT_VERSION, **metadata}, indent=2)
        (aside / METADATA_FILE).write_text(text, encoding="utf-8")
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            os.rename(target, old / "it")
            os.rename(aside, target)
            shutil.rmtree(old)
        else:
            os.rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return str(target)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON metadata of a checkpoint.

    Raises:
        FileNotFoundError: If there is no checkpoint at `path`.
        ValueError: If its version is unknown.
    """
    file = Path(path) / METADATA_FILE
    if not file.is_file():
        raise FileNotFoundError(f"No checkpoint at {path}: it has no {METADATA_FILE}.")
    metadata = json.loads(file.read_text(encoding="utf-8"))
    version = metadata.get("checkpoint_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"The checkpoint at {path} has version {version!r}; this release reads {FORMAT_VERSION!r}. Load it with "
            f"the release that wrote it."
        )
    return metadata


def load_arrays(path: str | os.PathLike[str], target: Any) -> Any:
    """The arrays of a checkpoint in the structure of `target`.

    Args:
        path: The checkpoint.
        target: Pytree with the names, shapes and dtypes to expect.

    Raises:
        ValueError: If names, shapes or dtypes differ, naming the first difference.
    """
    with np.load(Path(path) / ARRAYS_FILE, allow_pickle=False) as stored:
        wanted = _flat(target)
        missing, extra = sorted(set(wanted) - set(stored.files)), sorted(set(stored.files) - set(wanted))
        if missing or extra:
            raise ValueError(
                f"The checkpoint at {path} does not fit: missing {missing[:5]}, unexpected {extra[:5]}. Restore it "
                f"into an algorithm with the same modules, connectors and environment."
            )
        loaded = {}
        for name, like in wanted.items():
            array = stored[name]
            if array.shape != like.shape or array.dtype != like.dtype:
                raise ValueError(
                    f"The checkpoint at {path} does not fit: {name} is {array.dtype}{list(array.shape)}, expected "
                    f"{like.dtype}{list(like.shape)}. Restore it into an algorithm with the same settings."
                )
            loaded[name] = array
    leaves = []
    for keypath, leaf in jax.tree.leaves_with_path(target):
        name = _name(keypath, leaf)
        array = loaded[name]
        leaves.append(
            jax.random.wrap_key_data(array, impl=name.rsplit(_KEY_SUFFIX, 1)[1]) if _is_key(leaf) else array
        )
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(keypath: Any, leaf: Any) -> str:
    name = jax.tree_util.keystr(keypath)
    return f"{name}{_KEY_SUFFIX}{jax.random.key_impl(leaf)}" if _is_key(leaf) else name


def _flat(tree: Any) -> dict[str, np.ndarray]:
    return {
        _name(keypath, leaf): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for keypath, leaf in jax.tree.leaves_with_path(tree)
    }
