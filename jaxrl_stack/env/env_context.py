"""The configuration that an environment's creator receives."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Mapping
from typing import Any


class EnvContext(dict):
    """Dict of the ``env_config`` items. The other constructor arguments, such as `worker_index` and `vector_index`,
    become attributes.

    Args:
        env_config: The user's ``env_config``; its items become the dict's items.
        worker_index: Index of the EnvRunner that makes the env; 0 is the local one.
        vector_index: Index of the env within its EnvRunner.
        remote: Whether the environment runs in a separate process.
        num_workers: Number of remote EnvRunners; None if unknown.
        recreated_worker: Whether the EnvRunner replaces one that failed.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any],
        worker_index: int,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
        recreated_worker: bool = False,
    ):
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.remote = remote
        self.num_workers = num_workers
        self.recreated_worker = recreated_worker

    def copy_with_overrides(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        remote: bool | None = None,
        num_workers: int | None = None,
        recreated_worker: bool | None = None,
    ) -> EnvContext:
        """Returns a copy of the env context.

        `env_config` replaces the items of the copy, and the other arguments replace the attributes with the same names.
        Items and attributes whose argument is None do not change.

        The config is copied deeply: changing one env's config leaves the others alone.
        """

        given = (worker_index, vector_index, remote, num_workers, recreated_worker)
        place: list[Any] = [
            old if new is None else new for new, old in zip(given, self._worker_info().values(), strict=True)
        ]
        return EnvContext(copy.deepcopy(dict(self if env_config is None else env_config)), *place)

    def _worker_info(self) -> dict[str, Any]:
        names = ("worker_index", "vector_index", "remote", "num_workers", "recreated_worker")
        return {name: getattr(self, name) for name in names}

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Adds the items of `defaults` whose keys the env context does not have."""
        for key, value in defaults.items():
            self.setdefault(key, value)

    def __repr__(self) -> str:
        place = ", ".join(f"{name}={value}" for name, value in self._worker_info().items())
        return f"EnvContext({dict.__repr__(self)}, {place})"

    def __reduce__(self):
        # dict's own protocol would call the constructor without its required argument.
        return EnvContext, (dict(self), *self._worker_info().values())


def copied(context: EnvContext, vector_index: int | None = None, **items: Any) -> EnvContext:
    """Returns a copy of the env context with another `vector_index` (None: the same) and additional ``env_config``
    items.
    """
    own = context.copy_with_overrides(vector_index=vector_index)
    own.update(items)
    return own


def refuse_unknown(name: str, config: Mapping[str, Any], known: Collection[str], what_there_is: str) -> None:
    """Raises ValueError for an item of ``env_config`` that the environment does not know."""
    for item, value in config.items():
        if item not in known:
            near = difflib.get_close_matches(item, known, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"env_config[{item!r}]={value!r}: {name} has no such setting. {hint}{what_there_is}")
