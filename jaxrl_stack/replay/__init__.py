"""Replay buffers of the host: uniform and prioritised, out of episodes or of recorded blocks."""

from __future__ import annotations

from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from jaxrl_stack.utils.renamed import absent_or_renamed

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]

__getattr__ = absent_or_renamed(
    __name__,
    absent={
        "ReplayBuffer": "`EpisodeReplayBuffer`",
        "PrioritizedReplayBuffer": "`PrioritizedEpisodeReplayBuffer`",
        "StorageUnit": "`EpisodeReplayBuffer`, which stores episodes",
    },
)
