"""Sampling calls of env runners, in this process and in Ray actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_stack.acting.recording import SampleBlock
from jaxrl_stack.env.env_errors import NotRestoredError
from jaxrl_stack.env.sent_states import set_states
from jaxrl_stack.utils import actor_setup
from jaxrl_stack.utils.actor_backend import RAY, Backend
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.seeds import derived_seed

PULL_TIMEOUT_S = 10.0
"""Longest wait of an actor for the state server."""


def sampled(runner: Any, *, what: Any, number: int, share: Mapping[str, Any], seeds: Sequence[int]) -> tuple[int, Any]:
    if seeds:
        runner.reseed(derived_seed("evaluation share", *seeds))
    return number, call_runner(runner, what, share)


def num_returns(keep_remote: bool) -> int:
    """Returns the number of Ray objects that a `sampled_in_actor` call returns: 2 with `keep_remote`, else 1.

    The second object contains the columns (arrays of the sampled steps). The columns are a return value, because Ray
    keeps return values after the actor has ended, but not objects that the actor itself puts into the object store.
    """
    return 2 if keep_remote else 1


def sampled_in_actor(
    runner: Any,
    *,
    call: Mapping[str, Any],
    keep_remote: bool,
    state_server: Any = None,
    is_requested: bool = False,
    **states: Any,
) -> tuple[tuple[int, Any], Any]:
    """Samples in an env runner actor, by a call of ``sampled(runner, **call)``.

    Returns ``((number, sample), None)``, where `number` identifies the call. With `keep_remote`, returns ``((number,
    sample without columns), columns)``: the columns (arrays of the sampled steps) are a second Ray object, which stays
    in Ray's object store.

    Before it samples, the runner loads `states` one after the other, and newer weights from the state server. After a
    call by `EnvRunnerGroup.request`, it merges the connector statistics that the sample reports into its running
    totals.
    """
    if not runner.is_restored:
        if actor_setup.was_actor_restarted():
            raise NotRestoredError(
                f"EnvRunner {runner.worker_index} was restarted and has no weights yet. Call "
                "EnvRunnerGroup.probe_unhealthy_env_runners(), which sends the weights."
            )
        runner.is_restored = True  # It is the first one: nothing to ask for any more.
    set_states(runner, **states)
    if state_server is not None:
        _pull_state(runner, state_server)
    try:
        number, sample = sampled(runner, **call)
    except Exception:
        # A ping must not take the old object for the restarted one.
        runner.has_failed = True
        raise
    if is_requested and isinstance(sample, SampleBlock) and sample.report.connector_state is not None:
        runner.merge_connector_deltas()
    if not keep_remote:
        return (number, sample), None
    return (number, sample.kept_at(None)), sample.part.modules


def _pull_state(runner: Any, server: Any) -> None:
    """Loads the newest state from the `EnvRunnerStateServer` into the env runner if the server's weights are newer than
    the runner's weights.

    If the server does not answer, prints a notice, and the runner keeps its state.
    """
    from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

    try:
        state = RAY.get(server.pull_if_newer.remote(runner.weights_seq_no), PULL_TIMEOUT_S)
    except RayError as error:
        notice_once(f"The state server does not answer, so EnvRunners keep their current weights: {error}")
        return
    if state is not None:
        runner.set_state(state)


def whole(numbered: tuple[int, Any], modules: Any) -> tuple[int, Any]:
    """Combines the two return values of `sampled_in_actor` into ``(number, sample)``, where `number` identifies the
    call.

    If `modules` is None, the sample is complete. Otherwise, the sample lacks its columns (arrays of the sampled steps),
    and `modules` is a Ray reference to them: puts the reference into the sample, and does not fetch the columns.
    """
    number, sample = numbered
    return number, sample if modules is None else sample.kept_at(modules)


def in_object_store(block: SampleBlock, backend: Backend) -> SampleBlock:
    """Puts the columns of a sample (arrays of the sampled steps) into Ray's object store. Returns the sample with a Ray
    reference instead of the columns.
    """
    return block.kept_at(backend.put(block.part.modules))


def call_runner(runner: Any, func: Any, kwargs: Any) -> Any:
    return getattr(runner, func)(**(kwargs or {})) if isinstance(func, str) else func(runner, **(kwargs or {}))
