"""Policy: the same actions as evaluation, histories that callers carry, and arrays that are its own."""

from __future__ import annotations

import concurrent.futures
import re
import subprocess
import sys

import gymnasium as gym
import jax
import numpy as np
import policy_cases as cases
import pytest

from jaxrl_stack.connectors.env_to_module import FlattenObservations, MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.policy.policy import OLD_MEMBERS

# ------------------------------------------------------------------------------------- the same actions as evaluation


@pytest.fixture(scope="module", params=["CartPole-v1", "Pendulum-v1"])
def on_device(request):
    config = cases.config(f"gymnax/{request.param}", {"max_steps_in_episode": 20})
    algo = config.evaluation(
        evaluation_config={"explore": False, "env": cases.RecordedJaxEnv, "env_config": {"id": request.param}}
    ).build_algo()
    yield algo
    algo.stop()


@pytest.fixture(scope="module", params=["CartPole-v1", "Pendulum-v1"])
def on_host(request):
    algo = cases.config(cases.RecordedEnv, {"id": request.param}).build_algo()
    yield algo
    algo.stop()


def assert_same(action, expected):
    if np.issubdtype(np.asarray(expected).dtype, np.floating):
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(action, expected)


def test_a_batch_acts_as_evaluation_on_the_device_does(on_device):
    on_device.train()
    cases.STEPS.clear()
    policy = on_device.get_policy()
    on_device.evaluate()
    jax.effects_barrier()
    assert len(cases.STEPS) >= 40
    state, reward, ended = None, None, None
    for step in cases.STEPS[:60]:
        actions, state, _ = policy.compute_actions(step["obs"], state, prev_rewards=reward, reset=ended)
        assert_same(actions, step["action"])
        reward, ended = step["reward"], step["ended"]
    assert any(step["ended"].any() for step in cases.STEPS[:60])


def test_one_environment_acts_as_evaluation_on_the_host_does(on_host):
    on_host.train()
    cases.EPISODES.clear()
    policy = on_host.get_policy()
    on_host.evaluate()
    assert sum(len(episode) for episode in cases.EPISODES) >= 40
    for episode in cases.EPISODES[:4]:
        state, reward = None, 0.0
        for observation, expected, next_reward in episode:
            action, state, _ = policy.compute_single_action(observation, state, prev_reward=reward)
            assert_same(action, expected)
            reward = next_reward


def test_training_goes_on_without_a_change(on_host):
    policy = on_host.get_policy()
    observation = on_host.spaces["__env_single__"][0].sample()
    before = policy.compute_single_action(observation)[2][Columns.ACTION_DIST_INPUTS]
    on_host.train()
    np.testing.assert_array_equal(policy.compute_single_action(observation)[2][Columns.ACTION_DIST_INPUTS], before)
    later = on_host.get_policy()
    assert later._program is policy._program
    assert (later.compute_single_action(observation)[2][Columns.ACTION_DIST_INPUTS] != before).any()
    assert later.module_id == "default_policy"
    with pytest.raises(KeyError, match="No module 'other'"):
        on_host.get_policy("other")


def test_a_single_action_of_the_algorithm_is_that_of_the_policy(on_device):
    observation = on_device.spaces["__env_single__"][0].sample()
    action, _, _ = on_device.get_policy().compute_single_action(observation)
    assert_same(action, on_device.compute_single_action(observation, explore=False))
    assert action.dtype == on_device.compute_single_action(observation, explore=False).dtype


def test_host_connectors_see_episodes_as_in_evaluation():
    config = cases.config(cases.RecordedEnv, {"id": "CartPole-v1"}).env_runners(
        env_to_module_connector=lambda *args, **kwargs: [cases.RecordingHostConnector(), MeanStdFilter()]
    )
    algo = config.build_algo()
    algo.train()
    cases.EPISODES.clear()
    policy = algo.get_policy()
    algo.evaluate()
    # Two episodes side by side, one of which starts anew earlier.
    first, second = cases.EPISODES[0], cases.EPISODES[1]
    third = cases.EPISODES[2]
    state = None
    for t in range(min(len(first), len(second), 8)):
        rows = [first[t], second[t]]
        before = [0.0, 0.0] if t == 0 else [first[t - 1][2], second[t - 1][2]]
        actions, state, _ = policy.compute_actions(np.stack([row[0] for row in rows]), state, prev_rewards=before)
        np.testing.assert_array_equal(actions, [row[1] for row in rows])
    actions, state, _ = policy.compute_actions(
        np.stack([third[0][0], second[8][0]]), state, prev_rewards=[1.0, second[7][2]], reset=[True, False]
    )
    np.testing.assert_array_equal(actions, [third[0][1], second[8][1]])
    with pytest.raises(ValueError, match="not made by a policy with host connectors"):
        policy.compute_actions(np.zeros((1, 4)), cases.policy().initial_state(1))
    used = policy.initial_state()
    policy.compute_single_action(first[0][0], used)
    with pytest.raises(ValueError, match="passed to an earlier call already"):
        policy.compute_single_action(first[0][0], used)
    with pytest.raises(ValueError, match=r"\['RecordingHostConnector'\].*override `__call__`"):
        policy.export("somewhere")
    algo.stop()


