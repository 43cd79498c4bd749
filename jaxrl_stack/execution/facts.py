"""Inputs of `TrainingStep.plan`, which computes the sizes of samples and updates.

The inputs are a driver's spaces, learners, modules and runners. `HostFacts` is for drivers on the host, and
`DeviceFacts` for drivers on the device.
"""

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
    """Spaces, learners, modules and runners of a driver: the inputs of `TrainingStep.plan`, which computes the sizes of
    samples and updates. `TrainingStep.plan` does not change these values.

    Attributes:
        step_name: Class of the training step, for messages.
        needs_env: See `TrainingStep`.
        config: The algorithm's frozen config.
        spaces: See `Driver`.
        module_map: Map from agents to modules.
        learner: The Learner of this process; None if learners are actors.
        learner_group: All learners.
        env_runner_group: All EnvRunners of training; None if a program samples.
        acting_modules: Templates of the acting modules.
        recorded: Recorded columns of a step, by module; {} if nothing is sampled.
        counted_per_env_step: See `Driver`.
        may_skip_steps: Whether agents may wait while others act. If so, batches have a loss mask, which is False in
            each row whose agent completed no step.
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
        """Collects the inputs of `TrainingStep.plan`, which computes the sizes of samples and updates, from a driver.
        The driver must already have spaces, learners and modules.

        Args:
            driver: The driver.
            **own: Fields that its kind of driver computes.
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
        """Spaces of the modules that act for agents, ``{module_id: (observation space, action space)}``."""
        return {mid: self.spaces[mid] for mid in self.module_map.agents_of}

    def num_rows(self, num_envs: int) -> dict[str, int]:
        """Returns the size of each module's batch axis for `num_envs` environments, ``{module_id: size}``: one row for
        each of the module's agents in each environment.
        """
        return self.module_map.num_rows(num_envs)

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
        """Creates the `SamplePlan` of one sampling operation: the number of steps and the array layout of each module's
        columns.

        A sampling operation is a call of `Place.sample`. The number of steps comes from the arguments. The layout
        describes stacked frames and recurrent chunks, for example.

        Args:
            num_steps: ``T``, steps of each environment in a share.
            num_shares: Number of shares, from any number of runners.
            at_least: Minimum of env steps, if runners only return whole episodes.
            for_replay: Whether the steps go into a replay buffer: recurrent states of all steps are then recorded, not
                only of the starts of chunks, because a sequence may start at each step. Parts of several agents on the
                host then have `Part.times`.
            in_frames: Whether stacked observations may have one frame per step (`core.frames`), for a step that passes
                them on without reading them.
            all_final_obs: Whether the step also reads the observations after steps that terminated an episode.
            may_stay_remote: Whether columns may stay in Ray's object store if learners are actors, for a step that
                passes them on without reading them.

        Raises:
            ValueError: If the step has no environment.
        """
        if not self.needs_env:
            name = self.step_name
            raise ValueError(
                f"{name}.plan() calls plan_samples(), but {name}.needs_env is False. Set needs_env = True, or do not "
                "call plan_samples()."
            )
        assert self.acting_modules
        self._check_declared_columns(for_replay)
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

    def _check_declared_columns(self, for_replay: bool) -> None:
        """Raises ValueError if the learner declares a column that recorded steps lack.

        Does nothing if a learner connector may add columns, or if the recorded columns are not known completely.
        """
        if self.config._learner_connector and not for_replay:
            # A connector of the user may make them of the sampled steps.
            return
        for mid, names in self.learner_group.declared_columns.items():
            step = self.recorded.get(mid)
            if step is None or not step.is_complete:
                continue
            if missing := [name for name in names if name not in step.columns]:
                raise ValueError(
                    f"columns_from_acting declares the columns {missing}, but sampled steps of module {mid!r} have "
                    f"only {sorted(step.columns)}. Return {missing} from {type(self.acting_modules[mid]).__name__}."
                    f"forward_exploration(), add an env-to-module connector that makes them, or return them in the "
                    f"`info` of a single-agent JAX environment."
                )

    @abc.abstractmethod
    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[Any]:
        """Creates the `SampledUpdate` of one update on sampled steps: the plan of these steps and the sizes of the
        update.

        Such an update is a call of `Place.update`. Sizes are, for example, the number of epochs and the minibatch size.

        Args:
            samples: Plan of the samples on which the update is made, all shares together.
            **sizes: See `Learner.plan`.

        Raises:
            ValueError: If the sizes do not fit the devices.
        """

    @abc.abstractmethod
    def num_stacked_frames(self) -> dict[str, int]:
        """Number of frames that are stacked in each module's observations, ``{module_id: number}``.

        If the number is above 1, samples and replay buffers can store only the newest frame of each step. The number is
        1 if observations are not stacked, or if whole observations must be stored because the EnvRunner class may
        change them.
        """

    # ------------------------------------------------------------------------------------------------ host or device

    @property
    @abc.abstractmethod
    def samples_travel(self) -> bool:
        """Whether EnvRunners sample in other processes. If True, sending one frame per step instead of stacked frames
        reduces the size of transfers.
        """

    @property
    @abc.abstractmethod
    def restores_environments(self) -> bool:
        """Whether a run that is restored from a checkpoint continues the unfinished episodes of the training
        environments.
        """

    @abc.abstractmethod
    def choose(self, *, host: T, device: T) -> T:
        """Returns one of its arguments: `device` if the devices store the samples, `host` if the host stores them."""

    @abc.abstractmethod
    def sampled_at_once(self, samples: SamplePlan) -> tuple[int, Mapping[str, Layout]]:
        """Returns the number of steps and the array layouts of one EnvRunner's rollout.

        The result is ``(T, layouts)``, where T is the number of steps. `layouts` is ``{module_id: array layout}``, with
        the stacked frames and recurrent chunks of columns. The columns of a module without an entry in `layouts` have
        the shapes in the attribute `recorded`.
        """

    @abc.abstractmethod
    def train_layouts(self, samples: SamplePlan) -> Mapping[str, Layout]:
        """Returns the array layout of each module's train batch: stacked frames, recurrent chunks and masks.

        An update builds this batch from the samples that the sampling plan `samples` describes.
        """


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HostFacts(Facts):
    """Inputs of `TrainingStep.plan`, which computes the sizes of samples and updates, for a driver on the host.

    The driver samples with EnvRunners, or reads recorded steps from host memory.

    Attributes:
        samples_as_recorded: Whether runners return the unchanged outputs of their pipelines.
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
    """Inputs of `TrainingStep.plan`, which computes the sizes of samples and updates, for an on-device driver.

    The driver's compiled program steps environments, or draws batches from data on the devices.

    Attributes:
        num_envs: Environments over all devices.
        rollout: The static parts of sampling; None without an environment.
        recorded_shapes: Shapes of the columns of one device's environments in a step, ``{module_id: [1, B, ...]}``.
        records_block: Whether a call returns everything that it sampled.
    """

    learner: Learner
    num_envs: int
    rollout: DeviceRollout | None
    recorded_shapes: Mapping[str, Any]
    records_block: bool

    def num_rows(self, num_envs: int) -> dict[str, int]:
        rows = super().num_rows(num_envs) if self.rollout is None else self.rollout.module_map.num_rows(num_envs)
        return {mid: number for mid, number in rows.items() if mid in self.module_map.agents_of}

    def plan_samples(self, num_steps: int, *, in_frames: bool = False, **sizes: Any) -> SamplePlan:
        # Callbacks are shown whole observations, and files have them.
        return super().plan_samples(num_steps, in_frames=in_frames and not self.records_block, **sizes)

    def plan_update(self, samples: SamplePlan, **sizes: Any) -> SampledUpdate[UpdatePlan]:
        num_columns, learner = self.num_envs * samples.num_shares, self.learner
        plan = learner.plan(**sizes)
        if num_columns % plan.num_shards:
            raise ValueError(
                f"num_shuffle_shards={plan.num_shards} must divide {num_columns}, the number of rollout fragments in a "
                f"train batch (num_envs_per_env_runner={self.num_envs} * {num_columns // self.num_envs} fragments per "
                f"environment). Set num_shuffle_shards to a divisor of {num_columns}, or change "
                "num_envs_per_env_runner."
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
