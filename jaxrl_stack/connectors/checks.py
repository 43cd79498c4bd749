"""Checks of user-defined connectors before compilation: signatures, state, and output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import PURE_SIGNATURE, ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext, StandaloneModule
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.signatures import call_problem
from jaxrl_stack.utils.spaces import shape_dtype_struct, validate_batch

# Unlikely as a width, so that a mixed-up axis shows.
BATCH_SIZE = 7


def check_connectors(pipeline: ConnectorPipelineV2) -> None:
    """Checks that the connectors of a pipeline have valid methods ``init`` and ``apply``.

    Each connector must override ``apply``, and its methods ``init`` and ``apply`` must take the right arguments. Host
    connectors, which override ``__call__``, are not checked.

    Raises:
        TypeError: Names the connector, the method, what is wrong with it, and shows the right form.
    """
    for name, connector in pipeline._flat_members():
        if connector.is_host_connector:
            continue
        if type(connector).apply is ConnectorV2.apply:
            raise TypeError(
                f"Connector {name!r} overrides neither `apply` nor `__call__`. Override `apply`:\n{PURE_SIGNATURE}"
            )
        for method, arguments in (("init", ("num_envs",)), ("apply", ("state", "batch", "ctx"))):
            problem = call_problem(getattr(connector, method), *arguments)
            if problem is not None:
                raise TypeError(
                    f"Connector {name!r}: {method} cannot be called with ({', '.join(arguments)}): {problem}. The "
                    f"right form is\n{PURE_SIGNATURE}"
                )


def check_env_to_module(pipeline: ConnectorPipelineV2, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Traces an env-to-module pipeline on observations of its input space, and checks the resulting batch. The pipeline
    must not contain host connectors (which override ``__call__``).

    A pipeline with a connector that asks for the module is not traced: there is none yet.

    Args:
        pipeline: Pipeline with known input spaces.
        settings: ``{module id: {traced setting: number or `jax.ShapeDtypeStruct`}}``.

    Raises:
        TypeError: A connector cannot be compiled, or returns something else than it should.
        ValueError: The observations that come out do not fit the space that the connectors declare.
    """
    names, pure = f"The env-to-module connectors {pipeline.names}", pipeline.pure_part()
    observation_space = pipeline.input_observation_space
    assert observation_space is not None
    ((module_id, own),) = settings.items()
    traced = {n: v for n, v in own.items() if isinstance(v, jax.ShapeDtypeStruct)}
    context = pipeline.blank_context([module_id], BATCH_SIZE, pure=_NoModule(), settings={module_id: traced})
    batch = {module_id: {Columns.OBS: shape_dtype_struct(observation_space, (BATCH_SIZE,))}}

    def run(batch: dict[str, Any], context: ConnectorContext) -> dict[str, Any]:
        context = dataclasses.replace(context, settings={module_id: {**own, **context.settings[module_id]}})
        for name, connector in pure.members:
            _check_is_arrays(name, connector.init(BATCH_SIZE))
        return pure.apply(pure.init(BATCH_SIZE), batch, context)[1]

    try:
        out = jax.eval_shape(run, batch, context)
    except _AsksForModule:
        return
    except jax.errors.JAXTypeError as error:
        where = next((note for note in getattr(error, "__notes__", ()) if note.startswith("In connector")), "")
        reason = str(error).split("\n", 1)[0]
        raise TypeError(
            f"{names} cannot be compiled: {type(error).__name__}: {reason} {where} Python's if, while, int() and "
            "NumPy cannot read values of compiled code: use jnp.where, jax.lax.cond and jnp."
        ) from error
    if list(out) != [module_id]:
        raise ValueError(
            f"{names} return a batch with the modules {list(out)}, but their input batch has only the module "
            f"{module_id!r}. Return {{{module_id!r}: columns}}."
        )
    if Columns.OBS not in out[module_id]:
        raise ValueError(
            f"{names} return the columns {list(out[module_id])}, but the module reads {Columns.OBS!r}. Keep this "
            "column in the batch."
        )
    try:
        validate_batch(pipeline.observation_space, out[module_id][Columns.OBS], 1, f"column {Columns.OBS!r}")
    except ValueError as error:
        raise ValueError(
            f"{names} return observations that do not fit their declared space: {error} Override "
            "recompute_output_observation_space() to declare their space."
        ) from error


def _check_is_arrays(name: str, state: Any) -> None:
    for path, leaf in jax.tree.leaves_with_path(state, is_leaf=lambda leaf: leaf is None):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float):
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise TypeError(
                f"Connector {name!r}: init returned a state with {leaf!r}{where}, but states may hold only arrays. "
                f"The right form is\n{PURE_SIGNATURE}"
            )


class _AsksForModule(Exception):
    """Raised if a connector reads ``ctx.module`` while connectors are checked before compilation, because the check has
    no module. The check then ends without an error.
    """


class _NoModule(StandaloneModule):
    """Placeholder for ``ctx.module`` while connectors are checked before compilation; reading it raises
    `_AsksForModule`.
    """

    def __init__(self) -> None:
        super().__init__(None, ())

    def bind(self, params: Any, rest: Any) -> NoReturn:
        raise _AsksForModule
