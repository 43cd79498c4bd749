"""Resources of actors: bundles, clusters that can never hold them, trials, and a Ray that is started for them."""

from __future__ import annotations

import logging
import os
import re
import types

import pytest
import ray
from ray._private.node import Node

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.learner.joined_learners import JoinedLearners
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.actor_backend import RAY
from tests.toy_runners import toy_config


def test_bundles_are_one_per_process_main_evaluation_and_learners_included():
    config = toy_config().env_runners(custom_resources_per_env_runner={"fast": 1})
    config.evaluation(evaluation_num_env_runners=1, evaluation_config={"num_cpus_per_env_runner": 2})
    config.learners(num_learners=2, num_gpus_per_learner=0.5).resources(placement_strategy="SPREAD")
    runner = {"CPU": 0.5, "fast": 1.0}
    bundles, strategy = resources.resource_bundles(config)
    assert strategy == "SPREAD"
    assert bundles == [{"CPU": 1.0}, runner, runner, {"CPU": 2.0, "fast": 1.0}, {"GPU": 0.5}, {"GPU": 0.5}]
    assert resources.resource_bundles(config, main_process=False)[0] == bundles[1:]
    indices = {role: resources.bundle_index(config, role) for role in ("env_runner", "eval_env_runner", "learner")}
    assert indices == {"env_runner": 0, "eval_env_runner": 2, "learner": 3}
    assert resources.actor_options(config, "env_runner") == {"num_cpus": 0.5, "num_gpus": 0, "resources": {"fast": 1.0}}
    # Actors that need nothing have no bundle. A local learner's devices belong to the main process.
    free = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2, num_cpus_per_env_runner=0)
    free.learners(num_cpus_per_learner=3, num_gpus_per_learner=1)
    assert resources.resource_bundles(free)[0] == [{"CPU": 3.0, "GPU": 1.0}]
    # Environments on the device need no runners.
    on_device = PPOConfig().environment("gymnax/CartPole-v1").env_runners(num_env_runners=2)
    assert resources.resource_bundles(on_device)[0] == [{"CPU": 1.0}]


def test_aggregators_are_in_the_bundles_of_their_learners():
    config = toy_config().learners(num_learners=2, num_gpus_per_learner=1, num_aggregator_actors_per_learner=2)
    bundles, _ = resources.resource_bundles(config, main_process=False)
    assert bundles[2:] == [{"CPU": 2.0, "GPU": 1.0}] * 2
    assert resources.role_resources(config, "learner") == {"GPU": 1.0}
    # Those of a local learner have bundles: a tuner gives all of the first bundle to the main process.
    local = toy_config().learners(num_learners=0, num_aggregator_actors_per_learner=2)
    runner, one = {"CPU": 0.5}, {"CPU": 1.0}
    assert resources.resource_bundles(local)[0] == [one, runner, runner, one, one]
    assert resources.misfit(local, [{"CPU": 3.0}]) is None
    problem = resources.misfit(local, [{"CPU": 2.0}])
    assert problem is not None and "plus num_aggregator_actors_per_learner=2 comes to 3 CPUs" in problem
    last = resources.in_last_bundles(types.SimpleNamespace(bundle_specs=[{}] * 4), 2)
    assert [strategy.placement_group_bundle_index for strategy in last] == [2, 3]
    assert resources.in_last_bundles(None, 2) == [None, None]
    group = types.SimpleNamespace(bundle_specs=bundles)
    learners = JoinedLearners.__new__(JoinedLearners)
    learners.config, learners.num_learners, learners._placement_group = config, 2, group
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "in_bundle", lambda group, index: index)
        assert learners.strategies_of_neighbours(2) == [2, 2, 3, 3]
        group.bundle_specs = [{"CPU": 0.5}, {"CPU": 0.5}, {"GPU": 1.0}, {"GPU": 1.0}]
        assert learners.strategies_of_neighbours(2) == [None] * 4


