"""Environments that run inside compiled programs: the interface, and the adapter for gymnax.

A `JaxEnv` describes one environment as pure functions; the batch axis is added with ``jax.vmap``. Terminated and
truncated are two flags, kept as the environment gives them. A step may raise both; then it counts as terminated:
nothing is bootstrapped from it.
"""

from __future__ import annotations

import abc
import difflib
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.env import drawings
from jaxrl_stack.env.env_settings import built, field_names, refuse_unknown_setting, replaced_fields
from jaxrl_stack.env.gymnax_import import import_gymnax
from jaxrl_stack.env.jax_env_outcomes import expect_like, parts_of, strongly_typed, typed_signals
from jaxrl_stack.env.jax_env_tracing import check_is_pure, check_signatures, traced
from jaxrl_stack.env.jax_env_trial import check_steps
from jaxrl_stack.env.resets import reset_only_ended, reset_where_ended
from jaxrl_stack.utils import spaces

GYMNAX_PREFIX = "gymnax/"


class JaxStep(NamedTuple):
    """Result of one step of one environment, a pytree: observation, state, reward, `terminated`, `truncated`, final
    observation and info.

    Attributes:
        obs: Observation to act on next: the first of the next episode if this step ended one.
        state: Environment state to step next, after a reset if there was one.
        reward: float32 scalar.
        terminated: bool scalar, the episode has ended by itself: the value after it is 0.
        truncated: bool scalar, the episode was cut, by a time limit for example: the value after it is that
            of `final_obs`. Ignored where `terminated` is set as well.
        final_obs: The observation after this step, before any reset. Equals `obs` unless the episode
            ended.
        info: Dict of further arrays; the same structure in every step.
    """

    obs: Any
    state: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    info: dict[str, Any]


