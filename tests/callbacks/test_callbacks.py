from __future__ import annotations

import functools
import json
import pathlib
import types
import warnings

import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import HOOKS, OLD_HOOKS, RLlibCallback
from jaxrl_stack.callbacks.utils import EPISODE_HOOKS, CallbackList, make_callback, overrides_episode_hooks
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import flatten_result, is_name_at_the_root, is_name_of_runners

API = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "rllib_api.json").read_text())


def arguments_of(name):
    return {argument: f"{argument} of {name}" for argument in HOOKS[name]}


def test_hooks_and_arguments_are_rllibs():
    # Arguments of RLlib's old API stack that its new one never passes.
    never_passed = {"worker", "base_env", "policies", "kwargs"}
    expected = {
        name: set(facts["parameters"]) - never_passed
        for name, facts in API["callbacks"].items()
        if name not in OLD_HOOKS
    }
    assert {name: set(arguments) for name, arguments in HOOKS.items()} == expected
    assert set(OLD_HOOKS) == set(API["callbacks"]) - set(HOOKS)


def recorder(log, label):
    """A callback class that records every hook and its arguments."""

    def record(name):
        return lambda self, **kwargs: log.append((label, name, kwargs))

    return type(label, (RLlibCallback,), {name: record(name) for name in HOOKS})


@pytest.mark.parametrize("name", HOOKS)
def test_objects_come_first_then_functions(name):
    log = []
    config = types.SimpleNamespace(**{f"callbacks_{hook}": None for hook in HOOKS})
    config.callbacks_class = [recorder(log, "A"), recorder(log, "B")]
    setattr(
        config,
        f"callbacks_{name}",
        [lambda **kwargs: log.append(("f", name, kwargs)), lambda **kwargs: log.append(("g", name, kwargs))],
    )
    callbacks = CallbackList.from_config(config)
    expected = [(label, name, arguments_of(name)) for label in ("A", "B", "f", "g")]
    getattr(callbacks, name)(**arguments_of(name))
    assert log == expected
    log.clear()
    callbacks.call(name, **arguments_of(name))
    assert log == expected
    log.clear()
    functions = getattr(config, f"callbacks_{name}")
    make_callback(name, list(callbacks.callbacks), functions, kwargs=arguments_of(name))
    assert log == expected


def test_one_class_one_function_and_nothing():
    log = []
    config = types.SimpleNamespace(**{f"callbacks_{hook}": None for hook in HOOKS}, callbacks_class=None)
    CallbackList.from_config(config).on_train_result(**arguments_of("on_train_result"))
    config.callbacks_class = recorder(log, "A")
    config.callbacks_on_train_result = lambda *, result, **kwargs: result.append("function")
    result = []
    CallbackList.from_config(config).on_train_result(algorithm=None, metrics_logger=None, result=result)
    assert result == ["function"]
    assert [entry[:2] for entry in log] == [("A", "on_train_result")]


def test_every_user_of_a_config_has_its_own_instances():
    config = types.SimpleNamespace(**{f"callbacks_{hook}": None for hook in HOOKS}, callbacks_class=recorder([], "A"))
    first, second = CallbackList.from_config(config), CallbackList.from_config(config)
    assert first.callbacks[0] is not second.callbacks[0]


def test_base_hooks_accept_their_arguments_and_old_ones():
    for name in HOOKS:
        assert getattr(RLlibCallback(), name)(**arguments_of(name), worker=None, base_env=None) is None


class Failing(RLlibCallback):
    def on_episode_end(self, *, episode, **kwargs):
        raise ZeroDivisionError("my own")


