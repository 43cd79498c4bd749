"""PPO's environment steps per second on suites of JAX environments, beside the suites' own public trainers, in turns.

    python -m bench.suites_ppo --envs navix/Navix-Empty-5x5-v0,brax/inverted_pendulum,playground/CartpoleBalance
    python -m bench.suites_ppo --envs craftax/Craftax-Symbolic-v1 --seconds 0 --warmup 0
    python -m bench.suites_ppo --envs brax/inverted_pendulum --learn 2000000

The peers: Navix's ``navix.agents.PPO``; ``brax.training.agents.ppo.train``, which MuJoCo Playground trains with, too;
for Craftax, whose scripts are in no package, the loop of `bench.baselines.sorting_loop` with the resets of those
scripts. Both sides have the same networks, batches, minibatches, epochs and optimizer. The sizes are those of the
scripts, with fewer environments where two cores would take minutes for an iteration. With ``--learn`` ours trains
alone, with the same settings, and prints its mean returns on the way. Needs the suites (`.ci/suites`).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import threading
import warnings
from collections.abc import Callable
from typing import Any

from bench import harness


@dataclasses.dataclass(frozen=True)
class Settings:
    """Training settings of both sides.

    Args:
        num_envs: Environments side by side.
        num_steps: Steps of each per training step.
        num_epochs: Passes over these.
        num_minibatches: Minibatches per pass.
        together: Training steps per call, in one compiled program.
        hiddens: Widths of the policy's and of the value's own network, both with tanh.
        unroll_length: brax shuffles sequences of so many steps.
    """

    num_envs: int
    num_steps: int
    num_epochs: int
    num_minibatches: int
    together: int
    hiddens: tuple[int, ...] = (64, 64)
    lr: float = 2.5e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_param: float = 0.2
    entropy_coeff: float = 0.01
    grad_clip: float | None = 0.5
    normalize: bool = False
    unroll_length: int = 1

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps


@dataclasses.dataclass(frozen=True)
class Loop:
    step: Callable[[], Any]
    steps_per_iteration: int


def ours(name: str, s: Settings, seed: int = 0) -> Loop:
    """Creates the contender that uses the public API."""
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.connectors.env_to_module import FlattenObservations, MeanStdFilter
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    connectors = [FlattenObservations] * name.startswith("navix/") + [MeanStdFilter] * s.normalize
    config = (
        PPOConfig()
        .environment(name)
        .env_runners(
            num_envs_per_env_runner=s.num_envs,
            env_to_module_connector=lambda env, spaces, device: [make() for make in connectors],
        )
        .training(
            train_batch_size_per_learner=s.batch_size,
            minibatch_size=s.batch_size // s.num_minibatches,
            num_epochs=s.num_epochs,
            lr=s.lr,
            gamma=s.gamma,
            lambda_=s.lambda_,
            clip_param=s.clip_param,
            vf_clip_param=1e6 if s.normalize else s.clip_param,
            vf_loss_coeff=0.5,
            entropy_coeff=s.entropy_coeff,
            use_kl_loss=False,
            grad_clip=s.grad_clip,
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(s.hiddens), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(min_sample_timesteps_per_iteration=s.together * s.batch_size)
        .debugging(seed=seed)
    )
    return Loop(config.build_algo().train, s.together * s.batch_size)


def craftax_peer(name: str, s: Settings) -> Loop:
    """Creates the contender with a single-file loop that resets environments as Craftax's scripts do: each step creates
    one new world per 16 environments, and assigns these worlds to the environments whose episode ended.
    """
    import jax
    import jax.numpy as jnp
    from craftax.craftax_env import make_craftax_env_from_name  # pyright: ignore[reportMissingImports]

    from bench.baselines.sorting_loop import Environments, make_loop

    env = make_craftax_env_from_name(name.partition("/")[2], auto_reset=False)
    params, num_fresh = env.default_params, s.num_envs // 16

    def resets(key: jax.Array, number: int) -> Any:
        return jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(key, number), params)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        step_key, reset_key, choice_key = jax.random.split(key, 3)
        keys = jax.random.split(step_key, s.num_envs)
        obs, state, reward, ended, _ = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(keys, state, action, params)
        chosen = jax.random.choice(choice_key, s.num_envs, (num_fresh,), p=ended, replace=False)
        world = (jnp.arange(s.num_envs) // 16).at[chosen].set(jnp.arange(num_fresh))

        def select(fresh: jax.Array, last: jax.Array) -> jax.Array:
            return jnp.where(jnp.expand_dims(ended, range(1, last.ndim)), fresh[world].astype(last.dtype), last)

        obs, state = jax.tree.map(select, resets(reset_key, num_fresh), (obs, state))
        return obs, state, reward, ended

    def strong(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)

    environments = Environments(
        env.num_actions,
        lambda key: strong(resets(key, s.num_envs)),
        lambda key, state, action: strong(step(key, state, action)),
    )
    return make_loop(
        s.num_envs,
        s.num_steps,
        s.num_epochs,
        s.num_minibatches,
        s.hiddens,
        environments=environments,
        lr=s.lr,
        gamma=s.gamma,
        lambda_=s.lambda_,
        clip_param=s.clip_param,
        entropy_coeff=s.entropy_coeff,
        grad_clip=s.grad_clip or 1e9,
        num_iterations=s.together,
    )  # pyright: ignore[reportReturnType]


def navix_peer(name: str, s: Settings) -> Loop:
    """Creates the contender with Navix's trainer, on flattened grids; every call starts a new training, as its
    ``train`` does.
    """
    import jax
    import navix  # pyright: ignore[reportMissingImports]
    from navix.agents import PPO, ActorCritic, MLPEncoder, PPOHparams  # pyright: ignore[reportMissingImports]

    assert s.hiddens == (64, 64)  # MLPEncoder's
    env = navix.make(name.partition("/")[2], gamma=s.gamma)
    size = math.prod(env.observation_space.shape)
    env = navix.make(
        name.partition("/")[2],
        gamma=s.gamma,
        observation_fn=lambda state: navix.observations.symbolic(state).ravel(),
        observation_space=env.observation_space.replace(shape=(size,)),
    )
    hparams = PPOHparams(
        budget=s.together * s.batch_size,
        num_envs=s.num_envs,
        num_steps=s.num_steps,
        num_minibatches=s.num_minibatches,
        num_epochs=s.num_epochs,
        gae_lambda=s.lambda_,
        clip_eps=s.clip_param,
        ent_coef=s.entropy_coeff,
        max_grad_norm=s.grad_clip,
        lr=s.lr,
        anneal_lr=False,
    )
    network = ActorCritic(len(env.action_set), actor_encoder=MLPEncoder(), critic_encoder=MLPEncoder())
    train = jax.jit(PPO(hparams, network, env).train)
    return Loop(lambda: jax.block_until_ready(train(jax.random.PRNGKey(0))), hparams.budget)


def brax_peer(name: str, s: Settings) -> Loop:
    """brax's trainer, in a thread that waits after every one of its epochs until the next one is asked for."""
    import functools

    import jax
    import jax.numpy as jnp
    from brax.training.agents.ppo import networks, train  # pyright: ignore[reportMissingImports]
    from mujoco_playground import wrapper  # pyright: ignore[reportMissingImports]

    from jaxrl_stack.env.registry import resolve_env

    if not hasattr(jax, "device_put_replicated"):  # brax 0.14 asks for it, and JAX 0.10 has it no more
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(  # pyright: ignore[reportAttributeAccessIssue]
            lambda x: jnp.broadcast_to(x, (len(devices), *jnp.shape(x))), tree
        )
    env: Any = resolve_env(name).make()
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    def wait(*_: Any) -> None:
        done.release()
        go.acquire()

    def run() -> None:
        go.acquire()
        num_epochs = 10_000
        train.train(
            env.env,
            num_timesteps=num_epochs * s.together * s.batch_size,
            num_evals=num_epochs + 1,
            run_evals=False,
            max_devices_per_host=1,
            wrap_env_fn=wrapper.wrap_for_brax_training if name.startswith("playground/") else None,
            episode_length=env.episode_length,
            num_envs=s.num_envs,
            unroll_length=s.unroll_length,
            batch_size=s.batch_size // s.num_minibatches // s.unroll_length,
            num_minibatches=s.num_minibatches,
            num_updates_per_batch=s.num_epochs,
            learning_rate=s.lr,
            discounting=s.gamma,
            gae_lambda=s.lambda_,
            clipping_epsilon=s.clip_param,
            entropy_cost=s.entropy_coeff,
            max_grad_norm=s.grad_clip,
            normalize_observations=s.normalize,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=s.hiddens,
                value_hidden_layer_sizes=s.hiddens,
                activation=jnp.tanh,
                distribution_type="normal",
            ),
            progress_fn=wait,
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def step() -> None:
        go.release()
        while not done.acquire(timeout=1.0):
            if not thread.is_alive():
                raise RuntimeError("brax's trainer ended; what it raised stands above")

    return Loop(step, s.together * s.batch_size)


