"""Exceptions that environments and users' code may raise and catch by RLlib's names."""

from __future__ import annotations


class UnsupportedSpaceException(Exception):
    """A space that something cannot work with."""


class EnvError(Exception):
    """Something is wrong with an environment; the one to raise from ``step()`` and ``reset()``."""


class MultiAgentEnvError(Exception):
    """Something is wrong with an environment of several agents."""


class NotSerializable(Exception):
    """An object that cannot be sent to another process."""
