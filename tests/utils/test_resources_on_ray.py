"""Resources of actors in a running Ray."""

from __future__ import annotations

import sys

import pytest

from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.actor_backend import RAY
from tests import toy_runners
from tests.pickled_by_value import pickled_by_value
from tests.toy_runners import toy_config


@pytest.fixture(scope="module", autouse=True)
def by_value(ray_session):
    """These modules travel to actors, which cannot import them."""
    with pickled_by_value(ray_session, sys.modules[__name__], toy_runners):
        yield


def test_placement_groups_hold_the_actors_or_say_what_is_in_the_way(ray_session):
    config = toy_config().learners(num_learners=1)
    with pytest.raises(ValueError, match="num_env_runners=2 times num_cpus_per_env_runner=50 comes to 100 CPUs"):
        resources.create_placement(toy_config().env_runners(num_cpus_per_env_runner=50))
    packed = resources.create_placement(config.copy().resources(placement_strategy="STRICT_PACK"))
    assert packed.runners == packed.learners and len(packed.runners.bundle_specs) == 3
    resources.remove_placement(packed)
    placement = resources.create_placement(config, timeout_seconds=10.0)
    group = placement.runners
    assert group.bundle_specs == [{"CPU": 0.5}, {"CPU": 0.5}]
    assert placement.learners.bundle_specs == [{"CPU": 1.0}]
    assert RAY.is_reserved(group) and not RAY.is_reserved(None) and not RAY.is_reserved("SPREAD")
    free, total = RAY.resources()
    assert total["CPU"] == 8.0 and not any("_group_" in name for name in [*free, *total])
    options = resources.actor_options(config, "env_runner")
    first, second = resources.scheduling_strategies(group, resources.bundle_index(config, "env_runner"), 2, options)
    assert (first.placement_group, first.placement_group_bundle_index) == (group, 0)
    assert (second.placement_group, second.placement_group_bundle_index) == (group, 1)
    assert resources.scheduling_strategies(None, 0, 1, options) == [None]
    # An actor lands in its own bundle.
    runners = EnvRunnerGroup(
        False, config=config, num_env_runners=1, placement_group=group, pg_offset=1, env_runner_kwargs={"config": None}
    )
    in_use = ray_session.available_resources()
    assert f"CPU_group_1_{group.id.hex()}" not in in_use and f"CPU_group_0_{group.id.hex()}" in in_use
    runners.stop()
    with pytest.raises(TimeoutError, match=r"need 8 CPU .*within 0.1 s. Free: "):
        resources.create_placement(
            toy_config().env_runners(num_cpus_per_env_runner=3).learners(num_learners=2), timeout_seconds=0.1
        )
    resources.remove_placement(placement)
    resources.remove_placement(resources.Placement())


def test_a_ray_that_the_user_started_is_left_alone(ray_session):
    lease = resources.start_ray_if_needed(toy_config())
    assert not lease
    lease.release()
    assert ray_session.is_initialized()
