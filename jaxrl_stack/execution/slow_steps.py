"""Prints a notice if environment steps take most of the time of an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import StepTimes
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

SLOW_STEP_S = 1e-3
LARGE_SHARE = 0.7
"""A step of one environment takes longer, and all steps of a runner take a larger part of its time."""
MIN_SECONDS = 0.2
MIN_STEPS = 10
"""Below these, one slow step could make up the whole mean."""


def note_slow_steps(config: AlgorithmConfig, times: StepTimes, seconds: float) -> None:
    """Prints one notice if a step of one environment is slow and the steps take most of the iteration's time.

    Each env runner runs the steps of its environments one after the other.

    Args:
        config: The algorithm's config.
        times: Step times of all runners.
        seconds: Duration of the iteration with these steps.
    """
    if times.num_steps < MIN_STEPS or seconds < MIN_SECONDS:
        return
    num_envs, num_runners = int(config.num_envs_per_env_runner), max(1, config.num_sampling_actors)
    step_s = times.seconds / times.num_steps / num_envs
    share = min(1.0, times.seconds / num_runners / seconds)
    if step_s <= SLOW_STEP_S or share <= LARGE_SHARE:
        return
    runners = f"num_env_runners={2 * config.num_sampling_actors or 4}"
    if config.is_multi_agent:
        remedy = f"env_runners({runners}) steps them in more processes."
    else:
        number = "num_envs_per_env_runner=8, " if num_envs == 1 else ""
        remedy = (
            f"env_runners({number}gym_env_vectorize_mode='async') steps each in a process of its own (a script needs "
            f'`if __name__ == "__main__":` then), env_runners({runners}) in more actors.'
        )
    notice_once(
        f"Steps of the environment take {share:.0%} of the time, {1e3 * step_s:.1f} ms each, and an env runner runs "
        f"them in sequence. {remedy}",
        key="slow steps of environments",
    )
