"""Multi-agent JAX environments that preprocess the observations of all agents jointly, inside of compiled programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast

import jax

from jaxrl_stack.env.agent_mapping import AgentSpaces, NoEpisode
from jaxrl_stack.env.agent_preprocessing import AgentPreprocessing, agent_preprocessing
from jaxrl_stack.env.jax_env import JaxEnv
from jaxrl_stack.env.jax_env_outcomes import parts_of
from jaxrl_stack.env.jax_env_wrapper import JaxEnvWrapper
from jaxrl_stack.env.multi_agent_jax_env import PARTS, MultiAgentJaxEnv
from jaxrl_stack.env.self_play_env import SelfPlayEnv


def with_preprocessors(config: Any, env: JaxEnv | None) -> JaxEnv | None:
    """Wraps an environment in a `PreprocessedJaxEnv`, which applies the `MultiAgentObservationPreprocessor`s of the
    config's env-to-module connectors. If the config has none, returns the environment unchanged.

    Args:
        config: The config of the runners that sample.
        env: The environment; None for none. It is returned unchanged if it is no `MultiAgentJaxEnv`, or if the config
            has no such connectors.

    Raises:
        ValueError: The connectors declare spaces for other agents than the environment's.
    """
    if not isinstance(env, MultiAgentJaxEnv) or not config.is_multi_agent:
        return env
    known = AgentSpaces(dict(env.observation_spaces), dict(env.action_spaces))
    preprocessing = agent_preprocessing(config, known, env)
    return env if preprocessing.is_empty else PreprocessedJaxEnv(env, preprocessing)


class PreprocessedJaxEnv(JaxEnvWrapper[MultiAgentJaxEnv], MultiAgentJaxEnv):
    """Environment that applies preprocessors to all agents' observations in every reset and step.

    All other results, such as states and rewards, come from the wrapped environment. Preprocessors are traced with the
    observations of one environment; observations of agents that do not act are undefined. Preprocessors cannot read
    episodes.

    Args:
        env: The environment.
        preprocessing: Changes its observations.
    """

    def __init__(self, env: MultiAgentJaxEnv, preprocessing: AgentPreprocessing):
        super().__init__(env)
        self.preprocessing = preprocessing
        self.possible_agents = env.possible_agents
        self.observation_spaces, self.action_spaces = preprocessing.spaces
        self.has_own_bounds = False

    def acts(self, state: Any) -> Mapping[Any, Any]:
        return self.unwrapped.acts(state)

    def render(self, state: Any) -> Any:
        return self.unwrapped.render(state)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = parts_of(f"{self.name}.reset_env", self.unwrapped.reset_env(key, params), ("obs", "state"))
        return self.preprocessed(obs), state

    def reset_seated(self, key: jax.Array, params: Any, seat: jax.Array) -> tuple[Any, Any]:
        """Starts an episode in which the agent "hero" has the given seat (player position). The wrapped environment
        must be a `SelfPlayEnv`, see `SelfPlayEnv.reset_seated`.
        """
        obs, state = cast(SelfPlayEnv, self.unwrapped).reset_seated(key, params, seat)
        return self._conformed(self.preprocessed(obs)), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        outcome = self.unwrapped.step_env(key, state, action, params)
        obs, *others = parts_of(f"{self.name}.step_env", outcome, PARTS)
        return self.preprocessed(obs), *others

    def preprocessed(self, obs: Any) -> Mapping[Any, Any]:
        """Applies the preprocessors to the wrapped environment's observations, ``{agent: observation}``, and returns
        the results.
        """
        known = self.unwrapped._conformed(obs)
        return self.preprocessing(known, cast(Any, NoEpisode(self._refuse)))

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"A MultiAgentObservationPreprocessor {what}, but {self.name} is a JAX environment, whose compiled program "
            "has no episodes. Let preprocess() read only its argument `observations`, or write the environment as a "
            "MultiAgentEnv on the host."
        )
