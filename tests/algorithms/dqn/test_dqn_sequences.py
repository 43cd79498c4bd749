"""DQN's module and loss on sequences from replay, against steps taken one by one."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

BOX, DISCRETE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(3)
SETTINGS = {"fcnet_hiddens": [4], "head_fcnet_hiddens": [], "use_lstm": True, "lstm_cell_size": 3}
LENGTHS, NUM_BEFORE, BURN_IN, LENGTH = [6, 4, 5, 3], [2, 0, 1, 2], 2, 6


def module_of(**settings):
    spec = RLModuleSpec(
        module_class=DefaultDQNRLModule,
        observation_space=BOX,
        action_space=DISCRETE,
        model_config={**SETTINGS, **settings},
    )
    module = spec.build(seed=3)
    module.make_target_networks()
    for _, target in module.get_target_network_pairs():
        nnx.update(target, jax.tree.map(lambda x: x + 0.1, nnx.state(target)))
    return module


def sequences():
    """A ragged batch; what stands in padding is NaN where nothing may read it."""
    rng = np.random.default_rng(0)
    steps = np.arange(LENGTH)
    is_there = steps < np.array(LENGTHS)[:, None]
    line = rng.normal(size=(4, LENGTH + 1, 2)).astype(np.float32)
    state = rng.normal(size=(2, 4, 1, 3)).astype(np.float32)
    return {
        "obs": np.where(is_there[..., None], line[:, :-1], 0.0),
        "new_obs": np.where(is_there[..., None], line[:, 1:], 0.0),
        "state_in": {"h": state[0], "c": state[1]},
        "loss_mask": is_there & (steps >= np.array(NUM_BEFORE)[:, None]),
    }


def step_by_step(q_values, batch, i):
    """Q-values of every observation of sequence i, and of that after it, from one state to the next."""
    state, out = jax.tree.map(lambda x: x[i : i + 1], batch["state_in"]), []
    length = LENGTHS[i]
    for obs in [*batch["obs"][i, :length], batch["new_obs"][i, length - 1]]:
        found = q_values({"obs": obs[None, None], "state_in": state})
        out.append(np.asarray(found["qf_preds"])[0, 0])
        state = found["state_out"]
    return np.stack(out)


def test_sequences_have_the_values_of_their_steps():
    module, batch = module_of(burn_in_len=BURN_IN, num_atoms=5), sequences()
    out = jax.jit(lambda batch: module._forward_train(batch))(batch)
    online, target = jax.jit(module.compute_q_values), jax.jit(module.forward_target)
    for i, (length, before) in enumerate(zip(LENGTHS, NUM_BEFORE, strict=True)):
        counts = slice(before, length)
        own, others = step_by_step(online, batch, i), step_by_step(target, batch, i)
        np.testing.assert_allclose(out["qf_preds"][i, counts], own[:-1][counts], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out["qf_next_preds"][i, counts], own[1:][counts], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out["qf_target_next_preds"][i, counts], others[1:][counts], rtol=1e-5, atol=1e-6)
        assert np.abs(own - others).max() > 1e-3
    assert out["atoms"].shape == (5,)
    for name in ("qf_logits", "qf_probs", "qf_target_next_probs"):
        assert out[name].shape == (4, LENGTH, 3, 5)


def test_no_gradient_flows_into_burn_in_nor_into_the_next_values():
    module, batch = module_of(burn_in_len=BURN_IN), sequences()
    state = batch.pop("state_in")

    def total(name, obs, state):
        out = module._forward_train({**batch, "obs": obs, "state_in": state})
        return jnp.sum(jnp.where(batch["loss_mask"][..., None], out[name], 0.0))

    of_now = jax.jit(jax.grad(functools.partial(total, "qf_preds"), argnums=(0, 1)))(batch["obs"], state)
    moves = np.asarray(jnp.abs(of_now[0]).sum(-1) > 0)
    for i, (length, before) in enumerate(zip(LENGTHS, NUM_BEFORE, strict=True)):
        np.testing.assert_array_equal(moves[i], [before <= t < length for t in range(LENGTH)])
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_now[1]))
    of_next = jax.jit(jax.grad(functools.partial(total, "qf_next_preds"), argnums=(0, 1)))(batch["obs"], state)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_next))
