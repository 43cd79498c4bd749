"""Suites of JAX environments, selected by a name prefix, such as "brax/ant".

One file per suite, imported when its prefix is used. A package brings a prefix of its own through the entry-point
group "jaxrl_stack.environments": the entry's name is the prefix, its value a `SuiteEnv` class.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.env.suites.suite_env import SuiteEnv

ENTRY_POINTS = "jaxrl_stack.environments"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Package of JAX environments that are selected by a common name prefix.

    Attributes:
        prefix: Prefix without its slash.
        env_class: "module:Class" of the adapter, a `SuiteEnv`.
        requires: Python module that must be installed; None: the adapter's module.
        extra: This package's extra that installs it; None for suites of other packages.
    """

    prefix: str
    env_class: str
    requires: str | None = None
    extra: str | None = None

    def load(self) -> type[SuiteEnv]:
        """Imports the suite's adapter module and returns its subclass of `SuiteEnv`.

        Raises:
            ImportError: The suite is not installed (the message contains the install command), or its import fails.
            TypeError: The suite's entry point refers to an object that is no subclass of `SuiteEnv`.
        """
        self.require()
        try:
            found = pkgutil.resolve_name(self.env_class)
        except Exception as error:
            error.add_note(f"Raised while {self.env_class} of the prefix '{self.prefix}/' was imported.")
            raise
        if not (isinstance(found, type) and issubclass(found, SuiteEnv)):
            raise TypeError(
                f"entry point {self.prefix!r} of the group {ENTRY_POINTS!r} refers to {self.env_class!r}, but "
                f"{found!r} is no SuiteEnv class. Set the entry point to a subclass of "
                "jaxrl_stack.env.suites.suite_env.SuiteEnv."
            )
        return found

    def require(self) -> None:
        """Raises ImportError with the install command if the suite is not installed. Imports nothing."""
        if self.requires is not None and not self.is_installed:
            raise ImportError(
                f"environments whose names start with '{self.prefix}/' need {self.requires}, which is not installed: "
                f"{self.pip_line}"
            )

    @property
    def is_installed(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None

    @property
    def pip_line(self) -> str:
        """Command that installs the suite as an extra of jaxrl-stack, whether jaxrl-stack was installed from a checkout
        or from a package index.
        """
        return f"pip install 'jaxrl-stack[{self.extra}]'"

    def make(self, env_id: str, env_config: Mapping[str, Any]) -> SuiteEnv:
        """Creates an environment of the suite.

        Args:
            env_id: Id after the prefix and its slash.
            env_config: Settings of the environment.
        """
        return self.load()(env_id, env_config)


def _own(prefix: str, class_name: str, requires: str, extra: str | None = None) -> Suite:
    return Suite(prefix, f"{__name__}.{prefix}_env:{class_name}", requires, extra or prefix)


SUITES = {
    suite.prefix: suite
    for suite in (
        _own("brax", "BraxEnv", "brax"),
        _own("craftax", "CraftaxEnv", "craftax"),
        _own("jaxmarl", "JaxMarlEnv", "jaxmarl"),
        _own("jumanji", "JumanjiEnv", "jumanji"),
        _own("navix", "NavixEnv", "navix"),
        _own("octax", "OctaxEnv", "octax"),
        _own("pgx", "PgxEnv", "pgx"),
        _own("pgx_multi", "PgxMultiEnv", "pgx", extra="pgx"),
        _own("playground", "PlaygroundEnv", "mujoco_playground"),
        _own("xminigrid", "XMiniGridEnv", "xminigrid"),
    )
}
"""Suites that this package has adapters for, by prefix."""


@functools.cache
def all_suites() -> dict[str, Suite]:
    """Returns all suites, ``{prefix: Suite}``: this package's suites, and suites that other installed packages declare
    as entry points of the group "jaxrl_stack.environments".
    """
    brought = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {entry.name: Suite(entry.name, entry.value) for entry in brought} | SUITES


def suite_of(name: str) -> Suite | None:
    """Returns the suite of the environment `name`, "<prefix>/<id>"; None if the prefix belongs to no suite."""
    prefix, slash, _ = name.partition("/")
    if not slash:
        return None
    return SUITES.get(prefix) or all_suites().get(prefix)


__all__ = ["ENTRY_POINTS", "SUITES", "Suite", "SuiteEnv", "all_suites", "suite_of"]
