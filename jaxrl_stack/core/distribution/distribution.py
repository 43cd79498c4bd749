"""Base class of action distributions."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

SampleShape = tuple[int, ...] | None
"""Leading axes of a draw; None adds no axes."""


class Distribution(abc.ABC):
    """Immutable batch of action distributions, created from a module's outputs.

    Shapes: the inputs of `from_logits` are `[..., required_input_dim]`; their leading axes are the batch
    shape. Samples are `sample_shape + batch shape + event shape`; `logp`, `entropy` and `kl` have the batch
    shape.
    """

    @abc.abstractmethod
    def sample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> Any:
        """Draws samples without a gradient.

        Args:
            key: One PRNG key; all draws of the batch come from it.
            sample_shape: Extra leading axes of the result.
        """

    @abc.abstractmethod
    def rsample(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> Any:
        """Draws samples through which gradients flow into the distribution's parameters; arguments as in `sample`."""

    @abc.abstractmethod
    def logp(self, value: Any) -> jax.Array:
        """Returns the log-probability (or log-density) of `value`, float of the batch shape."""

    @abc.abstractmethod
    def entropy(self) -> jax.Array:
        """Returns the entropy in nats, float of the batch shape."""

    @abc.abstractmethod
    def kl(self, other: Any) -> jax.Array:
        """Returns the Kullback-Leibler divergence KL(self || other) in nats, float of the batch shape.

        Args:
            other: A distribution of the same class and batch shape.
        """

    @staticmethod
    @abc.abstractmethod
    def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
        """Returns the width of the last axis of `from_logits`' input for actions in `space`."""

    @classmethod
    @abc.abstractmethod
    def from_logits(cls, logits: jax.Array, *args: Any, **kwargs: Any) -> Distribution:
        """Builds the distribution from a module's `ACTION_DIST_INPUTS`, `[..., required_input_dim]`."""

    @abc.abstractmethod
    def to_deterministic(self) -> Distribution:
        """Returns a distribution whose draws are always the greedy actions of this distribution."""

    def sample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[Any, jax.Array]:
        """Draws samples without a gradient, as `sample` does; returns ``(samples, log-probabilities)``."""
        value = self.sample(key=key, sample_shape=sample_shape)
        return value, self.logp(value)

    def rsample_and_logp(self, *, key: jax.Array, sample_shape: SampleShape = ()) -> tuple[Any, jax.Array]:
        """Draws samples with gradients, as `rsample` does; returns ``(samples, log-probabilities)``."""
        value = self.rsample(key=key, sample_shape=sample_shape)
        return value, self.logp(value)

    @classmethod
    def get_partial_dist_cls(cls, **partial_kwargs: Any) -> type[Distribution]:
        """Returns a subclass whose methods `from_logits` and `required_input_dim` use `partial_kwargs` as default
        keyword arguments.

        Use it for distributions that need more than logits, such as `MultiCategorical` (`input_lens`). Arguments of a
        call override `partial_kwargs`.
        """
        parent: Any = cls

        class Partial(parent):
            @classmethod
            def from_logits(cls, logits: jax.Array, *args: Any, **kwargs: Any) -> Distribution:
                return parent.from_logits(logits, *args, **(partial_kwargs | kwargs))

            @staticmethod
            def required_input_dim(space: Any, *args: Any, **kwargs: Any) -> int:
                return parent.required_input_dim(space, *args, **(partial_kwargs | kwargs))

        Partial.__name__ = Partial.__qualname__ = f"{cls.__name__}Partial"
        return Partial
