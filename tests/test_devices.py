"""Several devices: eight CPU devices stand for a machine with accelerators."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from envs.counter import CounterEnv
from jaxrl_stack import use_cpu_devices
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.devices import (
    copy_on_one_device,
    host_view,
    learner_devices,
    map_over_devices,
    place_replicated,
    place_sharded,
    replicated_sharding,
)

OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
NUM_DEVICES = 8


def assert_replicated(state):
    """Every device holds the same bits."""
    for path, leaf in jax.tree.leaves_with_path(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        first, *others = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert first.shape == leaf.shape
        for device, other in enumerate(others, start=1):
            assert first.tobytes() == other.tobytes(), (jax.tree_util.keystr(path), device)


def test_assert_replicated_sees_a_difference():
    program = jax.pmap(lambda x: {"same": x * 0.0, "other": x}, in_axes=0, out_axes=None, devices=jax.devices())
    state = program(np.arange(NUM_DEVICES))
    assert len(state["other"].addressable_shards) == NUM_DEVICES
    assert_replicated(state["same"])
    with pytest.raises(AssertionError, match="other"):
        assert_replicated(state)


# -------------------------------------------------------------------------------------------------------- the update


def ppo_learner(num_devices, **learners):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(2))
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .training(lr=0.01, grad_clip=0.5, entropy_coeff=0.01, gamma=0.9, lambda_=0.8, vf_clip_param=1e4)
        .learners(num_cpus_per_learner=num_devices, **learners)
        .build_learner()
    )


def block(num_steps=6, num_envs=16, seed=0):
    """What a rollout gives, ``[T, B, ...]``. Env i has fewer valid rows than env i + 1; the first two have none."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    ended = rng.random(shape) < 0.4
    truncates = rng.random(shape) < 0.5
    return {
        Columns.OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.FINAL_OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.ACTIONS: rng.integers(0, 2, shape, dtype=np.int32),
        Columns.REWARDS: (5.0 + 3.0 * rng.normal(size=shape) + np.arange(num_envs)).astype(np.float32),
        Columns.TERMINATEDS: ended & ~truncates,
        Columns.TRUNCATEDS: ended & truncates,
        Columns.ACTION_LOGP: np.full(shape, np.log(0.5), np.float32),
        Columns.ACTION_DIST_INPUTS: np.zeros((*shape, 2), np.float32),
        Columns.LOSS_MASK: np.arange(num_steps)[:, None] < (np.arange(num_envs) // 2)[None],
    }


def test_one_device_with_eight_shards_updates_as_eight_devices_do():
    results = []
    for num_devices in (1, NUM_DEVICES):
        learner = ppo_learner(num_devices, num_shuffle_shards=NUM_DEVICES)
        sizes = {"num_epochs": 2, "minibatch_size": 32, "shuffle_batch_per_epoch": True}
        plan = learner.plan(**sizes)
        update = map_over_devices(
            functools.partial(learner.pure_update, plan=plan, axis_name=learner.axis_name),
            learner.devices,
            axis_name=learner.axis_name,
            in_axes=(None, 0, None, None),
            out_axes=(None, None),
            donate_argnums=(0,),
        )
        for seed in range(2):
            dealt = Block(block(seed=seed), Layout(is_masked=True)).deal_out(num_devices)
            rows = place_sharded({DEFAULT_MODULE_ID: dealt}, learner.devices)
            counter = counters.from_int(96 * (seed + 1))
            learner.state, metrics = update(learner.state, rows, learner.placed_settings(), counter)
            assert_replicated(learner.state)
        results.append((learner.get_weights(), jax.device_get(host_view(metrics)), learner.get_state("extra")))
    (weights, metrics, extra), (weights_of_eight, metrics_of_eight, extra_of_eight) = results
    initial = ppo_learner(1).get_weights()
    for ref in weights:
        np.testing.assert_allclose(weights_of_eight[ref], weights[ref], rtol=1e-5, atol=1e-5, err_msg=ref)
        assert np.abs(weights[ref] - initial[ref]).max() > 1e-3, ref
    assert metrics.keys() == metrics_of_eight.keys()
    for name in metrics:
        np.testing.assert_allclose(metrics_of_eight[name], metrics[name], rtol=1e-4, atol=1e-5, err_msg=str(name))
    np.testing.assert_allclose(jax.tree.leaves(extra), jax.tree.leaves(extra_of_eight))


class OneVector(RLModule):
    def setup(self):
        self.w = nnx.Param(jnp.array([0.1, -0.2, 0.3]))

    def _forward(self, batch):
        output = batch[Columns.OBS] @ self.w[...]
        return {Columns.ACTION_DIST_INPUTS: jnp.stack([output, output], axis=-1)}


class OwnLearner(Learner):
    """A loss of its own, which is no sum over rows: the square of a mean error, and a mean squared error."""

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.sgd,
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=0.1,
        )

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        error = fwd_out[Columns.ACTION_DIST_INPUTS][:, 0] - batch["target"]
        means = self.masked_means({"error": error, "square": jnp.square(error)}, batch)
        for reduce, function in (("min", jnp.min), ("max", jnp.max)):
            self.metrics.log_value((module_id, reduce), function(batch["target"]), reduce=reduce)
        return jnp.square(means["error"]) + means["square"], {"error": means["error"]}


