"""Patterns of scripts that reach into runners and read results: curricula, failing environments, metrics."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
import tracemalloc

import gymnasium as gym
import numpy as np
import pytest

from envs.counter import CounterEnv
from envs.gymnasium_versions import GymnasiumCounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig, PPOLearner
from jaxrl_stack.callbacks.callbacks import MemoryTrackingCallbacks, RLlibCallback
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.learner.learner import DEFAULT_OPTIMIZER, ENTROPY_KEY, LR_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env import registry
from jaxrl_stack.env.env_errors import StepFailedRecreateEnvError
from jaxrl_stack.env.env_runner import ConsecutiveFailuresError
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule
from jaxrl_stack.tune.registry import register_env
from jaxrl_stack.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    EVALUATION_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)
from jaxrl_stack.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP
from jaxrl_stack.utils.metrics.stats import EmaStats
from jaxrl_stack.utils.test_utils import check, check_train_results_new_api_stack
from tests.pickled_by_value import pickled_by_value


class Stairs(gym.Env):
    """So many steps are an episode, and every one of them shows their number and pays 1."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        self.steps = config["steps"]
        self.observation_space = gym.spaces.Box(0.0, config.get("high", 99.0), (config.get("size", 1),), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        return self._observation(), 1.0, self.t >= self.steps, False, {}

    def _observation(self):
        return np.full(self.observation_space.shape, self.steps, np.float32)


def base(config, env=Stairs, **env_config):
    return (
        config.environment(env, env_config=env_config)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=8)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=3)
    )


def ppo(env=Stairs, **env_config):
    return base(PPOConfig(), env, **env_config).training(
        train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1
    )


# --------------------------------------------------------------------------------------------------------- curriculum


def set_task(env_runner, task, name="steps"):
    env_runner.config.environment(env_config={name: task})
    env_runner.make_env()


class Promotion(RLlibCallback):
    """One more step once the present number is reached."""

    def __init__(self, last):
        self.last = last

    def on_environment_created(self, *, env_context, metrics_logger, **kwargs):
        metrics_logger.log_value("task", env_context["steps"], window=1)

    def on_train_result(self, *, algorithm, result, **kwargs):
        result["task_solved"] = 0.0
        reached = result[ENV_RUNNER_RESULTS].get(EPISODE_RETURN_MEAN, 0.0)
        # Where RLlib's own scripts keep it.
        task = algorithm._counters["task"] or algorithm.config.env_config["steps"]
        if reached >= task and task < self.last:
            algorithm._counters["task"] = task + 1
            algorithm.env_runner_group.foreach_env_runner(functools.partial(set_task, task=task + 1))
        elif reached >= task:
            result["task_solved"] = 1.0


def test_a_curriculum_changes_env_config_in_the_runners_and_makes_their_environments_anew():
    config = ppo(steps=2).callbacks(functools.partial(Promotion, last=4))
    algo = config.reporting(metrics_num_episodes_for_smoothing=1).build_algo()
    results = [algo.train() for _ in range(3)]
    assert [result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] for result in results] == [2, 3, 4]
    assert [result[ENV_RUNNER_RESULTS]["task"] for result in results] == [2, 3, 4]
    assert [result["task_solved"] for result in results] == [0, 0, 1]
    # Only the runners have been changed.
    assert algo.config.env_config == {"steps": 2} and algo.config.is_frozen
    algo.stop()


def test_episodes_in_replay_are_of_one_task_each():
    replay = {"type": "EpisodeReplayBuffer", "capacity": 200}
    config = base(DQNConfig(), steps=5).training(
        replay_buffer_config=replay, train_batch_size_per_learner=4, num_steps_sampled_before_learning_starts=0
    )
    algo = config.reporting(min_sample_timesteps_per_iteration=16).build_algo()
    algo.train()
    # Unfinished episodes, of three steps by now, end here.
    algo.env_runner_group.foreach_env_runner(functools.partial(set_task, task=7))
    algo.train()
    episodes = algo.driver.replay_buffer.episodes
    acted_on = [sorted(set(episode.get_observations()[:-1].ravel().tolist())) for episode in episodes]
    lengths = sorted(zip(map(len, episodes), acted_on, strict=True))
    assert lengths == [(1, [7]), (1, [7]), (3, [5]), (3, [5]), (5, [5]), (5, [5]), (7, [7]), (7, [7])]
    algo.stop()


