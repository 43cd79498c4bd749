"""Common code of the off-policy contenders of this project and of RLlib, which have the same new API stack.

Settings of all off-policy contenders: ``algorithm`` ("DQN" or "SAC"), ``warmup``, ``env``, ``seed``,
``torch_threads``, and the keyword arguments of ``env_runners``, ``learners``, ``training``, ``reporting`` and
``model`` (`DefaultModelConfig`); an iteration is ``reporting["min_sample_timesteps_per_iteration"]`` env steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bench.peers.protocol import Iteration, Work


@dataclasses.dataclass(frozen=True)
class Api:
    """Classes of an implementation, and functions for the calls that differ.

    Args:
        configs: Algorithm -> its config class.
        model_config: `DefaultModelConfig`.
        close: Ends what the process has started.
        parts: (algorithm) -> (result of an iteration -> seconds that its parts took, by name).
    """

    configs: Mapping[str, Callable[[], Any]]
    model_config: Callable[..., Any]
    close: Callable[[], None]
    parts: Callable[[Any], Callable[[Mapping[str, Any]], dict[str, float]]]


def config_of(api: Api, settings: Mapping[str, Any]) -> Any:
    """Returns the config of the algorithm."""
    training = dict(settings["training"])
    if isinstance(training.get("n_step"), list):
        # JSON has no tuples, and a range of steps is one.
        training["n_step"] = tuple(training["n_step"])
    return (
        api.configs[settings["algorithm"]]()
        .environment(settings["env"])
        .env_runners(**settings["env_runners"])
        .learners(**settings["learners"])
        .training(**training)
        .reporting(**settings["reporting"])
        .rl_module(model_config=api.model_config(**settings["model"]))
        .debugging(seed=settings["seed"])
    )


def members_work(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender that trains a population, which only this project has."""
    population = config_of(api, settings).build_population(seeds=settings["members"])
    rows = population.config.total_train_batch_size
    lifetime = {"steps": 0, "updates": 0}

    def iterate() -> Iteration:
        result = population.train()
        now = {
            "steps": result["population"]["num_env_steps_sampled_lifetime"],
            "updates": population.driver.num_updates * len(population),
        }
        done = {name: now[name] - lifetime[name] for name in now}
        lifetime.update(now)
        return Iteration(done["steps"], {}, done | {"rows": rows})

    return Work(iterate, close=population.stop)


def make_work(api: Api, settings: Mapping[str, Any]) -> Work:
    """Creates the contender; an iteration is one call of `Algorithm.train`, or of `Population.train` if the settings
    have ``members``.
    """
    if "members" in settings:
        return members_work(api, settings)
    algo = config_of(api, settings).build_algo()
    rows = algo.config.total_train_batch_size
    parts_of = api.parts(algo)
    lifetime = {"steps": 0, "rows": 0}

    def iterate() -> Iteration:
        result = algo.train()
        trained = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime")
        now = {
            "steps": int(result["num_env_steps_sampled_lifetime"]),
            # Absent or NaN before the first update.
            "rows": int(trained) if trained is not None and trained == trained else 0,
        }
        steps, trained_rows = (now[name] - lifetime[name] for name in now)
        lifetime.update(now)
        return Iteration(steps, parts_of(result), {"steps": steps, "updates": trained_rows / rows})

    def close() -> None:
        algo.stop()
        api.close()

    return Work(iterate, close=close)
