"""Registration of environments, and resolution of the argument of ``config.environment(env)``.

An environment is either a JAX environment, sampled on the device, or a host environment (gymnasium API),
sampled by actors. `resolve_env` tells which without building anything where it can: making a gymnax
environment starts the JAX backend, and the number of CPU devices has to be settled before that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from jaxrl_stack.env.created_envs import EnvCreator, create, keep, look_at
from jaxrl_stack.env.env_context import EnvContext, copied, refuse_unknown
from jaxrl_stack.env.host_packages import import_entry_point, import_package, register_ids_of
from jaxrl_stack.env.jax_env import GYMNAX_PREFIX, GymnaxEnv, JaxEnv, as_jax_env, check_jax_env, is_gymnax_class
from jaxrl_stack.env.suites import all_suites, suite_of
from jaxrl_stack.env.vector import suites
from jaxrl_stack.utils.class_paths import register_class
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.signatures import call_problem

VectorCreator = Callable[[EnvContext, int, int | None], Any]
"""``(config, number of copies, seed where it is fixed when they are made) -> gymnasium.vector.VectorEnv``."""

# The ids that gymnax 1.0 registers, for checks and suggestions that must not import it.
_GYMNAX_SUITES = {
    "MinAtar": "Asterix Breakout Freeway Seaquest SpaceInvaders",
    "bsuite": "Catch DeepSea MemoryChain UmbrellaChain DiscountingChain MNISTBandit SimpleBandit",
    "misc": "FourRooms MetaMaze PointRobot BernoulliBandit GaussianBandit Reacher Swimmer Pong FrozenLake",
}
GYMNAX_IDS = (
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *(f"{name}-{suite}" for suite, names in _GYMNAX_SUITES.items() for name in names.split()),
)

_creators: dict[str, EnvCreator] = {}


def register_env(name: str, env_creator: EnvCreator) -> None:
    """Registers an environment for ``config.environment(name)``. A later registration replaces an earlier one.

    Args:
        name: Any string that does not start with "gymnax/" or "envpool/".
        env_creator: Called with an `EnvContext`, the ``env_config`` as a dict. Returns a `JaxEnv`, a gymnax
            environment (or ``gymnax.make``'s pair of environment and params), a `gymnasium.Env`, or a
            `gymnasium.vector.VectorEnv` of all copies (with ``gym_env_vectorize_mode="vector_entry_point"``
            the dict has an item "num_envs" that says how many). Checkpoints may name a class that is given here.

    Raises:
        TypeError: `name` is no string, or `env_creator` is not callable with one argument.
        ValueError: `name` starts with "gymnax/" or "envpool/".
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_env(name={name!r}): the name must be a non-empty string.")
    problem = "it is no function"
    if callable(env_creator):
        problem = call_problem(env_creator, EnvContext({}, worker_index=0))
    if problem is not None:
        raise TypeError(
            f"register_env({name!r}, {env_creator!r}): the creator must be callable with one argument, the "
            f"env_config ({problem})."
        )
    for prefix, or_else in ((GYMNAX_PREFIX, ", or register it with gymnax.register"), (suites.ENVPOOL_PREFIX, "")):
        if name.startswith(prefix):
            raise ValueError(
                f"register_env({name!r}): names that start with {prefix!r} belong to {prefix.removesuffix('/')}. "
                f"Choose another name{or_else}."
            )
    _creators[name] = env_creator
    if isinstance(env_creator, type):
        with contextlib.suppress(ValueError):  # defined inside a function, which no checkpoint can name
            register_class(env_creator)


def note_env(name: str, env_creator: EnvCreator, *, replaces: bool) -> None:
    """Registers in this process an env creator that was registered with Ray Tune or in another process.

    Replaces an existing creator of this name only if `replaces` is True.
    """
    if replaces or name not in _creators:
        _creators[name] = env_creator


def get_env_creator(name: str) -> EnvCreator | None:
    """Returns the env creator that was registered last under `name`, with this package's `register_env` or with
    ``ray.tune.register_env``; None if no creator is registered.
    """
    return _creators.get(name) or _creator_from_ray(name)


def env_class(env: Any) -> type | None:
    """Finds the class that a value of ``config.environment(env)`` names, without creating an environment.

    Args:
        env: A class, "module:Class", or a name that was registered with a class.

    Returns:
        The class; None for other environments, and if the module does not import.
    """
    if isinstance(env, str):
        creator, (module_name, _, attribute) = get_env_creator(env), env.partition(":")
        if creator is not None:
            env = creator
        elif module_name and attribute:
            with contextlib.suppress(ImportError):
                env = getattr(importlib.import_module(module_name), attribute, None)
    return env if isinstance(env, type) else None


@dataclasses.dataclass(frozen=True)
class ResolvedEnv:
    """Environment that a config's ``env`` setting names: its kind, and functions that create copies.

    Attributes:
        name: Name of the environment in messages and results.
        is_jax: True: a JAX environment, sampled on the device. False: a host environment.
        hint: A sentence about a choice that the user may not know; None without one.
        context: The ``env_config`` that it was resolved with.
        spec: Its entry in gymnasium's registry, if it is an id of gymnasium.
        is_vector: It makes a `gymnasium.vector.VectorEnv`, which steps all copies itself.
        seeded_when_made: Its random seed is an argument of `make_vector`, not of `reset`.
        creator: Makes one copy from an `EnvContext`.
        registered: The creator that was registered under this name; None without one.
    """

    name: str
    is_jax: bool
    context: EnvContext
    hint: str | None = None
    spec: Any | None = None
    is_vector: bool = False
    seeded_when_made: bool = False
    creator: EnvCreator = dataclasses.field(repr=False, kw_only=True)
    registered: EnvCreator | None = dataclasses.field(default=None, repr=False, kw_only=True)
    _vector_creator: VectorCreator | None = dataclasses.field(default=None, repr=False, kw_only=True)

    def make(self, context: EnvContext | None = None, *, check: bool = True) -> Any:
        """Creates the environment: a `JaxEnv`, a `gymnasium.Env`, or, if `is_vector`, a `gymnasium.vector.VectorEnv`.

        Args:
            context: Config and place of this copy; None for the one it was resolved with.
            check: Whether a JAX environment is checked, without being run.

        Raises:
            ValueError: A JAX environment does not keep its contract; see `check_jax_env`.
            TypeError: Likewise.
        """
        env = self.creator(self.context if context is None else context)
        if self.is_jax and check:
            check_jax_env(env, num_steps=0)
        return env

    def release(self, env: Any) -> None:
        """Closes an unused environment that `make` created.

        Exception: inside a ``with creators_called_once():`` block, an environment that a registered creator made is
        stored instead, so that an env runner can use it without a second call of the creator.
        """
        if self.registered is not None:
            keep(self.registered, self.context, env)
        elif not self.is_jax:
            close_env(env)

    def make_vector(
        self, num_envs: int, context: EnvContext | None = None, seed: int | None = None
    ) -> gym.vector.VectorEnv:
        """Creates `num_envs` copies of the environment as one `gymnasium.vector.VectorEnv`.

        Args:
            num_envs: Number of copies.
            context: Config and place; None for the one it was resolved with.
            seed: Seed if `seeded_when_made`; None: 0.

        Raises:
            ValueError: The environment has no vector version.
            TypeError: The creator returned no `gymnasium.vector.VectorEnv`.
        """
        if self._vector_creator is None:
            raise ValueError(
                f"env_runners(gym_env_vectorize_mode='vector_entry_point'): environment({self.name!r}) has no vector "
                "version. Use 'sync' or 'async', or give a gymnasium.vector.VectorEnv class."
            )
        env = self._vector_creator(self.context if context is None else context, num_envs, seed)
        if not isinstance(env, gym.vector.VectorEnv):
            raise TypeError(
                f"The creator or vector entry point of environment({self.name!r}) returned {env!r}. Let it return a "
                "gymnasium.vector.VectorEnv."
            )
        return env


def resolve_env(env: Any, env_config: Mapping[str, Any] | None = None, *, num_envs: int | None = None) -> ResolvedEnv:
    """Finds the environment that ``config.environment(env, env_config=...)`` names. Returns a `ResolvedEnv`: the kind
    of the environment, and functions that create copies.

    In this order: an instance; a class; a registered name; "gymnax/<id>"; "envpool/<id>"; the prefix of a suite, as in
    "brax/ant"; "module:Class"; an id of gymnasium ("ALE/..." imports ale-py). A class is called with the `EnvContext`,
    unless it is a gymnax class; gymnax environments take `env_config` as `GymnaxEnv` says, those of suites as the
    adapters in `jaxrl_stack.env.suites` say, envpool's as arguments of ``envpool.make``, gymnasium ids as keyword
    arguments of ``gymnasium.make``. A registered creator is called once per config, to see what it makes (see
    `created_envs`).

    Args:
        env: `JaxEnv` or gymnax instance or class, `gymnasium.Env` or `gymnasium.vector.VectorEnv` class, registered
            name, "gymnax/<id>", "envpool/<id>", "<suite>/<id>", "module:Class", or gymnasium id.
        env_config: Config for the environment; may be an `EnvContext`.
        num_envs: Item "num_envs" of the config that a registered creator is called with; None for none.

    Raises:
        ValueError: No environment, or an unknown name (with near matches).
        TypeError: An object that is no environment.
        ImportError: The module of "module:Class" does not import, or envpool, ale-py or the suite is not installed.
    """
    context = env_config if isinstance(env_config, EnvContext) else EnvContext(env_config or {}, worker_index=0)
    if env is None:
        raise ValueError("no environment is set: call config.environment('gymnax/CartPole-v1'), for example.")
    if isinstance(env, str):
        return _resolve_name(env, context, num_envs)
    if isinstance(env, type):
        return _resolve_class(env, env.__name__, context)
    jax_env = as_jax_env(env, context)
    if jax_env is not None:
        return ResolvedEnv(jax_env.name, True, context, creator=lambda ctx: as_jax_env(env, ctx))
    if isinstance(env, (gym.Env, gym.vector.VectorEnv)):
        raise TypeError(
            f"environment(env={env!r}): an instance of a gymnasium environment cannot be copied for vector "
            "environments and actors. Give its class or id, or call register_env('my_env', lambda config: ...) and "
            "give 'my_env'."
        )
    raise TypeError(
        f"environment(env={env!r}) is no environment. Give 'gymnax/<id>', a gymnasium id, a registered name, "
        "'module:Class', an environment's class, or a JaxEnv or gymnax instance. For a function that makes "
        "environments, call register_env(name, function)."
    )


def _creator_from_ray(name: str, is_last_resort: bool = False) -> EnvCreator | None:
    """Returns the env creator that ``ray.tune.register_env`` stored under `name` in Ray's registry; None if there is
    none.

    Finds creators that were registered before this package was imported, or in Ray's driver process.
    """
    # Imported, which takes a second, for names that nothing else knows: an actor may be the first to use it here.
    if is_last_resort and "ray" in sys.modules and sys.modules["ray"].is_initialized():
        importlib.import_module("ray.tune.registry")
    ray_tune = sys.modules.get("ray.tune.registry")
    if ray_tune is None or not ray_tune._global_registry.contains(ray_tune.ENV_CREATOR, name):
        return None
    return ray_tune._global_registry.get(ray_tune.ENV_CREATOR, name)


def _resolve_name(name: str, context: EnvContext, num_envs: int | None = None) -> ResolvedEnv:
    creator = get_env_creator(name)
    if creator is not None:
        return _resolve_creator(name, creator, context, num_envs)
    if name.startswith(GYMNAX_PREFIX):
        if name.removeprefix(GYMNAX_PREFIX) not in GYMNAX_IDS:
            GymnaxEnv(name, context)  # raises, unless gymnax has more ids than this file knows
        return ResolvedEnv(name, True, context, creator=lambda ctx: GymnaxEnv(name, ctx))
    if name.startswith(suites.ENVPOOL_PREFIX):
        import_package(name, "envpool")

        def make(ctx: EnvContext, num_envs: int, seed: int | None) -> Any:
            return suites.make_envpool(name, ctx, num_envs, seed or 0)

        return _vector_env(name, context, make, seeded_when_made=True)
    suite = suite_of(name)
    if suite is not None:
        suite.require()
        env_id = name.partition("/")[2]
        return ResolvedEnv(name, True, context, creator=lambda ctx: suite.make(env_id, ctx))
    register_ids_of(name)
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"environment({name!r}): the module {module_name!r} does not import ({error}). Install it, or add its "
                "folder to sys.path."
            ) from error
        found = getattr(module, attribute, None)
        if isinstance(found, type):
            return _resolve_class(found, name, context)
        if f"{module_name}/" == GYMNAX_PREFIX and attribute in _gymnax_ids():
            raise ValueError(
                f"environment({name!r}): names of gymnax environments have a slash, not a colon. Therefore write "
                f"{module_name + '/' + attribute!r}."
            )
        # gymnasium's own form: importing the module registers the id after the colon.
        if attribute not in gym.registry:
            raise ValueError(
                f"environment({name!r}): {module_name!r} has no class {attribute!r} and registers no "
                "gymnasium id of that name. Check the spelling: 'module:Class' or 'module:Id-v0'."
            )
    elif name not in gym.registry:
        creator = _creator_from_ray(name, is_last_resort=True)
        if creator is None:
            raise UnknownEnvironmentError(_unknown_name(name))
        return _resolve_creator(name, creator, context, num_envs)
    hint = None
    if name in _gymnax_ids():
        hint = (
            f"{name!r} is gymnasium's environment and runs on the host; use "
            f"{GYMNAX_PREFIX + name!r} to sample on the device."
        )
    spec = gym.spec(name)
    import_entry_point(spec)
    _check_arguments(spec, context)
    return ResolvedEnv(
        name,
        False,
        context,
        hint,
        spec,
        creator=lambda ctx: gym.make(spec, **ctx),
        _vector_creator=_vector_creator(spec),
    )


