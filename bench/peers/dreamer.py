"""Common code of the DreamerV3 contenders of this project and of RLlib, which have the same API.

Settings: ``env``, ``seed``, ``warmup``, and the keyword arguments of ``env_runners``, ``learners``, ``training`` and
``reporting``.
With ``training_ratio`` equal to the items of a batch there is one update per env step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.peers.protocol import Iteration, Work


def make_work(config_class: Callable[[], Any], settings: Mapping[str, Any], close: Callable[[], None]) -> Work:
    """`Algorithm.train`, one call per iteration.

    Args:
        config_class: `DreamerV3Config`.
        settings: See above.
        close: Ends what the process has started.
    """
    algo = (
        config_class()
        .environment(settings["env"])
        .env_runners(**settings["env_runners"])
        .learners(**settings["learners"])
        .training(**settings["training"])
        .reporting(**settings["reporting"])
        .debugging(seed=settings["seed"])
        .build_algo()
    )
    lifetime = {"steps": 0}

    def iterate() -> Iteration:
        now = int(algo.train()["num_env_steps_sampled_lifetime"])
        steps, lifetime["steps"] = now - lifetime["steps"], now
        return Iteration(steps, {})

    def stop() -> None:
        algo.stop()
        close()

    return Work(iterate, close=stop)
