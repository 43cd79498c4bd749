"""Recomputation of a run's iterations, bit for bit, from its nearest stored checkpoint or its config.

::

    algo = Run.read("results/RUN").at(41)     # the algorithm after iteration 41

An iteration is repeated with its recorded number of training steps, and the commands of ``commands.jsonl`` are applied
between iterations. Nothing is written to the folder of the run. Callbacks are called as in the run. Evaluations are
repeated only if asked for, if callbacks can read their results, or with a ``custom_evaluation_function``.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.config_store import NOT_IN_CHECKPOINTS
from jaxrl_stack.algorithms.setting_changes import settings_of
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.algorithms.stored_run import check_code, settings_left_out, stored_config, stored_settings
from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.checkpoints.checksums import checkpoint_checksum
from jaxrl_stack.checkpoints.files import opened
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.rewind.base_replay import NO_EVALUATIONS, WRITES_NOTHING, BaseReplay
from jaxrl_stack.rewind.population_timeline import is_population
from jaxrl_stack.rewind.populations import PopulationReplay
from jaxrl_stack.runs.commands import FROM_CHECKPOINT, MODULE_CHANGES, RESTORE, Command
from jaxrl_stack.runs.machine import why_not_recomputable
from jaxrl_stack.runs.origin import POPULATION
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.timeline import NotRecomputableError, StoredCheckpoint, Timeline
from jaxrl_stack.runs.writers import CONFIG_FILE, as_json
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.fingerprints import FINGERPRINT_COLUMNS, fingerprint_of

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.devices import Device

_NOT_STORED = {"policy_mapping_fn", "log_level", *NOT_IN_CHECKPOINTS}
_NOT_COMPARED = {*_NOT_STORED, *WRITES_NOTHING}
_OF_MODULES = {"policies", "policies_to_train", "_rl_module_spec", "algorithm_config_overrides_per_module"}
"""Settings that `add_module`, `remove_module` and `change_mapping` change."""
_MAPPING = ("policy_mapping_fn", "policies_to_train")
"""Settings that `change_mapping` changes."""
_CAN_CHANGE_MAPPING = ("on_train_result", "on_checkpoint_loaded")
"""Callbacks that can call `change_mapping`."""
_SEES_EVALUATIONS = (
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
)
"""Callbacks that can change the run by results of evaluations."""


class Replay(BaseReplay[Algorithm, Timeline]):
    """Trains recorded iterations of a run again, from a stored checkpoint or the run's config, with the commands
    (recorded calls) between them.

    Args:
        run: The run, which has a folder.
        config, allow, evaluations: See `Run.at`.

    Raises:
        NotRecomputableError: If the run has no folder, or its table lacks the numbers of training steps.
        ValueError: If a file is damaged.
    """

    metadata_file = ALGORITHM_METADATA_FILE

    def __init__(
        self, run: Run, *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = (), evaluations: bool = False
    ):
        if run.folder is None:
            raise NotRecomputableError(
                f"Run {run.name!r} has no folder. Train with reporting(results_dir=...), then read the run's folder: "
                "Run.read(path)."
            )
        super().__init__(Timeline(run.folder, run.history), run.origin, config=config, allow=allow)
        self._run, self._evaluations = run, evaluations
        self._removes_output: weakref.finalize | None = None

    # ---------------------------------------------------------------------------------------------------- beginning

    def start(self, iteration: int) -> None:
        timeline = self.timeline
        if "num_members" in self.origin:
            raise NotRecomputableError(_why_no_member(timeline.directory, self.origin))
        if iteration != timeline.first or not timeline.iterations:
            timeline.recorded(iteration)
        config = self._checked_config()
        checkpoint = timeline.nearest(iteration)
        why_not = None if checkpoint is None else self._why_not_from(checkpoint, config)
        if checkpoint is not None and why_not is None:
            self._restore(checkpoint)
        elif timeline.begins_with_config:
            self._build(config)
        else:
            first = timeline.first + 1
            reason = why_not or f"no stored checkpoint is at or before iteration {iteration}"
            later = [] if why_not else [number for number in timeline.checkpoints if number > iteration]
            fix = f"Begin later: --from {min(later) + 1}" if later else "Store more: reporting(checkpoint_frequency=10)"
            raise NotRecomputableError(
                f"{timeline.directory}: iteration {iteration} cannot be recomputed, because {reason}, and the state in "
                f"which the run began (before iteration {first}) is not recorded. {fix}."
            )
        self.started_at = self.trained.iteration

    def _checked_config(self) -> AlgorithmConfig:
        """Returns the config with which the run began, after checking that the run can be repeated."""
        timeline = self.timeline
        if self._config is not None:
            config = self._config.copy(copy_frozen=False)
            _check_same_settings(config, self._run)
        elif timeline.checkpoints:
            config = self._stored_config(timeline.checkpoints[min(timeline.checkpoints)])
        else:
            raise NotRecomputableError(
                f"{timeline.directory} has no stored checkpoint of the recorded iterations, so the run's config is "
                "unknown. Train with reporting(checkpoint_frequency=10), or name the file with the run's config: "
                "--config-file PATH."
            )
        why_not = self.origin.get("why_not_recomputable") or why_not_recomputable(config)
        if why_not is not None:
            raise NotRecomputableError(
                f"{timeline.directory}: the run cannot be recomputed bit for bit, because {why_not}"
            )
        return config

    def _stored_config(self, checkpoint: StoredCheckpoint) -> AlgorithmConfig:
        """Reads the config from a checkpoint. If a setting changed during the run, the returned config contains the
        value with which the run was built.
        """

        with opened(checkpoint.path) as stored:
            loader = ClassLoader(self._allow, own=Algorithm, written_here=stored.code_written_here())
            check_code(stored, loader, Algorithm, None, {})
            config, _ = stored_config(stored, loader, {})
            if config.algo_class is None:
                config.algo_class = Algorithm._stored_class(stored.component(), loader, f"{checkpoint.path}")
        return as_built(config, checkpoint)

    def _why_not_from(self, checkpoint: StoredCheckpoint, config: AlgorithmConfig) -> str | None:
        stateful = checkpoint.metadata.get("stateful_callbacks")
        if stateful:
            return f"checkpoints do not contain the attributes of the callback {stateful[0]}"
        if checkpoint.metadata.get("has_changed_counters"):
            return "checkpoints do not contain algorithm._counters, which a callback has changed"
        is_on_host = config.env is not None and config.is_online and not config.samples_on_device
        if is_on_host and not getattr(config, "replayable_episodes", False):
            return "restored gymnasium environments start new episodes without env_runners(replayable_episodes=True)"
        if self._config is not None and (lost := self._lost_mapping(checkpoint)) is not None:
            return f"{checkpoint.path.name} does not contain {lost}, which has changed during the run"
        return None

    def _module_changes_before(self, checkpoint: StoredCheckpoint) -> list[Command]:
        """Returns the recorded calls that changed modules or the policy mapping before `checkpoint` was stored."""
        before = self.timeline.commands[: self.timeline.commands_at(checkpoint)]
        return [command for command in before if command.call in MODULE_CHANGES]

    def _lost_mapping(self, checkpoint: StoredCheckpoint) -> str | None:
        """Returns ``"policy_mapping_fn"`` or ``"policies_to_train"`` if the checkpoint does not contain this setting
        and a command (recorded call) before the checkpoint may have changed it; otherwise None.

        Only commands that cannot be repeated count, for example because an argument is a lambda.
        """
        reasons = [command.reason for command in self._module_changes_before(checkpoint) if command.reason is not None]
        if not reasons:
            return None
        with opened(checkpoint.path) as stored:
            left_out = settings_left_out(stored)
        return next((name for name in _MAPPING if name in left_out), None)

    def _with_stored_mapping(self, config: AlgorithmConfig, checkpoint: StoredCheckpoint) -> AlgorithmConfig:
        """Returns the config for the repeated run: the caller's config, if necessary with the checkpoint's policy
        mapping.

        If callbacks or recorded calls may have changed ``policy_mapping_fn`` or ``policies_to_train``, the values in
        the checkpoint replace both of the caller's values.
        """
        can_have_changed = CallbackList.from_config(config).overrides(*_CAN_CHANGE_MAPPING)
        if not (config.is_multi_agent and (can_have_changed or self._module_changes_before(checkpoint))):
            return config
        with opened(checkpoint.path) as stored:
            named = code_named_by(config)
            loader = ClassLoader(self._allow, own=Algorithm, named=named, written_here=stored.code_written_here())
            values = zip(_MAPPING, stored_settings(stored, loader, _MAPPING), strict=True)
            mapping = {name: value for name, value in values if value is not None}
        return config.copy(copy_frozen=False).multi_agent(**mapping)

    def _restore(self, checkpoint: StoredCheckpoint) -> None:
        own = None if self._config is None else self._with_stored_mapping(self._config, checkpoint)
        config = self._stored_config(checkpoint) if own is None else own
        replaced, original = self._replaced(config)
        num_commands = self.timeline.commands_at(checkpoint)
        # The command that restored it in the run, which called the hook, is later than the checkpoint.
        was_loaded = checkpoint.num_commands is not None and checkpoint.num_commands < num_commands
        self._trained = Algorithm._from_checkpoint(
            checkpoint.path, None, own, self._allow, replaced, calls_callback=was_loaded
        )
        self.trained._built_with.update(checkpoint.metadata.get("built_with") or {})
        self._use(original, num_commands)

    def _build(self, config: AlgorithmConfig) -> None:
        """Builds the algorithm that repeats the run, in the state in which the run began."""

        checkpoints = self.timeline.checkpoints
        if self._config is None:
            changed = self._module_changes_before(checkpoints[min(checkpoints)])
            if changed:
                raise NotRecomputableError(
                    f"{self.timeline.directory}: {changed[0].call}() at iteration {changed[0].iteration} changed "
                    "the modules or the policy mapping before the run stored its first checkpoint, so the config with "
                    "which the run began is unknown. Pass this config: config=... (on the command line, "
                    "--config-file PATH)."
                )
        replaced, original = self._replaced(config)
        origin = self.timeline.origin
        if origin is not None and origin.call == FROM_CHECKPOINT:
            arguments = self._restored_arguments(origin)
            given = {name: config.stored_value(name) for name in arguments["settings"]}
            own = config.copy(copy_frozen=False)
            self._trained = Algorithm.from_checkpoint(
                arguments["path"], config=own, allow=self._allow, **{**given, **replaced}
            )
            self._use(original, origin.number)
        else:
            own = config.copy(copy_frozen=False).update_from_dict(replaced)
            self._trained = own.build_algo()
            self._use(original, 0)
            if origin is not None:
                self._catch_up(origin.number)

    def _replaced(self, config: AlgorithmConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the config settings to replace for the repeated run, as ``(new values, original values)``.

        Each of the two is ``{setting: value}``. With the new values, the repeated run writes nothing into the folders
        of the original run. The new values also turn off evaluations that are not requested and cannot change training.
        """
        settings = {name: value for name, value in WRITES_NOTHING.items() if name in config}
        if not (self._evaluations or self._must_evaluate(config)):
            settings |= NO_EVALUATIONS
        original = {name: config.stored_value(name) for name in settings}
        settings = {name: value for name, value in settings.items() if original[name] != value}
        if config.output:
            folder = tempfile.mkdtemp(prefix="replayed_output_")
            self._removes_output = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            original["output"], settings["output"] = config.output, folder
        return settings, {name: original[name] for name in settings}

    def _must_evaluate(self, config: AlgorithmConfig) -> bool:
        evaluates = config.evaluation_interval or config.offline_evaluation_interval
        can_change_run = config.custom_evaluation_function is not None
        return bool(evaluates) and (can_change_run or CallbackList.from_config(config).overrides(*_SEES_EVALUATIONS))

    def _use(self, original: Mapping[str, Any], num_commands: int) -> None:
        self.trained._replaced_settings = original
        if self._removes_output is not None and (found := self._removes_output.detach()) is not None:
            # The algorithm may write longer than this object lives.
            _, remove, arguments, options = found
            weakref.finalize(self.trained, remove, *arguments, **(options or {}))
        self._set_num_commands(num_commands)

    # ---------------------------------------------------------------------------------------------------- repeating

    def _apply(self, command: Command) -> None:
        if command.call in (RESTORE, FROM_CHECKPOINT):
            arguments = self._restored_arguments(command)
            self.trained.restore_from_path(arguments["path"], component=arguments.get("component"))
            return
        named = code_named_by(self.trained.config)
        loader = ClassLoader(self._allow, own=type(self.trained), named=named)
        getattr(self.trained, command.call)(**command.arguments(loader))

    def _restored_arguments(self, command: Command) -> dict[str, Any]:
        """Returns the arguments of a recorded call that restored a checkpoint. Raises an error if the checkpoint is
        missing or has changed.
        """
        arguments = command.arguments(ClassLoader())
        path = Path(arguments["path"])
        what = f"{command.path}: {command.call}({str(path)!r}) cannot be repeated, because the checkpoint"
        if command.reason is not None or not path.is_dir():
            raise NotRecomputableError(
                f"{what} is not a folder on this machine. Restore the folder. Or recompute the iteration of the "
                "first checkpoint that was stored after this call, or a later iteration."
            )
        if checkpoint_checksum(path) != arguments["checksum"]:
            raise NotRecomputableError(f"{what} has changed since the run loaded it. Restore its files from a copy.")
        return arguments

    # ---------------------------------------------------------------------------------------------------- comparing

    @property
    def devices(self) -> Sequence[Device] | None:
        learner = self.trained.learner
        return None if learner is None else learner.devices

    def state(self) -> Mapping[str, Any]:
        return self.trained.get_state()

    def fingerprints(self) -> dict[int | None, tuple[float, float]]:
        if self.trained.learner is None:
            return {}
        found = fingerprint_of(self.trained.learner.state.params)
        return {None: (found["low"], found["high"])}

    def recorded_fingerprints(self, iteration: int) -> dict[int | None, tuple[float, float]]:
        row, history = self.timeline.recorded(iteration).row, self._run.history
        low, high = (history.cell(column, row) for column in FINGERPRINT_COLUMNS)
        return {} if math.isnan(low) or math.isnan(high) else {None: (low, high)}

    def changes(self, last: int) -> Iterator[str]:
        yield from super().changes(last)
        yield from self._changed_settings()

    def _changed_settings(self) -> Iterator[str]:
        """Yields a sentence for each setting with different values in ``params.json`` and in the first stored
        checkpoint.

        A difference means that one of the two was changed after it was written.
        """
        timeline, settings = self.timeline, self._run.settings
        if not timeline.checkpoints or not settings:
            return
        checkpoint = timeline.checkpoints[min(timeline.checkpoints)]
        try:
            stored = self._plain_settings(checkpoint)
        except ValueError:  # which needs code that only `config` has
            return
        before = timeline.commands[: checkpoint.num_commands or 0]
        has_other_modules = any(command.call in MODULE_CHANGES for command in before)
        not_compared = _NOT_STORED | (_OF_MODULES if has_other_modules else set())
        for name, value in settings.items():
            if name not in not_compared and name in stored and stored[name] != value:
                file = timeline.directory / CONFIG_FILE
                yield f"{file}: {name}={value!r}, and {checkpoint.path.name} has {stored[name]!r}."

    def _plain_settings(self, checkpoint: StoredCheckpoint) -> Mapping[str, Any]:
        """Returns the settings with which the run was built, read from a checkpoint, in the form of ``params.json``."""
        with opened(checkpoint.path) as stored:
            loader = ClassLoader(self._allow, own=Algorithm, written_here=stored.code_written_here())
            config, missing = stored_config(stored, loader, {})
        plain = as_json(as_built(config, checkpoint).to_dict())
        return {name: value for name, value in plain.items() if name.removeprefix("_") not in missing}


