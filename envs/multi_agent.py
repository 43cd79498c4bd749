"""Environments of several agents as pure functions of a state.

A class here has `agents` (ids, static), `observation_spaces`, `action_spaces`, `params`, and three functions for
compiled programs, over one environment: `reset`, `step`, and `acts`, which says whose turn it is. Everything by agent
is a dict over all `agents`, in every step.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete


class StepResult(NamedTuple):
    """What a step returns beside the state.

    The flags of the episode stand apart: a pytree's dict has keys of one type, and ids may be numbers.

    Attributes:
        obs: By agent. It counts for those that act next, and those that end in this step; of others it means nothing.
        rewards: float32 by agent; 0 for those that are not there.
        terminateds: bool by agent, it reached an end of its own in this step.
        truncateds: bool by agent, it was cut off in this step.
        acts: bool by agent, it is asked to act on this observation.
        terminated: bool, the episode is over for everybody, by an end of its own.
        truncated: bool, it is over for everybody, cut off.
    """

    obs: dict[Any, jax.Array]
    rewards: dict[Any, jax.Array]
    terminateds: dict[Any, jax.Array]
    truncateds: dict[Any, jax.Array]
    acts: dict[Any, jax.Array]
    terminated: jax.Array
    truncated: jax.Array


class MultiAgentDynamics(abc.ABC):
    """What the environments of this file have in common.

    Attributes:
        agents: Ids of all agents that there may be.
        observation_spaces: Space of one observation, by agent.
        action_spaces: Space of one action, by agent.
        params: Numbers that the dynamics depend on, a pytree; None if there are none.
    """

    agents: tuple[Any, ...]
    observation_spaces: dict[Any, Any]
    action_spaces: dict[Any, Any]
    params: Any = None

    @abc.abstractmethod
    def reset(self, key: jax.Array, params: Any) -> tuple[Any, dict[Any, jax.Array]]:
        """``(state, observations)`` at the start of an episode."""

    @abc.abstractmethod
    def acts(self, state: Any) -> dict[Any, jax.Array]:
        """bool by agent: whether it acts on the observation of this state."""

    @abc.abstractmethod
    def step(self, key: jax.Array, state: Any, actions: dict[Any, Any], params: Any) -> tuple[Any, StepResult]:
        """One step, without a reset.

        Args:
            key: PRNG key.
            state: What `reset` or the last `step` returned.
            actions: By agent, of all; those of agents that do not act are ignored.
            params: A pytree like `params`.
        """

    def _by_agent(self, rows: jax.Array) -> dict[Any, jax.Array]:
        return {agent: rows[i] for i, agent in enumerate(self.agents)}


class CartPoleParams(NamedTuple):
    """Numbers of `MultiAgentCartPole`: gymnasium's, SI units.

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
    """State of `MultiAgentCartPole`.

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


class MultiAgentCartPole(MultiAgentDynamics):
    """Each agent balances a pole of its own; one whose pole has fallen waits for the others.

    The episode ends with the last of them: terminated if every pole has fallen, else truncated. On the host:
    `jaxrl_stack.examples.envs.classes.multi_agent.MultiAgentCartPole`.

    Args:
        num_agents: Number of agents; their ids are 0, 1, ...
    """

    def __init__(self, num_agents: int = 2):
        self.agents = tuple(range(num_agents))
        limit = np.array([4.8, np.inf, 24 * 2 * np.pi / 360, np.inf], np.float32)
        self.observation_spaces = {agent: Box(-limit, limit, dtype=np.float32) for agent in self.agents}
        self.action_spaces = {agent: Discrete(2) for agent in self.agents}
        self.params = CartPoleParams()

    def reset(self, key: jax.Array, params: CartPoleParams) -> tuple[CartPoleState, dict[Any, jax.Array]]:
        n = len(self.agents)
        poles = jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05)
        state = CartPoleState(poles, jnp.zeros(n, bool), jnp.int32(0), jnp.asarray(params.max_steps, jnp.int32))
        return state, self._by_agent(poles)

    def acts(self, state: CartPoleState) -> dict[Any, jax.Array]:
        return self._by_agent(~state.fallen & (state.t < state.max_steps))

    def step(
        self, key: jax.Array, state: CartPoleState, actions: dict[Any, Any], params: CartPoleParams
    ) -> tuple[CartPoleState, StepResult]:
        pushes = jnp.stack([jnp.asarray(actions[agent]) for agent in self.agents])
        moved = _cart_pole(state.poles, pushes, params)
        poles = jnp.where(state.fallen[:, None], state.poles, moved)
        out = (jnp.abs(poles[:, 0]) > params.max_position) | (jnp.abs(poles[:, 2]) > params.max_angle)
        t = state.t + 1
        falls, is_late = out & ~state.fallen, t >= state.max_steps
        cut_off = is_late & ~state.fallen
        fallen = state.fallen | falls
        after = CartPoleState(poles, fallen, t, state.max_steps)
        result = StepResult(
            self._by_agent(poles),
            self._by_agent(jnp.where(state.fallen, 0.0, 1.0)),
            self._by_agent(falls),
            self._by_agent(cut_off),
            self.acts(after),
            fallen.all(),
            is_late & ~fallen.all(),
        )
        return after, result


def _cart_pole(poles: jax.Array, pushes: jax.Array, params: CartPoleParams) -> jax.Array:
    """One Euler step of poles float32 ``[N, 4]``, pushed to the right by 1, to the left by 0."""
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


class RockPaperScissors(MultiAgentDynamics):
    """Two players move at the same time, ten times: the winner of a move gets 1, the loser -1.

    A player observes the opponent's last move, at first 0. The state is int32, the number of moves. On the host:
    `jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors.RockPaperScissors`.
    """

    num_moves = 10

    def __init__(self):
        self.agents = ("player1", "player2")
        self.observation_spaces = {agent: Discrete(3) for agent in self.agents}
        self.action_spaces = {agent: Discrete(3) for agent in self.agents}

    def reset(self, key: jax.Array, params: None) -> tuple[jax.Array, dict[Any, jax.Array]]:
        return jnp.int32(0), self._by_agent(jnp.zeros(2, jnp.int32))

    def acts(self, state: jax.Array) -> dict[Any, jax.Array]:
        return self._by_agent(jnp.broadcast_to(state < self.num_moves, 2))

    def step(
        self, key: jax.Array, state: jax.Array, actions: dict[Any, Any], params: None
    ) -> tuple[jax.Array, StepResult]:
        moves = jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.agents])
        # Each move beats the one before it: paper the rock, scissors the paper, rock the scissors.
        won = jnp.array([0.0, 1.0, -1.0])[(moves[0] - moves[1]) % 3]
        after = state + 1
        ends, nobody = after >= self.num_moves, self._by_agent(jnp.zeros(2, bool))
        ended = self._by_agent(jnp.broadcast_to(ends, 2))
        rewards = self._by_agent(jnp.stack([won, -won]))
        obs = self._by_agent(moves[::-1])
        return after, StepResult(obs, rewards, ended, nobody, self.acts(after), ends, jnp.zeros_like(ends))


class TicTacToeState(NamedTuple):
    """State of `TicTacToe`.

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


