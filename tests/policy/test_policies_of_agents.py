"""Acting with the policies of several agents: of an algorithm, and of one module alone out of a checkpoint."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from jaxrl_stack.policy import load_exported
from jaxrl_stack.policy.policy import Policy

OBS = {"player1": np.eye(9, dtype=np.float32)[0], "player2": -np.eye(9, dtype=np.float32)[4]}
POLICY_OF = {"player1": "p0", "player2": "p1"}


def by_player(agent_id, episode, **kwargs):
    return POLICY_OF[agent_id]


def config_of(env, **model):
    return (
        PPOConfig()
        .environment(env)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_player)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, rollout_fragment_length=8)
        .env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [4], **model})
        .debugging(seed=2)
    )


@pytest.fixture(scope="module", params=[multi_agent.TicTacToe, TicTacToe], ids=["device", "host"])
def algo(request):
    algo = config_of(request.param).build_algo()
    algo.train()
    yield algo
    algo.stop()


def test_agents_act_with_their_own_policies(algo):
    actions = algo.compute_actions(OBS, explore=False)
    expected = {a: algo.compute_single_action(x, policy_id=POLICY_OF[a], explore=False) for a, x in OBS.items()}
    assert actions == expected
    outputs = algo.compute_actions(OBS, explore=False, full_fetch=True)[2]
    for agent, mid in POLICY_OF.items():
        *_, own = algo.get_policy(mid).compute_single_action(OBS[agent])
        np.testing.assert_allclose(outputs[agent]["action_dist_inputs"], own["action_dist_inputs"], atol=1e-6)
    same = {agent: OBS["player1"] for agent in OBS}
    shown = algo.compute_actions(same, explore=False, full_fetch=True, policy_id="p1")[2]
    np.testing.assert_array_equal(*(own["action_dist_inputs"] for own in shown.values()))


def test_agents_that_are_not_known_are_refused(algo):
    with pytest.raises(
        ValueError, match=r"observation of the unknown agent 'player3'; the agents are \['player1', 'player2'\]"
    ):
        algo.compute_actions({"player3": OBS["player1"]})
    assert algo.compute_actions({"player3": OBS["player1"]}, policy_id="p0", explore=False)
    with pytest.raises(TypeError, match="compute_actions"):
        algo.compute_actions(OBS, deterministic=True)


def test_one_policy_is_loaded_alone(algo, tmp_path):
    path = algo.save_to_path(tmp_path / "checkpoint")
    logits = {}
    for agent, mid in POLICY_OF.items():
        loaded, served = Policy.from_checkpoint(path, mid), algo.get_policy(mid)
        for one in (loaded, served):
            *_, outputs = one.compute_single_action(OBS[agent])
            logits.setdefault(mid, []).append(outputs["action_dist_inputs"])
        np.testing.assert_array_equal(*logits[mid])
        module: Any = RLModule.from_checkpoint(f"{path}/learner_group/learner/rl_module/{mid}")
        jax.tree.map(np.testing.assert_array_equal, module.get_state(), algo.get_weights()[mid])
    # The statistics of the filters are those of each policy's own agent.
    states = [jax.tree.leaves(Policy.from_checkpoint(path, mid).get_state("env_to_module_connector")) for mid in logits]
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*states, strict=True))
    with pytest.raises(ValueError, match=r"has no module 'default_policy': pass module_id=, one of \['p0', 'p1'\]"):
        Policy.from_checkpoint(path)


def test_each_policy_is_exported_alone(algo, tmp_path):
    for agent, mid in POLICY_OF.items():
        policy = algo.get_policy(mid)
        exported = load_exported(policy.export(tmp_path / mid))
        *_, outputs = exported.compute_single_action(OBS[agent])
        *_, expected = policy.compute_single_action(OBS[agent])
        np.testing.assert_allclose(outputs["action_dist_inputs"], expected["action_dist_inputs"], atol=1e-6)


def test_a_checkpoint_of_several_agents_goes_on(algo, tmp_path):
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = Algorithm.from_checkpoint(path, config=config_of(algo.config.env))
    assert restored.compute_actions(OBS, explore=False) == algo.compute_actions(OBS, explore=False)
    states = [one.env_runner.get_state("env_to_module_connector") for one in (algo, restored)]
    jax.tree.map(np.testing.assert_array_equal, *states)
    restored.stop()


def test_each_agent_has_a_recurrent_state_of_its_own():
    algo = config_of(TicTacToe, use_lstm=True, lstm_cell_size=4, max_seq_len=4).build_algo()
    states: Any = {}
    alone = dict.fromkeys(OBS)
    for _ in range(3):
        actions, states, outputs = algo.compute_actions(OBS, states, explore=False)
        assert set(actions) == set(states) == set(OBS)
        for agent, obs in OBS.items():
            _, alone[agent], own = algo.compute_single_action(
                obs, alone[agent], policy_id=POLICY_OF[agent], explore=False, full_fetch=True
            )
            np.testing.assert_array_equal(outputs[agent]["action_dist_inputs"], own["action_dist_inputs"])
    later = algo.compute_actions({"player2": OBS["player2"]}, states, explore=False, full_fetch=True)[2]
    anew = algo.compute_actions({"player2": OBS["player2"]}, explore=False, full_fetch=True)[2]
    assert (later["player2"]["action_dist_inputs"] != anew["player2"]["action_dist_inputs"]).any()
    algo.stop()
