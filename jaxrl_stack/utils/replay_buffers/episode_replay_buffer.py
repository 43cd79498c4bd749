"""EpisodeReplayBuffer under RLlib's import path."""

from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer"]
