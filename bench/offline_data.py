"""Data sets for offline learning, recorded by policies that this module trains; a seed always gives the same files.

    python -m bench.offline_data --out data
    python -m bench.offline_data --out data --only cartpole-mixed --seed 1

=====================  ===============================================================================================
folder                 what is in it
=====================  ===============================================================================================
``cartpole-expert``    40,000 steps on CartPole-v1 of PPO whose actions are drawn, with a mean return of 490 or more
``cartpole-mixed``     20,000 steps each of three checkpoints of that training: of returns around 30, around 120, and
                       the expert; the first two take the likeliest action, reversed in a share of steps (`REVERSED`)
``cartpole-stateless`` 40,000 steps of the expert, of which the positions alone are recorded
``pendulum-expert``    200 episodes on Pendulum-v1 of SAC, whose actions are the means of its policy
``pendulum-replay``    the first 20,000 steps of a training of SAC on Pendulum-v1, which ends at returns of -250 or more
``maze``               5,000 walks in `envs.maze.Maze` between cells drawn at random, with a share of random steps
                       (`WANDERING`); those that pass both its start and its goal are left out
=====================  ===============================================================================================

Episodes go on to their end: the last one exceeds the number of steps. Actions are the module's, in [-1, 1].
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from envs import maze
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
EXPERT_RETURN, EXPERT_STEPS, MIXED_STEPS = 490.0, 40_000, 20_000
LEARNERS = ((22.0, 45.0), (95.0, 150.0))
"""Ranges of mean returns in which checkpoints of learners are taken, with the likeliest actions."""
REVERSED = (0.6, 0.6)
"""Share of the steps in which the action of each of these is reversed."""
SHOWN = [0, 2]
"""What `cartpole-stateless` shows of an observation: position and angle."""
PENDULUM_EPISODES = 200
MAZE_WALKS, WANDERING = 5_000, 0.2
REPLAY_STEPS, REPLAY_RETURN = 20_000, -250.0
REPLAY_TRAINING = {
    "train_batch_size_per_learner": 64,
    "num_steps_sampled_before_learning_starts": 14_000,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 20_000},
    "actor_lr": 5e-4,
    "critic_lr": 1e-3,
    "alpha_lr": 5e-4,
}
"""Of the training that fills `pendulum-replay`: it begins late, so that most of it is bad."""
NUM_ENVS = 32

Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Observations ``[B, ...]`` to the module's actions ``[B, ...]``."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Recorded complete episodes.

    Attributes:
        steps: Of all of them.
        returns: Of each, float64 ``[E]``.
    """

    steps: Steps
    returns: np.ndarray


