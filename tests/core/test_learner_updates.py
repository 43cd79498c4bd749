"""How data gets into a Learner's update: blocks, any number of rows, host connectors, counters."""

from __future__ import annotations

import functools
import sys

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.learner.items import RowForm, forms_of_batch
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.row_blocks import lay_out_rows, padded_size
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.ops.running_statistics import standard_deviation
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.devices import host_view

OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)


class Linear(RLModule):
    """``[obs @ a, -obs @ a]``."""

    rows_are_independent = True

    def setup(self):
        self.a = nnx.Param(jnp.array([0.1, -0.2, 0.3]))

    def _forward(self, batch):
        output = batch[Columns.OBS] @ self.a[...]
        return {Columns.ACTION_DIST_INPUTS: jnp.stack([output, -output], axis=-1)}


SPEC = RLModuleSpec(module_class=Linear, observation_space=OBS_SPACE, action_space=ACTION_SPACE)


class Regression(Learner):
    """Mean squared error of the reward, by gradient descent; logs with every reduction."""

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=lambda lr: optax.sgd(lr, momentum=0.5),
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=config.lr,
        )

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        error = fwd_out[Columns.ACTION_DIST_INPUTS][:, 0] - batch[Columns.REWARDS]
        loss = self.masked_mean(jnp.square(error), batch)
        for how in ("mean", "min", "max"):
            self.metrics.log_value((module_id, how), loss, reduce=how)
        self.metrics.log_value((module_id, "rows"), jnp.sum(batch[Columns.LOSS_MASK]), reduce="sum")
        self.metrics.log_statistics((module_id, "std"), standard_deviation, self.masked_statistics(error, batch))
        return loss


