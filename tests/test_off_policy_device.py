"""Off-policy training on the device: one program of many training steps, with the replay memory inside."""

from __future__ import annotations

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.acting.device_rollout import StepKeys
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import FrameStacking
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils import counters, notices
from jaxrl_stack.utils.checkpoints import register_class
from jaxrl_stack.utils.devices import all_shards, host_view

NUM_ENVS, BATCH, CAPACITY = 4, 8, 80


@register_class
def stacks(env, spaces, device):
    return FrameStacking(num_frames=2)


def config(**training):
    """Everything at once: priorities, windows of random length, several updates per round, a moving target, and stacked
    frames, of which one per step is stored."""
    settings = {
        "replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": CAPACITY},
        "train_batch_size_per_learner": BATCH,
        "num_steps_sampled_before_learning_starts": 40,
        "n_step": (1, 3),
        "training_intensity": 2 * BATCH / (NUM_ENVS * 3),
        "target_network_update_freq": 24,
        "epsilon": [[0, 1.0], [100, 0.05]],
        "lr": [[0, 0.01], [100, 0.001]],
    }
    return (
        DQNConfig()
        .environment("gymnax/CartPole-v1", env_config={"max_steps_in_episode": 13})
        .env_runners(num_envs_per_env_runner=NUM_ENVS, env_to_module_connector=stacks)
        .training(**settings | training)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": [4]})
        .reporting(min_sample_timesteps_per_iteration=60, metrics_num_episodes_for_smoothing=10)
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


def plain(**training):
    """Without priorities and stacked frames: what counts steps and updates does not need them."""
    uniform = {"type": "EpisodeReplayBuffer", "capacity": CAPACITY}
    return config(replay_buffer_config=uniform, **training).env_runners(env_to_module_connector=None)


def leaves_of(algo):
    """All of a run's arrays on the host."""
    driver = algo.driver
    learner = jax.device_get(host_view(driver.learner.state))
    state = (learner, all_shards(driver.shards.state), all_shards(driver.kept), host_view(driver.timesteps))
    as_data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(as_data(x)), state)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four iterations, of which the first one begins to learn, with a checkpoint after the second."""
    algo = config().build_algo()
    path = tmp_path_factory.mktemp("run") / "checkpoint"
    started = leaves_of(algo)
    results, states = [], []
    for i in range(4):
        results.append(algo.train())
        states.append(leaves_of(algo))
        if i == 1:
            algo.save_to_path(path)
    yield types.SimpleNamespace(algo=algo, path=path, started=started, results=results, states=states)
    algo.stop()


# -------------------------------------------------------------------------------------------------- the program


def steps_in_python(driver, state, num_training_steps):
    """The training steps of one call, each of their parts a program of its own; the last updates' metrics."""
    learner, rollout, config = driver.learner, driver.rollout, driver.config
    replay = driver.step.replays[DEFAULT_MODULE_ID].ring
    settings = jax.tree.map(jnp.asarray, learner.settings())
    num_samples, num_updates = config.rounds_per_training_step
    length = config.get_rollout_fragment_length()

    @jax.jit
    def sample(state, keys):
        values = learner.current_values(settings, state.timesteps)["modules"]
        context = rollout.context(state.learner.params, state.learner.rest, values, state.timesteps, explore=True)
        runner, record = jax.lax.scan(functools.partial(rollout.step_envs, context=context), state.runner, keys)
        columns, ended = record.columns[DEFAULT_MODULE_ID], record.ended
        episodes, after_steps = runner.episodes.extend(columns[Columns.REWARDS], ended)
        runner = dataclasses.replace(runner, episodes=episodes)
        timesteps = counters.add(state.timesteps, length * NUM_ENVS)
        of_steps = (ended, after_steps.episode_return, after_steps.episode_length)
        return dataclasses.replace(state, runner=runner, timesteps=timesteps), columns, of_steps

    store, prioritise = jax.jit(replay.add), jax.jit(replay.update_priorities)
    draw = jax.jit(lambda memory, key: replay.sample(memory, key, beta=config.replay_beta, gamma=jnp.float32(0.99)))
    update = jax.jit(
        lambda state, batch: learner.pure_update.step(
            state.learner, {DEFAULT_MODULE_ID: batch}, settings, state.timesteps, axis_name=None
        )
    )

    key, step_key, draw_key = jax.random.split(state.runner.key, 3)
    num_rows = num_training_steps * num_samples * length
    keys = jax.random.split(step_key, (num_rows, 1 + NUM_ENVS))
    # Without the module's random streams, which every step then derives on its own.
    step_keys = StepKeys(policy=keys[:, 0], envs=keys[:, 1:], modules=None)
    draw_keys = iter(jax.random.split(draw_key, num_training_steps * num_updates))
    statistics, metrics = [], {}
    for i in range(0, num_rows, length):
        state, columns, of_steps = sample(state, jax.tree.map(lambda x, i=i: x[i : i + length], step_keys))
        statistics.append(of_steps)
        state = dataclasses.replace(state, kept=store(state.kept, columns))
        if counters.to_int(state.timesteps) < config.num_steps_sampled_before_learning_starts:
            continue
        for _ in range(num_updates):
            batch, items = draw(state.kept, next(draw_keys))
            updated, metrics, rows = update(state, batch)
            memory = prioritise(state.kept, items, rows[(DEFAULT_MODULE_ID, "td_error")])
            state = dataclasses.replace(state, learner=updated, kept=memory)
    window = state.runner.window.extend(*jax.tree.map(lambda *x: jnp.concatenate(x), *statistics))
    return dataclasses.replace(state, runner=dataclasses.replace(state.runner, window=window, key=key)), metrics


