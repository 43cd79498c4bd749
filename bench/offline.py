"""Learning from recorded data: mean returns of BC, MARWIL, CQL and IQL on the data sets of `bench.offline_data`.

    python -m bench.offline_data --out data
    python -m bench.offline --data data --json bench/offline.jsonl
    python -m bench.offline --data data --only bc-cartpole,marwil-mixed --seeds 2

======================  ==================  ========================================================================
job                     data                a seed passes if the greedy policy, after the last update, returns
======================  ==================  ========================================================================
``bc-cartpole``         cartpole-expert     450 or more
``bc-mixed``            cartpole-mixed      less than 300: cloning everything alike does not do
``marwil-mixed``        cartpole-mixed      450 or more
``bc-pendulum``         pendulum-expert     -300 or more
``bc-lstm``             cartpole-stateless  350 or more
``cql-pendulum``        pendulum-replay     -300 or more
``iql-pendulum``        pendulum-replay     -350 or more
``bc-replay``           pendulum-replay     less than -600: most of it was recorded before anything was learned
``iql-maze``            maze                0.9 or more: no recorded walk goes from the start to the goal
``bc-maze``             maze                0.4 or less
======================  ==================  ========================================================================

Returns are means over `EPISODES` episodes. Every run is appended to the JSON file as a line, with its commit; runs that
stand there already are not run again. Exits with 1 unless all but one seed of each job pass (one must).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.journal import Journal
from jaxrl_stack.algorithms.registry import get_algorithm_config_class

EPISODES = 50


@dataclasses.dataclass(frozen=True)
class Job:
    """Training of an algorithm on a data set, with its goal.

    Attributes:
        algorithm: Its name.
        data: Folder of the data set.
        env: Environment of the evaluation.
        bar: Mean return to reach.
        num_updates: Updates of a run.
        training: Settings of `training()`.
        model: Settings of the networks.
        is_above: Whether a mean return at the bar or above passes; else one below it.
        data_settings: Settings of `offline_data()`.
    """

    algorithm: str
    data: str
    env: str
    bar: float
    num_updates: int
    training: Mapping[str, Any]
    model: Mapping[str, Any]
    is_above: bool = True
    data_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def passes(self, mean: float) -> bool:
        """Whether a mean return is on the required side of the bar."""
        return (mean >= self.bar) == self.is_above


_SMALL = {"fcnet_hiddens": [64, 64]}
_BC = {"train_batch_size_per_learner": 1024, "lr": 1e-3}
_MARWIL = {**_BC, "beta": 1.0, "vf_coeff": 1.0, "moving_average_sqd_adv_norm_update_rate": 1e-2}
_ONE_STD = {**_SMALL, "free_log_std": True}
"""The expert's actions are the means of its policy: a standard deviation of each state would shrink where they are easy
to tell, and weigh these states by its inverse square."""
_LSTM = {"fcnet_hiddens": [64], "use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 32}
_CARTPOLE, _PENDULUM, _MAZE = "gymnax/CartPole-v1", "gymnax/Pendulum-v1", "envs.maze:Maze"
_Q_NET = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "fusionnet_hiddens": None}
_CQL = {
    "train_batch_size_per_learner": 128,
    "bc_iters": 0,
    "num_actions": 4,
    "min_q_weight": 1.0,
    "actor_lr": 3e-4,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-4,
    "tau": 0.01,
}
_IQL = {
    "train_batch_size_per_learner": 256,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "value_lr": 1e-3,
    "tau": 0.01,
    "expectile": 0.9,
    "beta": 5.0,
}
_IQL_MAZE = _IQL | {"gamma": 0.9, "beta": 30.0}
JOBS: dict[str, Job] = {
    "bc-cartpole": Job("BC", "cartpole-expert", _CARTPOLE, 450.0, 2_000, _BC, _SMALL),
    "bc-mixed": Job("BC", "cartpole-mixed", _CARTPOLE, 300.0, 10_000, _BC, _SMALL, is_above=False),
    "marwil-mixed": Job("MARWIL", "cartpole-mixed", _CARTPOLE, 450.0, 10_000, _MARWIL, _SMALL),
    "bc-pendulum": Job("BC", "pendulum-expert", "gymnax/Pendulum-v1", -300.0, 5_000, _BC, _ONE_STD),
    "bc-lstm": Job(
        "BC",
        "cartpole-stateless",
        "jaxrl_stack.examples.envs.memory:StatelessCartPole",
        350.0,
        2_000,
        {**_BC, "burnin_len": 4},
        _LSTM,
    ),
    "cql-pendulum": Job("CQL", "pendulum-replay", _PENDULUM, -300.0, 20_000, _CQL, _Q_NET),
    "iql-pendulum": Job("IQL", "pendulum-replay", _PENDULUM, -350.0, 50_000, _IQL, _Q_NET),
    "bc-replay": Job("BC", "pendulum-replay", _PENDULUM, -600.0, 10_000, _BC, _SMALL, is_above=False),
    "iql-maze": Job("IQL", "maze", _MAZE, 0.9, 10_000, _IQL_MAZE, _Q_NET),
    "bc-maze": Job("BC", "maze", _MAZE, 0.4, 5_000, _BC, _SMALL, is_above=False),
}
"""What is measured, by name."""


def run_seed(job: Job, data: Path, seed: int) -> dict[str, Any]:
    """Trains one seed.

    Returns:
        ``return``: mean of the greedy policy; ``num_updates``; ``rows_per_s``, without the first iteration;
        ``passed``.
    """
    per_iteration = 500
    config = (
        get_algorithm_config_class(job.algorithm)()
        .environment(job.env)
        .offline_data(input_=[str(data / job.data)], dataset_num_iters_per_learner=per_iteration, **job.data_settings)
        .reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0)
        .training(**job.training)
        .rl_module(model_config=dict(job.model))
        .evaluation(evaluation_duration=EPISODES, evaluation_config={"explore": False})
        .debugging(seed=seed)
    )
    algo = config.build_algo()
    algo.train()
    started = time.perf_counter()
    for _ in range(job.num_updates // per_iteration - 1):
        algo.train()
    seconds = time.perf_counter() - started
    mean = float(algo.evaluate()["env_runners"]["episode_return_mean"])
    rows = (job.num_updates - per_iteration) * int(job.training["train_batch_size_per_learner"])
    algo.stop()
    return {
        "return": mean,
        "num_updates": job.num_updates,
        "rows_per_s": round(rows / max(seconds, 1e-9)),
        "passed": job.passes(mean),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where bench.offline_data wrote to")
    parser.add_argument("--only", default=",".join(JOBS), help="comma-separated jobs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    args = parser.parse_args(arguments)
    names = args.only.split(",")
    unknown = sorted(set(names) - JOBS.keys())
    if unknown:
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(JOBS)}")
    journal, all_pass = Journal(args.json, harness.commit()), True
    for name in names:
        job, passed = JOBS[name], 0
        for seed in range(args.seeds):
            run = {"job": name, "seed": seed, **dataclasses.asdict(job)}
            measured = journal.once(run, lambda job=job, seed=seed: run_seed(job, args.data, seed))
            passed += measured["passed"]
            print(f"{name} seed {seed}: {measured['return']:.1f}, {measured['rows_per_s']:,} rows/s", flush=True)
        enough = passed >= max(1, args.seeds - 1)
        print(f"{name}: {passed} of {args.seeds} seeds pass", flush=True)
        all_pass &= enough
    return 0 if all_pass else 1


if __name__ == "__main__":
    sys.exit(main())
