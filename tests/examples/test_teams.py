"""Teams: one loss over several modules, an encoder that modules share, critics that see all agents."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.examples.algorithms.classes.vdn import VDNConfig
from jaxrl_stack.examples.algorithms.classes.vpg import VPGConfig
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import (
    ALL_AGENTS,
    OWN,
    AddObservationsOfAllAgents,
)
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent import TwoStepGame as HostTwoStepGame
from jaxrl_stack.examples.envs.multi_agent import TwoStepGame
from jaxrl_stack.examples.learners.classes.vdn_learner import VDNLearner
from jaxrl_stack.examples.learners.classes.vpg_learner_shared_optimizer import VPGLearnerSharedOptimizer
from jaxrl_stack.examples.rl_modules.classes.central_critic_rlm import CentralCriticRLModule
from jaxrl_stack.examples.rl_modules.classes.q_values_rlm import Q_VALUES
from jaxrl_stack.examples.rl_modules.classes.vpg_using_shared_encoder_rlm import (
    SHARED_ENCODER_ID,
    SharedEncoder,
    VPGMultiRLModuleWithSharedEncoder,
    VPGPolicyAfterSharedEncoder,
    VPGPolicyNoSharedEncoder,
)


def by_number(agent_id, episode, **kwargs):
    return f"p{agent_id}"


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("moves", "earned"),
    [((0, 1, 0, 0), 7.0), ((0, 0, 1, 1), 7.0), ((1, 0, 0, 0), 0.0), ((1, 0, 0, 1), 1.0), ((1, 1, 1, 1), 8.0)],
)
def test_the_two_step_game_pays_for_the_second_moves(moves, earned):
    env, step = TwoStepGame(), jax.jit(TwoStepGame().step_env)
    _, state = env.reset_env(jax.random.key(0), None)
    *_, rewards, ends, _, _ = step(jax.random.key(0), state, dict(enumerate(moves[:2])), None)
    assert not ends["__all__"] and sum(rewards.values()) == 0.0
    obs, _, rewards, ends, _, _ = step(jax.random.key(0), jnp.int32(moves[0] + 1), dict(enumerate(moves[2:])), None)
    assert ends["__all__"] and sum(rewards.values()) == earned
    np.testing.assert_array_equal(obs[0], np.eye(3)[moves[0] + 1])
    twin = HostTwoStepGame({"one_hot_state_encoding": True})
    twin.reset()
    assert not twin.step(dict(enumerate(moves[:2])))[2]["__all__"]
    seen, paid, over, _, _ = twin.step(dict(enumerate(moves[2:])))
    assert over["__all__"] and {agent: float(own) for agent, own in rewards.items()} == paid
    np.testing.assert_array_equal(obs[0], seen[0][:3])


class Aligned(VDNLearner):
    """Logs how far rows of the two modules lie apart: both agents observe the state."""

    def compute_losses(self, *, fwd_out, batch):
        obs = [batch[mid][Columns.OBS] for mid in ("p0", "p1")]
        self.metrics.log_value((ALL_MODULES, "distance"), jnp.abs(obs[0] - obs[1]).sum(), window=1)
        losses = super().compute_losses(fwd_out=fwd_out, batch=batch)
        values = [fwd_out[mid][Q_VALUES] for mid in ("p0", "p1")]
        chosen = sum(
            v[jnp.arange(len(v)), batch[mid][Columns.ACTIONS]] for mid, v in zip(("p0", "p1"), values, strict=True)
        )
        following = sum(self.module[mid].q_values(batch[mid][Columns.NEXT_OBS]).max(-1) for mid in ("p0", "p1"))
        first = batch["p0"]
        target = first[Columns.REWARDS] * 2 + 0.9 * jnp.where(first[Columns.TERMINATEDS], 0.0, following)
        error = sum(losses.values()) - jnp.mean((chosen - jax.lax.stop_gradient(target)) ** 2)
        self.metrics.log_value((ALL_MODULES, "error"), jnp.abs(error), window=1)
        return losses


def vdn_config():
    return (
        VDNConfig()
        .environment(TwoStepGame)
        .env_runners(num_envs_per_env_runner=32, rollout_fragment_length=2)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_number)
        .training(train_batch_size_per_learner=64, lr=5e-3, gamma=0.9)
        .reporting(min_sample_timesteps_per_iteration=6400)
        .evaluation(evaluation_config={"explore": False}, evaluation_duration=10)
    )


def test_a_team_learns_to_earn_eight_by_the_sum_of_its_values():
    check_jax_env(TwoStepGame())
    algo = vdn_config().learners(learner_class=Aligned).build_algo()
    results = [algo.train() for _ in range(5)]
    everything = [result["learners"]["__all_modules__"] for result in results]
    assert {own["distance"] for own in everything} == {0.0}
    assert max(own["error"] for own in everything) < 1e-4
    assert algo.evaluate()["env_runners"]["episode_return_mean"] == 8.0
    algo.stop()


def test_minibatches_would_tear_the_rows_of_a_team_apart():
    with pytest.raises(ValueError, match=r"minibatch_size=32, num_epochs=1\): VDN adds up the values"):
        vdn_config().training(minibatch_size=32).validate()


# ------------------------------------------------------------------------------------------------------------ encoders


def shared_encoder_config(module_class, **encoder):
    policy = RLModuleSpec(module_class=module_class, model_config={"embedding_dim": 4, "hidden_dim": 4})
    multi = VPGMultiRLModuleWithSharedEncoder if encoder else MultiRLModule
    specs = {**encoder, "p0": policy, "p1": policy}
    return (
        VPGConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=0)
        .training(num_episodes_per_train_batch=2, lr=1e-2)
        .learners(learner_class=VPGLearnerSharedOptimizer)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_number)
        .rl_module(rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=multi, rl_module_specs=specs))
    )


def test_policies_train_the_encoder_that_they_share_with_one_optimizer():
    env = gym.make("CartPole-v1")
    encoder = RLModuleSpec(
        module_class=SharedEncoder,
        model_config={"embedding_dim": 4},
        observation_space=env.observation_space,
        action_space=env.action_space,
    )
    algo = shared_encoder_config(VPGPolicyAfterSharedEncoder, **{SHARED_ENCODER_ID: encoder}).build_algo()
    modules = [algo.get_module(mid).encoder.kernel[...] for mid in ("p0", "p1")]
    np.testing.assert_array_equal(*modules)
    before = np.array(modules[0])
    algo.train()
    after = [np.array(algo.get_module(mid).encoder.kernel[...]) for mid in ("p0", "p1")]
    np.testing.assert_array_equal(*after)
    np.testing.assert_array_equal(after[0], algo.get_module(SHARED_ENCODER_ID).layer.kernel[...])
    # Adam's first step is the learning rate, whatever the gradient: two optimizers would have moved it twice.
    assert 0.0 < np.abs(after[0] - before).max() <= 1e-2 * 1.001
    algo.stop()


def test_policies_with_encoders_of_their_own_and_one_optimizer():
    config = shared_encoder_config(VPGPolicyNoSharedEncoder)
    spaces = (MultiAgentCartPole({"num_agents": 2}).get_observation_space(0), gym.spaces.Discrete(2))
    modules = config.get_multi_rl_module_spec(spaces={"p0": spaces, "p1": spaces}).build(seed=0)
    assert (modules["p0"].encoder.kernel[...] != modules["p1"].encoder.kernel[...]).any()
    with pytest.raises(
        ValueError, match="VPGMultiRLModuleWithSharedEncoder has no shared encoder, .*as 'shared_encoder'"
    ):
        VPGMultiRLModuleWithSharedEncoder(rl_module_specs={})


# ------------------------------------------------------------------------------------------------------------- critics


def test_a_policy_sees_its_agent_and_the_critic_all_of_them():
    connector = AddObservationsOfAllAgents()
    box = gym.spaces.Box(-1.0, 1.0, (2,))
    connector.input_observation_space = gym.spaces.Dict({"a": box, "b": box})
    changed = connector.preprocess({"b": np.array([3.0, 4.0])}, None)
    np.testing.assert_array_equal(changed["b"][OWN], np.array([3.0, 4.0, 0.0, 1.0], np.float32))
    np.testing.assert_array_equal(changed["b"][ALL_AGENTS], np.array([0.0, 0.0, 3.0, 4.0], np.float32))
    assert set(changed) == {"b"}
    spaces = connector.recompute_output_observation_space(connector.input_observation_space, None)
    assert spaces["b"].contains(changed["b"]) and spaces["a"] == spaces["b"]

    def module_of(key):
        spec = RLModuleSpec(CentralCriticRLModule, spaces["b"], gym.spaces.Discrete(3), model_config={"hidden_dim": 4})
        return spec.build(seed=key)

    module = module_of(0)
    one = {Columns.OBS: jax.tree.map(lambda x: x[None], changed["b"])}
    other = {Columns.OBS: {**one[Columns.OBS], ALL_AGENTS: one[Columns.OBS][ALL_AGENTS] + 1.0}}
    logits = [module.forward_train(batch)[Columns.ACTION_DIST_INPUTS] for batch in (one, other)]
    np.testing.assert_array_equal(*logits)
    values = [module.compute_values(batch) for batch in (one, other)]
    assert values[0].shape == (1,) and values[0] != values[1]


def test_one_policy_with_a_central_critic_trains_for_all_agents():
    algo = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(env_to_module_connector=lambda env: AddObservationsOfAllAgents(), num_envs_per_env_runner=2)
        .multi_agent(policies={"all"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "all")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=CentralCriticRLModule, model_config={"hidden_dim": 4}))
        .training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1)
        .build_algo()
    )
    result = algo.train()
    assert np.isfinite(result["learners"]["all"]["vf_loss"])
    algo.stop()
