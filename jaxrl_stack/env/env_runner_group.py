"""EnvRunnerGroup: one interface to an algorithm's env runners in this process and in Ray actors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_RL_MODULE
from jaxrl_stack.env.env_errors import (
    EnvRunnersRestartingError,
    NoHealthyEnvRunnerError,
    NotRestoredError,
    first_step_failed,
)
from jaxrl_stack.env.env_runner import ConsecutiveFailuresError, EnvRunner
from jaxrl_stack.env.env_runner_state_server import EnvRunnerStateServer
from jaxrl_stack.env.module_connectors import module_map_of, pipeline_for_merging
from jaxrl_stack.env.runner_weights import module_refs, only, weights_of
from jaxrl_stack.env.sampling_calls import call_runner, in_object_store, num_returns, sampled, sampled_in_actor, whole
from jaxrl_stack.env.sent_states import SentStates, replaces, set_states
from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from jaxrl_stack.utils.actor_manager import (
    PROBE_INTERVAL_S,
    FaultTolerantActorManager,
    Func,
    Kwargs,
    RemoteCallResults,
    is_lost_object,
    original_error,
)
from jaxrl_stack.utils.actor_recovery import ActorRecovery, first_failures
from jaxrl_stack.utils.loss_policy import LossPolicy
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.resources import actor_options, scheduling_strategies

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import EndedEpisodes
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.core.learner.learner_group import LearnerGroup

logger = logging.getLogger(__name__)

_REQUESTED = "requested samples"
MAX_ROUNDS_WITHOUT_DATA = 3
"""Rounds of sampling in a row without any answer before the group gives up."""
MAX_BYTES_IN_CALLS = 2**16
"""Up to here a state travels with the calls of actors; Ray itself puts arguments of 100 kB into its object store."""
STOP_TIMEOUT_S = 5.0
"""Longest wait for actors to close their environments."""


class EnvRunnerGroup:
    """Env runners of an algorithm: at most one local runner, and N actors with the ids 1 to N.

    Lost actors are restarted by Ray (``restart_failed_env_runners``, at most ``max_num_env_runner_restarts`` times
    each) and, once `probe_unhealthy_env_runners` finds them back, get the weights and connector states that were sent
    last, and a fresh seed. Without restarts an actor's loss is an error, or it is dropped
    (``ignore_env_runner_failures``).

    An actor whose sampling raises is logged with its traceback and restarted, too: the first time at once, then not
    before ``delay_between_env_runner_restarts_s`` after it came back; the others sample its share. Without restarts
    the exception is raised here, or the actor is dropped. Before anything was sampled, a failure in an actor's first
    reset or first step is always raised: it is a mistake in the environment. So is every failure that makes more than
    ``num_consecutive_env_runner_failures_tolerance`` in a row, as a `ConsecutiveFailuresError`.

    What other functions raise in an actor (`foreach_env_runner`) is raised here, with the actor's traceback; with
    ``ignore_env_runner_failures`` it is logged.

    Args:
        local_env_runner: The runner in this process; True builds one, False goes without.
        config: The algorithm's config, of evaluation for evaluation's runners; None takes the local runner's.
        num_env_runners: Number of actors; None for ``config.num_sampling_actors``.
        placement_group: See `jaxrl_stack.utils.resources.Placement`; None leaves placing to Ray.
        pg_offset: Bundle of the first actor in it; see `jaxrl_stack.utils.resources.bundle_index`.
        is_evaluation: Whether these are evaluation's runners.
        env_runner_kwargs: More arguments for the runners' class.
        on_env_runners_recreated: ``f(group, ids of actors that are back)``, called after they got their state.
        backend: Backend of the actors: Ray, or a fake for tests.

    Attributes:
        config: The config.
        is_evaluation: The constructor argument.

    Raises:
        Exception: Error of an actor's constructor, with its traceback in the message.
    """

    def __init__(
        self,
        local_env_runner: EnvRunner | bool = True,
        *,
        config: AlgorithmConfig | None = None,
        num_env_runners: int | None = None,
        placement_group: Any = None,
        pg_offset: int = 0,
        is_evaluation: bool = False,
        env_runner_kwargs: Mapping[str, Any] | None = None,
        on_env_runners_recreated: Callable[[EnvRunnerGroup, list[int]], Any] | None = None,
        backend: Backend = RAY,
    ):
        if config is None:
            if not isinstance(local_env_runner, EnvRunner):
                raise ValueError(
                    "EnvRunnerGroup() needs config=config, or an EnvRunner from which it takes the config: "
                    "local_env_runner=runner."
                )
            config = local_env_runner.config
        self.config = config
        self.is_evaluation = is_evaluation
        self._kwargs = dict(env_runner_kwargs or {})
        self._on_recreated = on_env_runners_recreated
        self._backend = backend
        self._local: EnvRunner | None = None
        self._manager = self._new_pool([])
        self._recovery = ActorRecovery(self._manager, self._loss_policy, group=placement_group)
        self._has_sampled = False
        # State for restarted actors: the config that all were reset to (None for the one that they were built from),
        # settings that were changed since, and the states that were sent last.
        self._reset_to: AlgorithmConfig | None = None
        self._changed: dict[str, Any] = {}
        self._states = SentStates()
        self._state_server: Any = None
        self._spaces: dict[str, tuple[Any, Any]] | None = None
        self._pipeline: Any = None
        self._num_rounds_without_data = 0
        self._for_local: dict[str, Any] | None = None
        self._module_refs: frozenset[str] | None = None
        num_actors = config.num_sampling_actors if num_env_runners is None else num_env_runners
        try:
            if num_actors and config.use_env_runner_state_server and not is_evaluation:
                self._start_state_server()
            self._start_actors(num_actors, placement_group, pg_offset)
            if local_env_runner is True:
                # Actors construct themselves meanwhile; asking them for spaces waits for the first one only.
                has_envs = not num_actors or config.create_env_on_local_worker
                more = {} if has_envs else {"spaces": self.get_spaces()}
                self._local = self._runner_class(
                    **{"config": config, "worker_index": 0, "num_workers": num_actors, **more, **self._kwargs}
                )
            elif local_env_runner is not False:
                self._local = local_env_runner
            if config.validate_env_runners_after_construction:
                self._recovery.constructed("assert_healthy")
        except BaseException:
            self.stop()
            raise

    if not TYPE_CHECKING:
        __getattr__ = old_members(
            {
                "foreach_worker": "Use foreach_env_runner(func); environments are in env_runner.env.unwrapped.envs.",
                "local_worker": "Use local_env_runner, a property.",
                "remote_workers": "Use foreach_env_runner(func, local_env_runner=False).",
            }
        )

    # -------------------------------------------------------------------------------------------------- start and end

    @property
    def _runner_class(self) -> type[EnvRunner]:
        return self.config.env_runner_cls or self.config.get_default_env_runner_class()

    def _new_pool(self, actors: Sequence[Any]) -> FaultTolerantActorManager:
        number = self.config.max_requests_in_flight_per_env_runner
        return FaultTolerantActorManager(actors, number, init_id=1, backend=self._backend)

    def _loss_policy(self) -> LossPolicy:
        return LossPolicy.of(self.config, "evaluation EnvRunner" if self.is_evaluation else "EnvRunner")

    def _start_state_server(self) -> None:
        """Starts the Ray actor from which env runner actors fetch new weights before they sample."""
        concurrency = int(self.config.env_runner_state_server_max_concurrency)
        # What it loses when it dies comes again with the next weights.
        options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": concurrency}
        self._state_server = self._backend.start(EnvRunnerStateServer, options)

    def _start_actors(self, num_actors: int, placement_group: Any, pg_offset: int) -> None:
        if not num_actors:
            return
        options = actor_options(self.config, "env_runner")
        own = {"config": self.config, "num_workers": num_actors}
        handles = start_actors(
            self._runner_class,
            [{**own, "worker_index": i + 1, **self._kwargs} for i in range(num_actors)],
            options=options,
            max_restarts=self._recovery.policy.restarts_of_each,
            strategies=scheduling_strategies(placement_group, pg_offset, num_actors, options),
            backend=self._backend,
        )
        self._manager.add_actors(handles)

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Replaces the group's actors by the actors `new_remote_workers`, which get the ids 1, 2, and so on. Does not
        stop the old actors.
        """
        self._manager = self._new_pool(new_remote_workers)
        self._recovery.watch(self._manager)

    def stop(self) -> None:
        """Completes files of recorded steps, closes all environments and ends all actors. If completing the files
        raises an error, environments are closed and actors ended nevertheless.
        """
        self._recovery.stop()
        try:
            self.write_output(is_last=True)
        finally:
            self._manager.stop(STOP_TIMEOUT_S)
            if self._state_server is not None:
                self._backend.kill(self._state_server)
            self._states.clear()
            self._state_server = None
            if self._local is not None:
                self._local.stop()

    def write_output(self, *, is_last: bool = False) -> None:
        """Completes the files in which the group's runners record sampled steps; see `EnvRunner.write_output`."""
        if not self.config.output:
            return
        if self._local is not None:
            self._local.write_output(is_last=is_last)
        calls = self._manager.foreach_actor("write_output", kwargs={"is_last": is_last}, healthy_only=True)
        for call in calls:
            if not call.ok:
                raise call.get()

    # ------------------------------------------------------------------------------------------------------- members

    @property
    def local_env_runner(self) -> EnvRunner | None:
        """Runner in this process; None if the group has none."""
        return self._local

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Returns the spaces of the runners, see `EnvRunner.get_spaces`; requests them only once."""
        if self._spaces is None:
            if self.num_remote_env_runners():
                self._spaces = self._recovery.constructed("get_spaces", self._manager.actor_ids()[:1])[0]
            elif self._local is not None:
                self._spaces = self._local.get_spaces()
            else:
                raise ValueError(
                    "This EnvRunnerGroup has no EnvRunner, so the spaces of its environments are unknown. Set "
                    "env_runners(num_env_runners=1), or EnvRunnerGroup(local_env_runner=True)."
                )
        assert self._spaces is not None
        return self._spaces

    def num_remote_env_runners(self) -> int:
        """Number of env runner actors, healthy or not."""
        return self._manager.num_actors()

    def num_healthy_remote_env_runners(self) -> int:
        """Number of healthy env runner actors."""
        return self._manager.num_healthy_actors()

    def num_healthy_env_runners(self) -> int:
        """Number of healthy actors, plus 1 if the group has a local runner."""
        return (self._local is not None) + self.num_healthy_remote_env_runners()

    def healthy_env_runner_ids(self) -> list[int]:
        """Ids of the healthy env runner actors."""
        return self._manager.healthy_actor_ids()

    # RLlib has both names of these.
    num_remote_workers = num_remote_env_runners
    num_healthy_remote_workers = num_healthy_remote_env_runners
    num_healthy_workers = num_healthy_env_runners
    healthy_worker_ids = healthy_env_runner_ids

    def num_remote_worker_restarts(self) -> int:
        """Total number of completed restarts of env runner actors."""
        return self._manager.total_num_restarts()

    def num_env_runners_dropped_lifetime(self) -> int:
        """Total number of actors that were lost and not replaced."""
        return self._recovery.num_dropped

    def num_in_flight_async_reqs(self, tag: str | None = None) -> int:
        """Number of asynchronous calls to actors whose results have not been fetched yet: of calls with a given tag, or
        of all calls.
        """
        return self._manager.num_outstanding_async_reqs(tag)

    # --------------------------------------------------------------------------------------------------------- calls

    def foreach_env_runner(
        self,
        func: Func,
        *,
        kwargs: Kwargs = None,
        local_env_runner: bool = True,
        healthy_only: bool = True,
        remote_worker_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        return_actor_ids: bool = False,
    ) -> list[Any]:
        """Calls a function with every runner, or a runner's method by name, and waits for the results.

        Args:
            func: ``func(env_runner, **kwargs)``, the name of a method, or a list with one of these per runner, the
                local one's first if it takes part.
            kwargs: Keyword arguments, or a list of dicts like `func`.
            local_env_runner: Whether the local runner takes part.
            healthy_only: Leave unhealthy actors out.
            remote_worker_ids: Ids of the actors that take part; None for all.
            timeout_seconds: Longest wait for actors; None waits for all, 0 for none and returns no results of them.
            return_obj_refs: Return Ray references in place of the actors' results. An actor's error then shows where
                the reference is fetched.
            mark_healthy: Mark unhealthy actors that answer as healthy.
            return_actor_ids: Return ``(id, result)``; the local runner's id is 0.

        Returns:
            The result of the local runner, then the results of the actors that answered, in the order of their ids.

        Raises:
            Exception: Error of an actor's code, or its loss; the class says which are ignored.
        """
        has_local = local_env_runner and self._local is not None
        local_func, func = _split_list(func, has_local)
        local_kwargs, kwargs = _split_list(kwargs, has_local)
        outcomes: list[tuple[int, Any]] = []
        if has_local:
            outcomes.append((0, call_runner(self._local, local_func, local_kwargs)))
        if self._manager.num_actors():
            results = self._manager.foreach_actor(
                func,
                kwargs=kwargs,
                healthy_only=healthy_only,
                remote_actor_ids=remote_worker_ids,
                timeout_seconds=timeout_seconds,
                return_obj_refs=return_obj_refs,
                mark_healthy=mark_healthy,
            )
            outcomes += self._recovery.answers(results)
        return outcomes if return_actor_ids else [result for _, result in outcomes]

    def foreach_env_runner_async(
        self,
        func: Func,
        tag: str | None = None,
        *,
        kwargs: Kwargs = None,
        healthy_only: bool = True,
        remote_worker_ids: Sequence[int] | None = None,
    ) -> int:
        """Calls a function with every actor without waiting; `fetch_ready_async_reqs` returns the results.

        Args:
            func: See `foreach_env_runner`; the local runner takes no part.
            tag: Name under which results can be fetched apart from others.
            kwargs: See `foreach_env_runner`.
            healthy_only: Leave unhealthy actors out.
            remote_worker_ids: Ids of the actors that take part; None for all.

        Returns:
            Number of calls sent; an actor with ``max_requests_in_flight_per_env_runner`` unfinished ones gets none.
        """
        return self._manager.foreach_actor_async(
            func, tag, kwargs=kwargs, healthy_only=healthy_only, remote_actor_ids=remote_worker_ids
        )

    def fetch_ready_async_reqs(
        self,
        *,
        tags: str | Sequence[str | None] | None = None,
        timeout_seconds: float | None = 0.0,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
    ) -> list[tuple[int, Any]]:
        """Returns ``[(actor id, result)]`` of finished asynchronous calls.

        Args:
            tags: One tag or several; None for all.
            timeout_seconds: Longest wait for all calls; 0 does not wait, None waits for all.
            return_obj_refs: See `foreach_env_runner`.
            mark_healthy: See `foreach_env_runner`.

        Raises:
            Exception: As for `foreach_env_runner`.
        """
        return self._recovery.answers(
            self._manager.fetch_ready_async_reqs(
                tags=tags, timeout_seconds=timeout_seconds, return_obj_refs=return_obj_refs, mark_healthy=mark_healthy
            )
        )

    def foreach_env_runner_async_fetch_ready(
        self,
        func: Func,
        kwargs: Kwargs = None,
        tag: str | None = None,
        timeout_seconds: float | None = 0.0,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        healthy_only: bool = True,
        remote_worker_ids: Sequence[int] | None = None,
        return_actor_ids: bool = False,
    ) -> list[Any]:
        """Sends an asynchronous call to each actor below its limit of unfinished calls, and returns the results of
        earlier calls that have finished.

        Args: See `foreach_env_runner_async` and `fetch_ready_async_reqs`.

        Returns:
            Results, or ``(actor id, result)`` with `return_actor_ids`.
        """
        self.foreach_env_runner_async(
            func, tag, kwargs=kwargs, healthy_only=healthy_only, remote_worker_ids=remote_worker_ids
        )
        answers = self.fetch_ready_async_reqs(
            tags=[tag], timeout_seconds=timeout_seconds, return_obj_refs=return_obj_refs, mark_healthy=mark_healthy
        )
        return answers if return_actor_ids else [result for _, result in answers]

    # ------------------------------------------------------------------------------------------------------ sampling

    def sampling_ids(self) -> list[int]:
        """Returns the ids of the runners that sample: the healthy actors, or ``[0]`` (the local runner) if the group
        has no actors.

        Raises:
            EnvRunnersRestartingError: If no actor is healthy and none comes back in time: within
                ``env_runner_health_probe_timeout_s`` after its restart, in evaluation within
                ``evaluation_unhealthy_workers_timeout_s``.
            NoHealthyEnvRunnerError: If all actors are lost for good.
        """
        name = "evaluation_unhealthy_workers_timeout_s" if self.is_evaluation else "env_runner_health_probe_timeout_s"
        timeout = getattr(self.config, name)
        # The actor whose restart is due first is worth the wait.
        delay = 0.0 if self.is_evaluation else max(0.0, self._recovery.restarts.first_due() - self._backend.now())
        if ids := self.sampling_ids_soon(delay + timeout):
            return ids
        raise EnvRunnersRestartingError(
            f"All EnvRunner actors ({self.num_remote_env_runners()}) have failed, and none could sample again within "
            f"{name}={timeout}. The log shows why they failed. If environments take long to start, set a longer "
            f"{name}."
        )

    def sampling_ids_soon(self, timeout_seconds: float = 0.0) -> list[int]:
        """Returns the ids of the runners that can sample now. If all actors are restarting, waits until one actor is
        healthy; returns [] after the timeout.

        Args:
            timeout_seconds: Longest wait until one actor is healthy.

        Raises:
            NoHealthyEnvRunnerError: If all actors are lost for good.
        """
        if not self.num_remote_env_runners() and not self._recovery.num_dropped:
            return [0]
        until = self._backend.now() + timeout_seconds
        # Those that are back already, at no cost if none is missing.
        self.probe_unhealthy_env_runners(timeout_seconds=0.0)
        while not (ids := self.healthy_env_runner_ids()):
            if not self._manager.recoverable_actor_ids():
                lost = self._recovery.num_dropped
                raise NoHealthyEnvRunnerError(
                    f"No EnvRunner actor is left: {lost} were lost for good, for reasons in the log. Build the "
                    "algorithm again from its last checkpoint: Algorithm.from_checkpoint(path)."
                )
            left = until - self._backend.now()
            if left <= 0.0:
                return []
            self._backend.sleep(min(left, PROBE_INTERVAL_S))
            self.probe_unhealthy_env_runners(timeout_seconds=0.0)
        return ids

    def sample(
        self,
        func: Callable[..., Any] | str,
        shares: Sequence[Mapping[str, Any]],
        *,
        ids: Sequence[int] = (),
        seed: int | None = None,
        once: bool = False,
        keep_remote: bool = False,
        timeout_seconds: float | None = None,
    ) -> list[Any]:
        """Distributes sampling over all runners and returns the results.

        Each dict in `shares` contains the keyword arguments of one call: a runner executes ``func(runner, **share)``,
        or ``runner.<func>(**share)`` if `func` is the name of a method.

        Share j is sampled by healthy runner j modulo their number, so the same seed gives the same samples. Shares of
        lost or late actors are requested from the others.

        Args:
            func: Function or method name that samples.
            shares: Keyword arguments of `func`, for each share.
            ids: The `sampling_ids` that are asked first; empty for all.
            seed: Reset all environments with seeds derived from this one, the share's index and its number of requests;
                they do not depend on the runner. None continues the runners' episodes.
            once: Request every share only once, and return the results that came.
            keep_remote: The results are `SampleBlock`s, whose experience is to stay in Ray's object store.
            timeout_seconds: Longest wait for a round; a result that comes later is thrown away.

        Returns:
            The results, in the order of the shares.

        Raises:
            TimeoutError: If several rounds in a row bring nothing.
            NoHealthyEnvRunnerError: If no actor is healthy; see `sampling_ids`.
            Exception: Errors of environments, unless they are tolerated; see the class.
        """
        done: dict[int, Any] = {}
        num_tries = 0
        while len(done) < len(shares) and not (once and num_tries):
            healthy = self.sampling_ids()
            turn = [i for i in ids if i in healthy and not num_tries] or healthy
            calls: list[dict[str, Any]] = [
                # The same seeds would lead into the same failure.
                {"what": func, "number": j, "share": share, "seeds": () if seed is None else (seed, j, num_tries)}
                for j, share in enumerate(shares)
                if j not in done
            ]
            num_tries += 1
            if turn[0] == 0:
                done = dict(sampled(self._local, **call) for call in calls)
                return [in_object_store(done[j], self._backend) if keep_remote else done[j] for j in done]
            results = self._manager.foreach_actor(
                sampled_in_actor,
                kwargs=[{"call": call, "keep_remote": keep_remote} for call in calls],
                remote_actor_ids=[turn[k % len(turn)] for k in range(len(calls))],
                timeout_seconds=timeout_seconds,
                num_returns=num_returns(keep_remote),
            )
            done |= dict(whole(*answer) for answer in self._samples(results))
            self._check_not_stalled(has_answers=len(results) > 0)
        return [done[j] for j in sorted(done)]

    def request(self, func: Callable[..., Any] | str, share: Mapping[str, Any], *, keep_remote: bool = False) -> int:
        """Sends an asynchronous sampling call to every actor below its limit of unfinished calls; `collect` returns the
        results.

        After such a call, an actor counts the connector statistics of its report as known: in its next report, only
        later statistics are new.

        Args:
            func: See `sample`.
            share: Keyword arguments of `func`.
            keep_remote: See `sample`.

        Returns:
            Number of requests: to actors with fewer than ``max_requests_in_flight_per_env_runner`` unfinished calls.
        """
        healthy = self.sampling_ids_soon()
        if not (ids := [i for i in self._manager.actor_ids_with_room(_REQUESTED) if i in healthy]):
            return 0
        call = {"what": func, "number": 0, "share": share, "seeds": ()}
        server = self._state_server
        how = {"call": call, "keep_remote": keep_remote, "is_requested": True, "state_server": server}
        return self._manager.foreach_actor_async(
            sampled_in_actor,
            _REQUESTED,
            kwargs=[how if server is not None else {**how, **self._states.take_waiting(i)} for i in ids],
            remote_actor_ids=ids,
            num_returns=num_returns(keep_remote),
        )

    def collect(
        self,
        func: Callable[..., Any] | str,
        share: Mapping[str, Any],
        *,
        keep_remote: bool = False,
        timeout_seconds: float | None,
        also: Sequence[Any] = (),
    ) -> list[Any]:
        """Waits until at least one sampling call that `request` sent has finished. Returns the samples of all calls
        that have finished by then.

        Without actors, the local runner samples in this call, with `func`, `share` and `keep_remote`; pass the same
        values as to `request`.

        Args:
            func: See `sample`.
            share: Keyword arguments of `func`.
            keep_remote: See `sample`.
            timeout_seconds: Longest wait for the first result; 0 does not wait, None waits without limit.
            also: Ray references of other objects; the wait also ends when one of them is ready.

        Returns:
            All results that have arrived, in the order of their requests. [] if nothing was requested, without a wait,
            or if no actor returns from its restart in time. A failed or lost actor also ends the wait, but gives no
            result.

        Raises:
            Exception: Errors of environments, unless they are tolerated; see the class.
        """
        healthy = self.sampling_ids_soon(math.inf if timeout_seconds is None else timeout_seconds)
        if healthy == [0]:
            sample = call_runner(self._local, func, share)
            return [in_object_store(sample, self._backend) if keep_remote else sample]
        results = self._manager.fetch_first_async_reqs(_REQUESTED, timeout_seconds=timeout_seconds, also=also)
        return [whole(*answer)[1] for answer in self._samples(results)]

    def _check_not_stalled(self, *, has_answers: bool) -> None:
        """Warns if, in this round of sampling calls, no runner has returned a result and no runner has failed.

        Raises TimeoutError after several such rounds in a row.
        """
        self._num_rounds_without_data = 0 if has_answers else self._num_rounds_without_data + 1
        if has_answers:
            return
        config, num_rounds = self.config, self._num_rounds_without_data
        name = "evaluation_sample_timeout_s" if self.is_evaluation else "sample_timeout_s"
        what = (
            f"No EnvRunner answered within {name}={getattr(config, name)} (rollout_fragment_length="
            f"{config.rollout_fragment_length!r}, num_envs_per_env_runner={config.num_envs_per_env_runner}). Set a "
            f"longer {name}, or sample less at a time."
        )
        if num_rounds >= MAX_ROUNDS_WITHOUT_DATA:
            self._num_rounds_without_data = 0
            self.sampling_ids()
            raise TimeoutError(
                f"{what} No EnvRunner answered in {num_rounds} rounds of sampling calls in a row: check that the "
                "environment's reset() and step() return."
            )
        notice_once(what)

    def forget_requests(self) -> None:
        """Drops all unfinished sampling calls that `request` has sent: `collect` does not return their samples."""
        self._manager.forget_requests(_REQUESTED)

    def reset_env_runners(self, config: AlgorithmConfig) -> None:
        """Resets all env runners to a new config; actors that restart later also get it.

        Args:
            config: Differs from the present one in traced settings only.
        """
        self.config = self._reset_to = config
        self._changed = {}
        # Runners take nothing over from before.
        self._states.clear()
        self._for_local = None
        self._num_rounds_without_data = 0
        self._recovery.count_success()
        self.forget_requests()
        self.foreach_env_runner("reset", kwargs={"config": config})

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        """Changes settings that are arguments of compiled programs in all env runners; actors that restart later also
        get the new values.

        The next samples use them, because an actor runs its calls in order.

        Args:
            config: Differs from the present one in traced settings only.
            names: The settings that runners take from it.
        """
        self.config = config
        settings = {name: config.stored_value(name) for name in names}
        self._changed |= settings
        self.foreach_env_runner("change_settings", kwargs={"settings": settings}, timeout_seconds=0.0)

    # ------------------------------------------------------------------------------------------------------- weights

    def sync_weights(
        self,
        policies: Sequence[str] | None = None,
        from_worker_or_learner_group: EnvRunner | LearnerGroup | None = None,
        to_worker_indices: Sequence[int] | None = None,
        timeout_seconds: float | None = 0.0,
        inference_only: bool = False,
        *,
        weights: Mapping[str, Any] | None = None,
        weights_seq_no: int | None = None,
        more_state: Mapping[str, Any] | None = None,
        with_requests: bool = False,
    ) -> None:
        """Sends weights to all runners. Actors read large weights from one object in Ray's object store; small weights
        travel with the call.

        Args:
            policies: Only these modules' weights; None for all.
            from_worker_or_learner_group: Source of the weights; None for the local runner.
            to_worker_indices: Ids of the actors to send to; None for all. The local runner always gets them.
            timeout_seconds: Longest wait until the actors have them. 0 does not wait: an actor takes its calls in
                order, so whatever is sampled next is sampled with them.
            inference_only: Send only the weights that the runners' modules have; the learners' modules may have more.
            weights: ``{"params": {ref: array}, "rest": {ref: array}}`` to send in place of a source's.
            weights_seq_no: Number of updates that made these weights; None asks their source.
            more_state: Further parts of the runners' state to send in the same object.
            with_requests: Actors get them with the next `request`; the local runner with `sync_local_env_runner`.

        Raises:
            ValueError: If there is neither a source nor weights, if an id is unknown, or if `with_requests` is combined
                with `policies` or `to_worker_indices` and the group has a state server.
        """
        self._manager.check_ids(to_worker_indices or ())
        if with_requests and self._state_server is not None:
            for name, value in (("policies", policies), ("to_worker_indices", to_worker_indices)):
                if value is not None:
                    raise ValueError(
                        f"sync_weights(with_requests=True, {name}={value!r}) is not supported with "
                        "use_env_runner_state_server=True: all actors fetch the same, complete state from the server. "
                        f"Leave out {name}=, or set with_requests=False."
                    )
        source = from_worker_or_learner_group
        if weights is None:
            source = self._local if source is None else source
            if source is None:
                raise ValueError(
                    "sync_weights() needs from_worker_or_learner_group= or weights=: this group has no local runner to "
                    "take the weights from."
                )
            if not self._manager.num_actors() and self._local is not None and self._local.acts_with(source):
                return
            weights, seq_no = weights_of(source)
            weights_seq_no = seq_no if weights_seq_no is None else weights_seq_no
        if policies is not None:
            weights = only(weights, lambda ref: ref.split("/")[0] in policies)
        if inference_only:
            held = self._refs_of_modules()
            weights = only(weights, lambda ref: ref in held)
        state: dict[str, Any] = {COMPONENT_RL_MODULE: weights, **(more_state or {})}
        if weights_seq_no is not None:
            state["weights_seq_no"] = weights_seq_no
        if self._local is not None and self._local is not source:
            if self._for_local is not None and not replaces(state, self._for_local):
                self.sync_local_env_runner()
            self._for_local = state
            if not with_requests:
                self.sync_local_env_runner()
        self._send_state(state, to_worker_indices, timeout_seconds, with_requests=with_requests)

    def sync_local_env_runner(self) -> None:
        """Loads the weights that ``sync_weights(with_requests=True)`` stored for the local runner into this runner.

        Also loads the argument `more_state` of that call. Does nothing if these weights are already loaded.
        """
        if self._local is not None and self._for_local is not None:
            self._local.set_state(self._for_local)
            self._for_local = None

    def _refs_of_modules(self) -> frozenset[str]:
        """Returns the names of the weight arrays in the runners' modules.

        ``sync_weights(inference_only=True)`` sends only these arrays. The first call requests the names from the local
        runner, or from a healthy actor if the group has no local runner. Later calls return the cached names.
        """
        if self._module_refs is None:
            answers = self.foreach_env_runner(module_refs, remote_worker_ids=self.healthy_env_runner_ids()[:1])
            self._module_refs = answers[0]
        assert self._module_refs is not None
        return self._module_refs

    def _send_state(
        self,
        state: dict[str, Any],
        actor_ids: Sequence[int] | None,
        timeout_seconds: float | None,
        *,
        with_requests: bool = False,
    ) -> None:
        """Sends parts of an env runner state, such as weights, to the actors, and stores them for actors that restart
        later.

        With `with_requests`, actors receive the state with their next call by `EnvRunnerGroup.request`, or fetch it
        from the state server if there is one. Older states that the new one replaces are not sent any more.
        """
        if not state or not self._manager.num_actors():
            return
        # Actors read NumPy arrays straight from the object store's memory. A few of them travel with the call in less
        # time than it takes to put an object into the store, to find it there and to let go of it.
        ref: Any = jax.device_get(state)
        if sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(ref)) > MAX_BYTES_IN_CALLS:
            ref = self._backend.put(ref)
        addressed = self._manager.actor_ids() if actor_ids is None else actor_ids
        server = self._state_server
        if with_requests and server is not None:
            self._states.clear_waiting()
            server.push.remote(ref)
        self._states.keep(self._manager.actor_ids())
        self._states.add(addressed, state, ref)
        if with_requests:
            return
        directly = addressed
        if server is not None:
            # Actors that have not fetched its state get it now.
            addressed = self._manager.actor_ids()
            server.clear.remote()
        waiting = [self._states.take_waiting(i) for i in addressed]
        if server is not None:
            # An actor that has fetched a state may have newer connector statistics.
            nums = [len(states) - (i in directly) for i, states in zip(addressed, waiting, strict=True)]
            waiting = [{**states, "num_pulled": num} for states, num in zip(waiting, nums, strict=True)]
        results = self._manager.foreach_actor(
            set_states, kwargs=waiting, remote_actor_ids=addressed, timeout_seconds=timeout_seconds
        )
        self._recovery.answers(results)

    # ---------------------------------------------------------------------------------------------- connector states

    def merge_connector_states(
        self,
        states: Sequence[dict[str, Any]],
        *,
        env_to_module: EnvToModulePipeline | None = None,
        known: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Merges the env-to-module states of several runners, and returns the merged state. Each observation is counted
        once in the merged statistics.

        Args:
            states: ``{connector name: its state}`` of each runner, once each.
            env_to_module: A pipeline like theirs; None builds one from the config.
            known: Merged state of earlier reports, see `ConnectorPipelineV2.merge_states`; for reports of calls that
                `request` sent.

        Returns:
            A state for all of them; empty if no connector keeps anything that can be merged.
        """
        if self._pipeline is None and env_to_module is None:
            self._pipeline = pipeline_for_merging(self.config, self.get_spaces(), lambda: ask_one(self, module_map_of))
        pipeline: Any = env_to_module or self._pipeline
        merged = pipeline.merge_states(list(states), known=known)
        return {name: state for name, state in merged.items() if jax.tree.leaves(state)}

    def get_merged_env_runner_state(
        self,
        *,
        config: AlgorithmConfig,
        rl_module_state: Mapping[str, Any] | None,
        connector_states: Sequence[Mapping[str, Any]] | None = None,
        env_steps_sampled: int | None = None,
        env_to_module: EnvToModulePipeline | None = None,
        module_to_env: Any = None,
    ) -> dict[str, Any]:
        """Builds one env runner state that all runners can load.

        The state consists of the entries of `rl_module_state` (for example, the weights), the number
        `env_steps_sampled`, and the merged env-to-module connector states of the actors.

        Args:
            config: The config; its ``sample_timeout_s`` bounds the wait for the actors.
            rl_module_state: Parts of a runner's state to include, such as "rl_module" and "weights_seq_no".
            connector_states: ``{"env_to_module_connector": ...}`` of each actor, once each; None asks the healthy ones.
            env_steps_sampled: Steps that all runners together have sampled.
            env_to_module: A pipeline like the runners'; None builds one from the config.
            module_to_env: Not needed: module-to-env connectors have no states that can be merged.
        """
        state = dict(rl_module_state or {})
        if env_steps_sampled is not None:
            state["num_env_steps_sampled_lifetime"] = env_steps_sampled
        if connector_states is None:
            connector_states = self.foreach_env_runner(
                "get_state",
                kwargs={"components": [COMPONENT_ENV_TO_MODULE_CONNECTOR]},
                local_env_runner=False,
                timeout_seconds=config.sample_timeout_s,
            )
        states = [connectors.get(COMPONENT_ENV_TO_MODULE_CONNECTOR) for connectors in connector_states]
        states = [state for state in states if state]
        merged = self.merge_connector_states(states, env_to_module=env_to_module) if states else {}
        return {**state, COMPONENT_ENV_TO_MODULE_CONNECTOR: merged} if merged else state

    def sync_env_runner_states(
        self,
        *,
        config: AlgorithmConfig,
        from_worker: EnvRunner | None = None,
        connector_states: Sequence[Mapping[str, Any]] | None = None,
        rl_module_state: Mapping[str, Any] | None = None,
        env_runner_indices_to_update: Sequence[int] | None = None,
        **more: Any,
    ) -> None:
        """Merges the connector states of the actors and sends the result to all runners, so that they use the same
        running statistics; each observation is counted once.

        If ``merge_env_runner_states`` is False (or "training_only" in evaluation), every runner keeps its statistics.
        If ``broadcast_env_runner_states`` is False, only the local runner gets the merged statistics; the actors keep
        their complete statistics, from which the next merge starts again. With `from_worker`, both settings are
        ignored.

        Args:
            config: The config with these settings.
            from_worker: Take the connector states of this runner, in place of merging the actors'.
            connector_states: See `get_merged_env_runner_state`.
            rl_module_state: See `get_merged_env_runner_state`.
            env_runner_indices_to_update: Ids of the actors to send to; None for all.
            **more: ``env_steps_sampled``, ``env_to_module``, ``module_to_env``: see `get_merged_env_runner_state`.
        """
        if from_worker is not None:
            connector_states = [from_worker.get_state([COMPONENT_ENV_TO_MODULE_CONNECTOR])]
        elif not self.num_remote_env_runners():
            connector_states = []
        merges = from_worker is not None or merges_env_runner_states(config)
        connector_states = connector_states if merges else []
        state = self.get_merged_env_runner_state(
            config=config, rl_module_state=rl_module_state, connector_states=connector_states, **more
        )
        if state and self._local is not None and self._local is not from_worker:
            self._local.set_state(state)
        if not config.broadcast_env_runner_states and from_worker is None:
            state.pop(COMPONENT_ENV_TO_MODULE_CONNECTOR, None)
        self._send_state(state, env_runner_indices_to_update, 0.0)

    # ---------------------------------------------------------------------------------------------- losses and failures

    def probe_unhealthy_env_runners(self, timeout_seconds: float | None = None) -> list[int]:
        """Checks which lost actors Ray has restarted, sends them the newest states, and uses them again.

        Args:
            timeout_seconds: Longest wait for a sign of life; None for ``env_runner_health_probe_timeout_s``, 0
                returns only actors that are back already. An actor whose restart is not due yet is not waited for.

        Returns:
            Ids of the actors that are back.

        Raises:
            Exception: The loss of an actor that does not come back, unless that is ignored.
        """
        restored = self._recovery.take_back(timeout_seconds, self._restore)
        if restored and self._on_recreated is not None:
            self._on_recreated(self, restored)
        return restored

    def _restore(self, actor_ids: list[int]) -> list[int]:
        """Sends restarted actors the config, the changed settings and the newest weights and connector states."""
        configured = {"config": self._reset_to, "changed": self._changed}
        restarts = self._recovery.restarts
        results = self._manager.foreach_actor(
            _restored,
            kwargs=[
                {"num_restarts": restarts.num_of(i) + 1, **configured, **self._states.all_of(i)} for i in actor_ids
            ],
            remote_actor_ids=actor_ids,
            healthy_only=False,
            timeout_seconds=self._recovery.policy.restore_timeout_s,
        )
        return [actor_id for actor_id, _ in self._recovery.answers(results)]

    def _samples(self, results: RemoteCallResults) -> list[Any]:
        """Returns the samples of finished sampling calls. After a failed call, restarts or drops the actor, or raises
        the call's error.
        """
        self._recovery.note_losses()
        answers = [call.get() for call in results.ignore_errors()]
        if answers:
            self._has_sampled = True
            self._recovery.count_success()
        for call in first_failures(results):
            error = call.get()
            if is_lost_object(error):
                role = self._recovery.policy.role
                logger.warning("Samples of %s actor %d are lost: %s", role, call.actor_id, error)
                self._recovery.count_failure(error)
            elif call.is_ray_error:
                self._recovery.note_loss(call)
            else:
                self._note_failure(call.actor_id, error)
        return answers

    def _note_failure(self, actor_id: int, error: Exception) -> None:
        """Restarts or drops an actor that raised an exception while sampling.

        Raises the exception instead in two cases: the config tolerates no failures, or the group has no sample yet and
        the environments of this actor have not made their first step. Raises `ConsecutiveFailuresError` after too many
        failures in a row.
        """
        policy = self._recovery.policy
        if isinstance(error, NotRestoredError):
            logger.warning("%s was lost and restarted between two calls.", policy.name(actor_id))
            self._manager.set_actor_state(actor_id, healthy=False)
            self._recovery.count_failure(error)
            return
        if isinstance(error, ConsecutiveFailuresError):
            original = original_error(error)
            raise ConsecutiveFailuresError(str(original.args[0]), original.__cause__)
        if not (policy.restarts or policy.ignores):
            raise error
        if not (self._has_sampled or self._has_stepped(actor_id)):
            setting = policy.setting_of("restarts" if policy.restarts else "ignores")
            assert setting is not None
            error.add_note(first_step_failed(setting))
            raise error
        self._recovery.note_failure(actor_id, error)

    def _has_stepped(self, actor_id: int) -> bool:
        """Whether an actor's environments have made their first step.

        True if the actor does not answer, so that its failure is not treated as an error of the first step.
        """
        timeout = self._recovery.policy.probe_timeout_s
        answers = self._manager.foreach_actor(_stepped, remote_actor_ids=[actor_id], timeout_seconds=timeout)
        return all(call.get() for call in answers.ignore_errors())