def test_the_program_does_what_its_parts_do(run):
    """Step by step in Python: the same draws, windows, priorities, schedules and targets. Sums that another program
    adds up in another order differ in the last bits."""
    driver = run.algo.driver
    one_shard = lambda tree: jax.tree.map(lambda x: jnp.asarray(x[0]), tree)  # noqa: E731
    learner, runner, kept, timesteps = run.started
    runner, replay = one_shard(runner), one_shard(kept[DEFAULT_MODULE_ID])
    key = jax.random.wrap_key_data(jnp.asarray(learner.key))
    state = TrainState(
        learner=dataclasses.replace(jax.tree.map(jnp.asarray, learner), key=key, rest=with_keys(driver, learner.rest)),
        runner=dataclasses.replace(runner, key=jax.random.wrap_key_data(runner.key)),
        kept=replay,
        timesteps=jnp.asarray(timesteps),
    )
    state, metrics = steps_in_python(driver, state, 5)
    expected_learner, expected_runner, expected_kept, expected_timesteps = run.states[0]
    expected_replay = expected_kept[DEFAULT_MODULE_ID]
    assert counters.to_int(state.timesteps) == counters.to_int(expected_timesteps) == 60
    assert int(state.learner.num_updates) == int(expected_learner.num_updates) == 4

    def close(expected, actual):
        if jnp.issubdtype(actual.dtype, jax.dtypes.prng_key):
            actual = jax.random.key_data(actual)
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=2e-5, atol=1e-6)

    jax.tree.map(close, expected_learner, state.learner)
    jax.tree.map(close, jax.tree.map(lambda x: x[0], expected_runner), state.runner)
    rings = (jax.tree.map(jnp.asarray, x.ring) for x in (state.kept, one_shard(expected_replay)))
    steps, stored = map(state.kept.layout.unpack, rings)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), steps, stored)
    np.testing.assert_allclose(state.kept.priorities.items, one_shard(expected_replay).priorities.items, rtol=1e-4)
    results = run.results[0]["learners"][DEFAULT_MODULE_ID]
    for name, value in nest_metrics(metrics)[DEFAULT_MODULE_ID].items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, err_msg=name)


