"""Checks of the inputs and outputs of a module's forward passes, made before training."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis.target_network_api import TargetNetworkAPI
from jaxrl_stack.core.rl_module.apis.value_function_api import ValueFunctionAPI
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, RLModule
from jaxrl_stack.utils.spaces import shape_dtype_struct
from jaxrl_stack.utils.tracing_errors import remedy

_READ_COLUMNS = "A batch is a dict of arrays with batch axes: read batch[Columns.OBS]."
# An unlikely width, so that confused axes are found.
BATCH_SIZE = 7
SEQUENCE_LENGTH = 3


def check_module_outputs(
    module: RLModule,
    *,
    module_id: str | None = None,
    forwards: Collection[str] = ("inference", "exploration", "train"),
    train_keys: Collection[str] = (),
    exploration_keys: Collection[str] = (),
    declared: Collection[str] = (),
) -> None:
    """Checks the outputs of a module's forward passes by tracing the passes on a batch with the shapes of the module's
    spaces.

    Args:
        module: A built module with an observation space; a MultiRLModule is checked module by module.
        module_id: Id of the module, for messages.
        forwards: Passes to check; those that a `learner_only` module never runs are skipped.
        train_keys: Columns that the algorithm's loss needs from `forward_train`.
        exploration_keys: Columns besides ACTIONS that it needs from a `forward_exploration` that chooses actions.
        declared: Columns of sampled steps that a pass may read. Their shapes are unknown, so that a pass that reads one
            is not checked.

    Raises:
        ValueError: If a pass fails, or an output is missing or has the wrong type, shape or dtype. The message names
            the module's class, the method and the column, the expected and the actual value, and the fix.
    """
    if isinstance(module, MultiRLModule):
        for id_, part in module.items():
            check_module_outputs(
                part,
                module_id=id_,
                forwards=forwards,
                train_keys=train_keys,
                exploration_keys=exploration_keys,
                declared=declared,
            )
        return
    required = {"train": train_keys, "exploration": exploration_keys}
    traced: dict[str, Any] = {}
    for forward in forwards:
        if module.learner_only and forward != "train":
            continue
        if module.inference_only and forward == "train":
            continue
        with contextlib.suppress(_ReadsDeclaredColumn):
            _ForwardCheck(module, module_id, forward, declared).run(required.get(forward, ()), traced)


class _ReadsDeclaredColumn(Exception):
    """Exception that ends the check of a forward pass without a failure, because the pass reads a declared column.

    A declared column is an additional column of sampled steps, and its shape is unknown.
    """


class _ForwardCheck:
    """Check of the outputs of one forward method of a module: `_forward_exploration`, `_forward_inference` or
    `_forward_train`.
    """

    def __init__(self, module: RLModule, module_id: str | None, forward: str, declared: Collection[str]):
        self.module = module
        self.declared = declared
        name = type(module).__name__
        self.owner = name if module_id is None else f"{name} (module {module_id!r})"
        self.forward = forward
        self.method = f"_forward_{forward}"
        self.batch = self._dummy_batch()
        obs = jax.tree.leaves(self.batch[Columns.OBS])[0].shape
        self.leading: tuple[int, ...] = tuple(obs[: 2 if Columns.STATE_IN in self.batch else 1])

    def fail(self, key: str, expected: str, got: str, remedy: str, method: str | None = None) -> None:
        raise ValueError(
            f"{self.owner}.{method or self.method}() returned {key}: expected {expected}, got {got}. {remedy}"
        )

    def fail_lacking(self, outputs: dict[str, Any], expected: str, remedy: str) -> None:
        self.fail(f"the columns {list(outputs)}", expected, "none of that name", remedy)

    def _dummy_batch(self) -> dict[str, Any]:
        if self.module.observation_space is None:
            raise ValueError(
                f"{self.owner} has no observation_space, so that its forward passes cannot be checked. Pass "
                "observation_space= to its spec or constructor."
            )
        leading: tuple[int, ...] = (BATCH_SIZE,)
        state = self.module.get_initial_state()
        batch: dict[str, Any] = {}
        if jax.tree.leaves(state):
            batch[Columns.STATE_IN] = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((BATCH_SIZE, *jnp.shape(leaf)), jnp.result_type(leaf)), state
            )
            leading = (BATCH_SIZE, SEQUENCE_LENGTH if self.forward == "train" else 1)
            batch[Columns.RESETS] = jax.ShapeDtypeStruct(leading, jnp.bool_)
        batch[Columns.OBS] = shape_dtype_struct(self.module.observation_space, leading)
        if self.forward == "train":
            if self.module.action_space is not None:
                batch[Columns.ACTIONS] = shape_dtype_struct(self.module.action_space, leading)
            if isinstance(self.module, TargetNetworkAPI):
                # Such modules learn from transitions that are drawn from replay.
                batch[Columns.NEXT_OBS] = batch[Columns.OBS]
        return batch

    def _trace(self, method: str, call: Any, *more: Any) -> Any:
        definition, params, rest = ModuleDefinition.of(self.module)
        try:
            return jax.eval_shape(
                lambda p, r, *args: call(definition.merge(p, r), *args), params, rest, self.batch, *more
            )
        except KeyError as error:
            if error.args and error.args[0] in self.declared:
                raise _ReadsDeclaredColumn from error
            raise ValueError(
                f"{self.owner}.{method}() looks up the key {error}, which neither the batch (columns "
                f"{list(self.batch)}) nor the module's outputs contain. Read one of these columns. Or add an "
                f"env-to-module connector that writes the column {error}, and set columns_from_acting = ({error},) in "
                f"{type(self.module).__name__}."
            ) from error
        except Exception as error:
            if isinstance(error, NotImplementedError) and not remedy(error):
                raise
            shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), self.batch)
            hint = remedy(error) or ("" if isinstance(error, AttributeError) else _READ_COLUMNS)
            reason = str(error).split("\n", 1)[0].rstrip(".") if hint else str(error)
            raise ValueError(
                f"{self.owner}.{method}() failed on a test batch made from the module's observation space "
                f"{self.module.observation_space}, with the columns {shapes}: {type(error).__name__}: "
                f"{reason}{hint and '. '}{hint}"
            ) from error

    def run(self, required: Collection[str], traced: dict[str, Any]) -> None:
        """Traces the module's forward pass, and raises a ValueError if the outputs are invalid.

        Args:
            required: Columns that the pass must return.
            traced: Outputs of the traced passes by method, so that a method that serves two passes is traced once.
        """
        is_default = getattr(type(self.module), self.method) is getattr(RLModule, self.method)
        source = "_forward" if is_default and self.forward != "train" else self.method
        if source not in traced:
            traced[source] = self._trace(
                self.method, lambda module, batch: module._call_forward(self.method, batch, {})
            )
        outputs = traced[source]
        if not isinstance(outputs, dict):
            got = f"a {type(outputs).__name__}"
            self.fail(got, "a dict {column: array}", got, "Return {Columns.ACTION_DIST_INPUTS: ...}.")
        self._check_action_keys(outputs, required)
        if Columns.ACTION_DIST_INPUTS in outputs:
            self._check_action_dist_inputs(outputs[Columns.ACTION_DIST_INPUTS])
        for key in (Columns.VF_PREDS, Columns.ACTION_LOGP):
            if key in outputs:
                self._check_scalars(key, outputs[key])
        self._check_state(outputs)
        if self.forward == "train" and isinstance(self.module, ValueFunctionAPI):
            self._check_values(lambda module, batch: module.compute_values(batch))
            if Columns.EMBEDDINGS in outputs:
                self._check_values(
                    lambda module, batch, embeddings: module.compute_values(batch, embeddings=embeddings),
                    outputs[Columns.EMBEDDINGS],
                )

    def _check_values(self, call: Any, *more: Any) -> None:
        self._check_scalars("the values", self._trace("compute_values", call, *more), method="compute_values")

    def _check_action_keys(self, outputs: dict[str, Any], required: Collection[str]) -> None:
        acts = Columns.ACTION_DIST_INPUTS in outputs or Columns.ACTIONS in outputs
        if self.forward != "train" and not acts:
            expected = f"{Columns.ACTION_DIST_INPUTS!r} or {Columns.ACTIONS!r} among them"
            remedy = "Return {Columns.ACTION_DIST_INPUTS: ...}, or actions under Columns.ACTIONS."
            self.fail_lacking(outputs, expected, remedy)
        has_logp = Columns.ACTION_DIST_INPUTS in outputs and self.forward == "exploration"  # see GetActions
        made = {*outputs, *([Columns.ACTION_LOGP] if has_logp else [])}
        missing = [key for key in required if key not in made]
        if missing and self.forward != "exploration":
            remedy = f"Add {missing} to the dict that {self.method}() returns."
            self.fail_lacking(outputs, f"also {missing}, which the loss needs", remedy)
        elif missing and Columns.ACTIONS in outputs:
            self.fail_lacking(
                outputs,
                f"{missing} in addition to {Columns.ACTIONS!r}, which the loss needs",
                f"Return only {{Columns.ACTION_DIST_INPUTS: ...}}, from which actions and their columns are made; or "
                f"add {missing} (with {Columns.ACTION_DIST_INPUTS!r} among them, {Columns.ACTION_LOGP!r} may be left "
                f"out).",
            )

    def _check_action_dist_inputs(self, inputs: Any) -> None:
        key = Columns.ACTION_DIST_INPUTS
        if not isinstance(inputs, jax.ShapeDtypeStruct):
            self.fail(key, "one array", f"a {type(inputs).__name__}", "Concatenate the parts on the last axis.")
        self._check_float(key, inputs)
        shape = tuple(inputs.shape)
        if shape[:-1] != self.leading:
            expected = f"the batch axes {self.leading} before one axis"
            self.fail(key, expected, f"the shape {shape}", "Keep the batch axes of the observations.")
        if self.module.action_space is None:
            return
        dist_cls = getattr(self.module, f"get_{self.forward}_action_dist_cls")()
        width = dist_cls.required_input_dim(self.module.action_space)
        if shape[-1] != width:
            self.fail(
                key,
                f"the width {width} that {dist_cls.__name__} needs for the action space {self.module.action_space}",
                f"{shape[-1]} (shape {shape})",
                f"Give the last layer {width} outputs, or override get_{self.forward}_action_dist_cls().",
            )

    def _check_scalars(self, key: str, values: Any, method: str | None = None) -> None:
        shape = tuple(jnp.shape(values))
        if shape != self.leading:
            remedy = "Return one number per row."
            if shape == (*self.leading, 1):
                remedy = "Drop the last axis: values[..., 0]."
            self.fail(key, f"the shape {self.leading}", f"{shape}", remedy, method)
        self._check_float(key, values, method)

    def _check_float(self, key: str, values: Any, method: str | None = None) -> None:
        if not jnp.issubdtype(values.dtype, jnp.floating):
            self.fail(key, "a float dtype", str(values.dtype), "Convert it with .astype(jnp.float32).", method)

    def _check_state(self, outputs: dict[str, Any]) -> None:
        if Columns.STATE_OUT not in outputs:
            if Columns.STATE_IN in self.batch and self.forward != "train":
                expected = f"also {Columns.STATE_OUT!r}, because get_initial_state() is not empty"
                self.fail_lacking(outputs, expected, "Return the new recurrent state.")
            return
        if Columns.STATE_IN not in self.batch:
            remedy = "Return the state at the start of an episode from get_initial_state()."
            self.fail(Columns.STATE_OUT, "no recurrent state", "one", remedy)
        expected = jax.tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype.name), self.batch[Columns.STATE_IN])
        got = jax.tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype.name), outputs[Columns.STATE_OUT])
        if expected != got:
            self.fail(Columns.STATE_OUT, f"{expected}", f"{got}", "Keep structure, shapes and dtypes of STATE_IN.")
