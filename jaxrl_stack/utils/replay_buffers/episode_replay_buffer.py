"""Re-exports the class `EpisodeReplayBuffer` under its RLlib import path."""

from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer"]
