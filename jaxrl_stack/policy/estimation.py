"""Off-policy estimation: the value of a policy estimated from episodes that another policy recorded, and the
reliability of the estimate.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.opening import Dataset, open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.ops import off_policy_evaluation as ope
from jaxrl_stack.policy.fitted_q import FittedQConfig, QValues, fitted_q_evaluation
from jaxrl_stack.policy.recorded_actions import ActingBy, ActionProbabilities, action_probabilities
from jaxrl_stack.policy.recorded_episodes import RecordedEpisodes, whole_episodes

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

logger = logging.getLogger(__name__)

METHODS = ("is", "pdis", "wis", "dm", "dr")
"""Importance sampling of episodes, per decision, weighted; direct method; doubly robust."""
WITH_RATIOS = ("is", "pdis", "wis", "dr")
WITH_Q = ("dm", "dr")
DRAWN = ActingBy()
"""The policy that draws its actions."""
FEWEST_EFFECTIVE_EPISODES = 10
"""With fewer than so many, an estimate that is made of ratios says nothing."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated value of a policy by one estimation method, with a confidence interval.

    Attributes:
        value: Mean discounted return of an episode.
        low, high: Ends of its confidence interval.
        effective_sample_size: Number of equally weighted episodes with the same information; None without ratios.
        problem: Reason why the estimate is not reliable; "" if none was found.
    """

    value: float
    low: float
    high: float
    effective_sample_size: float | None = None
    problem: str = ""

    @property
    def is_reliable(self) -> bool:
        """Whether the estimate has no known `problem`."""
        return not self.problem


@dataclasses.dataclass(frozen=True)
class Estimates(Mapping[str, Estimate]):
    """Estimates of a policy's value by method, such as ``estimates["wis"].value``.

    Attributes:
        of_methods: ``{method: Estimate}``.
        behavior: Returns of the policy that recorded the episodes.
        num_episodes: Number of whole episodes.
        num_left_out: Number of incomplete episodes, which are not used.
        num_steps: Number of steps of the whole episodes.
        gamma: Discount.
        confidence: Confidence of the intervals, between 0 and 1.
    """

    of_methods: Mapping[str, Estimate]
    behavior: Estimate
    num_episodes: int
    num_left_out: int
    num_steps: int
    gamma: float
    confidence: float

    def __getitem__(self, method: str) -> Estimate:
        return self.of_methods[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.of_methods)

    def __len__(self) -> int:
        return len(self.of_methods)

    def as_json(self) -> dict[str, Any]:
        """Converts the off-policy estimates of a policy's value to JSON types."""
        own = {name: getattr(self, name) for name in ("num_episodes", "num_left_out", "num_steps", "gamma")}
        own |= {"confidence": self.confidence, "behavior": dataclasses.asdict(self.behavior)}
        return own | {name: dataclasses.asdict(estimate) for name, estimate in self.items()}

    def __str__(self) -> str:
        lines = [
            f"{self.num_episodes:,} episodes, {self.num_steps:,} steps, gamma {self.gamma:g}, "
            f"intervals of {self.confidence:.0%}",
            f"{'':9} {'value':>12} {'low':>12} {'high':>12} {'effective episodes':>19}",
        ]
        for name, own in (("recorded", self.behavior), *self.items()):
            size = "" if own.effective_sample_size is None else f"{own.effective_sample_size:,.1f}"
            lines.append(f"{name:9} {own.value:12.4g} {own.low:12.4g} {own.high:12.4g} {size:>19}")
        lines += [f"{name}: {own.problem}" for name, own in self.items() if own.problem]
        return "\n".join(lines)


def steps_of(data: Any, options: ReadOptions | None = None) -> Steps:
    """Reads recorded steps from paths or an open data set; returns `data` unchanged if it is `Steps` already.

    Args:
        data: Paths, as `open_dataset` takes them, an open data set, or steps.
        options: Options for reading paths.

    Raises:
        BadDataError: If the paths contain no files, or the files cannot be read.
    """
    if isinstance(data, Steps):
        return data
    if not isinstance(data, Dataset):
        data = open_dataset(os.fspath(data) if isinstance(data, os.PathLike) else data, options=options)
    return data.read_all()


def checked_methods(module: RLModule, methods: Sequence[str] | str | None) -> tuple[str, ...]:
    """Checks the names of off-policy estimation methods, such as "wis", and returns these names.

    If `methods` is None, returns all methods that support the RLModule `module`: methods that learn Q-values do not
    support recurrent modules.

    Raises:
        ValueError: For an unknown one, or one that is not for this module.
    """
    if methods is None:
        return tuple(name for name in METHODS if name not in WITH_Q or not module.is_stateful())
    names = (methods,) if isinstance(methods, str) else tuple(methods)
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise ValueError(f"methods={methods!r}: choose from {list(METHODS)}.")
    needs_q = [name for name in names if name in WITH_Q]
    if needs_q and module.is_stateful():
        raise ValueError(
            f"methods={list(names)}: {needs_q} learn Q-values of single observations, but {type(module).__name__} has "
            "a recurrent state. Use methods=('is', 'pdis', 'wis')."
        )
    return names


