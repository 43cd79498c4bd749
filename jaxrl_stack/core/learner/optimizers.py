"""Optimizers of a Learner, and gradient clipping."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.ops import reductions
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.functional import PureModule

ParamDict = dict[str, jax.Array]
"""``{ref: array}``, with refs of `Learner.get_param_ref`."""

DEFAULT_OPTIMIZER = "default_optimizer"
ELEMENTWISE_OPTIMIZERS = (optax.adam, optax.sgd, optax.rmsprop, optax.adagrad, optax.adamax, optax.nadam, optax.radam)
"""Factories of elementwise optimizers: a step on one vector of all parameters has the same result, and needs a dozen
times fewer operations for a network of a dozen leaves."""


def is_elementwise(factory: Any) -> bool:
    """Returns True if an optimizer factory is one of `ELEMENTWISE_OPTIMIZERS`.

    The optimizers that these factories build update each parameter entry independently. For a `functools.partial`, the
    wrapped function is looked up.
    """
    return (factory.func if isinstance(factory, functools.partial) else factory) in ELEMENTWISE_OPTIMIZERS


@jax.jit  # one program, rather than one for every shape
def _laid_end_to_end(params: ParamDict) -> jax.Array:
    return reductions.ravel(params)[0]


_CHANGE_RATE = "To change the learning rate of a running algorithm, use algorithm.change_settings(lr=...)."


@dataclasses.dataclass(eq=False)
class RegisteredOptimizer:
    """Registered optimizer of a module: name, factory, learning rate and the parameters that it updates.

    Attributes:
        module_id: Id of the module whose optimizer this is.
        name: Name of the optimizer within the module.
        factory: ``lr -> optax.GradientTransformation``; applied to the current learning rate inside the update.
        refs: Names (refs) of the parameters that the optimizer updates.
        lr: A number or ``[[timestep, value], ...]``; None if `factory` ignores the learning rate.
        is_flat: Whether the optimizer updates one vector of all its parameters; the arrays of its state then are such
            vectors, too.
    """

    module_id: str
    name: str
    factory: Callable[[Any], optax.GradientTransformation]
    refs: tuple[str, ...]
    lr: Any
    is_flat: bool

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            if name in vars(self):
                raise AttributeError(f"The attribute {name} of optimizer {self.name!r} is read-only. {_CHANGE_RATE}")
            super().__setattr__(name, value)

        __getattr__ = old_members({"param_groups": _CHANGE_RATE, "set_lr": _CHANGE_RATE})

    def init(self, params: ParamDict) -> Any:
        """Returns the initial state of this optimizer for its parameters in `params`, ``{ref: array}`` (ref: name of a
        parameter).
        """
        own: Any = {ref: params[ref] for ref in self.refs}
        return self.factory(jnp.float32(0.0)).init(_laid_end_to_end(own) if self.is_flat else own)

    def step(self, lr: Any, gradients: ParamDict, state: Any, params: ParamDict) -> tuple[ParamDict, Any]:
        """Replaces non-finite gradient entries by finite numbers (`jnp.nan_to_num`), then makes one optimizer step on
        the parameters of this optimizer.

        Args:
            lr: Current learning rate, float32 scalar; None if the optimizer has no rate.
            gradients: ``{ref: gradient}``.
            state: Optimizer state.
            params: ``{ref: parameter}`` with the refs of `gradients`.

        Returns:
            ``(new parameters, new state)``.
        """
        transformation = self.factory(lr)
        if not self.is_flat:
            updates, state = transformation.update(jax.tree.map(jnp.nan_to_num, gradients), state, params)
            return cast(ParamDict, optax.apply_updates(params, updates)), state
        gradient, _ = reductions.ravel(gradients)
        vector, unravel = reductions.ravel(params)
        updates, state = transformation.update(jnp.nan_to_num(gradient), state, vector)
        return unravel(vector + cast(jax.Array, updates)), state


class Optimizers(Mapping[ModuleID, Mapping[str, RegisteredOptimizer]]):
    """All optimizers of a Learner, ``{module_id: {name: optimizer}}``, in the order of registration."""

    def __init__(self) -> None:
        self._by_module: dict[ModuleID, dict[str, RegisteredOptimizer]] = {}

    def __getitem__(self, module_id: ModuleID) -> Mapping[str, RegisteredOptimizer]:
        return self._by_module[module_id]

    def __iter__(self) -> Iterator[ModuleID]:
        return iter(self._by_module)

    def __len__(self) -> int:
        return len(self._by_module)

    def __repr__(self) -> str:
        return f"Optimizers({self._by_module})"

    def register(
        self, pure: PureModule, module_id: ModuleID, name: str, optimizer: Any, params: Any, lr_or_lr_schedule: Any
    ) -> None:
        """Adds an optimizer of one module to the learner's optimizers.

        Args:
            pure: The learner's modules.
            module_id, name, optimizer, params, lr_or_lr_schedule: See `Learner.register_optimizer`.

        Raises:
            ValueError: If a parameter belongs to two optimizers, the module already has an optimizer of that name, or
                learning rate and optimizer do not match.
        """
        if name in self.get(module_id, {}):
            raise ValueError(
                f"Module {module_id!r} already has an optimizer {name!r}. Give the second one a different name: "
                f"register_optimizer(optimizer_name=...)."
            )
        taken = [own for by_name in self.values() for own in by_name.values()]
        self._by_module.setdefault(module_id, {})[name] = registered_optimizer(
            pure, taken, module_id, name, optimizer, params, lr_or_lr_schedule
        )

    def find(self, module_id: ModuleID, name: str) -> RegisteredOptimizer:
        """Returns an optimizer of a module by its name.

        Raises:
            KeyError: If the optimizer does not exist.
        """
        if name not in self.get(module_id, {}):
            known = {m: list(names) for m, names in self.items()}
            raise KeyError(
                f"Module {module_id!r} has no optimizer {name!r}; registered are {known}. A loss is a scalar, or a "
                f"dict {{optimizer_name: scalar}} with these names; log other values with self.metrics.log_value()."
            )
        return self[module_id][name]

    def of_module(self, module_id: ModuleID) -> list[tuple[str, RegisteredOptimizer]]:
        """Returns ``[(name, optimizer)]`` of one module, or of all modules for ``ALL_MODULES``."""
        ids = list(self) if module_id == ALL_MODULES else [module_id]
        return [item for mid in ids for item in self.get(mid, {}).items()]

    def init(self, params: ParamDict) -> dict[ModuleID, dict[str, Any]]:
        """Returns the initial states of all optimizers of the learner, ``{module_id: {name: optax state}}``."""
        return {mid: {name: own.init(params) for name, own in by_name.items()} for mid, by_name in self.items()}

    def rates(self) -> dict[ModuleID, dict[str, Any]]:
        """Returns the optimizers' learning rates as `ScheduleArrays` (arrays of timesteps and values), ``{module_id:
        {name: ScheduleArrays}}``; leaves out optimizers that take no learning rate.
        """
        return {
            mid: {name: schedules.encode(own.lr) for name, own in by_name.items() if own.lr is not None}
            for mid, by_name in self.items()
        }


def as_vector(params: ParamDict) -> tuple[Any, Callable[[Any], ParamDict]]:
    """Flattens parameters or gradients to one vector if all are float32 with at most `reductions.LARGEST_VECTOR`
    elements in total; otherwise returns them unchanged.

    Returns:
        ``(vector, or the unchanged dict; inverse function)``.
    """
    is_large = reductions.num_elements(params) > reductions.LARGEST_VECTOR
    if not params or is_large or any(leaf.dtype != jnp.float32 for leaf in params.values()):
        return params, lambda params: params
    return reductions.ravel(params)


def check_gradients(gradients: Any, hook: str, learner: str) -> None:
    """Raises a ValueError if a gradient hook of a learner class did not return a dict ``{ref: gradient}`` (ref: name of
    a parameter).
    """
    if not isinstance(gradients, Mapping):
        raise ValueError(
            f"{learner}.{hook}() returned {type(gradients).__name__}. Return the gradients, a dict {{parameter name: "
            "array}."
        )


def clip_gradients(gradients: ParamDict, grad_clip: Any, grad_clip_by: str) -> tuple[ParamDict, jax.Array]:
    """Clips the gradients of one optimizer by value, by norm or by global norm, with RLlib's settings `grad_clip` and
    `grad_clip_by`.

    Args:
        gradients: ``{ref: gradient}`` of one optimizer.
        grad_clip: Threshold ``c``; None or the Python number 0 disables clipping.
        grad_clip_by: ``"value"`` clips every entry to ``[-c, c]``; ``"norm"`` scales each tensor to an L2 norm of at
            most ``c``; ``"global_norm"`` scales all tensors by one factor, to a joint L2 norm of at most ``c``.

    Returns:
        ``(clipped gradients, global L2 norm before clipping)``.
    """
    flat, unpack = as_vector(gradients)
    norm = optax.tree.norm(flat)
    if grad_clip is None or (isinstance(grad_clip, int | float) and grad_clip == 0):
        return gradients, norm
    if grad_clip_by == "value":
        return unpack(jax.tree.map(lambda g: jnp.clip(g, -grad_clip, grad_clip), flat)), norm
    if grad_clip_by == "norm":
        scales = jax.tree.map(lambda g: grad_clip / jnp.maximum(optax.tree.norm(g), grad_clip), gradients)
        return jax.tree.map(jnp.multiply, gradients, scales), norm
    scale = grad_clip / jnp.maximum(norm + 1e-6, grad_clip)
    return unpack(jax.tree.map(lambda g: g * scale, flat)), norm


def optimizer_factory(
    optimizer: Callable[[Any], optax.GradientTransformation] | optax.GradientTransformation,
    lr_or_lr_schedule: Any,
    optimizer_name: str,
    module_id: str,
) -> Callable[[Any], optax.GradientTransformation]:
    """Returns the function ``lr -> optax.GradientTransformation`` that the arguments of `Learner.register_optimizer`
    describe.

    Raises:
        ValueError: If a learning rate is missing, or has no effect.
        TypeError: If `optimizer` is not such a function.
    """
    if isinstance(optimizer, optax.GradientTransformation):
        if lr_or_lr_schedule is not None:
            raise ValueError(
                f"register_optimizer({optimizer_name!r}): lr_or_lr_schedule={lr_or_lr_schedule!r} has no effect "
                f"on a finished optax transformation. Pass a function of the learning rate, such as optax.adam, "
                f"or lr_or_lr_schedule=None."
            )
        transformation = optimizer
        return lambda lr: transformation
    if lr_or_lr_schedule is None:
        raise ValueError(
            f"register_optimizer({optimizer_name!r}) of module {module_id!r} needs lr_or_lr_schedule: a "
            f"number or [[timestep, value], ...]. Set it with config.training(lr=...)."
        )
    if not callable(optimizer):
        raise TypeError(
            f"register_optimizer({optimizer_name!r}): optimizer={optimizer!r} must be a function of the "
            f"learning rate that returns an optax.GradientTransformation, such as optax.adam."
        )
    schedules.validate_schedule(lr_or_lr_schedule, "lr_or_lr_schedule")
    made = optimizer(jnp.float32(0.0))
    if not isinstance(made, optax.GradientTransformation):
        raise TypeError(
            f"register_optimizer({optimizer_name!r}): optimizer={optimizer!r} returned {made!r}. It must "
            f"return an optax.GradientTransformation, as optax.adam does."
        )
    return optimizer


def refs_to_optimize(pure: PureModule, params: Any, optimizer_name: str) -> tuple[str, ...]:
    """Returns the names (refs), without duplicates, of the parameters that were passed to `Learner.register_optimizer`
    as `params`.

    Raises:
        ValueError: If there are no parameters, or unknown refs.
        TypeError: If an entry is not a parameter, submodule or ref.
    """
    remedy = "Pass self.get_parameters(self.module[module_id]), or submodules or parameter names of that module."
    call = f"register_optimizer({optimizer_name!r}, params=...)"
    params = list(params) if isinstance(params, Iterable) and not isinstance(params, str) else params
    if not isinstance(params, list) or not params:
        raise ValueError(f"{call}: params={params!r} is not a list of parameters. {remedy}")
    refs: list[str] = []
    for param in params:
        if not isinstance(param, str | nnx.Variable | nnx.Pytree):
            raise TypeError(f"{call}: {param!r} is not a parameter, a submodule or the name of a parameter. {remedy}")
        refs.extend([param] if isinstance(param, str) else pure.refs_of(param))
    unknown = [ref for ref in refs if ref not in pure.params]
    if unknown:
        close = difflib.get_close_matches(unknown[0], pure.params, n=3) or list(pure.params)[:6]
        raise ValueError(f"{call}: unknown parameter {unknown[0]!r}; known are, for example, {close}. {remedy}")
    return tuple(dict.fromkeys(refs))


def registered_optimizer(
    pure: PureModule,
    registered: Iterable[RegisteredOptimizer],
    module_id: str,
    name: str,
    optimizer: Any,
    params: Any,
    lr_or_lr_schedule: Any,
) -> RegisteredOptimizer:
    """Builds a `RegisteredOptimizer` from the arguments of `Learner.register_optimizer`.

    Args:
        pure: The learner's modules.
        registered: Optimizers that are registered already.
        module_id, name, optimizer, params, lr_or_lr_schedule: See `Learner.register_optimizer`.

    Raises:
        ValueError: If a parameter belongs to a registered optimizer, or learning rate and optimizer do not match.
    """
    factory = optimizer_factory(optimizer, lr_or_lr_schedule, name, module_id)
    refs = refs_to_optimize(pure, params, name)
    taken = {ref: own for own in registered for ref in own.refs}
    for ref in refs:
        if ref in taken:
            raise ValueError(
                f"Parameter {ref!r} already belongs to optimizer {taken[ref].name!r} of module "
                f"{taken[ref].module_id!r}. Leave it out of optimizer {name!r} of module {module_id!r}."
            )
    params_of = [pure.params[ref] for ref in refs]
    is_flat = is_elementwise(optimizer) and all(own.dtype == jnp.float32 for own in params_of)
    return RegisteredOptimizer(
        module_id=module_id,
        name=name,
        factory=factory,
        refs=refs,
        lr=lr_or_lr_schedule,
        is_flat=is_flat and reductions.num_elements(params_of) <= reductions.LARGEST_VECTOR,
    )


def is_another_value(value: Any, former: Any) -> bool:
    """Returns True if the new value of a setting, such as ``lr``, differs from its former value.

    Numbers are compared in float32, the precision in which compiled programs read them.
    """
    if isinstance(value, int | float) and isinstance(former, int | float):
        return bool(np.float32(value) != np.float32(former))
    return value != former


def problem_with_rates(before: Any, after: Any, names: Iterable[str], where: str) -> str:
    """Returns an error message if `Learner.change_settings` cannot apply changed settings, else "".

    Settings cannot be applied if they lead to other optimizers, or to schedules of other shapes, because these need a
    new compiled program. Settings also cannot be applied if a learning-rate setting has changed, but no optimizer's
    learning rate has changed.

    Args:
        before: Schedules of the learning rates, by module and optimizer.
        after: Schedules with the changed settings.
        names: Names of the changed settings.
        where: Method that registers optimizers, for the message.
    """
    if jax.tree.map(np.shape, before) != jax.tree.map(np.shape, after):
        return (
            f"change_settings(...): {where} registers different optimizers or schedules with the new settings, which "
            f"needs a new program. Build a new algorithm."
        )
    rates = [name for name in names if name == "lr" or name.endswith("_lr")]
    if not rates or not all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(after))):
        return ""
    return (
        f"change_settings({rates[0]}=...) has no effect: {where} registers optimizers with other rates. Pass "
        f"config.{rates[0]} on: self.register_optimizer(lr_or_lr_schedule=config.{rates[0]}, ...)."
    )
