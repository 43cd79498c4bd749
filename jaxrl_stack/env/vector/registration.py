"""Creation of vectors of multi-agent environments from ids in gymnasium's registry."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from jaxrl_stack.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv
from jaxrl_stack.env.vector.vector_multi_agent_env import VectorMultiAgentEnv


def make_vec(
    id: str,
    num_envs: int = 1,
    vectorization_mode: gym.VectorizeMode | str | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> VectorMultiAgentEnv:
    """Creates several copies of a registered multi-agent environment as one vector.

    Args:
        id: Id of an environment that is registered with gymnasium; its entry point makes a `MultiAgentEnv`.
        num_envs: Number of copies.
        vectorization_mode: "sync"; None is the same.
        vector_kwargs: Further arguments of `SyncVectorMultiAgentEnv`.
        **kwargs: Arguments of the entry point.

    Raises:
        ValueError: Another mode, or a time limit in the registry, which no wrapper can apply to several agents.
        gymnasium.error.Error: There is no such id.
    """
    mode = gym.VectorizeMode.SYNC if vectorization_mode is None else gym.VectorizeMode(vectorization_mode)
    if mode is not gym.VectorizeMode.SYNC:
        raise ValueError(
            f"vectorization_mode={vectorization_mode!r}: environments of several agents support only 'sync'."
        )
    spec = gym.spec(id)
    if spec.max_episode_steps is not None:
        raise ValueError(
            f"make_vec({id!r}): its max_episode_steps={spec.max_episode_steps} has no effect on several agents. "
            "Register the id without max_episode_steps, and truncate the agents in step()."
        )
    make: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    settings = {**spec.kwargs, **kwargs}
    vector = SyncVectorMultiAgentEnv([lambda: make(**settings)] * num_envs, **(vector_kwargs or {}))
    vector.spec = spec
    return vector


__all__ = ["make_vec"]
