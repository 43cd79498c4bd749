"""Connectors that normalise observations to mean 0 and standard deviation 1."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.states import as_dict, restore, to_host
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops import running_statistics
from jaxrl_stack.utils.action_masks import ACTION_MASK, OBSERVATIONS, mask_key_in
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.spaces import with_parts


class MeanStdFilter(ConnectorV2):
    """Normalises observations by their running mean and standard deviation, which already include the current batch.

    Without normalisation it only clips: ``MeanStdFilter(de_mean_to_zero=False, de_std_to_one=False,
    update_stats=False, clip_by_value=5.0)``.

    Works on every Box of a nested space (integers become float32); Discrete, MultiDiscrete and MultiBinary
    parts stay as they are, and so does an action mask. Rows with LOSS_MASK False, or with a NaN or an infinity, are
    normalised, but not counted: how many were left out, the state's ``count`` tells beside the steps that were sampled.

    The state holds two statistics per Box: ``base``, which all devices and runners share, and ``delta``, what
    this one has seen since. Normalising uses both. ``merge`` adds every device's delta to the base, each
    once, and empties the deltas; ``merge_states`` does the same for runners.

    Args:
        input_observation_space: Any observation space.
        input_action_space: See ConnectorV2.
        de_mean_to_zero: Subtract the mean.
        de_std_to_one: Divide by the standard deviation.
        clip_by_value: Bound of the absolute value of what comes out; None switches clipping off.
        update_stats: False freezes the statistics.
        **kwargs: See ConnectorV2. With ``multi_agent`` each module has separate statistics.

    Raises:
        ValueError: ``clip_by_value`` is not positive.
    """

    def __init__(
        self,
        *args,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        is_positive = clip_by_value is None or clip_by_value > 0.0
        self._check_argument("clip_by_value", clip_by_value, is_positive, "give a positive number, or None for off")
        self.de_mean_to_zero = de_mean_to_zero
        self.de_std_to_one = de_std_to_one
        self.clip_by_value = clip_by_value
        self.update_stats = update_stats

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        """Returns the input space with each Box, except the action mask, replaced by a float32 Box.

        The new Box has the bounds ``±clip_by_value``, or no bounds if ``clip_by_value`` is None.
        """
        return self._map_spaces(self._normalized_space, input_observation_space)

    def _normalized_space(self, space):
        bound = np.inf if self.clip_by_value is None else self.clip_by_value

        def normalized(part):
            return gym.spaces.Box(-bound, bound, part.shape, np.float32) if isinstance(part, gym.spaces.Box) else part

        key = self._mask_key(space)
        if key is None:
            return with_parts(normalized, space)
        return gym.spaces.Dict({key: space[key], OBSERVATIONS: with_parts(normalized, space[OBSERVATIONS])})

    def _mask_key(self, space: Any) -> str | None:
        """Returns the key of the action mask in an observation space; None if the space has no mask. The mask is not
        normalised.
        """
        return mask_key_in(space, self.mask_keys)

    def init(self, num_envs: int) -> Any:
        """Returns empty statistics for every Box in the observation space: ``{module_id: {"base": {path: merged
        statistics}, "delta": {path: statistics since the last merge}}}``.
        """
        return {
            module_id: {"base": self._empty(space), "delta": self._empty(space)}
            for module_id, space in self._observation_spaces().items()
        }

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds OBS (leaves ``[B, ...]``) to the running statistics if ``update_stats`` and ``ctx.update_statistics``
        are True, then normalises OBS.
        """
        spaces = self._observation_spaces()
        state, batch = dict(state), dict(batch)
        is_counted = self.update_stats and ctx.update_statistics
        for key, module_id in self._state_keys(batch):
            columns = batch[module_id]
            mask = columns.get(Columns.LOSS_MASK)
            base, delta = state[key]["base"], dict(state[key]["delta"])

            def filtered(path: str, rows, base=base, delta=delta, mask=mask):
                rows = jnp.asarray(rows)
                if is_counted:
                    update = functools.partial(running_statistics.update, delta[path])
                    delta[path] = running_statistics.on_finite_rows(update, rows, mask)
                return running_statistics.normalize(
                    running_statistics.merge(base[path], delta[path]),
                    rows,
                    subtract_mean=self.de_mean_to_zero,
                    divide_by_std=self.de_std_to_one,
                    clip=self.clip_by_value,
                )

            observation = self._map_boxes(filtered, spaces[key], columns[Columns.OBS])
            state[key] = {"base": base, "delta": delta}
            batch[module_id] = {**columns, Columns.OBS: observation}
        return state, batch

    def merge(self, state: Any, axis_name: str | None) -> Any:
        """Adds every device's new statistics (``delta``) to the merged ones (``base``), identically on all devices, and
        empties ``delta``.
        """
        state = jax.tree.map(jnp.asarray, state)  # NumPy warns where a count's low word overflows
        merged = {}
        for key, space in self._observation_spaces().items():
            delta = state[key]["delta"]
            base = {
                path: running_statistics.merge_over_axis(statistics, delta[path], axis_name)
                for path, statistics in state[key]["base"].items()
            }
            merged[key] = {"base": base, "delta": self._empty(space)}
        return merged

    def rebatch(self, state: Any, num_envs: int) -> Any:
        """Returns the statistics unchanged, because they have no environment axis."""
        return state

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Adds the new observations (``delta``) of several EnvRunners to the statistics of the last merge; counts each
        observation once.

        States with another base than the one with most rows come from runners that missed the last
        synchronisation. Their deltas may be in that base already, so they are left out: rows can be lost then,
        but none counts twice.

        Args:
            states: ``get_state()`` of each runner that has environments, one per runner, and its newest. Not of
                a local runner without environments, which may hold an older result of this method.

        Returns:
            A state for ``set_state`` of all runners; its deltas are empty.
        """
        if not states:
            return {}
        restored = [jax.tree.map(jnp.asarray, restore(self.state, state, type(self).__name__)) for state in states]
        merged = {}
        for key, space in self._observation_spaces().items():
            newest = max((state[key]["base"] for state in restored), key=_num_rows)
            base = newest
            for state in restored:
                if _num_rows(state[key]["base"]) == _num_rows(newest):
                    delta = state[key]["delta"]
                    base = {path: running_statistics.merge(base[path], delta[path]) for path in base}
            merged[key] = {"base": base, "delta": self._empty(space)}
        return as_dict(to_host(merged))

    def rebase_state(self, state: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of `state` with its merged statistics (``base``) replaced by the merged statistics of `known`.

        `known` is another state of this connector. The copy keeps the statistics that `state` has collected since the
        last merge (``delta``).
        """
        return {key: {**own, "base": known[key]["base"]} for key, own in state.items()}

    def _map_boxes(self, function: Callable, space: Any, observation: Any) -> Any:
        """Returns an observation in which ``function(path, value)`` replaces the value of every Box except the action
        mask; values of other spaces do not change.
        """
        key = self._mask_key(space)
        if key is None:
            return _map_boxes(function, space, observation)
        rest = _map_boxes(function, space[OBSERVATIONS], observation[OBSERVATIONS], f"{Columns.OBS}/{OBSERVATIONS}")
        return {key: observation[key], OBSERVATIONS: rest}

    def _empty(self, space: Any) -> dict[str, running_statistics.RunningStatistics]:
        """Returns empty statistics for every Box in a space except the action mask, ``{path: statistics}``. A path is
        ``"obs"``, or ``"obs/key"`` in a Dict.
        """
        empty = {}
        self._map_boxes(lambda path, box: empty.update({path: running_statistics.init(box.shape)}), space, space)
        return empty


class RecordedMeanStdFilter(MeanStdFilter):
    """Normalises observations by the mean and standard deviation of a dataset, as offline training on the dataset does.

    It is the last env-to-module connector with ``offline_data(normalize_observations=True)``, which sets its state.

    Args:
        **kwargs: See MeanStdFilter; statistics are never updated.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "update_stats": False})

    def _mask_key(self, space: Any) -> str | None:
        # Data that it is made from is as the module sees it.
        return mask_key_in(space, (ACTION_MASK,))


def _map_boxes(function: Callable, space, observation: Any, path: str = Columns.OBS) -> Any:
    """Returns an observation in which ``function(path, value)`` replaces the value of every Box; values of other spaces
    do not change.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: _map_boxes(function, sub, observation[key], f"{path}/{key}") for key, sub in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_map_boxes(function, sub, observation[i], f"{path}/{i}") for i, sub in enumerate(space))
    return function(path, observation) if isinstance(space, gym.spaces.Box) else observation


def _num_rows(statistics: dict[str, Any]) -> int:
    """Returns the sum of the observation counts in the running statistics; each Box of the observation space has a
    separate count.
    """
    return sum(to_int(one.count) for one in statistics.values())