class Cluster:
    """Ray cluster of two nodes on a virtual clock, in which `holds` decides which placement groups get their resources.

    Attributes:
        made, removed: Placement groups, in the order of calls.
        seconds: Time that was waited.
    """

    def __init__(self, monkeypatch, cpus=(2.0, 2.0)):
        self.made, self.removed, self.seconds = [], [], 0.0
        self.holds = lambda group: True
        self.nodes = [{"Alive": True, "NodeID": str(i), "Resources": {"CPU": n}} for i, n in enumerate(cpus)]
        cluster = self

        class Group:
            def __init__(self, bundles, strategy, **options):
                self.bundle_specs, self.strategy, self.options = bundles, strategy, options
                cluster.made.append(self)

            def wait(self, timeout_seconds):
                if cluster.holds(self):
                    return True
                cluster.seconds += timeout_seconds
                return False

        def sleep(seconds):
            self.seconds += seconds

        def resources_of():
            return {"CPU": sum(cpus)}, {"CPU": sum(cpus)}

        clock = types.SimpleNamespace(monotonic=lambda: self.seconds, sleep=sleep)
        context = types.SimpleNamespace(get_node_id=lambda: "0")
        monkeypatch.setattr(resources, "time", clock)
        monkeypatch.setattr(RAY, "now", clock.monotonic, raising=False)
        monkeypatch.setattr(RAY, "resources", resources_of, raising=False)
        monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: None)
        monkeypatch.setattr(ray.util, "placement_group", Group)
        monkeypatch.setattr(ray.util, "remove_placement_group", self.removed.append)
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "available_resources", dict)
        monkeypatch.setattr(ray, "nodes", lambda: self.nodes)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(resources, "is_one_machine", lambda: False)


def test_learners_are_packed_first_and_env_runners_spread(monkeypatch):
    cluster = Cluster(monkeypatch)
    made, removed = cluster.made, cluster.removed
    config = toy_config().learners(num_learners=1, custom_resources_per_learner={"fast": 1})
    placement = resources.create_placement(config)
    assert [(group.strategy, group.bundle_specs) for group in made] == [
        ("PACK", [{"CPU": 1.0, "fast": 1.0}]),
        ("SPREAD", [{"CPU": 0.5}] * 2),
    ]
    assert placement == (made[1], made[0]) and placement.groups == [made[1], made[0]]
    # EnvRunners that need nothing are spread without a group.
    free = config.copy().env_runners(num_cpus_per_env_runner=0)
    placement = resources.create_placement(free)
    assert (
        resources.scheduling_strategies(placement.runners, 0, 2, resources.actor_options(free, "env_runner"))
        == ["SPREAD"] * 2
    )
    # Any other strategy is for all actors.
    placement = resources.create_placement(config.copy().resources(placement_strategy="STRICT_SPREAD"))
    assert placement == (made[3], made[3]) and made[3].strategy == "STRICT_SPREAD"
    # What was reserved is given back if the rest does not come.
    cluster.holds = lambda group: group.strategy == "PACK"
    with pytest.raises(TimeoutError, match=r"need 2 CPU, 1 fast .* within 0 s"):
        resources.create_placement(config, timeout_seconds=0.0)
    assert removed == [made[5], made[4]]


def test_a_run_that_waits_for_its_env_runners_gives_the_learner_back_for_a_while(monkeypatch):
    cluster, given_back_at = Cluster(monkeypatch), []
    config = toy_config().learners(num_learners=1)
    # Another run holds what the EnvRunners need, and waits for the learner's resources.
    cluster.holds = lambda group: group.strategy == "PACK" or bool(given_back_at)
    monkeypatch.setattr(ray.util, "remove_placement_group", lambda group: given_back_at.append(cluster.seconds))
    placement = resources.create_placement(config)
    assert placement == (cluster.made[3], cluster.made[2]) and len(given_back_at) == 2
    assert resources.PATIENCE_S <= given_back_at[0] <= 2 * resources.PATIENCE_S
    assert cluster.seconds <= 3 * resources.PATIENCE_S
    # One deadline for all groups and attempts.
    given_back_at.clear()
    cluster.holds, cluster.seconds = lambda group: group.strategy == "PACK", 0.0
    with pytest.raises(TimeoutError, match="within 60 s"):
        resources.create_placement(config, timeout_seconds=60.0)
    assert cluster.seconds == pytest.approx(60.0) and len(given_back_at) >= 4


