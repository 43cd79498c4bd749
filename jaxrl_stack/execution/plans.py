"""Plan of a training step: what it samples, learns from and keeps, fixed when an algorithm is built."""

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
    """Samples that a training step takes at a time, and the layouts of their columns; `Facts.plan_samples` makes it.

    Attributes:
        num_steps: ``T``, steps of each environment in a share.
        layouts: How the columns of each module lie.
        num_shares: How many shares, from however many runners.
        at_least: Env steps, where runners only give whole episodes.
        has_all_final_obs: Whether FINAL_OBS has the observations after steps that terminated an episode, too.
        may_stay_remote: Whether columns may stay in Ray's object store, on their way to learners that are actors.
        has_agent_times: Whether parts have `Part.times`: for a replay on the host, of several agents.
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
    """An update from what was sampled, as `Place.update` takes it; `Facts.plan_update` makes it.

    Attributes:
        samples: How its experience is sampled, all shares together.
        sizes: On the host arguments of `Learner.update_block`, which plans for the blocks that it gets; on the device
            an `UpdatePlan`.
    """

    samples: SamplePlan
    sizes: Sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of a training step, with the random numbers and the memory that it takes; `TrainingStep.plan` returns it.

    Attributes:
        samples: What it samples, each kind of share once; () of a step that samples nothing.
        update: The update from what is sampled; None if updates are made from other rows.
        draws: Its random streams by name.
        num_env_steps: Env steps that one call samples; on the host at least.
        rows_per_update: Rows, over all devices, that an update is made from.
        num_updates: Updates of one call.
        batch_memory: Memory of the batch of one update; None: that of the samples of `update`, or of `rows_per_update`
            rows.
        kept_memory: Memory of what the step keeps, when it is full; None if that is nothing, or not known.
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
        """The plan whose numbers are attributes of a step, where its subclasses find and change them."""
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
    """Let a training step plan.

    A `TrainingStep.plan` that returns no plan sets attributes of the step: its plan has these, and what was asked of
    the facts.

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
                f"{type(step).__name__}.plan() returned a Plan without rows_per_update, the rows of one update. Return "
                f"Plan(rows_per_update=...)."
            )
        samples = noting.update.samples
        step.rows_per_update = samples.num_steps * samples.num_shares * int(facts.config.num_envs_per_env_runner)
    return Plan.of(step, noting.samples, noting.update)


class _NotingFacts:
    """Facts that note the plans which they make, for a step that does not return them.

    Attributes:
        samples: Plans of samples so far.
        update: The last plan of an update.
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
                f"The argument of TrainingStep.plan() has no attribute {name!r}, only {known}. Read other attributes "
                "of the driver when the step runs, for example in `results(driver)`.",
                name=name,
                obj=self._facts,
            ) from None

    def plan_samples(self, *args: Any, **kwargs: Any) -> SamplePlan:
        self.samples.append(self._facts.plan_samples(*args, **kwargs))
        return self.samples[-1]

    def plan_update(self, *args: Any, **kwargs: Any) -> SampledUpdate[Any]:
        self.update = self._facts.plan_update(*args, **kwargs)
        return self.update
