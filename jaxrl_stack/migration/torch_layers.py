"""Rewriting of layers of ``torch.nn`` as layers of ``flax.nnx``."""

from __future__ import annotations

import ast
from collections.abc import Callable

from jaxrl_stack.migration.names import PAGE
from jaxrl_stack.migration.source import SourceCode

_PAGE = f"{PAGE}#from-torch-to-nnx"

LAYERS = {
    "torch.nn.Linear": "nnx.Linear",
    "torch.nn.LayerNorm": "nnx.LayerNorm",
    "torch.nn.Embedding": "nnx.Embed",
    "torch.nn.Dropout": "nnx.Dropout",
    "torch.nn.Conv2d": "nnx.Conv",
    "torch.nn.Sequential": "nnx.Sequential",
    "torch.nn.ModuleList": "nnx.List",
    "torch.nn.ModuleDict": "nnx.Dict",
    "torch.nn.Parameter": "nnx.Param",
}
"""Layer of PyTorch → layer of NNX."""
_WITHOUT_WEIGHTS = ("nnx.Sequential", "nnx.List", "nnx.Dict", "nnx.Param")
_KEYWORDS = {"bias": "use_bias", "eps": "epsilon", "p": "rate", "kernel_size": "kernel_size", "stride": "strides"}
_KNOWN = {
    "nnx.Linear": ("in_features", "out_features", "bias"),
    "nnx.LayerNorm": ("normalized_shape", "eps"),
    "nnx.Embed": ("num_embeddings", "embedding_dim"),
    "nnx.Dropout": ("p",),
    "nnx.Conv": ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias"),
}
"""Arguments of PyTorch's layers, in their order, that have a counterpart."""
_DEFAULTS = {"nnx.Conv": ("padding", 'padding="VALID"'), "nnx.LayerNorm": ("eps", "epsilon=1e-5")}
"""Layer → an argument that has another default in PyTorch, and how to say PyTorch's."""
_RENAMED = {
    **_KEYWORDS,
    "normalized_shape": "num_features",
    "embedding_dim": "features",
    "in_channels": "in_features",
    "out_channels": "out_features",
}


class Layers:
    """Rewrites the PyTorch layers of one script as Flax NNX layers.

    Args:
        source: The script.
        full: Function from a node to its full name in PyTorch, or an empty text.
        uses: Records that a node is rewritten as a text; returns the text.
    """

    def __init__(self, source: SourceCode, full: Callable[[ast.AST], str], uses: Callable[[ast.AST, str], str]):
        self.source = source
        self.full = full
        self.uses = uses
        self.networks = {
            node.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef) and any(full(base) == "torch.nn.Module" for base in node.bases)
        }

    def network(self, node: ast.ClassDef) -> None:
        """Rewrites a subclass of ``nn.Module`` for Flax NNX: its base class, its ``forward()``, and the `rngs` for its
        layers.
        """
        for base in node.bases:
            if self.full(base) == "torch.nn.Module":
                self.source.replace(base, self.uses(base, "nnx.Module"))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                start = self.source.start(method)
                begin = start + self.source.code_of(method).index("forward")
                self.source.replace_span(begin, begin + len("forward"), "__call__")
            elif isinstance(method, ast.FunctionDef) and method.name == "__init__":
                self._add_rngs(method)
        for call in ast.walk(self.source.tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == node.name:
                self._close_with_rngs(call)

    def _add_rngs(self, method: ast.FunctionDef) -> None:
        """Adds the keyword argument `rngs` to a constructor."""
        arguments = method.args
        rngs = "rngs" if arguments.kwonlyargs or arguments.vararg else "*, rngs"
        if arguments.kwarg:
            stars = self.source.before(self.source.start(arguments.kwarg))
            self.source.insert(stars.start, f"{rngs}, ")
        else:
            self.source.append(self.source.end_of_parameters(method), rngs)

    def layer(self, node: ast.Call, name: str) -> None:
        """Converts a call that creates a PyTorch layer to the call that creates the Flax NNX layer `name`."""
        self.source.replace(node.func, self.uses(node.func, name))
        if name == "nnx.Sequential" and any(isinstance(arg, ast.Call) and _is_dict(arg) for arg in node.args):
            self.source.to_do(node, "nnx.Sequential takes the layers as arguments, without names.", _PAGE)
        if name in _WITHOUT_WEIGHTS:
            return
        known = _KNOWN[name]
        if len(node.args) > len(known) or any(isinstance(arg, ast.Starred) for arg in node.args):
            self.source.to_do(node, f"the arguments of {name} have other names than in PyTorch.", _PAGE)
        for position, (argument, value) in enumerate(zip(known, node.args, strict=False)):
            # The first two are in the same place; others get their names.
            self._argument(name, argument, value)
            if position >= 2:
                start, _ = self.source.span(value, self.source.arguments_start(node), self.source.end(node) - 1)
                self.source.insert(start, f"{_RENAMED.get(argument, argument)}=")
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in known:
                self.source.to_do(keyword, f"{name} has no `{keyword.arg}`.", _PAGE)
            else:
                self.source.rename_keyword(keyword, _RENAMED.get(keyword.arg, keyword.arg))
                self._argument(name, keyword.arg, keyword.value)
        given = {*known[: len(node.args)], *(keyword.arg for keyword in node.keywords)}
        if name in _DEFAULTS and _DEFAULTS[name][0] not in given:
            self.source.append(self.source.end(node) - 1, _DEFAULTS[name][1])
        self._close_with_rngs(node)

    def _argument(self, layer: str, argument: str, value: ast.expr) -> None:
        code = self.source.code_of(value)
        is_window = layer == "nnx.Conv" and argument in ("kernel_size", "stride")
        if is_window and isinstance(value, ast.Constant | ast.Name):
            self.source.replace(value, f"({code}, {code})")
        elif argument == "padding" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.source.replace(value, repr(value.value.upper()).replace("'", '"'))
        elif is_window and not isinstance(value, ast.Tuple | ast.List):
            self.source.to_do(value, f"`{argument}` of nnx.Conv needs one number for each direction.", _PAGE)

    def _close_with_rngs(self, node: ast.Call) -> None:
        self.source.append(self.source.end(node) - 1, f"rngs={self._rngs_at(node)}")

    def _rngs_at(self, node: ast.AST) -> str:
        """Returns the code for the argument `rngs` of a new layer or network.

        The code is ``rngs`` in a network class, ``self.rngs`` in another class (an RLModule), ``nnx.Rngs(0)`` outside
        of classes.
        """
        while node in self.source.parents:
            node = self.source.parents[node]
            if isinstance(node, ast.ClassDef):
                return "rngs" if node.name in self.networks else "self.rngs"
        return "nnx.Rngs(0)"


def _is_dict(node: ast.Call) -> bool:
    return getattr(node.func, "id", getattr(node.func, "attr", "")) == "OrderedDict"
