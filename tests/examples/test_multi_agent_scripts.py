"""What RLlib's example scripts of several agents call runs here, at toy size, with their imports alone changed."""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module.flatten_observations import FlattenObservations
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.examples import utils
from jaxrl_stack.examples.connectors.classes.add_other_agents_row_index_to_xy_pos import AddOtherAgentsRowIndexToXYPos
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from jaxrl_stack.examples.envs.classes.multi_agent.double_row_corridor_env import DoubleRowCorridorEnv
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule
from jaxrl_stack.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment


def multi_agent_cartpole(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls, register_env

    register_env("env", lambda _: MultiAgentCartPole(config={"num_agents": args.num_agents}))
    config = get_trainable_cls(args.algo).get_default_config().environment("env")
    return config.env_runners(num_envs_per_env_runner=20).multi_agent(
        policies={f"p{i}" for i in range(args.num_agents)}, policy_mapping_fn=lambda aid, *a, **kw: f"p{aid}"
    )


def multi_agent_pendulum(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls, register_env

    register_env("env", lambda _: MultiAgentPendulum(config={"num_agents": args.num_agents}))
    config = get_trainable_cls(args.algo).get_default_config().environment("env")
    with pytest.warns(DeprecationWarning, match=r"'model' is gone. Use rl_module\(model_config="):
        config.training(lambda_=0.1, gamma=0.95, lr=0.0003, model={"fcnet_activation": "relu"}, vf_clip_param=10.0)
    return config.rl_module(model_config=DefaultModelConfig(fcnet_activation="relu")).multi_agent(
        policies={f"p{i}" for i in range(args.num_agents)}, policy_mapping_fn=lambda aid, *a, **kw: f"p{aid}"
    )


def custom_heuristic_policy(args: argparse.Namespace):
    from ray.tune.registry import register_env

    register_env("multi_agent_cartpole", lambda _: MultiAgentCartPole({"num_agents": args.num_agents}))
    modules = {"learnable_policy": RLModuleSpec(), "random": RLModuleSpec(module_class=RandomRLModule)}
    return (
        PPOConfig()
        .environment("multi_agent_cartpole")
        .multi_agent(
            policies={"learnable_policy", "random"},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: ["learnable_policy", "random"][agent_id % 2],
            policies_to_train=["learnable_policy"],
        )
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules))
    )


class TwoSpaces(MultiAgentEnv):
    """Its agents have spaces that differ; it calls ``super().__init__()`` last, and its episodes never end."""

    def __init__(self, config=None):
        self.agents = ["agent0", "agent1"]
        sizes = {"agent0": (10, 2), "agent1": (20, 3)}
        self.observation_spaces = {aid: gym.spaces.Box(-1.0, 1.0, (size,)) for aid, (size, _) in sizes.items()}
        self.action_spaces = {aid: gym.spaces.Discrete(n) for aid, (_, n) in sizes.items()}
        super().__init__()

    def reset(self, *, seed=None, options=None):
        return {aid: self.get_observation_space(aid).sample() for aid in self.agents}, {}

    def step(self, action_dict):
        obs = {aid: self.get_observation_space(aid).sample() for aid in action_dict}
        none = {**dict.fromkeys(action_dict, False), "__all__": False}
        return obs, dict.fromkeys(action_dict, 0.0), none, dict(none), {aid: {} for aid in action_dict}


def different_spaces_for_agents(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls

    config = get_trainable_cls(args.algo).get_default_config().environment(env=TwoSpaces)
    with pytest.warns(DeprecationWarning, match="train_batch_size_per_learner"):
        config.training(train_batch_size=1024)
    return config.multi_agent(
        policies={"main0", "main1"},
        policy_mapping_fn=lambda aid, episode, **kw: f"main{aid[-1]}",
        policies_to_train=["main0"],
    )


def agents_act_in_sequence(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls

    config = get_trainable_cls(args.algo).get_default_config().environment(TicTacToe)
    return config.multi_agent(
        policies={"player1", "player2"}, policy_mapping_fn=lambda agent_id, episode, **kw: agent_id
    )


def agents_act_simultaneously(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls

    return (
        get_trainable_cls(args.algo)
        .get_default_config()
        .environment(RockPaperScissors, env_config={"sheldon_cooper_mode": True})
        .env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations(multi_agent=True))
        .multi_agent(policies={"player1", "player2"}, policy_mapping_fn=lambda agent_id, episode, **kw: agent_id)
    )


def multi_agent_observation_preprocessor(args: argparse.Namespace):
    from ray.tune.registry import get_trainable_cls

    config = (
        get_trainable_cls(args.algo)
        .get_default_config()
        .environment(DoubleRowCorridorEnv)
        .env_runners(
            num_envs_per_env_runner=20,
            env_to_module_connector=lambda env, spaces, device: [
                AddOtherAgentsRowIndexToXYPos(),
                FlattenObservations(multi_agent=True, agent_ids=["agent_0"]),
            ],
        )
        .training(
            train_batch_size_per_learner=512, gamma=0.95, lr=0.0003 * (args.num_learners or 1), vf_loss_coeff=0.01
        )
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda aid, eps, **kw: "p0" if aid == "agent_0" else "p1")
    )
    return config.training(minibatch_size=64, lambda_=0.1, vf_clip_param=10.0)


SCRIPTS = {
    multi_agent_cartpole: {"p0", "p1"},
    multi_agent_pendulum: {"p0", "p1"},
    custom_heuristic_policy: {"learnable_policy"},
    different_spaces_for_agents: {"main0"},
    agents_act_simultaneously: {"player1", "player2"},
    multi_agent_observation_preprocessor: {"p0", "p1"},
}
"""Script → policies that it trains."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_example_scripts_train(script, capsys):
    parser = add_rllib_example_script_args(default_iters=1, default_timesteps=10000)
    parser.set_defaults(num_agents=2)
    args = parser.parse_args(["--no-tune", "--num-env-runners=0", "--num-envs-per-env-runner=2", "--stop-reward=1e9"])
    config = script(args).rl_module(model_config={"fcnet_hiddens": [4]})
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    results = run_rllib_example_script_experiment(config, args, keep_ray_up=True)
    losses = {mid: own.get("policy_loss", np.nan) for mid, own in results["learners"].items()}
    assert {mid for mid, loss in losses.items() if np.isfinite(loss)} == SCRIPTS[script]
    assert results["env_runners"]["num_env_steps_sampled"] == 64 and "iter=0 R=" in capsys.readouterr().out


def test_the_tuners_table_has_a_column_for_each_policy():
    args = add_rllib_example_script_args().parse_args(["--num-agents=2"])
    config = agents_act_in_sequence(args)
    columns = utils.table_columns(config, args)
    assert columns["env_runners/episode_return_mean"] == "combined return"
    assert columns["env_runners/module_episode_returns_mean/player2"] == "return player2"
    args.num_agents = 0
    assert utils.table_columns(config, args)["env_runners/episode_return_mean"] == "episode return mean"
