"""What of a config makes populations: members that one compiled program trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jaxrl_stack.algorithms.config_store import KEY_TRANSLATIONS, ConfigStore

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population
    from jaxrl_stack.algorithms.settings import Setting


class ConfigPopulation(ConfigStore):
    """Builds populations, and tells which configs can be members of one."""

    def stored_settings(self) -> list[tuple[Setting, Any]]:
        """Every setting with its value as it was given."""
        return [(setting, vars(self)[setting.attribute]) for setting in self._declarations.by_name.values()]

    def setting(self, name: str) -> Setting | None:
        """The declared setting of a keyword, an attribute or a key of `to_dict`; None if there is none."""
        found = self._declarations.find(KEY_TRANSLATIONS.get(name, name))
        old = self._declarations.old_name(name) if found is None else None
        return self._declarations.by_name[old.maps_to] if old is not None and old.maps_to else found

    def setting_name(self, name: str) -> str:
        """The name under which a setting is declared; other names are returned as they are."""
        found = self.setting(name)
        return name if found is None else found.name

    def with_settings(self, settings: Mapping[str, Any]) -> AlgorithmConfig:
        """An open copy with some settings.

        Args:
            settings: By name; ``"env_config/gravity"`` is an entry of ``env_config``.
        """
        from jaxrl_stack.algorithms import members  # which needs what trains

        config: Any = self
        return members.with_settings(config, settings)

    def why_no_population(self) -> str | None:
        """Why one program cannot train several members of this config, a sentence without its full stop; None if it
        can."""
        from jaxrl_stack.algorithms import members  # which needs what trains

        config: Any = self
        return members.why_not_together(config)

    def can_be_members(self, other: AlgorithmConfig) -> bool:
        """Whether this config and another one can be members of one population."""
        from jaxrl_stack.algorithms import members  # which needs what trains

        config: Any = self
        return members.are_alike(config, other)

    def settings_between_populations(self, other: AlgorithmConfig) -> list[str]:
        """Names of the settings that keep this config and another one from being members of one population."""
        from jaxrl_stack.algorithms import members  # which needs what trains

        config: Any = self
        return members.differing_settings(config, other)

    def build_population(
        self,
        seeds: int | Iterable[int] | None = None,
        *,
        num_samples: int = 1,
        members: Sequence[Any] | None = None,
        on_divergence: Literal["freeze", "raise"] = "freeze",
        members_at_once: int | None = None,
    ) -> Population:
        """Many seeds, and values of settings, as members of one compiled program.

        Settings that are search spaces, ``training(lr=tune.grid_search([1e-4, 1e-3]))``, make a combination each, and
        every combination has all of the seeds.

        Args:
            seeds: How many, for 0, 1, 2, ...; or the seeds themselves. None: one, the config's own.
            num_samples: How often each combination is made, with values sampled anew where something is sampled.
            members: In place of all that: the members, ``[{"seed": 0, "settings": {"lr": 1e-3}}, ...]``.
            on_divergence: What to do with a member that is not finite any more: "freeze" keeps its last finite state
                and trains the others on, "raise" raises.
            members_at_once: How many members a device trains at once; None for what suits the platform.

        Raises:
            ValueError: If one program cannot serve all members, settings are wrong, or there are no members.
        """
        from jaxrl_stack.algorithms.members import listed_members  # which needs what trains
        from jaxrl_stack.algorithms.population import Population

        base: Any = self
        if members is None:
            base, members = listed_members(base, seeds, num_samples)
        elif seeds is not None or num_samples != 1:
            raise ValueError("build_population(members=...) lists seeds and settings: leave seeds and num_samples out.")
        return Population(base, members, on_divergence=on_divergence, members_at_once=members_at_once)
