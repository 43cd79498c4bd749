"""The transformer with memory: its passes, and that its state goes wherever a recurrent state goes."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.examples.envs.memory import RepeatFirst
from jaxrl_stack.examples.rl_modules.classes.gtrxl_rlm import GTrXL, RelativeAttention
from jaxrl_stack.policy import load_exported

OBS, INPUTS, STATE_IN, STATE_OUT = Columns.OBS, Columns.ACTION_DIST_INPUTS, Columns.STATE_IN, Columns.STATE_OUT
SIZE, BATCH, STEPS = 3, 4, 7
TINY = {"width": 4, "num_heads": 2, "num_layers": 2, "memory_len": SIZE}


def spec(**model_config):
    return RLModuleSpec(GTrXL, gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3), model_config=model_config)


@pytest.fixture(scope="module")
def module():
    module = spec(**TINY, gate_bias=-1.0).build(seed=0)  # layers that are far from the identity
    for layer in module.layers:
        layer.attention.distance_bias[...] = jnp.array([[0.5, -1.0], [2.0, 1.0]])
    return module


def test_a_sequence_is_its_steps_one_by_one(module):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(BATCH, STEPS, 2)).astype(np.float32)
    # None; one; one before everything; two, the last so late that the memory is not full after it.
    resets = np.zeros((BATCH, STEPS), bool)
    resets[1, 2] = resets[2, 0] = resets[3, 1] = resets[3, 5] = True
    state = {
        "memory": rng.normal(size=(BATCH, 2, SIZE, 4)).astype(np.float32),
        "filled": np.array([3, 2, 1, 0], np.int32),
    }
    whole = module.forward_inference({OBS: obs, STATE_IN: state, Columns.RESETS: resets})
    trained = module.forward_train({OBS: obs, STATE_IN: state, Columns.RESETS: resets})
    np.testing.assert_allclose(trained[INPUTS], whole[INPUTS], atol=1e-6)

    first, outputs, values = module.get_initial_state(), [], []
    for t in range(STEPS):
        new = resets[:, t]
        state = jax.tree.map(lambda a, b, new=new: np.where(new.reshape(-1, *[1] * a.ndim), a, b), first, state)
        step = {OBS: obs[:, t : t + 1], STATE_IN: state}
        out = module.forward_inference(step)
        values.append(module.compute_values(step)[:, 0])
        outputs.append(out[INPUTS][:, 0])
        state = jax.tree.map(np.asarray, out[STATE_OUT])
    np.testing.assert_allclose(whole[INPUTS], np.stack(outputs, axis=1), atol=1e-5)
    np.testing.assert_allclose(module.compute_values({}, trained[Columns.EMBEDDINGS]), np.stack(values, 1), atol=1e-5)
    np.testing.assert_array_equal(whole[STATE_OUT]["filled"], state["filled"])
    assert state["filled"].tolist() == [3, 3, 3, 2]
    for row, filled in enumerate(state["filled"]):
        after, expected = whole[STATE_OUT]["memory"][row], state["memory"][row]
        np.testing.assert_allclose(after[:, SIZE - filled :], expected[:, SIZE - filled :], atol=1e-5)


def test_attention_is_by_content_and_by_distance():
    attention = RelativeAttention(4, num_heads=1, rngs=nnx.Rngs(1))
    attention.content_bias[...], attention.distance_bias[...] = (
        jnp.array([[0.3, -1, 2, 0]]),
        jnp.array([[1.0, 2, 0, -1]]),
    )
    context = np.random.default_rng(1).normal(size=(1, 4, 4)).astype(np.float32)
    visible = np.array([[[True, False, True, False], [False, True, True, True]]])
    out = nnx.jit(lambda attention: attention(context, visible))(attention)

    def product(name, x):
        return x @ np.asarray(getattr(attention, name).kernel[...])

    keys, values = np.split(product("key_value", context[0]), 2, axis=-1)
    for t in range(2):
        query, scores = product("query", context[0, 2 + t]), []
        for j in np.flatnonzero(visible[0, t]):
            angles = (2 + t - j) / np.array([1.0, 100.0])
            distance = product("distance", np.concatenate([np.sin(angles), np.cos(angles)]))
            by_content = (query + attention.content_bias[0]) @ keys[j]
            scores.append((by_content + (query + attention.distance_bias[0]) @ distance) / 2.0)
        weights = np.exp(scores) / np.sum(np.exp(scores))
        np.testing.assert_allclose(out[0, t], product("out", weights @ values[visible[0, t]]), atol=1e-5)


def test_it_goes_on_bit_for_bit_and_remembers_where_it_is_served(tmp_path):
    algo = (
        PPOConfig()
        .environment(RepeatFirst, env_config={"length": 5})
        .env_runners(num_envs_per_env_runner=4)
        # Fragments of 10 steps: chunks of 4, 4 and 2, in which episodes start.
        .training(train_batch_size_per_learner=40, minibatch_size=16, num_epochs=1, lr=0.01)
        .rl_module(
            rl_module_spec=RLModuleSpec(module_class=GTrXL, model_config={**TINY, "num_layers": 1, "max_seq_len": 4})
        )
        .learners(num_cpus_per_learner=1)
        .debugging(seed=0)
    ).build_algo()
    before = algo.get_weights()["default_policy"]
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.train()
    expected = algo.get_weights()["default_policy"]
    algo.restore_from_path(path)
    algo.train()
    for ref, value in algo.get_weights()["default_policy"].items():
        np.testing.assert_array_equal(value, expected[ref], err_msg=ref)
        assert np.abs(value - before[ref]).max() > 0, ref

    policy = algo.get_policy()
    exported = load_exported(policy.export(tmp_path / "policy", platforms=["cpu"]))
    after = [[None, None], [None, None]]  # of both cues, in the policy and in the program
    for t in range(SIZE + 1):
        inputs = []
        for cue in range(2):
            obs = np.eye(3, dtype=np.float32)[[2 if t else cue]]
            for i, each in enumerate((policy, exported)):
                _, after[cue][i], outputs = each.compute_actions(obs, after[cue][i])
                inputs.append(np.asarray(outputs[INPUTS]))
        np.testing.assert_allclose(inputs[0], inputs[1], atol=1e-6)
        assert np.abs(inputs[0] - inputs[2]).max() > 1e-5, f"the cue is forgotten after {t} steps"
    algo.stop()


def test_heads_that_do_not_divide_the_width_are_named():
    with pytest.raises(ValueError, match="num_heads=3 has to divide width=4"):
        spec(**{**TINY, "num_heads": 3}).build(seed=0)
