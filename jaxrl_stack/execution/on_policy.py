"""Training step of PPO and its relatives: samples steps, then makes one update of several epochs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.plans import Plan
from jaxrl_stack.execution.training_step import Place, TrainingStep, TrainState

if TYPE_CHECKING:
    from jaxrl_stack.execution.facts import Facts


class OnPolicyStep(TrainingStep):
    """Samples a train batch with the current weights, then makes one update of several epochs on it."""

    def plan(self, facts: Facts) -> Plan:
        config = self.config
        num_shares, length = config.train_batch_blocks(facts.counted_per_env_step)
        num_columns = int(config.num_envs_per_env_runner) * num_shares
        self.num_env_steps = self.rows_per_update = num_columns * length
        # What is sampled is handed on as it lies: single frames, and in the object store.
        self._samples = facts.plan_samples(
            length, num_shares=num_shares, at_least=config.total_train_batch_size, in_frames=True, may_stay_remote=True
        )
        self._plan = facts.plan_update(
            self._samples,
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        return Plan.of(self, [self._samples], self._plan)

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        state, experience = place.sample(state, self._samples)
        state, learned = place.update(state, experience, self._plan)
        return place.publish(state), learned
