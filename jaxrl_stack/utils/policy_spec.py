"""`PolicySpec`: the observation and action space of one policy in ``multi_agent(policies=...)``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium as gym


@dataclasses.dataclass
class PolicySpec:
    """Observation and action space of one policy (RLModule) in ``multi_agent(policies=...)``.

    Args:
        policy_class: Must be None; networks are RLModules.
        observation_space: Space of the module's observations; None takes the environment's.
        action_space: Space of the module's actions; None takes the environment's.
        config: Must be empty or None. Settings of one module are set with
            ``rl_module(algorithm_config_overrides_per_module=...)``.

    Raises:
        ValueError: If `policy_class` is given.
    """

    policy_class: Any = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.policy_class is not None:
            raise ValueError(
                f"PolicySpec(policy_class={self.policy_class!r}): there are no Policy classes. Use an "
                "RLModule (rl_module(rl_module_spec=...)) and a Learner (learners(learner_class=...))."
            )
