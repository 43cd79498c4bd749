"""Recurrent layers over sequences, and the encoder that is made of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ENCODER_OUT, Encoder
from jaxrl_stack.core.models.dense import Dense
from jaxrl_stack.core.models.initializers import torch_default_bias
from jaxrl_stack.ops.masks import expand

Cell = Callable[..., tuple[jax.Array, ...]]
"""``(what the input gives [B, k H], what h gives [B, k H], *state [B, H]) -> state``; h comes first in a state."""


def lstm_cell(from_input: Any, from_state: Any, h: Any, c: Any) -> tuple[jax.Array, jax.Array]:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates): ``(h, c)``, float ``[B, H]``.

    The gates stand side by side in PyTorch's order: input, forget, cell, output.
    """
    del h
    i, f, g, o = jnp.split(from_input + from_state, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru_cell(from_input: Any, from_state: Any, h: Any) -> tuple[jax.Array]:
    """Gated recurrent unit (Cho et al., 2014): ``(h,)``, float ``[B, H]``; reset, update, new, in PyTorch's order.

    The reset gate acts on what the state gives, after its product and with its bias.
    """
    (r, z, n), (state_r, state_z, state_n) = (jnp.split(x, 3, axis=-1) for x in (from_input, from_state))
    update = jax.nn.sigmoid(z + state_z)
    new = jnp.tanh(n + jax.nn.sigmoid(r + state_r) * state_n)
    return (new + update * (h - new),)


@dataclasses.dataclass(frozen=True)
class CellType:
    """A kind of recurrent layer.

    Attributes:
        cell: Its step.
        num_gates: ``k``, how many times as wide as its state what goes into it is.
        state: Names of the parts of its state, those of the output first.
    """

    cell: Cell
    num_gates: int
    state: tuple[str, ...]


CELL_TYPES = {"lstm": CellType(lstm_cell, 4, ("h", "c")), "gru": CellType(gru_cell, 3, ("h",))}


State = tuple[jax.Array, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(cell: Cell, inputs: jax.Array, kernel: jax.Array, bias: Any, state: State, resets: Any) -> Any:
    """A cell over all steps, with the same gradients as autodiff's.

    Autodiff adds the gradient of the kernel up step by step, a product of ``[H, B]`` and ``[B, k H]`` and a sum over a
    matrix in each. Here it is one product over all steps, after the loop. Measured on a CPU core, 12 sequences of 20
    steps and H = 64: both directions take 0.8 times as long as with autodiff, 0.7 times as long as the library's cell
    in a scan, half as long as unrolled (which takes 8 times as long to compile).

    Args:
        cell: The step.
        inputs: What the inputs give, float ``[T, B, k H]``.
        kernel: Float ``[H, k H]``, for h.
        bias: Float ``[k H]``, beside it; None for none.
        state: Before the first step, each float ``[B, H]``.
        resets: bool ``[T, B]``, steps before which the state becomes zeros; None for none.

    Returns:
        ``(h after every step [T, B, H], state after the last one)``.
    """
    return _unroll(cell, kernel, bias, resets, inputs, None, state)[0]


def _unroll(cell: Cell, kernel: Any, bias: Any, resets: Any, inputs: Any, added: Any, state: State) -> Any:
    """``(what `unroll` returns, h before every step)``, with something added to what h gives in every step."""

    def step(state: State, inputs: tuple[jax.Array, Any, Any]) -> Any:
        from_input, own, reset = inputs
        if reset is not None:
            state = tuple(jnp.where(expand(reset, part), 0.0, part) for part in state)
        from_state = state[0] @ kernel
        for term in (bias, own):
            from_state = from_state if term is None else from_state + term
        after = cell(from_input, from_state, *state)
        return after, (after[0], state[0])

    state, (out, before) = jax.lax.scan(step, state, (inputs, added, resets))
    return (out, state), before


def _unroll_forward(cell: Cell, inputs: jax.Array, kernel: jax.Array, bias: Any, state: State, resets: Any) -> Any:
    run = functools.partial(_unroll, cell, kernel, bias, resets)
    out, pull_back, before = jax.vjp(run, inputs, jnp.zeros_like(inputs), state, has_aux=True)
    return out, (pull_back, before, bias is None)


def _unroll_backward(cell: Cell, residuals: Any, gradients: Any) -> Any:
    del cell
    pull_back, before, has_no_bias = residuals
    of_inputs, of_products, of_state = pull_back(gradients)
    h, products = (x.reshape(-1, x.shape[-1]) for x in (before, of_products))
    return of_inputs, h.T @ products, None if has_no_bias else jnp.sum(products, axis=0), of_state, None


unroll.defvjp(_unroll_forward, _unroll_backward)


class RecurrentLayer(nnx.Module):
    """One layer: `input` is the product with what comes in, of all steps at once, `hidden` that with the state.

    Args:
        input_dim: Width of what comes in.
        hidden_dim: ``H``.
        cell_type: A name in `CELL_TYPES`.
        use_bias: Whether both products have a bias.
        kernel_init, bias_init: Initializers of both; None = PyTorch's default, uniform in ±1/sqrt(H).
        rngs: Where the initial weights come from.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        *,
        cell_type: str,
        use_bias: bool,
        kernel_init: Callable[..., Any] | None,
        bias_init: Callable[..., Any] | None,
        rngs: nnx.Rngs,
    ):
        default = torch_default_bias(hidden_dim)
        settings: dict[str, Any] = {
            "use_bias": use_bias,
            "kernel_init": kernel_init or default,
            "bias_init": bias_init or default,
            "rngs": rngs,
        }
        width = CELL_TYPES[cell_type].num_gates * hidden_dim
        self.cell_type = cell_type
        self.input = Dense(input_dim, width, **settings)
        self.hidden = Dense(hidden_dim, width, **settings)

    def __call__(
        self, x: jax.Array, state: dict[str, jax.Array], resets: jax.Array | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The layer over sequences.

        Args:
            x: Float ``[T, B, input_dim]``.
            state: ``{"h": float [B, H], ...}`` before the first step.
            resets: bool ``[T, B]``, steps before which the state becomes zeros; None for none.

        Returns:
            ``(h after every step [T, B, H], state after the last one)``.
        """
        kind = CELL_TYPES[self.cell_type]
        kernel, bias = self.hidden.kernel[...], None if self.hidden.bias is None else self.hidden.bias[...]
        before = tuple(state[name] for name in kind.state)
        unrolled: Any = unroll(kind.cell, self.input(x), kernel, bias, before, resets)
        out, after = unrolled
        return out, dict(zip(kind.state, after, strict=True))


class RecurrentEncoder(Encoder):
    """Recurrent layers over sequences of observations: `{OBS: [B, T, ...], STATE_IN: state}` -> `{ENCODER_OUT:
    [B, T, hidden_dim], STATE_OUT: state}`.

    A state is ``{"h": [B, num_layers, hidden_dim]}``, for an LSTM with ``"c"`` beside it. Where the column `RESETS`
    `[B, T]` is there and True, the state is that of the start of an episode.

    Args:
        tokenizer: Encoder of `OBS`, of each step by itself; None: observations are vectors.
        layers: The layers.
        hidden_dim: Width of their states.
        batch_major: Whether the axes of steps are `[B, T]`; False: `[T, B]`.
    """

    handles_resets = True

    def __init__(self, tokenizer: Any, layers: list[RecurrentLayer], *, hidden_dim: int, batch_major: bool = True):
        self.tokenizer = tokenizer
        self.layers = nnx.List(layers)
        self.hidden_dim = hidden_dim
        self.batch_major = batch_major

    def get_initial_state(self) -> dict[str, jax.Array]:
        names = CELL_TYPES[self.layers[0].cell_type].state
        return {name: jnp.zeros((len(self.layers), self.hidden_dim), jnp.float32) for name in names}

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.tokenizer is not None:
            own = (Columns.STATE_IN, Columns.RESETS)
            x = self.tokenizer({name: column for name, column in inputs.items() if name not in own})[ENCODER_OUT]
        else:
            x = inputs[Columns.OBS].astype(jnp.float32)
        resets = inputs.get(Columns.RESETS)
        if self.batch_major:
            x, resets = jax.tree.map(lambda each: jnp.swapaxes(each, 0, 1), (x, resets))
        states = []
        for i, layer in enumerate(self.layers):
            before = jax.tree.map(lambda part, i=i: part[:, i], inputs[Columns.STATE_IN])
            x, after = layer(x, before, resets)
            states.append(after)
        state = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *states)
        return {ENCODER_OUT: jnp.swapaxes(x, 0, 1) if self.batch_major else x, Columns.STATE_OUT: state}
