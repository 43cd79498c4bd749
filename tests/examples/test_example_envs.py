"""The small gymnasium environments do what their docstrings say, and what their settings ask for."""

from __future__ import annotations

import types
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import check_env

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.examples.envs.classes import cartpole_crashing, multi_agent
from jaxrl_stack.examples.envs.classes.action_mask_env import ActionMaskEnv
from jaxrl_stack.examples.envs.classes.cartpole_crashing import CartPoleCrashing
from jaxrl_stack.examples.envs.classes.cartpole_sparse_rewards import CartPoleSparseRewards
from jaxrl_stack.examples.envs.classes.cartpole_with_dict_observation_space import CartPoleWithDictObservationSpace
from jaxrl_stack.examples.envs.classes.cartpole_with_large_observation_space import CartPoleWithLargeObservationSpace
from jaxrl_stack.examples.envs.classes.cliff_walking_wall_env import (
    ACTION_DOWN,
    ACTION_LEFT,
    ACTION_RIGHT,
    ACTION_UP,
    CliffWalkingWallEnv,
)
from jaxrl_stack.examples.envs.classes.correlated_actions_env import CorrelatedActionsEnv
from jaxrl_stack.examples.envs.classes.debug_counter_env import DebugCounterEnv
from jaxrl_stack.examples.envs.classes.deterministic_envs import (
    create_cartpole_deterministic,
    create_pendulum_deterministic,
)
from jaxrl_stack.examples.envs.classes.fast_image_env import FastImageEnv
from jaxrl_stack.examples.envs.classes.look_and_push import LookAndPush, OneHot
from jaxrl_stack.examples.envs.classes.memory_leaking_env import MemoryLeakingEnv
from jaxrl_stack.examples.envs.classes.nested_space_repeat_after_me_env import NestedSpaceRepeatAfterMeEnv
from jaxrl_stack.examples.envs.classes.random_env import (
    RandomEnv,
    RandomLargeObsSpaceEnv,
    RandomLargeObsSpaceEnvContActions,
)
from jaxrl_stack.examples.envs.classes.repeat_after_me_env import RepeatAfterMeEnv
from jaxrl_stack.examples.envs.classes.repeat_initial_obs_env import RepeatInitialObsEnv
from jaxrl_stack.examples.envs.classes.simple_corridor import SimpleCorridor
from jaxrl_stack.examples.envs.classes.stateless_cartpole import StatelessCartPole
from jaxrl_stack.examples.envs.classes.stateless_pendulum import StatelessPendulum
from jaxrl_stack.examples.envs.classes.ten_step_error_env import TenStepErrorEnv
from jaxrl_stack.examples.envs.classes.transformed_action_space_env import (
    TransformedActionPendulum,
    transform_action_space,
)
from jaxrl_stack.utils.error import EnvError

SEEDED = [
    CartPoleSparseRewards,
    CartPoleWithDictObservationSpace,
    CartPoleWithLargeObservationSpace,
    CliffWalkingWallEnv,
    CorrelatedActionsEnv,
    DebugCounterEnv,
    FastImageEnv,
    LookAndPush,
    MemoryLeakingEnv,
    NestedSpaceRepeatAfterMeEnv,
    RandomEnv,
    RandomLargeObsSpaceEnv,
    RandomLargeObsSpaceEnvContActions,
    RepeatAfterMeEnv,
    RepeatInitialObsEnv,
    SimpleCorridor,
    StatelessCartPole,
    StatelessPendulum,
]


@pytest.mark.parametrize("cls", SEEDED)
def test_they_keep_gymnasiums_contract_and_repeat_with_a_seed(cls):
    env = cls(EnvContext({}, worker_index=0))
    with warnings.catch_warnings():
        # About shapes and bounds that are meant so.
        warnings.simplefilter("ignore")
        check_env(env, skip_render_check=True)


def rewards_of(env, actions, seed=0):
    """Rewards, and whether the last step terminated, of a sequence of actions."""
    env.reset(seed=seed)
    steps = [env.step(action) for action in actions]
    return [step[1] for step in steps], steps[-1][2]


def test_stateless_environments_hide_the_velocities():
    env, full = StatelessCartPole(), gym.make("CartPole-v1").unwrapped
    obs, whole = env.reset(seed=3)[0], full.reset(seed=3)[0]
    np.testing.assert_array_equal(obs, whole[[0, 2]])
    np.testing.assert_array_equal(env.step(1)[0], full.step(1)[0][[0, 2]])
    pendulum = StatelessPendulum({"g": 5.0})
    assert pendulum.g == 5.0 and pendulum.reset(seed=1)[0].shape == (2,)


