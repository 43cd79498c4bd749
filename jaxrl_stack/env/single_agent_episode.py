"""RLlib's import path of the class `SingleAgentEpisode`."""

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

__all__ = ["SingleAgentEpisode"]