# ------------------------------------------------------------------------------------------------------------- states


@pytest.fixture(scope="module")
def policy():
    return cases.policy()


def test_a_batch_is_its_rows(policy):
    rows = cases.observations(6, 3)
    rewards = np.linspace(-1, 1, 18).reshape(6, 3)
    resets = np.zeros((6, 3), bool)
    resets[3, 1] = resets[0] = True
    state = policy.initial_state(3)
    singles = [None, None, None]
    for t in range(6):
        actions, state, outputs = policy.compute_actions(rows[t], state, prev_rewards=rewards[t], reset=resets[t])
        for i in range(3):
            own = None if resets[t, i] else singles[i]
            action, singles[i], own_outputs = policy.compute_single_action(rows[t, i], own, prev_reward=rewards[t, i])
            assert action == actions[i] and action.shape == ()
            np.testing.assert_allclose(
                own_outputs[Columns.ACTION_DIST_INPUTS], outputs[Columns.ACTION_DIST_INPUTS][i], atol=1e-6
            )
    assert state.num_envs == 3 and not np.asarray(state.reset).any()


def test_observations_that_are_not_finite_are_refused_with_their_index(policy):
    rows = cases.observations(1, 2)[0].copy()
    rows[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"observations\[1, 2\] is nan: .* np\.nan_to_num"):
        policy.compute_actions(rows)
    with pytest.raises(ValueError, match=r"observation\[2\] is -inf: "):
        policy.compute_single_action(np.array([0.0, 0.0, -np.inf], np.float32))


def test_a_state_can_be_used_again(policy):
    rows = cases.observations(2, 2)
    _, state, _ = policy.compute_actions(rows[0])
    first, second = (policy.compute_actions(rows[1], state, prev_rewards=[1, 2])[2] for _ in range(2))
    np.testing.assert_array_equal(first[Columns.ACTION_DIST_INPUTS], second[Columns.ACTION_DIST_INPUTS])
    alone = policy.compute_actions(rows[1])[2]
    assert (alone[Columns.ACTION_DIST_INPUTS] != first[Columns.ACTION_DIST_INPUTS]).any()


def test_the_last_rewards_reach_the_connectors(policy):
    rows = cases.observations(2, 1)
    _, state, _ = policy.compute_actions(rows[0])
    outputs = [policy.compute_actions(rows[1], state, prev_rewards=[r])[2] for r in (0.0, 1.0)]
    assert (outputs[0][Columns.ACTION_DIST_INPUTS] != outputs[1][Columns.ACTION_DIST_INPUTS]).any()
    # Where an episode starts, there are none.
    fresh = [policy.compute_actions(rows[1], state, prev_rewards=[r], reset=[True])[2] for r in (0.0, 1.0)]
    np.testing.assert_array_equal(fresh[0][Columns.ACTION_DIST_INPUTS], fresh[1][Columns.ACTION_DIST_INPUTS])


def test_a_recurrent_module_gets_its_state_back():
    policy = cases.policy(cases.Memory, connectors=[])
    rows = np.ones((2, 3), np.float32)
    _, state, outputs = policy.compute_actions(rows)
    np.testing.assert_array_equal(outputs[Columns.STATE_OUT]["sum"], np.full((2, 3), 1.5))
    _, state, outputs = policy.compute_actions(rows, state, reset=[False, True])
    np.testing.assert_array_equal(outputs[Columns.STATE_OUT]["sum"], [[2.5] * 3, [1.5] * 3])
    _, state, outputs = policy.compute_single_action(rows[0])
    np.testing.assert_array_equal(outputs[Columns.STATE_OUT]["sum"], [1.5] * 3)


# -------------------------------------------------------------------------------------------------------- exploration


