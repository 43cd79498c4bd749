"""Replay of several agents on the device: a ring of each module, which nothing of another module changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole as HostCartPole
from jaxrl_stack.examples.envs.multi_agent import ComeAndGo, MultiAgentCartPole
from jaxrl_stack.replay import MultiAgentEpisodeReplayBuffer
from tests import programs

LENGTH, ARRIVES = 40, 30


class ArrivesLate(MultiAgentJaxEnv):
    """The second agent acts only at the end of an episode; none sees or changes anything of the other one."""

    possible_agents = ("first", "second")
    observation_spaces = dict.fromkeys(possible_agents, Box(0.0, 1.0, (2,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, Discrete(2))

    def reset_env(self, key, params):
        return self._seen(key), jnp.int32(0)

    def acts(self, state):
        return {"first": state < LENGTH, "second": (state >= ARRIVES) & (state < LENGTH)}

    def step_env(self, key, state, action, params):
        rewards = {agent: 1.0 * (action[agent] == state % 2) for agent in self.possible_agents}
        return self._seen(key), state + 1, rewards, {"__all__": state + 1 >= LENGTH}, {}, {}

    def _seen(self, key):
        return dict(zip(self.possible_agents, jax.random.uniform(key, (2, 2)), strict=True))


def config_of(env, kind="MultiAgentEpisodeReplayBuffer", **training):
    policies = {"p0", "p1"}
    config = programs.dqn(env).multi_agent(
        policies=policies,
        policy_mapping_fn=lambda agent_id, episode=None, **kwargs: "p0" if agent_id in (0, "first", "a0") else "p1",
    )
    config.training(replay_buffer_config={"type": kind, "capacity": 200}, **training)
    # One round of 8 steps of 4 environments in each iteration.
    return config.reporting(min_sample_timesteps_per_iteration=32)


def state_of(algo, module_id):
    """Parameters, optimizer and targets of a module."""
    state = jax.device_get(algo.learner.get_state())
    return [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if f"'{module_id}'" in str(path)]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def late():
    algo = config_of(ArrivesLate).training(num_steps_sampled_before_learning_starts=0).build_algo()
    yield algo
    algo.stop()


def sizes(algo):
    """Stored steps by module."""
    buffer = algo.local_replay_buffer
    if isinstance(buffer, MultiAgentEpisodeReplayBuffer):
        return {mid: buffer.get_num_timesteps(mid) for mid in algo.driver.module_map.agents_of}
    return {mid: int(own["size"].sum()) for mid, own in buffer.get_state().items()}


def test_a_module_without_steps_keeps_its_bits_until_it_has_some(late):
    begin = {mid: state_of(late, mid) for mid in ("p0", "p1")}
    for iteration in range(5):
        result = late.train()
        env_steps_each = 8 * (iteration + 1)
        has_steps = env_steps_each > ARRIVES
        assert sizes(late) == {
            "p0": 4 * min(env_steps_each, 50),
            "p1": 4 * max(0, min(env_steps_each, LENGTH) - ARRIVES),
        }
        assert not equal(begin["p0"], state_of(late, "p0"))
        assert equal(begin["p1"], state_of(late, "p1")) != has_steps
        assert np.isfinite(result["learners"]["p0"]["qf_loss"])
    assert result["replay_buffer"]["num_module_steps_stored"] == sizes(late)


def test_nothing_of_a_module_changes_what_another_one_draws_and_learns(late):
    algo = config_of(ArrivesLate).training(num_steps_sampled_before_learning_starts=0)
    algo = algo.multi_agent(policies_to_train=["p0"]).build_algo()
    for _ in range(late.training_iteration or 5):
        algo.train()
    assert late.training_iteration == 5, "the test above has trained it"
    assert list(algo.local_replay_buffer.get_state()) == ["p0"], "what is not trained stores nothing"
    assert equal(state_of(algo, "p0"), state_of(late, "p0"))
    algo.stop()


@pytest.mark.parametrize("kind", ["MultiAgentEpisodeReplayBuffer", "MultiAgentPrioritizedEpisodeReplayBuffer"])
def test_a_restored_run_continues_bit_for_bit(kind, tmp_path):
    algo = config_of(ComeAndGo, kind, n_step=(1, 4)).build_algo()
    for _ in range(2):
        algo.train()
    algo.save_to_path(tmp_path / "saved")

    def trained():
        result = algo.train()["replay_buffer"]
        states = algo.learner.get_state(), algo.local_replay_buffer.get_state()
        return result, jax.tree.map(np.array, states)

    result, states = trained()
    assert algo.reset(algo.config) and not any(sizes(algo).values())
    algo.restore_from_path(tmp_path / "saved")
    again, states_again = trained()
    assert again == result
    assert jax.tree.all(jax.tree.map(np.array_equal, states, states_again))
    algo.stop()


@pytest.mark.parametrize("env", [MultiAgentCartPole, HostCartPole], ids=["device", "host"])
def test_modules_come_and_go_and_the_others_keep_their_steps(env):
    algo = config_of(env).environment(env, env_config={"num_agents": 2}).build_algo()
    for _ in range(3):
        algo.train()
    before = sizes(algo)
    assert all(before.values())
    spec = RLModuleSpec.from_module(algo.get_module("p0"))
    agent, other = algo.driver.module_map.module_of
    algo.add_module("p2", spec)
    assert {mid: own for mid, own in sizes(algo).items() if own} == before
    algo.remove_module("p2")
    assert sizes(algo) == before
    of = {agent: "p0", other: "p3"}
    algo.add_module("p3", spec, new_agent_to_module_mapping_fn=lambda agent_id, episode=None, **kwargs: of[agent_id])
    assert sizes(algo) == {"p0": before["p0"], "p3": 0}
    algo.train()
    after = sizes(algo)
    assert after["p3"] > 0 and after["p0"] > 0
    algo.stop()


def test_memory_counts_every_agent():
    both = config_of(MultiAgentCartPole)
    shared = both.copy(copy_frozen=False).multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
    for config in (both, shared):
        algo = config.build_algo()
        estimate = algo.driver.step.kept_memory
        state = algo.driver.kept
        assert estimate.num_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        assert estimate.num_rows == 2 * 200
        algo.stop()


def test_a_state_that_does_not_fit_changes_nothing_and_a_module_that_it_lacks_begins_empty():
    algo = config_of(MultiAgentCartPole).build_algo()
    algo.train()
    buffer, before = algo.local_replay_buffer, sizes(algo)
    state = jax.tree.map(np.array, buffer.get_state())
    empty = {mid: jax.tree.map(np.zeros_like, own) for mid, own in state.items()}
    too_many = {name: np.concatenate([leaf, leaf]) for name, leaf in state["p1"].items()}
    for wrong, message in (
        ({"p0": empty["p0"], "p1": too_many}, "was saved on 2 devices and cannot be restored on 1"),
        ({"other": state["p0"]}, r"modules \['other'\], but this algorithm has the modules \['p0', 'p1'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.set_state(wrong)
        assert sizes(algo) == before
    buffer.set_state({"p1": state["p1"]})
    assert sizes(algo) == {"p0": 0, "p1": before["p1"]}
    algo.train()
    algo.stop()