def as_built(config: AlgorithmConfig, checkpoint: StoredCheckpoint) -> AlgorithmConfig:
    """Resets settings in a checkpoint's config: a setting that changed during the run gets the value with which the run
    was built.

    Args:
        config: Config in the checkpoint; changed in place.
        checkpoint: The checkpoint.
    """
    first = checkpoint.metadata.get("built_with") or {}
    return config.update_from_dict(settings_of(config, first)) if first else config


def _check_same_settings(config: AlgorithmConfig, run: Run) -> None:
    """Raises an error if a setting of the config differs from the run's settings in ``params.json``.

    Only plain values (numbers, text, None, and lists and dicts of them) are compared.
    """
    for name, value in config.to_dict().items():
        if name in _NOT_COMPARED or name not in run.settings or not _is_plain(value):
            continue
        recorded = run.settings[name]
        if as_json(value) != recorded:
            raise NotRecomputableError(
                f"config has {name}={short(value)}, and {run.folder} was trained with {name}={short(recorded)}. "
                f"Pass the config of the run: {name}={short(recorded)}."
            )


def _is_plain(value: Any) -> bool:
    """Whether a value consists only of numbers, text, lists, dicts and None.

    Only such values of a caller's config are compared with ``params.json``, because the file stores them exactly.
    """
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def recomputed(
    run: Run,
    iteration: int,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
    evaluations: bool = False,
) -> Replay:
    """Repeats a run up to an iteration, and returns the `Replay`; see `Run.at`."""
    return Replay(run, config=config, allow=allow, evaluations=evaluations).run_to(iteration)


