"""The line in a terminal where an iteration takes long."""

from __future__ import annotations

import io
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.runs import long_iterations
from jaxrl_stack.runs.long_iterations import LongIterations


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Time that moves only in `wait`, for iterations and for the thread that watches them."""

    def __init__(self):
        self.now, self.num_looks = 0.0, 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.num_looks += 1
        time.sleep(0.001)


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "long iterations"]


@pytest.fixture
def terminal(monkeypatch):
    """Text that stderr shows."""
    monkeypatch.setattr(long_iterations, "time", Clock())
    stream = Terminal()
    # Between a fixture and its test, pytest puts a stderr of its own in place.
    own = types.SimpleNamespace(stderr=stream, _current_frames=sys._current_frames)
    monkeypatch.setattr(long_iterations, "sys", own)
    yield stream
    for thread in watchers():
        thread.join()


def wait():
    """Lets a long time pass, and the watching thread look at the iteration afterwards, or end."""
    clock = long_iterations.time
    clock.now += 2 * long_iterations.SECONDS
    num_looks = clock.num_looks
    while watchers() and clock.num_looks < num_looks + 2:
        time.sleep(0.001)


def test_a_long_iteration_is_told_of_once_while_it_runs(terminal):
    told = LongIterations("PPO")
    with told.around(1):
        pass
    wait()
    assert terminal.getvalue() == ""
    for iteration in (2, 3):
        with told.around(iteration):
            wait()
    assert terminal.getvalue() == "PPO: iteration 2 has been running for 5 s; learn() shows progress.\n"


def test_what_compiles_is_told_apart_from_what_runs(terminal):
    told, this_thread = LongIterations("PPO"), threading.get_ident()

    def time_is_up(iteration):
        thread = threading.Thread(target=told._say, args=(iteration, this_thread))
        thread.start()
        thread.join()

    def traced(x):
        time_is_up(1)
        return x + 1

    jax.jit(traced)(jnp.ones(2))
    time_is_up(2)
    first, second = terminal.getvalue().splitlines()
    assert first.startswith("PPO: iteration 1 has been compiling for ") and first.endswith("later ones only run.")
    assert second.startswith("PPO: iteration 2 has been running for ")


def test_an_iteration_that_raises_is_told_of_no_more(terminal):
    with pytest.raises(KeyError), LongIterations("PPO").around(1):
        raise KeyError
    wait()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("why", ["no terminal", "actor", "joined"])
def test_nothing_is_said_without_a_terminal_of_its_own(why, terminal, monkeypatch):
    if why == "no terminal":
        terminal.isatty = lambda: False
    name = {"actor": "is_actor_process", "joined": "num_joined_processes"}.get(why)
    if name is not None:
        monkeypatch.setattr(long_iterations, name, lambda: 2)
    threads = threading.active_count()
    with LongIterations("PPO").around(1):
        assert threading.active_count() == threads
        wait()
    assert terminal.getvalue() == ""


class Waits(RLlibCallback):
    def on_evaluate_start(self, **kwargs):
        wait()


def test_train_says_it_and_learn_does_not(terminal):
    config = PPOConfig().environment("gymnax/CartPole-v1").env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    config.evaluation(evaluation_interval=1, evaluation_duration=1, custom_evaluation_function=lambda *_: ({}, 0, 0))
    algo = config.callbacks(Waits).build_algo()
    algo.learn(1, progress=False)
    assert terminal.getvalue() == ""
    algo.train()
    algo.stop()
    assert "PPO: iteration 2 has been " in terminal.getvalue()
