"""Diagnoses of a run with advice: each diagnosis is a function of the run's metrics."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.terminal import number_text

_LATE = 0.2
"""Fraction of a run that "late" means, at its end, and "early", at its beginning."""
_GRADIENT_NORM = "gradients_default_optimizer_global_norm"
_MODULE_RETURNS = "env_runners/module_episode_returns_mean/"
"""Prefix of the columns with the returns of each policy. With several policies, the diagnoses of a module use the
column of this module.
"""
_MIN_ITERATIONS = 5
"""Minimum number of iterations for diagnoses of learning."""

Kind = Literal["problem", "hint"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a diagnosis: a problem of a run or a hint, with advice.

    Attributes:
        kind: "problem" for a cause that prevents learning, "hint" for a possible improvement.
        title: The finding in a few words.
        text: The measurement, and the advice.
        columns: Columns of the run's table that show the problem or hint.
    """

    kind: Kind
    title: str
    text: str
    columns: tuple[str, ...]


class Numbers:
    """Metrics of a run by column, with the lookups that diagnoses use, such as the median of the last fifth of a
    column.

    Args:
        history: History of the run.
        settings: Config of the run as plain values; missing settings are unknown.
        module: Module of the learner metrics.
        has_reached_goal: Whether the run ended because it reached its goal.
    """

    def __init__(
        self, history: History, settings: Mapping[str, Any], module: str, *, has_reached_goal: bool = False
    ) -> None:
        self.history, self.settings, self.module = history, settings, module
        self.has_reached_goal = has_reached_goal
        of_modules = {
            column.removeprefix(_MODULE_RETURNS): column
            for column in history.columns
            if column.startswith(_MODULE_RETURNS)
        }
        self._returns_of_modules = of_modules if len(of_modules) > 1 else {}

    def column(self, name: str) -> str:
        """Returns the name of a metric's column in the run's table.

        The column is `name` or, if the table has no such column, the learner metric `name` of `module`. For the mean
        return of a run with several modules, it is the return column of `module`.
        """
        if name == RETURN and self.module in self._returns_of_modules:
            return self._returns_of_modules[self.module]
        return name if name in self.history else f"learners/{self.module}/{name}"

    def known(self, name: str) -> np.ndarray:
        """Finite values of a column of the run's table, oldest first; empty if the table has no such column."""
        column = self.column(name)
        values = self.history[column] if column in self.history else np.zeros(0)
        return values[np.isfinite(values)]

    def late(self, name: str) -> float:
        """Median of the last fifth of the finite values in a column of the run's table; NaN if the column has no finite
        value.
        """
        values = self.known(name)
        return float(np.median(values[-_share(len(values)) :])) if len(values) else math.nan

    def early(self, name: str) -> float:
        """Median of the first fifth of the finite values in a column of the run's table; NaN if the column has no
        finite value.
        """
        values = self.known(name)
        return float(np.median(values[: _share(len(values))])) if len(values) else math.nan

    def has_settled_at_its_best(self) -> bool:
        """Whether the return varies, and all values in the last fifth of the run are close to the highest return.

        A value is close if it is within a twentieth of the difference between the highest and the lowest return.
        """
        returns = self.known(RETURN)
        if not len(returns):
            return False
        best, worst = float(returns.max()), float(returns.min())
        late = returns[-_share(len(returns)) :]
        return best > worst and bool(late.min() > best - 0.05 * (best - worst))

    def setting(self, name: str) -> float:
        """Numeric value of a setting; NaN for schedules, None, and unknown settings."""
        value = self.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.nan
        return float(value)


def _share(count: int) -> int:
    return max(1, round(_LATE * count))


Said = tuple[str, *tuple[str, ...]] | None
"""Result of a diagnosis: text with measurement and advice, then the columns that show it; None without a finding."""
Rule = Callable[[Numbers], Finding | None]

RULES: list[Rule] = []
"""All diagnoses, the most important first."""


def rule(kind: Kind, title: str) -> Callable[[Callable[[Numbers], Said]], Rule]:
    """Decorator that adds a diagnosis of a run to the list `RULES`.

    The decorated function returns the text and the columns of the finding, or None if the diagnosis does not apply.
    `kind` and `title` of the finding are the decorator's arguments.
    """

    def make(function: Callable[[Numbers], Said]) -> Rule:
        @functools.wraps(function)
        def find(numbers: Numbers) -> Finding | None:
            said = function(numbers)
            return None if said is None else Finding(kind, title, said[0], said[1:])

        RULES.append(find)
        return find

    return make


# Comparisons with NaN are False: a rule whose numbers are not known says nothing.


