"""PPO trained on gymnax's CartPole with randomized and with fixed parameters, on a grid of lengths and pole masses.

    python -m bench.randomized_params --seeds 3 --json bench/randomized_params.jsonl
    python -m bench.randomized_params --seeds 3 --low 0.1 --high 5 --json bench/randomized_params.jsonl

Both contenders train with the tuned settings for CartPole. With "randomized" each episode has a pole length, a pole
mass and a cart mass within ± 50 % of the defaults (`--low`, `--high`), drawn by a function, which computes `total_mass`
and `polemass_length`, too. The greedy policy is then evaluated on 5 x 5 pairs of length and pole mass from this range,
with the default cart mass. Each run is appended to the JSON file with its commit; runs in this file are not repeated.

Exits with 1 if, for one of the seeds, the randomized policy returns less than 400 on more than 2 pairs, or the fixed
policy returns more than 300 on more than 20 pairs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench import harness
from bench.journal import Journal
from jaxrl_stack import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.jax_env import GymnaxEnv

ENV = "gymnax/CartPole-v1"
NUM_FACTORS = 5
WITHIN, EPISODES = 300_000, 20
GOOD, WANTED, BAD, WANTED_BAD = 400.0, 23, 300.0, 5


def with_factors(params: Any, length: Any, masspole: Any, masscart: Any = 1.0) -> Any:
    """CartPole's parameters with length and masses multiplied by factors, and with the fields that follow from them."""
    length, masspole, masscart = params.length * length, params.masspole * masspole, params.masscart * masscart
    return params.replace(
        length=length,
        masspole=masspole,
        masscart=masscart,
        total_mass=masscart + masspole,
        polemass_length=masspole * length,
    )


def drawn(key: jax.Array, params: Any, low: float, high: float) -> Any:
    """CartPole's parameters with length and masses multiplied by uniform factors."""
    return with_factors(params, *jax.random.uniform(key, (3,), minval=low, maxval=high))


CONTENDERS = ("randomized", "fixed")


def returns_on_grid(module: Any, episodes: int, low: float, high: float) -> np.ndarray:
    """Mean returns of the greedy policy, ``[length, masspole]``.

    Args:
        module: A module for CartPole's observations.
        episodes: Number of episodes for each pair.
        low, high: First and last factor of both parameters.
    """
    factors = np.linspace(low, high, NUM_FACTORS)
    env = GymnaxEnv(ENV)
    graph, state = nnx.split(module)
    pairs = jnp.repeat(jnp.array([(length, masspole) for length in factors for masspole in factors]), episodes, axis=0)
    lengths, masses = pairs.T
    params = jax.vmap(functools.partial(with_factors, jax.tree.map(jnp.asarray, env.params)))(lengths, masses)

    def step(carry: Any, key: jax.Array) -> Any:
        obs, states, is_running, returns = carry
        logits = nnx.merge(graph, state).forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        keys = jax.random.split(key, len(lengths))
        after = jax.vmap(env.step)(keys, states, jnp.argmax(logits, -1), params)
        returns += jnp.where(is_running, after.reward, 0)
        return (after.obs, after.state, is_running & ~(after.terminated | after.truncated), returns), None

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        reset_key, key = jax.random.split(key)
        obs, states = jax.vmap(env.reset)(jax.random.split(reset_key, len(lengths)), params)
        start = obs, states, jnp.ones(len(lengths), bool), jnp.zeros(len(lengths))
        return jax.lax.scan(step, start, jax.random.split(key, int(env.params.max_steps_in_episode)))[0][-1]

    shape = (NUM_FACTORS, NUM_FACTORS, episodes)
    return np.asarray(run(jax.random.key(0))).reshape(shape).mean(-1)


def run_seed(contender: str, seed: int, within: int, episodes: int, low: float, high: float) -> dict[str, Any]:
    """Trains one seed and evaluates it on the grid.

    Args:
        contender: One of `CONTENDERS`.
        seed: Seed of the run.
        within: Env steps of training.
        episodes, low, high: See `returns_on_grid`.

    Returns:
        ``returns``: mean returns by length and pole mass; ``at_least_400`` and ``at_most_300``: numbers of pairs.
    """
    config = PPOConfig.tuned(ENV).debugging(seed=seed)
    if contender == "randomized":
        config.environment(randomized_params=lambda key, params: drawn(key, params, low, high))
    algo = config.learners(num_cpus_per_learner=1).build_algo()
    try:
        algo.learn({"num_env_steps_sampled_lifetime": within}, progress=False)
        returns = returns_on_grid(algo.get_module(), episodes, low, high)
    finally:
        algo.stop()
    return {
        "returns": [[round(float(one), 1) for one in row] for row in returns],
        "at_least_400": int((returns >= GOOD).sum()),
        "at_most_300": int((returns <= BAD).sum()),
    }


def passes(run: dict[str, Any]) -> bool:
    """Whether a run keeps its contender's bound."""
    if run["contender"] == "randomized":
        return run["at_least_400"] >= WANTED
    return run["at_most_300"] >= WANTED_BAD


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--within", type=int, default=WITHIN, help="env steps")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="for each pair of the grid")
    parser.add_argument("--low", type=float, default=0.5, help="least factor of a parameter")
    parser.add_argument("--high", type=float, default=1.5, help="largest factor of a parameter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    args = parser.parse_args(arguments)
    journal, runs = Journal(args.json, harness.commit()), []
    for seed in range(args.seeds):
        for name in CONTENDERS:
            settings = {"within": args.within, "episodes": args.episodes, "low": args.low, "high": args.high}
            run = {"contender": name, "seed": seed, **settings}
            runs.append(journal.once(run, functools.partial(run_seed, **run)))
            print({key: value for key, value in runs[-1].items() if key != "returns"}, flush=True)
            print(np.array(runs[-1]["returns"]), flush=True)
    return 0 if all(map(passes, runs)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
