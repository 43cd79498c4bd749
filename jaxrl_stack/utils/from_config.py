"""The sentinel for arguments that were not passed."""

from __future__ import annotations


class _ShortRepr(type):
    def __repr__(cls) -> str:
        # Signatures show it dozens of times.
        return cls.__name__


class NotProvided(metaclass=_ShortRepr):
    """Default of config arguments: leaves the setting as it is. (None is a value: it sets None.)

    Used as the class itself, never instantiated.
    """
