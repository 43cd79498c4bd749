"""JAX environments in one file, with gymnax's functions: CartPole, Pendulum and a game of images.

Benchmarks use them where gymnax is not installed. `make_environment` gives them to the baselines under names that
begin with "plain/"; other names are gymnax's. Dynamics of CartPole and Pendulum are Gymnasium's.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PREFIX = "plain/"


class Params(NamedTuple):
    """Numbers that a program takes as arguments.

    Attributes:
        max_steps: Length of an episode that a time limit ends.
    """

    max_steps: int = 500


class Space(NamedTuple):
    """Bounds and shape of observations or of continuous actions.

    Attributes:
        low: Lower bound of each element.
        high: Upper bound of each element.
        shape: Shape of an observation or action.
    """

    low: float
    high: float
    shape: tuple[int, ...]


class Environment(abc.ABC):
    """Base of the environments: automatic resets in terms of `reset_env` and `step_env`.

    Attributes:
        obs_shape: Shape of an observation.
        num_actions: Number of discrete actions; dimensions of continuous ones.
        default_params: Numbers of the dynamics.
    """

    obs_shape: tuple[int, ...]
    num_actions: int
    default_params: Params = Params()

    def observation_space(self, params: Params) -> Space:
        """Shape of an observation, without bounds."""
        return Space(-jnp.inf, jnp.inf, self.obs_shape)

    @abc.abstractmethod
    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        """Starts an episode: ``(obs, state)``."""

    @abc.abstractmethod
    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple[Any, ...]:
        """Steps without a reset: ``(obs, state, reward, terminated, info)``."""

    def is_truncated(self, state: Any, params: Params) -> jax.Array:
        """True at the time limit."""
        return state[-1] >= params.max_steps

    def reset(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        """Starts an episode: ``(obs, state)``."""
        return self.reset_env(key, params)

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple[Any, ...]:
        """Steps and resets an episode that ended: ``(obs, state, reward, terminated, truncated, info)``."""
        step_key, reset_key = jax.random.split(key)
        final, state, reward, terminated, _ = self.step_env(step_key, state, action, params)
        truncated = self.is_truncated(state, params)
        ended = jnp.logical_or(terminated, truncated)
        fresh = self.reset_env(reset_key, params)
        obs, state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, (final, state))
        return obs, state, reward, terminated, truncated, {"final_observation": final}


class CartPole(Environment):
    """Gymnasium's CartPole-v1; the state is ``(float32 [4], int32)``."""

    obs_shape = (4,)
    num_actions = 2

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        """Starts an episode: ``(obs, state)``."""
        obs = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        # A copy, since programs that donate their arguments refuse one buffer twice.
        return obs, (jnp.array(obs, copy=True), jnp.int32(0))

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple[Any, ...]:
        """Steps without a reset: ``(obs, state, reward, terminated, info)``."""
        (x, velocity, angle, spin), time = state
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pull = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        push = pull - 0.05 * turn * cos / 1.1
        obs = jnp.stack([x + 0.02 * velocity, velocity + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn])
        terminated = (jnp.abs(obs[0]) > 2.4) | (jnp.abs(obs[2]) > 12 * 2 * jnp.pi / 360)
        return obs, (obs, time + 1), jnp.float32(1.0), terminated, {}


class Pendulum(Environment):
    """Gymnasium's Pendulum-v1; the state is ``(angle, angular velocity, int32)``."""

    obs_shape = (3,)
    num_actions = 1
    default_params = Params(max_steps=200)

    def action_space(self, params: Params) -> Space:
        """Bounds of the torque."""
        return Space(-2.0, 2.0, (1,))

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        """Starts an episode: ``(obs, state)``."""
        angle, spin = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.array([jnp.pi, 1.0])
        return self._seen(angle, spin), (angle, spin, jnp.int32(0))

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple[Any, ...]:
        """Steps without a reset: ``(obs, state, reward, terminated, info)``."""
        angle, spin, time = state
        torque = jnp.clip(jnp.reshape(action, ()), -2.0, 2.0)
        wrapped = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(wrapped**2 + 0.1 * spin**2 + 0.001 * torque**2)
        spin = jnp.clip(spin + (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        angle = angle + spin * 0.05
        return self._seen(angle, spin), (angle, spin, time + 1), reward, jnp.bool_(False), {}

    @staticmethod
    def _seen(angle: jax.Array, spin: jax.Array) -> jax.Array:
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])


class Catch(Environment):
    """Game of images as large as MinAtar's, float32 ``[10, 10, 4]``: a paddle catches balls that fall diagonally.

    Channels show the paddle, the ball, the last place of the ball and its direction. Actions: 0 stays, 1 moves left,
    2 moves right. A catch pays 1, a miss terminates. The state is ``(int32 [4], int32)``: column of the paddle, row,
    column and direction (-1, 0 or 1) of the ball.
    """

    obs_shape = (10, 10, 4)
    num_actions = 3

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        """Starts an episode: ``(obs, state)``."""
        column, direction = self._ball(key)
        game = jnp.stack([jnp.int32(5), jnp.int32(0), column, direction])
        return self._image(game, game), (game, jnp.int32(0))

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple[Any, ...]:
        """Steps without a reset: ``(obs, state, reward, terminated, info)``."""
        game, time = state
        paddle = jnp.clip(game[0] + (action == 2) - (action == 1), 0, 9)
        row, column = game[1] + 1, (game[2] + game[3]) % 10
        lands = row >= 9
        caught = lands & (jnp.abs(paddle - column) <= 1)
        new_column, new_direction = self._ball(key)
        after = jnp.stack([paddle, row, column, game[3]])
        again = jnp.stack([paddle, jnp.int32(0), new_column, new_direction])
        after = jnp.where(lands, again, after)
        return self._image(after, game), (after, time + 1), caught.astype(jnp.float32), lands & ~caught, {}

    @staticmethod
    def _ball(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Column and direction of a new ball."""
        drawn = jax.random.randint(key, (), 0, 30)
        return drawn % 10, drawn // 10 - 1

    @staticmethod
    def _image(game: jax.Array, before: jax.Array) -> jax.Array:
        rows, columns = jnp.arange(10)[:, None], jnp.arange(10)
        paddle = (rows == 9) & (columns == game[0])
        ball = (rows == game[1]) & (columns == game[2])
        last = (rows == before[1]) & (columns == before[2])
        side = (rows == game[1]) & (columns == (game[2] + game[3]) % 10)
        return jnp.stack([paddle, ball, last, side], axis=-1).astype(jnp.float32)


ENVIRONMENTS: dict[str, type[Environment]] = {"CartPole": CartPole, "Pendulum": Pendulum, "Catch": Catch}
"""Name without its prefix -> class."""


def make_environment(name: str) -> tuple[Any, Any]:
    """Environment and its params, as ``gymnax.make`` returns them.

    Args:
        name: "plain/CartPole", "plain/Pendulum" or "plain/Catch"; other names are gymnax's.

    Raises:
        ValueError: Unknown plain environment.
    """
    if not name.startswith(PREFIX):
        import gymnax

        return gymnax.make(name)
    if name.removeprefix(PREFIX) not in ENVIRONMENTS:
        known = ", ".join(PREFIX + own for own in ENVIRONMENTS)
        raise ValueError(f"make_environment({name!r}): unknown plain environment. Use one of {known}.")
    env = ENVIRONMENTS[name.removeprefix(PREFIX)]()
    return env, env.default_params
