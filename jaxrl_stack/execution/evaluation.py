"""Base class of evaluations, and functions that compute their results and the number of episodes or steps to sample."""

from __future__ import annotations

import abc
import functools
import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.rl_module.rl_module import check_fits_specs
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, health_of
from jaxrl_stack.env.episode_quota import episode_quota
from jaxrl_stack.execution.episode_results import episode_results, mean_returns_by_id
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec
    from jaxrl_stack.env.env_runner import EnvRunner
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.videos.episodes import RecordedEpisode

Amounts = list[tuple[int, dict[str, int]]]
"""``(id of a runner, {"num_episodes": n} or {"num_timesteps": n})``."""
Share = tuple[int, EndedEpisodes, dict[str, Any]]
"""``(env steps, the episodes that ended, the runner's reduced metrics)``."""
LIFETIME_COUNTS = {
    "num_env_steps": ("env_runners", "num_env_steps_sampled"),
    "num_episodes": ("env_runners", "num_episodes"),
    "num_env_steps_on_data": ("offline_eval_runners", ALL_MODULES, "num_env_steps_sampled"),
    "num_iters_on_data": ("offline_eval_runners", ALL_MODULES, "dataset_num_iters_evaluated"),
}
"""Counts that are summed over all evaluations: ``{name: path of the count in the results of one evaluation}``."""


def evaluation_config(config: AlgorithmConfig) -> AlgorithmConfig:
    """Returns the evaluation's config, as ``config.evaluation(...)`` defines it. `config` is the training config."""
    evaluation = config.get_evaluation_config_object()
    assert evaluation is not None, "it is the config of training"
    return evaluation


def evaluation_results(
    config: AlgorithmConfig,
    ids: Sequence[int],
    sample: Callable[[Amounts, bool], Sequence[Share]],
    is_training: Callable[[], bool] | None = None,
    *,
    module_map: ModuleMap,
) -> dict[str, Any]:
    """Samples the episodes or steps of an evaluation, and returns the dict for ``result["evaluation"]["env_runners"]``.

    Args:
        config: Config of evaluation.
        ids: Ids of the sampling runners.
        sample: ``(amounts, whether environments may be reset first) -> shares``, one round of sampling.
        is_training: Returns whether the concurrent training step still runs, for a duration of "auto".
        module_map: Map from agents to modules, for returns and steps by agent and by module.
    """
    started = time.perf_counter()
    logger = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
    shares: list[Share] = []
    for number, amounts in enumerate(_rounds(config, ids, shares, is_training)):
        new = sample(amounts, number == 0)
        logger.aggregate([metrics for _, _, metrics in new])
        shares += new
    ended = [episodes for _, episodes, _ in shares] or [EndedEpisodes.of(())]
    episodes = EndedEpisodes(**jax.tree.map(lambda *parts: np.concatenate(parts), *map(vars, ended)))
    results = logger.compile()
    num_steps = sum(num_env_steps for num_env_steps, _, _ in shares)
    merge_nested(results, numbers_of_episodes(episodes, num_steps, module_map))
    results["sample"] = time.perf_counter() - started
    return results


