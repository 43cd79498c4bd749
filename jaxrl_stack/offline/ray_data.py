"""Reading with Ray Data: for formats that this package cannot read, and for Ray Data's data set objects."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.offline.offline_prelearner import OfflinePreLearner
from jaxrl_stack.utils.signatures import call_problem, call_users

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def is_ray_dataset(data: Any) -> bool:
    """Whether an object is a Ray Data data set; does not import Ray."""
    ray_data = sys.modules.get("ray.data")
    return ray_data is not None and isinstance(data, ray_data.Dataset)


def read_with_ray(config: AlgorithmConfig) -> Any:
    """Reads the paths of `offline_data(input_=...)` with Ray Data's reader `input_read_method`, or a user's function.

    Raises:
        ValueError: If there is no such reader.
    """
    import ray.data  # pyright: ignore[reportMissingImports]

    asked: Any = config
    method = asked.input_read_method
    read = method if callable(method) else getattr(ray.data, method, None)
    if read is None or isinstance(asked.input_, dict):
        raise ValueError(
            f"offline_data(input_read_method={method!r}, input_={asked.input_!r}): input_read_method must be a "
            "function or the name of a reader in ray.data, such as 'read_csv', and input_ must be paths without "
            "weights."
        )
    arguments = asked.input_read_method_kwargs
    problem = call_problem(read, asked.input_, **arguments)
    if problem is not None:
        raise ValueError(
            f"The reader offline_data(input_read_method={method!r}) cannot be called with the paths and the given "
            f"arguments: {problem}. Correct input_read_method_kwargs={arguments!r}."
        )
    return call_users(read, f"offline_data(input_read_method={method!r})", asked.input_, **arguments)


@dataclasses.dataclass(frozen=True)
class WholePiece:
    """Whole Ray Dataset as a single piece: one call of `RayData.read` reads all rows.

    The numbers of rows and steps are None, because they are unknown before reading.
    """

    num_rows: None = None
    num_steps: None = None
    input: int = 0


class RayData:
    """Reads a Ray Dataset as a whole, and converts its rows to steps with the config's `prelearner_class` (by default
    `OfflinePreLearner`).

    Args:
        data: The Ray Dataset.
        config: The algorithm's config.
    """

    weights = None

    def __init__(self, data: Any, config: AlgorithmConfig):
        self._data, self._config = data, config
        self.pieces = [WholePiece()]

    def read(self, piece: WholePiece) -> Steps:
        """Reads all steps of the data set, batch by batch.

        Raises:
            ValueError: If there are none.
        """
        config: Any = self._config
        spaces = (config.observation_space, config.action_space)
        prelearner = (config.prelearner_class or OfflinePreLearner)(config=config, spaces=spaces)
        size = config.input_read_batch_size or config.total_train_batch_size
        batches = self._data.iter_batches(**{"batch_size": size, "batch_format": "numpy", **config.iter_batches_kwargs})
        parts = [prelearner.steps({name: np.asarray(own) for name, own in batch.items()}) for batch in batches]
        if not parts:
            raise ValueError(f"offline_data(input_={config.input_!r}) has no rows. Set input_ to data with rows.")
        return Steps.concatenated(parts)
