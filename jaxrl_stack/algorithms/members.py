"""Members of a population (seeds with settings), and checks that one compiled program can train them together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.algorithms.setting_values import is_search_space, same
from jaxrl_stack.callbacks.callbacks import HOOKS
from jaxrl_stack.callbacks.utils import CallbackList
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.env.randomized_jax_env import unrandomized
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.execution.population_driver import MemberStart
from jaxrl_stack.runs.run import run_name, value_text
from jaxrl_stack.runs.search_space import combinations
from jaxrl_stack.runs.series import chosen_seeds
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.named_leaves import named_leaves
from jaxrl_stack.utils.retracing import impurity

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.jax_env import JaxEnv
    from jaxrl_stack.execution.driver import Driver

ENV_CONFIG = "env_config/"
"""Prefix of the names of settings that are entries of ``env_config``: ``"env_config/gravity"``."""
OWN_TO_EACH = ("seed",)
"""Settings that are neither static nor traced, in which members may differ."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a population: a seed with settings.

    Attributes:
        seed: Its random seed.
        settings: The settings in which members differ, with the same names for all members; names of entries of
            ``env_config`` begin with `ENV_CONFIG`.
    """

    seed: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """``"lr=0.001 seed=3"``, or ``"seed 3"`` for a member without settings."""
        return run_name(self.seed, self.settings)

    def config(self, base: AlgorithmConfig) -> AlgorithmConfig:
        """Unfrozen copy of a config with the seed and the settings of this member."""
        return with_settings(base, self.settings).debugging(seed=self.seed)


def with_settings(config: AlgorithmConfig, settings: Mapping[str, Any]) -> AlgorithmConfig:
    """Unfrozen copy of a config with new settings.

    Names that begin with ``"env_config/"`` set entries of ``env_config``: ``"env_config/gravity"`` sets the entry
    "gravity". All other names are settings of the config.
    """
    own = config.copy(copy_frozen=False)
    of_env = {name.removeprefix(ENV_CONFIG): value for name, value in settings.items() if name.startswith(ENV_CONFIG)}
    own.update_from_dict({name: value for name, value in settings.items() if not name.startswith(ENV_CONFIG)})
    return own.environment(env_config={**own.env_config, **of_env}) if of_env else own


def search_space(config: AlgorithmConfig) -> dict[str, Any]:
    """Settings of a config whose values are search spaces, such as ``tune.grid_search([...])``: ``{name: search
    space}``. Names of entries in ``env_config`` begin with ``"env_config/"``, such as ``"env_config/gravity"``.
    """
    found = {s.name: value for s, value in config.stored_settings() if s.name != "env" and is_search_space(value)}
    of_env = {f"{ENV_CONFIG}{name}": value for name, value in config.env_config.items() if is_search_space(value)}
    return {**found, **of_env}


def why_not_together(config: AlgorithmConfig) -> str | None:
    """Explains why one compiled program cannot train several runs of this config, as text without a final full stop;
    None if it can.

    Args:
        config: A validated config.
    """
    algo_class = config.algo_class
    step_class = algo_class.training_step_class.for_config(config)
    has_evaluation = bool(config.evaluation_interval)
    evaluation = config.get_evaluation_config_object() if has_evaluation else None
    reasons = {
        f"{algo_class.__name__} samples no environment": not step_class.needs_env and not step_class.trains_populations,
        "its environment is stepped on the host": step_class.needs_env and not config.samples_on_device,
        "multi_agent(opponents=...) makes snapshots the opponents": config.opponents is not None,
        "several policies act": config.is_multi_agent,
        "learners(num_learners=...) are actors": bool(config.num_learners),
        "debugging(disable_jit=True) runs operations one by one": bool(config.disable_jit),
        "offline_data(output=...) records one algorithm": bool(config.output or (evaluation and evaluation.output)),
        "callbacks(...) get the iterations of a single algorithm": CallbackList.from_config(config).overrides(*HOOKS),
        f"{algo_class.__name__} overrides training_step()": algo_class.overrides_training_step(),
        f"{config.learner_class.__name__} has hooks that run on the host": _overrides_host_hooks(config.learner_class),
        "reporting(loggers=...) logs a single run": bool(config.loggers),
        "evaluation(custom_evaluation_function=...) takes an algorithm": bool(config.custom_evaluation_function),
        "evaluation steps environments on the host": evaluation is not None and not evaluation.samples_on_device,
        "evaluation has other connectors than training": evaluation is not None
        and not evaluation.is_same(config, "_env_to_module_connector", "_module_to_env_connector"),
        "evaluation(evaluation_force_reset_envs_before_iteration=False) continues episodes in the next "
        "evaluation": evaluation is not None and not evaluation.evaluation_force_reset_envs_before_iteration,
        'evaluation(evaluation_duration="auto") lasts as long as a training step': has_evaluation
        and config.evaluation_duration == "auto",
        "evaluation(offline_evaluation_interval=...) evaluates one algorithm": bool(config.offline_evaluation_interval),
        "jax.distributed has joined processes": jax.distributed.is_initialized(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _overrides_host_hooks(learner_class: type[Learner]) -> bool:
    hooks = ("before_gradient_based_update", "after_gradient_based_update")
    return any(getattr(learner_class, name) is not getattr(Learner, name) for name in hooks)


def differing_settings(config: AlgorithmConfig, other: AlgorithmConfig) -> list[str]:
    """Names of settings that prevent one compiled program from training both configs.

    These are settings of which the program is made, or, if these are equal, traced settings (hyperparameters) with
    different values.
    """
    if _with_env_of(other, config).differs_in_traced_settings_only(config, but_for=OWN_TO_EACH):
        return []
    return [
        setting.name
        for setting, value in config.stored_settings()
        if setting.kind != "traced"
        and setting.name not in (*OWN_TO_EACH, "env_config")
        and not same(value, other.stored_value(setting.name))
    ] or [
        setting.name
        for setting, value in config.stored_settings()
        if setting.kind == "traced" and not same(value, other.stored_value(setting.name))
    ]


def are_alike(config: AlgorithmConfig, other: AlgorithmConfig) -> bool:
    """Whether one compiled program can train both configs as members of a population. Numbers in ``env_config`` may
    differ; `member_starts` checks their effects on the environment.
    """
    own, others = config.env_config, other.env_config
    if not _with_env_of(other, config).differs_in_traced_settings_only(config, but_for=OWN_TO_EACH):
        return False
    return own.keys() == others.keys() and all(same(own[k], others[k]) or _both_numbers(own[k], others[k]) for k in own)


def _both_numbers(a: Any, b: Any) -> bool:
    return all(isinstance(x, int | float | np.number) and not isinstance(x, bool) for x in (a, b))


def _with_env_of(config: AlgorithmConfig, other: AlgorithmConfig) -> AlgorithmConfig:
    """Returns `config` with the ``env_config`` of `other`: an unfrozen copy, or `config` itself if nothing
    changes.
    """
    if same(config.env_config, other.env_config):
        return config
    return config.copy(copy_frozen=False).environment(env_config=dict(other.env_config))


def member_starts(
    configs: Sequence[AlgorithmConfig], first: AlgorithmConfig, template: Driver, names: Collection[str] | None = None
) -> list[MemberStart]:
    """Creates a `MemberStart` for each population member. It contains the member's config and, for each environment
    parameter in which members may differ, the member's value.

    Args:
        configs: Frozen configs of the members.
        first: Config to which all are alike; see `are_alike`.
        template: Driver of `first`.
        names: Leaves of ``env.params`` in which members may differ. None allows all leaves, and the results contain the
            leaves that differ.

    Raises:
        ValueError: If an entry of ``env_config`` changes the environment in more than numbers of its ``params``,
            which needs another program; or recorded data is not on the devices.
    """
    if not template.is_on_device:
        raise ValueError(
            "A population needs its recorded data in device memory, but this data is streamed. Set "
            "offline_data(keep_resident=True) if it fits, or train one run after the other with run_seeds() or "
            "run_sweep()."
        )
    env = unrandomized(template.jax_env)
    leaves: list[dict[str, Any]] = [{} for _ in configs]
    if env is not None:
        known: list[tuple[AlgorithmConfig, dict[str, Any]]] = [(first, named_leaves(env.params))]
        for place, config in enumerate(configs):
            found = next((own for one, own in known if same(one.env_config, config.env_config)), None)
            if found is None:
                found = named_leaves(_checked_params(env, first, config))
                known.append((config, found))
            leaves[place] = found
        of_first = known[0][1]
        differing = [n for n in of_first if any(not np.array_equal(of_first[n], own[n]) for _, own in known)]
        if names is not None and (more := set(differing) - set(names)):
            raise ValueError(
                f"env_config changes the environment parameters {', '.join(sorted(more))}, but members of this "
                f"population may differ only in: {', '.join(names) or 'none'}. Build another population."
            )
        differing = differing if names is None else list(names)
        leaves = [{name: own[name] for name in differing} for own in leaves]
    return [MemberStart(config, own) for config, own in zip(configs, leaves, strict=True)]


def _checked_params(env: JaxEnv, first: AlgorithmConfig, config: AlgorithmConfig) -> Any:
    """Returns the parameters ``env.params`` of a member's environment. Raises if this environment and the first
    member's environment differ in anything except numbers in ``env.params``.
    """
    if same(first.env_config, config.env_config):
        return env.params
    changed = [name for name, value in config.env_config.items() if not same(value, first.env_config[name])]
    shown = ", ".join(f"{name!r}: {value_text(config.env_config[name])}" for name in changed)
    refusal = (
        f"environment(env_config={{{shown}}}) cannot differ between members of a population: %s. Members may "
        f"differ only in numbers of env.params, which reset() and step() get as `params`. Use run_sweep() instead."
    )
    other = resolve_env(config.env, config.env_config).make(check=False)
    for name in ("observation_space", "action_space"):
        if getattr(env, name) != getattr(other, name):
            raise ValueError(refusal % f"these values change the environment's {name}")
    shapes = [jax.tree.map(lambda x: (np.shape(x), np.result_type(x)), one.params) for one in (env, other)]
    if shapes[0] != shapes[1]:
        raise ValueError(refusal % "these values change shapes or types in env.params")
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.result_type(x)), env.params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        reset = jax.make_jaxpr(env.reset, return_shape=True)(key, params)
        action = spaces.shape_dtype_struct(env.action_space)
        step = jax.make_jaxpr(env.step)(key, reset[1][1], action, params)
    except jax.errors.JAXTypeError as error:
        raise ValueError(refusal % "the environment's Python code branches on values of env.params") from error
    difference = impurity(other.reset, key, params, program=reset[0])
    difference = difference or impurity(other.step, key, reset[1][1], action, params, program=step)
    if difference is not None:
        raise ValueError(refusal % f"these values change the environment's traced code ({difference})")
    return other.params


def listed_members(
    config: AlgorithmConfig, seeds: int | Iterable[int] | None, num_samples: int
) -> tuple[AlgorithmConfig, list[Member]]:
    """Returns ``(config without search spaces, members)``, with one population member for each combination of values
    from the search spaces and each seed.

    Raises:
        ValueError: If there are no seeds, or a search space is invalid.
    """
    where = "build_population"
    chosen = [config.root_seed] if seeds is None else chosen_seeds(seeds, where)
    space = search_space(config)
    tried: list[dict[str, Any]] = [{}]
    if space or num_samples != 1:
        tried = combinations(space, num_samples, where)
    base = with_settings(config, tried[0]) if space else config.copy(copy_frozen=False)
    return base, [Member(seed, settings) for settings in tried for seed in chosen]


def checked_members(members: Sequence[Member | Mapping[str, Any]]) -> tuple[Member, ...]:
    """Checks the members of a population, and converts dicts to `Member` objects.

    Raises:
        ValueError: If there are none, two are equal, or they differ in the names of their settings.
    """
    made = tuple(member if isinstance(member, Member) else Member(**member) for member in members)
    if not made:
        raise ValueError("A population needs at least one member: build_population(seeds=8).")
    names = {tuple(sorted(member.settings)) for member in made}
    if len(names) > 1:
        raise ValueError(
            f"All members of a population must name the same settings, but these members name {sorted(names)}. Add "
            "the missing settings."
        )
    # Texts of members cut long values.
    identities = [json.dumps([member.seed, as_json(member.settings)], sort_keys=True) for member in made]
    twice = next((i for i, identity in enumerate(identities) if identities.count(identity) > 1), None)
    if twice is not None:
        raise ValueError(f"Two members have the same seed and settings, {made[twice]}. Leave one of them out.")
    return made


def of_one_device(config: AlgorithmConfig) -> AlgorithmConfig:
    """Limits the learner in a population member's config to one device; validates, freezes and returns the config."""
    own = config.learners(num_cpus_per_learner=1)
    if own.num_gpus_per_learner > 1:
        own.learners(num_gpus_per_learner=1)
    own.validate()
    own.freeze()
    return own


def check_alike(configs: Sequence[AlgorithmConfig], members: Sequence[Member]) -> None:
    """Raises ValueError if population members need different compiled programs.

    Args:
        configs: Configs of the members.
        members: Members, for the message.

    Raises:
        ValueError: Names the settings in which they differ.
    """
    reason = why_not_together(configs[0])
    if reason is not None:
        raise ValueError(
            f"One compiled program cannot train several members of this config: {reason}. Use run_seeds() or "
            f"run_sweep(), which train one run after the other."
        )
    for config, member in zip(configs[1:], members[1:], strict=True):
        if not are_alike(config, configs[0]):
            names = differing_settings(configs[0], config) or ["env_config"]
            raise ValueError(
                f"One compiled program cannot train both {members[0]} and {member}: they differ in {', '.join(names)}. "
                f"Members may differ only in seeds, traced settings (lr, gamma, ...) and numbers in env_config. For "
                f"other settings, use run_sweep(), which builds one population for each of their values."
            )
