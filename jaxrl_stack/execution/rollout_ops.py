"""Sampling rounds over the env runners of a group, for the actor driver and for training steps of one's own."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.acting.recording import EndedEpisodes, SampleBlock, SampleReport
from jaxrl_stack.core.experience import Part, Source, Versions
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode


def sample_once(runner: Any, **kwargs: Any) -> SampleBlock:
    """``runner.sample(**kwargs)`` with what there is to say of it."""
    part = _of_episodes(runner, runner.sample(**kwargs))
    return SampleBlock(part, SampleReport(runner.take_ended_episodes(), runner.metrics.reduce()))


def sample_for_user(runner: Any, *, takes_metrics: bool, **kwargs: Any) -> SampleBlock:
    """``runner.sample(**kwargs)``, and what RLlib's runners report if that is taken: ended episodes are part of it."""
    part = _of_episodes(runner, runner.sample(**kwargs))
    return SampleBlock(part, SampleReport(EndedEpisodes.of([]), runner.get_metrics() if takes_metrics else {}))


def _of_episodes(runner: Any, episodes: list[SingleAgentEpisode]) -> Part:
    """Episodes, or chunks of episodes, as a runner gave them."""
    num_steps = sum(len(episode) for episode in episodes)
    version = runner.weights_seq_no
    return Part(
        {},
        num_agent_steps=num_steps,
        versions=Versions(version, version),
        episodes=episodes,
        num_env_steps=num_steps,
        source=Source(runner.worker_index),
    )


def sample_rounds(
    group: EnvRunnerGroup, num_env_steps: int, *, timeout_seconds: float | None, sample=sample_once, **kwargs: Any
) -> list[SampleBlock]:
    """Whole rounds over all healthy runners until there are enough steps, as RLlib counts them.

    Args:
        group: The runners; the local one samples if there are no actors.
        num_env_steps: Steps to collect at least; 1 makes one round.
        timeout_seconds: Longest wait for one round.
        sample: Called with every runner.
        **kwargs: For ``sample()``.

    Returns:
        One entry per answer.

    Raises:
        TimeoutError: If several rounds in a row bring no answer.
        Exception: What environments raise, unless that is tolerated; see `EnvRunnerGroup`.
    """
    samples: list[SampleBlock] = []
    while sum(sampled.num_env_steps for sampled in samples) < num_env_steps:
        shares = [kwargs] * len(group.sampling_ids())
        samples += group.sample(sample, shares, once=True, timeout_seconds=timeout_seconds)
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
    """Episodes of all runners, sampled side by side.

    Args:
        worker_set: The algorithm's ``env_runner_group``.
        max_agent_steps: The same as `max_env_steps`: there is one agent.
        max_env_steps: Go on with whole rounds until there are so many steps; None makes one round.
        concat: One list of episodes (True), or one list per answer.
        sample_timeout_s: Longest wait for one round; None waits for all.
        random_actions: Draw actions from the action space.
        _uses_new_env_runners: Must be True.
        _return_metrics: Also return what the runners' `get_metrics` returned: ``(episodes, [metrics, ...])``, for
            ``algorithm.metrics.aggregate(metrics, key="env_runners")``.

    Returns:
        ``[episode, ...]``, or ``[[episode, ...], ...]``; with `_return_metrics` a pair of that and a list of metrics.

    Raises:
        ValueError: If batches of the old API stack are asked for.
    """
    if not _uses_new_env_runners:
        raise ValueError(
            "synchronous_parallel_sample(_uses_new_env_runners=False): there are no batches of the old API stack; "
            "leave the argument out to get episodes."
        )
    limits = [limit for limit in (max_agent_steps, max_env_steps) if limit is not None]
    samples = sample_rounds(
        worker_set,
        max(limits, default=1),
        timeout_seconds=sample_timeout_s,
        sample=sample_for_user,
        takes_metrics=_return_metrics,
        random_actions=random_actions,
    )
    lists = [sampled.part.episodes or [] for sampled in samples]
    episodes: Any = [episode for own in lists for episode in own] if concat else lists
    return (episodes, [sampled.report.metrics for sampled in samples]) if _return_metrics else episodes
