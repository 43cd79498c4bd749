"""A compiled program that fails while it runs: what it was given is gone, and training goes on from a snapshot."""

from __future__ import annotations

import contextlib
import signal

import flax
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.utils import counters, snapshots
from jaxrl_stack.utils.devices import all_shards, host_view

INTERVAL = 3
FAILS = {"now": None}
"""What the host callback of the losses does: nothing, raise, or call a function."""


def raises():
    raise ValueError("the callback's own error")


def called_back(x):
    if FAILS["now"] is not None:
        FAILS["now"]()
    return np.float32(x)


class WithCallback(Learner):
    """Adds 0 to the loss, by way of the host."""

    def compute_loss_for_module(self, **kwargs):
        loss = super().compute_loss_for_module(**kwargs)
        loss, metrics = loss if isinstance(loss, tuple) else (loss, None)
        zero = jax.pure_callback(called_back, jax.ShapeDtypeStruct((), jnp.float32), 0.0 * jax.lax.stop_gradient(loss))
        loss += jax.lax.stop_gradient(zero)
        return loss if metrics is None else (loss, metrics)


class PPOWithCallback(WithCallback, PPOConfig().get_default_learner_class()):
    is_broken = False

    def compute_loss_for_module(self, **kwargs):
        if self.is_broken:
            raise TypeError("not to be traced")
        return super().compute_loss_for_module(**kwargs)


class DQNWithCallback(WithCallback, DQNConfig().get_default_learner_class()):
    pass


@contextlib.contextmanager
def failing(how=raises):
    FAILS["now"] = how
    try:
        yield
    finally:
        FAILS["now"] = None


@pytest.fixture(autouse=True)
def any_share_of_time(monkeypatch):
    """Snapshots come after so many calls, however fast these are."""
    monkeypatch.setattr(snapshots, "LARGEST_SHARE", float("inf"))


def config(config_class, env="gymnax/CartPole-v1", num_devices=1, interval=INTERVAL, learner_class=None):
    learner_class = learner_class or (PPOWithCallback if config_class is PPOConfig else DQNWithCallback)
    model = {"fcnet_hiddens": [4]}
    if config_class is DQNConfig:
        model["head_fcnet_hiddens"] = [4]
    made = (
        config_class()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, rollout_fragment_length=2)
        .rl_module(model_config=model)
        .learners(learner_class=learner_class, num_cpus_per_learner=num_devices, learner_snapshot_interval=interval)
        .debugging(seed=1)
    )
    if config_class is PPOConfig:
        return made.training(train_batch_size_per_learner=8, minibatch_size=4, num_epochs=1)
    buffer = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 160}
    made.training(replay_buffer_config=buffer, num_steps_sampled_before_learning_starts=8, n_step=1)
    made.training(train_batch_size_per_learner=8)
    return made.reporting(min_sample_timesteps_per_iteration=16)


@pytest.fixture(scope="module")
def seldom_copied():
    """An algorithm of which a snapshot is taken every 100 calls; programs with a callback are compiled anew in each."""
    algo = config(PPOConfig, interval=100).build_algo()
    algo.train()
    yield algo
    algo.stop()


def leaves_of(algo):
    """The training state, but for replay, on the host."""
    driver = algo.driver
    parts = [jax.device_get(host_view(driver.learner.state))]
    if driver.is_on_device:
        parts += [all_shards(driver.shards.state), host_view(driver.timesteps)]
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(parts)]


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_usable(algo, path):
    """Everything that reads the state works."""
    weights = algo.get_weights()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights))
    algo.evaluate()
    algo.save_to_path(path)
    result = algo.train()
    assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
    return result


# ----------------------------------------------------------------------------------------------------- on the device


@flax.struct.dataclass
class State:
    x: jax.Array


def test_copies_of_fast_calls_are_seldom(monkeypatch):
    monkeypatch.setattr(snapshots, "LARGEST_SHARE", 0.5)
    now, copies = [0.0], []
    monkeypatch.setattr(snapshots.time, "perf_counter", lambda: now[0])

    def copied(state):
        now[0] += 1.0
        copies.append(now[0])
        return state

    monkeypatch.setattr(snapshots, "_copied", copied)
    kept, state = snapshots.Snapshots(2), State(jnp.zeros(1))
    for _ in range(12):
        kept.before_call(state)
        state = State(state.x + 1.0)
        now[0] += 0.3
        kept.after_call(state)
    # One that compiles, and one that takes a second: the next one comes two seconds later.
    assert copies == pytest.approx([1.0, 2.0, 5.1])
    kept.before_call(State(state.x))
    assert len(copies) == 4 and kept.num_calls == 0


def test_on_policy_training_goes_on_from_the_snapshot(tmp_path):
    algo = config(PPOConfig, num_devices=2).build_algo()
    states = [leaves_of(algo)]
    for _ in range(5):
        algo.train()
        states.append(leaves_of(algo))
    message = r"lost: this call .* and 2 before it, which are 24 env steps \(learner_snapshot_interval=3\)\. The error"
    with failing(), pytest.raises(RuntimeError, match=message) as raised:
        algo.train()
    assert "the callback's own error" in str(raised.value.__cause__)
    # The third call was the last one before which a snapshot was taken.
    assert_same(leaves_of(algo), states[3])
    assert algo.driver.num_env_steps == 24 and algo.learner.num_updates == 3 and algo.iteration == 5
    assert counters.to_int(np.asarray(host_view(algo.driver.timesteps))) == 24
    # It fails once more, before the next snapshot.
    with failing(), pytest.raises(RuntimeError, match="and 0 before it"):
        algo.train()
    assert_same(leaves_of(algo), states[3])
    result = assert_usable(algo, tmp_path / "checkpoint")
    assert result["num_env_steps_sampled_lifetime"] == 32
    assert result["learners"][DEFAULT_MODULE_ID]["weights_seq_no"] == 4
    assert_same(leaves_of(algo), states[4])
    algo.stop()


