"""Times of saving and loading checkpoints: ``python -m bench.checkpoints``.

Times are of this machine and its disk; the script ends with 1 if saving the policy takes longer than ``--bar`` seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def median_seconds(call: Callable[[], object], rounds: int, after: Callable[[], object]) -> float:
    """Median seconds of `rounds` calls after a warm-up call; `after` is called after each of them and is not timed."""
    seconds = []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
        after()
    return statistics.median(seconds[1:])


def main(argv: list[str] | None = None) -> int:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="calls of each kind")
    parser.add_argument("--hiddens", type=int, nargs="+", default=[64, 64], help="widths of the networks")
    parser.add_argument("--bar", type=float, default=0.3, help="seconds that saving the policy may take")
    arguments = parser.parse_args(argv)

    from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.policy.policy import Policy
    from jaxrl_stack.utils.checkpoints import wait_for_saves

    config = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=64)
        .training(train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": arguments.hiddens})
        .debugging(seed=0)
    )
    algo = config.build_algo()
    algo.train()
    module, policy = algo.get_module(), algo.get_policy()
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in ("module", "policy", "algorithm", "beside")}

        def save_beside() -> None:
            algo.save_to_path(places["beside"], blocking=False)

        rows = {
            "RLModule.save_to_path": lambda: module.save_to_path(places["module"]),
            "Policy.save_to_path": lambda: policy.save_to_path(places["policy"]),
            "Algorithm.save_to_path": lambda: algo.save_to_path(places["algorithm"]),
            "Algorithm.save_to_path(blocking=False)": save_beside,
            "RLModule.from_checkpoint": lambda: RLModule.from_checkpoint(places["module"]),
            "Policy.from_checkpoint": lambda: Policy.from_checkpoint(places["policy"]),
            "Algorithm.restore_from_path": lambda: algo.restore_from_path(places["algorithm"]),
        }
        seconds = {}
        for name, call in rows.items():
            seconds[name] = median_seconds(call, arguments.rounds, wait_for_saves)
            print(f"{name:<42} {seconds[name] * 1e3:8.1f} ms")
        restored = PPO.from_checkpoint(places["algorithm"])
        restored.stop()
    algo.stop()
    return int(max(seconds["RLModule.save_to_path"], seconds["Policy.save_to_path"]) > arguments.bar)


if __name__ == "__main__":
    raise SystemExit(main())