def test_a_loss_of_ones_own_on_unequal_masks():
    """The gradient through the global means, against NumPy; a mean of the devices' means would be another."""
    rng = np.random.default_rng(0)
    n = 6 * NUM_DEVICES
    batch = {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "target": (rng.normal(size=n) + np.arange(n) // 6).astype(np.float32),
        "loss_mask": np.arange(n) % 6 < np.arange(n) // 6,
    }
    learner = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(2))
        .rl_module(rl_module_spec=RLModuleSpec(module_class=OneVector))
        .learners(learner_class=OwnLearner, num_cpus_per_learner=NUM_DEVICES)
        .build_learner()
    )
    ref = f"{DEFAULT_MODULE_ID}/w"
    w = learner.get_weights()[ref].astype(float)
    metrics = learner.update(batch=batch)[DEFAULT_MODULE_ID]
    assert_replicated(learner.state)
    obs, target = batch["obs"][batch["loss_mask"]], batch["target"][batch["loss_mask"]]
    error = obs @ w - target
    assert metrics["error"] == pytest.approx(error.mean(), rel=1e-5)
    assert metrics["total_loss"] == pytest.approx(error.mean() ** 2 + np.square(error).mean(), rel=1e-5)
    gradient = 2.0 * error.mean() * obs.mean(0) + 2.0 * (error[:, None] * obs).mean(0)
    np.testing.assert_allclose(learner.get_weights()[ref], w - 0.1 * gradient, rtol=1e-5, atol=1e-6)
    # Extremes are those of all devices.
    assert (metrics["min"], metrics["max"]) == (batch["target"].min(), batch["target"].max())


class Dropping(OneVector):
    def setup(self):
        super().setup()
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)
        self.norm = nnx.BatchNorm(3, use_bias=False, use_scale=False, momentum=0.0, rngs=self.rngs)

    def _forward_train(self, batch):
        self.norm(batch[Columns.OBS])
        return self._forward({Columns.OBS: self.dropout(batch[Columns.OBS])})


def test_devices_draw_their_own_numbers_and_share_their_statistics():
    class PerDevice(OwnLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            outputs = jnp.mean(fwd_out[Columns.ACTION_DIST_INPUTS][:, 0])
            for reduce in ("min", "max"):
                self.metrics.log_value((module_id, reduce), outputs, reduce=reduce)
            return outputs

    learner = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(2))
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Dropping))
        .learners(learner_class=PerDevice, num_cpus_per_learner=2)
        .build_learner()
    )
    obs = np.repeat(np.float32([[1.0, 2.0, 4.0], [3.0, 2.0, 8.0]]), 4, axis=0)
    metrics = learner.update(batch={"obs": obs[:, [0, 0, 0]] * 0 + 1.0})[DEFAULT_MODULE_ID]
    assert metrics["min"] != metrics["max"], "equal rows, other draws"
    learner.update(batch={"obs": obs})
    assert_replicated(learner.state)
    state = learner.get_state()["rl_module"][DEFAULT_MODULE_ID]
    np.testing.assert_allclose(state["norm/mean"], [2.0, 2.0, 6.0])


# -------------------------------------------------------------------------------------------------------- whole runs


def tiny(num_devices, num_envs=16, **learners):
    return (
        PPOConfig()
        .environment(CounterEnv, env_config={"terminate_at": 5, "random_start": True})
        .env_runners(
            num_envs_per_env_runner=num_envs, env_to_module_connector=lambda env, spaces, device: MeanStdFilter()
        )
        .training(train_batch_size_per_learner=4 * num_envs, minibatch_size=32, num_epochs=2, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=num_devices, **learners)
        .debugging(seed=0)
    )