@rule("problem", "The loss is not finite any more")
def not_finite(numbers: Numbers) -> Said:
    """Diagnoses a loss that was finite and has become NaN or infinite."""
    column = numbers.column("total_loss")
    if column not in numbers.history:
        return None
    losses = numbers.history[column]
    where = np.flatnonzero(np.isfinite(losses))
    if len(where) == 0 or np.isfinite(losses[-_share(len(losses)) :]).any():
        return None
    return (
        f"The last finite loss is in iteration {where[-1] + 1} of {len(losses)}. Restart from a checkpoint before it "
        f"with a lower lr and grad_clip=0.5; debugging(check_nans=True) names the first value that is not finite.",
        column,
    )


@rule("problem", "No episode has ended")
def no_episode(numbers: Numbers) -> Said:
    """Diagnoses a run that has steps, but no ended episode and so no return."""
    if RETURN in numbers.history or len(numbers.history) < _MIN_ITERATIONS:
        return None
    steps = numbers.late("num_env_steps_sampled_lifetime")
    return (
        f"There is no return after {number_text(steps)} steps. Check that the environment sets terminated or "
        f"truncated; a time limit ends episodes that do not end by themselves.",
        RETURN,
    )


@rule("problem", "It learned and lost it again")
def collapsed(numbers: Numbers) -> Said:
    """Diagnoses a return that rose, and then lost more than half of the increase."""
    returns = numbers.known(RETURN)
    if len(returns) < _MIN_ITERATIONS:
        return None
    best, first, last = float(returns.max()), numbers.early(RETURN), numbers.late(RETURN)
    if not (best - first > 0.1 * max(1.0, abs(first)) and best - last > 0.5 * (best - first)):
        return None
    return (
        f"The return was {number_text(best)} at its best, and is {number_text(last)} at the end. Let the learning rate "
        f"fall (lr=[[0, start], [steps, end]]), or lower lr or clip_param. reporting(keep_best=True) keeps the best "
        f"state of a run.",
        numbers.column(RETURN),
    )


@rule("hint", "The return has not moved")
def not_learning(numbers: Numbers) -> Said:
    """Diagnoses a return that has not changed by more than its noise."""
    returns = numbers.known(RETURN)
    # What was learned and lost has moved.
    if len(returns) < 4 * _MIN_ITERATIONS or collapsed(numbers) is not None:
        return None
    first, last = numbers.early(RETURN), numbers.late(RETURN)
    ends = (returns[: _share(len(returns))], returns[-_share(len(returns)) :])
    noise = max(float(end.std()) for end in ends)
    if returns.max() - first > 3.0 * noise or last - first > max(noise, 0.02 * abs(first)):
        return None
    # Of a run that goes on from a good checkpoint that is true, too.
    return (
        f"It was {number_text(first)} in the first fifth and is {number_text(last)} in the last. Look at the other "
        f"findings first; without any, try another lr by a factor of 3, and more exploration (entropy_coeff).",
        numbers.column(RETURN),
    )


@rule("problem", "The value loss is cut off")
def clipped_value_loss(numbers: Numbers) -> Said:
    """Diagnoses a value loss of PPO that ``vf_clip_param`` clips so strongly that the critic hardly gets gradients."""
    loss, unclipped, limit = (
        numbers.late("vf_loss"),
        numbers.late("vf_loss_unclipped"),
        numbers.setting("vf_clip_param"),
    )
    if not (unclipped > 2.0 * loss and loss > 0.5 * limit):
        return None
    return (
        f"The squared value error is {number_text(unclipped)}, and vf_clip_param={number_text(limit)} lets at most "
        f"that through: errors above it give no gradient, and the critic cannot learn. Set vf_clip_param above "
        f"{number_text(2.0 * unclipped)}, or scale the rewards down.",
        numbers.column("vf_loss"),
        numbers.column("vf_loss_unclipped"),
    )


@rule("problem", "The critic explains little")
def blind_critic(numbers: Numbers) -> Said:
    """Diagnoses a critic that explains little of the variance of the returns, although the returns still vary."""
    explained = numbers.late("vf_explained_var")
    if not (explained < 0.2 and len(numbers.known("vf_explained_var")) >= _MIN_ITERATIONS):
        return None
    # The loss is what keeps it from learning; or all returns are the same by now, and there is nothing to explain.
    if clipped_value_loss(numbers) is not None or numbers.has_settled_at_its_best():
        return None
    spread, size = numbers.late("value_target_std"), abs(numbers.late(RETURN))
    measured = f"The explained variance is {explained:.2f} late in the run"
    if spread > 10.0 or (math.isnan(spread) and size > 100.0):
        scale = f"value targets spread by {number_text(spread)}" if spread > 0 else f"returns are {number_text(size)}"
        text = (
            f"{measured}, and {scale}: too large for a network whose outputs start near 0. Scale the rewards down, or "
            f"give the critic an encoder of its own (vf_share_layers=False in the model_config)."
        )
    else:
        text = (
            f"{measured}: advantages are as noisy as without a critic. Raise vf_loss_coeff or lr, or give it an "
            f"encoder of its own (vf_share_layers=False); check that observations hold what returns depend on."
        )
    return text, numbers.column("vf_explained_var"), numbers.column(RETURN)


