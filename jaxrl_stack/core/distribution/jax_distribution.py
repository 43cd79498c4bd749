"""Action distributions on JAX arrays. They store no random state: every method that draws samples takes a PRNG key."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.distribution.distribution import Distribution, SampleShape
from jaxrl_stack.utils.spaces import map_parts

# SquashedGaussian: bounds of the log standard deviation, and the smallest distance from +-1 of an action (rescaled to
# [-1, 1]) when it is inverted: 1e-6, rounded to a multiple of the float32 spacing just below 1.
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
SQUASH_EPSILON = 17 * 2.0**-24

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# Up to this many actions the running sum of an inverse-CDF draw is unrolled into elementwise code.
_MAX_UNROLLED_ACTIONS = 32


def _finite_logits(logits: jax.Array) -> jax.Array:
    # A mask of -inf would make 0 * -inf = nan in entropy and KL and in their gradients. Half of the lowest
    # float leaves room for subtracting a maximum, still has probability zero, and passes no gradient. NaN
    # stays NaN.
    return jnp.maximum(logits, jnp.finfo(logits.dtype).min / 2)


def _inverse_cdf(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws actions by inverse transform sampling: for each number in `uniform`, returns the index of the action whose
    interval of the cumulative distribution contains the number.

    Args:
        logits: Float `[..., n]`, finite.
        uniform: Float in [0, 1), broadcastable to `[...]`: one number per row.

    Returns:
        int32 of the shape of `uniform` broadcast with `[...]`, always an action of positive probability.
    """
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    n = logits.shape[-1]
    if n <= _MAX_UNROLLED_ACTIONS:
        # Summed one after the other, the running sum does not grow at an action of probability zero, so no
        # threshold below the total can fall into its (empty) interval.
        running = [weights[..., 0]]
        for i in range(1, n):
            running.append(running[-1] + weights[..., i])
        threshold = uniform * running[-1]
        index = jnp.zeros(threshold.shape, jnp.int32)
        for bound in running[:-1]:
            index += (bound <= threshold).astype(jnp.int32)
        return index
    # A parallel prefix sum rounds every entry in its own way: ask for positive probability explicitly.
    cumulative = jnp.cumsum(weights, axis=-1)
    threshold = uniform * cumulative[..., -1]
    inside = (cumulative > threshold[..., None]) & (weights > 0)
    first = jnp.argmax(inside, axis=-1)
    return jnp.where(jnp.any(inside, axis=-1), first, jnp.argmax(weights, axis=-1)).astype(jnp.int32)


