"""Replay buffers of the host: uniform and prioritised, out of episodes or of recorded blocks."""

from __future__ import annotations

from jaxrl_stack.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]
