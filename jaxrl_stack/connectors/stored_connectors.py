"""Storage of connector functions without an importable name (such as lambdas) in checkpoints.

Instead of the function, a checkpoint contains the classes and constructor arguments of the connectors that the function
returned.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.utils.class_paths import ClassLoader


class _Recipe(NamedTuple):
    """Class and constructor arguments of a connector, from which a checkpoint can create the connector again."""

    connector_class: type[ConnectorV2]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self) -> ConnectorV2:
        """Creates a new connector from the class and copies of the arguments, so that the connectors of several calls
        share no mutable object.
        """
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        return self.connector_class(*args, **kwargs)


class StoredConnectors(Plain):
    """Replacement for a user's connector function in checkpoints: creates new connectors from the classes and
    constructor arguments of the connectors that the user's function returned.

    Args:
        connectors: Result of the user's function. Only classes and constructors' arguments are kept, no states.
    """

    def __init__(self, connectors: Iterable[ConnectorV2] = ()):
        self._recipes = [_Recipe(type(own), *own.get_ctor_args_and_kwargs()) for own in connectors]

    def __call__(self) -> list[ConnectorV2]:
        """Creates a new connector from each stored class and its constructor arguments."""
        return [recipe.make() for recipe in self._recipes]

    def __repr__(self) -> str:
        return f"StoredConnectors({', '.join(recipe.connector_class.__name__ for recipe in self._recipes)})"

    def to_plain(self) -> dict[str, Any]:
        """Returns the classes and constructor arguments of the connectors as plain data, for checkpoints."""
        return {"connectors": [recipe._asdict() for recipe in self._recipes]}

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Self:
        """Creates the connector function from stored classes and constructor arguments, a result of `to_plain`.

        Raises:
            ValueError: A stored class is not a ConnectorV2.
        """
        new = cls()
        for entry in data["connectors"]:
            recipe = _Recipe(entry["connector_class"], tuple(entry["args"]), dict(entry["kwargs"]))
            if not isinstance(recipe.connector_class, type) or not issubclass(recipe.connector_class, ConnectorV2):
                raise ValueError(
                    f"The checkpoint has the connector class {recipe.connector_class!r}, which is not a ConnectorV2 "
                    "class. Load the checkpoint with the version of your code that wrote the checkpoint."
                )
            new._recipes.append(recipe)
        return new
