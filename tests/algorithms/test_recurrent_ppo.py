"""PPO with an LSTM from end to end: training, resuming, and acting with a state."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.policy import load_exported
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.memory import bytes_of_shapes

HIDDEN = 4
OBS = np.float32([[0.1, 0.2, -0.1, 0.0], [0.0, 0.3, 0.1, 0.2]])


@pytest.fixture(scope="module", params=["CartPole-v1", "gymnax/CartPole-v1"])
def algo(request):
    config = (
        PPOConfig()
        .environment(request.param)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=4,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        # Fragments of 15 steps: chunks of 6, 6 and 3.
        .training(train_batch_size_per_learner=60, minibatch_size=24, num_epochs=2)
        .rl_module(model_config={"use_lstm": True, "lstm_cell_size": HIDDEN, "max_seq_len": 6, "fcnet_hiddens": [4]})
        .debugging(seed=1)
    )
    algo = config.build_algo()
    yield algo
    algo.stop()


def weights_of(algo):
    return algo.get_weights()["default_policy"]


def test_a_run_goes_on_bit_for_bit(algo, tmp_path):
    result = algo.train()
    clock = CompileClock()
    algo.train()
    assert clock.compiles == 0, "nothing compiles after the first iteration"
    # 12 chunks, 4 in each gradient step, twice: 6 steps over 60 of the 72 rows in chunks.
    assert result["learners"]["default_policy"]["num_module_steps_trained"] == 120
    path = algo.save_to_path(tmp_path / "checkpoint")
    if algo.config.env == "CartPole-v1":  # its state is in no checkpoint: what is restored starts new episodes
        algo.restore_from_path(path)
    algo.train()
    expected = weights_of(algo)
    algo.restore_from_path(path)
    algo.train()
    for name, value in weights_of(algo).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_state_goes_from_one_single_action_to_the_next(algo):
    zeros = jax.tree.map(np.zeros_like, algo.get_module().get_initial_state())
    _, state, _ = algo.compute_single_action(OBS[0], explore=False, full_fetch=True)
    _, same, _ = algo.compute_single_action(OBS[0], zeros, explore=False)
    jax.tree.map(np.testing.assert_array_equal, state, same)
    assert set(state) == {"actor", "critic"} and state["actor"]["h"].shape == (1, HIDDEN)
    _, after, outputs = algo.compute_single_action(OBS[1], state, explore=False)
    policy = algo.get_policy()
    _, memory, _ = policy.compute_actions(OBS[:1], explore=False)
    _, _, expected = policy.compute_actions(OBS[1:], memory, explore=False)
    logits = outputs[Columns.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(logits, expected[Columns.ACTION_DIST_INPUTS][0], rtol=1e-5, atol=1e-6)
    assert np.abs(after["actor"]["h"] - state["actor"]["h"]).max() > 0
    assert isinstance(algo.compute_single_action(OBS[0]), np.integer | np.ndarray | int)
    with pytest.raises(ValueError, match="shapes.*Pass the second value"):
        algo.compute_single_action(OBS[0], {"h": np.zeros(3)})


def test_an_exported_program_takes_and_returns_the_state(algo, tmp_path):
    policy = algo.get_policy()
    exported = load_exported(policy.export(tmp_path / "policy"))
    states, resets = [None, None], [[True, True], [False, False], [True, False]]
    for reset in resets:
        both = []
        for i, one in enumerate((policy, exported)):
            _, states[i], outputs = one.compute_actions(OBS, states[i], explore=False, reset=reset)
            both.append(outputs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), *both)
    lasting, renewed = (both[1][Columns.STATE_OUT]["actor"]["h"][i] for i in (1, 0))
    _, _, first = exported.compute_actions(OBS, None, explore=False)
    np.testing.assert_allclose(first[Columns.STATE_OUT]["actor"]["h"][0], renewed, rtol=0, atol=1e-6)
    assert np.abs(first[Columns.STATE_OUT]["actor"]["h"][1] - lasting).max() > 0


def test_estimates_of_memory_count_recurrent_states(algo):
    driver, state = algo.driver, algo.get_module().get_initial_state()
    if driver.is_on_device:
        place = dataclasses.replace(driver.program, settings=driver.learner.settings())
        runner = jax.tree.map(lambda x: x[0], driver.shards.state)

        def sample(learner, runner, timesteps):
            whole = TrainState(learner, place.started(runner, learner), timesteps=timesteps)
            return place.sample(whole, driver.plan_samples(15))[1].modules

        columns = jax.eval_shape(sample, driver.learner.state, runner, driver.timesteps)["default_policy"]
    else:
        columns = algo.env_runner.sample_block().experience.modules["default_policy"]
    estimate = algo.memory_estimate()
    found = {name: bytes_of_shapes(column) for name, column in columns.items()}
    assert found == estimate["train_batch"]["columns"]
    # While it is recorded there are those of all steps.
    assert estimate["rollout"]["columns"]["state_in"] == 60 * bytes_of_shapes(state)
