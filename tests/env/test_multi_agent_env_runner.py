"""Environments of several agents on the host: what is recorded of each agent, and what is learned from it."""

import collections

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from envs.multi_agent_host import ComeAndGo
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe

NUM_ENVS = 2


class RandomTurns(MultiAgentEnv):
    """Who observes, ends and gets rewards is random; now and then for everybody at once."""

    possible_agents = ("a", "b", "c")

    def __init__(self, config=None):
        super().__init__()
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(-10.0, 10.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(3))

    def reset(self, *, seed=None, options=None):
        MultiAgentEnv.reset(self, seed=seed)
        self.alive, self.seen = set(self.agents), set()
        return self._observed([*self._some(0.6), "a"]), {}

    def step(self, action_dict):
        rewards = {agent: self._number() for agent in self._some(0.6)}
        ends = [(agent, self._is(0.3)) for agent in sorted(self.seen) if agent in self.alive and self._is(0.1)]
        terminateds = {agent: is_terminated for agent, is_terminated in ends}
        truncateds = {agent: not is_terminated for agent, is_terminated in ends}
        obs = self._observed(self._some(0.5))
        self.alive -= terminateds.keys()
        over = self._is(0.08)
        kind = self._is(0.5)
        return obs, rewards, {**terminateds, "__all__": over and kind}, {**truncateds, "__all__": over and not kind}, {}

    def _is(self, chance):
        return bool(self.np_random.random() < chance)

    def _number(self):
        return float(self.np_random.integers(-3, 4))

    def _some(self, chance):
        return [agent for agent in self.agents if agent in self.alive and self._is(chance)]

    def _observed(self, agents):
        self.seen.update(agents)
        return {agent: self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32) for agent in agents}


def logged(env_class):
    """The class with a log of all that goes in and out, ``log[vector_index]``."""
    log = collections.defaultdict(list)

    class Logged(env_class):
        def __init__(self, config=None):
            super().__init__(config)
            self.index = config.vector_index

        def reset(self, **kwargs):
            outcome = super().reset(**kwargs)
            log[self.index].append((None, outcome[0]))
            return outcome

        def step(self, action_dict):
            outcome = super().step(action_dict)
            log[self.index].append((dict(action_dict), *outcome))
            return outcome

    return Logged, log


def by_last_character(agent_id, episode, **kwargs):
    return "even" if str(agent_id)[-1] in "02468a" else "odd"


def config_of(env, env_config=None, **runners):
    return (
        PPOConfig()
        .environment(env, env_config=env_config or {})
        .multi_agent(policies={"even", "odd"}, policy_mapping_fn=by_last_character)
        .env_runners(num_env_runners=0, **{"num_envs_per_env_runner": NUM_ENVS, **runners})
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .debugging(seed=1)
    )


def steps_of_agents(log):
    """``{agent: [[obs, action, reward, terminated, truncated, obs that completed it], ...]}``, in a plain loop."""
    steps, held, alive = collections.defaultdict(list), {}, set()
    last = {}
    for action_dict, obs, *answer in log:
        if action_dict is None:
            held, last, alive = {}, dict(obs), set(obs)
            continue
        for agent, action in action_dict.items():
            held[agent] = [last[agent], action, 0.0]
        rewards, terminateds, truncateds, _ = answer
        for agent, reward in rewards.items():
            if agent in held:
                held[agent][2] += reward
        last.update(obs)
        alive |= obs.keys()
        terminated = {agent for agent in alive if terminateds.get("__all__") or terminateds.get(agent)}
        truncated = {a for a in alive if truncateds.get("__all__") or truncateds.get(a)} - terminated
        for agent in alive:
            if agent in held and (agent in obs or agent in terminated | truncated):
                steps[agent].append([*held.pop(agent), agent in terminated, agent in truncated, last[agent]])
        alive -= terminated | truncated
    return steps


def recorded_steps(blocks, agents_of):
    """The same out of blocks, by environment, and the final observations that each block has."""
    steps = collections.defaultdict(list)
    for block in blocks:
        for mid, columns in block.part.modules.items():
            mask = columns[Columns.LOSS_MASK]
            assert (np.sort(mask, axis=0)[::-1] == mask).all(), "valid rows come first"
            for row in range(mask.shape[1]):
                slot, env = divmod(row, NUM_ENVS)
                num = int(mask[:, row].sum())
                for t in range(num):
                    names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
                    needs_final = t == num - 1 or columns[Columns.TRUNCATEDS][t, row]
                    final = columns[Columns.FINAL_OBS][t, row] if needs_final else None
                    steps[env, agents_of[mid][slot]].append([*(columns[name][t, row] for name in names), final])
    return steps


@pytest.mark.parametrize(
    ("env", "env_config"),
    [
        (TicTacToe, {}),
        (ComeAndGo, {}),
        (RandomTurns, {}),
        (MultiAgentCartPole, {"num_agents": 2, "max_episode_steps": 13}),
    ],
)
def test_blocks_are_those_of_a_plain_loop_per_agent(env, env_config):
    env, log = logged(env)
    runner = MultiAgentEnvRunner(config=config_of(env, env_config))
    blocks = [runner.sample_block(num_steps=n) for n in (9, 1, 2, 14, 30)]
    recorded = recorded_steps(blocks, runner.module_map.agents_of)
    num_ends = 0
    for index in range(NUM_ENVS):
        for agent, expected in steps_of_agents(log[index]).items():
            found = recorded[index, agent]
            assert len(found) == len(expected)
            for own, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(own[0], wanted[0])
                assert own[1] == wanted[1] and own[2] == np.float32(wanted[2])
                assert (own[3], own[4]) == (wanted[3], wanted[4])
                if own[5] is not None and not wanted[3]:
                    np.testing.assert_array_equal(own[5], wanted[5])
                num_ends += wanted[3] or wanted[4]
    assert num_ends > 4
    counted = collections.Counter()
    for block in blocks:
        counted.update(block.report.agent_steps)
        assert block.num_env_steps == block.part.modules["even"][Columns.LOSS_MASK].shape[0] * NUM_ENVS
    assert counted == {a: sum(len(recorded[i, a]) for i in range(NUM_ENVS)) for a in runner.module_map.module_of}
