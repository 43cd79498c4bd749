"""The hand-written loop of `bench.dreamer_loop` as a contender."""

from __future__ import annotations

from typing import Any

from bench.peers import protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    from bench import dreamer_loop

    training = settings["training"]
    loop = dreamer_loop.make_loop(
        settings["reporting"]["min_sample_timesteps_per_iteration"],
        training["model_size"],
        settings["seed"],
        env_name=settings["env"].removeprefix("gymnax/"),
        batch=(training["batch_size_B"], training["batch_length_T"]),
        horizon=training["horizon_H"],
        capacity=training["replay_buffer_config"]["capacity"],
    )

    def iterate() -> protocol.Iteration:
        loop.step()
        return protocol.Iteration(loop.steps_per_iteration, {})

    return protocol.Work(iterate)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "flax", "gymnax", "optax"])
