"""Ray resources of an algorithm's actors: resource bundles and placement groups from a config's settings, and the start
of Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from jaxrl_stack.utils.actor_backend import RAY
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.waiting import LINE_S, WaitingReport

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

Role: TypeAlias = Literal["main", "env_runner", "eval_env_runner", "offline_eval_runner", "learner", "aggregator"]


class RoleSettings(NamedTuple):
    """Names of the config settings for one role of processes, such as learners: CPUs, GPUs and other resources per
    process, and number of processes.
    """

    cpus: str | None
    gpus: str | None
    custom: str | None
    count: str | None


def _settings_of_actors(kind: str, count: str) -> RoleSettings:
    return RoleSettings(f"num_cpus_per_{kind}", f"num_gpus_per_{kind}", f"custom_resources_per_{kind}", count)


SETTINGS: dict[Role, RoleSettings] = {
    "main": RoleSettings(
        "num_cpus_for_main_process", "num_gpus_per_learner", "custom_resources_for_main_process", None
    ),
    "env_runner": _settings_of_actors("env_runner", "num_env_runners"),
    "eval_env_runner": _settings_of_actors("env_runner", "evaluation_num_env_runners"),
    "offline_eval_runner": _settings_of_actors("offline_eval_runner", "num_offline_eval_runners"),
    "learner": _settings_of_actors("learner", "num_learners"),
    "aggregator": RoleSettings(None, None, None, "num_aggregator_actors_per_learner"),
}

_NAMES: dict[Role, str] = {
    "env_runner": "EnvRunner",
    "eval_env_runner": "evaluation EnvRunner",
    "offline_eval_runner": "offline evaluation",
    "learner": "Learner",
    "aggregator": "aggregator",
}
"""Role of actors -> its name in messages."""

AGGREGATOR_CPUS = 1.0
"""CPUs of an aggregator actor."""

_AUTOSCALER_CONFIG = "~/ray_bootstrap_config.yaml"
"""File that Ray writes on the head node of a cluster that can grow."""

_INIT_WARNINGS = (
    "Tip: In future versions of Ray, Ray will no longer override accelerator visible devices",
    r"os\.fork\(\) was called",
)
"""Warnings during the start of Ray: a change of Ray's defaults, and a fork that is followed by an exec at once."""


def role_resources(config: AlgorithmConfig, role: Role) -> dict[str, float]:
    """Ray resources of one process of a role, such as learner: ``{"CPU": ..., "GPU": ..., custom: ...}``. Amounts of 0
    are omitted.

    The main process of an algorithm without learner actors includes its learner.

    Args:
        config: The algorithm's config.
        role: Kind of process.
    """
    if role == "eval_env_runner":
        evaluation = config.get_evaluation_config_object()
        config = config if evaluation is None else evaluation
    if role == "aggregator":
        return {"CPU": AGGREGATOR_CPUS}
    names: Any = SETTINGS[role]
    cpus = learner_cpus(config) if role == "learner" else getattr(config, names.cpus)
    gpus, custom = getattr(config, names.gpus), getattr(config, names.custom)
    if role == "main":
        has_learner = not config.num_learners
        cpus, gpus = (max(cpus, learner_cpus(config)), gpus) if has_learner else (cpus, 0)
    wanted = {"CPU": cpus, "GPU": gpus, **custom}
    return {name: float(amount) for name, amount in wanted.items() if amount}


def bundle_resources(config: AlgorithmConfig, role: Role) -> dict[str, float]:
    """Ray resources of the placement group bundle for one process: ``{"CPU": ..., "GPU": ..., custom: ...}``.

    The resources include the resources of the actors that share the bundle, and therefore the node, with this process.
    Amounts of 0 are omitted.

    The aggregators of a learner actor are in the learner's bundle. The aggregators of a local learner have separate
    bundles.

    Args:
        config: The algorithm's config.
        role: Kind of process.
    """
    wanted = role_resources(config, role)
    if _has_aggregators(config, role):
        wanted["CPU"] = wanted.get("CPU", 0.0) + AGGREGATOR_CPUS * config.num_aggregator_actors_per_learner
    return wanted


