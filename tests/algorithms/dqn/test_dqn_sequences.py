"""DQN's module and loss on sequences from replay, against steps taken one by one."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.models.base import Encoder
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.ops.sequences import sequence_priorities
from jaxrl_stack.replay.device_replay import DeviceReplay

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


class WithUnusedState(Encoder):
    """An encoder without memory that takes and returns a recurrent state: how many steps it has seen."""

    def __init__(self, encoder):
        self.encoder = encoder

    def get_initial_state(self):
        return {"seen": jnp.zeros(1)}

    def __call__(self, inputs):
        seen = inputs["state_in"]["seen"] + inputs["obs"].shape[1]
        return {**self.encoder({"obs": inputs["obs"]}), "state_out": {"seen": seen}}


class StatefulWithoutMemory(DefaultDQNRLModule):
    def setup(self):
        super().setup()
        self.encoder = WithUnusedState(self.encoder)


def drawn_sequences():
    """Sequences of a store with episodes that end in both ways and one that goes on, of two environments."""
    rng, (num_steps, num_envs) = np.random.default_rng(1), (12, 2)
    kinds = rng.choice(3, p=[0.7, 0.15, 0.15], size=(num_steps, num_envs))
    columns = {
        "obs": rng.normal(size=(num_steps, num_envs, 2)).astype(np.float32),
        "final_obs": rng.normal(size=(num_steps, num_envs, 2)).astype(np.float32),
        "actions": rng.integers(3, size=(num_steps, num_envs)),
        "rewards": rng.normal(size=(num_steps, num_envs)).astype(np.float32),
        "terminateds": kinds == 1,
        "truncateds": kinds == 2,
        "state_in": {"seen": np.zeros((num_steps, num_envs, 1), np.float32)},
    }
    assert {0, 1, 2} == set(kinds[:-1].ravel()) and 0 in kinds[-1]
    # What goes on leads to the next row.
    goes_on = (kinds == 0)[:-1, :, None]
    columns["final_obs"][:-1] = np.where(goes_on, columns["obs"][1:], columns["final_obs"][:-1])
    settings = {"capacity": 24, "num_envs": num_envs, "alpha": 0.6, "extra_columns": ("state_in",)}
    replay = DeviceReplay(batch_size=16, n_step=3, length=4, **settings)

    @jax.jit
    def draw(columns):
        state = replay.add(replay.init(columns), columns)
        return replay.sample_sequences(state, jax.random.key(0), burn_in=1, gamma=0.5)

    return jax.tree.map(np.asarray, draw(columns)[0])


def test_an_update_from_sequences_is_that_from_their_windows():
    """Of a module whose state says nothing."""
    batch = drawn_sequences()
    batch["weights"] = np.linspace(0.2, 1.0, 16, dtype=np.float32)
    config = DQNConfig().environment(observation_space=BOX, action_space=DISCRETE)
    config.training(gamma=0.5, burn_in_len=1, grad_clip=None, adam_epsilon=1.0)
    config.rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []})
    stateless = config.build_learner()
    stateful = config.copy().rl_module(rl_module_spec=RLModuleSpec(module_class=StatefulWithoutMemory)).build_learner()
    # Other weights of the targets, the same for both.
    own = {
        name: x + 0.1 * name.startswith("_target")
        for name, x in stateless.get_state()["rl_module"]["default_policy"].items()
    }
    stateless.set_state({"rl_module": {"default_policy": own}})
    renamed = {name.replace("encoder/", "encoder/encoder/"): x for name, x in own.items()}
    stateful.set_state({"rl_module": {"default_policy": renamed}})

    # Every step that counts is a row, which leads to the observation after its window.
    item, step = np.nonzero(batch["loss_mask"])
    assert {1, 2, 3} == set(batch["n_step"][item, step]) and not batch["loss_mask"][:, -1].all()
    assert batch["terminateds"][item, step].any() and batch["truncateds"][item, step].any()
    last = step + batch["n_step"][item, step].astype(int) - 1
    columns = ("obs", "actions", "rewards", "terminateds", "truncateds", "n_step")
    rows = {name: batch[name][item, step] for name in columns}
    rows |= {"new_obs": batch["new_obs"][item, last], "weights": batch["weights"][item]}

    priorities = stateful.update_rows(Experience.of_rows({"default_policy": batch}))[("default_policy", "td_error")]
    errors = np.zeros(batch["loss_mask"].shape, np.float32)
    found = stateless.update_rows(Experience.of_rows({"default_policy": rows}))
    errors[item, step] = found[("default_policy", "td_error")]
    np.testing.assert_allclose(priorities, sequence_priorities(errors, batch["loss_mask"]), rtol=1e-5)
    results = [learner.row_results()["default_policy"] for learner in (stateful, stateless)]
    for name in ("qf_loss", "qf_mean", "qf_min", "qf_max", "td_error_mean", "gradients_default_optimizer_global_norm"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5, err_msg=name)
    after = [learner.get_state()["rl_module"]["default_policy"] for learner in (stateful, stateless)]
    for name, weights in after[1].items():
        other = after[0][name.replace("encoder/", "encoder/encoder/")]
        np.testing.assert_allclose(other, weights, rtol=1e-5, atol=1e-7, err_msg=name)
    assert any(not np.array_equal(weights, own[name]) for name, weights in after[1].items())
