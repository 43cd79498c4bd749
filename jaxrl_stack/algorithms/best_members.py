"""Best state of each member of a population (runs that train in one compiled program), for
``reporting(keep_best=True)``.
"""

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
    """State of one member (run) of a population after an iteration.

    Attributes:
        state: State on the host, with leaves of one member; without data of the training step, such as replayed steps.
        num_env_steps: Env steps that it had sampled.
        seconds: Training time so far, in seconds.
    """

    state: MemberStates
    num_env_steps: int
    seconds: float


class BestMembers:
    """Stores the best state of each population member (run) in host memory. The best state is the state after the
    iteration with the member's highest mean return.

    Args:
        num_members: Number of members.
        evaluates, keeps: See `Best`.

    Attributes:
        best: For each member, its highest return, the iteration with this return, and the path of the checkpoint.
    """

    def __init__(self, num_members: int, *, evaluates: bool, keeps: bool | str = True):
        self.best = [Best(evaluates=evaluates, keeps=keeps) for _ in range(num_members)]
        self._kept: dict[int, KeptMember] = {}
        self._unsaved: set[int] = set()

    def update(self, results: MemberResults, is_live: np.ndarray, driver: PopulationDriver, seconds: float) -> None:
        """Stores the states of population members whose mean return is higher than in all earlier iterations.

        Args:
            results: Results of all members.
            is_live: bool ``[M]``; diverged members are not considered.
            driver: Driver with the members' states.
            seconds: Training time so far, in seconds.
        """
        few = results.only([self.best[0].metric, "training_iteration"])
        better = [i for i in np.flatnonzero(is_live).tolist() if self.best[i].is_beaten_by(few[i])]
        if better:
            for i, state in zip(better, driver.states_of(better), strict=True):
                self._kept[i] = KeptMember(state, driver.num_env_steps, seconds)
            self._unsaved.update(better)

    def knows(self, member: int) -> bool:
        """Whether the best state of the population member `member` is stored."""
        return member in self._kept

    def hand_over(self, member: int, algo: Algorithm, history: MemberHistory) -> None:
        """Loads the best state of a population member (a run) into an algorithm.

        If the algorithm has a replay buffer, the buffer is empty afterwards, because the stored state contains no
        replayed steps.

        Args:
            member: Index of a member that `knows` confirms.
            algo: Algorithm of the member's config.
            history: History of all members.
        """
        kept = self._kept[member]
        driver: Any = algo.driver
        driver.go_on_as(kept.state.learner, kept.state.runner, None, num_env_steps=kept.num_env_steps)
        set_past(algo, history.of_member(member, self.best[member].iteration), kept.seconds)

    def save(self, paths: Sequence[Path], configs: Sequence[AlgorithmConfig], history: MemberHistory) -> None:
        """Writes the best state of each population member as an ordinary checkpoint. Skips a member if the same state
        was already written to the same path.

        Args:
            paths: Path of each member's checkpoint.
            configs: Configs of the members.
            history: History of all members.
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
    """Lets an algorithm continue a population member (a run) after the last iteration in `history`.

    Sets the algorithm's counters, its history, and the settings that were changed during the run.
    """
    so_far = {"training_iteration": len(history), "time_total_s": seconds, "evaluation": {}}
    past = {"history": history.get_state(), "changed_settings": changed_settings or {}}
    algo.set_state({**so_far, "num_actions_computed": 0, **past})
