"""The hand-written loops of `bench.baselines` as contenders: DQN and SAC on gymnax, each in one file."""

from __future__ import annotations

from typing import Any

from bench.peers import protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    from bench.baselines import dqn_loop, sac_loop

    training = settings["training"]
    common = {
        "num_envs": settings["env_runners"]["num_envs_per_env_runner"],
        "num_steps": settings["reporting"]["min_sample_timesteps_per_iteration"],
        "hiddens": tuple(settings["model"]["fcnet_hiddens"]),
        "seed": settings["seed"],
        "env_name": settings["env"].removeprefix("gymnax/"),
        "gamma": training["gamma"],
        "batch_size": training["train_batch_size_per_learner"],
        "capacity": training["replay_buffer_config"]["capacity"],
        "learning_starts": training["num_steps_sampled_before_learning_starts"],
    }
    if settings["algorithm"] == "DQN":
        (_, first), (steps, last) = training["epsilon"]
        loop = dqn_loop.make_loop(
            **common,
            lr=training["lr"],
            target_update_every=training["target_network_update_freq"],
            epsilon=(first, last, steps),
        )
    else:
        loop = sac_loop.make_loop(**common, lr=training["actor_lr"], tau=training["tau"])
    done = {"steps": loop.steps_per_iteration, "updates": loop.updates_per_iteration}

    def iterate() -> protocol.Iteration:
        loop.step()
        return protocol.Iteration(loop.steps_per_iteration, {}, done)

    return protocol.Work(iterate)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "flax", "flashbax", "gymnax", "optax"])
