"""Model configs: dataclasses that validate a model's settings and build the model, with RLlib's names and defaults."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.cnn import CNN, ConvTranspose
from jaxrl_stack.core.models.encoders import (
    ActorCriticEncoder,
    CNNEncoder,
    MLPEncoder,
    MultiStreamEncoder,
    ObservationKeysEncoder,
)
from jaxrl_stack.core.models.filters import Filter, parse_filters
from jaxrl_stack.core.models.heads import CNNTransposeHead, FreeLogStdMLPHead, MLPHead
from jaxrl_stack.core.models.initializers import get_initializer
from jaxrl_stack.core.models.mlp import MLP, Layer
from jaxrl_stack.core.models.recurrent import CELLS, RecurrentEncoder, RecurrentLayer
from jaxrl_stack.core.rl_module.default_model_config import Initializer

COMPUTE_DTYPES: dict[str, Any] = {"float32": None, "bfloat16": jnp.bfloat16}
"""Data types in which layers can compute, by name; the values are `dtype` arguments of `nnx.Linear`."""


def _layer_dtype(compute_dtype: str) -> Any:
    if compute_dtype not in COMPUTE_DTYPES:
        raise ValueError(f"Model config with compute_dtype={compute_dtype!r}: use one of {list(COMPUTE_DTYPES)}.")
    return COMPUTE_DTYPES[compute_dtype]


@dataclasses.dataclass
class ModelConfig(abc.ABC):
    """Base class of model configs.

    Args:
        input_dims: Shape of one input, for flat models `[d]`.
    """

    input_dims: Sequence[int] | None = None

    @property
    @abc.abstractmethod
    def output_dims(self) -> tuple[int, ...]:
        """Shape of one output of the model, without batch axes."""

    @abc.abstractmethod
    def build(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the model that this config describes.

        Args:
            framework: "jax".
            rngs: Source of random numbers for the initial weights.

        Raises:
            ValueError: If settings do not fit together; the message names them.
        """


