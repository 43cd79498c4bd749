"""``register_env`` at the path where scripts expect it. Does not import Ray."""

from __future__ import annotations

from jaxrl_stack.env.registry import register_env

__all__ = ["register_env"]