def config_of(learner_class=Regression, num_devices=1, **learners):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Linear))
        .training(lr=0.05)
        .learners(
            learner_class=learner_class,
            num_cpus_per_learner=num_devices,
            add_default_connectors_to_learner_pipeline=False,
            **learners,
        )
    )


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return {
        Columns.OBS: rng.normal(size=(n, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=n).astype(np.float32),
    }


def episode(length, seed=0, id_=None, t_started=0):
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode.from_arrays(
        id_=id_,
        observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
        actions=np.zeros(length, np.int32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminated=False,
        truncated=False,
        t_started=t_started,
    )


SHUFFLED = {"num_epochs": 2, "minibatch_size": 64, "shuffle_batch_per_epoch": True}


def exact_update(learner, data, settings):
    """The same update by a program for exactly these rows: new state and metrics."""
    forms = forms_of_batch(learner.template, data, needs_time=learner.loss_needs_time)
    plan = learner.plan(**settings)
    items = {}
    for mid, columns in data.items():
        num_rows = len(columns[Columns.REWARDS])
        size = -(-num_rows // plan.num_shards)
        items[mid] = lay_out_rows(
            columns,
            forms[mid],
            num_devices=1,
            num_shards=plan.num_shards,
            size=size,
            mask=num_rows % plan.num_shards > 0,
        )
    items = jax.tree.map(lambda x: x[0], items)
    fit = jax.jit(functools.partial(learner.pure_update, plan=plan, axis_name=None))
    state, metrics = fit(host_view(learner.state), items, learner.settings(), counters.from_int(0))
    return jax.device_get(state), jax.device_get(metrics)


def assert_same_update(learner, data, settings):
    state, metrics = exact_update(learner, data, settings)
    results = learner.update(batch=data, **settings)
    for ref, value in learner.get_weights().items():
        np.testing.assert_allclose(value, state.params[ref], rtol=1e-6, atol=1e-6, err_msg=ref)
    for (module_id, name), value in metrics.items():
        np.testing.assert_allclose(results[module_id][name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    return results


# ------------------------------------------------------------------------------------------------ any number of rows


def test_padded_sizes_are_few_and_at_most_a_quarter_too_large():
    sizes = [padded_size(n) for n in range(1, 5000)]
    for n, size in enumerate(sizes, start=1):
        assert n <= size <= 1.25 * n
    assert len(set(sizes)) < 50
    assert padded_size(97) == padded_size(120) == 120


def test_rows_are_laid_out_shard_after_shard():
    columns = {"x": np.arange(7), "y": {"z": np.arange(14).reshape(7, 2)}}
    out = lay_out_rows(columns, RowForm(), num_devices=2, num_shards=4, size=3, mask=True)
    assert out.form == RowForm(is_masked=True) and out.num_items == 3
    out = out.columns
    # Two rows per shard; the eighth is none, and the third of every shard only fills up.
    np.testing.assert_array_equal(out["x"].reshape(4, 3)[:, :2], [[0, 1], [2, 3], [4, 5], [6, 6]])
    np.testing.assert_array_equal(out[Columns.LOSS_MASK].reshape(4, 3), [[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]])
    assert out["x"].shape == (2, 2, 3) and out["y"]["z"].shape == (2, 2, 3, 2)
    given = columns | {Columns.LOSS_MASK: np.arange(7) != 2}
    items = lay_out_rows(given, RowForm(is_masked=True), num_devices=1, num_shards=1, size=8, mask=True)
    np.testing.assert_array_equal(items.columns[Columns.LOSS_MASK], [[[1, 1, 0, 1, 1, 1, 1, 0]]])


@pytest.fixture(scope="module", params=[1, 4], ids=["one shard", "four shards"])
def learner(request):
    return config_of(num_shuffle_shards=request.param).build_learner()


@pytest.mark.parametrize("n", [138, 97, 120, 21])
def test_padding_changes_nothing(learner, n):
    results = assert_same_update(learner, {DEFAULT_MODULE_ID: rows(n, seed=n)}, SHUFFLED)
    steps = -(-2 * -(-n // learner.plan(**SHUFFLED).num_shards) // (64 // learner.plan(**SHUFFLED).num_shards))
    assert results[DEFAULT_MODULE_ID]["num_module_steps_trained"] == pytest.approx(64 * steps, abs=2)
    if n == 138 and learner.plan(**SHUFFLED).num_shards == 1:
        assert steps == 5
        # What the loss itself counted over all gradient steps.
        assert results[DEFAULT_MODULE_ID]["rows"] == 320


def test_padding_changes_nothing_without_minibatches(learner):
    results = assert_same_update(learner, {DEFAULT_MODULE_ID: rows(21)}, {"num_epochs": 3})
    assert results[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 63
    assert results[DEFAULT_MODULE_ID]["rows"] == 63


def test_another_number_of_rows_compiles_nothing(learner):
    clock = CompileClock()
    for settings in (SHUFFLED, {"num_epochs": 2}, {**SHUFFLED, "num_total_minibatches": 3}):
        learner.update(batch=rows(480), **settings)
        clock.reset()
        for n in (389, 433):
            learner.update(batch=rows(n), **settings)
        assert clock.compiles == 0, settings
    results = learner.update(batch=rows(480), **{**SHUFFLED, "num_total_minibatches": 7})
    assert results[DEFAULT_MODULE_ID]["rows"] == 7 * 64
    assert clock.compiles == 0


def test_the_number_of_rows_is_an_argument_of_every_modules_own():
    learner = Regression(config=config_of(), module_spec=MultiRLModuleSpec(rl_module_specs={"p": SPEC, "q": SPEC}))
    learner.build()
    settings = {**SHUFFLED, "minibatch_size": 16}
    # q goes round until p is through.
    assert_same_update(learner, {"p": rows(50), "q": rows(17, 1)}, settings)
    clock = CompileClock()
    learner.update(batch={"p": rows(60), "q": rows(20, 1)}, **settings)
    compiled = clock.compiles
    learner.update(batch={"p": rows(52), "q": rows(18, 1)}, **settings)
    assert clock.compiles == compiled


class SeesThePadding(Regression):
    def pre_update(self, state, batch):
        valid = batch[DEFAULT_MODULE_ID][Columns.LOSS_MASK]
        return state.replace(extra={"valid": {DEFAULT_MODULE_ID: jnp.sum(valid).astype(jnp.float32)}})

    def initial_extra_state(self):
        return {"valid": {DEFAULT_MODULE_ID: jnp.float32(0.0)}}


def test_a_hook_before_the_loop_can_tell_padding_from_rows():
    learner = config_of(SeesThePadding).build_learner()
    for settings in ({}, SHUFFLED):
        learner.update(batch=rows(33), **settings)
        assert learner.extra["valid"][DEFAULT_MODULE_ID] == 33


class Standardising(Linear):
    """Looks at the statistics of its batch: padding would change them."""

    def setup(self):
        super().setup()
        self.norm = nnx.BatchNorm(3, momentum=0.0, rngs=self.rngs)

    def _forward_train(self, batch):
        return self._forward({Columns.OBS: self.norm(batch[Columns.OBS], use_running_average=False)})


def test_layers_with_batch_statistics_see_no_padding():
    config = config_of().rl_module(rl_module_spec=RLModuleSpec(module_class=Standardising))
    learner, batch = config.build_learner(), rows(11)
    learner.update(batch=batch)
    mean = learner.get_state("rl_module")["rl_module"]["default_policy"]["norm/mean"]
    np.testing.assert_allclose(mean, batch[Columns.OBS].mean(0), atol=1e-6)


def test_columns_of_other_lengths(learner):
    with pytest.raises(ValueError, match="same number of rows.*'default_policy' have .*'rewards': {\\(4,\\)}"):
        learner.update(batch=rows(5) | {Columns.REWARDS: np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="same number of rows, at least 1"):
        learner.update(batch=rows(0))


def test_references_without_ray(learner, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"update\(batch_refs=...\).*Ray is not installed.*update\(batches=...\)"):
        learner.update(batch_refs=[1])
    with pytest.raises(ImportError, match=r"pip install 'ray\[tune\]'.*update\(episodes=...\)"):
        learner.update(episodes_refs=[1])


# ----------------------------------------------------------------------------------------------------------- episodes


@pytest.mark.parametrize("num_devices", [1, 2])
def test_episodes_are_rows_and_their_numbers_compile_nothing(num_devices):
    learner, other = (config_of(num_devices=num_devices).build_learner() for _ in range(2))
    episodes = [episode(7, 1), episode(2, 2), episode(5, 3)]
    in_order = {
        Columns.OBS: np.concatenate([e.get_observations()[:-1] for e in episodes]),
        Columns.REWARDS: np.concatenate([e.get_rewards() for e in episodes]),
    }
    settings = {**SHUFFLED, "minibatch_size": 4}
    found = learner.update(episodes=episodes, **settings)[DEFAULT_MODULE_ID]
    expected = other.update(batch=in_order, **settings)[DEFAULT_MODULE_ID]
    for ref, value in learner.get_weights().items():
        np.testing.assert_allclose(value, other.get_weights()[ref], rtol=1e-6, atol=1e-6)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name
    clock = CompileClock()
    learner.update(episodes=[episode(8, 1), episode(4, 2), episode(1, 3)], **settings)
    assert clock.compiles == 0


class DoublesRewards(ConnectorV2):
    """Host connector that rewrites the episodes."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        assert batch == {} and set(rl_module) == {DEFAULT_MODULE_ID}
        for found in self.single_agent_episode_iterator(episodes):
            found.set_rewards(new_data=2.0 * np.asarray(found.get_rewards()))
        return batch


class AddsWeights(ConnectorV2):
    """Host connector that adds a column."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for found in self.single_agent_episode_iterator(episodes):
            weights = np.arange(len(found), dtype=np.float32) + found.t_started
            self.add_n_batch_items(batch, "weights", weights, len(found), found)
        return batch


class KeepsColumns(ConnectorV2):
    """Pure connector after the host connectors: it gets arrays, and counts what went through it."""

    def init(self, num_envs):
        return {"steps": jnp.float32(0.0)}

    def apply(self, state, batch, ctx):
        columns = batch[DEFAULT_MODULE_ID]
        scaled = columns | {"weights": columns["weights"] * 10.0}
        steps = state["steps"] + jnp.sum(columns[Columns.LOSS_MASK])
        return {"steps": steps}, {DEFAULT_MODULE_ID: scaled}


class Weighted(Regression):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        weighted = self.masked_mean(batch["weights"] * batch[Columns.REWARDS], batch)
        return loss, {"weighted": weighted}


def connectors(observation_space, action_space):
    return [DoublesRewards(), AddsWeights(), KeepsColumns()]


def test_host_connectors_run_on_the_episodes_first():
    learner = config_of(Weighted, learner_connector=connectors).build_learner()
    assert learner.has_host_connectors
    assert learner.host_connector_names == ["DoublesRewards", "AddsWeights"]
    # The second one is a later chunk of the first one's episode.
    episodes = [episode(4, 1, "e"), episode(3, 2, "e", t_started=4), episode(2, 3, "f")]
    rewards = [np.asarray(e.get_rewards()) for e in episodes]
    weights = [np.arange(4), np.arange(4, 7), np.arange(2)]
    results = learner.update(episodes=episodes)
    expected = np.concatenate([20.0 * r * w for r, w in zip(rewards, weights, strict=True)]).mean()
    assert results[DEFAULT_MODULE_ID]["weighted"] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(episodes[0].get_rewards(), 2.0 * rewards[0], rtol=1e-6)
    assert learner.get_state()["connector"] == {"KeepsColumns": {"steps": 9.0}}
    timers = results[ALL_MODULES]["learner_connector"]["timers"]["connectors"]
    assert set(timers) == {"doubles_rewards", "adds_weights"}
    named = r"update_block\(\).*\['DoublesRewards', 'AddsWeights'\].*update\(episodes=...\)"
    with pytest.raises(ValueError, match=named):
        learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: block(2, 2)}))
    with pytest.raises(TypeError, match="'DoublesRewards', 'AddsWeights'"):
        learner.check_connector_is_pure()


def test_without_host_connectors():
    learner = config_of(learner_connector=lambda obs, act: []).build_learner()
    assert not learner.has_host_connectors and learner.host_connector_names == []


# ------------------------------------------------------------------------------------------------------------- blocks


def block(num_steps, num_columns, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_columns)
    return {
        Columns.OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=shape),
        Columns.LOSS_MASK: rng.random(shape) < 0.8,
        "weights": rng.normal(size=shape).astype(np.float32),
    }


def test_columns_are_dealt_out_to_the_devices():
    x = np.arange(12).reshape(2, 6)
    out = Block({"x": x, "y": {"z": np.stack([x, -x], axis=-1)}}).deal_out(3).columns
    np.testing.assert_array_equal(out["x"], [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]])
    np.testing.assert_array_equal(out["y"]["z"][..., 1], -out["x"])
    assert np.shares_memory(out["x"], x)


@pytest.fixture(scope="module")
def block_learners():
    def build(num_devices):
        return config_of(
            Weighted, num_devices=num_devices, num_shuffle_shards=2, learner_connector=lambda obs, act: [KeepsColumns()]
        ).build_learner()

    return {num_devices: build(num_devices) for num_devices in (1, 2)}


BLOCK_SETTINGS = {"num_epochs": 3, "minibatch_size": 8, "shuffle_batch_per_epoch": True}


def test_a_block_goes_through_pipeline_and_loop_in_one_program(block_learners):
    """The computation of an iteration on the device, for one device or two."""
    data = {DEFAULT_MODULE_ID: block(5, 4)}
    learner = block_learners[1]
    plan = learner.plan(**BLOCK_SETTINGS)
    update = functools.partial(learner.pure_update, plan=plan, axis_name=None)
    as_float32 = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(np.float32), data)
    blocks = {mid: Block(columns, Layout(is_masked=True)) for mid, columns in as_float32.items()}
    state, metrics = jax.jit(update)(host_view(learner.state), blocks, learner.settings(), counters.from_int(40))
    state, metrics = jax.device_get((state, metrics))
    clock = CompileClock()
    for learner in block_learners.values():
        results = learner.update_block(
            Experience.of_steps(data), timesteps={"num_env_steps_sampled_lifetime": 40}, **BLOCK_SETTINGS
        )
        for ref, value in learner.get_weights().items():
            np.testing.assert_allclose(value, state.params[ref], rtol=1e-5, atol=1e-5)
        for name, value in nest_metrics(metrics)[DEFAULT_MODULE_ID].items():
            assert results[DEFAULT_MODULE_ID][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        # One device or two: all rows are counted once.
        assert results[DEFAULT_MODULE_ID]["rows"] == metrics[(DEFAULT_MODULE_ID, "rows")]
        assert results[DEFAULT_MODULE_ID]["module_train_batch_size_mean"] == BLOCK_SETTINGS["minibatch_size"]
        assert counters.to_int(learner.get_state()["counters"]["timesteps"]) == 40
        clock.reset()
        learner.update_block(
            Experience.of_steps({DEFAULT_MODULE_ID: block(5, 4, seed=1)}), timesteps=80, **BLOCK_SETTINGS
        )
        assert clock.compiles == 0
    steps = [learner.get_state()["connector"]["KeepsColumns"]["steps"] for learner in block_learners.values()]
    assert steps[0] > 0


def test_blocks_that_do_not_fit(block_learners):
    def update(learner, data):
        learner.update_block(Experience.of_steps(data), **BLOCK_SETTINGS)

    before = block_learners[1].num_updates
    with pytest.raises(ValueError, match=r"B=3 .*2 shuffle shards.*num_shuffle_shards=2.*environments \(B=4"):
        update(block_learners[1], {DEFAULT_MODULE_ID: block(5, 3)})
    with pytest.raises(ValueError, match=r"B=5 .*2 devices.*num_cpus_per_learner.*environments \(B=6"):
        update(block_learners[2], {DEFAULT_MODULE_ID: block(5, 5)})
    uneven = block(5, 4) | {Columns.REWARDS: np.zeros((4, 4))}
    with pytest.raises(ValueError, match=r"\[T, B, ...\] with the same T and B.*'rewards': \[\(4, 4\)\]"):
        update(block_learners[1], {DEFAULT_MODULE_ID: uneven})
    with pytest.raises(ValueError, match="unknown module 'other'"):
        update(block_learners[1], {"other": block(5, 4)})
    with pytest.raises(
        ValueError, match="minibatch_size=7 must be a positive multiple of 2, the number of shuffle shards"
    ):
        block_learners[1].update_block(Experience.of_steps({DEFAULT_MODULE_ID: block(5, 4)}), minibatch_size=7)
    assert block_learners[1].num_updates == before


class AddsAnEntry(ConnectorV2):
    """Returns more than modules."""

    def apply(self, state, batch, ctx):
        return state, {**batch, "other": batch[DEFAULT_MODULE_ID]}


def test_connectors_return_only_modules():
    learner = config_of(learner_connector=lambda obs, act: [AddsAnEntry()]).build_learner()
    named = rf"returned \['other'\], which are not modules.*\['{DEFAULT_MODULE_ID}'\].*{{module_id: columns}}"
    for update in (
        lambda: learner.update(episodes=[episode(3)]),
        lambda: learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: block(2, 2)})),
        lambda: learner.update_rows(Experience.of_rows({DEFAULT_MODULE_ID: rows(2)})),
        lambda: learner.evaluate_rows(Experience.of_rows({DEFAULT_MODULE_ID: rows(2)})),
    ):
        with pytest.raises(ValueError, match=named):
            update()
    assert learner.num_updates == 0


def test_joined_learners_compare_batches_of_the_shapes_that_hooks_see(monkeypatch):
    learner = config_of(num_devices=2, num_shuffle_shards=4).build_learner()
    sizes_of_all_learners, seen = learner.programs.sizes_of_all_learners, []

    def noting(sizes, batch=None):
        if not sizes:
            seen.append({name: own.shape for name, own in batch[DEFAULT_MODULE_ID].items()})
        return sizes_of_all_learners(sizes, batch)

    monkeypatch.setattr(learner.programs, "sizes_of_all_learners", noting)
    learner.update(batch=rows(48), minibatch_size=8)
    learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: block(5, 4)}))
    of_rows, of_steps = seen
    per_device = 2 * padded_size(12)
    assert of_rows[Columns.OBS] == (2, 1, per_device, 3) and of_rows[Columns.REWARDS] == (2, 1, per_device)
    assert of_steps[Columns.OBS] == (2, 5, 2, 3)


