"""PrioritizedEpisodeReplayBuffer under RLlib's import path."""

from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

__all__ = ["PrioritizedEpisodeReplayBuffer"]
