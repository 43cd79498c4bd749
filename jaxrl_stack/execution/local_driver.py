"""Base class of the drivers that run an algorithm's training steps in their own process. Their learners and EnvRunners
are in this process or in actors.
"""

from __future__ import annotations

import abc
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from jaxrl_stack import core
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.execution.evaluation import evaluation_config
from jaxrl_stack.execution.memory import batch_memory, sampled_memory

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.held_out_evaluation import HeldOutEvaluation
    from jaxrl_stack.execution.plans import Plan, SampledUpdate, SamplePlan

_WHERE = {"device": "on the device", "actors": "on the host"}


class LocalDriver(Driver):
    """Base class of `DeviceDriver` and `HostDriver`: owns learners, EnvRunners and their states, and runs the training
    steps in this process.

    Attributes:
        facts: Facts for the plan of the training step.
        plan: Plan of the training step.
        data_evaluation: Evaluation on held-out rows of the training step, or None.
    """

    facts: Facts
    plan: Plan
    data_evaluation: HeldOutEvaluation | None

    @property
    def evaluates_on_data(self) -> bool:
        return self.data_evaluation is not None

    def evaluate_on_data(self, iteration: int, call: int = 0) -> dict[str, Any]:
        return {} if self.data_evaluation is None else self.data_evaluation.evaluate(iteration, call)

    def _estimate_memory(self) -> None:
        """Estimates the memory of a rollout and of an update, from the planned sizes, before large arrays are
        allocated.
        """
        self.rollout_memory = sampled_memory(self.facts, self.plan)
        self.train_batch_memory, self.kept_memory = batch_memory(self.facts, self.plan), self.plan.kept_memory
        self.available_memory = self._free_memory()
        self._log_memory()

    @abc.abstractmethod
    def _free_memory(self) -> int | None:
        """Returns the number of bytes that samples and updates can still use.

        This is the free memory of this machine (`HostDriver`) or of the learner's devices (`DeviceDriver`). Returns
        None if the free memory is unknown.
        """

    @abc.abstractmethod
    def _start(self) -> None:
        """Sets the counters to zero, and creates the data that the training step stores between calls (`kept`), such as
        a replay buffer.
        """

    @property
    def kept(self) -> Any:
        """Data that the training step stores between calls, such as the state of a replay buffer. Data on D devices
        consists of arrays ``[D, ...]``.
        """
        return self.step.kept.value

    @property
    def num_env_steps_trained(self) -> int:
        return self.step.num_env_steps_trained(self)

    @property
    def replay_buffer(self) -> Checkpointable | None:
        return self.step.replay_buffer

    def plan_samples(self, num_steps: int, **sizes: Any) -> SamplePlan:
        """Creates the `SamplePlan` of one sampling operation: the number of steps and the array layout of each module's
        columns.

        A sampling operation is a call of `Place.sample` in a user's training step. See `Facts.plan_samples`.
        """
        return self.facts.plan_samples(num_steps, **sizes)

    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[Any]:
        """Creates the `SampledUpdate` of one update on sampled steps: the plan of these steps and the sizes of the
        update.

        Such an update is a call of `Place.update` in a user's training step. Sizes are, for example, the number of
        epochs and the minibatch size. See `Facts.plan_update`.
        """
        return self.facts.plan_update(samples, **sizes)

    def components(self) -> list[tuple[str, Any]]:
        parts = [
            (core.COMPONENT_LEARNER_GROUP, self.learner_group),
            (core.COMPONENT_ENV_RUNNER, self._described_env_runner()),
            (core.COMPONENT_REPLAY_BUFFER, self.stored_replay),
            (core.COMPONENT_EVAL_ENV_RUNNER, self.evaluation.described_runner()),
        ]
        return [(name, part) for name, part in parts if part is not None]

    @abc.abstractmethod
    def _described_env_runner(self) -> Any:
        """Returns the training EnvRunner that is a component of checkpoints.

        This one EnvRunner represents all training EnvRunners. `HostDriver`, whose EnvRunners may be actors, returns the
        EnvRunner's description (`Component`) instead. Returns None without EnvRunners.
        """

    def get_state(self) -> dict[str, Any]:
        # What a run that goes on from it does not sample again is in complete files.
        self.write_output()
        evaluation = self.evaluation.get_state()
        return {
            core.COMPONENT_LEARNER_GROUP: self.learner_group.get_state(),
            **self._sampling_state(),
            **({} if evaluation is None else {core.COMPONENT_EVAL_ENV_RUNNER: evaluation}),
            "driver": {
                "kind": self.kind,
                "num_env_steps_sampled_lifetime": self.num_env_steps,
                "episode_metrics": self.episode_metrics.get_state(),
                **self.step.get_state(),
                **self._own_state(),
            },
        }

    @abc.abstractmethod
    def _sampling_state(self) -> dict[str, Any]:
        """States of the training EnvRunners for checkpoints, ``{component name: state}``."""

    @abc.abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Returns values of the driver that no component of checkpoints saves, ``{name: value}``, such as counters and
        unfinished episodes. Components are, for example, learners and EnvRunners.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        own = state.get("driver")
        kind = self.kind if own is None else own["kind"]
        # Of data the training step says whether it goes on here.
        is_elsewhere = kind != self.kind
        if is_elsewhere and self.step.needs_env:
            raise ValueError(
                f"The saved state is from a run that steps environments {_WHERE[kind]}, but this algorithm steps them "
                f"{_WHERE[self.kind]}. Set environment(...) as in that run, or restore only the learners: "
                f"restore_from_path(path, component='learner_group')."
            )
        if core.COMPONENT_LEARNER_GROUP in state:
            self.learner_group.set_state(state[core.COMPONENT_LEARNER_GROUP])
        if own is not None:
            self.num_env_steps = int(own["num_env_steps_sampled_lifetime"])
            self.episode_metrics.set_state(own["episode_metrics"])
            self.step.set_state(own)
        self._set_sampling_state(*(({}, None) if is_elsewhere else (state, own)))
        if is_elsewhere:
            self.count_env_steps(0)
        self.evaluation.set_state(state.get(core.COMPONENT_EVAL_ENV_RUNNER, {}), is_whole=own is not None)

    @abc.abstractmethod
    def _set_sampling_state(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Restores the EnvRunners from `state`, and the driver's other values, such as counters, from `own`.

        `_sampling_state` documents the EnvRunners' states, which `state` may lack. `_own_state` documents `own`, which
        may be None. `HostDriver` also sends the weights to the EnvRunners.
        """

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        # The learners may refuse.
        self.learner_group.change_settings(config)
        self.config = config
        self.step.change_settings(config)
        self.env_runner_group.change_settings(config, names)
        self.evaluation.change_settings(evaluation_config(config), names)

    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        if self.learner is None or not self.learner.reset(config):
            return False
        self.config = self.learner_group.config = config
        self.callbacks = callbacks
        self.step.reset(config)
        self.env_runner_group.reset_env_runners(config)
        self.evaluation.reset(evaluation_config(config))
        self.episode_metrics.reset()
        self._start()
        return True
