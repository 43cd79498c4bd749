"""Multi-agent JAX environments; each also exists as a `MultiAgentEnv` without JAX and with the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv


class CartPoleParams(NamedTuple):
    """Physical constants of `MultiAgentCartPole`: gymnasium's values, SI units.

    Attributes:
        gravity: Gravitational acceleration.
        cart_mass: Mass of a cart.
        pole_mass: Mass of a pole.
        half_length: Half of a pole's length.
        force: Force of a push.
        tau: Seconds per step.
        max_angle: A pole at this angle (radians) has fallen.
        max_position: A cart at this distance has left.
        max_steps: Length of an episode that is cut off.
    """

    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    half_length: float = 0.5
    force: float = 10.0
    tau: float = 0.02
    max_angle: float = 12 * 2 * np.pi / 360
    max_position: float = 2.4
    max_steps: int = 500


class CartPoleState(NamedTuple):
    """State of the environment `MultiAgentCartPole`: the poles, which ones have fallen, and the number of steps.

    Attributes:
        poles: float32 ``[N, 4]``: position, velocity, angle, angular velocity.
        fallen: bool ``[N]``.
        t: int32, number of steps.
        max_steps: int32, length of an episode that is cut off.
    """

    poles: jax.Array
    fallen: jax.Array
    t: jax.Array
    max_steps: jax.Array


class MultiAgentCartPole(MultiAgentJaxEnv):
    """CartPole for several agents with one pole each. An agent whose pole has fallen waits for the others.

    The episode ends when all agents have ended: it is terminated if every pole has fallen, else truncated. On the host:
    `jaxrl_stack.examples.envs.classes.multi_agent.MultiAgentCartPole`.

    Args:
        config: ``num_agents``, whose ids are 0, 1, ...; 2 by default. Fields of `CartPoleParams`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        settings = dict(config or {})
        self.possible_agents = tuple(range(settings.pop("num_agents", 2)))
        self._params = CartPoleParams(**settings)
        limit = np.array([4.8, np.inf, 24 * 2 * np.pi / 360, np.inf], np.float32)
        self.observation_spaces = {agent: Box(-limit, limit, dtype=np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(2) for agent in self.possible_agents}

    @property
    def params(self) -> CartPoleParams:
        return self._params

    def reset_env(self, key: jax.Array, params: CartPoleParams) -> tuple[dict[Any, jax.Array], CartPoleState]:
        n = len(self.possible_agents)
        poles = jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05)
        state = CartPoleState(poles, jnp.zeros(n, bool), jnp.int32(0), jnp.asarray(params.max_steps, jnp.int32))
        return _by_agent(self, poles), state

    def acts(self, state: CartPoleState) -> dict[Any, jax.Array]:
        return _by_agent(self, ~state.fallen & (state.t < state.max_steps))

    def step_env(self, key: jax.Array, state: CartPoleState, action: Mapping[Any, Any], params: CartPoleParams) -> Any:
        pushes = jnp.stack([jnp.asarray(action[agent]) for agent in self.possible_agents])
        moved = _cart_pole(state.poles, pushes, params)
        poles = jnp.where(state.fallen[:, None], state.poles, moved)
        out = (jnp.abs(poles[:, 0]) > params.max_position) | (jnp.abs(poles[:, 2]) > params.max_angle)
        t = state.t + 1
        falls, is_late = out & ~state.fallen, t >= state.max_steps
        cut_off = is_late & ~state.fallen
        fallen = state.fallen | falls
        after = CartPoleState(poles, fallen, t, state.max_steps)
        rewards = _by_agent(self, jnp.where(state.fallen, 0.0, 1.0))
        terminateds = {**_by_agent(self, falls), "__all__": fallen.all()}
        truncateds = {**_by_agent(self, cut_off), "__all__": is_late & ~fallen.all()}
        return _by_agent(self, poles), after, rewards, terminateds, truncateds, {}


