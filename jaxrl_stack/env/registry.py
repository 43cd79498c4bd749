"""Names of environments, and what ``config.environment(env)`` means.

An environment is either a JAX environment, sampled on the device, or a host environment (gymnasium API),
sampled by actors. `resolve_env` tells which without building anything where it can: making a gymnax
environment starts the JAX backend, and the number of CPU devices has to be settled before that.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.jax_env import (
    GYMNAX_PREFIX,
    GymnaxEnv,
    JaxEnv,
    as_jax_env,
    is_gymnax_class,
)

EnvCreator = Callable[[EnvContext], Any]

# The ids that gymnax 1.0 registers, for checks and suggestions that must not import it.
GYMNAX_IDS = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "MNISTBandit-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)

_creators: dict[str, EnvCreator] = {}


def register_env(name: str, env_creator: EnvCreator) -> None:
    """Makes `name` usable as ``config.environment(name)``; a second registration replaces the first.

    Args:
        name: Any string that does not start with "gymnax/".
        env_creator: Called with an `EnvContext`, the ``env_config`` as a dict. Returns a `JaxEnv`, a gymnax
            environment (or ``gymnax.make``'s pair of environment and params), or a `gymnasium.Env`.

    Raises:
        TypeError: `name` is no string or `env_creator` is not callable.
        ValueError: `name` starts with "gymnax/".
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_env(name={name!r}): the name must be a non-empty string.")
    if not callable(env_creator):
        raise TypeError(
            f"register_env({name!r}, {env_creator!r}): the creator must be callable with one argument, the "
            "env_config."
        )
    if name.startswith(GYMNAX_PREFIX):
        raise ValueError(
            f"register_env({name!r}): names that start with {GYMNAX_PREFIX!r} belong to gymnax. Choose "
            "another name, or register the environment with gymnax.register."
        )
    _creators[name] = env_creator


def get_env_creator(name: str) -> EnvCreator | None:
    """The creator registered under `name`; None if there is none."""
    return _creators.get(name)


@dataclasses.dataclass(frozen=True)
class ResolvedEnv:
    """What a config's ``env`` stands for.

    Attributes:
        name: What to call the environment in messages and results.
        is_jax: True: a JAX environment, sampled on the device. False: a host environment.
        hint: A sentence that tells the user of a choice they may not know; None if there is nothing to say.
        context: The ``env_config`` that it was resolved with.
    """

    name: str
    is_jax: bool
    context: EnvContext
    hint: str | None = None
    _creator: EnvCreator = dataclasses.field(repr=False, kw_only=True)

    def make(self, context: EnvContext | None = None) -> Any:
        """The environment: a `JaxEnv`, or a `gymnasium.Env`.

        Args:
            context: Config and place of this copy; None for the one it was resolved with.
        """
        return self._creator(self.context if context is None else context)


def resolve_env(env: Any, env_config: Mapping[str, Any] | None = None) -> ResolvedEnv:
    """Finds out what ``config.environment(env, env_config=...)`` means.

    In this order: an instance; a class; a registered name; "gymnax/<id>"; "module:Class"; an id of gymnasium.
    A class is called with the `EnvContext`, unless it is a gymnax class; gymnax environments take
    `env_config` as `GymnaxEnv` says, gymnasium ids as keyword arguments of ``gymnasium.make``. A registered
    creator is called, to see what it makes (a host environment is closed again).

    Args:
        env: `JaxEnv` or gymnax instance or class, `gymnasium.Env` class, registered name, "gymnax/<id>",
            "module:Class", or gymnasium id.
        env_config: Config for the environment; may be an `EnvContext`.

    Raises:
        ValueError: No environment, or an unknown name (with near matches).
        TypeError: An object that is no environment.
        ImportError: The module of "module:Class" does not import.
    """
    context = (
        env_config if isinstance(env_config, EnvContext) else EnvContext(env_config or {}, worker_index=0)
    )
    if env is None:
        raise ValueError("no environment is set: call config.environment('gymnax/CartPole-v1'), for example.")
    if isinstance(env, str):
        return _resolve_name(env, context)
    if isinstance(env, type):
        return _resolve_class(env, env.__name__, context)
    jax_env = as_jax_env(env, context)
    if jax_env is not None:
        return ResolvedEnv(jax_env.name, True, context, _creator=lambda ctx: as_jax_env(env, ctx))
    if isinstance(env, gym.Env):
        raise TypeError(
            f"environment(env={env!r}): a gymnasium environment that exists already cannot be copied to "
            "vector slots and actors. Give its class or id, or register_env('my_env', lambda config: ...) "
            "and give that name."
        )
    raise TypeError(
        f"environment(env={env!r}) is no environment. Give 'gymnax/<id>', a gymnasium id, a registered name, "
        "'module:Class', a JaxEnv or gymnax environment (class or instance), or a gymnasium.Env class. A "
        "function that makes environments goes through register_env(name, function)."
    )


def _resolve_name(name: str, context: EnvContext) -> ResolvedEnv:
    if name in _creators:
        return _resolve_creator(name, _creators[name], context)
    if name.startswith(GYMNAX_PREFIX):
        if name.removeprefix(GYMNAX_PREFIX) not in GYMNAX_IDS:
            GymnaxEnv(name, context)  # raises, unless gymnax has more ids than this file knows
        return ResolvedEnv(name, True, context, _creator=lambda ctx: GymnaxEnv(name, ctx))
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"environment({name!r}): the module {module_name!r} does not import ({error}). Is it "
                "installed and on sys.path?"
            ) from error
        found = getattr(module, attribute, None)
        if isinstance(found, type):
            return _resolve_class(found, name, context)
        # gymnasium's own form: importing the module registers the id behind the colon.
        if attribute not in gym.registry:
            raise ValueError(
                f"environment({name!r}): {module_name!r} has no class {attribute!r} and registers no "
                "gymnasium id of that name."
            )
    elif name not in gym.registry:
        raise ValueError(_unknown_name(name))
    hint = None
    if name in _gymnax_ids():
        hint = (
            f"{name!r} is gymnasium's environment and runs on the host, in actors; use "
            f"{GYMNAX_PREFIX + name!r} to sample on the device."
        )
    return ResolvedEnv(name, False, context, hint, _creator=lambda ctx: gym.make(name, **ctx))


