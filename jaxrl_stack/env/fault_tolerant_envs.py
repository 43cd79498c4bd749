"""Environments of an env runner that steps them in Python: creation, seeding, resets, steps, and replacement after
failures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.acting.recording import MASK_ALLOWS_NOTHING, StepTimes
from jaxrl_stack.acting.rollout import RolloutRecording
from jaxrl_stack.env.env_errors import StepFailedRecreateEnvError, first_step_failed
from jaxrl_stack.env.env_runner import NUM_ENV_STEP_FAILURES_LIFETIME, ConsecutiveFailuresError
from jaxrl_stack.env.observation_watch import ObservationWatch, OutOfRange
from jaxrl_stack.env.replayable_episodes import ReplayableEpisodes, RestoredEpisodes
from jaxrl_stack.env.vector.interface import HostVectorEnv, Recover, Started
from jaxrl_stack.env.vector.sync_host_multi_agent_env import SyncHostMultiAgentEnv
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

logger = logging.getLogger(__name__)


class _Failures:
    """Context manager that stores an exception of environment calls, ``with failures: environment.step(...)``.

    An exception of the ``with`` block is stored in `last`, so that a later handler can distinguish failures of
    environments from errors in other code.
    """

    last: BaseException | None = None

    def __enter__(self) -> None:
        """Does nothing; all work happens when the ``with`` block ends."""

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: Any) -> None:
        # Too many of them in a row have been counted. One that Ctrl-C has stopped half-way cannot be stepped on either.
        if error is not None and not isinstance(error, ConsecutiveFailuresError):
            self.last = error


class _Stepping:
    """Context manager that records the duration or the failure of one step of all environments.

    Usage: ``with stepping: environments.step(...)``. If the step succeeds, `FaultTolerantEnvs.note_step` gets its
    duration. If it raises, the exception is stored as a failure of the environments.

    Args:
        envs: The environments.
    """

    def __init__(self, envs: FaultTolerantEnvs):
        self._envs = envs

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._envs.note_step(time.perf_counter() - self._started)
        else:
            self._envs.failures.__exit__(kind, error, traceback)


class Attempts:
    """Loop that repeats sampling until an attempt succeeds. An attempt fails if an environment fails, or if failures of
    environments leave no valid recorded step::

        for attempt in Attempts(envs, roll_back):
            with attempt:
                ...  # Reset the environments if needed, step them, call `envs.accept` for the recorded steps.

    If an attempt raises any exception, including Ctrl-C, its recorded steps are discarded, and the next attempt resets
    the environments, because they may be in the middle of a step.

    Raises:
        ConsecutiveFailuresError: Too many failures in a row.
        Exception: Exception of an attempt, unless it is a tolerated failure of environments.
    """

    def __init__(self, envs: FaultTolerantEnvs, roll_back: Callable[[], None]):
        self._envs = envs
        self._roll_back = roll_back
        self._num_failures = 0
        self._is_over = False

    def __iter__(self) -> Iterator[Attempts]:
        while not self._is_over:
            yield self

    def __enter__(self) -> None:
        self._envs.failures.last = None

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: Any) -> bool:
        if error is None:
            self._is_over = self._envs.has_recorded
            return False
        self._drop()
        self._num_failures += 1
        return self._envs.tolerate_in_attempt(error, self._num_failures)

    def _drop(self) -> None:
        self._roll_back()
        self._envs.needs_reset = True

    @contextlib.contextmanager
    def dropped_on_error(self) -> Iterator[None]:
        """Context manager that discards the data of the last sampling attempt if the code in the ``with`` block raises.

        The code uses these data. After an exception, all environments are also reset before the next attempt.
        """
        try:
            yield
        except BaseException:
            self._drop()
            raise


@dataclasses.dataclass(eq=False, kw_only=True)
class FaultTolerantEnvs:
    """Vector of environments that may fail, by an exception or by returning NaN or infinite numbers; failed
    environments are replaced if the config allows it.

    With ``restart_failed_sub_environments``, a failure is logged, and the environment is replaced by a new one with a
    new seed: immediately if the other environments can continue, else at the reset of the next attempt (`Attempts`).
    Exceptions are raised after more failures in a row than ``num_consecutive_env_runner_failures_tolerance``, and in
    the first reset or step of these environments, where they are mistakes of the set-up. A
    `StepFailedRecreateEnvError` is not logged, and is tolerated in the first reset or step, too.

    Args:
        config: The algorithm's config, for these two settings and `replayable_episodes`.
        has_stepped: Whether these environments replace others that have made steps.

    Attributes:
        make_vector: ``seed -> environments``.
        worker_index: Index of the runner, for messages.
        seeds: Source of the environments' seeds; see `reseed`.
        metrics: Gets ``env_reset_timer`` and `NUM_ENV_STEP_FAILURES_LIFETIME`.
        on_created: Called after environments were created.
        vector: The environments; None before `make` and after `close`.
        problem: Error of the last creation of environments; None if it succeeded, or before the first.
        num_envs: Number of environments, ``B``.
        needs_reset: Whether the environments must be reset before the next step.
        failures: Context manager for all calls of `vector` in an attempt except steps: ``with failures:``.
        stepping: Context manager for steps of `vector`: ``with stepping:``.
        recover: Argument `recover` for calls of `vector`; None if failures raise.
        has_stepped: Whether there was a step in which no environment failed, or a successful replay of steps: failures
            are tolerated after it.
        has_recorded: Whether the recording that was accepted last has valid steps, or had no failures.
        replayable: Seeds and actions of unfinished episodes with ``replayable_episodes``; else None.
    """

    config: dataclasses.InitVar[AlgorithmConfig]
    has_stepped: bool
    make_vector: Callable[[int], HostVectorEnv | SyncHostMultiAgentEnv]
    worker_index: int
    seeds: tuple[int, ...]
    metrics: MetricsLogger
    on_created: Callable[[], None]

    def __post_init__(self, config: AlgorithmConfig):
        self._restarts = bool(config.restart_failed_sub_environments)
        self._tolerance = int(config.num_consecutive_env_runner_failures_tolerance)
        self._checks = not config.disable_env_checking
        self._name = config.env if isinstance(config.env, str) else getattr(config.env, "__name__", str(config.env))
        # Where environments are made anew, such steps are dropped.
        self._keeps_not_finite = config.check_nans is False and not self._restarts
        self.recover: Recover | None = None
        self._set_stepped(self.has_stepped)
        self._has_accepted = self.has_stepped
        self._step_seconds, self._num_steps = 0.0, 0
        self.vector: Any = None
        self.problem: Exception | None = None
        self.num_envs = 0
        self.failures = _Failures()
        self.stepping = _Stepping(self)
        self.has_recorded = True
        self._is_broken = False
        self._broken_index: int | None = None
        self._has_said_not_finite = False
        self._is_replayable = bool(config.replayable_episodes and not config.in_evaluation)
        self.replayable: ReplayableEpisodes | None = None
        self._form: tuple[int, gym.Space, gym.Space] | None = None
        self._observes_as: gym.Space | None = None
        self.reseed(*self.seeds)

    def make(self) -> None:
        """Closes the environments and creates new ones with new seeds.

        Raises:
            ValueError: If their number or spaces differ from the first environments', except for observation bounds.
        """
        if self.vector is not None:
            self._num_renewals += 1
            self._num_resets = 0
        self.close()
        self._make()

    def _make(self) -> None:
        try:
            self._make_vector()
        except Exception as error:
            self.problem = error
            raise
        self.problem = None
        self.on_created()

    def _make_vector(self) -> None:
        vector = self.make_vector(self._seed(0))
        form = (vector.num_envs, vector.single_observation_space, vector.single_action_space)
        self._form = self._form or form
        if not _fits(self._form, form):
            vector.close()
            raise ValueError(
                f"EnvRunner {self.worker_index}.make_env(): (number of environments, observation space, action space) "
                f"changed to {form}, but module, connectors and learners were made for {self._form}. Keep all three "
                "(pad observations, for example), or build another algorithm."
            )
        if self._is_replayable:
            self._make_replayable(vector)
        if self._observes_as is not None:
            vector.observe_as(self._observes_as)
        self.vector = vector
        self.num_envs = vector.num_envs
        self.needs_reset = True
        self._is_broken, self._broken_index = False, None
        # Per environment, failures in a row without any row of it that counts.
        self._failures_in_a_row: dict[int, int] = {}

    def _make_replayable(self, vector: Any) -> None:
        """Makes all resets of a new vector of environments use seeds from `replayable`.

        This `ReplayableEpisodes` object records the seeds and all actions, so that a replay can restore unfinished
        episodes later.
        """
        if not getattr(vector, "can_replay", False):
            vector.close()
            raise ValueError(
                f"env_runners(replayable_episodes=True) needs environments that are stepped one by one, but "
                f"environment({self._name!r}) makes a {type(getattr(vector, 'env', vector)).__name__}. Make a "
                f"gymnasium.Env, or leave replayable_episodes out."
            )
        if self.replayable is None:
            self.replayable = ReplayableEpisodes(vector.num_envs, self.seeds)
        vector.seed_of_reset = self.replayable.next_seed

    @property
    def observes_floats(self) -> bool:
        """Whether the environments' integer observations are converted to float32, because int32 cannot hold all of
        their values.
        """
        return self._observes_as is not None

    def observe_as(self, space: gym.Space) -> None:
        """Makes the present environments, and environments created later, return observations with the dtypes of
        `space`.
        """
        self._observes_as = space
        self.vector.observe_as(space)

    def close(self) -> None:
        """Closes the environments; a second call does nothing."""
        if self.vector is not None:
            self.vector.close()
            self.vector = None

    def reseed(self, *seeds: int) -> None:
        """Makes the next `reset` seed the environments, with seeds derived only from `seeds`."""
        self.seeds = seeds
        self._num_renewals = 0
        self._num_resets = 0
        self.needs_reset = True
        if self.replayable is not None:
            self.replayable.reseed(seeds)

    def _seed(self, index: int) -> int:
        """Returns the seed of the environment with this index. The seed changes after every failure, so that a replaced
        environment does not repeat the failure.
        """
        return derived_seed("environment", *self.seeds, self._num_renewals, index)

    def reset(self) -> Started:
        """Starts new episodes in all environments. First replaces environments that have failed.

        Returns:
            ``(obs [B, ...], info per environment)``.
        """
        with self.failures:
            if self._is_broken:
                self._renew()
            seeds = self._seeds_of_reset()
            started = time.perf_counter()
            outcome = self.vector.reset(seed=seeds)
        self.metrics.log_value("env_reset_timer", time.perf_counter() - started)
        self._num_resets += 1
        self.needs_reset = False
        return outcome

    def _seeds_of_reset(self) -> list[int] | None:
        """Returns one seed per environment for a reset of all environments. Returns None if the reset sets no seeds, so
        that the environments' random number generators continue.
        """
        if self.replayable is not None:
            return [self.replayable.next_seed(i) for i in range(self.num_envs)]
        # Only the first reset is seeded: from then on every environment goes its own way.
        return [self._seed(i) for i in range(self.num_envs)] if self._num_resets == 0 else None

    def continue_seeds(self, state: Mapping[str, Any]) -> None:
        """Continues the sequence of reset seeds in `state`, a saved result of ``replayable.get_state()``.

        Later resets use the next seeds of this sequence. Does not restore the saved episodes.
        """
        assert self.replayable is not None
        self.replayable.continue_seeds(state)
        self.seeds = self.replayable.seeds

    def restore_episodes(self, state: Mapping[str, Any], obs: Any, returns: np.ndarray) -> RestoredEpisodes:
        """Restores the unfinished episodes in a saved ``replayable.get_state()`` by replaying their seeds and actions;
        see `ReplayableEpisodes.restore`.

        If some cannot be restored, a warning names their environments, which start new episodes. After a successful
        replay of at least one step, later failures are tolerated as in the stored run.
        """
        assert self.replayable is not None
        if self._is_broken:
            self._renew()
        restored = self.replayable.restore(state, self.vector, obs, returns, self._renew_one)
        self.seeds = self.replayable.seeds
        self._num_resets += 1
        if any(length > 0 and i not in restored.problems for i, length in enumerate(state["lengths"])):
            # Steps of the stored run were accepted, and the replay has repeated them.
            self._set_stepped(True)
            self._has_accepted = True
        if restored.problems:
            first, problem = next(iter(restored.problems.items()))
            self.warn_of_new_episodes(
                f"Copy {first} {problem}. Draw its random numbers from self.np_random, which reset(seed=...) sets",
                f"copies {', '.join(map(str, restored.problems))} of ",
            )
        return restored

    def warn_of_new_episodes(self, why: str, which: str = "") -> None:
        """Warns that environments start new episodes instead of continuing the episodes of a checkpoint."""
        logger.warning(
            "env_runners(replayable_episodes=True): %senvironment(%r) started new episodes, so the run does not "
            "continue bit for bit. %s.",
            which,
            self._name,
            why,
        )

    def new_watch(self) -> ObservationWatch | None:
        """Creates an `ObservationWatch`, which checks the observations of all environments for values outside of the
        space.

        Returns None if checks are disabled, or if the space allows all values.
        """
        return self.watch_of(self.vector.single_observation_space, self.num_envs, lambda row: f"copy {row}")

    def watch_of(self, space: gym.Space, num_rows: int, who: Callable[[int], str]) -> ObservationWatch | None:
        """Creates an `ObservationWatch`, which checks observations for values outside of `space`; None if checks are
        disabled, or if the space allows all values.

        Args:
            space: Space of one observation.
            num_rows: Number of rows.
            who: Names the origin of a row.
        """
        if not self._checks:
            return None
        watch = ObservationWatch(
            space, num_rows, self._name, lambda row: f"{who(row)} in EnvRunner {self.worker_index}"
        )
        return None if watch.is_idle else watch

    def note_step(self, seconds: float) -> None:
        """Adds the duration of a successful environment step to the step times; leaves out the very first step, which
        may load libraries.
        """
        if self.has_stepped:
            self._step_seconds += seconds
            self._num_steps += 1
        else:  # The first step may load things: its time says nothing about the others.
            self._set_stepped(True)

    def take_step_times(self) -> StepTimes:
        """Returns the total duration (seconds) and the number of vector steps since the last call, without the very
        first step.
        """
        times = StepTimes(self._step_seconds, self._num_steps)
        self._step_seconds, self._num_steps = 0.0, 0
        return times

    def _set_stepped(self, has_stepped: bool) -> None:
        self.has_stepped = has_stepped
        self.recover = self._recover if self._restarts and has_stepped else None

    def accept(self, recording: RolloutRecording, out_of_range: Sequence[OutOfRange] = ()) -> None:
        """Checks the recorded steps of a sampling attempt.

        Raises ValueError if rewards or observations are NaN or infinite, if an action mask allows no action, or if
        `out_of_range` contains a report of an observation outside of its space (see `OutOfRange`).

        Args:
            recording: The recorded steps.
            out_of_range: Observations that are outside of their space, by environment.

        Raises:
            ValueError: For the first invalid value; it counts as a failure of the environments. With
                ``check_nans=False``, NaN and infinite numbers raise no error: the first is logged.
        """
        for found in sorted([*out_of_range, *recording.not_usable()], key=lambda one: one[:2]):
            index = found[1]
            message = (
                f"Environment {index} of EnvRunner {self.worker_index} (environment({self._name!r}), env_config: "
                f"worker_index={self.worker_index}, vector_index={index}) returned {found.what}, in step {found.step} "
                f"of the {recording.num_steps} steps that were being sampled."
            )
            remedy = (
                "Repair the environment. To drop such steps and restart it, set "
                "fault_tolerance(restart_failed_sub_environments=True)."
            )
            if isinstance(found, OutOfRange):
                remedy = found.remedy
            elif self._keeps_not_finite and not found.what.startswith(MASK_ALLOWS_NOTHING):
                if not self._has_said_not_finite:
                    logger.warning(
                        "%s With check_nans=False, connector statistics skip it, but losses contain it.", message
                    )
                self._has_said_not_finite = True
                continue
            self._broken_index = index
            if not self._has_accepted and found.is_of_first_step:
                self._set_stepped(False)
            with self.failures:
                raise ValueError(f"{message} {remedy}")
        self._has_accepted = True
        self.has_recorded = recording.num_env_steps > 0 or not recording.num_failures
        if self._failures_in_a_row:
            sampled = recording.valid_envs
            self._failures_in_a_row = {i: n for i, n in self._failures_in_a_row.items() if i not in sampled}

    def tolerate_in_attempt(self, error: BaseException, num_failures: int) -> bool:
        """Handles the exception of a failed sampling attempt.

        If an environment failed and the config tolerates the failure, returns True: sampling is repeated. If the config
        does not tolerate the failure, raises an error; see `_tolerate`. After any failure of an environment, the next
        reset replaces this environment, or all environments if it is unknown which one failed.

        Args:
            error: Exception from an attempt.
            num_failures: Attempts that failed in a row.

        Returns:
            Whether sampling is repeated: False if `error` is no failure of environments.
        """
        if error is not self.failures.last:
            return False
        self._num_renewals += 1
        self._is_broken = True
        if not isinstance(error, Exception):
            return False
        self._tolerate(error, num_failures, "the steps of this sample are")
        return True

    def _tolerate(self, error: Exception, failures: int, what_is_dropped: str) -> None:
        """Counts and logs a tolerated exception of an environment. A `StepFailedRecreateEnvError` is counted, but not
        logged.

        Raises:
            Exception: The given `error`, if the config tolerates no failures, or if no step of the environments has
                succeeded yet and `error` is no `StepFailedRecreateEnvError`.
            ConsecutiveFailuresError: If there were too many failures in a row.
        """
        is_known = isinstance(error, StepFailedRecreateEnvError)
        runner = f"EnvRunner {self.worker_index}"
        if not self._restarts:
            raise error
        if not self.has_stepped and not is_known:
            error.add_note(
                f"{first_step_failed('restart_failed_sub_environments')} To recreate it even then, raise "
                f"jaxrl_stack.env.env_errors.StepFailedRecreateEnvError in it."
            )
            raise error
        if failures > self._tolerance:
            raise ConsecutiveFailuresError.of(f"Environments of {runner}", failures, self._tolerance, error) from error
        if not is_known:
            message = "An environment of %s failed: it is replaced, and %s dropped."
            logger.error(message, runner, what_is_dropped, exc_info=error)
        self.metrics.log_value(NUM_ENV_STEP_FAILURES_LIFETIME, 1, reduce="lifetime_sum")

    def _recover(self, index: int, error: Exception) -> tuple[Any, dict[str, Any]]:
        """Replaces one failed environment and resets it, while the others continue; returns ``(first observation,
        info)``.
        """
        while True:
            self._num_renewals += 1
            failures = self._failures_in_a_row[index] = self._failures_in_a_row.get(index, 0) + 1
            self._tolerate(error, failures, "its episode is")
            try:
                self._renew_one(index)
                seed = self._seed(index) if self.replayable is None else self.replayable.next_seed(index)
                return self.vector.reset_one(index, seed)
            except Exception as another:
                error = another

    def _renew_one(self, index: int) -> None:
        self.vector.renew(index)
        self.on_created()

    def _renew(self) -> None:
        """Replaces the failed environment, or all environments if it is unknown which one failed."""
        if self.vector.renew(self._broken_index):
            self.on_created()
        else:
            self.vector.discard()
            self._make()
        self._is_broken, self._broken_index = False, None
        # The random numbers of an environment that is new would start where those of the first one did.
        self._num_resets = 0


def _fits(form: tuple[int, gym.Space, gym.Space], other: tuple[int, gym.Space, gym.Space]) -> bool:
    """Whether modules that were built for one vector of environments can act in another.

    The arguments `form` and `other` describe the two vectors, as ``(num_envs, observation space, action space)``.
    """
    (num_envs, observations, actions), (other_num_envs, other_observations, other_actions) = form, other
    # Bounds of actions are what actions are scaled to.
    return (num_envs, actions) == (other_num_envs, other_actions) and (
        observations == other_observations or difference(observations, other_observations) is None
    )