class _OwnConfig(ModelConfig):
    """Base class of this package's model configs. These configs can build only JAX models."""

    def build(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        if framework != "jax":
            raise ValueError(f"framework={framework!r}: models are built with framework='jax' only.")
        return self._build(rngs)

    @abc.abstractmethod
    def _build(self, rngs: nnx.Rngs) -> Any:
        """Builds the JAX model that this config describes."""


def _flat_dim(config: ModelConfig) -> int:
    if config.input_dims is None or len(config.input_dims) != 1:
        raise ValueError(
            f"{type(config).__name__}(input_dims={config.input_dims}): expected the shape [d] of a flat "
            "input; put a FlattenObservations connector before the module for other shapes."
        )
    return int(config.input_dims[0])


def _image_dims(config: Any, name: str) -> tuple[int, int, int]:
    dims = getattr(config, name)
    if dims is None or len(dims) != 3:
        raise ValueError(
            f"{type(config).__name__}({name}={dims}): expected the shape [height, width, channels] of an image."
        )
    height, width, channels = (int(n) for n in dims)
    return height, width, channels


@dataclasses.dataclass
class _LayersConfig(_OwnConfig):
    """Config of hidden layers and an optional output layer (none if `output_layer_dim` is None).

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

    @abc.abstractmethod
    def _input_dim(self) -> int:
        """Returns the number of inputs of the model's first layer."""

    def _layers(self, *, is_head: bool = False) -> list[Layer]:
        kinds = [(False, int(dim)) for dim in self.hidden_layer_dims]
        if self.output_layer_dim is not None:
            kinds.append((True, int(self.output_layer_dim)))
        if min((width for _, width in kinds), default=1) < 1:
            widths = [width for _, width in kinds]
            raise ValueError(
                f"{type(self).__name__}: layer widths (hidden_layer_dims, output_layer_dim) must be at least 1, got "
                f"{widths}."
            )
        layers = [self._output_layer(width) if is_output else self._hidden_layer(width) for is_output, width in kinds]
        if is_head and layers:  # Losses, log-probabilities and values are made of what it puts out: float32.
            layers[-1] = dataclasses.replace(layers[-1], dtype=None)
        return layers

    def _hidden_layer(self, width: int) -> Layer:
        return Layer(
            width=width,
            activation=self.hidden_layer_activation,
            use_bias=bool(self.hidden_layer_use_bias),
            use_layernorm=False,
            kernel_init=get_initializer(
                self.hidden_layer_weights_initializer,
                self.hidden_layer_weights_initializer_config,
                "hidden_layer_weights_initializer",
            ),
            bias_init=get_initializer(
                self.hidden_layer_bias_initializer,
                self.hidden_layer_bias_initializer_config,
                "hidden_layer_bias_initializer",
            ),
            dtype=_layer_dtype(self.compute_dtype),
        )

    def _output_layer(self, width: int) -> Layer:
        return Layer(
            width=width,
            activation=self.output_layer_activation,
            use_bias=bool(self.output_layer_use_bias),
            use_layernorm=False,
            kernel_init=get_initializer(
                self.output_layer_weights_initializer,
                self.output_layer_weights_initializer_config,
                "output_layer_weights_initializer",
            ),
            bias_init=get_initializer(
                self.output_layer_bias_initializer,
                self.output_layer_bias_initializer_config,
                "output_layer_bias_initializer",
            ),
            dtype=_layer_dtype(self.compute_dtype),
        )


@dataclasses.dataclass
class _MLPConfig(_LayersConfig):
    """Config of an MLP. If `clip_log_std`, the second half of the outputs is clipped to ± `log_std_clip_param`."""

    hidden_layer_use_layernorm: bool = False
    output_layer_use_layernorm: bool = False
    clip_log_std: bool = False
    log_std_clip_param: float = 20.0

    def _input_dim(self) -> int:
        return _flat_dim(self)

    def _hidden_layer(self, width: int) -> Layer:
        return dataclasses.replace(super()._hidden_layer(width), use_layernorm=bool(self.hidden_layer_use_layernorm))

    def _output_layer(self, width: int) -> Layer:
        return dataclasses.replace(super()._output_layer(width), use_layernorm=bool(self.output_layer_use_layernorm))

    def _log_std_bound(self) -> float | None:
        return float(self.log_std_clip_param) if self.clip_log_std else None


@dataclasses.dataclass
class MLPEncoderConfig(_MLPConfig):
    """Config of an `MLPEncoder` over flat columns. `input_dims` is the sum of the columns' widths.

    Args:
        columns: Names of the columns, in the order of concatenation.
        num_values: `{column: n}` for columns of ints below n, which count as one-hot vectors of width n.
    """

    columns: Sequence[str] = (Columns.OBS,)
    num_values: Mapping[str, int] = dataclasses.field(default_factory=dict, kw_only=True)

    def _build(self, rngs: nnx.Rngs) -> MLPEncoder:
        layers, of_columns = self._layers(), {"columns": self.columns, "num_values": self.num_values}
        return MLPEncoder(self._input_dim(), layers, rngs=rngs, **of_columns)


@dataclasses.dataclass
class MLPHeadConfig(_MLPConfig):
    """Config of an `MLPHead`."""

    def _build(self, rngs: nnx.Rngs) -> MLPHead:
        layers = self._layers(is_head=True)
        return self._head_class()(self._input_dim(), layers, rngs=rngs, log_std_bound=self._log_std_bound())

    def _head_class(self) -> Callable[..., MLPHead]:
        return MLPHead


@dataclasses.dataclass
class FreeLogStdMLPHeadConfig(_MLPConfig):
    """Config of a `FreeLogStdMLPHead`. `output_layer_dim` counts all outputs: d means, and d log standard deviations
    (parameters that do not depend on the state).
    """

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
class CNNEncoderConfig(_OwnConfig):
    """Config of a `CNNEncoder`. `input_dims` is the shape of an image, `[height, width, channels]`.

    Activations are names or callables, initializers and `compute_dtype` as in `DefaultModelConfig`.

    Args:
        cnn_filter_specifiers: `[[channels, kernel, stride], ...]`; an optional fourth entry is the padding, "same" (the
            default) or "valid" (no padding). Kernel and stride are integers or `[height, width]`.
        cnn_use_bias: Whether convolutions have a bias.
        cnn_activation: Activation after each convolution, including the last one.
        cnn_use_layernorm: Whether a layer normalisation over the channels precedes each activation.
        flatten_at_end: Whether outputs are vectors; else they are images.
        scale_uint8: Whether uint8 images become ``x / 128 - 1``, in [-1, 1); else their values do not change.
    """

    cnn_filter_specifiers: Sequence[Any] = ((16, (4, 4), 2), (32, (4, 4), 2), (64, (8, 8), 2))
    cnn_use_bias: bool = True
    cnn_activation: Any = "relu"
    cnn_use_layernorm: bool = False
    cnn_kernel_initializer: Initializer = None
    cnn_kernel_initializer_config: dict | None = None
    cnn_bias_initializer: Initializer = None
    cnn_bias_initializer_config: dict | None = None
    flatten_at_end: bool = True
    scale_uint8: bool = dataclasses.field(default=True, kw_only=True)
    compute_dtype: str = dataclasses.field(default="float32", kw_only=True)

    @property
    def output_dims(self) -> tuple[int, ...]:
        dims = self._output_image_dims(self._filters())
        return (math.prod(dims),) if self.flatten_at_end else dims

    def _build(self, rngs: nnx.Rngs) -> CNNEncoder:
        filters = self._filters()
        self._output_image_dims(filters)  # raises where a kernel does not fit
        return CNNEncoder(
            _image_dims(self, "input_dims")[2],
            [self._convolution(spec) for spec in filters],
            rngs=rngs,
            scale_uint8=self.scale_uint8,
            flatten_at_end=self.flatten_at_end,
        )

    def _convolution(self, spec: Filter) -> Layer:
        return Layer(
            width=spec.channels,
            activation=self.cnn_activation,
            use_bias=bool(self.cnn_use_bias),
            use_layernorm=bool(self.cnn_use_layernorm),
            kernel_init=get_initializer(
                self.cnn_kernel_initializer, self.cnn_kernel_initializer_config, "cnn_kernel_initializer"
            ),
            bias_init=get_initializer(
                self.cnn_bias_initializer, self.cnn_bias_initializer_config, "cnn_bias_initializer"
            ),
            dtype=_layer_dtype(self.compute_dtype),
            filter=spec,
        )

    def _output_image_dims(self, filters: list[Filter]) -> tuple[int, int, int]:
        height, width, _ = _image_dims(self, "input_dims")
        for i, spec in enumerate(filters):
            size = spec.output_size((height, width))
            if min(size) < 1:
                raise ValueError(
                    f"CNNEncoderConfig(cnn_filter_specifiers={self.cnn_filter_specifiers}): the kernel of filter {i}, "
                    f"{list(spec.kernel)}, does not fit into its input image of {height} x {width}. Make the "
                    'kernel smaller, or set padding "same".'
                )
            height, width = size
        return height, width, filters[-1].channels

    def _filters(self) -> list[Filter]:
        return parse_filters(self.cnn_filter_specifiers, "cnn_filter_specifiers")


@dataclasses.dataclass
class CNNTransposeHeadConfig(_OwnConfig):
    """Config of a `CNNTransposeHead`, which maps vectors to images. `input_dims` is the shape of a vector, `[d]`.

    The last convolution has a bias, and neither a layer normalisation nor an activation. `DefaultModelConfig` describes
    initializers and `compute_dtype`.

    Args:
        initial_image_dims: `[height, width, channels]` of the image that a dense layer computes from the vector.
        cnn_transpose_filter_specifiers: `[[channels, kernel, stride], ...]`; height and width of the image are
            multiplied by each stride. Kernel and stride are integers or `[height, width]`.
        cnn_transpose_use_bias: Whether all convolutions except the last one have a bias.
        cnn_transpose_activation: Activation after each convolution except the last one.
        cnn_transpose_use_layernorm: Whether a layer normalisation over the channels precedes each activation.
    """

    initial_image_dims: Sequence[int] = (4, 4, 96)
    initial_dense_weights_initializer: Initializer = None
    initial_dense_weights_initializer_config: dict | None = None
    initial_dense_bias_initializer: Initializer = None
    initial_dense_bias_initializer_config: dict | None = None
    cnn_transpose_filter_specifiers: Sequence[Any] = ((48, (4, 4), 2), (24, (4, 4), 2), (3, (4, 4), 2))
    cnn_transpose_use_bias: bool = True
    cnn_transpose_activation: Any = "relu"
    cnn_transpose_use_layernorm: bool = False
    cnn_transpose_kernel_initializer: Initializer = None
    cnn_transpose_kernel_initializer_config: dict | None = None
    cnn_transpose_bias_initializer: Initializer = None
    cnn_transpose_bias_initializer_config: dict | None = None
    compute_dtype: str = dataclasses.field(default="float32", kw_only=True)

    @property
    def output_dims(self) -> tuple[int, ...]:
        height, width, _ = _image_dims(self, "initial_image_dims")
        filters = self._filters()
        for spec in filters:
            height, width = spec.transposed_output_size((height, width))
        return (height, width, filters[-1].channels)

    def _build(self, rngs: nnx.Rngs) -> CNNTransposeHead:
        input_dim, image = _flat_dim(self), _image_dims(self, "initial_image_dims")
        initial = self._initial_dense(math.prod(image))
        layers = [self._convolution(spec) for spec in self._filters()]
        # Losses are made of what it puts out: float32.
        layers[-1] = dataclasses.replace(
            layers[-1], activation="linear", use_bias=True, use_layernorm=False, dtype=None
        )
        net = CNN(image[2], layers, rngs=rngs, conv_class=ConvTranspose)
        return CNNTransposeHead(initial.dense(input_dim, rngs), image, net)

    def _initial_dense(self, width: int) -> Layer:
        return Layer(
            width=width,
            activation="linear",
            use_bias=True,
            use_layernorm=False,
            kernel_init=get_initializer(
                self.initial_dense_weights_initializer,
                self.initial_dense_weights_initializer_config,
                "initial_dense_weights_initializer",
            ),
            bias_init=get_initializer(
                self.initial_dense_bias_initializer,
                self.initial_dense_bias_initializer_config,
                "initial_dense_bias_initializer",
            ),
            dtype=_layer_dtype(self.compute_dtype),
        )

    def _convolution(self, spec: Filter) -> Layer:
        return Layer(
            width=spec.channels,
            activation=self.cnn_transpose_activation,
            use_bias=bool(self.cnn_transpose_use_bias),
            use_layernorm=bool(self.cnn_transpose_use_layernorm),
            kernel_init=get_initializer(
                self.cnn_transpose_kernel_initializer,
                self.cnn_transpose_kernel_initializer_config,
                "cnn_transpose_kernel_initializer",
            ),
            bias_init=get_initializer(
                self.cnn_transpose_bias_initializer,
                self.cnn_transpose_bias_initializer_config,
                "cnn_transpose_bias_initializer",
            ),
            dtype=_layer_dtype(self.compute_dtype),
            filter=spec,
        )

    def _filters(self) -> list[Filter]:
        return parse_filters(self.cnn_transpose_filter_specifiers, "cnn_transpose_filter_specifiers", transposed=True)


@dataclasses.dataclass
class RecurrentEncoderConfig(_OwnConfig):
    """Config of a `RecurrentEncoder`: an optional encoder of single observations, followed by LSTM or GRU layers.

    `input_dims` is the shape of an observation, `[d]`; it is ignored if `tokenizer_config` is set.

    Args:
        recurrent_layer_type: "lstm" or "gru".
        hidden_dim: Width of the state and of the output.
        num_layers: Number of successive recurrent layers.
        batch_major: Whether sequences are `[B, T, ...]`; False: `[T, B, ...]`. States are `[B, num_layers, hidden_dim]`
            in both cases.
        hidden_weights_initializer: Initializer of the kernels; None = uniform in ±1/sqrt(hidden_dim), PyTorch's
            default.
        use_bias: Whether layers have biases.
        hidden_bias_initializer: Initializer of the biases, with the same default.
        tokenizer_config: Config of the encoder of single observations; None: observations are vectors.
    """

    recurrent_layer_type: str = "lstm"
    hidden_dim: int | None = None
    num_layers: int | None = None
    batch_major: bool = True
    hidden_weights_initializer: Initializer = None
    hidden_weights_initializer_config: dict | None = None
    use_bias: bool = True
    hidden_bias_initializer: Initializer = None
    hidden_bias_initializer_config: dict | None = None
    tokenizer_config: ModelConfig | None = None

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self._at_least_one("hidden_dim"),)

    def _build(self, rngs: nnx.Rngs) -> RecurrentEncoder:
        if self.recurrent_layer_type not in CELLS:
            raise ValueError(
                f"RecurrentEncoderConfig(recurrent_layer_type={self.recurrent_layer_type!r}): use one of {list(CELLS)}."
            )
        hidden_dim, num_layers = self._at_least_one("hidden_dim"), self._at_least_one("num_layers")
        tokenizer = None if self.tokenizer_config is None else self.tokenizer_config.build(rngs=rngs)
        input_dim = _flat_dim(self) if self.tokenizer_config is None else self.tokenizer_config.output_dims[0]
        layers = [
            RecurrentLayer(
                hidden_dim if i else input_dim,
                hidden_dim,
                cell_type=self.recurrent_layer_type,
                use_bias=bool(self.use_bias),
                kernel_init=get_initializer(
                    self.hidden_weights_initializer,
                    self.hidden_weights_initializer_config,
                    "hidden_weights_initializer",
                ),
                bias_init=get_initializer(
                    self.hidden_bias_initializer, self.hidden_bias_initializer_config, "hidden_bias_initializer"
                ),
                rngs=rngs,
            )
            for i in range(num_layers)
        ]
        return RecurrentEncoder(tokenizer, layers, hidden_dim=hidden_dim, batch_major=bool(self.batch_major))

    def _at_least_one(self, name: str) -> int:
        value = getattr(self, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"RecurrentEncoderConfig({name}={value!r}): give an integer of at least 1.")
        return value


