"""Which modules ``policies_to_train`` says are trained."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

_NUM_CALLS = 8
"""How often a function is asked: one that draws, or counts its calls, hardly gives so many equal answers."""


def is_trained(policies_to_train: Any, module_id: str) -> bool:
    """Whether a module is trained.

    Updates are compiled, so that this is fixed before there is a batch.

    Args:
        policies_to_train: Ids of modules, None for all, or a function, which is called with the id and None in place
            of a batch.
        module_id: The module.

    Raises:
        ValueError: The function needs the batch, or its answers differ.
    """
    if policies_to_train is None:
        return True
    return _answer(policies_to_train, module_id) if callable(policies_to_train) else module_id in policies_to_train


def trains_nothing(policies_to_train: Any, trained: Collection[str]) -> bool:
    """Whether a learner makes no updates at all, which ``policies_to_train=[]`` asks for.

    Args:
        policies_to_train: The setting.
        trained: Modules of the learner that are trained.
    """
    names_modules = isinstance(policies_to_train, Collection) and len(policies_to_train) > 0
    return not trained and not names_modules


def check_any_is_trained(policies_to_train: Any, trained: Collection[str], batch: Collection[str]) -> None:
    """Refuse a batch without rows of the modules that are trained.

    Args:
        policies_to_train: The setting.
        trained: Modules of the batch that are trained.
        batch: All modules that have rows.

    Raises:
        ValueError: If none is trained.
    """
    if not trained:
        raise ValueError(
            f"multi_agent(policies_to_train={policies_to_train!r}) leaves no module of this batch to update, which has "
            f"rows of {sorted(batch)}. Train one of these, or leave this update out."
        )


def _answer(function: Callable[..., Any], module_id: str) -> bool:
    name = getattr(function, "__qualname__", repr(function))
    fixed = (
        "Updates are compiled, and what is trained is fixed before there is a batch: let it follow from the module's "
        "id alone, or name the modules in a list."
    )
    try:
        answers = {bool(function(module_id, None)) for _ in range(_NUM_CALLS)}
    except Exception as error:
        raise ValueError(
            f"multi_agent(policies_to_train={name}) raises {type(error).__name__} when it is called with "
            f"({module_id!r}, None). {fixed}"
        ) from error
    if len(answers) > 1:
        raise ValueError(
            f"multi_agent(policies_to_train={name}) says both True and False of the module {module_id!r}. {fixed}"
        )
    return answers.pop()