def _has_aggregators(config: AlgorithmConfig, role: Role) -> bool:
    return role == "learner" and config.num_aggregator_actors_per_learner > 0


def learner_cpus(config: AlgorithmConfig) -> float:
    """Number of CPUs of one learner: ``num_cpus_per_learner``.

    If this setting is "auto" or None, the number is 0 for a learner with a GPU, and 1 for a learner without a GPU.
    """
    if config.num_cpus_per_learner in ("auto", None):
        return 0 if config.num_gpus_per_learner else 1
    return float(config.num_cpus_per_learner)


def actor_options(config: AlgorithmConfig, role: Role) -> dict[str, Any]:
    """Ray resources of one actor of a role, such as learner, as options of a Ray actor: ``{"num_cpus": ..., "num_gpus":
    ..., "resources": {...}}``.
    """
    resources = role_resources(config, role)
    return {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0), "resources": resources}


def resource_bundles(config: AlgorithmConfig, *, main_process: bool = True) -> tuple[list[dict[str, float]], str]:
    """Resource bundles of an algorithm for a Ray placement group, one bundle per process.

    Args:
        config: The algorithm's config.
        main_process: Whether the first bundle is for the main process, even if it needs no resources, as a tuner
            expects. Without a tuner, this process already runs.

    Returns:
        ``(bundles, placement strategy)``. The bundles are in this order: main process, EnvRunners, evaluation
        EnvRunners, offline evaluation, learners, aggregators of a local learner. Actors that need no resources have no
        bundle.
    """
    bundles = [bundle_resources(config, role) for role in _processes(config)]
    bundles = [bundle for bundle in bundles if bundle]
    if main_process:
        bundles.insert(0, bundle_resources(config, "main"))
    return bundles, config.placement_strategy


def bundle_index(config: AlgorithmConfig, role: Role) -> int:
    """Index of the first resource bundle for actors of the role `role`, in the list ``resource_bundles(config,
    main_process=False)[0]``. This list has no bundle for the main process.

    Args:
        config: The algorithm's config; for evaluation runners, too, the config of training.
        role: Kind of the actors.
    """
    before = itertools.takewhile(lambda other: other != role, _processes(config))
    return sum(bool(bundle_resources(config, other)) for other in before)


def _processes(config: AlgorithmConfig) -> list[Role]:
    """Returns a list with the role of each actor, in the order of the resource bundles.

    A role is, for example, "learner". Environments that run on the device have no EnvRunner actors. The list omits the
    aggregators of learner actors, because these aggregators share the learners' bundles.
    """
    # Without an environment to train on, none of the first kind samples; and RLlib's default alone asks for none.
    num_runners = 0 if config.env is None else config.num_sampling_actors
    # A local learner has aggregators only if EnvRunner actors sample.
    has_own_aggregators = num_runners and not config.num_learners
    numbers: dict[Role, int] = {
        "env_runner": num_runners,
        "eval_env_runner": config.num_evaluation_actors,
        "offline_eval_runner": config.num_offline_eval_runners,
        "learner": config.num_learners,
        "aggregator": config.num_aggregator_actors_per_learner if has_own_aggregators else 0,
    }
    return [role for role, number in numbers.items() for _ in range(number)]


def num_actors(config: AlgorithmConfig) -> int:
    """Number of an algorithm's actors, including actors that need no Ray resources.

    Aggregator actors, which build train batches, count only if the learner runs in the main process; the aggregators of
    learner actors do not count.
    """
    return len(_processes(config))


def _roles(config: AlgorithmConfig, main_process: bool) -> list[Role]:
    roles: list[Role] = ["main"] if main_process else []
    return roles + list(dict.fromkeys(_processes(config)))


# ------------------------------------------------------------------------------------------------ what a cluster has


def _can_grow() -> bool:
    return os.path.exists(os.path.expanduser(_AUTOSCALER_CONFIG))


