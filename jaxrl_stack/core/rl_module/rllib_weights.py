"""Conversion of weights of RLlib's default PyTorch modules to the names and layouts of this package's modules.

Files contain arrays and no code: nothing is unpickled.
"""

from __future__ import annotations

import importlib
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_HOW_TO = (
    "Where RLlib is installed, write the weights to a file: "
    "numpy.savez('weights.npz', **RLModule.from_checkpoint(path).get_state())."
)
_ENCODERS = {"actor_encoder": "actor", "critic_encoder": "critic", "encoder": "shared"}
_LAYER = re.compile(
    r"(?P<net>.+)\.net\.(?P<stack>mlp|0\.cnn)\.(?P<index>\d{1,3})(?P<norm>\.layer_norm)?\.(?P<kind>weight|bias)"
)
_FUSION = re.compile(r"(?P<encoder>.+)\.(?:fusion_layers\.(?P<index>\d{1,3})|output_layer)\.(?P<kind>weight|bias)")
_RECURRENT = re.compile(r"(?P<net>.+)\.(?:lstm|gru)\.(?P<kind>weight|bias)_(?P<side>ih|hh)_l(?P<index>\d{1,3})")
_SIDES = {"ih": "input", "hh": "hidden"}
_CONSTANT = ".log_std_clip_param_const"
_DENSE = {"weight": "kernel", "bias": "bias"}
_LAYERNORM = {"weight": "scale", "bias": "bias"}
NOT_IN_RLLIBS_MODULES = frozenset({"log_alpha"})
"""Parameters of this package's modules that RLlib stores in its learners."""
_MAX_NAME = 300


def read_rllib_weights(path: str | os.PathLike[str], max_bytes: int) -> dict[str, Any]:
    """Reads RLlib weights from an ``.npz``, ``.safetensors``, ``.pt`` or ``.pth`` file. Returns ``{name: array}``;
    for PyTorch files (``.pt``, ``.pth``), the arrays are CPU tensors.

    Args:
        path: ``.npz``; ``.safetensors``; or ``.pt``, ``.pth`` of a state dict, which needs PyTorch.
        max_bytes: Maximum unpacked size of an ``.npz``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ImportError: If the package that reads it is not installed.
        ValueError: If it has a different type, is too large, or is damaged.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in _READERS:
        raise ValueError(
            f"load_rllib_weights({os.fspath(path)!r}) reads only {', '.join(_READERS)} files: RLlib's checkpoints are "
            f"pickles, which can run code. {_HOW_TO}"
        )
    if not os.path.isfile(path):
        raise FileNotFoundError(f"load_rllib_weights({os.fspath(path)!r}): the file does not exist. Check the path.")
    try:
        found = _READERS[suffix](path, max_bytes)
        if not isinstance(found, Mapping):
            raise ValueError(
                f"the file contains a {type(found).__name__}, not a dict of arrays. Save the dict of RLlib's "
                "rl_module.get_state()"
            )
        return dict(found)
    except ImportError as error:
        raise ImportError(
            f"load_rllib_weights({os.fspath(path)!r}) needs {error.name}. Install it, or use an .npz file. {_HOW_TO}"
        ) from error
    except Exception as error:  # of three libraries
        raise ValueError(
            f"load_rllib_weights({os.fspath(path)!r}): the file is damaged, or contains more than arrays: {error}. "
            f"{_HOW_TO}"
        ) from error


def _read_npz(path: Any, max_bytes: int) -> Any:
    with zipfile.ZipFile(path) as packed:
        size = sum(info.file_size for info in packed.infolist())
    if size > max_bytes:
        raise ValueError(
            f"the file has {size:,} bytes, more than the {max_bytes:,} allowed for this module. Pass the weights of a "
            "module with the same spaces and model config"
        )
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_safetensors(path: Any, max_bytes: int) -> Any:
    # A file has the size of its arrays.
    return importlib.import_module("safetensors.numpy").load_file(path)


def _read_torch(path: Any, max_bytes: int) -> Any:
    return importlib.import_module("torch").load(path, map_location="cpu", weights_only=True)


_READERS: dict[str, Callable[[Any, int], Any]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
}


def from_rllib_names(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts the PyTorch state dict of an RLlib module to the state of the corresponding module of this package,
    `{"path/to/leaf": array}`.

    Args:
        weights: ``{"encoder.actor_encoder.net.mlp.0.weight": array or CPU tensor}``. Dense weights are ``[out, in]``,
            convolution weights ``[out, in, height, width]``.

    Raises:
        ValueError: If a name is not a part of RLlib's default modules.
    """
    weights = {name: _as_array(name, value) for name, value in weights.items() if not str(name).endswith(_CONSTANT)}
    return {
        ref: np.moveaxis(value, (0, 1), (-1, -2)) if ref.endswith("/kernel") and value.ndim > 1 else value
        for ref, value in ((_ref(name, weights).replace(".", "/"), value) for name, value in weights.items())
    }


