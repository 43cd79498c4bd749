"""Recurrent layers over sequences, and the encoder built from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ENCODER_OUT, Encoder, has_inputs
from jaxrl_stack.core.models.dense import Dense
from jaxrl_stack.core.models.initializers import torch_default_bias
from jaxrl_stack.ops.masks import expand

State = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Definition of a recurrent layer type (LSTM, GRU): the function of one step, and its gradients.

    Attributes:
        num_gates: ``k``, number of gates: kernels map to width ``k H``, for a state of width H.
        state: Names of the state's arrays; the first one, h, is the output.
        step: ``(x [B, k H], y [B, k H], *state [B, H]) -> (new state, factors)`` with the products of kernels and
            input (x) or h (y), plus biases. The factors are the parts of the gradients that depend only on the forward
            pass. If the values behind them were stored instead, the backward pass would read these values several
            times, and take 1.5 times as long on a CPU.
        pull_back: ``(factors, *gradients of the new state) -> (gradient of x, gradient of y, gradients of the state)``.
            The gradient of h leaves out the path through y. If the gradients of x and y are equal, they are the same
            object.
    """

    num_gates: int
    state: tuple[str, ...]
    step: Callable[..., tuple[State, Any]]
    pull_back: Callable[..., tuple[jax.Array, jax.Array, tuple[Any, ...]]]


def _side_by_side(*parts: Any) -> jax.Array:
    # What a CPU computes part by part where it is stored takes longer than to compute it first.
    return jnp.concatenate(jax.lax.optimization_barrier(parts), axis=-1)


def _lstm_step(from_input: Any, from_state: Any, h: Any, c: Any) -> tuple[State, Any]:
    """Computes one LSTM step. The gates are concatenated in PyTorch's order: input, forget, cell, output.

    The logistic function of x is ``(tanh(x / 2) + 1) / 2``: XLA's takes four times as long as tanh on a CPU.
    """
    del h
    halves = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), c.shape[-1])
    i, f, g, o = jnp.split(jnp.tanh((from_input + from_state) * halves), 4, axis=-1)
    i, f, o = (0.5 * gate + 0.5 for gate in (i, f, o))
    after = f * c + i * g
    shown = jnp.tanh(after)
    of_gates = (g * i * (1.0 - i), c * f * (1.0 - f), i * (1.0 - g * g), shown * o * (1.0 - o))
    return (o * shown, after), (of_gates, f, o * (1.0 - shown * shown))


def _lstm_pull_back(factors: Any, of_h: Any, of_c: Any) -> Any:
    (i, f, g, o), of_before, of_shown = factors
    of_c = of_c + of_h * of_shown
    products = _side_by_side(of_c * i, of_c * f, of_c * g, of_h * o)
    return products, products, (0.0, of_c * of_before)


def _gru_step(from_input: Any, from_state: Any, h: Any) -> tuple[State, Any]:
    """Computes one GRU step, with gates in PyTorch's order: reset, update, new.

    As in PyTorch, the reset gate multiplies the product of state and kernel including the bias, ``r * (W h + b)``.
    """
    (r, z, n), (state_r, state_z, state_n) = (jnp.split(x, 3, axis=-1) for x in (from_input, from_state))
    reset, update = (0.5 * jnp.tanh(0.5 * x) + 0.5 for x in (r + state_r, z + state_z))
    new = jnp.tanh(n + reset * state_n)
    of_new, of_update = (1.0 - update) * (1.0 - new * new), (h - new) * update * (1.0 - update)
    return (new + update * (h - new),), (of_new, state_n * reset * (1.0 - reset), of_update, reset, update)


def _gru_pull_back(factors: Any, of_h: Any) -> Any:
    of_new, of_reset, of_update, reset, update = factors
    new = of_h * of_new
    gates = (new * of_reset, of_h * of_update)
    return _side_by_side(*gates, new), _side_by_side(*gates, new * reset), (of_h * update,)


