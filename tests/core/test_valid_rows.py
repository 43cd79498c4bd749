"""Masked blocks: minibatches of valid rows, modules without any, and how many steps count as trained."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.learner.utils import make_target_network
from jaxrl_stack.core.learner.valid_rows import ValidItems
from jaxrl_stack.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from jaxrl_stack.ops import permutation
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.devices import host_view

OBS_SPACE, ACTION_SPACE = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32), gym.spaces.Discrete(2)
NUM_STEPS, NUM_COLUMNS = 5, 4
NUM_IDS = NUM_STEPS * NUM_COLUMNS


class Uses(RLModule):
    """A number for every row of a block, which a gradient step moves by 1 / (valid rows of its minibatch)."""

    rows_are_independent = True

    def setup(self):
        self.uses = nnx.Param(jnp.zeros(NUM_IDS))

    def _forward(self, batch):
        uses = self.uses[...][batch[Columns.OBS][..., 0].astype(jnp.int32)]
        return {Columns.ACTION_DIST_INPUTS: jnp.stack([uses, uses], axis=-1)}


class CountsUses(Learner):
    """Its parameters are how often each row was in a minibatch, over the rows of one."""

    loss_is_linear_in_means = True

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id, optimizer=optax.sgd, params=self.pure.module_refs(module_id), lr_or_lr_schedule=1.0
        )

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return -self.masked_mean(fwd_out[Columns.ACTION_DIST_INPUTS][..., 0], batch)


class InOrder(CountsUses):
    loss_needs_time = True


SPEC = RLModuleSpec(module_class=Uses, observation_space=OBS_SPACE, action_space=ACTION_SPACE)


def learner_of(learner_class=CountsUses, module_ids=("p", "q"), num_devices=1, specs=None, **learners):
    config = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .learners(
            learner_class=learner_class,
            num_cpus_per_learner=num_devices,
            add_default_connectors_to_learner_pipeline=False,
            **learners,
        )
        .training(grad_clip=None)
    )
    specs = specs or MultiRLModuleSpec(rl_module_specs=dict.fromkeys(module_ids, SPEC))
    learner = learner_class(config=config, module_spec=specs)
    learner.build()
    return learner


def block(mask):
    """Rows that are numbered, row ``t * B + b``."""
    ids = np.arange(NUM_IDS, dtype=np.float32).reshape(NUM_STEPS, NUM_COLUMNS, 1)
    columns = {Columns.OBS: ids, Columns.REWARDS: np.zeros((NUM_STEPS, NUM_COLUMNS), np.float32)}
    return columns if mask is None else columns | {Columns.LOSS_MASK: mask}


def mask_of(*rows):
    """True in these rows of the flattened block."""
    mask = np.zeros(NUM_IDS, bool)
    mask[list(rows)] = True
    return mask.reshape(NUM_STEPS, NUM_COLUMNS)


def uses(learner, masks, minibatch_size, **sizes):
    """How often one update takes each row of each module, ``{module_id: [T * B]}``, and its results."""
    before = learner.get_weights()
    batch = Experience.of_steps({mid: block(mask) for mid, mask in masks.items()})
    results = learner.update_block(batch, minibatch_size=minibatch_size, **sizes)
    after = learner.get_weights()
    found = {mid: (after[f"{mid}/uses"] - before[f"{mid}/uses"]) * minibatch_size for mid in masks}
    for own in found.values():
        np.testing.assert_allclose(own, np.round(own), atol=1e-4)
    return {mid: np.round(own).astype(int) for mid, own in found.items()}, results


@pytest.fixture(scope="module")
def learner():
    return learner_of()


def test_a_domain_is_found_in_the_program():
    sizes = [*range(1, 70), *(n * n + more for n in (255, 4096, 46340) for more in (-1, 0, 1)), 2**24 + 1, 2**31]
    found = jax.vmap(permutation.domain_of)(jnp.array(sizes, jnp.uint32))
    np.testing.assert_array_equal(found, [permutation.domain(size) for size in sizes])


def test_chunks_with_one_valid_step_count():
    mask = jnp.array([[[False, False], [True, False], [True, True]], [[False] * 2] * 3])
    chunks = ValidItems.of(mask)
    assert chunks.num_items.tolist() == [2, 0] and chunks.num_rows.tolist() == [3, 0]
    np.testing.assert_array_equal(chunks.order[0], [1, 2, 2])
    rows = ValidItems.of(mask[..., 0])
    assert rows.num_items.tolist() == rows.num_rows.tolist() == [2, 0]
    np.testing.assert_array_equal(rows.minibatch(jnp.uint32(1), 3, None, jnp.arange(2))[0], [2, 1, 2])


def test_minibatches_are_valid_rows_one_after_the_other(learner):
    """As a loop over the rows: the module with the most rows makes its epochs, the other one goes round."""
    masks = {"p": mask_of(0, 3, 4, 9, 10, 11, 19), "q": mask_of(2, 8)}
    found, _ = uses(learner, masks, 3, num_epochs=2)
    num_minibatches = 5  # 2 epochs of 7 rows, 3 at a time
    for mid, mask in masks.items():
        rows = np.flatnonzero(mask).tolist()
        expected = Counter(rows[position % len(rows)] for position in range(num_minibatches * 3))
        assert found[mid].tolist() == [expected[row] for row in range(NUM_IDS)]


def test_a_module_without_masks_makes_its_epochs_beside_one_with(learner):
    found, _ = uses(learner, {"p": mask_of(5), "q": None}, 4, num_epochs=2, shuffle_batch_per_epoch=True)
    assert found["q"].tolist() == [2] * NUM_IDS
    assert found["p"].tolist() == [40 if row == 5 else 0 for row in range(NUM_IDS)]


def test_every_epoch_is_shuffled_and_covers_valid_rows_once(learner):
    masks = {"p": mask_of(*range(1, 17)), "q": mask_of(2, 8, 9)}
    found, _ = uses(learner, masks, 4, num_epochs=3, shuffle_batch_per_epoch=True)
    assert found["p"].tolist() == [3 if 1 <= row < 17 else 0 for row in range(NUM_IDS)]
    assert found["q"][[2, 8, 9]].tolist() == [16] * 3 and found["q"].sum() == 48
    # Other numbers of valid rows are the same program.
    clock = CompileClock()
    masks = {"p": mask_of(4), "q": mask_of(*range(5))}
    found, _ = uses(learner, masks, 4, num_epochs=3, shuffle_batch_per_epoch=True)
    assert clock.compiles == 0
    assert found["p"][4] == found["q"].sum() == 16
    once, _ = uses(learner, masks, 4, num_total_minibatches=1, shuffle_batch_per_epoch=True)
    in_order, _ = uses(learner, masks, 4, num_total_minibatches=1)
    assert sorted(once["q"]) == sorted(in_order["q"]) and in_order["q"].tolist() == [1] * 4 + [0] * 16


def test_the_whole_batch_is_one_step_per_epoch(learner):
    before = learner.get_weights()
    mask = mask_of(3, 7, 8, 12)
    learner.update_block(Experience.of_steps({"p": block(mask), "q": block(None)}), num_epochs=2)
    after = learner.get_weights()
    np.testing.assert_allclose(after["p/uses"] - before["p/uses"], mask.reshape(-1) * 0.5, atol=1e-5)
    np.testing.assert_allclose(after["q/uses"] - before["q/uses"], 0.1, atol=1e-5)


@pytest.mark.parametrize("shuffle", [False, True])
def test_devices_make_as_many_steps_as_the_one_with_the_most_rows(shuffle):
    """Shards are columns 0 and 1, and 2 and 3; the second one has fewer rows of p, and none of q."""
    masks = {"p": mask_of(0, 1, 4, 5, 8, 9, 3, 2), "q": mask_of(0, 4, 8)}
    found = []
    for num_devices in (1, 2):
        learner = learner_of(num_devices=num_devices, num_shuffle_shards=2)
        learner.update_block(
            Experience.of_steps({mid: block(mask) for mid, mask in masks.items()}),
            minibatch_size=4,
            num_epochs=2,
            shuffle_batch_per_epoch=shuffle,
        )
        found.append(learner.get_weights())
    for ref, value in found[0].items():
        np.testing.assert_allclose(found[1][ref], value, atol=1e-5)
    # 6 steps: 2 epochs of the 6 rows of the first shard, 2 of them in each minibatch.
    taken = found[0]["p/uses"] * 4
    assert np.round(taken).astype(int)[[0, 1, 4, 5, 8, 9]].tolist() == [2] * 6
    assert np.round(taken).astype(int)[[2, 3]].tolist() == [6, 6]
    np.testing.assert_allclose(found[0]["q/uses"][[0, 4, 8]] * 2, [4, 4, 4], atol=1e-4)
    np.testing.assert_allclose([found[0][ref].sum() for ref in ("p/uses", "q/uses")], 6.0, atol=1e-4)


def test_chunks_without_a_valid_step_are_in_no_minibatch():
    learner = learner_of(InOrder, ("p",))
    mask = mask_of(0, 4, 8, 2)  # three steps of column 0, and the first one of column 2
    before = learner.get_weights()["p/uses"]
    learner.update_block(
        Experience.of_steps({"p": block(mask)}), minibatch_size=NUM_STEPS, num_epochs=2, shuffle_batch_per_epoch=True
    )
    moved = learner.get_weights()["p/uses"] - before
    expected = np.zeros(NUM_IDS)
    expected[[0, 4, 8]], expected[2] = 2 / 3, 2.0
    np.testing.assert_allclose(moved, expected, atol=1e-5)


# ---------------------------------------------------------------------------------------------- what counts as trained


def counts_of(results):
    names = ("module_train_batch_size_mean", "num_module_steps_trained", "num_module_steps_trained_lifetime")
    return {mid: tuple(results[mid][name] for name in names) for mid in "pq"}


def test_valid_rows_count_as_trained():
    learner = learner_of()
    masks = {"p": mask_of(0, 3, 4, 9, 10, 11, 19), "q": mask_of(2, 8)}
    _, results = uses(learner, masks, 3, num_epochs=2)
    assert counts_of(results) == {"p": (3, 15, 15), "q": (3, 15, 15)}
    assert results[ALL_MODULES]["num_env_steps_trained"] == 15
    assert results[ALL_MODULES]["num_module_steps_trained"] == 30
    _, results = uses(learner, {"p": mask_of(0), "q": None}, 3, num_epochs=2)
    assert counts_of(results) == {"p": (3, 42, 57), "q": (3, 42, 57)}
    _, results = uses(learner, {"p": mask_of(), "q": mask_of(1)}, 3, num_epochs=2)
    assert counts_of(results) == {"p": (0, 0, 57), "q": (3, 3, 60)}
    results = learner.update_block(
        Experience.of_steps({"p": block(masks["p"]), "q": block(None)}), minibatch_size=None, num_epochs=3
    )
    assert counts_of(results) == {"p": (7, 21, 78), "q": (NUM_IDS, 60, 120)}


def test_what_a_program_has_counted_is_added_up():
    """In a program of a driver, which makes several updates in one call, and says how many steps all of them had."""
    learner = learner_of()
    plan = learner.plan(minibatch_size=3, num_epochs=2)
    update = jax.jit(functools.partial(learner.pure_update, plan=plan, axis_name=None))
    masks = {"p": mask_of(0, 3, 4, 9, 10, 11, 19), "q": mask_of(2, 8)}
    blocks = {mid: Block(block(own), Layout(is_masked=True)) for mid, own in masks.items()}
    state, learned = update(host_view(learner.state), blocks, learner.settings(), counters.zero())
    learner.place(state)
    sizes = (NUM_STEPS, 1, dict.fromkeys("pq", NUM_COLUMNS))
    learned = jax.device_get(learned)
    steps = [learner.count_updates(plan, *sizes, learned) for _ in range(2)]
    assert steps == [{"p": 15, "q": 15}] * 2
    counts = learner.training_counts(plan, *sizes, learned, {"p": 30, "q": 30})
    assert counts_of(counts) == {"p": (3, 30, 30), "q": (3, 30, 30)}
    assert counts[ALL_MODULES]["num_env_steps_trained"] == counts[ALL_MODULES]["num_env_steps_trained_lifetime"] == 30
    assert learner.count_updates(plan, *sizes, {}) == {}


def test_chunks_and_devices_count_their_valid_rows():
    learner = learner_of(InOrder, num_devices=2)
    masks = {"p": mask_of(0, 4, 8, 2), "q": mask_of(1)}
    batch = Experience.of_steps({mid: block(mask) for mid, mask in masks.items()})
    results = learner.update_block(batch, minibatch_size=2 * NUM_STEPS, num_epochs=2)
    # 2 steps of a chunk per device: three valid steps on the one, one on the other; q has none there.
    assert counts_of(results) == {"p": (4, 8, 8), "q": (1, 2, 2)}


# ---------------------------------------------------------------------------------------------- modules without rows


class WithTargets(Uses, TargetNetworkAPI, InferenceOnlyAPI):
    """Its target follows its numbers."""

    def setup(self):
        super().setup()
        self.target_uses = nnx.Linear(1, 1, rngs=self.rngs)
        self.main = nnx.Linear(1, 1, rngs=self.rngs)

    def make_target_networks(self):
        self.target_uses = make_target_network(self.main)

    def get_target_network_pairs(self):
        return [(self.main, self.target_uses)]

    def get_non_inference_attributes(self):
        return ["main", "target_uses"]

    def forward_target(self, batch):
        return {"target": self.target_uses(batch[Columns.OBS])}


class WithMomentum(TargetNetworkUpdates, CountsUses):
    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=lambda lr: optax.adamw(lr, weight_decay=0.1),
            params=self.pure.module_refs(module_id),
            lr_or_lr_schedule=0.1,
        )

    def compute_loss_for_module(self, *, batch, **kwargs):
        module: Any = self.module[kwargs["module_id"]]
        main = module.main(batch[Columns.OBS])[..., 0]
        return super().compute_loss_for_module(batch=batch, **kwargs) + self.masked_mean(main, batch)


def off_policy_learner(num_devices=1):
    spec = RLModuleSpec(module_class=WithTargets, observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    config = (
        OffPolicyConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .training(tau=0.5, target_network_update_freq=0)
        .learners(learner_class=WithMomentum, num_cpus_per_learner=num_devices)
    )
    learner = WithMomentum(
        config=config, module_spec=MultiRLModuleSpec(rl_module_specs=dict.fromkeys(("p", "q"), spec))
    )
    learner.build()
    return learner


def of_module(learner, mid):
    """Everything that a learner's state has of a module."""
    state = jax.device_get(host_view(learner.state))
    parts = (
        {ref: own for ref, own in part.items() if ref.startswith(f"{mid}/")} for part in (state.params, state.rest)
    )
    return (*parts, state.optimizers[mid], {name: own[mid] for name, own in state.extra.items()})


