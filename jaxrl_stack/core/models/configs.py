"""Descriptions of models, as dataclasses that validate and build them; names and defaults are RLlib's."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.encoders import ActorCriticEncoder, MLPEncoder, MultiStreamEncoder
from jaxrl_stack.core.models.heads import FreeLogStdMLPHead, MLPHead
from jaxrl_stack.core.models.initializers import get_initializer
from jaxrl_stack.core.models.mlp import MLP, Layer
from jaxrl_stack.core.rl_module.default_model_config import Initializer
from jaxrl_stack.utils.coming import coming_names

__getattr__ = coming_names(__name__)

COMPUTE_DTYPES: dict[str, Any] = {"float32": None, "bfloat16": jnp.bfloat16}
"""What layers may compute in, by name, as the `dtype` of `nnx.Linear`."""


def _layer_dtype(compute_dtype: str) -> Any:
    if compute_dtype not in COMPUTE_DTYPES:
        raise ValueError(f"compute_dtype={compute_dtype!r}: use one of {list(COMPUTE_DTYPES)}.")
    return COMPUTE_DTYPES[compute_dtype]


@dataclasses.dataclass
class ModelConfig(abc.ABC):
    """What a model is built from.

    Args:
        input_dims: Shape of one input, for flat models `[d]`.
    """

    input_dims: Sequence[int] | None = None

    @property
    @abc.abstractmethod
    def output_dims(self) -> tuple[int, ...]:
        """Shape of one output."""

    @abc.abstractmethod
    def build(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """The model.

        Args:
            framework: "jax".
            rngs: Where the initial weights come from.

        Raises:
            ValueError: For settings that do not fit together; the message names them.
        """


@dataclasses.dataclass
class _LayersConfig(ModelConfig):
    """Hidden layers, then an output layer unless `output_layer_dim` is None.

    Activations are names or callables, initializers and `compute_dtype` as in `DefaultModelConfig`.
    """

    hidden_layer_dims: Sequence[int] = (256, 256)
    hidden_layer_use_bias: bool = True
    hidden_layer_activation: Any = "relu"
    hidden_layer_weights_initializer: Initializer = None
    hidden_layer_weights_initializer_config: dict | None = None
    hidden_layer_bias_initializer: Initializer = None
    hidden_layer_bias_initializer_config: dict | None = None
    output_layer_dim: int | None = None
    output_layer_use_bias: bool = True
    output_layer_activation: Any = "linear"
    output_layer_weights_initializer: Initializer = None
    output_layer_weights_initializer_config: dict | None = None
    output_layer_bias_initializer: Initializer = None
    output_layer_bias_initializer_config: dict | None = None
    compute_dtype: str = dataclasses.field(default="float32", kw_only=True)

    @property
    def output_dims(self) -> tuple[int, ...]:
        if self.output_layer_dim is not None:
            return (int(self.output_layer_dim),)
        return (int(self.hidden_layer_dims[-1]) if self.hidden_layer_dims else self._input_dim(),)

    def build(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        if framework != "jax":
            raise ValueError(f"framework={framework!r}: models are built with framework='jax' only.")
        return self._build(rngs)

    @abc.abstractmethod
    def _build(self, rngs: nnx.Rngs) -> Any:
        """The model."""

    @abc.abstractmethod
    def _input_dim(self) -> int:
        """Width of what the first layer takes."""

    def _layers(self, *, is_head: bool = False) -> list[Layer]:
        kinds = [("hidden", int(dim)) for dim in self.hidden_layer_dims]
        if self.output_layer_dim is not None:
            kinds.append(("output", int(self.output_layer_dim)))
        if min((width for _, width in kinds), default=1) < 1:
            widths = [width for _, width in kinds]
            raise ValueError(f"{type(self).__name__}: layer widths {widths} must be at least 1.")
        layers = [self._layer(f"{kind}_layer", width) for kind, width in kinds]
        if is_head and layers:  # Losses, log-probabilities and values are made of what it puts out: float32.
            layers[-1] = dataclasses.replace(layers[-1], dtype=None)
        return layers

    def _layer(self, kind: str, width: int) -> Layer:
        def initializer(part: str) -> Any:
            name = f"{kind}_{part}_initializer"
            return get_initializer(getattr(self, name), getattr(self, f"{name}_config"), name)

        return Layer(
            width=width,
            activation=getattr(self, f"{kind}_activation"),
            use_bias=getattr(self, f"{kind}_use_bias"),
            use_layernorm=bool(getattr(self, f"{kind}_use_layernorm", False)),
            kernel_init=initializer("weights"),
            bias_init=initializer("bias"),
            dtype=_layer_dtype(self.compute_dtype),
        )


@dataclasses.dataclass
class _MLPConfig(_LayersConfig):
    """`clip_log_std` clamps the second half of the outputs to ± `log_std_clip_param`."""

    hidden_layer_use_layernorm: bool = False
    output_layer_use_layernorm: bool = False
    clip_log_std: bool = False
    log_std_clip_param: float = 20.0

    def _input_dim(self) -> int:
        if self.input_dims is None or len(self.input_dims) != 1:
            raise ValueError(
                f"{type(self).__name__}(input_dims={self.input_dims}): expected the shape [d] of a flat "
                "input; put a FlattenObservations connector before the module for other shapes."
            )
        return int(self.input_dims[0])

    def _log_std_bound(self) -> float | None:
        return float(self.log_std_clip_param) if self.clip_log_std else None


@dataclasses.dataclass
class MLPEncoderConfig(_MLPConfig):
    """An `MLPEncoder` over flat columns. `input_dims` is the sum of their widths.

    Args:
        columns: Their names, in their order.
    """

    columns: Sequence[str] = (Columns.OBS,)

    def _build(self, rngs: nnx.Rngs) -> MLPEncoder:
        return MLPEncoder(self._input_dim(), self._layers(), rngs=rngs, columns=self.columns)


@dataclasses.dataclass
class MLPHeadConfig(_MLPConfig):
    """An `MLPHead`."""

    def _build(self, rngs: nnx.Rngs) -> MLPHead:
        layers = self._layers(is_head=True)
        return self._head_class()(self._input_dim(), layers, rngs=rngs, log_std_bound=self._log_std_bound())

    def _head_class(self) -> Callable[..., MLPHead]:
        return MLPHead


@dataclasses.dataclass
class FreeLogStdMLPHeadConfig(_MLPConfig):
    """A `FreeLogStdMLPHead`; `output_layer_dim` counts means and log standard deviations."""

    def _build(self, rngs: nnx.Rngs) -> FreeLogStdMLPHead:
        if self.output_layer_dim is None or self.output_layer_dim % 2:
            raise ValueError(
                f"FreeLogStdMLPHeadConfig(output_layer_dim={self.output_layer_dim}): needs an even number, "
                "half of it for means and half for log standard deviations."
            )
        layers = dataclasses.replace(self, output_layer_dim=self.output_layer_dim // 2)._layers(is_head=True)
        mean = MLP(self._input_dim(), layers, rngs=rngs)
        return FreeLogStdMLPHead(mean, log_std_bound=self._log_std_bound())


@dataclasses.dataclass
class MultiStreamEncoderConfig(_LayersConfig):
    """A `MultiStreamEncoder`.

    Args:
        base_encoder_configs: `{column: config of its encoder}`.
    """

    base_encoder_configs: Mapping[str, ModelConfig] | None = None
    hidden_layer_dims: Sequence[int] = (256, 256, 256)

    def _streams(self) -> Mapping[str, ModelConfig]:
        if not self.base_encoder_configs:
            raise ValueError(
                "MultiStreamEncoderConfig needs base_encoder_configs, such as {'obs': MLPEncoderConfig(...)}."
            )
        return self.base_encoder_configs

    def _input_dim(self) -> int:
        return sum(config.output_dims[0] for config in self._streams().values())

    def _build(self, rngs: nnx.Rngs) -> MultiStreamEncoder:
        encoders = {name: self._streams()[name].build(rngs=rngs) for name in sorted(self._streams())}
        layers, embedding_dim = self._layers(), self._input_dim()
        fan_ins = [embedding_dim, *(embedding_dim + layer.width for layer in layers[:-1])]
        fusion_layers = [layer.dense(fan_in, rngs) for layer, fan_in in zip(layers, fan_ins, strict=False)]
        return MultiStreamEncoder(encoders, fusion_layers, activations=[layer.activation for layer in layers])


@dataclasses.dataclass
class ActorCriticEncoderConfig(ModelConfig):
    """An `ActorCriticEncoder`.

    Args:
        base_encoder_config: Describes one encoder.
        shared: One encoder for policy and value function.
        inference_only: Leave the critic's encoder out.
    """

    base_encoder_config: ModelConfig | None = None
    shared: bool = True
    inference_only: bool = False

    def _base(self) -> ModelConfig:
        if self.base_encoder_config is None:
            raise ValueError("ActorCriticEncoderConfig needs a base_encoder_config, such as an MLPEncoderConfig.")
        return self.base_encoder_config

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self._base().output_dims

    def build(self, framework: str = "jax", *, rngs: nnx.Rngs) -> ActorCriticEncoder:
        base = self._base()
        return ActorCriticEncoder(
            lambda: base.build(framework, rngs=rngs), shared=self.shared, inference_only=self.inference_only
        )