class Categorical(Distribution):
    """Distribution over the actions 0 … n-1, given n logits or n probabilities.

    A logit of -inf (or the lowest float) masks its action: it is never drawn, and `logp`, `entropy`, `kl` and
    their gradients stay finite. A draw is the inverse of the cumulative distribution at one uniform number per
    row.

    Args:
        logits: Float `[..., n]`, unnormalised log-probabilities.
        probs: Float `[..., n]`, instead of `logits`.
    """

    def __init__(self, logits: jax.Array | None = None, probs: jax.Array | None = None):
        if (logits is None) == (probs is None):
            raise ValueError("Categorical(logits=..., probs=...): pass exactly one of the two.")
        self._given = jnp.asarray(logits) if probs is None else jnp.log(probs)

    @property
    def logits(self) -> jax.Array:
        """Unnormalised log-probabilities of the n actions, float `[..., n]`. Logits of masked actions are
        large negative numbers, but finite, because -inf would cause NaNs.
        """
        return _finite_logits(self._given)

    @property
    def log_probs(self) -> jax.Array:
        """Normalised log-probabilities of the n actions, float `[..., n]`."""
        return jax.nn.log_softmax(self.logits, axis=-1)

    @property
    def probs(self) -> jax.Array:
        """Probabilities of the n actions, float `[..., n]`."""
        return jax.nn.softmax(self.logits, axis=-1)

    def sample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        shape = (*(sample_shape or ()), *self.logits.shape[:-1])
        return _inverse_cdf(self.logits, jax.random.uniform(key, shape, self.logits.dtype))

    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        """Returns a one-hot draw `[..., n]` with the gradient of the probabilities (straight-through)."""
        value = self.sample(key=key, sample_shape=sample_shape)
        probs = self.probs
        one_hot = jax.nn.one_hot(value, probs.shape[-1], dtype=probs.dtype)
        return one_hot + probs - jax.lax.stop_gradient(probs)

    def logp(self, value: jax.Array) -> jax.Array:
        # Selecting with a comparison instead of a gather: the gradient of a gather is a scatter.
        log_probs = self._log_probs_by_action
        actions = jnp.arange(log_probs.shape[0]).reshape(-1, *(1,) * (log_probs.ndim - 1))
        return jnp.sum(jnp.where(jnp.asarray(value)[None] == actions, log_probs, 0.0), axis=0)

    def entropy(self) -> jax.Array:
        log_probs = self._log_probs_by_action
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=0)

    def kl(self, other: Any) -> jax.Array:
        log_probs = self._log_probs_by_action
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other._log_probs_by_action), axis=0)

    @property
    def _log_probs_by_action(self) -> jax.Array:
        """`log_probs` with the axis of the n actions first, `[n, ...]`: with this axis order, CPUs vectorize sums over
        a few actions.

        The barrier prevents XLA from fusing the transposition into every use.
        """
        logits = jax.lax.optimization_barrier(jnp.moveaxis(self._given, -1, 0))
        return jax.nn.log_softmax(_finite_logits(logits), axis=0)

    @staticmethod
    def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
        return int(space.n)

    @classmethod
    def from_logits(cls, logits: jax.Array, *args: Any, **kwargs: Any) -> Categorical:
        return cls(logits=logits)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(jnp.argmax(self.logits, axis=-1).astype(jnp.int32))


class _Reparameterized(Distribution):
    """Base class of distributions whose draws are differentiable functions of the distribution's parameters
    (reparameterization).
    """

    def sample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        return jax.lax.stop_gradient(self.rsample(key=key, sample_shape=sample_shape))

    @staticmethod
    def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * math.prod(space.shape)


class DiagGaussian(_Reparameterized):
    """Normal distribution with independent components; `logp`, `entropy` and `kl` sum over the last axis.

    Args:
        loc: Means, float `[..., d]`, or `[...]` for actions of shape ().
        scale: Standard deviations, float, broadcastable to `loc`.
        event_ndim: Number of trailing axes of `loc` that belong to one action: 1 or 0.
    """

    def __init__(self, loc: jax.Array, scale: jax.Array | float, event_ndim: int = 1):
        self.loc = jnp.asarray(loc)
        self.scale = jnp.asarray(scale, self.loc.dtype)
        self.log_scale = jnp.log(self.scale)
        self.event_ndim = event_ndim

    @classmethod
    def from_logits(cls, logits: jax.Array, *args: Any, event_ndim: int = 1, **kwargs: Any) -> DiagGaussian:
        """Creates the distribution from `[mean, log std]` on the last axis. Does not clip the log std; the default
        policy head does (model setting `log_std_clip_param`).
        """
        loc, log_scale = _halves(logits, event_ndim)
        distribution = cls(loc, jnp.exp(log_scale), event_ndim)
        # Exact, also where the exponential over- or underflows.
        distribution.log_scale = log_scale
        return distribution

    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        noise = jax.random.normal(key, (*(sample_shape or ()), *self.loc.shape), self.loc.dtype)
        return self.loc + self.scale * noise

    def logp(self, value: jax.Array) -> jax.Array:
        z = (value - self.loc) / self.scale
        return self.total(-0.5 * jnp.square(z) - self.log_scale - _HALF_LOG_TWO_PI)

    def entropy(self) -> jax.Array:
        log_scale = jnp.broadcast_to(self.log_scale, self.loc.shape)
        return self.total(log_scale + 0.5 + _HALF_LOG_TWO_PI)

    def kl(self, other: Any) -> jax.Array:
        ratio = jnp.square(self.scale / other.scale)
        distance = jnp.square((self.loc - other.loc) / other.scale)
        return self.total(other.log_scale - self.log_scale + 0.5 * (ratio + distance - 1.0))

    def total(self, by_component: jax.Array) -> jax.Array:
        """Sums values of action components, such as log-probabilities, over the last axis. For scalar actions, which
        have no axis of components, returns the values unchanged.
        """
        return jnp.sum(by_component, axis=-1) if self.event_ndim else by_component

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.loc, event_ndim=self.event_ndim)