def estimate(
    module: RLModule,
    data: Any,
    *,
    methods: Sequence[str] | str | None = None,
    gamma: float = 0.99,
    acting: ActingBy = DRAWN,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    q_model_config: Mapping[str, Any] | None = None,
    seed: int = 0,
    data_options: Mapping[str, Any] | None = None,
) -> Estimates:
    """Estimates the value of a module's policy from recorded episodes; see `Policy.estimate`.

    Args:
        module: Module with its weights.
        data: See `steps_of`.
        methods, gamma, confidence, num_resamples, q_model_config, seed, data_options: See `Policy.estimate`.
        acting: Exploration mode of the module.
    """
    names = checked_methods(module, methods)
    if not 0 < confidence < 1 or num_resamples < 1:
        raise ValueError(
            f"confidence={confidence} must be between 0 and 1, and num_resamples={num_resamples} at least 1."
        )
    config = FittedQConfig.of(q_model_config)
    spaces: Any = {"observation_space": module.observation_space, "action_space": module.action_space}
    steps = steps_of(data, ReadOptions.from_settings(data_options or {}, known_only=True, **spaces))
    columns, episodes = dict(steps.columns), whole_episodes(steps)
    needs_q = any(name in WITH_Q for name in names)
    if needs_q and gamma >= 1 and not episodes.terminated.all():
        raise ValueError(
            f"gamma={gamma}: 'dm' and 'dr' estimate values of the final states of truncated episodes, and without a "
            "discount these values are unbounded. Set a gamma below 1, or methods=('is', 'pdis', 'wis')."
        )
    found = action_probabilities(
        module, columns, episodes, acting, num_samples=config.num_action_samples if needs_q else 0, seed=seed
    )
    log_mu = behavior_log_probs(columns) if any(name in WITH_RATIOS for name in names) else None
    q_values = None
    if needs_q:
        own: Any = (module.observation_space, module.action_space)
        rows = episodes.rows[episodes.mask]
        q_values = fitted_q_evaluation(columns, rows, found, own, gamma=gamma, config=config, seed=seed)
    terms = _terms(names, columns, episodes, found, log_mu, q_values, gamma)
    return _estimates(names, episodes, terms, gamma=gamma, confidence=confidence, number=num_resamples, seed=seed)


def weighted_returns(
    module: RLModule,
    columns: Mapping[str, Any],
    episodes: RecordedEpisodes,
    method: str,
    *,
    gamma: float,
    acting: ActingBy = DRAWN,
) -> np.ndarray:
    """Returns importance-weighted returns of recorded episodes; their mean estimates the value of the module's policy.

    The weights are the ratios of action probabilities under the module's policy and under the recording policy.

    Args:
        module: Module with its weights.
        columns: ``{column: [R, ...]}``.
        episodes: Episodes of these rows.
        method: "is" or "pdis".
        gamma: Discount.
        acting: Exploration mode of the module.

    Returns:
        float32 ``[E]``.

    Raises:
        ValueError: As `Policy.estimate`.
    """
    log_mu = behavior_log_probs(columns)
    found = action_probabilities(module, dict(columns), episodes, acting)
    return _terms((method,), columns, episodes, found, log_mu, None, gamma)["terms"][method][0]


def behavior_log_probs(columns: Mapping[str, Any]) -> np.ndarray:
    """Returns the log-probabilities of the actions in R recorded rows under the recording policy, float32 ``[R]``.

    Raises:
        ValueError: If the data contain no probabilities of actions.
    """
    if Columns.ACTION_LOGP in columns:
        return np.asarray(columns[Columns.ACTION_LOGP], np.float32)
    if Columns.ACTION_PROB in columns:
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(columns[Columns.ACTION_PROB], np.float32))
    raise ValueError(
        f"The data has the columns {sorted(columns)} and no {Columns.ACTION_LOGP!r}, which probability ratios need. "
        "If the data has this column under another name, set offline_data(input_read_schema="
        f"{{{Columns.ACTION_LOGP!r}: 'name in the data'}}); otherwise record this column with `jaxrl record CHECKPOINT "
        "--explore`, or set methods=('dm',)."
    )


