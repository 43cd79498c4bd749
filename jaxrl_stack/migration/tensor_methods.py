"""Rewriting of methods of PyTorch tensors as functions and methods of ``jax.numpy``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from jaxrl_stack.migration.bindings import Bindings
from jaxrl_stack.migration.names import PAGE, table
from jaxrl_stack.migration.source import SourceCode
from jaxrl_stack.migration.tensors import TENSORS_ONLY, Tensors

_PAGE = f"{PAGE}#from-torch-to-nnx"

_CASTS = {
    "float": "jnp.float32", "double": "jnp.float32", "half": "jnp.float16", "bfloat16": "jnp.bfloat16",
    "long": "jnp.int32", "int": "jnp.int32", "short": "jnp.int16", "byte": "jnp.uint8", "bool": "jnp.bool_",
}  # fmt: skip
_FUNCTIONS = {
    "detach": "jax.lax.stop_gradient", "numpy": "np.asarray", "unsqueeze": "jnp.expand_dims",
    "softmax": "jax.nn.softmax", "log_softmax": "jax.nn.log_softmax", "logsumexp": "jax.nn.logsumexp",
    "pow": "jnp.power", "matmul": "jnp.matmul", "mm": "jnp.matmul", "bmm": "jnp.matmul", "clamp": "jnp.clip",
    "logical_and": "jnp.logical_and", "logical_or": "jnp.logical_or",
}  # fmt: skip
"""Method of a tensor → the function of which the tensor is the first argument."""
_OF_ONE = {
    "abs": "jnp.abs", "cos": "jnp.cos", "exp": "jnp.exp", "expm1": "jnp.expm1", "floor": "jnp.floor",
    "ceil": "jnp.ceil", "isfinite": "jnp.isfinite", "isinf": "jnp.isinf", "isnan": "jnp.isnan", "log": "jnp.log",
    "log1p": "jnp.log1p", "logical_not": "jnp.logical_not", "neg": "jnp.negative", "relu": "jax.nn.relu",
    "rsqrt": "jax.lax.rsqrt", "sigmoid": "jax.nn.sigmoid", "sign": "jnp.sign", "sin": "jnp.sin", "sqrt": "jnp.sqrt",
    "square": "jnp.square", "tanh": "jnp.tanh",
}  # fmt: skip
"""The same for methods without arguments."""
_PROPERTIES = {"dim": "ndim", "ndimension": "ndim", "numel": "size"}
_DROPPED = ("cpu", "cuda", "contiguous")
_REDUCTIONS = (
    "all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "mean", "prod", "squeeze", "std", "sum", "var",
)  # fmt: skip
_EXTREMES = {"amax": "jnp.max", "amin": "jnp.min"}
_WITH_KEEPDIM = ("all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "mean", "prod", "sum")
"""Reductions whose second argument is `keepdim`."""
BY_HAND = {
    "backward": "jax.grad computes the gradient of a function; learners do this in updates.",
    "chunk": "jnp.split(x, n, axis=dim).",
    "expand": "jnp.broadcast_to(x, shape), with sizes instead of -1.",
    "expand_as": "jnp.broadcast_to(x, y.shape).",
    "gather": "jnp.take_along_axis(x, index, axis=dim).",
    "index_select": "jnp.take(x, index, axis=dim).",
    "masked_fill": "jnp.where(mask, value, x).",
    "masked_select": "jnp.where(mask, x, 0): JAX needs fixed shapes, and x[mask] has none.",
    "new_full": "jnp.full(shape, value, x.dtype).",
    "new_ones": "jnp.ones(shape, x.dtype).",
    "new_tensor": "jnp.asarray(values, x.dtype).",
    "new_zeros": "jnp.zeros(shape, x.dtype).",
    "register_hook": "use jax.custom_vjp to change a gradient.",
    "repeat_interleave": "jnp.repeat(x, repeats, axis=dim).",
    "requires_grad_": "leave it out: jax.grad selects the arguments to differentiate.",
    "retain_grad": "leave it out: jax.grad returns gradients.",
    "scatter": "x.at[index].set(values), with an index for every axis.",
    "scatter_add": "x.at[index].add(values), with an index for every axis.",
    "topk": "jax.lax.top_k(x, k), over the last axis.",
    "type_as": "x.astype(y.dtype).",
    "unbind": "list(x), over the first axis.",
    "view_as": "x.reshape(y.shape).",
    "zero_grad": "leave it out: gradients do not accumulate.",
}
"""Method of a tensor → what to write."""
_IN_PLACE = re.compile(
    "(abs|add|clamp|clip|copy|div|exp|fill|index_add|index_copy|index_fill|log|masked_fill|masked_scatter|mul|neg|normal"
    "|pow|random|scatter|scatter_add|sigmoid|sqrt|squeeze|sub|tanh|uniform|unsqueeze|zero)_"
)
_TYPES = re.compile(r"torch\.(bfloat16|float\d*|double|half|u?int\d*|long|short|bool|complex\d+)")
_TRACED = re.compile(r"forward|loss|compute_(q_)?values")


class TensorMethods:
    """Rewrites the tensor method calls of one script.

    Args:
        source: The script.
        bindings: The imported names.
        tensors: Kinds of its expressions.
        full: Function from a node to its full name in PyTorch, or an empty text.
        uses: Records that a node is rewritten as a text; returns the text.
        needs: Set for names of modules that new code uses.
    """

    def __init__(
        self,
        source: SourceCode,
        bindings: Bindings,
        tensors: Tensors,
        full: Callable[[ast.AST], str],
        uses: Callable[[ast.AST, str], str],
        needs: set[str],
    ):
        self.source = source
        self.bindings = bindings
        self.tensors = tensors
        self.full = full
        self.uses = uses
        self.needs = needs

    def rewrite(self, node: ast.Call, function: ast.Attribute) -> None:
        """Rewrites a call of a method if its name is a tensor's method."""
        name, value = function.attr, function.value
        if self.bindings.resolve(value):  # a function of a module
            return
        if self.tensors.kind(value) in ("numpy", "other") and name not in TENSORS_ONLY:
            return
        given = bool(node.args or node.keywords)
        if name in _CASTS and not given:
            self._cast(node, function)
        elif name in _OF_ONE and not given:
            self._as_function(node, function, _OF_ONE[name])
        elif name in _FUNCTIONS and given != (name in ("detach", "numpy")):
            self._as_function(node, function, _FUNCTIONS[name])
        elif name in _EXTREMES:
            self._as_function(node, function, _EXTREMES[name])
        elif name in _PROPERTIES and not given:
            self.source.replace_span(self.source.end(function) - len(name), self.source.end(node), _PROPERTIES[name])
        elif name in _DROPPED:
            self._drop(node, function)
        elif name in ("to", "type") and given:
            self._convert(node, function)
        elif name == "size":
            self._size(node, function)
        elif name in ("permute", "view", "transpose"):
            self._order_of_axes(node, function)
        elif name in _REDUCTIONS:
            self._reduction(node, function)
        else:
            self._by_hand(node, function)

    # ------------------------------------------------------------------------------------------------ certain methods

    def _cast(self, node: ast.Call, function: ast.Attribute) -> None:
        self.source.rename_attribute(function, "astype")
        self.source.insert(self.source.end(node) - 1, _CASTS[function.attr])
        self.needs.add("jnp")

    def _as_function(self, node: ast.Call, function: ast.Attribute, new: str) -> None:
        """Rewrites ``value.method(arguments)`` as ``new(value, arguments)``."""
        dot, start = self._after_value(function), self.source.arguments_start(node)
        if self._loses_comment(node, dot, start):
            return
        separator = ", " if node.args or node.keywords else ""
        if "\n" in self.source.segment(start, self.source.after(start).start):
            separator = separator.rstrip()
        self.source.insert(self.source.start(node), f"{new}(")
        self.source.replace_span(dot, start, separator)
        self.needs.update(re.findall(r"\b(jax|jnp|np)\.", new))
        self.axes(node, takes_keepdim=function.attr in _WITH_KEEPDIM)

    def _drop(self, node: ast.Call, function: ast.Attribute) -> None:
        """Deletes a method call and keeps the value before it: ``x.detach()`` becomes ``x``."""
        start = self._after_value(function)
        if not self._loses_comment(node, start, self.source.end(node)):
            for part in [*node.args, *node.keywords]:
                self.uses(part, "")
            self.source.replace_span(start, self.source.end(node), "")

    def _after_value(self, function: ast.Attribute) -> int:
        """Byte position where the value before a method call ends, such as ``x`` in ``x.to(y)``.

        If a comment is between the value and the dot, returns the position of the dot.
        """
        dot = self.source.dot_of(function)
        end = self.source.before(dot).end
        return dot if self.source.has_comment(end, dot) else end

    def _loses_comment(self, node: ast.Call, start: int, end: int) -> bool:
        """Returns whether a comment is between the byte positions `start` and `end`, so that a rewrite would delete it.

        If so, adds a to-do comment to the method call, which is then not rewritten.
        """
        if not self.source.has_comment(start, end):
            return False
        self.source.to_do(node, f"`{getattr(node.func, 'attr', '')}` of a tensor has a comment in it.", _PAGE)
        return True

    def _convert(self, node: ast.Call, function: ast.Attribute) -> None:
        """Rewrites conversions such as ``x.to(device, dtype)`` as ``x.astype(dtype)``; deletes the device, because JAX
        places arrays.
        """
        parts = [*node.args, *node.keywords]
        types = [part for part in parts if self._is_type(part)]
        is_to = function.attr == "to"
        others = [part for part in parts if part not in types and not (is_to and self._is_place(part))]
        if others or len(types) > 1:
            what = self.source.code_of(others[0] if others else types[1])
            self.source.to_do(
                node, f"`{function.attr}({what})`: use x.astype(dtype) for a dtype; leave a device out.", _PAGE
            )
        elif not types:
            self._drop(node, function)
        else:
            start, end = self.source.arguments_start(node), self.source.end(node) - 1
            first, last = self.source.span(types[0], start, end)
            if not self._loses_comment(node, start, end):
                self.source.rename_attribute(function, "astype")
                for part in parts:
                    if part is not types[0]:
                        self.uses(part, "")
                self.source.replace_span(start, first, "")
                self.source.replace_span(last, end, "")

    def _is_type(self, part: ast.expr | ast.keyword) -> bool:
        if isinstance(part, ast.keyword):
            return part.arg == "dtype"
        return bool(_TYPES.fullmatch(self.full(part))) or getattr(part, "attr", getattr(part, "id", "")).endswith(
            "dtype"
        )

    def _is_place(self, part: ast.expr | ast.keyword) -> bool:
        """Whether an argument of ``x.to()`` can be deleted: it names a device, or is the option `non_blocking`, `copy`
        or `memory_format`.
        """
        if isinstance(part, ast.keyword):
            return part.arg in ("device", "non_blocking", "copy", "memory_format")
        if isinstance(part, ast.Constant | ast.JoinedStr):
            return isinstance(getattr(part, "value", ""), str | int)
        if isinstance(part, ast.Call):
            return self.full(part.func) == "torch.device"
        return "device" in getattr(part, "attr", getattr(part, "id", "")).lower()

    def _size(self, node: ast.Call, function: ast.Attribute) -> None:
        name_start = self.source.end(function) - len("size")
        if not node.args and not node.keywords:
            self.source.replace_span(name_start, self.source.end(node), "shape")
        elif len(node.args) + len(node.keywords) == 1 and all(keyword.arg == "dim" for keyword in node.keywords):
            start = self.source.arguments_start(node)
            if node.keywords:
                start = self.source.after(self.source.start(node.keywords[0]) + len("dim")).end
            self.source.replace_span(name_start, start, "shape[")
            self.source.replace_span(self.source.end(node) - 1, self.source.end(node), "]")

    def _order_of_axes(self, node: ast.Call, function: ast.Attribute) -> None:
        name, args = function.attr, node.args
        if node.keywords or not args:
            return
        start, end = self.source.arguments_start(node), self.source.end(node) - 1
        if name == "permute" and [getattr(arg, "value", None) for arg in args] == [0, 3, 1, 2]:
            self.source.to_do(node, "keep images as [..., height, width, channels], the layout of nnx.Conv.", _PAGE)
            if not self.source.has_comment(self.source.dot_of(function), end):
                self._drop(node, function)
        elif name == "permute":
            self.source.rename_attribute(function, "transpose")
            if len(args) == 2:  # `transpose` with two axes swaps them in PyTorch
                self.source.insert(start, "(")
                self.source.insert(end, ")")
        elif name == "view" and not (len(args) == 1 and self._is_type(args[0])):
            self.source.rename_attribute(function, "reshape")
        elif name == "transpose" and len(args) == 2:
            self.source.rename_attribute(function, "swapaxes")

    def _reduction(self, node: ast.Call, function: ast.Attribute) -> None:
        name = function.attr
        if name in ("std", "var"):
            self._deviation(node, name, function.value)
        self.axes(node, takes_keepdim=name in _WITH_KEEPDIM)

    def axes(self, node: ast.Call, takes_keepdim: bool, first: int = 0) -> None:
        """Renames the keyword arguments `dim` and `keepdim` of a call to `axis` and `keepdims`.

        Turns a positional `keepdim` into the keyword argument `keepdims`, and a list of axes into a tuple.

        Args:
            node: A call of a reduction.
            takes_keepdim: Whether `keepdim` comes after `dim`.
            first: Index of `dim` among the arguments.
        """
        self.keywords(node)
        if takes_keepdim and len(node.args) == first + 2:
            start, end = self.source.arguments_start(node), self.source.end(node) - 1
            self.source.insert(self.source.span(node.args[first + 1], start, end)[0], "keepdims=")
        if len(node.args) > first and isinstance(node.args[first], ast.List):
            self._as_tuple(node.args[first])

    def keywords(self, node: ast.Call) -> None:
        """Renames keyword arguments of a PyTorch call to their names in ``jax.numpy``; adds to-do comments for `device`
        and `requires_grad`.
        """
        for keyword in node.keywords:
            if keyword.arg in table("keywords"):
                self.source.rename_keyword(keyword, table("keywords")[keyword.arg])
                if isinstance(keyword.value, ast.List):
                    self._as_tuple(keyword.value)
            elif keyword.arg == "device":
                self.source.to_do(keyword, "`device`: JAX places arrays itself; leave it out.", _PAGE)
            elif keyword.arg == "requires_grad":
                self.source.to_do(
                    keyword, "`requires_grad`: leave it out; jax.grad selects the arguments to differentiate.", _PAGE
                )

    def _as_tuple(self, node: ast.expr) -> None:
        assert isinstance(node, ast.List)
        start, end = self.source.start(node), self.source.end(node)
        self.source.replace_span(start, start + 1, "(")
        self.source.replace_span(end - 1, end, ",)" if len(node.elts) == 1 else ")")

    def _deviation(self, node: ast.Call, name: str, value: ast.expr) -> None:
        """Rewrites calls of `std` and `var` of tensors so that they divide by the same number as in PyTorch.

        By default, PyTorch divides by n - 1, but NumPy and JAX divide by n. Adds the argument ``ddof=1``, or renames
        `unbiased` and `correction` to `ddof`. In other cases where the value may be a tensor, adds a to-do comment.
        """
        names = {keyword.arg: keyword for keyword in node.keywords}
        if set(names) & {"unbiased", "correction"}:
            keyword = names.get("unbiased") or names["correction"]
            given = getattr(keyword.value, "value", None)
            self.source.rename_keyword(keyword, "ddof")
            if isinstance(given, bool):
                self.source.replace(keyword.value, str(int(given)))
            return
        if "ddof" in names or "axis" in names:
            return
        kind = self.tensors.kind(value)
        is_tensor = kind in ("fresh", "shared") or "dim" in names
        if is_tensor and len(node.args) < 2 and not _is_bool(node.args):
            self.source.append(self.source.end(node) - 1, "ddof=1")
        elif kind not in ("other", "numpy"):
            self.source.to_do(node, f"`{name}` divides by n - 1 in PyTorch, by n here: add ddof=1 for a tensor.", _PAGE)

    # ---------------------------------------------------------------------------------------------- left to do by hand

    def _by_hand(self, node: ast.Call, function: ast.Attribute) -> None:
        name = function.attr
        is_tensor = self.tensors.is_tensor(function.value)
        names = {keyword.arg for keyword in node.keywords}
        if name in BY_HAND:
            self._note(node, name, BY_HAND[name])
        elif _IN_PLACE.fullmatch(name) or (is_tensor and re.fullmatch("[a-z]+_", name)):
            self._note(node, name, "arrays do not change in place: assign the result, such as x = x + 1.")
        elif name in ("max", "min") and (node.args or "dim" in names) and "axis" not in names:
            if not is_tensor and "dim" not in names and not is_axis(node.args[0]):
                return
            self._note(node, name, f"use x.{name}(axis=dim) for the values, x.arg{name}(axis=dim) for the indices.")
        elif name == "repeat" and node.args and "axis" not in names:
            self._note(node, name, "jnp.tile(x, sizes).")
        elif name == "sort" and (is_tensor or "dim" in names):
            self._note(node, name, "use jnp.sort(x, axis=dim) for values, jnp.argsort(x, axis=dim) for indices.")
        elif name == "split" and (is_tensor or "dim" in names):
            self._note(
                node, name, "jnp.split(x, n, axis=dim), where n is a number of parts or a list of indices, not a size."
            )
        elif name == "flatten" and (node.args or names & {"start_dim", "end_dim"}):
            self._note(node, name, "x.reshape(*x.shape[:start_dim], -1).")
        elif name == "norm" and (is_tensor or "dim" in names):
            self._note(node, name, "jnp.linalg.norm(x, axis=dim).")
        elif name == "t" and is_tensor:
            self.source.replace_span(self.source.end(function) - 1, self.source.end(node), "T")
        elif name == "item" and _TRACED.search(self._name_of_function(node)):
            self._note(node, name, "traced code has no Python numbers. Keep the array; metrics accept arrays.")

    def _note(self, node: ast.Call, name: str, advice: str) -> None:
        self.source.to_do(node, f"`{name}()` of a tensor: {advice}", _PAGE)

    def _name_of_function(self, node: ast.AST) -> str:
        return getattr(self.tensors.scope_of(node), "name", "")


def _is_bool(arguments: list[ast.expr]) -> bool:
    return any(isinstance(getattr(argument, "value", None), bool) for argument in arguments)


def is_axis(node: ast.expr) -> bool:
    """Whether an argument may be the index of an axis: a constant such as -1, or a name with "dim" or "axis" in it."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    name = getattr(node, "attr", getattr(node, "id", "")).lower()
    return isinstance(node, ast.Constant) or "dim" in name or "axis" in name
