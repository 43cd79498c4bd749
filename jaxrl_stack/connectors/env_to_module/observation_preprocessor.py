"""Base classes of observation preprocessors: for single observations, or for all agents' observations jointly."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl_stack.connectors.connector_v2 import ConnectorV2, HostConnector, PureConnector
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import validate_batch


class SingleAgentObservationPreprocessor(ConnectorV2, abc.ABC):
    """Base class of connectors that apply a function, ``preprocess``, to each environment's observation.

    Subclasses override ``preprocess(self, observation)`` with JAX functions; it gets one observation without
    batch axis and is vectorised over the environments here. If shapes, dtypes or bounds change, they also
    override ``recompute_output_observation_space``.

    RLlib's form ``preprocess(self, observation, episode)`` makes the subclass a host connector: it may use any
    Python, runs on the actor driver only, and rewrites the episode's last observation.
    """

    @abc.abstractmethod
    def preprocess(self, observation: Any) -> Any:
        """Returns the preprocessed observation. Override it.

        Args:
            observation: Pytree of one observation; leaves have the shapes of the input observation space.
        """

    @classmethod
    def _form(cls) -> type[ConnectorV2] | None:
        if getattr(cls.preprocess, "__isabstractmethod__", False):
            return None
        # Required: self, the observation and, on the host, the episode.
        if len(_required_parameters(cls.preprocess)) > 2:
            return HostConnector
        return super()._form() or (PureConnector if "preprocess" in vars(cls) else None)

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces OBS (leaves ``[B, ...]``) by the preprocessed observations.

        Raises:
            ValueError: ``preprocess`` returned shapes or dtypes that the declared output space does not have.
        """
        if self.is_host_connector:
            raise TypeError(
                f"{type(self).__name__}.preprocess takes an episode, but compiled code has none. Write `def "
                "preprocess(self, observation)`."
            )
        return state, self._with_columns(batch, self._preprocessed)

    def _preprocessed(self, module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
        observation = jax.vmap(self.preprocess)(columns[Columns.OBS])
        if self.observation_space is None:
            return {Columns.OBS: observation}
        space = self._space_of(self._spaces_by_module(self.observation_space, "observation"), module_id)
        try:
            validate_batch(space, observation, batch_dims=1, name="the preprocessed observation")
        except ValueError as error:
            raise ValueError(
                f"{type(self).__name__}.preprocess does not fit the declared output space: {error} Override "
                "`recompute_output_observation_space(self, input_observation_space, input_action_space)` to "
                "return the space of the preprocessed observations."
            ) from error
        return {Columns.OBS: observation}

    def __call__(
        self, *, batch: dict[str, Any] | None = None, episodes: Sequence[Any] | None = None, **kwargs
    ) -> dict[str, Any]:
        """Runs the connector once, outside of compiled code, and returns the batch.

        If ``preprocess`` takes an episode, replaces the last observation of each episode by the result of
        ``preprocess(observation, episode)``; the batch does not change. Otherwise calls `apply`, which changes OBS.
        """
        if not self.is_host_connector:
            return super().__call__(batch=batch, episodes=episodes, **kwargs)
        for episode in self.single_agent_episode_iterator(list(episodes or ())):
            new = _preprocessed(self, "observation", episode.get_observations(-1), episode)
            episode.set_observations(at_indices=-1, new_data=new)
        return {} if batch is None else batch


@functools.cache
def _required_parameters(function: Any) -> tuple[str, ...]:
    """Returns the names of a function's parameters without default."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in variadic
    )


def _preprocessed(connector: Any, name: str, observed: Any, episode: Any) -> Any:
    """Calls a connector's ``preprocess`` and returns the result. If the parameters of ``preprocess`` have RLlib's
    names, passes the arguments by keyword.

    Args:
        connector: The connector.
        name: RLlib's name of the first argument.
        observed: Value of that argument.
        episode: The unfinished episode.
    """
    if {name, "episode"} <= set(_required_parameters(type(connector).preprocess)):
        return connector.preprocess(**{name: observed}, episode=episode)
    return connector.preprocess(observed, episode)


class MultiAgentObservationPreprocessor(HostConnector, abc.ABC):
    """Base class of connectors that apply a function, ``preprocess``, to the observations of all agents in an
    environment jointly.

    It stands before all other connectors of ``env_runners(env_to_module_connector=...)``: each module's pipeline gets
    what it returns for the module's agents. If shapes, dtypes or bounds change, subclasses also override
    ``recompute_output_observation_space``, whose spaces are a ``gymnasium.spaces.Dict`` by agent. With a
    `MultiAgentEnv` it may use any Python; with a JAX environment it is traced, with the observations of all agents and
    without an episode, and uses `jax.numpy`.
    """

    @abc.abstractmethod
    def preprocess(self, observations: Any, episode: Any) -> Any:
        """Returns the preprocessed observations of several agents. Override it.

        Args:
            observations: ``{agent: observation}`` of the agents that observe, without batch axis.
            episode: The running `MultiAgentEpisode`, as it was before these observations came; on the host.

        Returns:
            ``{agent: observation}`` of the same agents.
        """

    def preprocessed(self, observations: Any, episode: Any) -> Any:
        """Returns the result of ``preprocess``. If the parameters of ``preprocess`` have RLlib's names, passes the
        arguments by keyword.
        """
        return _preprocessed(self, "observations", observations, episode)

    def __call__(
        self, *, batch: dict[str, Any] | None = None, episodes: Sequence[Any] | None = None, **kwargs
    ) -> dict[str, Any]:
        """Replaces the last observations in each `MultiAgentEpisode` by the preprocessed observations. Returns `batch`
        unchanged, or {} if `batch` is None.
        """
        for episode in episodes or ():
            changed = self.preprocessed(episode.get_observations(-1), episode)
            for agent, observation in changed.items():
                episode.agent_episodes[agent].set_observations(at_indices=-1, new_data=observation)
        return {} if batch is None else batch


ObservationPreprocessor = SingleAgentObservationPreprocessor
