"""EnvRunnerGroup with runners of gymnasium: samples, statistics of observations, weights, and what evaluations draw."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, sample_for_evaluation
from jaxrl_stack.utils.counters import to_int
from tests.fake_actors import in_place_of_ray
from tests.toy_runners import ToyRunner, sample_blocks

OBS = "env_to_module_connector"


@pytest.fixture(scope="module")
def fake():
    with in_place_of_ray() as fake:
        yield fake


@pytest.fixture(scope="module")
def real_group(fake):
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


def test_blocks_can_stay_in_the_object_store(real_group, fake):
    (block,) = sample_blocks(real_group, 1, num_steps=2, keep_remote=True)
    assert block.num_env_steps == 4 and fake.is_reference(block.part.reference)
    assert fake.get(block.part.reference)[DEFAULT_MODULE_ID]["rewards"].shape == (2, 2)


def test_what_is_collected_can_stay_in_the_object_store_and_says_which_weights_have_acted(real_group):
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