def _resources_of_nodes() -> list[dict[str, float]]:
    """Resources of each living node of the connected Ray cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def is_one_machine() -> bool:
    """Whether Ray is connected to a cluster that has only one node and cannot grow, so that all actors run on this
    machine.
    """
    import ray

    return ray.is_initialized() and not _can_grow() and len(_resources_of_nodes()) == 1


def check_resources(config: AlgorithmConfig, *, main_process: bool = False) -> None:
    """Raises ValueError if the connected Ray cluster cannot provide the resources of an algorithm's actors.

    Resources that others use at the moment count as available, because they become free. A cluster that can grow is not
    checked.

    Args:
        config: The algorithm's config.
        main_process: Whether the main process takes resources, too.

    Raises:
        ValueError: If it cannot; names the settings, the resources that they need, and the existing ones.
    """
    if _can_grow():
        return
    problem = misfit(config, _resources_of_nodes(), main_process=main_process)
    if problem is not None:
        raise ValueError(problem)


def misfit(config: AlgorithmConfig, nodes: Sequence[Mapping[str, float]], *, main_process: bool = False) -> str | None:
    """Explains why the nodes `nodes` cannot provide the resources of an algorithm's actors. Returns None if no reason
    is found.

    Args:
        config: The algorithm's config.
        nodes: Resources of each node, ``{"CPU": ..., "GPU": ..., custom: ...}``.
        main_process: Whether the main process takes resources, too.
    """
    bundles, strategy = resource_bundles(config, main_process=main_process)
    total, available = _sum(bundles), _sum(nodes)
    for name, amount in total.items():
        if amount > available[name]:
            return _too_much(config, name, amount, available[name], main_process)
    return _unplaceable(config, _roles(config, main_process), bundles, strategy, nodes)


def _unplaceable(
    config: AlgorithmConfig,
    roles: Sequence[Role],
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    nodes: Sequence[Mapping[str, float]],
) -> str | None:
    """Explains why the nodes `nodes` cannot hold the actors of `roles`, or returns None if no reason is found.

    The reason is that no node is large enough for the bundle of one process, or that the nodes cannot satisfy the
    placement strategy. Both can happen even if the sum of the nodes' resources suffices.
    """
    for role in roles:
        wanted = bundle_resources(config, role)
        if not any(_fits(wanted, node) for node in nodes):
            settings = ", ".join(_settings_of(config, role, wanted))
            return (
                f"{settings} asks for {_listed(wanted)} in one process; no node of the Ray cluster has that much: "
                f"{'; '.join(_listed(node) for node in nodes)}. Lower it, or add a larger node."
            )
    total = _sum(bundles)
    if strategy == "STRICT_PACK" and not any(_fits(total, node) for node in nodes):
        return (
            f"placement_strategy='STRICT_PACK' puts all actors, {_listed(total)}, on one node, but the nodes have "
            f"{'; '.join(_listed(node) for node in nodes)}. Use 'PACK', or fewer actors."
        )
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return (
            f"placement_strategy='STRICT_SPREAD' puts each of {len(bundles)} actors on a separate node, but the Ray "
            f"cluster has {len(nodes)} node(s). Use 'SPREAD', or fewer actors."
        )
    return None


def _too_much(config: AlgorithmConfig, name: str, wanted: float, available: float, main_process: bool) -> str:
    parts = []
    for role in _roles(config, main_process):
        amount = bundle_resources(config, role).get(name, 0)
        if amount and role == "aggregator":
            parts += _settings_of(config, role, {name: amount})
        elif amount:
            num = SETTINGS[role].count
            times = "" if num is None else f"{num}={getattr(config, num)} times "
            settings = _settings_of(config, role, {name: amount})
            parts.append(f"{times}{settings[0]}" if len(settings) == 1 else f"{times}({' plus '.join(settings)})")
    unit = f"{name}s" if name in ("CPU", "GPU") else f"of the resource {name!r}"
    more = f"num_{name.lower()}s={wanted:g}" if name in ("CPU", "GPU") else f"resources={{{name!r}: {wanted:g}}}"
    return (
        f"{' plus '.join(parts)} comes to {wanted:g} {unit}; the Ray cluster has {available:g}. Lower these "
        f"settings, start Ray with ray.init({more}) before the algorithm is built, or add nodes."
    )


def _settings_of(config: AlgorithmConfig, role: Role, resources: Mapping[str, float]) -> list[str]:
    """Names and values of the config settings that determine the resources of a process, for messages:
    ``["num_cpus_per_env_runner=2", ...]``.
    """
    cpus, gpus, custom, count = SETTINGS[role]
    if role == "main" and not config.num_learners and learner_cpus(config) > config.num_cpus_for_main_process:
        cpus = "num_cpus_per_learner"
    if role == "aggregator":
        cpus = count
    names: dict[Any, None] = dict.fromkeys({"CPU": cpus, "GPU": gpus}.get(name, custom) for name in resources)
    if "CPU" in resources and _has_aggregators(config, role):
        names["num_aggregator_actors_per_learner"] = None
    return [f"{name}={getattr(config, name)!r}" for name in names]


def _sum(bundles: Sequence[Mapping[str, float]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(bundle)  # pyright: ignore[reportArgumentType, reportCallIssue] - a Counter adds floats, too
    return total


def _fits(wanted: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(amount <= node.get(name, 0) for name, amount in wanted.items())


def _listed(resources: Mapping[str, float]) -> str:
    internal = ("node:", "memory", "object_store_memory", "accelerator_type:")
    shown = [f"{amount:g} {name}" for name, amount in resources.items() if not name.startswith(internal)]
    return ", ".join(shown) or "nothing"


# --------------------------------------------------------------------------------------------------- placement groups


class Placement(NamedTuple):
    """Placement of an algorithm's actors on nodes: the Ray placement groups of EnvRunners and of learners.

    Attributes:
        runners: Ray placement group of all EnvRunners; "SPREAD" spreads actors without a group; None leaves placing to
            Ray.
        learners: Ray placement group. Its last bundles are for the learners, each with its aggregators, or for the
            aggregators of a local learner.
    """

    runners: Any = None
    learners: Any = None

    @property
    def groups(self) -> list[Any]:
        """List of the Ray placement groups in this placement. A group that EnvRunners and learners share is listed
        once.
        """
        groups = [] if self.runners == self.learners else [self.learners]
        return [group for group in (self.runners, *groups) if group is not None and group != "SPREAD"]


def create_placement(config: AlgorithmConfig, *, timeout_seconds: float | None = None) -> Placement:
    """Reserves the Ray resources of an algorithm's actors in placement groups, and returns the groups as a `Placement`.

    With ``placement_strategy="PACK"``, RLlib's default, learners with their aggregators are packed on few nodes, and
    EnvRunners are spread over the nodes. Aggregators of a local learner are on the node of this process if it has room
    for them. Other strategies apply to all actors in one placement group. A log line every ten seconds names the
    resources that are missing.

    Args:
        config: The algorithm's config.
        timeout_seconds: Longest wait for resources. None waits 60 s on a single node, and without a limit on a cluster,
            where nodes may join.

    Returns:
        The groups. In a tuner's trial, this is the trial's group (its first bundle is this process); without groups if
        that group has other bundles, among which Ray places the actors. In the end pass it to `remove_placement`.

    Raises:
        ValueError: If a single node, or the group of this process, can never hold the actors.
        TimeoutError: If the resources are not free in time.
    """
    import ray

    bundles, strategy = resource_bundles(config, main_process=False)
    total = _sum(bundles)
    if not bundles:
        return Placement()
    current = ray.util.get_current_placement_group()
    if current is not None:
        if current.bundle_count == len(bundles) + 1:
            return Placement(current, current)
        reserved = _sum(current.bundle_specs)
        if not _fits(total, reserved):
            raise ValueError(
                f"The actors of this algorithm need {_listed(total)}, but this process's placement group reserves "
                f"only {_listed(reserved)}. Reserve tune.PlacementGroupFactory(resource_bundles(config)[0]) "
                "(jaxrl_stack.utils.resources), or lower num_env_runners, evaluation_num_env_runners or num_learners."
            )
        return Placement()
    if is_one_machine():
        check_resources(config)
        timeout_seconds = 60.0 if timeout_seconds is None else timeout_seconds
    if strategy != "PACK":
        (whole,) = _reserve(config, [_Part(bundles, _roles(config, False), strategy)], timeout_seconds)
        return Placement(whole, whole)
    near: Role = "learner" if config.num_learners else "aggregator"
    num_near = _processes(config).count(near) if bundle_resources(config, near) else 0
    of_runners, of_near = bundles[: len(bundles) - num_near], bundles[len(bundles) - num_near :]
    # The learners first: an EnvRunner does not take the CPU of a node that only a learner can use.
    parts = {
        "learners": _Part(of_near, [near], "PACK"),
        "runners": _Part(of_runners, [r for r in _roles(config, False) if r != near], "SPREAD"),
    }
    parts = {name: part for name, part in parts.items() if part.bundles}
    if near == "aggregator" and of_near:
        parts["learners"] = _near_this_process(parts["learners"])
    groups = _reserve(config, list(parts.values()), timeout_seconds)
    return Placement("SPREAD")._replace(**dict(zip(parts, groups, strict=True)))


class _Part(NamedTuple):
    """Resource bundles, actor roles and placement strategy from which `_reserve` creates one Ray placement group.

    Attributes:
        bundles: Resources of each bundle.
        roles: Roles of the actors in the group.
        strategy: Ray's placement strategy.
        options: Further arguments of ``ray.util.placement_group``.
    """

    bundles: list[dict[str, float]]
    roles: list[Role]
    strategy: str
    options: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Names of the actor roles in this placement group, joined for messages: ``"EnvRunner and Learner"``."""
        return " and ".join(_NAMES[role] for role in self.roles)