def with_keys(driver, rest):
    """Other state of the modules with its PRNG keys as such."""
    like = driver.learner.state.rest
    return {
        ref: jax.random.wrap_key_data(jnp.asarray(leaf))
        if jnp.issubdtype(like[ref].dtype, jax.dtypes.prng_key)
        else jnp.asarray(leaf)
        for ref, leaf in rest.items()
    }


def test_learning_starts_with_the_step_that_has_enough():
    """A training step is 4 env steps: of 10 of them, those learn that end at `start` or later."""
    algo = plain(n_step=1, training_intensity=None, num_steps_sampled_before_learning_starts=100).build_algo()
    own = algo.get_state("driver")["driver"]
    for start, updates in ((0, 15), (4, 15), (5, 14), (8, 14), (59, 1), (60, 1), (61, 0), (100, 0)):
        assert algo.reset(algo.config)
        algo.set_state({"driver": own | {"num_env_steps_sampled_lifetime": 100 - start}})
        algo.train()
        assert algo.driver.num_updates == updates, start
    algo.stop()


def test_results_count_what_was_trained(run):
    updates = [4, 14, 24, 34]  # two per training step of 12 env steps, five steps per iteration, from 48 on
    for i, result in enumerate(run.results):
        learned = result["learners"]
        assert result["num_env_steps_sampled_lifetime"] == 60 * (i + 1)
        assert learned[DEFAULT_MODULE_ID]["weights_seq_no"] == updates[i]
        assert learned["__all_modules__"]["num_env_steps_trained_lifetime"] == updates[i] * BATCH
        before = updates[i - 1] if i else 0
        assert learned["__all_modules__"]["num_env_steps_trained"] == (updates[i] - before) * BATCH
        assert result["replay_buffer"]["num_env_steps_stored"] == min(60 * (i + 1), CAPACITY)
        assert result["replay_buffer"]["capacity"] == CAPACITY
        assert result["num_training_step_calls_per_iteration"] == 5
        assert np.isfinite(result["env_runners"]["episode_return_mean"])
    # Every 24 sampled steps, counted at the end of updates: 48, 72, 96, ... 240.
    assert run.results[-1]["learners"][DEFAULT_MODULE_ID]["num_target_updates"] == 9
    assert run.results[-1]["learners"][DEFAULT_MODULE_ID]["last_target_update_ts"] == 240
    lr = "default_optimizer_learning_rate"
    assert run.results[-1]["learners"][DEFAULT_MODULE_ID][lr] == pytest.approx(0.001)


def test_nothing_compiles_behind_the_first_iteration(run):
    assert [result["timers"]["compile_s"] > 0 for result in run.results] == [True, False, False, False]


class Counting(config().get_default_learner_class()):
    traces: list = []

    def compute_loss_for_module(self, **kwargs):
        self.traces.append(None)
        return super().compute_loss_for_module(**kwargs)


class Watching(RLlibCallback):
    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("seen", len(episode), reduce="sum")


@pytest.fixture(scope="module")
def watched():
    """An algorithm with callbacks, and the results of its two iterations."""
    algo = plain().learners(learner_class=Counting).callbacks(Watching).build_algo()
    yield algo, [algo.train() for _ in range(2)]
    algo.stop()


def test_the_loss_is_traced_once(watched):
    assert len(watched[1]) == 2 and len(Counting.traces) == 1


def test_the_memory_is_updated_in_place():
    """The compiled program copies neither the steps nor their priorities."""
    size = 40_000
    algo = config(replay_buffer_config={"capacity": size}).build_algo()
    driver = algo.driver
    compiled = driver.trace_program().lower().compile()
    shapes = {x.shape[1:] for x in jax.tree.leaves(driver.kept) if x.size >= size}
    assert len(shapes) == 3
    bodies = [line for line in compiled.as_text().splitlines() if " copy(" in line]
    for shape in shapes:
        text = "[" + ",".join(map(str, shape)) + "]"
        assert not [line for line in bodies if text in line.split(" copy(")[0]], text
    algo.stop()


