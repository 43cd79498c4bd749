"""Prediction error of DreamerV3's world model, trained without actor and critic on recorded random steps of CartPole.

    python -m bench.dreamer_world_model
    python -m bench.dreamer_world_model --size micro --updates 3000

It learns from 5,000 random steps, and is asked about 2,000 others: the mean squared error of 15 steps that it imagines
under recorded actions after 5 that are given, over the error of "nothing changes"; and the balanced accuracy of
whether an episode ends. Exits with 1 unless the former is at most 1/4 and the latter at least 0.9.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.world_model import WorldModel
from jaxrl_stack.replay import EpisodeReplayBuffer
from jaxrl_stack.replay.items import host_windows

GIVEN, IMAGINED = 5, 15
MOST_ERROR, LEAST_ACCURACY = 0.25, 0.9
NUM_ACTIONS = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the world model's training.

    Args:
        size: See `jaxrl_stack.algorithms.dreamerv3.sizes`.
        updates: Steps of Adam.
        windows: B, of an update.
        length: T, items of a window.
        lr: Adam's first step size; it falls to 0 along half a cosine.
        seed: Of everything random.
    """

    size: str = "mini"
    updates: int = 2500
    windows: int = 16
    length: int = 24
    lr: float = 2e-3
    seed: int = 0


class Known(NamedTuple):
    """Prediction errors of a model on steps that it was not trained on.

    Attributes:
        error: Mean squared error of imagined observations over the error of the last one that was given.
        accuracy: Balanced accuracy of ends of episodes.
        reward_error: Mean absolute error of imagined rewards.
    """

    error: float
    accuracy: float
    reward_error: float


def recorded(num_steps: int, seed: int) -> EpisodeReplayBuffer:
    """Records random steps of CartPole in a replay buffer."""
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(seed)
    rows, (obs, _) = [], env.reset(seed=seed)
    for _ in range(num_steps):
        action = int(rng.integers(NUM_ACTIONS))
        new, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, np.float32(reward), terminated, truncated, new))
        obs = env.reset()[0] if terminated or truncated else new
    names = ("obs", "actions", "rewards", "terminateds", "truncateds", "final_obs")
    buffer = EpisodeReplayBuffer(capacity=num_steps, seed=seed)
    buffer.add_block({name: np.stack([row[i] for row in rows])[:, None] for i, name in enumerate(names)})
    return buffer


def observed(model: WorldModel, windows: dict[str, jax.Array], key: jax.Array | None) -> tuple[Any, Any]:
    """Returns the normalised observations of windows, and the model's outputs for them."""
    normalised = model.normalised(windows["obs"])
    actions = jax.nn.one_hot(windows["actions"], NUM_ACTIONS)
    return normalised, model.observe(normalised, actions, windows["is_first"], key)


def learned(settings: Settings, buffer: EpisodeReplayBuffer) -> WorldModel:
    """Trains a model on windows of a buffer; all updates are one scan."""
    rate = optax.cosine_decay_schedule(settings.lr, settings.updates)
    optimizer = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(rate))
    columns, _ = host_windows(buffer, settings.windows * settings.updates, settings.length)
    space = gym.spaces.Box(-np.inf, np.inf, columns["obs"].shape[2:], np.float32)
    graph, params = nnx.split(WorldModel(MODEL_SIZES[settings.size], space, NUM_ACTIONS, rngs=nnx.Rngs(settings.seed)))
    shape = (settings.updates, settings.windows)
    windows = {name: jnp.asarray(x.reshape(*shape, *x.shape[1:])) for name, x in columns.items()}

    def loss(params: Any, windows: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        own = nnx.merge(graph, params)
        normalised, seen = observed(own, windows, key)
        rows = losses.world_model_rows(own, seen, normalised, windows["rewards"], windows["is_terminated"])
        return jnp.mean(rows["total"])

    def update(carry: Any, drawn: Any) -> tuple[Any, None]:
        params, state = carry
        changes, state = optimizer.update(jax.grad(loss)(params, *drawn), state, params)
        return (optax.apply_updates(params, changes), state), None

    keys = jax.random.split(jax.random.key(settings.seed), settings.updates)
    run = jax.jit(lambda carry, drawn: jax.lax.scan(update, carry, drawn)[0][0])
    return nnx.merge(graph, run((params, optimizer.init(params)), (windows, keys)))


@nnx.jit
def imagined(model: WorldModel, windows: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Predicts the last steps of windows of ``GIVEN + IMAGINED`` steps: returns predicted observations ``[N, IMAGINED,
    4]``, recorded observations and predicted rewards.
    """
    _, seen = observed(model, {name: x[:, :GIVEN] for name, x in windows.items()}, None)
    actions = jax.nn.one_hot(windows["actions"], NUM_ACTIONS)

    def step(state: Any, actions: jax.Array) -> tuple[Any, Any]:
        state = model.imagine_step(state, actions, None)
        return state, state.features

    last = jax.tree.map(lambda x: x[:, -1], seen.states)
    # An action leads to the item after its own, and so do the reward and the end that come of it.
    _, features = jax.lax.scan(step, last, jnp.swapaxes(actions[:, GIVEN - 1 : -1], 0, 1))
    features = jnp.swapaxes(features, 0, 1)
    return model.decode(features)["obs"], model.normalised(windows["obs"])["obs"], model.reward_of(features)


def known_of(model: WorldModel, buffer: EpisodeReplayBuffer) -> Known:
    """Computes the prediction errors of a model on the steps of a buffer."""
    columns, _ = host_windows(buffer, 4000, GIVEN + IMAGINED)
    inside = ~columns["is_first"][:, 1:].any(axis=1)
    columns = {name: x[inside][:400] for name, x in columns.items()}
    predicted, happened, rewards = imagined(model, columns)
    happened_rewards = columns["rewards"][:, GIVEN:]
    error = jnp.mean(jnp.square(predicted - happened[:, GIVEN:]))
    unchanged = jnp.mean(jnp.square(happened[:, GIVEN - 1 : GIVEN] - happened[:, GIVEN:]))
    columns, _ = host_windows(buffer, 400, 32)

    @nnx.jit
    def logits(model: WorldModel, windows: dict[str, jax.Array]) -> jax.Array:
        return model.continue_logits(observed(model, windows, None)[1].states.features)

    goes_on, is_end = np.asarray(logits(model, columns)) > 0, columns["is_terminated"]
    accuracy = 0.5 * ((~goes_on[is_end]).mean() + goes_on[~is_end].mean())
    return Known(float(error / unchanged), float(accuracy), float(jnp.mean(jnp.abs(rewards - happened_rewards))))


def run(settings: Settings) -> Known:
    """Trains a model on 5,000 steps, and computes its prediction errors on 2,000 other steps."""
    return known_of(learned(settings, recorded(5000, settings.seed + 1)), recorded(2000, settings.seed + 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Settings):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    settings, started = Settings(**vars(parser.parse_args(arguments))), time.perf_counter()
    known = run(settings)
    print(settings, known, f"{time.perf_counter() - started:.0f} s", flush=True)
    return 0 if known.error <= MOST_ERROR and known.accuracy >= LEAST_ACCURACY else 1


if __name__ == "__main__":
    raise SystemExit(main())