CELLS = {"lstm": Cell(4, ("h", "c"), _lstm_step, _lstm_pull_back), "gru": Cell(3, ("h",), _gru_step, _gru_pull_back)}
"""Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates); gated recurrent unit (Cho et al.,
2014)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(cell: Cell, inputs: jax.Array, kernel: jax.Array, bias: Any, state: State, resets: Any) -> Any:
    """Runs a recurrent cell over all steps; returns the state h after every step, and the last state. The custom
    gradient equals autodiff's, but is faster.

    Autodiff sums the gradient of the kernel step by step, with a product of ``[H, B]`` and ``[B, k H]`` in each step,
    and stores more values of every step than the gradients need. Here the gradient of the kernel is one product over
    all steps, after the loop.

    Args:
        cell: Recurrent layer type (LSTM or GRU).
        inputs: Products of the inputs of all steps with the input kernel, plus its bias, float ``[T, B, k H]``.
        kernel: Float ``[H, k H]``, multiplied by the state h.
        bias: Float ``[k H]``, added to the product of h and `kernel`; None for no bias.
        state: State before the first step, arrays float ``[B, H]``.
        resets: bool ``[T, B]``, steps before which the state becomes zeros; None for none.

    Returns:
        ``(h after every step [T, B, H], state after the last one)``.
    """
    return _unroll_forward(cell, inputs, kernel, bias, state, resets)[0]


def _unroll_forward(cell: Cell, inputs: jax.Array, kernel: jax.Array, bias: Any, state: State, resets: Any) -> Any:
    def step(state: State, inputs: tuple[jax.Array, Any]) -> Any:
        from_input, reset = inputs
        state = _zero_where(reset, state)
        from_state = state[0] @ kernel
        after, factors = cell.step(from_input, from_state if bias is None else from_state + bias, *state)
        return after, (after[0], state[0], factors)

    state, (out, before, factors) = jax.lax.scan(step, state, (inputs, resets))
    return (out, state), (factors, before, kernel, bias is None, resets)


def _unroll_backward(cell: Cell, kept: Any, gradients: Any) -> Any:
    factors, before, kernel, has_no_bias, resets = kept
    of_out, of_state = gradients
    # The barriers keep a CPU from reading transposed matrices in place, with strides: see `ops.dense`.
    transposed = jax.lax.optimization_barrier(kernel.T)

    def step(of_state: State, inputs: Any) -> Any:
        of_out, factors, reset = inputs
        of_input, of_product, (of_h, *of_rest) = cell.pull_back(factors, of_state[0] + of_out, *of_state[1:])
        of_state = _zero_where(reset, (of_h + of_product @ transposed, *of_rest))
        return of_state, (of_input,) if of_input is of_product else (of_input, of_product)

    of_state, stacked = jax.lax.scan(step, of_state, (of_out, factors, resets), reverse=True)
    h, products = (x.reshape(-1, x.shape[-1]) for x in (before, stacked[-1]))
    of_kernel = jax.lax.optimization_barrier(h.T) @ products
    return stacked[0], of_kernel, None if has_no_bias else jnp.sum(products, axis=0), of_state, None


unroll.defvjp(_unroll_forward, _unroll_backward)


def _zero_where(reset: Any, state: State) -> State:
    return state if reset is None else tuple(jnp.where(expand(reset, part), 0.0, part) for part in state)


class RecurrentLayer(nnx.Module):
    """One recurrent layer with two dense layers: `input` is applied to the inputs of all steps at once, `hidden` to the
    state in each step.

    Args:
        input_dim: Width of the input.
        hidden_dim: ``H``, width of the state.
        cell_type: Key of `CELLS`, "lstm" or "gru".
        use_bias: Whether `input` and `hidden` have biases.
        kernel_init, bias_init: Initializers of `input` and `hidden`; None = PyTorch's default, uniform in ±1/sqrt(H).
        rngs: Source of random numbers for the initial weights.
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
        width = CELLS[cell_type].num_gates * hidden_dim
        self.cell_type = cell_type
        self.input = Dense(input_dim, width, **settings)
        self.hidden = Dense(hidden_dim, width, **settings)

    def __call__(
        self, x: jax.Array, state: dict[str, jax.Array], resets: jax.Array | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Applies the recurrent layer to sequences, float ``[T, B, input_dim]`` (time axis first). Returns the state h
        after every step, and the last state.

        Args:
            x: Float ``[T, B, input_dim]``.
            state: ``{"h": float [B, H], ...}`` before the first step.
            resets: bool ``[T, B]``, steps before which the state becomes zeros; None for none.

        Returns:
            ``(h after every step [T, B, H], state after the last one)``.
        """
        cell = CELLS[self.cell_type]
        kernel, bias = self.hidden.kernel[...], None if self.hidden.bias is None else self.hidden.bias[...]
        before = tuple(state[name] for name in cell.state)
        unrolled: Any = unroll(cell, self.input(x), kernel, bias, before, resets)
        out, after = unrolled
        return out, dict(zip(cell.state, after, strict=True))


class RecurrentEncoder(Encoder):
    """Recurrent layers over sequences of observations: `{OBS: [B, T, ...], STATE_IN: state}` -> `{ENCODER_OUT:
    [B, T, hidden_dim], STATE_OUT: state}`.

    A state is ``{"h": [B, num_layers, hidden_dim]}``; an LSTM's state also has ``"c"``. If the batch has the column
    `RESETS`, `[B, T]`, the state is reset to zeros before each step where it is True.

    Args:
        tokenizer: Encoder of single observations, `OBS`; None: observations are vectors.
        layers: Recurrent layers, from input to output.
        hidden_dim: Width of the layers' states.
        batch_major: Whether the axes of steps are `[B, T]`; False: `[T, B]`.
    """

    handles_resets = True

    def __init__(self, tokenizer: Any, layers: list[RecurrentLayer], *, hidden_dim: int, batch_major: bool = True):
        self.tokenizer = tokenizer
        self.layers = nnx.List(layers)
        self.hidden_dim = hidden_dim
        self.batch_major = batch_major

    def has_inputs(self, inputs: dict[str, Any]) -> bool:
        return has_inputs(self.tokenizer, inputs)

    def get_initial_state(self) -> dict[str, jax.Array]:
        names = CELLS[self.layers[0].cell_type].state
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
