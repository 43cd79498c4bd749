"""Tuned settings of PPO for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

import math
from typing import Any

from jaxrl_stack.algorithms.tuned_records import FromLiterature, Measured, Scored, Tuned
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import MeanStdFilter, ReturnsSoFar
from jaxrl_stack.connectors.learner import NormalizeRewards, ScaleRewards
from jaxrl_stack.utils.class_paths import register_class


@register_class
def mean_std_filter(env: Any, spaces: Any, device: Any) -> MeanStdFilter:
    """Env-to-module connector function that normalises observations by running statistics."""
    return MeanStdFilter()


@register_class
def returns_and_mean_std_filter(env: Any, spaces: Any, device: Any) -> list[ConnectorV2]:
    """Env-to-module connector function that returns two connectors. `ReturnsSoFar` adds a column of discounted
    returns, which the learner connector from `normalized_rewards` needs. `MeanStdFilter` normalises observations by
    running statistics.
    """
    return [ReturnsSoFar(), MeanStdFilter()]


@register_class
def normalized_rewards(observation_space: Any, action_space: Any) -> NormalizeRewards:
    """Learner connector function that divides rewards by the standard deviation of discounted returns."""
    return NormalizeRewards()


@register_class
def rewards_times_10(observation_space: Any, action_space: Any) -> ScaleRewards:
    """Learner connector function that multiplies rewards by 10."""
    return ScaleRewards(factor=10.0)


@register_class
def rewards_times_5(observation_space: Any, action_space: Any) -> ScaleRewards:
    """Learner connector function that multiplies rewards by 5."""
    return ScaleRewards(factor=5.0)


@register_class
def rewards_over_10(observation_space: Any, action_space: Any) -> ScaleRewards:
    """Learner connector function that divides rewards by 10."""
    return ScaleRewards(factor=0.1)


_USUAL: dict[str, Any] = {"gamma": 0.99, "lambda_": 0.95, "clip_param": 0.2, "use_kl_loss": False}

# Value errors are far above the default vf_clip_param of 10 in many environments, which would stop the critic from
# learning. Learning rates that fall do not fall to 0, so that an unlucky run goes on learning.
_COMMON: dict[str, Any] = _USUAL | {
    "num_epochs": 4,
    "lr": 2.5e-3,
    "vf_clip_param": 1000.0,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
}
_DEVICE = {"num_envs_per_env_runner": 64, "train_batch_size_per_learner": 8192, "minibatch_size": 1024, **_COMMON}
_HOST = {"num_env_runners": 0, "num_envs_per_env_runner": 16, "train_batch_size_per_learner": 4096}
_HOST |= {"minibatch_size": 256, **_COMMON}
_FALLING: dict[str, Any] = {"lr": [[0, 2.5e-3], [400_000, 1e-4]]}
_FILTERED: dict[str, Any] = {"env_to_module_connector": mean_std_filter}
_PENDULUM: dict[str, Any] = {"num_epochs": 10, "gamma": 0.95, "entropy_coeff": 0.0, "minibatch_size": 256, **_FILTERED}


def _brax_settings(envs: int, unroll: int, minibatches: int, rows: int, epochs: int, **changed: Any) -> dict[str, Any]:
    """PPO settings with the values of brax's PPO trainer. Each minibatch consists of `rows` rollouts, and each rollout
    has `unroll` steps.
    """
    return {
        **_USUAL,
        "num_envs_per_env_runner": envs,
        "train_batch_size_per_learner": minibatches * rows * unroll,
        "minibatch_size": rows * unroll,
        "num_epochs": epochs,
        "lr": 3e-4,
        "gamma": 0.97,
        "clip_param": 0.3,
        "vf_clip_param": math.inf,
        "vf_loss_coeff": 0.25,
        "entropy_coeff": 1e-2,
        "model_config": {"fcnet_hiddens": [256, 256], "fcnet_activation": "swish"},
        "learner_connector": rewards_times_10,
        **_FILTERED,
        **changed,
    }


_WITHOUT = "rollouts as long as the batch, 2 layers of 256"
_BRAX_NOTEBOOK = "google/brax, notebooks/training.ipynb, {} steps; " + _WITHOUT
_PLAYGROUND = "mujoco_playground/config/dm_control_suite_params.py, 60M steps; " + _WITHOUT
_PLAYGROUND_SETTINGS = _brax_settings(2048, 30, 32, 1024, 16, gamma=0.995, lr=1e-3)
_CRAFTAX = FromLiterature("MichaelTMatthews/Craftax_Baselines, ppo.py, 1B steps")
_CRAFTAX_SETTINGS: dict[str, Any] = _USUAL | {
    "num_envs_per_env_runner": 1024,
    "train_batch_size_per_learner": 64 * 1024,
    "minibatch_size": 8192,
    "num_epochs": 4,
    "lr": [[0, 2e-4], [1_000_000_000, 0.0]],
    "lambda_": 0.8,
    "vf_clip_param": math.inf,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.01,
    "grad_clip": 1.0,
    "model_config": {"fcnet_hiddens": [512, 512, 512], "fcnet_activation": "tanh"},
}
# One set for all tasks: Schulman et al. 2017, arXiv:1707.06347, table 3, and vwxyzjn/cleanrl,
# ppo_continuous_action.py, without value clipping and without normalised rewards.
_CONTINUOUS: dict[str, Any] = _USUAL | {
    "num_env_runners": 0,
    "train_batch_size_per_learner": 2048,
    "minibatch_size": 64,
    "num_epochs": 10,
    "lr": 3e-4,
    "vf_clip_param": math.inf,
    "grad_clip": 0.5,
    "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
    **_FILTERED,
}
_ORTHOGONAL: dict[str, Any] = {
    "fcnet_kernel_initializer": "orthogonal",
    "fcnet_kernel_initializer_kwargs": {"scale": math.sqrt(2)},
    "fcnet_bias_initializer": "zeros",
    "head_fcnet_kernel_initializer": "orthogonal",
    "head_fcnet_kernel_initializer_kwargs": {"scale": 0.01},
    "head_fcnet_bias_initializer": "zeros",
}
_MUJOCO: dict[str, Any] = _CONTINUOUS | {
    "lr": [[0, 3e-4], [1_000_000, 1e-5]],
    "vf_loss_coeff": 0.25,
    "model_config": {**_CONTINUOUS["model_config"], **_ORTHOGONAL, "free_log_std": True},
}
_NORMALIZED_REWARDS: dict[str, Any] = {
    "env_to_module_connector": returns_and_mean_std_filter,
    "learner_connector": normalized_rewards,
}
# With returns of hundreds, gradients of the critic would fill the limit of the gradients' norm. Without normalised
# rewards, some seeds learned to hover (a return of 135) and not to land.
_LUNAR_LANDER: dict[str, Any] = {
    **_HOST,
    "num_epochs": 10,
    "lr": [[0, 1e-3], [650_000, 5e-5]],
    "model_config": {**_COMMON["model_config"], **_ORTHOGONAL},
    **_NORMALIZED_REWARDS,
}
_ZOO = "DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, {}"
_BIPEDAL = _CONTINUOUS | {"num_envs_per_env_runner": 32, "train_batch_size_per_learner": 65_536, "gamma": 0.999}
_BIPEDAL |= {"clip_param": 0.18, "vf_loss_coeff": 0.5, **_NORMALIZED_REWARDS}

# That of Mnih et al., 2015.
ATARI_NETWORK: dict[str, Any] = {
    "conv_filters": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    "conv_activation": "relu",
    "head_fcnet_hiddens": [512],
    "head_fcnet_activation": "relu",
}
_ATARI: dict[str, Any] = _USUAL | {
    "env_config": {"repeat_action_probability": 0.0, "episodic_life": True},
    "clip_rewards": True,
    "num_env_runners": 0,
    "num_envs_per_env_runner": 8,
    "gym_env_vectorize_mode": "vector_entry_point",
    "train_batch_size_per_learner": 1024,
    "minibatch_size": 256,
    "num_epochs": 4,
    "lr": [[0, 2.5e-4], [10_000_000, 1e-5]],
    "clip_param": 0.1,
    "vf_clip_param": 1000.0,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "model_config": {**ATARI_NETWORK, "vf_share_layers": True},
}


def _minatar_settings(
    lr: float, entropy_coeff: float, num_steps: int, num_envs: int, clip_param: float
) -> dict[str, Any]:
    """PPO settings for MinAtar, close to examples/brax_minatar.ipynb of luchris429/purejaxrl. Policy and value function
    have separate networks, each as in Young and Tian 2019, arXiv:1903.03176.

    Learning rate and entropy bonus decrease together: with a constant bonus, the agent randomly misses the last bricks.
    """
    return _USUAL | {
        "num_envs_per_env_runner": num_envs,
        "train_batch_size_per_learner": 128 * num_envs,
        "minibatch_size": 16 * num_envs,
        "num_epochs": 4,
        "lr": [[0, lr], [num_steps, 0.0]],
        "entropy_coeff": [[0, entropy_coeff], [num_steps, 0.0]],
        "clip_param": clip_param,
        "vf_clip_param": math.inf,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "model_config": {
            "conv_filters": [[16, 3, 1]],
            "conv_activation": "relu",
            "head_fcnet_hiddens": [128],
            "head_fcnet_activation": "relu",
        },
    }


# Velocities are in no observation: an LSTM has to tell them.
_STATELESS: dict[str, Any] = _USUAL | {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 16,
    "train_batch_size_per_learner": 2048,
    "minibatch_size": 256,
    "num_epochs": 10,
    "lr": 1e-3,
    "vf_clip_param": 1e6,
    "model_config": {"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20},
    **_FILTERED,
}
_ATARI_SOURCE = FromLiterature(_ZOO.format("atari, 10M steps; clip_param and lr do not fall to 0"))

RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(
        Measured(475.0, 300_000, (180_224, 188_416, 221_184, 131_072, 122_880)), _DEVICE | _FALLING
    ),
    "gymnax/Pendulum-v1": Tuned(
        Measured(-300.0, 400_000, (77_824, 131_072, 167_936, 90_112, 221_184)),
        _DEVICE | _PENDULUM | {"train_batch_size_per_learner": 4096, "lr": 2e-3},
    ),
    "gymnax/Acrobot-v1": Tuned(
        Measured(-90.0, 500_000, (352_256, 270_336, 229_376, 237_568, 335_872)),
        _DEVICE | _FALLING | _FILTERED | {"minibatch_size": 512},
    ),
    "CartPole-v1": Tuned(
        Measured(475.0, 300_000, (63_488, 73_728, 65_536, 67_584, 65_536)),
        _HOST | {"train_batch_size_per_learner": 2048, "num_epochs": 8, "lr": [[0, 2e-3], [200_000, 1e-4]]},
    ),
    "Pendulum-v1": Tuned(
        Measured(-300.0, 400_000, (227_328, 266_240, 139_264, 276_480, 256_000)),
        _HOST | _PENDULUM | {"train_batch_size_per_learner": 2048, "lr": 1e-3},
    ),
    "Acrobot-v1": Tuned(
        Measured(-90.0, 500_000, (131_072, 208_896, 122_880, 131_072, None)), _HOST | _FALLING | _FILTERED
    ),
    "FrozenLake-v1": Tuned(
        Measured(0.7, 500_000, (278_528, 217_088, 253_952, 274_432, 356_352), standard_error=0.01),
        _HOST | {"entropy_coeff": 0.02},
    ),
    # Entropy keeps it picking up and dropping off, which costs 10 at first, until it has learned where that pays.
    "Taxi-v4": Tuned(
        Measured(0.0, 1_000_000, (303_104, 303_104, 327_680, 286_720, 319_488)),
        _HOST
        | {"num_envs_per_env_runner": 32, "train_batch_size_per_learner": 8192, "minibatch_size": 512}
        | {"lr": 2e-3, "gamma": 0.98, "lambda_": 0.9, "entropy_coeff": [[0, 0.3], [1_000_000, 0.01]]},
    ),
    "LunarLander-v3": Tuned(Scored(700_000, (242.16, 250.38, 269.22, 270.16, 273.54)), _LUNAR_LANDER),
    "jaxrl_stack.examples.envs.classes.stateless_cartpole:StatelessCartPole": Tuned(
        Measured(350.0, 300_000, (81_920, 69_632, 67_584, 63_488, 71_680)), _STATELESS
    ),
    # Its twin on the device, from a checkout.
    "jaxrl_stack.examples.envs.memory:StatelessCartPole": Tuned(
        Measured(350.0, 300_000, (102_400, 108_544, 77_824, 69_632, 106_496)), _STATELESS
    ),
    "gymnax/Catch-bsuite": Tuned(Measured(0.9, 300_000, (98_304, 98_304, 106_496)), _DEVICE),
    "gymnax/DeepSea-bsuite": Tuned(Measured(0.9, 300_000, (40_960, 40_960, 40_960)), _DEVICE),
    # The return of an episode is 1 for the right choice, and noise with a standard deviation of 3.
    "gymnax/UmbrellaChain-bsuite": Tuned(
        Measured(0.9, 300_000, (114_688, 155_648, 106_496, 163_840, 163_840), standard_error=0.02), _DEVICE
    ),
    "gymnax/Breakout-MinAtar": Tuned(
        Measured(28.0, 10_000_000, (2_244_608, 1_458_176, None)), _minatar_settings(2.5e-3, 0.03, 3_000_000, 128, 0.1)
    ),
    "gymnax/Asterix-MinAtar": Tuned(
        Measured(12.0, 10_000_000, (2_072_576, 1_179_648, 1_564_672)), _minatar_settings(1e-3, 0.01, 5_000_000, 64, 0.2)
    ),
    "gymnax/Freeway-MinAtar": Tuned(
        Scored(5_000_000, (50.58, 64.49, 65.22)), _minatar_settings(1e-3, 0.01, 5_000_000, 64, 0.2)
    ),
    "gymnax/SpaceInvaders-MinAtar": Tuned(
        Scored(5_000_000, (153.16, 158.12, 158.66)), _minatar_settings(1e-3, 0.01, 5_000_000, 64, 0.2)
    ),
    "gymnax/Reacher-misc": Tuned(Measured(20.0, 500_000, (147_456, 40_960, 180_224)), _DEVICE),
    "gymnax/PointRobot-misc": Tuned(Measured(3.5, 1_000_000, (630_784, 442_368, 598_016)), _DEVICE),
    "brax/inverted_pendulum": Tuned(FromLiterature(_BRAX_NOTEBOOK.format("2M")), _brax_settings(2048, 5, 32, 1024, 4)),
    "brax/inverted_double_pendulum": Tuned(
        FromLiterature(_BRAX_NOTEBOOK.format("20M")), _brax_settings(2048, 5, 32, 1024, 4)
    ),
    "brax/ant": Tuned(FromLiterature(_BRAX_NOTEBOOK.format("50M")), _brax_settings(4096, 5, 32, 2048, 4)),
    "brax/humanoid": Tuned(
        FromLiterature(_BRAX_NOTEBOOK.format("50M")),
        _brax_settings(2048, 10, 32, 1024, 8, entropy_coeff=1e-3, learner_connector=rewards_over_10),
    ),
    "brax/humanoidstandup": Tuned(
        FromLiterature(_BRAX_NOTEBOOK.format("100M")),
        _brax_settings(2048, 15, 32, 1024, 8, lr=6e-4, learner_connector=rewards_over_10),
    ),
    "brax/halfcheetah": Tuned(
        FromLiterature(_BRAX_NOTEBOOK.format("50M")),
        _brax_settings(2048, 20, 32, 512, 8, gamma=0.95, entropy_coeff=1e-3, learner_connector=None),
    ),
    "brax/pusher": Tuned(
        FromLiterature(_BRAX_NOTEBOOK.format("50M")),
        _brax_settings(2048, 30, 16, 512, 8, gamma=0.95, learner_connector=rewards_times_5),
    ),
    "playground/CartpoleBalance": Tuned(FromLiterature(_PLAYGROUND), _PLAYGROUND_SETTINGS),
    "playground/CheetahRun": Tuned(FromLiterature(_PLAYGROUND), _PLAYGROUND_SETTINGS),
    "playground/WalkerWalk": Tuned(FromLiterature(_PLAYGROUND), _PLAYGROUND_SETTINGS),
    "playground/FingerSpin": Tuned(FromLiterature(_PLAYGROUND), _PLAYGROUND_SETTINGS | {"gamma": 0.95}),
    "craftax/Craftax-Symbolic-v1": Tuned(_CRAFTAX, _CRAFTAX_SETTINGS),
    "craftax/Craftax-Classic-Symbolic-v1": Tuned(_CRAFTAX, _CRAFTAX_SETTINGS),
    "HalfCheetah-v5": Tuned(Scored(1_000_000, (1710.76, 1853.53, 1854.11)), _MUJOCO),
    "Hopper-v5": Tuned(Scored(1_000_000, (1720.69, 1692.16, 1846.91)), _MUJOCO),
    "Walker2d-v5": Tuned(Scored(1_000_000, (3425.63, 3278.13, 3538.25)), _MUJOCO),
    "Swimmer-v5": Tuned(Scored(1_000_000, (86.8, 110.07, 129.66)), _MUJOCO),
    "Reacher-v5": Tuned(Scored(1_000_000, (-4.13, -4.04, -4.08)), _MUJOCO),
    "InvertedPendulum-v5": Tuned(Scored(1_000_000, (1000.0, 1000.0, 1000.0)), _MUJOCO),
    "InvertedDoublePendulum-v5": Tuned(Scored(1_000_000, (7429.78, 7701.79, 8603.4)), _MUJOCO),
    "BipedalWalker-v3": Tuned(FromLiterature(_ZOO.format("5M steps")), _BIPEDAL),
    "ALE/Breakout-v5": Tuned(_ATARI_SOURCE, _ATARI),
    "ALE/Pong-v5": Tuned(_ATARI_SOURCE, _ATARI),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
