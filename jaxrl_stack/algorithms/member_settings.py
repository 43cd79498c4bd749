"""Current settings of a population's members, which may change during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.algorithms.members import ENV_CONFIG, Member, of_one_device, with_settings
from jaxrl_stack.algorithms.setting_changes import changed_config, number_at, plain_number
from jaxrl_stack.algorithms.setting_values import same
from jaxrl_stack.algorithms.settings_display import short

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class MemberSettings:
    """Current settings and config of each population member.

    Args:
        base: The config that members have in common.
        members: The members.
        configs: Frozen configs of the members.

    Attributes:
        configs: Current config of each member.
        reported: The same configs as dicts, for results; each dict is created at its first access.
        first: Initial value of each member, for each setting that has changed.
    """

    def __init__(self, base: AlgorithmConfig, members: Sequence[Member], configs: Sequence[AlgorithmConfig]):
        self._base, self._seeds = base, [member.seed for member in members]
        self._settings = [dict(member.settings) for member in members]
        self.configs = list(configs)
        self.reported = _Reported(self.configs)
        self.first: dict[str, list[Any]] = {}

    def _set(self, member: int, settings: Mapping[str, Any], config: AlgorithmConfig) -> None:
        self._settings[member] = dict(settings)
        self.configs[member] = config
        self.reported.forget(member)

    def _config_of(self, member: int, settings: Mapping[str, Any]) -> AlgorithmConfig:
        return of_one_device(Member(self._seeds[member], settings).config(self._base))

    def value(self, member: int, name: str) -> Any:
        """Current value of a population member's setting. The name ``"env_config/gravity"`` means the entry "gravity"
        of ``env_config``.
        """
        config = self.configs[member]
        return config.env_config[name.removeprefix(ENV_CONFIG)] if _is_of_env(name) else config.stored_value(name)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> list[str]:
        """Copies the settings of source members to target members of a population, but not the seeds.

        Returns the names of the copied settings that no earlier call of `copy` or `change` has set: the population's
        `history` gets a column for each of them.
        """
        new = self._track(dict.fromkeys(name for own in self._settings for name in own))
        before, configs = [dict(own) for own in self._settings], list(self.configs)
        for source, target in zip(sources, targets, strict=True):
            if before[source] != before[target]:
                # It differs from a validated config in the seed only.
                config = configs[source].copy(copy_frozen=False).debugging(seed=self._seeds[target])
                config._share_resolved_envs(configs[source])
                config.freeze()
                self._set(target, before[source], config)
        return new

    def changed(self, member: int, settings: Mapping[str, Any], call: str) -> AlgorithmConfig:
        """Returns the config that a population member would have with new settings. The member's settings stay
        unchanged.

        Raises:
            ValueError: See `changed_config`; or ``env_config`` lacks a named entry, or the entry's new value is not a
                number.
        """
        config = self.configs[member]
        of_env = {name: value for name, value in settings.items() if _is_of_env(name)}
        for name, value in of_env.items():
            if name.removeprefix(ENV_CONFIG) not in config.env_config or not isinstance(value, int | float):
                raise ValueError(
                    f"{call}: {name}={short(value)} must name one of the entries {sorted(config.env_config)} of "
                    f"env_config, and set it to a number, such as {{'env_config/gravity': 9.8}}."
                )
        others = {name: value for name, value in settings.items() if name not in of_env}
        if others or not of_env:
            config = changed_config(config, others, call).config
        if of_env:
            config = with_settings(config, of_env)
            config.validate()
            config.freeze()
        return config

    def taken_over(
        self, stored: Mapping[str, Sequence[Any]], call: str
    ) -> dict[int, tuple[dict[str, Any], AlgorithmConfig]]:
        """Selects the settings that each population member takes over from the checkpoint of a single run.

        The population continues from this checkpoint. Only settings that the run changed during training are selected.
        Returns ``{member: (settings, config with these settings)}``, the argument of `change`, without members that
        take over no setting.

        A member keeps its own value if its `Member.settings` or an earlier change names the setting, or if the value in
        its config differs from the run's first value.

        Args:
            stored: ``{path: [first value, last value]}``, see `SettingChanges.get_state`.
            call: Name of the method, for messages.

        Raises:
            ValueError: If the run changed an override of a module; see also `changed_config`.
        """
        of_module = next((path for path in stored if "/" in path), None)
        if of_module is not None:
            module_id, _, name = of_module.rpartition("/")
            raise ValueError(
                f"{call}(): the run changed {name} only for module {module_id!r}, which a population does not support. "
                "Continue the run as a single algorithm: restore_from_path(path)."
            )
        changes = {}
        for member, config in enumerate(self.configs):
            taken = {
                name: last
                for name, (first, last) in stored.items()
                if name not in self._settings[member] and same(plain_number(config.stored_value(name)), first)
            }
            if taken:
                changes[member] = taken, self.changed(member, taken, call)
        return changes

    def change(self, changes: Mapping[int, tuple[Mapping[str, Any], AlgorithmConfig]]) -> list[str]:
        """Applies new settings to population members, and returns the names of settings that are set for the first
        time.

        These are the new settings that no earlier call of `change` or `copy` has set: the population's `history` gets a
        column for each of these settings.

        Args:
            changes: ``{member: (new settings, config that `changed` returned for these settings)}``.
        """
        named = {
            member: {_name(config, name): value for name, value in settings.items()}
            for member, (settings, config) in changes.items()
        }
        new = self._track(dict.fromkeys(name for own in named.values() for name in own))
        for member, (_, config) in changes.items():
            self._set(member, {**self._settings[member], **named[member]}, config)
        return new

    def _track(self, names: Mapping[str, Any]) -> list[str]:
        new = [name for name in names if name not in self.first]
        self.first |= {name: [self.value(i, name) for i in range(len(self.configs))] for name in new}
        return new

    def numbers(self, num_env_steps: int) -> dict[str, np.ndarray]:
        """Returns ``{setting: float64 [M]}``: the current value of each changed setting for all M members. The value of
        a schedule is its value after `num_env_steps`.
        """
        members = range(len(self.configs))
        return {name: _numbers([self.value(i, name) for i in members], num_env_steps) for name in self.first}

    def first_numbers(self, name: str) -> Callable[[int], np.ndarray]:
        """Returns a function for the value that each of M members had for a setting before any change.

        The function is ``num_env_steps -> float64 [M]``. Its result depends on `num_env_steps` only if the value is a
        schedule.
        """
        return lambda num_env_steps: _numbers(self.first[name], num_env_steps)

    def changes_of(self, member: int) -> dict[str, list[Any]]:
        """Settings that were changed during training, with their original and current values for one member.

        The result is ``{name: [value before the first change, current value]}``. An `Algorithm`'s checkpoints contain
        changed settings in this form. Entries of `env_config` are left out.
        """
        names = [name for name in self.first if not _is_of_env(name)]
        return {name: [self.first[name][member], self.value(member, name)] for name in names}

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints: the current settings of each population member and, for each changed setting, the
        values of all members before the first change.
        """
        return {"present": {str(i): dict(own) for i, own in enumerate(self._settings)}, "first": dict(self.first)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the settings of the population members from a result of `get_state`."""
        for text, settings in state["present"].items():
            if self._settings[int(text)] != settings:
                self._set(int(text), settings, self._config_of(int(text), settings))
        self.first = {name: list(values) for name, values in state["first"].items()}


class _Reported(Sequence[Mapping[str, Any]]):
    """Sequence of the members' configs as dicts, each converted at its first access, because conversion is slow."""

    def __init__(self, configs: Sequence[AlgorithmConfig]):
        self._configs = configs
        self._made: dict[int, Mapping[str, Any]] = {}

    def forget(self, member: int) -> None:
        """Deletes a member's cached config dict. The next access creates this dict again."""
        self._made.pop(member, None)

    def __len__(self) -> int:
        return len(self._configs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if index not in self._made:
            self._made[index] = self._configs[index].to_dict()
        return self._made[index]


def _name(config: AlgorithmConfig, name: str) -> str:
    return name if _is_of_env(name) else config.setting_name(name)


def _is_of_env(name: str) -> bool:
    return name.startswith(ENV_CONFIG)


def _numbers(values: Sequence[Any], num_env_steps: int) -> np.ndarray:
    return np.array([number_at(value, num_env_steps) for value in values], np.float64)
