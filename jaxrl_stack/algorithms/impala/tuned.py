"""Settings that IMPALA learns with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import Measured, Tuned

_COMMON: dict[str, Any] = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 32,
    "rollout_fragment_length": 20,
    "train_batch_size_per_learner": 640,
    "lr": [[0, 5e-3], [500_000, 1e-3]],
    "grad_clip": 0.5,
    "entropy_coeff": 0.01,
    "min_time_s_per_iteration": 0,
    "min_sample_timesteps_per_iteration": 6_400,
}
_CARTPOLE = _COMMON | {"model_config": {"fcnet_hiddens": [64, 64], "vf_share_layers": False}}
# Velocities are in no observation: an LSTM has to tell them.
_STATELESS = _COMMON | {
    "model_config": {
        "fcnet_hiddens": [64],
        "use_lstm": True,
        "lstm_cell_size": 64,
        "max_seq_len": 20,
        "vf_share_layers": False,
    }
}

RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(Measured(450.0, 2_000_000, (281_600, 204_800, 172_800, 185_600, 211_200)), _CARTPOLE),
    "CartPole-v1": Tuned(Measured(450.0, 2_000_000, (147_200, 83_200, 684_800, 288_000, 134_400)), _CARTPOLE),
    # From a checkout.
    "envs.memory:StatelessCartPole": Tuned(Measured(350.0, 2_000_000, (448_000, 371_200, 268_800)), _STATELESS),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
