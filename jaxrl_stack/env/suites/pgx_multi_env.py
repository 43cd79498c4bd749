"""Adapter for pgx's games with one agent per player: "pgx_multi/connect_four" has "player_0" and "player_1"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from gymnasium.spaces import Discrete

from jaxrl_stack.env import drawings
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.suites.pgx_env import observation_box, observed
from jaxrl_stack.env.suites.suite_env import SuiteEnv, masked_space
from jaxrl_stack.utils.multi_agent import ALL


class PgxMultiEnv(SuiteEnv, MultiAgentJaxEnv):
    """Game of pgx for two or more players; the agents act in turns.

    Observations are ``{"action_mask": ..., "observations": ...}`` of the agent that acts. An illegal action ends the
    game with pgx's penalty. The first player is drawn for every game. The environment has no settings; `PgxEnv`
    has an opponent inside of the environment.
    """

    prefix = "pgx_multi"
    render_fps = 2.0
    distribution = "pgx"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return [name for name in pgx.available_envs() if name != "2048" and not name.startswith("minatar-")]

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        self.refuse_unknown(config, [])
        self.env: Any = pgx.make(cast(Any, env_id))
        first = jax.eval_shape(self.env.init, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
        self._seen = observation_box(first.observation)
        self.possible_agents = tuple(f"player_{i}" for i in range(self.env.num_players))
        self.observation_spaces = self._everybody(masked_space(self._seen, first.legal_action_mask.shape))
        self.action_spaces = self._everybody(Discrete(first.legal_action_mask.shape[0]))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state = self.env.init(jax.random.key_data(key))
        return self._everybody(observed(state)), state

    def acts(self, state: Any) -> dict[Any, jax.Array]:
        goes_on = ~(state.terminated | state.truncated)
        return {agent: goes_on & (state.current_player == i) for i, agent in enumerate(self.possible_agents)}

    def step_env(self, key: jax.Array, state: Any, action: Mapping[Any, Any], params: Any) -> Any:
        moves = jnp.stack([jnp.asarray(action[agent]) for agent in self.possible_agents])
        state = self.env.step(state, moves[state.current_player], jax.random.key_data(key))
        rewards = {agent: state.rewards[i] for i, agent in enumerate(self.possible_agents)}
        ends = {ALL: state.terminated}, {ALL: state.truncated}
        # Observations of agents that wait are not looked at.
        return self._everybody(observed(state)), state, rewards, *ends, {}

    def render(self, state: Any) -> Any:
        """Draws the board as "player_0" observes it, with one colour per kind of object."""
        # pgx's observe(state, player) is deprecated. Some games index the state with traced numbers, which the NumPy
        # arrays of recorded states refuse.
        own = self.env._observe(jax.tree.map(jnp.asarray, state), jnp.int32(0))
        return drawings.observation(np.asarray(own), self._seen)

    def _everybody(self, value: Any) -> dict[Any, Any]:
        return dict.fromkeys(self.possible_agents, value)


__all__ = ["PgxMultiEnv"]