def _resolve_class(env: type, name: str, context: EnvContext) -> ResolvedEnv:
    if is_gymnax_class(env):
        return ResolvedEnv(name, True, context, _creator=lambda ctx: GymnaxEnv(env, ctx))
    if issubclass(env, (JaxEnv, gym.Env)):
        return ResolvedEnv(name, issubclass(env, JaxEnv), context, _creator=env)
    raise TypeError(
        f"environment(env={env!r}): this class is neither a JaxEnv, nor a gymnax environment, nor a "
        "gymnasium.Env."
    )


def _resolve_creator(name: str, creator: EnvCreator, context: EnvContext) -> ResolvedEnv:
    made = creator(context)
    jax_env = as_jax_env(made)
    if jax_env is not None:
        # It is stateless: the one that is made already serves.
        return ResolvedEnv(
            name,
            True,
            context,
            _creator=lambda ctx: jax_env if ctx is context else as_jax_env(creator(ctx)),
        )
    if isinstance(made, gym.Env):
        made.close()
        return ResolvedEnv(name, False, context, _creator=creator)
    raise TypeError(
        f"the creator registered as {name!r} returned {made!r}, which is neither a JaxEnv, nor a gymnax "
        "environment, nor a gymnasium.Env."
    )


def _gymnax_ids() -> list[str]:
    # Ids registered at run time exist only where gymnax is imported.
    gymnax = sys.modules.get("gymnax")
    return list(GYMNAX_IDS) if gymnax is None else list(gymnax.registered_envs)


def _unknown_name(name: str) -> str:
    gymnax_ids = _gymnax_ids()
    known = {k.casefold(): k for k in [*_creators, *(GYMNAX_PREFIX + i for i in gymnax_ids), *gym.registry]}
    near = [known[k] for k in difflib.get_close_matches(name.casefold(), known, n=3)]
    # Both forms of what exists twice, the device's first.
    twins = [GYMNAX_PREFIX + i for i in [name, *near] if i in gymnax_ids]
    near = list(dict.fromkeys([*twins, *near]))
    return (
        f"unknown environment {name!r}. "
        + (f"Did you mean {' or '.join(map(repr, near))}? " if near else "")
        + "Known are names registered with register_env"
        + (f" ({', '.join(sorted(_creators))})" if _creators else " (none so far)")
        + ", 'gymnax/<id>', gymnasium ids and 'module:Class'. Packages that register ids, such as ale_py, "
        "have to be imported first."
    )


__all__ = [
    "EnvContext",
    "EnvCreator",
    "ResolvedEnv",
    "get_env_creator",
    "register_env",
    "resolve_env",
]
