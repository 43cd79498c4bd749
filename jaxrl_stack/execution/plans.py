"""Plan of a training step: sizes of samples, updates and stored data, fixed when an algorithm is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from jaxrl_stack.core.layouts import Layouts
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.training_step import Draws, TrainingStep
    from jaxrl_stack.utils.memory import MemoryEstimate

Sizes = TypeVar("Sizes")


@dataclasses.dataclass(frozen=True)
class SamplePlan:
    """Plan of one sampling operation: number of steps, and array layouts (stacked frames, recurrent chunks) of the
    columns; created by `Facts.plan_samples`.

    Attributes:
        num_steps: ``T``, steps of each environment in a share.
        layouts: Layout of the columns of each module.
        num_shares: Number of shares, from any number of runners.
        at_least: Minimum of env steps, if runners only return whole episodes.
        has_all_final_obs: Whether FINAL_OBS also has the observations after steps that terminated an episode.
        may_stay_remote: Whether columns may stay in Ray's object store on their way to learner actors.
        has_agent_times: Whether parts have `Part.times`, for a replay on the host with several agents.
    """

    num_steps: int
    layouts: Layouts
    num_shares: int = 1
    at_least: int = 1
    has_all_final_obs: bool = False
    may_stay_remote: bool = False
    has_agent_times: bool = False


@dataclasses.dataclass(frozen=True)
class SampledUpdate(Generic[Sizes]):
    """Plan of an update on sampled steps, for `Place.update`; created by `Facts.plan_update`.

    Attributes:
        samples: Plan of its samples, all shares together.
        sizes: On the host arguments of `Learner.update_block`, which plans for its blocks; on the device an
            `UpdatePlan`.
    """

    samples: SamplePlan
    sizes: Sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Result of `TrainingStep.plan`: sizes and random streams of a training step, and the memory of the step's batches
    and stored data.

    Attributes:
        samples: Its samples, each kind of share once; () for a step without samples.
        update: The update from samples; None if updates use other rows.
        draws: Random streams by name.
        num_env_steps: Env steps that one call samples; on the host at least.
        rows_per_update: Rows of an update, over all devices.
        num_updates: Updates of one call.
        batch_memory: Memory of the batch of one update; None uses the samples of `update`, or `rows_per_update` rows.
        kept_memory: Memory of the step's kept data, when full; None if there is none or it is unknown.
    """

    samples: tuple[SamplePlan, ...] = ()
    update: SampledUpdate[Any] | None = None
    draws: Mapping[str, Draws] = dataclasses.field(default_factory=dict)
    num_env_steps: int = 0
    rows_per_update: int
    num_updates: int = 1
    batch_memory: MemoryEstimate | None = None
    kept_memory: MemoryEstimate | None = None

    @classmethod
    def of(
        cls, step: TrainingStep, samples: Sequence[SamplePlan] = (), update: SampledUpdate[Any] | None = None
    ) -> Self:
        """Creates the plan of a training step from the sizes that the step stores as attributes."""
        return cls(
            samples=tuple(samples),
            update=update,
            draws=step.draws,
            num_env_steps=step.num_env_steps,
            rows_per_update=step.rows_per_update,
            num_updates=step.num_updates,
            batch_memory=step.batch_memory,
            kept_memory=step.kept_memory,
        )


def plan_of(step: TrainingStep, facts: Facts) -> Plan:
    """Calls `TrainingStep.plan`, and returns the `Plan` of the training step.

    If `TrainingStep.plan` returns None, the `Plan` is built from attributes of the step, and from the sample and update
    plans that the step requested from `facts`.

    Raises:
        ValueError: If sizes do not fit; names the settings.
    """
    noting: Any = _NotingFacts(facts)
    plan = step.plan(noting)
    if isinstance(plan, Plan):
        return plan
    if not hasattr(step, "rows_per_update"):
        if noting.update is None:
            raise ValueError(
                f"{type(step).__name__}.plan() sets no rows_per_update (number of rows of one update). Set "
                f"self.rows_per_update in plan(), or return Plan(rows_per_update=...)."
            )
        samples = noting.update.samples
        step.rows_per_update = samples.num_steps * samples.num_shares * int(facts.config.num_envs_per_env_runner)
    return Plan.of(step, noting.samples, noting.update)


class _NotingFacts:
    """Wraps `Facts` (spaces, learners, modules and runners of a driver), and stores the plans that `TrainingStep.plan`
    requests.

    `TrainingStep.plan` gets this object as its argument, and requests sample and update plans from it. If
    `TrainingStep.plan` returns None, `plan_of` builds the `Plan` from the stored plans and the step's attributes.

    Attributes:
        samples: Sample plans requested so far.
        update: The last requested update plan; None before the first request.
    """

    def __init__(self, facts: Facts):
        self._facts = facts
        self.samples: list[SamplePlan] = []
        self.update: SampledUpdate[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._facts, name)
        except AttributeError:
            known = [field.name for field in dataclasses.fields(self._facts)]
            raise AttributeError(
                f"TrainingStep.plan(facts): `facts` has no attribute {name!r}, only {known}. `facts` is not the driver "
                f"(the object that samples and updates). If the driver has {name!r}, read it after plan(), for example "
                "in TrainingStep.results(driver).",
                name=name,
                obj=self._facts,
            ) from None

    def plan_samples(self, *args: Any, **kwargs: Any) -> SamplePlan:
        self.samples.append(self._facts.plan_samples(*args, **kwargs))
        return self.samples[-1]

    def plan_update(self, *args: Any, **kwargs: Any) -> SampledUpdate[Any]:
        self.update = self._facts.plan_update(*args, **kwargs)
        return self.update
