"""Gradients of an LSTM over sequences: the default modules' layer beside the library's cell in a loop, and unrolled.

    python -m bench.recurrent_layer --shapes 32x64,128x16

Each computes the gradients of its weights and of what comes in, 64 wide, from those of its output. The state starts
anew before one step in twenty. Longer loops than 32 steps are not unrolled: they compile for minutes.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bench import harness
from jaxrl_stack.core.models.recurrent import RecurrentLayer

WIDTH = 64
OURS, LIBRARY, UNROLLED = "this layer", "library cell", "library cell, unrolled"


def layer_over(x: jax.Array, resets: jax.Array, state: jax.Array) -> Any:
    """Returns the layer of the default modules, and a function of layer and inputs that computes outputs ``[T, B,
    WIDTH]``.
    """
    layer = RecurrentLayer(
        WIDTH, WIDTH, cell_type="lstm", use_bias=True, kernel_init=None, bias_init=None, rngs=nnx.Rngs(0)
    )
    return layer, lambda layer, x: layer(x, {"h": state, "c": state}, resets)[0]


def cell_over(x: jax.Array, resets: jax.Array, state: jax.Array, *, unroll: int = 1) -> Any:
    """Returns Flax's LSTM cell, and a function of cell and inputs that computes outputs ``[T, B, WIDTH]`` in a scan."""
    cell = nnx.OptimizedLSTMCell(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def outputs(cell: nnx.OptimizedLSTMCell, x: jax.Array) -> jax.Array:
        definition, parameters = nnx.split(cell)

        def step(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> Any:
            x, reset = inputs
            carry = jax.tree.map(lambda part: jnp.where(reset[:, None], 0.0, part), carry)
            return nnx.merge(definition, parameters)(carry, x)

        return jax.lax.scan(step, (state, state), (x, resets), unroll=unroll)[1]

    return cell, outputs


class Gradients:
    """Contender: the compiled gradients of a recurrent layer."""

    def __init__(self, make: Any, length: int, num_sequences: int):
        keys = jax.random.split(jax.random.key(0), 3)
        shape = (length, num_sequences)
        x, of_outputs = (jax.random.normal(key, (*shape, WIDTH)) for key in keys[:2])
        model, outputs = make(x, jax.random.bernoulli(keys[2], 0.05, shape), jnp.zeros((num_sequences, WIDTH)))
        definition, parameters = nnx.split(model)

        def gradients(parameters: Any, x: jax.Array, of_outputs: jax.Array) -> Any:
            _, pull_back = jax.vjp(lambda parameters, x: outputs(nnx.merge(definition, parameters), x), parameters, x)
            return pull_back(of_outputs)

        started = time.perf_counter()
        self._compiled = jax.jit(gradients).lower(parameters, x, of_outputs).compile()
        self.compile_s = time.perf_counter() - started
        self._arguments = (parameters, x, of_outputs)
        self.steps_per_iteration = length * num_sequences

    def step(self) -> dict[str, Any]:
        jax.block_until_ready(self._compiled(*self._arguments))
        return {}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.recurrent_layer", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--shapes", default="32x64,128x16", help="steps x sequences")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.3, help="least length of a turn")
    args = parser.parse_args(arguments)
    rows = []
    for shape in args.shapes.split(","):
        length, num_sequences = map(int, shape.split("x"))
        makers: dict[str, Any] = {OURS: layer_over, LIBRARY: cell_over}
        if length <= 32:
            makers[UNROLLED] = functools.partial(cell_over, unroll=length)
        contenders = {name: Gradients(make, length, num_sequences) for name, make in makers.items()}
        timings = harness.interleave(contenders, args.rounds, args.seconds)
        for name, timing in timings.items():
            milliseconds = 1e3 * length * num_sequences / timing.rate
            ratio = timing.ratio_to(timings[OURS]) ** -1 if name != OURS else None
            rows.append([shape, name, milliseconds, ratio, contenders[name].compile_s])
    harness.print_table(
        f"Gradients of an LSTM of {WIDTH}",
        ["steps x sequences", "contender", "ms", "time ÷ ours", "compile s"],
        rows,
        caption=f"medians of {args.rounds} turns; one device",
    )


if __name__ == "__main__":
    main()
