"""Sample into a replay memory, then update on what is drawn from it: DQN, SAC and their relatives."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import COMPONENT_ENV_RUNNER, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.learner.trained_modules import is_trained
from jaxrl_stack.execution.recorded_share import MixedMemory, RecordedHostRows
from jaxrl_stack.execution.recorded_start import RecordedStart
from jaxrl_stack.execution.replay_memories import DeviceMemory, HostMemory, Sequences, drawn_memory
from jaxrl_stack.execution.training_step import Place, TrainingStep, TrainState
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.metrics import TD_ERROR_KEY
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    import numpy as np

    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.local_driver import LocalDriver

logger = logging.getLogger(__name__)


class OffPolicyStep(TrainingStep):
    """Rounds of sampling into a replay memory, then gradient steps on what is drawn from it.

    Attributes:
        memory: The fixed part of the replay memory, which is what this step keeps.
    """

    replays = True
    config: OffPolicyConfig
    learning_starts: int
    memory: DeviceMemory | HostMemory | MixedMemory

    # ----------------------------------------------------------------------------------------------------------- sizes

    def plan(self, driver: LocalDriver) -> None:
        config = self.config
        if on_host := driver.learner_group.host_connector_names:
            raise ValueError(
                f"The learner pipeline's {on_host} run on the host, on episodes, and {config.algo_class.__name__} "
                f"learns from rows that are drawn from a replay buffer. Write them as pure functions, "
                f"apply(self, state, batch, ctx), which see the rows as one time step [1, N, ...]."
            )
        num_samples, self.num_updates = config.rounds_per_training_step
        length = config.get_rollout_fragment_length()
        num_shares = max(1, config.num_sampling_actors)
        self._num_samples = num_samples
        # The memory takes whole observations: single frames save something where they travel.
        travels = not driver.is_on_device and bool(config.num_sampling_actors)
        self._samples = driver.plan_samples(length, num_shares=num_shares, for_replay=True, in_frames=travels)
        self.num_env_steps = num_samples * num_shares * length * int(config.num_envs_per_env_runner)
        self.rows_per_update = int(config.total_train_batch_size)
        if (sequences := Sequences.of(driver, config)) is not None:
            self.rows_per_update = sequences.number(self.rows_per_update) * sequences.length
        self.learning_starts = config.num_steps_sampled_before_learning_starts
        self.memory = self._make_memory(driver, sequences)
        self.draws = self.memory.draws
        self.batch_memory = drawn_memory(driver, self.rows_per_update, sequences)
        self.kept_memory = self.memory.estimate
        logger.info("%s.", self.kept_memory)

    def _make_memory(self, driver: LocalDriver, sequences: Sequences | None) -> DeviceMemory | HostMemory | MixedMemory:
        config = self.config
        if config.recorded_share is not None:
            if sequences is not None:
                raise ValueError(
                    f"training(recorded_share={config.recorded_share}) is for modules without a recurrent state. Leave "
                    f"it out: the replay buffer begins with the recorded steps then."
                )
            return MixedMemory(driver, config, self.num_updates)
        memory_class = DeviceMemory if driver.is_on_device else HostMemory
        memory = memory_class(driver, config, self.num_updates, sequences)
        if config.reads_recorded_data:
            memory.recorded_start = RecordedStart(driver, config, sequences)
        return memory

    # ------------------------------------------------------------------------------------------------------------ call

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        learned = None
        state, _ = place.repeat(functools.partial(self._sample, place), state, self._num_samples)
        # Only what was sampled tells whether learning starts after it.
        if place.has_sampled(self.learning_starts) and self.memory.has_rows(state.kept):
            state, learned = place.repeat(functools.partial(self._update, place), state, self.num_updates)
        return place.publish(state), learned

    def _sample(self, place: Place, state: TrainState) -> tuple[TrainState, Any]:
        state, experience = place.sample(state, self._samples)
        kept = place.timed(names.REPLAY_BUFFER_ADD_DATA_TIMER, self.memory.add, state.kept, experience)
        return dataclasses.replace(state, kept=kept), None

    def _update(self, place: Place, state: TrainState) -> tuple[TrainState, Any]:
        state, rows, items = place.timed(names.REPLAY_BUFFER_SAMPLE_TIMER, self.memory.sample, state, place)
        state, learned, logged = place.update_rows(state, rows)
        return self._tell_memory(place, state, items, logged), learned

    def _tell_memory(self, place: Place, state: TrainState, items: Any, logged: Any) -> TrainState:
        """The state after the memory has taken what an update logged of the drawn items: here their priorities."""
        module_id = self.memory.module_id
        if not self.memory.uses_priorities or not is_trained(self.config.policies_to_train, module_id):
            return state
        errors = td_errors(logged, module_id, self.config.learner_class)
        tell = self.memory.update_priorities
        kept = place.timed(names.REPLAY_BUFFER_UPDATE_PRIOS_TIMER, tell, state.kept, items, errors)
        return dataclasses.replace(state, kept=kept)

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        return self.memory.init()

    def change_settings(self, config: Any) -> None:
        super().change_settings(config)
        self.memory.change_settings(config)

    def reset(self, config: Any) -> None:
        super().reset(config)
        self.learning_starts = config.num_steps_sampled_before_learning_starts
        self.memory.reset(config)

    def drop_kept(self, driver: Driver) -> str:
        held = min(driver.num_env_steps, self.memory.capacity)
        self.memory.empty()
        return f"; and the replay buffer (up to {held} steps), which is empty and fills again"

    def not_finite_in_kept(self) -> dict[str, np.ndarray] | None:
        return None if isinstance(self.memory, HostMemory) else self.memory.not_finite()

    @property
    def replay_buffer(self) -> Checkpointable:
        return self.memory.as_component

    def set_kept_state(self, driver: Driver, state: dict[str, Any]) -> None:
        if COMPONENT_REPLAY_BUFFER in state:
            self.replay_buffer.set_state(state[COMPONENT_REPLAY_BUFFER])
        elif "driver" in state and driver.is_on_device:
            notice_once(
                "The state that is restored holds no replay buffer (store_buffer_in_checkpoints=False): it is empty, "
                "and updates are made from what is sampled from here on."
            )
            self.drop_kept(driver)
            return
        goes_on = "rollout" in state.get(COMPONENT_ENV_RUNNER, {})
        if goes_on != (COMPONENT_REPLAY_BUFFER in state):
            self.memory.cut()

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: Driver) -> int:
        return driver.num_updates * self.rows_per_update

    def results(self, driver: Driver) -> dict[str, Any]:
        return {names.REPLAY_BUFFER_RESULTS: self.memory.results(driver)}

    def get_state(self) -> dict[str, Any]:
        metrics = self.memory.metrics
        state = {} if metrics is None else {"replay_metrics": metrics.get_state()}
        if (recorded := self._recorded_rows()) is not None:
            state["recorded_replay"] = recorded.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        if self.memory.metrics is not None:
            self.memory.metrics.set_state(state["replay_metrics"])
        recorded = self._recorded_rows()
        # A run may have begun without a share of recorded steps.
        if recorded is not None and "recorded_replay" in state:
            recorded.set_state(state["recorded_replay"])

    def _recorded_rows(self) -> RecordedHostRows | None:
        """Recorded steps that are drawn with a generator of their own."""
        rows = self.memory.recorded if isinstance(self.memory, MixedMemory) else None
        return rows if isinstance(rows, RecordedHostRows) else None


def td_errors(rows: Mapping[tuple[str, ...], Any], module_id: str, learner_class: type) -> Any:
    """What an update says about the drawn rows, for a prioritised memory.

    Args:
        rows: Metrics per row, ``{(module_id, name): [N]}``.
        module_id: Whose rows they are.
        learner_class: Made the update.

    Returns:
        float32 ``[N]``.

    Raises:
        ValueError: If the loss logs none.
    """
    key = (module_id, TD_ERROR_KEY)
    if key not in rows:
        raise ValueError(
            f"A prioritised replay buffer needs a priority for every row, and the loss of {learner_class.__name__} "
            f"logs none. Log one: self.metrics.log_value((module_id, {TD_ERROR_KEY!r}), td_error, "
            f"reduce='item_series'). Or use replay_buffer_config={{'type': 'EpisodeReplayBuffer', ...}}."
        )
    return rows[key]
