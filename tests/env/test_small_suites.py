"""Adapters beside the suites themselves, step by step: pgx and Jumanji, which are small."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiDiscrete

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.default_observations import check_action_mask
from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.suites import SuiteEnv
from jaxrl_stack.utils import spaces
from suite_tests import suite_checks as checks

# Suites warn of what they use themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


def jumanji_steps(env: SuiteEnv):
    own = env.env  # type: ignore[attr-defined]

    def seen(obs):
        return {"action_mask": obs.action_mask.astype(jnp.float32), "observations": obs.board}

    def reset(key):
        state, first = own.reset(key)
        return seen(first.observation), state

    def step(key, state, action):
        state, after = own.step(state, action)
        return seen(after.observation), state, after.reward, after.last(), jnp.bool_(False)

    return reset, step


def pgx_steps(env: SuiteEnv):
    own = env.env  # type: ignore[attr-defined]

    def seen(state):
        return {"action_mask": state.legal_action_mask.astype(jnp.float32), "observations": state.observation}

    def reset(key):
        state = own.init(jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key))[0]))
        return seen(state), state

    def step(key, state, action):
        key = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key))[0])
        state = own.step(state, action, key)
        return seen(state), state, state.rewards[0], state.terminated, state.truncated

    return reset, step


STEPS = {"pgx/2048": (pgx_steps, {}), "jumanji/Game2048-v1": (jumanji_steps, {"board_size": 3})}


@pytest.mark.parametrize("name", STEPS)
def test_a_thousand_random_steps_are_the_suites_own(name):
    reference, config = STEPS[name]
    env = checks.make(name, config)
    checks.check_steps(env, *reference(env), terminates=True, truncates=False)


@pytest.mark.parametrize("game", ["kuhn_poker", "tic_tac_toe"])
def test_a_thousand_random_moves_of_all_players_are_the_suites_own(game):
    env = checks.make(f"pgx_multi/{game}", {})
    checks.check_steps(env, *checks.pgx_moves(env), terminates=True, truncates=False)


def test_only_the_player_whose_turn_it_is_acts():
    env: Any = checks.make("pgx_multi/tic_tac_toe", {})
    step = jax.jit(env.step)
    _, state = jax.jit(env.reset)(jax.random.key(0), env.params)
    first = int(state.current_player)
    for t in range(5):  # a column of the one who begins
        assert env.who_acts(state)[f"player_{(first + t) % 2}"] and sum(env.who_acts(state).values()) == 1
        move = jnp.int32([0, 1, 3, 2, 6][t])
        after = step(jax.random.key(1), state, dict.fromkeys(env.possible_agents, move), env.params)
        state = after.state
    assert after.terminated
    assert {agent: float(reward) for agent, reward in after.reward.items()} == {
        f"player_{first}": 1.0,
        f"player_{1 - first}": -1.0,
    }


@pytest.mark.parametrize("game", ["connect_four", "go_9x9"])
def test_recorded_states_of_boards_are_drawn(game):
    """Recorded states are NumPy arrays. A move changes the picture."""
    env: Any = checks.make(f"pgx_multi/{game}", {})
    state = env.env.init(jax.random.PRNGKey(0))
    moved = env.env.step(state, jnp.int32(3))
    before, after = (env.render(jax.device_get(own)) for own in (state, moved))
    assert before.dtype == np.uint8 and before.shape == after.shape and (before != after).any()


@pytest.mark.parametrize("name", STEPS)
def test_unknown_ids_and_settings_are_named_with_what_there_is(name):
    checks.check_names(name)


def test_errors_inside_a_suite_name_it_with_version_and_id(monkeypatch):
    env = checks.make("pgx/2048", {})

    def broken(*arguments):
        raise KeyError("tile")

    monkeypatch.setattr(env.env, "step", broken)  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match="tile") as error:
        check_jax_env(env)
    assert any(f"Raised while pgx/2048 ({env.suite()}).step was traced" in note for note in error.value.__notes__)
    assert env.suite().startswith("pgx 2.")


def test_others_move_until_the_agents_turn_and_lose_what_they_should():
    def first_legal(key, observation, legal_action_mask):
        return jnp.argmax(legal_action_mask)

    env = checks.make("pgx/tic_tac_toe", {"opponent": first_legal})
    step = jax.jit(env.step)
    rewards = []
    for seed in range(12):
        _, state = jax.jit(env.reset)(jax.random.key(seed), env.params)
        for t in range(5):
            assert state.current_player == 0
            # From the last field on: against the first ones, the agent is never in the way of a row of the others.
            action = 8 - jnp.argmax(state.legal_action_mask[::-1])
            after = step(jax.random.key(t), state, action, env.params)
            if after.terminated:
                rewards.append(float(after.reward))
                break
            assert after.reward == 0
            state = after.state
    # Who begins fills a row first.
    assert sorted(set(rewards)) == [-1.0, 1.0] and len(rewards) == 12
    illegal = step(jax.random.key(0), state, jnp.argmin(state.legal_action_mask), env.params)
    assert illegal.terminated and illegal.reward == -1.0
    with pytest.raises(ValueError, match=r"env_config\['opponent'\]='strong': pgx/tic_tac_toe takes 'random' or a"):
        checks.make("pgx/tic_tac_toe", {"opponent": "strong"})


@pytest.mark.parametrize("name", STEPS)
def test_images(name):
    checks.check_image(name)


def test_an_image_that_fails_names_suite_version_and_id(monkeypatch):
    host = GymnasiumFromJax("jumanji/Game2048-v1", render_mode="rgb_array")
    host.reset(seed=0)

    def broken(state):
        raise OSError("no font")

    monkeypatch.setattr(host.jax_env.env, "render", broken)
    with pytest.raises(OSError, match="no font") as error:
        host.render()
    version = importlib.metadata.version("jumanji")
    assert error.value.__notes__ == [f"Raised while jumanji/Game2048-v1 (jumanji {version}) was drawn."]


def test_the_default_network_trains_on_a_board():
    config = PPOConfig().environment("pgx/tic_tac_toe").env_runners(num_envs_per_env_runner=2)
    algo = config.training(train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1).build_algo()
    try:
        learners = algo.train()["learners"]["default_policy"]
        assert np.isfinite(learners["total_loss"]) and learners["no_valid_action_share"] == 0
    finally:
        algo.stop()


FORMS = {
    "Cleaner-v0": ((12,), MultiDiscrete([4, 4, 4])),  # a row for each agent
    "MultiCVRP-v0": ((42,), MultiDiscrete([21, 21])),  # integers with bounds, of which the mask has one less
    "LevelBasedForaging-v0": ((12,), MultiDiscrete([6, 6])),  # rewards of several agents
    "SearchAndRescue-v0": (None, Box(-1.0, 1.0, (4,))),  # [agents, 2]
    "Tetris-v0": (None, MultiDiscrete([4, 10])),  # one mask over all combinations
}


@pytest.mark.parametrize("name", FORMS)
def test_jumanjis_actions_and_masks_have_the_form_that_networks_take(name, caplog):
    mask, actions = FORMS[name]
    env = checks.make(f"jumanji/{name}", {})
    assert env.action_space == actions
    check_action_mask(env.observation_space, env.action_space)
    has_mask = isinstance(env.observation_space, Dict) and "action_mask" in env.observation_space.spaces
    assert has_mask == (mask is not None)
    assert not has_mask or env.observation_space["action_mask"].shape == mask  # type: ignore[index]
    assert ("is left out of the observations" in caplog.text) == (name == "Tetris-v0")


STEPPED = ("Cleaner-v0", "MultiCVRP-v0", "SearchAndRescue-v0", "Tetris-v0")
"""Of each form of actions one."""


@pytest.mark.parametrize("name", [*(f"jumanji/{name}" for name in STEPPED), "pgx/kuhn_poker"])
def test_random_steps_keep_to_the_spaces(name):
    checks.check_random_steps(name)


def test_masks_of_several_agents_stand_side_by_side_and_their_rewards_are_added():
    env = checks.make("jumanji/Connector-v3", {})
    own = env.env  # type: ignore[attr-defined]

    @jax.jit
    def both(key, actions):
        obs, state = env.reset_env(key, env.params)
        first = own.reset(jax.random.key_data(key))[1]

        def step(state, action):
            after, timestep = own.step(state, action)
            ours = env.step_env(key, state, action, env.params)
            return after, (ours[2:5], (timestep.reward, timestep.last(), timestep.discount))

        return obs, first.observation, jax.lax.scan(step, state, actions)[1]

    actions = spaces.sample(jax.random.key(1), env.action_space, (60,))
    obs, theirs, (ours, (rewards, last, discounts)) = both(jax.random.key(0), actions)
    np.testing.assert_array_equal(obs["action_mask"], theirs.action_mask.reshape(-1))
    np.testing.assert_allclose(ours[0], rewards.sum(-1), rtol=1e-5)
    assert rewards.any() and rewards.shape == (60, 10)
    np.testing.assert_array_equal(ours[1], last & (discounts == 0).all(-1))
    np.testing.assert_array_equal(ours[1] | ours[2], last)


def test_an_environment_of_jumanji_is_made_once_with_its_settings(monkeypatch):
    """What only a setting makes possible is not tried without: levels of Sokoban are downloaded by default."""
    from jumanji import registration

    made, make = [], registration.make
    monkeypatch.setattr(registration, "make", lambda *args, **more: (made.append((args, more)), make(*args, **more))[1])
    checks.make("jumanji/Game2048-v1", {"board_size": 3})
    assert made == [(("Game2048-v1",), {"board_size": 3})]


def test_spaces_come_from_the_suite():
    import pgx

    env = checks.make("pgx/kuhn_poker", {})
    assert env.action_space.n == pgx.make("kuhn_poker").num_actions  # type: ignore[attr-defined]
