"""What each of several joined processes runs for `test_joined_processes.py`, and one process alone for comparison.

``python -m tests.joined_processes FOLDER ALGORITHM...`` in the environment of a launcher.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxrl_stack
from envs.counter import CounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints.saves import saves
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.runs.stored_checkpoints import StoredCheckpoints
from jaxrl_stack.utils.devices import of_first_process
from tests.execution import test_sources

NUM_ENVS = 16
ALGORITHMS = ("ppo", "dqn")


class Watching(RLlibCallback):
    """Counts episodes, and notes whose they are."""

    def on_episode_end(self, *, env_runner, metrics_logger, env_index, **kwargs):
        metrics_logger.log_value("seen", 1, reduce="sum")
        for reduce in ("min", "max"):
            metrics_logger.log_value(f"{reduce}_env_index", env_index, reduce=reduce)


def config_of(algorithm: str, num_devices: int, **debugging: Any) -> Any:
    """A small run.

    Args:
        algorithm: "ppo" or "dqn".
        num_devices: CPU devices of each process.
        **debugging: Settings of ``debugging()``.
    """
    if algorithm == "ppo":
        config = PPOConfig().training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
    else:
        config = DQNConfig().reporting(min_sample_timesteps_per_iteration=64)
        config.training(
            train_batch_size_per_learner=32,
            num_steps_sampled_before_learning_starts=32,
            replay_buffer_config={"capacity": 512},
        )
    return (
        config.environment(CounterEnv, env_config={"terminate_at": 5, "random_start": True})
        .env_runners(num_envs_per_env_runner=NUM_ENVS, env_to_module_connector=filtered)
        .training(lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=num_devices)
        .evaluation(evaluation_duration=8)
        .debugging(**{"seed": 3, **debugging})
    )


def filtered(env, spaces, device):
    return MeanStdFilter()


def without_config(result: dict[str, Any]) -> dict[str, Any]:
    """A result as another process can read it."""
    return {name: value for name, value in result.items() if name != "config"}


def trained(algorithm: str, num_devices: int, path: str) -> dict[str, Any]:
    """Two iterations, a checkpoint, a third iteration, and the third one again from the checkpoint."""
    algo = config_of(algorithm, num_devices).build_algo()
    results = [without_config(algo.train()) for _ in range(2)]
    found = {"results": results, "weights": algo.get_weights(), "path": algo.save_to_path(path)}
    found |= {"evaluation": algo.evaluate(), "stats": algo.learner_group.get_stats(), "repr": repr(algo)}
    algo.train()
    found["later"] = algo.get_weights()
    algo.restore_from_path(path)
    algo.train()
    found["restored"] = algo.get_weights()
    algo.stop()
    return found


def raised(function: Callable[[], Any]) -> str:
    """The error that a call raises, in words."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(process: int, learner: Any) -> dict[str, str]:
    """Errors of calls that joined processes refuse; the learner runs on all of their devices."""
    ppo = config_of("ppo", 1)
    rows = {"obs": np.zeros((8, 1), np.float32)}

    def fail() -> Any:
        raise OSError("no space left")

    def store() -> None:
        def save(path: str) -> None:
            if process == 0:
                saves.run(os.path.realpath(path), fail, blocking=False)

        stored = StoredCheckpoints(save, frequency=1)
        stored.after_iteration(None if process else pathlib.Path("missing"), 1)
        stored.close()

    return {
        "twice": raised(jaxrl_stack.distributed.initialize),
        "envs": raised(ppo.copy().env_runners(num_envs_per_env_runner=15).build_algo),
        "capacity": raised(config_of("dqn", 1).training(replay_buffer_config={"capacity": 513}).build_algo),
        "minibatch": raised(ppo.copy().training(minibatch_size=33).build_algo),
        "seeds": raised(ppo.copy().debugging(seed=process).build_algo),
        "host": raised(PPOConfig().environment("CartPole-v1").build_algo),
        "learners": raised(ppo.copy().learners(num_learners=2).build_algo),
        "rows": raised(lambda: learner.update(batch=rows)),
        "first": raised(lambda: of_first_process(fail)),
        "stored": raised(store),
    }


def watched_and_refused(process: int) -> dict[str, Any]:
    """A run with callbacks, whose iterations last for a time, and begin later in the first process; what is refused."""
    config = config_of("ppo", 1).callbacks(Watching).reporting(min_time_s_per_iteration=0.3)
    algo = config.build_algo()
    results = []
    for _ in range(2):
        time.sleep(0.0 if process else 0.6)
        results.append(without_config(algo.train()))
    found = {"watched": {"results": results}, "refused": refused(process, algo.learner)}
    algo.stop()
    return found


def on_data(num_devices: int) -> dict[str, float]:
    """Losses of training on data, and of an evaluation on rows that are held out of it."""
    config = test_sources.config(test_sources.Cloning, on_data=True).learners(num_cpus_per_learner=num_devices)
    algo = config.evaluation(evaluation_interval=1).build_algo()
    result = algo.train()
    algo.stop()
    losses = {"learned": result["learners"]["default_policy"]["total_loss"]}
    return losses | {"held_out": test_sources.on_data(result["evaluation"])}


def main(folder: pathlib.Path, algorithms: list[str]) -> None:
    jaxrl_stack.distributed.initialize()
    process = jax.process_index()
    found = {name: trained(name, 1, str(folder / name)) for name in algorithms}
    found |= {**watched_and_refused(process), "on_data": on_data(1), "devices": len(jax.devices())}
    (folder / f"{process}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
