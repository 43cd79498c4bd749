"""rejax's PPO and what it learns on a gymnax environment; runs in an environment with ``rejax`` and gymnax before 1.0.

    ENV/bin/python -m bench.peers.rejax_ppo --env Breakout-MinAtar --steps 3000000

The settings are those that gymnax's authors publish for MinAtar (RobertTLange/gymnax-blines, agents/*-MinAtar/ppo.yaml;
without their warm-up of the step size): dense layers of 256, as rejax has no convolutions. A line of JSON for every
evaluation: env steps, and the mean return of 128 episodes of the policy as it is sampled in training.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from typing import Any

import jax


def main() -> None:
    description = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.peers.rejax_ppo", description=description)
    parser.add_argument("--env", required=True, help="gymnax's name")
    parser.add_argument("--steps", type=int, required=True, help="env steps")
    parser.add_argument("--every", type=int, default=40 * 8192, help="env steps from one evaluation to the next")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from rejax import get_algo

    algorithm = get_algo("ppo").create(
        env=args.env,
        agent_kwargs={"hidden_layer_sizes": (256, 256), "activation": "relu"},
        num_envs=64,
        num_steps=128,
        num_minibatches=8,
        num_epochs=4,
        learning_rate=5e-4,
        gamma=0.999,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        total_timesteps=args.steps,
        eval_freq=args.every,
    )

    def report(algo: Any, state: Any, key: jax.Array) -> tuple[()]:
        _, returns = algorithm.eval_callback(algo, state, key)

        def show(steps: Any, returns: Any) -> None:
            print(json.dumps({"steps": int(steps), "return": round(float(returns), 2)}), flush=True)

        jax.debug.callback(show, state.global_step, returns.mean())
        return ()

    jax.block_until_ready(jax.jit(algorithm.replace(eval_callback=report).train)(jax.random.key(args.seed)))


if __name__ == "__main__":
    main()
