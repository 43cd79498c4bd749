"""LearnerGroup: the Learner(s) of an algorithm behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class LearnerGroup:
    """The local Learner; its update runs on all of its devices.

    Args:
        config: The algorithm's config.
        module_spec: Spec of the module(s); None takes the config's own.
        learner: A built learner to hold instead of building one.
    """

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        learner: Learner | None = None,
    ):
        self.config = config
        if learner is None:
            learner = config.learner_class(config=config, module_spec=module_spec)
            learner.build()
        self._learner = learner

    @property
    def is_local(self) -> bool:
        """Whether the learner lives in this process."""
        return True

    @property
    def is_remote(self) -> bool:
        """Whether learners are actors of their own."""
        return False

    def __len__(self) -> int:
        return 1

    def update(self, **kwargs: Any) -> list[dict[str, Any]]:
        """`Learner.update` of every learner: one dict of metrics each. Takes the same arguments."""
        return [self._learner.update(**kwargs)]

    def foreach_learner(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """``[func(learner, **kwargs)]`` for every learner."""
        return [func(self._learner, **kwargs)]

    def add_module(self, **kwargs: Any) -> MultiRLModuleSpec:
        """See `Learner.add_module`."""
        return self._learner.add_module(**kwargs)

    def remove_module(self, module_id: str, **kwargs: Any) -> MultiRLModuleSpec:
        """See `Learner.remove_module`."""
        return self._learner.remove_module(module_id, **kwargs)

    def get_weights(self, module_ids: Collection[str] | None = None) -> dict[str, Any]:
        """``{module_id: {name: array}}`` of the named modules, or of all."""
        modules = self._learner.module
        return {mid: modules[mid].get_state() for mid in (modules if module_ids is None else module_ids)}

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over what `get_weights` returned."""
        self._learner.set_weights(weights)

    def get_state(self, components: Any = None, *, not_components: Any = None) -> dict[str, Any]:
        """``{"learner": state}``; see `Learner.get_state`."""
        return {"learner": self._learner.get_state(components, not_components=not_components)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._learner.set_state(state["learner"])

    def get_stats(self) -> dict[str, Any]:
        """Numbers about the group."""
        return {"num_learners": 1, "num_devices": len(self._learner.devices)}

    def shutdown(self) -> None:
        """Release the learner."""
        self._learner.shutdown()
