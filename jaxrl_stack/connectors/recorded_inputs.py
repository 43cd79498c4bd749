"""Conversion of recorded observations of an environment to module inputs, for offline training and off-policy
estimates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import RecordedMeanStdFilter
from jaxrl_stack.connectors.markers import ENV_TO_MODULE
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.live_inputs import traced_once
from jaxrl_stack.utils.spaces import difference, shape_dtype_struct

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline

_ROWS = 1024
"""Observations that a call of the compiled connectors takes: data sets of any length are a few programs."""


class PipelineInputs:
    """Converts recorded observations of an environment to module inputs with an env-to-module pipeline.

    Leaves out `RecordedMeanStdFilter`: `DataNormalization` or the policy normalises the converted observations.

    Args:
        space: Space of the module's observations.
        make_pipeline: Returns the pipeline; called when observations of an environment are first met.

    Attributes:
        space: Space of the module's observations.
    """

    def __init__(self, space: gym.Space, make_pipeline: Callable[[], EnvToModulePipeline]):
        self.space = space
        self._make_pipeline = make_pipeline

    @functools.cached_property
    def pipeline(self) -> EnvToModulePipeline:
        """Env-to-module pipeline with which observations are converted; created at the first access."""
        return self._make_pipeline()

    @property
    def env_space(self) -> gym.Space:
        """Space of the environment's observations."""
        space: Any = self.pipeline.input_observation_space
        return space

    def convert(self, observations: Any) -> Any:
        """Converts a batch of environment observations to module inputs.

        Args:
            observations: Pytree that mirrors `env_space` (leaves ``[N, ...]``).

        Raises:
            ValueError: A connector has a state, works on episodes, or depends on previous actions, previous rewards or
                resets, so that it cannot convert single observations; or the pipeline's output space differs from
                `space`.
        """
        self._check_rows_do(observations)
        number = len(jax.tree.leaves(observations)[0])
        parts = []
        for start in range(0, number, _ROWS):
            rows = jax.tree.map(lambda x: x[start : start + _ROWS], observations)  # noqa: B023
            own = min(_ROWS, number - start)
            size = min(_ROWS, max(64, 1 << (own - 1).bit_length()))
            made = jax.device_get(self._program(jax.tree.map(lambda x: _padded(x, size), rows)))  # noqa: B023
            parts.append(jax.tree.map(lambda x: x[:own], made))  # noqa: B023
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: np.concatenate(xs), *parts)

    @functools.cached_property
    def _members(self) -> list[tuple[str, Any]]:
        """Returns ``(name, connector)`` of the connectors that convert the recorded observations: all connectors of the
        pipeline except `RecordedMeanStdFilter` and markers (connectors without effect, in place of RLlib's).
        """
        left_out = (*ENV_TO_MODULE, RecordedMeanStdFilter)
        return [(name, own) for name, own in self.pipeline._flat_members() if not isinstance(own, left_out)]

    @functools.cached_property
    def _program(self) -> Any:
        members = self._members

        def apply(rows: Any) -> Any:
            batch = {DEFAULT_MODULE_ID: {Columns.OBS: rows}}
            for _, connector in members:
                batch = connector.apply(connector.init(1), batch, ConnectorContext())[1]
            return batch[DEFAULT_MODULE_ID][Columns.OBS]

        return jax.jit(apply)

    @functools.cached_property
    def _of_several_steps(self) -> list[str]:
        """Names of the connectors that cannot convert single observations.

        These are the host connectors. If the pipeline has none, they are the connectors with a state. If it has
        neither, they are the connectors whose results depend on the previous action, the previous reward or resets.
        """
        of_episodes = [name for name, own in self._members if own.is_host_connector]
        with_state = [] if of_episodes else [name for name, own in self._members if jax.tree.leaves(own.init(1))]
        if of_episodes or with_state:
            return of_episodes or with_state
        blank = self.pipeline.blank_context([DEFAULT_MODULE_ID], 1)
        earlier = {name: getattr(blank, name) for name in ("prev_actions", "prev_rewards", "reset")}
        batch: Any = {DEFAULT_MODULE_ID: {Columns.OBS: shape_dtype_struct(self.env_space, (1,))}}
        readers = []
        for name, connector in self._members:

            def apply(batch: Any, earlier: dict[str, Any], connector: Any = connector) -> Any:
                return connector.apply(connector.init(1), batch, ConnectorContext(**earlier))[1]

            traced = traced_once(apply, batch, earlier)
            batch = traced.out
            if any(jax.tree.leaves(traced.matters[1])):
                readers.append(name)
        return readers

    def _check_rows_do(self, observations: Any) -> None:
        pipeline, names = self.pipeline, [name for name, _ in self._members]
        if self._of_several_steps:
            raise ValueError(
                f"Each row of the data has a single observation of the environment (space: {self.env_space}), but the "
                f"connectors {self._of_several_steps} need several steps for each input of the module. Record new data "
                "with offline_data(output=...), which stores the module's inputs, or remove these connectors."
            )
        if difference(pipeline.observation_space, self.space):
            shapes = [x.shape[1:] for x in jax.tree.leaves(observations)]
            raise ValueError(
                f"{Columns.OBS!r} has values of shape {shapes[0] if len(shapes) == 1 else shapes}, which the "
                f"connectors {names} convert to {pipeline.observation_space}, but the module's space is {self.space}. "
                "Set the spaces of the data's observations and actions: "
                "environment(observation_space=..., action_space=...)."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Connectors and compiled functions stay in their process.
        return {name: vars(self)[name] for name in ("space", "_make_pipeline")}


def _padded(x: np.ndarray, size: int) -> np.ndarray:
    """Pads an array with zeros to `size` rows."""
    if len(x) == size:
        return x
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
