"""ConsecutiveFailuresError: more failures in a row than are tolerated."""

from __future__ import annotations

from typing import Any

_SETTING = "num_consecutive_env_runner_failures_tolerance"


class ConsecutiveFailuresError(RuntimeError):
    """Raised after more consecutive failures than ``num_consecutive_env_runner_failures_tolerance`` allows;
    ``__cause__`` is the last failure.

    Args:
        message: Text of the error.
        last: The last failure.
    """

    def __init__(self, message: str, last: BaseException | None):
        super().__init__(message)
        self.__cause__ = last

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled exceptions lose their causes otherwise, on the way from an actor, for example.
        return type(self), (self.args[0], self.__cause__)

    @classmethod
    def of(
        cls, owner: str, count: int, tolerance: float, last: BaseException, *, setting: str | None = _SETTING
    ) -> ConsecutiveFailuresError:
        """Creates the error; its message names who failed (`owner`), the number of failures in a row, and the limit.

        Args:
            owner: Their owner, in the plural.
            count: Number of failures in a row.
            tolerance: Number that would be tolerated.
            last: The last failure.
            setting: Setting of ``fault_tolerance`` that has this limit; None if no setting has it.
        """
        remedy = f": repair the environment, or set fault_tolerance({setting}=...) higher" if setting else ""
        return cls(
            f"{owner}: {count} failure{'s' if count > 1 else ''} in a row, without one successful sample in between; "
            f"the last one: {type(last).__name__}: {str(last).strip()}. More than {setting or 'tolerance'}={tolerance} "
            f"are not tolerated{remedy}.",
            last,
        )
