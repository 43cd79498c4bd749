"""Weight initializers that draw random numbers with NumPy on the host.

A draw with `jax.random` compiles a program for each shape (tens of milliseconds each, before anything is
trained), and many orthogonal draws at once can deadlock XLA's batched QR on CPU. Drawing on the host costs
microseconds and gives the same weights inside and outside of `jit` and `vmap`. Inside, draws are callbacks to
the host, one after the other.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]
Initializer = Callable[..., jax.Array]


def on_host(draw: Draw) -> Initializer:
    """Converts a NumPy function that draws random arrays to a JAX initializer, `(key, shape, dtype=float32) -> array`.
    The initializer calls the NumPy function on the host.

    Args:
        draw: `(numpy Generator, shape) -> array`; the generator is seeded with the key.
    """

    def initializer(key: jax.Array, shape: Any, dtype: Any = jnp.float32, **unused: Any) -> jax.Array:
        shape = tuple(int(n) for n in shape)
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        words = jax.random.key_data(key) if typed else key

        def host(words: Any) -> np.ndarray:
            generator = np.random.default_rng([int(word) for word in np.ravel(np.asarray(words))])
            return np.array(draw(generator, shape), dtype)

        if isinstance(words, Tracer):
            return jax.pure_callback(host, jax.ShapeDtypeStruct(shape, dtype), words, vmap_method="sequential")
        return jax.device_put(host(words))  # jnp.asarray would compile a program for every shape

    return initializer


def torch_default_kernel() -> Initializer:
    """Returns torch's default initializer of kernels `[in, out]` (or `[..., in, out]`): uniform in ±1/sqrt(fan_in)."""
    return on_host(lambda rng, shape: _symmetric(rng, shape, 1.0 / math.sqrt(_fans(shape)[0])))


def torch_default_bias(fan_in: int) -> Initializer:
    """Returns torch's default initializer of biases: uniform in ±1/sqrt(fan_in).

    `fan_in` is the number that torch uses for the layer: usually the number of inputs; for recurrent layers, the width
    of the state. The initializer accepts any shape, and can also draw kernels.
    """
    return on_host(lambda rng, shape: _symmetric(rng, shape, 1.0 / math.sqrt(max(fan_in, 1))))


def get_initializer(initializer: str | Callable[..., Any] | None, kwargs: dict | None, setting: str) -> Any:
    """Returns the initializer for the value of a model setting (a name or a callable); None (torch's default) if the
    value is None.

    Args:
        initializer: A name from `jax.nn.initializers` ("glorot_uniform", "orthogonal", "zeros", …), a name
            from `torch.nn.init` with its underscore at the end ("xavier_uniform_", "orthogonal_", …), a
            callable `(key, shape, dtype, **kwargs) -> array`, or None.
        kwargs: Keyword arguments of the JAX function or torch function.
        setting: Name of the setting, for error messages.

    Raises:
        ValueError: If the name or an argument is unknown (the message lists known ones), or if `kwargs` are given
            without an initializer.
    """
    kwargs = dict(kwargs or {})
    if initializer is None:
        if kwargs:
            raise ValueError(
                f"{setting}_kwargs={kwargs} has no effect without {setting}. Set {setting} to the initializer."
            )
        return None
    if not isinstance(initializer, str):
        name = _name_of_jax_factory(initializer)
        if name is None:
            return functools.partial(initializer, **kwargs) if kwargs else initializer
        initializer = name
    if initializer not in _INITIALIZERS:
        close = difflib.get_close_matches(initializer, _INITIALIZERS, n=3) or sorted(_INITIALIZERS)
        raise ValueError(
            f"{setting}={initializer!r} is no known initializer: use one of {close}, or pass a callable "
            "(key, shape, dtype) -> array."
        )
    factory = _INITIALIZERS[initializer]
    try:
        return on_host(factory(**kwargs))
    except TypeError as error:
        known = list(inspect.signature(factory).parameters)
        raise ValueError(
            f"{setting}={initializer!r} does not take {setting}_kwargs={kwargs}: it takes {known}."
        ) from error


def _name_of_jax_factory(function: Any) -> str | None:
    # jax.nn.initializers.orthogonal (not called) is meant as often as "orthogonal".
    name = getattr(function, "__name__", "")
    known = name in _INITIALIZERS and getattr(jax.nn.initializers, name, None) is function
    return name if known else None


def _fans(shape: Shape) -> tuple[float, float]:
    if len(shape) < 2:
        raise ValueError(
            "An initializer that scales with the number of inputs and outputs needs a shape of at least 2 axes, got "
            f"{shape}. Use 'zeros', 'constant', 'uniform' or 'normal' for biases."
        )
    receptive = math.prod(shape[:-2])
    return max(shape[-2] * receptive, 1), max(shape[-1] * receptive, 1)


def _symmetric(rng: np.random.Generator, shape: Shape, bound: float) -> np.ndarray:
    return rng.uniform(-bound, bound, shape)


def _truncated_normal(rng: np.random.Generator, shape: Shape, lower: float, upper: float) -> np.ndarray:
    values = rng.standard_normal(shape)
    while (outside := (values < lower) | (values > upper)).any():
        values[outside] = rng.standard_normal(int(outside.sum()))
    return values


