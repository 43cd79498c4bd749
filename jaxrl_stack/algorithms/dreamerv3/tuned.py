"""Settings that DreamerV3 learns with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import FromLiterature, Tuned

_RLLIB = "RLlib's tuned_examples/dreamerv3/{}.py; one environment"
_CARTPOLE = Tuned(FromLiterature(_RLLIB.format("cartpole")), {"model_size": "XS", "training_ratio": 1024})
_PENDULUM = Tuned(FromLiterature(_RLLIB.format("pendulum_dreamerv3")), {"model_size": "S", "training_ratio": 1024})
RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": _CARTPOLE,
    "CartPole-v1": _CARTPOLE,
    "gymnax/Pendulum-v1": _PENDULUM,
    "Pendulum-v1": _PENDULUM,
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
