"""Networks and arithmetic of PyTorch as Flax NNX and jax.numpy, as far as one call stands for one other."""

from __future__ import annotations

import ast
import re

from jaxrl_stack.migration.bindings import Bindings, is_try_import
from jaxrl_stack.migration.names import PAGE, is_rllibs, table, target_of
from jaxrl_stack.migration.source import Source, lines
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
_CASTS = {"float": "jnp.float32", "double": "jnp.float32", "long": "jnp.int32", "int": "jnp.int32", "bool": "jnp.bool_"}
_AROUND = {"detach": "jax.lax.stop_gradient(", "numpy": "np.asarray(", "unsqueeze": "jnp.expand_dims("}
"""Method of a tensor → the function of which the tensor is the first argument."""
_OF_MODULES = {
    "parameters": "jax.tree.leaves(module.get_state()) are the arrays of a module.",
    "named_parameters": "module.get_state() is a dict of arrays by name.",
    "state_dict": "module.get_state() is a dict of arrays by name.",
    "load_state_dict": "module.set_state() takes what get_state() returns; load_rllib_weights() reads RLlib's.",
    "register_buffer": "self.name = nnx.Variable(x).",
}
"""Method of PyTorch's modules → what to write."""
_OF_A_SHAPE = ("torch.ones", "torch.zeros")
_REDUCTIONS = ("all", "any", "argmax", "argmin", "cumsum", "mean", "prod", "squeeze", "std", "sum", "var")


def rewrite_torch(source: Source, bindings: Bindings) -> None:
    """Rewrite what is certain, note the rest, and take PyTorch's imports out where nothing needs them any more."""
    if any(full.partition(".")[0] == "torch" for full in bindings.full.values()):
        TorchCode(source, bindings).rewrite()
    if any(is_rllibs(full) for full in bindings.full.values()):
        _methods_of_modules(source)


