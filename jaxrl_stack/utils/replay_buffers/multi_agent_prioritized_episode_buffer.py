"""RLlib's import path of the class `MultiAgentPrioritizedEpisodeReplayBuffer`."""

from jaxrl_stack.replay.multi_agent_prioritized_episode_buffer import MultiAgentPrioritizedEpisodeReplayBuffer

__all__ = ["MultiAgentPrioritizedEpisodeReplayBuffer"]
