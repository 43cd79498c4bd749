"""``jaxrl migrate``: rewrites a script for RLlib so that it uses this package.

`migrate` takes the text of a script and returns the new text with a list of remaining tasks. The script is parsed and
never imported. Edits are made at positions of its syntax tree, so that comments, order and layout stay.
"""

from __future__ import annotations

from jaxrl_stack.migration.migrate import Migration, migrate

__all__ = ["Migration", "migrate"]
