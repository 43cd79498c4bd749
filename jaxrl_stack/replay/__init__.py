"""Replay buffers of the host: uniform and prioritised, out of episodes or of recorded blocks."""

from __future__ import annotations

import contextlib
from typing import Any

from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from jaxrl_stack.utils.coming import coming_names
from jaxrl_stack.utils.renamed import absent_or_renamed

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]

_coming = coming_names("jaxrl_stack.utils.replay_buffers")
_absent = absent_or_renamed(
    __name__,
    absent={
        "ReplayBuffer": "`EpisodeReplayBuffer`",
        "PrioritizedReplayBuffer": "`PrioritizedEpisodeReplayBuffer`",
        "StorageUnit": "`EpisodeReplayBuffer`, which stores episodes",
    },
)


def __getattr__(name: str) -> Any:
    with contextlib.suppress(AttributeError):
        return _coming(name)
    return _absent(name)
