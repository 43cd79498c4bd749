"""Re-exports the class `MultiAgentPrioritizedEpisodeReplayBuffer` under its RLlib import path."""

from jaxrl_stack.replay.multi_agent_prioritized_episode_buffer import MultiAgentPrioritizedEpisodeReplayBuffer

__all__ = ["MultiAgentPrioritizedEpisodeReplayBuffer"]
