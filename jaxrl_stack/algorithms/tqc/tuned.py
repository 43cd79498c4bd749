"""Tuned settings of TQC for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.sac.tuned import BIPEDAL, LUNAR_LANDER, MOUNTAIN_CAR, PENDULUM, ZOO
from jaxrl_stack.algorithms.tuned_records import FromLiterature, Measured, Scored, Tuned

RECORDS: dict[str, Tuned] = {
    "gymnax/Pendulum-v1": Tuned(Measured(-250.0, 20_000, (8_000, 12_000, 10_000, 11_000, 10_000)), PENDULUM),
    "Pendulum-v1": Tuned(Scored(20_000, (-149.06, -147.6, -146.7, -145.54, -169.93)), PENDULUM),
    "gymnax/MountainCarContinuous-v0": Tuned(
        Measured(90.0, 50_000, (25_000, 22_000, 21_000, 23_000, 24_000)), MOUNTAIN_CAR
    ),
    "LunarLanderContinuous-v3": Tuned(FromLiterature(ZOO.format("tqc", "")), LUNAR_LANDER),
    "BipedalWalker-v3": Tuned(FromLiterature(ZOO.format("tqc", "; without its state-dependent noise")), BIPEDAL),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