def _near_this_process(part: _Part) -> _Part:
    """Returns a copy of a placement group's description, changed to place all bundles on a single node.

    The node of this process is preferred. If no node is large enough, returns the description unchanged.

    If the group does not get a node soon, `_reserve` allows several nodes.
    """
    import ray

    total = _sum(part.bundles)
    if not any(_fits(total, node) for node in _resources_of_nodes()):
        return part
    # Only groups on one node can prefer a node.
    target = {"_soft_target_node_id": ray.get_runtime_context().get_node_id()}
    return part._replace(strategy="STRICT_PACK", options=target)


PATIENCE_S = 4.0
"""Seconds for which a run holds a part of its resources while it waits for the others, at first."""
_MAX_PATIENCE_S = 30.0


def _reserve(config: AlgorithmConfig, parts: list[_Part], timeout_s: float | None) -> list[Any]:
    """Creates Ray placement groups, and waits until all groups have their resources.

    Each entry of `parts` contains the bundles, actor roles and placement strategy of one group. Creates one group after
    the other. Returns the groups in the order of `parts`.

    A run that holds groups and does not get the next one soon frees them, and tries again after a random pause:
    otherwise two runs could wait forever for resources that the other one holds.

    Raises:
        TimeoutError: If the resources are not free within `timeout_s`, counted for all groups together.
    """
    import ray

    started, patience = time.monotonic(), PATIENCE_S
    # Without a seed: runs with equal seeds would otherwise stay in step.
    jitter = random.SystemRandom()
    reports = [WaitingReport(part.name, lambda part=part: _sum(part.bundles), together=True) for part in parts]

    def left() -> float:
        return math.inf if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started))

    groups: list[Any] = []
    try:
        while True:
            for i, (part, report) in enumerate(zip(parts, reports, strict=True)):
                # While it holds no group, it is in nobody's way.
                wait_s = jitter.uniform(patience, 2 * patience) if groups or part.options else math.inf
                groups.append(ray.util.placement_group(part.bundles, strategy=part.strategy, **part.options))
                if not _is_granted(config, part, groups[-1], report, min(wait_s, left())):
                    if part.options:
                        parts[i] = part._replace(strategy="PACK", options={})
                    break
            else:
                return groups
            _remove(groups)
            if not left():
                break
            time.sleep(min(jitter.uniform(0.0, PATIENCE_S), left()))
            patience = min(2 * patience, _MAX_PATIENCE_S)
    except BaseException:
        _remove(groups)
        raise
    finally:
        for report in reports:
            report.end()
    free, _ = RAY.resources()
    total = _sum(resource_bundles(config, main_process=False)[0])
    raise TimeoutError(
        f"The actors of this algorithm need {_listed(total)} (placement_strategy="
        f"{config.placement_strategy!r}), but did not get these resources within {timeout_s:g} s. Free: "
        f"{_listed(free)}. Stop other algorithms (algorithm.stop()), or lower num_env_runners, "
        "evaluation_num_env_runners or num_learners."
    )