def replay_of(
    run: Run | str | os.PathLike[str], *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()
) -> Replay | PopulationReplay:
    """Creates the object that recomputes the recorded iterations of a run (`Replay`) or a population
    (`PopulationReplay`).

    Args:
        run: The run, or the folder of a run or a population.
        config, allow: See `Run.at`.
    """
    if not isinstance(run, Run):
        if is_population(Path(run)):
            return PopulationReplay(Path(run), config=config, allow=allow)
        run = Run.read(run)
    return Replay(run, config=config, allow=allow)


def rewind(
    run: Run | str | os.PathLike[str],
    iteration: int,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
) -> tuple[Path, int]:
    """Ensures that the folder of a run or a population contains the checkpoint of an iteration.

    If the checkpoint is missing, recomputes the iteration and saves the checkpoint.

    Args:
        run: The run, or the folder of a run or a population, such as ``results_dir/population``.
        iteration: Number of the iteration.
        config, allow: See `Run.at`.

    Returns:
        ``(path of the checkpoint, number of recomputed iterations)``.

    Raises:
        NotRecomputableError: If it cannot be recomputed.
    """
    replay = replay_of(run, config=config, allow=allow)
    stored = replay.timeline.checkpoints.get(iteration)
    if stored is not None:
        return stored.path, 0
    with replay.run_to(iteration).running():
        path = replay.timeline.directory / name_of(iteration)
        replay.trained.save_to_path(path)
    return path, iteration - replay.started_at


def rewind_population(
    directory: str | os.PathLike[str],
    iteration: int,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
) -> tuple[Path, int]:
    """Ensures that the folder of a population, ``results_dir/population``, contains the checkpoint of an iteration.
    Calls `rewind` with this folder.

    Args:
        directory: The folder.
        iteration, config, allow: See `rewind`.
    """
    return rewind(directory, iteration, config=config, allow=allow)


def _why_no_member(folder: Path, origin: Mapping[str, Any]) -> str:
    """Returns the error text for the folder of a population member: a single member cannot be recomputed separately.

    The text names the commands that recompute all members or, if the population is unknown, the call that trains the
    member separately.
    """
    why = f"The run in {folder} is a member of a population, which adds numbers in another order than a single run."
    if POPULATION not in origin:
        return f"{why} Train it separately: config.debugging(seed=...).build_algo()."
    recorded = Path(origin[POPULATION])
    # Folders may have moved together.
    known = recorded if recorded.is_dir() else folder.parent / recorded.name
    return f"{why} Recompute all members: jaxrl rewind {known} --to N, jaxrl verify {known}."
