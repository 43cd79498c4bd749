"""Actions that are drawn from the action space in place of the policy's."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.module_to_env import RandomActions
from jaxrl_stack.core import DEFAULT_MODULE_ID

SPACES = {
    "discrete": (gym.spaces.Discrete(4, start=7), np.int32(0)),
    "box": (gym.spaces.Box(np.array([0, -1], np.float32), np.array([10, 1], np.float32)), np.zeros(2, np.float32)),
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_share_of_the_actions_is_drawn_in_the_modules_numbers(kind):
    space, action = SPACES[kind]
    connector = RandomActions(input_action_space=space, epsilon=0.5)
    columns = {"actions": jnp.zeros((4000, *action.shape), action.dtype), "action_logp": jnp.zeros(4000)}

    @jax.jit
    def apply(key):
        ctx = ConnectorContext(key=key, reset=jnp.zeros(4000, bool))
        return connector.apply({}, {DEFAULT_MODULE_ID: columns}, ctx)[1][DEFAULT_MODULE_ID]

    out = apply(jax.random.key(0))
    assert set(out) == {"actions"} and out["actions"].dtype == columns["actions"].dtype
    actions = np.asarray(out["actions"]).reshape(4000, -1)
    is_drawn = (actions != 0).any(axis=1)
    if kind == "discrete":
        assert abs(is_drawn.mean() - 0.5 * 0.75) < 0.03 and set(np.unique(actions)) == {0, 1, 2, 3}
    else:
        assert abs(is_drawn.mean() - 0.5) < 0.03
        assert np.abs(actions).max() <= 1 and np.all(np.abs(actions[is_drawn].mean(axis=0)) < 0.06)


def test_greedy_actions_stay_and_wrong_shares_are_refused():
    connector = RandomActions(input_action_space=SPACES["discrete"][0], epsilon=1.0)
    batch = {DEFAULT_MODULE_ID: {"actions": np.zeros(2, np.int32)}}
    assert connector.apply({}, batch, ConnectorContext(explore=False))[1] is batch
    with pytest.raises(ValueError, match=r"epsilon=1\.5"):
        RandomActions(epsilon=1.5)