@rule("problem", "Updates move the policy too far")
def kl_too_large(numbers: Numbers) -> Said:
    """Diagnoses updates that change the policy so much that PPO's surrogate objective is no longer valid."""
    name = "mean_kl_loss" if len(numbers.known("mean_kl_loss")) else "approx_kl"
    divergence, target = numbers.late(name), numbers.setting("kl_target")
    limit = max(0.05, 5.0 * target) if target == target else 0.05
    if not divergence > limit:
        return None
    return (
        f"The KL divergence of an update is {divergence:.3g}, where 0.01 to 0.02 is usual. Lower lr by a factor of 3, "
        f"or num_epochs.",
        numbers.column(name),
    )


@rule("problem", "Updates hardly move the policy")
def policy_hardly_moves(numbers: Numbers) -> Said:
    """Diagnoses updates that hardly change the policy while the return does not change."""
    name = "approx_kl" if len(numbers.known("approx_kl")) else "mean_kl_loss"
    divergence, clipped = numbers.late(name), numbers.late("clip_fraction")
    if not (abs(divergence) < 1e-4 and not clipped > 0.01 and not_learning(numbers) is not None):
        return None
    return (
        f"The KL divergence of an update is {divergence:.2g}, where 0.01 is usual, and the return does not move. Raise "
        f"lr by a factor of 3, or num_epochs.",
        numbers.column(name),
        numbers.column(RETURN),
    )


@rule("problem", "Much of every batch is clipped")
def much_is_clipped(numbers: Numbers) -> Said:
    """Diagnoses a high fraction of actions whose probability ratio PPO clips."""
    clipped = numbers.late("clip_fraction")
    if not clipped > 0.35:
        return None
    limit = number_text(numbers.setting("clip_param"))
    return (
        f"The ratio of {clipped:.0%} of the actions is outside of clip_param={limit}; 10 to 20 % is usual. "
        f"Lower lr or num_epochs, or take larger minibatches.",
        numbers.column("clip_fraction"),
    )


@rule("problem", "Exploration has stopped too early")
def entropy_collapsed(numbers: Numbers) -> Said:
    """Diagnoses a policy that no longer explores (its entropy or standard deviation is too low), although the return
    does not stay close to its highest value.
    """
    first, last = numbers.early("entropy"), numbers.late("entropy")
    deviation = numbers.late("policy_std")
    returns = numbers.known(RETURN)
    if deviation == deviation:
        is_gone, measured = deviation < 0.05, f"The policy's standard deviation is {deviation:.2g}"
    else:
        is_gone, measured = first > 0.0 and last < 0.05 * first, f"The entropy fell from {first:.2g} to {last:.2g}"
    if not is_gone or len(returns) < _MIN_ITERATIONS:
        return None
    if numbers.has_settled_at_its_best():
        return None
    best, late = float(returns.max()), numbers.late(RETURN)
    return (
        f"{measured}, and the return is {number_text(late)}, below its best of {number_text(best)}. Raise "
        f"entropy_coeff (0.01 is a start), or lower lr.",
        numbers.column("entropy"),
        numbers.column(RETURN),
    )


@rule("problem", "Q-values run away")
def values_run_away(numbers: Numbers) -> Said:
    """Diagnoses Q-values that are far above every observed return."""
    returns = numbers.known(RETURN)
    values = abs(numbers.late("qf_mean"))
    if not len(returns) or not values > 10.0 * (1.0 + float(np.abs(returns).max())):
        return None
    return (
        f"Their mean is {number_text(values)}, and no return was further from 0 than "
        f"{number_text(float(np.abs(returns).max()))}. Lower lr, let the target network follow more slowly (tau, "
        f"target_network_update_freq), or use double_q=True.",
        numbers.column("qf_mean"),
        numbers.column(RETURN),
    )


@rule("hint", "Every gradient is cut off")
def always_clipped(numbers: Numbers) -> Said:
    """Diagnoses a gradient clip that applies to nearly all gradients, so that updates depend on the direction of the
    gradients, but not on their norm.
    """
    usual, limit = numbers.late(_GRADIENT_NORM), numbers.setting("grad_clip")
    if not usual > 20.0 * limit:
        return None
    return (
        f"The gradient norm is {number_text(usual)}, far above grad_clip={number_text(limit)}: all updates are of the "
        f"same length, and lr alone says how long. Scale the rewards down, lower vf_loss_coeff, or raise grad_clip.",
        numbers.column(_GRADIENT_NORM),
    )