def test_sparse_rewards_come_with_the_last_step_and_states_can_be_put_back():
    env = CartPoleSparseRewards()
    env.reset(seed=0)
    env.step(0)
    state = env.get_state()
    rewards = []
    for _ in range(2):
        env.set_state(state)
        ends = False
        while not ends:
            _, reward, ends, _, _ = env.step(0)
            rewards.append(reward)
    first, second = np.split(np.array(rewards), 2)
    np.testing.assert_array_equal(first, second)
    assert first[-1] == len(first) + 1 and not first[:-1].any()


def context(worker_index=0, **settings):
    return EnvContext(settings, worker_index=worker_index)


def steps_until_crash(env, limit=50):
    env.reset(seed=0)
    for step in range(1, limit):
        try:
            if env.step(step % 2)[2]:
                env.reset()
        except EnvError:
            return step
    return None


def test_cartpole_crashes_when_and_where_it_is_told_to():
    assert steps_until_crash(CartPoleCrashing(context(crash_after_n_steps=3, p_crash=0.0))) == 3
    assert steps_until_crash(CartPoleCrashing(context(crash_after_n_steps=(2, 5), p_crash=0.0))) in (2, 3, 4)
    assert steps_until_crash(CartPoleCrashing(context(p_crash=1.0))) == 1
    assert steps_until_crash(CartPoleCrashing(context(p_crash=1.0, crash_on_worker_indices=[2]))) is None
    assert steps_until_crash(CartPoleCrashing(context(2, p_crash=1.0, crash_on_worker_indices=[2]))) == 1
    with pytest.raises(EnvError, match=r"in reset\(\) of environment 0 of env runner 4"):
        CartPoleCrashing(context(4, p_crash_reset=1.0)).reset()


def test_cartpole_stalls(monkeypatch):
    env = CartPoleCrashing(context(p_crash=0.0, stall_after_n_steps=2, stall_time_sec=(0.2, 0.3)))
    env.reset(seed=0)
    asleep: list[float] = []
    monkeypatch.setattr(cartpole_crashing, "time", types.SimpleNamespace(sleep=asleep.append))
    env.step(0)
    assert not asleep
    env.step(1)
    assert len(asleep) == 1 and 0.2 <= asleep[0] < 0.3


def test_random_environments_heed_their_settings():
    space = Tuple((Box(-1.0, 1.0, (2,)), Discrete(3)))
    env = RandomEnv({"observation_space": space, "p_terminated": 0.0, "max_episode_len": 4})
    assert space.contains(env.reset(seed=0)[0])
    assert [env.step(0)[2:4] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]
    assert RandomEnv({"p_done": 1.0}).step(0)[2]
    still = RandomEnv({"static_samples": True, "observation_space": Box(-1.0, 1.0, (3,)), "p_terminated": 0.0})
    np.testing.assert_array_equal(still.reset()[0], still.step(0)[0])
    with pytest.raises(ValueError, match="not in the action space"):
        RandomEnv({"check_action_bounds": True}).step(2)


@pytest.mark.parametrize("static", [False, True])
def test_masks_show_which_actions_are_valid(static):
    settings = {"action_space": Discrete(2), "p_terminated": 0.0, "static_samples": static}
    env = ActionMaskEnv(settings)
    obs, _ = env.reset(seed=0)
    seen = set()
    for _ in range(50):
        assert set(obs) == {"action_mask", "observations"} and env.observation_space.contains(obs)
        mask = obs["action_mask"]
        seen.add(tuple(mask))
        if mask[1] == 0.0:
            with pytest.raises(ValueError, match="The action 1 is not valid now"):
                env.step(1)
        obs, *_ = env.step(int(np.flatnonzero(mask)[0]))
    assert seen == {(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)}
    with pytest.raises(ValueError, match="Discrete actions"):
        ActionMaskEnv({"action_space": Box(-1.0, 1.0, (2,))})


def test_the_corridor_ends_where_it_is_told_to():
    env = SimpleCorridor({"corridor_length": 3})
    assert rewards_of(env, [0, 1, 1, 0, 1, 1]) == ([-0.01] * 5 + [1.0], True)
    env.set_corridor_length(1)
    assert rewards_of(env, [1]) == ([1.0], True)
    with pytest.raises(ValueError, match="at most 999"):
        SimpleCorridor({"corridor_length": 1000})


@pytest.mark.parametrize("delay", [0, 2])
def test_repeating_what_was_shown_pays(delay):
    env = RepeatAfterMeEnv({"repeat_delay": delay, "episode_len": 10})
    shown = [0] * delay + [env.reset(seed=0)[0]]
    rewards, ended = [], False
    while not ended:
        obs, reward, ended, truncated, _ = env.step(shown[-1 - delay])
        assert ended == truncated
        shown.append(obs)
        rewards.append(reward)
    assert rewards == [1.0] * (11 - delay)
    continuous = RepeatAfterMeEnv({"continuous": True, "repeat_delay": 0})
    obs, _ = continuous.reset(seed=0)
    assert continuous.step(obs + np.float32(0.5))[1] == pytest.approx(-1.0)


