"""JAX environments that draw parameters at each reset (domain randomization), and that can add the parameters to
observations (for privileged critics).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.default_observations import has_action_mask
from jaxrl_stack.env.env_settings import derived_fields, related_fields
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv, JaxEnv, JaxStep, StepOutcome
from jaxrl_stack.env.jax_env_wrapper import JaxEnvWrapper
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.param_ranges import ParamRange, shown
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.live_inputs import traced_once
from jaxrl_stack.utils.named_leaves import is_key, leaves_by_name, with_named_leaves
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.streams import named

STREAM = "randomized_params"
"""Random stream of the draws, under the key of a reset; each parameter has a stream of its name below it."""
STATE, PRIVILEGED_STATE = "state", "privileged_state"
"""Keys of observations with ``privileged_params=True``."""

Draws = Callable[[jax.Array, Any], dict[str, jax.Array]]
"""``(PRNG key, params) -> {leaf of params: drawn value}``, with the same names and shapes in every call."""


class RandomizedState(NamedTuple):
    """State of a `RandomizedJaxEnv`: the wrapped environment's state, and the parameters drawn for the unfinished
    episode.

    Attributes:
        env: State of the environment.
        params: Parameters of the unfinished episode that differ from the environment's, by name.
    """

    env: Any
    params: dict[str, jax.Array]


class RandomizedJaxEnv(JaxEnvWrapper[JaxEnv]):
    """Environment whose parameters are drawn at each reset, and can be part of observations.

    The environment gets the key of a reset unchanged, so a range of one value changes only the rounding of episodes.
    Spaces do not depend on the draws.

    Args:
        env: The environment, of one agent.
        draws: Makes the parameters of an episode; None keeps the environment's.
        scales: Distributions to scale privileged parameters by; {} adds none to observations. With some, observations
            are ``{"state": observation, "privileged_state": float32 [n]}``: the scaled parameters of the current
            episode, in alphabetical order, in [-1, 1] within their distributions.

    Attributes:
        unwrapped: The environment.
    """

    def __init__(self, env: JaxEnv, draws: Draws | None, scales: Mapping[str, ParamRange]):
        super().__init__(env)
        self._draws = draws
        self._scales = dict(sorted(scales.items()))
        self.observation_space, self.action_space = env.observation_space, env.action_space
        if scales:
            size = sum(int(np.prod(scale.values.shape[1:])) for scale in scales.values())
            # Evaluations have values outside of training's distributions, too.
            privileged = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
            self.observation_space = gym.spaces.Dict({STATE: env.observation_space, PRIVILEGED_STATE: privileged})
        self.has_own_bounds = False

    def render(self, state: RandomizedState) -> np.ndarray | None:
        env = self.unwrapped
        if isinstance(env, GymnaxEnv):
            return env.render_with(state.env, with_named_leaves(env.params, state.params))
        return env.render(state.env)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, RandomizedState]:
        drawn = {} if self._draws is None else self._draws(named(key, STREAM), params)
        own = with_named_leaves(params, drawn)
        obs, state = self.unwrapped.reset(key, own)
        return self._observed(obs, own), RandomizedState(state, drawn)

    def step_env(self, key: jax.Array, state: RandomizedState, action: Any, params: Any) -> StepOutcome:
        env, own = self.unwrapped, with_named_leaves(params, state.params)
        if _resets_after_step(env):
            step: JaxStep = env._stepped(env._step(key, state.env, action, own))
        else:
            # Its reset is replaced by one with other parameters.
            step = env.step(key, state.env, action, own)
        obs = self._observed(step.final_obs, own)
        return obs, state._replace(env=step.state), step.reward, step.terminated, step.truncated, step.info

    def last_state(self, key: jax.Array, state: RandomizedState, action: Any, params: Any) -> RandomizedState:
        env = self.unwrapped
        if _resets_after_step(env):
            return super().last_state(key, state, action, params)
        own = with_named_leaves(params, state.params)
        return state._replace(env=env.last_state(jax.random.split(key)[0], state.env, action, own))

    def unwrapped_observation(self, obs: Any) -> Any:
        """Returns the observation as the wrapped environment returned it, without the drawn parameters that the wrapper
        adds.
        """
        return obs[STATE] if self._scales else obs

    def _observed(self, obs: Any, params: Any) -> Any:
        if not self._scales:
            return obs
        values = leaves_by_name(params)
        scaled = [scale.scaled(values[name]).reshape(-1) for name, scale in self._scales.items()]
        return {STATE: obs, PRIVILEGED_STATE: jnp.concatenate(scaled)}


def _resets_after_step(env: JaxEnv) -> TypeGuard[AutoResetJaxEnv]:
    """Whether the environment's `step` only calls `_step`, which does not reset, and then `reset`.

    If so, the wrapper can call `_step` itself, and reset with newly drawn parameters.
    """
    if isinstance(env, GymnaxEnv):
        return env._has_plain_step
    return isinstance(env, AutoResetJaxEnv) and type(env).step is AutoResetJaxEnv.step


_Env = TypeVar("_Env", bound=JaxEnv | None)


def unrandomized(env: _Env) -> _Env | JaxEnv:
    """Returns the environment inside of a `RandomizedJaxEnv`; any other environment is returned unchanged."""
    return env.unwrapped if isinstance(env, RandomizedJaxEnv) else env


def with_randomized_params(config: Any, env: JaxEnv, *, trained: Any = None) -> JaxEnv:
    """Wraps an environment so that each reset draws parameters, as ``environment(randomized_params=...,
    privileged_params=...)`` specifies.

    Args:
        config: The config of the runners that sample.
        env: The environment of `config`; returned unchanged if `config` sets neither.
        trained: The algorithm's config, whose distributions scale the privileged parameters; None for `config`.

    Raises:
        ValueError: The environment has several agents, or a mask next to privileged parameters. It lacks a parameter,
            or its parameter is no number, is used in Python, is not read, or defines the action space. A function
            returns other parameters than it got.
    """
    given, scaled_by = config.randomized_params, (config if trained is None else trained).randomized_params
    if given is None and not config.privileged_params:
        return env
    if isinstance(env, MultiAgentJaxEnv):
        raise ValueError(
            f"environment(randomized_params=...) does not support several agents, and {env.name} has "
            f"{list(env.possible_agents)}. Leave randomized_params out, and draw parameters in reset_env."
        )
    if config.privileged_params and has_action_mask(env.observation_space, config.action_mask_key):
        raise ValueError(
            f"environment(privileged_params=True) does not support action masks, and {env.name} has the mask "
            f"{config.action_mask_key!r}. Leave privileged_params out, or set "
            "environment(action_mask_key='none')."
        )
    scales = _ranges(env, scaled_by) if config.privileged_params else {}
    _check_scales(env, scales)
    if given is None:
        return RandomizedJaxEnv(env, None, scales)
    chosen = config.env_config
    if isinstance(given, Mapping):
        draws = _RangeDraws(env, given, chosen)
        _check_drawn_scales(draws, scales, given)
    else:
        draws = _FunctionDraws(env, given, chosen)
    if not config.disable_env_checking:
        _check_program(env, draws, given)
        _check_space_bounds(env, draws, given)
    return RandomizedJaxEnv(env, draws, scales)


def _ranges(env: JaxEnv, given: Mapping[str, Any]) -> dict[str, ParamRange]:
    """Returns the distributions in the setting ``randomized_params``, by the names of the environment's parameters;
    raises ValueError for unknown names.
    """
    known = {name: leaf for name, leaf in leaves_by_name(env.params).items() if not is_key(leaf)}
    found = {}
    for name, own in given.items():
        called = f"environment(randomized_params={shown({name: own})})"
        if not known:
            raise ValueError(
                f"{called}: {env.name} has no parameters. Define a property `params`; reset and step receive its value."
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{called}: {env.name} has no parameter {name!r}.{hint} It has {', '.join(known)}.")
        try:
            found[name] = ParamRange.of(own, known[name])
        except ValueError as error:
            raise ValueError(f"{called} does not fit the parameter {name!r} of {env.name}: {error}.") from None
    return found


def _check_scales(env: JaxEnv, scales: Mapping[str, ParamRange]) -> None:
    """Checks that parameters are above 0 if observations contain these parameters on a log scale.

    Raises ValueError if ``env.params`` (the parameters without random draws) has a value <= 0 for one of these
    parameters.
    """
    for name, scale in scales.items():
        value = np.asarray(leaves_by_name(env.params)[name])
        if scale.kind == "log" and np.any(value <= 0):
            raise ValueError(
                f"environment(privileged_params=True) scales {name!r} by its logarithm, because training draws it from "
                f"a 'log' range, but {env.name} has {name}={value}, which must be above 0. Change this value in "
                f"env_config, or let training draw from a uniform range: randomized_params={{{name!r}: (low, high)}}."
            )


def _check_drawn_scales(draws: _RangeDraws, scales: Mapping[str, ParamRange], given: Mapping[str, Any]) -> None:
    """Raises ValueError if an evaluation draws values <= 0 of a parameter that training observes on a log scale."""
    for name, drawn in draws.ranges.items():
        if name in scales and scales[name].kind == "log" and np.any(drawn.values <= 0):
            raise ValueError(
                f"environment(randomized_params={shown({name: given[name]})}) draws values <= 0, but training scales "
                f"{name!r} by its logarithm, because training draws it from a 'log' range. Draw values above 0, or let "
                f"training draw from a uniform range: randomized_params={{{name!r}: (low, high)}}."
            )


class _RangeDraws:
    """Draws each parameter from its distribution, and computes the parameters that depend on drawn ones.

    Args:
        env: The environment.
        given: Distributions by name.
        chosen: Parameters that ``env_config`` sets, by name: these keep their values.

    Attributes:
        ranges: Distributions by name.
        names: Parameters that are drawn.
    """

    def __init__(self, env: JaxEnv, given: Mapping[str, Any], chosen: Collection[str]):
        self.ranges = _ranges(env, given)
        own = env.params
        self._derived = {
            field: (derived, jnp.result_type(getattr(own, field)))
            for field, derived in derived_fields(own, self.ranges).items()
            if field not in chosen
        }
        self.names = tuple(self.ranges)
        for field, kept in related_fields(env.params, self.ranges).items():
            notice_once(
                f"environment(randomized_params={{{field!r}: ...}}): {env.name} keeps {' and '.join(kept)}, which suit "
                f"its own {field}. Use a function: randomized_params=lambda key, params: params.replace(...)."
            )

    def __call__(self, key: jax.Array, params: Any) -> dict[str, jax.Array]:
        return self.completed(params, {name: own.draw(named(key, name)) for name, own in self.ranges.items()})

    def completed(self, params: Any, drawn: dict[str, Any]) -> dict[str, Any]:
        """Returns the drawn parameters together with the parameters that the environment computes from them."""
        changed = with_named_leaves(params, drawn)
        return drawn | {field: jnp.asarray(own.of(changed), dtype) for field, (own, dtype) in self._derived.items()}


class _FunctionDraws:
    """Draws environment parameters with the user's function ``(key, params) -> new params``.

    Args:
        env: The environment.
        function: Returns parameters like those that it gets.
        chosen: Parameters that ``env_config`` sets, by name.

    Attributes:
        names: Leaves that the function replaces.
    """

    def __init__(self, env: JaxEnv, function: Callable[[jax.Array, Any], Any], chosen: Collection[str]):
        self._function, self._called = function, f"environment(randomized_params={shown(function)})"
        params = _in_traces(env.params)
        own = leaves_by_name(params)
        self._dtypes = {name: jnp.result_type(leaf) for name, leaf in own.items()}
        names: list[str] = []

        def changed(key: jax.Array) -> dict[str, Any]:
            new = self._new(key, params)
            if jax.tree.structure(new) != jax.tree.structure(params):
                raise ValueError(
                    f"{self._called}: the function returned {jax.tree.structure(new)}, but the parameters of "
                    f"{env.name} are {jax.tree.structure(params)}. Return params.replace(...)."
                )
            after = leaves_by_name(new)
            names.extend(name for name in own if after[name] is not own[name])
            return {name: after[name] for name in names}

        of_new = jax.eval_shape(changed, jax.eval_shape(lambda: jax.random.key(0)))
        self.names = tuple(names)
        if not names:
            raise ValueError(
                f"{self._called}: the function changes no parameter of {env.name}. Return params.replace(name=value)."
            )
        for name, leaf in of_new.items():
            wanted = np.shape(own[name]), self._dtypes[name]
            if leaf.shape != wanted[0] or np.dtype(leaf.dtype).kind != np.dtype(wanted[1]).kind:
                raise ValueError(
                    f"{self._called}: the function returned {name}: {leaf.dtype}{list(leaf.shape)}, but {env.name} has "
                    f"{name}: {wanted[1]}{list(wanted[0])}. Return {name} with this shape and type."
                )
        for field, derived in derived_fields(params, names).items():
            if field in chosen:
                continue
            sources = " and ".join(derived.sources)
            notice_once(
                f"{self._called} keeps {field}={own[field]}, which {env.name} reads in place of {sources}. Return "
                f"params.replace({field}=...), too."
            )

    def _new(self, key: jax.Array, params: Any) -> Any:
        try:
            return self._function(key, params)
        except Exception as error:
            error.add_note(f"Raised by the function of {self._called}.")
            raise

    def __call__(self, key: jax.Array, params: Any) -> dict[str, jax.Array]:
        new = leaves_by_name(self._new(key, params))
        return {name: jax.lax.convert_element_type(new[name], self._dtypes[name]) for name in self.names}

    def completed(self, params: Any, drawn: dict[str, Any]) -> dict[str, Any]:
        """Returns the drawn parameters unchanged, because the user's function also sets the parameters that are
        computed from drawn ones.
        """
        return drawn


def _in_traces(params: Any) -> Any:
    """Converts NumPy arrays in environment parameters to JAX arrays, because traced code cannot index NumPy arrays
    with tracers (rollouts convert them, too). Scalars do not change.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if np.ndim(leaf) else leaf, params)