class SquashedGaussian(_Reparameterized):
    """Normal distribution squashed by tanh into (low, high); `logp` sums over the last axis.

    It has no closed-form entropy or KL. Its greedy action is the squashed mean.

    Args:
        loc: Means before squashing, float `[..., d]`.
        scale: Standard deviations before squashing.
        low, high: Bounds of the actions, float, broadcastable to `loc`.
        event_ndim: As in `DiagGaussian`.

    Source: Haarnoja et al. 2018, "Soft Actor-Critic", appendix C.
    """

    def __init__(self, loc: jax.Array, scale: Any = 1.0, low: Any = -1.0, high: Any = 1.0, event_ndim: int = 1):
        self.normal = DiagGaussian(loc, scale, event_ndim)
        self.low = jnp.asarray(low, self.normal.loc.dtype)
        self.high = jnp.asarray(high, self.normal.loc.dtype)

    @classmethod
    def from_logits(
        cls, logits: jax.Array, low: Any = -1.0, high: Any = 1.0, event_ndim: int = 1, **kwargs: Any
    ) -> SquashedGaussian:
        """Creates the distribution from `[mean, log std]` on the last axis; the log std is clamped to [-5, 2]."""
        loc, log_scale = _halves(logits, event_ndim)
        return cls(loc, jnp.exp(jnp.clip(log_scale, MIN_LOG_STD, MAX_LOG_STD)), low, high, event_ndim)

    def _squash(self, raw: jax.Array) -> jax.Array:
        # (tanh(x) + 1) / 2 = sigmoid(2x), which does not cancel next to the lower bound.
        value = self.low + jax.nn.sigmoid(2.0 * raw) * (self.high - self.low)
        return jnp.clip(value, self.low, self.high)

    def _logp_of_raw(self, raw: jax.Array) -> jax.Array:
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which does not cancel for large |x|.
        log_slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        log_slope += jnp.log(0.5 * (self.high - self.low))
        return self.normal.logp(raw) - self.normal.total(log_slope)

    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        return self._squash(self.normal.rsample(key=key, sample_shape=sample_shape))

    def sample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[jax.Array, jax.Array]:
        raw = self.normal.sample(key=key, sample_shape=sample_shape)
        return jax.lax.stop_gradient(self._squash(raw)), self._logp_of_raw(raw)

    def rsample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[jax.Array, jax.Array]:
        """Returns a draw and its log-probability. The log-probability is computed from the draw before tanh, so that it
        is exact at the bounds.
        """
        raw = self.normal.rsample(key=key, sample_shape=sample_shape)
        return self._squash(raw), self._logp_of_raw(raw)

    def logp(self, value: jax.Array) -> jax.Array:
        # The inverse of tanh from the distances to the two bounds. Rescaled to [-1, 1] first, an action next to a
        # bound of an asymmetric space would lose the digits that its logarithm needs.
        span = self.high - self.low
        nearest = 0.5 * SQUASH_EPSILON * span
        above_low = jnp.clip(value - self.low, nearest, span)
        below_high = jnp.clip(self.high - value, nearest, span)
        return self._logp_of_raw(0.5 * (jnp.log(above_low) - jnp.log(below_high)))

    def entropy(self) -> jax.Array:
        raise ValueError(
            "SquashedGaussian has no closed-form entropy. Estimate it as -d.logp(x) with a sample x of this "
            "distribution d."
        )

    def kl(self, other: Any) -> jax.Array:
        raise ValueError(
            "SquashedGaussian has no closed-form KL. Estimate it as d.logp(x) - other.logp(x) with a sample x of this "
            "distribution d."
        )

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._squash(self.normal.loc), event_ndim=self.normal.event_ndim)


