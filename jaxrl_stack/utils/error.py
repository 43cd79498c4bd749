"""Exceptions, under RLlib's names, that environments and users' code may raise and catch."""

from __future__ import annotations


class UnsupportedSpaceException(Exception):
    """Raised for a space that is not supported."""


class EnvError(Exception):
    """Error of an environment, to be raised in ``step()`` and ``reset()``."""


class MultiAgentEnvError(Exception):
    """Raised for an error of a multi-agent environment."""


class NotSerializable(Exception):
    """Raised for an object that cannot be sent to another process."""
