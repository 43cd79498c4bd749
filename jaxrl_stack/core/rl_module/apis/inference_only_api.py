"""Interface of modules that can be built without the parts needed only for training."""

from __future__ import annotations

import abc


class InferenceOnlyAPI(abc.ABC):
    """RLModule with parts that acting does not need."""

    @abc.abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Returns the paths, joined by dots, of attributes that only training needs: `["vf", "encoder.critic"]`.

        They are removed from a module that is built with `inference_only=True`, and left out of
        `get_state(inference_only=True)`.
        """