def _is_granted(config: AlgorithmConfig, part: _Part, group: Any, report: WaitingReport, wait_s: float) -> bool:
    """Waits at most `wait_s` seconds until a placement group has its resources, and logs which resources are missing.
    Returns whether the group has its resources.
    """
    until = time.monotonic() + wait_s
    while True:
        report.note(len(part.bundles), lambda: _obstacle(config, part))
        left = max(0.0, until - time.monotonic())
        if group.wait(min(left, LINE_S / 10)):
            report.end()
            return True
        if not left:
            return False


def _obstacle(config: AlgorithmConfig, part: _Part) -> str | None:
    """Explains why the cluster's nodes cannot hold a placement group, although the sum of the nodes' resources
    suffices.

    Returns None if the sum does not suffice, if the cluster can grow, or if no reason is found.
    """
    nodes = _resources_of_nodes()
    if _can_grow() or not _fits(_sum(part.bundles), _sum(nodes)):
        return None
    return _unplaceable(config, part.roles, part.bundles, part.strategy, nodes)


def _remove(groups: list[Any]) -> None:
    """Removes all placement groups in the list `groups` from Ray, the last group first, and empties the list."""
    import ray

    while groups:
        ray.util.remove_placement_group(groups.pop())


def remove_placement(placement: Placement) -> None:
    """Removes the placement groups in `placement` from Ray, except the group in which this process itself runs, such as
    the group of a Ray Tune trial.
    """
    import ray

    for group in placement.groups:
        if ray.is_initialized() and group != ray.util.get_current_placement_group():
            ray.util.remove_placement_group(group)


