"""Separation of modules into arrays and a static definition, for plain JAX transformations.

`nnx.split` runs once; traced functions then take and return flat dicts `{ref: array}`. A `ref` is the path of a leaf
joined by "/": `"default_policy/encoder/actor/dense_0/kernel"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.rl_module.target_networks import TargetParam

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule

Path = tuple[Any, ...]
Flat = dict[Any, Any]

# Attribute of a MultiRLModule with its modules; left out of refs.
MODULES_ATTRIBUTE = "_rl_modules"


def join_path(path: Path) -> str:
    """Joins the parts of an array's path to the array's name (ref), such as `"encoder/dense_0/kernel"`."""
    return "/".join(str(part) for part in path)


def raw_value(leaf: Any) -> Any:
    """Returns the array inside a Flax Variable; returns arrays unchanged."""
    return leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf


def copy_array(value: Any) -> jax.Array:
    """Returns a copy of an array (or of PRNG keys) in a new buffer, which can be donated."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.array(jax.random.key_data(value))
        return jax.random.wrap_key_data(jax.device_put(data), impl=str(jax.random.key_impl(value)))
    return jax.device_put(np.array(value))  # jnp.array would compile a program for every shape


class ModuleDefinition:
    """Static part of a Flax NNX module: graph definition, paths of the arrays, and NumPy constants.

    NumPy arrays among the attributes are constants of the definition: they are neither trained nor part of
    the state, and stay NumPy arrays in the merged module. JAX arrays and Variables other than `nnx.Param` are
    `rest`.
    """

    def __init__(self, graphdef: Any, params: Flat, rest: Flat, rename: Callable[[Path], str]):
        self.graphdef = graphdef
        self.param_refs: dict[Path, str] = {path: rename(path) for path in params}
        self.rest_refs: dict[Path, str] = {}
        self.constants: dict[Path, np.ndarray] = {}
        self.variable_types: dict[str, type] = {}
        for path, leaf in rest.items():
            if isinstance(leaf, np.ndarray):
                self.constants[path] = leaf
            elif not isinstance(leaf, nnx.Intermediate):
                self.rest_refs[path] = rename(path)
                self.variable_types[self.rest_refs[path]] = type(leaf)

    @classmethod
    def of(cls, module: nnx.Module, rename: Callable[[Path], str] = join_path) -> tuple[ModuleDefinition, Flat, Flat]:
        """Splits `module` into its static definition, its parameters and its other arrays; the latter two are `{ref:
        array}` (ref: path joined by "/"), without copies.

        Args:
            module: The module; it is not changed.
            rename: Function from a path to its ref; the default joins it by "/".
        """
        graphdef, params, rest = _split(module)
        definition = cls(graphdef, params, rest, rename)
        return definition, *definition._named(type(module), params, rest)

    def same_as(self, other: ModuleDefinition) -> bool:
        """Whether this definition and `other` have equal graph definitions and the same objects as NumPy constants.

        If True, a program that was traced with the module definition `other` also works with this definition.
        """
        return (
            self.graphdef == other.graphdef
            and self.constants.keys() == other.constants.keys()
            and all(value is other.constants[path] for path, value in self.constants.items())
        )

    def is_alike(self, other: ModuleDefinition) -> bool:
        """Whether this definition and `other` have equal graph definitions, and NumPy constants with equal values.

        If True, a program that was traced with the module definition `other` also works with this definition. The
        result is valid only if both modules were built from the same spec.

        Python compares objects of classes without ``__eq__`` by identity. In graph definitions, such objects count as
        equal if their classes agree, because each module creates new ones.
        """
        mine, others = self.graphdef, other.graphdef
        return (
            mine.nodes == others.nodes
            and len(mine.attributes) == len(others.attributes)
            and all(map(_attributes_alike, mine.attributes, others.attributes))
            and self.constants.keys() == other.constants.keys()
            and all(np.array_equal(value, other.constants[path]) for path, value in self.constants.items())
        )

    def merge(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> Any:
        """Builds the module that this definition describes, from the module's parameters `params` and its other arrays
        `rest`.
        """
        return nnx.merge(self.graphdef, nnx.from_flat_state([*self.by_path(params, rest), *self.constants.items()]))

    def by_path(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> list[tuple[Path, Any]]:
        """Converts two dicts of named arrays, the parameters and the other arrays, to a flat NNX state.

        The dicts `params` and `rest` have the form ``{ref: array}`` (ref: name of the array). The flat state is a list
        of ``(path, array)`` pairs.
        """
        return [
            *((path, params[ref]) for path, ref in self.param_refs.items()),
            *((path, rest[ref]) for path, ref in self.rest_refs.items()),
        ]

    def flatten(self, module: nnx.Module) -> tuple[Flat, Flat]:
        """Returns the parameters and the other arrays of `module`, as two dicts ``{ref: array}`` in the order of this
        definition.

        A ref is a path joined by "/". The module must have the structure that this definition describes.
        """
        _, params, rest = _split(module)
        return self._named(type(module), params, rest)

    def _named(self, owner: type, params: Flat, rest: Flat) -> tuple[Flat, Flat]:
        # Intermediates are outputs of a forward pass for its caller, not state of the module.
        present = {path for path, leaf in rest.items() if not isinstance(leaf, nnx.Intermediate)} | params.keys()
        changed = present ^ (self.param_refs.keys() | self.rest_refs.keys() | self.constants.keys())
        if changed:
            raise ValueError(
                f"The leaves {sorted(join_path(path) for path in changed)} of {owner.__name__} appeared or "
                "disappeared in a forward pass. Create every Variable and array attribute in setup(), and only "
                "change its value afterwards."
            )
        return (
            {ref: raw_value(params[path]) for path, ref in self.param_refs.items()},
            {ref: raw_value(rest[path]) for path, ref in self.rest_refs.items()},
        )


def _attributes_alike(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two entries ``(name, value)`` of NNX graph definitions are equal.

    Static values of a class without ``__eq__`` count as equal if both have this class, because Python compares such
    values only by identity.
    """
    if one == other:
        return True
    (name, value), (other_name, other_value) = one, other
    static, other_static = getattr(value, "value", None), getattr(other_value, "value", None)
    return name == other_name and type(static) is type(other_static) and type(static).__eq__ is object.__eq__


def _split(module: nnx.Module) -> tuple[Any, Flat, Flat]:
    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    return graphdef, dict(nnx.to_flat_state(params)), dict(nnx.to_flat_state(rest))


class PureModule:
    """Functional form of a built `MultiRLModule`, for JAX transformations: pure functions that take the module's arrays
    as arguments. The object stores the static definition of the module.

    A Variable that several modules share has one ref. It belongs to the module with the fewest Params, so that a
    shared part with its own module id belongs to that id; among equal numbers, to the module that was added first.

    Args:
        module: The built module. It is not changed, and is the template for `refs_of`.

    Attributes:
        params: Initial trained values `{ref: array}`, copies.
        rest: Initial values of all other arrays (RNG keys and counts, batch statistics, JAX array attributes),
            copies.
        module_ids: Ids of the modules, in the order of their addition.
        target_refs: Refs of the entries of `rest` that are parameters of target networks.

    Raises:
        ValueError: If the MultiRLModule has arrays outside of its modules.
    """

    def __init__(self, module: MultiRLModule):
        self.template = module
        self.module_ids: tuple[str, ...] = tuple(module.keys())
        self._ref_of_variable: dict[int, str] = {}
        states = {id_: dict(nnx.to_flat_state(nnx.state(module[id_]))) for id_ in self.module_ids}
        sizes = {id_: sum(isinstance(leaf, nnx.Param) for leaf in state.values()) for id_, state in states.items()}
        for module_id in sorted(self.module_ids, key=sizes.__getitem__):
            for path, leaf in states[module_id].items():
                if isinstance(leaf, nnx.Variable):
                    self._ref_of_variable.setdefault(id(leaf), f"{module_id}/{join_path(path)}")
        self._parameters: dict[int, tuple[Any, list[Any]]] = {}
        self._trainable_ids = [module_id for module_id in self.module_ids if sizes[module_id]]
        leaves = dict(nnx.to_flat_state(nnx.state(module)))
        for path in leaves:
            if path[0] != MODULES_ATTRIBUTE:
                raise ValueError(
                    f"{type(module).__name__} has the array {join_path(path)!r} outside of its RLModules, where no "
                    "optimizer would train the array. Create the array in an RLModule, add this RLModule with "
                    "add_module(), and let the other RLModules read the array from there."
                )
        self.definition, params, rest = ModuleDefinition.of(
            module, lambda path: self._ref_of_variable.get(id(leaves[path]), join_path(path[1:]))
        )
        self.params: Flat = {ref: copy_array(value) for ref, value in params.items()}
        self.rest: Flat = {ref: copy_array(value) for ref, value in rest.items()}
        types = self.definition.variable_types
        self._key_refs = [ref for ref, kind in types.items() if issubclass(kind, nnx.RngKey)]
        self._count_refs = [ref for ref, kind in types.items() if issubclass(kind, nnx.RngCount)]
        self.target_refs = frozenset(ref for ref, kind in types.items() if issubclass(kind, TargetParam))

    def bind(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> MultiRLModule:
        """Builds the MultiRLModule from its parameters `params` and its other arrays `rest`. This method is cheap
        enough for calls in traced functions.

        Inside `jax.grad` or `jax.lax.scan`, bind and unbind within the transformed function: a module that
        was bound outside must not draw random numbers there.
        """
        return self.definition.merge(params, rest)

    def unbind(self, module: MultiRLModule) -> tuple[Flat, Flat]:
        """Returns the parameters and the other arrays of a module that `bind` built, as two dicts ``{ref: array}``.

        The dicts have the keys and the order of `self.params` and `self.rest`.
        """
        return self.definition.flatten(module)

    def reseed(self, rest: Mapping[str, Any], key: jax.Array) -> Flat:
        """Returns `rest` (the module's arrays that are not parameters) with all random streams restarted from `key`;
        unchanged if the module has no streams.
        """
        return {**rest, **self.random_streams(rest, key)}

    def random_streams(self, rest: Mapping[str, Any], key: jax.Array, module_id: str | None = None) -> Flat:
        """Returns only the arrays that `reseed` changes: the module's random streams, restarted from `key`. Use
        `jax.vmap` for many keys.

        Args:
            rest: Non-parameter state.
            key: PRNG key.
            module_id: Returns only the streams of this module, which do not depend on other modules; None for all.
        """
        key_refs, count_refs = self._key_refs, self._count_refs
        if module_id is not None and len(self.module_ids) > 1:
            own = frozenset(self.refs_of(self.template[module_id], nnx.RngState))
            key_refs, count_refs = ([ref for ref in refs if ref in own] for refs in (key_refs, count_refs))
        fresh: Flat = {}
        for i, ref in enumerate(key_refs):
            stream = jax.random.fold_in(key, i)
            shape = jnp.shape(rest[ref])
            fresh[ref] = jax.random.split(stream, shape) if shape else stream
        for ref in count_refs:
            fresh[ref] = jnp.zeros_like(rest[ref])
        return fresh

    def refs_of(self, variable_or_submodule: Any, kind: type = nnx.Param) -> list[str]:
        """Returns the names (refs) of one given Variable of the module, or of all Variables in a given submodule.

        Refs are paths joined by "/". Of a submodule, only Variables of type `kind` are included, also Variables that
        the submodule shares with others.

        Args:
            variable_or_submodule: The Variable or the submodule.
            kind: Subclass of `nnx.Variable`.

        Raises:
            ValueError: If `variable_or_submodule` is not a part of the template module.
        """
        return list(self.paths_of(variable_or_submodule, kind).values())

    def paths_of(self, variable_or_submodule: Any, kind: type = nnx.Param) -> dict[str, str]:
        """Returns ``{path within the submodule: ref}`` for all Variables of type `kind` in a submodule.

        A ref is the name of the Variable in the whole module. For one given Variable, returns ``{"": ref}``.
        """
        if isinstance(variable_or_submodule, nnx.Variable):
            variables = {"": variable_or_submodule}
        else:
            flat = nnx.to_flat_state(nnx.state(variable_or_submodule, kind))
            variables = {join_path(path): variable for path, variable in flat}
        unknown = [variable for variable in variables.values() if id(variable) not in self._ref_of_variable]
        if unknown:
            raise ValueError(
                f"The given {type(variable_or_submodule).__name__} contains {len(unknown)} parameter(s) that are not "
                "in the Learner's module. Pass a submodule or Param of the module that the Learner built."
            )
        return {path: self._ref_of_variable[id(variable)] for path, variable in variables.items()}

    @property
    def stream_refs(self) -> frozenset[str]:
        """Names (refs) of the arrays with the PRNG keys and counts of the module's random streams.

        These arrays are in `rest`, the module's arrays that are not parameters.
        """
        return frozenset([*self._key_refs, *self._count_refs])

    def write_to(self, module: MultiRLModule, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Copies the arrays in `params` and `rest`, dicts ``{ref: array}``, into `module`, in place.

        A ref is the name of an array. The module must have the structure of the module from which this `PureModule` was
        built.
        """
        leaves = [(path, copy_array(value)) for path, value in self.definition.by_path(params, rest)]
        nnx.update(module, nnx.from_flat_state(leaves))

    def parameters_of(self, submodule: Any) -> list[Any]:
        """Returns the parameters (`nnx.Param` Variables) of a submodule.

        Results for submodules of the template are cached, because each change of settings needs them, and walking
        through a module takes a millisecond.
        """
        known = self._parameters.get(id(submodule))
        if known is not None:
            return list(known[1])
        found = [leaf for _, leaf in nnx.to_flat_state(nnx.state(submodule, nnx.Param))]
        if found and all(id(leaf) in self._ref_of_variable for leaf in found):
            self._parameters[id(submodule)] = submodule, found  # an id is only unique while its object exists
        return list(found)

    @property
    def trainable_ids(self) -> list[str]:
        """Ids of the modules that have parameters, including modules that share all their parameters with other
        modules.
        """
        return list(self._trainable_ids)

    def module_refs(self, module_id: str) -> list[str]:
        """Returns the names (refs) of one module's parameters.

        A parameter that several modules share is included only for one of these modules: the module with the fewest
        parameter arrays.

        Raises:
            KeyError: If the module does not exist.
        """
        if module_id not in self.module_ids:
            raise KeyError(f"No module {module_id!r}. Use one of the modules {list(self.module_ids)}.")
        return [ref for ref in self.params if ref.startswith(f"{module_id}/")]

    def parameter_counts(self) -> dict[str, dict[str, int]]:
        """Returns the number of parameters of every module, and of all modules together under ALL_MODULES."""

        def count(params: Iterable[Any], rest: Iterable[Any]) -> dict[str, int]:
            return {
                "num_trainable_parameters": sum(p.size for p in params),
                "num_non_trainable_parameters": sum(r.size for r in rest),
            }

        of_modules = {
            mid: count(
                [self.params[ref] for ref in self.module_refs(mid)],
                [leaf for ref, leaf in self.rest.items() if ref.startswith(f"{mid}/")],
            )
            for mid in self.module_ids
        }
        return of_modules | {ALL_MODULES: count(self.params.values(), self.rest.values())}