def test_an_environment_of_another_form_is_refused_by_make_env():
    algo = ppo(steps=2).build_algo()
    runner = algo.env_runner
    # Bounds of observations say nothing of networks.
    runner.config.env_config["high"] = 10.0
    runner.make_env()
    assert runner.sample(num_episodes=1)[0].get_return() == 2
    runner.config.env_config["size"] = 3
    with pytest.raises(ValueError, match=r"make_env\(\): .*\(3,\).*made for .*\(1,\).*another algorithm"):
        runner.make_env()
    algo.stop()


def test_after_make_env_has_failed_the_users_own_error_is_what_comes_next():
    runner = SingleAgentEnvRunner(config=ppo(steps=2))
    runner.config.env_config["size"] = "wide"
    with pytest.raises(TypeError) as own:
        runner.make_env()
    with pytest.raises(
        ValueError, match=r"its make_env\(\) raised TypeError: .*env_config={.*'size': 'wide'}"
    ) as next_one:
        runner.sample(num_episodes=1)
    assert str(own.value) in str(next_one.value) and next_one.value.__cause__ is own.value
    runner.config.env_config["size"] = 1
    runner.make_env()
    assert runner.sample(num_episodes=1)[0].get_return() == 2
    runner.stop()


def test_a_compiled_environment_cannot_be_exchanged_and_the_message_says_what_can_be_done():
    algo = ppo(CounterEnv, terminate_at=5).build_algo()
    with pytest.raises(ValueError, match=r"the training program was compiled for .*5.*learner_group.set_state"):
        algo.env_runner_group.foreach_env_runner(lambda runner: set_task(runner, 7, name="terminate_at"))
    harder = ppo(CounterEnv, terminate_at=7).debugging(seed=9).build_algo()
    harder.learner_group.set_state(algo.learner_group.get_state())
    check(harder.get_weights(), algo.get_weights())
    algo.stop()
    harder.stop()


# --------------------------------------------------------------------------------------------- environments that fail


class LosesItsSimulator(Stairs):
    """The first `broken` ones that are made fail in their first step."""

    made = 0

    def __init__(self, config=None):
        super().__init__(config)
        type(self).made += 1
        self.is_broken = type(self).made <= config["broken"]

    def step(self, action):
        if self.is_broken:
            raise StepFailedRecreateEnvError("the simulator does not answer")
        return super().step(action)


def test_an_environment_asks_for_another_one_without_a_log_entry(monkeypatch, caplog):
    monkeypatch.setattr(LosesItsSimulator, "made", 0)
    config = ppo(LosesItsSimulator, steps=3, broken=5).fault_tolerance(restart_failed_sub_environments=True)
    runner = SingleAgentEnvRunner(config=config)
    with caplog.at_level(logging.INFO, logger="jaxrl_stack"):
        episodes = runner.sample(num_episodes=4)
    assert [episode.get_return() for episode in episodes] == [3] * 4
    assert LosesItsSimulator.made == 2 + 5 and not caplog.records
    runner.stop()


def test_one_that_never_works_is_an_error_and_so_is_the_first_one_without_the_setting(monkeypatch):
    monkeypatch.setattr(LosesItsSimulator, "made", 0)
    config = ppo(LosesItsSimulator, steps=3, broken=100)
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(StepFailedRecreateEnvError, match="does not answer"):
        runner.sample()
    config.fault_tolerance(restart_failed_sub_environments=True, num_consecutive_env_runner_failures_tolerance=3)
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(ConsecutiveFailuresError, match="4 failures in a row.*the simulator does not answer"):
        runner.sample()
    runner.stop()


# ----------------------------------------------------------------------------------------------- names of environments


def stairs_of(steps):
    return lambda config: Stairs({"steps": steps, **config})


@pytest.fixture
def ray_tune(monkeypatch):
    """Ray Tune, which takes seconds to import; what a test registers with it as "stairs" or "later" is forgotten."""
    from ray import tune

    monkeypatch.setattr(registry, "_creators", {})
    yield tune
    for name in ("stairs", "later"):
        tune.registry._global_registry.unregister(tune.registry.ENV_CREATOR, name)


def test_the_last_registration_of_a_name_counts_whichever_function_made_it(ray_tune):
    made = []
    for register in (ray_tune.registry.register_env, register_env, ray_tune.register_env, registry.register_env):
        register("stairs", stairs_of(len(made) + 1))
        made.append(registry.resolve_env("stairs").make().steps)
    assert made == [1, 2, 3, 4]