def scheduling_strategies(group: Any, offset: int, number: int, options: Mapping[str, Any]) -> list[Any]:
    """List of values of Ray's option ``scheduling_strategy``, one for each of `number` actors of a role, such as
    EnvRunner.

    Args:
        group: A group of `Placement`, or "SPREAD", or None.
        offset: Bundle of the first actor, from `bundle_index`.
        number: Number of actors.
        options: From `actor_options`. Actors that need nothing have no bundle: Ray places them in any bundle.
    """
    if group is None or isinstance(group, str):
        return [group] * number
    if not (options["num_cpus"] or options["num_gpus"] or options["resources"]):
        return [in_bundle(group, -1)] * number
    import ray

    # The first bundle of a tuner's trial is the main process.
    first = offset + (group == ray.util.get_current_placement_group())
    return [in_bundle(group, first + i) for i in range(number)]


def in_last_bundles(group: Any, number: int) -> list[Any]:
    """Ray's option ``scheduling_strategy`` for each of `number` actors, to place the actors in a placement group.

    The options place one actor in each of the last `number` bundles of the placement group `group`. If `group` is None,
    the option of each actor is None.
    """
    if group is None:
        return [None] * number
    first = len(group.bundle_specs) - number
    return [in_bundle(group, first + i) for i in range(number)]


