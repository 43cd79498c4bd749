"""Names of RLlib that are not here yet: files that mention them run, and using one says what to do."""

from __future__ import annotations

import abc
import copy
import importlib
import pickle
import re

import cloudpickle
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.compat.unsupported_names import NEAREST, PLACES
from jaxrl_stack.utils.annotations import override

NAMED = [place for place in PLACES if place[1]]


def of(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"jaxrl_stack.{module}"), name)


@pytest.mark.parametrize(("module", "name", "unsupported"), NAMED, ids=[".".join(place[:2]) for place in NAMED])
def test_each_name_can_be_imported_and_says_what_to_use_when_it_is_called(module, name, unsupported):
    found = getattr(importlib.import_module(module), name)
    assert found.__name__ == name and not isinstance(object(), found) and callable(found)
    assert pickle.loads(pickle.dumps(found)) is found and copy.deepcopy(found) is found
    for use in (found, lambda: found["obs"], lambda: dict(found), lambda: list(found)):
        with pytest.raises(NotImplementedError, match=f"^{name} {re.escape(unsupported.instead)}.$"):
            use()


@pytest.mark.parametrize("package", ["jaxrl_stack", "jaxrl_stack.algorithms"])
def test_the_packages_of_all_algorithms_have_the_names_to_come(package):
    named = importlib.import_module(package)
    assert named.RLlink is of("env.external.RLlink")
    with pytest.raises(NotImplementedError, match="^RLlink is not supported yet"):
        named.RLlink()
    assert not hasattr(named, "RLlinks")


@pytest.mark.parametrize("name", NEAREST)
def test_an_algorithm_that_is_not_to_come_is_answered_with_the_nearest(name):
    nearest = NEAREST[name][0]
    call = f"from jaxrl_stack.algorithms.{nearest.lower()} import {nearest}Config"
    sentence = f"^There is no {name} here. Use the nearest, {nearest}, .*\\({call}\\).$"
    for path in (f"algorithms.{name.lower()}", f"algorithms.{name.lower()}.{name.lower()}_learner"):
        with pytest.raises(ImportError, match=sentence):
            importlib.import_module(f"jaxrl_stack.{path}")
    with pytest.raises(ImportError, match=sentence):
        exec(f"from jaxrl_stack import {name}Config")
    with pytest.raises(ValueError, match=sentence[:-1]):
        get_algorithm_class(name)
    assert isinstance(get_algorithm_class(nearest), type)


def test_an_unknown_module_is_just_not_found():
    with pytest.raises(ModuleNotFoundError, match="No module named 'jaxrl_stack.algorithms.td4'"):
        importlib.import_module("jaxrl_stack.algorithms.td4")


def test_a_subclass_can_be_declared_and_says_the_sentence_when_it_is_built():
    class Shared(of("core.learner.differentiable_learner.DifferentiableLearner"), abc.ABC):
        @override(of("core.learner.differentiable_learner.DifferentiableLearner"))
        def build(self, device=None):
            super().build(device)

    class Read(of("examples.offline_rl.classes.image_offline_data.ImageOfflineData")):
        def __init__(self, config):
            super().__init__()

    class Mine(of("env.wrappers.multi_agent_env_compatibility.MultiAgentEnvCompatibility")):
        def __init__(self, config):
            pass

    for cls, sentence in (
        (Shared, "DifferentiableLearner has no counterpart"),
        (Read, "ImageOfflineData is not supported yet. Override"),
    ):
        with pytest.raises(NotImplementedError, match=rf"^{cls.__name__}\(...\): {sentence}"):
            cls(config=None)
    with pytest.raises(
        NotImplementedError,
        match=r"environment\(env=Mine\): MultiAgentEnvCompatibility is not supported yet.*import MultiAgentEnv",
    ):
        PPOConfig().environment(Mine).build_algo()


def test_an_attribute_of_one_is_missing_with_the_sentence():
    with pytest.raises(AttributeError, match="DifferentiableLearner.build: DifferentiableLearner has no counterpart"):
        _ = of("core.learner.differentiable_learner.DifferentiableLearner").build
    assert not hasattr(of("env.external.RLlink"), "EPISODES")


def test_the_names_go_to_other_processes():
    cls = of("env.wrappers.multi_agent_env_compatibility.MultiAgentEnvCompatibility")
    assert cloudpickle.loads(cloudpickle.dumps({"env": cls}))["env"] is cls


SCRIPT = """
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.learner.differentiable_learner_config import *
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

config = {"inner": DifferentiableLearnerConfig, "PPO": PPOConfig}[choice]()
config = (
    config.environment("gymnax/CartPole-v1")
    .env_runners(num_envs_per_env_runner=2)
    .training(train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[4]))
)
algorithm = config.build_algo()
result = algorithm.train()
algorithm.stop()
"""


def test_a_script_that_offers_several_choices_runs_with_those_that_there_are():
    names = {"choice": "PPO"}
    exec(SCRIPT, names)
    assert names["result"]["num_env_steps_sampled_lifetime"] == 16
    with pytest.raises(NotImplementedError, match="DifferentiableLearnerConfig has no counterpart"):
        exec(SCRIPT, {"choice": "inner"})


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("algorithms.cql", "CQLTorchPolicy", "is from RLlib's old API stack. Use an RLModule"),
        ("algorithms.cql.torch.cql_torch_learner", "CQLTorchLearner", "algorithms.cql.cql_learner.CQLLearner"),
        ("env.external.rllink", "RLlnk", "is not supported yet. Write a gymnasium.Env"),
        ("offline", "JsonReader", "Use OfflineData, OfflinePreLearner"),
        ("algorithms.algorithm_config", "DifferentiableAlgorithmConfg", "cannot import name"),
        ("examples.algorithms.classes.none", "Name", "No module named"),
    ],
)
def test_other_names_beside_them_are_not_made_up(module, name, instead):
    with pytest.raises(ImportError, match=instead):
        exec(f"from jaxrl_stack.{module} import {name}", {})
