"""Common code of the PPO contenders of this project and of RLlib, which have the same new API stack.

Settings: ``job`` ("train", "episodes", "rows", "trajectories" or "wall_clock"), ``warmup``, ``env``, ``seed``, the
keyword arguments of ``environment`` (may be left out), ``env_runners``, ``training``, ``reporting`` and ``model``
(`DefaultModelConfig`); ``mean_std_filter``, whether observations are normalized (may be left out); for "wall_clock",
``target`` and ``within``.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from bench.peers.protocol import Iteration, Work

NUM_ROWS, EPISODE_LENGTH = 4000, 200


@dataclasses.dataclass(frozen=True)
class Api:
    """Classes of an implementation, and functions for the calls that differ.

    Args:
        ppo_config: `PPOConfig`.
        model_config: `DefaultModelConfig`.
        episode: `SingleAgentEpisode`.
        update_rows: (learner, rows, keyword arguments) -> updates from ``{column: [N, ...]}``.
        update_trajectories: The same from ``{column: [T, B, ...]}``, or None: by episodes.
        close: Ends what the process has started.
        mean_std_filter: The class of the connector that normalizes observations.
    """

    ppo_config: Callable[[], Any]
    model_config: Callable[..., Any]
    episode: Callable[..., Any]
    update_rows: Callable[[Any, Mapping[str, Any], dict[str, Any]], Any]
    update_trajectories: Callable[[Any, Mapping[str, Any], dict[str, Any]], Any] | None
    close: Callable[[], None]
    mean_std_filter: Callable[[], Any] | None = None


def make_work(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender for ``settings["job"]``."""
    makers = {"train": train, "episodes": episodes, "rows": update, "trajectories": update, "wall_clock": wall_clock}
    return makers[settings["job"]](api, settings)


def config_of(api: Api, settings: Mapping[str, Any]) -> Any:
    """Returns the config of the algorithm."""
    env_runners = dict(settings["env_runners"])
    if settings.get("mean_std_filter"):
        make_filter = api.mean_std_filter
        assert make_filter is not None
        env_runners["env_to_module_connector"] = lambda env, spaces, device: make_filter()
    return (
        api.ppo_config()
        .environment(env_of(settings["env"]), **settings.get("environment", {}))
        .env_runners(**env_runners)
        .training(**settings["training"])
        .reporting(**settings["reporting"])
        .rl_module(model_config=api.model_config(**settings["model"]))
        .debugging(seed=settings["seed"])
    )


def env_of(name: str) -> Any:
    """Imports the class that "module:Class" names; returns other names unchanged."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute) if attribute else name


def train(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender that trains; an iteration is one call of `Algorithm.train`."""
    algo = config_of(api, settings).build_algo()

    def prepare() -> None:
        # Timers are exponential averages that remember the first, compiling call for hundreds of iterations.
        algo.metrics.reset()
        algo.env_runner_group.foreach_env_runner(lambda runner: runner.metrics.reset())

    def iterate() -> Iteration:
        result = algo.train()
        return Iteration(int(result["env_runners"]["num_env_steps_sampled"]), parts_of(result, algo.config))

    def close() -> None:
        algo.stop()
        api.close()

    return Work(iterate, prepare, close)


