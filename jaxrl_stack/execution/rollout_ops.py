"""Sampling rounds over the env runners of a group, for the host driver and for users' training steps."""

from __future__ import annotations

import logging
from typing import Any

from jaxrl_stack.acting.recording import EndedEpisodes, SampleBlock, SampleReport
from jaxrl_stack.core.experience import Part, RecordingId, Versions
from jaxrl_stack.env.env_errors import EnvRunnersRestartingError
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup

logger = logging.getLogger(__name__)


def sample_once(runner: Any, **kwargs: Any) -> SampleBlock:
    """Calls ``runner.sample(**kwargs)``; returns the episodes and a report of the runner (ended episodes, metrics, step
    times).
    """
    part = _of_episodes(runner, runner.sample(**kwargs))
    ended, agent_steps = runner.take_ended_episodes(), runner.take_agent_steps()
    report = SampleReport(ended, runner.take_metrics(), agent_steps=agent_steps, step_times=runner.take_step_times())
    return SampleBlock(part, report)


def sample_for_user(runner: Any, *, takes_metrics: bool, **kwargs: Any) -> SampleBlock:
    """Calls ``runner.sample(**kwargs)``; returns the episodes and a report of the runner.

    With `takes_metrics`, the report contains the runner's RLlib metrics, which include the finished episodes;
    otherwise, the report is empty.
    """
    part = _of_episodes(runner, runner.sample(**kwargs))
    return SampleBlock(part, SampleReport(EndedEpisodes.of([]), runner.get_metrics() if takes_metrics else {}))


def _of_episodes(runner: Any, episodes: list[Any]) -> Part:
    """Creates a `Part` (the samples of one ``sample()`` call) from the episodes that an EnvRunner has sampled.

    The part also has the numbers of env steps and agent steps, and the version of the runner's weights.
    """
    num_steps = sum(len(episode) for episode in episodes)
    version = runner.weights_seq_no
    return Part(
        {},
        num_agent_steps=sum(episode.agent_steps() for episode in episodes),
        versions=Versions(version, version),
        episodes=episodes,
        num_env_steps=num_steps,
        source=RecordingId(runner.worker_index),
    )


def sample_rounds(
    group: EnvRunnerGroup,
    num_steps: int,
    *,
    timeout_seconds: float | None,
    counts_agents: bool = False,
    sample=sample_once,
    **kwargs: Any,
) -> list[SampleBlock]:
    """Makes whole sampling rounds with all healthy runners, as RLlib does, until all samples together have at least
    `num_steps` steps.

    Args:
        group: The runners; the local one samples if there are no actors.
        num_steps: Minimum of steps; 1 makes one round.
        timeout_seconds: Timeout of one round.
        counts_agents: Whether `num_steps` counts steps of agents instead of environments.
        sample: Function called with every runner.
        **kwargs: Arguments of ``sample()``.

    Returns:
        One entry per answer.

    Raises:
        TimeoutError: If several rounds in a row bring no answer.
        Exception: The error of an environment, unless it is tolerated; see `EnvRunnerGroup`.
    """
    samples: list[SampleBlock] = []
    missing = num_steps
    while missing > 0:
        shares = [kwargs] * len(group.sampling_ids())
        new = group.sample(sample, shares, once=True, timeout_seconds=timeout_seconds)
        missing -= sum(own.part.num_agent_steps if counts_agents else own.num_env_steps for own in new)
        samples += new
    return samples


def synchronous_parallel_sample(
    *,
    worker_set: EnvRunnerGroup,
    max_agent_steps: int | None = None,
    max_env_steps: int | None = None,
    concat: bool = True,
    sample_timeout_s: float | None = None,
    random_actions: bool = False,
    _uses_new_env_runners: bool = True,
    _return_metrics: bool = False,
) -> Any:
    """Samples episodes of all runners in parallel.

    Args:
        worker_set: The algorithm's ``env_runner_group``.
        max_agent_steps: Minimum of completed agent steps; takes precedence over `max_env_steps`.
        max_env_steps: Minimum of env steps, sampled in whole rounds; None makes one round.
        concat: Whether to return one list of episodes instead of one list per runner and round.
        sample_timeout_s: Timeout of one round, in seconds; None waits for all runners.
        random_actions: Whether to sample actions from the action space.
        _uses_new_env_runners: Must be True.
        _return_metrics: Whether to also return the results of the runners' `get_metrics`: ``(episodes, [metrics,
            ...])``, for ``algorithm.metrics.aggregate(metrics, key="env_runners")``.

    Returns:
        ``[episode, ...]``, or ``[[episode, ...], ...]``, empty if all runners are being restarted and none answers in
        time; with `_return_metrics` a pair of episodes and a list of metrics.

    Raises:
        ValueError: If batches of the old API stack are requested.
    """
    if not _uses_new_env_runners:
        raise ValueError(
            "synchronous_parallel_sample(_uses_new_env_runners=False): batches of the old API stack are not "
            "supported. Leave this argument out to get episodes."
        )
    counts_agents = max_agent_steps is not None
    samples: list[SampleBlock] = []
    try:
        samples = sample_rounds(
            worker_set,
            max_agent_steps if counts_agents else max_env_steps or 1,
            counts_agents=counts_agents,
            timeout_seconds=sample_timeout_s,
            sample=sample_for_user,
            takes_metrics=_return_metrics,
            random_actions=random_actions,
        )
    except EnvRunnersRestartingError as error:
        logger.warning("synchronous_parallel_sample() sampled no episodes. %s", error)
    lists = [sampled.part.episodes or [] for sampled in samples]
    episodes: Any = [episode for own in lists for episode in own] if concat else lists
    return (episodes, [sampled.report.metrics for sampled in samples]) if _return_metrics else episodes
