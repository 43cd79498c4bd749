from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


def build(action_spaces):
    specs = {
        module_id: RLModuleSpec(
            module_class=DefaultPPORLModule,
            observation_space=OBS_SPACE,
            action_space=space,
            model_config={"fcnet_hiddens": [4]},
        )
        for module_id, space in action_spaces.items()
    }
    return MultiRLModuleSpec(rl_module_specs=specs).build(seed=0)


@pytest.fixture(scope="module")
def modules():
    return build({"cat": gym.spaces.Discrete(5), "gauss": gym.spaces.Box(-2.0, 2.0, (2,), np.float32)})


@pytest.fixture(scope="module")
def pure(modules):
    return PureModule(modules)


def get_actions(pure, batch, explore, key=None):
    ctx = ConnectorContext(params=pure.params, rest=pure.rest, pure=pure, explore=explore, key=key)
    return jax.jit(GetActions().apply)((), batch, ctx)[1]


LOGITS = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
GAUSS = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
BATCH = {"cat": {"action_dist_inputs": LOGITS}, "gauss": {"action_dist_inputs": GAUSS}}


def test_greedy_actions(pure):
    out = get_actions(pure, BATCH, explore=False)
    np.testing.assert_array_equal(out["cat"]["actions"], LOGITS.argmax(-1))
    np.testing.assert_array_equal(out["gauss"]["actions"], GAUSS[:, :2])
    assert "action_logp" not in out["cat"]


def test_sampled_actions_come_with_their_log_probability(pure):
    out = get_actions(pure, BATCH, explore=True, key=jax.random.key(1))
    actions = np.asarray(out["cat"]["actions"])
    log_probs = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    np.testing.assert_allclose(out["cat"]["action_logp"], log_probs[np.arange(400), actions], rtol=1e-4)
    frequency = np.bincount(actions, minlength=5) / 400
    np.testing.assert_allclose(frequency, np.exp(log_probs).mean(0), atol=0.08)
    mean, log_std = GAUSS[:, :2], GAUSS[:, 2:]
    z = (np.asarray(out["gauss"]["actions"]) - mean) / np.exp(log_std)
    logp = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
    np.testing.assert_allclose(out["gauss"]["action_logp"], logp, rtol=1e-3, atol=1e-4)
    assert abs(z.mean()) < 0.15 and abs(z.std() - 1.0) < 0.1


def test_draws_follow_the_key(pure):
    first, again, other = (
        get_actions(pure, BATCH, explore=True, key=jax.random.key(seed))["gauss"]["actions"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_actions_of_the_module_are_left_alone(pure):
    batch = {"cat": {"actions": np.arange(4)}}
    out = get_actions(pure, batch, explore=True)
    assert set(out["cat"]) == {"actions"}
    np.testing.assert_array_equal(out["cat"]["actions"], np.arange(4))


def test_missing_inputs_are_named(pure):
    with pytest.raises(KeyError, match="Module 'cat' returned neither 'actions' nor 'action_dist_inputs'"):
        get_actions(pure, {"cat": {"embeddings": LOGITS}}, explore=False)
    with pytest.raises(ValueError, match="ctx.key is None"):
        get_actions(pure, BATCH, explore=True)


def for_env(space, actions, *, normalize=True, clip=False, columns=None):
    connector = NormalizeAndClipActions(None, space, normalize_actions=normalize, clip_actions=clip)
    batch = {DEFAULT_MODULE_ID: {"actions": actions, **(columns or {})}}
    out = jax.jit(connector.apply)((), batch, ConnectorContext())[1][DEFAULT_MODULE_ID]
    jax.tree.map(np.testing.assert_array_equal, out["actions"], actions)
    return out["actions_for_env"]


BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
HALF = gym.spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 1.0], np.float32))
ACTIONS = np.array([[-1.0, -1.0], [0.5, 0.0], [1.0, 1.0], [3.0, -7.0]], np.float32)


def test_bounded_boxes_are_unsquashed_and_clipped():
    expected = [[-2.0, 0.0], [1.0, 5.0], [2.0, 10.0], [2.0, 0.0]]
    np.testing.assert_allclose(for_env(BOUNDED, ACTIONS), expected)
    # clip_actions has no say once normalize_actions is True
    np.testing.assert_allclose(for_env(BOUNDED, ACTIONS, clip=True), expected)


def test_clipping_without_normalising():
    np.testing.assert_array_equal(
        for_env(BOUNDED, ACTIONS, normalize=False, clip=True), np.clip(ACTIONS, BOUNDED.low, BOUNDED.high)
    )
    np.testing.assert_array_equal(
        for_env(HALF, ACTIONS, normalize=False, clip=True), np.clip(ACTIONS, HALF.low, HALF.high)
    )
    np.testing.assert_array_equal(for_env(BOUNDED, ACTIONS, normalize=False), ACTIONS)