# ---------------------------------------------------------------------------------------------------- the same again


def test_the_same_seed_is_the_same_run(run):
    algo = config(lr=0.1).build_algo()
    algo.train()
    first = leaves_of(algo)
    # From the beginning again, in place and with the same program: with other settings, and as the other run.
    assert algo.reset(config(lr=0.1))
    algo.train()
    assert_same(leaves_of(algo), first)
    assert algo.reset(config())
    assert_same(leaves_of(algo), run.started)
    result = algo.train()
    assert result["timers"]["compile_s"] == 0
    assert_same(leaves_of(algo), run.states[0])
    algo.stop()
    other = config().debugging(seed=4).build_algo()
    assert not np.array_equal(leaves_of(other)[1].obs, run.started[1].obs)
    # Another seed is another run by the same program, too.
    other.train()
    expected = leaves_of(other)
    assert other.reset(config())
    assert_same(leaves_of(other), run.started)
    assert other.reset(config().debugging(seed=4))
    assert other.train()["timers"]["compile_s"] == 0
    assert_same(leaves_of(other), expected)
    other.stop()


def test_a_resumed_run_is_the_uninterrupted_one(run):
    algo = type(run.algo).from_checkpoint(run.path)
    assert_same(leaves_of(algo), run.states[1])
    for i in (2, 3):
        result = algo.train()
        assert result["env_runners"]["episode_return_mean"] == run.results[i]["env_runners"]["episode_return_mean"]
        assert_same(leaves_of(algo), run.states[i])
    algo.stop()


@pytest.fixture(scope="module")
def other(run):
    """Another algorithm, which tests restore."""
    algo = type(run.algo).from_checkpoint(run.path)
    yield algo
    algo.stop()


def test_other_environments_do_not_continue_what_is_stored(run, other):
    """Their state alone, restored under a full memory, or a memory under them: unfinished episodes are cut."""
    algo = other
    algo.restore_from_path(run.path)

    def ends_of_newest_rows():
        memory = jax.tree.map(lambda x: x[0], all_shards(algo.driver.kept[DEFAULT_MODULE_ID]))
        place = (memory.head - 1) % algo.driver.step.replays[DEFAULT_MODULE_ID].ring.num_rows
        steps = memory.layout.unpack(jax.tree.map(lambda x: jnp.asarray(x[:, place]), memory.ring))
        return np.asarray(steps["ends"])

    assert (ends_of_newest_rows() == 0).any()
    algo.restore_from_path(run.path, component="env_runner")
    assert (ends_of_newest_rows() > 0).all()
    algo.restore_from_path(run.path)
    algo.restore_from_path(run.path, component="replay_buffer")
    assert (ends_of_newest_rows() > 0).all()
    algo.restore_from_path(run.path)
    assert_same(leaves_of(algo), run.states[1])


def test_a_restore_lets_go_of_the_memory_that_is_there(run, other, monkeypatch):
    """Both together may not fit, nor a copy of it. If it fails then, the memory is empty, and all else what it was."""
    algo = other
    algo.restore_from_path(run.path)
    algo.train()
    held, device_put = [], jax.device_put
    copied, concatenate = [], np.concatenate
    words = algo.driver.kept[DEFAULT_MODULE_ID].ring["words"].shape

    def putting(x, *args, **kwargs):
        if any(np.shape(leaf) == words for leaf in jax.tree.leaves(x)):
            held.append(algo.driver.kept[DEFAULT_MODULE_ID])
            if len(held) == 1:
                raise RuntimeError("RESOURCE_EXHAUSTED")
        return device_put(x, *args, **kwargs)

    def concatenating(*args, **kwargs):
        whole = concatenate(*args, **kwargs)
        copied.append(whole.shape == words)
        return whole

    monkeypatch.setattr(jax, "device_put", putting)
    monkeypatch.setattr(np, "concatenate", concatenating)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        algo.restore_from_path(run.path)
    assert True not in copied
    assert not all_shards(algo.driver.kept[DEFAULT_MODULE_ID].size).any()
    (*others, _, timesteps), (*others_before, _, timesteps_before) = leaves_of(algo), run.states[2]
    assert_same((others, timesteps), (others_before, timesteps_before))
    copied.clear()
    algo.restore_from_path(run.path)
    assert held == [None] * 2 and True not in copied
    assert_same(leaves_of(algo), run.states[1])


