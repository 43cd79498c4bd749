"""PPO with a critic that sees hidden numbers of the environment, next to PPO with a critic that does not.

    python -m bench.privileged_critic --json bench/privileged_critic.jsonl
    python -m bench.privileged_critic --seeds 2 --within 100000

The task is gymnax's Pendulum with partial observations: the policy sees the last three angles ("state"), and not the
angular velocity, the mass and the length ("privileged_state"). Every episode draws a mass from [0.5, 2] and a length
from [0.5, 1.5]. Both contenders have the same settings, except that `value_obs_key` is "state" or both keys. The result
of a run is the mean of the reported mean returns in the last fifth of the training. Every run is appended to the JSON
file as a line, with its commit; runs in the file are not repeated. Exits with 1 if the 95 % bootstrap interval of the
difference of the means is not above 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from bench import harness
from bench.journal import Journal
from jaxrl_stack import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv
from jaxrl_stack.env.registry import register_env

PRIVILEGED, PLAIN = "privileged", "plain"
VALUE_OBS_KEY: Mapping[str, Any] = {PRIVILEGED: ["state", "privileged_state"], PLAIN: "state"}
MASSES, LENGTHS = (0.5, 2.0), (0.5, 1.5)
NUM_ANGLES = 3
WITHIN, LAST = 400_000, 0.2
NUM_RESAMPLES = 10_000
ENV = "bench.privileged_critic.HiddenPendulum"


class HiddenPendulum(AutoResetJaxEnv):
    """gymnax's Pendulum with a mass and a length that change from episode to episode.

    Observations are ``{"state": float32 [6], "privileged_state": float32 [3]}``: cosines and sines of the last three
    angles, oldest first; and the angular velocity divided by its bound of 8, the mass and the length.
    """

    def __init__(self) -> None:
        self.env = GymnaxEnv("Pendulum-v1")
        self.action_space = self.env.action_space
        sizes = {"state": 2 * NUM_ANGLES, "privileged_state": 3}
        unbounded: dict[str, gym.Space] = {
            name: gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()
        }
        self.observation_space = gym.spaces.Dict(unbounded)

    @property
    def params(self) -> Any:
        return self.env.params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        env_key, mass_key, length_key = jax.random.split(key, 3)
        mass = jax.random.uniform(mass_key, (), minval=MASSES[0], maxval=MASSES[1])
        length = jax.random.uniform(length_key, (), minval=LENGTHS[0], maxval=LENGTHS[1])
        obs, state = self.env.reset_env(env_key, params)
        angles = jnp.tile(obs[:2], (NUM_ANGLES, 1))
        return _shown(angles, obs[2], mass, length), (state, angles, mass, length)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        pendulum, angles, mass, length = state
        obs, pendulum, *outcome = self.env.step_env(key, pendulum, action, params.replace(m=mass, l=length))
        angles = jnp.concatenate([angles[1:], obs[None, :2]])
        return (_shown(angles, obs[2], mass, length), (pendulum, angles, mass, length), *outcome)


def _shown(angles: jax.Array, velocity: jax.Array, mass: jax.Array, length: jax.Array) -> dict[str, jax.Array]:
    return {"state": angles.reshape(-1), "privileged_state": jnp.stack([velocity / 8.0, mass, length])}


def config_of(contender: str) -> PPOConfig:
    """The settings of a contender."""
    register_env(ENV, lambda context: HiddenPendulum())
    return (
        PPOConfig()
        .environment(ENV)
        .env_runners(num_envs_per_env_runner=64, env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
        .training(
            train_batch_size_per_learner=4096,
            minibatch_size=256,
            num_epochs=10,
            lr=2e-3,
            gamma=0.95,
            lambda_=0.95,
            vf_clip_param=1e6,
            entropy_coeff=0.0,
        )
        .rl_module(
            model_config={
                "fcnet_hiddens": [64, 64],
                "vf_share_layers": False,
                "policy_obs_key": "state",
                "value_obs_key": VALUE_OBS_KEY[contender],
            }
        )
        .learners(num_cpus_per_learner=1)
        .reporting(min_time_s_per_iteration=None)
    )


def run_seed(contender: str, seed: int, within: int) -> dict[str, Any]:
    """Trains one seed.

    Args:
        contender: `PRIVILEGED` or `PLAIN`.
        seed: Seed of the run.
        within: Env steps.

    Returns:
        ``curve``: per iteration, env steps and the reported mean return, None before the first episode has ended;
        ``mean_return``: mean of the curve over the last fifth of the steps.
    """
    algo = config_of(contender).debugging(seed=seed).build_algo()
    curve: list[tuple[int, float | None]] = []
    while not curve or curve[-1][0] < within:
        result = algo.train()
        mean = float(result["env_runners"].get("episode_return_mean", np.nan))
        curve.append((int(result["num_env_steps_sampled_lifetime"]), None if np.isnan(mean) else round(mean, 1)))
    algo.stop()
    last = [value for steps, value in curve if steps > within * (1.0 - LAST) and value is not None]
    return {"mean_return": round(float(np.mean(last)), 2), "curve": curve}


def difference_interval(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Difference of two means over runs, and its percentile bootstrap interval.

    Args:
        first, second: A number per run.
        confidence: Share of the resamples within the interval.
        seed: Seed of the resamples.

    Returns:
        ``(mean of first - mean of second, lower end, upper end)``.
    """
    rng = np.random.default_rng(seed)
    means = [rng.choice(np.asarray(runs), (NUM_RESAMPLES, len(runs))).mean(axis=1) for runs in (first, second)]
    rest = (1.0 - confidence) / 2.0
    low, high = np.quantile(means[0] - means[1], [rest, 1.0 - rest])
    return float(np.mean(first) - np.mean(second)), float(low), float(high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--within", type=int, default=WITHIN, help="env steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    args = parser.parse_args(arguments)
    journal = Journal(args.json, harness.commit())
    returns: dict[str, list[float]] = {PRIVILEGED: [], PLAIN: []}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for contender, own in returns.items():
            run = {"contender": contender, "seed": seed, "within": args.within}
            done = journal.once(run, lambda contender=contender, seed=seed: run_seed(contender, seed, args.within))
            own.append(done["mean_return"])
            print(seed, contender, done["mean_return"], flush=True)
    difference, low, high = difference_interval(returns[PRIVILEGED], returns[PLAIN])
    means = ", ".join(f"{contender} {np.mean(own):.1f}" for contender, own in returns.items())
    print(f"mean return: {means}; difference {difference:.1f}, 95 % interval [{low:.1f}, {high:.1f}]")
    return 0 if low > 0.0 else 1


if __name__ == "__main__":
    sys.exit(main())