# brax's and Playground's settings have 2,048 environments.
PHYSICS = Settings(
    256, 20, 4, 8, together=4, lr=3e-4, gamma=0.97, clip_param=0.3, grad_clip=None, normalize=True, unroll_length=5
)
CASES: dict[str, tuple[Callable[[str, Settings], Loop], Settings]] = {
    # The script has 1,024 environments.
    "craftax/Craftax-Symbolic-v1": (
        craftax_peer,
        Settings(64, 64, 4, 8, together=1, hiddens=(512, 512, 512), lr=2e-4, lambda_=0.8, grad_clip=1.0),
    ),
    "navix/Navix-Empty-5x5-v0": (navix_peer, Settings(16, 128, 1, 8, together=64)),
    "brax/inverted_pendulum": (brax_peer, PHYSICS),
    "playground/CartpoleBalance": (brax_peer, dataclasses.replace(PHYSICS, lr=1e-3, gamma=0.995)),
}
"""Environment -> the peer on it, and what both train with."""


def learn(name: str, settings: Settings, num_steps: int, seed: int) -> None:
    """Trains ours for some steps; prints ten mean returns of the last 100 episodes on the way."""
    loop = ours(name, settings, seed)
    calls = -(-num_steps // loop.steps_per_iteration)
    for call in range(1, calls + 1):
        result = loop.step()
        if call == calls or call % -(-calls // 10) == 0:
            seen = result["env_runners"]["episode_return_mean"]
            print(f"{name}  seed {seed}  {call * loop.steps_per_iteration:,} steps  return {seen:.3g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default=",".join(CASES), help="comma-separated: " + ", ".join(CASES))
    parser.add_argument("--num-envs", type=int, help="in place of the case's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=2, help="calls of each before the first turn, besides one")
    parser.add_argument("--learn", type=int, metavar="STEPS", help="train ours for so many steps in place of timing")
    parser.add_argument("--seed", type=int, default=0, help="of --learn")
    arguments = parser.parse_args()
    names = arguments.envs.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--envs {unknown[0]}: there are {', '.join(CASES)}")
    for name in names:
        peer, settings = CASES[name]
        if arguments.num_envs:
            settings = dataclasses.replace(settings, num_envs=arguments.num_envs)
        if arguments.learn:
            learn(name, settings, arguments.learn, arguments.seed)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loops = {"ours": ours(name, settings), "peer": peer(name, settings)}
            timings = harness.interleave(loops, arguments.rounds, arguments.seconds, arguments.warmup)
            result = loops["ours"].step()["env_runners"]
        # Per CPU second: the machine may be shared.
        rates = {
            which: [rate / cores for rate, cores in zip(timing.rates, timing.cores, strict=True)]
            for which, timing in timings.items()
        }
        ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates["peer"], strict=True))
        medians = "  ".join(f"{which} {statistics.median(rate):,.0f}" for which, rate in rates.items())
        wall = "  ".join(f"{which} {timing.rate:,.0f}" for which, timing in timings.items())
        print(
            f"{name}  steps per CPU second: {medians}  ratio {ratio:.2f};  per second: {wall}  "
            f"ratio {timings['ours'].ratio_to(timings['peer']):.2f};  ours is at {result['episode_return_mean']:.3g} "
            f"after {result['num_env_steps_sampled_lifetime']:,.0f} steps",
            flush=True,
        )


if __name__ == "__main__":
    main()