def _ref(name: str, weights: Mapping[str, np.ndarray]) -> str:
    if layer := _LAYER.fullmatch(name):
        return _layer_ref(layer, weights)
    if layer := _FUSION.fullmatch(name):
        fusion = f"{layer['encoder']}.fusion_layers"
        is_hidden = re.compile(re.escape(fusion) + r"\.\d+\.weight").fullmatch
        index = layer["index"] or sum(1 for other in weights if is_hidden(other))
        return f"{fusion}.{index}.{_DENSE[layer['kind']]}"
    if recurrent := _RECURRENT.fullmatch(name):
        layer = f"{_net_ref(recurrent['net'])}.layers.{recurrent['index']}"
        return f"{layer}.{_SIDES[recurrent['side']]}.{_DENSE[recurrent['kind']]}"
    if name.endswith(".log_std"):
        return name
    raise ValueError(
        f"load_rllib_weights() got the array {name!r}, which is not part of RLlib's default modules for PPO, IMPALA, "
        "APPO, DQN, SAC and TQC. Pass rl_module.get_state() of one of these, or load other weights with "
        f"set_state({{'path/to/leaf': array}})."
    )


def _layer_ref(layer: re.Match[str], weights: Mapping[str, np.ndarray]) -> str:
    """Returns this package's name (ref) of a layer in a torch Sequential.

    The number in the ref counts only dense layers or convolutions. The index in a Sequential also counts layer
    normalisations, activations and padding.
    """
    net, index, kind = layer["net"], int(layer["index"]), layer["kind"]
    # Weights of a dense layer have two axes and those of a convolution four; those of a layer normalisation, which
    # follows either, have one.
    of_stack = (weights.get(f"{net}.net.{layer['stack']}.{i}.weight") for i in range(index + 1))
    has_axes = [getattr(weight, "ndim", 0) > 1 for weight in of_stack]
    number, is_norm = sum(has_axes) - 1, not has_axes[-1]
    ours = _net_ref(net)
    if f"{net}.log_std" in weights:
        ours += ".mean"
    layers = "dense" if layer["stack"] == "mlp" else "conv"
    return f"{ours}.layernorm_{number}.{_LAYERNORM[kind]}" if is_norm else f"{ours}.{layers}_{number}.{_DENSE[kind]}"


def _net_ref(net: str) -> str:
    """Returns this package's name (ref) of an RLlib network. Only encoders have a different name in this package."""
    first, *rest = net.split(".")
    if first in ("encoder", "_old_encoder") and rest and rest[0] in _ENCODERS:
        rest[0] = _ENCODERS[rest[0]]
    return ".".join([first, *rest])


def _as_array(name: Any, value: Any) -> np.ndarray:
    if not isinstance(name, str) or len(name) > _MAX_NAME:
        raise ValueError(
            f"load_rllib_weights() got a weight named {str(name)[:_MAX_NAME]!r}, but names must be str of at most "
            f"{_MAX_NAME} characters. Pass the result of RLlib's rl_module.get_state()."
        )
    array = np.asarray(value.detach() if hasattr(value, "detach") else value)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"load_rllib_weights() got the array {name!r} of dtype {array.dtype}. Weights must be floats: pass the "
            "result of RLlib's rl_module.get_state()."
        )
    return array.astype(np.float32)
