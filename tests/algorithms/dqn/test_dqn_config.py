"""DQN's settings against RLlib's own, what they build, and what is refused."""

import inspect
import json
import pathlib
import re

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig, DQNLearner, dqn_learner, tuned
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.dqn_catalog import DQN_MODEL_CONFIG, DQNCatalog
from jaxrl_stack.algorithms.registry import get_algorithm_class, get_algorithm_config_class
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

FACTS = json.loads((pathlib.Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())
DQN_FACTS = FACTS["algorithms"]["DQN"]
BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {"__env_single__": (BOX, gym.spaces.Discrete(2))}

OTHER_DEFAULTS = {"store_buffer_in_checkpoints": True}  # a restored run continues exactly


def config_of(**training):
    return DQNConfig().environment("CartPole-v1").training(**training)


@pytest.fixture
def said(monkeypatch):
    """What notices say, those that were given before included."""
    given = set()
    monkeypatch.setattr("jaxrl_stack.utils.notices._given", given)
    return given


def test_settings_and_defaults_are_rllibs():
    config = DQNConfig()
    parameters = inspect.signature(DQNConfig.training).parameters
    for name, fact in DQN_FACTS["training"].items():
        if name == "lr_schedule":
            with pytest.raises(ValueError, match=r"training\(lr="):
                config.training(lr_schedule=[[0, 1.0]])
            continue
        assert name in parameters, name
        if name in OTHER_DEFAULTS:
            assert config[name] is OTHER_DEFAULTS[name]
        else:
            assert repr(config[name]) == fact["default"], name
    for name, default in DQN_FACTS["overridden_base_defaults"].items():
        if name != "_prior_exploration_config":
            assert repr(config[name]) == default, name
    assert (config.train_batch_size_per_learner, config.get_rollout_fragment_length()) == (32, 1)
    ours = {k: repr(v) for k, v in config.model_config.items() if k != "noisy"}
    assert ours == DQN_FACTS["model_config_auto_includes"]


def test_constants_are_rllibs():
    (constants,) = [v for k, v in FACTS["constants"].items() if k.endswith("dqn.dqn_learner")]
    assert {name: repr(getattr(dqn_learner, name)) for name in constants} == constants


def test_what_it_builds():
    config = config_of(num_atoms=11, sigma0=0.3, noisy=True, epsilon=0.1)
    assert config.learner_class is DQNLearner
    spec = config.get_rl_module_spec(spaces=SPACES)
    assert (spec.module_class, spec.catalog_class) == (DefaultDQNRLModule, DQNCatalog)
    changed = {"num_atoms": 11, "std_init": 0.3, "noisy": True, "epsilon": 0.1}
    assert spec.model_config == {**DQN_MODEL_CONFIG, **changed}
    # What the module falls back to is what the config fills in.
    assert DQNConfig().model_config == DQN_MODEL_CONFIG
    config.rl_module(algorithm_config_overrides_per_module={"default_policy": {"num_atoms": 3}})
    assert config.get_rl_module_spec(spaces=SPACES).model_config["num_atoms"] == 3
    config.rl_module(rl_module_spec=RLModuleSpec(model_config={"num_atoms": 5}))
    assert config.get_rl_module_spec(spaces=SPACES).model_config["num_atoms"] == 5


def test_registry():
    assert get_algorithm_config_class("DQN") is DQNConfig
    assert get_algorithm_class("DQN").get_default_config().lr == 5e-4


@pytest.mark.parametrize(
    ("training", "match"),
    [
        ({"epsilon": 1.5}, "epsilon=1.5.*at most 1"),
        ({"epsilon": [[0, 1.0], [10, -0.1]]}, "a schedule of numbers"),
        ({"epsilon": [[5, 1.0], [10, 0.1]]}, "schedule"),
        ({"td_error_loss_fn": "l1"}, "one of 'huber', 'mse'"),
        ({"num_atoms": 0}, "at least 1"),
        ({"num_atoms": 5, "v_min": 3.0, "v_max": 3.0}, "v_min must be below v_max"),
        ({"sigma0": -1.0}, "at least 0"),
        ({"adam_epsilon": -1.0}, "at least 0"),
        ({"burn_in_len": -3}, "burn_in_len=-3.* at least 0"),
        ({"double_q": 1}, "True or False"),
        ({"learning_rate": 1.0}, r"Did you mean training\(lr="),
    ],
)
def test_values_that_cannot_be_right(training, match):
    with pytest.raises((ValueError, NotImplementedError, TypeError), match=match):
        config_of(**training).validate()


def test_other_action_spaces_are_refused():
    config = DQNConfig().environment("Pendulum-v1", observation_space=BOX, action_space=BOX)
    with pytest.raises(ValueError, match="needs a Discrete action space, got Box.*SAC"):
        config.validate()
    with pytest.raises(ValueError, match="needs a Discrete action space"):
        DQNConfig().build_learner(spaces={"__env_single__": (BOX, BOX)})


@pytest.mark.parametrize(
    ("training", "line"),
    [
        ({"hiddens": [64]}, "hiddens.* has no effect: use .*head_fcnet_hiddens"),
        ({"categorical_distribution_temperature": 0.5}, "has no effect: exploration is epsilon-greedy"),
        ({"before_learn_on_batch": print}, "has no effect: use connectors"),
        ({"v_min": -1.0, "v_max": 1.0}, r"v_min=-1.0, v_max=1.0\) has no effect: .*num_atoms=51"),
        ({"td_error_loss_fn": "mse", "num_atoms": 5}, "td_error_loss_fn='mse'.* has no effect: .*cross-entropy"),
        ({"sigma0": 0.1}, "sigma0=0.1.* has no effect: .*noisy=True"),
        ({"noisy": True}, r"epsilon-greedy exploration is still enabled.*training\(epsilon=0.0\)"),
    ],
)
def test_what_has_no_effect_says_so(training, line, said):
    config_of(**training).validate()
    (notice,) = said
    assert re.search(line, notice), notice


def test_what_has_an_effect_says_nothing(said):
    config_of(num_atoms=5, v_min=0.0, noisy=True, sigma0=0.1, epsilon=0.0).validate()
    config_of(td_error_loss_fn="mse").validate()
    assert not said


def test_evaluation_is_greedy_and_none_switches_defaults_off():
    evaluation = config_of().get_evaluation_config_object()
    assert evaluation.explore is False and DQNConfig().explore is True
    config = config_of(grad_clip=None).evaluation(evaluation_config={"seed": 3})
    config.validate()
    assert config.evaluation_config == {"explore": False, "seed": 3}
    assert config.grad_clip is None


def test_a_config_of_ones_own_has_the_tuned_settings_of_what_it_is_made_from_as_copies():
    own = type("OwnConfig", (DQNConfig,), {}).tuned("CartPole-v1")
    own.replay_buffer_config["capacity"] = 7
    assert own.env == "CartPole-v1" and tuned.TUNED["CartPole-v1"]["replay_buffer_config"]["capacity"] == 60_000


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("dqn_learner", "DQNTorchLearner", "DQNLearner"),
        ("dqn_learner", "DQNRainbowTorchLearner", "DQNLearner"),
        ("default_dqn_rl_module", "DefaultDQNTorchRLModule", "DefaultDQNRLModule"),
        ("default_dqn_rl_module", "DQNRainbowRLModule", "DefaultDQNRLModule"),
        ("torch.dqn_torch_learner", "DQNTorchLearner", "DQNLearner"),
        ("torch.default_dqn_torch_rl_module", "DefaultDQNTorchRLModule", "DefaultDQNRLModule"),
    ],
)
def test_rllibs_torch_names_say_what_to_import(module, name, instead):
    with pytest.raises(ImportError, match=instead):
        exec(f"from jaxrl_stack.algorithms.dqn.{module} import {name}", {})


def test_the_old_name_of_the_learner():
    with pytest.warns(DeprecationWarning, match="DQNLearner"):
        assert dqn_learner.DQNRainbowLearner is DQNLearner
