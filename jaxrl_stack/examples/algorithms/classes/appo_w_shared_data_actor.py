"""APPO whose env runners and learners share data through a Ray actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.appo import APPO

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class SharedDataActor:
    """Ray actor that stores values by key for all processes that have its handle."""

    @classmethod
    def remote(cls) -> Any:
        """Starts this class as a Ray actor and returns the actor's handle."""
        import ray

        actor_class: Any = ray.remote(cls)
        return actor_class.options(num_cpus=0).remote()

    def __init__(self) -> None:
        self.storage: dict[Any, Any] = {}

    def get(self, key: Any, delete: bool = False) -> Any:
        """Returns the value that is stored under a key; None if the key is unknown.

        Args:
            key: Any key.
            delete: Whether to forget it.
        """
        return self.storage.pop(key, None) if delete else self.storage.get(key)

    def put(self, key: Any, value: Any) -> None:
        """Stores a value under a key, for all processes that have the actor's handle."""
        self.storage[key] = value

    def get_state(self) -> dict[Any, Any]:
        """Returns all stored values, by key."""
        return self.storage

    def set_state(self, state: dict[Any, Any]) -> None:
        """Restores a state that `get_state` returned."""
        self.storage = dict(state)


class APPOWithSharedDataActor(APPO):
    """APPO that passes the handle of one `SharedDataActor` to all runners, and to the learners and their connectors.

    They have it as ``_shared_data_actor``.

    Attributes:
        shared_data_actor: The actor.
    """

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        actor = self.shared_data_actor = SharedDataActor.remote()

        def share(holder: Any) -> None:
            holder._shared_data_actor = actor
            for connector in getattr(holder, "_learner_connector", None) or ():
                connector._shared_data_actor = actor

        self.env_runner_group.foreach_env_runner(share)
        if self.eval_env_runner_group is not None:
            self.eval_env_runner_group.foreach_env_runner(share)
        self.learner_group.foreach_learner(share)

    def stop(self) -> None:
        import ray

        super().stop()
        if ray.is_initialized():
            ray.kill(self.shared_data_actor)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        import ray

        state = super().get_state(*args, **kwargs)
        return {**state, "shared_data_actor": ray.get(self.shared_data_actor.get_state.remote())}

    def set_state(self, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super().set_state(state, *args, **kwargs)
        if "shared_data_actor" in state:
            self.shared_data_actor.set_state.remote(state["shared_data_actor"])
