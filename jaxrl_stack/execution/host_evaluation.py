"""Evaluation in a gymnasium environment: EnvRunners in this process or in Ray actors receive the weights and sample."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxrl_stack import core
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.env.env_errors import NoHealthyEnvRunnerError
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, ask_one, sample_for_evaluation
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.env.sampling_metrics import COMPILED_PIPELINES
from jaxrl_stack.execution.evaluation import (
    Amounts,
    Evaluation,
    Share,
    evaluation_results,
    health_of_runners,
    numbers_of_episodes,
)
from jaxrl_stack.execution.host_place import send_weights
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.videos.episodes import RecordedEpisode

logger = logging.getLogger(__name__)


class HostEvaluation(Evaluation):
    """Evaluates in a gymnasium environment, in this process or in actors. Actors can evaluate during training.

    `start` creates its runners if the config has evaluations; otherwise the first use creates them.

    Args:
        driver, config: See `Evaluation`.
    """

    runs_concurrently = True

    def __init__(self, driver: Driver, config: AlgorithmConfig):
        super().__init__(driver, config)
        self._group: EnvRunnerGroup | None = None
        self._num_skipped = self._weights_seq_no = 0

    @property
    def group(self) -> EnvRunnerGroup:
        """Group of all EnvRunners that evaluate, created at the first access.

        Raises:
            ValueError: If spaces differ from training's, or the networks do not fit the weights.
        """
        if self._group is None:
            self.module_spec()
            group = self._make_group()
            try:
                self.check_spaces(group.get_spaces())
            except BaseException:
                group.stop()
                raise
            self._group = group
        return self._group

    def _make_group(self) -> EnvRunnerGroup:
        driver, config, num_actors = self._driver, self.config, self.config.num_sampling_actors
        if num_actors:
            driver.reserve_actors()
        return EnvRunnerGroup(
            config=config,
            local_env_runner=not num_actors,
            placement_group=driver.placement.runners,
            pg_offset=resources.bundle_index(driver.config, "eval_env_runner"),
            is_evaluation=True,
            on_env_runners_recreated=driver.on_env_runners_recreated,
        )

    @property
    def runner(self) -> HostEnvRunner | None:
        return cast("HostEnvRunner | None", self.group.local_env_runner)

    def start(self) -> None:
        if self._driver.config.evaluation_interval or self.config.num_sampling_actors:
            _ = self.group

    def start_iteration(self) -> None:
        if self._group is not None and self._group.num_remote_env_runners():
            self._group.probe_unhealthy_env_runners(timeout_seconds=0.0)

    # ------------------------------------------------------------------------------------------------------ evaluating

    def sync(self) -> None:
        self.send_to(self.group)

    def send_to(self, group: EnvRunnerGroup) -> None:
        """Sends the weights, the number of env steps and the states of training's env-to-module connectors to a group
        of EnvRunners.

        If training has no connector states, the group's connectors do not change.
        """
        driver = self._driver
        self._weights_seq_no = driver.num_updates
        send_weights(group, driver.learner_group, driver.num_env_steps, driver.env_to_module_state())

    def evaluate(self, iteration: int, call: int = 0, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        group, driver = self.group, self._driver
        started = time.perf_counter()
        if is_training is None:
            self.sync()
        config = group.config
        seed = evaluation_seed(config, iteration, call)
        force_reset, timeout = config.evaluation_force_reset_envs_before_iteration, config.evaluation_sample_timeout_s

        def sample(amounts: Amounts, is_first: bool) -> Sequence[Share]:
            own = seed if is_first and force_reset else None
            ids, shares = zip(*amounts, strict=True)
            return group.sample(sample_for_evaluation, shares, ids=ids, seed=own, timeout_seconds=timeout)

        try:
            results = evaluation_results(
                config, group.sampling_ids(), sample, is_training, module_map=driver.module_map
            )
            self._num_skipped = 0
        except NoHealthyEnvRunnerError as error:
            self._note_skipped(iteration, error)
            results = numbers_of_episodes(EndedEpisodes.of(()), 0, driver.module_map)
        sampling: dict[str, Any] = {}
        merge_nested(sampling, COMPILED_PIPELINES)
        merge_nested(sampling, results)
        sampling |= {"sample": time.perf_counter() - started, "weights_seq_no": self._weights_seq_no}
        return {"env_runners": sampling, **health_of_runners(group)}

    def _note_skipped(self, iteration: int, reason: NoHealthyEnvRunnerError) -> None:
        self._num_skipped += 1
        skipped, most = self._num_skipped, self._driver.config.evaluation_error_after_n_consecutive_skips
        if most is not None and skipped > most:
            raise RuntimeError(
                f"{skipped} evaluations in a row found no healthy EnvRunner actor (limit: "
                f"evaluation_error_after_n_consecutive_skips={most}). Correct the cause of the actors' failures, or "
                "wait longer for the actors: evaluation(evaluation_unhealthy_workers_timeout_s=...)."
            ) from reason
        logger.warning("Evaluation after iteration %d skipped (%d in a row): %s", iteration, skipped, reason)

    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        seed = evaluation_seed(self.config, iteration, call)
        return record_on_host(self.config, self.send_to, seed=seed, num_episodes=num_episodes)

    def _local_runner(self, what: str) -> HostEnvRunner:
        runner = self.runner
        if runner is None:
            raise ValueError(
                f"The method {what} needs an EnvRunner in this process, but training samples no environment, and "
                "evaluation has only EnvRunner actors. Set evaluation(evaluation_num_env_runners=0)."
            )
        return runner

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        runner = self._local_runner("compute_single_action()")
        self.sync()
        return runner.act(observation, **kwargs)

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        return self._local_runner("get_policy()").acting_parts_for(module_id)

    # ----------------------------------------------------------------------------------------------------------- state

    def described_runner(self) -> Any:
        return ask_one(self.group, "describe_component") if self._group is not None or self.is_stored else None

    def get_state(self) -> dict[str, Any] | None:
        if self._group is None and not self.is_stored:
            return None
        # For a look into the checkpoint, and for policies: every evaluation starts from what training has.
        names = [core.COMPONENT_ENV_TO_MODULE_CONNECTOR, core.COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        return ask_one(self.group, "get_state", components=names)

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        super().change_settings(config, names)
        if self._group is not None:
            self._group.change_settings(config, names)

    def reset(self, config: AlgorithmConfig) -> None:
        super().reset(config)
        self._num_skipped = 0
        if self._group is not None:
            self._group.reset_env_runners(config)

    def write_output(self) -> None:
        if self._group is not None:
            self._group.write_output()

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()


def evaluation_seed(config: AlgorithmConfig, iteration: int, call: int = 0) -> int:
    """Derives the seed of an evaluation from the config, from `iteration` (number of iterations done), and from `call`
    (number of evaluations already made since the last iteration).
    """
    return derived_seed("evaluation", HostEnvRunner.seed_of(config), iteration, call)
