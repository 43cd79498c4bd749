"""Result of `Algorithm.train`, a nested dict: names of the standard metrics, and functions that find values by path."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAN = float("nan")

EPISODE_STATISTICS = (
    "episode_return_mean",
    "episode_return_min",
    "episode_return_max",
    "episode_len_mean",
    "episode_len_min",
    "episode_len_max",
    "episode_duration_sec_mean",
)
"""Metrics of the last ``metrics_num_episodes_for_smoothing`` finished episodes."""

ENV_RUNNERS = (
    *EPISODE_STATISTICS,
    "num_episodes",
    "num_episodes_lifetime",
    "num_env_steps_sampled",
    "num_env_steps_sampled_lifetime",
    "num_agent_steps_sampled/{agent}",
    "num_agent_steps_sampled_lifetime/{agent}",
    "num_module_steps_sampled/{module}",
    "num_module_steps_sampled_lifetime/{module}",
    # RLlib calls these "return" with one agent and "returns" with several; both names are there.
    "agent_episode_return_mean/{agent}",
    "agent_episode_returns_mean/{agent}",
    "module_episode_return_mean/{module}",
    "module_episode_returns_mean/{module}",
    "weights_seq_no",
    "sample",
    "time_between_sampling",
    "env_reset_timer",
    "env_step_timer",
    "rlmodule_inference_timer",
    "env_to_module_connector/connector_pipeline_timer",
    "module_to_env_connector/connector_pipeline_timer",
    "env_to_module_sum_episodes_length_in",
    "env_to_module_sum_episodes_length_out",
)
"""Paths of the metrics of sampling, in training and evaluation."""

_RATES = ("throughput_since_last_reduce", "throughput_since_last_restore")

MODULE = (
    "module_train_batch_size_mean",
    "num_module_steps_trained",
    "num_module_steps_trained_lifetime",
    *(f"num_module_steps_trained_lifetime_throughput/{rate}" for rate in _RATES),
    "num_trainable_parameters",
    "num_non_trainable_parameters",
    "weights_seq_no",
    "diff_num_grad_updates_vs_sampler_policy",
)
"""Paths of the metrics that every learner reports for each module; `Learner.all_result_names` lists the others."""

ALL_MODULES = (
    "num_env_steps_trained",
    "num_env_steps_trained_throughput",
    "num_env_steps_trained_lifetime",
    *(f"num_env_steps_trained_lifetime_throughput/{rate}" for rate in _RATES),
    "num_module_steps_trained",
    "num_module_steps_trained_throughput",
    "num_module_steps_trained_lifetime",
    *(f"num_module_steps_trained_lifetime_throughput/{rate}" for rate in _RATES),
    "num_trainable_parameters",
    "num_non_trainable_parameters",
    "learner_connector/connector_pipeline_timer",
    "learner_connector_sum_episodes_length_in",
    "learner_connector_sum_episodes_length_out",
)
"""Paths of the metrics that a learner reports for all modules together."""

ROOT = (
    *(f"env_runners/num_env_steps_sampled_lifetime_throughput/{rate}" for rate in _RATES),
    "timers/training_iteration",
    "timers/training_step",
    "timers/env_runner_sampling_timer",
    "timers/learner_update_timer",
    "timers/synch_weights",
    "timers/synch_env_connectors",
    "timers/restore_env_runners",
    "fault_tolerance/num_healthy_workers",
    "fault_tolerance/num_remote_worker_restarts",
    "fault_tolerance/num_env_runners_dropped_lifetime",
    "env_runner_group/actor_manager_num_outstanding_async_reqs",
    "num_training_step_calls_per_iteration",
    "num_env_steps_sampled_lifetime",
    "num_env_steps_sampled_lifetime_throughput",
    "training_iteration",
    "timestamp",
    "pid",
    "time_this_iter_s",
    "time_total_s",
    "time_since_restore",
    "iterations_since_restore",
    "perf/cpu_util_percent",
    "perf/ram_util_percent",
)
"""Paths of the other standard numbers in a result."""

EVALUATION = (
    "num_healthy_workers",
    "num_remote_worker_restarts",
    "num_env_runners_dropped_lifetime",
    "actor_manager_num_outstanding_async_reqs",
)
"""Metrics of an evaluation, in addition to the metrics of its sampling."""

NUM_STEPS_EVALUATED = "num_module_steps_sampled"
"""Name of a metric: number of steps of held-out data on which learners computed the loss of a module."""

NOT_NUMBERS = {"trial_id": "default", "date": "", "hostname": "", "node_ip": "", "done": False}
"""Top-level keys whose values are not numbers, with their initial values."""

_OF_RUNNERS = frozenset(
    tuple(part for part in name.split("/") if not part.startswith("{"))
    for name in (*ENV_RUNNERS, "num_env_steps_sampled_lifetime_throughput")
)
_AT_THE_ROOT = frozenset(
    {*(name.split("/")[0] for name in ROOT), *NOT_NUMBERS, "config", "evaluation", "fingerprint", "learners", "profile"}
)


@functools.cache
def is_name_of_runners(path: tuple[str, ...]) -> bool:
    """Whether a metric with the path `path` below ``env_runners`` in results would collide with a standard metric.

    Two metrics collide if their paths are equal, or if one path begins with the other.
    """
    return any(path[: len(own)] == own or own[: len(path)] == path for own in _OF_RUNNERS)


def is_name_at_the_root(path: tuple[str, ...]) -> bool:
    """Whether `path` is a reserved top-level key of results, such as ``("learners",)``.

    Callbacks cannot log a value under this key itself; longer paths, such as ``("learners", "x")``, are not reserved.
    """
    return len(path) == 1 and path[0] in _AT_THE_ROOT


_RETURN = "env_runners/episode_return_mean"
_OLD_KEYS = {
    "episode_reward_mean": _RETURN,
    "episode_reward_min": "env_runners/episode_return_min",
    "episode_reward_max": "env_runners/episode_return_max",
    "timesteps_total": "num_env_steps_sampled_lifetime",
    "agent_timesteps_total": "num_env_steps_sampled_lifetime",
    "episodes_total": "env_runners/num_episodes_lifetime",
    **dict.fromkeys(("reward", "rewards", "return", "returns", "ep_rew_mean", "mean_reward"), _RETURN),
    "ep_len_mean": "env_runners/episode_len_mean",
    "sampler_results": "env_runners",
    "info": "learners",
}
"""Keys of RLlib's old results and of other packages: ``{key: path in results of this package}``."""