def test_aggregators_of_a_local_learner_prefer_its_node_and_may_be_elsewhere(monkeypatch):
    cluster = Cluster(monkeypatch)
    config = toy_config().learners(num_aggregator_actors_per_learner=2)
    placement = resources.create_placement(config)
    assert placement == (cluster.made[1], cluster.made[0])
    group = placement.learners
    assert (group.strategy, group.bundle_specs) == ("STRICT_PACK", [{"CPU": 1.0}] * 2)
    assert group.options == {"_soft_target_node_id": "0"}
    # No node has room for both, but two nodes have.
    cluster.holds = lambda group: group.strategy != "STRICT_PACK"
    placement = resources.create_placement(config)
    assert (placement.learners.strategy, placement.learners.options) == ("PACK", {})
    assert cluster.seconds <= 3 * resources.PATIENCE_S
    # More than a node has.
    placement = resources.create_placement(config.copy().learners(num_aggregator_actors_per_learner=3))
    assert (placement.learners.strategy, placement.learners.options) == ("PACK", {})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda c: c.env_runners(num_cpus_per_env_runner=3),
            "Waiting for 2 EnvRunner actors for 10 s: they need CPU: 6 together; the cluster has 4 of 4 CPU free.",
        ),
        (
            lambda c: c.env_runners(num_env_runners=3, num_cpus_per_env_runner=1).resources(
                placement_strategy="STRICT_SPREAD"
            ),
            "Waiting for 3 EnvRunner actors for 10 s: placement_strategy='STRICT_SPREAD' puts each of 3 actors on a ",
        ),
        (
            lambda c: c.learners(num_learners=1, num_cpus_per_learner=4),
            "Waiting for 1 Learner actor for 10 s: num_cpus_per_learner=4 asks for 4 CPU in one process; no node of ",
        ),
        (
            lambda c: c.env_runners(num_cpus_per_env_runner=1.5),
            "Waiting for 2 EnvRunner actors for 10 s: they need CPU: 3 together; the cluster has 4 of 4 CPU free, but "
            "not on nodes that can hold them.",
        ),
    ],
)
def test_a_line_says_what_a_group_lacks(change, line, monkeypatch, caplog):
    cluster = Cluster(monkeypatch)
    cluster.holds = lambda group: False
    with pytest.raises(TimeoutError):
        resources.create_placement(change(toy_config()), timeout_seconds=11.0)
    (message,) = caplog.messages
    assert message.startswith(line)


NODE = {"CPU": 4.0, "memory": 1e9, "node:10.0.0.1": 1.0}


@pytest.mark.parametrize(
    ("change", "nodes", "message"),
    [
        (lambda c: c, [NODE], None),
        (
            lambda c: c.env_runners(num_cpus_per_env_runner=3),
            [NODE],
            "num_env_runners=2 times num_cpus_per_env_runner=3 comes to 6 CPUs; the Ray cluster has 4. ",
        ),
        (
            lambda c: c.env_runners(num_cpus_per_env_runner=2).learners(num_learners=1, num_cpus_per_learner=2),
            [NODE],
            "num_cpus_per_env_runner=2 plus num_learners=1 times num_cpus_per_learner=2 comes to 6 CPUs",
        ),
        (
            lambda c: c.learners(num_learners=2, num_aggregator_actors_per_learner=2),
            [NODE],
            r"num_learners=2 times \(num_cpus_per_learner='auto' plus num_aggregator_actors_per_learner=2\) comes to 7",
        ),
        (
            lambda c: c.learners(num_learners=2, num_gpus_per_learner=1),
            [NODE],
            "num_learners=2 times num_gpus_per_learner=1 comes to 2 GPUs; the Ray cluster has 0. ",
        ),
        (
            lambda c: c.env_runners(custom_resources_per_env_runner={"fast": 1}),
            [NODE],
            "comes to 2 of the resource 'fast'; the Ray cluster has 0. .* ray.init\\(resources={'fast': 2}\\)",
        ),
        (
            lambda c: c.env_runners(num_env_runners=1, num_cpus_per_env_runner=6),
            [NODE, NODE],
            "num_cpus_per_env_runner=6 asks for 6 CPU in one process; no node .* 4 CPU; 4 CPU",
        ),
        (
            lambda c: c.env_runners(num_cpus_per_env_runner=3).resources(placement_strategy="STRICT_PACK"),
            [NODE, NODE],
            "placement_strategy='STRICT_PACK' puts all actors, 6 CPU, on one node",
        ),
        (
            lambda c: c.resources(placement_strategy="STRICT_SPREAD"),
            [NODE],
            "placement_strategy='STRICT_SPREAD' puts each of 2 actors on a separate node, but the Ray cluster has 1",
        ),
    ],
)
def test_what_a_cluster_can_never_hold_is_said_with_settings_and_numbers(change, nodes, message):
    problem = resources.misfit(change(toy_config()), nodes)
    assert problem is None if message is None else re.search(message, problem), problem