def _vector_creator(spec: Any) -> VectorCreator | None:
    """Returns a function that creates the vector version of a gymnasium id; None if there is no vector version."""
    if spec.vector_entry_point is None:
        return None
    if spec.namespace == suites.ALE_PREFIX.removesuffix("/"):
        return lambda ctx, num_envs, seed: suites.make_atari(spec, ctx, num_envs)
    mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
    return lambda ctx, num_envs, seed: gym.make_vec(spec, num_envs, vectorization_mode=mode, **ctx)


def _vector_env(name: str, context: EnvContext, make: VectorCreator, **more: Any) -> ResolvedEnv:
    """Creates the `ResolvedEnv` of an environment whose creator makes all copies as one vector environment. This vector
    environment is used in every `gym_env_vectorize_mode`.
    """
    return ResolvedEnv(
        name, False, context, is_vector=True, creator=lambda ctx: make(ctx, 1, None), _vector_creator=make, **more
    )


def _resolve_class(env: type, name: str, context: EnvContext) -> ResolvedEnv:
    if is_gymnax_class(env):
        return ResolvedEnv(name, True, context, creator=lambda ctx: GymnaxEnv(env, ctx))
    if issubclass(env, (gym.Env, gym.vector.VectorEnv, JaxEnv)):
        _check_class(env)
    if issubclass(env, gym.vector.VectorEnv):
        return _vector_env(name, context, lambda ctx, num_envs, seed: env(copied(ctx, num_envs=num_envs)))  # type: ignore[call-arg]
    if issubclass(env, (JaxEnv, gym.Env)):
        return ResolvedEnv(name, issubclass(env, JaxEnv), context, creator=env)
    if hasattr(env, "comes_later"):
        raise NotImplementedError(f"environment(env={name}): {env.comes_later}")  # type: ignore[attr-defined]
    raise TypeError(
        f"environment(env={env!r}): this class is no environment. Derive it from JaxEnv, gymnax's Environment, "
        "gymnasium.Env or gymnasium.vector.VectorEnv."
    )


