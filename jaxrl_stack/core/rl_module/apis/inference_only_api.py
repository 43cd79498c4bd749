"""Interface of modules that can be built for acting, without the networks that only training needs."""

from __future__ import annotations

import abc


class InferenceOnlyAPI(abc.ABC):
    """RLModule with networks that only training needs, such as a critic; inference-only modules are built
    without them.
    """

    @abc.abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Returns the dotted paths of the attributes that only training needs: `["vf", "encoder.critic"]`.

        They are removed from a module that is built with `inference_only=True`, and left out of
        `get_state(inference_only=True)`.
        """
