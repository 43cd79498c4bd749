"""LossPolicy: reaction to lost actors of one role, such as EnvRunners.

The reaction is to restart the actors, to ignore the loss, or to raise an error. LossPolicy also creates the texts of
messages about lost actors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.utils.resources import Role, role_resources

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class _Settings(NamedTuple):
    """Names of the config settings for the fault tolerance of one role's actors, such as EnvRunners.

    A name is None if the role does not have the setting.

    `method` is the `AlgorithmConfig` method that sets them. `takes` is the role whose resource settings apply.
    """

    takes: Role
    method: str
    restarts: str
    max_restarts: str
    ignores: str
    probe_timeout_s: str
    restore_timeout_s: str
    delay_s: str | None = None
    tolerance: str | None = None


_ENV_RUNNERS = _Settings(
    takes="env_runner",
    method="fault_tolerance",
    restarts="restart_failed_env_runners",
    max_restarts="max_num_env_runner_restarts",
    ignores="ignore_env_runner_failures",
    probe_timeout_s="env_runner_health_probe_timeout_s",
    restore_timeout_s="env_runner_restore_timeout_s",
    delay_s="delay_between_env_runner_restarts_s",
    tolerance="num_consecutive_env_runner_failures_tolerance",
)
_SETTINGS: dict[str, _Settings] = {
    "EnvRunner": _ENV_RUNNERS,
    "evaluation EnvRunner": _ENV_RUNNERS,
    "offline evaluation": _Settings(
        takes="offline_eval_runner",
        method="evaluation",
        restarts="restart_failed_offline_eval_runners",
        max_restarts="max_num_offline_eval_runner_restarts",
        ignores="ignore_offline_eval_runner_failures",
        probe_timeout_s="offline_eval_runner_health_probe_timeout_s",
        restore_timeout_s="offline_eval_runner_restore_timeout_s",
    ),
}
"""Role, as messages call it, -> its settings. Other roles have none."""


@dataclasses.dataclass(frozen=True)
class LossPolicy:
    """Reaction to the loss of actors of one role, such as EnvRunners: restart, ignore or raise.

    Attributes:
        role: Name of the actors in messages: "EnvRunner", "evaluation EnvRunner", "offline evaluation", or another one,
            which has no settings.
        restarts: Start lost actors again.
        max_restarts: Number of restarts of each; -1 for no limit.
        delay_s: Shortest time from the return of an actor to its next restart, if its code failed.
        ignores: Continue without actors that are lost for good, or whose code failed without a restart.
        tolerance: Failures in a row, of all actors of the role together, that are no error.
        probe_timeout_s: Longest wait for the return of lost actors.
        restore_timeout_s: Longest wait for actors that take over the state of lost ones; None waits forever.
        resources: Ray resources of each.
    """

    role: str
    restarts: bool = True
    max_restarts: int = -1
    delay_s: float = 0.0
    ignores: bool = False
    tolerance: float = math.inf
    probe_timeout_s: float = 0.0
    restore_timeout_s: float | None = None
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, config: AlgorithmConfig, role: str) -> LossPolicy:
        """Creates the loss policy (restart, ignore or raise) of a role, such as "EnvRunner", from a config."""
        settings = _SETTINGS[role]
        names = {field: name for field, name in settings._asdict().items() if field not in ("method", "takes")}
        values: dict[str, Any] = {field: getattr(config, name) for field, name in names.items() if name is not None}
        return cls(role, **values, resources=role_resources(config, settings.takes))

    @property
    def restarts_of_each(self) -> int:
        """Ray's option ``max_restarts`` for each actor: `max_restarts` if lost actors are restarted, else 0."""
        return self.max_restarts if self.restarts else 0

    def setting_of(self, field: str) -> str | None:
        """Name of the config setting for an attribute of the loss policy, such as ``restart_failed_env_runners`` for
        the attribute `restarts`; None if the role has no such setting.
        """
        return getattr(_SETTINGS.get(self.role), field, None)

    # ------------------------------------------------------------------------------------------------------- messages

    def name(self, actor_id: int) -> str:
        """Name of an actor, for the beginning of a message about it: ``"EnvRunner actor 2"``."""
        return f"{self.role[0].upper()}{self.role[1:]} actor {actor_id}"

    @property
    def plural(self) -> str:
        """Plural name of the role's actors, for the beginning of a message about them: ``"EnvRunner actors"``."""
        return f"{self.role[0].upper()}{self.role[1:]} actors"

    def note_of_loss(self, actor_id: int) -> str:
        """Text added to the error about a lost actor: the reason, and the settings that would tolerate the loss."""
        settings, name = _SETTINGS.get(self.role), self.name(actor_id)
        if self.restarts:
            limit = self.setting_of("max_restarts") or "max_restarts"
            remedy = "" if settings is None else f" Set {settings.method}({settings.ignores}=True) to go on without it."
            return (
                f"{name} is lost for good: it died more often than {limit}={self.max_restarts}, or could not be built "
                f"again.{remedy}"
            )
        if settings is None:
            return f"{name} is lost."
        return (
            f"{name} is lost. Set {settings.method}({settings.restarts}=True) to start it again, or "
            f"{settings.ignores}=True to go on without it."
        )
