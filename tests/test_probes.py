"""PPO solves each probe environment: every link of the chain from reward to policy, one at a time."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from envs.probes import PROBES, ActionRewardProbe, TruncationBootstrapProbe
from jaxrl_stack.algorithms.ppo import PPOConfig

GAMMA = 0.9
BATCH = 256


@pytest.mark.parametrize("probe", PROBES)
def test_ppo_learns_the_known_values(probe):
    # The value behind a truncation is the network's own: the values approach their fixed point step by step.
    num_iterations = 45 if probe is TruncationBootstrapProbe else 30
    total = num_iterations * BATCH
    config = (
        PPOConfig()
        .environment(probe)
        .env_runners(num_envs_per_env_runner=16)
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
    algo = config.build_algo()
    for _ in range(num_iterations):
        algo.train()
    module = algo.get_module()
    observations, expected = probe().expected_values(GAMMA)
    values = np.asarray(jax.jit(lambda obs: module.compute_values({"obs": obs}))(observations))
    # The policy of a finite run still takes the wrong action now and then; everything else is exact.
    np.testing.assert_allclose(values, expected, rtol=0.0, atol=0.02 if probe is ActionRewardProbe else 1e-3)
    optimal = probe().optimal_actions()
    assert (optimal is not None) == (probe is ActionRewardProbe)
    if optimal is not None:
        logits = module.forward_inference({"obs": observations})["action_dist_inputs"]
        probabilities = np.asarray(jax.nn.softmax(logits))
        assert (probabilities[np.arange(len(optimal)), optimal] > 0.98).all()
        assert [algo.compute_single_action(obs, explore=False) for obs in observations] == optimal.tolist()
    algo.stop()