def _check_class(env: type) -> None:
    """Checks that an environment class is not abstract, and that its constructor and `reset` take the required
    arguments.

    Raises TypeError in three cases: the class is abstract; the class cannot be called with the env_config as the only
    argument; or the `reset` of a `gymnasium.Env` class does not take `seed` and `options`.
    """
    if inspect.isabstract(env):
        missing = ", ".join(sorted(getattr(env, "__abstractmethods__")))  # noqa: B009 - only abstract classes have it
        raise TypeError(f"environment(env={env!r}): the class does not define {missing}. Add {missing} to the class.")
    problem = call_problem(env, EnvContext({}, worker_index=0))
    if problem is not None:
        raise TypeError(
            f"environment(env={env!r}): this class does not take one argument, the env_config ({problem}). Write def "
            "__init__(self, config=None), or register_env('my_env', lambda config: ...)."
        )
    if issubclass(env, gym.Env):
        problem = call_problem(env.reset, None, seed=0, options=None)
        if problem is not None:
            raise TypeError(
                f"environment(env={env!r}): {env.__name__}.reset does not take seed= and options= ({problem}). Write "
                "def reset(self, *, seed=None, options=None)."
            )


def _check_arguments(spec: Any, context: EnvContext) -> None:
    """Raises ValueError for keys of `env_config` that a gymnasium environment does not take as arguments.

    Keys may be arguments of ``gym.make`` or of a constructor of the environment (single or vector version). Does not
    check ALE environments, and constructors that take ``**kwargs``.
    """
    if not context or spec.namespace == suites.ALE_PREFIX.removesuffix("/"):
        return
    known: dict[str, inspect.Parameter] = {}
    for entry_point in (spec.entry_point, spec.vector_entry_point):
        if isinstance(entry_point, str):
            entry_point = load_env_creator(entry_point)
        if entry_point is not None:
            known |= inspect.signature(entry_point).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    # gym.make takes some itself.
    taken = {*known, *inspect.signature(gym.make).parameters}
    refuse_unknown(spec.id, context, taken, f"Its arguments: {', '.join(known) or 'none'}.")


