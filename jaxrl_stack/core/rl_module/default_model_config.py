"""Settings of the default models (``model_config``)."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.compat.other_libraries import NETWORK_SETTINGS
from jaxrl_stack.utils.class_paths import ClassLoader

Initializer = str | Callable[..., Any] | None


_ATTENTION = (
    "RLlib's networks with attention were those of its old stack. Use use_lstm=True, or the module GTrXL of "
    "jaxrl_stack.examples.rl_modules.classes.gtrxl_rlm: rl_module(rl_module_spec=RLModuleSpec(module_class=GTrXL))"
)
_GONE = {"use_attention": _ATTENTION}
"""Setting of RLlib's old stack -> what to use. Its networks have no such switch, and False asks for none."""


def _reject_unknown(names: Iterable[str], known: Iterable[str], owner: str, error: type[Exception]) -> None:
    known = list(known)
    for name in names:
        if name in _GONE:
            raise error(f"{owner} has no setting {name!r}: {_GONE[name]}.")
        if name not in known:
            theirs = NETWORK_SETTINGS.get(name)
            close = [theirs] if theirs in known else difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known settings: {known}."
            raise error(f"{owner} has no setting {name!r}: {hint}")


@dataclasses.dataclass
class DefaultModelConfig(Plain):
    """Model config of the default RLModules: settings of their networks, such as encoders and heads.

    Names and defaults are RLlib's. RLlib has no `policy_obs_key`, `value_obs_key` and `compute_dtype`.

    Activations are names ("linear", "relu", "tanh", "elu", "swish" or "silu", "gelu", "sigmoid",
    "leaky_relu", "softmax", … or a torch.nn class name) or callables. Initializers are names from
    `jax.nn.initializers` or torch's in-place names ("xavier_uniform_", "orthogonal_", …), or callables
    `(key, shape, dtype) -> array`. A second setting with the suffix `_kwargs`, such as
    `fcnet_kernel_initializer_kwargs`, contains keyword arguments of the initializer. None is torch's default for dense
    layers, uniform in ±1/sqrt(fan_in), for kernels and biases.

    Raises:
        TypeError: If a setting is unknown; the message lists the closest known names.
    """

    # Encoder of flat observations; its last entry is the width of the latent. The activation also follows the
    # last layer; layer normalisation (eps 1e-3) precedes each activation.
    fcnet_hiddens: list[int] = dataclasses.field(default_factory=lambda: [256, 256])
    fcnet_activation: str | Callable[..., Any] = "tanh"
    fcnet_kernel_initializer: Initializer = None
    fcnet_kernel_initializer_kwargs: dict | None = None
    fcnet_bias_initializer: Initializer = None
    fcnet_bias_initializer_kwargs: dict | None = None
    fcnet_use_layernorm: bool = False

    # Encoder of images: [[out channels, kernel, stride(, "same" or "valid")], …]; None = chosen by the image's
    # size, see docs/networks.md.
    conv_filters: list | None = None
    conv_activation: str | Callable[..., Any] = "relu"
    conv_kernel_initializer: Initializer = None
    conv_kernel_initializer_kwargs: dict | None = None
    conv_bias_initializer: Initializer = None
    conv_bias_initializer_kwargs: dict | None = None

    # Heads: policy, value, Q.
    head_fcnet_hiddens: list[int] = dataclasses.field(default_factory=list)
    head_fcnet_activation: str | Callable[..., Any] = "relu"
    head_fcnet_kernel_initializer: Initializer = None
    head_fcnet_kernel_initializer_kwargs: dict | None = None
    head_fcnet_bias_initializer: Initializer = None
    head_fcnet_bias_initializer_kwargs: dict | None = None
    head_fcnet_use_layernorm: bool = False

    # Gaussian policies: a log standard deviation that does not depend on the observation, and its clamp (±).
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    # One encoder for policy and value function, or one each.
    vf_share_layers: bool = True

    # LSTM after the encoder.
    use_lstm: bool = False
    max_seq_len: int = 20
    lstm_cell_size: int = 256
    lstm_use_prev_action: bool = False
    lstm_use_prev_reward: bool = False
    lstm_kernel_initializer: Initializer = None
    lstm_kernel_initializer_kwargs: dict | None = None
    lstm_bias_initializer: Initializer = None
    lstm_bias_initializer_kwargs: dict | None = None

    # Net that joins observation and action in Q networks of continuous actions; None joins them before the
    # encoder, which is then one MLP of the fcnet settings over both.
    fusionnet_hiddens: list[int] | None = dataclasses.field(default_factory=lambda: [256, 256])
    fusionnet_activation: str | Callable[..., Any] = "tanh"
    fusionnet_kernel_initializer: Initializer = None
    fusionnet_kernel_initializer_kwargs: dict | None = None
    fusionnet_bias_initializer: Initializer = None
    fusionnet_bias_initializer_kwargs: dict | None = None

    # What layers compute in: "float32" or "bfloat16". Parameters, their gradients, the last layer of each head and all
    # that follows it (log-probabilities, values, losses) are float32 with both.
    compute_dtype: str = "float32"

    # Key, or list of keys, of Dict observations that the policy and the value function see (names: brax's); None = all.
    # Different keys need vf_share_layers=False.
    policy_obs_key: str | list[str] | None = None
    value_obs_key: str | list[str] | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> DefaultModelConfig:
        _reject_unknown(kwargs, cls.__dataclass_fields__, cls.__name__, TypeError)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        _reject_unknown([name], self.__dataclass_fields__, type(self).__name__, AttributeError)
        super().__setattr__(name, value)

    def to_plain(self) -> dict[str, Any]:
        """Returns all settings of this config, `{name: value}`, as plain data for checkpoints. Includes settings with
        default values, because these also override the algorithm's defaults.
        """
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> DefaultModelConfig | dict[str, Any]:
        """Creates a `DefaultModelConfig` from `data`, a result of `to_plain`. If some settings are missing in `data`,
        returns `data` as a dict.

        Checkpoints of earlier versions contain only the settings that the config was given. As a dict, only these
        override the algorithm's defaults.
        """
        del loader
        return cls(**data) if data.keys() >= cls.__dataclass_fields__.keys() else dict(data)