def _check_program(env: JaxEnv, draws: _RangeDraws | _FunctionDraws, given: Any) -> None:
    """Checks that `reset` and `step` support the randomized parameters.

    Raises ValueError in two cases: JAX cannot trace `reset` and `step`, because the environment uses a parameter in
    Python code, such as a branch; or `reset` and `step` ignore a parameter that is drawn from a distribution, or all
    parameters that a user's function draws.
    """
    try:
        unread = _unread(env, draws, draws.names)
    except Exception as error:  # Shapes, indices and branches raise different ones.
        if not _can_trace(env, draws, ()):  # It fails without draws, too.
            raise
        single = next((name for name in draws.names if not _can_trace(env, draws, (name,))), ", ".join(draws.names))
        raise ValueError(
            f"environment(randomized_params={shown(given)}): {env.source} uses {single!r} in Python code, so all "
            f"episodes share one value ({type(error).__name__}). Do not draw this parameter, or compute with "
            "jax.numpy in reset and step."
        ) from error
    # A function may set fields that only complete others.
    if unread and (isinstance(draws, _RangeDraws) or len(unread) == len(draws.names)):
        raise ValueError(
            f"{_called(given, unread[0])}: reset and step of {env.source} do not read {unread[0]!r} from their "
            "argument `params`, so draws have no effect. Do not draw this parameter, or read `params` and "
            "not self.params."
        )


