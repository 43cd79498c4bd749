"""Self-play: a policy against its earlier selves."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

WINDOW = 100
"""Number of episodes in the share of won ones."""


class SelfPlayCallback(RLlibCallback):
    """Callback for self-play: adds a copy of the policy "main" as an opponent after each iteration in which the win
    rate of "main" is above `win_rate_threshold`.

    For games of two agents, 0 and 1, that end with a reward of 1 for the winner. The config has the policies "main",
    the only one that is trained, and "random", its first opponent, and maps agents to them. Copies are called
    "main_v1", "main_v2", ...; each episode has one of them, and "main" at either seat, both drawn from the
    episode's id. Results have the share of won episodes (``env_runners/win_rate``) and the number of policies
    (``league_size``). Copies of a restored checkpoint play as before.

    Args:
        win_rate_threshold: Share of won episodes of the last 100 above which a copy is made.

    Attributes:
        current_opponent: Number of copies.
    """

    def __init__(self, win_rate_threshold: float):
        super().__init__()
        self.win_rate_threshold = win_rate_threshold
        self.current_opponent = 0

    def on_checkpoint_loaded(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Counts the copies of "main" in a restored checkpoint. If the checkpoint has copies, sets the policy mapping
        function to one that uses the copies as opponents.
        """
        copies = [re.fullmatch(r"main_v(\d+)", name) for name in algorithm.config.policies]
        self.current_opponent = max((int(copy[1]) for copy in copies if copy), default=0)
        if self.current_opponent:
            algorithm.change_mapping(functools.partial(seat, num_copies=self.current_opponent))

    def on_episode_end(self, *, episode: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Logs in the metrics whether the policy "main" has won the episode."""
        main = 0 if episode.module_for(0) == "main" else 1
        rewards = episode.get_rewards()
        if main in rewards and len(rewards[main]):
            metrics_logger.log_value("win_rate", float(rewards[main][-1] == 1.0), reduce="mean", window=WINDOW)

    def on_train_result(self, *, algorithm: Algorithm, result: MutableMapping[str, Any], **kwargs: Any) -> None:
        """Adds a copy of the policy "main" as an opponent if the win rate of "main" is above `win_rate_threshold`."""
        if result["env_runners"].get("win_rate", 0.0) > self.win_rate_threshold:
            self.current_opponent += 1
            mapping = functools.partial(seat, num_copies=self.current_opponent)
            add_copy(algorithm, f"main_v{self.current_opponent}", "main", mapping)
        result["league_size"] = self.current_opponent + 2


def add_copy(
    algorithm: Algorithm, name: str, policy: str, mapping: functools.partial[str], trained: Sequence[str] | None = None
) -> None:
    """Adds a copy of a policy, with the same weights, to an algorithm, and sets the algorithm's policy mapping function
    and list of trained policies.

    Args:
        algorithm: The algorithm.
        name: Id of the copy.
        policy: Id of the policy.
        mapping: New ``policy_mapping_fn``.
        trained: New ``policies_to_train``; None keeps it.
    """
    algorithm.add_module(
        name,
        RLModuleSpec.from_module(algorithm.get_module(policy)),
        new_agent_to_module_mapping_fn=mapping,
        new_should_module_be_updated=trained,
    )
    algorithm.set_weights({name: algorithm.get_weights([policy])[policy]})


def seat(agent_id: int, episode: Any, *, num_copies: int, **kwargs: Any) -> str:
    """Returns the id of the policy that acts for an agent: "main" for one agent, a copy of "main" for the other.

    Args:
        agent_id: 0 or 1.
        episode: Episode whose id decides.
        num_copies: At least 1.
        **kwargs: Further arguments of mapping functions.
    """
    draw = zlib.crc32(str(episode.id_).encode())
    return "main" if draw % 2 == agent_id else f"main_v{draw // 2 % num_copies + 1}"
