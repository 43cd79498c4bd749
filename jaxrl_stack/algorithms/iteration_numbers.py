"""Metrics about sampling in an iteration's result, for one run and for the members (runs) of a population."""

from __future__ import annotations

import datetime
import math
import os
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.execution.episode_results import mean_returns_by_id
from jaxrl_stack.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

if TYPE_CHECKING:
    from jaxrl_stack.core.module_map import ModuleMap


ONE_AGENT: Mapping[str, Mapping[str, float]] = MappingProxyType({})
"""Mean returns by agent and by module if there is only one agent: empty."""


class Progress(NamedTuple):
    """Counters of a run at one time.

    The difference between two `Progress` values gives metrics of the period between them: of an iteration, or of the
    whole time since the run began or was restored.

    In a population, `num_episodes` is int64 ``[M]``, by member; other counters are equal for all members.
    `num_agent_steps` has the completed steps of each of several agents, ``{agent id: number}``; None for one agent.
    `num_opponent_steps` is the number of these agent steps in which snapshots of the policy acted.
    """

    iteration: int = 0
    time_total: float = 0.0
    num_env_steps: int = 0
    num_env_steps_trained: int = 0
    num_updates: int = 0
    num_episodes: Any = 0
    num_agent_steps: Mapping[Any, int] | None = None
    num_opponent_steps: int = 0

    def num_counted(self, unit: str) -> int:
        """Number of steps in the whole run, in the unit that ``count_steps_by`` sets: "env_steps", or "agent_steps" of
        all agents together.

        With a single agent, both are the number of env steps.
        """
        if unit == "env_steps" or self.num_agent_steps is None:
            return self.num_env_steps
        return sum(self.num_agent_steps.values())

    def agent_steps(self, module_map: ModuleMap) -> Mapping[Any, int]:
        """Number of steps of each agent in the whole run, ``{agent id: number}``. For a single agent, the number is
        `num_env_steps`.
        """
        if self.num_agent_steps is None:
            return dict.fromkeys(module_map.module_of, self.num_env_steps)
        return self.num_agent_steps


def is_prefilled(num_prefilled_steps: int, now: Progress, before: Progress) -> bool:
    """Whether the run has sampled at least `num_prefilled_steps` env steps in total, so that updates can begin.

    Also True if the iteration has sampled no env steps: an iteration without sampling would otherwise never end.

    Args:
        num_prefilled_steps: The config's value.
        now: Counters after a training step of the iteration.
        before: Counters before the iteration. A user's training step may sample nothing.
    """
    return now.num_env_steps >= num_prefilled_steps or now.num_env_steps == before.num_env_steps


def lifetime_counts(now: Progress, module_map: ModuleMap) -> dict[str, Any]:
    """Metrics with the lifetime counts of a run: episodes, env steps, and steps of each agent and module."""
    return {
        "num_episodes_lifetime": now.num_episodes,
        NUM_ENV_STEPS_SAMPLED_LIFETIME: now.num_env_steps,
        **module_map.numbers(
            "num_{}_steps_sampled_lifetime", now.agent_steps(module_map), of_opponents=now.num_opponent_steps
        ),
    }


def sampling_numbers(
    now: Progress,
    before: Progress,
    restored_at: Progress,
    *,
    episodes: dict[str, Any],
    seconds: float,
    module_map: ModuleMap,
    means: Mapping[str, Mapping[str, float]] = ONE_AGENT,
) -> dict[str, Any]:
    """Metrics under the key ``env_runners`` of an iteration's result: counts, rates and returns of the sampled steps.

    Args:
        now: Counters after the iteration.
        before: Counters before the iteration.
        restored_at: Counters when the run began or was restored.
        episodes: Statistics of the last episodes, from `episode_results`.
        seconds: Duration of the iteration's training.
        module_map: Map from agents to modules.
        means: Mean returns of several agents; see `EndedEpisodes.mean_returns`.
    """
    before_steps = before.agent_steps(module_map)
    agent_steps = {agent: n - before_steps[agent] for agent, n in now.agent_steps(module_map).items()}
    sampled = now.num_env_steps - before.num_env_steps
    since_restore = max(now.time_total + seconds - restored_at.time_total, 1e-9)
    return {
        **episodes,
        **mean_returns_by_id(episodes["episode_return_mean"], means, module_map),
        "num_episodes": now.num_episodes - before.num_episodes,
        "num_env_steps_sampled": sampled,
        **module_map.numbers(
            "num_{}_steps_sampled", agent_steps, of_opponents=now.num_opponent_steps - before.num_opponent_steps
        ),
        "num_env_steps_sampled_lifetime_throughput": {
            "throughput_since_last_reduce": sampled / seconds,
            "throughput_since_last_restore": (now.num_env_steps - restored_at.num_env_steps) / since_restore,
        },
        "weights_seq_no": now.num_updates,
        **lifetime_counts(now, module_map),
    }


