"""MultiAgentEpisode under RLlib's import path."""

from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["MultiAgentEpisode"]
