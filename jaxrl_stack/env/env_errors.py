"""What environments raise to say how they failed."""

from __future__ import annotations


class StepFailedRecreateEnvError(Exception):
    """Raised by an environment that knows that it is broken: with ``restart_failed_sub_environments`` it is made anew.

    Nothing is logged, and it may be the very first step, where any other failure counts as a mistake. More of them in
    a row than ``num_consecutive_env_runner_failures_tolerance`` are an error.
    """


__all__ = ["StepFailedRecreateEnvError"]