def is_same(before, after):
    return jax.tree.all(jax.tree.map(np.array_equal, before, after))


@pytest.mark.parametrize(("num_devices", "minibatch_size"), [(1, None), (2, 4)])
def test_a_module_without_a_valid_row_stays_as_it_is(num_devices, minibatch_size):
    learner = off_policy_learner(num_devices)

    def changed(**masks):
        before = {mid: of_module(learner, mid) for mid in "pq"}
        batch = Experience.of_steps({mid: block(mask) for mid, mask in masks.items()})
        results = learner.update_block(batch, minibatch_size=minibatch_size, timesteps=9)
        return {mid for mid in "pq" if not is_same(before[mid], of_module(learner, mid))}, results

    # One row, on one device alone, is enough.
    found, results = changed(p=mask_of(3), q=mask_of(2, 4))
    assert found == {"p", "q"} and results["q"]["num_target_updates"] == 1.0
    found, results = changed(p=mask_of(3, 4), q=mask_of())
    assert found == {"p"}
    assert (results["p"]["num_target_updates"], results["q"]["num_target_updates"]) == (2.0, 1.0)
    assert changed(p=mask_of(), q=mask_of())[0] == set()
    # A module that the batch does not have stays, too.
    assert changed(q=None)[0] == {"q"}
    # It goes on from where it was.
    assert changed(p=None, q=mask_of(7))[0] == {"p", "q"}


