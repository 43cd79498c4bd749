"""Callback of RLlib's league-based self-play example. The league has main policies, exploiters against main policies,
and exploiters against all policies.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.examples.multi_agent.utils.self_play_callback import WINDOW, add_copy
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

_PREFIX = "win_rate_"
_KEEPS_TRAINING = 0.3
"""Probability that a copy of an exploiter is trained."""
_STARTED_LATER = {"league_exploiter_1", "main_exploiter_1"}
"""Exploiters that do not play and are not trained before the win rate of "main" first exceeds `win_rate_threshold`."""
_FIRST_SIZE = 4
"""Number of policies that play before the exploiters in `_STARTED_LATER` start."""


class SelfPlayLeagueBasedCallback(RLlibCallback):
    """Trains a league of policies in a game of two agents, 0 and 1, that ends with a reward of 1 for the winner.

    The config has the policies "main", "main_0", "main_exploiter_0", "main_exploiter_1", "league_exploiter_0" and
    "league_exploiter_1", and trains "main" only. When "main" wins often enough for the first time, "main_0" and both
    exploiters 1 get its weights, and the exploiters are trained, too. Later, each trained policy that wins often enough
    is copied: copies of "main" are frozen, and copies of exploiters are trained with probability 0.3, drawn from the
    config's seed and the copy's name. `league_seat` draws the policies of an episode from its id. A restored checkpoint
    continues with its league.

    Results have the share of won episodes of each policy against frozen ones (``env_runners/win_rate_main``, ...) and
    the number of policies (``league_size``). Source: Vinyals et al., 2019, "Grandmaster level in StarCraft II using
    multi-agent reinforcement learning", simplified as in RLlib's example.

    Args:
        win_rate_threshold: Share of won episodes of the last 100 above which a policy is copied.

    Attributes:
        main_policies: Ids of "main" and its copies.
        main_exploiters: Ids of policies that play against main policies.
        league_exploiters: Ids of policies that play against all policies.
        trainable_policies: Ids of policies that are trained.
        non_trainable_policies: Ids of frozen policies that play.
        win_rates: Newest shares of won episodes, by policy.
    """

    def __init__(self, win_rate_threshold: float):
        super().__init__()
        self.win_rate_threshold = win_rate_threshold
        self.main_policies = {"main", "main_0"}
        self.main_exploiters = {"main_exploiter_0", "main_exploiter_1"}
        self.league_exploiters = {"league_exploiter_0", "league_exploiter_1"}
        self.trainable_policies = {"main"}
        self.non_trainable_policies = {"main_0", "league_exploiter_0", "main_exploiter_0"}
        self.win_rates: dict[str, float] = {}

    def on_checkpoint_loaded(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Sorts the policies of a restored checkpoint by name into main policies, main exploiters and league
        exploiters.

        Restores the set of trained policies. If the training of exploiters had started, also restores the policy
        mapping function.
        """
        names = list(algorithm.config.policies)
        self.main_policies, self.main_exploiters, self.league_exploiters = (
            {name for name in names if re.fullmatch(pattern, name)}
            for pattern in (r"main(_\d+)?", r"main_exploiter_\d+", r"league_exploiter_\d+")
        )
        exploiters = self.main_exploiters | self.league_exploiters
        copies = {name for name in exploiters if int(name.rpartition("_")[2]) > 1}
        # Without copies, the size that was reported last tells whether exploiters 1 play.
        if not copies and len(self.main_policies) == 2 and algorithm.history.last.get("league_size", 0) <= _FIRST_SIZE:
            self.trainable_policies = {"main"}
            self.non_trainable_policies = (self.main_policies | exploiters) - {"main"} - _STARTED_LATER
            return
        self.trainable_policies = {
            "main",
            *_STARTED_LATER,
            *(name for name in copies if _is_trained(name, algorithm.config.root_seed)),
        }
        self.non_trainable_policies = (self.main_policies | exploiters) - self.trainable_policies
        algorithm.change_mapping(self._mapping(), policies_to_train=sorted(self.trainable_policies))

    def on_episode_end(self, *, episode: Any, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Logs whether the trained policy has won, in games of one trained policy against a frozen one."""
        trained = env_runner.config.policies_to_train
        policies = {agent: episode.module_for(agent) for agent in (0, 1)}
        learning = [agent for agent, policy in policies.items() if policy in trained]
        if len(learning) != 1:
            return
        (agent,) = learning
        rewards = episode.get_rewards().get(agent, ())
        if len(rewards):
            won = float(rewards[-1] == 1.0)
            metrics_logger.log_value(f"{_PREFIX}{policies[agent]}", won, reduce="mean", window=WINDOW)

    def on_train_result(self, *, algorithm: Algorithm, result: MutableMapping[str, Any], **kwargs: Any) -> None:
        """Extends the league: adds a copy of each trained policy whose win rate in `result` exceeds
        `win_rate_threshold`.

        If "main" is the only trained policy and its win rate exceeds the threshold, starts to train two exploiters
        instead. Adds the number of policies to `result`, as "league_size".
        """
        for key, rate in result["env_runners"].items():
            if key.startswith(_PREFIX):
                self.win_rates[key.removeprefix(_PREFIX)] = rate
        for policy in sorted(self.trainable_policies):
            if f"{_PREFIX}{policy}" in result["env_runners"] and self.win_rates[policy] > self.win_rate_threshold:
                if policy == "main" and len(self.trainable_policies) == 1:
                    self._start_exploiters(algorithm)
                else:
                    self._add_copy(algorithm, policy)
        result["league_size"] = len(self.trainable_policies) + len(self.non_trainable_policies)

    def _start_exploiters(self, algorithm: Algorithm) -> None:
        """Adds "league_exploiter_1" and "main_exploiter_1" to the trained policies. Copies the weights of "main" to
        both exploiters and to the frozen policy "main_0".
        """
        self.trainable_policies |= _STARTED_LATER
        algorithm.change_mapping(self._mapping(), policies_to_train=sorted(self.trainable_policies))
        main = algorithm.get_weights(["main"])["main"]
        algorithm.set_weights(dict.fromkeys(("main_0", *_STARTED_LATER), main))

    def _add_copy(self, algorithm: Algorithm, policy: str) -> None:
        """Adds a copy of a policy to the league.

        A copy of a main policy is frozen. A copy of an exploiter is trained with probability `_KEEPS_TRAINING`, else
        frozen.
        """
        if policy in self.main_policies:
            group, name = self.main_policies, f"main_{len(self.main_policies) - 1}"
        else:
            group = self.main_exploiters if policy in self.main_exploiters else self.league_exploiters
            name = re.sub(r"_\d+$", f"_{len(group)}", policy)
        is_trained = policy not in self.main_policies and _is_trained(name, algorithm.config.root_seed)
        group.add(name)
        (self.trainable_policies if is_trained else self.non_trainable_policies).add(name)
        add_copy(algorithm, name, policy, self._mapping(), sorted(self.trainable_policies))

    def _mapping(self) -> functools.partial[str]:
        """Returns the policy mapping function of the current league: `league_seat`, with the ids of the policies in
        each group as keyword arguments.
        """
        groups = {
            "main_policies": tuple(sorted(self.main_policies)),
            "main_exploiters": tuple(sorted(self.main_exploiters)),
            "league_exploiters": tuple(sorted(self.league_exploiters)),
            "trainable": tuple(sorted(self.trainable_policies)),
            "frozen": tuple(sorted(self.non_trainable_policies)),
        }
        return functools.partial(league_seat, **groups)


def league_seat(
    agent_id: int,
    episode: Any,
    *,
    main_policies: Sequence[str],
    main_exploiters: Sequence[str],
    league_exploiters: Sequence[str],
    trainable: Sequence[str],
    frozen: Sequence[str],
    **kwargs: Any,
) -> str:
    """Returns the id of the policy that acts for an agent: an exploiter, or an opponent of the episode's exploiter.

    In each episode, one agent is played by an exploiter, the other agent by an opponent of this exploiter.

    Half of the episodes have a league exploiter: a frozen one plays against a trained policy, a trained one against a
    frozen policy. The others have a main exploiter: a frozen one plays against "main", a trained one against a frozen
    copy of "main".

    Args:
        agent_id: 0 or 1.
        episode: Episode whose id decides.
        main_policies, main_exploiters, league_exploiters: Ids of the groups.
        trainable, frozen: Ids of trained and of frozen policies that play.
        **kwargs: Further arguments of mapping functions.
    """
    draw = np.random.default_rng(zlib.crc32(str(episode.id_).encode()))
    if draw.random() < 0.5:
        exploiter = str(draw.choice(league_exploiters))
        opponent = str(draw.choice(frozen if exploiter in trainable else trainable))
    else:
        exploiter = str(draw.choice(main_exploiters))
        copies = [policy for policy in main_policies if policy != "main"]
        opponent = str(draw.choice(copies)) if exploiter in trainable else "main"
    return exploiter if draw.integers(2) == agent_id else opponent


def _is_trained(name: str, seed: int) -> bool:
    """Draws whether a copy of an exploiter is trained, with probability `_KEEPS_TRAINING`; otherwise the copy is
    frozen.

    The same `name` of the copy and the same `seed` always give the same result.
    """
    return np.random.default_rng(derived_seed(f"league {name}", seed)).random() < _KEEPS_TRAINING