def test_errors_go_through_and_name_the_hook():
    with pytest.raises(ZeroDivisionError, match="my own") as caught:
        CallbackList([Failing()]).on_episode_end(**arguments_of("on_episode_end"))
    assert caught.value.__notes__ == ["Raised in the callback Failing.on_episode_end()."]

    def fail(**kwargs):
        raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        CallbackList((), {"on_sample_end": fail}).on_sample_end(**arguments_of("on_sample_end"))
    assert "on_sample_end=" in caught.value.__notes__[0]
    assert "fail" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as caught:
        make_callback("on_episode_end", Failing(), kwargs={"episode": None})
    assert "Failing.on_episode_end()" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", EPISODE_HOOKS)
def test_episode_hooks_are_noticed(name):
    assert overrides_episode_hooks(CallbackList((), {name: lambda **kwargs: None}))
    assert overrides_episode_hooks(CallbackList([type("A", (RLlibCallback,), {name: lambda self, **kw: None})()]))
    base = type("Base", (RLlibCallback,), {name: lambda self, **kw: None})
    assert overrides_episode_hooks(CallbackList([RLlibCallback(), type("Heir", (base,), {})()]))


def test_other_hooks_need_no_episodes():
    class Curve(RLlibCallback):
        def on_train_result(self, *, result, **kwargs): ...

        def on_environment_created(self, *, env, **kwargs): ...

    assert not overrides_episode_hooks(CallbackList([RLlibCallback(), Curve()], {"on_episode_end": None}))
    assert CallbackList([Curve()]).overrides("on_train_result")


def test_a_hook_set_on_the_instance_counts():
    class Attaches(RLlibCallback):
        def __init__(self):
            self.steps = []
            self.on_episode_step = lambda **kwargs: self.steps.append(kwargs["env_index"])

    callbacks = CallbackList([Attaches()])
    assert overrides_episode_hooks(callbacks)
    callbacks.on_episode_step(**arguments_of("on_episode_step"))
    assert callbacks.callbacks[0].steps == ["env_index of on_episode_step"]


@pytest.mark.parametrize("name", OLD_HOOKS)
def test_old_hooks_are_refused_with_their_replacement(name):
    with pytest.raises(TypeError, match=f"Mine.{name}.*{OLD_HOOKS[name].split('(')[0]}"):
        type("Mine", (RLlibCallback,), {name: lambda self, **kwargs: None})


def test_old_hooks_of_a_mixin_are_refused():
    class Mixin:
        def on_create_policy(self, **kwargs): ...

    with pytest.raises(TypeError, match="on_create_policy"):
        type("Mine", (Mixin, RLlibCallback), {})


