"""A script for RLlib rewritten for this package: ``jaxrl migrate``.

`migrate` takes the text of a script and returns the new text with a list of what is left to do by hand. The script is
parsed and never imported; edits are made at positions of its syntax tree, so that comments, order and layout stay.
"""

from __future__ import annotations

from jaxrl_stack.migration.migrate import Migration, migrate

__all__ = ["Migration", "migrate"]