def test_actors_of_runners_know_the_names_that_are_registered_with_ray(ray_session, ray_tune):
    with pickled_by_value(ray_session, sys.modules[__name__]):
        ray_tune.register_env("stairs", stairs_of(3))
        # As if the package had been imported only now.
        registry._creators.clear()
        actor = ray_session.remote(SingleAgentEnvRunner).remote(config=ppo("stairs"))
        ray_tune.register_env("later", stairs_of(5))
        (episode,) = ray_session.get(actor.sample.remote(num_episodes=1))
        steps = actor.apply.remote(lambda runner: registry.resolve_env("later").make().steps)
        assert (episode.get_return(), ray_session.get(steps)) == (3, 5)
        # A task reaches an actor as it reaches the runner in this process.
        ray_session.get(actor.apply.remote(functools.partial(set_task, task=2)))
        (episode,) = ray_session.get(actor.sample.remote(num_episodes=1))
        assert episode.get_return() == 2
        ray_session.kill(actor)


# ------------------------------------------------------------------------------------------------------------- results


def test_metrics_of_learners_have_the_names_of_the_constants():
    result = check_train_results_new_api_stack(ppo(steps=3).build_algo().train())
    learned = result[LEARNER_RESULTS][DEFAULT_MODULE_ID]
    for key in (PPOLearner.TOTAL_LOSS_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY, ENTROPY_KEY, f"{DEFAULT_OPTIMIZER}_{LR_KEY}"):
        assert np.isfinite(learned[key]), key
    assert learned[f"{DEFAULT_OPTIMIZER}_{LR_KEY}"] == pytest.approx(PPOConfig().lr)


class Films(RLlibCallback):
    """Renders every step, and reports the film of the longest episode of a sample."""

    def __init__(self):
        self.best = None

    def on_episode_step(self, *, episode, env, env_index, **kwargs):
        episode.custom_data.setdefault("images", []).append(env.unwrapped.envs[env_index].render())

    def on_episode_end(self, *, episode, **kwargs):
        if self.best is None or len(episode.custom_data["images"]) > len(self.best):
            self.best = np.stack(episode.custom_data["images"])

    def on_sample_end(self, *, metrics_logger, **kwargs):
        metrics_logger.log_value("films", self.best, reduce="item_series")
        self.best = None


class Shown(Stairs):
    render_mode = "rgb_array"

    def render(self):
        return np.full((4, 4, 3), self.t, np.uint8)


def test_images_of_episodes_are_reported_as_they_are():
    algo = ppo(Shown, steps=3).callbacks(Films).build_algo()
    for _ in range(2):
        # One for each sample of the iteration, and none of the iteration before.
        (film,) = algo.train()[ENV_RUNNER_RESULTS]["films"]
        assert film.shape == (3, 4, 4, 3) and film[:, 0, 0, 0].tolist() == [1, 2, 3]
    algo.stop()


def evaluated_on_longer_stairs(algorithm, eval_env_runner_group):
    """Two rounds of samples, with an environment that is told what to do, whose metrics are put together by hand."""

    def rounds(env_runner):
        for env in env_runner.env.unwrapped.envs:
            env.unwrapped.steps = 6
        return [(env_runner.sample(num_episodes=2), env_runner.get_metrics()) for _ in range(2)]

    (sampled,) = eval_env_runner_group.foreach_env_runner(rounds)
    where = (EVALUATION_RESULTS, ENV_RUNNER_RESULTS)
    algorithm.metrics.aggregate([metrics for _, metrics in sampled], key=where)
    episodes = [episode for episodes, _ in sampled for episode in episodes]
    steps = sum(episode.env_steps() for episode in episodes)
    return algorithm.metrics.peek(where), steps, sum(episode.agent_steps() for episode in episodes)


def test_an_evaluation_of_ones_own_changes_the_environments_and_returns_its_metrics():
    algo = (
        ppo(steps=3)
        .evaluation(
            evaluation_interval=2,
            custom_evaluation_function=evaluated_on_longer_stairs,
            evaluation_config=PPOConfig.overrides(explore=False),
        )
        .build_algo()
    )
    results = [algo.train() for _ in range(3)]
    assert EVALUATION_RESULTS not in results[0]
    for result in results[1:]:
        own = result[EVALUATION_RESULTS][ENV_RUNNER_RESULTS]
        assert (own[EPISODE_RETURN_MEAN], own["num_episodes"]) == (6, 4)
        assert result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] == 3
    algo.stop()


class ForgetfulEma(EmaStats):
    """Starts anew after every report."""

    stats_cls_identifier = "ema"

    def reduce(self, compile=True):
        result = super().reduce(compile=compile)
        self._value = np.nan
        return result


