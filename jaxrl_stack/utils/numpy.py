"""Functions of neural networks in NumPy, for checks by hand and for batches on the host."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete, Space

from jaxrl_stack.utils.nested import space_struct, tree_map

SMALL_NUMBER = 1e-6
LARGE_INTEGER = 100_000_000
# Bounds of the logarithm of a standard deviation.
MIN_LOG_NN_OUTPUT = -5
MAX_LOG_NN_OUTPUT = 2


def convert_to_numpy(x: Any, reduce_type: bool = True) -> Any:
    """Converts the JAX and PyTorch arrays in nested dicts, tuples and lists to NumPy arrays.

    Args:
        x: Any nesting of dicts, tuples and lists.
        reduce_type: float32 for all floats, and int32 for all integers.
    """

    def convert(leaf: Any) -> Any:
        if hasattr(leaf, "detach"):
            leaf = leaf.detach().cpu()
        if not hasattr(leaf, "dtype"):
            return leaf
        array = np.asarray(leaf)
        if not (reduce_type and array.dtype.kind in "fi"):
            return array
        return array.astype(np.float32 if array.dtype.kind == "f" else np.int32, copy=False)

    return tree_map(convert, x)


def fc(x: Any, weights: Any, biases: Any = None, framework: str | None = None) -> np.ndarray:
    """Applies a dense layer without activation: ``x @ weights + biases``.

    Args:
        x: ``[B, n]``.
        weights: ``[n, m]``; with ``framework="torch"`` also ``[m, n]``, where only that fits.
        biases: ``[m]``; None for none.
        framework: "torch" for PyTorch's order of weights.

    Returns:
        ``[B, m]``.
    """
    x, weights = convert_to_numpy(x, reduce_type=False), convert_to_numpy(weights, reduce_type=False)
    if framework == "torch" and x.shape[1] != weights.shape[0] and x.shape[1] == weights.shape[1]:
        weights = weights.T
    return x @ weights + (0.0 if biases is None else convert_to_numpy(biases, reduce_type=False))


def flatten_inputs_to_1d_tensor(
    inputs: Any, spaces_struct: Any = None, time_axis: bool = False, batch_axis: bool = True
) -> np.ndarray:
    """Flattens inputs to one float32 vector per row: discrete parts one-hot, other parts raveled, dicts by sorted keys.

    Args:
        inputs: Struct of arrays ``[B, T, ...]``, ``[B, ...]`` or ``[...]``, as the two arguments below say.
        spaces_struct: Its space, or struct of spaces; None: nothing is discrete.
        time_axis: There is a time axis after the batch axis.
        batch_axis: There is a batch axis.

    Returns:
        float32 ``[B, T, n]``, ``[B, n]`` or ``[n]``.

    Raises:
        ValueError: A time axis without a batch axis.
    """
    if time_axis and not batch_axis:
        raise ValueError(
            "flatten_inputs_to_1d_tensor(time_axis=True, batch_axis=False): a time axis needs a batch axis. Set "
            "batch_axis=True."
        )
    if isinstance(spaces_struct, Space):
        spaces_struct = space_struct(spaces_struct)

    def parts(value: Any, space: Any) -> list[np.ndarray]:
        if isinstance(value, dict):
            return [part for key in sorted(value) for part in parts(value[key], space and space[key])]
        if isinstance(value, tuple | list):
            spaces = [None] * len(value) if space is None else space
            return [part for item in zip(value, spaces, strict=True) for part in parts(*item)]
        value = np.asarray(value)
        if isinstance(space, Discrete):
            value = one_hot(value, int(space.n))
        elif isinstance(space, MultiDiscrete):
            value = one_hot_multidiscrete(value, space.nvec.ravel())
        return [value.astype(np.float32).reshape(*value.shape[: batch_axis + time_axis], -1)]

    return np.concatenate(parts(inputs, spaces_struct), axis=-1)


def make_action_immutable(obj: Any) -> Any:
    """Makes an array read-only in place, or returns a read-only view of a dict; returns other objects unchanged."""
    if isinstance(obj, np.ndarray):
        obj.setflags(write=False)
        return obj
    return MappingProxyType(obj) if isinstance(obj, dict) else obj


def huber_loss(x: Any, delta: float = 1.0) -> np.ndarray:
    """``x²/2`` for ``|x| < delta``, else ``delta (|x| - delta/2)`` (Huber 1964)."""
    return np.where(np.abs(x) < delta, np.square(x) / 2, delta * (np.abs(x) - delta / 2))


def l2_loss(x: Any) -> np.floating:
    """Computes ``sum(x²) / 2``."""
    return np.sum(np.square(x)) / 2


def one_hot(
    x: Any, depth: int = 0, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = np.float32
) -> np.ndarray:
    """Converts integers ``[...]`` to one-hot vectors ``[..., depth]`` of dtype `dtype`.

    Args:
        x: Integers ``[...]``, or bools, which are 0 and 1 of 2.
        depth: Length of a vector; 0: the largest integer plus one.
        on_value: The value at the place of the integer.
        off_value: The value at all others.
        dtype: Dtype of the result.

    Returns:
        ``[..., depth]``.

    Raises:
        ValueError: An integer is not below `depth`, or negative.
    """
    x = np.asarray(convert_to_numpy(x, reduce_type=False))
    if x.dtype == np.bool_:
        x, depth = x.astype(np.int64), 2
    depth = depth or int(x.max()) + 1
    if x.size and not 0 <= x.min() <= x.max() < depth:
        raise ValueError(
            f"one_hot(depth={depth}): x has values from {x.min()} to {x.max()}, but they must be within 0 to "
            f"{depth - 1}. Raise depth, or change x."
        )
    return np.where(x[..., None] == np.arange(depth), on_value, off_value).astype(dtype)


def one_hot_multidiscrete(x: Any, depths: Iterable[int]) -> np.ndarray:
    """Converts integers ``[..., k]`` to one-hot vectors with the k lengths `depths`, and concatenates them: float32
    ``[..., sum(depths)]``.

    Args:
        x: The integers.
        depths: The length of each of the k vectors.
    """
    x = np.asarray(convert_to_numpy(x, reduce_type=False))
    return np.concatenate([one_hot(x[..., i], int(depth)) for i, depth in enumerate(depths)], axis=-1)


def lstm(
    x: Any,
    weights: Any,
    biases: Any = None,
    initial_internal_states: Any = None,
    time_major: bool = False,
    forget_bias: float = 1.0,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Applies an LSTM layer (Hochreiter and Schmidhuber, 1997) to sequences.

    The weights contain the gates in TensorFlow's order. Returns the outputs of all steps, and the state after the last
    step.

    Args:
        x: Inputs ``[B, T, n]``; with `time_major` ``[T, B, n]``.
        weights: ``[n + units, 4 units]``: of the input gate, the new content, the forget gate and the output gate.
        biases: ``[4 units]``; None for none.
        initial_internal_states: Cell state and output ``[B, units]`` before the first step; None: zeros.
        time_major: Whether time is the first axis.
        forget_bias: Is added to the forget gate.

    Returns:
        Outputs as `x` is, and ``(cell state, output)`` after the last step.
    """
    x, weights = np.asarray(x), np.asarray(weights)
    steps = x if time_major else np.swapaxes(x, 0, 1)
    units = weights.shape[1] // 4
    cell, output = initial_internal_states or (np.zeros((steps.shape[1], units)),) * 2
    outputs = []
    for step in steps:
        gates = np.concatenate([step, output], axis=1) @ weights + (0.0 if biases is None else np.asarray(biases))
        enter, content, forget, leave = np.split(gates, 4, axis=1)
        cell = cell * sigmoid(forget + forget_bias) + sigmoid(enter) * np.tanh(content)
        output = sigmoid(leave) * np.tanh(cell)
        outputs.append(output)
    return np.stack(outputs, axis=0 if time_major else 1), (cell, output)


def relu(x: Any, alpha: float = 0.0) -> np.ndarray:
    """``x`` where positive, else ``alpha x``."""
    return np.where(np.asarray(x) > 0, x, np.multiply(x, alpha))


def sigmoid(x: Any, derivative: bool = False) -> np.ndarray:
    """``1 / (1 + exp(-x))``.

    Args:
        x: Any array.
        derivative: Return the derivative ``x (1 - x)``, where `x` is a value of the sigmoid already.
    """
    x = np.asarray(x)
    return x * (1 - x) if derivative else 1 / (1 + np.exp(-x))


def softmax(x: Any, axis: int = -1, epsilon: float | None = None) -> np.ndarray:
    """Softmax along `axis`, ``exp(x) / sum(exp(x))``, in which entries below `epsilon` are replaced by `epsilon`.

    Args:
        x: Any array.
        axis: The axis that sums to 1.
        epsilon: The least value of the result; None: `SMALL_NUMBER`.
    """
    x = np.asarray(x)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.maximum(powers / powers.sum(axis, keepdims=True), epsilon or SMALL_NUMBER)
