"""What a population costs: members of one program beside the run that one of them would be alone.

    python -m bench.members --members 4 --rounds 9

The program of the on-device driver under vmap, with its members' states stacked. What they share stays unbatched: env
steps sampled, where the ring of the replay memory is and how full it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import harness
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.utils.devices import all_shards, host_view


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def state_of(algo: Any) -> tuple[Any, ...]:
    """``(learner, runner, kept, timesteps, settings)`` of an algorithm on one device, as its program takes it."""
    driver, first = algo.driver, lambda tree: jax.tree.map(lambda x: x[0], tree)
    kept = None if driver.kept is None else first(all_shards(driver.kept))
    learner = driver.learner
    parts = (host_view(learner.state), first(host_view(driver.shards.state)), kept, host_view(driver.timesteps))
    copy = lambda x: jax.random.clone(x) if _is_key(x) else np.array(x)  # noqa: E731
    return jax.tree.map(copy, (*parts, learner.settings()))


def axes_of(kept: Any) -> Any:
    """Which parts of what a training step keeps members have of their own, as ``in_axes`` of vmap."""
    if kept is None:
        return None
    return dataclasses.replace(jax.tree.map(lambda _: 0, kept), head=None, num_rows=None, size=None)


def side_by_side(states: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The states of several members as one, ``[M, ...]``; what they share is the first one's."""
    learner, runner, kept, timesteps, settings = zip(*states, strict=True)
    stacked = lambda parts: jax.tree.map(lambda *x: jnp.stack(x), *parts)  # noqa: E731
    own = lambda axis, *x: x[0] if axis is None else jnp.stack(x)  # noqa: E731
    axes = axes_of(kept[0])
    together = None if axes is None else jax.tree.map(own, axes, *kept, is_leaf=lambda x: x is None)
    return stacked(learner), stacked(runner), together, timesteps[0], stacked(settings)


def program_of(algo: Any, *, members: bool) -> Callable[..., Any]:
    """One call of an algorithm's program: ``(*state, num_warm_up) -> (learner, runner, kept, timesteps, ...)``."""
    program = dataclasses.replace(algo.driver.program, axis_name=None)
    if not members:
        return program
    axes = axes_of(algo.driver.kept)
    # An axis of None for a result fails where something is batched after all.
    return jax.vmap(program, in_axes=(0, 0, axes, None, 0, None), out_axes=(0, 0, axes, None, 0, 0, 0))


def ppo() -> Any:
    return PPOConfig().training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4)


def dqn() -> Any:
    replay = {"type": "EpisodeReplayBuffer", "capacity": 10_000}
    made = DQNConfig().training(train_batch_size_per_learner=128, training_intensity=32.0, replay_buffer_config=replay)
    return made.training(num_steps_sampled_before_learning_starts=0).reporting(min_sample_timesteps_per_iteration=2048)


CONFIGS = {"PPO": ppo, "DQN": dqn}


@dataclasses.dataclass(frozen=True)
class Run:
    """One contender of `harness.interleave`."""

    step: Callable[[], Any]
    steps_per_iteration: int


def make(config: Any, num_members: int) -> Run:
    """Members that differ in their seeds and rates; 1 is a run alone."""
    algos = []
    for seed in range(num_members):
        own = config().environment("gymnax/CartPole-v1").env_runners(num_envs_per_env_runner=4)
        own.rl_module(model_config={"fcnet_hiddens": [64, 64]}).learners(num_cpus_per_learner=1)
        algos.append(own.training(lr=1e-4 * (1 + seed)).debugging(seed=seed).build_algo())
    states, is_alone = [state_of(algo) for algo in algos], num_members == 1
    state = list(states[0] if is_alone else side_by_side(states))
    call = jax.jit(program_of(algos[0], members=not is_alone), donate_argnums=(0, 1, 2))
    num_warm_up = None if states[0][2] is None else np.int32(0)
    num_steps = algos[0].driver.program.num_training_steps * algos[0].driver.step.num_env_steps

    def step() -> None:
        new = call(*state, num_warm_up)
        state[:4] = new[:4]
        jax.block_until_ready(new[4])

    step()
    for algo in algos:
        algo.stop()
    return Run(step, num_members * num_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    for name, config in CONFIGS.items():
        started = time.perf_counter()
        runs = {1: make(config, 1), args.members: make(config, args.members)}
        print(f"{name}: compiled in {time.perf_counter() - started:.1f} s")
        timings = harness.interleave(runs, args.rounds, args.seconds)
        alone, together = timings[1].rates, timings[args.members].rates
        cost = sorted(args.members * one / all_ for one, all_ in zip(alone, together, strict=True))
        median, spread = cost[len(cost) // 2], f"({cost[0]:.2f}..{cost[-1]:.2f})"
        print(f"{name}: {args.members} members cost {median:.2f} x one {spread}")


if __name__ == "__main__":
    main()
