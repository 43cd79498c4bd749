"""Changes of settings, such as ``lr``, while an algorithm trains, without new compiled programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.algorithms.setting_values import is_search_space, same
from jaxrl_stack.algorithms.settings import traced_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.schedules import ScheduleArrays, Scheduler

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.settings import Setting

OVERRIDES = "algorithm_config_overrides_per_module"


class ChangedConfig(NamedTuple):
    """Result of `changed_config`: the config of a running algorithm with new values of some settings, such as ``lr``,
    and the names of these settings.

    Attributes:
        config: The frozen config.
        names: Names of the given settings.
        paths: Path of each given number: ``"lr"``, or ``"p0/lr"`` for an override of module "p0".
    """

    config: AlgorithmConfig
    names: tuple[str, ...]
    paths: tuple[str, ...]


def changed_config(config: AlgorithmConfig, settings: Mapping[str, Any], call: str) -> ChangedConfig:
    """Returns a config with changed settings, such as ``lr``. Raises for settings that cannot change without new
    compiled programs or actors.

    Args:
        config: The present config.
        settings: New values by name.
        call: The name of the method, for messages.

    Raises:
        ValueError: If a setting is unknown, its value is invalid, or it cannot change in a running algorithm.
    """
    if not settings:
        raise ValueError(f"{call}() got no settings. Pass at least one: {call}(lr=1e-4).")
    changed = config.copy(copy_frozen=False)
    # Resolving the environment again would call registered creators.
    changed._share_resolved_envs(config)
    changed.update_from_dict(settings)
    names = tuple(dict.fromkeys(changed.setting_name(name) for name in settings))
    reason = next(filter(None, (_refusal(config, changed, name, call) for name in names)), None)
    if reason is not None:
        raise ValueError(reason)
    changed.validate()
    changed.freeze()
    if not changed.differs_in_traced_settings_only(config):
        if OVERRIDES in names:
            raise ValueError(
                f"{call}({OVERRIDES}=...): only overrides that the algorithm was built with can change. Build it with "
                f"config.rl_module({OVERRIDES}={settings[OVERRIDES]!r})."
            )
        raise ValueError(
            f"{call}({', '.join(names)}): the new values would change the algorithm's compiled programs. "
            f"{_remedy(settings)}"
        )
    _note_overridden(config, changed, names, call)
    return ChangedConfig(changed, names, tuple(_paths(config, changed, names)))


def _remedy(settings: Mapping[str, Any]) -> str:
    return (
        f"Build another algorithm: other = algo.config.with_settings({short(dict(settings))}).build_algo(); "
        f"other.learner_group.set_state(algo.learner_group.get_state())."
    )


_OF_KIND = {
    "static": "it is a constant of the compiled programs and built objects",
    "host": "it is not an argument of the compiled programs",
    "inert": "it has no effect",
    "later": "it is not supported yet",
}


def _refusal(before: AlgorithmConfig, after: AlgorithmConfig, name: str, call: str) -> str | None:
    """Error message for a setting that cannot change during training; None if it can."""
    if name == OVERRIDES:
        of_modules = after.algorithm_config_overrides_per_module
        reasons = (
            _refusal(
                before.get_config_for_module(mid), after.get_config_for_module(mid), own, f"{call}: module {mid!r}"
            )
            for mid, overrides in of_modules.items()
            for own in overrides
        )
        return next(filter(None, reasons), None)
    setting, old, new = after.setting(name), before.stored_value(name), after.stored_value(name)
    if setting is None:
        return (
            f"{call}({name}={short(new)}): a setting of a user's config class cannot change while training. "
            f"{_remedy({name: new})}"
        )
    if same(old, new):
        return None
    if is_search_space(new):
        return f"{call}({name}={short(new)}): is a search space. Pass a number or a schedule."
    after._declarations.check(setting, new)
    why = _why_fixed(before, after, setting)
    if why is None:
        return None
    remedy = "" if setting.is_initial else f" {_remedy({name: new})}"
    return f"{call}({name}={short(new)}): {why}.{remedy}"


def _why_fixed(before: AlgorithmConfig, after: AlgorithmConfig, setting: Setting) -> str | None:
    old, new = before.stored_value(setting.name), after.stored_value(setting.name)
    if setting.kind != "traced":
        traced = [s.name for s in after._traced_settings() if not s.is_initial]
        return f"{_OF_KIND[setting.kind]} and cannot change while training. These can: {', '.join(traced)}"
    if setting.is_initial:
        return (
            "only the start of training reads this setting. Change the present value below 'extra' in the learner's "
            "state, with algo.learner_group.get_state() and set_state()"
        )
    if setting.name in after._static_settings:
        return "experimental(_static_settings=...) makes it a constant of the compiled programs"
    if before._is_traced(setting) != after._is_traced(setting):
        return f"the algorithm was built with {short(old)}, and switching the setting on or off needs another program"
    if before._is_traced(setting) and _num_points(setting, old) != _num_points(setting, new):
        return (
            f"the program was built for a schedule of {_num_points(setting, old)} points, and this one has "
            f"{_num_points(setting, new)}"
        )
    return None


def _num_points(setting: Setting, value: Any) -> int:
    arrays = traced_value(setting, value)
    return len(arrays.values) if isinstance(arrays, ScheduleArrays) else 1


def _note_overridden(before: AlgorithmConfig, after: AlgorithmConfig, names: Collection[str], call: str) -> None:
    """Prints a notice for each module that overrides a changed setting, because the change has no effect on such a
    module.
    """
    if OVERRIDES in names:
        return
    for mid, overrides in after.algorithm_config_overrides_per_module.items():
        for name in names:
            if name in {after.setting_name(own) for own in overrides}:
                notice_once(
                    f"{call}({name}=...) does not change module {mid!r}, which overrides {name}. Call "
                    f"{call}({OVERRIDES}={{{mid!r}: {{{name!r}: ...}}}})."
                )


def _paths(before: AlgorithmConfig, after: AlgorithmConfig, names: Collection[str]) -> Iterator[str]:
    for name in names:
        if name != OVERRIDES:
            yield name
            continue
        for mid, overrides in after.algorithm_config_overrides_per_module.items():
            own, now = before.get_config_for_module(mid), after.get_config_for_module(mid)
            for key in overrides:
                of_module = after.setting_name(key)
                if not same(own.stored_value(of_module), now.stored_value(of_module)):
                    yield f"{mid}/{of_module}"


def value_of(config: AlgorithmConfig, path: str) -> Any:
    """Value of a setting as the user gave it, such as a number or a schedule; the setting's default if the user did not
    set it.

    Args:
        config: The config.
        path: ``"lr"``, or ``"p0/lr"``.
    """
    module_id, _, name = path.rpartition("/")
    return (config.get_config_for_module(module_id) if module_id else config).stored_value(name)


def settings_of(config: AlgorithmConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by path, such as ``{"lr": ..., "p0/lr": ...}``, to keyword arguments of ``change_settings``. The
    path "p0/lr" is an override of ``lr`` for module "p0".
    """
    overrides = {mid: dict(own) for mid, own in config.algorithm_config_overrides_per_module.items()}
    settings: dict[str, Any] = {}
    for path, value in values.items():
        module_id, _, name = path.rpartition("/")
        if module_id:
            overrides.setdefault(module_id, {})[name] = value
            settings[OVERRIDES] = overrides
        else:
            settings[name] = value
    return settings


