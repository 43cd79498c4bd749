"""Replay buffers on the host, with uniform or prioritised sampling, for one or several agents."""

from __future__ import annotations

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer
from jaxrl_stack.replay.multi_agent_prioritized_episode_buffer import MultiAgentPrioritizedEpisodeReplayBuffer
from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

__all__ = [
    "EpisodeReplayBuffer",
    "MultiAgentEpisodeReplayBuffer",
    "MultiAgentPrioritizedEpisodeReplayBuffer",
    "PrioritizedEpisodeReplayBuffer",
]

__getattr__ = absent_or_renamed(
    __name__,
    absent={
        "ReplayBuffer": "`EpisodeReplayBuffer`",
        "PrioritizedReplayBuffer": "`PrioritizedEpisodeReplayBuffer`",
        "StorageUnit": "`EpisodeReplayBuffer`, which stores episodes",
    },
)
