"""Base class of all env runners."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR
from jaxrl_stack.env.env_errors import StepFailedRecreateEnvError as StepFailedRecreateEnvError  # RLlib's path, too
from jaxrl_stack.utils.consecutive_failures import ConsecutiveFailuresError as ConsecutiveFailuresError

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

NUM_ENV_STEP_FAILURES_LIFETIME = "num_env_step_failures"
"""Metric of how often environments were made anew because they failed."""


class EnvRunner(Checkpointable, abc.ABC):
    """Base class of env runners, which step environments with the actions of a module and return episodes.

    Attributes:
        config: The algorithm's config, from which `make_env` and `make_module` work.
        worker_index: 0 for the runner in the algorithm's own process.
        has_failed: Set in an actor whose sampling raised: it waits for its restart.
        is_restored: Set in an actor that may sample: it was never restarted, or got the state of the lost one.
        weights_seq_no: Number of updates behind the weights with which it acts.
        has_stepped: Whether its environments have made their first step: later failures are no mistakes of the set-up.
    """

    has_failed = False
    is_restored = False
    weights_seq_no: int = 0
    has_stepped: bool = False

    def __init__(self, *, config: AlgorithmConfig, worker_index: int = 0):
        self.config = config
        self.worker_index = worker_index

    @abc.abstractmethod
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Steps the environments and returns the resulting episodes, or chunks of episodes."""

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Changes config settings whose values are arguments of compiled programs, so that no program is compiled
        again.

        Args:
            settings: The new values by name.
        """
        if not self.config.is_frozen:
            self.config.update_from_dict(settings)
            return
        self.config = self.config.copy(copy_frozen=False).update_from_dict(settings)
        self.config.freeze()

    @abc.abstractmethod
    def make_env(self) -> None:
        """Closes the runner's environments and creates new ones."""

    @abc.abstractmethod
    def make_module(self) -> None:
        """Builds the RLModule that computes the runner's actions."""

    def sample_get_state_and_metrics(self, **kwargs: Any) -> tuple[list[SingleAgentEpisode], dict[str, Any], Any]:
        """Returns ``(sample(**kwargs), connector states, metrics)`` in one call.

        Returns:
            ``(episodes, connector states, metrics)``.
        """
        episodes = self.sample(**kwargs)
        state = self.get_state([COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR])
        return episodes, state, self.get_metrics()

    def write_output(self, *, is_last: bool = False) -> None:
        """Completes the files in which the runner records sampled steps, if it records any.

        Args:
            is_last: Whether nothing is recorded any more.

        Raises:
            Exception: Errors from writing files.
        """

    @abc.abstractmethod
    def get_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the runner, such as episode returns, since the last call."""

    @abc.abstractmethod
    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Returns the spaces of the environments and modules: ``{"__env__": ..., "__env_single__": ..., module_id:
        (observation space, action space)}``.
        """

    @property
    def spaces(self) -> dict[str, tuple[Any, Any]]:
        """Spaces of the environment and of each module, as `get_spaces` returns them."""
        return self.get_spaces()

    @abc.abstractmethod
    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the runner's state as nested dicts of NumPy arrays."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a runner's state that `get_state` returned."""

    def acts_with(self, source: Any) -> bool:
        """Whether this runner already acts with the weights of the given `EnvRunner` or `LearnerGroup`, so that no
        weights need to be sent to it.
        """
        return source is self

    def assert_healthy(self) -> None:
        """Raises if the runner cannot sample."""

    def ping(self) -> str:
        """Returns "pong" if the runner is healthy. Raises RuntimeError if sampling has failed in this runner, so that
        the runner waits for its restart.

        Raises:
            RuntimeError: If it `has_failed`: a restarted actor is another object, so no answer comes from the old one.
        """
        if self.has_failed:
            raise RuntimeError(
                f"EnvRunner {self.worker_index} has failed and waits for its restart. Sample with the other runners "
                "until then."
            )
        return "pong"

    def on_restarted(self, num_restarts: int) -> None:
        """Hook, called in a restarted env runner actor after it received weights and connector states.

        A subclass can set a new seed, so that the runner does not repeat its earlier episodes.

        Args:
            num_restarts: Number of restarts of this actor so far.
        """

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls ``func(self, *args, **kwargs)`` and returns the result. Other processes call this method to run
        functions on the runner.
        """
        return func(self, *args, **kwargs)

    def stop(self) -> None:
        """Releases the runner's resources."""


def check_amounts(num_timesteps: int | None, num_episodes: int | None) -> None:
    """Raises ValueError if both `num_timesteps` and `num_episodes` are passed to ``sample()``, or if one of them is
    below 1.
    """
    if num_timesteps is not None and num_episodes is not None:
        raise ValueError(
            f"sample(num_timesteps={num_timesteps}, num_episodes={num_episodes}): pass one of them, not both."
        )
    for name, amount in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
        if amount is not None and amount < 1:
            raise ValueError(f"sample({name}={amount}): must be at least 1.")
