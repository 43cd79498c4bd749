"""Ids of modules, which name folders of checkpoints."""

from __future__ import annotations

import re
from typing import Any

from jaxrl_stack.utils.notices import notice_once

_REFUSED = re.compile(r'[<>:"/\\\\|?]|[ .]$')


def validate_module_id(policy_id: Any, error: bool = False) -> None:
    """Checks that a text can be the id of a module.

    Args:
        policy_id: The id.
        error: Raise if it cannot; False logs a warning.

    Raises:
        ValueError: It is empty, no text, or has characters that names of files cannot have; with `error`.
    """
    if isinstance(policy_id, str) and policy_id and not _REFUSED.search(policy_id):
        return
    message = (
        f"The module id {policy_id!r} cannot name a folder of a checkpoint. Use a text without < > : / | ?, without "
        "backslashes and quotation marks, and without a dot or a space at the end."
    )
    if error:
        raise ValueError(message)
    notice_once(message)
