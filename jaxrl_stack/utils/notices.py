"""Notices for users, each logged only once, not in every iteration nor by every actor."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger("jaxrl_stack")

_given: set[str] = set()
_shared: Path | None = None


def notice_once(message: str, key: str | None = None) -> None:
    """Logs `message` at warning level, once per process. After ``share_notices(group)``, logs it only once for all
    processes of this machine with the same group.

    Args:
        message: The sentence.
        key: Messages with the same key are the same; None: with the same text.
    """
    key = message if key is None else key
    if key in _given:
        return
    _given.add(key)
    if _is_first(key):
        logger.warning(message)


def share_notices(group: str) -> None:
    """Makes `notice_once` log each notice only once over all processes of this machine that call this function with the
    same `group`.

    For the actors of a run: all runners and all of Tune's trials have the same to say.
    """
    global _shared
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    _shared = Path(tempfile.gettempdir(), f"jaxrl_stack_notices_{os.getuid()}_{digest}")


def _is_first(about: str) -> bool:
    if _shared is None:
        return True
    try:
        _shared.mkdir(mode=0o700, exist_ok=True)
        # Fails for all but one process.
        Path(_shared, hashlib.sha256(about.encode()).hexdigest()).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # nowhere to agree: rather twice than never
        pass
    return True