def test_whole_iterations():
    algo = tiny(NUM_DEVICES).build_algo()
    assert len(algo.learner.devices) == NUM_DEVICES
    clock = CompileClock()
    for i in range(1, 4):
        if i == 2:
            weights, module = algo.get_weights(), algo.get_module()
            kept = jax.tree.map(np.array, weights)
            clock.reset()
        result = algo.train()
        assert_replicated(algo.learner.state)
        assert_replicated(algo.driver.timesteps)
        assert result["num_env_steps_sampled_lifetime"] == i * 64
        assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
        assert 1.0 <= result["env_runners"]["episode_len_mean"] <= 5.0
    assert clock.compiles == 0
    # What a user holds is his own.
    for path, leaf in jax.tree.leaves_with_path(weights):
        np.testing.assert_array_equal(leaf, functools.reduce(lambda node, key: node[key.key], path, kept))
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(algo.get_weights()), strict=True))
    assert np.isfinite(module.forward_inference({"obs": np.zeros((1, 1), np.float32)})["action_dist_inputs"]).all()

    # Environments are dealt out, each device with draws of its own.
    runner = algo.driver.shards.state
    shards = [np.asarray(shard.data) for shard in runner.obs.addressable_shards]
    assert [shard.shape for shard in shards] == [(1, 16 // NUM_DEVICES, 1)] * NUM_DEVICES
    assert len({shard.tobytes() for shard in shards}) > 1
    keys = [np.asarray(shard.data).tobytes() for shard in jax.random.key_data(runner.key).addressable_shards]
    assert len(set(keys)) == NUM_DEVICES
    # Statistics have seen all rows, and are the same everywhere.
    for leaf in jax.tree.leaves(runner.env_to_module):
        bits = {np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}
        assert len(bits) == 1
    statistics = algo.env_runner.get_state()["env_to_module_connector"]
    counts = [x for x in jax.tree.leaves(statistics) if np.asarray(x).dtype == np.uint32]
    assert max(counters.to_int(count) for count in counts) == 3 * 64
    # One device of several is as good as any for acting.
    assert algo.compute_single_action(np.array([1.0], np.float32)) in (0, 1)
    assert algo.evaluate()["env_runners"]["num_episodes"] == 10
    algo.stop()


def test_sizes_that_do_not_fit():
    with pytest.raises(
        ValueError, match="num_envs_per_env_runner=12 must be a multiple of the learner's 8 devices.*Use 16"
    ):
        tiny(8, num_envs=12).build_algo()
    with pytest.raises(
        ValueError, match="minibatch_size=36 must be a positive multiple of 8, the number of shuffle shards"
    ):
        tiny(8).training(minibatch_size=36).build_algo()
    with pytest.raises(ValueError, match="num_shuffle_shards=32.*num_envs_per_env_runner=16"):
        tiny(1, num_shuffle_shards=32).build_algo()
    with pytest.raises(ValueError, match="num_shuffle_shards=4 must be a multiple of the number of devices, 8"):
        tiny(8, num_shuffle_shards=4).build_algo()


def test_which_devices_a_learner_uses():
    cpus = jax.devices("cpu")
    assert learner_devices(PPOConfig()) == cpus[:1]
    assert learner_devices(PPOConfig().learners(num_gpus_per_learner=0)) == cpus[:1]
    for num_cpus, num_devices in ((3, 3), (2.5, 2), (0.5, 1), (0, 1)):
        assert learner_devices(PPOConfig().learners(num_cpus_per_learner=num_cpus)) == cpus[:num_devices]
    with pytest.raises(ValueError, match="num_gpus_per_learner=1 .* needs 1 accelerator.s., but JAX sees 0"):
        learner_devices(PPOConfig().learners(num_gpus_per_learner=1))
    with pytest.raises(RuntimeError, match="use_cpu_devices\\(64\\).* with 8 CPU devices.*JAX_NUM_CPU_DEVICES=64"):
        learner_devices(PPOConfig().learners(num_cpus_per_learner=64))
    use_cpu_devices(4)
    assert len(jax.devices("cpu")) == NUM_DEVICES
    with pytest.raises(ValueError, match="n must be at least 1"):
        use_cpu_devices(0)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["the first device", "another one of them", "none of them"])
def test_copies_on_one_device_outlive_what_they_were_made_of(place):
    devices = jax.devices("cpu")
    placed = place_replicated({"x": np.ones((2, 3), np.float32)}, devices[:2])
    sharding = replicated_sharding([devices[place]])
    copied = copy_on_one_device(placed, sharding)["x"]
    assert copied.sharding == sharding
    placed["x"].delete()
    np.testing.assert_array_equal(copied, 1.0)


def test_a_copy_of_nothing_runs_no_program():
    clock = CompileClock()
    assert copy_on_one_device({}, replicated_sharding(jax.devices("cpu")[:1])) == {}
    assert clock.compiles == 0