def episodes(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender that trains and also returns, for each call of `Algorithm.train`, the returns of all ended
    episodes in order, and the mean return that the implementation reports.
    """
    ended: list[float] = []

    def record(*, episode: Any, prev_episode_chunks: Any = None, **kwargs: Any) -> None:
        # Where a fragment ended in it, the episode is in chunks.
        ended.append(float(sum(chunk.get_return() for chunk in [*(prev_episode_chunks or ()), episode])))

    algo = config_of(api, settings).callbacks(on_episode_end=record).build_algo()

    def iterate() -> Iteration:
        ended.clear()
        result = algo.train()
        reported = float(result["env_runners"].get("episode_return_mean", "nan"))
        steps = int(result["num_env_steps_sampled_lifetime"])
        return Iteration(steps, {}, {"returns": list(ended), "reported": reported if reported == reported else None})

    def close() -> None:
        algo.stop()
        api.close()

    return Work(iterate, close=close)


def parts_of(result: Mapping[str, Any], config: Any) -> dict[str, float]:
    """Returns the seconds of an iteration's parts from the timers of its result, without parts that have no timer.

    "sample" is the whole of sampling; "env", "policy" and "connectors" are the parts of it that repeat with every
    step of the vector environment (of one runner, the mean over runners).
    """
    runner = result["env_runners"]
    vector_steps = runner["num_env_steps_sampled"] / (max(1, config.num_env_runners) * config.num_envs_per_env_runner)
    found = {
        "sample": [_at(result, "timers", "env_runner_sampling_timer")],
        "env": [_at(runner, "env_step_timer")],
        "policy": [_at(runner, "rlmodule_inference_timer")],
        "connectors": [
            _at(runner, f"{pipeline}_connector", "connector_pipeline_timer")
            for pipeline in ("env_to_module", "module_to_env")
        ],
        "update": [_at(result, "timers", "learner_update_timer")],
        "sync": [_at(result, "timers", "synch_weights"), _at(result, "timers", "synch_env_connectors")],
    }
    out = {}
    for part, values in found.items():
        # A timer that nothing was logged to is NaN.
        if known := [value for value in values if value is not None and value == value]:
            out[part] = float(sum(known)) * (vector_steps if part in ("env", "policy", "connectors") else 1)
    return out


def _at(tree: Any, *path: str) -> float | None:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def wall_clock(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender whose iteration lasts from `build_algo` until the mean return reaches a target."""
    built: list[Any] = []

    def iterate() -> Iteration:
        started = time.perf_counter()
        algo = config_of(api, settings).build_algo()
        built.append(algo)
        parts = {"build": time.perf_counter() - started}
        steps, best = 0, float("-inf")
        while best < settings["target"] and steps < settings["within"]:
            train_started = time.perf_counter()
            result = algo.train()
            parts.setdefault("first_train", time.perf_counter() - train_started)
            steps = int(result["num_env_steps_sampled_lifetime"])
            mean = float(result["env_runners"].get("episode_return_mean", "nan"))
            best = max(best, mean) if mean == mean else best
        parts["until_target"] = time.perf_counter() - started
        reached = best >= settings["target"]
        return Iteration(steps, parts, {"reached": reached, "best_return": best, "env_steps": steps})

    def close() -> None:
        for algo in built:
            algo.stop()
        api.close()

    return Work(iterate, close=close)


def update(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender that updates only a Learner, on made-up data that are equal for all implementations; steps
    are trained samples.
    """
    config = config_of(api, settings)
    env = gym.make(settings["env"])
    learner = config.build_learner(env=env)
    data = trajectories(env.observation_space, env.action_space, settings["seed"])
    kwargs = {
        "num_epochs": config.num_epochs,
        "minibatch_size": config.minibatch_size,
        "shuffle_batch_per_epoch": True,
        "timesteps": {"num_env_steps_sampled_lifetime": 0},
    }
    episodes: list[Any] = []

    def prepare() -> None:
        # An update may extend the episodes that it is given.
        if settings["job"] == "trajectories" and api.update_trajectories is None:
            episodes[:] = episodes_of(api, data, env)

    def iterate() -> Iteration:
        if settings["job"] == "rows":
            api.update_rows(learner, rows_of(data), dict(kwargs))
        elif api.update_trajectories is not None:
            api.update_trajectories(learner, data, dict(kwargs))
        else:
            learner.update(episodes=episodes, **kwargs)
        return Iteration(NUM_ROWS * config.num_epochs, {})

    def close() -> None:
        env.close()
        api.close()

    return Work(iterate, prepare, close)


def trajectories(obs_space: Any, action_space: Any, seed: int) -> dict[str, np.ndarray]:
    """Makes up columns ``[T, B, ...]`` of whole episodes with `NUM_ROWS` rows in total and discrete actions."""
    rng = np.random.default_rng(seed)
    shape = (EPISODE_LENGTH, NUM_ROWS // EPISODE_LENGTH)
    obs = rng.normal(size=(shape[0] + 1, shape[1], *obs_space.shape)).astype(np.float32)
    actions = rng.integers(action_space.n, size=shape)
    last = np.zeros(shape, bool)
    last[-1] = True
    return {
        "obs": obs[:-1],
        "actions": actions,
        "action_dist_inputs": np.zeros((*shape, action_space.n), np.float32),
        "action_logp": np.full(shape, -np.log(action_space.n), np.float32),
        "rewards": np.ones(shape, np.float32),
        "terminateds": last,
        "truncateds": np.zeros(shape, bool),
        "final_obs": obs[1:],
    }


def rows_of(data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the columns that a loss needs, ``[N, ...]``, with made-up advantages and value targets."""
    rows = {
        column: data[column].reshape(NUM_ROWS, *data[column].shape[2:])
        for column in ("obs", "actions", "action_dist_inputs", "action_logp")
    }
    target = np.linspace(-1.0, 1.0, NUM_ROWS, dtype=np.float32)
    return {**rows, "advantages": target, "value_targets": target.copy()}


def episodes_of(api: Api, data: Mapping[str, np.ndarray], env: Any) -> list[Any]:
    """Converts the columns of `trajectories` to episodes."""
    return [
        api.episode(
            observations=[*data["obs"][:, i], data["final_obs"][-1, i]],
            observation_space=env.observation_space,
            actions=list(data["actions"][:, i]),
            action_space=env.action_space,
            rewards=list(data["rewards"][:, i]),
            terminated=True,
            extra_model_outputs={column: list(data[column][:, i]) for column in ("action_dist_inputs", "action_logp")},
            len_lookback_buffer=0,
        ).to_numpy()
        for i in range(NUM_ROWS // EPISODE_LENGTH)
    ]
