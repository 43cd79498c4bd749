"""RLlib's import path of the class `SingleAgentEpisode`, which is defined in `jaxrl_stack.episodes`."""

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

__all__ = ["SingleAgentEpisode"]
