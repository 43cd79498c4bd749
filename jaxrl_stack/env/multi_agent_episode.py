"""RLlib's path to episodes of several agents, which are not here yet."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.coming import coming_class

MultiAgentEpisode: Any = coming_class(
    "MultiAgentEpisode", __name__, "Until then episodes are SingleAgentEpisodes (jaxrl_stack.env.single_agent_episode)."
)

__all__ = ["MultiAgentEpisode"]
