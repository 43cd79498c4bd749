"""EnvRunnerGroup on Ray: processes that are killed, runners of gymnasium, and the resources that actors take."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
import types

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, sample_for_evaluation
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.counters import to_int
from tests import toy_runners
from tests.toy_runners import (
    ToyRunner,
    check_dropped_if_ignored,
    check_restored,
    reset_and_send,
    sample_blocks,
    toy_config,
)

OBS = "env_to_module_connector"


@pytest.fixture(scope="module", autouse=True)
def by_value(ray_session):
    """These modules travel to actors, which cannot import them."""
    modules = (sys.modules[__name__], toy_runners)
    for module in modules:
        ray_session.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray_session.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def group(ray_session):
    recreated = []
    # Actors without the real config need not import what it consists of.
    group = EnvRunnerGroup(
        config=toy_config(max_num_env_runner_restarts=1),
        env_runner_kwargs={"config": None},
        on_env_runners_recreated=lambda group, ids: recreated.append(ids),
    )
    group.recreated = recreated
    yield group
    group.stop()


# ------------------------------------------------------------------------------------------------------ lost actors


def ping_often(group):
    """Give what happened meanwhile the time to be noticed."""
    for _ in range(100):
        group.foreach_env_runner("ping")
        time.sleep(0.05)


def test_a_restarted_runner_gets_weights_and_connector_states_again_and_a_dead_one_is_an_error(group, ray_session):
    reset_and_send(group)
    pid = group.foreach_env_runner("pid", local_env_runner=False)[1]
    os.kill(pid, signal.SIGKILL)
    # Whatever was asked of it is asked of the others.
    assert len(sample_blocks(group, 4, num_steps=1, timeout_seconds=60.0)) == 4
    group.probe_unhealthy_env_runners(timeout_seconds=60.0)
    assert group.sampling_ids() == [1, 2]
    assert group.healthy_env_runner_ids() == [1, 2] and group.num_remote_worker_restarts() == 1
    assert group.recreated == [[2]]
    assert group.foreach_env_runner("pid", local_env_runner=False)[1] != pid
    check_restored(group, 2)
    # max_num_env_runner_restarts=1 are used up.
    os.kill(group.foreach_env_runner("pid", local_env_runner=False)[1], signal.SIGKILL)
    with pytest.raises(ray_session.exceptions.ActorDiedError) as caught:
        ping_often(group)
    assert "max_num_env_runner_restarts=1" in caught.value.__notes__[-1]
    check_dropped_if_ignored(group)


def test_an_actor_that_cannot_be_built_is_an_error_with_its_traceback(ray_session):
    with pytest.raises(ray_session.exceptions.ActorDiedError, match="LookupError: no such environment") as caught:
        EnvRunnerGroup(
            config=toy_config(),
            local_env_runner=False,
            num_env_runners=1,
            env_runner_kwargs={"config": None, "broken": 1},
        )
    closing = "EnvRunner actor 1 could not be built, or is not healthy: LookupError: no such environment"
    assert caught.value.__notes__[-1] == closing


# ---------------------------------------------------------------------------------------- gymnasium runners, for real


@pytest.fixture(scope="module")
def real_group(ray_session):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=2,
            num_cpus_per_env_runner=0.25,
            num_envs_per_env_runner=2,
            rollout_fragment_length=8,
            env_to_module_connector=lambda env, spaces: MeanStdFilter(
                de_mean_to_zero=False, de_std_to_one=False, clip_by_value=None
            ),
        )
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=1)
    )
    group = EnvRunnerGroup(config=config)
    yield group
    group.stop()


def statistics(group):
    """The local runner's statistics of observations: ``(rows, mean [4])`` of base and delta."""
    (modules,) = [v for k, v in group.local_env_runner.get_state(OBS)[OBS].items() if k == "MeanStdFilter"]
    (parts,) = modules.values()
    base, delta = parts["base"]["obs"], parts["delta"]["obs"]
    return to_int(base["count"]), base["mean"], to_int(delta["count"])


