"""The callback of RLlib's self-play example, and its question to a human."""

from __future__ import annotations

import functools
import types

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.examples.multi_agent.utils import SelfPlayCallback, SelfPlayLeagueBasedCallback, ask_user_for_action
from jaxrl_stack.examples.multi_agent.utils.self_play_callback import seat
from jaxrl_stack.examples.multi_agent.utils.self_play_league_based_callback import _is_trained, league_seat
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule


class HigherWins(MultiAgentEnv):
    """One step: the higher action wins."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = [0, 1]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(0.0, 1.0, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, actions):
        sign = float(np.sign(actions[0] - actions[1]))
        observations = dict.fromkeys(self.agents, np.ones(1, np.float32))
        return observations, {0: sign, 1: -sign}, {"__all__": True}, {"__all__": False}, {}


def first_seat(agent_id, episode, **kwargs):
    return "main" if agent_id == 0 else "random"


def test_a_copy_of_main_joins_when_it_wins_and_plays_from_then_on(tmp_path):
    specs = {"main": RLModuleSpec(), "random": RLModuleSpec(module_class=RandomRLModule)}
    config = (
        PPOConfig()
        .environment(HigherWins)
        .env_runners(num_env_runners=0)
        .multi_agent(policies={"main", "random"}, policy_mapping_fn=first_seat, policies_to_train=["main"])
        .rl_module(model_config={"fcnet_hiddens": [4]}, rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1)
        .callbacks(functools.partial(SelfPlayCallback, win_rate_threshold=0.0))
    )
    algo = config.build_algo()
    result = algo.train()
    assert 0.0 < result["env_runners"]["win_rate"] < 1.0 and result["league_size"] == 3
    weights = algo.get_weights()
    assert weights["main"].keys() == weights["main_v1"].keys()
    for ref, value in weights["main"].items():
        np.testing.assert_array_equal(weights["main_v1"][ref], value)
    result = algo.train()
    assert result["league_size"] == 4 and set(algo.get_weights()) == {"main", "random", "main_v1", "main_v2"}
    assert set(result["env_runners"]["module_episode_returns_mean"]) >= {"main", "main_v1"}
    # A resumed run continues its numbers, and its copies play.
    resumed = PPO.from_checkpoint(algo.save_to_path(tmp_path), config=config)
    result = {"env_runners": {"win_rate": 1.0}}
    assert resumed.config.policy_mapping_fn.keywords == algo.config.policy_mapping_fn.keywords == {"num_copies": 2}
    resumed.callbacks.on_train_result(algorithm=resumed, result=result)
    assert result["league_size"] == 5 and set(resumed.get_weights()) == {*algo.get_weights(), "main_v3"}
    resumed.stop()
    algo.stop()


LEAGUE = ["main", "main_0", "main_exploiter_0", "main_exploiter_1", "league_exploiter_0", "league_exploiter_1"]


def main_or_random(agent_id, episode, **kwargs):
    return "main" if agent_id == 0 else "main_exploiter_0"


def settings_of(algo):
    """Trained policies of a callback, and the groups of its policy mapping."""
    return sorted(algo.config.policies_to_train), algo.config.policy_mapping_fn.keywords


def test_a_league_starts_exploiters_and_then_grows_by_copies_of_winners(tmp_path):
    """A resumed run, of before there were copies and after it, continues with its league."""
    specs = {
        name: RLModuleSpec(module_class=RandomRLModule if name.endswith("exploiter_0") else None) for name in LEAGUE
    }
    config = (
        PPOConfig()
        .environment(HigherWins)
        .env_runners(num_env_runners=0)
        .multi_agent(policies=set(LEAGUE), policy_mapping_fn=main_or_random, policies_to_train=["main"])
        .rl_module(model_config={"fcnet_hiddens": [4]}, rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1)
        .callbacks(functools.partial(SelfPlayLeagueBasedCallback, win_rate_threshold=0.0))
    )
    algo = config.build_algo()
    result = algo.train()
    trained = ["league_exploiter_1", "main", "main_exploiter_1"]
    assert result["league_size"] == 6 and sorted(algo.config.policies_to_train) == trained
    weights = algo.get_weights()
    for name in ("main_0", "main_exploiter_1", "league_exploiter_1"):
        np.testing.assert_equal(weights[name], weights["main"])
    resumed = PPO.from_checkpoint(algo.save_to_path(tmp_path / "started"), config=config)
    assert settings_of(resumed) == settings_of(algo)
    result = {"env_runners": {"win_rate_main": 1.0}}
    resumed.callbacks.on_train_result(algorithm=resumed, result=result)
    assert result["league_size"] == 7
    np.testing.assert_equal(resumed.get_weights(), {**weights, "main_1": weights["main"]})
    resumed.stop()
    result = algo.train()
    new = sorted(set(algo.get_weights()) - set(LEAGUE))
    assert new and result["league_size"] == 6 + len(new)
    np.testing.assert_equal(algo.get_weights()["main_0"], weights["main_0"])
    resumed = PPO.from_checkpoint(algo.save_to_path(tmp_path / "grown"), config=config)
    assert settings_of(resumed) == settings_of(algo)
    result = {"env_runners": {}}
    resumed.callbacks.on_train_result(algorithm=resumed, result=result)
    assert result["league_size"] == 6 + len(new)
    resumed.stop()
    algo.stop()


def test_whether_copies_of_exploiters_are_trained_follows_from_the_seed():
    trained = {seed: [_is_trained(f"main_exploiter_{i}", seed) for i in range(2, 202)] for seed in (0, 1)}
    assert trained[0] != trained[1]
    assert all(40 < sum(own) < 80 for own in trained.values()), "3 of 10"


def test_games_of_a_league_have_a_trained_policy_and_meet_all_groups():
    groups = {
        "main_policies": ("main", "main_0"),
        "main_exploiters": ("main_exploiter_0", "main_exploiter_1"),
        "league_exploiters": ("league_exploiter_0", "league_exploiter_1"),
        "trainable": ("league_exploiter_1", "main", "main_exploiter_1"),
        "frozen": ("league_exploiter_0", "main_0", "main_exploiter_0"),
    }
    games = [types.SimpleNamespace(id_=f"game-{number}") for number in range(300)]
    pairs = [tuple(league_seat(agent, game, **groups) for agent in (0, 1)) for game in games]
    assert {name for pair in pairs for name in pair} == set(LEAGUE)
    for pair in pairs:
        assert len(set(pair) & set(groups["trainable"])) == 1
        assert any("exploiter" in name for name in pair)
    assert 100 < sum("exploiter" in first and "exploiter" not in second for first, second in pairs) < 200


def test_main_has_one_seat_of_each_game_and_meets_all_its_copies():
    games = [types.SimpleNamespace(id_=f"game-{number}") for number in range(200)]
    seats = [(seat(0, game, num_copies=3), seat(1, game, num_copies=3)) for game in games]
    assert all(("main" in pair) and pair != ("main", "main") for pair in seats)
    assert {name for pair in seats for name in pair} == {"main", "main_v1", "main_v2", "main_v3"}
    assert 60 < sum(pair[0] == "main" for pair in seats) < 140


def test_a_human_is_asked_until_the_action_is_legal(monkeypatch):
    answers = iter(["nine", "4", " 2 "])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    observations = {"current_player": 1, "legal_actions": [[0], [1, 2]]}
    assert ask_user_for_action(types.SimpleNamespace(observations=observations)) == 2
    with pytest.raises(StopIteration):
        next(answers)