def test_each_dimension_is_scaled_if_it_has_two_bounds_and_clipped_to_what_it_has():
    space = gym.spaces.Box(
        np.array([-2, 0, -np.inf, -np.inf], np.float32), np.array([2, np.inf, 1, np.inf], np.float32)
    )
    actions = np.array([[0.5, -3.0, 4.0, 9.0], [-7.0, 3.0, -4.0, -9.0]], np.float32)
    np.testing.assert_array_equal(for_env(space, actions), [[1.0, 0.0, 1.0, 9.0], [-2.0, 3.0, -4.0, -9.0]])
    unbounded = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    np.testing.assert_array_equal(for_env(unbounded, ACTIONS), ACTIONS)
    # Spans that float32 cannot hold are none.
    wide = gym.spaces.Box(-1e300, 1e300, (2,), np.float64)
    np.testing.assert_array_equal(for_env(wide, ACTIONS), ACTIONS)
    half_of = np.finfo(np.float32).max
    np.testing.assert_array_equal(for_env(gym.spaces.Box(-half_of, half_of, (2,), np.float32), ACTIONS), ACTIONS)


def test_integer_boxes_are_shifted_and_clipped():
    space = gym.spaces.Box(3, 6, (2,), np.int32)
    np.testing.assert_array_equal(for_env(space, np.array([[0, 3], [-1, 9]], np.int32)), [[3, 6], [3, 6]])
    wide = gym.spaces.Box(-(2**62), 2**62, (2,), np.int64)
    np.testing.assert_array_equal(for_env(wide, np.array([[-5, 2**30]], np.int32)), [[-5, 2**30]])
    np.testing.assert_array_equal(for_env(space, np.array([[0, 9]], np.int32), normalize=False, clip=True), [[3, 6]])


@pytest.mark.parametrize("normalize", [True, False])
def test_discrete_actions_get_the_offset_of_their_space(normalize):
    actions = np.arange(3, dtype=np.int32)
    np.testing.assert_array_equal(for_env(gym.spaces.Discrete(3, start=-1), actions, normalize=normalize), [-1, 0, 1])
    np.testing.assert_array_equal(for_env(gym.spaces.Discrete(3), actions, normalize=normalize), actions)
    multi = gym.spaces.MultiDiscrete([2, 3], start=[5, 0])
    np.testing.assert_array_equal(for_env(multi, np.array([[1, 2]]), normalize=normalize), [[6, 2]])


def test_nested_spaces_leaf_by_leaf():
    space = gym.spaces.Dict(
        {"b": BOUNDED, "t": gym.spaces.Tuple([gym.spaces.Discrete(2, start=1), gym.spaces.MultiBinary(2)])}
    )
    bits = np.array([[0, 1]] * 4, np.int8)
    out = for_env(space, {"b": ACTIONS, "t": (np.array([0, 1, 0, 1]), bits)})
    np.testing.assert_allclose(out["b"][0], [-2.0, 0.0])
    np.testing.assert_array_equal(out["t"][0], [1, 2, 1, 2])
    np.testing.assert_array_equal(out["t"][1], bits)


def test_an_earlier_connector_may_have_written_the_actions_for_the_environment():
    out = for_env(BOUNDED, ACTIONS, columns={"actions_for_env": np.zeros((4, 2), np.float32)})
    np.testing.assert_allclose(out, [[0.0, 5.0]] * 4)


def test_actions_must_be_there():
    connector = NormalizeAndClipActions(None, BOUNDED, normalize_actions=True, clip_actions=False)
    with pytest.raises(KeyError, match="Put GetActions before"):
        connector.apply((), {DEFAULT_MODULE_ID: {"obs": 1}}, ConnectorContext())
    with pytest.raises(TypeError, match="normalize_actions"):
        NormalizeAndClipActions(None, BOUNDED)


def test_the_default_pipeline_on_its_own(modules):
    pipeline = ModuleToEnvPipeline(
        OBS_SPACE,
        gym.spaces.Discrete(5, start=2),
        connectors=[GetActions(), NormalizeAndClipActions(normalize_actions=True, clip_actions=False)],
    )
    out = pipeline(rl_module=modules["cat"], batch={"action_dist_inputs": LOGITS[:4]}, explore=False)
    np.testing.assert_array_equal(out["actions_for_env"], LOGITS[:4].argmax(-1) + 2)
    draws = [pipeline(rl_module=modules["cat"], batch={"action_dist_inputs": LOGITS})["actions"] for _ in range(2)]
    assert np.any(draws[0] != draws[1])
    text = pipeline.describe({"action_dist_inputs": LOGITS}, rl_module=modules["cat"])
    assert "actions_for_env" in text and "action_logp" in text


def test_the_id_of_columns_is_that_of_the_only_module(modules):
    pipeline = ModuleToEnvPipeline(OBS_SPACE, gym.spaces.Discrete(5), connectors=[GetActions()])
    columns = {"action_dist_inputs": LOGITS[:4]}
    only = MultiRLModuleSpec(rl_module_specs={"cat": modules.rl_module_specs["cat"]}).build(seed=0)
    out = pipeline(rl_module=only, batch=columns, explore=False)
    np.testing.assert_array_equal(out["actions"], LOGITS[:4].argmax(-1))
    out = pipeline(rl_module=modules["cat"], batch={"cat": columns}, explore=False)
    np.testing.assert_array_equal(out["cat"]["actions"], LOGITS[:4].argmax(-1))
    with pytest.raises(ValueError, match="'cat', 'gauss'.*Pass batches of the form {module_id: columns}"):
        pipeline(rl_module=modules, batch=columns, explore=False)


def test_strict_promotion(pure):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for_env(BOUNDED, jnp.asarray(ACTIONS))
        for_env(BOUNDED, jnp.asarray(ACTIONS), normalize=False, clip=True)
        for_env(gym.spaces.MultiDiscrete([2, 3], start=[5, 0]), jnp.array([[1, 2]]))