def test_no_observation_is_counted_twice(real_group):
    """Actors sample and synchronise in turns; the merged statistics are those of all observations, once each."""
    group, config = real_group, real_group.config
    local_only = config.copy(copy_frozen=False).env_runners(broadcast_env_runner_states=False)
    seen = []
    for i, one_config in enumerate((config, config, local_only, local_only, config)):
        blocks = sample_blocks(group, 4)
        assert [block.num_env_steps for block in blocks] == [16] * 4
        # The filter only counts here, so the module's inputs are the observations themselves.
        seen += [block.experience.modules[DEFAULT_MODULE_ID]["obs"].reshape(-1, 4) for block in blocks]
        # Each runner's state once, as it comes with its last block, or asked for.
        states = [{OBS: block.report.connector_state} for block in blocks[-2:]] if i % 2 else None
        group.sync_env_runner_states(config=one_config, connector_states=states, env_steps_sampled=64 * (i + 1))
        num_rows, mean, num_new = statistics(group)
        assert (num_rows, num_new) == (64 * (i + 1), 0)
        np.testing.assert_allclose(mean, np.concatenate(seen).mean(0), rtol=1e-5, atol=1e-7)
    lifetime = {"components": ["num_env_steps_sampled_lifetime"]}
    assert group.foreach_env_runner("get_state", kwargs=lifetime) == [{"num_env_steps_sampled_lifetime": 320}] * 3
    # Every runner keeps its own where states are not to be merged.
    off = config.copy(copy_frozen=False).env_runners(merge_env_runner_states=False)
    sample_blocks(group, 2)
    group.sync_env_runner_states(config=off)
    assert statistics(group)[0] == 320


def test_the_local_runners_weights_reach_the_actors_and_act(real_group):
    group = real_group
    state = group.local_env_runner.get_state("rl_module")["rl_module"]
    new = {ref: np.full_like(leaf, 0.125) for ref, leaf in state["params"].items()}
    group.local_env_runner.set_state({"rl_module": {"params": new, "rest": {}}, "weights_seq_no": 3})
    group.sync_weights(inference_only=True)
    states = group.foreach_env_runner("get_state", kwargs={"components": ["rl_module", "weights_seq_no"]})
    assert [s["weights_seq_no"] for s in states] == [3] * 3
    jax.tree.map(np.testing.assert_array_equal, *[s["rl_module"] for s in states[:2]])
    assert [block.part.versions for block in sample_blocks(group, 2)] == [(3, 3)] * 2


def test_blocks_can_stay_in_the_object_store(real_group, ray_session):
    (block,) = sample_blocks(real_group, 1, num_steps=2, keep_remote=True)
    assert block.num_env_steps == 4 and isinstance(block.part.modules, ray_session.ObjectRef)
    assert ray_session.get(block.part.modules)[DEFAULT_MODULE_ID]["rewards"].shape == (2, 2)


def test_what_is_collected_can_stay_in_the_object_store_and_says_which_weights_have_acted(real_group, ray_session):
    share = {"num_steps": 2}
    for keep_remote in (True, False):
        assert real_group.request("sample_block", share, keep_remote=keep_remote) == 2
        blocks = []
        while len(blocks) < 2:
            blocks += real_group.collect("sample_block", share, timeout_seconds=30.0)
        versions = real_group.foreach_env_runner(
            "get_state", kwargs={"components": "weights_seq_no"}, local_env_runner=False
        )
        assert [{"weights_seq_no": block.part.versions.lowest} for block in blocks] == versions
        assert [block.experience.is_remote for block in blocks] == [keep_remote] * 2
        for block in blocks:
            modules = block.experience.fetched().modules
            assert block.num_env_steps == 4 and modules[DEFAULT_MODULE_ID]["rewards"].shape == (2, 2)
    # A runner in this process samples when its share is collected.
    alone = EnvRunnerGroup(ToyRunner(config=real_group.config), num_env_runners=0)
    (block,) = alone.collect(lambda runner: blocks[0], {}, keep_remote=True, timeout_seconds=0.0)
    assert block.experience.is_remote and block.experience.fetched().modules.keys() == {DEFAULT_MODULE_ID}


def test_evaluation_shares_are_sampled_by_the_runners_they_name(real_group):
    shares = [{"num_episodes": 3}, {"num_episodes": 1}]
    first, second = (real_group.sample(sample_for_evaluation, shares, ids=(1, 2), seed=7) for _ in range(2))
    assert [len(ended.returns) for _, ended, _ in first] == [3, 1]
    assert [steps for steps, ended, _ in first] == [int(ended.lengths.sum()) for _, ended, _ in first]
    for (_, one, _), (_, other, _) in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.returns, other.returns)


def test_what_an_evaluation_share_samples_depends_on_its_number_and_not_on_who_samples_it(real_group):
    def episodes(ids, seed):
        shares = real_group.sample(sample_for_evaluation, [{"num_episodes": 4}] * len(ids), ids=ids, seed=seed)
        return [(ended.returns.tolist(), ended.lengths.tolist()) for _, ended, _ in shares]

    as_named = episodes((1, 2), 7)
    assert episodes((2, 1), 7) == episodes((1, 1), 7) == as_named
    # Not the same episodes twice, also where one runner samples what another one has left open.
    assert as_named[0] != as_named[1] and episodes((1, 2), 8) != as_named


