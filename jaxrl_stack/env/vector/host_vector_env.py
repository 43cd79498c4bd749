"""Creation of the vector environment of one env runner, in the mode that ``gym_env_vectorize_mode`` requests."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from jaxrl_stack.env.created_envs import create, known_kind
from jaxrl_stack.env.env_context import EnvContext, copied
from jaxrl_stack.env.registry import get_env_creator, resolve_env
from jaxrl_stack.env.vector.interface import HostVectorEnv, VectorStep
from jaxrl_stack.env.vector.main_guard import require_main_guard
from jaxrl_stack.env.vector.sub_env import made_to_close_quietly, make_checked_env, make_registered, make_sub_env
from jaxrl_stack.env.vector.sync_host_multi_agent_env import SyncHostMultiAgentEnv
from jaxrl_stack.env.vector.sync_vector_env import SyncHostVectorEnv
from jaxrl_stack.env.vector.vector_env_adapter import VectorEnvAdapter
from jaxrl_stack.utils.closing import close_env


def make_vector_env(
    config: Any,
    *,
    worker_index: int = 0,
    num_workers: int = 0,
    recreated_worker: bool = False,
    seed: int = 0,
    num_envs: int | None = None,
) -> HostVectorEnv | SyncHostMultiAgentEnv:
    """Creates the vector environment of one env runner, as the config describes.

    The setting ``gym_env_vectorize_mode`` selects the kind of vector: "sync" steps the environments one after the other
    in this process; "async" steps each in a separate process (a script needs ``if __name__ == "__main__"``, because a
    fork server starts these processes: processes with a JAX backend must not fork); "vector_entry_point" uses the
    environment's vector version. envpool's environments, and creators and classes that make a
    `gymnasium.vector.VectorEnv`, are used unchanged in every mode.

    Every environment gets a separate `EnvContext`. The context of a vector environment has ``vector_index`` 0 and the
    item ``num_envs`` (for creators, only with "vector_entry_point").

    Args:
        config: Reads `env`, `is_multi_agent`, `env_config`, `num_envs_per_env_runner`, `gym_env_vectorize_mode`,
            `disable_env_checking`, `render_env`.
        worker_index: Index of the runner.
        num_workers: Number of remote runners.
        recreated_worker: Whether the runner replaces one that failed.
        seed: Seed of environments that take their seed in the constructor (envpool); a ``reset`` with this seed does
            not create them again.
        num_envs: Number of copies; None: `config.num_envs_per_env_runner`.

    Raises:
        ValueError: The environment is a JAX environment; copies have unequal spaces or a wrong number; or the requested
            vector version does not exist.
        TypeError: The creator or class makes no environment.
        ImportError: The suite of the environment is not installed.
    """
    num_envs = int(config.num_envs_per_env_runner if num_envs is None else num_envs)
    mode = gym.VectorizeMode(config.gym_env_vectorize_mode)
    is_async, check = mode is gym.VectorizeMode.ASYNC, not config.disable_env_checking
    context = EnvContext(config.env_config, worker_index, 0, is_async, num_workers, recreated_worker)

    def adapted(env: gym.vector.VectorEnv, **more: Any) -> VectorEnvAdapter:
        return VectorEnvAdapter(env, name, num_envs, check, worker_index=worker_index, **more)

    # A registered creator may be slow: it is called for the environments that are needed, not to look at one.
    creator = get_env_creator(config.env) if isinstance(config.env, str) else None
    if creator is None:
        resolved = resolve_env(config.env, context)
        name = resolved.name
        if resolved.is_jax:
            raise _belongs_on_the_device(name)
        if resolved.is_vector or mode is gym.VectorizeMode.VECTOR_ENTRY_POINT:
            make = functools.partial(resolved.make_vector, num_envs, copied(context))
            if not resolved.seeded_when_made:
                return adapted(make())
            return adapted(make(seed), rebuild=make, seed=seed)
        creators = [resolved.creator] * num_envs
        if resolved.spec is not None:
            # One is enough to find what is wrong with all of them; the checker costs time in every step.
            shows = config.render_env and not config.in_evaluation and worker_index == min(num_workers, 1)
            creators = [
                functools.partial(make_registered, resolved.spec, i > 0 or not check, shows and i == 0)
                for i in range(num_envs)
            ]
    else:
        name, creators = config.env, [creator] * num_envs
        unused = _first_of(name, creator, context, num_envs, mode)
        if unused and isinstance(unused[0], gym.vector.VectorEnv):
            return adapted(unused[0])
        is_async = not unused
        if unused:
            creators[0] = lambda context: unused.pop() if unused else creator(context)
    contexts = [copied(context, vector_index=i) for i in range(num_envs)]
    if is_async and not config.is_multi_agent:
        make_one = make_checked_env if check else make_sub_env
        return adapted(_make_async(name, make_one, creators, contexts))
    makers: list[Any] = [
        functools.partial(make_sub_env, name, own, context, config.is_multi_agent)
        for own, context in zip(creators, contexts, strict=True)
    ]
    if config.is_multi_agent:
        return _of_several_agents(makers, name, check, mode, worker_index)
    return SyncHostVectorEnv(makers, name, check, worker_index)


def _first_of(name: str, creator: Any, context: EnvContext, num_envs: int, mode: gym.VectorizeMode) -> list[Any]:
    """Creates the first environment of a registered creator, to find out whether the creator makes single or vector
    environments.

    Returns a list with this environment, for use by the caller. If the mode is "async" and the creator makes single
    environments, returns an empty list, because other processes create all environments.
    """
    as_vector, is_async = mode is gym.VectorizeMode.VECTOR_ENTRY_POINT, mode is gym.VectorizeMode.ASYNC
    context = copied(context, **({"num_envs": num_envs} if as_vector else {}))
    if is_async and known_kind(creator, context) == "single":
        return []
    first = create(creator, context)
    if as_vector and not isinstance(first, gym.vector.VectorEnv):
        raise TypeError(
            f"env_runners(gym_env_vectorize_mode='vector_entry_point'): the creator {name!r} returned {first!r}, but "
            "must return a gymnasium.vector.VectorEnv of env_config['num_envs'] copies. If it returns a gymnasium.Env, "
            "use 'sync'."
        )
    if is_async and isinstance(first, gym.Env):
        close_env(first)
        return []
    return [first]


def _belongs_on_the_device(name: str) -> ValueError:
    return ValueError(
        f"environment({name!r}) is a JAX environment and is sampled on the device. To step it on the host, "
        "register a creator: register_env('my_env', lambda config: "
        "GymnasiumFromJax(env, config)), from jaxrl_stack.env.jax_to_gymnasium."
    )


def _of_several_agents(
    makers: list[Any], name: str, check: bool, mode: gym.VectorizeMode, worker_index: int
) -> SyncHostMultiAgentEnv:
    if mode is not gym.VectorizeMode.SYNC:
        raise ValueError(
            f"env_runners(gym_env_vectorize_mode={mode.value!r}): multi-agent environments such as "
            f"environment({name!r}) are stepped one after the other. Use 'sync'."
        )
    return SyncHostMultiAgentEnv(makers, name, check, worker_index)


def _make_async(
    name: str, make_one: Callable[..., gym.Env], creators: Sequence[Any], contexts: Sequence[EnvContext]
) -> AsyncVectorEnv:
    makers = [functools.partial(make_one, name, own, context) for own, context in zip(creators, contexts, strict=True)]
    methods = multiprocessing.get_all_start_methods()
    require_main_guard("env_runners(gym_env_vectorize_mode='async')")
    try:
        return AsyncVectorEnv(
            [functools.partial(made_to_close_quietly, make) for make in makers],
            copy=False,
            context="forkserver" if "forkserver" in methods else "spawn",
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
    except Exception as error:
        error.add_note(
            f"While starting the {len(makers)} processes of environment({name!r}) with "
            "env_runners(gym_env_vectorize_mode='async'). All copies need equal spaces; 'sync' shows errors of "
            "an environment where they arise."
        )
        if isinstance(error, ConnectionError | EOFError):
            error.add_note(
                "A process has ended while it imported the main script or made its environment. The script's code has "
                'to be below `if __name__ == "__main__":`.'
            )
        raise


__all__ = ["HostVectorEnv", "VectorStep", "make_vector_env"]
