"""RLlibCallback: base class of user hooks."""

from __future__ import annotations

import difflib
import gc
import inspect
import tracemalloc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.compat.renamed import absent_or_renamed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

OLD_HOOKS = {
    "on_sub_environment_created": "on_environment_created",
    "on_create_policy": "setup() of an RLModule",
    "on_learn_on_batch": "before_gradient_based_update() or compute_loss_for_module() of a Learner",
    "on_postprocess_trajectory": "a learner connector: config.learners(learner_connector=...)",
    "on_workers_recreated": "on_env_runners_recreated",
}
"""Hooks of RLlib's old API stack, which nothing calls -> what to use instead."""


class RLlibCallback:
    """Base class of callbacks: override hooks, and pass the class with ``config.callbacks(MyCallback)``, or a list of
    classes.

    All arguments are passed by keyword. An override names the arguments that it uses, and takes the others as
    ``**kwargs``. Values that it logs into `metrics_logger` appear in the next result. The algorithm and every EnvRunner
    actor create separate instances, without arguments.

    Raises:
        TypeError: When a subclass defines a hook of RLlib's old API stack; the message names the replacement.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hooks = [name for name in dir(RLlibCallback) if name.startswith("on_")]
        for name in dir(cls):
            if name in OLD_HOOKS:
                raise TypeError(
                    f"{cls.__name__}.{name}() would never be called: it belongs to RLlib's old API stack. "
                    f"Use {OLD_HOOKS[name]} instead."
                )
            if name.startswith("on_") and name not in hooks and name in vars(cls):
                similar = difflib.get_close_matches(name, hooks, n=1, cutoff=0.7)
                if similar:
                    warnings.warn(
                        f"{cls.__name__}.{name}() is no callback hook, so nothing calls it. Did you mean "
                        f"{similar[0]}()?",
                        stacklevel=2,
                    )

    def on_algorithm_init(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger | None = None, **kwargs: Any
    ) -> None:
        """Called at the end of the algorithm's construction.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            **kwargs: Arguments that later versions add.
        """

    def on_train_result(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger | None = None, result: dict, **kwargs: Any
    ) -> None:
        """Called at the end of every iteration; may edit the result.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            result: The dict that ``train()`` is about to return; may be edited in place.
            **kwargs: Arguments that later versions add.
        """

    def on_evaluate_start(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger | None = None, **kwargs: Any
    ) -> None:
        """Called before an evaluation in environments; before an evaluation on recorded data,
        `on_evaluate_offline_start` is called instead.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            **kwargs: Arguments that later versions add.
        """

    def on_evaluate_end(
        self,
        *,
        algorithm: Algorithm,
        metrics_logger: MetricsLogger | None = None,
        evaluation_metrics: dict,
        **kwargs: Any,
    ) -> None:
        """Called after an evaluation in environments; may edit the result.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            evaluation_metrics: The dict that ``evaluate()`` is about to return; may be edited in place.
            **kwargs: Arguments that later versions add.
        """

    def on_evaluate_offline_start(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger | None = None, **kwargs: Any
    ) -> None:
        """Called before an evaluation on recorded data.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            **kwargs: Arguments that later versions add.
        """

    def on_evaluate_offline_end(
        self,
        *,
        algorithm: Algorithm,
        metrics_logger: MetricsLogger | None = None,
        evaluation_metrics: dict,
        **kwargs: Any,
    ) -> None:
        """Called after an evaluation on recorded data; may edit the result.

        Args:
            algorithm: The algorithm.
            metrics_logger: The algorithm's logger.
            evaluation_metrics: The dict that ``evaluate_offline()`` is about to return; may be edited in place.
            **kwargs: Arguments that later versions add.
        """

    def on_env_runners_recreated(
        self,
        *,
        algorithm: Algorithm,
        env_runner_group: Any,
        env_runner_indices: list[int],
        is_evaluation: bool,
        **kwargs: Any,
    ) -> None:
        """Called after lost EnvRunner actors were replaced.

        Args:
            algorithm: The algorithm.
            env_runner_group: The group of these actors.
            env_runner_indices: Their indices in the group.
            is_evaluation: True for the group of evaluation.
            **kwargs: Arguments that later versions add.
        """

    def on_offline_eval_runners_recreated(
        self,
        *,
        algorithm: Algorithm,
        offline_eval_runner_group: Any,
        offline_eval_runner_indices: list[int],
        **kwargs: Any,
    ) -> None:
        """Called after lost actors of the offline evaluation were replaced.

        Args:
            algorithm: The algorithm.
            offline_eval_runner_group: The group of these actors.
            offline_eval_runner_indices: Their indices in the group.
            **kwargs: Arguments that later versions add.
        """

    def on_checkpoint_loaded(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Called after ``restore()`` has loaded a checkpoint.

        Args:
            algorithm: The algorithm, in its restored state.
            **kwargs: Arguments that later versions add.
        """

    def on_environment_created(
        self, *, env_runner: Any, metrics_logger: MetricsLogger | None = None, env: Any, env_context: Any, **kwargs: Any
    ) -> None:
        """Called after an EnvRunner has created its environments.

        Args:
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            env: The vector environment, or the JAX environment.
            env_context: The `EnvContext` that the environment was made with.
            **kwargs: Arguments that later versions add.
        """

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: Any = None,
        metrics_logger: MetricsLogger | None = None,
        env: Any = None,
        rl_module: Any = None,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called after a new, empty episode was made, before its environment is reset.

        Args:
            episode: The new episode.
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            env: The vector environment, or the JAX environment.
            rl_module: The module that chooses actions.
            env_index: Index of the episode's environment in the runner.
            **kwargs: Arguments that later versions add.
        """

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: Any = None,
        metrics_logger: MetricsLogger | None = None,
        env: Any = None,
        env_index: int,
        rl_module: Any = None,
        **kwargs: Any,
    ) -> None:
        """Called after the reset of the environment, when the episode contains its first observation.

        Args:
            episode: The episode.
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            env: The vector environment, or the JAX environment.
            env_index: Index of the episode's environment in the runner.
            rl_module: The module that chooses actions.
            **kwargs: Arguments that later versions add.
        """

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: Any = None,
        metrics_logger: MetricsLogger | None = None,
        env: Any = None,
        env_index: int,
        rl_module: Any = None,
        **kwargs: Any,
    ) -> None:
        """Called after every step of an episode.

        Args:
            episode: The episode so far.
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            env: The vector environment, or the JAX environment.
            env_index: Index of the episode's environment in the runner.
            rl_module: The module that chooses actions.
            **kwargs: Arguments that later versions add.
        """

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: list[Any] | None = None,
        env_runner: Any = None,
        metrics_logger: MetricsLogger | None = None,
        env: Any = None,
        env_index: int,
        rl_module: Any = None,
        **kwargs: Any,
    ) -> None:
        """Called after the last step of an episode.

        Args:
            episode: The episode, or its last chunk.
            prev_episode_chunks: The chunks before, if the episode was cut.
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            env: The vector environment, or the JAX environment.
            env_index: Index of the episode's environment in the runner.
            rl_module: The module that chooses actions.
            **kwargs: Arguments that later versions add.
        """

    def on_sample_end(
        self, *, env_runner: Any = None, metrics_logger: MetricsLogger | None = None, samples: list[Any], **kwargs: Any
    ) -> None:
        """Called at the end of an EnvRunner's ``sample()``.

        Args:
            env_runner: The EnvRunner.
            metrics_logger: The EnvRunner's logger.
            samples: The episodes that ``sample()`` returns.
            **kwargs: Arguments that later versions add.
        """


HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(p.name for p in inspect.signature(hook).parameters.values() if p.kind is p.KEYWORD_ONLY)
    for name, hook in vars(RLlibCallback).items()
    if name.startswith("on_")
}
"""Every hook and the keyword arguments that it is called with."""


class MemoryTrackingCallbacks(RLlibCallback):
    """Logs the memory of the process at the end of every episode, to find memory leaks; it is slow.

    ``env_runners/tracemalloc`` of a result has the ten lines of code whose objects use most Python memory, as
    ``<file>:<line>/size`` in KiB and ``<file>:<line>/count``, and the whole process as ``worker/rss``, ``worker/vms``
    and ``worker/data`` in bytes, where the system has ``/proc/self/status``.
    """

    def __init__(self):
        tracemalloc.start()

    def on_episode_end(self, *, metrics_logger: MetricsLogger | None = None, **kwargs: Any) -> None:
        if metrics_logger is None:
            return
        gc.collect()
        held: dict[tuple[str, str], float] = {}
        for line in tracemalloc.take_snapshot().statistics("lineno")[:10]:
            held |= {(str(line.traceback), "size"): line.size / 1024, (str(line.traceback), "count"): line.count}
        status = Path("/proc/self/status")
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.is_file() else {}
        for name, field in (("rss", "VmRSS"), ("vms", "VmSize"), ("data", "VmData")):
            if field in fields:
                held["worker", name] = int(fields[field].split()[0]) * 1024
        for key, value in held.items():
            metrics_logger.log_value(("tracemalloc", *key), value, window=1)


__getattr__ = absent_or_renamed(__name__, renamed={"DefaultCallbacks": RLlibCallback})
