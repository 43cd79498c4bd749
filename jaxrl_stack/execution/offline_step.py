"""Learn from recorded steps: minibatches of passes over a data set, on the devices or out of a window on the host."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import full_sequence_length
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.datasets.items import Items
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.resident_data import ResidentData
from jaxrl_stack.execution.training_step import Place, TrainingStep, TrainState
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.utils import counters, schedules

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.driver import Driver, LocalDriver

logger = logging.getLogger(__name__)


class OfflineStep(TrainingStep):
    """Minibatches of recorded steps, each step once per pass, in an order that follows from the seed.

    An algorithm derives from it and says which columns its loss reads. What it makes of whole episodes, such as value
    targets, is the business of `prepare`.

    Attributes:
        columns: What the loss reads of a step; ``Columns.NEXT_OBS`` may be one of them.
        prepared_from: The recorded columns that `prepare` reads; () of an algorithm that prepares nothing.
    """

    needs_env = False
    columns: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.ACTIONS)
    prepared_from: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: AlgorithmConfig, *, one_per_call: bool = False):
        super().__init__(config, one_per_call=one_per_call)
        self.data = (config.offline_data_class or OfflineData)(config)

    # ----------------------------------------------------------------------------------------- what algorithms say

    @property
    def burn_in(self) -> int:
        """Steps of a sequence that a module with a recurrent state runs over before those that it learns from."""
        return int(getattr(self.config, "burnin_len", 0) or 0)

    def prepare(
        self, module: RLModule, columns: dict[str, Any], is_final: jax.Array, values: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """What every step has in minibatches besides its columns, such as value targets: made at the start of a pass.

        A pure function, which is traced into the program. The next observation of a step in row i is that in row
        i + 1, and every piece of an episode ends with a final row, whose observation is all that there is of it. All
        rows together may be many: call a network on some thousands of them at a time,
        ``jax.lax.map(function, columns, batch_size=8192)``.

        Args:
            module: The module that is trained, with its parameters of now.
            columns: ``{column: pytree [R, ...]}``, those of `prepared_from`, of all rows in their order.
            is_final: bool ``[R]``, which of them are final rows; behind the last piece there may be more of these.
            values: ``{traced setting: its value now}`` of the module.

        Returns:
            ``{column: [R, ...]}``; final rows do not matter.
        """
        return {}

    # ----------------------------------------------------------------------------------------------------------- sizes

    def plan(self, driver: LocalDriver) -> None:
        config = self.config
        self._driver = driver
        self._module_id = driver.module_map.module_id
        self._plan_items(driver)
        inputs, weights = self.data.steps(self._recorded_columns, driver.spaces[self._module_id])
        learner = driver.learner
        assert learner is not None
        number, num_devices = self._items_per_update(learner.num_devices), learner.num_devices
        self.resident = ResidentData(
            inputs, weights, self.items, number, learner.devices, num_devices, is_divided=False, seed=config.root_seed
        )
        self._plan_updates(number, self.resident.num_items)
        self._prepared = self._shapes_of_prepared(self.resident.shapes())
        self.kept_memory = self.resident.memory_estimate(self._prepared)
        require_device_memory(learner.devices, self.kept_memory, "Set offline_data(keep_resident=False) to stream it.")
        logger.info("%s.", self.kept_memory)

    def _plan_items(self, driver: LocalDriver) -> None:
        module = driver.acting_modules[self._module_id]
        length, state = None, None
        if module.is_stateful():
            length = full_sequence_length(module) or DefaultModelConfig().max_seq_len
            if length <= self.burn_in:
                raise ValueError(
                    f"burnin_len={self.burn_in} leaves nothing to learn from of sequences of "
                    f"rl_module(model_config={{'max_seq_len': {length}}}) steps. Lower it, or raise max_seq_len."
                )
            if not self.config.prelearner_use_recorded_module_states:
                state = jax.device_get(module.get_initial_state())
        self.items = Items(self.columns, length, self.burn_in if length else 0, state)
        self._recorded_columns = tuple(dict.fromkeys((*self.items.read, *self.prepared_from)))

    def _items_per_update(self, num_shares: int) -> int:
        """Items of an update, as many for each of the devices."""
        wanted, each = int(self.config.total_train_batch_size), num_shares * self.items.rows_per_item
        if self.items.length is None and wanted % num_shares:
            raise ValueError(
                f"training(train_batch_size_per_learner) makes batches of {wanted} rows, which must divide by the "
                f"{num_shares} devices of the learner. Use {-(-wanted // num_shares) * num_shares}, or fewer devices."
            )
        return num_shares * -(-wanted // each)

    def _plan_updates(self, number: int, num_items: int) -> None:
        """Sizes, of updates of so many items of so many."""
        self.num_updates = int(self.config.dataset_num_iters_per_learner or -(-num_items // number))
        self.rows_per_update = number * self.items.steps_per_item
        self.num_env_steps = self.num_updates * self.rows_per_update

    def _shapes_of_prepared(self, data: dict[str, Any]) -> dict[str, Any]:
        if not self.prepared_from:
            return {}
        learner = self._driver.learner
        assert learner is not None

        def prepared(params: Any, rest: Any, settings: Any, data: dict[str, Any]) -> dict[str, Any]:
            values = learner.current_values(settings, counters.zero())["modules"][self._module_id]
            module = learner.pure.bind(params, rest)[self._module_id]
            columns = {name: data["columns"][name] for name in self.prepared_from}
            return self.prepare(module, columns, data["is_final"], values)

        settings = schedules.shapes_at(learner.settings())
        return jax.eval_shape(prepared, learner.state.params, learner.state.rest, settings, data)

    # ------------------------------------------------------------------------------------------------------------ call

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        state, learned = place.repeat(functools.partial(self._update, place), state, self.num_updates)
        return place.publish(state), learned

    def _update(self, place: Any, state: TrainState) -> tuple[TrainState, Any]:
        kept = state.kept
        if self.prepared_from:
            kept = self.resident.with_prepared(kept, functools.partial(self._prepared_now, place, state))
        kept, rows = self.resident.draw(kept, place.axis_name)
        timesteps = counters.add(state.timesteps, self.rows_per_update)
        state = dataclasses.replace(state, kept=kept, timesteps=timesteps)
        state, learned, _ = place.update_rows(state, Experience.of_rows({self._module_id: rows}))
        return state, learned

    def _prepared_now(self, place: Any, state: TrainState) -> dict[str, Any]:
        module = place.learner.pure.bind(state.learner.params, state.learner.rest)[self._module_id]
        columns = {name: state.kept.columns[name] for name in self.prepared_from}
        return self.prepare(module, columns, state.kept.is_final, place.values(state)[self._module_id])

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        return self.resident.load(self._prepared)

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: Driver) -> int:
        return driver.num_updates * self.rows_per_update

    def get_state(self) -> dict[str, Any]:
        return {"offline_data": self.resident.get_state(self.kept.value)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.kept.value = self.resident.with_state(self.kept.value, state["offline_data"])
