"""SACConfig: RLlib's settings, defaults and checks, and what it builds."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import jaxrl_stack.algorithms as algorithms
from jaxrl_stack.algorithms.registry import get_algorithm_class, get_algorithm_config_class
from jaxrl_stack.algorithms.sac import SAC, SACConfig, SACLearner
from jaxrl_stack.algorithms.sac import default_sac_rl_module as module_file
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.utils import notices

FACTS = json.loads((Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())["algorithms"]["SAC"]
OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
# Checkpoints continue exactly only with the replay inside.
OTHER_DEFAULTS = {"store_buffer_in_checkpoints": "True"}


def test_settings_and_defaults_are_rllibs():
    config, parameters = SACConfig(), inspect.signature(SACConfig.training).parameters
    for name, fact in FACTS["training"].items():
        assert name in parameters
        value = getattr(config, fact.get("attribute", name))
        assert repr(value) == OTHER_DEFAULTS.get(name, fact["default"]), name
    for name, default in FACTS["overridden_base_defaults"].items():
        if name != "_prior_exploration_config":
            assert repr(config[name]) == default, name
    assert config.model_config == {"twin_q": True, "initial_alpha": 1.0}
    assert config.get_rollout_fragment_length() == 1
    assert SACConfig().training(n_step=(2, 5)).get_rollout_fragment_length() == 5


def test_it_is_registered_under_rllibs_names():
    assert get_algorithm_class("SAC") is algorithms.SAC is SAC
    assert get_algorithm_config_class("SAC") is algorithms.SACConfig is SACConfig
    config = SACConfig()
    assert config.algo_class is SAC or config.algo_class == "SAC"
    assert config.learner_class is SACLearner
    assert config.get_default_rl_module_spec().module_class is DefaultSACRLModule
    assert SAC.get_default_config().algo_class is SAC
    with pytest.raises(ImportError, match="DefaultSACRLModule"):
        _ = module_file.DefaultSACTorchRLModule


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("q_model_config", {"fcnet_hiddens": [4]}, "model_config"),
        ("policy_model_config", {"fcnet_hiddens": [4]}, "model_config"),
        ("optimization_config", {"actor_learning_rate": 1.0}, "actor_lr"),
        ("_deterministic_loss", True, "get_train_action_dist_cls"),
        ("_use_beta_distribution", True, "get_action_dist_cls"),
    ],
)
def test_settings_of_the_old_stack_say_that_they_have_no_effect(name, value, instead, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    monkeypatch.setattr(notices.logger, "propagate", True)
    with caplog.at_level(logging.WARNING, logger=notices.logger.name):
        SACConfig().training(**{name: value})
    assert f"{name}=" in caplog.text and "no effect" in caplog.text and instead in caplog.text


def test_clip_actions_is_one_setting_of_two_sections():
    assert SACConfig().training(clip_actions=True).clip_actions
    assert SACConfig().environment(clip_actions=True).clip_actions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 1e-3}, r"lr=0.001.*actor_lr, critic_lr and alpha_lr"),
        ({"grad_clip": 0}, r"grad_clip=0.*above 0"),
        ({"actor_lr": None}, r"actor_lr=None"),
        ({"critic_lr": -1.0}, r"critic_lr=-1.0.*at least 0"),
        ({"alpha_lr": [[5, 1.0]]}, r"alpha_lr=.*schedule"),
        ({"initial_alpha": 0.0}, r"initial_alpha=0.0.*above 0"),
        ({"target_entropy": "Auto"}, r"target_entropy='Auto'.*'auto'"),
        ({"twin_q": 2}, r"twin_q=2.*True or False"),
        ({"tau": 1.5}, r"tau=1.5"),
        ({"n_step": (3, 3)}, r"n_step"),
        ({"replay_buffer_config": {"type": "ReplayBuffer"}}, r"EpisodeReplayBuffer"),
    ],
)
def test_what_cannot_be_right(settings, message):
    with pytest.raises(ValueError, match=message):
        SACConfig().environment("gymnax/Pendulum-v1").training(**settings).validate()


@pytest.mark.parametrize(
    ("model_config", "action_space", "message"),
    [
        ({"twin_q": False}, BOX, r"twin_q.*Set it only with training\(\)"),
        ({"initial_alpha": 2.0}, BOX, r"initial_alpha.*Set it only with training\(\)"),
        ({"fusionnet_hiddens": 8}, BOX, r"fusionnet_hiddens=8.*list.*or None"),
        ({"fcnet_hiddens": None}, BOX, r"fcnet_hiddens=None"),
        ({"free_log_std": True}, BOX, r"free_log_std': True.*False"),
        ({"fcnet_hidens": [4]}, BOX, r"fcnet_hidens.*fcnet_hiddens"),
        (
            {},
            gym.spaces.MultiDiscrete([2, 3]),
            r"action spaces Discrete and Box\(shape=\(n,\), dtype=float32\), not MultiDiscrete",
        ),
        ({}, gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32), r"SAC supports.*\(2, 2\).*Flatten"),
        ({}, gym.spaces.Box(0, 5, (2,), np.int32), r"SAC supports.*int32"),
    ],
)
def test_networks_and_spaces_that_do_not_go(model_config, action_space, message):
    config = SACConfig().environment("gymnax/Pendulum-v1", observation_space=OBS, action_space=action_space)
    config.rl_module(model_config=model_config)

    def build():
        config.validate()
        config.get_multi_rl_module_spec(spaces={"default_policy": (OBS, action_space)}).build(seed=0)

    with pytest.raises(ValueError, match=message):
        build()


def test_search_spaces_pass_and_settings_survive_a_round_trip():
    config = SACConfig().training(
        actor_lr={"grid_search": [1e-4, 1e-3]}, critic_lr=[[0, 1e-3], [1000, 1e-4]], target_entropy=-0.5
    )
    assert config.actor_lr == {"grid_search": [1e-4, 1e-3]}
    config.training(actor_lr=1e-4)
    again = SACConfig.from_dict(config.to_dict())
    assert (again.critic_lr, again.target_entropy) == (config.critic_lr, -0.5)


def test_which_settings_recompile():
    config = SACConfig()
    same = SACConfig().training(actor_lr=1.0, critic_lr=[[0, 1.0], [9, 0.0]], alpha_lr=0.5, tau=0.5, gamma=0.5)
    assert same.differs_in_traced_settings_only(config)
    for changed in ({"target_entropy": -1.0}, {"twin_q": False}, {"initial_alpha": 2.0}):
        assert not SACConfig().training(**changed).differs_in_traced_settings_only(config)
    one, other = (SACConfig().training(target_entropy=value) for value in (-1.0, -2.0))
    assert one.differs_in_traced_settings_only(other)


def test_tuned_settings_are_of_this_algorithm():
    config = SACConfig.tuned("Pendulum-v1")
    assert (config.n_step, config.replay_capacity, config.replay_beta) == ((2, 5), 100_000, 0.0)
    with pytest.raises(ValueError, match="no tuned settings; SACConfig has them for"):
        SACConfig.tuned("CartPole-v1")
