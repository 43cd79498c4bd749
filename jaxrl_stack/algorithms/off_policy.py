"""Base of the off-policy algorithms: settings of replay and target networks, and the Algorithm class."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.setting_checks import boolean, check_of, integer, number, one_of
from jaxrl_stack.algorithms.setting_values import is_search_space
from jaxrl_stack.algorithms.settings import ALGORITHM, LEARNER, Section, host, per_module, static, traced
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from jaxrl_stack.utils.notices import notice_once

_OF_SEVERAL_AGENTS: dict[type[Any], type[Any]] = {
    EpisodeReplayBuffer: MultiAgentEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer: MultiAgentPrioritizedEpisodeReplayBuffer,
}
"""``{replay buffer for one agent: its version for several agents}``."""
_BASES = (EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer)
_WITH_PRIORITIES = (PrioritizedEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer)
REPLAY_BUFFERS: dict[str, type[Any]] = {
    of.__name__: of for of in (*_OF_SEVERAL_AGENTS.keys(), *_OF_SEVERAL_AGENTS.values())
}
"""Replay buffers that a config names without a path."""
TD_ERROR_LOSS_FN = per_module(
    "td_error_loss_fn",
    "huber",
    one_of("huber", "mse"),
    'Loss of a temporal-difference error: "huber" or "mse".',
    type='Literal["huber", "mse"]',
)
"""Setting of algorithms whose critics predict values instead of distributions."""

DEFAULT_REPLAY_BUFFER = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50000, "alpha": 0.6, "beta": 0.4}

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
_WANTED_TYPE = (
    f"one of {', '.join(map(repr, REPLAY_BUFFERS))}, a subclass of EpisodeReplayBuffer (with several agents, of "
    "MultiAgentEpisodeReplayBuffer), or the import path 'module.Class' of such a class"
)
_KEYS = {
    of: (
        "capacity",
        *(("alpha", "beta") if of in _WITH_PRIORITIES else ()),
        "metrics_num_episodes_for_smoothing",
        "zero_init_states",
    )
    for of in REPLAY_BUFFERS.values()
}
_ELSEWHERE = {
    "batch_size_B": "training(train_batch_size_per_learner=...)",
    "batch_length_T": "rl_module(model_config={'max_seq_len': ...})",
    "seed": "debugging(seed=...)",
    "n_step": "training(n_step=...)",
    "learning_starts": "training(num_steps_sampled_before_learning_starts=...)",
    "num_steps_sampled_before_learning_starts": "training(num_steps_sampled_before_learning_starts=...)",
    "prioritized_replay": "'type': 'PrioritizedEpisodeReplayBuffer'",
    "prioritized_replay_alpha": "'alpha'",
    "prioritized_replay_beta": "'beta'",
    "buffer_size": "'capacity'",
}
"""Keys that users may expect in a replay buffer's config → what to set instead."""
_CHECKS = {
    "capacity": integer(1),
    "alpha": number(0, finite=True),
    "beta": number(0, finite=True),
    "metrics_num_episodes_for_smoothing": integer(1),
    "zero_init_states": boolean,
}


@check_of("int | tuple[int, int]")
def n_step_problem(value: Any) -> str | None:
    """Checks a value of the setting `n_step`: a number of steps, or a range (lo, hi).

    The range excludes hi. Returns None for a valid value, otherwise a description of valid values.
    """
    wanted = "an integer of at least 1, or a range (lo, hi) of integers with 1 <= lo < hi, from which hi is excluded"
    if isinstance(value, (tuple, list)):
        is_range = len(value) == 2 and all(integer(1)(item) is None for item in value) and value[0] < value[1]
        return None if is_range else wanted
    return None if integer(1)(value) is None else wanted