def test_actions_are_greedy_unless_asked(policy):
    rows = cases.observations(1, 64)[0]
    greedy, _, outputs = policy.compute_actions(rows)
    np.testing.assert_array_equal(greedy, outputs[Columns.ACTION_DIST_INPUTS].argmax(-1))
    assert Columns.ACTION_LOGP not in outputs
    first, _, outputs = policy.compute_actions(rows, explore=True)
    second = policy.compute_actions(rows, explore=True)[0]
    assert (first != second).any() and (first != greedy).any() and Columns.ACTION_LOGP in outputs
    again = [policy.compute_actions(rows, explore=True, key=jax.random.key(5))[0] for _ in range(2)]
    raw = policy.compute_actions(rows, explore=True, key=np.array([0, 5], np.uint32))[0]
    np.testing.assert_array_equal(again[0], again[1])
    np.testing.assert_array_equal(again[0], raw)
    with pytest.raises(ValueError, match=r"key is float32\[3\]"):
        policy.compute_actions(rows, key=np.zeros(3, np.float32))


def test_threads_share_a_policy():
    policy = cases.policy(seed=11)
    rows = cases.observations(1, 16)[0]

    def draw(_):
        return policy.compute_actions(rows, explore=True)[0].tobytes()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(draw, range(40)))
    alone = cases.policy(seed=11)
    assert sorted(drawn) == sorted(alone.compute_actions(rows, explore=True)[0].tobytes() for _ in range(40))


# ------------------------------------------------------------------------------------------------- weights and states


def test_weights_and_statistics_move_between_policies(policy):
    other = cases.policy()
    rows = cases.observations(1, 4)[0]
    weights = {name: leaf + 0.5 for name, leaf in policy.get_weights().items()}
    other.set_weights(weights)
    assert set(weights) == {"hidden/kernel", "hidden/bias", "head/kernel", "head/bias"}
    np.testing.assert_array_equal(other.get_weights()["head/bias"], weights["head/bias"])
    np.testing.assert_array_equal(other.module.get_state()["head/bias"], weights["head/bias"])
    expected = other.compute_actions(rows)[2][Columns.ACTION_DIST_INPUTS]
    assert (expected != policy.compute_actions(rows)[2][Columns.ACTION_DIST_INPUTS]).all()

    blank = cases.policy()
    state = other.get_state()
    statistics = state["env_to_module_connector"]["MeanStdFilter"]
    assert statistics["default_policy"]["delta"]["obs"]["count"].tolist() == [0, 5]
    for leaf in jax.tree.leaves(statistics):
        assert isinstance(leaf, np.ndarray)
    blank.set_state(state)
    np.testing.assert_array_equal(blank.compute_actions(rows)[2][Columns.ACTION_DIST_INPUTS], expected)
    statistics["default_policy"]["delta"]["obs"]["mean"] = np.full(6, 9.0, np.float32)
    blank.set_state({"env_to_module_connector": state["env_to_module_connector"]})
    assert (blank.compute_actions(rows)[2][Columns.ACTION_DIST_INPUTS] != expected).all()
    assert set(other.get_state("rl_module")) == {"rl_module"}
    assert set(other.get_state(not_components="rl_module")) == set(state) - {"rl_module"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weights": {}}, "Unknown components ['weights'] of a Policy"),
        ({"rl_module": {"head/bias": np.zeros(9)}}, "'head/bias' of shape (9,)"),
        ({"env_to_module_connector": {"Nothing": {"x": np.zeros(1)}}}, "No connector 'Nothing'"),
        ({"settings": {"default_policy": {"lr": 1.0}}}, "do not fit this policy"),
    ],
)
def test_states_that_do_not_fit_change_nothing(policy, state, message):
    before = policy.get_weights()
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.set_state({**state, "rl_module": state.get("rl_module", {"head/bias": np.ones(2, np.float32)})})
    jax.tree.map(np.testing.assert_array_equal, policy.get_weights(), before)


def test_settings_are_values_at_the_time_of_the_snapshot():
    from jaxrl_stack.utils import schedules

    settings = {"default_policy": {"lr": schedules.encode([[0, 1.0], [100, 0.0]]), "gamma": 0.5}}
    policy = cases.policy(settings=settings, timesteps=25)
    state = policy.get_state("settings")["settings"]
    assert state == {"default_policy": {"lr": np.float32(0.75)}}
    assert policy._program.fixed == {"default_policy": {"gamma": 0.5}}