@pytest.mark.parametrize(("lookup", "reported"), [({}, [1, 1.5, 2.25]), ({"ema": ForgetfulEma}, [1, 2, 3])])
def test_a_stats_class_of_ones_own_takes_the_place_of_a_builtin_one(lookup, reported):
    numbers = iter((1.0, 2.0, 3.0))

    def log(*, metrics_logger, **kwargs):
        metrics_logger.log_value("number", next(numbers), reduce="ema", ema_coeff=0.5)

    config = ppo(steps=3).callbacks(on_sample_end=log)
    algo = config.reporting(custom_stats_cls_lookup={**DEFAULT_STATS_CLS_LOOKUP, **lookup}).build_algo()
    assert [algo.train()[ENV_RUNNER_RESULTS]["number"] for _ in range(3)] == reported
    algo.stop()


def test_modules_of_an_algorithms_package_are_its_attributes():
    code = (
        "import jaxrl_stack.algorithms as algorithms, jaxrl_stack.algorithms.ppo as ppo\n"
        "from jaxrl_stack.algorithms import sac\n"
        "print([x.__name__ for x in (ppo.ppo.PPOConfig, algorithms.dqn.dqn.DQNConfig, sac.sac.SACConfig, ppo.PPO)])\n"
        "assert 'dqn' in dir(algorithms) and 'sac_learner' in dir(sac)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['PPOConfig', 'DQNConfig', 'SACConfig', 'PPO']"


class Hoarder(Stairs):
    """Keeps a megabyte of every step."""

    kept: list[bytes] = []

    def step(self, action):
        self.kept.append(bytes(2**20))
        return super().step(action)


def test_a_leak_shows_in_the_metrics_of_the_memory_tracking_callbacks(monkeypatch):
    monkeypatch.setattr(Hoarder, "kept", [])
    config = ppo(Hoarder, steps=4).callbacks(MemoryTrackingCallbacks)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=RandomRLModule))  # tracing memory makes Python slow
    runner = SingleAgentEnvRunner(config=config)
    try:
        held = []
        for _ in range(2):
            runner.sample(num_timesteps=8)
            metrics = runner.get_metrics()["tracemalloc"]
            (line,) = [lines for where, lines in metrics.items() if where.startswith(__file__)]
            held.append((line["count"].peek(), line["size"].peek() // 1024))
        assert [megabytes for _, megabytes in held] == [8, 16] and held[1][0] > held[0][0]
        assert metrics["worker"]["rss"].peek() > 16 * 2**20
    finally:
        runner.stop()
        tracemalloc.stop()


class Peeks(RLlibCallback):
    def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):
        result["peeked"] = [metrics_logger.peek(key) for key in PEEKED]
        result["default"] = metrics_logger.peek(("env_runners", "is_not_there"), default=-1)


PEEKED = (
    (ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN),
    (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME),
    (LEARNER_RESULTS, DEFAULT_MODULE_ID, "vf_loss"),
)


@pytest.mark.parametrize("env", [CounterEnv, GymnasiumCounterEnv], ids=["device", "host"])
def test_what_an_algorithm_reports_is_found_by_peek(env, tmp_path):
    config = (
        PPOConfig()
        .environment(env, env_config={"terminate_at": 3})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=12, minibatch_size=12, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .callbacks(Peeks)
    )
    algo = config.build_algo()
    with pytest.raises(KeyError, match="No metric"):
        algo.metrics.peek(PEEKED[0])
    for iteration in (1, 2):
        result = algo.train()
        mean, steps, loss = result["peeked"]
        assert steps == 12 * iteration and result["default"] == -1
        assert mean == result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] == 6.0
        assert loss == result[LEARNER_RESULTS][DEFAULT_MODULE_ID]["vf_loss"] > 0.0
    # What is logged is looked up first, and stands beside what is reported.
    algo.metrics.log_value((ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN), 70.0, window=1)
    assert algo.metrics.peek(PEEKED[0]) == algo.metrics.peek(ENV_RUNNER_RESULTS)[EPISODE_RETURN_MEAN] == 70.0
    assert algo.metrics.peek()[ENV_RUNNER_RESULTS][NUM_ENV_STEPS_SAMPLED_LIFETIME] == 24
    assert algo.metrics.peek((ENV_RUNNER_RESULTS,))["num_episodes_lifetime"] == 8

    algo.save_to_path(tmp_path)
    restored = config.build_algo()
    restored.restore_from_path(tmp_path)
    assert restored.metrics.peek(PEEKED[1]) == 24
    algo.stop()
    restored.stop()
