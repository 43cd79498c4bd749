"""Re-exports the class `MultiAgentEpisodeReplayBuffer` under its RLlib import path."""

from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer

__all__ = ["MultiAgentEpisodeReplayBuffer"]