def policy_of(module: RLModule, *, explore: bool) -> Act:
    """Returns the acting function of a module with its present weights.

    Args:
        module: Without a recurrent state.
        explore: Whether actions are drawn.
    """
    infer = jax.jit(lambda obs: module.forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS])
    distribution_class = module.get_inference_action_dist_cls()
    is_discrete = isinstance(module.action_space, gym.spaces.Discrete)

    def act(obs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        inputs = np.asarray(infer(obs))
        if explore and is_discrete:  # by noise of the generator of the recording: the largest of perturbed logits
            return np.argmax(inputs + generator.gumbel(size=inputs.shape), axis=-1)
        return np.asarray(
            distribution_class.from_logits(jnp.asarray(inputs)).to_deterministic().sample(key=jax.random.key(0))
        )

    return act


def reversed_in(share: float, act: Act) -> Act:
    """Returns an acting function that takes the other one of two actions in a random share of the steps."""

    def reverse(obs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        actions = act(obs, generator)
        return np.where(generator.random(len(actions)) < share, 1 - actions, actions)

    return reverse


def roll_out(env_id: str, act: Act, num_steps: int, seed: int) -> Recorded:
    """Records episodes in `NUM_ENVS` environments, until they have `num_steps` steps and all unfinished episodes have
    ended.

    Args:
        env_id: Of gymnasium; with a Box of actions, these are scaled from [-1, 1] to its bounds.
        act: Chooses actions.
        num_steps: At least; of the episodes, in the order in which they began, the first ones that have so many. 0: one
            episode of each environment.
        seed: Of environments and actions.
    """
    generator = np.random.default_rng(seed)
    envs = [gym.make(env_id) for _ in range(NUM_ENVS)]
    space = envs[0].action_space
    number, num_done = 0, 0
    episodes: list[dict[str, Any]] = []
    live: dict[int, dict[str, Any]] = {}

    def begin(i: int) -> None:
        nonlocal number
        obs, _ = envs[i].reset(seed=seed * 1_000_003 + number)
        number += 1
        live[i] = {"number": number, "obs": [obs], "actions": [], "rewards": [], "flags": []}

    for i in range(NUM_ENVS):
        begin(i)
    while live:
        own = list(live)
        actions = act(np.stack([live[i]["obs"][-1] for i in own]).astype(np.float32), generator)
        for i, action in zip(own, actions, strict=True):
            sent = action
            if isinstance(space, gym.spaces.Box):
                sent = space.low + (np.clip(action, -1, 1) + 1) * 0.5 * (space.high - space.low)
            obs, reward, terminated, truncated, _ = envs[i].step(sent)
            episode = live[i]
            episode["obs"].append(obs)
            for name, value in (("actions", action), ("rewards", reward), ("flags", (terminated, truncated))):
                episode[name].append(value)
            num_done += 1
            if terminated or truncated:
                episodes.append(live.pop(i))
                if num_done < num_steps:
                    begin(i)
    episodes.sort(key=lambda own: own["number"])
    if num_steps:
        before = np.cumsum([0, *(len(own["rewards"]) for own in episodes)])[:-1]
        episodes = [own for own, steps in zip(episodes, before, strict=True) if steps < num_steps]
    return Recorded(steps_of(episodes), np.array([np.sum(own["rewards"]) for own in episodes]))


def steps_of(episodes: Sequence[dict[str, Any]]) -> Steps:
    """Concatenates episodes to a table of steps, each with a final row for its last observation."""
    lengths = np.array([len(own["rewards"]) for own in episodes])

    def rows(name: str, dtype: Any = None) -> np.ndarray:
        """Returns a column of the table, with zeros in final rows."""
        parts = [np.asarray(own[name], dtype) for own in episodes]
        return np.concatenate([np.concatenate([part, np.zeros_like(part[:1])]) for part in parts])

    is_integer = np.issubdtype(np.asarray(episodes[0]["actions"][0]).dtype, np.integer)
    flags = rows("flags", bool)
    columns = {
        Columns.OBS: np.concatenate([np.asarray(own["obs"], np.float32) for own in episodes]),
        Columns.ACTIONS: rows("actions", np.int32 if is_integer else np.float32),
        Columns.REWARDS: rows("rewards", np.float32),
        Columns.TERMINATEDS: flags[:, 0],
        Columns.TRUNCATEDS: flags[:, 1],
    }
    numbers = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    episode = np.repeat(np.arange(len(lengths)), lengths + 1).astype(np.int32)
    return Steps(columns, numbers == lengths[episode], episode, numbers, [f"{i:06d}" for i in range(len(lengths))])


def with_positions_only(steps: Steps) -> Steps:
    """Removes the velocities from observations, as in the data set `cartpole-stateless`."""
    return steps.map_columns(lambda name, own: own[:, SHOWN].copy() if name == Columns.OBS else own)


# ---------------------------------------------------------------------------------------------------------- policies


def cartpole_policies(seed: int) -> list[Act]:
    """Trains PPO on CartPole; returns acting functions at two early stages (greedy) and at the end (with sampled
    actions).
    """
    config = (
        PPOConfig.tuned("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size_per_learner=1024, minibatch_size=256, lr=1e-3)
        .debugging(seed=seed)
    )
    algo = config.build_algo()
    found: list[Act] = []
    ranges = [*LEARNERS, (EXPERT_RETURN, np.inf)]
    for iteration in range(600):
        algo.train()
        if iteration % (1 if len(found) < len(LEARNERS) else 10):
            continue
        act = policy_of(algo.get_module(), explore=len(found) == len(LEARNERS))
        mean = roll_out(CARTPOLE, act, 3_000, seed + 1).returns.mean()
        if ranges[len(found)][0] <= mean <= ranges[len(found)][1]:
            print(f"a policy with a mean return of {mean:.0f}, after {(iteration + 1) * 1024:,} steps", flush=True)
            found.append(act)
            if len(found) == len(ranges):
                break
    algo.stop()
    if len(found) < len(ranges):
        raise RuntimeError(f"Training found no policy with a mean return in {ranges[len(found)]}: try another --seed.")
    return found


def pendulum_expert(seed: int) -> Act:
    """Trains SAC on Pendulum; returns its greedy acting function."""
    algo = SACConfig.tuned("gymnax/Pendulum-v1").debugging(seed=seed).build_algo()
    for _ in range(30):
        algo.train()
        act = policy_of(algo.get_module(), explore=False)
        mean = roll_out(PENDULUM, act, 0, seed + 1).returns.mean()
        print(f"a policy with a mean return of {mean:.0f}", flush=True)
        if mean >= -170.0:
            break
    algo.stop()
    return act


def record_pendulum_replay(folder: Path, seed: int) -> None:
    """Records all steps that a training of SAC samples, from its first random actions on.

    Raises:
        RuntimeError: If it has not learned to swing up.
    """
    shutil.rmtree(folder, ignore_errors=True)
    config = (
        SACConfig()
        .environment("gymnax/Pendulum-v1")
        .training(**REPLAY_TRAINING)
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "fusionnet_hiddens": None})
        .reporting(min_sample_timesteps_per_iteration=1000, min_time_s_per_iteration=None)
        .offline_data(output=str(folder))
        .debugging(seed=seed)
    )
    algo = config.build_algo()
    while algo.train()["num_env_steps_sampled_lifetime"] < REPLAY_STEPS:
        pass
    mean = roll_out(PENDULUM, policy_of(algo.get_module(), explore=False), 0, seed + 1).returns.mean()
    algo.stop()
    print(f"{folder}: the policy after it returns {mean:.0f}", flush=True)
    if mean < REPLAY_RETURN:
        raise RuntimeError(f"The training ended with {mean:.0f}, below {REPLAY_RETURN}: try another --seed.")


def maze_walks(number: int, seed: int) -> Recorded:
    """Records walks in the maze, from random cells to random targets; a walk ends truncated, except at the maze's goal.

    No walk contains both start and goal, so that the data contain the way between them only in parts.
    """
    generator, episodes = np.random.default_rng(seed), []
    eye = np.eye(maze.IS_FREE.size, dtype=np.float32)
    while len(episodes) < number:
        cell, target = (tuple(map(int, own)) for own in maze.CELLS[generator.integers(len(maze.CELLS), size=2)])
        distances, passed, actions = maze.distances_to(target), [cell], []
        while passed[-1] not in (target, maze.GOAL) and len(actions) < maze.Maze.defaults["max_steps"]:
            around = [tuple(map(int, move + passed[-1])) for move in maze.MOVES]
            around = [near if maze.IS_FREE[near] else passed[-1] for near in around]
            best = int(np.argmin([distances[near] for near in around]))
            actions.append(int(generator.integers(len(around))) if generator.random() < WANDERING else best)
            passed.append(around[actions[-1]])
        if not actions or {maze.START, maze.GOAL} <= set(passed):
            continue
        solved = passed[-1] == maze.GOAL
        rewards = [0.0] * (len(actions) - 1) + [float(solved)]
        flags = [(False, False)] * (len(actions) - 1) + [(solved, not solved)]
        obs = [eye[row * maze.IS_FREE.shape[1] + column] for row, column in passed]
        actions = [np.int32(action) for action in actions]
        episodes.append({"obs": obs, "actions": actions, "rewards": rewards, "flags": flags})
    return Recorded(steps_of(episodes), np.array([np.sum(own["rewards"]) for own in episodes]))


# --------------------------------------------------------------------------------------------------------------- files


def write(folder: Path, parts: Sequence[Recorded], env_id: str, seed: int, env: Any = None) -> None:
    """Writes episodes as a folder of Parquet files, which replaces an existing one; `env` has the spaces if gymnasium
    does not know the id.
    """
    shutil.rmtree(folder, ignore_errors=True)
    env = env or gym.make(env_id)
    space: Any = env.observation_space
    shape = parts[0].steps.columns[Columns.OBS].shape[1:]
    if space.shape != shape:
        space = gym.spaces.Box(space.low[SHOWN], space.high[SHOWN])
    about = DatasetInfo(observation_space=space, action_space=env.action_space, env_id=env_id, seed=seed)
    with StepWriter(folder, "steps", about=about) as writer:
        for i, part in enumerate(parts):
            ids = [f"{i}-{own}" for own in part.steps.episode_ids]
            writer.add(dataclasses.replace(part.steps, episode_ids=ids))
    returns = [f"{part.returns.mean():.0f} (± {part.returns.std():.0f})" for part in parts]
    print(f"{folder}: {sum(part.steps.num_steps for part in parts):,} steps, returns {', '.join(returns)}", flush=True)


def make(out: Path, names: Sequence[str], seed: int) -> None:
    """Records the data sets with the given names."""
    if any(name.startswith("cartpole") for name in names):
        *learners, expert = cartpole_policies(seed)
        if {"cartpole-expert", "cartpole-stateless"} & set(names):
            whole = roll_out(CARTPOLE, expert, EXPERT_STEPS, seed + 10)
            write(out / "cartpole-expert", [whole], CARTPOLE, seed)
            write(
                out / "cartpole-stateless",
                [dataclasses.replace(whole, steps=with_positions_only(whole.steps))],
                CARTPOLE,
                seed,
            )
        if "cartpole-mixed" in names:
            acts = [reversed_in(share, act) for share, act in zip(REVERSED, learners, strict=True)]
            parts = [roll_out(CARTPOLE, act, MIXED_STEPS, seed + 20 + i) for i, act in enumerate([*acts, expert])]
            write(out / "cartpole-mixed", parts, CARTPOLE, seed)
    if "pendulum-expert" in names:
        act = pendulum_expert(seed)
        write(out / "pendulum-expert", [roll_out(PENDULUM, act, 200 * PENDULUM_EPISODES, seed + 30)], PENDULUM, seed)
    if "pendulum-replay" in names:
        record_pendulum_replay(out / "pendulum-replay", seed)
    if "maze" in names:
        write(out / "maze", [maze_walks(MAZE_WALKS, seed + 40)], "envs.maze:Maze", seed, env=maze.Maze())


NAMES = ("cartpole-expert", "cartpole-mixed", "cartpole-stateless", "pendulum-expert", "pendulum-replay", "maze")


def main(arguments: Sequence[str] | None = None) -> int:
    """Records the data sets that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", default=",".join(NAMES), help="comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    names = args.only.split(",")
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(NAMES)}")
    started = time.perf_counter()
    make(args.out, names, args.seed)
    print(f"{time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