class TicTacToe(MultiAgentDynamics):
    """Two players take turns on a board of 3 x 3 fields, until one has a row, or the board is full.

    The player whose turn it is observes float32 ``[9]``, 1 for its own fields, -1 for the opponent's. The winner gets
    1, the loser -1; who chooses a taken field gets -0.5 and loses the turn. After 30 turns the episode is truncated. On
    the host: `jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe.TicTacToe`.
    """

    max_turns = 30
    lines = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self):
        self.agents = ("player1", "player2")
        self.observation_spaces = {agent: Box(-1.0, 1.0, (9,), np.float32) for agent in self.agents}
        self.action_spaces = {agent: Discrete(9) for agent in self.agents}

    def reset(self, key: jax.Array, params: None) -> tuple[TicTacToeState, dict[Any, jax.Array]]:
        board, begins = jnp.zeros(9), jax.random.randint(key, (), 0, 2)
        return TicTacToeState(board, begins, jnp.int32(0), jnp.array(False)), self._seen(board)

    def acts(self, state: TicTacToeState) -> dict[Any, jax.Array]:
        return self._by_agent((jnp.arange(2) == state.player) & ~state.is_over)

    def step(
        self, key: jax.Array, state: TicTacToeState, actions: dict[Any, Any], params: None
    ) -> tuple[TicTacToeState, StepResult]:
        chosen = jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.agents])[state.player]
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
        result = StepResult(
            self._seen(board),
            self._by_agent(rewards),
            self._by_agent(jnp.broadcast_to(terminated, 2)),
            self._by_agent(jnp.broadcast_to(truncated, 2)),
            self.acts(after),
            terminated,
            truncated,
        )
        return after, result

    def _seen(self, board: jax.Array) -> dict[Any, jax.Array]:
        return self._by_agent(jnp.stack([board, -board]))


