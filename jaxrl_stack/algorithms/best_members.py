"""The best state of each member of a population, for ``reporting(keep_best=True)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.algorithms.member_runs import alone
from jaxrl_stack.runs.best import Best

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.execution.population_driver import PopulationDriver
    from jaxrl_stack.execution.population_program import MemberStates
    from jaxrl_stack.runs.history import History
    from jaxrl_stack.runs.member_history import MemberHistory
    from jaxrl_stack.runs.member_results import MemberResults


class KeptMember(NamedTuple):
    """What a member was after an iteration.

    Attributes:
        state: On the host, leaves of one member; without what the training step keeps, such as replayed steps.
        num_env_steps: That it had sampled.
        seconds: That it had been trained for.
    """

    state: MemberStates
    num_env_steps: int
    seconds: float


class BestMembers:
    """Keeps each member as it was when its mean return was the highest, in the memory of the host.

    Args:
        num_members: How many there are.
        evaluates, keeps: See `Best`.

    Attributes:
        best: Of each member, its highest return, when it was, and where its checkpoint is.
    """

    def __init__(self, num_members: int, *, evaluates: bool, keeps: bool | str = True):
        self.best = [Best(evaluates=evaluates, keeps=keeps) for _ in range(num_members)]
        self._kept: dict[int, KeptMember] = {}
        self._unsaved: set[int] = set()

    def update(self, results: MemberResults, is_live: np.ndarray, driver: PopulationDriver, seconds: float) -> None:
        """After an iteration: keep the members that are better than ever before.

        Args:
            results: Of all.
            is_live: bool ``[M]``; those that have diverged have had their best.
            driver: Holds their states.
            seconds: That they have been trained for.
        """
        few = results.only([self.best[0].metric, "training_iteration"])
        better = [i for i in np.flatnonzero(is_live).tolist() if self.best[i].is_beaten_by(few[i])]
        if better:
            for i, state in zip(better, driver.states_of(better), strict=True):
                self._kept[i] = KeptMember(state, driver.num_env_steps, seconds)
            self._unsaved.update(better)

    def knows(self, member: int) -> bool:
        """Whether the member had a return."""
        return member in self._kept

    def hand_over(self, member: int, algo: Algorithm, history: MemberHistory) -> None:
        """Let an algorithm go on as a member at its best, with an empty replay buffer.

        Args:
            member: Which; its best is known.
            algo: Of its config.
            history: Of all.
        """
        kept = self._kept[member]
        driver: Any = algo.driver
        driver.go_on_as(kept.state.learner, kept.state.runner, None, num_env_steps=kept.num_env_steps)
        set_past(algo, history.of_member(member, self.best[member].iteration), kept.seconds)

    def save(self, paths: Sequence[Path], configs: Sequence[AlgorithmConfig], history: MemberHistory) -> None:
        """Write what is best of each member as an ordinary checkpoint; what was written before is left as it is.

        Args:
            paths: Where that of each member belongs.
            configs: Theirs.
            history: Of all.
        """
        algo: Algorithm | None = None
        try:
            for i in sorted(self._kept):
                if i not in self._unsaved and self.best[i].path == str(paths[i]):
                    continue
                config = alone(configs[i])
                # Members with the same env_config share programs, and one algorithm saves them.
                if algo is None or not algo.reset(config):
                    if algo is not None:
                        algo.stop()
                    algo = config.build_algo()
                self.hand_over(i, algo, history)
                self.best[i].path = algo.save_to_path(paths[i])
                self._unsaved.discard(i)
        finally:
            if algo is not None:
                algo.stop()


def set_past(
    algo: Algorithm, history: History, seconds: float, changed_settings: Mapping[str, Any] | None = None
) -> None:
    """Let an algorithm, which has taken over the states of a member, go on where this history ends."""
    so_far = {"training_iteration": len(history), "time_total_s": seconds, "evaluation": {}}
    past = {"history": history.get_state(), "changed_settings": changed_settings or {}}
    algo.set_state({**so_far, "num_actions_computed": 0, **past})
