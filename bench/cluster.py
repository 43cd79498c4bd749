"""Rehearsal of training on a Ray cluster of several nodes, one of which is lost and replaced.

    python -m bench.cluster
    python -m bench.cluster --algorithms IMPALA --kill learner

The nodes run on this machine (`ray.cluster_utils.Cluster`): a head without CPUs, a node with the resource "learner"
for the learner and its aggregator, and two nodes of 1 CPU, each for one EnvRunner. Each algorithm trains in a new
cluster, loses a node without warning, continues, and gets a new node. Exits with 1 if a bar is missed:

* Training continues within 8 s after Ray has noticed the lost node.
* The new node is used within 30 s after it has joined.
* Each sampled env step is trained, stored, dropped, lost or in flight, and counted once.

The numbers are appended to bench/cluster.jsonl.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import harness
from bench.journal import Journal

ENV = "CartPole-v1"
NUM_RUNNERS = 2
STAGES: tuple[str, ...] = ("env_runner_sampling_timer", "learner_update_timer", "synch_weights")
RECOVERY_BAR_S, JOIN_BAR_S = 8.0, 30.0
JOURNAL = Path(__file__).with_name("cluster.jsonl")
LEARNER = "learner"


class Nodes:
    """Ray cluster on this machine, in a session folder that other programs do not find.

    Args:
        learner_cpus: CPUs of the node with the resource "learner".
        num_runner_nodes: Number of nodes for EnvRunners.

    Attributes:
        noticed: ``{node id: time.monotonic() at which Ray reported its death}``.
        joined: ``{node id: time.monotonic() at which Ray reported it as alive}``.
    """

    def __init__(self, learner_cpus: int = 1, num_runner_nodes: int = NUM_RUNNERS):
        # Paths of Ray's sockets have at most 107 bytes, and its address file would catch every ray.init() here.
        self._folder = tempfile.mkdtemp(prefix="r_", dir="/tmp")
        os.environ["RAY_TMPDIR"] = self._folder
        use_whole_cores()
        import ray  # pyright: ignore[reportMissingImports]
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        self._ray = ray
        self._learner_cpus = learner_cpus
        self.noticed: dict[str, float] = {}
        self.joined: dict[str, float] = {}
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.cluster = Cluster()
        try:
            self.cluster.add_node(num_cpus=0, include_dashboard=False)
            ray.init(address=self.cluster.address, log_to_driver=False, configure_logging=False)
            self._watcher.start()
            self.learner = self.add_learner_node()
            self.runners = [self.add() for _ in range(num_runner_nodes)]
        except BaseException:
            self.close()
            raise

    def add(self, **resources: Any) -> Any:
        """Starts a node, and waits until it is alive."""
        return self.cluster.add_node(**{"num_cpus": 1, **resources})

    def add_learner_node(self) -> Any:
        """Starts a node with the resource "learner", and waits until it is alive."""
        return self.add(num_cpus=self._learner_cpus, resources={LEARNER: 1})

    def take_runner_node(self, used: set[str]) -> Any:
        """Removes a node with an EnvRunner from `runners`, and returns it."""
        node = next(node for node in reversed(self.runners) if node.node_id in used)
        self.runners.remove(node)
        return node

    def remove(self, node: Any) -> None:
        """Kills all processes of a node without warning."""
        self.cluster.remove_node(node, allow_graceful=False)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for node in self._ray.nodes():
                times = self.joined if node["Alive"] else self.noticed
                times.setdefault(node["NodeID"], time.monotonic())

    def stored_bytes(self) -> int:
        """Bytes that the object stores of the living nodes have taken so far, copies on other nodes included."""
        from ray._private.internal_api import node_stats  # pyright: ignore[reportMissingImports]

        total = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False).store_stats
                total += stats.cumulative_created_bytes
        return total

    def close(self) -> None:
        """Ends all nodes, and deletes the session folder."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._ray.shutdown()
        self.cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_config(algorithm: str) -> Any:
    """CartPole on two EnvRunners, with the learner on the marked node."""
    from jaxrl_stack import DQNConfig, IMPALAConfig, PPOConfig

    config = {"PPO": PPOConfig, "IMPALA": IMPALAConfig, "DQN": DQNConfig}[algorithm]()
    training = {
        "PPO": {"train_batch_size_per_learner": 1600, "minibatch_size": 400, "num_epochs": 2},
        "IMPALA": {"train_batch_size_per_learner": 1600},
        "DQN": {"num_steps_sampled_before_learning_starts": 1000, "train_batch_size_per_learner": 64},
    }[algorithm]
    return (
        config.environment(ENV)
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=16, num_cpus_per_env_runner=1)
        .training(**training)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .learners(
            num_learners=1,
            num_cpus_per_learner=1,
            custom_resources_per_learner={LEARNER: 1},
            num_aggregator_actors_per_learner=num_aggregators(algorithm),
            learner_snapshot_interval=10,
        )
        .fault_tolerance(restart_failed_env_runners=True, num_consecutive_env_runner_failures_tolerance=1000)
        .reporting(min_time_s_per_iteration=0.5)
        .debugging(seed=0)
    )


