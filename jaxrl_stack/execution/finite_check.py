"""Searches for the cause of NaN and infinity in a compiled training program: the first NaN or infinite reward or
observation that an environment has returned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.acting.device_rollout import ShownStep
from jaxrl_stack.acting.episode_replay import side_by_side
from jaxrl_stack.acting.recording import OBSERVATION_NOT_FINITE, REWARD_NOT_FINITE, NotUsable, first_not_finite
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM
from jaxrl_stack.env.observation_forms import shown
from jaxrl_stack.utils.action_masks import NO_VALID_ACTION_SHARE, note_mask_that_allows_nothing
from jaxrl_stack.utils.devices import own_shards

if TYPE_CHECKING:
    from jaxrl_stack.execution.device_driver import DeviceDriver

logger = logging.getLogger(__name__)

_IN_WORDS = {
    Columns.REWARDS: REWARD_NOT_FINITE,
    Columns.OBS: OBSERVATION_NOT_FINITE,
    Columns.FINAL_OBS: OBSERVATION_NOT_FINITE,
}


class NotFiniteError(ValueError):
    """Error for a reward or an observation that is NaN or infinite."""


class FiniteCheck:
    """Checks whether the outputs of a `DeviceDriver`'s program are finite, and searches for the cause of NaN.

    Losses, norms of gradients, returns of episodes and the last observations show that a number is not finite. The
    cause is found in the training step's kept data, or in a second run of the call that records its samples.

    Args:
        driver: The driver.
    """

    def __init__(self, driver: DeviceDriver):
        self._driver = driver
        self._stops = driver.config.check_nans is not False
        self._is_known = False
        self._has_said_env = False

    def after_call(
        self, iteration: int, settings: Any, learned: Mapping[Any, Any], block: Any, before: tuple[Any, Any] | None
    ) -> None:
        """Checks whether losses, gradient norms, returns and observations of one call of the driver's program are
        finite.

        If a value is not finite, searches for the first NaN or infinite reward or observation, and raises an error that
        describes it; with ``check_nans=False``, logs a warning instead. If only losses or gradient norms are not
        finite, and the search finds nothing, only logs a warning, for every value of ``check_nans``.

        Args:
            iteration: Number of the iteration, for the message.
            settings: The learner's traced settings in the call.
            learned: Metrics of its last update, NumPy.
            block: Recorded columns (leaves ``[D, T, B, ...]``); empty if it recorded nothing.
            before: ``(learner, runner)`` state before the call, if it still exists; see `DeviceDriver.sampled_again`.

        Raises:
            NotFiniteError: If an environment returned a non-finite number, unless ``check_nans=False``.
        """
        if any(value > 0 for path, value in learned.items() if path[-1] == NO_VALID_ACTION_SHARE):
            note_mask_that_allows_nothing()
        is_finite = self._driver.shards.is_finite and self._are_finite(learned)
        if is_finite or self._is_known or (self._has_said_env and not self._stops):
            self._is_known = not is_finite
            return
        found = self._first(settings, block, before)
        if found is None and self._driver.shards.is_finite:
            self._is_known = True
            logger.warning(
                "A loss or gradient of iteration %d is not finite, and no such reward or observation was found. Lower "
                "lr, or set grad_clip. To stop at the first such tensor, set debugging(check_nans=True).",
                iteration,
            )
            return
        message = self._described(found, iteration)
        if self._stops:
            raise NotFiniteError(
                f"{message} Repair the environment (check_jax_env() checks rewards and observations), or continue with "
                f"debugging(check_nans=False), which only warns."
            )
        self._has_said_env = True
        logger.warning(
            "%s With check_nans=False, connector statistics ignore this value, but losses include it.", message
        )

    def _are_finite(self, learned: Mapping[Any, Any]) -> bool:
        """Whether all losses and gradient norms of the last update are finite; `learned` contains the metrics of this
        update.
        """
        names = (self._driver.learner.TOTAL_LOSS_KEY, GLOBAL_NORM)
        return bool(np.isfinite([value for path, value in learned.items() if path[-1].endswith(names)]).all())

    def _described(self, found: NotUsable | None, iteration: int) -> str:
        driver = self._driver
        assert driver.rollout is not None
        name, num_steps = driver.rollout.env.name, driver.program.steps_per_call
        if found is None:
            return (
                f"An environment ({name}) returned a reward or an observation that is not finite, or a choice that "
                f"its observation space {shown(driver.rollout.env.observation_space)} does not have, in one of the "
                f"{num_steps} steps that iteration {iteration} sampled of each."
            )
        when = f"in step {found.step} of the {num_steps} that iteration {iteration} sampled of each"
        if found.step < 0:
            when = f"{-found.step} steps before the first one of iteration {iteration}"
        where = f"Environment {found.env} of {driver.config.num_envs_per_env_runner} ({name})"
        return f"{where} returned {found.what}, {when}."

    def _first(self, settings: Any, block: Any, before: tuple[Any, Any] | None) -> NotUsable | None:
        driver = self._driver
        if driver.rollout is None:
            return None
        if len(block):
            return self._first_in(block)
        if kept := driver.step.not_finite_in_kept():
            return self._first_kept(kept)
        block = driver.sampled_again(settings, before)
        return None if block is None else self._first_in(block)

    def _first_in(self, block: Any) -> NotUsable | None:
        """Finds the first NaN or infinity in the columns that one call of the program sampled.

        The columns are arrays of the shape ``[D, T, B, ...]``, sampled on D devices. Returns the step, the environment
        and a description of the value; with several agents, the description names the agent. Returns None if all values
        are finite.
        """
        rollout = self._driver.program.rollout
        module_map = self._driver.module_map if rollout is None else rollout.module_map
        block = own_shards(block)
        if not module_map.is_multi_agent:
            (columns,) = side_by_side(block).values()
            return first_not_finite(columns)
        of_agents = block.agents if isinstance(block, ShownStep) else module_map.by_agent(block, axis=2)
        found = []
        for agent, columns in side_by_side(of_agents).items():
            if (first := first_not_finite(columns)) is not None:
                found.append(first._replace(what=f"{first.what}, of agent {agent!r}"))
        return min(found, default=None)

    def _first_kept(self, kept: Mapping[str, Mapping[str, np.ndarray]]) -> NotUsable | None:
        """Finds the first NaN or infinity among the steps in the replay buffer.

        Returns the step's number, the environment and a description of the value; None if all values are finite. Step 0
        is the first step of the program's last call; older steps have negative numbers.
        """
        found = []
        columns = [column for of_module in kept.values() for column in of_module.items()]
        for order, (name, is_bad) in enumerate(columns):
            for env, place in np.argwhere(is_bad).tolist():
                step = place - is_bad.shape[1] + self._driver.program.steps_per_call
                # The observation before a step is older than its reward.
                found.append((step, name != Columns.OBS, order, env, _IN_WORDS[name]))
        if not found:
            return None
        step, _, _, env, what = min(found)
        return NotUsable(step, env, what)
