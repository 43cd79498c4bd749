"""Re-exports the class `PrioritizedEpisodeReplayBuffer` under its RLlib import path."""

from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

__all__ = ["PrioritizedEpisodeReplayBuffer"]