def test_off_policy_training_goes_on_with_an_empty_buffer(tmp_path):
    algo = config(DQNConfig).build_algo()
    states = [leaves_of(algo)]
    with failing(), pytest.raises(RuntimeError, match="and 0 before it"):
        algo.train()
    assert_same(leaves_of(algo), states[0])
    for _ in range(5):
        algo.train()
        states.append(leaves_of(algo))
    message = r"and 2 before it, which are 48 env steps .*; and the replay buffer \(up to 80 steps\), which is empty"
    with failing(), pytest.raises(RuntimeError, match=message):
        algo.train()
    assert_same(leaves_of(algo), states[3])
    assert algo.driver.num_env_steps == 48
    result = assert_usable(algo, tmp_path / "checkpoint")
    assert result["replay_buffer"]["num_env_steps_stored"] == 16
    assert result["num_env_steps_sampled_lifetime"] == 64
    algo.stop()


def test_changed_weights_are_not_lost(seldom_copied):
    algo = seldom_copied
    weights = jax.tree.map(lambda x: x + 1.0, algo.get_weights())
    algo.set_weights(weights)
    with failing(), pytest.raises(RuntimeError, match="and 0 before it"):
        algo.train()
    assert_same(algo.get_weights(), weights)


@pytest.mark.parametrize(
    ("config_class", "env"),
    [(DQNConfig, "gymnax/CartPole-v1"), (PPOConfig, "gymnax/CartPole-v1"), (PPOConfig, "CartPole-v1")],
)
def test_a_run_with_snapshots_is_the_one_without(config_class, env):
    runs, learner_class = [], config_class().get_default_learner_class()  # without a callback: compiled once
    for interval in (1, 1000):
        algo = config(config_class, env, interval=interval, learner_class=learner_class).build_algo()
        for _ in range(4):
            algo.train()
        runs.append(leaves_of(algo))
        algo.stop()
    assert_same(*runs)


def test_ctrl_c_reaches_the_user_although_the_program_fails(seldom_copied):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        raises()

    try:
        with failing(interrupted), pytest.raises(KeyboardInterrupt) as raised:
            seldom_copied.train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "The run continues from its last snapshot" in str(raised.value.__context__)
    seldom_copied.train()


# -------------------------------------------------------------------------------------------------------- on the host


@pytest.mark.parametrize("config_class", [PPOConfig, DQNConfig])
def test_a_learner_of_this_process_goes_on_from_its_snapshot(config_class, tmp_path):
    """PPO's makes updates of blocks, DQN's of rows."""
    algo = config(config_class, "CartPole-v1").build_algo()
    while algo.learner.num_updates < INTERVAL + 1:
        algo.train()
    num_updates, num_env_steps = algo.learner.num_updates, algo.driver.num_env_steps
    with failing(), pytest.raises(RuntimeError, match=r"lost: this update and \d before it .*interval=3"):
        algo.train()
    # What was lost stays counted, as with learners that are actors.
    assert algo.learner.num_updates == num_updates
    assert algo.driver.num_env_steps > num_env_steps
    result = assert_usable(algo, tmp_path / "checkpoint")
    learned = result["learners"][DEFAULT_MODULE_ID]
    assert learned["weights_seq_no"] == algo.learner.num_updates > num_updates
    assert learned["num_module_steps_trained_lifetime"] == algo.learner.num_updates * 8
    algo.stop()


def rows(seed=0, n=8):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "actions": rng.integers(2, size=n),
        "action_logp": np.full(n, -0.7, np.float32),
        "action_dist_inputs": np.zeros((n, 2), np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
        "value_targets": rng.normal(size=n).astype(np.float32),
    }


def test_a_learner_alone():
    """On several devices the error comes when results are read, not when the program is called."""
    spaces = {"observation_space": gym.spaces.Box(-1.0, 1.0, (3,), np.float32), "action_space": gym.spaces.Discrete(2)}
    made = config(PPOConfig, None, num_devices=2).environment(**spaces)
    group = LearnerGroup(config=made)
    learner = group.local_learner
    assert learner is not None
    weights = []
    for i in range(5):
        weights.append(learner.get_weights())
        group.update(batch=rows(i))
    with failing(), pytest.raises(RuntimeError, match="lost: this update and 2 before it"):
        group.update(batch=rows(5))
    assert_same(learner.get_weights(), weights[3])
    group.update(batch=rows(3))
    assert_same(learner.get_weights(), weights[4])
    assert group.num_updates == 6
    # What fails before it runs costs nothing: rows of another number are another program, which cannot be traced.
    learner.is_broken = True
    with pytest.raises(TypeError, match="not to be traced"):
        group.update(batch=rows(6, n=12))
    assert_same(learner.get_weights(), weights[4])
    group.shutdown()
