"""SingleAgentEpisode under RLlib's import path."""

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

__all__ = ["SingleAgentEpisode"]
