"""Environment steps alone: our rollout beside a bare, vmapped scan of the suite's own step, in turns.

    python -m bench.suites --envs pgx/2048,navix/Navix-Empty-5x5-v0 --num-envs 64 --steps 256

Both draw random actions and start a new episode where one ended. "bare" is what a script writes: `reset` of all
environments in every step and a selection, as the suites' wrappers and gymnax do it; "never" is the bare step without
any reset, which no training can use. A rate is environment steps per CPU second, since machines are shared. Needs the
suites (`.ci/suites`).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any


def contenders(name: str, num_envs: int, num_steps: int) -> dict[str, Callable[[Any], Any]]:
    """Compiled rollouts ``key -> sums``, the same number of environment steps each."""
    import jax
    import jax.numpy as jnp

    from jaxrl_stack.env.registry import resolve_env
    from jaxrl_stack.utils import spaces

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env: Any = resolve_env(name).make()
    params = jax.tree.map(jnp.asarray, env.params)

    def sampled(step: Callable[[Any, Any, Any], Any], derive: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @jax.jit
        def run(key: Any) -> Any:
            first, acting, stepping = jax.random.split(key, 3)
            _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(first, num_envs), params)
            actions = spaces.sample(acting, env.action_space, (num_steps, num_envs))
            keys = derive(jax.random.split(stepping, (num_steps, num_envs)))

            def body(state: Any, x: Any) -> Any:
                state, obs, reward = step(x[0], state, x[1])
                # What a rollout would keep, as one number per step.
                seen = sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(obs))
                return state, (seen, reward.sum())

            return jax.lax.scan(body, state, (keys, actions))[1]

        return run

    def ours(keys: Any, state: Any, action: Any) -> Any:
        after = env.step_batch(keys, state, action, params)
        return after.state, after.obs, after.reward

    def like(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.asarray(x, jnp.result_type(y)), new, old)

    def never(keys: Any, state: Any, action: Any) -> Any:
        obs, new, reward, *_ = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(keys, state, action, params)
        return like(new, state), obs, reward

    def bare(keys: Any, state: Any, action: Any) -> Any:
        def one(key: Any, state: Any, action: Any) -> Any:
            step_key, reset_key = jax.random.split(key)
            obs, new, reward, terminated, truncated, _ = env.step_env(step_key, state, action, params)
            ended = jnp.asarray(terminated, bool) | truncated
            fresh_obs, fresh = env.reset_env(reset_key, params)
            obs, new = jax.tree.map(lambda x, y: jnp.where(ended, x, y), (fresh_obs, fresh), (obs, like(new, fresh)))
            return like(new, state), obs, reward

        return jax.vmap(one)(keys, state, action)

    return {
        "ours": sampled(ours, env.step_keys),
        "bare": sampled(bare, lambda keys: keys),
        "never": sampled(never, lambda keys: keys),
    }


def measure(name: str, num_envs: int, num_steps: int, rounds: int) -> dict[str, float]:
    """Median environment steps per CPU second of every contender, and the medians of ours over the others."""
    import jax

    runs = contenders(name, num_envs, num_steps)
    for run in runs.values():
        jax.block_until_ready(run(jax.random.key(0)))
    rates: dict[str, list[float]] = {which: [] for which in runs}
    for turn in range(rounds):
        for which in runs if turn % 2 else reversed(runs):
            started = time.process_time()
            jax.block_until_ready(runs[which](jax.random.key(turn + 1)))
            rates[which].append(num_envs * num_steps / (time.process_time() - started))
    medians = {which: statistics.median(rate) for which, rate in rates.items()}
    for other in ("bare", "never"):
        pairs = zip(rates["ours"], rates[other], strict=True)
        medians[f"ours / {other}"] = statistics.median(mine / theirs for mine, theirs in pairs)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--envs", default="pgx/2048,jumanji/Game2048-v1,navix/Navix-Empty-5x5-v0", help="comma-separated"
    )
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    for name in arguments.envs.split(","):
        medians = measure(name, arguments.num_envs, arguments.steps, arguments.rounds)
        print(name, "  ".join(f"{which} {value:,.3g}" for which, value in medians.items()), flush=True)


if __name__ == "__main__":
    main()