# -------------------------------------------------------------------------------------------------------- resources


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
    assert resources.bundle_index(config, "learner", 1) == 4
    assert resources.actor_options(config, "env_runner") == {"num_cpus": 0.5, "num_gpus": 0, "resources": {"fast": 1.0}}
    # Actors that need nothing have no bundle. A local learner's devices belong to the main process.
    free = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2, num_cpus_per_env_runner=0)
    free.learners(num_cpus_per_learner=3, num_gpus_per_learner=1)
    assert resources.resource_bundles(free)[0] == [{"CPU": 3.0, "GPU": 1.0}]
    assert resources.bundle_index(free, "env_runner") == -1
    # Environments on the device need no runners.
    on_device = PPOConfig().environment("gymnax/CartPole-v1").env_runners(num_env_runners=2)
    assert resources.resource_bundles(on_device)[0] == [{"CPU": 1.0}]


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
            "placement_strategy='STRICT_SPREAD' puts each of 2 actors on a node of its own; the Ray cluster has 1",
        ),
    ],
)
def test_what_a_cluster_can_never_hold_is_said_with_settings_and_numbers(change, nodes, message):
    problem = resources.misfit(change(toy_config()), nodes)
    assert problem is None if message is None else re.search(message, problem), problem


def test_placement_groups_hold_the_actors_or_say_what_is_in_the_way(ray_session):
    config = toy_config().learners(num_learners=1)
    with pytest.raises(ValueError, match="num_env_runners=2 times num_cpus_per_env_runner=50 comes to 100 CPUs"):
        resources.create_placement_group(toy_config().env_runners(num_cpus_per_env_runner=50))
    group = resources.create_placement_group(config, timeout_seconds=10.0)
    assert group.bundle_specs == [{"CPU": 0.5}, {"CPU": 0.5}, {"CPU": 1.0}]
    strategy = resources.scheduling_strategy(group, resources.bundle_index(config, "learner"))
    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (group, 2)
    assert resources.scheduling_strategy(None, 0) is None
    # An actor lands in its own bundle.
    runners = EnvRunnerGroup(
        False, config=config, num_env_runners=1, placement_group=group, pg_offset=1, env_runner_kwargs={"config": None}
    )
    in_use = ray_session.available_resources()
    assert f"CPU_group_1_{group.id.hex()}" not in in_use and f"CPU_group_0_{group.id.hex()}" in in_use
    runners.stop()
    with pytest.raises(TimeoutError, match=r"need 8 CPU .*within 0.1 s; free in the Ray cluster: "):
        resources.create_placement_group(
            toy_config().env_runners(num_cpus_per_env_runner=3).learners(num_learners=2), timeout_seconds=0.1
        )
    resources.remove_placement_group(group)
    resources.remove_placement_group(None)


def test_in_a_trial_the_actors_go_into_the_trials_bundles(ray_session, monkeypatch):
    config = toy_config()
    trial = types.SimpleNamespace(bundle_count=3, bundle_specs=resources.resource_bundles(config)[0])
    monkeypatch.setattr(ray_session.util, "get_current_placement_group", lambda: trial)
    assert resources.create_placement_group(config) is trial
    # After the bundle of the trial's own process; -1 stays "any".
    assert resources.scheduling_strategy(trial, 1).placement_group_bundle_index == 2
    assert resources.scheduling_strategy(trial, -1).placement_group_bundle_index == -1
    resources.remove_placement_group(trial)  # Not ours to remove.
    # A group with other bundles: Ray finds room in it, or there is none.
    trial.bundle_specs, trial.bundle_count = [{"CPU": 2.0}], 1
    assert resources.create_placement_group(config) is None
    trial.bundle_specs = [{"CPU": 0.5}]
    with pytest.raises(ValueError, match="need 1 CPU, but this process belongs to a placement group of 0.5 CPU"):
        resources.create_placement_group(config)


def test_a_ray_that_the_user_started_is_left_alone(ray_session):
    lease = resources.start_ray_if_needed(toy_config())
    assert not lease
    lease.release()
    assert ray_session.is_initialized()


def test_a_ray_that_was_started_for_algorithms_ends_with_the_last_of_them(monkeypatch, caplog):
    import ray
    from ray._private.node import Node

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
