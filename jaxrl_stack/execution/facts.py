"""Facts of a driver that a training step may know when it plans: on the host, or on the device."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from jaxrl_stack.core.layouts import Layout, Layouts, layout_for_replay, layout_of
from jaxrl_stack.core.rl_module.row_independence import shared_observations
from jaxrl_stack.execution.plans import SampledUpdate, SamplePlan

if TYPE_CHECKING:
    from jaxrl_stack.acting.device_rollout import DeviceRollout
    from jaxrl_stack.acting.recorded_step import RecordedStep
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.core.learner.update_plan import UpdatePlan
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
    from jaxrl_stack.execution.local_driver import LocalDriver

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Facts(abc.ABC):
    """Spaces, learners, modules and runners, as they are when a training step plans; planning changes nothing of them.

    Attributes:
        step_name: Class of the training step, for messages.
        needs_env: See `TrainingStep`.
        config: The algorithm's frozen config.
        spaces: See `Driver`.
        module_map: Which module acts for which agent.
        learner: The Learner of this process; None if learners are actors.
        learner_group: All learners.
        env_runner_group: All EnvRunners of training; None where a program samples.
        acting_modules: The modules that act, as templates.
        recorded: What is recorded of a step, by module; {} where nothing is sampled.
        counted_per_env_step: See `Driver`.
        may_skip_steps: Whether agents may wait while others act: then rows in which they complete no step are masked.
    """

    step_name: str
    needs_env: bool
    config: AlgorithmConfig
    spaces: dict[str, tuple[Any, Any]]
    module_map: ModuleMap
    learner: Learner | None
    learner_group: LearnerGroup
    env_runner_group: EnvRunnerGroup | None
    acting_modules: Mapping[str, RLModule]
    recorded: Mapping[str, RecordedStep]
    counted_per_env_step: int
    may_skip_steps: bool

    @classmethod
    def of(cls, driver: LocalDriver, **own: Any) -> Self:
        """The facts of a driver whose spaces, learners and modules are there.

        Args:
            driver: The driver.
            **own: Fields that its kind of driver works out.
        """
        return cls(
            step_name=type(driver.step).__name__,
            needs_env=driver.step.needs_env,
            config=driver.config,
            spaces=driver.spaces,
            module_map=driver.module_map,
            learner=driver.learner,
            learner_group=driver.learner_group,
            acting_modules=driver.acting_modules,
            counted_per_env_step=driver.counted_per_env_step,
            may_skip_steps=driver.may_skip_steps,
            **own,
        )

    @property
    def module_spaces(self) -> dict[str, tuple[Any, Any]]:
        """``{module_id: (observation space, action space)}`` of the modules that act."""
        return {mid: self.spaces[mid] for mid in self.module_map.agents_of}

    # ----------------------------------------------------------------------------------------------------------- plans

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
        """The plan that `Place.sample` takes, with the layouts of the columns that it gives.

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

        Raises:
            ValueError: If the step has no environment to sample from.
        """
        if not self.needs_env:
            name = self.step_name
            raise ValueError(
                f"{name}.plan() calls plan_samples(), but {name}.needs_env is False. Set needs_env = True, or do not "
                "call plan_samples()."
            )
        assert self.acting_modules
        # Asked once: on the host runners answer it, which may be actors.
        frames = self.num_stacked_frames() if in_frames and not self.may_skip_steps else {}
        layouts = {}
        for mid, module in self.acting_modules.items():
            num_frames = frames.get(mid, 1)
            if for_replay:
                layouts[mid] = layout_for_replay(module, num_frames=num_frames)
            else:
                layouts[mid] = layout_of(
                    module,
                    num_steps,
                    num_frames=num_frames,
                    is_masked=self.may_skip_steps,
                    num_agents=self.module_map.num_slots[mid] if shared_observations(module) else 1,
                )
        return SamplePlan(num_steps, Layouts(layouts), num_shares, at_least, has_all_final_obs=all_final_obs)

    @abc.abstractmethod
    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[Any]:
        """The update that `Place.update` makes from what is sampled.

        Args:
            samples: How what it is made from is sampled, all shares together.
            **sizes: See `Learner.plan`.

        Raises:
            ValueError: If they do not fit the devices.
        """

    @abc.abstractmethod
    def num_stacked_frames(self) -> dict[str, int]:
        """``{module_id: n}``, how many frames the module's inputs are, of which a replay buffer keeps the newest one; 1
        if it has to keep them whole."""

    # ------------------------------------------------------------------------------------------------ host or device

    @property
    @abc.abstractmethod
    def samples_travel(self) -> bool:
        """Whether samples come from other processes: single frames save something on their way."""

    @property
    @abc.abstractmethod
    def restores_environments(self) -> bool:
        """Whether a run that is restored continues the episodes that its environments were in."""

    @abc.abstractmethod
    def choose(self, *, host: T, device: T) -> T:
        """The one of two forms that fits the memory in which the step keeps what it samples."""

    @abc.abstractmethod
    def sampled_at_once(self, samples: SamplePlan) -> tuple[int, Mapping[str, Layout]]:
        """``(T, layouts)`` of what one EnvRunner holds while it samples; modules without a layout: as recorded."""

    @abc.abstractmethod
    def train_layouts(self, samples: SamplePlan) -> Mapping[str, Layout]:
        """Layouts of the batch of an update from these samples."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HostFacts(Facts):
    """Facts where EnvRunners sample, or rows come from the host's memory.

    Attributes:
        samples_as_recorded: Whether what runners give is what their pipeline made.
    """

    env_runner_group: EnvRunnerGroup
    samples_as_recorded: bool

    def plan_samples(
        self,
        num_steps: int,
        *,
        for_replay: bool = False,
        all_final_obs: bool = False,
        may_stay_remote: bool = False,
        **sizes: Any,
    ) -> SamplePlan:
        all_final_obs |= self.learner_group.needs_all_final_obs and not for_replay
        plan = super().plan_samples(num_steps, for_replay=for_replay, all_final_obs=all_final_obs, **sizes)
        has_agent_times = for_replay and self.module_map.is_multi_agent
        return dataclasses.replace(plan, may_stay_remote=may_stay_remote, has_agent_times=has_agent_times)

    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[Mapping[str, Any]]:
        # Learners that get blocks plan for these, which may be masked, and check them.
        return SampledUpdate(samples, sizes)

    def num_stacked_frames(self) -> dict[str, int]:
        number = 1
        if self.samples_as_recorded:
            number = min(self.env_runner_group.foreach_env_runner(_num_stacked_frames), default=1)
        return dict.fromkeys(self.module_map.agents_of, number)

    @property
    def samples_travel(self) -> bool:
        return bool(self.config.num_sampling_actors)

    @property
    def restores_environments(self) -> bool:
        return False

    def choose(self, *, host: T, device: T) -> T:
        return host

    def sampled_at_once(self, samples: SamplePlan) -> tuple[int, Mapping[str, Layout]]:
        # A runner records whole observations, and sends each share off.
        return samples.num_steps, {}

    def train_layouts(self, samples: SamplePlan) -> Mapping[str, Layout]:
        if self.config.batch_mode != "complete_episodes":
            return samples.layouts
        # Whole episodes have whole observations.
        return {mid: own.with_whole_observations() for mid, own in samples.layouts.items()}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DeviceFacts(Facts):
    """Facts where a program samples, or draws from what is on the devices.

    Attributes:
        num_envs: Environments over all devices.
        rollout: The static parts of sampling; None without an environment.
        recorded_shapes: Shapes of what the environments of one device record in a step, ``{module_id: [1, B, ...]}``.
        records_block: Whether a call returns all that was sampled in it.
    """

    learner: Learner
    num_envs: int
    rollout: DeviceRollout | None
    recorded_shapes: Mapping[str, Any]
    records_block: bool

    def plan_samples(self, num_steps: int, *, in_frames: bool = False, **sizes: Any) -> SamplePlan:
        # Callbacks are shown whole observations, and files have them.
        return super().plan_samples(num_steps, in_frames=in_frames and not self.records_block, **sizes)

    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[UpdatePlan]:
        num_columns, learner = self.num_envs * samples.num_shares, self.learner
        plan = learner.plan(**sizes)
        if num_columns % plan.num_shards:
            raise ValueError(
                f"num_shuffle_shards={plan.num_shards} must divide the {num_columns} columns of a train batch "
                f"(num_envs_per_env_runner={self.num_envs} * {num_columns // self.num_envs} fragments). Use fewer "
                "shards, or more environments."
            )
        return SampledUpdate(samples, plan)

    def num_stacked_frames(self) -> dict[str, int]:
        steps = {} if self.rollout is None else self.rollout.modules
        return {
            mid: steps[mid].env_to_module.num_stacked_frames if mid in steps else 1 for mid in self.module_map.agents_of
        }

    @property
    def samples_travel(self) -> bool:
        return False

    @property
    def restores_environments(self) -> bool:
        return True

    def choose(self, *, host: T, device: T) -> T:
        return device

    def sampled_at_once(self, samples: SamplePlan) -> tuple[int, Mapping[str, Layout]]:
        # All shares, with recurrent states of every step: those of the starts of chunks are taken out of them.
        layouts = {mid: own.with_states_of_all_steps() for mid, own in samples.layouts.items()}
        return samples.num_steps * samples.num_shares, layouts

    def train_layouts(self, samples: SamplePlan) -> Mapping[str, Layout]:
        return samples.layouts


def _num_stacked_frames(runner: Any) -> int:
    return runner.acting_parts()[1].pure_part().num_stacked_frames
