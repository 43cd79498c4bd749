"""Adapters beside the suites, step by step. Needs all of them: `.ci/suites` installs them and runs this."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.env.jax_env import JaxStep, check_jax_env
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.suites import SUITES, SuiteEnv
from jaxrl_stack.utils import spaces

# Suites warn of what they use themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

NUM_STEPS = 1000


def make(name: str, config: dict[str, Any]) -> SuiteEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return resolve_env(name, config).make()


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


def by_hand(reset, step):
    """A step with a reset, as a loop over a suite without automatic resets is written; keys as in `AutoResetJaxEnv`."""

    def whole(key, state, action) -> JaxStep:
        step_key, reset_key = map(jax.random.key_data, jax.random.split(key))
        final_obs, state, reward, terminated, truncated = step(step_key, state, action)
        ended = terminated | truncated
        obs, state = jax.tree.map(
            lambda fresh, last: jnp.where(ended, fresh, last).astype(last.dtype), reset(reset_key), (final_obs, state)
        )
        return JaxStep(obs, state, reward, terminated, truncated, final_obs, {})

    return whole


STEPS = {
    "pgx/2048": (pgx_steps, {}),
    "jumanji/Game2048-v1": (jumanji_steps, {"board_size": 3}),
    "navix/Navix-Empty-5x5-v0": (navix_steps, {"max_steps": 40}),
    "xminigrid/MiniGrid-Empty-5x5": (xminigrid_steps, {"max_steps": 40}),
    "octax/brix": (octax_steps, {"max_num_steps_per_episodes": 60}),
    "brax/inverted_pendulum": (brax_steps, {"episode_length": 9, "backend": "positional"}),
    "playground/CartpoleBalance": (playground_steps, {"episode_length": 90}),
    "craftax/Craftax-Classic-Symbolic-v1": (craftax_steps, {"max_timesteps": 60}),
}
NEVER_TRUNCATE = {"pgx/2048", "jumanji/Game2048-v1"}
NEVER_TERMINATE = {"playground/CartpoleBalance"}


@pytest.mark.parametrize("name", STEPS)
def test_a_thousand_random_steps_are_the_suites_own(name):
    reference, config = STEPS[name]
    env = make(name, config)
    reset, step = reference(env)
    actions = spaces.sample(jax.random.key(1), env.action_space, (NUM_STEPS,))

    def rollout(reset, step):
        @jax.jit
        def run(key, actions):
            first, state = reset(key)
            state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)  # no weak types in a carry

            def body(state, x):
                after = step(x[0], state, x[1])
                state = jax.tree.map(lambda new, old: new.astype(old.dtype), after.state, state)
                return state, after._replace(state=None, info={})

            return first, jax.lax.scan(body, state, (jax.random.split(key, NUM_STEPS), actions))[1]

        return jax.tree.map(np.asarray, run(jax.random.key(0), actions))

    ours = rollout(
        lambda key: env.reset(key, env.params), lambda key, state, action: env.step(key, state, action, env.params)
    )
    theirs = rollout(lambda key: reset(jax.random.key_data(key)), by_hand(reset, step))
    for (path, mine), other in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=jax.tree_util.keystr(path))
    steps = ours[1]
    assert steps.terminated.any() == (name not in NEVER_TERMINATE)
    assert steps.truncated.any() == (name not in NEVER_TRUNCATE)
    assert not (steps.terminated & steps.truncated).all()
    assert spaces.validate_batch(env.observation_space, steps.obs) == (NUM_STEPS,)


@pytest.mark.parametrize("name", ["pgx/2048", "xminigrid/MiniGrid-Empty-5x5"])
def test_a_batched_step_is_the_step_of_each(name):
    env = make(name, {} if name.startswith("pgx") else {"max_steps": 5})
    num_envs = 24
    action_key, first_key, *keys = jax.random.split(jax.random.key(2), 42)
    actions = spaces.sample(action_key, env.action_space, (40, num_envs))
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(first_key, num_envs), env.params)
    together = jax.jit(env.step_batch)
    apart = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
    ended = 0
    for key, action in zip(keys, actions, strict=True):
        key = jax.random.split(key, num_envs)
        one, other = together(key, state, action, env.params), apart(key, state, action, env.params)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        state, ended = one.state, ended + int((one.terminated | one.truncated).sum())
    assert ended > num_envs


def test_others_move_until_the_agents_turn_and_lose_what_they_should():
    def first_legal(key, observation, legal_action_mask):
        return jnp.argmax(legal_action_mask)

    env = make("pgx/tic_tac_toe", {"opponent": first_legal})
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
        make("pgx/tic_tac_toe", {"opponent": "strong"})


@pytest.mark.parametrize("prefix", SUITES)
def test_unknown_ids_and_settings_are_named_with_what_there_is(prefix):
    name = next(known for known in STEPS if known.startswith(prefix))
    env_id = name.partition("/")[2]
    with pytest.raises(ValueError, match=rf"{SUITES[prefix].load().suite()} has no environment.*Did you mean '{name}'"):
        make(f"{name[:-1]}", {})
    with pytest.raises(
        ValueError, match=rf"env_config\['episode_lenght'\]=3: {prefix}/.* has no such setting"
    ) as error:
        make(name, {"episode_lenght": 3})
    assert error.value.__notes__[0].startswith(f"Raised while {prefix}/{env_id} (")


def test_parameters_of_craftax_are_those_of_the_program():
    env = make("craftax/Craftax-Classic-Symbolic-v1", {"day_length": 7, "map_size": (32, 32)})
    assert env.params.day_length == 7 and env.env.static_env_params.map_size == (32, 32)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["jumanji/Game2048-v1", "navix/Navix-Empty-5x5-v0", "xminigrid/MiniGrid-Empty-5x5", "octax/brix"]
)
def test_images(name):
    host = GymnasiumFromJax(name, render_mode="rgb_array")
    host.reset(seed=0)
    image = host.render()
    assert image.ndim == 3 and image.shape[-1] == 3 and image.dtype == np.uint8 and image.min() < image.max()


def test_spaces_come_from_the_suite():
    import pgx

    for env_id in ("connect_four", "kuhn_poker"):
        env = make(f"pgx/{env_id}", {})
        assert env.action_space.n == pgx.make(env_id).num_actions  # type: ignore[attr-defined]
        check_jax_env(env)
