"""Inference of the kinds of expressions in a PyTorch script: tensor, NumPy array, other value, or unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from jaxrl_stack.migration.bindings import Bindings
from jaxrl_stack.migration.names import table

Kind = Literal["fresh", "shared", "numpy", "other", "unknown", "itself"]
"""Kinds of values in a script. "fresh": a tensor to which no other name refers yet. "shared": a tensor whose memory
another name may use. "numpy": a NumPy array with the memory of a tensor. "other": no tensor. "unknown": the script does
not determine the kind. "itself": the variable whose kind is being inferred, like the second ``x`` in ``x = x + 1``."""

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Module
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)

_LITERALS = (
    ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp,
    ast.GeneratorExp, ast.Lambda,
)  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_DEPTH = 50
"""Longest chain of names, each computed from the one before, that is followed."""
_BUILTINS = _words(
    "bool bytes dict enumerate filter float frozenset int len list map max min open range reversed round set sorted "
    "str sum tuple zip"
)
_SAME_MEMORY = _words(
    "as_tensor from_numpy bool bfloat16 contiguous cpu cuda data detach double expand flatten float half int long mT "
    "movedim narrow permute ravel real reshape short squeeze swapaxes T t to transpose type unbind unfold unsqueeze "
    "view view_as"
)
"""Functions, methods and attributes whose result may have the memory of a tensor."""
_NO_TENSORS = _words("dim dtype device item ndim numel ndimension shape size stride tolist")
"""Methods and attributes of tensors that are no tensors."""
TENSORS_ONLY = _words(
    "bfloat16 clamp contiguous cuda detach double expand_as float half log_softmax long masked_fill new_full new_ones "
    "new_tensor new_zeros scatter scatter_add softmax type_as unsqueeze view_as"
)
"""Methods that no array of NumPy and no container has."""
_MAKERS = _words(
    "bernoulli empty empty_like linspace logspace multinomial normal rand rand_like randint randn randn_like randperm "
    "tril triu"
)
"""Functions of ``torch`` without a counterpart that return new tensors."""
_STORES = _words("add append appendleft dict extend insert list put register_buffer setattr setdefault tuple update")
"""Functions and methods that keep their argument."""


class Tensors:
    """Infers the kind of each expression in one script: tensor, NumPy array, other value, or unknown.

    Args:
        tree: The script.
        parents: Node → its parent.
        bindings: The imported names.
        full: Function from a node to its full name in PyTorch, or an empty text.
    """

    def __init__(
        self, tree: ast.Module, parents: dict[ast.AST, ast.AST], bindings: Bindings, full: Callable[[ast.AST], str]
    ):
        self.parents = parents
        self.bindings = bindings
        self.full = full
        self._values: dict[ast.AST, dict[str, list[ast.expr | Kind]]] = {}
        self._not_local: dict[ast.AST, set[str]] = {}
        self._pending: set[tuple[ast.AST, str]] = set()
        self._kinds: dict[tuple[ast.AST, str], Kind] = {}
        self._globals = {
            name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
        }

    def scope_of(self, node: ast.AST) -> Scope:
        """Returns the innermost function, class or module that contains a syntax tree node."""
        node = self.parents[node]
        while not isinstance(node, _SCOPES):
            node = self.parents[node]
        return node

    def is_tensor(self, node: ast.expr) -> bool:
        return self.kind(node) in ("fresh", "shared")

    def may_be_tensor(self, node: ast.expr) -> bool:
        """Whether an expression may be a tensor: its kind is tensor, or it is a name to which its scope assigns a
        tensor.
        """
        values = self.values(self.scope_of(node), node.id) if isinstance(node, ast.Name) else None
        return self.is_tensor(node) or any(self.kind_of_value(value) in ("fresh", "shared") for value in values or [])

    def kind(self, node: ast.expr) -> Kind:
        """Infers the kind of an expression, such as tensor or NumPy array."""
        match node:
            case ast.Name():
                return self._of_name(node)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.kind(value) if not isinstance(node, ast.Await) else "unknown"
            case ast.UnaryOp(op=ast.Not()):
                return "other"
            case ast.UnaryOp(operand=operand):
                return self._computed([operand])
            case ast.BinOp(left=left, right=right):
                return self._computed([left, right])
            case ast.Compare(left=left, comparators=others):
                return self._computed([left, *others])
            case ast.IfExp(body=body, orelse=orelse):
                return _joined([self.kind(body), self.kind(orelse)])
            case ast.Subscript(value=value):
                return "shared" if self.is_tensor(value) else "unknown"
            case ast.Attribute(value=ast.Name(id="self")):
                return self._of_own_attribute(node)
            case ast.Attribute(value=value, attr=attr):
                return self._of_attribute(value, attr)
            case ast.Call():
                return self._of_call(node)
        return "other" if isinstance(node, _LITERALS) else "unknown"

    def values(self, scope: Scope, name: str) -> list[ast.expr | Kind] | None:
        """Values that a scope (function, class or module) assigns to a name; None if the name is not local to the
        scope.

        A value is an expression of the script. If the script has no expression for the value, as for a parameter or a
        loop variable, the entry is the value's kind (`Kind`), such as "unknown".
        """
        if scope not in self._values:
            self._values[scope], self._not_local[scope] = {}, set()
            for bound, value in self._bound_in(scope):
                self._values[scope].setdefault(bound, []).append(value)
        return None if name in self._not_local[scope] else self._values[scope].get(name)

    def kind_of_value(self, value: ast.expr | Kind) -> Kind:
        return value if isinstance(value, str) else self.kind(value)

    def is_only_name(self, scope: Scope, name: str) -> bool:
        """Whether each value assigned to a local variable is a new tensor that has no other name in the scope."""
        values = self.values(scope, name)
        if not values or name in self._globals:
            return False
        if any(self.kind_of_value(value) != "fresh" for value in values):
            return False
        loads = (
            node
            for node in ast.walk(scope)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        )
        return not any(self.is_handed_on(node) for node in loads)

    def is_handed_on(self, node: ast.AST) -> bool:
        """Whether a tensor or a view of it is passed to another name, container or object, which then shares its
        memory.
        """
        parent = self.parents[node]
        while True:
            match parent:
                case ast.Attribute(attr=attr) if attr in _SAME_MEMORY:
                    outer = self.parents[parent]
                    node = outer if isinstance(outer, ast.Call) and outer.func is parent else parent
                case ast.Subscript(value=value) if value is node and isinstance(parent.ctx, ast.Load):
                    node = parent
                case ast.IfExp() | ast.BoolOp() | ast.Starred() | ast.keyword():
                    node = parent
                case _:
                    break
            parent = self.parents[node]
        match parent:
            case ast.NamedExpr() | ast.AnnAssign() | ast.Set() | ast.Yield() | ast.YieldFrom():
                return True
            case ast.Assign(value=value):
                return value is node
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
                return iterated is node
            case ast.List() | ast.Tuple() | ast.Dict():
                outer = self.parents[parent]
                while isinstance(outer, ast.List | ast.Tuple | ast.Dict):
                    outer = self.parents[outer]
                is_argument = isinstance(outer, ast.Call) and self.full(outer.func).startswith("torch.")
                is_index = isinstance(outer, ast.Subscript) and outer.slice is parent
                return not (is_argument or is_index or isinstance(outer, ast.Return))
            case ast.Call(func=function) if function is not node:
                name = getattr(function, "attr", getattr(function, "id", ""))
                views = self.full(function).startswith("torch.") and name in _SAME_MEMORY
                return name in _STORES or name[:1].isupper() or (views and self.is_handed_on(parent))
        return False

    # -------------------------------------------------------------------------------------------------------- kinds

    def _of_name(self, node: ast.Name) -> Kind:
        scope = self.scope_of(node)
        while True:
            values = self.values(scope, node.id)
            if values is not None or isinstance(scope, ast.Module):
                break
            scope = self.scope_of(scope)
            while isinstance(scope, ast.ClassDef):  # functions do not see the names of the class around them
                scope = self.scope_of(scope)
        return self._of_values((scope, node.id), values) if values else "unknown"

    def _of_values(self, key: tuple[ast.AST, str], values: Sequence[ast.expr | Kind]) -> Kind:
        """Infers the kind (`Kind`, such as tensor or NumPy array) of a variable from the values that the script assigns
        to it.

        The variable is a name or an attribute of `self`.
        """
        if key in self._pending:
            return "itself"
        if key not in self._kinds:
            if len(self._pending) == _MAX_DEPTH:
                return "unknown"
            self._pending.add(key)
            kind = _joined([self.kind_of_value(value) for value in values])
            self._pending.discard(key)
            self._kinds[key] = "shared" if kind == "fresh" else kind
        return self._kinds[key]

    def _computed(self, operands: list[ast.expr]) -> Kind:
        """Infers the kind (`Kind`, such as tensor or NumPy array) of an operator's result from the operator's operands.

        The kind is "fresh" (a new tensor) if any operand is a tensor, "other" (no tensor) if all operands are "other"
        or "numpy", else "unknown".
        """
        kinds = [self.kind(operand) for operand in operands]
        if "fresh" in kinds or "shared" in kinds:
            return "fresh"
        return "other" if all(kind in ("other", "numpy") for kind in kinds) else "unknown"

    def _of_attribute(self, value: ast.expr, attr: str) -> Kind:
        if attr in _NO_TENSORS or self.bindings.resolve(value):
            return "other" if attr in _NO_TENSORS else "unknown"
        kind = self.kind(value)
        return kind if attr in ("T", "mT", "data", "real") and kind in ("fresh", "shared") else "unknown"

    def _of_own_attribute(self, node: ast.Attribute) -> Kind:
        """Infers the kind (`Kind`, such as tensor or NumPy array) of the attribute ``self.name`` from all assignments
        to this attribute in the class.
        """
        owner: ast.AST = self.scope_of(node)
        while owner in self.parents and not isinstance(owner, ast.ClassDef):
            owner = self.parents[owner]
        if not isinstance(owner, ast.ClassDef):
            return "unknown"
        stores = (
            self.parents[other]
            for other in ast.walk(owner)
            if isinstance(other, ast.Attribute) and isinstance(other.ctx, ast.Store) and other.attr == node.attr
        )
        statements = [statement for statement in stores if not isinstance(statement, ast.AugAssign)]
        values = [statement.value for statement in statements if isinstance(statement, ast.Assign | ast.AnnAssign)]
        known = [value for value in values if value is not None]
        return self._of_values((owner, node.attr), known) if known and len(known) == len(statements) else "unknown"

    def _of_call(self, node: ast.Call) -> Kind:
        name = self.bindings.resolve(node.func)
        if name.startswith("torch."):
            return self._of_function(node, name)
        if name.partition(".")[0] in ("collections", "flax", "itertools", "math", "numpy", "random"):
            return "other"
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            return "other"
        if name or not isinstance(node.func, ast.Attribute):
            return "unknown"
        method, receiver = node.func.attr, self.kind(node.func.value)
        if method == "numpy":
            return "numpy"
        if method == "clone":
            return "fresh"
        if method in _NO_TENSORS:
            return "other"
        if receiver not in ("fresh", "shared"):
            # PyTorch's method says what it is called on.
            return ("shared" if method in _SAME_MEMORY else "fresh") if method in TENSORS_ONLY else "unknown"
        if method in _SAME_MEMORY:
            return receiver
        returns_several = method in ("sort", "topk", "chunk", "split") or (method in ("max", "min") and node.args)
        return "unknown" if returns_several else "fresh"

    def _of_function(self, node: ast.Call, name: str) -> Kind:
        short = name.removeprefix("torch.")
        if short in _SAME_MEMORY:
            return "shared"
        if short in _MAKERS or name in table("torch") or name.startswith("torch.nn.functional."):
            return "fresh"
        return "other" if name.startswith("torch.nn.") else "unknown"

    # ------------------------------------------------------------------------------------------------------ bindings

    def _bound_in(self, scope: Scope) -> Iterator[tuple[str, ast.expr | Kind]]:
        """Yields ``(name, value)`` for each name that a scope (function, class or module) binds by an assignment, loop,
        ``with``, ``except``, import, definition or parameter.

        The value is the assigned expression. If the script has no expression for the value, as for a parameter or a
        loop variable, it is a `Kind` instead, such as "unknown". Also adds the names that the scope declares global or
        nonlocal to ``self._not_local[scope]``.
        """
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for arg in ast.walk(scope.args):
                if isinstance(arg, ast.arg):
                    is_tensor = arg.annotation is not None and self.full(arg.annotation) == "torch.Tensor"
                    yield arg.arg, "shared" if is_tensor else "unknown"
        for node in _inside(scope):
            match node:
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self._not_local[scope].update(names)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        yield from _pairs(target, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    yield name, value
                case ast.NamedExpr(target=ast.Name(id=name), value=value):
                    yield name, value
                case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                    yield from _pairs(target, None)
                case ast.withitem(optional_vars=ast.expr() as target):
                    yield from _pairs(target, None)
                case ast.ExceptHandler(name=str(name)):
                    yield name, "other"
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name, "other"
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    for alias in names:
                        yield (alias.asname or alias.name.partition(".")[0]), "unknown"


def _inside(scope: Scope) -> Iterator[ast.AST]:
    """Yields the syntax tree nodes of a function, class or module, except those inside of nested functions
    and classes.
    """
    body = scope.body if isinstance(scope.body, list) else [scope.body]
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _pairs(target: ast.AST, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | Kind]]:
    """Yields each variable that an assignment sets, and the expression assigned to it, as ``(name, value)``.

    For ``a, b = 1, f(x)``, yields the name ``"a"`` with the syntax tree node of ``1``, and ``"b"`` with the node of
    ``f(x)``. If the script has no separate expression for a variable, as in ``a, b = f()``, the value is the kind
    "unknown".

    Args:
        target: Syntax tree node of the assignment's left side, or of the target of a loop or ``with`` statement.
        value: Syntax tree node of the assignment's right side; None if the script has no such expression, as for a loop
            or ``with`` statement.
    """
    if isinstance(target, ast.Name):
        yield target.id, "unknown" if value is None else value
    elif isinstance(target, ast.Starred):
        yield from _pairs(target.value, None)
    elif isinstance(target, ast.Tuple | ast.List):
        values: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            values = [*value.elts]
        for part, of_part in zip(target.elts, values, strict=True):
            yield from _pairs(part, of_part)


def _joined(kinds: list[Kind]) -> Kind:
    """Combines the kinds of a variable's or expression's possible values into one kind (`Kind`, such as tensor or NumPy
    array).

    Equal kinds give this kind. New tensors ("fresh") mixed with tensors whose memory another name may use ("shared")
    give "shared". Other mixtures give "unknown". Ignores the kind "itself" (the variable whose kind is being inferred);
    if no other kind is given, the result is "unknown".
    """
    kinds = [kind for kind in kinds if kind != "itself"] or ["unknown"]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    return "shared" if all(kind in ("fresh", "shared") for kind in kinds) else "unknown"