class UsesOfAnother(RLModule):
    """A number of its own on top of those of another module."""

    uses: nnx.Param

    def setup(self):
        self.own = nnx.Param(jnp.zeros(1))

    def _forward(self, batch):
        uses = self.uses[...][batch[Columns.OBS][..., 0].astype(jnp.int32)] + self.own[...]
        return {Columns.ACTION_DIST_INPUTS: jnp.stack([uses, uses], axis=-1)}


class Sharing(MultiRLModule):
    def setup(self):
        super().setup()
        modules: Any = self
        for module_id in ("p", "q"):
            modules[module_id].uses = modules["shared"].uses


def test_shared_parameters_follow_any_module_with_rows():
    spec = RLModuleSpec(module_class=UsesOfAnother, observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    learner = learner_of(specs=MultiRLModuleSpec(Sharing, rl_module_specs={"p": spec, "q": spec, "shared": SPEC}))
    batch = Experience.of_steps({"p": block(mask_of()), "q": block(mask_of(4))})
    learner.update_block(batch, minibatch_size=2)
    weights = learner.get_weights()
    assert np.flatnonzero(weights["shared/uses"]).tolist() == [4]
    assert (weights["p/own"].tolist(), weights["q/own"].tolist()) == ([0.0], [1.0])


def test_the_kl_coefficient_of_a_module_without_rows_stays():
    learner = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(model_config={"fcnet_hiddens": [2]})
        .training(use_kl_loss=True, kl_coeff=0.2, kl_target=0.01)
        .learners(num_cpus_per_learner=1)
        .build_learner()
    )
    mid = DEFAULT_MODULE_ID
    columns = {
        **block(None),
        **{name: np.zeros((NUM_STEPS, NUM_COLUMNS), bool) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)},
        Columns.FINAL_OBS: np.zeros((NUM_STEPS, NUM_COLUMNS, 1), np.float32),
        Columns.ACTIONS: np.zeros((NUM_STEPS, NUM_COLUMNS), np.int32),
        Columns.ACTION_LOGP: np.full((NUM_STEPS, NUM_COLUMNS), -0.7, np.float32),
        Columns.ACTION_DIST_INPUTS: np.zeros((NUM_STEPS, NUM_COLUMNS, 2), np.float32),
    }
    for mask in (mask_of(), mask_of(1)):
        before = learner.get_weights()
        results = learner.update_block(Experience.of_steps({mid: columns | {Columns.LOSS_MASK: mask}}))
        assert is_same(before, learner.get_weights()) == (not mask.any())
        assert (results[mid]["curr_kl_coeff"] == np.float32(0.2)) == (not mask.any())
