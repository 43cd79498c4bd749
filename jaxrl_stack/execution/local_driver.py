"""A driver with learners and runners of its own, which plans what its training step samples and learns from."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxrl_stack import core
from jaxrl_stack.core.layouts import Layout, Layouts, layout_of
from jaxrl_stack.core.rl_module.row_independence import shared_observations
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.execution.evaluation import evaluation_config
from jaxrl_stack.execution.memory import batch_memory, sampled_memory
from jaxrl_stack.execution.training_step import SamplePlan

if TYPE_CHECKING:
    from jaxrl_stack.acting.recorded_step import RecordedStep
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.execution.held_out_evaluation import HeldOutEvaluation

_WHERE = {"device": "on the device", "actors": "on the host"}


@dataclasses.dataclass
class Planned:
    """What a training step's `plan` has asked its driver for.

    Attributes:
        samples: What it samples, each kind of share once.
        update: How what an update is made from is sampled; None without an update of what is sampled.
    """

    samples: list[SamplePlan] = dataclasses.field(default_factory=list)
    update: SamplePlan | None = None


class LocalDriver(Driver):
    """A driver with learners and runners of its own, which plans updates and has their states.

    Attributes:
        recorded: What is recorded of a step; None where nothing is sampled.
        planned: What the training step has planned.
        data_evaluation: Evaluates on the rows that the training step holds out; None without any.
    """

    recorded: Mapping[str, RecordedStep] = MappingProxyType({})
    data_evaluation: HeldOutEvaluation | None

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.planned = Planned()

    @property
    def evaluates_on_data(self) -> bool:
        return self.data_evaluation is not None

    def evaluate_on_data(self, iteration: int, call: int = 0) -> dict[str, Any]:
        return {} if self.data_evaluation is None else self.data_evaluation.evaluate(iteration, call)

    def _estimate_memory(self) -> None:
        """Work out what sampling and an update take, once: the step's plan is made by now, and nothing large yet."""
        self.rollout_memory, self.train_batch_memory = sampled_memory(self), batch_memory(self)
        self.available_memory = self._free_memory()
        self._log_memory()

    @abc.abstractmethod
    def _free_memory(self) -> int | None:
        """Bytes that are free for that; None if it is not known."""

    @abc.abstractmethod
    def _start(self) -> None:
        """Begin with fresh counters, and with what the training step keeps."""

    @property
    def kept(self) -> Any:
        """What the training step keeps, which owns it; on the device leaves ``[D, ...]``."""
        return self.step.kept.value

    @property
    def num_env_steps_trained(self) -> int:
        return self.step.num_env_steps_trained(self)

    @property
    def replay_buffer(self) -> Checkpointable | None:
        return self.step.replay_buffer

    def plan_update(self, samples: SamplePlan, **sizes: Any) -> Any:
        """What `Place.update` takes of the sizes of an update.

        Args:
            samples: How what it is made from is sampled, all shares together.
            **sizes: See `Learner.plan`.

        Raises:
            ValueError: If they do not fit the devices.
        """
        self.planned.update = samples
        # Learners that get blocks plan for these, which may be masked, and check them.
        return sizes

    def plan_samples(
        self,
        num_steps: int,
        *,
        num_shares: int = 1,
        at_least: int = 1,
        for_replay: bool = False,
        in_frames: bool = False,
        all_final_obs: bool = False,
        may_stay_remote: bool = False,
    ) -> SamplePlan:
        """What `Place.sample` takes, and how the columns lie that it gives.

        Args:
            num_steps: ``T``, steps of each environment in a share.
            num_shares: How many shares, from however many runners.
            at_least: Env steps, where runners only give whole episodes.
            for_replay: Whether the steps go into a memory: then recurrent states are those of all steps, as each may
                be the first one of a sequence, and not of the starts of chunks alone. Of several agents on the
                host, parts have `Part.times`.
            in_frames: Whether observations that are several frames side by side may have one per step
                (`core.frames`), for a step that hands them on and does not look into them.
            all_final_obs: Whether the step reads the observations after steps that terminated an episode, too.
            may_stay_remote: Whether columns may stay in Ray's object store where learners are actors, likewise.
        """
        if not self.step.needs_env:
            name = type(self.step).__name__
            raise ValueError(
                f"{name}.plan() plans what to sample, and {name}.needs_env is False: there is nothing to sample from. "
                f"Set needs_env = True, or leave plan_samples() out."
            )
        assert self.acting_modules
        layouts = {}
        for mid, module in self.acting_modules.items():
            num_frames = self.num_stacked_frames()[mid] if in_frames and not self.may_skip_steps else 1
            if for_replay:
                is_recurrent = bool(module.is_stateful())
                layouts[mid] = Layout(is_recurrent=is_recurrent, num_frames=num_frames, has_resets=is_recurrent)
            else:
                layouts[mid] = layout_of(
                    module,
                    num_steps,
                    num_frames=num_frames,
                    is_masked=self.may_skip_steps,
                    num_agents=self.module_map.num_slots[mid] if shared_observations(module) else 1,
                )
        plan = SamplePlan(num_steps, Layouts(layouts), num_shares, at_least, has_all_final_obs=all_final_obs)
        self.planned.samples.append(plan)
        return plan

    @abc.abstractmethod
    def num_stacked_frames(self) -> dict[str, int]:
        """``{module_id: n}``, how many frames the module's inputs are, of which a replay buffer keeps the newest one; 1
        if it has to keep them whole."""

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
        """The EnvRunner whose connectors are those of all; None without one."""

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
        """States of training's runners, by component."""

    @abc.abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What else changes, as named values."""

    def set_state(self, state: dict[str, Any]) -> None:
        own = state.get("driver")
        kind = self.kind if own is None else own["kind"]
        # Of data the training step says whether it goes on here.
        is_elsewhere = kind != self.kind
        if is_elsewhere and self.step.needs_env:
            raise ValueError(
                f"The state is of a run whose environments were stepped {_WHERE[kind]}; those of this algorithm "
                f"are stepped {_WHERE[self.kind]}. Build it with the environment of that run, or take over what was "
                f"learned alone: restore_from_path(path, component='learner_group')."
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
        """Take over what `_sampling_state` and `_own_state` returned, as far as it is there; then hand out weights."""

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
