"""SAC's and TQC's modules on sequences from replay, against steps taken one by one."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule, batched_initial_state
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
SETTINGS = {
    **{"fcnet_hiddens": [4], "fusionnet_hiddens": [4], "head_fcnet_hiddens": [], "use_lstm": True},
    **{"lstm_cell_size": 3, "burn_in_len": 2, "n_quantiles": 3, "top_quantiles_to_drop_per_net": 1},
}
LENGTHS, NUM_BEFORE, LENGTH = [6, 4, 5], [2, 0, 1], 6


def module_of(module_class, action_space):
    names = {*module_class.own_settings, "burn_in_len"}
    known = {"n_quantiles", "top_quantiles_to_drop_per_net"} - names
    settings = {name: value for name, value in SETTINGS.items() if name not in known}
    spec = RLModuleSpec(
        module_class=module_class, observation_space=BOX, action_space=action_space, model_config=settings
    )
    module = spec.build(seed=3)
    module.make_target_networks()
    for _, target in module.get_target_network_pairs():
        nnx.update(target, jax.tree.map(lambda x: x + 0.1, nnx.state(target)))
    return module


def sequences(actions):
    rng = np.random.default_rng(0)
    steps = np.arange(LENGTH)
    is_there = steps < np.array(LENGTHS)[:, None]
    line = rng.normal(size=(3, LENGTH + 1, 2)).astype(np.float32)
    state = rng.normal(size=(2, 3, 1, 3)).astype(np.float32)
    return {
        "obs": np.where(is_there[..., None], line[:, :-1], 0.0),
        "new_obs": np.where(is_there[..., None], line[:, 1:], 0.0),
        "actions": actions,
        "state_in": {"h": state[0], "c": state[1]},
        "loss_mask": is_there & (steps >= np.array(NUM_BEFORE)[:, None]),
    }


@pytest.mark.parametrize(("module_class", "action_space"), [(DefaultSACRLModule, DISCRETE), (DefaultTQCRLModule, BOX)])
def test_sequences_have_the_values_of_their_steps(module_class, action_space):
    module, is_discrete = module_of(module_class, action_space), action_space is DISCRETE
    shape = (3, LENGTH) if is_discrete else (3, LENGTH, 2)
    batch = sequences(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.int32 if is_discrete else np.float32))
    out = jax.device_get(module.forward_train(batch))

    @jax.jit
    def one_step(obs, action, states):
        """Outputs of policy, critics and target critics at one observation, and their states after it."""
        columns = {"obs": obs, "actions": action}
        of_policy = module._forward({**columns, "state_in": states["pi"]})
        after = {"pi": of_policy["state_out"]}
        for prefix in ("", "target_"):
            encoders = enumerate(module._critic_encoders(prefix))
            after[prefix] = [e({**columns, "state_in": states[prefix][i]})["state_out"] for i, e in encoders]
        online = module._critics({**columns, "state_in": states[""]}, squeeze=False)["qf_preds"]
        target = module.forward_target({**columns, "state_in": states["target_"]}, squeeze=False)
        return of_policy["action_dist_inputs"], online, target, after

    for i, (length, before) in enumerate(zip(LENGTHS, NUM_BEFORE, strict=True)):
        states = {"pi": jax.tree.map(lambda x, i=i: x[i : i + 1], batch["state_in"])} | {
            prefix: [batched_initial_state(encoder, 1) for encoder in module._critic_encoders(prefix)]
            for prefix in ("", "target_")
        }
        line = [*batch["obs"][i, :length], batch["new_obs"][i, length - 1]]
        found = []
        for t, obs in enumerate(line):
            action = batch["actions"][i, min(t, length - 1)]
            *values, states = one_step(obs[None, None], np.asarray(action)[None, None], states)
            found.append([np.asarray(value)[0, 0] for value in values])
        inputs, online, target = (np.stack(each) for each in zip(*found, strict=True))
        counts = slice(before, length)
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(out["action_dist_inputs"][i, counts], inputs[:-1][counts], **close)
        np.testing.assert_allclose(out["action_dist_inputs_next"][i, counts], inputs[1:][counts], **close)
        own = out["qf_preds"][i, counts]
        np.testing.assert_allclose(own, online[:-1][counts].reshape(own.shape), **close)
        if is_discrete:
            np.testing.assert_allclose(out["q_target_next"][i, counts], target[1:][counts], **close)
            np.testing.assert_allclose(np.exp(out["action_log_probs_next"][i, counts]).sum(-1), 1.0, rtol=1e-5)
        else:
            # The values of what the policy does next: those in the next row, of the same draw, but for the networks.
            drawn = out["logp_resampled"][i, counts], out["logp_next_resampled"][i, counts]
            np.testing.assert_array_equal(drawn[0][1:], drawn[1][:-1])
            assert out["q_curr"].shape == (3, LENGTH) and np.isfinite(out["q_target_next"][i, counts]).all()