@pytest.fixture(scope="module")
def without_buffer(tmp_path_factory):
    """An algorithm that leaves the buffer out of checkpoints, and one after its first iteration."""
    algo = config().training(store_buffer_in_checkpoints=False).build_algo()
    algo.train()
    yield algo, algo.save_to_path(tmp_path_factory.mktemp("without") / "checkpoint")
    algo.stop()


def test_a_restore_that_fails_without_the_buffer_in_checkpoints_leaves_the_buffer(without_buffer, monkeypatch):
    algo, path = without_buffer
    algo.train()
    before, original, calls = leaves_of(algo), algo.metrics.set_state, []

    def fail_once(state):
        calls.append(state)
        if len(calls) == 1:
            raise ValueError("no metrics")
        original(state)

    monkeypatch.setattr(algo.metrics, "set_state", fail_once)
    with pytest.raises(ValueError, match="no metrics"):
        algo.restore_from_path(path)
    assert_same(leaves_of(algo), before)


def test_it_evaluates_and_acts(other):
    assert other.evaluate()["env_runners"]["num_episodes"] == 10
    observation = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    assert other.compute_single_action(observation, explore=False) in (0, 1)


def test_without_the_buffer_in_checkpoints(without_buffer, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    algo, path = without_buffer
    assert "replay_buffer" not in algo.get_state()
    algo.train()
    algo.restore_from_path(path)
    assert sum("has no replay buffer" in record.getMessage() for record in caplog.records) == 1
    assert int(all_shards(algo.driver.kept[DEFAULT_MODULE_ID].size).sum()) == 0
    assert algo.driver.num_env_steps == 60
    result = algo.train()
    assert result["replay_buffer"]["num_env_steps_stored"] == 60
    assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])


# ------------------------------------------------------------------------------------------------------- devices


def test_importance_weights_are_those_of_a_draw_from_both_devices():
    seen = []

    class Seeing(config().get_default_learner_class()):
        def compute_loss_for_module(self, *, batch, **kwargs):
            jax.debug.callback(lambda weights: seen.append(np.asarray(weights)), batch["weights"])
            return super().compute_loss_for_module(batch=batch, **kwargs)

    # A training step, and an iteration, is 12 steps and one draw, and nothing that is stored is replaced.
    buffer = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 400}
    asked = config(training_intensity=BATCH / (NUM_ENVS * 3), replay_buffer_config=buffer)
    asked.reporting(min_sample_timesteps_per_iteration=0).learners(learner_class=Seeing, num_cpus_per_learner=2)
    algo = asked.build_algo()
    for _ in range(8):
        algo.train()
    levels = all_shards(algo.driver.kept[DEFAULT_MODULE_ID].priorities)
    ring = algo.driver.step.replays[DEFAULT_MODULE_ID].ring
    jax.effects_barrier()
    seen.clear()
    algo.train()
    jax.effects_barrier()
    shares = []
    for items, largest in zip(levels.items, levels.largest, strict=True):
        counts = np.concatenate([items[items > 0], [largest**ring.alpha] * 6]).astype(np.float64)
        shares.append(counts / counts.sum())
    least = [own.min() for own in shares]
    assert least[0] != least[1]
    allowed = (np.concatenate(shares) / min(least)) ** -algo.config.replay_beta
    weights = np.concatenate(seen)
    assert weights.shape == (BATCH,)
    np.testing.assert_allclose(np.abs(weights[:, None] - allowed[None]).min(axis=1), 0.0, atol=1e-5)
    algo.stop()