def _called(given: Any, name: str) -> str:
    """Returns the setting of the parameter `name` as text for error messages.

    The text is ``environment(randomized_params={name: ...})``. If `given` is a function that draws all parameters, the
    text names the function instead of the dict.
    """
    return f"environment(randomized_params={shown({name: given[name]} if isinstance(given, Mapping) else given)})"


def _can_trace(env: JaxEnv, draws: _RangeDraws | _FunctionDraws, names: tuple[str, ...]) -> bool:
    """Whether JAX can trace `reset` and `step` if the drawn parameters `names` are tracers, not concrete numbers."""
    try:
        _unread(env, draws, names)
    except Exception:
        return False
    return True


def _unread(env: JaxEnv, draws: _RangeDraws | _FunctionDraws, names: tuple[str, ...]) -> list[str]:
    """Returns the names of parameters that `reset` and `step` do not read, found by tracing both with abstract
    values.
    """
    params = _in_traces(env.params)
    own = leaves_by_name(params)
    drawn = {name: jax.ShapeDtypeStruct(np.shape(own[name]), jnp.result_type(own[name])) for name in names}

    def episode(key: jax.Array, action: Any, drawn: Any) -> Any:
        changed = with_named_leaves(params, draws.completed(params, drawn))
        obs, state = env.reset(key, changed)
        return obs, env.step(key, state, action, changed)

    key, action = jax.eval_shape(lambda: jax.random.key(0)), spaces.shape_dtype_struct(env.action_space)
    is_read = traced_once(episode, key, action, drawn).matters[2]
    return [name for name in names if not is_read[name]]


