"""Compiled programs (updates, connectors, evaluation) that a Learner calls with data in host memory, and recovery from
failed calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.minibatches import Batch
from jaxrl_stack.core.learner.row_blocks import PaddedRows, lay_out_rows, padded_size
from jaxrl_stack.core.learner.traced_metrics import MetricKey
from jaxrl_stack.core.learner.trained_modules import check_any_is_trained
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.learner.update_program import UpdateProgram, as_arrays, fetched, signature
from jaxrl_stack.core.rl_module.row_independence import rows_are_independent
from jaxrl_stack.ops import permutation
from jaxrl_stack.utils.devices import gathered, map_over_devices, own_shards
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.named_leaves import is_key
from jaxrl_stack.utils.snapshots import Snapshots, is_lost, reraise
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.block import Block
    from jaxrl_stack.core.learner.items import Form
    from jaxrl_stack.core.learner.learner import Learner


class UpdatePrograms:
    """Compiled programs (updates, connectors, evaluation) that a Learner calls with data in host memory.

    A program is compiled at the first call with data of its shapes, and stored. After a change of the learner
    pipeline's connectors, programs are compiled again. Programs that update donate the learner's state, and snapshots
    replace a lost state: see `guard`.

    Args:
        learner: The learner.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._compiled: dict[Hashable, Any] = {}
        self._snapshots = Snapshots(learner.config.learner_snapshot_interval)

    # ---------------------------------------------------------------------------------------------------------- updates

    def of_blocks(self, plan: UpdatePlan, blocks: Mapping[ModuleID, Block]) -> UpdateProgram:
        """Returns the program for updates from sampled blocks with the shapes of `blocks`; columns are ``[D, T, B / D,
        ...]`` for D devices.
        """
        return self._of_shapes("blocks", plan, lambda own: own.columns, blocks)

    def of_batch(self, batch: PaddedRows) -> UpdateProgram:
        """Returns the program for updates from padded batches with the shapes of `batch`."""
        return self._of_shapes("items", batch.plan, lambda own: own.batch_of_devices, batch.items, *batch.row_counts)

    def of_rows(self) -> UpdateProgram:
        """Returns the program for updates with one gradient step on all rows of a batch; it accepts batches of all
        shapes.
        """
        key = ("rows", self._learner.num_connector_changes)
        if key not in self._compiled:
            learner = self._learner
            self._compiled[key] = self.compiled(
                functools.partial(learner.pure_update.step, axis_name=learner.reduction_axis)
            )
        return self._compiled[key]

    def _of_shapes(
        self, name: str, plan: UpdatePlan, shown: Callable[[Any], dict[str, Any]], *mapped: Any
    ) -> UpdateProgram:
        """Returns the program of an update for arguments of the given shapes; creates it at the first request for these
        shapes.

        Args:
            name: Kind of the batch.
            plan: Sizes of the update.
            shown: Function from a module's part of the batch to the columns that hooks receive.
            mapped: The batch, and the further arguments.
        """
        key = (name, plan, self._learner.num_connector_changes, *signature(mapped))
        if key not in self._compiled:
            self.sizes_of_all_learners({}, {mid: shown(own) for mid, own in mapped[0].items()})
            update, axis_name = self._learner.pure_update, self._learner.reduction_axis
            function = functools.partial(update, plan=plan, axis_name=axis_name)
            self._compiled[key] = self.compiled(function, num_mapped=len(mapped) - 1)
        return self._compiled[key]

    def compiled(self, function: Callable[..., Any], **sizes: int) -> UpdateProgram:
        """Returns a new program that runs `function`, an update, on this learner's devices; see `UpdateProgram`."""
        learner = self._learner
        keys = [ref for ref, leaf in learner.pure.rest.items() if is_key(leaf)]
        return UpdateProgram(function, learner.devices, learner.axis_name, key_refs=keys, **sizes)

    # ------------------------------------------------------------------------------------------ programs that only read

    def connect(self, blocks: Mapping[ModuleID, Block], counter: np.ndarray) -> tuple[Any, dict[ModuleID, Block]]:
        """Passes padded blocks, built from episodes, through the compiled connectors of the learner pipeline. Does not
        call the pipeline's connectors that run on the host.

        Args:
            blocks: Blocks with columns ``[D, T, B / D, ...]``.
            counter: uint32[2], lifetime env steps.

        Returns:
            ``(state of the pipeline, blocks of all modules)``; the blocks have the same form and are on the host.
        """
        learner = self._learner
        key = ("connect", learner.num_connector_changes, *signature(blocks))
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                self._connected,
                learner.devices,
                axis_name=learner.axis_name,
                in_axes=(None, 0, None, None),
                out_axes=(None, 0),
                donate_argnums=(),
            )
        # Connectors do not read optimizer states.
        state = dataclasses.replace(learner.state, optimizers={})
        blocks = as_arrays(blocks, learner.axis_name is None)
        connector, blocks = self._compiled[key](state, blocks, learner.placed_settings(), counter)
        return connector, own_shards(blocks)  # Waits, and raises if the program has failed.

    def _connected(self, state, blocks, settings, counter):
        update, axis_name = self._learner.pure_update, self._learner.reduction_axis
        state, blocks = update.connected(
            state, update.with_clipped_rewards(blocks), settings, counter, axis_name=axis_name
        )
        return state.connector, blocks

    def evaluate(self, rows: Batch, counter: np.ndarray, seed: int) -> dict[MetricKey, Any]:
        """Computes the losses and metrics of a batch of rows ``[N, ...]`` without an update, and copies the results to
        the host; see `Update.evaluate`.
        """
        learner = self._learner
        key = ("evaluation", learner.num_connector_changes)
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                functools.partial(learner.pure_update.evaluate, axis_name=learner.reduction_axis),
                learner.devices,
                axis_name=learner.axis_name,
                in_axes=(None, 0, None, None, None),
                out_axes=(None,),
                donate_argnums=(),
            )
        dealt = jax.tree.map(lambda x: x.reshape(len(learner.devices), -1, *x.shape[1:]), rows)
        (metrics,) = self._compiled[key](learner.state, dealt, learner.placed_settings(), counter, np.uint32(seed))
        return fetched(metrics)

    # ----------------------------------------------------------------------------------------------------------- shapes

    def padded(
        self, rows: Batch, forms: Mapping[ModuleID, Form], per_shard: Mapping[ModuleID, int], plan: UpdatePlan
    ) -> PaddedRows:
        """Pads a batch to one of a few sizes, and splits it over devices and groups of rows that are shuffled
        separately.

        Update programs are compiled for these sizes. The groups are called shuffle shards.

        Args:
            rows: ``{module_id: {column: [N, ...]}}``.
            forms: Forms of the rows, by module.
            per_shard: Number of rows of each shard, by module.
            plan: Sizes of the update.

        Raises:
            ValueError: If none of the modules is trained; see `sizes_of_all_learners`.
        """
        learner = self._learner
        of_all_learners = self.sizes_of_all_learners(per_shard, rows)
        in_minibatches = plan.minibatch_size is not None
        # Padding is never in a minibatch of one shard. In a step on the whole batch, the loss masks it. A module whose
        # outputs depend on several rows cannot do that, so that every number of rows needs a separate program.
        is_padded = in_minibatches or all(rows_are_independent(learner.template[mid]) for mid in rows)
        shows_padding = is_padded and not in_minibatches
        is_masked = shows_padding or plan.num_shards > 1 or learner.has_pre_update
        items = {}
        for mid, columns in rows.items():
            largest = int(of_all_learners[mid].max())
            items[mid] = lay_out_rows(
                columns,
                forms[mid],
                num_devices=plan.local_devices,
                num_shards=plan.local_shards,
                size=padded_size(largest) if is_padded else largest,
                mask=is_masked,
            )
        if not in_minibatches:
            return PaddedRows(items, (), plan)
        # All learners make the number of steps for evenly split rows.
        trained = {mid: n for mid, n in of_all_learners.items() if learner.should_module_be_updated(mid, rows)}
        check_any_is_trained(learner.policies_to_train, trained, rows)
        steps = max(plan.num_steps(-(-int(n.sum()) // len(n)), forms[mid].rows_per_item) for mid, n in trained.items())
        # Learners may have different numbers of rows: one entry per device.
        domains = {mid: np.array(permutation.domain(n), np.uint32) for mid, n in per_shard.items()}
        own = RowCounts(domains, np.array(steps, np.uint32))
        row_counts = jax.tree.map(lambda x: np.repeat(x[None], plan.local_devices, axis=0), own)
        # The number of gradient steps is an argument of the program, which serves all numbers.
        plan = dataclasses.replace(plan, num_total_minibatches=int(plan.num_total_minibatches > 0))
        return PaddedRows(items, (row_counts,), plan)

    def largest_of_all_learners(self, sizes: dict[str, int]) -> dict[str, int]:
        """Returns the maximum of each size, such as a number of rows, over all learner actors that update jointly,
        ``{name: int}``.

        These joined learners run one program together, and therefore need batches of equal shapes.
        """
        return {name: int(everyone.max()) for name, everyone in self.sizes_of_all_learners(sizes).items()}

    def sizes_of_all_learners(self, sizes: Mapping[str, int], batch: Any = None) -> dict[str, np.ndarray]:
        """Exchanges sizes, such as numbers of rows, between joined learners (learner actors that update jointly).

        Returns ``{name: sizes of all learners}``, integer arrays. All learners must call this method with the same
        names.

        Args:
            sizes: Sizes of this learner, by name.
            batch: A batch; if given, the learners must also agree on the modules that they update from it.

        Raises:
            ValueError: In all learners, if they do not agree: they would run different programs, and wait for each
                other forever.
        """
        learner = self._learner
        if learner.num_joined_learners == 1:
            return {name: np.array([n]) for name, n in sizes.items()}
        module_ids = [] if batch is None else list(learner.template)
        is_updated = [int(learner.should_module_be_updated(mid, batch)) for mid in module_ids]
        everyone = gathered(np.array([*sizes.values(), *is_updated], np.int32)).T
        for mid, of_all in zip(module_ids, everyone[len(sizes) :], strict=True):
            if of_all.min() != of_all.max():
                raise ValueError(
                    f"should_module_be_updated({mid!r}) is True in {int(of_all.sum())} of {len(of_all)} learners, but "
                    "must be equal in all of them. Let multi_agent(policies_to_train=...), or your override of "
                    "should_module_be_updated(), decide only by the module id, not by data such as batches."
                )
        return dict(zip(sizes, everyone[: len(sizes)], strict=True))

    # --------------------------------------------------------------------------------------------------------- recovery

    @contextlib.contextmanager
    def guard(self, num_updates: int, go_on_from: Callable[[LearnerState], None]) -> Iterator[None]:
        """Context manager around the call of an update program, which recovers the learner's state if the program
        fails.

        If the program fails while it runs, and the learner's donated state is lost, the learner continues from its last
        snapshot (copy of the state).

        A first Ctrl-C is deferred until the call and the recovery are finished. Lost updates stay counted, so that
        ``weights_seq_no`` never decreases. Learners in Ray actors have no snapshots here: their group restarts them.

        Args:
            num_updates: Number of updates so far.
            go_on_from: Function that sets the learner's state.

        Raises:
            RuntimeError: Instead of the program's error, if the state was lost.
        """
        learner = self._learner
        with deferred_interrupt():
            try:
                # Eager runs donate nothing, and actors restart from the snapshot of their group.
                if learner.axis_name is not None and not learner.config.num_learners:
                    self._snapshots.before_call(learner.state)
                yield
                self._snapshots.after_call(learner.state)
            except BaseException as error:
                if self._snapshots.state is None or not is_lost(learner.state):
                    raise
                lost = self._snapshots.num_calls
                (state,) = self._snapshots.state
                go_on_from(dataclasses.replace(state, num_updates=np.uint32(num_updates)))
                reraise(
                    error,
                    f"An update failed while it ran, and the learner's state was lost. The learner continues from its "
                    f"last snapshot; lost: this update and {lost} before it "
                    f"(learner_snapshot_interval={learner.config.learner_snapshot_interval}).",
                )

    def follow(self, old: LearnerState, new: LearnerState) -> None:
        """Registers that `new` has replaced the learner's state `old` between two updates.

        The next update may then keep the last snapshot (copy of the state for recovery from failed updates). After a
        replacement that is not registered, the next update takes a new snapshot.
        """
        self._snapshots.renamed(old, new)

    def forget(self) -> None:
        """Frees all compiled programs of this learner, and the snapshots of its state."""
        self._compiled.clear()
        self._snapshots.forget()
