"""DreamerV3: config and algorithm."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.actor_critic import width_of_actions
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_learner import DreamerV3Learner
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import MODULE_SETTINGS, DreamerV3RLModule
from jaxrl_stack.algorithms.dreamerv3.imagined_video import Comparison, compare, longest_in_an_episode, write_comparison
from jaxrl_stack.algorithms.dreamerv3.networks import IMAGE_SIZE
from jaxrl_stack.algorithms.dreamerv3.networks_memory import networks_memory
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.windows_step import WindowsStep
from jaxrl_stack.algorithms.dreamerv3.world_model import has_size, is_image, parts_of
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number, one_of
from jaxrl_stack.algorithms.settings import LEARNER, Section, inert, later, static, traced
from jaxrl_stack.connectors.env_to_module import ResizeImages
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.default_observations import is_vector
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.connectors.connector_v2 import ConnectorV2
    from jaxrl_stack.utils.memory import MemoryEstimate
    from jaxrl_stack.videos.video import Video


_CURIOSITY = "RLlib's new stack does not read it either."
_NO_DREAMS = (
    "Until then DreamerV3.imagine_video() writes a video of what a trained model imagines, and "
    "DreamerV3RLModule.imagine() of Algorithm.get_module() makes rollouts of it."
)
_OF_OTHERS = {
    "burn_in_len": "windows start from the learned initial state",
    "n_step": "returns are those of imagined rollouts",
    "training_intensity": "set training_ratio",
    "num_steps_sampled_before_learning_starts": "updates begin after batch_size_B * batch_length_T random env steps",
    "train_batch_size_per_learner": "set batch_size_B and batch_length_T",
    "train_batch_size": "set batch_size_B and batch_length_T",
    "grad_clip": "world model, actor and critic have limits of their own, such as actor_grad_clip_by_global_norm",
    "grad_clip_by": "gradients are clipped by global norms",
    "recorded_share": "the world model learns from what was sampled",
}
"""Settings that other algorithms have -> why they would have no effect."""

_LAST_FORM: dict[str, Any] = {
    "gru_blocks": 8,
    "optimizer": "laprop",
    "replay_latents": True,
    "actor_gradient": "reinforce",
}
"""Settings of the paper's version of 2024, and of its author's code."""


class DreamerV3Config(OffPolicyConfig):
    """Settings of DreamerV3 (Hafner et al., 2023, arXiv:2301.04104).

    ::

        algo = DreamerV3Config().environment("gymnax/CartPole-v1").training(model_size="micro").build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("model_size", "XS", one_of(*MODEL_SIZES),
                "Sizes of all networks, from 'nano' to 'XL'; see sizes.MODEL_SIZES.", LEARNER),
            static("training_ratio", 1024, number(above=0, finite=True),
                "Replayed items per env step: 1024 with batches of 16 x 64 gives one update per env step."),
            static("batch_size_B", 16, integer(1), "Number of windows per update.", LEARNER),
            static("batch_length_T", 64, integer(2), "Number of consecutive items per window.", LEARNER),
            static("horizon_H", 15, integer(1), "Number of steps of imagined rollouts.", LEARNER),
            traced("gae_lambda", 0.95, number(0, 1), "Trace decay of imagined returns."),
            traced("entropy_scale", 3e-4, number(0, finite=True), "Weight of the actor's entropy."),
            traced("return_normalization_decay", 0.99, number(0, 1),
                "Decay of the moving percentiles of returns; advantages are divided by their distance, at least by 1."),
            traced("world_model_lr", 1e-4, amount_or_schedule, "Learning rate of the world model.",
                check_when_set=False),
            traced("actor_lr", 3e-5, amount_or_schedule, "Learning rate of the actor.", check_when_set=False),
            traced("critic_lr", 3e-5, amount_or_schedule, "Learning rate of the critic.", check_when_set=False),
            static("world_model_grad_clip_by_global_norm", 1000.0, number(above=0, also=(None,)),
                "Maximum global norm of the world model's gradients.", LEARNER),
            static("actor_grad_clip_by_global_norm", 100.0, number(above=0, also=(None,)),
                "Maximum global norm of the actor's gradients.", LEARNER),
            static("critic_grad_clip_by_global_norm", 100.0, number(above=0, also=(None,)),
                "Maximum global norm of the critic's gradients.", LEARNER),
            static("train_actor", True, boolean, "Train the actor.", LEARNER),
            static("train_critic", True, boolean, "Train the critic and its slow copy.", LEARNER),
            static("symlog_obs", "auto", one_of("auto", True, False),
                "Encode and predict observations as symlog; 'auto' does so for all except images.", LEARNER),
            static("use_float16", False, boolean,
                "Compute networks in bfloat16; parameters, states, distributions and losses stay float32.", LEARNER),
            static("gru_blocks", 1, integer(1),
                "Number of blocks of the recurrent state, each a function of itself and the input; 8 in the paper's "
                "last form.",
                LEARNER),
            static("optimizer", "adam", one_of("adam", "laprop"),
                "Optimizer: 'adam' with clipped global norms, or 'laprop' with adaptive clipping.", LEARNER),
            static("replay_latents", False, boolean,
                "Start windows from the latest states of the model that replay stores for their first items, instead "
                "of initial states.", LEARNER),
            static("actor_gradient", "auto", one_of("auto", "reinforce", "dynamics"),
                "Gradient of the actor: REINFORCE, or through imagined rollouts; 'auto' uses REINFORCE for discrete "
                "actions.", LEARNER),
            inert("intrinsic_rewards_scale", 0.1, number(0), "Weight of rewards for curiosity.", instead=_CURIOSITY),
            inert("use_curiosity", False, boolean, "Rewards for what the world model cannot predict.",
                instead=_CURIOSITY),
        )),
        Section("reporting", "Sets what an iteration is and what its result holds.", (
            inert("report_individual_batch_item_stats", False, boolean, "Loss terms of single items.",
                instead="results hold means over all items; Learner.metrics takes what a loss of your own logs."),
            later("report_dream_data", False, boolean, "Imagined rollouts in results.", instead=_NO_DREAMS),
            later("report_images_and_videos", False, boolean, "Videos of imagined rollouts in results.",
                instead=_NO_DREAMS),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "lr": None,
        "gamma": 0.997,
        "train_batch_size": None,
        "rollout_fragment_length": 1,
        "num_env_runners": 0,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
        "tau": 0.02,
        "metrics_num_episodes_for_smoothing": 1,
    }

    _algorithm = "DreamerV3"
    _default_learner_class = DreamerV3Learner
    _default_module_class = DreamerV3RLModule

    def paper(self) -> DreamerV3Config:
        """Changes this config to the algorithm of the paper's final version (2024) and of the author's code.

        Without this call, the config has the algorithm of the paper's first version (2023), which RLlib implements.

        It calls ``training(gru_blocks=8, optimizer="laprop", replay_latents=True, actor_gradient="reinforce")``.

        Returns:
            This config.
        """
        return self.training(**_LAST_FORM)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in MODULE_SETTINGS if name != "num_random_steps"}
        return super()._model_config_auto_includes | own | {"num_random_steps": self.num_prefilled_steps}

    @property
    def items_per_update(self) -> int:
        """Number of items in one update, ``batch_size_B * batch_length_T``. An item is a step or the final observation
        of an episode.
        """
        return self.batch_size_B * self.batch_length_T

    @property
    def train_batch_size_per_learner(self) -> int:
        """Items (steps and final observations) per update and learner."""
        return self.items_per_update // (self.num_learners or 1)

    @property
    def num_prefilled_steps(self) -> int:
        """Number of env steps with random actions before updates begin. The first iteration contains all of these
        steps.
        """
        return self.items_per_update

    @property
    def updates_per_env_step(self) -> Fraction:
        """Updates per env step that `training_ratio` requires, as a fraction. Numerator times denominator is below
        2^31, so that `WindowsStep` can count due updates with 32-bit integers.
        """
        wanted = Fraction(self.training_ratio) / self.items_per_update
        return wanted.limit_denominator(int(2**15 / math.sqrt(wanted)))

    def sampling_hints(self) -> list[str]:
        """Returns an empty list: hints about faster sampling would not help, because updates take nearly all of the
        time, and more env steps require more updates.
        """
        return []

    def _default_env_to_module_connectors(self, observation_space: gym.Space, module_id: Any) -> list[ConnectorV2]:
        """Returns the default env-to-module connectors, which resize images to 64 x 64 pixels.

        Images are Boxes of rank 2 or 3. They are not flattened, and are resized only if they have another size.
        Observations without images get the default connectors of all algorithms.
        """
        space = observation_space
        parts = list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else [space]
        images = [part for part in parts if is_image(part)]
        if not images or not self._uses_default_module():
            return super()._default_env_to_module_connectors(observation_space, module_id)
        resizing = []
        if sizes := sorted({part.shape[:2] for part in images if not has_size(part)}):
            notice_once(
                f"Images of {' and '.join(f'{h} x {w}' for h, w in sizes)} pixels are resized to 64 x 64, the size of "
                f"DreamerV3's networks. If they are not images, flatten them: env_runners("
                f"env_to_module_connector=lambda env, spaces, device: FlattenObservations())."
            )
            resizing.append(ResizeImages(height=IMAGE_SIZE, width=IMAGE_SIZE))
        if all(is_image(part) or is_vector(part) for part in parts):
            return resizing
        resized = ResizeImages(observation_space, height=IMAGE_SIZE, width=IMAGE_SIZE).observation_space
        assert isinstance(resized, gym.Space)
        return [*resizing, *super()._default_env_to_module_connectors(resized, module_id)]

    def networks_memory(self, observation_space: gym.Space, action_space: gym.Space) -> MemoryEstimate:
        """Estimates the memory of the networks and of one update. `Algorithm.memory_estimate` estimates the rollout,
        the train batch and the replay buffer.

        Args:
            observation_space: Observation space of the module, with images of 64 x 64.
            action_space: Action space of the module.
        """
        spec = self.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: (observation_space, action_space)})
        return networks_memory(self, nnx.eval_shape(lambda: spec.build(seed=0)))

    def differentiates_dreams(self, action_space: gym.Space | None) -> bool:
        """Whether the actor's gradient flows through imagined rollouts. If not, the actor uses a REINFORCE gradient."""
        if self.actor_gradient == "auto":
            return not isinstance(action_space, gym.spaces.Discrete)
        return self.actor_gradient == "dynamics"

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if self.lr is not None:
            self._value_error(
                f"training(lr={self.lr!r}): world model, actor and critic have separate learning rates. Set "
                f"world_model_lr, actor_lr and critic_lr, and leave lr at None."
            )
        for name, instead in _OF_OTHERS.items():
            if name in self.explicitly_set and self._was_changed(self._declarations.by_name[name]):
                value = vars(self)[self._declarations.by_name[name].attribute]
                self._value_error(f"training({name}={value!r}) would have no effect: {instead}. Leave it out.")
        self._validate_spaces()
        self._validate_sampling()
        self._validate_replay()
        if self.optimizer == "laprop":
            for name in ("world_model", "actor", "critic"):
                limit = f"{name}_grad_clip_by_global_norm"
                if limit in self.explicitly_set:
                    notice_once(
                        f"training({limit}={vars(self)[limit]}) has no effect: optimizer='laprop' clips gradients by "
                        f"the norms of parameters."
                    )

    def _validate_spaces(self) -> None:
        if self.observation_space is not None:
            parts_of(self.observation_space, any_size=True)
        if self.action_space is not None:
            width_of_actions(self.action_space)
        if self.actor_gradient == "dynamics" and isinstance(self.action_space, gym.spaces.Discrete):
            notice_once("training(actor_gradient='dynamics') uses straight-through gradients for discrete actions.")
        if (units := MODEL_SIZES[self.model_size].gru_units) % self.gru_blocks:
            self._value_error(
                f"training(gru_blocks={self.gru_blocks}) must divide the {units} units of the recurrent state of "
                f"model_size={self.model_size!r}."
            )

    def _validate_sampling(self) -> None:
        if self.num_env_runners:
            self._value_error(
                f"env_runners(num_env_runners={self.num_env_runners}) must be 0 for DreamerV3, whose sampling is fast. "
                "To step several environments, set num_envs_per_env_runner."
            )
        if self.batch_mode != "truncate_episodes":
            self._value_error(
                f"env_runners(batch_mode={self.batch_mode!r}): DreamerV3's training_ratio needs rounds of a fixed "
                "number of steps. Leave it at 'truncate_episodes'."
            )
        if self.reads_recorded_data:
            self._value_error(
                f"offline_data(input_={self.input_!r}): DreamerV3 learns from sampled steps only. Leave it out, or use "
                f"DQN or SAC, whose replay buffers can start with recorded steps."
            )

    def _validate_replay(self) -> None:
        given = self.replay_buffer_config
        if given.get("type") != "EpisodeReplayBuffer" or given.get("zero_init_states"):
            self._value_error(
                f"training(replay_buffer_config={given!r}): DreamerV3 needs a uniform replay buffer without states. "
                f"Use {{'type': 'EpisodeReplayBuffer', 'capacity': ...}}."
            )
        per_env = self.replay_capacity // int(self.num_envs_per_env_runner)
        if self.replay_capacity < self.items_per_update or per_env < self.batch_length_T:
            self._value_error(
                f"training(replay_buffer_config={{'capacity': {self.replay_capacity}}}) holds {per_env} steps per "
                f"environment (num_envs_per_env_runner={self.num_envs_per_env_runner}). Raise it to at least "
                f"batch_length_T={self.batch_length_T} per environment, and {self.items_per_update} in total "
                f"(batch_size_B * batch_length_T)."
            )
        if self.num_learners > 1 and self.batch_size_B % self.num_learners:
            self._value_error(
                f"training(batch_size_B={self.batch_size_B}) must be a multiple of num_learners={self.num_learners}."
            )