_ABSENT = {
    "evaluation": "It comes with the first evaluation: config.evaluation(evaluation_interval=1), or algo.evaluate().",
    "custom_metrics": "metrics_logger.log_value(name, value) in a callback puts a number beside 'env_runners'.",
    "hist_stats": "algo.history has all iterations, as in algo.history['env_runners/episode_return_mean'].",
}
"""Keys that a result may lack: ``{key: advice}``."""


def empty_result(
    module_ids: Sequence[str] = ("default_policy",),
    *,
    agent_ids: Sequence[str] = ("default_agent",),
    loss_keys: Sequence[str] = ("total_loss",),
    evaluation: bool = False,
) -> dict[str, Any]:
    """Creates a placeholder for a result of `Algorithm.train`, before any value is known: a nested dict with all keys.
    All numbers in it are NaN.

    Args:
        module_ids: Modules that sample and learn.
        agent_ids: Agents of the environment.
        loss_keys: Names that the learner reports for each module: its `all_result_names`.
        evaluation: Whether the result contains evaluations.

    Returns:
        Nested dict; numbers are NaN.
    """
    result: dict[str, Any] = {}
    ids = {"{agent}": agent_ids, "{module}": module_ids}
    sampling = list(_paths("env_runners", ENV_RUNNERS, ids))
    paths = [*sampling, *ROOT]
    for module_id in module_ids:
        paths += _paths(f"learners/{module_id}", (*loss_keys, *MODULE), ids)
    paths += _paths("learners/__all_modules__", ALL_MODULES, ids)
    if evaluation:
        paths += [*_paths("evaluation", (*sampling, *EVALUATION), ids), "timers/evaluation_iteration"]
    for path in paths:
        *parents, name = path.split("/")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = NAN
    return {**result, **NOT_NUMBERS}


