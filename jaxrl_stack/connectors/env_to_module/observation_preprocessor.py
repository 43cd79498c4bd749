"""A base class for changes to one observation at a time."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorContext, ConnectorV2, nest
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import validate_batch


class SingleAgentObservationPreprocessor(ConnectorV2, abc.ABC):
    """Applies ``preprocess`` to each environment's observation.

    Subclasses override ``preprocess(self, observation)`` with JAX functions; it gets one observation without
    batch axis and is vectorised over the environments here. If shapes, dtypes or bounds change, they also
    override ``recompute_output_observation_space``.

    RLlib's form ``preprocess(self, observation, episode)`` makes the subclass a host piece: it may use any
    Python, and runs on the actor driver only.
    """

    @abc.abstractmethod
    def preprocess(self, observation: Any) -> Any:
        """The changed observation.

        Args:
            observation: Pytree of one observation; leaves have the shapes of the input observation space.
        """

    @property
    def is_host_piece(self) -> bool:
        """True for the form with an ``episode`` that has no default."""
        return super().is_host_piece or self._takes_episode

    @property
    def _takes_episode(self) -> bool:
        parameters = list(inspect.signature(self.preprocess).parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return (
            len([p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]) > 1
        )

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces OBS, leaves ``[B, ...]``.

        Raises:
            ValueError: ``preprocess`` returned shapes or dtypes that the declared output space does not have.
        """
        del ctx
        if self._takes_episode:
            raise TypeError(
                f"{type(self).__name__}.preprocess takes an episode, which exists on the host only. The pure "
                "form is `def preprocess(self, observation)`."
            )
        batch = dict(batch)
        for module_id, columns in batch.items():
            observation = jax.vmap(self.preprocess)(columns[Columns.OBS])
            self._check(module_id, observation)
            batch[module_id] = {**columns, Columns.OBS: observation}
        return state, batch

    def _check(self, module_id: str, observation: Any) -> None:
        if self.observation_space is None:
            return
        space = self._space_of(self._spaces_by_module(self.observation_space, "observation"), module_id)
        try:
            validate_batch(space, observation, batch_dims=1, name="the preprocessed observation")
        except ValueError as error:
            raise ValueError(
                f"{type(self).__name__}.preprocess does not fit the declared output space: {error} Override "
                "`recompute_output_observation_space(self, input_observation_space, input_action_space)` to "
                "return the space of what `preprocess` returns."
            ) from error

    def __call__(
        self,
        *,
        rl_module=None,
        batch: dict[str, Any] | None = None,
        episodes: Sequence[Any] | None = None,
        explore: bool | None = None,
        shared_data: dict | None = None,
        metrics=None,
        **kwargs,
    ) -> dict[str, Any]:
        """Run once on the host; ``preprocess(observation, episode)`` gets ``episodes[i]`` for env i."""
        if not self._takes_episode:
            return super().__call__(
                rl_module=rl_module,
                batch=batch,
                episodes=episodes,
                explore=explore,
                shared_data=shared_data,
                metrics=metrics,
                **kwargs,
            )
        preprocess: Any = self.preprocess
        out, is_flat = nest(batch or {})
        for module_id, columns in out.items():
            items = [
                preprocess(jax.tree.map(lambda leaf, i=i: leaf[i], columns[Columns.OBS]), episode)
                for i, episode in enumerate(episodes or ())
            ]
            observation = jax.tree.map(lambda *leaves: np.stack(leaves), *items)
            out[module_id] = {**columns, Columns.OBS: observation}
        return next(iter(out.values())) if is_flat else out


ObservationPreprocessor = SingleAgentObservationPreprocessor