class Deterministic(Distribution):
    """Distribution whose draws are always the given actions, `loc`. `logp` is 0; entropy and KL are not defined.

    Args:
        loc: The actions, `[...]` plus `event_ndim` axes of one action.
        event_ndim: Number of trailing axes of `loc` that belong to one action.
    """

    def __init__(self, loc: jax.Array, event_ndim: int = 0):
        self.loc = jnp.asarray(loc)
        self.event_ndim = event_ndim

    @classmethod
    def from_logits(cls, logits: jax.Array, *args: Any, **kwargs: Any) -> Deterministic:
        """Creates the distribution whose draws are always `logits`, the given actions `[..., d]`."""
        return cls(logits, event_ndim=1)

    def sample(self, *, key: jax.Array | None = None, sample_shape: SampleShape = ()) -> jax.Array:
        return jax.lax.stop_gradient(self.rsample(key=key, sample_shape=sample_shape))

    def rsample(self, *, key: jax.Array | None = None, sample_shape: SampleShape = ()) -> jax.Array:
        return jnp.broadcast_to(self.loc, (*(sample_shape or ()), *self.loc.shape))

    def logp(self, value: jax.Array) -> jax.Array:
        shape = jnp.shape(value)
        return jnp.zeros(shape[: len(shape) - self.event_ndim], jnp.float32)

    def entropy(self) -> jax.Array:
        raise ValueError("Deterministic has no entropy. Use the distribution before to_deterministic().")

    def kl(self, other: Any) -> jax.Array:
        raise ValueError("Deterministic has no KL. Use the distribution before to_deterministic().")

    @staticmethod
    def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
        return math.prod(space.shape)

    def to_deterministic(self) -> Deterministic:
        return self


class SquashedDeterministic(Deterministic):
    """`Deterministic` whose `from_logits` squashes the network's output by `tanh` into [-1, 1]."""

    @classmethod
    def from_logits(cls, logits: jax.Array, *args: Any, **kwargs: Any) -> SquashedDeterministic:
        """Creates the distribution whose actions are ``tanh(logits)``, `[..., d]`."""
        return cls(jnp.tanh(logits), event_ndim=1)


class _Product(Distribution):
    """Product of independent distributions with equal batch shapes; log-probabilities, entropies and KLs are sums over
    these distributions.
    """

    children: list[Any]

    @abc.abstractmethod
    def _parts(self, value: Any) -> list[Any]:
        """Splits an action into its parts, one for each of the independent distributions of this product (its
        children).
        """

    def logp(self, value: Any) -> jax.Array:
        return _total(child.logp(part) for child, part in zip(self.children, self._parts(value), strict=True))

    def entropy(self) -> jax.Array:
        return _total(child.entropy() for child in self.children)

    def kl(self, other: Any) -> jax.Array:
        return _total(child.kl(o) for child, o in zip(self.children, other.children, strict=True))

    def _draw(self, method: str, key: jax.Array | None, sample_shape: Any) -> list[Any]:
        """Draws from each of the independent distributions of this product (its children) with a separate key;
        deterministic children need no key.
        """
        keys = [None] * len(self.children) if key is None else jax.random.split(key, len(self.children))
        return [
            getattr(child, method)(key=k, sample_shape=sample_shape)
            for child, k in zip(self.children, keys, strict=True)
        ]