def _paths(prefix: str, names: Sequence[str], ids: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name in names:
        slot = next((slot for slot in ids if slot in name), None)
        for member in ids[slot] if slot else ("",):
            yield f"{prefix}/{name.replace(slot, member) if slot else name}"


def adds_up(name: str) -> bool:
    """Whether the values of the metric `name` from several learners are summed.

    True if the values count steps that were trained on or evaluated; the values of other metrics are averaged.
    """
    return name == NUM_STEPS_EVALUATED or ("steps_trained" in name and not name.endswith("_throughput"))


def merge_nested(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Merges the nested dict `new` into `into`, in place; values of `new` take precedence. Dicts in `new` are copied;
    its other values are shared, not copied.
    """
    for key, value in new.items():
        if isinstance(value, dict):  # not Mapping: ten times as long to tell, for every number of every result
            below = into.get(key)
            if not isinstance(below, dict):
                below = into[key] = {}
            merge_nested(below, value)
        else:
            into[key] = value


def flatten_result(nested: Mapping[Any, Any], sep: str = "/") -> dict[str, Any]:
    """Flattens the nested dicts of a result to one dict with keys such as ``"env_runners/episode_return_mean"``.

    Args:
        nested: A result. Keys that are no strings become strings.
        sep: Separator between the parts of a key.

    Returns:
        ``{joined keys: value that is not a dict}``. Empty dicts are left out.
    """
    return {sep.join(path): value for path, value in nested_leaves(nested)}


def nested_leaves(tree: Mapping[Any, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields ``(path, value)`` for each leaf of nested dicts: each value that is not a dict. Keys in the path become
    strings.
    """
    for name, value in tree.items():
        path = (*prefix, str(name))
        if isinstance(value, Mapping):
            yield from nested_leaves(value, path)
        else:
            yield path, value


def get_nested(result: Mapping[Any, Any], key: str | Sequence[str]) -> Any:
    """Looks up the value under a path, such as ``"env_runners/episode_return_mean"``, in a nested result.

    Args:
        result: Nested dict.
        key: ``"env_runners/episode_return_mean"`` or the same as a tuple.

    Raises:
        KeyError: If the path does not exist; the message names similar keys.
    """
    parts = key.split("/") if isinstance(key, str) else list(key)
    node: Any = result
    for part in parts:
        if not isinstance(node, Mapping) or part not in node:
            raise KeyError(no_number("/".join(parts), result))
        node = node[part]
    return node


def no_number(key: str, result: Mapping[Any, Any]) -> str:
    """Returns the error message for a path at which a result contains no number.

    The message lists up to four similar paths; if no path is similar, it lists the paths of all numbers.
    """
    keys = _paths_of_numbers(result)
    similar = _similar(key, keys)
    hint = f"Near matches: {', '.join(map(repr, similar[:4]))}." if similar else f"It has the numbers {sorted(keys)}."
    return f"The result has no number {key!r}. {hint}"


def no_key(key: Any, result: Mapping[Any, Any], parent: str = "") -> str:
    """Returns the error message for a missing key of a result.

    The message contains advice about the key if the key is in `_ABSENT`, else the most similar path, or the list of the
    existing keys if no path is similar.

    Args:
        key: Key that was looked up.
        result: Result in which it was looked up; without its parent.
        parent: The key of `result` in the whole one; empty for the whole one.
    """
    subject = f"result[{parent!r}]" if parent else "The result"
    if key in _ABSENT:
        return f"{subject} has no {key!r}. {_ABSENT[key]}"
    nested = {parent: result} if parent else result
    similar = _similar(f"{parent}/{key}" if parent else str(key), _paths_of_numbers(nested))
    if not similar:
        return f"{subject} has no {key!r}. Its keys are {list(result)}."
    read = "".join(f"[{part!r}]" for part in similar[0].split("/"))
    return f"{subject} has no {key!r}. Did you mean result{read}?"


def _paths_of_numbers(result: Mapping[Any, Any]) -> list[str]:
    return [key for key in flatten_result(result) if not key.startswith("config/")]


def _similar(key: str, keys: Sequence[str]) -> list[str]:
    """Finds the paths of a result that are most similar to a missing path, most likely first."""
    name = key.rsplit("/", 1)[-1]
    if name in _OLD_KEYS:
        return [_OLD_KEYS[name]]
    # The right name below another parent comes first.
    similar = [k for k in keys if k.rsplit("/", 1)[-1] == name or k.startswith(f"{key}/")]
    similar += [k for k in difflib.get_close_matches(key, keys, n=3) if k not in similar]
    if similar:
        return similar
    names = {k.rsplit("/", 1)[-1]: k for k in reversed(keys)}
    return [names[n] for n in difflib.get_close_matches(name, names, n=3)]
