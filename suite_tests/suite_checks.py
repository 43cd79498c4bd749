"""What is checked of an adapter beside its suite: `tests/env/test_small_suites.py` does so with pgx and Jumanji,
`test_suites.py`, which `.ci/suites` runs, with the others."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Dict

from jaxrl_stack.env.jax_env import JaxStep, check_jax_env
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.suites import SUITES, SuiteEnv
from jaxrl_stack.utils import spaces

NUM_STEPS = 1000


def make(name: str, config: dict[str, Any]) -> SuiteEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return resolve_env(name, config).make()


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


def legal_actions(key, space: Dict, obs):
    """Of each agent a random action, a legal one where its observation says which these are."""
    actions = {}
    for (agent, own), one in zip(space.items(), jax.random.split(key, len(space)), strict=True):
        actions[agent] = spaces.sample(one, own)
        if isinstance(obs[agent], dict) and "action_mask" in obs[agent]:
            actions[agent] = jax.random.categorical(one, jnp.log(obs[agent]["action_mask"]))
    return actions


def check_steps(env: SuiteEnv, reset, step, *, terminates: bool, truncates: bool) -> None:
    """A thousand random steps are those of the suite; of several agents, of legal actions.

    Args:
        env: The adapter's environment.
        reset: The suite's own: ``key data -> (obs, state)``.
        step: Likewise: ``(key data, state, action) -> (obs, state, reward, terminated, truncated)``, without a reset.
        terminates: Whether some episode terminates within these steps.
        truncates: Whether some episode is truncated.
    """

    def rollout(reset, step, actions):
        key = jax.random.key(0)
        first, state = reset(key)
        state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)  # no weak types in a carry

        def body(carry, x):
            obs, state = carry
            action = x[1] if actions is not None else legal_actions(jax.random.fold_in(x[0], 2), env.action_space, obs)
            after = JaxStep(*step(x[0], state, action)[:6], {})  # type: ignore[call-arg]
            new = after.obs, after.state
            carry = jax.tree.map(lambda new, old: new.astype(old.dtype), new, carry)
            return carry, after._replace(state=None)

        return first, jax.lax.scan(body, (first, state), (jax.random.split(key, NUM_STEPS), actions))[1]

    @jax.jit
    def both():
        several = isinstance(env, MultiAgentJaxEnv)
        actions = None if several else spaces.sample(jax.random.key(1), env.action_space, (NUM_STEPS,))
        ours = rollout(
            lambda key: env.reset(key, env.params),
            lambda key, state, action: env.step(key, state, action, env.params),
            actions,
        )
        return ours, rollout(lambda key: reset(jax.random.key_data(key)), by_hand(reset, step), actions)

    ours, theirs = jax.device_get(both())
    for (path, mine), other in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=jax.tree_util.keystr(path))
    steps = ours[1]
    assert steps.terminated.any() == terminates
    assert steps.truncated.any() == truncates
    assert not (steps.terminated & steps.truncated).all()
    assert spaces.validate_batch(env.observation_space, steps.obs) == (NUM_STEPS,)


def pgx_moves(env: Any):
    """``(reset, step)`` of a game of pgx with an agent at every seat, for `check_steps`."""
    own = env.env

    def seen(state):
        one = {"action_mask": state.legal_action_mask.astype(jnp.float32), "observations": state.observation}
        return dict.fromkeys(env.possible_agents, one)

    def reset(key):
        state = own.init(key)
        return seen(state), state

    def step(key, state, action):
        move = jnp.where(state.current_player == 0, action["player_0"], action["player_1"])
        state = own.step(state, move, key)
        rewards = {"player_0": state.rewards[0], "player_1": state.rewards[1]}
        return seen(state), state, rewards, state.terminated, state.truncated

    return reset, step


def check_random_steps(name: str) -> None:
    """Of a hundred random steps, rewards are finite and observations in their space."""
    check_jax_env(make(name, {}))


def check_batched_step(env: SuiteEnv) -> None:
    """A batched step is the step of each, also where episodes end."""
    num_envs = 24
    action_key, first_key, *keys = jax.random.split(jax.random.key(2), 42)
    actions = spaces.sample(action_key, env.action_space, (40, num_envs))
    _, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(first_key, num_envs), env.params)
    together = jax.jit(env.step_batch)
    apart = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
    ended = 0
    for key, action in zip(keys, actions, strict=True):
        key = jax.random.split(key, num_envs)
        one, other = together(key, state, action, env.params), apart(key, state, action, env.params)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        state, ended = one.state, ended + int((one.terminated | one.truncated).sum())
    assert ended > num_envs


def check_names(name: str) -> None:
    """Unknown ids and settings are named, with suite, version and what there is; so are errors of a step."""
    prefix, _, env_id = name.partition("/")
    suite = SUITES[prefix].load().suite()
    with pytest.raises(ValueError, match=rf"{suite} has no environment.*Did you mean '{name}'"):
        make(f"{name[:-1]}", {})
    with pytest.raises(
        ValueError, match=rf"env_config\['episode_lenght'\]=3: {prefix}/.* has no such setting"
    ) as error:
        make(name, {"episode_lenght": 3})
    assert error.value.__notes__[0].startswith(f"Raised while {prefix}/{env_id} ({suite})")


def check_image(name: str) -> None:
    """`render` gives a picture with something in it."""
    host = GymnasiumFromJax(name, render_mode="rgb_array")
    host.reset(seed=0)
    image = host.render()
    assert image is not None and image.ndim == 3 and image.shape[-1] == 3
    assert image.dtype == np.uint8 and image.min() < image.max()
