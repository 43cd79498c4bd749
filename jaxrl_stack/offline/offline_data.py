"""What `offline_data(input_=...)` names, opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class OfflineData:
    """The recorded data of a config.

    Args:
        config: The algorithm's config.

    Attributes:
        config: As given.
    """

    def __init__(self, config: AlgorithmConfig):
        self.config: Any = config

    def steps(self, columns: Sequence[str], spaces: tuple[Any, Any]) -> tuple[list[Steps], list[float]]:
        """``(the steps of each input, its weight)``, with these columns alone.

        Args:
            columns: Their names.
            spaces: The module's observation and action space.
        """
        raise NotImplementedError