def test_repeating_a_nested_observation_and_the_first_one_pays():
    space = Dict({"b": Discrete(3), "a": Box(-1.0, 1.0, (2,))})
    env = NestedSpaceRepeatAfterMeEnv({"space": space, "episode_len": 2})
    obs, _ = env.reset(seed=0)
    obs, reward, *_ = env.step(obs)
    assert reward == 1.0
    wrong = {"b": (obs["b"] + 1) % 3, "a": obs["a"] + np.float32(0.25)}
    _, reward, terminated, truncated, _ = env.step(wrong)
    assert reward == pytest.approx(-0.5) and not terminated and truncated
    first = RepeatInitialObsEnv(episode_len=3)
    token = first.reset(seed=0)[0]
    assert rewards_of(first, [token, 1 - token, token]) == ([1.0, -1.0, 1.0], True)


def test_walls_hold_in_the_grid():
    env = CliffWalkingWallEnv()
    shortest = [ACTION_UP, *[ACTION_RIGHT] * 11, ACTION_DOWN]
    assert rewards_of(env, shortest) == ([-1.0] * 12 + [10.0], True)
    env.reset()
    # The wall beside the start, the border, and the wall below.
    path = [ACTION_RIGHT, ACTION_LEFT, ACTION_UP, ACTION_RIGHT, ACTION_DOWN, ACTION_UP]
    assert [env.step(action)[0] for action in path] == [36, 36, 24, 25, 25, 13]
    with pytest.raises(ValueError, match="action 4"):
        env.step(4)


def test_correlated_actions_pay_if_they_fit():
    env = CorrelatedActionsEnv()
    x = float(env.reset(seed=0)[0][0])
    first = 1
    assert env.step((first, np.array([-x - first])))[1] == pytest.approx(-abs(1 - (x + first)))


def test_counters_and_seeded_environments():
    env = DebugCounterEnv({"start_at_t": 2})
    assert env.reset()[0] == [2.0]
    steps = [env.step(0) for _ in range(15)]
    assert [step[1] for step in steps[:3]] == [0.0, 1.0, 2.0] and [step[3] for step in steps] == [False] * 14 + [True]
    for create in (create_cartpole_deterministic, create_pendulum_deterministic):
        states = [create({"seed": seed}).unwrapped.state for seed in (1, 1, 2)]
        np.testing.assert_array_equal(states[0], states[1])
        assert not np.array_equal(states[0], states[2])


def test_looking_tells_which_push_is_right():
    env = LookAndPush()
    seen = set()
    for seed in range(8):
        env.reset(seed=seed)
        case = env.step(0)[0]
        seen.add(case)
        pushes = [1] * (3 - case) if case else [1] * 3
        assert [env.step(1)[0] for _ in pushes][-1] == (4 if case == 0 else 3)
        while env._state != 4:
            env.step(1)
        assert env.step(case)[1:3] == (10.0, True)
    assert seen == {0, 1}
    assert OneHot(LookAndPush()).reset()[0].tolist() == [0, 0, 1, 0, 0]


def test_environments_that_fail_and_leak():
    env = TenStepErrorEnv({})
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[2] for _ in range(10)] == [False] * 9 + [True]
    assert env.reset()[1] == {"last_eps_errored": True}
    with pytest.raises(Exception, match="Test error"):
        [env.step(env.action_space.sample()) for _ in range(10)]
    leaking = MemoryLeakingEnv({"p_terminated": 0.0})
    for _ in range(3):
        leaking.reset()
        [leaking.step(0) for _ in range(5)]
    assert len(leaking._leak) == 3


def test_transformed_actions_reach_the_bounds_of_the_environment():
    env = TransformedActionPendulum({"low": 300.0, "high": 500.0})
    assert env.action_space == Box(300.0, 500.0, (1,), np.float32)
    assert env.action(np.array([300.0])) == [-2.0] and env.action(np.array([400.0])) == [0.0]
    settings = []
    create = transform_action_space(lambda config: settings.append(config) or gym.make("Pendulum-v1"))
    assert create({"low": 0.0, "g": 1}).action_space.low == [0.0] and settings == [{"g": 1}]


def test_environments_of_several_agents_are_named_when_they_are_used():
    assert issubclass(multi_agent.MultiAgentPendulum, MultiAgentEnv)
    config = PPOConfig().environment(multi_agent.MultiAgentCartPole, env_config={"num_agents": 2})
    with pytest.raises(ValueError, match=r"has the agents \[0, 1\], but the config has no policies.*multi_agent\("):
        config.build_algo()
