"""Search for the classes and functions in a checkpoint that the caller must list in ``allow``.

The search runs before any object of the checkpoint is built.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.checkpoints.plain_data import EXPECTED_BASES, KIND, Constructible, Plain
from jaxrl_stack.utils.class_paths import PACKAGE, ClassLoader, NotAllowedError, path_of

if TYPE_CHECKING:
    from jaxrl_stack.checkpoints.files import Component

_NAMED = {"class": "value", "function": "value", "plain": "class", "object": "class"}
"""Kind of a JSON node that names code -> its key for the name."""


def code_in(node: Any, name: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the classes and functions to which a JSON node of a checkpoint refers.

    Each item is ``("module:Name", names of the expected base classes)``. The names are () if no base class is expected.

    Args:
        node: Result of `Encoder.encode`.
        name: Name of the stored value; see `EXPECTED_BASES`.
    """
    if isinstance(node, list):
        for item in node:
            yield from code_in(item, name)
    if not isinstance(node, dict):
        return
    kind = node.get(KIND)
    path = node.get(_NAMED[kind]) if isinstance(kind, str) and kind in _NAMED else None
    if isinstance(path, str):
        bases = {"class": EXPECTED_BASES.get(name, ()), "plain": (path_of(Plain),), "object": (path_of(Constructible),)}
        yield path, bases.get(str(kind), ())
    for key, item in node.items():
        if kind is None or isinstance(item, dict):
            yield from code_in(item, key)
        else:
            # Items of sequences have the name of these; positional arguments and pairs have none.
            yield from code_in(item, name if kind in ("tuple", "set") else "")


class NeededCode:
    """Collects the code (classes, functions) and arguments that loading a checkpoint needs and that the caller has not
    allowed or passed.

    Args:
        loader: Class loader with the allowed code.
    """

    def __init__(self, loader: ClassLoader):
        self._loader = loader
        self._paths: dict[str, None] = {}
        self._texts: dict[str, None] = {}
        self._arguments: dict[str, str] = {}

    def add_class(self, path: Any, *bases: type | str) -> None:
        """Adds a class or function to the code that the caller must list in ``allow`` to load the checkpoint.

        Has no effect if the class or function is already allowed.

        Args:
            path: Name in the checkpoint.
            *bases: Allowed base classes of a class in the running script, or their names.
        """
        expected = [path_of(base) if isinstance(base, type) else base for base in bases]
        try:
            self._loader.load(path, what="", expected=expected)
        except NotAllowedError:
            self._paths[path] = None
        except ValueError:  # damaged: whoever builds from it says more
            pass

    def add(self, node: Any, name: str = "") -> None:
        """Adds the classes and functions in a JSON node to the code that the caller must list in ``allow``.

        Loading the checkpoint needs this code. Skips classes and functions that are already allowed. See `code_in` for
        the search in the node.
        """
        for path, bases in code_in(node, name):
            self.add_class(path, *bases)

    def add_component(self, component: Component, cls: type, *, without: Collection[str] = ()) -> None:
        """Records the code and the constructor arguments that the caller must pass to build a stored object.

        The code consists of classes and functions, which the caller must list in ``allow``. The arguments are
        constructor arguments that the checkpoint lacks.

        Args:
            component: Description of the object.
            cls: Class whose `from_checkpoint` builds it.
            without: Arguments that the caller passes.
        """
        if component.class_path is not None:
            self.add_class(component.class_path, cls)
        for position, node in enumerate(component.ctor["args"]):
            self.add(node, str(position))
        for name, node in component.ctor["kwargs"].items():
            if name not in without:
                self.add(node, name)
        left_out: dict[str, str] = {}
        for where, description in component.left_out.items():
            name, _, inside = where.partition("/")
            if name in component.ctor["kwargs"] and name not in without:
                left_out[name] = f"{inside}: {description}" if inside else description
        self.add_arguments(left_out)

    def add_texts(self, texts: Iterable[str]) -> None:
        """Adds strings that name code, such as ``"my_module:MyEnv"``, to the code that the caller must list in
        ``allow``.

        Loading the checkpoint imports this code. Skips strings that are already allowed.
        """
        self._texts |= dict.fromkeys(text for text in texts if not self._loader.allows_text(text))

    def add_arguments(self, left_out: Mapping[str, str]) -> None:
        """Adds constructor arguments that the checkpoint does not contain, ``{name: description}``, to the arguments
        that the caller must pass to load the checkpoint.
        """
        # The line is to be pasted: a damaged checkpoint must not write it.
        known = {name: " ".join(str(text).split())[:80] for name, text in left_out.items() if name.isidentifier()}
        self._arguments |= known

    def check(self, path: str | os.PathLike[str], call: str, *more: str) -> None:
        """Raises one error that names all code and arguments that the caller must pass to load the checkpoint.

        The caller must list the code in ``allow``. Does nothing if neither code nor arguments were added.

        Args:
            path: The checkpoint.
            call: The method that loads it, for the line to paste: ``"PPO.from_checkpoint"``.
            *more: Further arguments of the call, as text.

        Raises:
            ValueError: If code or an argument was added.
        """
        if not (self._paths or self._texts or self._arguments):
            return
        left_out = [f"{name} ({description})" for name, description in self._arguments.items()]
        missing = ", ".join([*map(repr, (*self._paths, *self._texts)), *left_out])
        allowed = dict.fromkeys((*self._loader.given, *self._paths))
        modules = dict.fromkeys(name.partition(":")[0] for name in allowed)
        modules.pop("__main__", None)
        names = [name.removeprefix("__main__:").replace(":", ".") for name in allowed]
        names += [repr(text) for text in self._texts]
        arguments = [repr(str(path)), *more, *([f"allow=[{', '.join(names)}]"] if self._paths or self._texts else [])]
        arguments += [f"{name}=..." for name in self._arguments]
        imports = f"import {', '.join(modules)}; " if modules and self._paths else ""
        raise ValueError(
            f"The checkpoint at {path} needs code outside of {PACKAGE}, which loading does not import: {missing}."
            f"\nIf you trust this code: {imports}{call}({', '.join(arguments)})"
        )


# ----------------------------------------------------------------------------------------------------- this process

_written_here: dict[bytes, dict[str, Any]] = {}


def note_written(text: str, nodes: Iterable[Any], classes: Iterable[str | None]) -> None:
    """Records the code to which a checkpoint written by this process refers. This process may then load that checkpoint
    without `allow`.

    Args:
        text: Content of a file that names code, which identifies the checkpoint.
        nodes: JSON nodes that name code.
        classes: Further names.
    """
    paths = [path for node in nodes for path, _ in code_in(node)]
    named = {path: _imported(path) for path in (*paths, *classes) if path is not None}
    _written_here[_digest(text)] = {path: found for path, found in named.items() if found is not None}


def written_here(text: str) -> dict[str, Any]:
    """Returns the classes and functions that a checkpoint file names, ``{"module:Name": class or function}``, if this
    process wrote the file; otherwise {}. `text` is the content of the file.

    Methods that load checkpoints, such as `from_checkpoint`, trust this code: users need not list it in their argument
    ``allow``.
    """
    return _written_here.get(_digest(text), {})


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _imported(path: str) -> Any:
    """Returns the class or function with the name ``"module:Name"`` if the module is already imported.

    Returns None if the module is not imported yet, or contains no such class or function. Imports nothing and runs no
    code.
    """
    module_name, _, qualname = path.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found if isinstance(found, type | types.FunctionType | types.BuiltinFunctionType) else None
