"""DreamerV3's training step: sample into a replay buffer, then update on windows of consecutive items (steps and
final observations).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.dreamerv3.world_model import Latent
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.execution.plans import Plan
from jaxrl_stack.execution.training_step import Place, TrainState
from jaxrl_stack.replay.draw_forms import StartState, Windows
from jaxrl_stack.utils import counters
from jaxrl_stack.utils import metrics as names

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.facts import Facts


class WindowsStep(OffPolicyStep):
    """Training step that samples into a replay buffer, then makes gradient steps on windows (sequences of consecutive
    items).

    Samples one rollout fragment per environment, and makes as many gradient steps as the training ratio requires. Items
    are steps and final observations. Before the start of learning, only samples.
    """

    trains_several_agents = False
    may_skip_updates = True

    def plan(self, facts: Facts) -> Plan:
        config = self.config
        length = config.get_rollout_fragment_length()
        per_round = length * int(config.num_envs_per_env_runner)
        self._ratio = config.updates_per_env_step
        # At most so many updates are made of one round: a run that is behind makes up for it at twice the speed.
        self.num_updates = math.ceil(2 * self._ratio * per_round)
        # An episode's last observation is an item, however it ended.
        self._samples = facts.plan_samples(length, for_replay=True, all_final_obs=True)
        self.num_env_steps = per_round
        self.learning_starts = config.num_prefilled_steps
        num_devices = facts.learner.num_devices if facts.learner is not None else 1
        if config.batch_size_B % num_devices:
            raise ValueError(
                f"training(batch_size_B={config.batch_size_B}) must be a multiple of the learner's {num_devices} "
                f"devices. Use {-(-config.batch_size_B // num_devices) * num_devices}."
            )
        self._make_replays(facts)
        return Plan.of(self, [self._samples])

    def _form_of(self, module: RLModule) -> Windows:
        """Returns the form of draws from the replay buffer: windows (sequences of `batch_length_T` consecutive items).

        If `replay_latents` is set, a window starts from the latent state that is stored with the window's first item,
        otherwise from the module's initial state.
        """
        config, is_stored = self.config, bool(self.config.replay_latents)
        remedy = "replay_latents=False keeps none of the model's states in the buffer."
        start = StartState.of(module, is_stored=is_stored, remedy=remedy)
        writes = Latent._fields if is_stored else ()
        return Windows(int(config.batch_length_T), start, config.clip_rewards, writes)

    def look_at(self, number: int, length: int, seed: int) -> dict[str, Any]:
        """Draws windows (sequences of consecutive items) from the replay buffer, without changing the buffer.

        The windows are ``[number, length, ...]``; see `Replay.look_at`. If several devices store the buffer, all
        windows are from the first device.
        """
        ((mid, replay),) = self.replays.items()
        what = dataclasses.replace(self.forms[mid], length=length)
        return replay.look_at(self.kept.value[mid], what, number, seed)

    def reset(self, config: Any) -> None:
        super().reset(config)
        self._ratio, self.learning_starts = config.updates_per_env_step, config.num_prefilled_steps

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        learned = None
        state, _ = self._sample(place, state)
        # Only what was sampled tells whether learning starts after it.
        if place.has_sampled(self.learning_starts):
            update = functools.partial(self._update, place)
            state, learned = place.repeat(update, state, self._num_due(state, place))
        return place.publish(state), learned

    def _num_due(self, state: TrainState, place: Place) -> Any:
        """Number of updates in this training step: an int, or an int32 array in a compiled program.

        The result is the total number of due updates minus the updates so far, clipped to the range from 0 to
        `num_updates` (the maximum per training step).

        `training_ratio` (replayed items per env step; items are steps and final observations) determines how many
        updates are due for the env steps since learning started. The counts of env steps and updates cover the whole
        run, and checkpoints store both.
        """
        due = self._due_after(place.num_env_steps(state))
        return counters.bounded_difference(due, place.num_updates(state), self.num_updates)

    def _due_after(self, sampled: Any) -> Any:
        """Total number of updates that are due after `sampled` env steps of the whole run, rounded up. Env steps before
        the start of learning do not count.
        """
        number, of = self._ratio.numerator, self._ratio.denominator
        after = sampled - max(0, self.learning_starts - self.num_env_steps)
        return after // of * number + (after % of * number + of - 1) // of

    def results(self, driver: Driver) -> dict[str, Any]:
        replayed, num_env_steps = driver.num_env_steps_trained, driver.num_env_steps
        is_warm = num_env_steps >= self.learning_starts
        return {
            **super().results(driver),
            "actual_training_ratio": replayed / max(1, num_env_steps),
            names.NUM_GRAD_UPDATES_LIFETIME: driver.num_updates,
            "num_grad_updates_behind": max(0, self._due_after(num_env_steps) - driver.num_updates) if is_warm else 0,
        }