def health_of_runners(group: EnvRunnerGroup) -> dict[str, int]:
    """Numbers of healthy, restarted and dropped EnvRunner actors, and of asynchronous requests to these actors.

    A request counts until its result has been fetched. Without actors, all numbers are 0.
    """
    return {**health_of(group), "actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs()}


def numbers_of_episodes(episodes: EndedEpisodes, num_env_steps: int, module_map: ModuleMap) -> dict[str, Any]:
    """Returns statistics of an evaluation's episodes and steps as entries of the evaluation's result.

    The entries are the mean, min and max of the returns and lengths of finished episodes, the mean duration, the mean
    returns by agent and module, and the numbers of episodes and steps.

    Steps of several agents are not included, because their runners log them.

    Args:
        episodes: Finished episodes.
        num_env_steps: Env steps of the evaluation.
        module_map: Map from agents to modules.
    """
    statistics = episode_results(episodes)
    numbers = {
        **statistics,
        **mean_returns_by_id(statistics["episode_return_mean"], episodes.mean_returns(module_map), module_map),
        "num_episodes": len(episodes.returns),
        "num_env_steps_sampled": num_env_steps,
    }
    if not module_map.is_multi_agent:
        numbers |= module_map.numbers("num_{}_steps_sampled", dict.fromkeys(module_map.module_of, num_env_steps))
    return numbers


def _rounds(
    config: AlgorithmConfig, ids: Sequence[int], shares: Sequence[Share], is_training: Callable[[], bool] | None
) -> Iterator[Amounts]:
    """Yields, for each sampling round of an evaluation, the number of episodes or steps that each EnvRunner samples.

    If ``evaluation_duration`` is a number, the evaluation has one round. If it is "auto", rounds continue until the
    concurrent training of the iteration ends.

    With "auto", the first round has the config's minimum number of steps. Later rounds take about a second: their
    number of steps, within the config's limits, is estimated from the sampling speed of earlier rounds. `shares`
    contains the results of earlier rounds.
    """
    if config.evaluation_duration != "auto":
        duration = int(config.evaluation_duration)
        if config.evaluation_duration_unit == "episodes":
            quota = zip(ids, episode_quota(duration, len(ids)), strict=True)
            yield [(i, {"num_episodes": n}) for i, n in quota if n]
        else:
            yield [(i, {"num_timesteps": -(-duration // len(ids))}) for i in ids]
        return
    assert is_training is not None
    started = time.perf_counter()
    fewest = num_steps = config.evaluation_auto_duration_min_env_steps_per_sample
    yield [(i, {"num_timesteps": num_steps}) for i in ids]
    while is_training():
        sampled = sum(num_env_steps for num_env_steps, _, _ in shares)
        rate = sampled / max(time.perf_counter() - started, 1e-9) / len(ids)
        num_steps = int(np.clip(rate, fewest, config.evaluation_auto_duration_max_env_steps_per_sample))
        yield [(i, {"num_timesteps": num_steps}) for i in ids]


def add_lifetime_counts(results: dict[str, Any], lifetime: dict[str, int]) -> None:
    """Adds the counts of one evaluation to the totals in `lifetime`.

    Writes each new total into `results`, next to the count, under the name of the count with the suffix ``_lifetime``.

    Args:
        results: Results that `Driver.evaluate` returned.
        lifetime: Sums over earlier evaluations, by the names of `LIFETIME_COUNTS`, and by agent and module, such as
            ``"num_agent_steps_sampled/<agent>"``. Changed in place.
    """
    for name, (*path, count) in LIFETIME_COUNTS.items():
        if path[0] in results:
            counts = functools.reduce(operator.getitem, path, results)
            lifetime[name] += counts[count]
            counts[f"{count}_lifetime"] = lifetime[name]
    for count in ("num_agent_steps_sampled", "num_module_steps_sampled"):
        sampling = results.get("env_runners", {})
        for member, number in sampling.get(count, {}).items():
            name = f"{count}/{member}"
            lifetime[name] = lifetime.get(name, 0) + int(number)
            sampling.setdefault(f"{count}_lifetime", {})[member] = lifetime[name]


class Evaluation(abc.ABC):
    """Evaluates the modules that a driver trains, in separate environments. Each kind of environment (JAX, host, or
    none) has its own implementation in a subclass.

    An evaluation reads weights, connector statistics and lifetime env steps of its driver, and changes none of them.

    Args:
        driver: Driver of the modules, with its spaces and learners.
        config: Frozen config of evaluation.

    Attributes:
        config: The config.
        has_env: Whether there is an environment.
        runs_concurrently: Whether `evaluate` may run in another thread while the driver trains.
    """

    has_env: ClassVar[bool] = True
    runs_concurrently: ClassVar[bool] = False

    def __init__(self, driver: Driver, config: AlgorithmConfig):
        self._driver = driver
        self.config = config

    @property
    @abc.abstractmethod
    def runner(self) -> EnvRunner | None:
        """The evaluation's EnvRunner in this process; None if only actors evaluate."""

    @property
    @abc.abstractmethod
    def group(self) -> EnvRunnerGroup:
        """Group of all EnvRunners that evaluate."""

    # ------------------------------------------------------------------------------------------------------ its checks

    def check_spaces(self, spaces: Mapping[str, tuple[gym.Space, gym.Space]]) -> None:
        """Raises ValueError if the evaluation environment's spaces differ from the trained modules' spaces.

        Args:
            spaces: Observation and action space of each module in evaluation's environment, by module id.

        Raises:
            ValueError: If they differ from training's in more than bounds; names both.
        """
        for mid, trained in self._driver.module_spaces.items():
            names = ("observation_space", "action_space")
            for name, own, of_training in zip(names, spaces[mid], trained, strict=True):
                if difference(own, of_training) is not None:
                    raise ValueError(
                        f"evaluation(evaluation_config=...): for module {mid!r}, {name} is {own} in evaluation, "
                        f"but {of_training} in training. Use an evaluation environment with the same spaces."
                    )

    def module_spec(self) -> MultiRLModuleSpec | None:
        """Spec of the evaluation's modules if `evaluation_config` changes the model; None if the evaluation uses the
        trained modules.

        Raises:
            ValueError: If the learners' weights do not fit them.
        """
        driver, evaluation = self._driver, self.config
        if evaluation.is_same(driver.config, "_rl_module_spec", "model_config"):
            return None
        spec = evaluation.get_multi_rl_module_spec(spaces=driver.module_spaces)
        try:
            check_fits_specs(spec, driver.learner_group.get_weights())
        except ValueError as error:
            raise ValueError(
                f"evaluation(evaluation_config=...) changes the networks (model_config, rl_module_spec), so that the "
                f"trained weights do not fit: {error} Leave these settings out."
            ) from error
        return spec

    # ------------------------------------------------------------------------------------------------------ evaluating

    def start(self) -> None:  # noqa: B027 - most are ready when they are made
        """Starts the actors or environments that evaluate, if the config has evaluations."""

    def start_iteration(self) -> None:  # noqa: B027 - most have no actors
        """Prepares the evaluation for a training iteration; called before the iteration's first training step.

        If the evaluation has EnvRunner actors, takes actors that Ray has restarted back into use; otherwise, does
        nothing.
        """

    def sync(self) -> None:  # noqa: B027 - nothing to hand over where one process holds all
        """Passes the present weights and connector statistics of training to the evaluation's EnvRunners."""

    @abc.abstractmethod
    def evaluate(self, iteration: int, call: int = 0, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Evaluates the driver's modules once, and returns the results; see `Driver.evaluate`."""

    @abc.abstractmethod
    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        """Runs evaluation episodes and records them for videos; see `Driver.record`."""

    # ---------------------------------------------------------------------------------------------------------- acting

    @abc.abstractmethod
    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        """Computes the action for one observation; see `Driver.act`. A driver calls this method if training has no
        environment.
        """

    @abc.abstractmethod
    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        """Returns the modules and connector pipelines with which evaluation computes actions; see
        `Driver.acting_parts`. A driver calls this method if training has no environment.
        """

    # ----------------------------------------------------------------------------------------------------------- state

    @property
    def is_stored(self) -> bool:
        """Whether checkpoints contain this evaluation's connector states: True if ``evaluation_interval`` is set, or if
        training has no environment.
        """
        driver = self._driver
        return bool(driver.config.evaluation_interval) or not driver.step.needs_env

    def described_runner(self) -> Any:
        """Returns the evaluation's EnvRunner, to be saved in checkpoints.

        If this EnvRunner may be in an actor, returns its description (`Component`) instead. Returns None if checkpoints
        contain no EnvRunner of the evaluation.
        """
        return None

    def get_state(self) -> dict[str, Any] | None:
        """Returns the state of the evaluation's EnvRunners that is saved in checkpoints, such as connector states.
        Returns None if nothing is to be saved.
        """
        return None

    def set_state(self, state: dict[str, Any], *, is_whole: bool) -> None:  # noqa: B027 - most take all from training
        """Restores the state of the evaluation's EnvRunners from `state`, a result of `get_state`.

        Args:
            state: The state, or {}.
            is_whole: Whether everything else was also restored.
        """

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        """Continues the evaluation with a config in which only traced settings (hyperparameters that are arguments of
        compiled programs) have other values.

        Args:
            config: Config of evaluation that differs in traced settings only.
            names: The settings that differ in training's config.
        """
        self.config = config

    def reset(self, config: AlgorithmConfig) -> None:
        """Resets the evaluation, including its EnvRunners, to a new config.

        Only the seed and traced settings (hyperparameters that are arguments of compiled programs) may differ from the
        present config.
        """
        self.config = config

    def write_output(self) -> None:  # noqa: B027 - without an environment there is none
        """Closes the files that contain the evaluation's sampled steps, so that they can be read; see
        `Driver.write_output`.
        """

    def stop(self) -> None:  # noqa: B027 - most hold nothing
        """Releases actors and environments; a second call does nothing."""
