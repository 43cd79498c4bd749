"""`Algorithm.reset`, restores and Ctrl-C: what an algorithm knows is of the run that goes on."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import jax
import numpy as np
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.replay import PrioritizedEpisodeReplayBuffer
from tests import programs


class Sees(RLlibCallback):
    """Notes what it is told, in the object."""

    def __init__(self):
        self.told = []

    def on_algorithm_init(self, *, algorithm, **kwargs):
        self.told.append(("on_algorithm_init", algorithm.num_env_steps_sampled_lifetime))
        algorithm._counters["tasks"] += 1

    def on_environment_created(self, *, env, env_context, metrics_logger, **kwargs):
        self.told.append(("on_environment_created", type(env).__name__, dict(env_context)))
        metrics_logger.log_value("envs_made", 1, reduce="sum")

    def on_episode_start(self, *, env_index, **kwargs):
        self.told.append(("on_episode_start", env_index))

    def on_episode_end(self, *, env_index, episode, **kwargs):
        self.told.append(("on_episode_end", env_index, episode.t))

    def on_sample_end(self, *, samples, **kwargs):
        self.told.append(("on_sample_end", sum(map(len, samples))))


class Scale(ConnectorV2):
    """Shows what it has counted: the n-th observation that it sees is multiplied by 1 + n / 1000."""

    def __init__(self):
        super().__init__()
        self.num_calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.num_calls += 1
            episode.set_observations(
                new_data=(episode.get_observations(-1) * (1 + self.num_calls / 1000)).astype(np.float32), at_indices=-1
            )
        return batch


class Raise(ConnectorV2):
    """The n-th update adds n to the rewards."""

    def __init__(self):
        super().__init__()
        self.num_calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.num_calls += 1
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rewards = np.asarray(episode.get_rewards()) + self.num_calls
            episode.set_rewards(new_data=rewards.tolist(), at_indices=slice(0, len(rewards)))
        return batch


def _scale(env, spaces, device):
    return Scale()


def _raise(observation_space, action_space):
    return Raise()


def config_of(driver, algorithm="ppo", **training):
    register_env("counter_for_resets", lambda context: GymnasiumFromJax(CounterEnv, context))
    env = CounterEnv if driver == "device" else "counter_for_resets"
    if algorithm == "ppo":
        config = programs.odd(env).training(**training)
    else:
        sizes = {"num_steps_sampled_before_learning_starts": 8, "replay_buffer_config": {"capacity": 64}}
        config = DQNConfig().environment(env).training(train_batch_size_per_learner=32, **sizes, **training)
        config.reporting(min_sample_timesteps_per_iteration=32).rl_module(model_config={"fcnet_hiddens": [4]})
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=2).learners(num_cpus_per_learner=1)
    config.environment(env_config={"terminate_at": 5, "random_start": True})
    if driver == "host_connectors":
        config.env_runners(env_to_module_connector=_scale)
        config.learners(learner_connector=_raise)
    return config.callbacks(Sees).evaluation(evaluation_interval=2, evaluation_duration=2).debugging(seed=2)


def run_of(algo):
    """What can be seen of three iterations: numbers, weights, and what all callbacks were told."""
    results = [algo.train() for _ in range(3)]
    lists = [owner.callbacks for owner in (algo, algo.env_runner, algo.eval_env_runner)]
    told = [callback.told for callbacks in lists for callback in callbacks.callbacks]
    numbers = [
        {
            "episodes": result["env_runners"]["num_episodes"],
            "return": result["env_runners"]["episode_return_mean"],
            "envs_made": result["env_runners"].get("envs_made"),
            "evaluated": result.get("evaluation", {}).get("env_runners", {}).get("episode_len_mean"),
            "learners": {
                name: value
                for name, value in result["learners"]["default_policy"].items()
                if not isinstance(value, dict) and "throughput" not in name
            },
            "steps": result["num_env_steps_sampled_lifetime"],
        }
        for result in results
    ]
    return {"numbers": numbers, "told": told, "weights": algo.get_weights(), "counters": dict(algo._counters)}


@pytest.mark.parametrize(("driver", "algorithm"), [("device", "dqn"), ("host", "dqn"), ("host_connectors", "ppo")])
def test_a_run_after_a_reset_is_that_of_a_new_algorithm(driver, algorithm):
    algo = config_of(driver, algorithm, lr=0.02).build_algo()
    expected = run_of(algo)
    assert algo.reset(config_of(driver, algorithm, lr=0.1))
    other = run_of(algo)["weights"]
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (other, expected["weights"])), strict=True))
    before: Any = algo.callbacks[0]
    told_before = len(before.told)
    assert algo.reset(config_of(driver, algorithm, lr=0.02))
    found = run_of(algo)
    algo.stop()
    assert algo.callbacks[0] is not before and len(before.told) == told_before
    jax.tree.map(np.testing.assert_array_equal, found["weights"], expected["weights"])
    np.testing.assert_equal({**found, "weights": None}, {**expected, "weights": None})


def test_an_algorithm_whose_modules_have_changed_is_not_reset():
    algo = config_of("device").build_algo()
    algo.learner_group.add_module(module_id="added", module_spec=RLModuleSpec.from_module(algo.get_module()))
    algo.learner_group.remove_module("added")
    # Its modules are those of the beginning again; with which weights they began is not known any more.
    callbacks = algo.callbacks
    assert not algo.reset(config_of("device", lr=0.02)) and algo.callbacks is callbacks
    algo.train()
    algo.stop()


OPEN: list[Any] = []


class Closes(GymnasiumFromJax):
    def __init__(self, *args):
        super().__init__(*args)
        OPEN.append(self)

    def close(self):
        if self in OPEN:
            OPEN.remove(self)


class RefusesWeights(SingleAgentEnvRunner):
    def set_state(self, state):
        raise ZeroDivisionError("no weights")


def _raise_at_init(**kwargs):
    raise ZeroDivisionError("no algorithm")


@pytest.mark.parametrize("why", ["weights", "algorithm"])
def test_what_cannot_be_built_leaves_no_environments_open(why):
    register_env("closes", lambda context: Closes(CounterEnv, context))
    config = config_of("host").environment("closes")
    if why == "weights":
        config.env_runners(env_runner_cls=RefusesWeights)
    else:
        config.callbacks(on_algorithm_init=_raise_at_init)
    with pytest.raises(ZeroDivisionError, match=f"no {why}"):
        config.build_algo()
    assert not OPEN


def test_results_after_a_restore_have_nothing_of_before():
    config = config_of("device").evaluation(
        evaluation_duration=6, evaluation_duration_unit="timesteps", evaluation_force_reset_envs_before_iteration=False
    )
    algo = config.build_algo()
    state = algo.get_state()
    before = jax.tree.map(_bits, state["env_runner"])
    algo.train()
    expected = _evaluated(algo)
    for _ in range(2):
        last = algo.train()
    assert "evaluation" in last
    for _ in range(2):
        algo.set_state(state)
        algo.train()
    # Training takes the arrays that it was given, and not those of the state.
    np.testing.assert_equal(jax.tree.map(_bits, state["env_runner"]), before)
    algo.set_state(state)
    # Neither the last result nor the environments of its evaluation.
    result = algo.learn(1, progress=False)
    assert result["training_iteration"] == 1 and "evaluation" not in result
    np.testing.assert_equal(_evaluated(algo), expected)
    algo.stop()


def _bits(leaf):
    return np.array(jax.random.key_data(leaf) if isinstance(leaf, jax.Array) else leaf)


def _evaluated(algo):
    sampled = algo.train()["evaluation"]["env_runners"]
    return {name: sampled[name] for name in ("episode_len_mean", "episode_return_mean", "num_episodes")}


class Interrupted(PrioritizedEpisodeReplayBuffer):
    """Ctrl-C comes when a method begins; `done` is what the next ones have done all the same."""

    at: str | None = None
    done: tuple[str, ...] = ()

    def add_block(self, *args, **kwargs):
        with self._interrupted("add_block"):
            super().add_block(*args, **kwargs)

    def update_priorities(self, *args, **kwargs):
        with self._interrupted("update_priorities"):
            super().update_priorities(*args, **kwargs)

    @contextlib.contextmanager
    def _interrupted(self, name):
        if self.at == name:
            self.at = None
            signal.raise_signal(signal.SIGINT)
            yield
            self.done += (name,)
        else:
            yield


@pytest.mark.parametrize("at", ["add_block", "update_priorities"])
def test_ctrl_c_finds_the_replay_buffer_whole(at):
    algo = config_of("host", "dqn").training(replay_buffer_config={"type": Interrupted}).build_algo()
    algo.train()
    buffer: Any = algo.local_replay_buffer
    buffer.at = at
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            algo.train()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert buffer.done == (at,)
    algo.train()
    algo.stop()
