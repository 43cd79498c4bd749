"""Re-exports the class `SingleAgentEpisode` of `jaxrl_stack.episodes` under its RLlib import path."""

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

__all__ = ["SingleAgentEpisode"]
