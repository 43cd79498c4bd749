"""Rows that snapshots play: which they are, who acts in them, and which games count."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.acting.opponents import OpponentsState, margin_of, opponent_map
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.core.opponents import SnapshotRecord, Snapshots, draw_probabilities
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.agent_mapping import module_map_of
from jaxrl_stack.env.module_pipelines import make_rollout, pure_pipelines
from jaxrl_stack.env.self_play_env import SelfPlayEnv
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors
from jaxrl_stack.utils import counters

ROLES = ("hero", "rival_1", "rival_2")


def test_rows_of_a_module_are_agents_in_ranges_of_environments():
    plain = ModuleMap(dict.fromkeys(ROLES, "main"), is_multi_agent=True)
    own = opponent_map(plain, "main", ROLES, num_envs=4, num_self_play=1)
    of_agents = {role: 10 * i + jnp.arange(4) for i, role in enumerate(ROLES)}
    rows = own.rows(of_agents)
    np.testing.assert_array_equal(rows["main"], [0, 1, 2, 3, 10, 20])
    np.testing.assert_array_equal(rows["opponents"], [11, 12, 13, 21, 22, 23])
    assert own.num_rows(4) == {"main": 6, "opponents": 6} and own.num_rows(8) == {"main": 12, "opponents": 12}
    back = own.by_agent(jax.tree.map(lambda x: jnp.stack([x, -x]), rows), axis=1)
    jax.tree.map(np.testing.assert_array_equal, back, {a: jnp.stack([x, -x]) for a, x in of_agents.items()})


def test_a_game_counts_unless_it_began_with_another_opponent():
    """Two blocks of two environments after one of self-play; the last environment changed its opponent."""
    none = jnp.zeros(2, jnp.int32)
    state = OpponentsState(
        params={},
        rest={},
        env_to_module={},
        numbers=none,
        index=none,
        playing=none,
        is_stale=jnp.array([False, True, False, True]),
        games=jnp.zeros((2, 3), jnp.int32),
        num_steps=jnp.int32(0),
    )
    ended = jnp.array([[1, 1, 0, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]], bool)
    returns = jnp.array([[1.0, 0.5, 9, 9, 9], [1.0, 9, 9, -1.0, 1.0], [1.0, 9, 9, 0.0, -2.0]])
    after = state.with_games(ended, returns, 6)
    # Block 0: a win. Block 1: a loss and a draw, and of the last environment the second game only, a loss.
    assert after.games.tolist() == [[1, 0, 0], [0, 1, 2]]
    assert after.is_stale.tolist() == [False, True, False, False]
    again = after.with_games(ended, jnp.full((3, 5), jnp.nan), 6)
    assert again.games.tolist() == after.games.tolist(), "a hero that never acted neither wins nor loses"


def test_a_game_is_won_with_a_higher_return_than_the_mean_of_the_rivals():
    """Negative returns of both, a draw, a rival that never acted, nobody but the hero, and a hero that never acted."""
    nan = jnp.nan
    hero = jnp.array([-0.5, 0.1, -1.0, -2.0, nan])
    rivals = [jnp.array([-1.5, 0.1, nan, nan, 1.0]), jnp.array([-0.5, 0.1, -4.0, nan, 1.0])]
    np.testing.assert_array_equal(margin_of(hero, rivals), jnp.array([0.5, 0.0, 3.0, -2.0, nan]))


@pytest.fixture(scope="module")
def rollouts():
    """``(rollout without opponents, the same with two blocks of two environments, two sets of parameters)``."""
    config = (
        PPOConfig()
        .environment(RockPaperScissors)
        .env_runners(num_envs_per_env_runner=6, env_to_module_connector=lambda *args, **kwargs: MeanStdFilter())
        .rl_module(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4})
        .multi_agent(policies={"main"}, opponents=Snapshots(of="main", size=2))
    )
    env = SelfPlayEnv(RockPaperScissors())
    pipelines = pure_pipelines(config, env, module_map_of(config, env))
    spec = config.get_multi_rl_module_spec(spaces=pipelines.spaces)
    pure = PureModule(spec.build(seed=0).as_multi_rl_module())
    plain = make_rollout(config, env, pipelines, pure, window_size=4)
    params = [PureModule(spec.build(seed=seed).as_multi_rl_module()).params for seed in (1, 2)]
    return plain, plain.with_snapshots("main", num_envs=6, num_self_play=2, num_blocks=2), params


def with_snapshots(rollout, params, index):
    """State of 6 environments with two snapshots, whose statistics differ, and their opponents."""
    step, state = rollout.opponents, rollout.init(jax.random.key(0), 6)
    opponents = state.opponents
    for place, own in enumerate(params):
        statistics = jax.tree.map(lambda x, by=place + 1: x + x.dtype.type(by), state.modules["main"].env_to_module)
        opponents = step.with_snapshot(opponents, own, rollout.pure.rest, statistics, place, 5 + place)
    lengths = jnp.array([1, 1, 0, 1, 1, 1])
    opponents, acting = step.with_index(opponents, state.modules["opponents"], lengths, jnp.array(index, jnp.int32))
    return dataclasses.replace(state, opponents=opponents, modules={**state.modules, "opponents": acting})


def test_a_block_acts_as_its_snapshot_would_alone(rollouts):
    """Second formulation: each snapshot acts for the rows of its block, without a stack."""
    plain, rollout, params = rollouts
    state = with_snapshots(rollout, params, index=[1, 0])
    none = {"main": {}}
    obs = jnp.array([0, 1, 2, 0], jnp.int32)
    context = rollout.context(rollout.pure.params, rollout.pure.rest, none, counters.zero(), explore=False)
    context = dataclasses.replace(context, key=jax.random.key(7))
    step = rollout.with_opponents(state).opponents
    acting = state.modules["opponents"]
    _, batch, acted = step.step(acting, {Columns.OBS: obs}, context)
    for block, place in enumerate([1, 0]):
        rows = slice(2 * block, 2 * block + 2)
        own = plain.modules["main"]
        statistics = jax.tree.map(lambda x, block=block: x[block], acting.env_to_module)
        alone = dataclasses.replace(context, params=params[place], update_statistics=False)
        _, expected, chosen = own.step(own.start(2, statistics), {Columns.OBS: obs[rows]}, alone)
        for name in (Columns.OBS, Columns.STATE_IN):
            jax.tree.map(
                lambda x, y, rows=rows: np.testing.assert_allclose(x[rows], y, rtol=1e-6), batch[name], expected[name]
            )
        np.testing.assert_allclose(
            acted[Columns.ACTION_DIST_INPUTS][rows], chosen[Columns.ACTION_DIST_INPUTS], rtol=1e-5, atol=1e-6
        )
    both = acted[Columns.ACTION_DIST_INPUTS]
    assert not np.allclose(both[0], both[3]), "the snapshots differ"


def test_another_opponent_starts_with_a_fresh_state_and_the_game_does_not_count(rollouts):
    _, rollout, params = rollouts
    state = with_snapshots(rollout, params, index=[0, 0])
    step, acting = rollout.opponents, state.modules["opponents"]
    assert state.opponents.playing.tolist() == [5, 5] and state.opponents.is_stale.tolist() == [False, True, True, True]
    acting = dataclasses.replace(acting, recurrent=jax.tree.map(jnp.ones_like, acting.recurrent))
    fresh = dataclasses.replace(state.opponents, is_stale=jnp.zeros(4, bool))
    lengths = jnp.array([3, 3, 3, 3, 0, 3])
    opponents, changed = step.with_index(fresh, acting, lengths, jnp.array([0, 1], jnp.int32))
    assert opponents.playing.tolist() == [5, 6]
    assert opponents.is_stale.tolist() == [False, False, False, True], (
        "block 0 keeps its opponent; a game not begun counts"
    )
    for leaf in jax.tree.leaves(changed.recurrent):
        assert (leaf[:2] == 1).all() and (leaf[2:] == 0).all()


def test_rivals_of_one_game_share_their_opponent(rollouts):
    _, rollout, _ = rollouts
    step = dataclasses.replace(rollout.opponents, num_agents=2)
    # Two rivals, two blocks of two environments: rows (rival, environment).
    rows = jnp.array([10, 11, 12, 13, 20, 21, 22, 23])
    blocks = step._split(rows)
    assert blocks.tolist() == [[10, 11, 20, 21], [12, 13, 22, 23]]
    assert step._joined(blocks).tolist() == rows.tolist()


def test_hard_draws_prefer_opponents_that_win():
    records = [SnapshotRecord("snapshot_0", 9, 0, 0, True), SnapshotRecord("snapshot_1", 0, 1, 8, True)]
    # With one virtual draw: 9.5 of 10 points, and 1 of 10.
    np.testing.assert_allclose(draw_probabilities("hard", records), np.array([0.05**2, 0.9**2]) / (0.05**2 + 0.9**2))
    np.testing.assert_allclose(draw_probabilities("uniform", records), [0.5, 0.5])
