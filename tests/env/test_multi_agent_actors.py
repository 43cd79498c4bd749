"""Runners and learners of several agents as Ray actors, and what happens when they, or their environments, fail."""

from __future__ import annotations

import os
import signal
import sys

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.env_runner import NUM_ENV_STEP_FAILURES_LIFETIME
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from tests.pickled_by_value import pickled_by_value

BATCH = 40


class Turns(MultiAgentEnv):
    """Two agents act in turn for ten steps; it raises, or kills its process, after so many steps of a runner."""

    possible_agents = ("a", "b")

    def __init__(self, config):
        super().__init__()
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(0.0, 10.0, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))
        self.left = config.get("fails_after", -1)
        if config.worker_index != config.get("worker_index", 0) or config.vector_index != 0 or config.recreated_worker:
            self.left = -1
        self.kills = config.get("kills", False)

    def reset(self, *, seed=None, options=None):
        MultiAgentEnv.reset(self, seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action_dict):
        self.t, self.left = self.t + 1, self.left - 1
        if self.left == 0:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("failed on purpose")
        over = self.t == 10
        return self._seen(), dict.fromkeys(action_dict, 1.0), {"__all__": over}, {"__all__": False}, {}

    def _seen(self):
        return {self.agents[self.t % 2]: np.array([self.t], np.float32)}


def config(num_env_runners=2, env_config=None):
    return (
        PPOConfig()
        .environment(Turns, env_config=env_config or {})
        .multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id)
        .env_runners(
            num_env_runners=num_env_runners,
            num_cpus_per_env_runner=0.25,
            num_envs_per_env_runner=2,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_cpus_per_learner=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .training(train_batch_size_per_learner=BATCH, minibatch_size=10, num_epochs=2)
        .debugging(seed=3)
    )


@pytest.fixture
def by_value(ray_session):
    """This module's classes travel to actors, which cannot import it."""
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


def weights_of(runner):
    return runner.get_state("rl_module")["rl_module"]["params"]


@pytest.mark.usefixtures("by_value")
def test_an_env_runner_as_an_actor_by_hand(ray_session):
    runner = ray_session.remote(MultiAgentEnvRunner).remote(config=config())
    episodes = ray_session.get(runner.sample.remote(num_episodes=2))
    assert [(len(episode), episode.agent_steps(), episode.get_return()) for episode in episodes] == [(10, 10, 10.0)] * 2
    assert {agent: episodes[0].module_for(agent) for agent in episodes[0].agent_ids} == {"a": "a", "b": "b"}
    metrics = ray_session.get(runner.get_metrics.remote())
    assert {mid: own.peek() for mid, own in metrics["module_episode_returns_mean"].items()} == {"a": 5.0, "b": 5.0}
    ray_session.kill(runner)


@pytest.mark.usefixtures("by_value")
def test_two_actors_sample_and_one_that_dies_comes_back():
    algo = config(env_config={"kills": True, "fails_after": 25, "worker_index": 2}).build_algo()
    group = algo.env_runner_group
    try:
        for iteration in range(1, 5):
            result = algo.train()
            steps = result["env_runners"]["num_agent_steps_sampled"]
            assert result["num_env_steps_sampled_lifetime"] == BATCH * iteration and steps.keys() == {"a", "b"}
            assert all(np.isfinite(result["learners"][mid]["total_loss"]) for mid in ("a", "b"))
            assert result["env_runners"]["agent_episode_returns_mean"] == {"a": 5.0, "b": 5.0}
        group.probe_unhealthy_env_runners(timeout_seconds=60.0)
        assert group.num_remote_worker_restarts() == 1 and group.num_healthy_remote_env_runners() == 2
        algo.train()
        first, *others = group.foreach_env_runner(weights_of)
        assert len(others) == 2
        for other in others:
            jax.tree.map(np.testing.assert_array_equal, first, other)
    finally:
        algo.stop()


@pytest.mark.usefixtures("fake_ray")
def test_a_policy_joins_and_leaves_where_runners_are_actors():
    algo = config(1).build_algo()
    try:
        algo.train()
        spec = RLModuleSpec.from_module(algo.get_module("b"))
        with_c = {"a": "a", "b": "c"}
        algo.add_module("c", spec, new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: with_c[agent_id])
        algo.set_weights({"c": algo.get_weights()["b"]})
        left = algo.get_weights()["b"]
        assert set(algo.train()["env_runners"]["num_module_steps_sampled"]) == {"a", "c"}
        weights = algo.get_weights()
        jax.tree.map(np.testing.assert_array_equal, weights["b"], left)
        assert any((weights["c"][name] != left[name]).any() for name in left)
        (acting,) = algo.env_runner_group.foreach_env_runner(weights_of, local_env_runner=False)
        assert any(ref.startswith("c") or "/c/" in ref for ref in acting)
        algo.remove_module("c", new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: agent_id)
        assert set(algo.train()["env_runners"]["num_module_steps_sampled"]) == {"a", "b"}
    finally:
        algo.stop()


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_an_environment_that_raises_is_made_anew(num_env_runners):
    asked = config(num_env_runners, {"fails_after": 25, "worker_index": num_env_runners})
    algo = asked.fault_tolerance(restart_failed_sub_environments=True).build_algo()
    try:
        results = [algo.train() for _ in range(2)]
        # Four steps of the episode that failed, and the failed one itself, count nowhere.
        runners = [result["env_runners"] for result in results]
        assert [own["num_env_steps_sampled"] for own in runners] == [BATCH, BATCH - 5]
        # One agent waits in the middle of an episode.
        assert [sum(own["num_agent_steps_sampled"].values()) for own in runners] == [BATCH, BATCH - 5 - 1]
        assert runners[1][NUM_ENV_STEP_FAILURES_LIFETIME] == 1 and runners[1]["episode_return_mean"] == 10.0
        assert all(np.isfinite(result["learners"][mid]["total_loss"]) for result in results for mid in ("a", "b"))
    finally:
        algo.stop()


@pytest.mark.usefixtures("fake_ray")
def test_a_learner_is_an_actor():
    check_learners(1, "truncate_episodes")


@pytest.mark.usefixtures("by_value")
def test_two_learners_are_actors():
    check_learners(2, "complete_episodes")


def check_learners(num_learners, batch_mode):
    """Check that actors learn both policies."""
    algo = config(0).env_runners(batch_mode=batch_mode).learners(num_learners=num_learners).build_algo()
    try:
        before = algo.get_weights()
        result = algo.train()
        after = algo.get_weights()
        assert result["num_env_steps_sampled_lifetime"] == BATCH * num_learners
        for mid in ("a", "b"):
            assert np.isfinite(result["learners"][mid]["total_loss"])
            pairs = zip(jax.tree.leaves(before[mid]), jax.tree.leaves(after[mid]), strict=True)
            assert any(not np.array_equal(one, other) for one, other in pairs)
    finally:
        algo.stop()