def num_aggregators(algorithm: str) -> int:
    """Number of aggregators of the learner."""
    return int(algorithm == "IMPALA")


def node_of(actor: Any) -> str:
    """Id of the Ray node of an actor."""
    import ray  # pyright: ignore[reportMissingImports]

    del actor
    return ray.get_runtime_context().get_node_id()


def runner_nodes(algo: Any) -> dict[int, str]:
    """``{EnvRunner id: node id}`` of the healthy EnvRunners."""
    return dict(
        algo.env_runner_group.foreach_env_runner(
            node_of, local_env_runner=False, return_actor_ids=True, timeout_seconds=10.0
        )
    )


def account(algo: Any, result: Any) -> dict[str, int]:
    """Returns the numbers of env steps that a result reports as sampled, used, lost and so on, ``{fate: env steps}``.

    Used steps of PPO are counted by its updates, stored steps of DQN by its buffer.
    """
    fates = {"sampled": result["num_env_steps_sampled_lifetime"], "lost": result["num_env_steps_lost_lifetime"]}
    if "replay_buffer" in result:
        return {**fates, "stored": int(result["replay_buffer"]["num_env_steps_added_lifetime"])}
    if "num_env_steps_used_lifetime" not in result:
        return {**fates, "used": algo.driver.num_updates * algo.driver.plan.rows_per_update}
    fates |= {name: result[f"num_env_steps_{name}_lifetime"] for name in ("used", "dropped")}
    return {**fates, "in_flight": result["num_env_steps_in_flight"]}


def nodes_of(algo: Any) -> dict[str, list[str]]:
    """Returns the Ray nodes on which an algorithm's actors run, ``{role: [node id of each actor]}``."""
    import ray  # pyright: ignore[reportMissingImports]

    where = {
        "EnvRunner": list(runner_nodes(algo).values()),
        "Learner": [call.get() for call in algo.learner_group.foreach_learner(node_of)],
    }
    aggregation = getattr(algo.driver.step, "aggregation", None)
    if aggregation is not None:
        where["aggregator"] = ray.get([actor.apply.remote(node_of) for actor in aggregation.actors().values()])
    return where


def is_placed_well(where: dict[str, list[str]], nodes: Nodes) -> bool:
    """Whether EnvRunners are on nodes of their own, and learner and aggregator on the marked node."""
    runners, others = where["EnvRunner"], [*where["Learner"], *where.get("aggregator", [])]
    return len(set(runners) - set(others)) == NUM_RUNNERS and set(others) == {nodes.learner.node_id}


def add_stages(seconds: dict[str, float], result: Mapping[str, Any]) -> None:
    """Adds the seconds of each of `STAGES` in a result."""
    for name in STAGES:
        value = result["timers"].get(name, 0.0)
        seconds[name] += 0.0 if math.isnan(value) else value  # an iteration without an update