class TrainedRates:
    """Computes trained steps per second: of an iteration, and since the run began or was restored."""

    def __init__(self) -> None:
        self._since_restore: dict[tuple[str, str], float] = {}

    def add_to(self, learners: Mapping[str, Any], *, seconds: float, since_restore: float) -> None:
        """Computes trained steps per second, and writes these rates into the iteration's learner results.

        Adds the iteration's trained steps to the totals since the run began or was restored. Computes a rate for the
        iteration, and a rate for the time since the run began or was restored. The rates replace entries that are NaN.

        Args:
            learners: ``result["learners"]``, ``{module id or "__all_modules__": {name: number}}``; changed in place.
            seconds: Duration of the iteration's training.
            since_restore: Seconds since the run began or was restored.
        """
        seconds, since_restore = max(seconds, 1e-9), max(since_restore, 1e-9)
        for owner, own in learners.items():
            for kind in ("num_env_steps_trained", "num_module_steps_trained"):
                steps = own.get(kind) if isinstance(own, Mapping) else None
                if not isinstance(steps, int | float | np.number) or math.isnan(steps):
                    continue
                so_far = self._since_restore[owner, kind] = self._since_restore.get((owner, kind), 0.0) + float(steps)
                rates = {
                    "throughput_since_last_reduce": steps / seconds,
                    "throughput_since_last_restore": so_far / since_restore,
                }
                _fill(own, f"{kind}_throughput", steps / seconds)
                for name, rate in rates.items():
                    _fill(own.get(f"{kind}_lifetime_throughput", {}), name, rate)


def _fill(numbers: Any, name: str, value: float) -> None:
    """Replaces the entry `name` of a metrics dict by `value` if the entry exists and is NaN."""
    if math.isnan(numbers.get(name, 0.0)):
        numbers[name] = value


def root_numbers(now: Progress, before: Progress, *, calls: int, seconds: float) -> dict[str, Any]:
    """Metrics at the top level of an iteration's result, such as lifetime step counts and the date. Durations are not
    included; `time_numbers` returns them.

    Args:
        now, before, seconds: See `sampling_numbers`.
        calls: Training steps of the iteration.
    """
    date = datetime.datetime.now()
    return {
        "num_env_steps_sampled_lifetime": now.num_env_steps,
        "num_env_steps_sampled_lifetime_throughput": (now.num_env_steps - before.num_env_steps) / seconds,
        "num_training_step_calls_per_iteration": calls,
        "training_iteration": now.iteration,
        "timestamp": int(date.timestamp()),
        "date": date.strftime("%Y-%m-%d_%H-%M-%S"),
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "done": False,
    }


def time_numbers(
    elapsed: float, compile_seconds: float, device_seconds: float, *, now: Progress, restored_at: Progress
) -> dict[str, Any]:
    """Durations in seconds for an iteration's result: of the iteration, of its parts, and of the run's iterations.

    The parts are compiling, device and host. Two durations of the run's iterations are included: of all iterations, and
    of the iterations since the run began or was restored. The result also contains the number of iterations since the
    run began or was restored.

    Args:
        elapsed: Duration of the iteration, in seconds.
        compile_seconds: Upper bound of the seconds spent on tracing and compiling.
        device_seconds: Seconds in calls of compiled programs, compilation included.
        now, restored_at: See `sampling_numbers`; `time_total` includes this iteration.
    """
    compile_s = min(compile_seconds, elapsed)
    device_s = max(0.0, device_seconds - compile_s)
    return {
        "timers": {
            "training_iteration": elapsed,
            "compile_s": compile_s,
            "device_s": device_s,
            "host_s": max(0.0, elapsed - compile_s - device_s),
        },
        "time_this_iter_s": elapsed,
        "time_total_s": now.time_total,
        "time_since_restore": now.time_total - restored_at.time_total,
        "iterations_since_restore": now.iteration - restored_at.iteration,
    }
