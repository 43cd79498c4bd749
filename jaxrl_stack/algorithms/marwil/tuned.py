"""Tuned settings of MARWIL for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import Tuned

RECORDS: dict[str, Tuned] = {}
"""Environment → settings, and how it is known that they learn: none, as it is data that is learned from."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