def use_whole_cores() -> None:
    """Gives Ray's actors the priority of other processes; Ray's default is a lower priority, which lowers the rates.

    Call it before Ray starts.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")


class Iteration(NamedTuple):
    """Times and counts of a training iteration.

    Attributes:
        start, end: Times of `time.monotonic`.
        steps: Env steps sampled.
        updates: Updates of the learner.
        healthy: Healthy EnvRunners at its end.
    """

    start: float
    end: float
    steps: int
    updates: int
    healthy: int


class Training:
    """Iterations of an algorithm, with their times.

    Attributes:
        iterations: The iterations.
        account: `account` of the last result.
        num_wrong: Number of results whose account of env steps is not exact.
    """

    def __init__(self, algo: Any, algorithm: str):
        self.algo = algo
        self.algorithm = algorithm
        self.iterations: list[Iteration] = []
        self.num_wrong = 0
        self.result: Any = None
        self.account: dict[str, int] = {}

    def iterate(self) -> None:
        """Makes a training iteration."""
        before, updates = self.algo.num_env_steps_sampled_lifetime, self.algo.driver.num_updates
        started = time.monotonic()
        self.result = result = self.algo.train()
        steps = result["num_env_steps_sampled_lifetime"] - before
        healthy = result["fault_tolerance"]["num_healthy_workers"]
        updates = self.algo.driver.num_updates - updates
        self.iterations.append(Iteration(started, time.monotonic(), steps, updates, healthy))
        self.account = account(self.algo, result)
        if 2 * self.account["sampled"] != sum(self.account.values()):
            print(f"  the account is wrong: {self.account}", flush=True)
            self.num_wrong += 1

    def until(self, condition: Any, timeout_s: float) -> None:
        """Iterates until a condition holds.

        Raises:
            TimeoutError: If it does not hold in time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.algorithm}: not within {timeout_s:g} s: {condition.__name__}")
            self.iterate()

    def rate(self, seconds: float) -> tuple[int, dict[str, float]]:
        """Iterates for some time; returns env steps per second, and the share of each stage in the time."""
        first, started, stages = len(self.iterations), time.monotonic(), dict.fromkeys(STAGES, 0.0)
        while time.monotonic() - started < seconds:
            self.iterate()
            add_stages(stages, self.result)
        elapsed = time.monotonic() - started
        steps = sum(each.steps for each in self.iterations[first:])
        return round(steps / elapsed), {name: round(value / elapsed, 3) for name, value in stages.items()}


