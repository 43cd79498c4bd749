"""DQN and SAC with an LSTM, sequences from replay and burn-in, on both drivers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from envs.gymnasium_versions import GymnasiumRepeatFirst
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.examples.envs.memory import RepeatFirst
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view

LENGTH = 3


def config_of(env, **training):
    return (
        DQNConfig()
        .environment(env, env_config={"length": LENGTH})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(
            **{
                "burn_in_len": 1,
                "train_batch_size_per_learner": 64,
                "num_steps_sampled_before_learning_starts": 64,
                "target_network_update_freq": 100,
                "epsilon": [(0, 1.0), (2000, 0.05)],
                "lr": 0.01,
                **training,
            }
        )
        .rl_module(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
        .reporting(min_sample_timesteps_per_iteration=8000, min_time_s_per_iteration=0)
        .debugging(seed=0)
    )


@pytest.fixture(scope="module")
def trained():
    algo = config_of(RepeatFirst).learners(num_cpus_per_learner=2).build_algo()
    yield algo, [algo.train()["env_runners"]["episode_return_mean"] for _ in range(4)]
    algo.stop()


def test_the_first_observation_is_remembered_on_two_devices(trained):
    # Nothing without memory has more than 0.5.
    assert trained[1][-1] > 0.85


def test_what_is_remembered_in_training_is_in_evaluation_too(trained):
    algo, _ = trained
    host = config_of(GymnasiumRepeatFirst).build_algo()
    host.set_weights(algo.get_weights())
    for of_driver in (algo, host):
        for _ in range(2):
            # Greedy, so there is nothing but memory that it could fail by.
            assert of_driver.evaluate()["env_runners"]["episode_return_mean"] > 0.95
    host.stop()


@pytest.mark.parametrize(
    ("zero_init_states", "batch_mode", "num_devices"), [(False, "truncate_episodes", 2), (True, "complete_episodes", 1)]
)
def test_sequences_of_the_host_start_from_stored_or_from_initial_states(zero_init_states, batch_mode, num_devices):
    config = (
        config_of(GymnasiumRepeatFirst, replay_buffer_config={"zero_init_states": zero_init_states}, n_step=2)
        .env_runners(batch_mode=batch_mode)
        .learners(num_cpus_per_learner=num_devices)
        .reporting(min_sample_timesteps_per_iteration=160)
    )
    algo = config.build_algo()
    learned = algo.train()["learners"]["default_policy"]
    assert np.isfinite(learned["qf_loss"]) and learned["td_error_mean"] > 0
    buffer = algo.local_replay_buffer
    if zero_init_states:
        with pytest.raises(ValueError, match="no extra column 'state_in'"):
            buffer.sample_sequences(4, batch_length_T=2, state_column="state_in")
    else:
        batch = buffer.sample_sequences(200, batch_length_T=LENGTH, state_column="state_in")
        is_first = batch["obs"][:, 0, -1] == 0
        moved = np.abs(batch["state_in"]["h"]).sum((1, 2)) > 0
        np.testing.assert_array_equal(moved, ~is_first)
    algo.stop()


def test_sequences_must_be_longer_than_their_burn_in():
    with pytest.raises(ValueError, match=r"burn_in_len=4.*max_seq_len': 4.*Lower burn_in_len"):
        config_of(RepeatFirst, burn_in_len=4).build_algo()


def test_states_that_do_not_fit_beside_what_does_are_refused(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.execution.host_replay.available_host_bytes", lambda: 4_000_000)
    with pytest.raises(ValueError, match=r"state_in 64 B.*cannot fit.*replay_buffer_config={'zero_init_states': True}"):
        config_of(GymnasiumRepeatFirst).rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8}).build_algo()


# ---------------------------------------------------------------------------------------- both drivers make one update

NUM_ENVS, NUM_STEPS, BURN_IN, SEQUENCE = 2, 24, 2, 6
ENV_CONFIG = {"max_steps_in_episode": 11}
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": SEQUENCE}
LSTM |= {"fcnet_hiddens": [4], "head_fcnet_hiddens": [], "fusionnet_hiddens": []}


def small_config(config_class, env, **training):
    """Burn-in, windows of three steps, priorities, and settings under which small errors show."""
    return (
        config_class()
        .environment(env, env_config=ENV_CONFIG)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .training(
            burn_in_len=BURN_IN,
            n_step=3,
            gamma=0.9,
            train_batch_size_per_learner=8 * SEQUENCE - 1,  # 8 sequences
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": NUM_ENVS * NUM_STEPS,
                "alpha": 0.6,
                "beta": 0.4,
            },
            **training,
        )
        .rl_module(model_config=LSTM)
        .learners(num_cpus_per_learner=1)
        .debugging(seed=5)
    )


def trained_on_the_device(algo):
    """``(what is sampled, [(sequences, TD errors, parameters after it) of two updates])``, by the parts of the driver's
    own program."""
    learner, replay = algo.learner, algo.driver.step.replays[DEFAULT_MODULE_ID]
    place = dataclasses.replace(algo.driver.program, settings=learner.settings(), num_training_steps=2)
    states = algo.driver.shards.state, algo.driver.kept[DEFAULT_MODULE_ID]
    runner, kept = (jax.tree.map(lambda x: x[0], host_view(x)) for x in states)

    def program(learner, runner, kept):
        state = TrainState(learner, place.started(runner, learner), timesteps=counters.zero())
        state, sampled = place.sample(state, algo.driver.plan_samples(NUM_STEPS, for_replay=True))
        state = dataclasses.replace(state, kept=replay.add(kept, sampled))

        def update(state, _):
            kept, state, drawn = replay.draw(state.kept, state, place)
            columns = drawn[DEFAULT_MODULE_ID].columns
            state, _, logged = place.update_rows(state, Experience.of_rows({DEFAULT_MODULE_ID: columns}))
            errors = logged[(DEFAULT_MODULE_ID, "td_error")]
            values = {DEFAULT_MODULE_ID: {"td_error": errors}}
            state = dataclasses.replace(state, kept=replay.write_back(kept, drawn, values))
            return state, (columns, errors, state.learner.params)

        return sampled.modules[DEFAULT_MODULE_ID], jax.lax.scan(update, state, length=2)[1]

    sampled, updates = jax.device_get(jax.jit(program)(host_view(learner.state), runner, kept))
    return sampled, [jax.tree.map(lambda x, i=i: x[i], updates) for i in range(2)]


def steps_of(columns):
    """The observation of the first step of every sequence that counts, which tells the step, and how many count."""
    mask = columns[Columns.LOSS_MASK]
    parts = zip(columns[Columns.OBS], mask.argmax(axis=1), mask.sum(axis=1).tolist(), strict=True)
    return [(obs[t].tobytes(), number) for obs, t, number in parts]


def drawn_on_the_host(replay, buffer, wanted):
    """Sequences that begin at the wanted steps and are as long, among those that are drawn, and their items."""
    found = {}
    for _ in range(1000):
        drawn = replay.draw(buffer, None, None)[-1][DEFAULT_MODULE_ID]
        for i, step in enumerate(steps_of(drawn.columns)):
            found[step] = jax.tree.map(lambda x, i=i: x[i], tuple(drawn))
        if found.keys() >= set(wanted):
            break
    return jax.tree.map(lambda *x: np.stack(x), *[found[step] for step in wanted])


@dataclasses.dataclass
class Pair:
    """The same algorithm on both drivers, what the one on the device has sampled and learned, and that in the memory of
    the other one."""

    device: Any
    host: Any
    sampled: dict[str, Any]
    updates: list[tuple[dict[str, Any], np.ndarray, dict[Any, np.ndarray]]]


CASES = [
    (DQNConfig, "gymnax/CartPole-v1", {"epsilon": 1.0, "lr": 0.1, "adam_epsilon": 1e-2}),
    (SACConfig, "gymnax/Pendulum-v1", {"tau": 0.5, "twin_q": False, "actor_lr": 0.01, "critic_lr": 0.01}),
]


@pytest.fixture(scope="module", params=CASES, ids=["DQN", "SAC"])
def pair(request):
    config_class, env, training = request.param
    register_env("the_same_on_the_host", lambda context: GymnasiumFromJax(env, ENV_CONFIG))
    device = small_config(config_class, env, **training).build_algo()
    host = small_config(config_class, "the_same_on_the_host", **training).build_algo()
    host.learner.set_state(device.learner.get_state())
    sampled, updates = trained_on_the_device(device)
    host.local_replay_buffer.add_block(sampled)
    yield Pair(device, host, sampled, updates)
    device.stop()
    host.stop()


def test_both_drivers_learn_the_same_from_the_same_sequences(pair):
    assert pair.sampled[Columns.TRUNCATEDS][:-1].any()
    host, updates = pair.host, pair.updates
    replay, buffer = host.driver.step.replays[DEFAULT_MODULE_ID], host.local_replay_buffer
    before = jax.device_get(host_view(host.learner.state)).params
    for columns, errors, params in updates:
        assert set(columns["seq_lens"]) > {SEQUENCE} and not columns[Columns.LOSS_MASK][:, 0].all()
        own, items = drawn_on_the_host(replay, buffer, steps_of(columns))
        assert own.keys() == columns.keys()
        for name, column in columns.items():
            if name == Columns.NEXT_OBS:
                # After a terminated step it holds anything.
                goes_on = ~(columns[Columns.TERMINATEDS] & (columns["n_step"] == 1))
                own[name], column = (np.where(goes_on[..., None], x, 0.0) for x in (own[name], column))
            jax.tree.map(
                lambda a, b, name=name: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=name),
                own[name],
                column,
            )
        logged = host.learner.update_rows(Experience.of_rows({DEFAULT_MODULE_ID: own}), timesteps=NUM_ENVS * NUM_STEPS)
        own_errors = logged[(DEFAULT_MODULE_ID, "td_error")]
        np.testing.assert_allclose(own_errors, errors, rtol=1e-5)
        mid = DEFAULT_MODULE_ID
        replay.write_back(buffer, {mid: Drawn(own, items)}, {mid: {"td_error": own_errors}})
        for ref, value in jax.device_get(host_view(host.learner.state)).params.items():
            np.testing.assert_allclose(value, params[ref], rtol=1e-5, atol=1e-6, err_msg=str(ref))
    # Steps of sequences are counted, burn-in and padding included.
    assert pair.device.driver.step.rows_per_update == host.driver.step.rows_per_update == 8 * SEQUENCE
    assert host.learner.row_results()[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 8 * SEQUENCE
    # Both updates moved every weight matrix, and the second one drew by the errors of the first.
    moved = {ref for ref, value in before.items() if np.abs(params[ref] - value).max() > 1e-4}
    assert {ref for ref in before if "kernel" in str(ref)} <= moved
    assert len(set(updates[1][0]["weights"])) > 1


def bytes_of(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_estimates_of_memory_count_recurrent_states(pair):
    host = pair.host
    rows = (
        host.driver.step.replays[DEFAULT_MODULE_ID]
        .draw(host.local_replay_buffer, None, None)[-1][DEFAULT_MODULE_ID]
        .columns
    )
    # The memory holds as many steps as were sampled.
    states = bytes_of(pair.sampled[Columns.STATE_IN])
    assert states == NUM_ENVS * NUM_STEPS * 4 * 2 * LSTM["lstm_cell_size"]
    for algo, drawn in ((pair.device, pair.updates[0][0]), (host, rows)):
        estimate = algo.memory_estimate()
        assert estimate["rollout"]["columns"]["state_in"] == estimate["replay"]["columns"]["state_in"] == states
        batch = estimate["train_batch"]
        assert batch["counts"] == {"sequences": 8, "steps": SEQUENCE}
        assert set(drawn) == set(batch["columns"]) - {"batch_indexes"}
        assert {name: bytes_of(column) for name, column in drawn.items()} == {
            name: batch["columns"][name] for name in drawn
        }
    assert pair.device.memory_estimate()["replay"]["num_bytes"] == bytes_of(pair.device.driver.kept)
