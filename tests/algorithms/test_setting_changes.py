"""Settings that change while an algorithm trains: where they arrive, what is recorded, and what is refused."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.iql import IQLConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.setting_changes import SettingChanges, changed_config, settings_of
from jaxrl_stack.algorithms.setting_values import same
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.optimizers import is_another_value
from jaxrl_stack.runs.history import History
from jaxrl_stack.utils.compile_clock import CompileClock
from tests import programs

ENVS = {"device": "gymnax/CartPole-v1", "host": "CartPole-v1"}


def config_of(env, **training):
    return programs.ppo(env).training(**{"lr": 1e-3, **training})


def rate(result, optimizer="default_optimizer"):
    return float(result["learners"]["default_policy"][f"{optimizer}_learning_rate"])


def weights(algo):
    return jax.tree.leaves(algo.get_weights())


@pytest.fixture(scope="module", params=ENVS)
def trained(request, tmp_path_factory):
    """Two iterations before a change and one after it, its files, and the weights of the same run by a schedule."""
    directory = tmp_path_factory.mktemp(request.param)
    config = config_of(ENVS[request.param]).evaluation(evaluation_interval=100, evaluation_duration=1)
    algo = config.copy().reporting(results_dir=directory / "run").build_algo()
    for _ in range(2):
        algo.train()
    algo.evaluate()
    clock = CompileClock()
    algo.change_settings(lr=1e-2, gamma=0.5)
    result = algo.train()
    algo.evaluate()
    algo.compiles = clock.compiles
    algo.save_to_path(directory / "checkpoint")
    algo.stop()
    # The weights of the same run, whose learning rate jumps after as many steps.
    jump = config_of(ENVS[request.param], lr=[[0, 1e-3], [64, 1e-3], [64, 1e-2]]).build_algo()
    for _ in range(2):
        jump.train()
    jump.change_settings(gamma=0.5)
    jump.train()
    yield algo, result, directory, config, weights(jump)
    jump.stop()


def test_a_change_is_a_jump_of_a_schedule_and_compiles_nothing(trained):
    algo, result, _, _, _ = trained
    assert algo.compiles == 0
    assert rate(result) == pytest.approx(1e-2) and algo.config.lr == 1e-2 and result["config"]["lr"] == 1e-2
    runner, evaluation = algo.env_runner.config, algo.eval_env_runner.config
    assert runner.gamma == evaluation.gamma == 0.5 and algo.learner.config.gamma == 0.5


def test_the_weights_are_those_of_a_schedule(trained):
    _, _, directory, _, expected = trained
    restored = Algorithm.from_checkpoint(directory / "checkpoint")
    for own, other in zip(weights(restored), expected, strict=True):
        np.testing.assert_array_equal(own, other)
    restored.stop()


def test_the_history_has_the_values_of_each_iteration(trained):
    algo, _, directory, _, _ = trained
    values = {"config/lr": [1e-3, 1e-3, 1e-2], "config/gamma": [0.99, 0.99, 0.5]}
    for history in (algo.history, History.read(directory / "run" / "result.json")):
        found = {name: history[name].tolist() for name in history.columns if name.startswith("config/")}
        if history is not algo.history:  # the file has no column before the first change
            values = {name: [np.nan, np.nan, own[-1]] for name, own in values.items()}
        np.testing.assert_equal(found, values)


def test_checkpoints_restore_changed_values(trained, tmp_path):
    _, _, directory, config, _ = trained
    path = directory / "checkpoint"
    restored = Algorithm.from_checkpoint(path)
    assert restored.config.lr == 1e-2 and rate(restored.train()) == pytest.approx(1e-2)
    assert restored.history["config/lr"].tolist() == [1e-3, 1e-3, 1e-2, 1e-2]
    # An earlier state of it goes back to the values of then.
    restored.change_settings(lr=1e-4, entropy_coeff=0.1)
    restored.restore_from_path(path)
    assert restored.config.lr == 1e-2 and restored.config.entropy_coeff == 0.0
    restored.stop()
    same = config.copy().build_algo()
    same.restore_from_path(path)
    assert same.config.lr == 1e-2 and same.eval_env_runner.config.gamma == 0.5
    # What an algorithm was built with in another value than that run stays.
    assert same.reset(config.copy().training(lr=0.5))
    same.restore_from_path(path)
    assert (same.config.lr, same.config.gamma) == (0.5, 0.5)
    same.stop()


def test_settings_of_from_checkpoint_come_first(trained):
    _, _, directory, _, _ = trained
    restored = Algorithm.from_checkpoint(directory / "checkpoint", lr=1e-3)
    assert (restored.config.lr, restored.config.gamma) == (1e-3, 0.5)
    restored.stop()


@pytest.mark.parametrize("env", ["gymnax/Pendulum-v1", "Pendulum-v1"])
def test_each_optimizer_follows_its_own_setting(env):
    config = SACConfig().environment(env).env_runners(num_env_runners=0)
    config.training(train_batch_size_per_learner=4, num_steps_sampled_before_learning_starts=4)
    config.rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": [], "fusionnet_hiddens": [4]})
    algo = config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=8).build_algo()
    algo.train()
    algo.change_settings(actor_lr=[[0, 1e-3], [10**6, 1e-3]], critic_lr=1e-6)
    result = algo.train()
    assert [rate(result, name) for name in ("policy", "qf")] == pytest.approx([1e-3, 1e-6])
    algo.stop()


REFUSED = {
    "unknown": ({"lrr": 1.0}, "no setting 'lrr'.*lr"),
    "nothing": ({}, r"change_settings\(lr=1e-4\)"),
    "static": (
        {"minibatch_size": 8},
        r"minibatch_size=8\): it is a constant of the compiled programs.*gamma, lr, .*minibatch_size",
    ),
    "host": ({"evaluation_interval": 3}, "evaluation_interval=3.*not an argument of the compiled programs"),
    "initial": ({"kl_coeff": 0.1}, r"kl_coeff=0.1\): only the start of training reads"),
    "switched_on": ({"grad_clip": 0.1}, "grad_clip=0.1.*built with None"),
    "points": ({"lr": [[i, 1.0] for i in range(9)]}, "schedule of 8 points.*has 16"),
    "value": ({"gamma": 1.5}, r"training\(gamma=1.5\): must be"),
    "text": ({"lr": "1e-4"}, r"training\(lr='1e-4'\): must be"),
    "one_of_two": ({"lr": 1e-4, "num_epochs": 3}, "num_epochs=3"),
    "of_a_module": (
        {"algorithm_config_overrides_per_module": {"default_policy": {"vf_share_layers": 1}}},
        "vf_share_layers",
    ),
    "module": ({"algorithm_config_overrides_per_module": {"nobody": {"lr": 1.0}}}, "nobody"),
}


@pytest.mark.parametrize("settings", REFUSED)
def test_refused(settings):
    config = config_of(ENVS["host"])
    config.freeze()
    given, message = REFUSED[settings]
    with pytest.raises(ValueError, match=message):
        changed_config(config, given, "change_settings")
    assert config.lr == 1e-3


def test_settings_that_programs_have_as_numbers_are_refused():
    config = config_of(ENVS["host"]).experimental(_static_settings=["gamma"])
    with pytest.raises(ValueError, match="gamma=0.5.*_static_settings"):
        changed_config(config, {"gamma": 0.5}, "change_settings")


def test_other_names_of_settings_and_equal_values_are_taken():
    config = config_of(ENVS["host"])
    changed = changed_config(config, {"lambda": 0.5, "minibatch_size": 16}, "change_settings")
    assert changed.config.lambda_ == 0.5 and changed.names == ("lambda_", "minibatch_size")


def test_overrides_of_modules(caplog):
    config = (
        config_of(ENVS["host"])
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, episode: "p0")
        .rl_module(algorithm_config_overrides_per_module={"p0": {"lr": 0.1}})
    )
    given = {"algorithm_config_overrides_per_module": {"p0": {"lr": 0.2}}}
    changed = changed_config(config, given, "change_settings")
    assert changed.paths == ("p0/lr",) and changed.config.get_config_for_module("p0").lr == 0.2
    changes = SettingChanges()
    assert changes.note(config, changed.paths) == ["p0/lr"]
    state = changes.get_state(changed.config)
    assert state == {"p0/lr": [0.1, 0.2]} and changes.values(changed.config, 0) == {"p0/lr": 0.2}
    assert settings_of(config, SettingChanges().restored(config, state)) == given
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        everywhere = changed_config(config, {"lr": 0.3}, "change_settings").config
    assert everywhere.get_config_for_module("p1").lr == 0.3 and "does not change module 'p0'" in caplog.text


class FixedRate(PPOLearner):
    def configure_optimizers_for_module(self, module_id, config=None):
        config = self.config_for(module_id).copy(copy_frozen=False).training(lr=0.5)
        super().configure_optimizers_for_module(module_id, config)


@pytest.fixture(scope="module")
def idle():
    algo = config_of(ENVS["host"]).learners(learner_class=FixedRate).build_algo()
    yield algo
    algo.stop()


def test_a_rate_that_the_optimizers_do_not_read_is_refused(idle):
    with pytest.raises(ValueError, match=r"lr=\.\.\.\) has no effect: FixedRate.configure_optimizers_for_module"):
        idle.change_settings(lr=1e-4)
    assert idle.config.lr == idle.learner.config.lr == 1e-3
    idle.change_settings(gamma=0.9)
    assert idle.learner.config.gamma == 0.9


WITHOUT_EFFECT = {
    "config": lambda algo: setattr(algo.config, "lr", 1e-4),
    "section": lambda algo: algo.config.training(lr=1e-4),
    "item": lambda algo: algo.config.update_from_dict({"lr": 1e-4}),
    "another_config": lambda algo: setattr(algo, "config", config_of(ENVS["host"])),
    "learner": lambda algo: algo.learner_group.foreach_learner(lambda learner: learner.config.training(lr=1e-4)),
    "rllib": lambda algo: algo.learner_group.foreach_learner(
        lambda learner: learner._set_optimizer_lr(learner.get_optimizer("default_policy"), 1e-4)
    ),
    "optimizer": lambda algo: setattr(algo.learner.get_optimizer(), "lr", 1e-4),
    "torch": lambda algo: algo.learner.get_optimizer().param_groups,
    "tune": lambda algo: algo.reset_config({"lr": 1e-4}),
}


@pytest.mark.parametrize("way", WITHOUT_EFFECT)
def test_other_ways_name_this_one(way, idle):
    with pytest.raises(AttributeError, match=r"change_settings\(lr=..."):
        WITHOUT_EFFECT[way](idle)


def test_a_frozen_config_names_it_for_traced_settings_only(idle):
    with pytest.raises(AttributeError, match="frozen") as caught:
        idle.config.training(num_epochs=3)
    assert "change_settings" not in str(caught.value)


@pytest.mark.parametrize(("config_class", "name"), [(DQNConfig, "epsilon"), (IQLConfig, "value_lr")])
def test_settings_of_algorithms(config_class, name):
    config = config_class().environment(ENVS["device"])
    vars(config)["_validate_config"] = False
    assert changed_config(config, {name: 0.25}, "change_settings").config.stored_value(name) == 0.25


class Lowers(RLlibCallback):
    """Lowers the learning rate after the second iteration."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        if result["training_iteration"] == 2:
            algorithm.change_settings(lr=1e-6)


