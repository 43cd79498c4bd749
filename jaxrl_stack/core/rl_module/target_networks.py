"""Target networks: copies of trained networks (main networks); the copies are not trained, but slowly follow the main
networks.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from jaxrl_stack.ops.q_learning import soft_update

Network = TypeVar("Network")


class TargetParam(nnx.Variable):
    """Parameter of a target network. It follows a trained parameter slowly, and no optimizer updates it."""


def make_target_network(main_net: Network) -> Network:
    """Copies a network with its current values; the copy's parameters are `TargetParam`s.

    Args:
        main_net: An NNX module. Its random streams are copied, too.
    """

    def copied(variable: Any) -> Any:
        if not isinstance(variable, nnx.Variable):
            return variable if isinstance(variable, np.ndarray) else jax.numpy.array(variable)
        kind = TargetParam if isinstance(variable, nnx.Param) else type(variable)
        # jnp.array would compile a program for every shape.
        value = jax.device_put(variable.get_raw_value(), may_alias=False)
        return kind(value, **variable.get_metadata())

    return jax.tree.map(copied, main_net, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def update_target_network(*, main_net: Any, target_net: Any, tau: float) -> None:
    """Moves a target network towards its main network, in place: ``tau * main + (1 - tau) * target``.

    Learners do this inside their compiled update; use the function for modules without a Learner.

    Args:
        main_net: An NNX module.
        target_net: Result of `make_target_network` for it.
        tau: Weight of the main network, in [0, 1].
    """
    main, target = dict(nnx.to_flat_state(nnx.state(main_net))), dict(nnx.to_flat_state(nnx.state(target_net)))
    pairs = {path: (main[path], leaf) for path, leaf in target.items() if follows(type(leaf))}
    new = {path: soft_update(m.get_raw_value(), t.get_raw_value(), tau) for path, (m, t) in pairs.items()}
    nnx.update(target_net, nnx.from_flat_state(list(new.items())))


def follows(kind: type) -> bool:
    """Whether a target update moves a target network's Variables of type `kind` towards the main network's Variables.

    `soft_update` is such an update. True for all Variable types except random streams.
    """
    return issubclass(kind, nnx.Variable) and not issubclass(kind, nnx.RngState)
