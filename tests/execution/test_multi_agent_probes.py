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
    OneIsCutOffToldApartProbe,
    OwnActionProbe,
    OwnRewardProbe,
    PaidLaterByNumberProbe,
    PaidLaterProbe,
    TurnsProbe,
    TurnsToldApartProbe,
)
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig

GAMMA = 0.5
BATCH = 256
NUM_ITERATIONS = 20


def on_probe(config, probe, *, on_device, is_shared):
    return (
        config.environment(probe if on_device else HostProbe, env_config={} if on_device else {"probe": probe})
        .env_runners(num_env_runners=0)
        .multi_agent(
            policies={"both"} if is_shared else {"first", "second"},
            policy_mapping_fn=lambda agent_id, episode, **kwargs: "both" if is_shared else agent_id,
        )
        .debugging(seed=0)
    )


def config_of(probe, *, on_device, is_shared=False):
    total = NUM_ITERATIONS * BATCH
    return (
        on_probe(PPOConfig(), probe, on_device=on_device, is_shared=is_shared)
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
    # Nothing is learned: whatever the agents do is paid the same.
    config = config_of(ArrivalProbe, on_device=on_device, is_shared=is_shared).multi_agent(policies_to_train=[])
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


# ------------------------------------------------------------------------------------------------------------- replay

ROWS, ROUND, NUM_ROUNDS, UPDATES_PER_ROUND = 64, 16, 20, 60
"""Rows of an update, env steps of a round of sampling, rounds, and updates of each round in the second half."""
NUM_UPDATES = (NUM_ROUNDS // 2 + 1) * UPDATES_PER_ROUND


def replay_config(config, probe, *, on_device, is_shared, **training):
    total = NUM_ROUNDS * ROUND
    decays = [[0, 0.02], [total // 2, 0.02], [3 * total // 4, 0.005], [total, 0.0]]
    if isinstance(config, DQNConfig):
        own = {"lr": decays, "epsilon": 1.0}
    else:
        # The entropy adds at most 0.007 to a value.
        own = {"actor_lr": decays, "critic_lr": decays, "initial_alpha": 0.02, "alpha_lr": 1e-8}
    # The first policies try all actions.
    own |= {"num_steps_sampled_before_learning_starts": total // 2}
    own |= {"training_intensity": ROWS * UPDATES_PER_ROUND / ROUND}
    return (
        on_probe(config, probe, on_device=on_device, is_shared=is_shared)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=4)
        .training(
            train_batch_size_per_learner=ROWS,
            gamma=GAMMA,
            target_network_update_freq=0,
            tau=0.1,
            replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": 2000},
            **own | training,
        )
        # The learning rate falls to 0 within one iteration.
        .reporting(min_sample_timesteps_per_iteration=total, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [64], "head_fcnet_hiddens": [], "fusionnet_hiddens": [64]})
    )


def q_values_of(module, obs, **batch):
    found = jax.jit(lambda batch: module.compute_q_values(batch))({"obs": obs, **batch})
    return np.asarray(found["qf_preds"] if isinstance(found, dict) else found)


REPLAY_CASES = [
    (config_class, probe, is_shared, on_device)
    for on_device in (False, True)
    for config_class in (DQNConfig, SACConfig)
    for probe, is_shared in (
        (TurnsProbe, False),
        (TurnsToldApartProbe, True),
        (OneIsCutOffProbe, False),
        (OneIsCutOffToldApartProbe, True),
        (PaidLaterProbe, False),
        (OwnActionProbe, True),
        (ArrivalProbe, False),
    )
]


@pytest.mark.parametrize(("config_class", "probe", "is_shared", "on_device"), REPLAY_CASES)
def test_replay_learns_the_known_values(config_class, probe, is_shared, on_device):
    algo = replay_config(config_class(), probe, on_device=on_device, is_shared=is_shared).build_algo()
    algo.train()
    assert algo.driver.num_updates == NUM_UPDATES
    optimal = probe().optimal_actions()
    for agent, expected in probe().expected_values(GAMMA).items():
        mid = "both" if is_shared else agent
        obs = np.array(list(expected), np.float32)[:, None]
        q_values = q_values_of(algo.get_module(mid), obs)
        best = [algo.compute_single_action(own, policy_id=mid, explore=False) for own in obs]
        exact = [q_values[np.arange(len(obs)), best]]
        if optimal is None and config_class is DQNConfig:
            # It acts at random and knows all actions.
            exact += list(q_values.T)
        for found in exact:
            np.testing.assert_allclose(found, list(expected.values()), rtol=0.0, atol=0.03, err_msg=agent)
        if optimal is not None:
            assert dict(zip(expected, best, strict=True)) == optimal[agent]
    algo.stop()


@pytest.mark.parametrize(
    ("config_class", "more"), [(SACConfig, {}), (TQCConfig, {"n_quantiles": 5, "top_quantiles_to_drop_per_net": 1})]
)
def test_replay_learns_the_best_numbers_of_agents_that_wait(config_class, more):
    probe = PaidLaterByNumberProbe
    # Actions get better while they are tried.
    settings = {**more, "num_steps_sampled_before_learning_starts": 0, "training_intensity": ROWS * 20 / ROUND}
    settings |= {"actor_lr": [[0, 0.02], [NUM_ROUNDS * ROUND, 0.0]], "initial_alpha": 0.05}
    algo = replay_config(config_class(), probe, on_device=False, is_shared=False, **settings).build_algo()
    algo.train()
    obs = np.zeros((1, 1), np.float32)
    for agent, best in probe.best_numbers.items():
        action = algo.compute_single_action(obs[0], policy_id=agent, explore=False)
        np.testing.assert_allclose(action, [best], rtol=0.0, atol=0.15)
        # The module acts in [-1, 1]; rewards go down to -9.
        q_values = q_values_of(algo.get_module(agent), obs, actions=(action[None] - 1.0) / 2.0)
        np.testing.assert_allclose(q_values, 0.0, atol=0.25)
    algo.stop()
