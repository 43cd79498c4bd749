"""Minibatches of recorded steps for evaluating a loss, read and prepared as in training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.offline.normalization import DataNormalization
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner


@dataclasses.dataclass
class LearnerAlone:
    """Learner, config, spaces and module map for an offline training step that only builds minibatches for evaluating a
    loss.

    `TrainingStep.plan` gets this object in place of a `Facts` object, which describes the spaces, learners, modules and
    runners of an Algorithm. This object has only the attributes that offline steps read.

    Attributes:
        config: Config of the rows.
        learner: Learner whose module prepares them.
        spaces: ``{module_id: (observation space, action space)}``.
        module_map: Map with the module of the rows.
    """

    config: AlgorithmConfig
    learner: Learner
    spaces: dict[str, Any]
    module_map: ModuleMap

    @property
    def acting_modules(self) -> dict[str, Any]:
        """RLModules of the learner, ``{module_id: module}``."""
        return {mid: self.learner.module[mid] for mid in self.learner.module_ids}


class EvaluationRows:
    """Source of minibatches of recorded steps for evaluating a loss (a `RowSource`). Each of several evaluation runners
    gets different steps of each batch.

    Passes over the data are shuffled as in training, with a seed of their own. Every runner draws the batches of all,
    and takes its part, so that rows do not depend on who is late.

    Args:
        config: Config of evaluation, whose data is read.
        learner: Learner that gets these rows.
        spaces: ``{module_id: (observation space, action space)}``.
        module_map: Map with the module that acts.
        shard, num_shards: Index of the part of the batches that is taken, and number of parts.
        normalization: That of training; None for statistics of this data, where the config asks for some.

    Raises:
        ValueError: If the algorithm's training step learns from no recorded rows, or batches cannot be dealt out.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        learner: Learner,
        spaces: dict[str, Any],
        module_map: ModuleMap,
        *,
        shard: int = 0,
        num_shards: int = 1,
        normalization: DataNormalization | None = None,
    ):
        step_class: Any = config.algo_class.training_step_class.for_config(config)
        if not step_class.draws_rows:
            raise ValueError(
                f"evaluation(offline_evaluation_type='eval_loss'): {config.algo_class.__name__} has no loss on "
                "recorded steps. To estimate returns instead, set offline_evaluation_type='is' or 'pdis'."
            )
        size, num_devices = int(config.offline_eval_batch_size_per_runner), learner.num_devices
        if size % num_devices:
            raise ValueError(
                f"evaluation(offline_eval_batch_size_per_runner={size}) is not divisible by the {num_devices} devices "
                f"of the learner. Set a multiple of {num_devices}."
            )
        own: Any = config.copy(copy_frozen=False)
        own.keep_resident, own.num_learners = False, 0
        own.train_batch_size_per_learner = size * num_shards
        own.seed = derived_seed("offline evaluation", config.root_seed)
        own.freeze()
        self._step: Any = step_class(own)
        self._step.plan(LearnerAlone(own, learner, spaces, module_map))
        if normalization is not None:
            self._step.data.normalization = normalization
        self._shard, self._num_shards = shard, num_shards

    def draw(self) -> Experience:
        """Returns the next minibatch of recorded steps. If several evaluation runners share the data, returns only this
        runner's part of the minibatch.
        """
        rows = self._step.draw_rows()
        return rows if self._num_shards == 1 else rows.split(self._num_shards)[self._shard]

    def prepare_anew(self) -> None:
        """Deletes the columns that were computed from the recorded steps, such as value targets. The next `draw`
        computes them again with the learner's current module.
        """
        self._step.prepare_anew()

    def stop(self) -> None:
        """Stops the threads that read recorded data."""
        self._step.stop()
