"""Evaluation runner that computes losses on recorded data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl_stack.core import ALL_MODULES, COMPONENT_LEARNER, COMPONENT_RL_MODULE
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.offline.evaluation_rows import EvaluationRows
from jaxrl_stack.offline.row_losses import IteratedRows, RowSource, row_losses
from jaxrl_stack.utils.actor_manager import FaultAwareApply
from jaxrl_stack.utils.actor_setup import is_actor_process, set_up_actor
from jaxrl_stack.utils.metrics import (
    DATASET_NUM_ITERS_EVALUATED,
    DATASET_NUM_ITERS_EVALUATED_LIFETIME,
    MODULE_SAMPLE_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
    OFFLINE_SAMPLING_TIMER,
    WEIGHTS_SEQ_NO,
)
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec
    from jaxrl_stack.offline.normalization import DataNormalization

TOTAL_EVAL_LOSS_KEY = "total_eval_loss"
PARTS_OF_LEARNERS = ("rl_module", "extra", "connector", "counters")
"""What a loss reads of a Learner's state."""


class OfflineEvaluationRunner(FaultAwareApply):
    """Computes the Learner's loss on recorded steps, with the Learner's current state and without updates.

    The loss is that of ``config.learner_class``, the user's own included, or
    ``evaluation(offline_loss_for_module_fn=...)``, a function ``f(self, *, module_id, config, batch, fwd_out)`` that
    takes the place of `Learner.compute_loss_for_module`. Rows are read and prepared as training does it, so that there
    are value targets for MARWIL.

    Args:
        config: The algorithm's config; settings of its ``evaluation_config`` apply, `input_` among them.
        module_spec: Spec of the modules; None for the config's.
        spaces: ``{module_id: (observation space, action space)}``; None for the config's.
        learner: The Learner to evaluate, if it is in this process; None creates a Learner, which `set_state` updates.
        normalization: Normalisation of recorded steps in training; None for none, or for statistics of the evaluation's
            data.
        worker_index: Index of an actor, from 1; 0 in the main process.
        num_workers: Actors that share the data.
        **kwargs: Not used; RLlib passes more.

    Attributes:
        config: Config of evaluation.
        metrics: Logger of the runner.
        worker_index: The constructor argument.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        module_spec: MultiRLModuleSpec | None = None,
        *,
        spaces: dict[str, Any] | None = None,
        learner: Learner | None = None,
        normalization: DataNormalization | None = None,
        worker_index: int = 0,
        num_workers: int = 0,
        **kwargs: Any,
    ):
        if is_actor_process():
            set_up_actor(
                num_cpus=config.num_cpus_per_offline_eval_runner, num_gpus=config.num_gpus_per_offline_eval_runner
            )
        self.config: Any = config.get_evaluation_config_object() or config
        self.worker_index = worker_index
        self._num_workers = max(1, num_workers)
        self._normalization = normalization
        self.metrics = MetricsLogger(stats_cls_lookup=config.stats_cls_lookup)
        self._rows: EvaluationRows | None = None
        self._iterator: Iterator[Any] | None = None
        self._weights_seq_no = self._num_runs = self._num_env_steps = 0
        self._spaces = spaces
        self._make_module(config, module_spec, learner)

    def _make_module(
        self, config: AlgorithmConfig, module_spec: MultiRLModuleSpec | None, learner: Learner | None
    ) -> None:
        loss = config.offline_loss_for_module_fn
        self._shares = learner is not None
        if learner is None or loss is not None:
            own: Any = config.copy(copy_frozen=False)
            own.num_learners = 0
            if is_actor_process():
                own.num_gpus_per_learner, own.num_cpus_per_learner = config.num_gpus_per_offline_eval_runner, 1
            learner_class: type[Learner] = config.learner_class
            if loss is not None:
                learner_class = cast(Any, type(learner_class.__name__, (learner_class,), {_LOSS: loss}))
            self._follows = learner
            learner = learner_class(config=own, module_spec=module_spec or self._spec(own))
            learner.build()
        else:
            self._follows = None
        self.learner: Learner = learner

    def _spec(self, config: Any, inference_only: bool = False) -> MultiRLModuleSpec:
        spaces = self._spaces
        if spaces is None:
            spaces = {"__env_single__": (config.observation_space, config.action_space)}
        return config.get_multi_rl_module_spec(spaces=spaces, inference_only=inference_only)

    # ------------------------------------------------------------------------------------------------------- members

    @property
    def module(self) -> MultiRLModule:
        """MultiRLModule with the current weights."""
        return self.learner.module

    def get_loss_for_module_fn(self) -> Any:
        """Returns the loss function of a module, ``f(*, module_id, config, batch, fwd_out)``."""
        return self.learner.compute_loss_for_module

    _loss_for_module_fn = property(get_loss_for_module_fn)

    @property
    def _dataset_iterator(self) -> Iterator[Any] | None:
        """Iterator set with `set_dataset_iterator`; None if the runner reads the config's data."""
        return self._iterator

    def set_dataset_iterator(self, iterator: Iterator[Any]) -> None:
        """Sets an iterator that yields the batches to evaluate.

        Args:
            iterator: Iterator of ``{module_id: {column: [N, ...]}}``, such as `OfflineData.sample` returns.
        """
        self._iterator = iterator

    def _spaces_of_modules(self) -> dict[str, Any]:
        module = self.module
        own = {mid: (module[mid].observation_space, module[mid].action_space) for mid in module}
        return own | (self._spaces or {})

    def _module_map(self) -> ModuleMap:
        return self.config.module_map

    # ------------------------------------------------------------------------------------------------------------ runs

    def run(self, explore: bool = False, train: bool = True, **kwargs: Any) -> dict[str, Any]:
        """Evaluates the next ``dataset_num_iters_per_offline_eval_runner`` batches of the data.

        Args:
            explore, train: False and True: a loss is computed of what `forward_train` returns.
            **kwargs: Not used.

        Returns:
            Metrics in the form of `MetricsLogger.reduce`: of each module its loss, and what the loss logs.

        Raises:
            ValueError: If the data does not fit; or for another `explore` or `train`.
        """
        if explore or not train:
            raise ValueError(
                f"run(explore={explore}, train={train}): losses are computed with forward_train() only. Leave "
                "explore and train out."
            )
        started = time.perf_counter()
        self._follow()
        if self._rows is not None:
            self._rows.prepare_anew()
        self.metrics.log_value(WEIGHTS_SEQ_NO, self._weights_seq_no, window=1)
        number = int(self.config.dataset_num_iters_per_eval_runner)
        for _ in range(number):
            self._evaluate_batch()
        self.metrics.log_value((ALL_MODULES, DATASET_NUM_ITERS_EVALUATED), number, reduce="sum")
        self.metrics.log_value((ALL_MODULES, DATASET_NUM_ITERS_EVALUATED_LIFETIME), number, reduce="lifetime_sum")
        self.metrics.log_value(OFFLINE_SAMPLING_TIMER, time.perf_counter() - started, reduce="mean")
        return self.metrics.reduce()

    def _evaluate_batch(self) -> None:
        seed = derived_seed("offline evaluation", self.config.root_seed, self.worker_index, self._num_runs)
        losses = row_losses(self._source(), self.learner.evaluate_rows, seed=seed, timesteps=self._num_env_steps)
        self._num_runs += 1
        for module_id, values in losses.values.items():
            if module_id in losses.num_steps:
                self._log_steps(module_id, losses.num_steps[module_id])
            for name, value in values.items():
                self.metrics.log_value((module_id, name), value, reduce="mean")
        self._log_env_steps(losses.num_env_steps)

    def _log_steps(self, module_id: str, number: int) -> None:
        self.metrics.log_value((module_id, WEIGHTS_SEQ_NO), self._weights_seq_no, window=1)
        self.metrics.log_value((module_id, MODULE_SAMPLE_BATCH_SIZE_MEAN), number, reduce="mean")
        for mid in (module_id, ALL_MODULES):
            self.metrics.log_value((mid, NUM_MODULE_STEPS_SAMPLED), number, reduce="sum")
            self.metrics.log_value((mid, NUM_MODULE_STEPS_SAMPLED_LIFETIME), number, reduce="lifetime_sum")

    def _log_env_steps(self, number: int) -> None:
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_SAMPLED), number, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_SAMPLED_LIFETIME), number, reduce="lifetime_sum")

    def _source(self) -> RowSource:
        """Returns the batches to evaluate: from the user's iterator, or from the config's data, opened at the first
        call.
        """
        if self._iterator is not None:
            return IteratedRows(self._iterator, self.learner.num_devices)
        if self._rows is None:
            self._rows = EvaluationRows(
                self.config,
                self.learner,
                self._spaces_of_modules(),
                self._module_map(),
                shard=max(0, self.worker_index - 1),
                num_shards=self._num_workers,
                normalization=self._normalization,
            )
        return self._rows

    # ----------------------------------------------------------------------------------------------------------- state

    @property
    def shares_a_learner(self) -> bool:
        """Whether the runner reads the weights of a Learner in this process, so that no state must be sent."""
        return self._shares

    def _follow(self) -> None:
        """Copies the Learner's state to the separate Learner that computes the evaluation loss, if both are in this
        process.
        """
        if self._follows is not None:
            self.learner.set_state(self._follows.get_state(PARTS_OF_LEARNERS))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments for checkpoints: the config."""
        return (), {"config": self.config}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the modules' states and the weights' version: ``{"rl_module": {module_id: state}, "weights_seq_no":
        int}``.
        """
        return {COMPONENT_RL_MODULE: self.module.get_state(), WEIGHTS_SEQ_NO: self._weights_seq_no}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the parts of a state that are present: ``learner`` (from `Learner.get_state`), ``rl_module``,
        ``weights_seq_no``, ``num_env_steps``.

        Raises:
            ValueError: The state does not fit the modules.
        """
        if COMPONENT_LEARNER in state and self._follows is None:
            self.learner.set_state(state[COMPONENT_LEARNER])
        elif COMPONENT_RL_MODULE in state:
            self.learner.set_state({COMPONENT_RL_MODULE: state[COMPONENT_RL_MODULE]})
        self._note_versions(state)

    def _note_versions(self, state: Mapping[str, Any]) -> None:
        self._weights_seq_no = int(state.get(WEIGHTS_SEQ_NO, self._weights_seq_no))
        self._num_env_steps = int(state.get("num_env_steps", self._num_env_steps))

    def get_metrics(self) -> dict[str, Any]:
        """Returns the metrics that were logged since the end of the last call of `run` or `get_metrics`.

        The metrics of the batches that `run` evaluates are not among them: `run` returns these metrics.
        """
        return self.metrics.reduce()

    def assert_healthy(self) -> None:
        """Raises an AssertionError if the runner was not built."""
        assert self.module is not None

    def stop(self) -> None:
        """Stops the threads that read recorded data."""
        if self._rows is not None:
            self._rows.stop()


_LOSS = "compute_loss_for_module"
