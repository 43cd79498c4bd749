"""Return values of the hook `Learner.post_update`: the pair ``(state, metrics)``, or only a state as in earlier
versions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from flax import struct

from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.traced_metrics import MetricKey
from jaxrl_stack.utils.notices import notice_once

_FORM = "state, metrics = super().post_update(state, metrics=metrics, settings=settings)"
_RETURN = 'return state, {**metrics, (module_id, "name"): value}'

UpdateResult = tuple[LearnerState, dict[MetricKey, Any]]
"""Result of a `post_update`: the next state and the metrics of the update."""


@struct.dataclass
class UpdatedState(LearnerState):
    """Return value ``(state, metrics)`` of `post_update` that also works as a state, for hooks written for earlier
    versions.

    ``state, metrics = super().post_update(...)`` unpacks it. A hook in the form of earlier versions, ``state =
    super().post_update(...)``, uses it as the state.
    """

    @classmethod
    def of(cls, state: LearnerState, metrics: Mapping[MetricKey, Any]) -> Self:
        """Creates an `UpdatedState` from a learner state and metrics."""
        own = cls(**vars(_plain(state)))
        object.__setattr__(own, "_metrics", dict(metrics))
        return own

    @property
    def pair(self) -> UpdateResult | None:
        """The pair ``(state, metrics)`` that this object represents; None if the object has no metrics.

        A copy with changed attributes, for example from `replace()`, has no metrics.
        """
        metrics = vars(self).get("_metrics")
        return None if metrics is None else (_plain(self), dict(metrics))

    def __iter__(self) -> Iterator[Any]:
        if self.pair is None:
            raise ValueError(
                "A copy of the result of super().post_update(), for example from replace(), has no metrics and cannot "
                f"be unpacked into (state, metrics). Begin your post_update() with {_FORM}, and end it with {_RETURN}."
            )
        return iter(self.pair)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return tuple(self)[index]


def _plain(state: LearnerState) -> LearnerState:
    """Converts an `UpdatedState` to a plain `LearnerState`, which compiled programs accept."""
    if type(state) is not UpdatedState:
        return state
    return LearnerState(**{name: value for name, value in vars(state).items() if name != "_metrics"})


def accepts_both_forms(hook: Callable[..., Any], owner: type) -> Callable[..., Any]:
    """Wraps a `post_update` hook, so that subclasses can use the hook's result as a pair or as a state.

    The hook returns ``(state, metrics)`` or only the state. Subclasses can use the result of
    ``super().post_update(...)`` in both forms.

    Args:
        hook: A class's `post_update`, in one of the forms.
        owner: The class, for messages.
    """
    if getattr(hook, "accepts_both_forms", False):
        return hook

    @functools.wraps(hook)
    def post_update(self: Any, state: LearnerState, *, metrics: dict[MetricKey, Any], **kwargs: Any) -> UpdatedState:
        given = dict(metrics)
        state, changed = update_result(hook(self, state, metrics=given, **kwargs), metrics, given, owner)
        if changed.keys() != metrics.keys() or any(changed[path] is not metrics[path] for path in changed):
            # A subclass in the earlier form reads, changes and keeps the dict that it has passed.
            metrics.clear()
            metrics.update(changed)
        return UpdatedState.of(state, changed)

    post_update.accepts_both_forms = True  # type: ignore[attr-defined]
    return post_update


def update_result(
    result: Any, before: Mapping[MetricKey, Any], given: Mapping[MetricKey, Any], owner: type
) -> UpdateResult:
    """Converts the return value of a `post_update` hook, a pair or only a state, to ``(state, metrics)``.

    Args:
        result: Return value of the hook.
        before: The metrics before the call.
        given: The copy of the metrics that the hook received, and may have changed.
        owner: The class that defines the hook, for messages.

    Raises:
        ValueError: If the result is neither a pair nor a state.
    """
    if isinstance(result, UpdatedState) and result.pair is not None:
        state, metrics = result.pair
        if _are_same(given, before) or _are_same(given, metrics):
            return state, metrics
    elif isinstance(result, tuple) and len(result) == 2:
        state, metrics = result
        if isinstance(state, LearnerState) and isinstance(metrics, Mapping):
            _check_paths(metrics, owner.__name__)
            return _plain(state), dict(metrics)
    if not isinstance(result, LearnerState):
        raise ValueError(
            f"{owner.__name__}.post_update() returned {_description(result)}, but must return (state, metrics). "
            f"Begin the method with {_FORM}, and end it with {_RETURN}."
        )
    notice_once(
        f"{owner.__name__}.post_update() returns only the state, and changes its metrics in place. Return both: begin "
        f"the method with {_FORM}, and end it with {_RETURN}.",
        key=f"form of {owner.__module__}.{owner.__qualname__}.post_update",
    )
    _check_paths(given, owner.__name__)
    return _plain(result), dict(given)


def _are_same(one: Mapping[MetricKey, Any], other: Mapping[MetricKey, Any]) -> bool:
    return one.keys() == other.keys() and all(one[path] is other[path] for path in one)


def _check_paths(metrics: Mapping[Any, Any], owner: str) -> None:
    for path in metrics:
        if not (isinstance(path, tuple) and path):
            raise ValueError(
                f"{owner}.post_update() returned a metric named {path!r}. A name must be a tuple such as "
                f"(module_id, name). End the method with {_RETURN}."
            )


def _description(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result)}" if result else "an empty tuple"
    return "None" if result is None else f"a {type(result).__name__}"