class DreamerV3(OffPolicyAlgorithm):
    """DreamerV3; see the README of this folder."""

    training_step_class = WindowsStep

    _default_config_class = DreamerV3Config

    def imagine_video(
        self,
        path: str | os.PathLike[str],
        *,
        given: int = 5,
        imagined: int = 15,
        windows: int = 4,
        seed: int = 0,
        fps: float = 5.0,
    ) -> Video:
        """Records a video that compares sequences of recorded steps (windows) from the replay buffer with the world
        model's predictions of their observations.

        The model gets `given` observations, and then only recorded actions. The run does not change.

        Args:
            path: File that ends in .mp4, .webm or .gif; see `record`.
            given: Number of steps with observations, >= 1.
            imagined: Number of steps without observations, >= 1; fewer if no episode is long enough.
            windows: Number of windows, side by side.
            seed: Selects the windows: other numbers give other windows.
            fps: Frames per second.

        Returns:
            The `Video`, which a notebook shows as a player; its `path` is the file.

        Raises:
            ValueError: For another ending, numbers below 1, or if no episode in the buffer has ``given + 1`` steps.
        """
        comparison, space = self._compared(given, imagined, windows, seed)
        return write_comparison(comparison, space, path, fps)

    def compare_with_replay(self, *, given: int = 5, imagined: int = 15, windows: int = 4, seed: int = 0) -> Comparison:
        """Compares recorded sequences from the replay buffer with the world model's predictions of their observations
        and rewards.

        The recorded sequences of steps (windows) and the predictions are returned as arrays. `imagine_video`, which
        shows the observations as a video, describes the arguments.
        """
        return self._compared(given, imagined, windows, seed)[0]

    def _compared(self, given: int, imagined: int, windows: int, seed: int) -> tuple[Comparison, gym.Space | None]:
        for name, value in (("given", given), ("imagined", imagined), ("windows", windows)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name}={value!r}: imagine_video() and compare_with_replay() need an integer of at least 1."
                )
        self._check_is_running()
        if not self.driver.num_env_steps:
            raise ValueError(
                "imagine_video() and compare_with_replay() need steps in the replay buffer, which is empty. Call "
                "train() first."
            )
        module = cast("DreamerV3RLModule", self.get_module())
        step = cast("WindowsStep", self.driver.step)
        columns = step.look_at(16 * windows, given + imagined, seed)
        columns = longest_in_an_episode(columns, windows, given + 1)
        return compare(module, columns, given), module.observation_space