def _check_space_bounds(env: JaxEnv, draws: _RangeDraws | _FunctionDraws, given: Any) -> None:
    """Checks whether drawn parameters change the spaces of a gymnax environment.

    Raises ValueError if drawn parameters change the action space, or the shapes or dtypes of observations. Prints a
    notice if drawn parameters change the bounds of observations.
    """
    if not isinstance(env, GymnaxEnv):
        return
    if isinstance(draws, _RangeDraws):
        extremes = {name: (own.values.min(0), own.values.max(0)) for name, own in draws.ranges.items()}
    else:
        drawn = [jax.device_get(draws(jax.random.key(seed), env.params)) for seed in (0, 1)]
        extremes = {name: tuple(one[name] for one in drawn) for name in draws.names}
    for name, values in extremes.items():
        called = _called(given, name)
        for value in values:
            observation_space, action_space = env.spaces_of(with_named_leaves(env.params, {name: value}))
            if action_space != env.action_space or spaces.difference(observation_space, env.observation_space):
                kind = "observation" if action_space == env.action_space else "action"
                raise ValueError(
                    f"{called}: the {kind} space of {env.name} depends on {name!r}, and spaces cannot change in "
                    f"training. Do not draw {name!r}; set env_config={{{name!r}: {value!s}}}."
                )
            if observation_space != env.observation_space:
                notice_once(
                    f"{called}: bounds of the observation space of {env.name} depend on {name!r}. They stay those of "
                    f"{name}={leaves_by_name(env.params)[name]!s}, so observations may lie outside."
                )


__all__ = ["PRIVILEGED_STATE", "STATE", "RandomizedJaxEnv", "RandomizedState", "unrandomized", "with_randomized_params"]