class JaxEnv(abc.ABC):
    """Environment as pure, jittable functions. The step that ends an episode also resets the environment.

    Implement this to control the reset; `AutoResetJaxEnv` is the shorter way. `check_jax_env` verifies the
    contract: observations have the space's shapes and JAX dtypes, the state keeps its structure, shapes and
    dtypes, and nothing is weakly typed (a Python number in the state would compile every program twice).

    Args:
        config: The `env_config` of ``config.environment(MyEnv, env_config=...)``. A class with settings needs
            its own ``__init__(self, config)``.

    Attributes:
        observation_space: Space of one observation; set in ``__init__``, in the class, or a property.
        action_space: Space of one action; likewise.

    Raises:
        ValueError: If `config` is not empty, but the class has no ``__init__`` that reads it.
    """

    observation_space: gym.Space
    action_space: gym.Space

    def __init__(self, config: Mapping[str, Any] | None = None):
        if config:
            raise ValueError(
                f"env_config={dict(config)}: {type(self).__name__} takes no settings. Give it an "
                "__init__(self, config), or leave `env_config` empty."
            )

    @property
    def params(self) -> Any:
        """Parameters of the dynamics, a pytree of numbers for `reset` and `step`; None without parameters.

        Its arrays may be NumPy's: in compiled programs they are JAX arrays.
        """
        return None

    @property
    def name(self) -> str:
        """Name of the environment in messages."""
        return type(self).__name__

    @property
    def source(self) -> str:
        """`name` with the version of the environment's package, if any, for error messages."""
        return self.name

    everybody_acts: bool = True
    """Whether all agents act in every step: True of an environment with one."""

    step_type: type = JaxStep
    """Type of the result of `step`."""

    has_own_bounds: bool = True
    """Whether `check_jax_env` checks that observations are within the bounds of the observation space. False for
    environments of packages, whose observations leave the declared bounds in rare cases, and for wrappers that draw
    parameters or preprocess observations."""

    render_fps: float = 30.0
    """Frames per second of videos."""

    _casts_observations: bool = False

    def render(self, state: Any) -> np.ndarray | None:
        """Draws a frame for videos, on the host.

        Args:
            state: A state of one environment, with NumPy leaves.

        Returns:
            uint8 ``[H, W, 3]``; None (the default) if the environment has no drawing: videos then show its
            observations.
        """
        return None

    def last_state(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        """Returns the environment state after a step but before the automatic reset.

        The arguments are the same as for `step`. Videos draw the last frame of an episode from this state.

        By default, the state before the step, because `step` returns no other state before a reset.
        """
        return state

    @abc.abstractmethod
    def reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Starts an episode.

        Args:
            key: PRNG key.
            params: A pytree like `self.params`.

        Returns:
            ``(obs, state)``.
        """

    @abc.abstractmethod
    def step(self, key: jax.Array, state: Any, action: Any, params: Any) -> JaxStep:
        """Steps the environment, and resets it if the step ends the episode.

        Args:
            key: PRNG key, for the step and for the reset.
            state: The state that `reset` or the last `step` returned.
            action: An element of `action_space`.
            params: A pytree like `self.params`.
        """

    def step_keys(self, keys: jax.Array) -> Any:
        """Converts PRNG keys to the `keys` arguments of `step_batch` for all steps of a rollout, in one call.

        This call comes before the rollout's loop over steps. By default, returns the PRNG keys unchanged.

        Deriving keys in each step would be slower. A class that overrides `step_batch` gets the keys unchanged, unless
        it overrides `step_keys`, too.

        Args:
            keys: PRNG keys ``[T, B]``.

        Returns:
            A pytree of arrays ``[T, B, ...]``, whose ``[B, ...]`` `step_batch` takes for keys; here, these keys.
        """
        return keys

    def step_batch(self, keys: Any, state: Any, action: Any, params: Any) -> JaxStep:
        """Steps several environments at once, for sampling inside a compiled program.

        Args:
            keys: PRNG keys ``[B]``, or the entries ``[B, ...]`` of one step in the result of `step_keys`.
            state: States ``[B, ...]``.
            action: Actions ``[B, ...]``.
            params: Shared by all.

        Returns:
            A `JaxStep` of ``[B, ...]`` leaves, equal to `step` mapped over the environments.
        """
        return jax.vmap(self.step, in_axes=(0, 0, 0, None))(keys, state, action, params)


StepOutcome = tuple[Any, Any, Any, Any, Any, dict[str, Any]]
"""``(obs, state, reward, terminated, truncated, info)`` of a step without a reset."""
_STEP_ENV_PARTS = ("obs", "state", "reward", "terminated", "truncated", "info")


class _StepKeys(NamedTuple):
    """PRNG keys of one environment step: the given key `whole`, and the key `own` for the dynamics.

    `own` is derived from `whole`. A reset after the step derives another key from `whole`.

    Attributes:
        whole: Keys as they were given. The key of a reset is derived from them only when the reset is computed, because
            most steps need no reset.
        own: Keys of the dynamics.
    """

    whole: jax.Array
    own: jax.Array


class AutoResetJaxEnv(JaxEnv):
    """`JaxEnv` built from separate functions `reset_env` and `step_env`; resets episodes automatically.

    Subclasses write `reset_env` and `step_env`, in which plain Python numbers are fine;
    `reset` and `step` combine them and convert the types.

    Attributes:
        reset_is_cheap: False if a reset costs as much as many steps: then `step_batch` resets only the
            environments whose episode ended.
    """

    reset_is_cheap: bool = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if {"step_keys", "step_batch"} & vars(base).keys())
        if "step_keys" not in vars(owner):
            cls.step_keys = JaxEnv.step_keys

    @abc.abstractmethod
    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Starts an episode of the environment; returns ``(obs, state)``."""

    @abc.abstractmethod
    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        """Steps without a reset: returns ``(obs, state, reward, terminated, truncated, info)``."""

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = parts_of(f"{self.name}.reset_env", self.reset_env(key, params), ("obs", "state"))
        obs = self._conformed(obs)
        return obs, strongly_typed(state)

    def _conformed(self, obs: Any) -> Any:
        """Converts an observation that `reset_env` or `step_env` returned to the structure and dtypes of
        `observation_space`.
        """
        name = f"{self.name}'s observation"
        return spaces.conform(self.observation_space, obs, name, casts=self._casts_observations)

    def _stepped(self, outcome: Any) -> JaxStep:
        """Converts the return value of `step_env` to a `JaxStep`; checks the number of values, and the types of
        observation, reward and flags.
        """
        obs, state, reward, terminated, truncated, info = parts_of(f"{self.name}.step_env", outcome, _STEP_ENV_PARTS)
        obs = self._conformed(obs)
        signals = typed_signals(self.name, reward, terminated, truncated)
        return JaxStep(obs, strongly_typed(state), *signals, obs, strongly_typed(info))

    @property
    def _step(self) -> Callable[..., Any]:
        """Function ``(key, state, action, params)`` that steps the environment without a reset.

        The function returns only arrays and numbers, of the same shapes in every step. `_stepped` converts this return
        value to a `JaxStep`.
        """
        return self.step_env

    def step(self, key: jax.Array, state: Any, action: Any, params: Any) -> JaxStep:
        step_key, reset_key = jax.random.split(key)
        step = self._stepped(self._step(step_key, state, action, params))
        first = self.reset(reset_key, params)
        structs = [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), s) for s in (step.state, first[1])]
        expect_like(self.name, "step's state", *structs)
        ended = jnp.logical_or(step.terminated, step.truncated)
        obs, state = jax.tree.map(lambda fresh, last: jax.lax.select(ended, fresh, last), first, (step.obs, step.state))
        return step._replace(obs=obs, state=state)

    def last_state(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return self._stepped(self._step(jax.random.split(key)[0], state, action, params)).state

    def step_keys(self, keys: jax.Array) -> Any:
        own = jax.vmap(lambda key: jax.random.split(key)[0])(keys.reshape(-1))
        return _StepKeys(keys, own.reshape(keys.shape))

    def step_batch(self, keys: Any, state: Any, action: Any, params: Any) -> JaxStep:
        whole, own = keys if isinstance(keys, _StepKeys) else AutoResetJaxEnv.step_keys(self, keys)
        outcomes = jax.vmap(self._step, in_axes=(0, 0, 0, None))(own, state, action, params)
        step = jax.vmap(self._stepped)(outcomes)

        def reset(key: jax.Array) -> tuple[Any, Any]:
            return self.reset(jax.random.split(key)[1], params)

        if not self.reset_is_cheap:
            return reset_only_ended(step, reset, whole)
        return reset_where_ended(step, lambda: jax.vmap(reset)(whole))


class GymnaxEnv(AutoResetJaxEnv):
    """Adapter from a gymnax environment (gymnax 1.0 or later) to the `JaxEnv` interface.

    Every step calls the environment's own ``step``, so that overrides in environments and wrappers keep
    their effect; it splits the key, steps, and resets if the episode ended. (A separate step made of gymnax's
    ``step_env`` and ``reset_env`` is no faster: XLA compiles both to the same loop.)

    gymnax's declared spaces are used as they are, except that bounds at the limits of a float type mean
    "unbounded". Observations of gymnax's own environments are cast to the declared dtype, rewards to float32.

    Args:
        env: A registered id ("CartPole-v1", with or without "gymnax/" before it), an environment class, or an
            instance (a gymnax wrapper around one, too).
        env_config: Overrides by name. A field of the environment's ``EnvParams`` replaces that field; any
            other name must be an argument of the environment's constructor (an error if `env` is an instance).
        params: ``EnvParams`` that replace ``env.default_params``; only if `env` is an instance.

    Raises:
        ValueError: Unknown id or name in `env_config`, or a value of another shape or type than the default.
        TypeError: `env` is no gymnax environment.
    """

    def __init__(self, env: Any, env_config: Mapping[str, Any] | None = None, *, params: Any = None):
        config = dict(env_config or {})
        if params is not None and not is_gymnax_instance(env):
            raise ValueError(
                f"GymnaxEnv({env!r}, params=...): `params` is only for an instance of a gymnax environment. Use "
                "`env_config` instead."
            )
        if isinstance(env, str):
            env_id = env.removeprefix(GYMNAX_PREFIX)
            self._name = GYMNAX_PREFIX + env_id
            env = built(self._name, functools.partial(_make_gymnax, env_id), config)
        elif is_gymnax_class(env):
            self._name = env.__name__
            env = built(self._name, env, config)
        elif is_gymnax_instance(env):
            self._name = str(env.name)
            fields = field_names(env.default_params if params is None else params)
            refuse_unknown_setting(self._name, config, fields, None)
        else:
            raise TypeError(
                f"{env!r} is no gymnax environment. Give a registered id such as 'gymnax/CartPole-v1', a "
                "subclass of gymnax.environments.environment.Environment, or an instance (not wrapped in "
                "LegacyStepAPIWrapper)."
            )
        params = replaced_fields(self._name, env.default_params if params is None else params, config)
        self.env = env
        # Some of gymnax's own return floats for a Box of integers.
        self._casts_observations = type(env).__module__.partition(".")[0] == "gymnax"
        self._params = jax.tree.map(_as_numpy, params)
        self.observation_space, self.action_space = self.spaces_of(params)

    def spaces_of(self, params: Any) -> tuple[gym.Space, gym.Space]:
        """Returns observation and action space that gymnax derives from ``EnvParams``."""
        spaces = self.env.observation_space(params), self.env.action_space(params)
        return gymnax_space_to_gymnasium(spaces[0], self._name), gymnax_space_to_gymnasium(spaces[1], self._name)

    @property
    def params(self) -> Any:
        """Parameters of the environment, a pytree with NumPy leaves: gymnax's ``EnvParams`` with the values of
        ``env_config``.
        """
        return self._params

    @property
    def name(self) -> str:
        return self._name

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset(key, params)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, reward, terminated, self.env.is_truncated(state, params), info

    def step(self, key: jax.Array, state: Any, action: Any, params: Any) -> JaxStep:
        outcome = self.env.step(key, state, action, params)
        info = outcome[-1]
        if len(outcome) != 6 or not isinstance(info, Mapping) or "final_observation" not in info:
            found = f"info keys {sorted(info)}" if isinstance(info, Mapping) else f"a {type(info).__name__} as info"
            raise ValueError(
                f"{self.name}.step returned {len(outcome)} values with {found}, but gymnax "
                "1.0 returns (obs, state, reward, terminated, truncated, info) with info['final_observation']. Port "
                "the environment to gymnax 1.0, or write it as a JaxEnv."
            )
        obs, state, reward, terminated, truncated, info = outcome
        obs, final_obs = (self._conformed(x) for x in (obs, info["final_observation"]))
        signals = typed_signals(self.name, reward, terminated, truncated)
        rest = {name: x for name, x in info.items() if name not in ("terminated", "truncated", "final_observation")}
        return JaxStep(obs, strongly_typed(state), *signals, final_obs, strongly_typed(rest))

    def step_keys(self, keys: jax.Array) -> Any:
        return super().step_keys(keys) if self._has_plain_step else keys

    def step_batch(self, keys: Any, state: Any, action: Any, params: Any) -> JaxStep:
        if self._has_plain_step:
            return super().step_batch(keys, state, action, params)
        return JaxEnv.step_batch(self, keys, state, action, params)

    @property
    def render_fps(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return drawings.FPS.get(self._drawn_as, JaxEnv.render_fps)

    def render(self, state: Any) -> np.ndarray | None:
        """Draws a frame; returns None if the environment cannot draw frames as arrays.

        Draws classic control and MinAtar with `jaxrl_stack.env.drawings`, other environments with
        ``render(state, params)`` of their class. Returns None for gymnax's own renderers, which draw matplotlib
        figures, and for classes without `render`.
        """
        return self.render_with(state, self._params)

    def render_with(self, state: Any, params: Any) -> np.ndarray | None:
        """Draws a frame of `state`, with the parameters `params` (a pytree of NumPy leaves) instead of the
        environment's parameters; returns None if `render` would return None.
        """
        name = self._drawn_as
        if name in drawings.SCENES:
            return drawings.SCENES[name](state, params)
        if name in drawings.GRIDS:
            return drawings.observation(self._observe(state), self.observation_space)
        own = getattr(self.env, "render", None)
        if own is None or str(getattr(own, "__module__", "")).startswith("gymnax."):
            return None
        return own(state, params)

    @property
    def _drawn_as(self) -> str:
        """gymnax's name of the environment, which selects the drawing function for video frames.

        The name is "" for users' classes and wrappers, because their states may differ from the states that the drawing
        functions expect.
        """
        return str(self.env.name) if type(self.env).__module__.startswith("gymnax.environments.") else ""

    @property
    def has_own_bounds(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not type(self.env).__module__.startswith("gymnax.")

    @functools.cached_property
    def _observe(self) -> Callable[[Any], Any]:
        return jax.jit(lambda state: self.env.get_obs(state, self._params))

    def last_state(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return super().last_state(key, state, action, params) if self._has_plain_step else state

    @property
    def _has_plain_step(self) -> bool:
        """Whether the gymnax environment inherits `step` and `reset` from gymnax's base class without overriding
        them.
        """
        from gymnax.environments.environment import Environment

        cls = type(self.env)
        return isinstance(self.env, Environment) and all(
            getattr(cls, name) is getattr(Environment, name) for name in ("step", "reset")
        )


def as_jax_env(env: Any, env_config: Mapping[str, Any] | None = None) -> JaxEnv | None:
    """Converts an environment to a `JaxEnv`: returns a `JaxEnv` unchanged, and a gymnax environment as a `GymnaxEnv`.
    Returns None for any other object.

    Args:
        env: A `JaxEnv`; a gymnax instance; or the result of ``gymnax.make``, ``(instance, params)``.
        env_config: For gymnax, see `GymnaxEnv`.

    Raises:
        ValueError: `env_config` has items that `env` cannot take.
    """
    if isinstance(env, JaxEnv):
        if env_config:
            raise ValueError(
                f"env_config={dict(env_config)} cannot change {env.name}, which is an instance. Pass its class: "
                f"environment({type(env).__name__}, env_config=...), or register a creator with `register_env`."
            )
        return env
    if is_gymnax_instance(env):
        return GymnaxEnv(env, env_config)
    if isinstance(env, tuple) and len(env) == 2 and is_gymnax_instance(env[0]):
        return GymnaxEnv(env[0], env_config, params=env[1])
    return None


def is_gymnax_class(env: Any) -> bool:
    """Whether `env` is a gymnax environment class. Does not import gymnax."""
    # Where there is such a class, its base has been imported.
    module = sys.modules.get("gymnax.environments.environment")
    return module is not None and isinstance(env, type) and issubclass(env, module.Environment)


def is_gymnax_instance(env: Any) -> bool:
    """Whether `env` is a gymnax environment or a gymnax wrapper around one. Does not import gymnax."""
    module = sys.modules.get("gymnax.environments.environment")
    if module is not None and isinstance(env, module.Environment):
        return True
    wrappers = sys.modules.get("gymnax.wrappers.purerl")
    return wrappers is not None and isinstance(env, wrappers.GymnaxWrapper)


def gymnax_space_to_gymnasium(space: Any, name: str = "the environment") -> gym.Space:
    """Converts a gymnax space to a gymnasium space.

    Scalar bounds are spread over the shape. Bounds at or beyond the limits of a float type become infinite; bounds
    beyond the limits of an integer type become these limits. Keys of a Dict are sorted, as in every JAX dict.

    Args:
        space: gymnax's `Box`, `Discrete`, `Dict` or `Tuple`, or a gymnasium space (returned as it is).
        name: Name of the space's owner, for errors.

    Raises:
        TypeError: The space has another type.
    """
    if isinstance(space, gym.Space):
        return space
    from gymnax.environments import spaces as gymnax_spaces

    match space:
        case gymnax_spaces.Discrete():
            return gym.spaces.Discrete(int(space.n))
        case gymnax_spaces.Box():
            dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape)
            low, high = (_bound(value, shape, dtype) for value in (space.low, space.high))
            return gym.spaces.Box(low, high, shape, dtype.type)
        case gymnax_spaces.Dict():
            return gym.spaces.Dict(
                {key: gymnax_space_to_gymnasium(space.spaces[key], name) for key in sorted(space.spaces)}
            )
        case gymnax_spaces.Tuple():
            return gym.spaces.Tuple([gymnax_space_to_gymnasium(child, name) for child in space.spaces])
        case _:
            raise TypeError(
                f"{name} has the space {space!r}, which is not supported. Use gymnax's Box, Discrete, Dict or Tuple, "
                "or a space of gymnasium."
            )


def check_jax_env(env: JaxEnv, num_steps: int = 100) -> None:
    """Checks that an environment follows the contract of `JaxEnv`.

    Args:
        env: The environment.
        num_steps: Number of steps with random actions, in which rewards must be finite and observations inside of their
            space. With 0, nothing is run or compiled, and functions that the environment jits are not traced again.

    Raises:
        ValueError: A value does not follow the contract; the message names the environment, the value, and the expected
            form.
        TypeError: Compiled code does not support a space; or the environment's code cannot be compiled, draws random
            numbers from NumPy or Python, or changes attributes. Other errors of its code are reraised with a note.
    """
    for kind in ("observation_space", "action_space"):
        if not hasattr(env, kind):
            raise TypeError(
                f"{env.name} does not define {kind}. Set self.{kind} in __init__, or write it as an attribute or a "
                "property of the class."
            )
        spaces.check_space(getattr(env, kind), f"{env.name}.{kind}")
    check_signatures(env)
    key = jax.eval_shape(lambda: jax.random.key(0))
    reset_program, outcome = traced(env, "reset", key, env.params)
    obs, state = parts_of(f"{env.name}.reset", outcome, ("obs", "state"))
    action = spaces.shape_dtype_struct(env.action_space)
    step_program, step = traced(env, "step", key, state, action, env.params)
    if not isinstance(step, env.step_type):
        raise ValueError(
            f"{env.name}.step should return a {env.step_type.__name__}({', '.join(env.step_type._fields)}), but "
            f"returned a {type(step).__name__}. Return a {env.step_type.__name__}, or derive the environment from "
            "AutoResetJaxEnv and write step_env."
        )
    wanted = spaces.shape_dtype_struct(env.observation_space)
    for part, given in (("reset's obs", obs), ("step's obs", step.obs), ("step's final_obs", step.final_obs)):
        expect_like(env.name, part, given, wanted)
    expect_like(env.name, "step's state", step.state, state)
    for reward in jax.tree.leaves(step.reward):
        expect_like(env.name, "step's reward", reward, jax.ShapeDtypeStruct((), jnp.float32))
    for part, given in (("step's terminated", step.terminated), ("step's truncated", step.truncated)):
        expect_like(env.name, part, given, jax.ShapeDtypeStruct((), jnp.bool_))
    for path, leaf in jax.tree_util.tree_leaves_with_path({"reset": (obs, state), "step": step}):
        if leaf.weak_type:
            raise ValueError(
                f"{env.name}: the returned value {jax.tree_util.keystr(path)} is weakly typed ({leaf.dtype} from a "
                f"Python number), so programs compile twice. Return jnp.asarray(number, jnp.{leaf.dtype}), or derive "
                "the environment from AutoResetJaxEnv."
            )
    check_is_pure(env, "reset", reset_program, key, env.params, thorough=num_steps > 0)
    check_is_pure(env, "step", step_program, key, state, action, env.params, thorough=num_steps > 0)
    if num_steps:
        check_steps(env, num_steps)


def _bound(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    bound = np.asarray(value, np.float64)
    bound = np.full(shape, bound.reshape(())) if bound.size == 1 else np.broadcast_to(bound, shape).copy()
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max)
        bound[bound >= limit], bound[bound <= -limit] = np.inf, -np.inf
        return bound.astype(dtype)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (0, 1)
    # Through Python integers: float64 rounds the limits of 64-bit types out of their range.
    clipped = [low if x <= low else high if x >= high else int(x) for x in bound.ravel()]
    return np.array(clipped, dtype).reshape(shape)


def _make_gymnax(env_id: str, **arguments: Any) -> Any:
    gymnax = import_gymnax()
    if env_id not in gymnax.registered_envs:
        near = difflib.get_close_matches(env_id, gymnax.registered_envs, n=3)
        raise ValueError(
            f"gymnax has no environment {env_id!r}. "
            + (f"Did you mean {' or '.join(repr(GYMNAX_PREFIX + i) for i in near)}? " if near else "")
            + ("`jaxrl list envs` prints all ids." if near else f"Its ids: {', '.join(gymnax.registered_envs)}.")
        )
    try:
        return gymnax.make(env_id, **arguments)[0]
    except OSError as error:
        raise RuntimeError(
            f"{GYMNAX_PREFIX}{env_id} could not load the data that it needs ({error}). MNISTBandit-bsuite "
            "downloads MNIST when it is built: give this machine network access once, or place the files "
            "where gymnax.utils.load_mnist looks for them."
        ) from error


def _as_numpy(x: Any) -> Any:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return np.asarray(x, jnp.result_type(x))