def rehearse(nodes: Nodes, algorithm: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains an algorithm while a node is lost and a new one joins; returns the numbers."""
    started = time.monotonic()
    algo = make_config(algorithm).build_algo()
    training = Training(algo, algorithm)
    numbers: dict[str, Any] = {"build_s": round(time.monotonic() - started, 1)}
    say = lambda text: print(f"{algorithm}: {text}", flush=True)  # noqa: E731
    try:
        for _ in range(3):
            training.iterate()
        where = nodes_of(algo)
        numbers["is_placed_well"] = is_placed_well(where, nodes)
        say(f"nodes: {where}")
        bytes_before = nodes.stored_bytes()
        steps_before = algo.num_env_steps_sampled_lifetime
        numbers["steps_per_s"], numbers["stages"] = training.rate(args.seconds)
        steps = algo.num_env_steps_sampled_lifetime - steps_before
        numbers["stored_bytes_per_step"] = round((nodes.stored_bytes() - bytes_before) / max(steps, 1), 1)
        say(f"{numbers['steps_per_s']} steps/s, {numbers['stored_bytes_per_step']} bytes/step")

        # A node dies in the middle of an iteration. Only another node with its resource can replace a learner's node.
        is_learner = args.kill == "learner"
        spare = nodes.add_learner_node() if is_learner else None
        victim = nodes.learner if is_learner else nodes.take_runner_node(set(runner_nodes(algo).values()))
        killed: list[float] = []

        def kill() -> None:
            time.sleep(0.3)
            nodes.remove(victim)
            killed.append(time.monotonic())

        first_iteration = len(training.iterations)
        killer = threading.Thread(target=kill, name="killer")
        killer.start()

        def has_noticed() -> bool:
            return victim.node_id in nodes.noticed

        training.until(has_noticed, 60.0)
        killer.join()
        noticed = nodes.noticed[victim.node_id]

        def continues() -> bool:
            return any(each.end > noticed and each.steps and each.updates for each in training.iterations)

        training.until(continues, 60.0)
        nodes.learner = spare or nodes.learner
        first = next(each.end for each in training.iterations if each.end > noticed and each.steps and each.updates)
        numbers["notice_s"] = round(noticed - killed[0], 1)
        numbers["recovery_s"] = round(first - noticed, 2)
        lengths = [each.end - each.start for each in training.iterations[first_iteration:]]
        numbers["longest_iteration_s"] = round(max(lengths), 1)
        say(f"Ray noticed after {numbers['notice_s']} s, training continued {numbers['recovery_s']} s later")
        numbers["steps_per_s_without_node"], numbers["stages_without_node"] = training.rate(args.seconds / 2)

        if not is_learner:
            new = nodes.add()
            nodes.runners.append(new)
            while new.node_id not in nodes.joined:
                time.sleep(0.05)
            joined = nodes.joined[new.node_id]

            def is_used() -> bool:
                # The last iteration began with all EnvRunners.
                before = training.iterations[-2]
                return before.healthy == NUM_RUNNERS and before.end > joined

            training.until(is_used, 90.0)
            numbers["join_to_use_s"] = round(training.iterations[-1].end - joined, 1)
            where = runner_nodes(algo)
            numbers["new_node_has_runner"] = new.node_id in where.values()
            say(f"the new node was used {numbers['join_to_use_s']} s after it had joined: {where}")
        numbers["steps_per_s_after"], numbers["stages_after"] = training.rate(args.seconds / 2)
        numbers["inexact_results"] = training.num_wrong
        numbers["restarts"] = training.result["fault_tolerance"]["num_remote_worker_restarts"]
        numbers["learner_restarts"] = algo.learner_group.get_stats()["num_learner_restarts"]
        numbers["account"] = training.account
        return numbers
    finally:
        algo.stop()


def missed_bars(numbers: dict[str, Any]) -> list[str]:
    """Bars that the numbers of a rehearsal miss."""
    missed = []
    if numbers["recovery_s"] > RECOVERY_BAR_S:
        missed.append(f"training continued {numbers['recovery_s']} s after the notice (bar: {RECOVERY_BAR_S:g} s)")
    if numbers.get("join_to_use_s", 0.0) > JOIN_BAR_S:
        missed.append(f"the new node was used after {numbers['join_to_use_s']} s (bar: {JOIN_BAR_S:g} s)")
    if not numbers.get("new_node_has_runner", True):
        missed.append("no EnvRunner is on the new node")
    if not numbers["is_placed_well"]:
        missed.append("actors are not placed as they should")
    if numbers["inexact_results"]:
        missed.append(f"{numbers['inexact_results']} results do not account for each env step")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=["PPO", "IMPALA", "DQN"])
    parser.add_argument("--kill", choices=["runner", "learner"], default="runner", help="the node that is lost")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    parser.add_argument("--no-journal", action="store_true", help="write no line to bench/cluster.jsonl")
    args = parser.parse_args(arguments)
    journal = Journal(None if args.no_journal else JOURNAL, harness.commit())
    failed = False
    for algorithm in args.algorithms:
        with Nodes(1 + num_aggregators(algorithm)) as nodes:
            numbers = rehearse(nodes, algorithm, args)
        numbers["load_average_1min"] = round(os.getloadavg()[0], 1)
        missed = missed_bars(numbers)
        journal.append({"rehearsal": algorithm, "killed": args.kill}, {**numbers, "missed": missed})
        print(f"{algorithm}: {numbers}")
        for line in missed:
            print(f"{algorithm}: MISSED: {line}", flush=True)
        failed |= bool(missed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
