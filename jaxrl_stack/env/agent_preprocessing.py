"""Preprocessing of all agents' observations together, before the connector pipelines of the agents' modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from jaxrl_stack.env.agent_mapping import AgentSpaces
from jaxrl_stack.utils.action_masks import OBSERVATIONS, mask_key_in
from jaxrl_stack.utils.spaces import validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor
    from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode


class AgentPreprocessing:
    """Applies the `MultiAgentObservationPreprocessor` connectors of a config to the observations of all agents.

    Args:
        connectors: The preprocessors, in the order of their application; may be empty.
        spaces: Spaces of the agents in the environment.

    Attributes:
        spaces: Spaces of the agents after the connectors.
        is_empty: Whether there are no connectors.

    Raises:
        ValueError: The connectors declare spaces for other agents than the environment's.
    """

    def __init__(self, connectors: Sequence[MultiAgentObservationPreprocessor], spaces: AgentSpaces):
        self._connectors = list(connectors)
        self.is_empty = not self._connectors
        self.spaces = spaces
        self._spaces_between = [spaces]
        for connector in self._connectors:
            connector._set_input_spaces(*(gym.spaces.Dict(dict(own)) for own in self.spaces))
            declared = connector.observation_space
            if not isinstance(declared, gym.spaces.Dict) or set(declared) != set(spaces.observation_spaces):
                raise ValueError(
                    f"{type(connector).__name__}.recompute_output_observation_space returns {declared}, which is "
                    "not a gymnasium.spaces.Dict with exactly the environment's agents as keys. Return a Dict with one "
                    f"space for each of the agents {list(spaces.observation_spaces)}."
                )
            self.spaces = AgentSpaces({agent: declared[agent] for agent in spaces.observation_spaces}, spaces[1])
            self._spaces_between.append(self.spaces)
        self._unchecked = set(spaces.observation_spaces)

    def check_masks(self, key_of: Callable[[Hashable, gym.Space, gym.Space], str | None]) -> None:
        """Raises ValueError if a preprocessor removes an agent's action mask from the observations.

        Args:
            key_of: ``(agent, observation space, action space) -> key of its mask``; None for no mask.

        Raises:
            ValueError: A connector declares a space without the mask.
        """
        for agent, space in self._spaces_between[0].observation_spaces.items():
            key = key_of(agent, space, self.spaces.action_spaces[agent])
            for connector, after in zip(self._connectors, self._spaces_between[1:], strict=True):
                made = after.observation_spaces[agent]
                if key is not None and mask_key_in(made, (key,)) is None:
                    raise ValueError(
                        f"{type(connector).__name__} removes the action mask {key!r} of agent {agent!r}: its output "
                        f"space is {made}. Return {{{key!r}: mask, {OBSERVATIONS!r}: ...}} from preprocess() and "
                        "declare a gymnasium Dict with these keys in recompute_output_observation_space(). If the "
                        "environment never forbids actions, set environment(action_mask_key='none') instead."
                    )

    def __call__(self, observations: Mapping[Any, Any], episode: MultiAgentEpisode) -> Mapping[Any, Any]:
        """Applies all `MultiAgentObservationPreprocessor` connectors to the observations from one reset or step of one
        environment.

        The connectors run one after another. Returns the new observation of each agent that observes.

        Args:
            observations: By agent, of the agents that observe.
            episode: The unfinished episode, as it was before these observations came.

        Raises:
            ValueError: A connector returns observations of other agents than it received, or the result for an agent's
                first observation does not fit the declared space.
        """
        if self.is_empty:
            return observations
        changed = observations
        for connector in self._connectors:
            try:
                changed = connector.preprocessed(changed, episode)
            except Exception as error:
                error.add_note(f"In {type(connector).__name__}.preprocess.")
                raise
            if set(changed) != set(observations):
                raise ValueError(
                    f"{type(connector).__name__}.preprocess returned observations of the agents {list(changed)}, but "
                    f"received observations of {list(observations)}. Return one observation for each of these agents."
                )
        for agent in self._unchecked & set(changed):
            self._check(agent, changed[agent])
        return changed

    def _check(self, agent: Any, observation: Any) -> None:
        """Raises ValueError if a preprocessed observation does not fit its agent's space."""
        names = " and ".join(type(connector).__name__ for connector in self._connectors)
        try:
            validate_batch(self.spaces.observation_spaces[agent], observation, batch_dims=0, name="the observation")
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{names} returned an observation for the agent {agent!r} that does not fit the declared space: "
                f"{error} To declare another space, override "
                "recompute_output_observation_space(self, input_observation_space, input_action_space)."
            ) from error
        self._unchecked.discard(agent)


def agent_preprocessing(config: Any, spaces: AgentSpaces, env: Any = None) -> AgentPreprocessing:
    """Creates an `AgentPreprocessing` from the config's env-to-module connectors. It applies only the connectors that
    preprocess the observations of all agents together (`MultiAgentObservationPreprocessor`).

    Args:
        config: The config.
        spaces: Spaces of the agents in the environment.
        env: Environment that the user's connector function receives.
    """
    both = tuple(gym.spaces.Dict(dict(own)) for own in spaces)
    return AgentPreprocessing(config.agent_preprocessors(env, {"__env__": both, "__env_single__": both}), spaces)
