"""Algorithms as Trainables, without a Ray cluster."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytest
from ray import cloudpickle

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.tune import trainable
from jaxrl_stack.utils.compile_clock import CompileClock
from tests import programs


@pytest.fixture
def tune():
    """Ray Tune, which takes seconds to import: not in a worker that runs none of these tests."""
    from ray import tune

    return tune


def tiny(**training) -> PPOConfig:
    """The program of `programs.ppo()`, without what that sets to make it small."""
    sizes = {"train_batch_size_per_learner": programs.BATCH, "minibatch_size": programs.BATCH // 2, "num_epochs": 2}
    return (
        PPOConfig()
        .environment(programs.CARTPOLE)
        .env_runners(num_envs_per_env_runner=programs.NUM_ENVS)
        .training(**sizes | training)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[programs.WIDTH]))
    )


class MyPPO(PPO):
    """An algorithm of a user's, with defaults of its own."""

    @classmethod
    def get_default_config(cls):
        return PPOConfig(algo_class=cls).training(lr=0.25, gamma=0.5)


class Trial:
    """A Trainable without what ``Trainable.__init__`` does: results go to a folder in the home directory there."""

    def __new__(cls, config):
        trial = object.__new__(trainable("PPO"))
        trial.setup(cloudpickle.loads(cloudpickle.dumps(config.to_dict())))
        return trial


# --------------------------------------------------------------------------------------------------------- the classes


def test_there_is_one_trainable_per_algorithm_and_other_processes_find_it(tune):
    made = trainable(PPO)
    assert made is trainable("PPO") and issubclass(made, tune.Trainable)
    assert made.__name__ == "PPOTrainable" and made.algorithm_class() is PPO
    assert pickle.loads(pickle.dumps(made)) is made


def test_an_algorithm_class_of_a_users_has_its_own_trainable(tune):
    made = trainable(MyPPO)
    assert made.algorithm_class() is MyPPO and made is not trainable(PPO)
    assert tune.Experiment.get_trainable_name(made) == "MyPPO"
    assert cloudpickle.loads(cloudpickle.dumps(made)).algorithm_class() is MyPPO


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("PPP", ValueError, "no algorithm 'PPP'. Did you mean 'PPO'"),
        (PPOConfig, TypeError, "takes an Algorithm class or the name of one"),
        (3, TypeError, "takes an Algorithm class or the name of one"),
    ],
)
def test_what_is_no_algorithm_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        trainable(given)


def test_tune_registers_algorithm_classes_as_they_are(tune):
    assert tune.Experiment.register_if_needed(MyPPO) == "MyPPO"
    assert tune.registry.get_trainable_cls("MyPPO").algorithm_class() is MyPPO
    assert tune.Experiment.register_if_needed("PPO") == "PPO"


# ---------------------------------------------------------------------------------------------------------- the config


def test_a_config_survives_the_way_through_tune():
    config = (
        tiny(lr=[[0, 0.1], [100, 0.01]], clip_param=0.1, lambda_=0.9)
        .environment("gymnax/CartPole-v1", env_config={"max_steps_in_episode": 30})
        .debugging(seed=7)
        .evaluation(evaluation_interval=2, evaluation_config=PPOConfig.overrides(explore=False))
        .callbacks(on_train_result=print)
    )
    made = trainable(PPO).as_config(cloudpickle.loads(cloudpickle.dumps(config.to_dict())))
    assert type(made) is PPOConfig and made.is_frozen
    assert made.to_dict() == config.to_dict()


def test_a_trial_of_several_policies_reports_and_keeps_each_of_them(tmp_path):
    config = (
        tiny()
        .environment("jaxrl_stack.examples.envs.multi_agent:RockPaperScissors")
        .multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{int(agent_id[-1]) - 1}"
        )
    )
    made = trainable(PPO).as_config(cloudpickle.loads(cloudpickle.dumps(config.to_dict())))
    trial = Trial(made)
    result = trial.step()
    assert {"p0", "p1"} <= set(result["learners"]) and set(result["env_runners"]["num_module_steps_sampled"]) == {
        "p0",
        "p1",
    }
    trial.save_checkpoint(str(tmp_path))
    again = Trial(made)
    again.load_checkpoint(str(tmp_path))
    assert_equal_trees(weights(again), weights(trial))
    for one in (trial, again):
        one.cleanup()


def test_a_part_of_a_config_is_enough_and_lies_on_top_of_the_class_own_defaults():
    config = trainable(MyPPO).as_config({"env": "gymnax/CartPole-v1", "lambda": 0.8, "lr": 0.125})
    assert (config.lr, config.gamma, config.lambda_) == (0.125, 0.5, 0.8)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="no setting 'learning_rate'. Did you mean training\\(lr"):
        trainable(PPO).as_config({"env": "gymnax/CartPole-v1", "learning_rate": 0.1})


