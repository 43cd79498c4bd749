"""Test of fault tolerance: PPO solves CartPole-v1 while its actors are killed.

    python -m bench.soak --kill-every 3
    python -m bench.soak --kill-every 5 --num-learners 2
    python -m bench.soak --kill-every 3 --crash-probability 0.0001

Every few seconds a thread sends SIGKILL to a random one of this run's actors: env runners, and learners if there are
any. With ``--crash-probability`` the environments raise by chance, too, and are made anew. Training goes on until the
mean return reaches the target and enough actors were killed. Exits with 1 if the target is not reached in time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from bench.learning import RLLIB_CRITERIA, rllib_settings

ENV = "CartPole-v1"


class Flaky(gym.Wrapper):
    """Wrapper that raises a RuntimeError in random steps.

    Args:
        env: The environment.
        probability: Of a failure in a step.
    """

    def __init__(self, env: gym.Env, probability: float):
        super().__init__(env)
        self.probability = probability

    def step(self, action: Any) -> Any:
        if self.unwrapped.np_random.random() < self.probability:
            raise RuntimeError("failed by chance")
        return self.env.step(action)


def make_env(config: Any) -> gym.Env:
    """CartPole-v1 that fails with the probability ``config["probability"]`` per step, if there is one."""
    env = gym.make(ENV)
    return Flaky(env, config["probability"]) if config["probability"] else env


class Killer:
    """Kills registered processes, one every few seconds, in a separate thread.

    A process is known by a file descriptor from the moment that it tells its number: no other process is hit that got
    this number later.

    Args:
        every: Seconds between two kills.
        seed: Of the choice.

    Attributes:
        killed: ``(seconds since the start, name)`` of every kill.
    """

    def __init__(self, every: float, seed: int):
        self.every = every
        self.killed: list[tuple[float, str]] = []
        self._random = random.Random(seed)
        self._processes: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)

    def register(self, name: str, pid: int) -> None:
        """Registers the process of an actor of the run."""
        with self._lock:
            known = self._processes.get(name)
            if known is not None and known[0] == pid:
                return
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return  # It has died since it answered.
            if known is not None:
                os.close(known[1])
            self._processes[name] = (pid, descriptor)

    def _run(self) -> None:
        while not self._ended.wait(self.every):
            with self._lock:
                while self._processes:
                    name = self._random.choice(sorted(self._processes))
                    _, descriptor = self._processes.pop(name)
                    try:
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    except ProcessLookupError:
                        continue  # Gone already: together with another learner, for example.
                    finally:
                        os.close(descriptor)
                    self.killed.append((time.monotonic() - self._started, name))
                    print(f"  killed {name} after {self.killed[-1][0]:.1f} s", flush=True)
                    break

    def __enter__(self) -> Killer:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._ended.set()
        self._thread.join()
        for _, descriptor in self._processes.values():
            os.close(descriptor)


def register_actors(algo: Any, killer: Killer) -> None:
    """Registers the present processes of all actors at the killer."""
    pids = algo.env_runner_group.foreach_env_runner(pid_of, local_env_runner=False, return_actor_ids=True)
    for actor_id, pid in pids:
        killer.register(f"env runner {actor_id}", pid)
    if algo.config.num_learners:
        for call in algo.learner_group.foreach_learner(pid_of):
            if call.ok:
                killer.register(f"learner {call.actor_id}", call.get())


def pid_of(actor: Any) -> int:
    """Returns the process id of an actor."""
    del actor
    return os.getpid()


def train(args: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Trains until the target is reached and enough actors were killed, or the time is over.

    Returns:
        Numbers about the run.
    """
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.tune.registry import register_env

    register_env("soak", make_env)
    config = (
        PPOConfig()
        .environment("soak", env_config={"probability": args.crash_probability})
        .update_from_dict(rllib_settings()[ENV])
        .env_runners(num_env_runners=args.num_env_runners, num_cpus_per_env_runner=1)
        .learners(num_learners=args.num_learners, learner_snapshot_interval=1)
        .fault_tolerance(restart_failed_sub_environments=args.crash_probability > 0.0)
        .debugging(seed=args.seed)
    )
    algo = config.build_algo()
    started = time.monotonic()
    best, result, failures = float("-inf"), {}, 0
    try:
        with Killer(args.kill_every, args.seed) as killer:
            while time.monotonic() - started < args.seconds:
                register_actors(algo, killer)
                result = algo.train()
                mean = result["env_runners"]["episode_return_mean"]
                best = max(best, mean) if mean == mean else best
                failures = int(result["env_runners"].get("num_env_step_failures", 0))
                if result["training_iteration"] % 10 == 0:
                    tolerance = result["fault_tolerance"]
                    report(
                        f"iteration {result['training_iteration']}: {result['num_env_steps_sampled_lifetime']} steps, "
                        f"return {mean:.1f}, {len(killer.killed)} kills, {tolerance['num_remote_worker_restarts']} "
                        f"env runner restarts, {tolerance['num_healthy_workers']} healthy"
                    )
                if best >= args.target and len(killer.killed) >= args.min_kills:
                    break
        return {
            "reached": best >= args.target,
            "best_return": round(best, 1),
            "env_steps": result.get("num_env_steps_sampled_lifetime", 0),
            "iterations": result.get("training_iteration", 0),
            "seconds": round(time.monotonic() - started, 1),
            "kills": len(killer.killed),
            "kills_of_learners": sum(name.startswith("learner") for _, name in killer.killed),
            "env_runner_restarts": algo.env_runner_group.num_remote_worker_restarts(),
            "learner_restarts": algo.learner_group.get_stats()["num_learner_restarts"],
            "env_failures": failures,
        }
    finally:
        algo.stop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--min-kills", type=int, default=5, help="train on until so many were killed")
    parser.add_argument("--num-env-runners", type=int, default=2)
    parser.add_argument("--num-learners", type=int, default=0, help="0: the learner is in this process and not killed")
    parser.add_argument("--crash-probability", type=float, default=0.0, help="of an environment, per step")
    parser.add_argument("--target", type=float, default=RLLIB_CRITERIA[ENV].target, help="mean return to reach")
    parser.add_argument("--seconds", type=float, default=600.0, help="give up after so long")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    import ray

    ray.init(
        num_cpus=args.num_env_runners + args.num_learners + 2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        numbers = train(args, lambda line: print(line, flush=True))
    finally:
        ray.shutdown()
    print(numbers)
    return 0 if numbers["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