def _tuple_if_range(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@check_of("dict[str, Any]")
def replay_buffer_config_problem(value: Any) -> str | None:
    """Checks a value of the setting `replay_buffer_config`.

    Returns None for a valid value, otherwise a description of valid values. Does not import a class that is given as an
    import path.
    """
    if not isinstance(value, Mapping):
        return "a dict such as {'type': 'EpisodeReplayBuffer', 'capacity': 50000}"
    kind = value.get("type")
    is_class = isinstance(kind, type) and issubclass(kind, _BASES)
    is_text = isinstance(kind, str) and (kind in REPLAY_BUFFERS or _IMPORT_PATH.fullmatch(kind) is not None)
    if "type" in value and not (is_class or is_text or is_search_space(kind)):
        return f"a dict whose 'type' is {_WANTED_TYPE}"
    for name, check in _CHECKS.items():
        problem = check(value[name]) if name in value and not is_search_space(value[name]) else None
        if problem is not None:
            return f"a dict whose {name!r} is {problem}"
    buffer_class = REPLAY_BUFFERS.get(kind) if isinstance(kind, str) else kind
    if not isinstance(buffer_class, type):
        return None
    known = _keys_of(buffer_class)
    for name in value:
        if name != "type" and known is not None and name not in known:
            instead = f" (instead of it: {_ELSEWHERE[name]})" if name in _ELSEWHERE else ""
            return f"a dict without {name!r}{instead}: {buffer_class.__name__} takes {', '.join(map(repr, known))}"
    return None


def _keys_of(buffer_class: type[Any]) -> tuple[str, ...] | None:
    """Names of the settings that a replay buffer class accepts; None if it accepts any name."""
    if buffer_class in _KEYS:
        return _KEYS[buffer_class]
    parameters = inspect.signature(buffer_class).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    beta = ("beta",) if issubclass(buffer_class, _WITH_PRIORITIES) else ()
    return (*(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL), *beta, "zero_init_states")


def merged_replay_buffer_config(present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns a replay buffer's present settings, updated with the given ones. If the type changes, the present
    settings are dropped.
    """
    if "type" in given and given["type"] != present.get("type"):
        return given
    return {**present, **given}


@functools.cache
def _imported(path: str) -> Any:
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


class OffPolicyConfig(AlgorithmConfig):
    """Base class of configs of algorithms that learn from replay."""

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("replay_buffer_config", DEFAULT_REPLAY_BUFFER, replay_buffer_config_problem,
                "The replay buffer: its type, capacity in steps and, if it is prioritised, the exponents of priorities "
                "(alpha) and importance weights (beta). Merged with the present one unless the type changes. "
                "Sequences for recurrent networks start from stored states. With zero_init_states=True they start "
                "from initial states, and none are stored.",
                merge=merged_replay_buffer_config),
            host("num_steps_sampled_before_learning_starts", 1000, integer(0),
                "Sampled steps before the first update: env steps, or agent steps with "
                "count_steps_by='agent_steps'.",
                ALGORITHM),
            static("burn_in_len", 0, integer(0),
                "Maximum number of steps at the start of a sequence that only update a recurrent state and are not "
                "learned from; max_seq_len includes them."),
            static("n_step", 1, n_step_problem,
                "Number of steps of returns; a range (lo, hi) samples it for each row, hi excluded.",
                convert=_tuple_if_range),
            static("training_intensity", None, number(above=0, finite=True),
                "Trained rows per sampled step, rounded to whole rounds of sampling per update or updates per round; "
                "None makes one update per round of sampling.", ALGORITHM),
            static("recorded_share", None, number(above=0, maximum=1),
                "Share of an update's rows from the steps of offline_data(input_=...), which then stay separate from "
                "the replay buffer; None starts the replay buffer with them.", LEARNER),
            per_module("target_network_update_freq", 0, integer(0),
                "Sampled env steps between updates of the target networks; 0 updates them with every update."),
            traced("tau", 1.0, number(0, 1),
                "Weight of the networks in an update of the target networks: 1 copies them."),
            host("store_buffer_in_checkpoints", True, boolean,
                "Store the replay buffer in checkpoints, so that a restored run continues exactly.", ALGORITHM),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {"rollout_fragment_length": "auto"}

    # -------------------------------------------------------------------------------------------- derived values

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        burn_in = {"burn_in_len": self.burn_in_len} if self.burn_in_len else {}
        return super()._model_config_auto_includes | burn_in

    @property
    def reads_recorded_data(self) -> bool:
        """Whether training uses recorded steps of `offline_data(input_=...)`.

        The recorded steps can be the only data, the first content of the replay buffer, or, with `recorded_share`, a
        part of each batch.
        """
        return self.is_offline or (self.input_ not in ("sampler", None) and bool(self.input_))

    @property
    def max_n_step(self) -> int:
        """Largest number of steps of an n-step return: `n_step`, or ``hi - 1`` if `n_step` is a range ``(lo, hi)``."""
        return self.n_step[1] - 1 if isinstance(self.n_step, tuple) else self.n_step

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Number of steps that each environment takes in one sampling round. "auto" means `n_step`; if `n_step` is a
        range ``(lo, hi)``, it means ``hi``.

        Args:
            worker_index: No effect: all EnvRunners take the same number of steps.
        """
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        return self.n_step[1] if isinstance(self.n_step, tuple) else self.n_step

    def _hint_of_one_env(self) -> str:
        return (
            f"{super()._hint_of_one_env()} Updates come once per round of sampling; training(training_intensity=...) "
            "keeps their number per step."
        )

    @property
    def rounds_per_training_step(self) -> tuple[int, int]:
        """Returns ``(number of sampling rounds, number of updates)`` of one training step.

        It is one each without `training_intensity`. With it, trained rows per sampled step come as close to it as whole
        rounds allow; a round counts the steps of all EnvRunner actors and, as in RLlib, of one more runner.
        """
        if self.training_intensity is None:
            return 1, 1
        samplers = self.num_sampling_actors + 1
        per_round = self.get_rollout_fragment_length() * self.num_envs_per_env_runner * samplers
        natural = self.total_train_batch_size / per_round
        ratio = self.training_intensity / natural
        return (round(1 / ratio), 1) if ratio < 1 else (1, round(ratio))

    @property
    def replay_buffer_class(self) -> type[Any]:
        """Class of the replay buffer. With several agents, the default class is replaced by its multi-agent version.

        Raises:
            ValueError: If the import path names no replay buffer, or one for the wrong kind of environment (one or
                several agents).
        """
        kind = self.replay_buffer_config.get("type", EpisodeReplayBuffer)
        found = kind
        if isinstance(kind, str):
            try:
                found = REPLAY_BUFFERS[kind] if kind in REPLAY_BUFFERS else _imported(kind)
            except (ImportError, AttributeError) as error:
                raise ValueError(
                    f"training(replay_buffer_config={{'type': {kind!r}, ...}}): the type cannot be imported: {error}. "
                    f"Use {_WANTED_TYPE}."
                ) from error
        if not (isinstance(found, type) and issubclass(found, _BASES)):
            raise ValueError(
                f"training(replay_buffer_config={{'type': {short(kind)}, ...}}): the type is {short(found)}, not a "
                f"replay buffer class. Use {_WANTED_TYPE}."
            )
        if issubclass(found, MultiAgentEpisodeReplayBuffer) == bool(self.is_multi_agent):
            return found
        return self._of_other_agents(kind, found)

    def _of_other_agents(self, kind: Any, found: type[Any]) -> type[Any]:
        """Replaces the default replay buffer class by its multi-agent version if there are several agents.

        Raises:
            ValueError: If the user chose a class that does not fit the number of agents. The message names the class to
                use instead.
        """
        default = self._declarations.by_name["replay_buffer_config"].default.get("type")
        if self.is_multi_agent and found in _OF_SEVERAL_AGENTS and found is REPLAY_BUFFERS.get(default, default):
            return _OF_SEVERAL_AGENTS[found]
        pairs = reversed(_OF_SEVERAL_AGENTS.items())
        other = next(
            several if issubclass(found, one) else one for one, several in pairs if issubclass(found, (one, several))
        )
        has, wanted = (
            ("one agent", "has several agents, because multi_agent(policies=...) is set")
            if self.is_multi_agent
            else ("several agents", "has one agent, because multi_agent(policies=...) is not set")
        )
        raise ValueError(
            f"training(replay_buffer_config={{'type': {short(kind)}, ...}}): this type stores the steps of {has}, but "
            f"the config {wanted}. Use 'type': {other.__name__!r} or one of its subclasses."
        )

    @property
    def replay_buffer_kwargs(self) -> dict[str, Any]:
        """Arguments of the replay buffer's constructor from this config."""
        return {
            name: value
            for name, value in self.replay_buffer_config.items()
            if name not in ("type", "zero_init_states") and not (name == "beta" and self.uses_priorities)
        }

    @property
    def replay_zero_init_states(self) -> bool:
        """Whether sequences from the replay buffer start from the module's initial recurrent state instead of stored
        states.
        """
        return bool(self.replay_buffer_config.get("zero_init_states", False))

    @property
    def uses_priorities(self) -> bool:
        """Whether the replay buffer samples by priority."""
        return issubclass(self.replay_buffer_class, _WITH_PRIORITIES)

    @property
    def replay_capacity(self) -> int:
        """Capacity of the replay buffer, in steps."""
        return self._replay_value("capacity")

    @property
    def replay_alpha(self) -> float:
        """Exponent `alpha` of priorities: the replay buffer draws steps with probabilities proportional to
        ``priority**alpha``. 0 if the replay buffer samples without priorities.
        """
        return float(self._replay_value("alpha")) if self.uses_priorities else 0.0

    @property
    def replay_beta(self) -> float:
        """Exponent of the importance weights with which prioritised replay corrects the loss; 0 if the replay buffer
        samples without priorities.
        """
        return float(self.replay_buffer_config.get("beta", 0.0)) if self.uses_priorities else 0.0

    def _replay_value(self, name: str) -> Any:
        given = self.replay_buffer_config
        return given[name] if name in given else inspect.signature(self.replay_buffer_class).parameters[name].default

    # ------------------------------------------------------------------------------------------------ validation

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        for name, value in self.replay_buffer_config.items():
            if is_search_space(value):
                self._value_error(
                    f"training(replay_buffer_config={{{name!r}: {short(value)}}}) is still a search space. Give the "
                    "config to a tuner, or set one value."
                )
        problem = replay_buffer_config_problem({**self.replay_buffer_config, "type": self.replay_buffer_class})
        if problem is not None:
            self._value_error(f"training(replay_buffer_config={self.replay_buffer_config!r}): must be {problem}.")
        self._validate_updates()
        if self.is_multi_agent and self.reads_recorded_data:
            raise NotImplementedError(
                f"offline_data(input_={short(self.input_)}) is not supported for several agents: their replay buffer "
                f"cannot start with recorded steps. Leave input_ out."
            )
        if self.recorded_share is not None and not self.reads_recorded_data:
            self._value_error(
                f"training(recorded_share={self.recorded_share}) needs recorded steps. Set offline_data(input_=[...]), "
                "or leave recorded_share out."
            )

    def _validate_updates(self) -> None:
        """Raises if `num_epochs` is not 1, or if `minibatch_size` or `shuffle_batch_per_epoch` is set.

        These settings configure the passes over an on-policy batch, but an update from replay is one gradient step on
        the whole replayed batch.
        """
        for name, without in (("num_epochs", 1), ("minibatch_size", None), ("shuffle_batch_per_epoch", False)):
            value = vars(self)[name]
            if value != without:
                self._value_error(
                    f"training({name}={value!r}): an update from replay is one gradient step. Leave {name} out. To "
                    "train more per sampled step, raise training_intensity, or "
                    f"train_batch_size_per_learner={self.train_batch_size_per_learner}."
                )

    def _validate_for_device(self) -> None:
        super()._validate_for_device()
        if self.replay_buffer_class not in REPLAY_BUFFERS.values():
            self._value_error(
                f"training(replay_buffer_config={{'type': {short(self.replay_buffer_config['type'])}, ...}}) needs a "
                f"host environment; the replay buffer of {short(self.env)} is part of the compiled program. Use one of "
                f"{', '.join(map(repr, REPLAY_BUFFERS))}."
            )
        if "metrics_num_episodes_for_smoothing" in self.replay_buffer_config:
            notice_once(
                "training(replay_buffer_config={'metrics_num_episodes_for_smoothing': ...}) has no effect: "
                "the replay buffer is part of the compiled program."
            )


class OffPolicyAlgorithm(Algorithm):
    """Base class of algorithms that learn from replay."""

    training_step_class = OffPolicyStep
