"""Stand-ins for classes of RLlib that are not here yet, so that files which only mention them can be imported."""

from __future__ import annotations

from typing import Any


def coming_class(name: str, module: str, instead: str) -> Any:
    """A class that can be imported, named in ``isinstance`` and subclassed, but of which there are no objects.

    Args:
        name: Its name.
        module: The ``__name__`` of the module that it is in.
        instead: What to do until it comes, as a sentence.

    Returns:
        The class. It and its subclasses raise a NotImplementedError when called. Its attribute ``comes_later`` is the
        message.
    """

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        shown = cls.__name__ if cls.__name__ == name else f"{cls.__name__}, a {name}"
        raise NotImplementedError(f"{shown}: {message}")

    message = f"this comes later. {instead}"
    doc = f"Not here yet: calling it, or a subclass, raises a NotImplementedError. {instead}"
    return type(name, (), {"__module__": module, "__doc__": doc, "__new__": refuse, "comes_later": message})