def _orthogonal(scale: float = 1.0, column_axis: int = -1) -> Draw:
    def draw(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        if len(shape) < 2:
            raise ValueError(
                f"An orthogonal initializer needs a shape of at least 2 axes, got {shape}. Use 'zeros', 'constant', "
                "'uniform' or 'normal' for biases."
            )
        axis = column_axis % len(shape)
        rows, columns = math.prod(shape) // shape[axis], shape[axis]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        # Without fixing the signs, the matrices would not be uniformly distributed.
        q = q * np.sign(np.diag(r))
        if rows < columns:
            q = q.T
        rest = tuple(n for i, n in enumerate(shape) if i != axis)
        return scale * np.moveaxis(q.reshape((*rest, columns)), -1, axis)

    return draw


def _variance_scaling(scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal") -> Draw:
    modes, distributions = ("fan_in", "fan_out", "fan_avg"), ("truncated_normal", "normal", "uniform")
    if mode not in modes or distribution not in distributions:
        raise ValueError(
            f"mode={mode!r}, distribution={distribution!r}: mode must be one of {modes}, and distribution must be "
            f"one of {distributions}."
        )

    def draw(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        fan_in, fan_out = _fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": 0.5 * (fan_in + fan_out)}[mode]
        std = math.sqrt(scale / fan)
        if distribution == "uniform":
            return _symmetric(rng, shape, math.sqrt(3.0) * std)
        if distribution == "normal":
            return std * rng.standard_normal(shape)
        # A normal truncated at ±2 has the standard deviation 0.8796…
        return std / 0.87962566103423978 * _truncated_normal(rng, shape, -2.0, 2.0)

    return draw


def _constant(value: float) -> Draw:
    return lambda rng, shape: np.broadcast_to(value, shape)


def _normal(mean: float, std: float) -> Draw:
    return lambda rng, shape: mean + std * rng.standard_normal(shape)


def _uniform(low: float, high: float) -> Draw:
    return lambda rng, shape: rng.uniform(low, high, shape)


def _torch_truncated_normal(mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Draw:
    # torch's bounds a and b are absolute, not in standard deviations.
    return lambda rng, shape: mean + std * _truncated_normal(rng, shape, (a - mean) / std, (b - mean) / std)


def _torch_gain(nonlinearity: str, a: float) -> float:
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3.0,
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1.0 + a**2)),
        "selu": 0.75,
    }
    if nonlinearity not in gains:
        raise ValueError(f"nonlinearity={nonlinearity!r}: use one of {sorted(gains)}.")
    return gains[nonlinearity]


def _torch_kaiming(distribution: str) -> Callable[..., Draw]:
    def factory(a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Draw:
        return _variance_scaling(_torch_gain(nonlinearity, a) ** 2, mode, distribution)

    return factory


_INITIALIZERS: dict[str, Callable[..., Draw]] = {
    # jax.nn.initializers
    "zeros": lambda: _constant(0.0),
    "ones": lambda: _constant(1.0),
    "constant": lambda value: _constant(value),
    "uniform": lambda scale=0.01: _uniform(0.0, scale),
    "normal": lambda stddev=0.01: _normal(0.0, stddev),
    "truncated_normal": lambda stddev=0.01, lower=-2.0, upper=2.0: (
        lambda rng, shape: stddev * _truncated_normal(rng, shape, lower, upper)
    ),
    "variance_scaling": _variance_scaling,
    "orthogonal": _orthogonal,
    "glorot_uniform": lambda: _variance_scaling(1.0, "fan_avg", "uniform"),
    "glorot_normal": lambda: _variance_scaling(1.0, "fan_avg", "truncated_normal"),
    "xavier_uniform": lambda: _variance_scaling(1.0, "fan_avg", "uniform"),
    "xavier_normal": lambda: _variance_scaling(1.0, "fan_avg", "truncated_normal"),
    "lecun_uniform": lambda: _variance_scaling(1.0, "fan_in", "uniform"),
    "lecun_normal": lambda: _variance_scaling(1.0, "fan_in", "truncated_normal"),
    "he_uniform": lambda: _variance_scaling(2.0, "fan_in", "uniform"),
    "he_normal": lambda: _variance_scaling(2.0, "fan_in", "truncated_normal"),
    "kaiming_uniform": lambda: _variance_scaling(2.0, "fan_in", "uniform"),
    "kaiming_normal": lambda: _variance_scaling(2.0, "fan_in", "truncated_normal"),
    # torch.nn.init
    "zeros_": lambda: _constant(0.0),
    "ones_": lambda: _constant(1.0),
    "constant_": lambda val: _constant(val),
    "uniform_": lambda a=0.0, b=1.0: _uniform(a, b),
    "normal_": lambda mean=0.0, std=1.0: _normal(mean, std),
    "trunc_normal_": _torch_truncated_normal,
    "orthogonal_": lambda gain=1.0: _orthogonal(gain),
    "xavier_uniform_": lambda gain=1.0: _variance_scaling(gain**2, "fan_avg", "uniform"),
    "xavier_normal_": lambda gain=1.0: _variance_scaling(gain**2, "fan_avg", "normal"),
    "kaiming_uniform_": _torch_kaiming("uniform"),
    "kaiming_normal_": _torch_kaiming("normal"),
}
