"""Registration of the algorithms with Ray Tune. Importing this module does not import Ray.

``tune.Tuner("PPO", param_space=config)`` needs no import from here: the algorithms are registered as soon as both this
package and ``ray.tune`` are imported, in any order.
"""

from __future__ import annotations

from jaxrl_stack.tune.registration import register
from jaxrl_stack.tune.trainables import trainable

__all__ = ["register", "trainable"]
