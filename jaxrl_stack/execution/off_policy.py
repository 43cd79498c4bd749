"""Training step of DQN, SAC and their relatives: samples into a replay buffer, then makes updates on drawn transitions
or sequences.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import ALL_MODULES, COMPONENT_ENV_RUNNER, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import full_sequence_length
from jaxrl_stack.core.learner.trained_modules import is_trained
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.execution.device_ring import RingsOfModules
from jaxrl_stack.execution.make_replays import drawn_memory, make_replays
from jaxrl_stack.execution.plans import Plan
from jaxrl_stack.execution.sources import num_learner_shares
from jaxrl_stack.execution.training_step import KeptPart, Place, TrainingStep, TrainState
from jaxrl_stack.replay.device_replay import NAMES_OF_SAMPLES
from jaxrl_stack.replay.draw_forms import Sequences, StartState, Transitions
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.memory import MemoryEstimate
from jaxrl_stack.utils.metrics import TD_ERROR_KEY
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.execution.sources import Drawn, Replay

logger = logging.getLogger(__name__)


class OffPolicyStep(TrainingStep):
    """Samples into a replay buffer in one or more rounds, then makes gradient steps, each on newly drawn transitions or
    sequences.

    Its kept data is ``{name: state of the replay}``.

    Attributes:
        replays: ``{name: replay}``. On the device, each module has a replay with its id as name; on the host, all
            modules share one.
        forms: ``{module_id: form of the drawn items}`` of the trained modules; of all if none is trained.
    """

    uses_replay = True
    _counted_per_env_step = 1
    _restores_environments = False
    config: OffPolicyConfig
    learning_starts: int
    replays: dict[str, Replay]
    forms: dict[str, Any]

    # ----------------------------------------------------------------------------------------------------------- sizes

    def plan(self, facts: Facts) -> Plan:
        config = self.config
        if on_host := facts.learner_group.host_connector_names:
            raise ValueError(
                f"The learner connectors {on_host} take episodes on the host, but {config.algo_class.__name__} learns "
                "from rows of a replay buffer. Write them as pure functions, apply(self, state, batch, ctx), which "
                "get the rows as one time step [1, N, ...]."
            )
        num_samples, self.num_updates = config.rounds_per_training_step
        # Settings may count steps of agents; host runners divide by themselves.
        self._counted_per_env_step = facts.counted_per_env_step
        length = -(-config.get_rollout_fragment_length() // self._counted_per_env_step)
        num_shares = max(1, config.num_sampling_actors)
        self._num_samples = num_samples
        # The replay takes whole observations: single frames save something where they travel.
        in_frames = facts.samples_travel
        self._samples = facts.plan_samples(length, num_shares=num_shares, for_replay=True, in_frames=in_frames)
        self.num_env_steps = num_samples * num_shares * length * int(config.num_envs_per_env_runner)
        self.learning_starts = self._learning_starts(config)
        self._make_replays(facts)
        logger.info("%s.", self.kept_memory)
        return Plan.of(self, [self._samples])

    def _learning_starts(self, config: OffPolicyConfig) -> int:
        """Returns the number of steps to sample before the first update.

        If the setting counts agent steps and training runs on the device, converts the number to env steps.
        """
        return -(-config.num_steps_sampled_before_learning_starts // self._counted_per_env_step)

    def _make_replays(self, facts: Facts) -> None:
        """Creates the modules' replay buffers, and sets this training step's attributes that describe the buffers and
        the drawn batches.

        The buffers are stored in `replays`. Other attributes are, for example, `rows_per_update` and `kept_memory`. The
        attribute `num_updates` must be set before.
        """
        config, modules = self.config, facts.acting_modules
        self._restores_environments = facts.restores_environments
        self._trained = [mid for mid in modules if is_trained(config.policies_to_train, mid)]
        self.forms = {mid: self._form_of(modules[mid]) for mid in self._trained or modules}
        for mid, what in self.forms.items():
            if declared := self._columns_of(facts, mid):
                self.forms[mid] = dataclasses.replace(what, declared=declared)
        num_shares, total = num_learner_shares(facts), int(config.total_train_batch_size)
        numbers = {mid: what.num_items(total, num_shares) for mid, what in self.forms.items()}
        # Each module has a train batch of its own in an update; the rows of the largest one count.
        self.rows_per_update = max(numbers[mid] * what.length for mid, what in self.forms.items())
        self.replays = make_replays(facts, config, self.forms, numbers, self.num_updates)
        self.draws = {name: own for replay in self.replays.values() for name, own in replay.draws.items()}
        kept = [replay.estimate for replay in self.replays.values() if replay.estimate is not None]
        self.kept_memory = MemoryEstimate.joined(kept) if kept else None
        self.batch_memory = drawn_memory(facts, self.forms, numbers)

    def _columns_of(self, facts: Facts, module_id: str) -> tuple[str, ...]:
        """Returns the names of the additional columns that the replay buffer stores for a module.

        Losses, modules and learner connectors declare these columns in `columns_from_acting`. Columns that drawn items
        have anyway are not included.
        """
        declared = facts.learner_group.declared_columns.get(module_id, ())
        return tuple(name for name in declared if name not in NAMES_OF_SAMPLES)

    def _form_of(self, module: RLModule) -> Any:
        """Returns the form of drawn items (transitions or sequences) for a module.

        Raises:
            ValueError: If sequences are not longer than their burn-in, or combined with recorded steps.
        """
        config = self.config
        writes = (TD_ERROR_KEY,) if config.uses_priorities else ()
        if not module.is_stateful():
            if config.burn_in_len or config.replay_zero_init_states:
                notice_once(
                    f"training(burn_in_len={config.burn_in_len}, replay_buffer_config={{'zero_init_states': "
                    f"{config.replay_zero_init_states}}}) have no effect without a recurrent module: "
                    f"rl_module(model_config={{'use_lstm': True}})."
                )
            return Transitions(config.n_step, config.clip_rewards, writes)
        length = full_sequence_length(module) or DefaultModelConfig().max_seq_len
        if length <= config.burn_in_len:
            raise ValueError(
                f"training(burn_in_len={config.burn_in_len}) must be below the sequence length, "
                f"rl_module(model_config={{'max_seq_len': {length}}}): otherwise no step remains for the loss. Lower "
                f"burn_in_len, or raise max_seq_len."
            )
        if config.recorded_share is not None:
            raise ValueError(
                f"training(recorded_share={config.recorded_share}) does not support recurrent modules. Leave it out: "
                f"the replay buffer then starts with the recorded steps."
            )
        start = StartState.of(
            module,
            is_stored=not config.replay_zero_init_states,
            remedy="Sequences that start from the initial state need no states in the buffer: "
            "replay_buffer_config={'zero_init_states': True}.",
        )
        return Sequences(
            config.n_step, config.clip_rewards, writes, length=length, burn_in=config.burn_in_len, start=start
        )

    # ------------------------------------------------------------------------------------------------------------ call

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        learned = None
        state, _ = place.repeat(functools.partial(self._sample, place), state, self._num_samples)
        # Only what was sampled tells whether learning starts after it.
        if place.has_sampled(self.learning_starts) and self._can_draw(state.kept):
            state, learned = place.repeat(functools.partial(self._update, place), state, self.num_updates)
        return place.publish(state), learned

    def _can_draw(self, kept: Mapping[str, Any]) -> bool:
        return any(replay.can_draw(kept[name]) for name, replay in self.replays.items())

    def _sample(self, place: Place, state: TrainState) -> tuple[TrainState, Any]:
        state, experience = place.sample(state, self._samples)
        kept = {
            name: place.timed(names.REPLAY_BUFFER_ADD_DATA_TIMER, replay.add, state.kept[name], experience)
            for name, replay in self.replays.items()
        }
        return dataclasses.replace(state, kept=kept), None

    def _update(self, place: Place, state: TrainState) -> tuple[TrainState, Any]:
        kept: dict[str, Any] = {}
        drawn: dict[str, Drawn] = {}
        for name, replay in self.replays.items():
            kept[name], state, own = place.timed(
                names.REPLAY_BUFFER_SAMPLE_TIMER, replay.draw, state.kept[name], state, place
            )
            drawn |= own
        rows = Experience.of_rows({mid: own.columns for mid, own in drawn.items()})
        state, learned, logged = place.update_rows(state, rows)
        return dataclasses.replace(state, kept=self._written_back(place, kept, drawn, logged)), learned

    def _written_back(
        self, place: Place, kept: dict[str, Any], drawn: Mapping[str, Drawn], logged: Mapping[Any, Any]
    ) -> dict[str, Any]:
        """Writes values that an update logged for the drawn items back to the replay buffers.

        For example, TD errors become the items' new priorities. Returns the new states of the replay buffers.
        """
        trained = [mid for mid in drawn if mid in self._trained]
        for name, replay in self.replays.items():
            if replay.writes and trained:
                values = {
                    mid: logged_per_item(logged, mid, replay.writes, self.config.learner_class) for mid in trained
                }
                timer, write_back = names.REPLAY_BUFFER_UPDATE_PRIOS_TIMER, replay.write_back
                kept = {**kept, name: place.timed(timer, write_back, kept[name], drawn, values)}
        return kept

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> dict[str, Any]:
        return {name: replay.init() for name, replay in self.replays.items()}

    def change_settings(self, config: Any) -> None:
        super().change_settings(config)
        for replay in self.replays.values():
            replay.change_settings(config)

    def reset(self, config: Any) -> None:
        super().reset(config)
        self.learning_starts = self._learning_starts(config)
        for replay in self.replays.values():
            replay.reset(config)

    def drop_kept(self, driver: Driver) -> str:
        held = min(driver.num_env_steps, max(replay.capacity for replay in self.replays.values()))
        self.kept.start(self.init_kept)
        return f"; and the replay buffer (up to {held} steps), which is empty and fills again"

    def not_finite_in_kept(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, replay in self.replays.items():
            found |= replay.not_finite(self.kept.value[name])
        return found

    @property
    def replay_buffer(self) -> Checkpointable:
        parts: dict[str, Any] = {name: own.component(self._part(name)) for name, own in self.replays.items()}
        if self.config.is_multi_agent and ALL_MODULES not in parts:
            return RingsOfModules(parts)
        (part,) = parts.values()
        return part

    def _part(self, name: str) -> KeptPart:
        """Returns a `KeptPart`, which reads and replaces the state of the replay buffer `name`.

        This state is one entry of the data that the training step stores between calls, the dict ``{name: state}`` of
        all replay buffers.
        """
        return KeptPart(self.kept, lambda kept: kept[name], lambda kept, own: {**kept, name: own})

    def set_kept_state(self, driver: Driver, state: dict[str, Any]) -> None:
        if COMPONENT_REPLAY_BUFFER in state:
            self.replay_buffer.set_state(state[COMPONENT_REPLAY_BUFFER])
        elif "driver" in state and self._restores_environments:
            notice_once(
                "The restored state has no replay buffer (store_buffer_in_checkpoints=False). It starts empty, and "
                "updates use only new samples."
            )
            self.drop_kept(driver)
            return
        goes_on = "rollout" in state.get(COMPONENT_ENV_RUNNER, {})
        if goes_on != (COMPONENT_REPLAY_BUFFER in state):
            self.kept.replace(self._cut, self.init_kept)

    def _cut(self) -> dict[str, Any]:
        return {name: replay.cut(self.kept.value[name]) for name, replay in self.replays.items()}

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        return driver.num_updates * driver.plan.rows_per_update

    def results(self, driver: Driver) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, replay in self.replays.items():
            for key, value in replay.results(self.kept.value[name], driver.num_env_steps).items():
                # Numbers of modules; others are the same of all.
                results[key] = {**results.get(key, {}), **value} if isinstance(value, dict) else value
        return {names.REPLAY_BUFFER_RESULTS: results}

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, replay in self.replays.items():
            state |= replay.get_state(self.kept.value[name])
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        kept = self.kept.value
        self.kept.value = {name: replay.set_state(kept[name], state) for name, replay in self.replays.items()}


def logged_per_item(
    logged: Mapping[tuple[str, ...], Any], module_id: str, wanted: tuple[str, ...], learner_class: type
) -> dict[str, Any]:
    """Returns the values that an update logged for each drawn item, such as TD errors for priorities.

    Args:
        logged: Metrics per item, ``{(module_id, name): [N, ...]}``.
        module_id: Module of the items.
        wanted: Names of the values that the replay needs.
        learner_class: Class of the learner.

    Returns:
        ``{name: [N, ...]}``.

    Raises:
        ValueError: If the loss did not log one of them.
    """
    for name in wanted:
        if (module_id, name) not in logged:
            instead = ""
            if name == TD_ERROR_KEY:
                instead = " Or draw uniformly: replay_buffer_config={'type': 'EpisodeReplayBuffer', ...}."
            raise ValueError(
                f"The replay buffer needs {name!r} of every drawn item, but {learner_class.__name__} does not log "
                f"{name!r}. Log it in the loss: self.metrics.log_value((module_id, {name!r}), ..., "
                f"reduce='item_series').{instead}"
            )
    return {name: logged[module_id, name] for name in wanted}
