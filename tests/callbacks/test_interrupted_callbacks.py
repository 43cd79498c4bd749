"""Callbacks on episodes that raise, or that Ctrl-C stops: training goes on, and nothing is shown twice."""

from __future__ import annotations

import collections
import logging
import signal
import threading
from collections.abc import Callable

import jax
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig, PPOLearner
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.callbacks.utils import EPISODE_HOOKS
from jaxrl_stack.core.learner.update import Update
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env

NUM_ENVS, NUM_STEPS, LENGTH = 2, 7, 3
"""Episodes are three steps long: most of them run across the seven steps of an iteration."""

LEARNER_HOOK = "after_gradient_based_update"


class Plan:
    """What hooks have been called, and the one that raises.

    Attributes:
        seen: ``(hook, environment, id of the episode, its steps so far)`` of every call.
        at: ``(hook, number of its call)`` that raises; the first call from now on has the number 0.
        error: What it raises; or
        raises: what it does.
    """

    def __init__(self):
        self.seen: list[tuple[str, int, str, int]] = []
        self.at: tuple[str, int] | None = None
        self.error: BaseException | None = None
        self.raises: Callable[[], None] | None = None

    def call(self, hook):
        if self.at is None or self.at[0] != hook:
            return
        number = self.at[1]
        self.at = (hook, number - 1) if number else None
        if number:
            return
        if self.raises is not None:
            return self.raises()
        assert self.error is not None
        raise self.error

    def ended_since(self, number):
        return sum(hook == "on_episode_end" for hook, *_ in self.seen[number:])

    def check_nothing_was_shown_twice(self):
        """Of every episode: created, started, every step from the first one on, and perhaps its end. Those that another
        test has begun go on in this one."""
        by_episode = collections.defaultdict(list)
        for hook, _, episode_id, length in self.seen:
            by_episode[episode_id].append((hook, length))
        for calls in by_episode.values():
            whole = [("on_episode_created", 0), ("on_episode_start", 0)]
            whole += [("on_episode_step", t) for t in range(1, LENGTH + 1)] + [("on_episode_end", LENGTH)]
            first = whole.index(calls[0])
            assert calls == whole[first : first + len(calls)]


PLAN = Plan()


def on_episode(hook):
    def called(self, *, episode, env_index, **kwargs):
        PLAN.seen.append((hook, env_index, episode.id_, episode.t))
        PLAN.call(hook)

    return called


class Planned(RLlibCallback):
    on_episode_created, on_episode_start, on_episode_step, on_episode_end = map(on_episode, EPISODE_HOOKS[:4])

    def on_sample_end(self, **kwargs):
        PLAN.call("on_sample_end")


class PlannedLearner(PPOLearner):
    """Its hook comes after the program and before the callbacks on what that has sampled."""

    def after_gradient_based_update(self, *, timesteps):
        PLAN.call(LEARNER_HOOK)


def config_of(env, **evaluation):
    return (
        PPOConfig()
        .environment(env, env_config={"terminate_at": LENGTH} if env is CounterEnv else {})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1, learner_class=PlannedLearner)
        .callbacks(Planned)
        .evaluation(evaluation_duration=4, **evaluation)
    )


@pytest.fixture(scope="module")
def device():
    algo = config_of(CounterEnv).build_algo()
    yield algo
    algo.stop()


@pytest.fixture(scope="module")
def host():
    register_env("three_on_the_host", lambda context: GymnasiumFromJax(CounterEnv, {"terminate_at": LENGTH}))
    algo = config_of("three_on_the_host").build_algo()
    yield algo
    algo.stop()


@pytest.fixture(autouse=True)
def plan():
    PLAN.__init__()
    yield PLAN
    PLAN.__init__()


def failed(algo, hook, number, error, call="train"):
    PLAN.at, PLAN.error = (hook, number), error("a callback")
    with pytest.raises(error, match="a callback"):
        getattr(algo, call)()
    assert PLAN.at is None


PLACES = [
    *((hook, number) for hook in EPISODE_HOOKS[:2] for number in (0, 1)),
    *(("on_episode_step", number) for number in (0, NUM_STEPS, NUM_ENVS * NUM_STEPS - 1)),
    *(("on_episode_end", number) for number in (0, 1, 3)),
    ("on_sample_end", 0),
]
ERRORS = [ZeroDivisionError, KeyboardInterrupt]


def ends(algo):
    """Episodes of one environment that have ended on the device, of which all have the same length."""
    return algo.num_env_steps_sampled_lifetime // NUM_ENVS // LENGTH


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("hook", "number"), [*PLACES, (LEARNER_HOOK, 0)])
def test_a_device_run_goes_on_with_the_next_episodes(device, hook, number, error, caplog):
    device.train()
    with caplog.at_level(logging.WARNING):
        failed(device, hook, number, error)
        before, num_ended = len(PLAN.seen), ends(device)
        # What is shown to the end has no gap.
        runs = hook != "on_sample_end" and device.num_env_steps_sampled_lifetime // NUM_ENVS % LENGTH != 0
        results = [device.train() for _ in range(2)]
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) == NUM_ENVS * (ends(device) - num_ended - runs)
    assert sum(result["env_runners"]["num_episodes"] for result in results) == NUM_ENVS * (ends(device) - num_ended)
    missed = [record.args for record in caplog.records if "interrupted the callbacks" in record.getMessage()]
    assert len(missed) == (hook != "on_sample_end")
    if hook == "on_episode_step":
        assert missed == [(NUM_ENVS * NUM_STEPS - 1 - number,)]
    if hook == LEARNER_HOOK:
        assert missed == [(NUM_ENVS * NUM_STEPS,)]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("hook", "number"), PLACES)
