"""Exceptions for failed environments and env runners, and the note that is added to errors in an environment's first
step.
"""

from __future__ import annotations


class StepFailedRecreateEnvError(Exception):
    """Exception by which an environment requests a restart; ``restart_failed_sub_environments=True`` then replaces the
    environment.

    It is not logged, and it may also be raised in the first reset or step, in which other exceptions are not tolerated.
    More of them in a row than ``num_consecutive_env_runner_failures_tolerance`` are an error.
    """


class NoHealthyEnvRunnerError(RuntimeError):
    """Raised if no EnvRunner actor is healthy."""


class EnvRunnersRestartingError(NoHealthyEnvRunnerError):
    """Raised if no EnvRunner actor is healthy and the restarting ones do not return in time."""


class NotRestoredError(RuntimeError):
    """Raised if Ray has restarted an actor between two calls: the actor has no state (weights, connector states) and no
    seed yet.
    """


def first_step_failed(setting: str) -> str:
    """Returns a note to add to an error in an environment's first reset or step.

    The note says that ``fault_tolerance({setting}=True)`` does not apply to this error, because a new environment would
    fail in the same way.
    """
    return (
        f"fault_tolerance({setting}=True) does not apply to the first reset() or step() of an environment: a new one "
        f"would fail in the same way. Repair the environment."
    )


__all__ = ["StepFailedRecreateEnvError"]
