"""RLlib's import path of the class `EpisodeReplayBuffer`."""

from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer"]