def test_in_a_trial_the_actors_go_into_the_trials_bundles(monkeypatch):
    config = toy_config()
    trial = types.SimpleNamespace(bundle_count=3, bundle_specs=resources.resource_bundles(config)[0])
    monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: trial)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert resources.create_placement(config) == resources.Placement(trial, trial)
    # After the bundle of the trial's own process; -1 stays "any".
    for needs, indices in ({"num_cpus": 0.5}, [2, 3]), ({"num_cpus": 0}, [-1, -1]):
        strategies = resources.scheduling_strategies(trial, 1, 2, {"num_gpus": 0, "resources": {}, **needs})
        assert [strategy.placement_group_bundle_index for strategy in strategies] == indices
    resources.remove_placement(resources.Placement(trial, trial))  # Not ours to remove.
    # A group with other bundles: Ray finds room in it, or there is none.
    trial.bundle_specs, trial.bundle_count = [{"CPU": 2.0}], 1
    assert resources.create_placement(config) == resources.Placement()
    trial.bundle_specs = [{"CPU": 0.5}]
    with pytest.raises(ValueError, match="need 1 CPU, but this process's placement group reserves only 0.5 CPU"):
        resources.create_placement(config)


def test_a_ray_that_was_started_for_algorithms_ends_with_the_last_of_them(monkeypatch, caplog):
    calls = []
    context = types.SimpleNamespace(get_node_id=lambda: "node of its own")
    logger = logging.getLogger("ray._private.authentication.authentication_token_setup")

    services = (Node.start_monitor, Node.start_api_server)

    def init(**kwargs):
        # It is started without these, and without a notice of what only a cluster that others reach has to do with.
        assert Node.start_monitor(None) is None and Node.start_api_server(None, include_dashboard=False) is None
        logger.warning("Token authentication is enabled for this Ray cluster.")
        logger.warning("Something else.")
        if not calls and "num_cpus" in kwargs:
            calls.append("cluster")
            raise ValueError("When connecting to an existing cluster, num_cpus must not be provided.")
        calls.append(kwargs)

    monkeypatch.setattr(ray, "is_initialized", lambda: bool(calls) and calls[-1] != "end")
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("end"))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    quiet = {"include_dashboard": False, "configure_logging": False}
    config = toy_config().env_runners(num_env_runners=9)
    with_cpus = {"num_cpus": 5, **quiet}
    for expected in (["cluster", quiet], ["cluster", quiet, "end", with_cpus]):
        first, second = resources.start_ray_if_needed(config), resources.start_ray_if_needed()
        assert first and second and calls == expected
        first.release()
        first.release()
        assert calls == expected
        second.release()
        assert calls == [*expected, "end"]
    assert "take 4.5 CPUs, and this machine has 2 core(s)" in caplog.text
    assert "Token authentication" not in caplog.text and "Something else." in caplog.text
    assert (Node.start_monitor, Node.start_api_server) == services
    logger.warning("Token authentication is enabled.")
    assert "Token authentication" in caplog.text