class OpaqueDict(dict):
    """Dict that is one leaf of a pytree: JAX does not know this subclass of dict, and does not look for arrays inside.

    Arrays in a module's model config are no state of the module.
    """


def as_model_config_dict(model_config: Mapping[str, Any] | DefaultModelConfig | None) -> OpaqueDict:
    """Copies a model config as the dict that a module stores; a dataclass becomes `{field: value}`, None becomes {}.

    Raises:
        TypeError: For anything else.
    """
    if model_config is None:
        return OpaqueDict()
    if isinstance(model_config, Mapping):
        return OpaqueDict(model_config)
    if dataclasses.is_dataclass(model_config) and not isinstance(model_config, type):
        fields = dataclasses.fields(model_config)
        return OpaqueDict({field.name: getattr(model_config, field.name) for field in fields})
    raise TypeError(f"model_config={model_config!r}: expected a DefaultModelConfig, a dict or None.")


def check_model_config(model_config: Mapping[str, Any], *, custom_settings: bool = False) -> None:
    """Raises an error for unknown names of model settings.

    Args:
        model_config: `{name: value}`.
        custom_settings: Allow names of the user's own, unless they look like a misspelt setting.

    Raises:
        ValueError: For a name that does not exist, with the closest known ones.
    """
    known = DefaultModelConfig.__dataclass_fields__
    suspects = [
        name
        for name, value in model_config.items()
        if (value if name in _GONE else not custom_settings or difflib.get_close_matches(name, known, n=1, cutoff=0.8))
    ]
    _reject_unknown(suspects, known, "The model_config of the default models", ValueError)
