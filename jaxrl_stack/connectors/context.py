"""Values that a connector may read in addition to its state and the batch, such as a PRNG key and previous actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from flax import struct

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule

if TYPE_CHECKING:
    from jaxrl_stack.core.layouts import Layouts
    from jaxrl_stack.core.rl_module.functional import PureModule


@struct.dataclass
class ConnectorContext:
    """Frozen pytree of the values that a connector may read in addition to its state and the batch, such as a PRNG key
    and the previous actions.

    Attributes:
        params: Trained parameters of the MultiRLModule, ``{ref: array}``.
        rest: Other state of the module, same layout.
        key: PRNG key of this step; None where nothing may be drawn. A pipeline hands every connector a key of its
            own, which follows from the connector's name.
        settings: Current values of the traced settings, ``{module_id: {name: float32}}``.
        step: Lifetime env steps, uint32[2] (hi, lo).
        reset: bool ``[B]``; True where the observation is the first of its episode (next to the environment only).
        prev_actions: ``{module_id: actions}`` (leaves ``[B, ...]``): the actions that led to these
            observations, as the module gave them; zeros after a reset.
        prev_rewards: ``{module_id: float32 [B]}``; zeros after a reset.
        action_masks: ``{module_id: bool [B, A]}``, which actions are valid, in the module-to-env pipeline of acting; a
            module without a mask is left out.
        pure: The MultiRLModule's graph, for ``module``. Static, like everything below.
        explore: Whether actions are sampled (True) or greedy (False).
        update_statistics: False leaves running statistics as they are (final observations, evaluation).
        axis_name: Name of the device axis, or None on one device.
        layouts: Layouts of the modules' columns, in a learner's pipeline; None elsewhere. A module that a connector has
            added is not among them.
    """

    params: Any = None
    rest: Any = None
    key: jax.Array | None = None
    settings: Any = None
    step: Any = None
    reset: Any = None
    prev_actions: Any = None
    prev_rewards: Any = None
    action_masks: Any = None
    pure: PureModule | StandaloneModule | None = struct.field(pytree_node=False, default=None)
    explore: bool = struct.field(pytree_node=False, default=True)
    update_statistics: bool = struct.field(pytree_node=False, default=True)
    axis_name: str | None = struct.field(pytree_node=False, default=None)
    layouts: Layouts | None = struct.field(pytree_node=False, default=None)

    @property
    def module(self) -> Any:
        """MultiRLModule with the current parameters; ``ctx.module[module_id]`` is an RLModule.

        Raises:
            ValueError: The context carries no module.
        """
        if self.pure is None:
            raise ValueError(
                "This connector asks for `ctx.module`, but the context has no module. Call the pipeline with "
                "rl_module=module, or pass ConnectorContext(pure=PureModule(module), params=..., rest=...) to apply()."
            )
        return self.pure.bind(self.params, self.rest)

    def loss_mask(self, module_id: str, columns: Mapping[str, Any]) -> Any:
        """Returns the ``LOSS_MASK`` of a module in a learner pipeline, bool ``[T, B]``, False for steps that losses
        ignore; None if the module has no mask.

        The layout of the module's columns determines whether rows are masked. If the context has no layout of the
        module (a batch from the user), rows are masked if `columns` contains ``LOSS_MASK``.

        Args:
            module_id: The module.
            columns: Columns of the module.
        """
        layout = self._layout_of(module_id) or Layout(is_masked=Columns.LOSS_MASK in columns)
        return Block(dict(columns), layout).mask

    def block(self, module_id: str, columns: Mapping[str, Any]) -> Block:
        """Returns a `Block` of a module's columns ``[T, B, ...]`` in a learner pipeline.

        The block has the static `Layout` that describes masks, stacked frames and recurrent chunks in these columns. If
        the context has no layout for the module, the layout is derived from the module and the columns.

        Args:
            module_id: The module, which is in `module`.
            columns: Its columns ``[T, B, ...]``.
        """
        block = Block(dict(columns), self._layout_of(module_id))
        return block if block.layout is not None else block.of_module(self.module[module_id])

    def _layout_of(self, module_id: str) -> Layout | None:
        return None if self.layouts is None else self.layouts.get(module_id)


class StandaloneModule:
    """Substitute for a `PureModule` (a module as functions of its parameters) outside of compiled code. Its `bind`
    returns the modules that were passed to the constructor.

    Args:
        rl_module: An RLModule, or a MultiRLModule.
        module_ids: The ids by which connectors look the RLModule up: the ids of their batch.
    """

    def __init__(self, rl_module: Any, module_ids: Iterable[str]):
        self._modules = rl_module if isinstance(rl_module, MultiRLModule) else dict.fromkeys(module_ids, rl_module)

    def bind(self, params, rest):
        """Returns the modules that were passed to the constructor, ``{module_id: RLModule}``. Ignores `params`
        and `rest`, because the modules already contain their parameters.
        """
        return self._modules
