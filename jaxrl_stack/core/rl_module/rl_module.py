"""RLModules: networks of a policy with their forward passes, and containers of several modules.

`RLModule`, `MultiRLModule` (an RLModule that contains several) and their specs refer to each other, so that they
are in one file; `multi_rl_module.py` exports the latter under RLlib's import path.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import os
import zlib
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import TraceContextError
from jax.core import Tracer

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, as_names, opened, selected
from jaxrl_stack.checkpoints.plain_data import NOT_STORED
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.distribution.jax_distribution import get_action_dist_cls_for_space
from jaxrl_stack.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.apis.target_network_api import TargetNetworkAPI
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig, OpaqueDict, as_model_config_dict
from jaxrl_stack.core.rl_module.functional import (
    MODULES_ATTRIBUTE,
    Flat,
    ModuleDefinition,
    copy_array,
    join_path,
    raw_value,
)
from jaxrl_stack.core.rl_module.loading import load_known_parts
from jaxrl_stack.core.rl_module.rllib_weights import NOT_IN_RLLIBS_MODULES, from_rllib_names, read_rllib_weights
from jaxrl_stack.core.rl_module.target_networks import TargetParam, update_target_network
from jaxrl_stack.utils.class_paths import ClassLoader, path_of
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import space_from_dict, space_to_dict

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.core.distribution.distribution import Distribution
    from jaxrl_stack.core.models.catalog import Catalog

    ModelConfig = Mapping[str, Any] | DefaultModelConfig | None

T = TypeVar("T")

_ARGUMENTS = ("observation_space", "action_space", "inference_only", "learner_only", "model_config", "catalog_class")
"""Constructor arguments of an `RLModule`, which are also attributes of the module and of its spec."""
_SHARED_ARGUMENTS = ("observation_space", "action_space", "inference_only", "model_config")
"""Arguments that a `MultiRLModule` and its spec have, too."""

_FLAX_REMEDY = (
    "Keep layers in nnx.List([...]) or nnx.Dict({...}) instead of a plain list or dict; assign an array as "
    "an attribute of its own (self.name = array): a NumPy array is a constant, an nnx.Param is trained."
)


_LAYERS_OF_FLAX = (
    "Layers of flax.nnx take their initial weights from rngs=self.rngs, and their arguments differ from torch's: "
    "nnx.Linear(4, 2, use_bias=False, rngs=self.rngs)."
)
_OTHER_ATTRIBUTES = {
    "config": "model_config",
    "model_config_dict": "model_config",
    "obs_space": "observation_space",
    "obs_dim": "observation_space.shape",
    "num_outputs": "action_space",
    "act_space": "action_space",
}
"""Mapping from attributes of ModelV2 and older RLModules to current attributes."""


class _RLModuleMeta(type(nnx.Module)):
    """Metaclass that checks and completes an RLModule after its constructor, also if a subclass overrides the
    constructor.

    The metaclass makes the target networks of a `TargetNetworkAPI`, and removes `rngs` and the networks that an
    inference-only module does not need.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            module = super().__call__(*args, **kwargs)
        except ValueError as error:
            if "of Pytree type" not in str(error):
                raise
            raise ValueError(
                f"{cls.__name__} has arrays in an attribute in which JAX does not find them, such as a plain list or "
                f"dict. {_FLAX_REMEDY}"
            ) from error
        module._finish_build()
        return module


