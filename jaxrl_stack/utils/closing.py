"""Closing of environments; errors in ``close()`` are logged instead of raised."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def close_env(env: Any) -> None:
    """Closes an environment. Exceptions are only logged, so that other environments are closed, too.

    Args:
        env: Anything with a method ``close()``.
    """
    try:
        env.close()
    except Exception as error:
        logger.warning("Closing the environment %s raised %s: %s", env, type(error).__name__, error)
