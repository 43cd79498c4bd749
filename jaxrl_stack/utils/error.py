"""Exceptions, under RLlib's names, that environments and users' code may raise and catch."""

from __future__ import annotations


class UnsupportedSpaceException(Exception):
    """Raised for a space that is not supported."""


class EnvError(Exception):
    """Error that an environment may raise in ``step()`` and ``reset()``. It is handled like any other exception."""


class MultiAgentEnvError(Exception):
    """Raised for an error of a multi-agent environment."""


class NotSerializable(Exception):
    """Raised for an object that cannot be sent to another process."""
