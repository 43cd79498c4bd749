"""rejax's DQN and SAC as contenders; runs in an environment with ``rejax`` and a gymnax before 1.0."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from bench.peers.protocol import Iteration, Work, serve


def make(settings: dict[str, Any]) -> Work:
    import gymnax
    from flax import linen as nn
    from rejax import get_algo

    training = settings["training"]
    num_envs = settings["env_runners"]["num_envs_per_env_runner"]
    hiddens = tuple(settings["model"]["fcnet_hiddens"])
    env_name = settings["env"].removeprefix("gymnax/")
    common = {
        "num_envs": num_envs,
        "buffer_size": training["replay_buffer_config"]["capacity"],
        "fill_buffer": training["num_steps_sampled_before_learning_starts"],
        "batch_size": training["train_batch_size_per_learner"],
        "gamma": training["gamma"],
        "polyak": 1.0 - training["tau"],
    }
    if settings["algorithm"] == "DQN":
        from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

        env, env_params = gymnax.make(env_name)
        # `create` fixes the widths of the network, so this goes around it.
        (_, first), (steps, last) = training["epsilon"]
        agent = EpsilonGreedyPolicy(DiscreteQNetwork)(
            hidden_layer_sizes=hiddens, activation=nn.relu, action_dim=env.num_actions
        )
        algo = get_algo("dqn")(
            env=env,
            env_params=env_params,
            eval_callback=lambda *_: (),
            agent=agent,
            learning_rate=training["lr"],
            ddqn=training["double_q"],
            target_update_freq=training["target_network_update_freq"],
            eps_start=first,
            eps_end=last,
            exploration_fraction=1.0,
            total_timesteps=steps,
            **common,
        )
    else:
        algo = get_algo("sac").create(
            env=env_name, hidden_layer_sizes=hiddens, learning_rate=training["actor_lr"], target_update_freq=1, **common
        )
    return work(algo, settings)


def work(algo: Any, settings: dict[str, Any]) -> Work:
    """Creates the contender that trains an algorithm, or ``members`` copies of it under vmap."""
    import jax

    num_envs = settings["env_runners"]["num_envs_per_env_runner"]
    num_iterations = settings["reporting"]["min_sample_timesteps_per_iteration"] // num_envs
    num_members = settings.get("members") or 1

    def several(state: Any) -> Any:
        return jax.lax.fori_loop(0, num_iterations, lambda _, s: algo.train_iteration(s), state)

    if "members" in settings:
        run = jax.jit(jax.vmap(several))
        held = [jax.vmap(algo.init_state)(jax.random.split(jax.random.key(settings["seed"]), num_members))]
    else:
        run = jax.jit(several)
        held = [algo.init_state(jax.random.key(settings["seed"]))]
    num_steps = num_iterations * num_envs * num_members
    result = {"steps": num_steps, "updates": num_iterations * num_members}

    def iterate() -> Iteration:
        held[0] = jax.block_until_ready(run(held[0]))
        return Iteration(num_steps, {}, result)

    return Work(iterate)


if __name__ == "__main__":
    serve(make, ["rejax", "jax", "jaxlib", "flax", "gymnax"])