def _methods_of_modules(source: Source) -> None:
    """Note what PyTorch's modules have and NNX's do not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_MODULES:
            source.to_do(node, f"`{node.func.attr}()` is PyTorch's: {_OF_MODULES[node.func.attr]}", _LAYERS)


class TorchCode:
    """The rewriting of one script.

    Args:
        source: The script.
        bindings: What its names stand for.
    """

    def __init__(self, source: Source, bindings: Bindings):
        self.source = source
        self.bindings = bindings
        self.needs: set[str] = set()
        self.done: set[ast.AST] = set()
        self.layers = Layers(source, self.full, self.uses)

    def rewrite(self) -> None:
        """Do it."""
        for node in ast.walk(self.source.tree):
            if node in self.done:
                continue
            if isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._value(node)
        left = self._left_over()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
                self._torch_import(node, left)
        self._add_imports()

    def full(self, node: ast.AST) -> str:
        """The full name of something of PyTorch's, ``torch.nn.functional`` for all spellings of it; else empty."""
        name = self.bindings.resolve(node)
        return name if name.partition(".")[0] == "torch" else ""

    def uses(self, node: ast.AST, text: str) -> str:
        """Note that `node` is written anew as `text`, and which imports that asks for; `text`."""
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
                    f"{method.name} is traced by JAX: no Python branch on values, and self.masked_mean(x, batch) for a "
                    "mean over steps.",
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
            self.source.replace(node, self.uses(node, "contextlib.nullcontext()"))
        elif full in ("torch.max", "torch.min") and len(node.args) == 2 and not isinstance(node.args[1], ast.Constant):
            self._rename(node.func, f"jnp.{full[6:]}imum")
        elif full in _OF_A_SHAPE and len(node.args) > 1 and all(map(_is_size, node.args)):
            self._rename(node.func, table("torch")[full])
            self.source.insert(self.source.start(node.args[0]), "(")
            self.source.insert(self.source.end(node.args[-1]), ")")
            self._keywords(node)
        elif full == "torch.nn.functional.mse_loss" and len(node.args) == 2 and not node.keywords:
            start, end = self.source.start(node), self.source.end(node.args[0])
            self.source.replace_span(
                start, self.source.start(node.args[0]), self.uses(node.func, "jnp.mean(jnp.square(")
            )
            self.source.replace_span(end, self.source.start(node.args[1]), " - (")
            self.source.insert(self.source.end(node), "))")
            self.uses(node.func, "jnp.")
        elif full in table("torch"):
            self._rename(node.func, table("torch")[full])
            self._keywords(node)
        elif not full and isinstance(node.func, ast.Attribute):
            self._method(node, node.func)

    def _activation(self, node: ast.Call, full: str) -> None:
        """``nn.ReLU()``: a function here, and without arguments."""
        self.source.replace(node, self.uses(node, table("activations")[full]))
        if node.args or any(keyword.arg != "inplace" for keyword in node.keywords):
            function = table("activations")[full]
            self.source.to_do(node, f"`{self.source.code_of(node)}` has arguments; {function} is a function.", _LAYERS)

    def _rename(self, node: ast.AST, text: str) -> None:
        self.source.replace(node, self.uses(node, text))

    def _keywords(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg in table("keywords"):
                self.source.rename_keyword(keyword, table("keywords")[keyword.arg])
                if isinstance(keyword.value, ast.List):
                    self._as_tuple(keyword.value)
            elif keyword.arg == "device":
                self.source.to_do(keyword, "`device`: JAX places arrays itself; leave it out.", _LAYERS)

    def _as_tuple(self, node: ast.List) -> None:
        start, end = self.source.start(node), self.source.end(node)
        self.source.replace_span(start, start + 1, "(")
        self.source.replace_span(end - 1, end, ",)" if len(node.elts) == 1 else ")")

    def _method(self, node: ast.Call, function: ast.Attribute) -> None:
        """A method of a tensor."""
        name, value = function.attr, function.value
        if self.bindings.resolve(value):  # a function of a module
            return
        if name in ("std", "var") and not node.args and not node.keywords:
            self.source.to_do(node, f"`{name}` of a tensor divides by n - 1 (ddof=1), of an array by n.", _LAYERS)
        after_value = self.source.end(value)
        if name == "permute" and [getattr(arg, "value", None) for arg in node.args] == [0, 3, 1, 2]:
            self.source.replace_span(after_value, self.source.end(node), "")
            self.source.to_do(node, "images stay [..., height, width, channels]: nnx.Conv takes them so.", _LAYERS)
        elif name == "permute" or (name == "view" and node.args):
            self.source.rename_attribute(function, {"permute": "transpose", "view": "reshape"}[name])
        elif name in _AROUND and (node.args if name == "unsqueeze" else not node.args):
            self.source.insert(self.source.start(node), _AROUND[name])
            self.needs.update(re.findall(r"\b(jax|jnp|np)\.", _AROUND[name]))
            first = self.source.start(node.args[0]) if node.args else self.source.end(node) - 1
            self.source.replace_span(after_value, first, ", " if node.args else "")
        elif name in _CASTS and not node.args and not node.keywords:
            self.source.replace_span(after_value, self.source.end(node), f".astype({_CASTS[name]})")
            self.needs.add("jnp")
        elif name == "cpu" and not node.args:
            self.source.replace_span(after_value, self.source.end(node), "")
        elif name == "size" and not node.keywords:
            self.source.replace_span(after_value, self._after_parenthesis(node), ".shape[" if node.args else ".shape")
            self.source.replace_span(self.source.end(node) - 1, self.source.end(node), "]" if node.args else "")
        elif name in _REDUCTIONS:
            self._keywords(node)

    def _after_parenthesis(self, node: ast.Call) -> int:
        return self.source.start(node.args[0]) if node.args else self.source.end(node) - 1

    def _initial_weights(self, node: ast.Call) -> None:
        """Comment out ``nn.init.zeros_(layer.bias)``: initial weights are an argument of a layer."""
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
        gap = f"\n{self.source.indentation(statement.lineno)}"
        commented = gap.join(f"# {line.strip()}" for line in code.splitlines())
        self.source.replace(statement, commented if self._has_others(statement) else f"{commented}{gap}pass")
        self.done.update(ast.walk(statement))

    def _has_others(self, statement: ast.stmt) -> bool:
        """Whether a block has statements other than those that set initial weights."""
        parent = self.source.parents[statement]
        blocks = (getattr(parent, name, []) for name in ("body", "orelse", "finalbody"))
        block = next(block for block in blocks if statement in block)
        calls = [getattr(getattr(other, "value", None), "func", None) for other in block]
        return not all(call is not None and self.full(call).startswith("torch.nn.init.") for call in calls)

    # --------------------------------------------------------------------------------------------------------- values

    def _value(self, node: ast.Attribute) -> None:
        full = self.full(node)
        if full in table("torch"):
            self._rename(node, table("torch")[full])
        elif full in table("activations"):  # a class that is handed on
            self._rename(node, f'"{node.attr.lower()}"')
        elif full.startswith("torch.nn.init."):
            self._rename(node, f'"{node.attr}"')

    def _left_over(self) -> bool:
        """Note what is still PyTorch's; whether there is anything."""
        left = False
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
        """Take out an import of PyTorch, or note it where something needs it still."""
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
            self.source.to_do(node, "PyTorch is used in lines below.", _LAYERS)
        elif not left and names:
            self.source.replace(node, f"import {', '.join(ast.unparse(alias) for alias in names)}")
        elif not left:
            self.source.delete_statement(node)

    def _add_imports(self) -> None:
        missing = [line for name, line in _IMPORTS.items() if name in self.needs and name not in self.bindings.full]
        imports = [node for node in self.source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if missing and imports:
            ordinary = [node for node in imports if getattr(node, "module", "") != "__future__"]
            first = (ordinary or imports)[0]
            self.source.insert_lines(first.lineno, "".join(f"{line}\n" for line in missing))


def _is_size(node: ast.AST) -> bool:
    return not isinstance(node, ast.Tuple | ast.List | ast.Starred)


_ADVICE = (
    (r"torch\.optim\.lr_scheduler", "a learning rate's schedule is training(lr=[[0, v0], [t1, v1]]).", _LOSSES),
    (r"torch\.optim", "optimizers are optax's: learner.register_optimizer(optimizer=optax.adam(lr)).", _LOSSES),
    (r"torch\.(cuda\.)?amp|torch\.autocast", "no loss scaling: bfloat16 needs none.", _LOSSES),
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
        "jax.random takes a key, such as self.rngs() of a module.",
        _LAYERS,
    ),
    (r"torch\.manual_seed|torch\.random", "debugging(seed=...) seeds everything.", _LAYERS),
    (r"torch\.(cuda|device|backends)", "JAX places arrays itself: leave it out.", _LAYERS),
    (r"torch\.nn\.functional\.gelu", "jax.nn.gelu(x, approximate=False) is the same function.", _LAYERS),
    (r"torch\.nn\.\w*Loss|torch\.nn\.functional\.\w*(loss|entropy)", "a loss is jax.numpy, or optax.losses.", _LOSSES),
    (r"torch\.nn", "a layer of flax.nnx takes its place.", _LAYERS),
)


def _advice(full: str) -> tuple[str, str]:
    """What to do about a name of PyTorch's, and the page."""
    for pattern, message, page in _ADVICE:
        if re.match(pattern, full):
            return f"`{full}`: {message}", page
    return f"`{full}`: use jax.numpy or jax.nn.", _LAYERS