class MultiAgentStatelessCartPole(MultiAgentCartPole):
    """`MultiAgentCartPole` without velocities: an observation has position and angle, float32 ``[2]``."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        limit = np.array([4.8, 24 * 2 * np.pi / 360], np.float32)
        self.observation_spaces = {agent: Box(-limit, limit, dtype=np.float32) for agent in self.possible_agents}

    def reset_env(self, key: jax.Array, params: CartPoleParams) -> tuple[dict[Any, jax.Array], CartPoleState]:
        obs, state = super().reset_env(key, params)
        return {agent: own[::2] for agent, own in obs.items()}, state

    def step_env(self, key: jax.Array, state: CartPoleState, action: Mapping[Any, Any], params: CartPoleParams) -> Any:
        obs, *rest = super().step_env(key, state, action, params)
        return {agent: own[::2] for agent, own in obs.items()}, *rest


def _cart_pole(poles: jax.Array, pushes: jax.Array, params: CartPoleParams) -> jax.Array:
    """Returns the states of N carts with poles after one Euler step, float32 ``[N, 4]``; push 1 is to the right, 0 to
    the left.
    """
    x, velocity, angle, spin = poles.T
    force = jnp.where(pushes == 1, params.force, -params.force)
    mass, moment = params.cart_mass + params.pole_mass, params.pole_mass * params.half_length
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pull = (force + moment * spin**2 * sin) / mass
    inertia = params.half_length * (4.0 / 3.0 - params.pole_mass * cos**2 / mass)
    turn = (params.gravity * sin - cos * pull) / inertia
    push = pull - moment * turn * cos / mass
    tau = params.tau
    return jnp.stack([x + tau * velocity, velocity + tau * push, angle + tau * spin, spin + tau * turn], axis=1)


class RockPaperScissors(MultiAgentJaxEnv):
    """Rock-paper-scissors with ten simultaneous moves of both players; the winner of a move gets 1, the loser -1.

    A player observes the opponent's last move, at first 0. The state is int32, the number of moves. On the host:
    `jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors.RockPaperScissors`.
    """

    num_moves = 10

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self.possible_agents = ("player1", "player2")
        self.observation_spaces = {agent: Discrete(3) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(3) for agent in self.possible_agents}

    def reset_env(self, key: jax.Array, params: None) -> tuple[dict[Any, jax.Array], jax.Array]:
        return _by_agent(self, jnp.zeros(2, jnp.int32)), jnp.int32(0)

    def step_env(self, key: jax.Array, state: jax.Array, action: Mapping[Any, Any], params: None) -> Any:
        moves = jnp.stack([jnp.asarray(action[agent], jnp.int32) for agent in self.possible_agents])
        # Each move beats the one before it: paper the rock, scissors the paper, rock the scissors.
        won = jnp.array([0.0, 1.0, -1.0])[(moves[0] - moves[1]) % 3]
        after, rewards = state + 1, _by_agent(self, jnp.stack([won, -won]))
        return (
            _by_agent(self, moves[::-1]),
            after,
            rewards,
            {"__all__": after >= self.num_moves},
            {"__all__": False},
            {},
        )


class TicTacToeState(NamedTuple):
    """State of the game `TicTacToe`: the board, the player to move, and the number of turns.

    Attributes:
        board: float32 ``[9]``: 1 for the fields of player1, -1 for those of player2, 0 for free ones.
        player: int32, whose turn it is: 0 or 1.
        t: int32, number of turns.
        is_over: bool.
    """

    board: jax.Array
    player: jax.Array
    t: jax.Array
    is_over: jax.Array


class TicTacToe(MultiAgentJaxEnv):
    """Tic-tac-toe: two players take turns on a board of 3 x 3 fields.

    An episode terminates if a player has three fields in a line, or if the board is full.

    The player whose turn it is observes float32 ``[9]``, 1 for its own fields, -1 for the opponent's fields, 0 for free
    fields. The winner gets 1, the loser -1. A player that chooses a taken field gets -0.5 and loses the turn. After 30
    turns the episode is truncated. Without JAX: `jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe.TicTacToe`.
    """

    max_turns = 30
    lines = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self.possible_agents = ("player1", "player2")
        self.observation_spaces = {agent: Box(-1.0, 1.0, (9,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(9) for agent in self.possible_agents}

    def reset_env(self, key: jax.Array, params: None) -> tuple[dict[Any, jax.Array], TicTacToeState]:
        board, begins = jnp.zeros(9), jax.random.randint(key, (), 0, 2)
        return self._seen(board), TicTacToeState(board, begins, jnp.int32(0), jnp.array(False))

    def acts(self, state: TicTacToeState) -> dict[Any, jax.Array]:
        return _by_agent(self, (jnp.arange(2) == state.player) & ~state.is_over)

    def step_env(self, key: jax.Array, state: TicTacToeState, action: Mapping[Any, Any], params: None) -> Any:
        chosen = jnp.stack([jnp.asarray(action[agent], jnp.int32) for agent in self.possible_agents])[state.player]
        mark = 1.0 - 2.0 * state.player
        is_taken = state.board[chosen] != 0.0
        board = jnp.where(is_taken, state.board, state.board.at[chosen].set(mark))
        wins = ~is_taken & (board[self.lines] == mark).all(axis=1).any()
        t = state.t + 1
        terminated = wins | (~is_taken & (board != 0.0).all())
        truncated = ~terminated & (t >= self.max_turns)
        mover = jnp.arange(2) == state.player
        rewards = jnp.where(wins, jnp.where(mover, 1.0, -1.0), jnp.where(mover & is_taken, -0.5, 0.0))
        after = TicTacToeState(board, 1 - state.player, t, terminated | truncated)
        of_agents = _by_agent(self, rewards)
        return self._seen(board), after, of_agents, {"__all__": terminated}, {"__all__": truncated}, {}

    def _seen(self, board: jax.Array) -> dict[Any, jax.Array]:
        return _by_agent(self, jnp.stack([board, -board]))


class ComeAndGoState(NamedTuple):
    """State of the environment `ComeAndGo`: the step number, and the steps at which agents arrive and leave.

    Attributes:
        t: int32, number of steps.
        arrivals: int32 ``[N]``, when agents come.
        departures: int32 ``[N]``, when they go.
    """

    t: jax.Array
    arrivals: jax.Array
    departures: jax.Array


class ComeAndGo(MultiAgentJaxEnv):
    """Environment in which agents arrive and leave at random times; a present agent gets 1 for an action equal to the
    step number modulo 2.

    The observation is float32 ``[2]``: the time modulo 2, and the number of agents that are there. "a0" is there from
    the first to the last of 8 steps; every other one comes at a time in {0, ..., 3} and stays for 1 to 4 steps. Agents
    with an odd number are cut off when they leave, those with an even one are terminated. On the host:
    `envs.multi_agent_host.ComeAndGo`.

    Args:
        config: ``num_agents``, whose ids are "a0", "a1", ...; 3 by default.
    """

    length = 8

    def __init__(self, config: Mapping[str, Any] | None = None):
        num_agents = (config or {}).get("num_agents", 3)
        self.possible_agents = tuple(f"a{i}" for i in range(num_agents))
        self.observation_spaces = {
            agent: Box(0.0, float(num_agents), (2,), np.float32) for agent in self.possible_agents
        }
        self.action_spaces = {agent: Discrete(2) for agent in self.possible_agents}

    def reset_env(self, key: jax.Array, params: None) -> tuple[dict[Any, jax.Array], ComeAndGoState]:
        come_key, stay_key = jax.random.split(key)
        n = len(self.possible_agents)
        arrivals = jax.random.randint(come_key, (n,), 0, 4).at[0].set(0)
        stays = jax.random.randint(stay_key, (n,), 1, 5).at[0].set(self.length)
        state = ComeAndGoState(jnp.int32(0), arrivals, arrivals + stays)
        return self._seen(state), state

    def acts(self, state: ComeAndGoState) -> dict[Any, jax.Array]:
        return _by_agent(self, _is_there(state))

    def step_env(self, key: jax.Array, state: ComeAndGoState, action: Mapping[Any, Any], params: None) -> Any:
        chosen = jnp.stack([jnp.asarray(action[agent], jnp.int32) for agent in self.possible_agents])
        rewards = jnp.where(_is_there(state) & (chosen == state.t % 2), 1.0, 0.0)
        after = state._replace(t=state.t + 1)
        leaves = after.t == state.departures
        is_odd = jnp.arange(len(self.possible_agents)) % 2 == 1
        terminateds = {**_by_agent(self, leaves & ~is_odd), "__all__": after.t >= self.length}
        truncateds = {**_by_agent(self, leaves & is_odd), "__all__": False}
        return self._seen(after), after, _by_agent(self, rewards), terminateds, truncateds, {}

    def _seen(self, state: ComeAndGoState) -> dict[Any, jax.Array]:
        seen = jnp.stack([state.t % 2, _is_there(state).sum()]).astype(jnp.float32)
        return dict.fromkeys(self.possible_agents, seen)


def _is_there(state: ComeAndGoState) -> jax.Array:
    return (state.arrivals <= state.t) & (state.t < state.departures)


def _by_agent(env: MultiAgentJaxEnv, rows: jax.Array) -> dict[Any, jax.Array]:
    return {agent: rows[i] for i, agent in enumerate(env.possible_agents)}


class TwoStepGame(MultiAgentJaxEnv):
    """Cooperative game of two agents and two steps: agent 0 first chooses a safe or a risky state.

    Agent 0's first action selects the state of the second step: action 0 the safe state, action 1 the risky state.

    In the safe state the reward is 7 for all actions. In the risky state it is 8 if both agents choose 1, 1 if one
    agent does, else 0. Each agent gets half of the reward. Both observe float32 ``[3]``, one-hot: start, safe state,
    risky state. The environment's state is the index in this vector, int32. Source: Rashid et al. (2018), section 5,
    https://arxiv.org/abs/1803.11485.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self.possible_agents = (0, 1)
        self.observation_spaces = {agent: Box(0.0, 1.0, (3,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(2) for agent in self.possible_agents}

    def _observations(self, state: jax.Array) -> dict[Any, jax.Array]:
        return dict.fromkeys(self.possible_agents, jax.nn.one_hot(state, 3))

    def reset_env(self, key: jax.Array, params: None) -> tuple[dict[Any, jax.Array], jax.Array]:
        return self._observations(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key: jax.Array, state: jax.Array, action: Mapping[Any, Any], params: None) -> Any:
        first, second = (jnp.asarray(action[agent], jnp.int32) for agent in self.possible_agents)
        together = jnp.array([[0.0, 1.0], [1.0, 8.0]])[first, second]
        earned = jnp.stack([jnp.float32(0.0), jnp.float32(7.0), together])[state]
        after = jnp.where(state == 0, first + 1, state)
        rewards = dict.fromkeys(self.possible_agents, earned / 2)
        return self._observations(after), after, rewards, {"__all__": state > 0}, {"__all__": False}, {}