def test_a_host_run_starts_new_episodes(host, hook, number, error):
    host.train()
    steps = host.num_env_steps_sampled_lifetime
    # Its first episodes go on from the last iteration; make sure that each hook is called.
    failed(host, hook, number, error)
    assert host.num_env_steps_sampled_lifetime == steps
    before = len(PLAN.seen)
    results = [host.train() for _ in range(2)]
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) == NUM_ENVS * (2 * NUM_STEPS // LENGTH)
    assert sum(result["env_runners"]["num_episodes"] for result in results) == PLAN.ended_since(before)


def test_ctrl_c_while_the_program_runs():
    """It is heard when the program is done: what that has sampled counts, and callbacks have seen nothing of it."""

    class Interrupted(Update):
        def __call__(self, *args, **kwargs):
            jax.debug.callback(lambda: PLAN.call("program"))
            return super().__call__(*args, **kwargs)

    class InterruptedLearner(PlannedLearner):
        update_class = Interrupted

    def interrupt():
        signal.raise_signal(signal.SIGINT)

    algo = config_of(CounterEnv).learners(learner_class=InterruptedLearner).build_algo()
    algo.train()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    PLAN.at, PLAN.raises = ("program", 0), interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            algo.train()
    finally:
        signal.signal(signal.SIGINT, handler)
    before, num_ended = len(PLAN.seen), ends(algo)
    results = [algo.train() for _ in range(2)]
    assert sum(result["env_runners"]["num_episodes"] for result in results) == NUM_ENVS * (ends(algo) - num_ended)
    assert results[-1]["env_runners"]["num_episodes_lifetime"] == NUM_ENVS * ends(algo)
    # After 14 steps callbacks are told no more of the episodes that run across them.
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) == NUM_ENVS * (ends(algo) - num_ended - 1)
    algo.stop()


def test_a_checkpoint_of_an_interrupted_run_has_no_half_seen_episodes(device):
    device.train()
    failed(device, "on_episode_step", 4, KeyboardInterrupt)
    device.set_state(device.get_state())
    before, num_ended = len(PLAN.seen), ends(device)
    runs = device.num_env_steps_sampled_lifetime // NUM_ENVS % LENGTH != 0
    device.train()
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) == NUM_ENVS * (ends(device) - num_ended - runs)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("hook", "number"), [("on_episode_end", 1), ("on_episode_step", 5), ("on_sample_end", 0)])
@pytest.mark.parametrize("driver", ["device", "host"])
def test_an_evaluation_after_one_that_failed(request, driver, hook, number, error):
    algo = request.getfixturevalue(driver)
    failed(algo, hook, number, error, "evaluate")
    before = len(PLAN.seen)
    assert algo.evaluate()["env_runners"]["num_episodes"] == 4
    PLAN.check_nothing_was_shown_twice()
    # On the host a runner steps all of its environments until the last one is done.
    assert PLAN.ended_since(before) == 4 if driver == "device" else PLAN.ended_since(before) >= 4


MAY_END = threading.Event()
RUNNING = [0, 0]
"""Evaluations that are running, and the most at a time."""


def patient_evaluation(algorithm, group):
    RUNNING[0] += 1
    RUNNING[1] = max(RUNNING)
    assert MAY_END.wait(timeout=60.0)
    RUNNING[0] -= 1
    return {}, 0, 0


def test_an_evaluation_beside_a_training_step_that_failed_ends_before_the_next_one(host):
    config = config_of("three_on_the_host", evaluation_interval=1, evaluation_parallel_to_training=True)
    # The function needs no actors.
    config.experimental(_validate_config=False)
    algo = config.evaluation(custom_evaluation_function=patient_evaluation).build_algo()
    for call in (algo.evaluate, algo.train):
        MAY_END.clear()
        failed(algo, "on_sample_end", 0, ZeroDivisionError)
        assert RUNNING[0] == 1
        threading.Timer(0.2, MAY_END.set).start()
        call()
    assert RUNNING == [0, 1]
    algo.stop()


def test_an_evaluation_without_resets_goes_on_with_the_next_episodes():
    algo = config_of(
        CounterEnv, evaluation_duration_unit="timesteps", evaluation_force_reset_envs_before_iteration=False
    ).build_algo()
    algo.evaluate()
    failed(algo, "on_episode_step", 1, KeyboardInterrupt, "evaluate")
    before = len(PLAN.seen)
    for _ in range(3):
        algo.evaluate()
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) >= NUM_ENVS
    algo.stop()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("driver", ["device", "host"])
def test_samples_of_a_runner_after_one_that_failed(device, host, driver, error):
    runner = {"device": device, "host": host}[driver].eval_env_runner
    runner.sample(num_timesteps=8)
    PLAN.at, PLAN.error = ("on_episode_step", 3), error("a callback")
    with pytest.raises(error):
        runner.sample(num_timesteps=8)
    before = len(PLAN.seen)
    episodes = runner.sample(num_timesteps=8) + runner.sample(num_timesteps=8)
    PLAN.check_nothing_was_shown_twice()
    assert PLAN.ended_since(before) == sum(episode.is_done for episode in episodes) == 4
