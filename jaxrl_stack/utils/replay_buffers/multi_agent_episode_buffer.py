"""RLlib's import path of the class `MultiAgentEpisodeReplayBuffer`."""

from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer

__all__ = ["MultiAgentEpisodeReplayBuffer"]
