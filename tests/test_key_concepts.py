"""RLlib's key-concepts examples with nothing but the imports changed, and those of docs/host_environments.md."""

from __future__ import annotations

import math
import pathlib
import re

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.columns import Columns

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "host_environments.md"


def test_actors_of_runners_and_a_learner_by_hand_as_the_page_shows_it(ray_session):
    frames, example = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    exec(compile(frames, str(PAGE), "exec"), {})
    assert "num_env_runners=2" in example
    # A second actor shows nothing new, and takes seconds to start.
    names = {"__name__": "__main__"}
    exec(compile(example.replace("num_env_runners=2", "num_env_runners=1"), str(PAGE), "exec"), names)
    assert [len(episodes) for episodes in names["sampled"]] == [3]
    assert all(episode.is_done and episode.get_return() == len(episode) for episode in names["episodes"])
    learned = names["results"]["default_policy"]
    assert math.isfinite(learned["policy_loss"])
    assert learned["num_module_steps_trained"] == sum(map(len, names["episodes"]))


class LogAcrobotAngle(RLlibCallback):
    """Mean angle of the first link over an episode, read from the environment itself."""

    def on_episode_created(self, *, episode, **kwargs):
        episode.custom_data["theta1"] = []

    def on_episode_step(self, *, episode, env, env_index, **kwargs):
        # Also at the last step: the environment is reset after the callbacks.
        theta1, *_ = env.envs[env_index].unwrapped.state
        cosine, sine = episode.get_observations(-1)[:2]
        assert cosine == pytest.approx(math.cos(theta1), abs=1e-5)
        assert sine == pytest.approx(math.sin(theta1), abs=1e-5)
        episode.custom_data["theta1"].append(math.degrees(theta1))

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("theta1_mean", np.mean(episode.custom_data["theta1"]), reduce="mean", window=50)


def test_a_callback_that_reads_the_environments_and_keeps_data_in_the_episode():
    gym.register("ShortAcrobot-v0", "gymnasium.envs.classic_control:AcrobotEnv", max_episode_steps=20)
    try:
        algo = (
            PPOConfig()
            .environment("ShortAcrobot-v0")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
            .training(train_batch_size_per_learner=60, minibatch_size=None, num_epochs=1)
            .rl_module(model_config={"fcnet_hiddens": [4]})
            .callbacks(callbacks_class=LogAcrobotAngle)
            .build_algo()
        )
        # The episodes go on in the second iteration, and with them what is kept in them.
        runners = [algo.train()["env_runners"] for _ in range(2)]
        assert [result["num_episodes"] for result in runners] == [2, 4]
        assert all(-180 <= result["theta1_mean"] <= 180 for result in runners)
        algo.stop()
    finally:
        del gym.registry["ShortAcrobot-v0"]


def test_a_trial_with_an_env_runner_actor_and_acting_with_its_checkpoint(ray_session, tmp_path):
    from ray import tune

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1)
        .training(train_batch_size_per_learner=200, minibatch_size=200, num_epochs=1, lr=tune.grid_search([1e-3]))
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )
    results = tune.Tuner(
        config.algo_class,
        param_space=config,
        run_config=tune.RunConfig(
            stop={"num_env_steps_sampled_lifetime": 400},
            storage_path=str(tmp_path),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    best = results.get_best_result(metric="env_runners/episode_return_mean", mode="max")
    assert best.metrics["training_iteration"] == 2 and best.metrics["fault_tolerance"]["num_healthy_workers"] == 1

    settings = config.copy(copy_frozen=False).env_runners(num_env_runners=0).training(lr=best.config["lr"])
    algo = Algorithm.from_checkpoint(best.checkpoint.path, config=settings)
    assert algo.iteration == 2
    module = algo.get_module()
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        logits = module.forward_inference({Columns.OBS: observation[None]})[Columns.ACTION_DIST_INPUTS]
        action = int(np.argmax(logits[0]))
        assert action == algo.compute_single_action(observation, explore=False)
        observation, *_ = env.step(action)
    env.close()
    algo.stop()