class RLModule(nnx.Module, Checkpointable, metaclass=_RLModuleMeta):
    """Networks of one policy with their forward passes; a Flax NNX module.

    Subclasses build their networks in `setup()`, where `self.rngs` (`nnx.Rngs`) is available, and override
    `_forward` or some of `_forward_inference`, `_forward_exploration`, `_forward_train`. These take a dict of
    columns with any leading batch axes and return a dict with `ACTION_DIST_INPUTS` or `ACTIONS`, and all columns
    that the loss needs. If a pass returns both, `ACTION_LOGP` is computed from `ACTION_DIST_INPUTS`. Passes are
    traced by JAX: they must not have side effects or Python branches on values.

    NumPy arrays among the attributes are constants, Variables other than `nnx.Param` and JAX arrays are state
    that is not trained, spaces and the model config are plain attributes.

    Args:
        observation_space: Space of one observation as the module receives it (after the env-to-module
            connectors).
        action_space: Space of one action.
        inference_only: Whether to leave out attributes that only training needs (see `InferenceOnlyAPI`).
        learner_only: Whether the module exists on Learners only.
        model_config: Settings for `setup()`; available as a dict.
        catalog_class: Class that builds parts from spaces and model config; the object is `self.catalog`.
        rngs: Source of the initial weights: `nnx.Rngs`, an int seed or a PRNG key. None draws a seed from
            NumPy's global generator.

    Raises:
        ValueError: If both `inference_only` and `learner_only` are set, or layers are in places that Flax does
            not find.
    """

    framework = "jax"
    exploration_settings: tuple[str, ...] = ()
    """Names of traced settings of the algorithm, such as ``"epsilon"``, that `forward_exploration` receives as keyword
    arguments during sampling; schedules are evaluated at the lifetime env steps."""
    columns_from_acting: tuple[str, ...] = ()
    """Columns of every sampled step that ``forward_train`` or the module's own loss reads, in addition to those that
    every step has; see `Learner.columns_from_acting`."""
    rows_are_independent = False
    """Whether the outputs for a row are independent of other rows of the batch, and of their number.

    If True, CPUs process a large batch in parts that fit their cache, and learners pad a batch to a size that is
    compiled already. A subclass that overrides a method must set it again; the same holds for catalogs. It must be
    False with batch normalisation or attention between rows.
    """
    handles_resets = False
    """Whether this class, with a recurrent state, reads the column ``RESETS``, bool ``[B, T]``, and restarts from its
    initial state at every step where it is True, so that training sequences may contain starts of episodes.

    Other modules with a recurrent state never receive such a sequence. Learners call their `_forward_train` step by
    step, with each step's state, and pass sequences of one step to their methods and losses; gradients still flow from
    step to step. A subclass that overrides a method must set it again; the same holds for catalogs.
    """
    honours_action_mask = False
    """Whether this class never chooses an action that the mask in its observations ``{"action_mask": mask,
    "observations": other observations}`` forbids. Connectors keep the mask for such modules."""
    STATE_FILE_NAME = "module_state"
    _state_is_weights = True

    def __init__(
        self,
        config: Any = None,
        *,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        inference_only: bool | None = None,
        learner_only: bool = False,
        model_config: ModelConfig = None,
        catalog_class: type[Catalog] | None = None,
        rngs: nnx.Rngs | int | jax.Array | None = None,
    ):
        if config is not None:
            raise ValueError(
                f"{type(self).__name__}(config=...) is gone. Pass observation_space=, action_space=, "
                "inference_only=, learner_only=, model_config= and catalog_class= as keyword arguments."
            )
        if inference_only and learner_only:
            raise ValueError(
                f"{type(self).__name__} got inference_only=True and learner_only=True, which exclude each other. Set "
                "at most one of them."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = bool(inference_only)
        self.learner_only = bool(learner_only)
        self.model_config = as_model_config_dict(model_config)
        self.catalog_class = catalog_class
        self.catalog: Any = None
        if catalog_class is not None:
            self.catalog = catalog_class(
                observation_space=observation_space, action_space=action_space, model_config_dict=self.model_config
            )
        self._dropped_attributes: tuple[str, ...] = ()
        self._compiled_forwards = _CompiledForwards()
        self.rngs = _as_rngs(rngs)
        try:
            self.setup()
        except TypeError as error:
            # A MultiRLModule builds its modules in its own setup().
            is_told = bool(getattr(error, "__notes__", ()))
            if not is_told and ("rngs" in str(error) or "keyword argument" in str(error)):
                error.add_note(f"Raised in {type(self).__name__}.setup(). {_LAYERS_OF_FLAX}")
            raise

    def _finish_build(self) -> None:
        if "_compiled_forwards" not in vars(self):
            raise TypeError(
                f"{type(self).__name__}.__init__() does not call super().__init__(). Build the networks in setup() "
                "instead of the constructor, or pass the keyword arguments on to super().__init__()."
            )
        if isinstance(self, TargetNetworkAPI):
            try:
                self.make_target_networks()
            except AttributeError as error:
                # setup() may leave out the networks that only training needs, of which targets are copies.
                if error.name not in {
                    part for dotted in self._non_inference_attributes() for part in dotted.split(".")
                }:
                    raise
        for name, value in vars(self).items():
            if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
                notice_once(
                    f"{type(self).__name__}.{name} is a JAX array, which training does not change. Use self.{name} = "
                    f"nnx.Param(array) to train it, or a NumPy array for a constant."
                )
        # Layers have their own random streams (forked, or attributes of the layer).
        del self.rngs
        self._dropped_attributes = self._non_inference_attributes()
        for dotted in self._dropped_attributes:
            *parents, name = dotted.split(".")
            owner = functools.reduce(lambda part, parent: getattr(part, parent, None), parents, self)
            if hasattr(owner, name):
                delattr(owner, name)

    def _non_inference_attributes(self) -> tuple[str, ...]:
        """Returns the paths of the networks (attributes) that this module lacks because it is inference-only; () for
        other modules.
        """
        if self.inference_only and isinstance(self, InferenceOnlyAPI):
            return tuple(self.get_non_inference_attributes())
        return ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "rngs":
                raise AttributeError(
                    f"{type(self).__name__}.rngs exists only while the module is built. Create layers in setup(), and "
                    "pass rngs=self.rngs to layers that draw random numbers (nnx.Dropout) there."
                )
            if name in vars(self).get("_dropped_attributes", ()):
                raise AttributeError(
                    f"{type(self).__name__}.{name} was left out because the module is inference_only. Build it with "
                    "inference_only=False to train or evaluate it."
                )
            hint = f" Use self.{_OTHER_ATTRIBUTES[name]}." if name in _OTHER_ATTRIBUTES else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name)

    # Methods to override.

    def setup(self) -> None:
        """Builds the module's networks; subclasses override this method. `self.rngs` is the source of random numbers
        for initial weights and for layers such as dropout.
        """

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Forward pass that `_forward_inference`, `_forward_exploration` and `_forward_train` call unless they are
        overridden.

        Args:
            batch: Columns with leading batch axes, such as `OBS` `[N, ...]`.
            **kwargs: Keyword arguments of the caller, such as `t` in exploration.

        Returns:
            `{column: array}` with `ACTION_DIST_INPUTS` or `ACTIONS`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no forward pass. Override _forward(batch), which serves all passes, or each "
            "pass: _forward_inference(batch), _forward_exploration(batch) and _forward_train(batch)."
        )

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the module's outputs for greedy actions. Calls `_forward`, unless a subclass overrides this
        method.
        """
        return self._forward(batch, **_accepted(self._forward, kwargs))

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the module's outputs for exploration.

        Calls `_forward`, unless a subclass overrides this method. The argument `t=` is the number of lifetime env steps
        (sampled since training began). During sampling, `t` is a float32 scalar, the nearest to this number.
        """
        return self._forward(batch, **_accepted(self._forward, kwargs))

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the module's outputs for the loss. Calls `_forward`, unless a subclass overrides this method."""
        return self._forward(batch, **_accepted(self._forward, kwargs))

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution class for the `ACTION_DIST_INPUTS` of `forward_inference`."""
        return self._default_action_dist_cls()

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution class for the `ACTION_DIST_INPUTS` of `forward_exploration`."""
        return self._default_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution class for the `ACTION_DIST_INPUTS` of `forward_train`."""
        return self._default_action_dist_cls()

    def get_initial_state(self) -> Any:
        """Returns the recurrent state at the start of an episode: a dict of arrays without batch axis, {} for a
        stateless module.

        If the module has a state, all columns of forward passes are sequences `[B, T, ...]`. `STATE_IN` `[B, ...]` is
        the state before their first step. Passes return `STATE_OUT`, the state after the last step.
        """
        return {}

    def is_stateful(self) -> bool:
        """Whether the module has a recurrent state."""
        return bool(self.get_initial_state())

    # Methods to call.

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Calls the compiled `_forward_inference`, without gradients.

        Args:
            batch: Columns with leading batch axes, NumPy or JAX arrays; at least `OBS`.
            **kwargs: Keyword arguments of the pass; numbers and arrays are traced, each other value (bools,
                strings) compiles a new program.

        Returns:
            The outputs as JAX arrays.
        """
        return self._run_forward("_forward_inference", batch, kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Calls the compiled `_forward_exploration`, without gradients; see `forward_inference`.

        `t=` (lifetime env steps) is passed only if `_forward_exploration` has this parameter or `**kwargs`.
        """
        return self._run_forward("_forward_exploration", batch, kwargs)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Calls the compiled `_forward_train` (see `forward_inference`). Changes of untrained state, such as running
        means, are stored in the module.
        """
        return self._run_forward("_forward_train", batch, kwargs)

    def get_state(
        self, components: Parts = None, *, not_components: Parts = None, inference_only: bool = False
    ) -> dict[str, np.ndarray]:
        """Returns the module's weights and other state as a flat dict `{"path/to/leaf": numpy array}`.

        Parts that the module shares with others are included; random streams are not.

        Args:
            components: Names of attributes; None for all.
            not_components: Names of attributes to leave out.
            inference_only: Whether to leave out the attributes of `InferenceOnlyAPI.get_non_inference_attributes`.
        """
        keep, leave = as_names(components), as_names(not_components)
        dropped: tuple[str, ...] = ()
        if inference_only and isinstance(self, InferenceOnlyAPI) and not self.inference_only:
            dropped = tuple(self.get_non_inference_attributes())
        return {
            ref: np.array(value)
            for ref, (_, value) in self._state_leaves().items()
            if (keep is None or ref.split("/")[0] in keep)
            and not (leave is not None and ref.split("/")[0] in leave)
            and not _is_below(ref, dropped)
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets the module's state to a result of `get_state`; missing leaves keep their values.

        An inference-only module ignores leaves of attributes that it lacks.

        Raises:
            ValueError: If the module does not have a leaf of a name, or its shape or kind of dtype differs.
        """
        updates = [(path, copy_array(np.asarray(value, now.dtype))) for path, value, now in self._fitting(state)]
        nnx.update(self, nnx.from_flat_state(updates))

    def load_rllib_weights(self, weights: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Loads weights of RLlib's default PyTorch module for PPO, IMPALA, APPO, DQN, SAC or TQC.

        The module must be built with the spaces and the model config of RLlib's module. Outputs agree to 1e-5. Target
        networks that are missing in the weights become equal to their main networks.

        Args:
            weights: RLlib's ``rl_module.get_state()`` or ``state_dict()``; or a file of it: ``.npz``, ``.safetensors``
                or, if PyTorch is installed, ``.pt``. Files contain arrays and no code: RLlib's own checkpoints are
                pickles, and are not read.

        Raises:
            FileNotFoundError: If the file does not exist.
            ImportError: If the package that reads the file is not installed.
            ValueError: If the file is damaged, or the weights belong to a module of a different structure; the module
                does not change then.
        """
        own = {ref: value for ref, (_, value) in self._state_leaves().items()}
        if not isinstance(weights, Mapping):
            weights = read_rllib_weights(weights, max_bytes=(1 << 24) + 64 * sum(leaf.nbytes for leaf in own.values()))
        state = from_rllib_names(weights)
        targets = {join_path(path) for path, _ in nnx.to_flat_state(nnx.state(self, TargetParam))}
        missing = sorted(set(own) - targets - set(state) - NOT_IN_RLLIBS_MODULES)
        if missing:
            raise ValueError(
                f"{type(self).__name__}.load_rllib_weights(): the weights lack the arrays {missing[:4]} of this "
                "module. Build the module with the spaces and model config of RLlib's module."
                f"{self._hint_for_misfit(state)}"
            )
        self.set_state(state)
        if targets and not targets & set(state):
            assert isinstance(self, TargetNetworkAPI)
            for main, target in self.get_target_network_pairs():
                update_target_network(main_net=main, target_net=target, tau=1.0)

    def _fitting(self, state: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], Any, Any]]:
        """Finds the module's array for each array of `state`, and returns a list of
        ``(path, value in state, module's array)``.

        An inference-only module skips arrays of networks that it was built without.

        Raises:
            ValueError: If the module does not have a leaf of a name, or its shape or kind of dtype differs.
        """
        leaves = self._state_leaves()
        found = []
        for ref, value in state.items():
            if ref not in leaves:
                if _is_below(ref, self._dropped_attributes):
                    continue
                close = difflib.get_close_matches(ref, leaves, n=3) or list(leaves)[:6]
                raise ValueError(
                    f"{type(self).__name__}.set_state() got the array {ref!r}, which this module does not have "
                    f"(it has, for example, {close}). Load the state into a module built with the same spaces and "
                    "model config."
                )
            path, current = leaves[ref]
            dtype = getattr(value, "dtype", None)
            if np.shape(value) != np.shape(current) or not _can_hold(current.dtype, dtype):
                raise ValueError(
                    f"{type(self).__name__}.set_state() got the array {ref!r} of shape {np.shape(value)}"
                    f"{'' if dtype is None else f' and dtype {dtype}'}, but the module's array has shape "
                    f"{np.shape(current)} and dtype {current.dtype}. Load the state into a module built with the same "
                    "spaces and model config."
                )
            found.append((path, value, current))
        return found

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Any:
        def build() -> Any:
            return cls(*args, **({"rngs": 0} | kwargs))

        _check_outline_of(build, state)
        return build()

    def _check_outline(self, state: Mapping[str, Any]) -> None:
        """Checks the names, shapes and kinds of dtype in a state, not its values.

        Raises a ValueError if a leaf is missing or unknown, or has a different shape or kind of dtype than in this
        module.
        """
        self._fitting(state)
        missing = sorted(set(self._state_leaves()) - set(state))
        if missing:
            raise ValueError(
                f"The state of this {type(self).__name__} is damaged: it lacks the arrays {missing[:5]}. Load an "
                "undamaged copy of the checkpoint."
            )

    def _state_leaves(self) -> dict[str, tuple[tuple[Any, ...], Any]]:
        """Returns the arrays that are the module's state, `{ref: (path, array)}`: all leaves except constants,
        `nnx.Intermediate` values and random streams.
        """
        return {
            join_path(path): (path, raw_value(leaf))
            for path, leaf in nnx.to_flat_state(nnx.state(self))
            if not isinstance(leaf, np.ndarray | nnx.RngState | nnx.Intermediate)
            and not jnp.issubdtype(raw_value(leaf).dtype, jax.dtypes.prng_key)
        }

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns this module's constructor arguments, `((), {name: value})`. A module that is built from them has the
        same networks, but new weights.
        """
        return (), _attributes(self, _ARGUMENTS) | {"model_config": dict(self.model_config)}

    def as_multi_rl_module(self) -> MultiRLModule:
        """Returns a MultiRLModule with this module (not a copy) as `DEFAULT_MODULE_ID`."""
        multi = MultiRLModule(inference_only=self.inference_only)
        multi.add_module(DEFAULT_MODULE_ID, self)
        return multi

    def unwrapped(self) -> RLModule:
        """Returns the module; for compatibility with RLlib, where modules may be wrapped."""
        return self

    def __repr__(self) -> str:
        return parameter_table(self)

    __str__ = __repr__

    # Internals.

    def _default_action_dist_cls(self) -> type[Distribution]:
        if self.catalog is not None:
            return self.catalog.get_action_dist_cls(self.framework)
        if self.action_space is None:
            raise ValueError(
                f"{type(self).__name__} has no action_space, which determines its action distribution. Pass "
                "action_space= to its spec or constructor, or override get_inference_, get_exploration_ and "
                "get_train_action_dist_cls()."
            )
        return get_action_dist_cls_for_space(self.action_space)

    def _run_forward(self, name: str, batch: Any, kwargs: dict[str, Any]) -> Any:
        if _is_traced((batch, kwargs)):
            return self._call_forward(name, batch, kwargs)
        definition, params, rest = ModuleDefinition.of(self)
        if _is_traced((params, rest)):
            return self._call_forward(name, batch, kwargs)
        static = tuple(sorted((k, v) for k, v in kwargs.items() if not _is_numeric(v)))
        traced = {k: v for k, v in kwargs.items() if _is_numeric(v)}
        run = self._compiled_forwards.get(name, definition)
        outputs, new_rest = run(params, rest, batch, traced, static)
        if new_rest:
            nnx.update(self, nnx.from_flat_state([(path, new_rest[ref]) for path, ref in definition.rest_refs.items()]))
        return outputs

    def _call_forward(self, name: str, batch: Any, kwargs: dict[str, Any]) -> Any:
        method = getattr(self, name)
        try:
            outputs = method(batch, **_accepted(method, kwargs))
        except TraceContextError as error:
            raise RuntimeError(
                f"{type(self).__name__}.{name}() changes state, such as random streams or batch statistics, of a "
                "module that was created outside the running JAX transformation (such as jax.grad). Create pure = "
                "PureModule(module.as_multi_rl_module()). Inside the transformation, use pure.bind() and pure.unbind()."
            ) from error
        return outputs if name == "_forward_train" else jax.lax.stop_gradient(outputs)


class MultiRLModule(RLModule):
    """Container of several RLModules by id: dict-like, with forward passes over `{module_id: {column: array}}`.

    Override `setup()` (and call `super().setup()`) to connect modules, for example to share the encoder of a
    separate module.

    Args:
        rl_module_specs: `{module_id: RLModuleSpec}`; `setup()` builds them. With `inference_only`, modules
            that are `learner_only` are left out.
        config, inference_only: See `RLModule`.
        **kwargs: ``observation_space``, ``action_space``, ``learner_only``, ``model_config``, ``rngs``: see `RLModule`.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        inference_only: bool | None = None,
        rl_module_specs: Mapping[str, RLModuleSpec] | None = None,
        **kwargs: Any,
    ):
        self.rl_module_specs = OpaqueDict(rl_module_specs or {})
        self._rl_modules = nnx.Dict()
        if inference_only is None:
            specs = self.rl_module_specs.values()
            inference_only = bool(specs) and all(spec.inference_only for spec in specs)
        super().__init__(config, inference_only=inference_only, **kwargs)

    def setup(self) -> None:
        """Builds the RLModules that `rl_module_specs` describes."""
        key = self.rngs.params()
        for module_id, spec in self.rl_module_specs.items():
            if self.inference_only:
                if spec.learner_only:
                    continue
                spec = dataclasses.replace(spec, inference_only=True)
            self.add_module(module_id, spec.build(rngs=_module_key(key, module_id)))

    def add_module(self, module_id: str, module: RLModule, *, override: bool = False) -> None:
        """Adds a built RLModule to this container.

        Args:
            module_id: Id of the module: non-empty, without "/" (which separates the parts of refs).
            module: The module; it is not copied.
            override: Whether to replace a module with this id.

        Raises:
            ValueError: If the id is invalid, or already used.
        """
        if not isinstance(module_id, str) or not module_id or "/" in module_id or hasattr(nnx.Dict, module_id):
            raise ValueError(
                f"Module id {module_id!r} is invalid. Use a non-empty string without '/' that is not the name of a "
                "dict method."
            )
        if module_id in self and not override:
            raise ValueError(
                f"Module {module_id!r} exists already. Pass override=True to replace it, or use a different id."
            )
        self._rl_modules[module_id] = module

    def remove_module(self, module_id: str, *, raise_err_if_not_found: bool = True) -> None:
        """Removes an RLModule from this container.

        Raises:
            KeyError: If the module does not exist, unless `raise_err_if_not_found` is False.
        """
        if module_id in self:
            del self._rl_modules[module_id]
        elif raise_err_if_not_found:
            raise KeyError(self._no_module(module_id))

    def foreach_module(
        self, func: Callable[..., T], *, return_dict: bool = False, **kwargs: Any
    ) -> list[T] | dict[str, T]:
        """Returns the results of `func(module_id, module, **kwargs)` for all modules, as a list; if `return_dict`, as a
        dict `{module_id: result}`.
        """
        results = {module_id: func(module_id, module, **kwargs) for module_id, module in self.items()}
        return results if return_dict else list(results.values())

    def _no_module(self, module_id: str) -> str:
        return f"No module {module_id!r} in this MultiRLModule; it has {list(self.keys())}."

    def __getitem__(self, module_id: str) -> RLModule:
        if module_id not in self:
            raise KeyError(self._no_module(module_id))
        return self._rl_modules[module_id]

    def get(self, module_id: str, default: RLModule | None = None) -> RLModule | None:
        """Returns the module with the given id, or `default` if it does not exist."""
        return self._rl_modules[module_id] if module_id in self else default

    def keys(self) -> KeysView[str]:
        """Returns the ids of the modules, in the order in which the modules were added."""
        return dict(self._rl_modules).keys()

    def values(self) -> ValuesView[RLModule]:
        """Returns the modules, in the order in which they were added."""
        return dict(self._rl_modules).values()

    def items(self) -> ItemsView[str, RLModule]:
        """Returns `(module id, module)` pairs, in the order in which the modules were added."""
        return dict(self._rl_modules).items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._rl_modules)

    def __contains__(self, module_id: object) -> bool:
        # `in` is also True for names of methods of an nnx.Dict.
        return module_id in dict(self._rl_modules)

    def __len__(self) -> int:
        return len(self._rl_modules)

    def __bool__(self) -> bool:
        return True

    def _forward_each(self, name: str, batch: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {module_id: self[module_id]._call_forward(name, columns, kwargs) for module_id, columns in batch.items()}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward_each("_forward_inference", batch, kwargs)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward_each("_forward_exploration", batch, kwargs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward_each("_forward_train", batch, kwargs)

    def get_initial_state(self) -> Any:
        """Returns the initial recurrent states of all stateful modules, `{module_id: state}`."""
        states = {module_id: module.get_initial_state() for module_id, module in self.items()}
        return {module_id: state for module_id, state in states.items() if state}

    def get_state(
        self, components: Parts = None, *, not_components: Parts = None, inference_only: bool = False
    ) -> dict[str, Any]:
        """Returns `{module_id: state of the module}`; see `RLModule.get_state`.

        Args:
            components: Module ids; None for all.
            not_components: Module ids to leave out.
            inference_only: Whether to leave out `learner_only` modules, and in the others the attributes of
                `InferenceOnlyAPI.get_non_inference_attributes`.

        Raises:
            ValueError: If a module id is unknown.
        """
        return {
            module_id: self[module_id].get_state(inference_only=inference_only)
            for module_id in selected(list(self.keys()), components, not_components, type(self).__name__)
            if not (inference_only and self[module_id].learner_only)
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets the states of modules in this container, `{module_id: state}`; missing modules keep their states.

        Raises:
            KeyError: If a module id is unknown.
        """
        if COMPONENT_RL_MODULE in state and COMPONENT_RL_MODULE not in self:
            raise KeyError(
                f"{self._no_module(COMPONENT_RL_MODULE)} The given state is the state of a Learner. Pass it to "
                f"Learner.set_state(), or pass state[{COMPONENT_RL_MODULE!r}] to this method."
            )
        for module_id, module_state in state.items():
            spec = self.rl_module_specs.get(module_id)
            if module_id not in self and self.inference_only and spec is not None and spec.learner_only:
                continue
            self[module_id].set_state(module_state)

    def load_rllib_weights(self, weights: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Loads RLlib weights into the modules, ``{module_id: weights}``; see `RLModule.load_rllib_weights`.

        Raises:
            KeyError: If a module id is unknown.
            ValueError: If `weights` is a file, which has the weights of one module.
        """
        if not isinstance(weights, Mapping):
            raise ValueError(
                f"load_rllib_weights({weights!r}): a file has the weights of one module. Pass {{module_id: file}}."
            )
        for module_id, own in weights.items():
            self[module_id].load_rllib_weights(own)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns this module's constructor arguments, `((), {name: value})`. A module that is built from them has the
        same networks, but new weights.
        """
        return (), _attributes(self, (*_SHARED_ARGUMENTS, "learner_only")) | {
            "model_config": dict(self.model_config),
            "rl_module_specs": {i: RLModuleSpec.from_module(m) for i, m in self.items()},
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns ``(module id, module)`` pairs; each module is saved in a separate folder."""
        return list(self.items())

    def _check_outline(self, state: Mapping[str, Any]) -> None:
        unknown = sorted(set(state) - set(self))
        missing = sorted(set(self) - set(state))
        if unknown or missing:
            raise ValueError(
                f"The state has the modules {sorted(state)}, but this {type(self).__name__} has the modules "
                f"{sorted(self)}. Load a state of the same modules."
            )
        for module_id, module in self.items():
            module._check_outline(state[module_id])

    def as_multi_rl_module(self) -> MultiRLModule:
        """Returns this module itself, since it is a MultiRLModule already."""
        return self


@dataclasses.dataclass
class RLModuleSpec:
    """Specification of an RLModule: its class and its constructor arguments.

    An AlgorithmConfig may fill in fields that are None; a spec with a `module_class` can be built without one.

    Args:
        module_class: The class to build.
        observation_space, action_space, inference_only, learner_only, model_config, catalog_class: See `RLModule`.
        load_state_path: Checkpoint of the module, or of a MultiRLModule with one module, whose state is loaded.
        model_config_dict: Old name of `model_config`; raises an error.
    """

    module_class: type[RLModule] | None = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    inference_only: bool = False
    learner_only: bool = False
    model_config: ModelConfig = None
    catalog_class: type[Catalog] | None = None
    load_state_path: str | None = dataclasses.field(default=None, metadata={NOT_STORED: True})
    model_config_dict: dataclasses.InitVar[Any] = None

    def __post_init__(self, model_config_dict: Any) -> None:
        if model_config_dict is not None:
            raise ValueError("RLModuleSpec(model_config_dict=...) is gone. Use model_config=.")

    def build(self, *, seed: int | None = None, rngs: nnx.Rngs | int | jax.Array | None = None) -> RLModule:
        """Builds the RLModule that this spec describes.

        Args:
            seed: Seed of the initial weights; equal seeds give equal weights.
            rngs: `nnx.Rngs` or a PRNG key, instead of `seed`.

        Raises:
            ValueError: If `module_class` is missing, or not a subclass of RLModule.
        """
        if not isinstance(self.module_class, type) or not issubclass(self.module_class, RLModule):
            raise ValueError(
                f"RLModuleSpec(module_class={self.module_class}).build() needs a class: "
                f"RLModuleSpec(module_class=MyRLModule, ...), where MyRLModule extends RLModule."
            )
        module = self.module_class(**_attributes(self, _ARGUMENTS), rngs=seed if rngs is None else rngs)
        load_known_parts(module, self.load_state_path)
        return module

    @classmethod
    def from_module(cls, module: RLModule) -> RLModuleSpec:
        """Returns a spec with class, spaces and settings of an RLModule. `spec.build()` draws new weights.

        Raises:
            ValueError: If it is a MultiRLModule.
        """
        if isinstance(module, MultiRLModule):
            raise ValueError("RLModuleSpec.from_module() got a MultiRLModule. Use MultiRLModuleSpec.from_module().")
        _, kwargs = module.unwrapped().get_ctor_args_and_kwargs()
        return cls(module_class=type(module.unwrapped()), **{**kwargs, "model_config": kwargs["model_config"] or None})

    def to_dict(self) -> dict[str, Any]:
        """Returns the spec as plain data: classes as "module:name", spaces as dicts."""
        return _spec_to_dict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow: Collection[type] = ()) -> RLModuleSpec:
        """Builds an RLModuleSpec from plain data, a result of `to_dict`.

        Args:
            d: Result of `to_dict`.
            allow: Your classes that may be loaded; classes of this package, and registered ones, are always allowed.

        Raises:
            ValueError: If it names a class that is not allowed.
        """
        return cls(**_spec_from_dict(d, allow))

    def update(self, other: RLModuleSpec, override: bool = True) -> None:
        """Copies fields of another RLModuleSpec, `other`, into this RLModuleSpec, in place; ignores fields of `other`
        that are None.

        Args:
            other: The other spec; fields that are None are ignored.
            override: True: fields of `other` replace fields of this spec, flags included. False: only fields that are
                None in this spec are set.

        Raises:
            ValueError: If `other` is not an RLModuleSpec.
        """
        if not isinstance(other, RLModuleSpec):
            raise ValueError(
                f"RLModuleSpec.update() needs an RLModuleSpec, got {type(other).__name__}. Pass RLModuleSpec(...)."
            )
        _take_over(self, other, override)

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """Returns a MultiRLModuleSpec with this spec as `DEFAULT_MODULE_ID`."""
        return MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: self}, inference_only=self.inference_only)