def merges_env_runner_states(config: AlgorithmConfig) -> bool:
    """Whether the running statistics of the runners' connectors are merged.

    The setting ``merge_env_runner_states`` specifies this. "training_only" merges the statistics of training runners,
    but not the statistics of evaluation runners.
    """
    wanted = config.merge_env_runner_states
    return not config.in_evaluation if wanted == "training_only" else bool(wanted)


def sample_for_evaluation(runner: Any, **amount: int) -> tuple[int, EndedEpisodes, dict[str, Any]]:
    """Samples the episodes or steps that one runner contributes to an evaluation: returns ``(env steps, ended episodes,
    reduced metrics)``.
    """
    num_env_steps = sum(len(episode) for episode in runner.sample(**amount))
    return num_env_steps, runner.take_ended_episodes(), runner.take_metrics()


def health_of(group: EnvRunnerGroup) -> dict[str, int]:
    """Returns the numbers of healthy actors, completed restarts and dropped actors of a group, under their names in
    result dicts.
    """
    return {
        "num_healthy_workers": group.num_healthy_remote_env_runners(),
        "num_remote_worker_restarts": group.num_remote_worker_restarts(),
        "num_env_runners_dropped_lifetime": group.num_env_runners_dropped_lifetime(),
    }


def ask_one(group: EnvRunnerGroup, method: Func, **kwargs: Any) -> Any:
    """Calls a method or function on one runner: the local one, or else the first healthy actor.

    Raises:
        NoHealthyEnvRunnerError: If no actor is healthy; see `EnvRunnerGroup.sampling_ids`.
    """
    ids = [] if group.local_env_runner is not None else group.sampling_ids()[:1]
    return group.foreach_env_runner(method, kwargs=kwargs, remote_worker_ids=ids)[0]


def _restored(
    runner: Any, *, num_restarts: int, config: AlgorithmConfig | None, changed: Mapping[str, Any], **states: Any
) -> None:
    """Initializes an env runner actor after a restart.

    If `reset_env_runners` was called, loads the config of its last call. Then loads the settings that were changed
    later, the newest weights and the newest connector states.
    """
    if config is not None:
        runner.reset(config)
    if changed:
        runner.change_settings(changed)
    set_states(runner, **states)
    runner.on_restarted(num_restarts)
    runner.is_restored = True


def _stepped(runner: EnvRunner) -> bool:
    return runner.has_stepped


def _split_list(value: Any, has_local: bool) -> tuple[Any, Any]:
    """Splits an argument of a call to all runners into ``(value for the local runner, value for the actors)``.

    The first entry of a list is for the local runner, the other entries are for the actors. A value that is no list is
    for both. If `has_local` is False, the actors get the whole list.
    """
    if value is None or callable(value) or isinstance(value, str | dict) or not has_local:
        return value, value
    return value[0], list(value[1:])
