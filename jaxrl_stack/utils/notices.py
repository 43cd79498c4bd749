"""Things a user should hear once, not in every iteration."""

from __future__ import annotations

import logging

logger = logging.getLogger("jaxrl_stack")

_given: set[str] = set()


def notice_once(message: str) -> None:
    """Logs `message` at warning level, the first time in this process that it comes up."""
    if message not in _given:
        _given.add(message)
        logger.warning(message)