def test_search_spaces_are_where_tune_finds_them(tune):
    config = tiny(lr=tune.loguniform(1e-4, 1e-2), gamma=tune.grid_search([0.9, 0.99]), num_epochs=tune.choice([1, 2]))
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=tune.choice([[8], [16]]), vf_share_layers=True))
    config.environment("gymnax/CartPole-v1", env_config={"max_steps_in_episode": tune.randint(10, 20)})
    variants = [v for _, v in tune.search.variant_generator.generate_variants({"config": config.to_dict()})]
    assert [variant["config"]["gamma"] for variant in variants] == [0.9, 0.99]
    for variant in variants:
        made = trainable(PPO).as_config(variant["config"])
        assert 1e-4 <= made.lr <= 1e-2 and made.num_epochs in (1, 2)
        assert 10 <= made.env_config["max_steps_in_episode"] < 20
        assert made.model_config["fcnet_hiddens"] in ([8], [16]) and made.model_config["vf_share_layers"] is True


def test_a_trial_asks_for_the_resources_of_its_config():
    on_device = trainable(PPO).default_resource_request(tiny().to_dict())
    assert on_device.bundles == [{"CPU": 1.0}]
    config = tiny().environment("CartPole-v1").env_runners(num_env_runners=1)
    config.resources(placement_strategy="SPREAD").learners(num_learners=1, num_cpus_per_learner=2)
    request = trainable(PPO).default_resource_request(config.to_dict())
    assert request.bundles == [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 2.0}] and request.strategy == "SPREAD"


def test_a_trial_has_the_env_runners_that_were_set_and_without_a_number_none():
    unset = tiny().environment("CartPole-v1").to_dict()
    for given, num_actors in (
        (unset, 0),
        ({"env": "CartPole-v1"}, 0),
        ({**unset, "num_env_runners": 2}, 2),
        ({"env": "CartPole-v1", "num_env_runners": 2}, 2),
        (tiny().environment("CartPole-v1").env_runners(num_env_runners=2).to_dict(), 2),
    ):
        assert len(trainable(PPO).default_resource_request(copy.deepcopy(given)).bundles) == 1 + num_actors, given


def test_settings_that_cannot_be_right_are_refused_before_a_trial_starts():
    with pytest.raises(ValueError, match="minibatch_size"):
        trainable(PPO).default_resource_request({**tiny().to_dict(), "minibatch_size": 10_000})


# ---------------------------------------------------------------------------------------------------- reuse of a trial


def weights(trial):
    return trial.algorithm.get_weights()


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def trial():
    """A trial that has trained; its connector is a lambda, which every message from Tune brings anew."""
    trial = Trial(with_lambda())
    for _ in range(2):
        trial.step()
    yield trial
    trial.cleanup()


def with_lambda(**training):
    return tiny(**training).callbacks(on_train_result=lambda *, result, **kwargs: result.update(mark=1.5))


def reset(trial, config):
    settings = cloudpickle.loads(cloudpickle.dumps(config.to_dict()))
    assert trial.reset_config(settings) is True


def test_a_reused_trial_is_a_new_one_without_a_compilation(trial):
    config = with_lambda(lr=0.03, clip_param=0.05, entropy_coeff=0.2, gamma=0.7, kl_coeff=0.9)
    algorithm, clock = trial.algorithm, CompileClock()
    reset(trial, config)
    result = trial.step()
    assert clock.compiles == 0 and trial.algorithm is algorithm
    assert algorithm.config.clip_param == 0.05 and result["mark"] == 1.5
    fresh = Trial(config)
    expected = fresh.step()
    assert_equal_trees(weights(trial), weights(fresh))
    for path in ("training_iteration", "num_env_steps_sampled_lifetime", "env_runners", "learners"):
        assert_known_numbers_equal(result[path], expected[path])
    fresh.cleanup()


def assert_known_numbers_equal(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            if not any(word in key for word in ("throughput", "duration", "timer", "sample", "time_")):
                assert_known_numbers_equal(a[key], b[key])
    else:
        np.testing.assert_equal(a, b)


def test_a_reused_trial_trains_with_its_new_settings(trial):
    reset(trial, with_lambda(lr=0.0))
    before = weights(trial)
    assert trial.step()["learners"]["default_policy"]["default_optimizer_learning_rate"] == 0.0
    assert_equal_trees(weights(trial), before)


def test_a_reused_trial_goes_on_from_a_checkpoint_with_its_new_settings(trial, tmp_path):
    source = Trial(with_lambda())
    source.step()
    source.save_checkpoint(str(tmp_path))
    reset(trial, with_lambda(lr=0.0, entropy_coeff=0.5))
    clock = CompileClock()
    trial.load_checkpoint(str(tmp_path))
    result = trial.step()
    assert clock.compiles == 0
    assert result["training_iteration"] == 2 and result["num_env_steps_sampled_lifetime"] == 2 * programs.BATCH
    assert_equal_trees(weights(trial), weights(source))
    source.cleanup()


def test_other_settings_build_a_new_algorithm(trial):
    algorithm = trial.algorithm
    reset(trial, with_lambda(num_epochs=1))
    assert trial.algorithm is not algorithm and trial.algorithm.config.num_epochs == 1
    with pytest.raises(RuntimeError, match="was stopped"):
        algorithm.train()
    assert trial.step()["training_iteration"] == 1
