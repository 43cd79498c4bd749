"""MultiAgentEpisodeReplayBuffer under RLlib's import path."""

from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer

__all__ = ["MultiAgentEpisodeReplayBuffer"]
