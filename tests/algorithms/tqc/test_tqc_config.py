"""TQCConfig: RLlib's settings, defaults and checks, and what it builds."""

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
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQC, TQCCatalog, TQCConfig, TQCLearner
from jaxrl_stack.algorithms.tqc import default_tqc_rl_module as module_file
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.utils import notices

ALL_FACTS = json.loads((Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())
FACTS = ALL_FACTS["algorithms"]["TQC"]
OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
# The module has the temperature at the start, too.
AUTO_INCLUDES = FACTS["model_config_auto_includes"] | {"initial_alpha": "1.0"}


def test_settings_and_defaults_are_rllibs():
    config, parameters = TQCConfig(), inspect.signature(TQCConfig.training).parameters
    assert isinstance(config, SACConfig) and set(FACTS["training"]) == {
        "n_quantiles",
        "n_critics",
        "top_quantiles_to_drop_per_net",
    }
    for name, fact in FACTS["training"].items():
        assert name in parameters and repr(config[name]) == fact["default"], name
    assert set(FACTS["training_inherited"]) <= parameters.keys()
    for name in FACTS["training_inherited"]:
        fact = ALL_FACTS["algorithms"]["SAC"]["training"][name]
        # Checkpoints continue exactly only with the replay inside.
        expected = "True" if name == "store_buffer_in_checkpoints" else fact["default"]
        assert repr(getattr(config, fact.get("attribute", name))) == expected, name
    for name, default in FACTS["overridden_base_defaults"].items():
        if name != "_prior_exploration_config":
            assert repr(config[name]) == default, name
    assert {name: repr(value) for name, value in config.model_config.items()} == AUTO_INCLUDES


def test_it_is_registered_under_rllibs_names():
    assert get_algorithm_class("TQC") is algorithms.TQC is TQC
    assert get_algorithm_config_class("TQC") is algorithms.TQCConfig is TQCConfig
    config = TQCConfig()
    assert config.algo_class is TQC and TQC.get_default_config().algo_class is TQC
    assert config.learner_class is TQCLearner
    spec = config.get_default_rl_module_spec()
    assert (spec.module_class, spec.catalog_class) == (DefaultTQCRLModule, TQCCatalog)
    with pytest.raises(ImportError, match="DefaultTQCRLModule"):
        _ = module_file.DefaultTQCTorchRLModule


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_quantiles": 0}, r"n_quantiles=0.*at least 1"),
        ({"n_quantiles": 2.5}, r"n_quantiles=2.5.*integer"),
        ({"n_critics": 0}, r"n_critics=0.*at least 1"),
        ({"top_quantiles_to_drop_per_net": -1}, r"top_quantiles_to_drop_per_net=-1.*at least 0"),
        ({"top_quantiles_to_drop_per_net": 25}, r"top_quantiles_to_drop_per_net=25.*must be below n_quantiles=25"),
        ({"n_quantiles": 2}, r"top_quantiles_to_drop_per_net=2.*n_quantiles=2"),
        ({"lr": 1e-3}, r"lr=0.001.*actor_lr, critic_lr and alpha_lr"),
    ],
)
def test_what_cannot_be_right(settings, message):
    with pytest.raises(ValueError, match=message):
        TQCConfig().environment("gymnax/Pendulum-v1").training(**settings).validate()


@pytest.mark.parametrize(
    ("model_config", "action_space", "message"),
    [
        ({"n_quantiles": 9}, BOX, r"n_quantiles.*9.*n_quantiles=25.*Set it only with training\(\)"),
        ({"n_critics": 3}, BOX, r"n_critics.*Set it only with training\(\)"),
        ({"top_quantiles_to_drop_per_net": 1}, BOX, r"top_quantiles_to_drop_per_net.*Set it only with training\(\)"),
        ({"free_log_std": True}, BOX, r"free_log_std': True.*False"),
        ({"fcnet_hidens": [4]}, BOX, r"fcnet_hidens.*fcnet_hiddens"),
        ({}, gym.spaces.Discrete(3), r"TQC supports.*not Discrete\(3\).*use SAC or DQN"),
        ({}, gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32), r"TQC supports.*\(2, 2\).*Flatten"),
    ],
)
def test_networks_and_spaces_that_do_not_go(model_config, action_space, message):
    config = TQCConfig().environment("gymnax/Pendulum-v1", observation_space=OBS, action_space=action_space)
    config.rl_module(model_config=model_config)

    def build():
        config.validate()
        config.get_multi_rl_module_spec(spaces={"default_policy": (OBS, action_space)}).build(seed=0)

    with pytest.raises(ValueError, match=message):
        build()


def test_a_second_critic_is_no_setting_of_it(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    monkeypatch.setattr(notices.logger, "propagate", True)
    with caplog.at_level(logging.WARNING, logger=notices.logger.name):
        TQCConfig().environment("gymnax/Pendulum-v1").validate()
        assert "twin_q" not in caplog.text
        TQCConfig().environment("gymnax/Pendulum-v1").training(twin_q=False, n_critics=3).validate()
        TQCConfig().environment("gymnax/Pendulum-v1").training(td_error_loss_fn="mse").validate()
    assert "twin_q=False) has no effect. Set the number of TQC's critics with n_critics=3" in caplog.text
    assert "td_error_loss_fn='mse') has no effect" in caplog.text


def test_which_settings_recompile():
    config = TQCConfig()
    same = TQCConfig().training(actor_lr=1.0, critic_lr=[[0, 1.0], [9, 0.0]], tau=0.5, gamma=0.5)
    assert same.differs_in_traced_settings_only(config)
    for changed in ({"n_quantiles": 9}, {"n_critics": 3}, {"top_quantiles_to_drop_per_net": 1}):
        assert not TQCConfig().training(**changed).differs_in_traced_settings_only(config)


def test_settings_survive_a_round_trip():
    config = TQCConfig().training(n_quantiles=7, n_critics=5, top_quantiles_to_drop_per_net=0, target_entropy=-0.5)
    again = TQCConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict() and (again.n_quantiles, again.target_entropy) == (7, -0.5)
    assert TQCConfig().training(n_critics={"grid_search": [2, 5]}).n_critics == {"grid_search": [2, 5]}


def test_tuned_settings_are_of_this_algorithm():
    config = TQCConfig.tuned("Pendulum-v1")
    assert (config.n_step, config.n_critics) == ((2, 5), 2)
    with pytest.raises(ValueError, match=r"CartPole-v1.*no tuned settings; TQCConfig has them for .*'Pendulum-v1'"):
        TQCConfig.tuned("CartPole-v1")
