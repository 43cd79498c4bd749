"""Modules that can be built without the parts that only training needs."""

from __future__ import annotations

import abc


class InferenceOnlyAPI(abc.ABC):
    """An RLModule with parts that computing actions does not need."""

    @abc.abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Paths of the attributes that only training needs, parts joined by dots: `["vf", "encoder.critic"]`.

        They are removed from a module that is built with `inference_only=True`, and left out of
        `get_state(inference_only=True)`.
        """
