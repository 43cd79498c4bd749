"""Interpretation of the setting ``policies_to_train``, which selects the modules that updates change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

_NUM_CALLS = 8
"""Number of calls of a function. One that draws, or counts its calls, is unlikely to answer all of them equally."""


def is_trained(policies_to_train: Any, module_id: str) -> bool:
    """Whether the setting ``policies_to_train`` selects a module for training.

    Updates are compiled, so that the answer is fixed before a batch exists.

    Args:
        policies_to_train: Ids of modules, None for all, or a function ``(module_id, batch) -> bool``, which is called
            with None as the batch.
        module_id: Id of the module.

    Raises:
        ValueError: If the function needs the batch, or its answers differ.
    """
    if policies_to_train is None:
        return True
    return _answer(policies_to_train, module_id) if callable(policies_to_train) else module_id in policies_to_train


def trains_nothing(policies_to_train: Any, trained: Collection[str]) -> bool:
    """Whether the setting `policies_to_train` selects no module at all, as ``policies_to_train=[]`` does.

    If True, the learner makes no updates. False for a list with only unknown ids: with such a list, updates raise an
    error.

    Args:
        policies_to_train: The setting.
        trained: Modules of the learner that are trained.
    """
    names_modules = isinstance(policies_to_train, Collection) and len(policies_to_train) > 0
    return not trained and not names_modules


def check_any_is_trained(policies_to_train: Any, trained: Collection[str], batch: Collection[str]) -> None:
    """Raises a ValueError if a batch has rows only of modules that are not trained.

    Args:
        policies_to_train: The setting.
        trained: Modules of the batch that are trained.
        batch: All modules that have rows.

    Raises:
        ValueError: If none is trained.
    """
    if not trained:
        raise ValueError(
            f"multi_agent(policies_to_train={policies_to_train!r}) trains no module of this batch, which has rows of "
            f"{sorted(batch)}. Select one of these modules in policies_to_train, or pass a batch of a trained module."
        )


def _answer(function: Callable[..., Any], module_id: str) -> bool:
    name = getattr(function, "__qualname__", repr(function))
    fixed = (
        "The second argument, the batch, is None: updates are compiled, so the trained modules are determined before a "
        "batch exists. Let the result depend only on the module id, or pass a list of ids."
    )
    try:
        answers = {bool(function(module_id, None)) for _ in range(_NUM_CALLS)}
    except Exception as error:
        raise ValueError(
            f"The function in multi_agent(policies_to_train={name}) raises {type(error).__name__} if it is called with "
            f"the arguments ({module_id!r}, None). {fixed}"
        ) from error
    if len(answers) > 1:
        raise ValueError(
            f"The function in multi_agent(policies_to_train={name}) returns both True and False for module "
            f"{module_id!r} in repeated calls with the arguments ({module_id!r}, None). {fixed}"
        )
    return answers.pop()