def test_a_change_in_a_callback_counts_from_the_next_iteration_on():
    algo = config_of(ENVS["device"]).callbacks(Lowers).build_algo()
    used = [rate(algo.train()) for _ in range(3)]
    np.testing.assert_allclose(algo.history["config/lr"], used)
    np.testing.assert_allclose(used, [1e-3, 1e-3, 1e-6])
    algo.learn(1, progress=False)
    assert "training_iteration" in algo.stop_reason
    algo.learn({"num_env_steps_sampled_lifetime": 1}, progress=False)  # reached already
    assert "num_env_steps_sampled_lifetime" in algo.stop_reason and algo.iteration == 4
    algo.stop()


def test_numbers_of_numpy_are_compared_with_schedules():
    assert not same(np.float32(1e-4), [[0, 1e-3], [10, 1e-4]]) and not same([[0, 1e-3]], np.float32(1e-3))
    assert same(np.float64(0.5), 0.5)


def test_rates_that_are_equal_in_float32_are_no_change_that_optimizers_miss():
    rate = 0.4 * 1.2 * 0.8
    assert rate != 0.4 * 0.8 * 1.2 and not is_another_value(rate, 0.4 * 0.8 * 1.2)
    assert is_another_value(1e-3, 1e-4) and is_another_value(1e-3, [[0, 1e-3], [10, 0.0]])


def test_an_override_that_was_not_built_names_the_config():
    config = config_of(ENVS["device"]).multi_agent(
        policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p0"
    )
    config.freeze()
    with pytest.raises(ValueError, match=r"Build it with config.rl_module\(.*\{'p0': \{'lr': 1e-05\}\}\)"):
        changed_config(config, {"algorithm_config_overrides_per_module": {"p0": {"lr": 1e-5}}}, "change_settings")