class SettingChanges:
    """Record of the settings that changed during training.

    Attributes:
        first: Initial values of the changed settings, by path.
        stored: Record of the last restored checkpoint, as `get_state` returned it; empty without one.
    """

    def __init__(self) -> None:
        self.first: dict[str, Any] = {}
        self.stored: Mapping[str, list[Any]] = {}

    def note(self, before: AlgorithmConfig, paths: Collection[str]) -> list[str]:
        """Records the settings that have changed for the first time, with their values before the change.

        Args:
            before: The config before the change.
            paths: The settings that have changed.

        Returns:
            Settings that changed for the first time.
        """
        new = [path for path in paths if path not in self.first]
        self.first |= {path: value_of(before, path) for path in new}
        return new

    def values(self, config: AlgorithmConfig, num_env_steps: int) -> dict[str, float]:
        """Current values of the changed settings: ``{path: value}`` with paths such as "lr", or "p0/lr" for module
        "p0".

        The value of a schedule is its value after `num_env_steps`.
        """
        return {path: number_at(value_of(config, path), num_env_steps) for path in self.first}

    def get_state(self, config: AlgorithmConfig) -> dict[str, list[Any]]:
        """Settings that were changed during training, for checkpoints: ``{path: [value before the first change, current
        value]}`` with paths such as "lr", or "p0/lr" for module "p0".
        """
        return {path: [plain_number(first), plain_number(value_of(config, path))] for path, first in self.first.items()}

    def restored(self, config: AlgorithmConfig, state: Mapping[str, Any]) -> dict[str, Any]:
        """Restores the record of changed settings from a checkpoint.

        A setting keeps its value if this algorithm was built with another value than the stored run.

        Args:
            config: The present config.
            state: State that `get_state` returned.

        Returns:
            Values to set, by path.
        """
        self.stored = dict(state)
        built_with = {path: self.first.get(path, value_of(config, path)) for path in (*self.first, *state)}
        back = {path: first for path, first in self.first.items() if path not in state}
        taken = {path: now for path, (first, now) in state.items() if same(plain_number(built_with[path]), first)}
        self.first = {path: first for path, (first, _) in state.items()}
        wanted = {**back, **taken}
        return {path: value for path, value in wanted.items() if not same(plain_number(value_of(config, path)), value)}


def with_replaced_settings(config: AlgorithmConfig, settings: Mapping[str, Any]) -> AlgorithmConfig:
    """Frozen copy of a config with new values of settings that do not affect training, such as the results folder.

    Args:
        config: The config.
        settings: New values by name.
    """
    changed = config.copy(copy_frozen=False)
    changed._share_resolved_envs(config)
    changed.update_from_dict(settings)
    changed.freeze()
    return changed


def number_at(value: Any, num_env_steps: int) -> float:
    """Value of a setting after `num_env_steps`: the number itself, or the value of the schedule at that time."""
    if not isinstance(value, list | tuple):
        return float(value)
    return float(Scheduler(value).update(num_env_steps))


def plain_number(value: Any) -> Any:
    """Converts a number to a Python number, and a schedule to nested lists of Python numbers."""
    if isinstance(value, list | tuple):
        return [plain_number(own) for own in value]
    return int(value) if isinstance(value, int) else float(value)