def _resolve_creator(name: str, creator: EnvCreator, context: EnvContext, num_envs: int | None) -> ResolvedEnv:
    kind, made = look_at(name, creator, context if num_envs is None else copied(context, num_envs=num_envs))
    make = functools.partial(create, creator)
    if kind == "vector":
        return _vector_env(name, context, lambda ctx, num_envs, seed: make(copied(ctx, num_envs=num_envs)))
    if kind == "single":
        return ResolvedEnv(name, False, context, creator=make, registered=creator)
    # It is stateless: the one that is made already serves.
    return ResolvedEnv(
        name, True, context, creator=lambda ctx: made if made is not None and ctx is context else as_jax_env(make(ctx))
    )


def _gymnax_ids() -> list[str]:
    # Ids registered at run time exist only where gymnax is imported.
    gymnax = sys.modules.get("gymnax")
    return list(GYMNAX_IDS) if gymnax is None else list(gymnax.registered_envs)


def _newest_gymnasium_ids() -> list[str]:
    """Returns the registered gymnasium ids, each with its newest version only: gymnasium lists some older versions that
    cannot be created.
    """
    versions = sorted(gym.registry.values(), key=lambda spec: spec.version or 0)
    return list({_without_version(spec.id): spec.id for spec in versions}.values())


def _without_version(name: str) -> str:
    return re.sub(r"-v\d+$", "", name)


