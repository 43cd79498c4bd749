"""Closes environments; their errors are warnings."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def close_env(env: Any) -> None:
    """Close an environment. An exception is logged: others have to be closed, too, and nothing needs this one any more.

    Args:
        env: Anything with a method ``close()``.
    """
    try:
        env.close()
    except Exception as error:
        logger.warning("Closing the environment %s raised %s: %s", env, type(error).__name__, error)
