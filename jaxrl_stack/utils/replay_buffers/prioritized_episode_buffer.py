"""RLlib's import path of the class `PrioritizedEpisodeReplayBuffer`."""

from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

__all__ = ["PrioritizedEpisodeReplayBuffer"]
