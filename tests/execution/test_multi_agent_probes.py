"""Two agents learn what is known of the probe environments: whose rewards, ends, turns and arrivals are whose."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from envs.multi_agent_probes import (
    PROBES,
    ArrivalProbe,
    HostProbe,
    OneIsCutOffProbe,
    OwnActionProbe,
    OwnRewardProbe,
    PaidLaterProbe,
)
from jaxrl_stack.algorithms.ppo import PPOConfig

GAMMA = 0.5
BATCH = 256
NUM_ITERATIONS = 20


def config_of(probe, *, on_device, is_shared=False):
    total = NUM_ITERATIONS * BATCH
    return (
        PPOConfig()
        .environment(probe if on_device else HostProbe, env_config={} if on_device else {"probe": probe})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .multi_agent(
            policies={"both"} if is_shared else {"first", "second"},
            policy_mapping_fn=lambda agent_id, episode, **kwargs: "both" if is_shared else agent_id,
        )
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=64,
            num_epochs=4,
            lr=[[0, 0.02], [total // 2, 0.005], [total, 0.0]],
            gamma=GAMMA,
            lambda_=0.95,
            vf_clip_param=1000.0,
        )
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .debugging(seed=0)
    )


def assert_solved(probe, *, on_device, is_shared=False):
    algo = config_of(probe, on_device=on_device, is_shared=is_shared).build_algo()
    for _ in range(NUM_ITERATIONS):
        algo.train()
    optimal = probe().optimal_actions()
    for agent, expected in probe().expected_values(GAMMA).items():
        mid = "both" if is_shared else agent
        module: Any = algo.get_module(mid)
        obs = np.array(list(expected), np.float32)[:, None]
        values = np.asarray(jax.jit(lambda obs, module=module: module.compute_values({"obs": obs}))(obs))
        # The policy of a finite run still takes the wrong action now and then; everything else is exact.
        atol = 1e-3 if optimal is None else 0.02
        np.testing.assert_allclose(values, list(expected.values()), rtol=0.0, atol=atol, err_msg=agent)
        for own, action in {} if optimal is None else optimal[agent].items():
            row = np.array([own], np.float32)
            assert algo.compute_single_action(row, policy_id=mid, explore=False) == action
            logits = module.forward_inference({"obs": row[None]})["action_dist_inputs"]
            assert jax.nn.softmax(logits)[0, action] > 0.98
    algo.stop()


# Of the two simplest, the other place learns them with one policy of both agents.
PLACES = {OwnRewardProbe: [True], OwnActionProbe: [False], OneIsCutOffProbe: [True], PaidLaterProbe: [False]}
CASES = [(probe, on_device) for probe in PROBES for on_device in PLACES.get(probe, [True, False])]


@pytest.mark.parametrize(("probe", "on_device"), CASES)
def test_two_policies_learn_the_known_values(probe, on_device):
    assert_solved(probe, on_device=on_device)


@pytest.mark.parametrize(("probe", "on_device"), [(OwnRewardProbe, False), (OwnActionProbe, True)])
def test_one_policy_learns_the_known_values_of_both_agents(probe, on_device):
    assert_solved(probe, on_device=on_device, is_shared=True)


@pytest.mark.parametrize(("on_device", "is_shared"), [(True, False), (False, True)], ids=["device-own", "host-shared"])
def test_mean_returns_are_over_the_episodes_that_an_agent_took_part_in(on_device, is_shared):
    config = config_of(ArrivalProbe, on_device=on_device, is_shared=is_shared)
    algo = config.evaluation(evaluation_interval=1, evaluation_duration=40).build_algo()
    result = algo.train()
    for found in (result["env_runners"], result["evaluation"]["env_runners"]):
        # The second agent gets 2 in each episode that it comes in, three of four.
        assert found["agent_episode_returns_mean"] == {"first": 4.0, "second": 2.0}
        mean = found["episode_return_mean"]
        assert 4.5 < mean < 6.0
        modules = {"both": pytest.approx(mean)} if is_shared else {"first": 4.0, "second": 2.0}
        assert found["module_episode_returns_mean"] == modules
    algo.stop()