def test_a_policy_says_what_it_is(policy):
    assert repr(policy) == (
        "Policy(Net 'default_policy', Box(-2.0, 2.0, (3,), float32) -> Discrete(2), env_to_module=['FrameStacking', "
        "'MeanStdFilter', 'PrevActionsPrevRewards', 'FlattenObservations'], module_to_env=['GetActions', "
        "'NormalizeAndClipActions'])"
    )


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(observations=np.zeros(3)), "batches [B, ...] of Box(-2.0, 2.0, (3,), float32), got float64[3]"),
        (dict(observations=np.zeros((2, 4))), "observations has shape (2, 4)"),
        (dict(observations={"x": np.zeros((2, 3))}), "got {'x': float64[2, 3]}"),
        (dict(observations=np.full((2, 3), "a")), "got <U1[2, 3]"),
        (dict(observations=[[1, 2, 3], [1, 2]]), "The policy takes"),
        (dict(observations=None), "got NoneType None"),
        (dict(observations=np.zeros((0, 3))), "batch of observations is empty"),
        (dict(observations=np.zeros((2, 3)), prev_rewards=1.0), "prev_rewards is float64[], but 2 observation(s) need"),
        (dict(observations=np.zeros((2, 3)), reset=[0.5, 1.0]), "reset is float64[2], but 2 observation(s) need bools"),
    ],
)
def test_wrong_arguments_are_named(policy, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.compute_actions(**arguments)


@pytest.mark.parametrize("name", OLD_MEMBERS)
def test_members_of_the_old_policy_name_what_to_use(policy, name):
    with pytest.raises(AttributeError, match=re.escape(f"Policy.{name} is gone. {OLD_MEMBERS[name]}")):
        getattr(policy, name)
    assert not hasattr(policy, "no_such_member")


def test_states_of_another_batch_size_are_named(policy):
    with pytest.raises(ValueError, match=r"2 observation\(s\) and a state of 3 environment"):
        policy.compute_actions(np.zeros((2, 3)), policy.initial_state(3))
    with pytest.raises(ValueError, match="num_envs=0"):
        policy.initial_state(0)
    with pytest.raises(ValueError, match=r"elements of Box\(-2.0, 2.0, \(3,\), float32\), got float64\[1, 3\]"):
        policy.compute_single_action(np.zeros((1, 3)))


def test_lists_of_numbers_are_observations(policy):
    expected = policy.compute_actions(np.ones((2, 3), np.float32))[2][Columns.ACTION_DIST_INPUTS]
    given = policy.compute_actions([[1, 1, 1], [1, 1, 1]])[2][Columns.ACTION_DIST_INPUTS]
    np.testing.assert_array_equal(given, expected)
    np.testing.assert_array_equal(
        policy.compute_single_action([1, 1, 1])[2][Columns.ACTION_DIST_INPUTS].shape, expected[0].shape
    )


def test_parts_that_do_not_fit_are_named():
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.policy import Policy

    space, actions = cases.OBSERVATIONS, gym.spaces.Discrete(2)
    module = cases.Net(observation_space=space, action_space=actions, rngs=0)
    module_to_env = ModuleToEnvPipeline(space, actions)
    with pytest.raises(ValueError, match="EnvToModulePipeline has no spaces"):
        Policy(module, EnvToModulePipeline(connectors=[FlattenObservations()]), module_to_env)
    with pytest.raises(ValueError, match=r"module_id='other'.*\['default_policy'\]"):
        Policy(module.as_multi_rl_module(), EnvToModulePipeline(space, actions), module_to_env, module_id="other")
    host = ModuleToEnvPipeline(space, actions, connectors=[cases.RecordingHostConnector()])
    with pytest.raises(TypeError, match="RecordingHostConnector"):
        Policy(module, EnvToModulePipeline(space, actions), host)


# ------------------------------------------------------------------------------------------------------------ imports


def test_acting_imports_no_training_code():
    code = """
import sys
import gymnasium as gym, numpy as np
from jaxrl_stack.policy import Policy
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core.rl_module.rl_module import RLModule

class Table(RLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": batch["obs"][..., :2]}

spaces = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
module = Table(observation_space=spaces[0], action_space=spaces[1], rngs=0)
to_env = [GetActions(), NormalizeAndClipActions(normalize_actions=True, clip_actions=False)]
policy = Policy(module, EnvToModulePipeline(*spaces, connectors=[MeanStdFilter()]),
                ModuleToEnvPipeline(*spaces, connectors=to_env))
policy.compute_actions(np.zeros((2, 3)))
policy.compute_single_action(np.zeros(3), explore=True)
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert loaded & {"ray", "gymnax", "orbax", "jaxrl_stack.core.learner", "jaxrl_stack.execution"} == set()
    # A table of names, which the package itself reads to register them with Ray Tune.
    algorithms = {name for name in loaded if name.startswith("jaxrl_stack.algorithms.")}
    assert algorithms == {"jaxrl_stack.algorithms.registry"}
