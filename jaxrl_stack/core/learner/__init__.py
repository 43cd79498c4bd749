"""Learners: compiled updates that map a learner state and a train batch to the next learner state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_group import LearnerGroup

__all__ = ["Learner", "LearnerGroup"]

# Imported when asked for: modules of this folder import each other.
_MODULES = {"learner": ("Learner",), "learner_group": ("LearnerGroup",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