@dataclasses.dataclass
class MultiRLModuleSpec:
    """Specification of a MultiRLModule: its class, and the specs of its RLModules by module id.

    Args:
        multi_rl_module_class: The class to build.
        observation_space, action_space, inference_only, model_config: See `MultiRLModule`.
        rl_module_specs: `{module_id: RLModuleSpec}`.
        load_state_path: Checkpoint of a MultiRLModule whose state `build` loads.
        modules_to_load: Ids of the modules to load from `load_state_path`; None: all modules of the checkpoint. Modules
            whose spec has its own `load_state_path` are skipped.

    Raises:
        ValueError: If `rl_module_specs` is not a dict of RLModuleSpecs, or an old argument is used.
    """

    multi_rl_module_class: type[MultiRLModule] = MultiRLModule
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    inference_only: bool | None = None
    model_config: dict | None = None
    rl_module_specs: dict[str, RLModuleSpec] = dataclasses.field(default_factory=dict)
    load_state_path: str | None = dataclasses.field(default=None, metadata={NOT_STORED: True})
    modules_to_load: set[str] | None = dataclasses.field(default=None, metadata={NOT_STORED: True})

    def __new__(cls, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        if "marl_module_class" in kwargs:
            raise TypeError("MultiRLModuleSpec(marl_module_class=...) is gone. Use multi_rl_module_class=.")
        if "module_specs" in kwargs:
            raise ValueError("MultiRLModuleSpec(module_specs=...) is gone. Use rl_module_specs=.")
        return super().__new__(cls)

    @property
    def module_specs(self) -> dict[str, RLModuleSpec]:
        """Specs of the modules, ``{module_id: RLModuleSpec}``: older name of `rl_module_specs`."""
        return self.rl_module_specs

    def __post_init__(self) -> None:
        specs: Any = {} if self.rl_module_specs is None else self.rl_module_specs
        if not isinstance(specs, Mapping) or not all(isinstance(spec, RLModuleSpec) for spec in specs.values()):
            raise ValueError(
                f"MultiRLModuleSpec(rl_module_specs={specs!r}) must be a dict {{module_id: RLModuleSpec}}."
            )
        self.rl_module_specs = dict(specs)

    def build(
        self, module_id: str | None = None, *, seed: int | None = None, rngs: nnx.Rngs | int | jax.Array | None = None
    ) -> RLModule:
        """Builds the MultiRLModule that this spec describes; if `module_id` is given, builds only the RLModule with
        this id.

        A module's weights depend on the seed and its id, not on other modules.

        Args:
            module_id: Id of the only module to build; None builds the MultiRLModule.
            seed: Seed of the initial weights; equal seeds give equal weights.
            rngs: `nnx.Rngs` or a PRNG key, instead of `seed`.
        """
        streams = _as_rngs(seed if rngs is None else rngs)
        if module_id is not None:
            return self[module_id].build(rngs=_module_key(streams.params(), module_id))
        module = self.multi_rl_module_class(
            **_attributes(self, _SHARED_ARGUMENTS), rl_module_specs=self.rl_module_specs, rngs=streams
        )
        if self.load_state_path is not None:
            self._load_state(module, self.load_state_path)
        return module

    def _load_state(self, module: MultiRLModule, path: str) -> None:
        with opened(path) as stored:
            wanted = {*(stored.parts if self.modules_to_load is None else self.modules_to_load)}
            for module_id in sorted(wanted - {i for i, spec in self.rl_module_specs.items() if spec.load_state_path}):
                module[module_id].restore_from_path(stored.part(module_id).path)

    def add_modules(self, module_specs: Mapping[str, RLModuleSpec], override: bool = True) -> None:
        """Adds specs of modules to this spec, in place. If `override`, an existing module's spec is replaced; otherwise
        only its fields that are None are set.
        """
        for module_id, spec in module_specs.items():
            if override or module_id not in self.rl_module_specs:
                self.rl_module_specs[module_id] = spec
            else:
                self.rl_module_specs[module_id].update(spec, override=False)

    def remove_modules(self, module_ids: str | Collection[str]) -> None:
        """Removes the specs of one or more modules from this spec, in place; unknown ids are ignored."""
        for module_id in as_names(module_ids) or ():
            self.rl_module_specs.pop(module_id, None)

    @classmethod
    def from_module(cls, module: MultiRLModule) -> MultiRLModuleSpec:
        """Returns a spec with class, settings and module specs of a MultiRLModule. `spec.build()` draws new weights.

        Raises:
            ValueError: If it is not a MultiRLModule.
        """
        if not isinstance(module, MultiRLModule):
            raise ValueError(
                f"MultiRLModuleSpec.from_module() got {type(module).__name__}. Use RLModuleSpec.from_module()."
            )
        kwargs: dict[str, Any] = _attributes(module, _SHARED_ARGUMENTS)
        # None, as in a spec that does not set them.
        kwargs |= {"model_config": dict(module.model_config) or None, "inference_only": module.inference_only or None}
        specs = {i: RLModuleSpec.from_module(m) for i, m in module.items()}
        return cls(multi_rl_module_class=type(module), rl_module_specs=specs, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Returns the spec as plain data: classes as "module:name", spaces as dicts."""
        modules = self.modules_to_load
        return _spec_to_dict(self) | {
            "rl_module_specs": {module_id: spec.to_dict() for module_id, spec in self.rl_module_specs.items()},
            "modules_to_load": None if modules is None else sorted(modules),
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, allow: Collection[type] = ()) -> MultiRLModuleSpec:
        """Builds a MultiRLModuleSpec from plain data, a result of `to_dict`; see `RLModuleSpec.from_dict`."""
        kwargs = _spec_from_dict(d, allow)
        specs = kwargs.get("rl_module_specs") or {}
        kwargs["rl_module_specs"] = {i: RLModuleSpec.from_dict(spec, allow=allow) for i, spec in specs.items()}
        if kwargs.get("modules_to_load") is not None:
            kwargs["modules_to_load"] = set(kwargs["modules_to_load"])
        return cls(**kwargs)

    def update(self, other: AnyRLModuleSpec, override: bool = False) -> None:
        """Updates this spec in place: copies the module specs and fields of a MultiRLModuleSpec, or applies the fields
        of an RLModuleSpec to the spec of every module.

        Args:
            other: A MultiRLModuleSpec (id by id; new ids are added) or an RLModuleSpec (for each module).
            override: True: specs of `other` replace specs here, or fields of an RLModuleSpec replace fields of each
                module's spec. False: only fields that are None in this spec are set.

        Raises:
            ValueError: If `other` is not a spec.
        """
        if isinstance(other, RLModuleSpec):
            for spec in self.rl_module_specs.values():
                spec.update(other, override=override)
            return
        if not isinstance(other, MultiRLModuleSpec):
            raise ValueError(
                f"MultiRLModuleSpec.update() needs a MultiRLModuleSpec or an RLModuleSpec, got {type(other).__name__}. "
                "Pass MultiRLModuleSpec(...) or RLModuleSpec(...)."
            )
        self.add_modules(other.rl_module_specs, override=override)
        _take_over(self, other, override, leave="rl_module_specs")

    def as_multi_rl_module_spec(self) -> MultiRLModuleSpec:
        """Returns this spec itself, since it is a MultiRLModuleSpec already."""
        return self

    def __contains__(self, module_id: str) -> bool:
        return module_id in self.rl_module_specs

    def __getitem__(self, module_id: str) -> RLModuleSpec:
        if module_id not in self.rl_module_specs:
            raise KeyError(
                f"No spec for module {module_id!r}. Use one of {list(self.rl_module_specs)}, or add one: "
                f"add_modules({{{module_id!r}: RLModuleSpec(...)}})."
            )
        return self.rl_module_specs[module_id]


AnyRLModuleSpec = RLModuleSpec | MultiRLModuleSpec


class _CompiledForwards:
    """Compiled forward passes of a module; they are compiled again if the module's structure or plain attributes
    change.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[tuple[ModuleDefinition, Callable[..., Any]]]] = {}

    def get(self, name: str, definition: ModuleDefinition) -> Callable[..., Any]:
        entries = self._entries.setdefault(name, [])
        for known, run in entries:
            if known.same_as(definition):
                return run

        def forward(params: Flat, rest: Flat, batch: Any, traced: dict, static: tuple) -> tuple[Any, Flat]:
            module = definition.merge(params, rest)
            outputs = module._call_forward(name, batch, traced | dict(static))
            return outputs, definition.flatten(module)[1]

        run = jax.jit(forward, static_argnums=4)
        entries.append((definition, run))
        return run

    # A copied or unpickled module compiles its own.
    def __deepcopy__(self, memo: dict) -> _CompiledForwards:
        return _CompiledForwards()

    def __reduce__(self) -> tuple:
        return _CompiledForwards, ()


def parameter_table(module: RLModule) -> str:
    """Returns a table of a module's parameters (name, shape, dtype, size) with totals, as text."""
    prefix = MODULES_ATTRIBUTE + "/"
    leaves = nnx.to_flat_state(nnx.state(module))
    params = {
        join_path(path).removeprefix(prefix): raw_value(leaf) for path, leaf in leaves if isinstance(leaf, nnx.Param)
    }
    trained = sum(value.size for value in params.values())
    fixed = sum(raw_value(leaf).size for _, leaf in leaves if not isinstance(leaf, nnx.Param | np.ndarray))
    rows = [("parameter", "shape", "dtype", "count")]
    rows += [(name, str(value.shape), str(value.dtype), f"{value.size:,}") for name, value in params.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {dtype:<{widths[2]}}  {count:>{widths[3]}}"
        for name, shape, dtype, count in rows
    ]
    if isinstance(module, MultiRLModule):
        head = f"{type(module).__name__} of {list(module.keys())}"
    else:
        head = f"{type(module).__name__}: {module.observation_space} -> {module.action_space}"
    total = f"total: {trained:,} trained" + (f", {fixed:,} other state" if fixed else "")
    return "\n".join([head, lines[0], "-" * len(lines[0]), *lines[1:], total])


def _attributes(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


def _spec_to_dict(spec: AnyRLModuleSpec) -> dict[str, Any]:
    """Converts a module spec to plain data, ``{field: value}``: classes as names, spaces and the model
    config as dicts.
    """
    out: dict[str, Any] = {}
    for name, value in _attributes(spec, (field.name for field in dataclasses.fields(spec))).items():
        if name.endswith("_class"):
            value = None if value is None else path_of(value)
        elif name.endswith("_space"):
            value = space_to_dict(value)
        elif name == "model_config" and value is not None:
            value = dict(as_model_config_dict(value))
        out[name] = value
    return out


def _spec_from_dict(fields: Mapping[str, Any], allow: Collection[type]) -> dict[str, Any]:
    """Converts plain data, a result of `_spec_to_dict`, to the fields of a module spec, ``{field: value}``: loads
    classes by name, and builds spaces from dicts.
    """
    out = dict(fields)
    for name, value in fields.items():
        if name.endswith("_class") and isinstance(value, str):
            out[name] = ClassLoader(allow).load(value, what="The spec")
        elif name.endswith("_space"):
            out[name] = space_from_dict(value)
    return out


def _take_over(spec: Any, other: Any, override: bool, leave: str = "") -> None:
    """Copies the fields of the module spec `other` into `spec`, except fields that are None.

    The field with the name `leave` is not copied either. Without `override`, sets only the fields of `spec` that are
    None.
    """
    for field in dataclasses.fields(spec):
        mine, theirs = getattr(spec, field.name), getattr(other, field.name)
        if field.name != leave and theirs is not None and (override or mine is None):
            setattr(spec, field.name, theirs)


def _can_hold(dtype: Any, given: Any) -> bool:
    """Whether a value of dtype `given` can be stored in an array of dtype `dtype`; True if `given` is None.

    Uses NumPy's casting rule "same_kind": float64 to float32, int to float; but not float to int.
    """
    return given is None or np.can_cast(np.dtype(given), np.dtype(dtype), "same_kind")


def check_fits_specs(specs: MultiRLModuleSpec, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises a ValueError if the modules that these specs describe do not fit the given states. Allocates no arrays.

    Args:
        specs: Complete specs.
        states: ``{module_id: RLModule.get_state()}``; modules that only one of the arguments has are ignored.
    """
    for module_id in specs.rl_module_specs:
        if module_id in states:
            spec = copy.copy(specs[module_id])
            spec.load_state_path = None
            _check_outline_of(lambda spec=spec: spec.build(seed=0), states[module_id])


def _check_outline_of(build: Callable[[], RLModule], state: Mapping[str, Any]) -> None:
    try:
        # Allocates nothing: arguments that are too large are found as shapes that do not fit.
        outline = nnx.eval_shape(build)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TraceContextError):
        # The setup() reads the values of its weights.
        return
    outline._check_outline(state)


def _as_rngs(rngs: nnx.Rngs | int | jax.Array | None) -> nnx.Rngs:
    if isinstance(rngs, nnx.Rngs):
        return rngs
    return nnx.Rngs(int(np.random.randint(2**31)) if rngs is None else rngs)


def _module_key(key: jax.Array, module_id: str) -> jax.Array:
    # Derived from the id, so that a module's weights do not depend on other modules.
    return jax.random.fold_in(key, zlib.crc32(module_id.encode()))


def _is_below(ref: str, dotted_attributes: Collection[str]) -> bool:
    return any(f"{ref}/".startswith(f"{dotted.replace('.', '/')}/") for dotted in dotted_attributes)


def _is_traced(values: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def _is_numeric(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float) and not isinstance(leaf, bool)
        for leaf in leaves
    )


@functools.cache
def _takes_t(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    return "t" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _accepted(method: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments `kwargs` of a forward pass, without `t` (lifetime env steps) if `method` takes neither
    `t` nor `**kwargs`.
    """
    if "t" in kwargs and not _takes_t(method.__func__):  # type: ignore[attr-defined]
        return {name: value for name, value in kwargs.items() if name != "t"}
    return kwargs


__getattr__ = absent_or_renamed(
    __name__,
    absent={
        "TorchRLModule": "`RLModule`, a Flax NNX module",
        "TfRLModule": "`RLModule`, a Flax NNX module",
        "RLModuleConfig": "the keyword arguments of `RLModule`",
        "MultiAgentRLModule": "`MultiRLModule`",
        "MultiAgentRLModuleConfig": "the keyword arguments of `MultiRLModule`",
    },
    renamed={"SingleAgentRLModuleSpec": RLModuleSpec, "MultiAgentRLModuleSpec": MultiRLModuleSpec},
)
