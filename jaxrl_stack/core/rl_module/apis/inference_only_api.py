"""Interface of modules that can be built without the parts that only training needs."""

from __future__ import annotations

import abc


class InferenceOnlyAPI(abc.ABC):
    """RLModule with parts that are not needed for actions."""

    @abc.abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Returns the paths of attributes that only training needs, joined by dots: `["vf", "encoder.critic"]`.

        They are removed from a module that is built with `inference_only=True`, and left out of
        `get_state(inference_only=True)`.
        """
