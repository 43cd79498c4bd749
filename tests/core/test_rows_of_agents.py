"""Minibatches of whole steps of the environment: the rows of all agents, and once what these share."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig, PPOLearner
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Part
from jaxrl_stack.core.layouts import Layout, Layouts
from jaxrl_stack.core.learner.items import ChunkForm, EnvStepForm, Items, PackedItems, form_of_block
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.core.rl_module.row_independence import shared_observations
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import (
    ALL_AGENTS,
    OWN,
    AddObservationsOfAllAgents,
)
from jaxrl_stack.examples.rl_modules.classes.central_critic_rlm import CentralCriticRLModule

AGENTS = ("a", "b", "c")


class Numbered(MultiAgentJaxEnv):
    """No two steps of an episode, of an environment or of an agent look the same; ends after 5 steps."""

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(0.0, 10.0, (2,)))
    action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(2))

    def _seen(self, state):
        start, step = state
        return {agent: jnp.stack([start + i, step.astype(jnp.float32)]) for i, agent in enumerate(AGENTS)}

    def reset_env(self, key, params):
        state = (jax.random.uniform(key), jnp.int32(0))
        return self._seen(state), state

    def step_env(self, key, state, action, params):
        state = (state[0], state[1] + 1)
        rewards = {agent: action[agent] * (i + 1.0) + state[0] for i, agent in enumerate(AGENTS)}
        return self._seen(state), state, rewards, {"__all__": state[1] >= 5}, {}, {}


class Compares(PPOLearner):
    """Logs how far what a row's agent sees lies from its part of what all see in that row, and rows per such part."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        obs = batch[Columns.OBS]
        per_part = len(obs[OWN]) // len(obs[ALL_AGENTS])
        of_all = jnp.repeat(obs[ALL_AGENTS], per_part, axis=0).reshape(-1, len(AGENTS), 2)
        own = obs[OWN].reshape(-1, 2 + len(AGENTS))
        of_agent = jnp.take_along_axis(of_all, jnp.argmax(own[:, 2:], axis=1)[:, None, None], axis=1)[:, 0]
        self.metrics.log_value((module_id, "distance"), jnp.abs(of_agent - own[:, :2]).mean(), window=1)
        self.metrics.log_value((module_id, "per_part"), jnp.float32(per_part), window=1)
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class OneByOne(CentralCriticRLModule):
    shared_observations = ()


class Overrides(CentralCriticRLModule):
    def compute_values(self, batch, embeddings=None):
        return super().compute_values(batch, embeddings)


def algo_of(module_class=CentralCriticRLModule, minibatch_size=24, num_shards=2, num_epochs=2):
    """4 environments with 2 fragments of 4 steps each: 96 rows of 3 agents."""
    return (
        PPOConfig()
        .environment(Numbered)
        .env_runners(
            num_envs_per_env_runner=4,
            rollout_fragment_length=4,
            env_to_module_connector=lambda env: AddObservationsOfAllAgents(),
        )
        .multi_agent(policies={"all"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "all")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, model_config={"hidden_dim": 4}))
        .learners(learner_class=Compares, num_shuffle_shards=num_shards)
        .training(
            train_batch_size_per_learner=32,
            minibatch_size=minibatch_size,
            num_epochs=num_epochs,
            lr=1e-2,
            vf_clip_param=9,
        )
        .build_algo()
    )


