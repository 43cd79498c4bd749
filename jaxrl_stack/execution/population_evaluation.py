"""Evaluation of all members of a population by one compiled program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.env.acting_settings import traced_settings
from jaxrl_stack.env.device_env_runner import EVALUATION_CHUNK, Counting
from jaxrl_stack.env.randomized_jax_env import unrandomized
from jaxrl_stack.execution.evaluation import (
    LIFETIME_COUNTS,
    add_lifetime_counts,
    health_of_runners,
    numbers_of_episodes,
)
from jaxrl_stack.utils import counters, devices
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
    from jaxrl_stack.execution.population_driver import PopulationDriver
    from jaxrl_stack.execution.population_program import MemberStates


class PopulationEvaluation:
    """Evaluates every member of a population in separate environments, for `evaluation_duration` episodes or steps per
    member.

    Seeds, episodes and results equal those of a single run's evaluation.

    Args:
        driver: Driver of the population, whose template has an evaluation in a JAX environment.
        trained: Config of each member.

    Raises:
        ValueError: Evaluation has no JAX environment.
    """

    def __init__(self, driver: PopulationDriver, trained: Sequence[AlgorithmConfig]):
        runner = driver.template.evaluation.runner
        self._driver = driver
        self._runner: DeviceEnvRunner = runner  # pyright: ignore[reportAttributeAccessIssue]
        self._num_envs = self._runner.num_evaluated_envs
        self._of_data = None if driver.template.step.needs_env else self._runner.connector_state()
        ids = self._runner.rollout.pure.module_ids
        self._module_ids = ids
        self.change_settings(trained)
        self._init = self._mapped(self._begun, in_axes=(0, 0))
        self._unroll = self._mapped(self._unrolled, in_axes=(0, 0, 0, None))
        self._lifetime = [dict.fromkeys(LIFETIME_COUNTS, 0) for _ in trained]

    def change_settings(self, trained: Sequence[AlgorithmConfig]) -> None:
        """Sets the hyperparameters (traced settings) with which the members are evaluated. Call this method again after
        `PopulationDriver.keep`, which moves members to other positions in the arrays.

        Args:
            trained: The config of each member.
        """
        self._configs = [_of_evaluation(config) for config in trained]
        of_members = [{"modules": traced_settings(config, self._module_ids)} for config in self._configs]
        self._settings = self._driver.dealt_out(jax.tree.map(lambda *leaves: np.stack(leaves), *of_members))

    def _mapped(self, of_member: Any, in_axes: tuple[Any, ...]) -> Any:
        """Compiles a function of one member into a function of a block (members trained by one call of the program).

        The members of the block are distributed over the devices.
        """
        driver, axes = self._driver, tuple(None if axis is None else 0 for axis in in_axes)

        def of_all(members: MemberStates, *args: Any) -> tuple[Any, ...]:
            own = (driver.axes, *in_axes[1:])
            return (jax.vmap(of_member, in_axes=own)(members, *args),)

        learner = driver.template.learner
        return devices.map_over_devices(
            of_all, driver.devices, axis_name=learner.axis_name, in_axes=axes, out_axes=(0,), donate_argnums=()
        )

    def _rollout(self, member: MemberStates) -> Any:
        """Returns the object (rollout) that steps a member's evaluation environments. If evaluation uses the training
        environment, this object has the member's environment parameters.
        """
        rollout = self._runner.rollout
        trained = self._driver.template.rollout
        is_trained = trained is not None and unrandomized(rollout.env) is unrandomized(trained.env)
        return dataclasses.replace(rollout, env_params=member.env_params) if is_trained else rollout

    def _begun(self, member: MemberStates, key: Any) -> Any:
        """Returns the state in which a member's evaluation starts.

        The environments are reset. The env-to-module connectors have the statistics of the member's training. If
        training reads recorded data, the connectors have the statistics of this data.
        """
        known = member.runner.env_to_module if self._of_data is None else self._of_data
        return self._rollout(member).init(key, self._num_envs, env_to_module=known)

    def _unrolled(self, member: MemberStates, state: Any, settings: Any, timesteps: Any) -> Any:
        rollout, learner = self._rollout(member), member.learner
        explore = bool(self._runner.config.explore)
        context = self._runner.context(
            learner.params, learner.rest, settings, timesteps, explore=explore, update_statistics=False
        )
        state, _, ended = rollout.unroll(state, context, num_steps=EVALUATION_CHUNK)
        return state, ended

    def evaluate(self, iteration: int, call: int = 0) -> dict[str, Any]:
        """Runs one evaluation of every member, and returns the metrics of each member.

        Args:
            iteration: Iterations done; it determines the seed.
            call: Evaluations since that iteration; it also determines the seed.

        Returns:
            ``{"env_runners": {name: float64[M]}}``, with NaN for stopped members.

        Raises:
            TimeoutError: If the episodes are not over in time.
        """
        driver, config, started = self._driver, self._runner.config, time.perf_counter()
        duration = int(config.evaluation_duration)
        amount = (duration, None) if config.evaluation_duration_unit == "episodes" else (None, duration)
        counts = [Counting(self._num_envs, *amount) for _ in driver.running]
        keys = driver.dealt_out(jax.numpy.stack([self._key(own, iteration, call) for own in self._configs]))
        timesteps = counters.from_int(driver.num_env_steps)
        size = driver.layout.block_size
        for i, block in enumerate(driver.blocks):
            of_block = counts[i * size : (i + 1) * size]
            (state,) = self._init(block, keys[i])
            while not all(count.is_done for count in of_block):
                self._check_time(started, counts)
                ((state, ended),) = self._unroll(block, state, self._settings[i], timesteps)
                ended = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), devices.own_shards(ended))
                for i_member, count in enumerate(of_block):
                    count.add(jax.tree.map(lambda x, i=i_member: x[i], ended))
        return self._results(counts, time.perf_counter() - started)

    @property
    def lifetime(self) -> dict[str, np.ndarray]:
        """Episodes and steps of each of the M members, counted over all evaluations, ``{name: int64[M]}``, for
        `set_lifetime`.
        """
        return {name: np.array([own[name] for own in self._lifetime], np.int64) for name in self._lifetime[0]}

    def set_lifetime(self, counts: Mapping[str, Any]) -> None:
        """Restores the members' counts of evaluation episodes and steps from a result of `lifetime`."""
        for i, own in enumerate(self._lifetime):
            own.update({name: int(of_members[i]) for name, of_members in counts.items()})

    def _key(self, config: AlgorithmConfig, iteration: int, call: int) -> jax.Array:
        key = stream_key(config.root_seed, Stream.EVALUATION)
        return jax.random.fold_in(jax.random.fold_in(key, iteration), call)

    def _check_time(self, started: float, counts: Sequence[Counting]) -> None:
        timeout_s = self._runner.config.evaluation_sample_timeout_s
        if timeout_s is not None and time.perf_counter() - started > timeout_s:
            late = sum(not count.is_done for count in counts)
            raise TimeoutError(
                f"The evaluation of {late} of {len(counts)} members took longer than "
                f"evaluation_sample_timeout_s={timeout_s}. Raise this timeout, lower evaluation_duration, or use "
                f"evaluation_duration_unit='timesteps'."
            )

    def _results(self, counts: Sequence[Counting], seconds: float) -> dict[str, Any]:
        found = []
        for count, member in zip(counts, self._driver.running.tolist(), strict=True):
            lifetime = self._lifetime[member]
            episodes = count.episodes(seconds / max(1, count.num_steps))
            own = numbers_of_episodes(episodes, count.num_steps, self._driver.template.module_map)
            results: dict[str, Any] = {
                "env_runners": {**own, "sample": seconds, "weights_seq_no": self._driver.num_updates},
                **health_of_runners(self._driver.template.evaluation.group),
            }
            add_lifetime_counts(results, lifetime)
            found.append(results)
        return jax.tree.map(lambda *numbers: self._driver.of_all(np.array(numbers, np.float64), np.nan), *found)


def _of_evaluation(config: AlgorithmConfig) -> AlgorithmConfig:
    evaluation = config.get_evaluation_config_object()
    assert evaluation is not None, "it is the config of training"
    if not evaluation.samples_on_device:
        raise ValueError(
            f"evaluate() of a population needs a JAX environment, not {evaluation.env!r}. Set "
            f"evaluation(evaluation_config={{'env': ...}}), or evaluate one member: population.member(0).evaluate()."
        )
    return evaluation
