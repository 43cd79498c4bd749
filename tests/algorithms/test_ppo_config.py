"""What a PPOConfig builds: specs, pipelines, learners; the registry; the stubs."""

from __future__ import annotations

import functools
import importlib
import pickle

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms import _stubs
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.marwil import MARWILConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig, ppo, ppo_learner
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.registry import get_algorithm_config_class
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FlattenObservations, MeanStdFilter
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.connectors.module_to_env import GetActions, NormalizeAndClipActions
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(2)
FLAT = {"__env_single__": (BOX, DISCRETE)}
NESTED = {"__env_single__": (gym.spaces.Dict(a=BOX, b=gym.spaces.Discrete(4)), DISCRETE)}


class Connector(ConnectorV2):
    """Does nothing."""

    def apply(self, state, batch, ctx):
        return state, batch


def classes(pipeline):
    return [type(connector) for connector in pipeline]


def test_default_pipelines():
    config = PPOConfig()
    assert classes(config.build_env_to_module_connector(spaces=FLAT)) == []
    nested = config.build_env_to_module_connector(spaces=NESTED)
    assert classes(nested) == [FlattenObservations]
    assert nested.observation_space.shape == (7,)
    module_to_env = config.build_module_to_env_connector(spaces=FLAT)
    assert classes(module_to_env) == [GetActions, NormalizeAndClipActions]
    assert classes(config.build_learner_connector(BOX, DISCRETE)) == [GeneralAdvantageEstimation]


def test_custom_connectors_go_where_they_belong():
    config = PPOConfig().env_runners(
        env_to_module_connector=lambda env, spaces, device: [Connector(), MeanStdFilter()],
        module_to_env_connector=lambda env, spaces: Connector(),
    )
    config.learners(learner_connector=lambda observation_space, action_space: Connector())
    flat = {"__env_single__": (gym.spaces.Box(0, 255, (3,), np.uint8), DISCRETE)}
    # MeanStdFilter makes floats of these bytes: nothing is left to flatten.
    assert classes(config.build_env_to_module_connector(spaces=flat)) == [Connector, MeanStdFilter]
    assert classes(config.build_module_to_env_connector(spaces=FLAT)) == [
        GetActions,
        Connector,
        NormalizeAndClipActions,
    ]
    assert classes(config.build_learner_connector(BOX, DISCRETE)) == [Connector, GeneralAdvantageEstimation]
    config.env_runners(
        add_default_connectors_to_env_to_module_pipeline=False, add_default_connectors_to_module_to_env_pipeline=False
    )
    config.learners(add_default_connectors_to_learner_pipeline=False)
    assert classes(config.build_module_to_env_connector(spaces=FLAT)) == [Connector]
    assert classes(config.build_learner_connector(BOX, DISCRETE)) == [Connector]


def test_connector_functions_of_every_arity():
    got = []

    def record(*arguments):
        got.append(arguments)
        return Connector()

    def build(function, env="env", device="device"):
        config = PPOConfig().environment(observation_space=BOX, action_space=DISCRETE)
        config.env_runners(env_to_module_connector=function)
        return config.build_env_to_module_connector(env=_Env(), spaces=FLAT, device=device)

    for n in (2, 3):  # a default of the user's own stays what it is
        build(lambda env, spaces, n=n: record(env, spaces, n))
    build(lambda env, spaces, device: record(env, spaces, device))
    build(lambda env, spaces: record(env, spaces))
    build(lambda env: record(env))
    build(lambda: record())
    build(lambda *arguments: record(*arguments))
    build(functools.partial(record, "first"))
    build(lambda env, spaces=None, device=None: record(env, spaces, device))
    assert [len(arguments) for arguments in got] == [3, 3, 3, 2, 1, 0, 3, 4, 3]
    assert [arguments[2] for arguments in got[:3]] == [2, 3, "device"]
    assert got[3][1] is FLAT
    assert got[8][2] == "device"
    assert classes(build(Connector)) == [Connector]
    with pytest.raises(ValueError, match="has 4 required arguments"):
        build(lambda a, b, c, d: Connector())
    with pytest.raises(ValueError, match="must return a ConnectorV2"):
        build(lambda env: None)
    with pytest.raises(ValueError, match="function that returns"):
        PPOConfig().env_runners(env_to_module_connector=MeanStdFilter())


class _Env:
    observation_space = BOX
    action_space = DISCRETE


def test_module_specs_are_complete():
    config = PPOConfig().rl_module(model_config={"fcnet_hiddens": [8]})
    spec = config.get_rl_module_spec(spaces=NESTED)
    assert spec.module_class is DefaultPPORLModule
    assert (spec.observation_space.shape, spec.action_space) == ((7,), DISCRETE)
    assert spec.model_config == {"vf_share_layers": False, "fcnet_hiddens": [8]}
    multi = config.get_multi_rl_module_spec(spaces={"default_policy": (BOX, DISCRETE)}, inference_only=True)
    assert isinstance(multi, MultiRLModuleSpec)
    assert multi.rl_module_specs["default_policy"].observation_space == BOX
    assert multi.rl_module_specs["default_policy"].inference_only
    assert config.get_rl_module_spec(env=_Env()).observation_space == BOX
    config.environment(observation_space=BOX, action_space=DISCRETE)
    assert config.get_rl_module_spec().observation_space == BOX
    with pytest.raises(ValueError, match=r"environment\(observation_space"):
        PPOConfig().get_rl_module_spec()