class UnknownEnvironmentError(ValueError):
    """Raised if no environment has the given name."""


def _unknown_name(name: str) -> str:
    gymnax_ids = _gymnax_ids()
    known = {k.casefold(): k for k in [*_creators, *(GYMNAX_PREFIX + i for i in gymnax_ids), *_newest_gymnasium_ids()]}
    other_versions = [k for k in known if _without_version(k) == _without_version(name.casefold())]
    near = [known[k] for k in other_versions or difflib.get_close_matches(name.casefold(), known, n=3)]
    # Both forms of what exists twice, the device's first.
    twins = [GYMNAX_PREFIX + i for i in [name, *near] if i in gymnax_ids]
    prefix, slash, rest = name.partition("/")
    prefixes = difflib.get_close_matches(prefix.casefold(), all_suites(), n=1) if slash else []
    near = list(dict.fromkeys([*(f"{suite}/{rest}" for suite in prefixes), *twins, *near]))
    return (
        f"unknown environment {name!r}. "
        + (f"Did you mean {' or '.join(map(repr, near))}? " if near else "")
        + "`jaxrl list envs` prints the known ids. Import the package that registers the id with gymnasium, give "
        "'module:Class', or call register_env(name, creator)"
        + (f" (registered: {', '.join(sorted(_creators))})." if _creators else ".")
    )


__all__ = ["EnvContext", "EnvCreator", "ResolvedEnv", "get_env_creator", "register_env", "resolve_env"]
