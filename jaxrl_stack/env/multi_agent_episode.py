"""Re-exports the class `MultiAgentEpisode` of `jaxrl_stack.episodes` under its RLlib import path."""

from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["MultiAgentEpisode"]