def test_items_are_steps_of_the_environment_and_rows_come_back_side_by_side():
    num_steps, num_envs, num_agents = 3, 4, 2
    t, a, b = np.meshgrid(*map(np.arange, (num_steps, num_agents, num_envs)), indexing="ij")
    number = (100 * t + b).reshape(num_steps, -1)
    block = {
        Columns.OBS: {"own": number[..., None] + 10 * a.reshape(num_steps, -1)[..., None], "all": number[..., None]},
        Columns.REWARDS: (a + 0.5).reshape(num_steps, -1).astype(np.float32),
    }

    class Module:
        shared_observations = ("all",)

    @jax.jit
    def taken(block, index):
        items = Items.of_block(Module(), Block(block, Layout(num_agents=num_agents)), 2, needs_time=False)
        assert items.form == EnvStepForm(num_agents=num_agents, shared=("all",))
        assert (items.form.rows_per_item, items.num_items) == (num_agents, num_steps * num_envs // 2)
        out = PackedItems(items, block).take(index)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), items.shapes(index.size)) == jax.tree.map(
            lambda x: (x.shape, x.dtype), out
        )
        return out

    out = taken(jax.tree.map(jnp.asarray, block), np.array([[0, 3], [5, 4]], np.uint32))
    np.testing.assert_array_equal(out[Columns.OBS]["all"][:, 0], [0, 101, 203, 202])
    np.testing.assert_array_equal(out[Columns.OBS]["own"][:, 0], [0, 10, 101, 111, 203, 213, 202, 212])
    np.testing.assert_array_equal(out[Columns.REWARDS], [0.5, 1.5] * 4)


def test_rows_are_apart_where_steps_are_masked_or_in_order():
    layouts = Layouts({"p": Layout(num_agents=3)})
    assert layouts.masked_as({"p": {Columns.LOSS_MASK: np.ones((2, 6), bool)}})["p"] == Layout(is_masked=True)
    assert form_of_block(None, layouts["p"], 8, needs_time=True) == ChunkForm(8)


@pytest.mark.parametrize(
    ("module_class", "names"), [(CentralCriticRLModule, (ALL_AGENTS,)), (OneByOne, ()), (Overrides, ())]
)
def test_the_last_class_to_define_a_method_has_to_name_what_is_shared(module_class, names):
    space = AddObservationsOfAllAgents().recompute_output_observation_space(Numbered.observation_spaces, None)["a"]
    spec = RLModuleSpec(module_class, space, gym.spaces.Discrete(2), model_config={"hidden_dim": 4})
    assert shared_observations(spec.build(seed=0)) == names


@pytest.mark.parametrize(("minibatch_size", "num_shards", "per_part"), [(24, 2, 3.0), (32, 1, 1.0)])
def test_minibatches_have_all_agents_of_a_step_if_they_divide_by_them(minibatch_size, num_shards, per_part):
    algo = algo_of(minibatch_size=minibatch_size, num_shards=num_shards)
    result = algo.train()["learners"]["all"]
    algo.stop()
    assert (result["distance"], result["per_part"]) == (0.0, per_part)
    assert result["num_module_steps_trained"] == 2 * 96


def test_counts_of_rows_apart_are_those_of_the_program():
    algo = algo_of(num_epochs=1, num_shards=1)
    rng, leading = np.random.default_rng(0), (8, 6)
    space = algo.learner.module["all"].observation_space
    obs = jax.tree.map(lambda own: rng.normal(size=(*leading, *own.shape)).astype(np.float32), dict(space.spaces))
    columns = {
        "obs": obs,
        "final_obs": obs,
        "actions": np.zeros(leading, np.int32),
        "rewards": np.zeros(leading, np.float32),
        "terminateds": np.zeros(leading, bool),
        "truncateds": np.zeros(leading, bool),
        "action_logp": np.zeros(leading, np.float32),
        "action_dist_inputs": np.zeros((*leading, 2), np.float32),
    }
    part = Part({"all": Block(columns, Layout(num_agents=3))}, 48, num_env_steps=16)
    # 8 rows of a minibatch are no steps of 3 agents: each row is drawn by itself.
    result = algo.learner.update_block(Experience((part,)), num_epochs=1, minibatch_size=8)["all"]
    algo.stop()
    assert (result["module_train_batch_size_mean"], result["num_module_steps_trained"]) == (8.0, 48)


def test_an_update_is_that_of_a_critic_that_looks_at_each_row():
    weights = []
    for module_class in (CentralCriticRLModule, OneByOne):
        algo = algo_of(module_class, minibatch_size=None, num_shards=1, num_epochs=1)
        assert algo.train()["learners"]["all"]["per_part"] == (3.0 if module_class is CentralCriticRLModule else 1.0)
        weights.append(algo.get_weights()["all"])
        algo.stop()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *weights)
