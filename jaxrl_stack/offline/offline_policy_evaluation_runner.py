"""Evaluation runner that estimates a policy's return from recorded episodes by importance sampling."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.offline.offline_data import BASE_COLUMNS, OfflineData
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.policy.estimation import weighted_returns
from jaxrl_stack.policy.recorded_actions import ActingBy, is_countable
from jaxrl_stack.policy.recorded_episodes import RecordedEpisodes, whole_episodes
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule


class OfflinePolicyEvaluationTypes(enum.StrEnum):
    """Values of ``evaluation(offline_evaluation_type=...)``: "eval_loss" computes losses on recorded steps; "is" and
    "pdis" estimate returns by importance sampling of episodes.
    """

    EVAL_LOSS = "eval_loss"
    IS = "is"
    PDIS = "pdis"


class OfflinePolicyEvaluationRunner(OfflineEvaluationRunner):
    """Estimates the policy's return by importance sampling of recorded episodes. A batch has
    ``offline_eval_batch_size_per_runner`` episodes (all episodes, if the data has fewer).

    With ``offline_evaluation_type="is"``, the return of an episode is weighted by the product of its ratios
    ``pi(a) / mu(a)``; with "pdis", each reward is weighted by the product of the ratios up to its step. Rewards are
    discounted with ``gamma``. The estimate is the mean over episodes.

    Args: See `OfflineEvaluationRunner`; with ``offline_eval_rl_module_inference_only``, modules have only the parts
        that compute actions.
    """

    def _make_module(self, config: Any, module_spec: Any, learner: Any) -> None:
        self._follows, self._shares = learner, learner is not None
        self._episodes: tuple[dict[str, Any], RecordedEpisodes, np.ndarray] | None = None
        self._at = 0
        if learner is None:
            spec = module_spec or self._spec(config, config.offline_eval_rl_module_inference_only)
            self._own: Any = spec.build(seed=config.root_seed)

    @property
    def module(self) -> MultiRLModule:
        """MultiRLModule with the current weights."""
        return self._own if self._follows is None else self._follows.module

    def _evaluate_batch(self) -> None:
        module_id = self._module_map().module_id
        module, config = self.module[module_id], self.config
        columns, episodes, order = self._recorded()
        size, shard = int(config.offline_eval_batch_size_per_runner), max(0, self.worker_index - 1)
        first = (self._at * self._num_workers + shard) * size
        self._at += 1
        own = order[np.arange(first, first + min(size, len(order))) % len(order)]
        batch, chosen = episodes.select(own).alone(columns)
        acting = ActingBy(bool(config.explore) or not is_countable(module.action_space))
        if acting.explore and not config.explore:
            notice_once(
                f"evaluation(offline_evaluation_type={config.offline_evaluation_type!r}) evaluates the policy that "
                f"draws its actions, despite explore=False: a greedy policy over {module.action_space} has no "
                "densities."
            )
        method = OfflinePolicyEvaluationTypes(config.offline_evaluation_type).value
        returns = weighted_returns(module, batch, chosen, method, gamma=float(config.gamma), acting=acting)
        for name, values in (("return", returns), ("len", chosen.lengths)):
            self.metrics.log_value(f"episode_{name}_mean", float(np.mean(values)), reduce="mean")
            self.metrics.log_value(f"episode_{name}_min", float(np.min(values)), reduce="min")
            self.metrics.log_value(f"episode_{name}_max", float(np.max(values)), reduce="max")
        self.metrics.log_value("num_episodes", len(own), reduce="sum")
        number = int(chosen.mask.sum())
        self._log_steps(module_id, number)
        self._log_env_steps(number)

    def _recorded(self) -> tuple[dict[str, Any], RecordedEpisodes, np.ndarray]:
        """Returns ``(columns, complete episodes, random order of the episodes)`` of the recorded data. The first call
        reads the data; later calls return the same objects.
        """
        if self._episodes is None:
            steps = recorded_steps(self.config, self._spaces_of_modules()[self._module_map().module_id])
            if self._normalization is not None:
                steps = self._normalization.apply_to_observations(steps)
            episodes = whole_episodes(steps)
            seed = derived_seed("order of episodes in offline evaluation", self.config.root_seed)
            order = np.random.default_rng(seed).permutation(len(episodes.rows))
            self._episodes = (dict(steps.columns), episodes, order)
        return self._episodes

    def _follow(self) -> None:
        """Does nothing, because the runner reads the weights of a Learner in this process directly."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        states = state.get(COMPONENT_LEARNER, state).get(COMPONENT_RL_MODULE)
        if states is not None and self._follows is None:
            for module_id, own in states.items():
                known = self._own[module_id].get_state()
                self._own[module_id].set_state({name: value for name, value in own.items() if name in known})
        self._note_versions(state)


def recorded_steps(config: Any, spaces: tuple[Any, Any]) -> Steps:
    """Reads all recorded steps of the config's setting `input_`, with the recorded probabilities or log-probabilities
    of the actions, if the data contains them.

    Args:
        config: Config of evaluation.
        spaces: The module's observation and action space.

    Raises:
        ValueError: If there is no data, or it does not fit the spaces.
    """
    data = (config.offline_data_class or OfflineData)(config)
    return data.recorded(BASE_COLUMNS, (Columns.ACTION_LOGP, Columns.ACTION_PROB), spaces)