class MultiCategorical(_Product):
    """Independent categoricals, for `MultiDiscrete`: actions are int32 `[..., k]` with k components; `logp`, `entropy`
    and `kl` are sums over the components.

    Args:
        categoricals: The k components, all of one batch shape.
    """

    def __init__(self, categoricals: list[Categorical]):
        self.categoricals = self.children = list(categoricals)

    @classmethod
    def from_logits(
        cls, logits: jax.Array, input_lens: list[int], temperatures: list[float] | None = None, **kwargs: Any
    ) -> MultiCategorical:
        """Creates the distribution from the concatenated logits of all action components, `[..., sum(input_lens)]`
        (`input_lens`: number of choices of each component).

        Args:
            logits: Float `[..., sum(input_lens)]`.
            input_lens: Number of actions of each component.
            temperatures: Divisors of the logits, one per component; None: 1.
        """
        lengths = [int(n) for n in input_lens]
        if logits.shape[-1] != sum(lengths):
            raise ValueError(
                f"MultiCategorical got logits of width {logits.shape[-1]}, but input_lens={lengths} add up "
                f"to {sum(lengths)}. Return ACTION_DIST_INPUTS of width {sum(lengths)} from the module."
            )
        parts = _split_last_axis(logits, lengths)
        if temperatures is not None:
            parts = [part / temperature for part, temperature in zip(parts, temperatures, strict=True)]
        return cls([Categorical(logits=part) for part in parts])

    def sample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        first = self.categoricals[0].logits
        shape = (*(sample_shape or ()), *first.shape[:-1], len(self.categoricals))
        uniform = jax.random.uniform(key, shape, first.dtype)
        draws = [_inverse_cdf(c.logits, uniform[..., i]) for i, c in enumerate(self.categoricals)]
        return jnp.stack(draws, axis=-1)

    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> jax.Array:
        """Returns one-hot draws of all components, concatenated to `[..., sum(input_lens)]` (`input_lens`: number of
        choices of each component), with straight-through gradients.
        """
        return jnp.concatenate(self._draw("rsample", key, sample_shape), axis=-1)

    def _parts(self, value: Any) -> list[jax.Array]:
        value = jnp.asarray(value)
        return [value[..., i] for i in range(len(self.children))]

    @staticmethod
    def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
        return sum(_choices(space))

    def to_deterministic(self) -> Deterministic:
        greedy = jnp.stack([c.to_deterministic().loc for c in self.categoricals], axis=-1)
        return Deterministic(greedy, event_ndim=1)


class MultiDistribution(_Product):
    """Independent distributions in a tree, for `Dict` and `Tuple` action spaces; actions are trees with the same
    structure.

    Args:
        child_distribution_struct: Nested dicts, tuples and lists of distributions of one batch shape.
    """

    def __init__(self, child_distribution_struct: Any):
        self.children, self.structure = jax.tree.flatten(child_distribution_struct)

    @classmethod
    def from_logits(
        cls, logits: jax.Array, child_distribution_cls_struct: Any, input_lens: Any, **kwargs: Any
    ) -> MultiDistribution:
        """Creates the distribution from the concatenated inputs of all child distributions, in the order of
        `jax.tree.leaves` (sorted dict keys).

        Args:
            logits: Float `[..., sum of all input lengths]`.
            child_distribution_cls_struct: Tree of distribution classes.
            input_lens: Input widths of the children: a tree of the same structure, or a flat list.
        """
        classes, structure = jax.tree.flatten(child_distribution_cls_struct)
        lengths = [int(n) for n in jax.tree.leaves(input_lens)]
        if logits.shape[-1] != sum(lengths) or len(lengths) != len(classes):
            raise ValueError(
                f"MultiDistribution with {len(classes)} children needs {len(classes)} input_lens, and inputs whose "
                f"width is their sum; got input_lens={lengths} with the sum {sum(lengths)}, and inputs of width "
                f"{logits.shape[-1]}. Pass one length per child, and concatenate the children's inputs."
            )
        parts = _split_last_axis(logits, lengths)
        children = [child.from_logits(part) for child, part in zip(classes, parts, strict=True)]
        return cls(jax.tree.unflatten(structure, children))

    def _parts(self, value: Any) -> list[Any]:
        return self.structure.flatten_up_to(value)

    def sample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> Any:
        return jax.tree.unflatten(self.structure, self._draw("sample", key, sample_shape))

    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> Any:
        return jax.tree.unflatten(self.structure, self._draw("rsample", key, sample_shape))

    def sample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[Any, jax.Array]:
        draws = self._draw("sample_and_logp", key, sample_shape)
        return jax.tree.unflatten(self.structure, [d[0] for d in draws]), _total(d[1] for d in draws)

    def rsample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[Any, jax.Array]:
        draws = self._draw("rsample_and_logp", key, sample_shape)
        return jax.tree.unflatten(self.structure, [d[0] for d in draws]), _total(d[1] for d in draws)

    @staticmethod
    def required_input_dim(space: Any, input_lens: Any, as_list: bool = False, **kwargs: Any) -> Any:
        """Returns the width of the input of `from_logits`: the sum of the widths of all child distributions.

        `input_lens` contains these widths. With `as_list`, returns the widths as a list, in the order of
        `jax.tree.leaves`.
        """
        lengths = [int(n) for n in jax.tree.leaves(input_lens)]
        return lengths if as_list else sum(lengths)

    def to_deterministic(self) -> MultiDistribution:
        children = [child.to_deterministic() for child in self.children]
        return MultiDistribution(jax.tree.unflatten(self.structure, children))