@dataclasses.dataclass
class MultiStreamEncoderConfig(_LayersConfig):
    """Config of a `MultiStreamEncoder`, which has one encoder for each of several columns, and a network that joins
    the encoders' latents.

    Args:
        base_encoder_configs: `{column: config of the column's encoder}`.
        within: Column whose value is a dict of the encoders' inputs; None: the inputs are columns.
    """

    base_encoder_configs: Mapping[str, ModelConfig] | None = None
    hidden_layer_dims: Sequence[int] = (256, 256, 256)
    within: str | None = None

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
        activations = [layer.activation for layer in layers]
        return MultiStreamEncoder(encoders, fusion_layers, activations=activations, within=self.within)


@dataclasses.dataclass
class ObservationKeysEncoderConfig(_OwnConfig):
    """Config of an `ObservationKeysEncoder`, which encodes some keys of Dict observations.

    Args:
        base_encoder_config: Config of the encoder of the selected keys.
        observation_space: Dict space of these keys.
    """

    base_encoder_config: ModelConfig | None = None
    observation_space: gym.spaces.Dict | None = None

    def _base(self) -> ModelConfig:
        if self.base_encoder_config is None or self.observation_space is None:
            raise ValueError(
                "ObservationKeysEncoderConfig needs two arguments: base_encoder_config, such as MLPEncoderConfig(...), "
                "and observation_space, a gymnasium.spaces.Dict of the selected keys."
            )
        return self.base_encoder_config

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self._base().output_dims

    def _build(self, rngs: nnx.Rngs) -> ObservationKeysEncoder:
        encoder, space = self._base().build(rngs=rngs), self.observation_space
        assert space is not None
        return ObservationKeysEncoder(encoder, space)