@rule("hint", "Single gradients are far above the others")
def gradient_spikes(numbers: Numbers) -> Said:
    """Diagnoses single updates with unusually large gradients that are not clipped."""
    norms = numbers.known(_GRADIENT_NORM)
    if len(norms) < 2 * _MIN_ITERATIONS:
        return None
    usual, largest, limit = float(np.median(norms)), float(norms.max()), numbers.setting("grad_clip")
    if not largest > 20.0 * usual > 0.0 or limit < 10.0 * usual:
        return None
    return (
        f"The largest gradient norm is {number_text(largest)}, the median {number_text(usual)}, and "
        f"{'nothing cuts them off' if math.isnan(limit) else f'grad_clip={number_text(limit)} is above most'}. Set "
        f"grad_clip={number_text(float(f'{3.0 * usual:.1g}'))}.",
        numbers.column(_GRADIENT_NORM),
    )


@rule("hint", "Most of the time went into compiling")
def mostly_compiling(numbers: Numbers) -> Said:
    """Diagnoses a run in which compilation took more time than everything else."""
    compiling, total = float(numbers.known("timers/compile_s").sum()), float(numbers.known("time_this_iter_s").sum())
    if not (compiling > 0.5 * total and total > 2.0):
        return None
    return (
        f"{compiling:.1f} of {total:.1f} s. Normal for a first run: compiled programs are cached, so the next run "
        f"starts faster.",
        "timers/compile_s",
    )


@rule("hint", "Training waits for the environment")
def host_bound(numbers: Numbers) -> Said:
    """Diagnoses a run that, after compilation, spends most of its time on the host, usually in environments."""
    host = float(numbers.known("timers/host_s").sum())
    total = float(numbers.known("time_this_iter_s").sum()) - float(numbers.known("timers/compile_s").sum())
    if not (host > 0.7 * total and total > 5.0):
        return None
    return (
        f"{host / total:.0%} of the time after compiling is spent on the host. Sample with more actors "
        f"(env_runners(num_env_runners=...)), more environments in each (num_envs_per_env_runner), or a JAX "
        f"environment, which runs inside the training program.",
        "timers/host_s",
    )


@rule("hint", "The return is still rising")
def still_rising(numbers: Numbers) -> Said:
    """Diagnoses a return that still rises: it has grown over the last fifth of the run, and its last value exceeds all
    values before this fifth.
    """
    returns = numbers.known(RETURN)
    if len(returns) < 2 * _MIN_ITERATIONS or numbers.has_reached_goal:
        return None
    late = returns[-_share(len(returns)) :]
    before = returns[: len(returns) - len(late)]
    growth, reach = float(late[-1] - late[0]), float(returns.max() - returns.min())
    if not (late[-1] > before.max() and growth > 0.05 * reach > 0.0):
        return None
    return (
        f"It grew by {number_text(growth)} over the last fifth, to {number_text(float(late[-1]))}. Train longer.",
        numbers.column(RETURN),
    )


def diagnoses(
    history: History, settings: Mapping[str, Any] | None = None, *, has_reached_goal: bool = False
) -> list[Finding]:
    """Applies all diagnoses to a run; returns their findings.

    Args:
        history: History of the run; rules are skipped if it lacks their numbers.
        settings: Config of the run as plain values, such as ``config.to_dict()``.
        has_reached_goal: Whether the run ended because it reached its goal; see `Run.has_reached_goal`.

    Returns:
        The findings, most important first, each once for the first module to which it applies.
    """
    prefix = "learners/"
    modules = dict.fromkeys(name.split("/")[1] for name in history.columns if name.startswith(prefix))
    num_modules = len(modules)
    # Policies that are not trained have returns, too.
    modules = [name for name in modules if f"{prefix}{name}/total_loss" in history] or modules
    found: dict[str, Finding] = {}
    for rule in RULES:
        for module in [name for name in modules if name != "__all_modules__"] or [""]:
            finding = rule(Numbers(history, settings or {}, module, has_reached_goal=has_reached_goal))
            if finding is not None and finding.title not in found:
                is_own = any(name.startswith((prefix, _MODULE_RETURNS)) for name in finding.columns)
                several = f" ({module})" if num_modules > 2 and is_own else ""
                found[finding.title] = dataclasses.replace(finding, title=f"{finding.title}{several}")
    return list(found.values())
