"""Settings that TQC is known to learn with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.sac.tuned import TUNED as OF_SAC

TUNED: dict[str, dict[str, Any]] = {env: OF_SAC[env] for env in ("Pendulum-v1", "gymnax/Pendulum-v1")}
"""Environment → settings for ``config.update_from_dict``."""