@dataclasses.dataclass
class ActorCriticEncoderConfig(_OwnConfig):
    """Config of an `ActorCriticEncoder`, which computes latents for the policy and the value function.

    Args:
        base_encoder_config: Config of one encoder.
        shared: Whether policy and value function share one encoder.
        inference_only: Whether to leave out the critic's encoder.
        critic_encoder_config: Config of the critic's encoder, if it differs from the policy's; None:
            `base_encoder_config`.

    Raises:
        ValueError: If `critic_encoder_config` is set with ``shared=True``; `build` raises it.
    """

    base_encoder_config: ModelConfig | None = None
    shared: bool = True
    inference_only: bool = False
    critic_encoder_config: ModelConfig | None = dataclasses.field(default=None, kw_only=True)

    def _base(self) -> ModelConfig:
        if self.base_encoder_config is None:
            raise ValueError("ActorCriticEncoderConfig needs a base_encoder_config, such as an MLPEncoderConfig.")
        return self.base_encoder_config

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self._base().output_dims

    def _build(self, rngs: nnx.Rngs) -> ActorCriticEncoder:
        base, critic = self._base(), self.critic_encoder_config
        if self.shared and critic is not None:
            raise ValueError(
                "ActorCriticEncoderConfig(shared=True, critic_encoder_config=...): a shared encoder is described by "
                "base_encoder_config. Leave critic_encoder_config out, or set shared=False."
            )
        return ActorCriticEncoder(
            lambda: base.build(rngs=rngs),
            shared=self.shared,
            inference_only=self.inference_only,
            build_critic=None if critic is None else lambda: critic.build(rngs=rngs),
        )
