"""Policy with JSON requests and answers, which stores the recurrent states of many episodes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import jax
import numpy as np

from jaxrl_stack.policy import Policy


class JsonPolicy:
    """Answers JSON requests for actions, and stores the recurrent states of unfinished episodes. Several threads may
    share one object.

    Args:
        policy: The policy that acts.
        max_episodes: Number of episodes whose states are kept. If there are more, the one without a request for the
            longest time is dropped.
    """

    def __init__(self, policy: Policy, max_episodes: int = 10_000):
        self.policy = policy
        self.max_episodes = max_episodes
        self._episodes: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()
        policy.compute_single_action(policy.observation_space.sample())  # compiles before the first request

    def act(self, request: Any) -> dict[str, Any]:
        """Returns the action for one observation, as a dict that can be encoded as JSON.

        Args:
            request: ``{"observation": numbers}`` for the first step of an episode, or
                ``{"observation": numbers, "episode": name}`` for each step of a longer one. A new name begins an
                episode. Lists, numbers and dicts of them have the structure of the observation space.

        Returns:
            ``{"action": numbers, "step": number}``: the environment's action, and the number of earlier requests of
            this episode.

        Raises:
            ValueError: If the request does not have this form, or the observation does not fit the observation space.
        """
        match request:
            case {"observation": observation, **rest} if not rest.keys() - {"episode"}:
                name = rest.get("episode")
            case _:
                raise ValueError(
                    'The request does not have the expected form. Send {"observation": numbers}, or '
                    '{"observation": numbers, "episode": "name"}.'
                )
        if name is not None and not isinstance(name, str):
            raise ValueError(f'"episode" is {name!r}, but must be text. Send "episode": "{name}".')
        with self._lock:
            step, state = self._episodes.get(name, (0, None)) if name is not None else (0, None)
        action, state, _ = self.policy.compute_single_action(observation, state)
        if name is not None:
            with self._lock:
                self._episodes[name] = step + 1, state
                self._episodes.move_to_end(name)
                while len(self._episodes) > self.max_episodes:
                    self._episodes.popitem(last=False)
        return {"action": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), action), "step": step}