class ComeAndGoState(NamedTuple):
    """State of `ComeAndGo`.

    Attributes:
        t: int32, number of steps.
        arrivals: int32 ``[N]``, when agents come.
        departures: int32 ``[N]``, when they go.
    """

    t: jax.Array
    arrivals: jax.Array
    departures: jax.Array


class ComeAndGo(MultiAgentDynamics):
    """Agents arrive and leave at random times; whoever is there gets 1 for the action that is the time's parity.

    The observation is float32 ``[2]``: the time modulo 2, and the number of agents that are there. "a0" is there from
    the first to the last of 8 steps; every other one comes at a time in {0, ..., 3} and stays for 1 to 4 steps. Agents
    with an odd number are cut off when they leave, those with an even one are terminated. On the host:
    `envs.multi_agent_host.ComeAndGo`.

    Args:
        num_agents: Number of agents; their ids are "a0", "a1", ...
    """

    length = 8

    def __init__(self, num_agents: int = 3):
        self.agents = tuple(f"a{i}" for i in range(num_agents))
        self.observation_spaces = {agent: Box(0.0, float(num_agents), (2,), np.float32) for agent in self.agents}
        self.action_spaces = {agent: Discrete(2) for agent in self.agents}

    def reset(self, key: jax.Array, params: None) -> tuple[ComeAndGoState, dict[Any, jax.Array]]:
        come_key, stay_key = jax.random.split(key)
        n = len(self.agents)
        arrivals = jax.random.randint(come_key, (n,), 0, 4).at[0].set(0)
        stays = jax.random.randint(stay_key, (n,), 1, 5).at[0].set(self.length)
        state = ComeAndGoState(jnp.int32(0), arrivals, arrivals + stays)
        return state, self._seen(state)

    def acts(self, state: ComeAndGoState) -> dict[Any, jax.Array]:
        return self._by_agent(_is_there(state))

    def step(
        self, key: jax.Array, state: ComeAndGoState, actions: dict[Any, Any], params: None
    ) -> tuple[ComeAndGoState, StepResult]:
        chosen = jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.agents])
        rewards = jnp.where(_is_there(state) & (chosen == state.t % 2), 1.0, 0.0)
        after = state._replace(t=state.t + 1)
        leaves = after.t == state.departures
        is_odd = jnp.arange(len(self.agents)) % 2 == 1
        ends = after.t >= self.length
        result = StepResult(
            self._seen(after),
            self._by_agent(rewards),
            self._by_agent(leaves & ~is_odd),
            self._by_agent(leaves & is_odd),
            self.acts(after),
            ends,
            jnp.zeros_like(ends),
        )
        return after, result

    def _seen(self, state: ComeAndGoState) -> dict[Any, jax.Array]:
        seen = jnp.stack([state.t % 2, _is_there(state).sum()]).astype(jnp.float32)
        return dict.fromkeys(self.agents, seen)


def _is_there(state: ComeAndGoState) -> jax.Array:
    return (state.arrivals <= state.t) & (state.t < state.departures)
