"""Item assignments to tensors, such as ``a[0] = 5``, which JAX arrays do not support."""

from __future__ import annotations

import ast

from jaxrl_stack.migration.bindings import Bindings
from jaxrl_stack.migration.names import PAGE
from jaxrl_stack.migration.source import SourceCode
from jaxrl_stack.migration.tensors import TENSORS_ONLY, Tensors

_PAGE = f"{PAGE}#from-torch-to-nnx"
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@",
}  # fmt: skip
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
_PURE = (
    ast.Name, ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.Attribute, ast.operator, ast.unaryop,
    ast.expr_context,
)  # fmt: skip


class ItemAssignments:
    """Rewrites the item assignments of one script.

    Args:
        source: The script.
        bindings: The imported names.
        tensors: Kinds of its expressions.
    """

    def __init__(self, source: SourceCode, bindings: Bindings, tensors: Tensors):
        self.source = source
        self.bindings = bindings
        self.tensors = tensors

    def rewrite(self) -> None:
        """Rewrites item assignments such as ``a[i] = x`` as ``a = a.at[i].set(x)`` if ``a`` is a tensor to which no
        other name refers.

        Adds to-do comments for other assignments that may change tensors in place.
        """
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                self._item(node)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name | ast.Attribute):
                self._augmented(node, node.target)

    def _augmented(self, statement: ast.AugAssign, target: ast.Name | ast.Attribute) -> None:
        """Adds a to-do comment for ``a += 1`` if other names may refer to the same tensor: PyTorch changes the tensor,
        but JAX creates another array.
        """
        if self.tensors.may_be_tensor(target) and not self._has_one_name(target):
            code = self.source.code_of(target)
            self.source.to_do(
                statement, f"`{code}` becomes a new array here; other names of the tensor keep the old values.", _PAGE
            )

    def _item(self, item: ast.Subscript) -> None:
        kind = self.tensors.kind(item.value)
        statement = self.source.parents[item]
        if kind in ("fresh", "shared"):
            if not self._rewrite(item, statement):
                self._note(item, "`{code}` is assigned in place, which arrays do not allow.")
        elif self._holds_numpy_of_tensor(item.value):
            self.source.to_do(
                item, "`np.asarray` of a JAX array cannot be written to: np.array(x) makes a copy that can.", _PAGE
            )
        elif kind == "unknown" and self._may_be_tensor(item, statement):
            self._note(item, "if `{base}` is a tensor: arrays do not allow assignments to `{code}`.")

    # -------------------------------------------------------------------------------------------------------- notes

    def _note(self, item: ast.Subscript, message: str) -> None:
        base, index = self.source.code_of(item.value), self.source.code_of(item.slice)
        words = message.format(base=base, code=self.source.code_of(item))
        advice = f"{words} Write {base} = {base}.at[{index}].set(...); other names of the tensor keep its old values."
        self.source.to_do(item, " ".join(advice.split()), _PAGE)

    def _holds_numpy_of_tensor(self, base: ast.expr) -> bool:
        if not isinstance(base, ast.Name):
            return self.tensors.kind(base) == "numpy"
        values = self.tensors.values(self.tensors.scope_of(base), base.id) or []
        return any(self.tensors.kind_of_value(value) == "numpy" for value in values)

    def _may_be_tensor(self, item: ast.Subscript, statement: ast.AST) -> bool:
        """Whether an item assignment such as ``a[i] = x`` may change a tensor.

        True if tensors accept the index ``i`` and the value ``x``, and the enclosing function uses PyTorch or is a
        method of a module or learner. Always True for ``a[...] = x`` and ``a[None] = x``.
        """
        index = item.slice
        if isinstance(index, ast.Constant | ast.JoinedStr) and not isinstance(getattr(index, "value", ""), int):
            return getattr(index, "value", "") in (None, Ellipsis)
        if isinstance(index, ast.Attribute) and (index.attr.isupper() or index.attr.endswith(("id", "name", "key"))):
            return False  # Columns.OBS
        if isinstance(index, ast.Name) and (index.id.isupper() or index.id.endswith(("id", "name", "key"))):
            return False
        value = getattr(statement, "value", None)
        if isinstance(value, ast.JoinedStr | ast.Dict | ast.List | ast.ListComp | ast.DictComp | ast.Set | ast.Lambda):
            return False
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bytes | None):
            return False
        if isinstance(item.ctx, ast.Del):
            return False
        scope = self.tensors.scope_of(item)
        return self._touches_torch(scope) or self._is_in_module(scope)

    def _touches_torch(self, scope: ast.AST) -> bool:
        return any(
            self.bindings.resolve(node).partition(".")[0] == "torch"
            or (isinstance(node, ast.Attribute) and node.attr in TENSORS_ONLY)
            for node in ast.walk(scope)
        )

    def _is_in_module(self, scope: ast.AST) -> bool:
        """Whether a function is a method of a module or a learner: a class with a base class named ``*Module``,
        ``*RLM`` or ``*Learner``.
        """
        owner = self.source.parents.get(scope)
        bases = owner.bases if isinstance(owner, ast.ClassDef) else []
        names = [self.bindings.resolve(base) or getattr(base, "id", "") for base in bases]
        return any(name.endswith(("Module", "RLM", "Learner")) for name in names)

    # ------------------------------------------------------------------------------------------------------ rewriting

    def _rewrite(self, item: ast.Subscript, statement: ast.AST) -> bool:
        """Rewrites ``a[i] = x`` as ``a = a.at[i].set(x)`` if no other name refers to the tensor ``a``. Returns True if
        the assignment was rewritten.
        """
        if isinstance(statement, ast.Assign):
            fits = statement.targets == [item]
        elif isinstance(statement, ast.AugAssign):  # the index is written twice
            fits = statement.target is item and all(isinstance(node, _PURE) for node in ast.walk(item.slice))
            fits = fits and not any(self.bindings.resolve(node) for node in ast.walk(item.slice))
        else:
            return False
        if not fits or not self._has_one_name(item.value):
            return False
        source, base = self.source, self.source.code_of(item.value)
        bracket, operator = source.after(source.end(item.value)), source.after(source.end(item))
        if bracket.text != "[" or source.start(item) != source.start(statement) or not operator.text.endswith("="):
            return False  # parentheses around the target
        value, opening, closing = statement.value, ".set(", ")"
        has_brackets = source.span(value, 0, source.end(statement)) != (source.start(value), source.end(value))
        if isinstance(statement, ast.AugAssign):
            opening += f"{source.code_of(item)} {_OPERATORS[type(statement.op)]} "
            needs_brackets = not isinstance(value, _ATOMS)
        else:
            needs_brackets = isinstance(value, ast.Tuple | ast.Yield | ast.YieldFrom)
        if needs_brackets and not has_brackets:
            opening, closing = f"{opening}(", f"){closing}"
        first = source.after(operator.end)
        source.insert(source.start(statement), f"{base} = ")
        source.replace_span(bracket.start, bracket.end, ".at[")
        source.replace_span(source.end(item), first.start, opening)
        source.insert(source.end(statement), closing)
        return True

    def _has_one_name(self, base: ast.expr) -> bool:
        scope = self.tensors.scope_of(base)
        if isinstance(base, ast.Name):
            return self.tensors.is_only_name(scope, base.id)
        return isinstance(base, ast.Attribute) and self._is_own_attribute(base, scope)

    def _is_own_attribute(self, base: ast.Attribute, scope: ast.AST) -> bool:
        """Whether each value assigned to ``self.name`` is a new tensor that has no other name."""
        owner = self.source.parents.get(scope)
        if not isinstance(owner, ast.ClassDef) or getattr(base.value, "id", "") != "self" or self._is_in_module(scope):
            return False
        same = [node for node in ast.walk(owner) if isinstance(node, ast.Attribute) and _same(node, base)]
        for node in same:
            parent = self.source.parents[node]
            if isinstance(node.ctx, ast.Load):
                if self.tensors.is_handed_on(node):
                    return False
            elif isinstance(parent, ast.Assign):
                if self.tensors.kind(parent.value) != "fresh":
                    return False
            elif not isinstance(parent, ast.AugAssign):
                return False
        return any(isinstance(node.ctx, ast.Store) for node in same)


def _same(node: ast.Attribute, other: ast.Attribute) -> bool:
    return node.attr == other.attr and getattr(node.value, "id", "") == "self"
