"""Recurrent encoders: against RLlib's numbers, and where episodes start inside of sequences."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.dqn.dqn_catalog import DQNCatalog
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ENCODER_OUT
from jaxrl_stack.core.models.configs import CNNEncoderConfig, MLPEncoderConfig, RecurrentEncoderConfig
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rllib_weights import from_rllib_names
from jaxrl_stack.core.rl_module.row_independence import handles_resets

GOLDEN = np.load(Path(__file__).parents[1] / "reference" / "recurrent_golden.npz")
# As in make_recurrent_golden.py.
BATCH, STEPS = 3, 5
CASES = {
    "lstm": {"input_dims": [4], "hidden_dim": 6, "num_layers": 1},
    "lstm_deep": {"input_dims": [4], "hidden_dim": 5, "num_layers": 2, "use_bias": False},
    "lstm_mlp": {
        "input_dims": [4],
        "hidden_dim": 6,
        "num_layers": 1,
        "tokenizer_config": MLPEncoderConfig(
            input_dims=[4], hidden_layer_dims=[], output_layer_dim=7, output_layer_activation="tanh"
        ),
    },
    "gru": {"input_dims": [4], "hidden_dim": 6, "num_layers": 2, "recurrent_layer_type": "gru"},
    "gru_cnn": {
        "input_dims": [6, 6, 2],
        "hidden_dim": 4,
        "num_layers": 1,
        "recurrent_layer_type": "gru",
        "tokenizer_config": CNNEncoderConfig(input_dims=[6, 6, 2], cnn_filter_specifiers=[[3, 3, 2]]),
    },
}
BOX = gym.spaces.Box(-1.0, 1.0, (3,))
LSTM = DefaultModelConfig(use_lstm=True, lstm_cell_size=4, fcnet_hiddens=[5], vf_share_layers=False)


def draw(case, what, shape):
    seed = np.random.SeedSequence([ord(letter) for letter in f"{case}/{what}"])
    return np.random.default_rng(seed).uniform(-0.3, 0.3, shape).astype(np.float32)


def encoder_of(case):
    """The encoder with weights as RLlib's, of which the second value is ``{path: PyTorch's name}``."""
    encoder = RecurrentEncoderConfig(**CASES[case]).build(rngs=nnx.Rngs(0))
    names = GOLDEN[f"{case}/names"].tolist()
    shapes = {name: GOLDEN[f"{case}/grad_{i}"].shape for i, name in enumerate(names)}
    ours = from_rllib_names({f"encoder.{name}": draw(case, name, shapes[name]) for name in names})
    leaves = {tuple(map(str, path)): path for path, _ in nnx.to_flat_state(nnx.state(encoder, nnx.Param))}
    paths = [leaves[tuple(ref.split("/")[1:])] for ref in ours]
    assert len(paths) == len(leaves)
    nnx.update(encoder, nnx.from_flat_state(list(zip(paths, map(jnp.asarray, ours.values()), strict=True))))
    return encoder, dict(zip(paths, names, strict=True))


def inputs_of(case, encoder):
    obs = draw(case, "obs", (BATCH, STEPS, *CASES[case]["input_dims"]))
    zeros = encoder.get_initial_state()
    return obs, {name: draw(case, f"state {name}", (BATCH, *part.shape)) for name, part in zeros.items()}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_rllibs_encoders(case):
    encoder, names = encoder_of(case)
    graphdef, params = nnx.split(encoder, nnx.Param)
    obs, state = inputs_of(case, encoder)

    @jax.jit
    def run(params, obs, state):
        def loss(params, obs, state):
            out = nnx.merge(graphdef, params)({Columns.OBS: obs, Columns.STATE_IN: state})
            parts = {"": out[ENCODER_OUT], **{f" {n}": part for n, part in out[Columns.STATE_OUT].items()}}
            return sum(jnp.sum(x * draw(case, f"direction{n}", x.shape)) for n, x in parts.items()), out

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(params, obs, state)

    (of_params, of_obs, of_state), out = run(params, obs, state)
    found = {"output": out[ENCODER_OUT], "input_grad": of_obs}
    for name in state:
        found |= {f"state_{name}": out[Columns.STATE_OUT][name], f"state_grad_{name}": of_state[name]}
    order = GOLDEN[f"{case}/names"].tolist()
    for path, gradient in nnx.to_flat_state(of_params):
        # In our layout both sides of a product are the other way round.
        expected = GOLDEN[f"{case}/grad_{order.index(names[path])}"]
        expected = np.moveaxis(expected, (0, 1), (-1, -2)) if expected.ndim > 1 else expected
        np.testing.assert_allclose(gradient.get_value(), expected, rtol=1e-5, atol=1e-5, err_msg=names[path])
    for name, value in found.items():
        np.testing.assert_allclose(value, GOLDEN[f"{case}/{name}"], rtol=1e-5, atol=1e-5, err_msg=name)


def test_weights_of_rllibs_module_give_its_outputs_and_states():
    module = DefaultPPORLModule(
        observation_space=BOX, action_space=gym.spaces.Discrete(2), model_config=LSTM, rngs=nnx.Rngs(0)
    )
    prefix = "ppo/weights/"
    module.load_rllib_weights({name.removeprefix(prefix): GOLDEN[name] for name in GOLDEN if name.startswith(prefix)})
    state = {
        part: {name: draw("ppo", f"state {part} {name}", (BATCH, 1, 4)) for name in ("h", "c")}
        for part in ("actor", "critic")
    }
    batch = {Columns.OBS: draw("ppo", "obs", (BATCH, STEPS, 3)), Columns.STATE_IN: state}
    out = module.forward_train(batch)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], GOLDEN["ppo/action_dist_inputs"], **close)
    np.testing.assert_allclose(module.compute_values(batch), GOLDEN["ppo/values"], **close)
    for part, own in state.items():
        for name in own:
            expected = GOLDEN[f"ppo/state_out/{part}/{name}"]
            np.testing.assert_allclose(out[Columns.STATE_OUT][part][name], expected, **close)


@pytest.mark.parametrize("case", ["lstm", "gru_cnn"])
def test_a_sequence_with_the_start_of_an_episode_in_it_is_two_sequences(case):
    encoder, _ = encoder_of(case)
    obs, state = inputs_of(case, encoder)
    resets = np.zeros((BATCH, STEPS), bool)
    resets[1, 2] = resets[2, 0] = True
    zeros = jax.tree.map(lambda part: jnp.zeros((BATCH, *part.shape)), encoder.get_initial_state())
    run = nnx.jit(lambda encoder, obs, state, **columns: encoder({"obs": obs, "state_in": state, **columns}))
    whole = run(encoder, obs, state, resets=resets)
    kept, later, fresh = run(encoder, obs, state), run(encoder, obs[:, 2:], zeros), run(encoder, obs, zeros)
    for row, at, expected in ((0, 0, kept), (1, 2, later), (2, 0, fresh)):
        np.testing.assert_allclose(whole[ENCODER_OUT][row, at:], expected[ENCODER_OUT][row], rtol=1e-6, atol=1e-6)
        for name, part in expected[Columns.STATE_OUT].items():
            np.testing.assert_allclose(whole[Columns.STATE_OUT][name][row], part[row], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(whole[ENCODER_OUT][1, :2], kept[ENCODER_OUT][1, :2], rtol=1e-6, atol=1e-6)


def test_a_time_major_encoder_has_the_same_numbers_with_the_axes_of_steps_swapped():
    encoder, _ = encoder_of("lstm")
    obs, state = inputs_of("lstm", encoder)
    expected = encoder({Columns.OBS: obs, Columns.STATE_IN: state})
    encoder.batch_major = False
    found = encoder({Columns.OBS: np.swapaxes(obs, 0, 1), Columns.STATE_IN: state})
    np.testing.assert_array_equal(np.swapaxes(found[ENCODER_OUT], 0, 1), expected[ENCODER_OUT])


def test_catalogs_put_an_lstm_after_the_encoder_of_single_observations():
    config = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [5]}
    for catalog in (PPOCatalog(BOX, BOX, config), DQNCatalog(BOX, gym.spaces.Discrete(2), config)):
        assert catalog.latent_dims == (4,) and catalog.encoder_config.tokenizer_config.output_dims == (5,)
    sac = SACCatalog(BOX, gym.spaces.Box(-1.0, 1.0, (2,)), config)
    critic = sac.build_qf_encoder(rngs=nnx.Rngs(0))
    # Actions join what the LSTM puts out: its state follows from observations alone.
    state = critic.get_initial_state()
    assert list(state) == [Columns.OBS] and state[Columns.OBS]["c"].shape == (1, 4)
    columns = {Columns.OBS: np.ones((2, 3, 3), np.float32), Columns.ACTIONS: np.ones((2, 3, 2), np.float32)}
    out = critic({**columns, Columns.STATE_IN: jax.tree.map(lambda part: jnp.zeros((2, *part.shape)), state)})
    assert out[ENCODER_OUT].shape == (2, 3, 4)
    assert jax.tree.map(jnp.shape, out[Columns.STATE_OUT]) == {Columns.OBS: {"h": (2, 1, 4), "c": (2, 1, 4)}}


def test_modules_say_whether_sequences_may_have_starts_of_episodes_in_them():
    class Named(DefaultPPORLModule):
        name = "changes no method"

    class Own(DefaultPPORLModule):
        def _forward(self, batch, **kwargs):
            return super()._forward(batch)

    class Deaf(PPOCatalog):
        def build_actor_critic_encoder(self, framework="jax", *, rngs):
            return super().build_actor_critic_encoder(framework, rngs=rngs)

    spaces = {"observation_space": BOX, "action_space": BOX, "model_config": LSTM, "rngs": nnx.Rngs(0)}
    assert handles_resets(DefaultPPORLModule(**spaces)) and handles_resets(Named(**spaces))
    assert not handles_resets(Own(**spaces)) and not handles_resets(DefaultPPORLModule(**spaces, catalog_class=Deaf))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recurrent_layer_type": "rnn"}, r"recurrent_layer_type='rnn'.*\['lstm', 'gru'\]"),
        ({"hidden_dim": None}, "hidden_dim=None.*at least 1"),
        ({"num_layers": 0}, "num_layers=0.*at least 1"),
        ({"input_dims": [4, 4]}, r"input_dims=\[4, 4\].*flat"),
        ({"hidden_weights_initializer": "xavir"}, "xavir.*xavier"),
    ],
)
def test_what_makes_no_encoder_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RecurrentEncoderConfig(**{**CASES["lstm"], **settings}).build(rngs=nnx.Rngs(0))


def test_the_default_initial_weights_are_uniform_in_the_inverse_root_of_the_width():
    (layer,) = RecurrentEncoderConfig(input_dims=[400], hidden_dim=25, num_layers=1).build(rngs=nnx.Rngs(0)).layers
    for dense in (layer.input, layer.hidden):
        for leaf in (dense.kernel, dense.bias):
            assert 0.18 < np.abs(leaf[...]).max() <= 0.2
