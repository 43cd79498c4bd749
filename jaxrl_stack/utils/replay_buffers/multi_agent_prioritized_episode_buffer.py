"""MultiAgentPrioritizedEpisodeReplayBuffer under RLlib's import path."""

from jaxrl_stack.replay.multi_agent_prioritized_episode_buffer import MultiAgentPrioritizedEpisodeReplayBuffer

__all__ = ["MultiAgentPrioritizedEpisodeReplayBuffer"]