# ----------------------------------------------------------------------------------------------------------- counters


def test_what_was_trained_is_counted_over_updates_of_all_sizes():
    learner = config_of().build_learner()
    settings = {**SHUFFLED, "shuffle_batch_per_epoch": False}
    first = learner.update(batch=rows(138), **settings)
    assert first[DEFAULT_MODULE_ID]["module_train_batch_size_mean"] == 64
    assert first[DEFAULT_MODULE_ID]["weights_seq_no"] == 1
    assert first[DEFAULT_MODULE_ID]["num_trainable_parameters"] == 3
    assert first[ALL_MODULES]["num_env_steps_trained"] == first[ALL_MODULES]["num_env_steps_trained_lifetime"] == 320
    half = np.arange(100) % 2 == 0
    second = learner.update(batch=rows(100) | {Columns.LOSS_MASK: half}, num_epochs=3)
    assert second[DEFAULT_MODULE_ID]["module_train_batch_size_mean"] == 50
    assert second[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 150
    assert second[DEFAULT_MODULE_ID]["num_module_steps_trained_lifetime"] == 470
    assert second[ALL_MODULES]["num_env_steps_trained_lifetime"] == 470
    assert second[DEFAULT_MODULE_ID]["weights_seq_no"] == 2
    # They are part of the state, and go on from there.
    other = config_of().build_learner()
    other.set_state(learner.get_state())
    third = other.update(batch=rows(10))
    assert third[ALL_MODULES]["num_module_steps_trained_lifetime"] == 480
    # Updates that are made elsewhere with the state count as what they are said to be.
    other.state = other.state.replace(num_updates=other.state.num_updates + 2)
    counts = other.training_counts(other.plan(num_epochs=3), 7, 2)
    assert counts[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 42
    assert counts[ALL_MODULES]["num_env_steps_trained_lifetime"] == 522


# ------------------------------------------------------------------------------------------- modules come and go


class Picky(Weighted):
    def configure_optimizers_for_module(self, module_id, config=None):
        if module_id == "unwanted" or getattr(self, "refuses", False):
            raise RuntimeError("no optimizer for this one")
        super().configure_optimizers_for_module(module_id, config)


def test_modules_are_added_and_removed_as_a_whole_or_not_at_all():
    config = config_of(Picky, learner_connector=lambda obs, act: [KeepsColumns()])
    learner = Picky(config=config, module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: SPEC, "q": SPEC}))
    learner.build()
    data = {DEFAULT_MODULE_ID: block(5, 4)}
    learner.update_block(Experience.of_steps(data))
    before, modules = learner.get_state(), dict(learner.module.items())
    clock = CompileClock()
    with pytest.raises(RuntimeError, match="no optimizer"):
        learner.add_module(
            module_id="unwanted",
            module_spec=SPEC,
            config_overrides=PPOConfig.overrides(lr=0.5),
            new_should_module_be_updated=["unwanted"],
        )
    learner.refuses = True
    with pytest.raises(RuntimeError, match="no optimizer"):
        learner.remove_module("q")
    learner.refuses = False
    after = learner.get_state()
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))
    assert list(learner.module) == list(modules) == [DEFAULT_MODULE_ID, "q"]
    assert all(learner.module[mid] is module for mid, module in modules.items())
    clock.reset()
    learner.update_block(Experience.of_steps(data))
    assert clock.compiles == 0
    # The connector's state is still there when a module comes or goes.
    seen = learner.get_state()["connector"]["KeepsColumns"]["steps"]
    assert seen == 2 * data[DEFAULT_MODULE_ID][Columns.LOSS_MASK].sum()
    learner.add_module(module_id="r", module_spec=SPEC)
    learner.remove_module("q")
    assert learner.get_state()["connector"]["KeepsColumns"]["steps"] == seen
    learner.remove_module("r")
    with pytest.raises(ValueError, match="'default_policy' is the learner's only module"):
        learner.remove_module(DEFAULT_MODULE_ID)
    learner.update_block(Experience.of_steps(data))