def in_bundle(group: Any, index: int) -> Any:
    """Ray's option ``scheduling_strategy`` for an actor in one bundle of a placement group; index -1 allows
    any bundle.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index, placement_group_capture_child_tasks=True
    )


# ----------------------------------------------------------------------------------------------------------- Ray itself


@dataclasses.dataclass(slots=True)
class RayLease:
    """Lease of Ray, which an object holds while it uses Ray.

    If this package initialised Ray (started Ray, or connected to a running cluster), the release of the last lease
    calls ``ray.shutdown()``.

    Attributes:
        node_id: Id of the node of the Ray instance that this package initialised; None for the user's instance, and
            after `release`.
    """

    node_id: str | None

    def __bool__(self) -> bool:
        """Whether this lease (the owner's claim to use Ray) keeps Ray running.

        If True, the release of another lease does not shut Ray down. False after `release`. Always False if the user
        initialised Ray.
        """
        return self.node_id is not None

    def release(self) -> None:
        """Ends this lease: its owner no longer needs Ray. If this package initialised Ray, the release of the last
        lease shuts Ray down.
        """
        import ray

        node_id, self.node_id = self.node_id, None
        if node_id is None:
            return
        _leases[node_id] -= 1
        is_last = _leases[node_id] == 0
        if is_last and ray.is_initialized() and ray.get_runtime_context().get_node_id() == node_id:
            ray.shutdown()


_leases: Counter[str] = Counter()


def start_ray_if_needed(config: AlgorithmConfig | None = None) -> RayLease:
    """Connects to Ray, and returns a `RayLease` that the caller releases at the end.

    Uses the instance that the user has initialised; else a running cluster, such as the one at ``RAY_ADDRESS``; else a
    new local instance.

    Args:
        config: The config of an algorithm that a new instance has to hold, even if its processes then share cores.

    Returns:
        The lease to release in the end. A Ray that the user started is never shut down.
    """
    import ray

    if not ray.is_initialized():
        with warnings.catch_warnings():
            for message in _INIT_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            _start_ray(0 if config is None else _sum(resource_bundles(config, main_process=False)[0])["CPU"])
        _leases[ray.get_runtime_context().get_node_id()] = 0
    node_id = ray.get_runtime_context().get_node_id()
    if node_id not in _leases:
        return RayLease(None)
    _leases[node_id] += 1
    return RayLease(node_id)


_UNNEEDED = ("start_monitor", "start_api_server")
"""Services of a new local Ray, as methods of its node: one for clusters that grow, one for the dashboard."""


@contextlib.contextmanager
def _without_unneeded_services() -> Iterator[None]:
    """Context manager in which a new local Ray starts without its autoscaler monitor and dashboard server.

    These services take 0.8 s of CPU to start and a second to stop. Ray has no setting to omit them, and waits for the
    dashboard server even with ``include_dashboard=False``. The context manager therefore replaces Ray's methods that
    start these services (`_UNNEEDED`) by methods that do nothing, and restores Ray's methods at the end. It ignores
    methods that the installed Ray version lacks.
    """
    node: Any = getattr(sys.modules.get("ray._private.node"), "Node", None)
    methods = {name: vars(node)[name] for name in _UNNEEDED if node is not None and name in vars(node)}
    for name in methods:
        setattr(node, name, lambda self, **kwargs: None)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(node, name, method)


@contextlib.contextmanager
def _without_notice_of_tokens() -> Iterator[None]:
    """Context manager that suppresses Ray's warning that token authentication is enabled. This warning matters only if
    Ray's ports are open to other machines.
    """

    def is_of_use(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Token authentication is enabled")

    source = logging.getLogger("ray._private.authentication.authentication_token_setup")
    source.addFilter(is_of_use)
    try:
        yield
    finally:
        source.removeFilter(is_of_use)


def _start_ray(num_cpus: float) -> None:
    import ray

    def init(**more: Any) -> None:
        with _without_unneeded_services(), _without_notice_of_tokens():
            ray.init(include_dashboard=False, configure_logging=False, **more)

    notice_once("Waiting for Ray, and then for the actors: processes that import JAX, which takes some seconds.")
    num_cores = os.cpu_count() or 1
    if num_cpus > num_cores:
        # It fails if a running cluster is found, which has the CPUs that it has.
        with contextlib.suppress(ValueError):
            init(num_cpus=math.ceil(num_cpus))
            notice_once(
                f"The actors of this algorithm take {num_cpus:g} CPUs, and this machine has {num_cores} core(s): they "
                f"share them. Fewer actors (num_env_runners, evaluation_num_env_runners, num_learners) may be faster."
            )
            return
    init()
