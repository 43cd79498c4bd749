"""How settings are set, read, copied, checked and shown."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import logging
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig, NotProvided, PolicySpec
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.setting_checks import number
from jaxrl_stack.algorithms.settings import Section, traced
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.resources import bundle_index, resource_bundles


@pytest.fixture
def heard(monkeypatch, caplog):
    """The notices of one test, as if none had been given before."""
    monkeypatch.setattr(notices, "_given", set())
    caplog.set_level(logging.WARNING, logger="jaxrl_stack")
    return lambda: [record.getMessage() for record in caplog.records]


def test_methods_chain_and_leave_the_rest_alone():
    config = PPOConfig()
    assert config.training(lr=0.1, grad_clip=0.5).environment("gymnax/CartPole-v1") is config
    config.training(gamma=0.5, lr=NotProvided, grad_clip=None)
    assert (config.lr, config.gamma, config.grad_clip, config.env) == (0.1, 0.5, None, "gymnax/CartPole-v1")


def test_signatures_and_docstrings_come_from_the_declarations():
    signature = inspect.signature(PPOConfig.training)
    assert {"lr", "clip_param"} < set(signature.parameters)
    assert all(p.default is NotProvided for p in list(signature.parameters.values())[1:])
    assert signature.parameters["lr"].kind is inspect.Parameter.KEYWORD_ONLY
    doc = inspect.getdoc(PPOConfig.training)
    assert "clip_param: Probability ratios are clipped" in doc
    assert "Default: 5e-05." in doc
    assert list(inspect.signature(PPOConfig).parameters) == ["algo_class"]
    env = inspect.signature(PPOConfig.environment).parameters["env"]
    assert env.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    with pytest.raises(TypeError, match="1 positional"):
        PPOConfig().environment("gymnax/CartPole-v1", {})
    with pytest.raises(TypeError, match="'env' twice"):
        PPOConfig().environment("gymnax/CartPole-v1", env="gymnax/CartPole-v1")


@pytest.mark.parametrize(
    ("section", "name", "hint"),
    [
        ("training", "clip_parm", r"Did you mean training\(clip_param=\.\.\.\)"),
        ("training", "num_learners", r"belongs to learners\(\)"),
        ("training", "fcnet_hiddens", r"DefaultModelConfig\(fcnet_hiddens"),
        ("env_runners", "num_envs", r"env_runners\(num_envs_per_env_runner"),
        ("evaluation", "restart_failed_sub_environments", r"fault_tolerance\(restart_failed_sub_environments"),
    ],
)
def test_unknown_keywords_raise_with_a_suggestion(section, name, hint):
    with pytest.raises(TypeError, match=hint):
        getattr(PPOConfig(), section)(**{name: 1})


def test_unknown_names_raise_everywhere():
    config = PPOConfig()
    with pytest.raises(AttributeError, match=r"clip_parm.*clip_param"):
        config.clip_parm = 1
    with pytest.raises(AttributeError, match=r"clip_parm.*clip_param"):
        _ = config.clip_parm
    with pytest.raises(ValueError, match=r"clip_parm.*clip_param"):
        config.update_from_dict({"clip_parm": 1})
    with pytest.raises(KeyError, match=r"clip_parm.*clip_param"):
        _ = config["clip_parm"]
    with pytest.raises(KeyError, match=r"clip_parm.*clip_param"):
        PPOConfig.overrides(clip_parm=1)
    assert not hasattr(config, "clip_parm")


def test_a_wrong_call_changes_nothing():
    config = PPOConfig()
    with pytest.raises(ValueError, match="num_epochs"):
        config.training(grad_clip=1.0, num_epochs=0)
    assert config.grad_clip is None


@pytest.mark.parametrize(
    ("section", "value", "wanted"),
    [
        ("training", {"grad_clip_by": "norm2"}, "'global_norm'"),
        ("training", {"num_epochs": "4"}, "integer of at least 1"),
        ("training", {"num_epochs": True}, "integer of at least 1"),
        ("training", {"gamma": 1.5}, "at most 1"),
        ("training", {"gamma": float("nan")}, "a number"),
        ("training", {"shuffle_batch_per_epoch": 1}, "True or False"),
        ("training", {"minibatch_size": 0}, "at least 1"),
        ("env_runners", {"batch_mode": "all"}, "'truncate_episodes'"),
        ("env_runners", {"rollout_fragment_length": "auot"}, "'auto'"),
        ("env_runners", {"rollout_fragment_length": 0}, "'auto'"),
        ("env_runners", {"env_to_module_connector": 3}, "function"),
        ("multi_agent", {"count_steps_by": "steps"}, "'agent_steps'"),
        ("multi_agent", {"policies": {"a/b"}}, "a/b"),
        ("multi_agent", {"policies": {"a."}}, "a."),
        ("multi_agent", {"policies": "a"}, "set, list or tuple"),
        ("callbacks", {"callbacks_class": dict}, "RLlibCallback"),
        ("callbacks", {"on_train_result": "f"}, "function"),
        ("environment", {"clip_rewards": -1}, "positive"),
        ("environment", {"observation_space": (4,)}, "gymnasium space"),
        ("rl_module", {"rl_module_spec": dict}, "RLModuleSpec"),
        ("api_stack", {"enable_rl_module_and_learner": False}, "old API stack"),
        ("framework", {"framework": "tf2"}, "TensorFlow"),
        ("debugging", {"log_level": "LOUD"}, "'WARN'"),
    ],
)
def test_values_that_cannot_be_right_raise_at_once(section, value, wanted):
    with pytest.raises(ValueError, match=rf"{next(iter(value))}.*{wanted}"):
        getattr(PPOConfig(), section)(**value)


@pytest.mark.parametrize(
    ("section", "value", "wanted"),
    [
        ("training", {"lr": [[5, 0.1], [10, 0.2]]}, "not at 0"),
        ("training", {"lr": [[0, 0.1]]}, "fewer than 2"),
        ("training", {"entropy_coeff": -0.1}, "at least 0"),
        ("training", {"entropy_coeff": [[0, 0.1], [10, -0.2]]}, "at least 0"),
        ("training", {"use_gae": False}, "lambda_=1.0"),
        ("training", {"train_batch_size_per_learner": 64, "minibatch_size": 128}, "minibatch_size=128"),
        ("env_runners", {"gym_env_vectorize_mode": "threads"}, "'sync'"),
        ("evaluation", {"evaluation_duration": 0}, "at least 1"),
        ("evaluation", {"evaluation_duration": "auto"}, "evaluation_parallel_to_training"),
        ("evaluation", {"evaluation_config": {"explor": False}}, "explore"),
        ("multi_agent", {"policies_to_train": ["p7"]}, "p7"),
        ("experimental", {"_static_settings": ["num_epochs"]}, "num_epochs"),
        ("environment", {"env": "gymnax/CartPole-v7"}, "CartPole"),
    ],
)
def test_validate_names_setting_and_remedy(section, value, wanted):
    config = PPOConfig()
    getattr(config, section)(**value)
    with pytest.raises(ValueError, match=wanted):
        config.validate()


def test_what_comes_later_says_so():
    config = PPOConfig().environment("gymnax/CartPole-v1").learners(num_learners=2)
    with pytest.raises(NotImplementedError, match=r"num_learners=2\) is not supported for JAX environments"):
        config.multi_agent(policies={"left", "right"}, policy_mapping_fn=lambda agent_id, *_, **__: "left").validate()


@pytest.mark.parametrize("name", ["_skip_learners", "_env_runners_only"])
def test_leaving_a_part_out_needs_actors_to_measure(name):
    with pytest.raises(ValueError, match=f"debugging.{name}=True. needs EnvRunner actors, and there are none"):
        IMPALAConfig().environment("gymnax/CartPole-v1").debugging(**{name: True}).validate()


def test_what_an_algorithm_adds_for_actors_has_no_effect_on_the_device(caplog):
    IMPALAConfig().environment("gymnax/CartPole-v1").training(broadcast_interval=2).validate()
    assert "broadcast_interval" in caplog.text and "no effect" in caplog.text


def test_settings_of_recorded_data_are_named_where_training_samples(caplog):
    PPOConfig().environment("gymnax/CartPole-v1").offline_data(input_="data/", materialize_data=True).validate()
    for setting in ("input_='data/'", "materialize_data=True"):
        assert f"offline_data({setting}) has no effect: training samples an environment" in caplog.text


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("env_runners", "use_env_runner_state_server", True), ("learners", "num_aggregator_actors_per_learner", 1)],
)
def test_settings_of_asynchronous_algorithms_are_refused_by_others(section, name, value):
    config = PPOConfig()
    getattr(config, section)(**{name: value})
    with pytest.raises(ValueError, match=f"{section}.{name}={value}. is only for IMPALA and APPO"):
        config.validate()


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_learner_actors_are_for_all_environments(env):
    config = PPOConfig().environment(env).learners(num_learners=2)
    config.learners(custom_resources_per_learner={"fast": 1}).resources(placement_strategy="SPREAD")
    config.validate()
    # The actors' places and resources are read with either; on the device alone they would be read by nothing.
    assert config.settings_without_effect_on_device() == []
    assert config.learners(num_learners=0).settings_without_effect_on_device() == [
        "placement_strategy",
        "custom_resources_per_learner",
    ]


@pytest.mark.parametrize(
    ("evaluation", "wanted"),
    [
        ({"evaluation_duration": "auto"}, "evaluation_parallel_to_training=True"),
        ({"evaluation_parallel_to_training": True}, "evaluation_num_env_runners to at least 1"),
    ],
)
def test_evaluation_beside_training_needs_its_own_actors(evaluation, wanted):
    with pytest.raises(ValueError, match=wanted):
        PPOConfig().environment("CartPole-v1").evaluation(**evaluation).validate()


def test_validation_can_be_switched_off(heard):
    config = PPOConfig().training(train_batch_size_per_learner=64, minibatch_size=128)
    config.experimental(_validate_config=False).validate()
    assert any("minibatch_size=128" in message for message in heard())
    # A call without the argument switches it on again.
    config.experimental(_static_settings=["gamma"])
    with pytest.raises(ValueError, match="minibatch_size=128"):
        config.validate()


def test_old_names_raise_or_map():
    config = PPOConfig()
    for name, replacement in {
        "sgd_minibatch_size": "minibatch_size",
        "model": "rl_module_spec",
        "lr_schedule": r"lr=\[\[0",
        "entropy_coeff_schedule": r"entropy_coeff=\[\[0",
        "vf_share_layers": "model_config",
    }.items():
        with pytest.raises(ValueError, match=rf"{name}.*{replacement}"):
            config.training(**{name: 1})
        with pytest.raises(ValueError, match=rf"{name}.*{replacement}"):
            setattr(config, name, 1)
        with pytest.raises(ValueError, match=rf"{name}.*{replacement}"):
            config.update_from_dict({name: 1})
    with pytest.raises(ValueError, match=r"num_workers.*num_env_runners"):
        config.env_runners(num_workers=1)
    with pytest.raises(ValueError, match="MeanStdFilter"):
        config.env_runners(observation_filter="MeanStdFilter")
    with pytest.warns(DeprecationWarning, match=r"num_sgd_iter.*num_epochs") as caught:
        config.training(num_sgd_iter=3)
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"num_workers.*num_env_runners") as caught:
        config.update_from_dict({"num_workers": 5})
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"learner_config_dict.*learners"):
        config.training(learner_config_dict={"a": 1})
    with pytest.warns(DeprecationWarning, match=r"rl_module\(algorithm_config_overrides_per_module"):
        config.multi_agent(algorithm_config_overrides_per_module={"default_policy": {"lr": 1.0}})
    assert (config.num_epochs, config.num_env_runners, config.learner_config_dict) == (3, 5, {"a": 1})
    assert config.get_config_for_module("default_policy").lr == 1.0
    for method in (config.rollouts, config.exploration, config.get_marl_module_spec):
        with pytest.raises(ValueError, match="is gone"):
            method()


def test_an_old_name_takes_what_the_setting_takes():
    config = PPOConfig()
    for set_it in (
        lambda: setattr(config, "num_sgd_iter", 0),
        lambda: config.update_from_dict({"num_sgd_iter": 0}),
        lambda: config.training(num_sgd_iter=0),
    ):
        with pytest.warns(DeprecationWarning, match="num_epochs"), pytest.raises(ValueError, match="num_epochs=0"):
            set_it()
    assert config.num_epochs == PPOConfig().num_epochs


def test_settings_of_default_networks_may_be_called_a_model():
    with pytest.warns(DeprecationWarning, match=r"'model' is gone. Use rl_module\(model_config="):
        config = PPOConfig().training(model={"fcnet_hiddens": [8]})
    assert config.model_config["fcnet_hiddens"] == [8]


def test_old_names_with_values_that_ask_for_nothing_are_taken(heard):
    config = PPOConfig().environment("CartPole-v1").resources(num_gpus=0).learners(num_learners=None).callbacks(None)
    config.env_runners(exploration_config={}, remote_worker_envs=False, preprocessor_pref="deepmind")
    config.training(model=None, lr_schedule=None).update_from_dict({"num_gpus": 0})
    config.num_gpus = 0
    assert config.num_learners == 0 and config.callbacks_class is RLlibCallback
    assert config.explicitly_set == {"env", "num_learners", "callbacks_class"}
    for name in ("num_gpus=0", "exploration_config={}", "remote_worker_envs", "preprocessor_pref", "model=None"):
        assert sum(name in message for message in heard()) == 1, name
    for method, wrong in {
        config.resources: {"num_gpus": 1},
        config.env_runners: {"exploration_config": {"type": "Random"}},
        config.training: {"model": {"fcnet_hiddens": [8], "custom_model": "mine"}},
    }.items():
        with pytest.raises(ValueError, match="is gone. Use"):
            method(**wrong)
    config.validate()


def test_the_train_batch_size_of_all_learners_is_taken_with_a_warning():
    config = PPOConfig().learners(num_learners=2)
    with pytest.warns(DeprecationWarning, match="train_batch_size=512.*train_batch_size_per_learner") as caught:
        config.training(train_batch_size=512)
    assert caught[0].filename == __file__
    assert (config.train_batch_size_per_learner, config.total_train_batch_size) == (256, 512)
    with pytest.warns(DeprecationWarning, match="train_batch_size_per_learner"):
        config.update_from_dict({"train_batch_size": 100})
    assert config.train_batch_size_per_learner == 50
    with pytest.raises(ValueError, match="train_batch_size=0"):
        config.training(train_batch_size=0)
    assert config.training(train_batch_size_per_learner=300).train_batch_size_per_learner == 300


def test_settings_without_effect_say_so_once(heard):
    PPOConfig().reporting(log_gradients=True)
    PPOConfig().reporting(log_gradients=True).framework("torch", torch_compile_learner=True)
    messages = heard()
    assert len([m for m in messages if "log_gradients" in m]) == 1
    assert len([m for m in messages if "torch_compile_learner" in m]) == 1
    assert len([m for m in messages if "framework('torch')" in m]) == 1
    assert PPOConfig().framework("torch").framework_str == "jax"


def test_actor_settings_are_named_on_the_device_driver(heard):
    PPOConfig().environment("gymnax/CartPole-v1").validate()
    assert heard() == []
    config = PPOConfig().environment("gymnax/CartPole-v1").env_runners(num_env_runners=3)
    config.env_runners(sample_timeout_s=60.0).validate()
    config.validate()
    assert [m for m in heard() if "num_env_runners=3" in m] == heard()
    assert len(heard()) == 1
    config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "default_policy").validate()
    assert "policy_mapping_fn" in heard()[-1]
    with pytest.raises(ValueError, match="batch_mode"):
        config.env_runners(batch_mode="complete_episodes").validate()


def test_specs_of_no_policy_and_runs_that_train_nothing_are_noted(heard):
    def config_with(**specs):
        config = PPOConfig().environment("gymnax/CartPole-v1", observation_space=None)
        config.multi_agent(policies={"prey", "hunter"}, policy_mapping_fn=lambda agent_id, episode: "prey")
        return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"hunter": RLModuleSpec(), **specs}))

    config_with(prey=RLModuleSpec(), encoder=RLModuleSpec(learner_only=True)).validate()
    assert not heard()
    config_with(pray=RLModuleSpec()).validate()
    assert "spec for 'pray', which is none of the policies" in heard()[-1] and "mean 'prey'?" in heard()[-1]
    config_with(encoder=RLModuleSpec()).validate()
    assert "'encoder'" in heard()[-1] and "learner_only=True" in heard()[-1]
    number = len(heard())
    # Its code may use what no policy is.
    shared = config_with(encoder=RLModuleSpec()).rl_module_spec
    shared.multi_rl_module_class = type("Shared", (MultiRLModule,), {})
    config_with().rl_module(rl_module_spec=shared).validate()
    assert len(heard()) == number
    config_with().multi_agent(policies_to_train=[]).validate()
    assert "policies_to_train=[]) trains no policy" in heard()[-1]


def test_dicts_are_merged_and_not_shared():
    env_config = {"a": 1, "nested": {"x": 1}}
    config = PPOConfig().environment(env_config=env_config).environment(env_config={"b": 2})
    assert config.env_config == {"a": 1, "nested": {"x": 1}, "b": 2}
    env_config["nested"]["x"] = 9
    other = config.copy()
    other.env_config["nested"]["x"] = 7
    assert config.env_config["nested"]["x"] == 1
    config.evaluation(evaluation_config={"explore": False}).evaluation(evaluation_config={"gamma": 0.5})
    assert config.evaluation_config == {"explore": False, "gamma": 0.5}
    config.evaluation(evaluation_config=PPOConfig().env_runners(explore=False))
    assert config.get_evaluation_config_object().explore is False
    config.learners(learner_config_dict={"a": 1}).learners(learner_config_dict={"b": 1})
    assert config.learner_config_dict == {"a": 1, "b": 1}
    assert PPOConfig().env_config == {}


def test_freeze_and_copy():
    config = PPOConfig().training(lr=0.1)
    config.freeze()
    for change in (
        lambda: config.training(lr=0.2),
        lambda: setattr(config, "lr", 0.2),
        lambda: config.update_from_dict({"lr": 0.2}),
    ):
        with pytest.raises(AttributeError, match="frozen"):
            change()
    assert config.copy().is_frozen
    thawed = config.copy(copy_frozen=False).training(lr=0.2)
    assert (config.lr, thawed.lr) == (0.1, 0.2)
    assert copy.deepcopy(config).is_frozen
    assert pickle.loads(pickle.dumps(config)).lr == 0.1


def test_dict_access_with_rllib_keys():
    config = PPOConfig().training(lambda_=0.9)
    assert config["lambda"] == config["lambda_"] == config.get("lambda") == config.pop("lambda") == 0.9
    assert config["framework"] == "jax"
    assert config["num_workers"] == config["num_env_runners"] == 2
    assert config["model_config"] == {"vf_share_layers": False}
    assert config.get("no_such_thing", 5) == 5
    assert "lr" in config
    assert "no_such_thing" not in config
    assert {"lambda", "input", "framework", "callbacks", "create_env_on_driver"} <= set(config.keys())
    assert dict(config.items())["lr"] == config.lr
    config["lambda"] = 0.5
    assert config.lambda_ == 0.5


def test_dict_and_state_round_trips():
    config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=[[0, 0.1], [10, 0.0]], lambda_=0.9)
    config.learners(num_gpus_per_learner=0)
    for other in (PPOConfig.from_dict(config.to_dict()), PPOConfig.from_state(config.get_state())):
        assert type(other) is PPOConfig
        assert other.to_dict() == config.to_dict()
    assert AlgorithmConfig.from_state(config.get_state()).explicitly_set == config.explicitly_set
    assert "num_gpus_per_learner" in config.explicitly_set
    assert "num_gpus_per_learner" not in PPOConfig().explicitly_set
    text = json.dumps(config.environment(observation_space=gym.spaces.Discrete(3)).serialize())
    assert '"lambda": 0.9' in text
    flat = PPOConfig().update_from_dict({"lambda": 0.7, "model_config": {"free_log_std": True}})
    assert (flat.lambda_, flat.model_config["free_log_std"]) == (0.7, True)


def test_an_unset_number_of_env_runners_asks_for_no_actors():
    class MyConfig(PPOConfig):
        def __init__(self, algo_class=None):
            super().__init__(algo_class)
            self.num_env_runners = 2

    unset = PPOConfig().environment("CartPole-v1")
    assert unset.num_env_runners == unset.to_dict()["num_env_runners"] == 2
    asked = unset.copy().env_runners(num_env_runners=2)
    given = {"env": "CartPole-v1", "num_env_runners": 2}
    ways = {
        0: [unset, PPOConfig.from_dict(unset.to_dict()), PPOConfig().update_from_dict(unset.to_dict())],
        2: [
            asked,
            PPOConfig.from_dict(asked.to_dict()),
            PPOConfig.from_dict(given),
            PPOConfig().update_from_dict(given),
        ],
    }
    for num_actors, configs in ways.items():
        config = configs[0]
        configs += [pickle.loads(pickle.dumps(config)), PPOConfig.from_state(config.get_state())]
        configs += [PPOConfig.from_plain(config.to_plain(), ClassLoader())]
        assert [each.num_sampling_actors for each in configs] == [num_actors] * len(configs)
        assert all(("num_env_runners" in each.explicitly_set) is bool(num_actors) for each in configs)
    assert MyConfig().environment("CartPole-v1").num_sampling_actors == 2
    assert asked.environment("gymnax/CartPole-v1").num_sampling_actors == 0


def test_what_follows_from_the_number_of_env_runners_counts_those_that_run(caplog):
    unset = PPOConfig().environment("CartPole-v1")
    asked = unset.copy().env_runners(num_env_runners=2)
    assert [each.get_rollout_fragment_length() for each in (unset, asked)] == [4000, 2000]
    assert [each.train_batch_blocks() for each in (unset, asked)] == [(1, 4000), (2, 2000)]
    assert [resource_bundles(each)[0] for each in (unset, asked)] == [[{"CPU": 1.0}], [{"CPU": 1.0}] * 3]
    unset.evaluation(evaluation_num_env_runners=3)
    assert unset.get_evaluation_config_object().num_sampling_actors == 3
    assert resource_bundles(unset)[0] == [{"CPU": 1.0}] * 4
    # Where RLlib's users write it, too. A number that was set as it should be counts.
    own = PPOConfig().environment("CartPole-v1").evaluation(evaluation_config={"num_env_runners": 2})
    assert (own.num_evaluation_actors, own.num_sampling_actors) == (2, 0)
    assert resource_bundles(own)[0] == [{"CPU": 1.0}] * 3 and bundle_index(own, "eval_env_runner") == 0
    assert own.copy().evaluation(evaluation_parallel_to_training=True).validate() is None
    own.evaluation(evaluation_num_env_runners=1)
    assert own.num_evaluation_actors == 1 and "'num_env_runners': 2}) has no effect" in caplog.text
    # Rows trained per step sampled count one runner more, as RLlib does.
    dqn = DQNConfig().environment("CartPole-v1").training(training_intensity=64.0)
    assert dqn.rounds_per_training_step != dqn.env_runners(num_env_runners=3).rounds_per_training_step
    sizes = {"num_env_runners": 2, "rollout_fragment_length": 2000}
    assert unset.update_from_dict(sizes).validate() is None


def test_default_numbers_that_make_sampling_slow_are_named():
    host, device = PPOConfig().environment("CartPole-v1"), PPOConfig().environment("gymnax/CartPole-v1")
    (of_host,), (of_device,) = host.sampling_hints(), device.sampling_hints()
    assert "num_env_runners=2" in of_host and "num_env_runners=0" in of_host
    assert "num_envs_per_env_runner=64" in of_device and "PPOConfig.tuned('gymnax/CartPole-v1')" in of_device
    assert "tuned" not in PPOConfig().environment(CounterEnv).sampling_hints()[0]
    assert "training_intensity" in DQNConfig().environment("gymnax/CartPole-v1").sampling_hints()[0]
    assert not DQNConfig().environment("CartPole-v1").sampling_hints()
    assert not PPOConfig.tuned("gymnax/CartPole-v1").sampling_hints()
    for given in (0, 2):
        assert not host.env_runners(num_env_runners=given).sampling_hints()
    for given in (1, 64):
        assert not device.env_runners(num_envs_per_env_runner=given).sampling_hints()


def test_overrides_per_module_and_for_evaluation():
    overrides = PPOConfig.overrides(lr=0.5, learner_class=None)
    assert overrides == {"lr": 0.5, "_learner_class": None}
    config = PPOConfig().rl_module(
        algorithm_config_overrides_per_module={"default_policy": PPOConfig.overrides(lr=0.5)}
    )
    config.validate()
    config.freeze()
    of_module = config.get_config_for_module("default_policy")
    assert (of_module.lr, config.lr, of_module.is_frozen) == (0.5, 5e-5, True)
    assert config.get_config_for_module("default_policy") is of_module
    assert config.get_config_for_module("another") is config
    config = config.copy(copy_frozen=False)
    config.algorithm_config_overrides_per_module = {"default_policy": {"num_epochs": 3}}
    with pytest.raises(ValueError, match=r"num_epochs.*must be the same for all modules.*clip_param"):
        config.validate()
    config.evaluation(evaluation_config={"explore": False, "num_envs_per_env_runner": 3})
    evaluation = config.get_evaluation_config_object()
    assert (evaluation.explore, evaluation.num_envs_per_env_runner) == (False, 3)
    assert (evaluation.in_evaluation, evaluation.is_frozen) == (True, True)
    assert evaluation.get_evaluation_config_object() is None


def test_search_spaces_pass_until_validation():
    class Uniform:
        def sample(self):
            return 0.1

    config = PPOConfig().training(
        gamma=Uniform(), num_epochs={"grid_search": [1, 2]}, lr={"grid_search": [0.1, [[0, 0.1], [5, 0.0]]]}
    )
    assert isinstance(config.to_dict()["gamma"], Uniform)
    with pytest.raises(ValueError, match="search space"):
        config.validate()


def test_repr_shows_what_differs():
    assert repr(PPOConfig()) == "PPOConfig: all settings at their defaults"
    config = PPOConfig().training(lr=[[0, 0.1], [10, 0.0]], clip_param=0.2).debugging(seed=3)
    text = repr(config)
    assert "[[0, 0.1], [10, 0.0]]" in text
    assert "5e-05" in text
    assert "gamma" not in text
    page = config._repr_html_()
    assert "<td style='text-align:left'>clip_param</td>" in page
    assert "<details>" in page
    assert "gamma" in page


def test_a_subclass_declares_or_assigns_its_settings():
    class MyConfig(PPOConfig):
        _sections = (Section("training", "", (traced("beta", 0.5, number(0), "A factor."),)),)
        _defaults = {"lr": 0.25}

        def __init__(self, algo_class=None):
            super().__init__(algo_class)
            self.my_width = 8
            self.num_epochs = 7
            self.train_batch_size = 500

    config = MyConfig().training(beta=0.75, clip_param=0.1, gamma=0.5)
    assert (config.beta, config.clip_param, config.gamma, config.lr) == (0.75, 0.1, 0.5, 0.25)
    assert (config.my_width, config.num_epochs, config.total_train_batch_size) == (8, 7, 500)
    config.my_width = 9
    assert config.stored_value("my_width") == MyConfig.from_dict(config.to_dict()).my_width == 9
    assert MyConfig.from_state(config.get_state()).explicitly_set == {"beta", "clip_param", "gamma", "my_width"}
    assert MyConfig.from_dict(config.to_dict()).total_train_batch_size == 500
    assert MyConfig.overrides(my_width=3, beta=1.0) == {"my_width": 3, "beta": 1.0}
    assert not config.shares_programs_with(MyConfig().training(beta=0.75))
    assert config.traced_values()["beta"] == np.float32(0.75)
    assert "beta" not in inspect.signature(PPOConfig.training).parameters
    with pytest.raises(ValueError, match="beta"):
        config.training(beta=-1.0)
    with pytest.raises(AttributeError, match="my_widht"):
        config.my_widht = 3

    class RLlibStyle(PPOConfig):
        def training(self, *, extra=NotProvided, **kwargs):
            super().training(**kwargs)
            if extra is not NotProvided:
                self.learner_config_dict["extra"] = extra
            return self

    assert RLlibStyle().training(extra=1, lr=0.5).learner_config_dict == {"extra": 1}


def test_configs_share_programs_iff_one_serves_both():
    base = PPOConfig().environment("gymnax/CartPole-v1")
    connector = lambda env: []  # noqa: E731
    base.env_runners(env_to_module_connector=connector)
    same_program = [
        base.copy(),
        base.copy().training(lr=0.3, gamma=0.1, clip_param=0.7, entropy_coeff=0.3),
        base.copy().training(lr=[[0, 0.1], [10, 0.0]], entropy_coeff=[[0, 0.1], [10, 0.0]]),
        base.copy().training(grad_clip=0),
        base.copy().debugging(seed=4).evaluation(evaluation_interval=3),
        PPOConfig().environment("gymnax/CartPole-v1").env_runners(env_to_module_connector=connector),
    ]
    for config in same_program:
        assert config.shares_programs_with(base)
    other_program = [
        base.copy().training(grad_clip=0.5),
        base.copy().training(lr=[[i, 0.1] for i in range(9)]),
        base.copy().training(num_epochs=3),
        base.copy().training(use_kl_loss=False),
        base.copy().experimental(_static_settings=["gamma"]),
        base.copy().environment(env_config={"max_steps": 3}),
        base.copy().environment(observation_space=gym.spaces.Discrete(3)),
        base.copy().rl_module(model_config={"fcnet_hiddens": [8]}),
        base.copy().env_runners(env_to_module_connector=lambda env: []),
        base.copy().rl_module(algorithm_config_overrides_per_module={"default_policy": {"grad_clip": 1.0}}),
    ]
    for one, other in itertools.combinations([base, *other_program], 2):
        assert not one.shares_programs_with(other)
    clipped = base.copy().training(grad_clip=0.5)
    assert clipped.shares_programs_with(base.copy().training(grad_clip=40.0))
    spaces = [base.copy().environment(observation_space=gym.spaces.Discrete(3)) for _ in range(2)]
    assert spaces[0].shares_programs_with(spaces[1])
    baked = [base.copy().experimental(_static_settings=["gamma"]).training(gamma=g) for g in (0.5, 0.6)]
    assert not baked[0].shares_programs_with(baked[1])
    lengths = [base.copy().environment(env_config={"length": length}) for length in (1, 1.0)]
    assert not lengths[0].shares_programs_with(lengths[1])


def test_traced_values_are_strong_float32_arrays():
    config = PPOConfig().training(gamma=0.5, grad_clip=0, lr=[[0, 0.1], [10, 0.0]])
    config.rl_module(algorithm_config_overrides_per_module={"default_policy": {"clip_param": 0.5}})
    values = config.traced_values()
    assert isinstance(values["gamma"], np.ndarray)
    assert (values["gamma"].shape, values["gamma"].dtype) == ((), np.float32)
    assert values["lr"].values.shape == values["entropy_coeff"].values.shape == (8,)
    assert "grad_clip" not in values
    assert config.get_config_for_module("default_policy").traced_values()["clip_param"] == np.float32(0.5)
    config.experimental(_static_settings=["gamma"])
    assert "gamma" not in config.traced_values()
    assert (config.static_value("gamma"), config.static_value("lambda_")) == (0.5, None)
    with pytest.raises(ValueError, match=r"lr=.*is a schedule"):
        config.experimental(_static_settings=["lr"]).validate()


def test_batch_sizes_and_fragment_lengths():
    config = PPOConfig()
    assert (config.train_batch_size_per_learner, config.total_train_batch_size) == (4000, 4000)
    config.training(train_batch_size_per_learner=100, minibatch_size=50).env_runners(
        num_env_runners=3, num_envs_per_env_runner=2
    )
    assert [config.get_rollout_fragment_length(i) for i in (1, 2, 3)] == [17, 17, 16]
    config.environment("gymnax/CartPole-v1")
    assert config.get_rollout_fragment_length() == 50
    config.env_runners(rollout_fragment_length=30)
    with pytest.raises(ValueError, match="rollout_fragment_length=50"):
        config.validate_train_batch_size_vs_rollout_fragment_length()
    config.env_runners(rollout_fragment_length=25).validate()
    assert config.get_rollout_fragment_length() == 25
    # One environment and two learners: fragments are sampled in pairs.
    config = PPOConfig().environment("CartPole-v1").learners(num_learners=2).env_runners(num_env_runners=1)
    config.training(train_batch_size_per_learner=75, minibatch_size=25).validate()
    config.env_runners(rollout_fragment_length=50)
    with pytest.raises(
        ValueError, match="gives 200 steps in whole rounds.*2 learners can share.*rollout_fragment_length=75 or 'auto'"
    ):
        config.validate()
    config.env_runners(rollout_fragment_length=25).validate()


def test_properties():
    config = AlgorithmConfig()
    assert (config.is_multi_agent, config.is_online, config.is_offline, config.is_atari) == (False, True, False, False)
    assert config.environment("ale_py:ALE/Pong-v5").is_atari
    assert not config.environment(is_atari=False).is_atari
    assert AlgorithmConfig().multi_agent(policies={"p0"}).is_multi_agent
    assert AlgorithmConfig().multi_agent(policies={"p0": (None, None, None, {})}).is_multi_agent
    with pytest.raises(NotImplementedError, match="PPOConfig"):
        _ = config.learner_class
    with pytest.raises(ValueError, match="has no algorithm to build"):
        config.environment("gymnax/CartPole-v1").build_algo()
    with pytest.raises(ValueError, match="RLModule"):
        PolicySpec(policy_class=dict)


def test_multi_agent_setup_fills_in_spaces():
    spaces = {"a": (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))}
    config = AlgorithmConfig().multi_agent(policies=["a"], policies_to_train=["a"])
    assert config.module_map.module_id == "a" and AlgorithmConfig().module_map.module_id == "default_policy"
    policies, is_trained = config.get_multi_agent_setup(spaces=spaces)
    assert policies["a"].observation_space == spaces["a"][0]
    assert policies["a"].action_space == spaces["a"][1]
    assert is_trained("a")
    assert not is_trained("b")
    assert config.DEFAULT_POLICY_MAPPING_FN("agent", None) == "default_policy"


def test_importing_configs_starts_no_backend_and_no_ray():
    code = (
        "import sys\n"
        "from jaxrl_stack.algorithms.ppo import PPOConfig\n"
        "config = PPOConfig().environment('gymnax/CartPole-v1').training(lr=[[0, 0.1], [10, 0.0]])\n"
        "config.validate(); config.shares_programs_with(config); config.traced_values(); repr(config)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends\n"
        "assert not {'ray', 'torch', 'gymnax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_config_takes_the_creators_of_its_environments_to_other_processes():
    # A creator that is called with the env_config and that another process can import.
    register_env("only_here", CartPoleEnv)
    config = PPOConfig().environment("only_here")
    code = (
        "import pickle, sys; config = pickle.loads(sys.stdin.buffer.read()); "
        "from jaxrl_stack.env.registry import resolve_env; print(resolve_env(config.env).is_jax)"
    )
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(config), capture_output=True, check=True)
    assert out.stdout.decode().strip() == "False"
