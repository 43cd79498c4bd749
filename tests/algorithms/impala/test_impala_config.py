"""IMPALA's and APPO's settings against RLlib's own, and what is refused."""

import inspect
import json
import pathlib

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms import appo, impala
from jaxrl_stack.algorithms.appo import APPO, APPOConfig, APPOLearner
from jaxrl_stack.algorithms.appo.default_appo_rl_module import DefaultAPPORLModule
from jaxrl_stack.algorithms.impala import IMPALA, IMPALAConfig, IMPALALearner
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.registry import get_algorithm_class, get_algorithm_config_class
from jaxrl_stack.connectors.module_to_env import OrnsteinUhlenbeckNoise

FACTS = json.loads((pathlib.Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())
CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}
OTHER_BASE_DEFAULTS = {
    "num_learners": "0",  # learner actors are asked for, as env runners are
    "use_env_runner_state_server": "False",
    "num_gpus": None,
    "_prior_exploration_config": None,
    "_tf_policy_handles_more_than_one_loss": None,
    "_dont_auto_sync_env_runner_states": None,
}
"""What differs from RLlib's defaults; None of what is gone."""


@pytest.fixture
def said(monkeypatch):
    """What notices say, those that were given before included."""
    given = set()
    monkeypatch.setattr("jaxrl_stack.utils.notices._given", given)
    return given


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_and_defaults_are_rllibs(name, said):
    config, facts = CONFIGS[name](), FACTS["algorithms"][name]
    parameters = inspect.signature(CONFIGS[name].training).parameters
    for setting, fact in facts["training"].items():
        if setting in parameters:
            assert repr(config[setting]) == fact["default"], setting
            continue
        assert fact.get("deprecated"), setting
        with pytest.raises(ValueError, match=setting):
            config.training(**{setting: "other"})
        if fact["default"] not in ("-1", "None"):
            config.update_from_dict({setting: eval(fact["default"])})  # what it asks for is so
    for setting, default in facts["overridden_base_defaults"].items():
        wanted = OTHER_BASE_DEFAULTS.get(setting, default)
        if wanted is not None:
            assert repr(config[setting]) == wanted, setting
    own = {key: repr(value) for key, value in config.model_config.items()}
    assert own == facts["model_config_auto_includes"]


@pytest.mark.parametrize(
    ("config_class", "learner_class", "module_class"),
    [(IMPALAConfig, IMPALALearner, DefaultPPORLModule), (APPOConfig, APPOLearner, DefaultAPPORLModule)],
)
def test_what_they_build(config_class, learner_class, module_class):
    config = config_class()
    assert config.learner_class is learner_class
    assert config.rl_module_spec.module_class is module_class
    name = config.algo_class.__name__
    assert get_algorithm_config_class(name) is config_class
    assert get_algorithm_class(name) is {"IMPALA": IMPALA, "APPO": APPO}[name]


def test_constants_are_rllibs():
    for module in (impala.impala, appo.appo):
        theirs = FACTS["constants"][module.__name__.removeprefix("jaxrl_stack.")]
        assert {name: repr(getattr(module, name)) for name in theirs if name.endswith("_KEY")} == {
            name: value for name, value in theirs.items() if name.endswith("_KEY")
        }


@pytest.mark.parametrize(
    ("config_class", "settings", "message"),
    [
        (IMPALAConfig, {"vtrace": False}, r"training\(vtrace=False\): IMPALA has no other estimator"),
        (APPOConfig, {"vtrace": False}, r"training\(vtrace=False\): APPO has no other estimator"),
        (
            IMPALAConfig,
            {"minibatch_size": 75},
            r"minibatch_size=75\) must be a multiple of .*=50.* Use minibatch_size=50",
        ),
        (IMPALAConfig, {"minibatch_size": 550}, r"at most the train batch of 500 steps. Use minibatch_size=500"),
        (APPOConfig, {"learner_queue_size": 8}, r"learner_queue_size=8\).*circular_buffer_num_batches"),
    ],
)
def test_what_is_refused_when_it_is_built(config_class, settings, message):
    with pytest.raises(ValueError, match=message):
        config_class().environment("CartPole-v1").training(**settings).validate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vtrace_clip_rho_threshold": -1.0}, "vtrace_clip_rho_threshold"),
        ({"broadcast_interval": 0}, "broadcast_interval"),
        ({"learner_queue_size": 0}, "learner_queue_size"),
        ({"timeout_s_sampler_manager": -1}, "timeout_s_sampler_manager"),
        ({"circular_buffer_num_batches": 0}, "circular_buffer_num_batches"),
        ({"circular_buffer_iterations_per_batch": 0}, "circular_buffer_iterations_per_batch"),
        ({"target_network_update_freq": -1}, "target_network_update_freq"),
        ({"tau": 1.5}, "tau"),
        ({"num_aggregation_workers": 1}, r"num_aggregator_actors_per_learner"),
        ({"target_update_frequency": 1}, r"training\(target_network_update_freq=\.\.\.\)"),
        ({"use_critic": False}, "APPO always trains a value function"),
        ({"opt_type": "rmsprop"}, r"configure_optimizers_for_module\(\)"),
    ],
)
def test_what_is_refused_when_it_is_set(settings, message):
    with pytest.raises(ValueError, match=message):
        APPOConfig().training(**settings)


@pytest.mark.parametrize("setting", ["_env_runners_only", "_skip_learners"])
@pytest.mark.parametrize(
    ("num_env_runners", "least_trained", "message"),
    [
        (0, 0, r"=True\) needs EnvRunner actors, and there are none.*num_env_runners"),
        (1, 64, r"=True\) makes no updates.*min_train_timesteps_per_iteration=64.*min_sample_timesteps"),
    ],
)
def test_without_updates_there_is_something_to_measure_and_an_end(setting, num_env_runners, least_trained, message):
    config = IMPALAConfig().environment("CartPole-v1").env_runners(num_env_runners=num_env_runners)
    config.debugging(**{setting: True}).reporting(min_train_timesteps_per_iteration=least_trained)
    with pytest.raises(ValueError, match=setting + message):
        config.validate()


@pytest.mark.parametrize("setting", ["num_gpu_loader_threads", "use_gae", "lambda_", "target_worker_clipping"])
def test_settings_without_effect_are_said_once(setting, said):
    config = APPOConfig()
    config.training(**{setting: {"use_gae": False, "lambda_": 0.9}.get(setting, 4)})
    assert len([text for text in said if setting in text]) == 1


def test_minibatches_of_whole_fragments_are_fine():
    IMPALAConfig().environment("CartPole-v1").training(minibatch_size=100).validate()


@pytest.mark.parametrize(
    ("use_circular_buffer", "updates", "steps"), [(True, 3, 1.5 * 4 * 100), (False, 1, 1.5 * 4 * 3 * 100)]
)
def test_target_networks_count_trained_steps_in_rounds_of_the_buffer(use_circular_buffer, updates, steps):
    config = APPOConfig().training(
        use_circular_buffer=use_circular_buffer,
        circular_buffer_num_batches=4,
        circular_buffer_iterations_per_batch=3,
        train_batch_size_per_learner=100,
    )
    assert config.updates_per_train_batch == updates
    assert config.env_steps_between_target_updates(1.5) == steps


def test_noise_on_actions_is_refused():
    box = gym.spaces.Box(-1, 1, (3,), np.float32)
    with pytest.raises(ValueError, match="IMPALA's importance ratios"):
        IMPALAConfig()._check_action_noise("noise", OrnsteinUhlenbeckNoise(box, box))
