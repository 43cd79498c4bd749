"""How often registered creators are called, and who gets what they make."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack import BCConfig, PPOConfig
from jaxrl_stack.env import registry
from jaxrl_stack.env.created_envs import creators_called_once, is_same_config
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.jax_env import GymnaxEnv
from jaxrl_stack.env.registry import register_env, resolve_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner


class Counted(gym.Env):
    observation_space, action_space = Box(0, 1, (3,)), Discrete(2)

    def __init__(self, config):
        self.config, self.is_open = config, True

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}

    def close(self):
        self.is_open = False


@pytest.fixture
def made(monkeypatch):
    """What the creator registered as "counted" has made."""
    monkeypatch.setattr(registry, "_creators", {})
    made: list[Counted] = []

    def creator(config):
        made.append(Counted(config))
        return made[-1]

    register_env("counted", creator)
    return made


def _config(env="counted", config_class=PPOConfig, **env_config):
    config = config_class().environment(env, env_config=env_config).env_runners(num_env_runners=0)
    return config.rl_module(model_config={"fcnet_hiddens": [2]})


def test_a_build_calls_a_creator_once(made):
    algo = _config(level=1).build_algo()
    assert [env.config for env in made] == [{"level": 1}]
    assert algo.env_runner.env.envs[0] is made[0]
    assert (made[0].config.worker_index, made[0].config.num_workers) == (0, 0)
    algo.stop()
    assert not made[0].is_open


def test_evaluation_has_an_environment_of_its_own(made):
    config = _config(level=1).evaluation(evaluation_interval=1)
    algo = config.copy().build_algo()
    assert [env.config["level"] for env in made] == [1, 1]
    assert algo.env_runner.env.envs[0] is not algo.eval_env_runner.env.envs[0]
    algo.stop()
    made.clear()
    algo = config.evaluation(evaluation_config={"env_config": {"level": 1.0}}).build_algo()
    assert sorted(str(env.config["level"]) for env in made) == ["1", "1.0"]
    assert str(algo.env_runner.env.envs[0].config["level"]) == "1"
    algo.stop()
    assert not any(env.is_open for env in made)


def test_an_environment_that_only_shows_its_spaces_is_used_for_evaluation(made):
    config = _config(config_class=BCConfig).offline_data(input_=[]).evaluation(evaluation_interval=1)
    spaces = config.copy()
    with creators_called_once():
        env = spaces._resolve_env().make()
        spaces._resolve_env().release(env)
        runner = SingleAgentEnvRunner(config=spaces)
        assert made == [env]
        assert runner.env.envs[0] is env
        runner.stop()


def test_what_nobody_uses_is_closed(made):
    _config(level=1).validate()
    assert [env.is_open for env in made] == [False]
    _config(level=1).validate()  # known by now
    assert len(made) == 1
    with creators_called_once():
        resolve_env("counted", {"level": 2})
        assert made[-1].is_open
    assert not made[-1].is_open
    runner = SingleAgentEnvRunner(config=_config(level=3))
    runner.sample(num_timesteps=2)
    assert len(made) == 3
    runner.stop()


def test_a_creator_gets_a_config_that_it_may_change(made):
    def pops(config):
        return Counted({"level": config.pop("level")})

    register_env("pops", pops)
    algo = _config("pops", level=1).build_algo()
    assert algo.env_runner.env.envs[0].config == {"level": 1}
    algo.stop()


def test_jax_environments_and_vectors_are_made_once(made):
    calls = []

    def jax_env(config):
        calls.append(config)
        return GymnaxEnv("gymnax/CartPole-v1")

    def vector(config):
        calls.append(config)
        return gym.vector.SyncVectorEnv([lambda: Counted({})] * config["num_envs"])

    register_env("jax", jax_env)
    register_env("vector", vector)
    _config("jax").build_algo().stop()
    assert len(calls) == 1
    config = _config("vector").env_runners(gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=2)
    config.build_algo().stop()
    assert calls[1:] == [{"num_envs": 2}]


def test_configs_of_other_types_are_others():
    assert is_same_config({"a": [1, np.arange(2)]}, {"a": [1, np.arange(2)]})
    assert not is_same_config({"a": 1}, {"a": 1.0})
    assert not is_same_config({"a": np.arange(2)}, {"a": np.arange(3)})
    assert is_same_config(EnvContext({"a": None}, worker_index=1), {"a": None})