def test_misspelt_hooks():
    with pytest.warns(UserWarning, match=r"on_episode_ended\(\).*on_episode_end\(\)"):
        type("Mine", (RLlibCallback,), {"on_episode_ended": lambda self, **kwargs: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (RLlibCallback,), {"on_my_own": lambda self: None})
    with pytest.raises(ValueError, match="'on_train_results'.*'on_train_result'"):
        CallbackList((), {"on_train_results": print})
    with pytest.raises(ValueError, match="'on_train_results'"):
        make_callback("on_train_results")
    with pytest.raises(AttributeError, match="on_train_results"):
        CallbackList().on_train_results  # noqa: B018 (the access raises)


def test_hooks_that_cannot_take_their_arguments_are_found_before_training():
    with pytest.raises(TypeError, match=r"on_train_result=.*metrics_logger.*\*\*kwargs"):
        CallbackList((), {"on_train_result": lambda algorithm, result: None})

    class Mine(RLlibCallback):
        def on_episode_end(self, episode):  # pyright: ignore[reportIncompatibleMethodOverride]
            ...

    with pytest.raises(TypeError, match=r"Mine.on_episode_end\(\).*\*\*kwargs"):
        CallbackList([Mine()])
    CallbackList((), {"on_train_result": functools.partial(lambda tag, **kwargs: None, "tag")})
    with pytest.raises(TypeError, match="3"):
        CallbackList((), {"on_train_result": 3})
    with pytest.raises(TypeError, match="RLlibCallback"):
        CallbackList([object()])


def test_old_names():
    import jaxrl_stack.algorithms.callbacks as old_place
    import jaxrl_stack.callbacks.callbacks as place

    for module in (old_place, place):
        with pytest.warns(DeprecationWarning, match="`RLlibCallback`"):
            assert module.DefaultCallbacks is RLlibCallback
        with pytest.raises(AttributeError, match="Nonsense"):
            module.Nonsense  # noqa: B018 (the access raises)


def test_values_under_names_of_the_results_are_left_out_with_a_notice(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    logger = MetricsLogger(reserved=is_name_of_runners)

    def log(metrics_logger, **kwargs):
        metrics_logger.log_value("episode_return_mean", -1.0, window=3)
        metrics_logger.log_value(("num_agent_steps_sampled", "a"), -1, reduce="sum")
        metrics_logger.log_dict({"num_episodes": -1, "mine": 5.0, "env_to_module_connector": {"mine": 6.0}})
        with metrics_logger.log_time("sample"):
            pass

    for _ in range(2):
        CallbackList(functions={"on_sample_end": log}).on_sample_end(env_runner=None, metrics_logger=logger, samples=[])
    assert logger.peek() == {"mine": 5.0, "env_to_module_connector": {"mine": 6.0}}
    for name in ("'episode_return_mean'", "('num_agent_steps_sampled', 'a')", "('num_episodes',)", "'sample'"):
        assert caplog.text.count(f"logs {name}, which is a reserved name of results") == 1
    assert "The callback config.callbacks(on_sample_end=" in caplog.text and "such as 'my_sample'" in caplog.text
    # All else logs what it likes, the stack itself first of all.
    logger.log_value("episode_return_mean", 2.0, window=3)
    assert logger.peek("episode_return_mean") == 2.0
    make_callback("on_train_result", callbacks_functions=log, kwargs={"metrics_logger": MetricsLogger()})


def test_which_names_results_have():
    own = ["episode_return_mean", "sample", "env_to_module_connector/connector_pipeline_timer", "weights_seq_no"]
    assert all(is_name_of_runners(tuple(name.split("/"))) for name in own)
    assert is_name_of_runners(("env_to_module_connector",)) and is_name_of_runners(("episode_return_mean", "mine"))
    assert not is_name_of_runners(("mine",)) and not is_name_of_runners(("env_to_module_connector", "mine"))
    assert all(
        is_name_at_the_root((name,)) for name in ("training_iteration", "env_runners", "timers", "config", "done")
    )
    assert not is_name_at_the_root(("env_runners", "episode_return_mean")) and not is_name_at_the_root(("mine",))


class LogsNames(RLlibCallback):
    def on_episode_end(self, *, metrics_logger, **kwargs):
        metrics_logger.log_dict({"episode_return_mean": -1e6, "num_env_steps_sampled": -1e6, "env_step_timer": -1e6})
        metrics_logger.log_value("mine", 5.0)

    def on_algorithm_init(self, *, metrics_logger, **kwargs):
        for name in ("env_runners", "learners", "timers", "training_iteration", "time_total_s"):
            metrics_logger.log_value(name, -1e6)
        metrics_logger.log_value("also_mine", 6.0)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnax/CartPole-v1"])
def test_callbacks_do_not_change_the_numbers_of_results(env):
    config = PPOConfig().environment(env).env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    config.training(train_batch_size_per_learner=200, minibatch_size=None, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).evaluation(evaluation_interval=1, evaluation_duration=2)
    algo = config.callbacks(LogsNames).build_algo()
    numbers = flatten_result(algo.train())
    algo.stop()
    assert {name for name, number in numbers.items() if isinstance(number, float) and number < -1e3} == set()
    assert numbers["env_runners/mine"] == numbers["evaluation/env_runners/mine"] == 5.0 and numbers["also_mine"] == 6.0
    assert numbers["env_runners/num_env_steps_sampled"] == 200