def test_a_spec_of_the_users_own_wins():
    class MyModule(RLModule):
        def setup(self):
            pass

    spec = RLModuleSpec(module_class=MyModule, model_config={"width": 3})
    config = PPOConfig().rl_module(rl_module_spec=spec, model_config={"width": 2, "depth": 1})
    built = config.get_rl_module_spec(spaces=NESTED)
    assert built.module_class is MyModule
    assert built.model_config == {"vf_share_layers": False, "width": 3, "depth": 1}
    # A module of the user's own sees the observations as they are.
    assert built.observation_space == NESTED["__env_single__"][0]
    assert spec.observation_space is None
    config.rl_module(model_config={"lstm_cell_size": 3}).validate()
    open_spec = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(model_config={"fcnet_hiddens": [4]}))
    completed = open_spec.get_rl_module_spec(spaces=FLAT)
    assert completed.module_class is DefaultPPORLModule
    assert completed.model_config["fcnet_hiddens"] == [4]
    two = MultiRLModuleSpec(rl_module_specs={"default_policy": spec, "shared": RLModuleSpec(module_class=MyModule)})
    config = PPOConfig().rl_module(rl_module_spec=two)
    spaces = {"default_policy": (BOX, DISCRETE), "shared": (BOX, DISCRETE)}
    assert set(config.get_multi_rl_module_spec(spaces=spaces).rl_module_specs) == {"default_policy", "shared"}


def test_all_fields_of_a_model_config_override_the_algorithms():
    """RLlib does it so: the same DefaultModelConfig gives the same network in an algorithm and outside of one."""
    given = DefaultModelConfig(fcnet_hiddens=[8])
    for config in (PPOConfig(), APPOConfig(), MARWILConfig()):
        alone = RLModuleSpec(
            type(config)().get_default_rl_module_spec().module_class, BOX, DISCRETE, model_config=given
        )
        assert config.model_config == {"vf_share_layers": False}
        assert config.rl_module(model_config=given).model_config == vars(given)
        spec = config.get_rl_module_spec(spaces={"default_policy": (BOX, DISCRETE)})
        assert spec.build(seed=0).get_state().keys() == alone.build(seed=0).get_state().keys()
        # That of a module comes before that of the config.
        config.rl_module(rl_module_spec=RLModuleSpec(model_config=DefaultModelConfig(vf_share_layers=False)))
        spec = config.get_rl_module_spec(spaces={"default_policy": (BOX, DISCRETE)})
        assert spec.model_config["fcnet_hiddens"] == [256, 256] and spec.model_config["vf_share_layers"] is False
    assert PPOConfig().rl_module(model_config={"fcnet_hiddens": [8]}).model_config["vf_share_layers"] is False


def test_baked_in_settings_reach_the_pipeline():
    config = PPOConfig().experimental(_static_settings=["gamma"]).training(gamma=0.5)
    (gae,) = config.build_learner_connector(BOX, DISCRETE)
    assert (gae.gamma, gae.lambda_) == (0.5, None)


def test_learner_classes():
    class MyLearner(PPOLearner):
        pass

    assert PPOConfig().learner_class is PPOLearner
    assert PPOConfig().learners(learner_class=MyLearner).learner_class is MyLearner


def test_names_of_results_are_importable_from_both_of_rllibs_paths():
    assert ppo_learner.LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY == "curr_entropy_coeff"
    for name in (name for name in vars(ppo_learner) if name.startswith("LEARNER_RESULTS_")):
        assert getattr(ppo, name) == getattr(ppo_learner, name) in PPOLearner.result_names


def test_build_learner_and_group():
    config = PPOConfig().rl_module(model_config={"fcnet_hiddens": [4]})
    learner = config.build_learner(spaces=FLAT)
    assert type(learner) is PPOLearner
    assert list(learner.module.keys()) == ["default_policy"]
    assert len(config.build_learner_group(spaces=FLAT)) == 1
    with pytest.raises(ValueError, match="placement_group"):
        config.build_learner_group(spaces=FLAT, placement_group=object())


def test_registry():
    assert get_algorithm_config_class("PPO") is PPOConfig
    with pytest.raises(ValueError, match=r"Did you mean 'PPO'.*Available: .*PPO"):
        get_algorithm_config_class("ppo")
    with pytest.raises(ValueError, match="There is no DDPG here"):
        PPOConfig(algo_class="DDPG")


def test_the_name_of_an_algorithm_becomes_its_class():
    config = AlgorithmConfig(algo_class="PPO")
    assert config.algo_class is PPO
    # As an object that was pickled with the name.
    vars(config)["algo_class"] = "PPO"
    assert pickle.loads(pickle.dumps(config)).algo_class is PPO
    with pytest.raises(ValueError, match="IMPALA has no other estimator"):
        IMPALAConfig(algo_class="IMPALA").training(vtrace=False).validate()


def test_build_is_the_old_name_of_build_algo():
    class FakeAlgo:
        def __init__(self, config):
            self.config = config

    config = PPOConfig(algo_class=FakeAlgo)
    with pytest.warns(DeprecationWarning, match="build_algo"):
        algo = config.build(env="gymnax/CartPole-v1")
    assert algo.config is not config
    assert algo.config.env == "gymnax/CartPole-v1"
    assert config.env is None
    assert config.build_algo(use_copy=False).config is config


@pytest.mark.parametrize("name", _stubs.MODULES)
def test_stubs_are_up_to_date(name):
    module = importlib.import_module(name)
    written = _stubs.path_of(module).read_text()
    assert written == _stubs.render(module), "run: python -m jaxrl_stack.algorithms._stubs"
