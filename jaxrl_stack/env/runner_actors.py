"""The actors of a group of env runners: how they are started, lost, restarted and taken back."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core import COMPONENT_RL_MODULE
from jaxrl_stack.env.env_errors import first_step_failed
from jaxrl_stack.env.env_runner import ConsecutiveFailuresError, EnvRunner
from jaxrl_stack.env.env_runner_state_server import EnvRunnerStateServer
from jaxrl_stack.utils.actor_manager import (
    PROBE_INTERVAL_S,
    CallResult,
    FaultTolerantActorManager,
    Func,
    RemoteCallResults,
    is_lost_object,
    original_error,
)
from jaxrl_stack.utils.resources import actor_options, scheduling_strategy

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

logger = logging.getLogger(__name__)

MAX_BYTES_IN_CALLS = 2**16
"""Up to here a state travels with the calls of actors; Ray itself puts arguments of 100 kB into its object store."""


WAITING_LINE_S = 10.0
"""Seconds between two lines of the log about the wait for an actor."""


class NoHealthyEnvRunnerError(RuntimeError):
    """No EnvRunner actor is healthy."""


class EnvRunnersRestartingError(NoHealthyEnvRunnerError):
    """No EnvRunner actor is healthy, and those that are being restarted were not back in time."""


class NotRestoredError(RuntimeError):
    """An actor was to sample that Ray had restarted between two calls: it has no state and no seed yet."""


class Restarts:
    """When actors were restarted, and when those that have failed are to be."""

    def __init__(self) -> None:
        self._num: dict[int, int] = {}
        self._last: dict[int, float] = {}
        self._due: dict[int, float] = {}

    def schedule(self, actor_id: int, delay: float) -> float:
        """Plan a restart: at once, or that many seconds after the last one.

        Returns:
            Seconds until then.
        """
        now = time.monotonic()
        self._due[actor_id] = max(now, self._last[actor_id] + delay) if actor_id in self._last else now
        return self._due[actor_id] - now

    def take_due(self) -> list[int]:
        """The actors to restart now."""
        now = time.monotonic()
        ids = [actor_id for actor_id, due in self._due.items() if due <= now]
        for actor_id in ids:
            del self._due[actor_id]
        return ids

    def is_pending(self, actor_id: int) -> bool:
        """Whether this actor's restart is not due yet."""
        return actor_id in self._due

    def first_due(self) -> float:
        """The time of the first restart that is to come (``time.monotonic()``); now if there is none."""
        return min(self._due.values(), default=time.monotonic())

    def note(self, actor_id: int) -> None:
        """This actor is back from a restart."""
        self._num[actor_id] = self.num_of(actor_id) + 1
        self._last[actor_id] = time.monotonic()

    def num_of(self, actor_id: int) -> int:
        """How often this actor came back."""
        return self._num.get(actor_id, 0)


def _restored(
    runner: Any, *, num_restarts: int, config: AlgorithmConfig | None, changed: Mapping[str, Any], **states: Any
) -> None:
    """Take a restarted actor back: with the config that all were reset to, if they were, the settings that were changed
    since, and the states sent last."""
    if config is not None:
        runner.reset(config)
    if changed:
        runner.change_settings(changed)
    for state in states.values():
        runner.set_state(state)
    runner.on_restarted(num_restarts)
    runner.is_restored = True


def _stepped(runner: EnvRunner) -> bool:
    return runner.has_stepped


STOP_TIMEOUT_S = 5.0
"""Longest wait for actors to close their environments."""


