"""RLlib's import path of the class `MultiAgentEpisode`, which is defined in `jaxrl_stack.episodes`."""

from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["MultiAgentEpisode"]
