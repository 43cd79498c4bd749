"""IPPO and MAPPO on JaxMARL's environments: steps per second and returns, beside JaxMARL's own scripts.

    python -m bench.jaxmarl --learn --json bench/jaxmarl.jsonl
    python -m bench.jaxmarl --speed --rounds 7                  # one CPU device
    python -m bench.jaxmarl --speed --rounds 7 --devices 2      # ours on two; theirs has no form for several
    python -m bench.jaxmarl --algo MAPPO --learn --seeds 1      # one of the two

The peers are `bench.baselines.ippo_loop` and `bench.baselines.mappo_loop`, with the values of JaxMARL's yamls. Ours has
the same networks, batches, sizes of minibatches, epochs and schedule; it bootstraps where time cuts an episode off, and
does not clip changes of the value. Of MAPPO it clips the gradients of policy and critic together, gives the policy the
agent's number, and draws minibatches from steps of the environment, with the rows of all agents; the critic looks at
each of these steps once. Theirs draws whole rollouts of some agents, and its critic sees each step once per agent.
Returns are sums over the agents, at the end of 1,000,000 env steps: ours passes if the mean over seeds is not below
theirs by more than one standard error of the difference. Needs JaxMARL: pip install 'jaxrl-stack[jaxmarl]'.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bench import harness
from bench.baselines import ippo_loop, mappo_loop
from bench.baselines.ippo_loop import Settings
from bench.journal import Journal
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import AddObservationsOfAllAgents
from jaxrl_stack.examples.rl_modules.classes.central_critic_rlm import CentralCriticRLModule

SIDES = ("ours", "JaxMARL's")
PEERS: dict[str, tuple[type[Settings], Callable[..., Any]]] = {
    "IPPO": (ippo_loop.Settings, ippo_loop.make_loop),
    "MAPPO": (mappo_loop.Settings, mappo_loop.make_loop),
}
"""Algorithm -> its settings, and what makes JaxMARL's loop."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """Training loop of this project's algorithm."""

    algo: Any
    steps_per_iteration: int

    @property
    def step(self) -> Callable[[], Mapping[str, Any]]:
        return self.algo.train


def ours(s: Settings, seed: int, updates_per_call: int, num_devices: int = 1) -> Loop:
    """Creates PPO of this project with one policy for all agents, and `updates_per_call` updates per call in one
    program.
    """
    name = f"jaxmarl/{s.env_id}"
    num_agents = len(resolve_env(name).make().possible_agents)
    config = (
        PPOConfig()
        .environment(name)
        .env_runners(num_envs_per_env_runner=s.num_envs)
        .learners(num_cpus_per_learner=num_devices)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "shared")
        .training(
            train_batch_size_per_learner=s.steps_per_update,
            minibatch_size=s.steps_per_update * num_agents // s.num_minibatches,
            num_epochs=s.num_epochs,
            lr=[[0, s.lr], [s.total_timesteps, 0.0]],
            gamma=s.gamma,
            lambda_=s.lambda_,
            clip_param=s.clip,
            entropy_coeff=s.entropy_coeff,
            # Theirs is half of a half of the squared error.
            vf_loss_coeff=s.vf_coeff / 2,
            vf_clip_param=math.inf,
            use_kl_loss=False,
            grad_clip=s.max_grad_norm,
            grad_clip_by="global_norm",
        )
        # About the episodes of one update, which is what the peer reports.
        .reporting(
            min_sample_timesteps_per_iteration=updates_per_call * s.steps_per_update,
            metrics_num_episodes_for_smoothing=s.steps_per_update // 26,
        )
        .debugging(seed=seed)
    )
    if isinstance(s, mappo_loop.Settings):
        config.env_runners(env_to_module_connector=lambda env, spaces, device: AddObservationsOfAllAgents())
        model_config = {"hidden_dim": s.width, "num_layers": 2}
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=CentralCriticRLModule, model_config=model_config))
    else:
        network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        config.rl_module(model_config=network)
    return Loop(config.build_algo(), updates_per_call * s.steps_per_update)


def name_of(s: Settings) -> str:
    """Returns the name of the algorithm to which the settings belong."""
    return next(name for name, (settings, _) in PEERS.items() if type(s) is settings)


def learned(side: str, s: Settings, seed: int) -> dict[str, Any]:
    """Trains one seed to the end; returns ``final``, the mean return of the last update, and ``seconds``."""
    started, calls = time.perf_counter(), 8
    make = ours if side == SIDES[0] else PEERS[name_of(s)][1]
    loop = make(s, seed, max(1, s.num_updates // calls))
    result: Mapping[str, Any] = {}
    for _ in range(calls):
        result = loop.step()
    final = result["episode_return"] if side != SIDES[0] else result["env_runners"]["episode_return_mean"]
    if isinstance(loop, Loop):
        loop.algo.stop()
    return {"final": round(float(final), 3), "seconds": round(time.perf_counter() - started, 1)}


def learn(s: Settings, num_seeds: int, journal: Journal) -> bool:
    """Trains all seeds of both sides; returns whether this project's mean is at most one standard error lower."""
    finals: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed in range(num_seeds):
        for side in SIDES:
            run = {"side": side, "algo": name_of(s), "env": s.env_id, "seed": seed, "steps": s.total_timesteps}
            done = journal.once(run, lambda side=side, seed=seed: learned(side, s, seed))
            print(done, flush=True)
            finals[side].append(done["final"])
    means = {side: statistics.mean(own) for side, own in finals.items()}
    spread = [statistics.variance(own) / len(own) if len(own) > 1 else 0.0 for own in finals.values()]
    error = math.sqrt(sum(spread))
    rows = [[side, f"{means[side]:.2f}", ", ".join(f"{x:.1f}" for x in own)] for side, own in finals.items()]
    harness.print_table(f"{name_of(s)}, {s.env_id}: returns (standard error {error:.2f})", ["", "mean", "seeds"], rows)
    return means[SIDES[0]] >= means[SIDES[1]] - error


def speed(s: Settings, rounds: int, seconds: float, num_devices: int) -> None:
    """Measures env steps per second of both sides in turns, and prints them."""
    # About as many steps in a call of both algorithms.
    updates = max(1, 32768 // s.steps_per_update)
    loops = {SIDES[0]: ours(s, 0, updates, num_devices), SIDES[1]: PEERS[name_of(s)][1](s, 0, updates)}
    timings = harness.interleave(loops, rounds, seconds)
    theirs = timings[SIDES[1]]
    rows = [[side, f"{own.rate:,.0f}", f"{own.ratio_to(theirs):.2f}"] for side, own in timings.items()]
    title = f"{name_of(s)}, {s.env_id}: env steps per second, {num_devices} CPU devices"
    harness.print_table(title, ["", "steps/s", "ratio"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=Settings.env_id, help="id of JaxMARL's MPE")
    parser.add_argument("--algo", choices=tuple(PEERS), help="one of the algorithms alone")
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=Settings.total_timesteps)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args(arguments)
    if args.devices > 1:
        jax.config.update("jax_num_cpu_devices", args.devices)
    passes = True
    for name in [args.algo] if args.algo else PEERS:
        settings = PEERS[name][0](env_id=args.env, total_timesteps=args.steps)
        if args.learn:
            passes &= learn(settings, args.seeds, Journal(args.json, harness.commit()))
        if args.speed:
            speed(settings, args.rounds, args.seconds, args.devices)
    return 0 if passes else 1


if __name__ == "__main__":
    raise SystemExit(main())