class RunnerActors:
    """Env runner actors with the ids 1 to N; what their losses and failures mean, `EnvRunnerGroup` says.

    Args:
        config: The config that the runners get.
        is_evaluation: Whether these are evaluation's runners.
        env_runner_kwargs: More arguments for the runners' class.
        on_env_runners_recreated: ``f(self, ids of actors that are back)``, called after they got their state.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        is_evaluation: bool,
        env_runner_kwargs: Mapping[str, Any] | None,
        on_env_runners_recreated: Callable[[Any, list[int]], Any] | None,
    ):
        self.config = config
        self.is_evaluation = is_evaluation
        self._kwargs = dict(env_runner_kwargs or {})
        self._on_recreated = on_env_runners_recreated
        self._local: EnvRunner | None = None
        self._sent: list[tuple[frozenset[str], Any]] = []
        self._reset_to: AlgorithmConfig | None = None  # None for the config that actors were built from
        self._changed: dict[str, Any] = {}  # settings since then
        self._num_dropped = 0
        self._has_sampled = False
        self._num_failures_in_a_row = 0
        self._last_errors: dict[int, BaseException] = {}
        self._waits_since: float | None = None
        self._num_lines_of_waiting = 0
        self._state_server: Any = None
        self._newest_state: Any = None
        self._state_of: dict[int, Any] = {}
        self.reset([])

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Forget the actors, without ending them, and take others in their place, with ids from 1."""
        self._manager = FaultTolerantActorManager(
            new_remote_workers, self.config.max_requests_in_flight_per_env_runner, init_id=1
        )
        self._restarts = Restarts()

    def _start_state_server(self) -> None:
        """Start the actor from which the others pull new weights."""
        import ray

        server_class = ray.remote(EnvRunnerStateServer)
        concurrency = int(self.config.env_runner_state_server_max_concurrency)
        # What it loses when it dies comes again with the next weights.
        self._state_server = server_class.options(num_cpus=0, max_restarts=-1, max_concurrency=concurrency).remote()

    @property
    def _runner_class(self) -> type[EnvRunner]:
        return self.config.env_runner_cls or self.config.get_default_env_runner_class()

    def _start_actors(self, num_actors: int, placement_group: Any, pg_offset: int) -> None:
        if not num_actors:
            return
        import ray

        config = self.config
        options = actor_options(config, "env_runner")
        takes_bundle = bool(options["num_cpus"] or options["num_gpus"] or options["resources"])
        restarts = config.max_num_env_runner_restarts if config.restart_failed_env_runners else 0
        actor_class = ray.remote(self._runner_class)
        for i in range(num_actors):
            strategy = scheduling_strategy(placement_group, pg_offset + i if takes_bundle else -1)
            handle = actor_class.options(
                **options, max_restarts=restarts, **({} if strategy is None else {"scheduling_strategy": strategy})
            ).remote(**{"config": config, "worker_index": i + 1, "num_workers": num_actors, **self._kwargs})
            self._manager.add_actors([handle])

    def _check_construction(self, func: Func, actor_ids: Sequence[int] | None = None) -> list[Any]:
        """Results of a call that must work: nothing is ignored while actors are built."""
        results = self._manager.foreach_actor(func, remote_actor_ids=actor_ids)
        for call in results:
            if not call.ok:
                error = call.get()
                why = _last_error(str(error))
                error.add_note(f"EnvRunner actor {call.actor_id} could not be built, or is not healthy{why}")
                raise error
        return [call.get() for call in results]

    def write_output(self, *, is_last: bool = False) -> None:
        """Complete the files of what was recorded; see `EnvRunner.write_output`."""
        if not self.config.output:
            return
        if self._local is not None:
            self._local.write_output(is_last=is_last)
        calls = self._manager.foreach_actor("write_output", kwargs={"is_last": is_last}, healthy_only=True)
        for call in calls:
            if not call.ok:
                raise call.get()

    def _stop_runners(self) -> None:
        """Close all environments and end all actors."""
        if self._manager.num_actors():
            import ray

            if ray.is_initialized():
                handles = self._manager.actors()
                healthy = [handles[i].stop.remote() for i in self._manager.healthy_actor_ids()]
                ray.wait(healthy, num_returns=len(healthy), timeout=STOP_TIMEOUT_S)
                if self._state_server is not None:
                    ray.kill(self._state_server)
            self._manager.clear()
        self._sent, self._state_server = [], None
        if self._local is not None:
            self._local.stop()

    # ---------------------------------------------------------------------------------------------------------- members

    def num_remote_env_runners(self) -> int:
        """Number of actors, healthy or not."""
        return self._manager.num_actors()

    def num_healthy_remote_env_runners(self) -> int:
        """Number of healthy actors."""
        return self._manager.num_healthy_actors()

    def num_healthy_env_runners(self) -> int:
        """Number of healthy runners, the local one included."""
        return (self._local is not None) + self.num_healthy_remote_env_runners()

    def healthy_env_runner_ids(self) -> list[int]:
        """Ids of the healthy actors."""
        return self._manager.healthy_actor_ids()

    # RLlib has both names of these.
    num_remote_workers = num_remote_env_runners
    num_healthy_remote_workers = num_healthy_remote_env_runners
    num_healthy_workers = num_healthy_env_runners
    healthy_worker_ids = healthy_env_runner_ids

    def num_remote_worker_restarts(self) -> int:
        """How often an actor came back."""
        return self._manager.total_num_restarts()

    def num_env_runners_dropped_lifetime(self) -> int:
        """How many actors were lost and not replaced."""
        return self._num_dropped

    def num_in_flight_async_reqs(self, tag: str | None = None) -> int:
        """Asynchronous requests whose results were not fetched yet; of one tag, or of all."""
        return self._manager.num_outstanding_async_reqs(tag)

    def sampling_ids(self) -> list[int]:
        """Ids of the runners that sample: the healthy actors, or ``[0]``, the local runner, without actors.

        Raises:
            EnvRunnersRestartingError: If no actor is healthy and none comes back in time: within
                ``env_runner_health_probe_timeout_s`` after its restart, in evaluation within
                ``evaluation_unhealthy_workers_timeout_s``.
            NoHealthyEnvRunnerError: If all actors are lost for good.
        """
        name = "evaluation_unhealthy_workers_timeout_s" if self.is_evaluation else "env_runner_health_probe_timeout_s"
        timeout = getattr(self.config, name)
        # The actor whose restart is due first is worth the wait.
        delay = 0.0 if self.is_evaluation else max(0.0, self._restarts.first_due() - time.monotonic())
        if ids := self.sampling_ids_soon(delay + timeout):
            return ids
        raise EnvRunnersRestartingError(
            f"None of {self.num_remote_env_runners()} EnvRunner actors is back from its restart within "
            f"{name}={timeout}; the log has the reasons of their failures. If their environments take long to start, "
            f"set a longer {name}."
        )

    def sampling_ids_soon(self, timeout_seconds: float = 0.0) -> list[int]:
        """As `sampling_ids`, but empty if all actors are being restarted and none is back in time.

        Args:
            timeout_seconds: Longest wait for the first one.

        Raises:
            NoHealthyEnvRunnerError: If all actors are lost for good.
        """
        if not self.num_remote_env_runners() and not self._num_dropped:
            return [0]
        until = time.monotonic() + timeout_seconds
        # Those that are back already, at no cost if none is missing.
        self.probe_unhealthy_env_runners(timeout_seconds=0.0)
        while not (ids := self.healthy_env_runner_ids()):
            if not self._manager.recoverable_actor_ids():
                raise NoHealthyEnvRunnerError(
                    f"No EnvRunner actor is left: {self._num_dropped} were lost for good. The log has the reasons."
                )
            self._note_waiting()
            left = until - time.monotonic()
            if left <= 0.0:
                return []
            time.sleep(min(left, PROBE_INTERVAL_S))
            self.probe_unhealthy_env_runners(timeout_seconds=0.0)
        self._waits_since = None
        return ids

    def _note_waiting(self) -> None:
        """Log how long no actor has been healthy, every few seconds."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since, self._num_lines_of_waiting = now, 0
        seconds = now - self._waits_since
        if seconds >= WAITING_LINE_S * (self._num_lines_of_waiting + 1):
            self._num_lines_of_waiting = int(seconds // WAITING_LINE_S)
            whose = " of evaluation" if self.is_evaluation else ""
            number = len(self._manager.recoverable_actor_ids())
            message = "No EnvRunner actor%s has been healthy for %.0f s: waiting for %d of them to restart."
            logger.warning(message, whose, seconds, number)

    # ----------------------------------------------------------------------------------------------------------- states

    def _send_state(
        self,
        state: dict[str, Any],
        actor_ids: Sequence[int] | None,
        timeout_seconds: float | None,
        *,
        with_requests: bool = False,
    ) -> None:
        """Hand a part of the state to the actors, and keep it for those that will be restarted.

        Those who get it `with_requests` have the newest one when they sample, and none that is older in between: with
        what they are asked for by `EnvRunnerGroup.request`, or from the state server if there is one.
        """
        if not state or not self._manager.num_actors():
            return
        import ray

        # Actors read NumPy arrays straight from the object store's memory. A few of them travel with the call in less
        # time than it takes to put an object into the store, to find it there and to let go of it.
        ref: Any = jax.device_get(state)
        if sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(ref)) > MAX_BYTES_IN_CALLS:
            ref = ray.put(ref)
        self._sent = [(parts, old) for parts, old in self._sent if not parts <= set(state)]
        self._sent.append((frozenset(state), ref))
        if with_requests:
            if self._state_server is None:
                self._newest_state = ref
            else:
                self._state_server.push.remote(ref)
            return
        if COMPONENT_RL_MODULE in state:
            self._newest_state = None
        if self._state_server is not None:
            self._state_server.clear.remote()
        results = self._manager.foreach_actor(
            "set_state", kwargs={"state": ref}, remote_actor_ids=actor_ids, timeout_seconds=timeout_seconds
        )
        self._answers(results)

    def _newest_state_for(self, actor_id: int) -> dict[str, Any]:
        """Where an actor that is asked to sample gets the newest state: ``state``, a reference, which is None if it has
        that already, or ``state_server``."""
        newest = self._newest_state if self._state_of.get(actor_id) is not self._newest_state else None
        self._state_of[actor_id] = self._newest_state
        return {"state": newest, "state_server": self._state_server}

    # ---------------------------------------------------------------------------------------------- losses and failures

    def _answers(self, results: RemoteCallResults, *, are_samples: bool = False) -> list[tuple[int, Any]]:
        """``(id, result)`` of the calls that worked; the others are raised, or noted and left out.

        Of actors that sampled, one whose environment failed is restarted, or dropped.
        """
        self._note_losses()
        answers = [(call.actor_id, call.get()) for call in results.ignore_errors()]
        if answers and are_samples:
            self._has_sampled = True
            self._num_failures_in_a_row = 0
        failed: dict[int, CallResult] = {}
        for call in results:
            if not call.ok:
                failed.setdefault(call.actor_id, call)  # One failure, however many shares of it an actor had.
        for actor_id, call in failed.items():
            if are_samples and is_lost_object(call.get()):
                logger.warning("What EnvRunner actor %d sampled is lost: %s", actor_id, call.get())
                self._count_failure(call.get())
            elif call.is_ray_error:
                self._note_loss(call)
            elif are_samples:
                self._note_failure(actor_id, call.get())
            elif self.config.ignore_env_runner_failures:
                logger.warning("EnvRunner actor %d failed: %s", actor_id, call.get())
            else:
                raise call.get()
        return answers

    def _note_failure(self, actor_id: int, error: Exception) -> None:
        """What an actor raised while it sampled."""
        config = self.config
        if isinstance(error, NotRestoredError):
            logger.warning("EnvRunner actor %d was lost and restarted between two calls.", actor_id)
            self._manager.set_actor_state(actor_id, healthy=False)
            self._count_failure(error)
            return
        if isinstance(error, ConsecutiveFailuresError):
            original = original_error(error)
            raise ConsecutiveFailuresError(str(original.args[0]), original.__cause__)
        setting = "restart_failed_env_runners" if config.restart_failed_env_runners else "ignore_env_runner_failures"
        if not getattr(config, setting):
            raise error
        if not (self._has_sampled or self._has_stepped(actor_id)):
            error.add_note(first_step_failed(setting))
            raise error
        self._count_failure(error)
        if not config.restart_failed_env_runners:
            logger.error("EnvRunner actor %d failed; going on without it.\n%s", actor_id, error)
            self._drop(actor_id)
        elif self._manager.is_actor_healthy(actor_id):
            self._last_errors[actor_id] = error
            delay = self._restarts.schedule(actor_id, config.delay_between_env_runner_restarts_s)
            self._manager.set_actor_state(actor_id, healthy=False)
            when = f"in {delay:.1f} s (delay_between_env_runner_restarts_s)" if delay else "now"
            logger.error("EnvRunner actor %d failed and is restarted %s.\n%s", actor_id, when, error)
            self._restart_due()

    def _has_stepped(self, actor_id: int) -> bool:
        """Whether environments of an actor have made their first step; True if it does not answer."""
        timeout = self.config.env_runner_health_probe_timeout_s
        answers = self._manager.foreach_actor(_stepped, remote_actor_ids=[actor_id], timeout_seconds=timeout)
        return all(call.get() for call in answers.ignore_errors())

    def _count_failure(self, error: Exception) -> None:
        self._num_failures_in_a_row += 1
        tolerance = self.config.num_consecutive_env_runner_failures_tolerance
        if self._num_failures_in_a_row > tolerance:
            owner = "EnvRunner actors" + (" of evaluation" if self.is_evaluation else "")
            failure = ConsecutiveFailuresError.of(owner, self._num_failures_in_a_row, tolerance, original_error(error))
            failure.__cause__ = error  # With the traceback of the actor.
            raise failure

    def _restart_due(self) -> None:
        """Restart the actors that have failed and whose delay is over."""
        for actor_id in self._restarts.take_due():
            if actor_id in self._manager.actor_ids():
                self._manager.restart_actor(actor_id)

    def _drop(self, actor_id: int) -> None:
        """Go on without an actor, which is ended if it still lives."""
        import ray

        if actor_id in self._manager.actor_ids():
            ray.kill(self._manager.remove_actor(actor_id))
            self._num_dropped += 1

    def _note_losses(self) -> None:
        for call in self._manager.take_losses():
            if call.actor_id in self._manager.actor_ids():
                self._note_loss(call)

    def _note_loss(self, call: CallResult) -> None:
        config, error = self.config, call.get()
        is_final = self._manager.is_lost_for_good(call)
        if config.restart_failed_env_runners and not is_final:
            self._count_failure(error)
            return  # Ray is starting it again, and the manager has logged why.
        if not config.ignore_env_runner_failures:
            if config.restart_failed_env_runners:
                error.add_note(
                    f"EnvRunner actor {call.actor_id} is lost for good: it died more often than "
                    f"max_num_env_runner_restarts={config.max_num_env_runner_restarts}, or could not be built again. "
                    f"Set fault_tolerance(ignore_env_runner_failures=True) to go on without it."
                )
            else:
                error.add_note(
                    f"EnvRunner actor {call.actor_id} is lost. Set fault_tolerance(restart_failed_env_runners=True) "
                    f"to start it again, or ignore_env_runner_failures=True to go on without it."
                )
            raise error from self._last_errors.get(call.actor_id)
        self._count_failure(error)
        if is_final:
            self._drop(call.actor_id)

    def probe_unhealthy_env_runners(self, timeout_seconds: float | None = None) -> list[int]:
        """Take actors back in that Ray has restarted: they get the states that were sent last.

        Args:
            timeout_seconds: Longest wait for a sign of life; None for ``env_runner_health_probe_timeout_s``, 0 takes
                those that are back already. An actor whose restart is not due yet is not waited for.

        Returns:
            Ids of the actors that are back.

        Raises:
            Exception: The loss of an actor that does not come back, unless that is ignored.
        """
        config = self.config
        self._note_losses()
        if self._manager.num_healthy_actors() == self._manager.num_actors():
            return []
        self._restart_due()
        timeout = config.env_runner_health_probe_timeout_s if timeout_seconds is None else timeout_seconds
        awaited = [i for i in self._manager.recoverable_actor_ids() if not self._restarts.is_pending(i)]
        alive = self._manager.probe_unhealthy_actors(timeout_seconds=timeout, actor_ids=awaited)
        self._note_losses()
        configured = {"config": self._reset_to, "changed": self._changed}
        states = {f"state_{number}": ref for number, (_, ref) in enumerate(self._sent)}
        results = self._manager.foreach_actor(
            _restored,
            kwargs=[{"num_restarts": self._restarts.num_of(i) + 1, **configured, **states} for i in alive],
            remote_actor_ids=alive,
            healthy_only=False,
            timeout_seconds=config.env_runner_restore_timeout_s,
        )
        restored = [actor_id for actor_id, _ in self._answers(results)]
        for actor_id in restored:
            self._restarts.note(actor_id)
            self._manager.set_actor_state(actor_id, healthy=True)
        if restored and self._on_recreated is not None:
            self._on_recreated(self, restored)
        return restored


def _last_error(text: str) -> str:
    """``": ExceptionClass: its message"`` of the last traceback in an actor's error; ``"."`` without one."""
    found = re.findall(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|NotInstalled): .+", text, flags=re.MULTILINE)
    return f": {found[-1]}" if found else "."
