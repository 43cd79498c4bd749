"""Adapters beside those suites that are too large for the tests. `.ci/suites` installs them and runs this."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gymnasium.spaces import Dict

from jaxrl_stack.env.suites import SuiteEnv
from suite_tests import suite_checks as checks

# Suites warn of what they use themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


# ---------------------------------------------------------------- each suite, as its own documentation steps it


def physics_steps(own: Any):
    def reset(key):
        state = own.reset(key)
        return state.obs, state

    def step(key, state, action):
        state = own.step(state, action)
        truncated = state.info["truncation"] > 0
        return state.obs, state, state.reward, (state.done > 0) & ~truncated, truncated

    return reset, step


def brax_steps(env: Any):
    from brax.envs.wrappers.training import EpisodeWrapper

    return physics_steps(EpisodeWrapper(env.env, env.episode_length, env.action_repeat))


def playground_steps(env: Any):
    from mujoco_playground import wrapper

    return physics_steps(wrapper.brax_training.EpisodeWrapper(env.env, env.episode_length, env.action_repeat))


def craftax_steps(env: SuiteEnv):
    own, params = env.env, env.params  # type: ignore[attr-defined]

    def step(key, state, action):
        obs, state, reward, done, _ = own.step_env(key, state, action, params)
        over = state.player_health <= 0
        return obs, state, reward, done & over, done & ~over

    return lambda key: own.reset_env(key, params), step


def navix_steps(env: SuiteEnv):
    own = env.env  # type: ignore[attr-defined]

    def reset(key):
        first = own.reset(key)
        return first.observation, first

    def step(key, state, action):
        # Navix's own, which would reset in the next step.
        after = own.step(state, action)
        return after.observation, after, after.reward, after.step_type == 2, after.step_type == 1

    return reset, step


def xminigrid_steps(env: SuiteEnv):
    own, params = env.env, env.env_params  # type: ignore[attr-defined]

    def reset(key):
        first = own.reset(params, key)
        return first.observation, first

    def step(key, state, action):
        after = own.step(params, state, action)
        reached = after.reward > 0
        return after.observation, after, after.reward, after.last() & reached, after.last() & ~reached

    return reset, step


def octax_steps(env: SuiteEnv):
    own = env.env  # type: ignore[attr-defined]

    def reset(key):
        state, frames, _ = own.reset(key)
        return jnp.moveaxis(frames, 0, -1), state

    def step(key, state, action):
        state, frames, reward, terminated, truncated, _ = own.step(state, action)
        return jnp.moveaxis(frames, 0, -1), state, reward, terminated, truncated

    return reset, step


STEPS = {
    "navix/Navix-Empty-5x5-v0": (navix_steps, {"max_steps": 40}),
    "xminigrid/MiniGrid-Empty-5x5": (xminigrid_steps, {"max_steps": 40}),
    "octax/brix": (octax_steps, {"max_num_steps_per_episodes": 60}),
    "brax/inverted_pendulum": (brax_steps, {"episode_length": 9, "backend": "positional"}),
    "playground/CartpoleBalance": (playground_steps, {"episode_length": 90}),
    "craftax/Craftax-Classic-Symbolic-v1": (craftax_steps, {"max_timesteps": 60}),
}


# ---------------------------------------------------------------- several agents

ENDS = {
    "MPE_simple_adversary_v3": (26, False),
    "MPE_simple_push_v3": (26, False),
    "MPE_simple_reference_v3": (26, False),
    "MPE_simple_speaker_listener_v4": (26, False),
    "MPE_simple_spread_v3": (26, False),
    "MPE_simple_tag_v3": (26, False),
    "HeuristicEnemySMAX": (101, True),
    "SMAX": (101, True),
    "coin_game": (100, False),
    "hanabi": (None, True),
    "jaxnav": (500, True),
    "overcooked": (400, False),
    "switch_riddle": (6, True),
}
"""Id of JaxMARL -> (number of the step in which time ends an episode, whether other steps end one)."""


def jaxmarl_steps(env: Any, limit: int | None):
    own, masks = env.env, {"hanabi": "get_legal_moves"}.get(env.env_id, "get_avail_actions")

    def seen(obs, state):
        observed = {}
        for agent, space in env.observation_spaces.items():
            observed[agent] = obs[agent]
            if isinstance(space, Dict):
                mask = getattr(own, masks)(state)[agent].astype(jnp.float32)
                observed[agent] = {"action_mask": mask, "observations": obs[agent]}
        return observed

    def reset(key):
        obs, state = own.reset(key)
        return seen(obs, state), (state, 0)

    def step(key, state, action):
        obs, after, rewards, dones, _ = own.step_env(key, state[0], action)
        rewards.pop("__all__", None)
        t = state[1] + 1
        late = dones["__all__"] & (t == limit)
        return seen(obs, after), (after, t), rewards, dones["__all__"] & ~late, late

    return reset, step


@pytest.mark.parametrize("env_id", ENDS)
def test_a_thousand_random_steps_of_several_agents_are_the_suites_own(env_id):
    limit, has_own_ends = ENDS[env_id]
    env = checks.make(f"jaxmarl/{env_id}", {})
    checks.check_steps(env, *jaxmarl_steps(env, limit), terminates=has_own_ends, truncates=env_id in TRUNCATED)


TRUNCATED = {"coin_game", "overcooked", "switch_riddle", "SMAX", *(name for name in ENDS if name.startswith("MPE_"))}
"""Of which random steps reach the time limit within a thousand."""


@pytest.mark.parametrize("game", ["connect_four", "go_9x9", "hex", "leduc_holdem", "othello"])
def test_a_thousand_random_moves_are_those_of_pgx(game):
    env = checks.make(f"pgx_multi/{game}", {})
    checks.check_steps(env, *checks.pgx_moves(env), terminates=True, truncates=False)


def test_agents_of_smax_that_die_wait_for_the_others():
    env: Any = checks.make("jaxmarl/HeuristicEnemySMAX", {"scenario": "3m"})
    step = jax.jit(env.step)
    _, state = jax.jit(env.reset)(jax.random.key(0), env.params)
    died: set[str] = set()
    for t in range(100):
        action = dict.fromkeys(env.possible_agents, jnp.int32(4))  # stand still
        after = step(jax.random.key(t), state, action, env.params)
        if after.terminated:
            break
        now = {agent for agent, flag in after.terminateds.items() if flag}
        assert not now & died
        died |= now
        assert {agent for agent, acts in after.acts.items() if not acts} == died
        state = after.state
    assert died and after.terminated


def test_names_of_scenarios_and_layouts():
    assert len(checks.make("jaxmarl/HeuristicEnemySMAX", {"scenario": "3m"}).possible_agents) == 3  # type: ignore
    wide: Any = checks.make("jaxmarl/overcooked", {"layout": "asymm_advantages"})
    assert wide.observation_spaces["agent_0"].shape == (5, 9, 26)
    with pytest.raises(ValueError, match="jaxmarl/overcooked has no layout of that name"):
        checks.make("jaxmarl/overcooked", {"layout": "kitchen"})


# ---------------------------------------------------------------- one agent


@pytest.mark.parametrize("name", STEPS)
def test_a_thousand_random_steps_are_the_suites_own(name):
    reference, config = STEPS[name]
    env = checks.make(name, config)
    checks.check_steps(env, *reference(env), terminates=not name.startswith("playground/"), truncates=True)


@pytest.mark.parametrize("name", [*STEPS, "jaxmarl/coin_game"])
def test_unknown_ids_and_settings_are_named_with_what_there_is(name):
    checks.check_names(name)


def test_a_batched_step_is_the_step_of_each():
    checks.check_batched_step(checks.make("xminigrid/MiniGrid-Empty-5x5", {"max_steps": 5}))


def test_parameters_of_craftax_are_those_of_the_program():
    env = checks.make("craftax/Craftax-Classic-Symbolic-v1", {"day_length": 7, "map_size": (32, 32)})
    assert env.params.day_length == 7 and env.env.static_env_params.map_size == (32, 32)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STEPS)
def test_images(name):
    checks.check_image(name)


def test_brax_is_used_without_a_word():
    program = "from jaxrl_stack.env.registry import resolve_env; resolve_env('brax/inverted_pendulum').make()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
