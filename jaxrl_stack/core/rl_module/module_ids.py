"""Check of module ids, which checkpoints use as folder names."""

from __future__ import annotations

import re
from typing import Any

from jaxrl_stack.utils.notices import notice_once

_REFUSED = re.compile(r'[<>:"/\\\\|?]|[ .]$')


def validate_module_id(policy_id: Any, error: bool = False) -> None:
    """Checks that a string is valid as a module id. For an invalid id, raises a ValueError (``error=True``) or logs a
    warning (``error=False``).

    Args:
        policy_id: The id.
        error: Whether to raise an error for an invalid id (True), or to log a warning.

    Raises:
        ValueError: If `error`, and the id is empty, not a string, or has characters that file names cannot have.
    """
    if isinstance(policy_id, str) and policy_id and not _REFUSED.search(policy_id):
        return
    message = (
        f"The module id {policy_id!r} cannot name a folder of a checkpoint. Use a string without < > : / | ?, without "
        "backslashes and quotation marks, and without a dot or a space at the end."
    )
    if error:
        raise ValueError(message)
    notice_once(message)