def _total(terms: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)


def _halves(logits: jax.Array, event_ndim: int) -> list[jax.Array]:
    """Splits network outputs into two halves of the last axis, such as mean and log std.

    For scalar actions (`event_ndim` 0), the halves have size 1 on the last axis, and this axis is removed.
    """
    halves = jnp.split(logits, 2, axis=-1)
    return halves if event_ndim else [half[..., 0] for half in halves]


def _split_last_axis(values: jax.Array, lengths: list[int]) -> list[jax.Array]:
    offsets = [sum(lengths[:i]) for i in range(1, len(lengths))]
    return jnp.split(values, offsets, axis=-1)


def _choices(space: Any) -> list[int]:
    """Returns the number of values of each component of a `MultiDiscrete` or `MultiBinary` space."""
    return [int(n) for n in space.nvec] if hasattr(space, "nvec") else [2] * int(space.n)


def get_action_dist_cls_for_space(space: Any, squash: bool = False) -> type[Distribution]:
    """Returns the distribution class for actions in `space`.

    Args:
        space: A `Discrete`, a `MultiDiscrete` or `MultiBinary` of rank 1, a float `Box` of rank 0 or 1, or a
            `Dict`/`Tuple` nest of these. Draws count from 0; the space's ``start`` is ignored.
        squash: Whether to use `SquashedGaussian` instead of `DiagGaussian` for boxes (SAC).

    Returns:
        The class; if it needs arguments such as `input_lens`, they are filled in (`get_partial_dist_cls`).

    Raises:
        ValueError: For every other space.
    """
    import gymnasium as gym
    import numpy as np

    if isinstance(space, gym.spaces.Discrete):
        return Categorical
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        if len(space.shape) != 1:
            counts = [2] * math.prod(space.shape) if isinstance(space, gym.spaces.MultiBinary) else space.nvec.ravel()
            raise ValueError(
                f"Action space {space} has rank {len(space.shape)}, but MultiDiscrete and MultiBinary actions need "
                f"rank 1. Use MultiDiscrete({list(map(int, counts))}) and reshape the actions inside the environment "
                "(or in a wrapper)."
            )
        return MultiCategorical.get_partial_dist_cls(input_lens=_choices(space))
    if isinstance(space, gym.spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            raise ValueError(
                f"Action space {space} is a Box of integers. Use Discrete or MultiDiscrete for integer actions, or a "
                "float Box."
            )
        if len(space.shape) > 1:
            raise ValueError(
                f"Action space {space} has rank {len(space.shape)}, but a Box action needs rank 0 or 1. Flatten "
                f"it to Box(low.ravel(), high.ravel()) of shape ({math.prod(space.shape)},) and reshape the "
                "actions inside the environment (or in a wrapper)."
            )
        box_class = SquashedGaussian if squash else DiagGaussian
        return box_class if space.shape else box_class.get_partial_dist_cls(event_ndim=0)
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        classes = map_parts(lambda part: get_action_dist_cls_for_space(part, squash), space)
        lengths = map_parts(lambda part, child: child.required_input_dim(part), space, classes)
        return MultiDistribution.get_partial_dist_cls(child_distribution_cls_struct=classes, input_lens=lengths)
    raise ValueError(
        f"No action distribution for the action space {space}. Use Discrete, MultiDiscrete, MultiBinary, a float Box "
        "of rank 0 or 1, or Dict/Tuple nests of these; or override get_train_action_dist_cls(), "
        "get_exploration_action_dist_cls() and get_inference_action_dist_cls() in your RLModule."
    )