def test_two_devices_share_batch_and_memory(other, tmp_path):
    algo = config().learners(num_cpus_per_learner=2).build_algo()
    results = [algo.train() for _ in range(3)]
    driver = algo.driver
    ring = driver.step.replays[DEFAULT_MODULE_ID].ring
    assert ring.num_envs == NUM_ENVS // 2 and ring.batch_size == BATCH // 2
    shards = all_shards(driver.kept[DEFAULT_MODULE_ID])
    assert shards.size.tolist() == [20, 20]
    words = shards.ring["words"]
    assert not np.array_equal(words[0], words[1])
    assert (
        results[-1]["replay_buffer"] | {"capacity": CAPACITY, "num_env_steps_stored": CAPACITY}
        == results[-1]["replay_buffer"]
    )
    for leaf in jax.tree.leaves(driver.learner.state.params):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        np.testing.assert_array_equal(copies[0], copies[1])
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()
    algo.restore_from_path(path)
    again = algo.train()
    name = ("learners", DEFAULT_MODULE_ID, "total_loss")
    assert again[name[0]][name[1]][name[2]] == expected[name[0]][name[1]][name[2]]
    algo.stop()
    with pytest.raises(ValueError, match="saved on 2 devices and cannot be restored on 1"):
        other.restore_from_path(path)


# ------------------------------------------------------------------------------------------------------ callbacks


def test_callbacks_see_the_episodes(watched):
    algo, results = watched
    seen = sum(result["env_runners"]["seen"] for result in results)
    window = all_shards(algo.driver.shards.state.window)
    num_episodes = int(window.num_episodes.sum())
    running = all_shards(algo.driver.shards.state.episodes.episode_length).sum()
    assert num_episodes > 0 and seen + running == 120


class HostHooks(config().get_default_learner_class()):
    calls: list = []

    def after_gradient_based_update(self, *, timesteps):
        self.calls.append(timesteps["num_env_steps_sampled_lifetime"])


def test_host_hooks_are_called_around_updates_alone():
    assert issubclass(HostHooks, Learner)
    algo = plain().learners(learner_class=HostHooks).build_algo()
    result = algo.train()
    assert result["num_training_step_calls_per_iteration"] == 5
    assert HostHooks.calls == [48, 60]
    algo.stop()


# ---------------------------------------------------------------------------------------------- memory and settings


def test_memory_is_estimated_and_refused(run):
    estimate = run.algo.memory_estimate()["replay"]
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(run.algo.driver.kept))
    assert estimate["num_rows"] == CAPACITY
    assert estimate["num_bytes"] == size
    with pytest.raises(ValueError, match=r"replay buffer: .* cannot fit, because .*Lower the capacity"):
        config(replay_buffer_config={"capacity": 2**30}).env_runners(num_envs_per_env_runner=4096).build_algo()


TWO = {"num_cpus_per_learner": 2}
BAD = {
    "few rows": ({"replay_buffer_config": {"capacity": 8}}, {}, "'capacity': 8.* least 12.*num_envs_per_env_runner=4"),
    "batch": ({"train_batch_size_per_learner": 9, "training_intensity": None}, TWO, "The value 9 .*2 devices"),
    "capacity": ({"replay_buffer_config": {"capacity": 81}}, TWO, "The value 81 .*2 devices.*Set it to 82"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_settings_are_refused(case):
    training, learners, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        config(**training).learners(**learners).build_algo()


def test_complete_episodes_are_for_the_host():
    with pytest.raises(ValueError, match="needs a host environment"):
        config().env_runners(batch_mode="complete_episodes").build_algo()
