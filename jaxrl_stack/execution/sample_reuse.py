"""Training step of IMPALA and APPO if sampling and learning alternate: samples steps, then makes several updates on
them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.asynchronous import AsynchronousStep
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.training_step import Place, TrainingStep, TrainState

if TYPE_CHECKING:
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.execution.plans import Plan


class SampleReuseStep(OnPolicyStep):
    """Samples a train batch with the current weights, then makes ``config.updates_per_train_batch`` updates on this
    batch.

    It equals a circular buffer that allows this number of draws per batch, and whose batches are all drawn before the
    next one arrives. Therefore nothing is kept between calls.
    """

    @classmethod
    def for_config(cls, config: Any) -> type[TrainingStep]:
        """Returns the class of the training step: this class, or `AsynchronousStep` if EnvRunners are actors."""
        return AsynchronousStep if config.num_sampling_actors else cls

    def plan(self, facts: Facts) -> Plan:
        self.num_updates = self.config.updates_per_train_batch
        return super().plan(facts)

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        state, experience = place.sample(state, self._samples)
        update = functools.partial(place.update, experience=experience, plan=self._plan)
        state, learned = place.repeat(update, state, self.num_updates)
        return place.publish(state), learned

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        return driver.num_updates * driver.plan.rows_per_update
