"""Adapters beside the suites themselves, step by step: pgx and Jumanji, which are small."""

from __future__ import annotations

import importlib.metadata

import jax
import jax.numpy as jnp
import pytest

from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.suites import SuiteEnv
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


def test_spaces_come_from_the_suite():
    import pgx

    env = checks.make("pgx/kuhn_poker", {})
    assert env.action_space.n == pgx.make("kuhn_poker").num_actions  # type: ignore[attr-defined]
    check_jax_env(env)
