"""Conversion of instances of Ray Tune's schedulers to `PBT` and `Halving` schedules with the same arguments.

The conversion calls no methods of the instances, because these methods need a controller of Tune's trials, and draw
from Python's global random numbers. Only this file reads the attributes of the instances.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.runs.curves import ITERATIONS, SECONDS
from jaxrl_stack.runs.halving import Halving
from jaxrl_stack.runs.pbt import PBT
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import flatten_result

Schedule = PBT | Halving

_PBT = "ray.tune.schedulers.pbt.PopulationBasedTraining"
_ASHA = "ray.tune.schedulers.async_hyperband.AsyncHyperBandScheduler"


def read_scheduler(scheduler: Any, where: str) -> Schedule:
    """Converts a Ray Tune scheduler to a `PBT` or `Halving` object with the scheduler's arguments.

    Args:
        scheduler: A ``PopulationBasedTraining`` or ``ASHAScheduler`` of Ray Tune, or a schedule, which is returned.
        where: Name of the caller, for messages.

    Raises:
        ValueError: If it is of another class, or has arguments that populations do not support.
    """
    if isinstance(scheduler, PBT | Halving):
        return scheduler
    name = f"{type(scheduler).__module__}.{type(scheduler).__qualname__}"
    if name == _PBT:
        return _read_pbt(scheduler)
    if name == _ASHA:
        return _read_asha(scheduler, where)
    raise ValueError(
        f"{where}(scheduler={scheduler!r}): must be a PopulationBasedTraining or an ASHAScheduler of "
        f"ray.tune.schedulers. For other schedulers use tune.Tuner(..., "
        f"tune_config=tune.TuneConfig(scheduler=...))."
    )


def _read_pbt(scheduler: Any) -> PBT:
    if not scheduler._synch:
        notice_once(
            "PopulationBasedTraining(synch=False): the members of a population are always at the same step, so they "
            "are perturbed at the same time, as with synch=True."
        )
    interval = scheduler._perturbation_interval
    if scheduler._time_attr == SECONDS:
        notice_once(
            f"PopulationBasedTraining(perturbation_interval={interval:g}) counts seconds, because "
            f"time_attr='{SECONDS}' (Tune's default). For iterations set time_attr='{ITERATIONS}'."
        )
    return PBT(
        mutations=flatten_result(scheduler._hyperparam_mutations),  # "env_config/gravity"
        perturbation_interval=interval,
        time_attr=scheduler._time_attr,
        metric=scheduler._metric,
        mode=scheduler._mode or "max",
        burn_in_period=scheduler._burn_in_period,
        quantile_fraction=scheduler._quantile_fraction,
        resample_probability=scheduler._resample_probability,
        perturbation_factors=tuple(scheduler._perturbation_factors),
        custom_explore_fn=scheduler._custom_explore_fn,
    )


def _read_asha(scheduler: Any, where: str) -> Halving:
    brackets = scheduler._brackets
    if len(brackets) > 1:
        raise ValueError(
            f"{where}: ASHAScheduler(brackets={len(brackets)}) is not supported, because all runs are trained together "
            "and have the same rungs. Set brackets=1."
        )
    # A bracket stores its rungs from the last to the first, which is at the grace period.
    (bracket,) = brackets
    return Halving(
        max_t=scheduler._max_t,
        grace_period=bracket._rungs[-1][0],
        reduction_factor=scheduler._reduction_factor,
        time_attr=scheduler._time_attr,
        metric=scheduler._metric,
        mode=scheduler._mode or "max",
        stop_last_trials=scheduler._stop_last_trials,
    )
