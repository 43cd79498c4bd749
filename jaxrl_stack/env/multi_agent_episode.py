"""RLlib's import path of the class `MultiAgentEpisode`."""

from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["MultiAgentEpisode"]