def _terms(
    names: Sequence[str],
    columns: Mapping[str, Any],
    episodes: RecordedEpisodes,
    found: ActionProbabilities,
    log_mu: np.ndarray | None,
    q_values: QValues | None,
    gamma: float,
) -> dict[str, Any]:
    """Computes the terms of off-policy estimates from E recorded episodes: numerators and denominators ``[E]`` of each
    method.

    The methods are the methods in `names` and "behavior", the recording policy. An estimate is the sum of the
    numerators divided by the sum of the denominators. Also returns the log importance weights ``[E]`` and the effective
    sample size.
    """
    rows = episodes.rows
    zeros = np.zeros(rows.shape, np.float32)
    log_ratios = zeros if log_mu is None else (found.log_probs - log_mu)[rows]
    of_steps = [zeros, zeros] if q_values is None else [q_values.q_values[rows], q_values.values[rows]]
    if q_values is None:
        final = np.zeros(len(rows), np.float32)
    else:
        final = np.where(episodes.terminated, 0.0, q_values.values[episodes.final_rows]).astype(np.float32)
    rewards = np.asarray(columns[Columns.REWARDS], np.float32)[rows]
    return jax.device_get(_compiled_terms(tuple(names))(log_ratios, rewards, *of_steps, final, episodes.mask, gamma))


@functools.lru_cache(maxsize=32)
def _compiled_terms(names: tuple[str, ...]) -> Any:
    def terms(log_ratios: Any, rewards: Any, q: Any, values: Any, final: Any, mask: Any, gamma: Any) -> dict[str, Any]:
        log_weights, returns = ope.importance_sampling(log_ratios, rewards, mask, gamma)
        ones = jnp.ones_like(returns)
        found = {"behavior": (returns, ones)}
        for name in names:
            if name == "is":
                found[name] = (jnp.exp(log_weights) * returns, ones)
            elif name == "pdis":
                found[name] = (ope.per_decision_importance_sampling(log_ratios, rewards, mask, gamma), ones)
            elif name == "wis":
                found[name] = ope.weighted(log_weights, returns)
            elif name == "dm":
                found[name] = (values[:, 0], ones)
            else:
                found[name] = (ope.doubly_robust(log_ratios, rewards, q, values, final, mask, gamma), ones)
        return {"terms": found, "log_weights": log_weights, "size": ope.effective_sample_size(log_weights)}

    return jax.jit(terms)


_bootstrap = functools.partial(jax.jit, static_argnames="num_resamples")(ope.bootstrap_ratios)


def _estimates(
    names: Sequence[str],
    episodes: RecordedEpisodes,
    terms: Mapping[str, Any],
    *,
    gamma: float,
    confidence: float,
    number: int,
    seed: int,
) -> Estimates:
    every = ("behavior", *names)
    numerators, denominators = (np.stack([terms["terms"][name][i] for name in every], axis=-1) for i in range(2))
    with np.errstate(invalid="ignore", over="ignore"):
        values = numerators.astype(np.float64).sum(axis=0) / denominators.astype(np.float64).sum(axis=0)
        drawn = jax.device_get(_bootstrap(jax.random.key(seed), numerators, denominators, num_resamples=number))
        ends = [_ends(column, confidence) for column in drawn.T]
    size, found = float(terms["size"]), {}
    for i, name in enumerate(every):
        has_ratios = name in WITH_RATIOS
        problem = _problem(name, size, terms["log_weights"], values[i]) if has_ratios else ""
        found[name] = Estimate(float(values[i]), *ends[i], size if has_ratios else None, problem)
        if problem:
            logger.warning("The estimate %r is not reliable: %s", name, problem)
    if episodes.num_left_out:
        logger.warning("The estimates leave out %d incomplete episodes.", episodes.num_left_out)
    behavior = found.pop("behavior")
    num_steps = int(episodes.mask.sum())
    return Estimates(found, behavior, len(episodes.rows), episodes.num_left_out, num_steps, gamma, confidence)


def _ends(drawn: np.ndarray, confidence: float) -> tuple[float, float]:
    """Returns the bounds of a bootstrap confidence interval; resamples whose importance weights are all 0 in float32
    are ignored.
    """
    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return math.nan, math.nan
    low, high = np.percentile(known, [50 * (1 - confidence), 50 * (1 + confidence)]).tolist()
    return low, high


def _problem(name: str, size: float, log_weights: np.ndarray, value: float) -> str:
    """Describes why an estimate from probability ratios is unreliable; "" if it is reliable."""
    if not np.isfinite(log_weights).any():
        return (
            "the policy would not choose the recorded actions of any complete episode. Record data with a policy "
            "closer to it."
        )
    if not np.isfinite(value):
        return "products of probability ratios overflow. Use 'wis' or 'dm', which cannot overflow."
    if not size >= FEWEST_EFFECTIVE_EPISODES:
        largest = float(np.exp(log_weights - log_weights.max()).sum() ** -1)
        return (
            f"{len(log_weights):,} episodes count as only {size:.1f} effective episodes, and one of them has "
            f"{largest:.0%} of all weight. Record data with a policy closer to this one, or shorter episodes."
        )
    return ""
