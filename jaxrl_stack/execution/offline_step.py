"""Training on recorded steps: epochs of minibatches of a data set, stored on the devices or streamed through host
memory in chunks.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import full_sequence_length
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.plans import Plan
from jaxrl_stack.execution.resident_data import Resident, ResidentData, filled, order_keys
from jaxrl_stack.execution.sources import num_learner_shares
from jaxrl_stack.execution.streamed_data import WINDOWS_IN_BUDGET, OwnSamples, StreamedData, StreamedInput
from jaxrl_stack.execution.training_step import Place, TrainingStep, TrainState
from jaxrl_stack.offline.offline_data import OfflineData, is_squashed
from jaxrl_stack.utils import counters, devices, schedules
from jaxrl_stack.utils.memory import available_host_bytes, available_memory, format_bytes

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.datasets.steps import Steps
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.execution.sources import Source

logger = logging.getLogger(__name__)

RESIDENT, STREAMED = "resident", "streamed"
"""The paths that data takes to updates, in logs and checkpoints."""
DEFAULT_WINDOW = 2**28
"""Bytes of streamed data in memory if the free memory is unknown."""


class OfflineStep(TrainingStep):
    """Trains on minibatches of recorded steps. Each pass visits every step once, in an order that the seed determines.

    Algorithms subclass it and name the columns that their loss reads. `prepare` computes columns from whole episodes,
    such as value targets.

    Attributes:
        columns: Columns that the loss reads; ``Columns.NEXT_OBS`` may be one of them.
        prepared_from: Recorded columns that `prepare` reads; () if the algorithm prepares none.
        data: The training data.
        source: Source of minibatches: on the devices, or streamed if the step `reads_on_host`.
    """

    needs_env = False
    trains_populations = True
    draws_rows = True
    source: Source
    _on_host: StreamedData | OwnSamples | None = None  # the source, where it reads on the host
    _learner: Learner | None  # of this process
    columns: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.ACTIONS)
    prepared_from: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: AlgorithmConfig, *, one_per_call: bool = False):
        super().__init__(config, one_per_call=one_per_call)
        self.data: OfflineData = (config.offline_data_class or OfflineData)(config)
        self._budget = data_budget(config)
        self.reads_on_host = not self._keeps_resident()

    @property
    def samples_itself(self) -> bool:
        """Whether minibatches come from a user's `OfflineData.sample`."""
        return type(self.data).sample is not OfflineData.sample

    def _keeps_resident(self) -> bool:
        """Whether the devices store the whole data set; if False, the host streams the data.

        Always False if a user's ``OfflineData.sample`` returns the minibatches. Otherwise, the setting
        ``keep_resident`` decides. If this setting is None, returns True if the data fits into memory (see
        `data_budget`) and no `prelearner_class` converts the rows again in every pass.
        """
        if self.samples_itself:
            return False
        asked, budget = self.config.keep_resident, self._budget
        if asked is None and self.config.prelearner_class is not None and not self.config.materialize_mapped_data:
            logger.info("The data is %s, because materialize_mapped_data=False maps it again in every pass.", STREAMED)
            return False
        if asked is not None:
            logger.info("The data is %s, by keep_resident=%s.", "kept on the devices" if asked else STREAMED, asked)
            return asked
        names = [Columns.OBS if name == Columns.NEXT_OBS else name for name in (*self.columns, *self.prepared_from)]
        num_bytes = self.data.num_bytes(tuple(dict.fromkeys(names)))
        fits = budget is None or (num_bytes is not None and num_bytes <= budget)
        size = "of unknown size" if num_bytes is None else f"of {format_bytes(num_bytes)}"
        limit = "" if budget is None else f": max_resident_bytes is {budget} ({format_bytes(budget)})"
        logger.info("The data, %s, is %s%s.", size, RESIDENT if fits else STREAMED, limit)
        return fits

    # ----------------------------------------------------------------------------------------- what algorithms say

    @property
    def burn_in(self) -> int:
        """Number of steps at the start of a sequence that only warm up the recurrent state and have no loss."""
        return int(getattr(self.config, "burnin_len", 0) or 0)

    def prepare(
        self, module: RLModule, columns: dict[str, Any], is_final: jax.Array, values: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """Computes additional columns of minibatches, such as value targets, at the start of each pass over the data.

        It is a pure function, which is traced into the program. The next observation of a step in row i is in row i +
        1. Every piece of an episode ends with a final row, of which only the observation is valid. Call a network on
        some thousands of rows at a time, as there may be many: ``jax.lax.map(function, columns, batch_size=8192)``.

        Args:
            module: The trained module with its present parameters.
            columns: ``{column: pytree [R, ...]}``, the columns of `prepared_from` for all rows in order.
            is_final: bool ``[R]``, True for final rows; the last piece may be followed by more of them.
            values: ``{traced setting: present value}`` of the module.

        Returns:
            ``{column: [R, ...]}``; values in final rows are ignored.
        """
        return {}

    # ----------------------------------------------------------------------------------------------------------- sizes

    def plan(self, facts: Facts) -> Plan:
        self._learner = facts.learner
        self._module_id = facts.module_map.module_id
        self.data.spaces = facts.spaces
        self.data.is_squashed = is_squashed(facts.acting_modules.get(self._module_id))
        self._plan_items(facts.acting_modules[self._module_id])
        self.data.select(self._recorded_columns)
        number, spaces = self._items_per_update(num_learner_shares(facts)), facts.spaces[self._module_id]
        if self.samples_itself:
            self.data.normalize(spaces)
            self.source = self._on_host = OwnSamples(self.data, self._module_id, number)
            self._plan_updates(number, number)
        elif self.reads_on_host:
            self._plan_streamed(spaces, number)
        else:
            self._plan_resident(spaces, number)
        return Plan.of(self)

    def _plan_resident(self, spaces: tuple[Any, Any], number: int) -> None:
        learner = self._learner
        assert learner is not None
        read = functools.partial(self.data.steps, self._recorded_columns, spaces)
        inputs, weights = read()
        num_bytes, copies = sum(own.num_bytes for own in inputs), learner.num_devices
        # CPU devices share the memory of the host.
        together = num_bytes * (copies if learner.device.platform == "cpu" else 1)
        is_divided = copies > 1 and self._budget is not None and together > self._budget
        self.source = source = ResidentData(
            inputs,
            weights,
            self.items,
            number,
            learner.devices,
            copies,
            is_divided=is_divided,
            seed=self.config.root_seed,
            read=lambda: read()[0],
            prepare=self._prepared_now if self.prepared_from else None,
            shapes_of_prepared=self._shapes_of_prepared,
        )
        self._plan_updates(number, source.num_items)
        self.kept_memory = source.estimate
        remedy = "Stream it: offline_data(keep_resident=False)."
        require_device_memory(learner.devices, self.kept_memory, remedy)
        logger.info("%s%s.", self.kept_memory, ", a part on each device" if is_divided else "")

    def _plan_streamed(self, spaces: tuple[Any, Any], number: int) -> None:
        if self.prepared_from and self._learner is None:
            raise ValueError(
                f"{type(self).__name__} computes columns of streamed data with the trained module, but "
                f"learners(num_learners={self.config.num_learners}) puts this module into learner actors. Set "
                f"offline_data(keep_resident=True), or learners(num_learners=0)."
            )
        seed = self.config.root_seed
        self.data.normalize(spaces)
        read = functools.partial(self.data.read, columns=self._recorded_columns, spaces=spaces)
        of_inputs = self.data.pieces_of_inputs()
        window = max(1, (self._budget or DEFAULT_WINDOW) // (WINDOWS_IN_BUDGET * len(of_inputs)))
        # What is mapped anew in every pass is not kept.
        keeps = self.config.prelearner_class is None or bool(self.config.materialize_mapped_data)
        inputs = [
            StreamedInput(own, read, self.items, window, seed, i, keeps_pieces=keeps) for i, own in enumerate(of_inputs)
        ]
        self._prepare_window = self._compiled_prepare()
        self.source = self._on_host = StreamedData(inputs, self.data.weights, seed, number, self._prepared_for)
        self._plan_updates(number, self.data.num_steps or number)

    def _plan_items(self, module: RLModule) -> None:
        length, state = None, None
        if module.is_stateful():
            length = full_sequence_length(module) or DefaultModelConfig().max_seq_len
            if length <= self.burn_in:
                raise ValueError(
                    f"training(burnin_len={self.burn_in}) must be below the sequence length, "
                    f"rl_module(model_config={{'max_seq_len': {length}}}): otherwise no step remains for the loss. "
                    "Lower burnin_len, or raise max_seq_len."
                )
            if not self.config.prelearner_use_recorded_module_states:
                state = jax.device_get(module.get_initial_state())
        self.items = ItemForm(self.columns, length, self.burn_in if length else 0, state)
        self._recorded_columns = tuple(dict.fromkeys((*self.items.read, *self.prepared_from)))

    def _items_per_update(self, num_shares: int) -> int:
        """Number of items (single steps or sequences) in an update's batch, a multiple of the number of devices."""
        wanted, each = int(self.config.total_train_batch_size), num_shares * self.items.rows_per_item
        if self.items.length is None and wanted % num_shares:
            raise ValueError(
                f"training(train_batch_size_per_learner) gives a train batch of {wanted} rows (all learners together), "
                f"but this number must be a multiple of the learner's {num_shares} devices. Set "
                f"train_batch_size_per_learner so that the batch has {-(-wanted // num_shares) * num_shares} rows, or "
                "use fewer devices."
            )
        return num_shares * -(-wanted // each)

    def _plan_updates(self, number: int, num_items: int) -> None:
        """Sets the numbers of updates, rows per update and env steps of a training step.

        These are the attributes `num_updates`, `rows_per_update` and `num_env_steps`. An update takes `number` items
        (single steps or sequences). The number of updates is the setting ``dataset_num_iters_per_learner``; by default,
        the updates of a training step make one pass over the data, which has `num_items` items.
        """
        self.num_updates = int(self.config.dataset_num_iters_per_learner or -(-num_items // number))
        self.rows_per_update = number * self.items.steps_per_item
        self.num_env_steps = self.num_updates * self.rows_per_update

    def _shapes_of_prepared(self, data: dict[str, Any]) -> dict[str, Any]:
        if not self.prepared_from:
            return {}
        learner = self._learner
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
        update = functools.partial(self._update, place)
        if not self.reads_on_host or self.config.dataset_num_iters_per_learner is not None:
            state, learned = place.repeat(update, state, self.num_updates)
        else:
            # How many steps a pass has is known at its end.
            passes = self._streamed.passes
            state, learned = update(state)
            while self._streamed.passes == passes:
                state, learned = update(state)
        return place.publish(state), learned

    def _update(self, place: Place, state: TrainState) -> tuple[TrainState, Any]:
        kept, state, drawn = self.source.draw(state.kept, state, place)
        state = place.count_env_steps(dataclasses.replace(state, kept=kept), self.rows_per_update)
        state, learned, _ = place.update_rows(state, Experience.of_rows({self._module_id: drawn.columns}))
        return state, learned

    def prepare_anew(self) -> None:
        """Drops the columns that `prepare` computed, such as value targets, so that the next `draw_rows` computes them
        with the current module.
        """
        if self.prepared_from and self._on_host is not None:
            self._on_host.prepare_anew()

    @property
    def _streamed(self) -> StreamedData | OwnSamples:
        if self._on_host is None:
            raise ValueError("draw_rows() needs the data on the host. Set offline_data(keep_resident=False).")
        return self._on_host

    def draw_rows(self) -> Experience:
        """Draws a minibatch of recorded steps for computations without an update, such as losses of an evaluation.

        `prepare` computes additional columns, such as value targets, with the learner's module: once for each chunk of
        data in memory, and again after `prepare_anew`. If a user's `OfflineData.sample` returns the minibatch, this
        minibatch must already contain the additional columns.

        Raises:
            ValueError: If the data is on the devices.
        """
        *_, drawn = self._streamed.draw(None, TrainState(), None)
        return Experience.of_rows({self._module_id: drawn.columns})

    def _prepared_now(self, kept: Resident, state: TrainState, place: Any) -> dict[str, Any]:
        module = place.learner.pure.bind(state.learner.params, state.learner.rest)[self._module_id]
        columns = {name: kept.columns[name] for name in self.prepared_from}
        return self.prepare(module, columns, kept.is_final, place.values(state)[self._module_id])

    def _prepared_for(self, steps: Steps, state: TrainState, place: Place | None) -> dict[str, np.ndarray]:
        """Computes the additional columns of `prepare`, such as value targets, for one window (chunk in memory) of
        streamed data.
        """
        learner = self._learner
        if self._prepare_window is None or learner is None:
            return {}
        # Lengths of windows differ: a few lengths are a few programs.
        length = _rounded_up(steps.num_rows)
        columns = {name: jax.tree.map(lambda x: filled(x, length), steps.columns[name]) for name in self.prepared_from}
        timesteps = counters.from_int(0 if place is None else place.num_env_steps(state))
        params, rest = devices.host_view((learner.state.params, learner.state.rest))
        found = self._prepare_window(
            params, rest, learner.settings(), timesteps, columns, filled(steps.is_final, length, True)
        )
        return {name: np.array(x[: steps.num_rows]) for name, x in jax.device_get(found).items()}

    def _compiled_prepare(self) -> Any:
        learner = self._learner
        if not self.prepared_from or learner is None:
            return None

        def prepared(params: Any, rest: Any, settings: Any, timesteps: Any, columns: Any, is_final: Any) -> Any:
            values = learner.current_values(settings, timesteps)["modules"][self._module_id]
            return self.prepare(learner.pure.bind(params, rest)[self._module_id], columns, is_final, values)

        return jax.jit(prepared)

    def env_to_module_state(self) -> dict[str, Any]:
        normalization = self.data.normalization
        return {} if normalization is None else normalization.env_to_module_state()

    def stop(self) -> None:
        if self._on_host is not None:
            self._on_host.stop()

    # ------------------------------------------------------------------------------------------------ what it keeps

    def init_kept(self) -> Any:
        return self.source.init()

    def kept_of_seed(self, seed: int) -> dict[str, Any]:
        return {} if self.reads_on_host else {"keys": order_keys(seed)}

    def reset(self, config: AlgorithmConfig) -> None:
        super().reset(config)
        self.source.reset(config)

    def drop_kept(self, driver: Driver) -> str:
        self.kept.start(self.init_kept)
        return "; and the position in the data: a new pass begins"

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        return driver.num_updates * driver.plan.rows_per_update

    def get_state(self) -> dict[str, Any]:
        return {"offline_data": {"path": self._path, **self.source.get_state(self.kept.value)}}

    @property
    def _path(self) -> str:
        return STREAMED if self.reads_on_host else RESIDENT

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the read position in the data set from a state that `get_state` returned.

        Raises:
            ValueError: If the data was kept in another way (resident or streamed) and `keep_resident` does not ask for
                a change, or the state does not fit the data.
        """
        own, here = state["offline_data"], self._path
        if own["path"] != here:
            if self.config.keep_resident is None:
                raise ValueError(
                    f"The data is {here} now, but was {own['path']} in the saved run, so the order of steps differs "
                    "(resident: kept on the devices; streamed: read from files). Set "
                    f"offline_data(keep_resident={own['path'] == RESIDENT}) to continue the saved pass over the data, "
                    f"or keep_resident={own['path'] != RESIDENT} to start a new pass."
                )
            logger.warning("Training continues with a new pass: the data is %s now, and was %s.", here, own["path"])
            return
        self.kept.value = self.source.set_state(self.kept.value, own)


def data_budget(config: AlgorithmConfig) -> int | None:
    """Maximum number of bytes of recorded data in memory.

    The maximum is the setting `max_resident_bytes`. If the setting is None, the maximum is a quarter of the smallest
    free memory among the host and this process's learner devices. None if no free memory is known.
    """
    if config.max_resident_bytes is not None:
        return int(config.max_resident_bytes)
    free = [available_host_bytes()]
    if not config.num_learners:
        free += [available_memory(device) for device in config.learner_class.devices_of(config)]
    known = [size for size in free if size is not None]
    return min(known) // 4 if known else None


def _rounded_up(number: int) -> int:
    """Rounds a number of rows up, so that few programs are compiled.

    The result is a multiple of 1,024. From 8,192 rows on, the result is a multiple of a larger power of two. At most
    four different results lie between successive powers of two.
    """
    unit = max(1024, 2 ** (number.bit_length() - 3))
    return -(-number // unit) * unit
