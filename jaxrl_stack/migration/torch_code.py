"""Rewriting of PyTorch networks and arithmetic as Flax NNX and jax.numpy, call by call."""

from __future__ import annotations

import ast
import re

from jaxrl_stack.migration.bindings import Bindings, is_try_import
from jaxrl_stack.migration.item_assignment import ItemAssignments
from jaxrl_stack.migration.names import PAGE, is_rllibs, table, target_of
from jaxrl_stack.migration.source import SourceCode, lines
from jaxrl_stack.migration.tensor_methods import BY_HAND, TensorMethods, is_axis
from jaxrl_stack.migration.tensors import Tensors
from jaxrl_stack.migration.torch_layers import LAYERS, Layers

_LAYERS = f"{PAGE}#from-torch-to-nnx"
_LOSSES = f"{PAGE}#losses-and-learners"
_IMPORTS = {
    "contextlib": "import contextlib",
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "nnx": "from flax import nnx",
}
"""Name in new code → the import that brings it."""
_OF_MODULES = {
    "parameters": "jax.tree.leaves(module.get_state()) returns the arrays of a module.",
    "named_parameters": "module.get_state() is a dict of arrays by name.",
    "state_dict": "module.get_state() is a dict of arrays by name.",
    "load_state_dict": "module.set_state() takes what get_state() returns; load_rllib_weights() reads RLlib's.",
    "register_buffer": "self.name = nnx.Variable(x).",
}
"""Method of PyTorch's modules → what to write."""
_OF_A_SHAPE = ("torch.ones", "torch.zeros")
_WITH_KEEPDIM = ("all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "mean", "prod", "sum")
"""Functions whose third argument is `keepdim`."""
_AROUND_ANYTHING = (ast.Call, ast.keyword, ast.Assign, ast.Return, ast.List, ast.Tuple, ast.Dict)
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
_OF_VALUES = {"FloatTensor": "jnp.float32", "LongTensor": "jnp.int32", "Tensor": "jnp.float32"}
"""Class of tensors → type of what it makes of values."""


def rewrite_torch(source: SourceCode, bindings: Bindings) -> None:
    """Rewrites PyTorch code that has an unambiguous counterpart, adds to-do comments for other PyTorch code, and
    deletes unused PyTorch imports.
    """
    if any(full.partition(".")[0] == "torch" or _is_of_torch(full) for full in bindings.full.values()):
        TorchCode(source, bindings).rewrite()
    if any(is_rllibs(full) for full in bindings.full.values()):
        _methods_of_modules(source)


def _is_of_torch(full: str) -> bool:
    """Whether a name of RLlib is specific to PyTorch, such as TorchRLModule."""
    return is_rllibs(full) and "torch" in full.lower()


def _methods_of_modules(source: SourceCode) -> None:
    """Adds a to-do comment to each call of a PyTorch module method that NNX modules lack."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_MODULES:
            source.to_do(node, f"`{node.func.attr}()` is PyTorch's: {_OF_MODULES[node.func.attr]}", _LAYERS)


class TorchCode:
    """Rewrites the PyTorch code of one script.

    Args:
        source: The script.
        bindings: Meanings of its names.
    """

    def __init__(self, source: SourceCode, bindings: Bindings):
        self.source = source
        self.bindings = bindings
        self.needs: set[str] = set()
        self.done: set[ast.AST] = set()
        self.is_left = False
        self.layers = Layers(source, self.full, self.uses)
        self.tensors = Tensors(source.tree, source.parents, bindings, self.full)
        self.methods = TensorMethods(source, bindings, self.tensors, self.full, self.uses, self.needs)

    def rewrite(self) -> None:
        """Rewrites the PyTorch code and imports of the script."""
        for node in ast.walk(self.source.tree):
            if node in self.done:
                continue
            if isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                self._value(node)
        ItemAssignments(self.source, self.bindings, self.tensors).rewrite()
        left = self._left_over()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
                self._torch_import(node, left)
        self._add_imports()

    def full(self, node: ast.AST) -> str:
        """Resolves an expression in a script, such as ``F.relu``, to the full PyTorch name, such as
        ``torch.nn.functional.relu``. Returns "" for names outside of PyTorch.
        """
        name = self.bindings.resolve(node)
        return name if name.partition(".")[0] == "torch" else ""

    def uses(self, node: ast.AST, text: str) -> str:
        """Marks the syntax tree node `node` as rewritten to `text`, and records the imports that `text` needs; returns
        `text`.
        """
        self.done.update(ast.walk(node))
        self.needs.update(re.findall(r"\b(contextlib|jax|jnp|np|nnx)\.", text))
        return text

    # -------------------------------------------------------------------------------------------------------- classes

    def _class(self, node: ast.ClassDef) -> None:
        bases = [self.full(base) for base in node.bases]
        if "torch.nn.Module" in bases:
            self.layers.network(node)
        if not any(self._is_learner(base) for base in node.bases):
            return
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and "loss" in method.name and self._touches_torch(method):
                self.source.to_do(
                    lines(method.lineno, method.lineno),
                    f"{method.name} is traced by JAX: use no Python branch on values, and self.masked_mean(x, batch) "
                    "for a mean over steps.",
                    _LOSSES,
                )

    def _is_learner(self, base: ast.expr) -> bool:
        module, _, name = self.bindings.resolve(base).rpartition(".")
        return module.startswith("ray.rllib") and target_of(module, name).name.endswith("Learner")

    def _touches_torch(self, tree: ast.AST) -> bool:
        return any(self.full(node) for node in ast.walk(tree))

    # ---------------------------------------------------------------------------------------------------------- calls

    def _call(self, node: ast.Call) -> None:
        full = self.full(node.func)
        if full.startswith("torch.nn.init."):
            self._initial_weights(node)
        elif full in table("activations"):
            self._activation(node, full)
        elif full in LAYERS:
            self.layers.layer(node, LAYERS[full])
        elif full in ("torch.no_grad", "torch.inference_mode"):
            self._no_gradients(node)
        elif full in ("torch.max", "torch.min") and len(node.args) == 2:
            if not is_axis(node.args[1]):
                self._rename(node.func, f"jnp.{full[6:]}imum")
        elif full in _OF_A_SHAPE and node.args and (len(node.args) > 1 or isinstance(node.args[0], ast.Starred)):
            self._sizes(node, full)
        elif full == "torch.nn.functional.mse_loss" and len(node.args) == 2 and not node.keywords:
            self._mean_squared_error(node)
        elif full.removeprefix("torch.") in _OF_VALUES:
            self._tensor_of_values(node, _OF_VALUES[full.removeprefix("torch.")])
        elif full in table("torch"):
            self._rename(node.func, table("torch")[full])
            self.methods.axes(node, takes_keepdim=full.removeprefix("torch.") in _WITH_KEEPDIM, first=1)
        elif not full and isinstance(node.func, ast.Attribute):
            self.methods.rewrite(node, node.func)

    def _no_gradients(self, node: ast.Call) -> None:
        """Rewrites a call of ``torch.no_grad()`` or ``torch.inference_mode()``.

        A context becomes ``contextlib.nullcontext()``, a decorator becomes a comment. Adds a to-do comment where
        gradients may matter. JAX has no such context: it computes gradients of functions only.
        """
        parent = self.source.parents[node]
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and node in parent.decorator_list:
            self.uses(node, "")
            self.source.replace_span(
                self.source.before(self.source.start(node)).start, self.source.end(node), "# no_grad"
            )
        else:
            self.source.replace(node, self.uses(node, "contextlib.nullcontext()"))
        name = getattr(self.tensors.scope_of(node), "name", "")
        if re.search("loss|forward|compute|target", name) and "inference" not in name:
            self.source.to_do(
                node, "gradients flow here: put jax.lax.stop_gradient(x) around values they must not reach.", _LAYERS
            )

    def _sizes(self, node: ast.Call, full: str) -> None:
        """Rewrites ``torch.zeros(2, 3)`` with its sizes as a tuple, as jax.numpy requires."""
        start, end = self.source.arguments_start(node), self.source.end(node) - 1
        self._rename(node.func, table("torch")[full])
        self.source.insert(self.source.span(node.args[0], start, end)[0], "(")
        self.source.insert(self.source.span(node.args[-1], start, end)[1], "," * (len(node.args) == 1) + ")")
        self.methods.keywords(node)

    def _mean_squared_error(self, node: ast.Call) -> None:
        start, end = self.source.arguments_start(node), self.source.end(node) - 1
        for argument, is_last in zip(node.args, (False, True), strict=True):
            first, last = self.source.span(argument, start, end)
            if not isinstance(argument, _ATOMS) and first == self.source.start(argument):
                self.source.insert(first, "(")
                self.source.insert(last, ")")
            if not is_last:
                comma = self.source.after(last)
                self.source.replace_span(last, comma.end, " -")
        self._rename(node.func, "jnp.mean")
        self.source.insert(start, "jnp.square(")
        self.source.insert(end, ")")

    def _tensor_of_values(self, node: ast.Call, dtype: str) -> None:
        """Rewrites ``torch.Tensor([1, 2])`` as ``jnp.asarray([1, 2], dtype=...)``; a call with sizes gets a to-do
        comment.
        """
        if len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple | ast.ListComp) and not node.keywords:
            self._rename(node.func, "jnp.asarray")
            self.source.append(self.source.end(node) - 1, f"dtype={dtype}")
            self.needs.add("jnp")
        else:
            self.done.update(ast.walk(node.func))
            self.is_left = True
            self.source.to_do(node, f"use jnp.asarray(values, {dtype}), or jnp.zeros(sizes) for sizes.", _LAYERS)

    def _activation(self, node: ast.Call, full: str) -> None:
        """Rewrites ``nn.ReLU()`` as a function such as ``nnx.relu``, which is passed without a call."""
        new = self.uses(node, table("activations")[full])
        parent = self.source.parents[node]
        stands_free = isinstance(parent, _AROUND_ANYTHING) and getattr(parent, "func", None) is not node
        self.source.replace(node, new if stands_free or not new.startswith("lambda") else f"({new})")
        if node.args or any(keyword.arg != "inplace" for keyword in node.keywords):
            function = table("activations")[full]
            self.source.to_do(node, f"`{self.source.code_of(node)}` has arguments; {function} is a function.", _LAYERS)

    def _rename(self, node: ast.AST, text: str) -> None:
        self.source.replace(node, self.uses(node, text))

    def _initial_weights(self, node: ast.Call) -> None:
        """Comments out ``nn.init.zeros_(layer.bias)``, because layers of Flax NNX take initializers as arguments."""
        statement = self.source.statement_of(node)
        code = self.source.code_of(statement)
        if not isinstance(statement, ast.Expr) or statement.value is not node:
            return
        name = str(getattr(node.func, "attr", "")).rstrip("_")
        self.source.to_do(
            statement,
            f"initial weights are an argument of the layer: kernel_init= or bias_init=nnx.initializers.{name}...",
            _LAYERS,
        )
        if not self.source.is_alone(statement):
            self.source.replace(statement, "pass")
            self.done.update(ast.walk(statement))
            return
        gap = f"\n{self.source.indentation(statement.lineno)}"
        commented = gap.join(f"# {line.strip()}" for line in code.splitlines())
        self.source.replace(statement, commented if self._has_others(statement) else f"{commented}{gap}pass")
        self.done.update(ast.walk(statement))

    def _has_others(self, statement: ast.stmt) -> bool:
        """Whether the block of code around a statement contains anything other than calls of ``torch.nn.init``. If not,
        the block needs a ``pass`` when these calls become comments.
        """
        parent = self.source.parents[statement]
        blocks = (getattr(parent, name, []) for name in ("body", "orelse", "finalbody"))
        block = next(block for block in blocks if statement in block)
        calls = [getattr(getattr(other, "value", None), "func", None) for other in block]
        return not all(call is not None and self.full(call).startswith("torch.nn.init.") for call in calls)

    # --------------------------------------------------------------------------------------------------------- values

    def _value(self, node: ast.Attribute | ast.Name) -> None:
        full = self.full(node)
        name = full.rpartition(".")[2]
        if full in table("torch"):
            self._rename(node, table("torch")[full])
        elif full in table("activations"):  # a class that is handed on
            self._rename(node, f'"{name.lower()}"')
        elif full.startswith("torch.nn.init."):
            self._rename(node, f'"{name}"')

    def _left_over(self) -> bool:
        """Adds to-do comments for PyTorch names that were not rewritten; returns whether the script still
        uses PyTorch.
        """
        left = self.is_left
        for node in ast.walk(self.source.tree):
            full = self.full(node)
            outer = isinstance(self.source.parents.get(node), ast.Attribute)
            if not full or node in self.done or outer or not isinstance(node, ast.Name | ast.Attribute):
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                continue
            left = True
            self.source.to_do(node, *_advice(full))
        return left

    # -------------------------------------------------------------------------------------------------------- imports

    def _torch_import(self, node: ast.Import | ast.ImportFrom | ast.Assign, left: bool) -> None:
        """Deletes an import of PyTorch, or adds a to-do comment if PyTorch is still used."""
        if isinstance(node, ast.Assign):
            is_torchs = isinstance(node.value, ast.Call) and is_try_import(node.value.func)
            names = []
        elif isinstance(node, ast.ImportFrom):
            is_torchs, names = (node.module or "").partition(".")[0] == "torch", []
        else:
            names = [alias for alias in node.names if alias.name.partition(".")[0] != "torch"]
            is_torchs = len(names) < len(node.names)
        if not is_torchs:
            return
        if left and not isinstance(node, ast.Assign):
            self.source.to_do(node, "code below still uses PyTorch.", _LAYERS)
        elif not left and names:
            self.source.replace(node, f"import {', '.join(ast.unparse(alias) for alias in names)}")
        elif not left:
            self.source.delete_statement(node)

    def _add_imports(self) -> None:
        missing = [line for name, line in _IMPORTS.items() if name in self.needs and name not in self.bindings.full]
        if not missing:
            return
        body = self.source.tree.body
        ordinary = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        ordinary = [node for node in ordinary if getattr(node, "module", "") != "__future__"]
        is_head = [
            isinstance(getattr(node, "value", None), ast.Constant) or getattr(node, "module", "") == "__future__"
            for node in body
        ]
        first = ordinary[0] if ordinary else body[is_head.index(False) if False in is_head else -1]
        decorators = getattr(first, "decorator_list", [])
        line = min([first.lineno, *(decorator.lineno for decorator in decorators)])
        self.source.insert_lines(line, "".join(f"{line}\n" for line in missing))


_ADVICE = (
    (
        r"torch\.(max|min)$",
        "use x.max(axis=dim) for the values, x.argmax(axis=dim) for the indices; the same for min.",
        _LAYERS,
    ),
    (r"torch\.\w+Tensor$", "jnp.asarray(values, dtype), x.astype(dtype).", _LAYERS),
    (r"torch\.optim\.lr_scheduler", "set a schedule: training(lr=[[0, v0], [t1, v1]]).", _LOSSES),
    (r"torch\.optim", "use optax: learner.register_optimizer(optimizer=optax.adam(lr)).", _LOSSES),
    (r"torch\.(cuda\.)?amp|torch\.autocast", "leave it out: bfloat16 needs no loss scaling.", _LOSSES),
    (
        r"torch\.nn\.(LSTM|GRU|RNN)",
        "use model_config={'use_lstm': True}, or nnx.RNN in a module with a state.",
        _LAYERS,
    ),
    (
        r"torch\.onnx",
        "Policy.export(path) writes a compiled program without Python code.",
        f"{PAGE}#if-this-hurt-you-in-rllib-look-here",
    ),
    (
        r"torch\.(rand|normal|bernoulli|multinomial)",
        "use jax.random with a key, such as self.rngs() of a module.",
        _LAYERS,
    ),
    (r"torch\.manual_seed|torch\.random", "use debugging(seed=...), which seeds everything.", _LAYERS),
    (r"torch\.(cuda|device|backends)", "leave it out: JAX places arrays.", _LAYERS),
    (r"torch\.nn\.functional\.gelu", "use jax.nn.gelu(x, approximate=False), the same function.", _LAYERS),
    (r"torch\.nn\.\w*Loss|torch\.nn\.functional\.\w*(loss|entropy)", "use jax.numpy or optax.losses.", _LOSSES),
    (r"torch\.nn", "use a layer of flax.nnx.", _LAYERS),
)


def _advice(full: str) -> tuple[str, str]:
    """Returns ``(message, page)`` for a to-do comment about a PyTorch name.

    `message` suggests a replacement for the name; `page` is the address of the documentation section to which the
    comment refers.
    """
    for pattern, message, page in _ADVICE:
        if re.match(pattern, full):
            return f"`{full}`: {message}", page
    by_hand = BY_HAND.get(full.removeprefix("torch."), "use jax.numpy or jax.nn.")
    return f"`{full}`: {by_hand}", _LAYERS
