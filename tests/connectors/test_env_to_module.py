from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import (
    EnvToModulePipeline,
    FlattenObservations,
    FrameStackingEnvToModule,
    MeanStdFilter,
    ObservationPreprocessor,
    OneHotIntegers,
    PrevActionsPrevRewards,
    ResizeImages,
    SingleAgentObservationPreprocessor,
)
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
GRID = gym.spaces.Box(np.zeros((2, 2, 2), np.int8) - 1, np.full((2, 2, 2), [3, 1], np.int8), dtype=np.int8)
IMAGE_3_BY_8 = gym.spaces.Box(0, 255, (3, 8, 1), np.uint8)
NESTED = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple([gym.spaces.Discrete(3, start=1), BOX])})


def apply(connector, state, obs, module_id=DEFAULT_MODULE_ID, reset=None, **fields):
    size = len(jax.tree.leaves(obs)[0])
    ctx = ConnectorContext(reset=np.zeros(size, bool) if reset is None else np.asarray(reset), **fields)
    state, batch = jax.jit(connector.apply)(state, {module_id: {"obs": obs}}, ctx)
    return state, batch[module_id]["obs"]


# FlattenObservations


def test_flatten_is_what_gymnasium_does():
    connector = FlattenObservations(NESTED)
    items = [NESTED.sample() for _ in range(4)]
    obs = jax.tree.map(lambda *leaves: np.stack(leaves), *items)
    _, out = apply(connector, connector.init(4), obs)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, np.stack([gym.spaces.flatten(NESTED, item) for item in items]))
    assert connector.observation_space.shape == out.shape[1:]


def test_flatten_can_drop_keys():
    connector = FlattenObservations(NESTED, keys_to_remove=["b"])
    obs = {"a": np.ones((2, 2), np.float32), "b": (np.ones(2, np.int32), np.zeros((2, 2), np.float32))}
    _, out = apply(connector, connector.init(2), obs)
    np.testing.assert_array_equal(out, np.ones((2, 2)))
    assert connector.observation_space == BOX
    with pytest.raises(ValueError, match=r"the observation space has no keys \['c'\]. Choose from \['a', 'b'\]"):
        _ = FlattenObservations(NESTED, keys_to_remove=["c"]).observation_space
    with pytest.raises(ValueError, match="needs a Dict space"):
        _ = FlattenObservations(BOX, keys_to_remove=["a"]).observation_space
    with pytest.raises(ValueError, match="set multi_agent=True;.*leave `agent_ids` out"):
        FlattenObservations(NESTED, agent_ids=["agent_0"])


def test_flatten_in_a_learner_pipeline_takes_raw_and_flattened_columns():
    connector = FlattenObservations(NESTED, as_learner_connector=True)
    raw = jax.tree.map(lambda leaf: np.stack([leaf] * 3), {
        "a": np.ones((4, 2), np.float32), "b": (np.full(4, 2), np.zeros((4, 2), np.float32))
    })  # fmt: skip
    batch = {DEFAULT_MODULE_ID: {"obs": raw, "final_obs": raw, "rewards": np.zeros((3, 4))}}
    _, out = connector.apply((), batch, ConnectorContext())
    flat = out[DEFAULT_MODULE_ID]
    assert flat["obs"].shape == flat["final_obs"].shape == (3, 4, 7)
    _, again = connector.apply((), out, ConnectorContext())
    assert again[DEFAULT_MODULE_ID]["obs"] is flat["obs"]


# FrameStacking


def test_frames_are_stacked_oldest_first_and_zero_before_the_episode():
    connector = FrameStackingEnvToModule(gym.spaces.Box(0, 255, (2, 1), np.uint8), num_frames=3)
    assert connector.observation_space == gym.spaces.Box(0, 255, (2, 3), np.uint8)
    state = connector.init(2)
    resets = [[True, True], [False, False], [False, True], [False, False]]
    expected = [  # frames seen by env 0 and env 1; frame t holds the number t + 1
        [[0, 0, 1], [0, 0, 1]],
        [[0, 1, 2], [0, 1, 2]],
        [[1, 2, 3], [0, 0, 3]],
        [[2, 3, 4], [0, 3, 4]],
    ]
    for t, (reset, frames) in enumerate(zip(resets, expected, strict=True)):
        state, out = apply(connector, state, np.full((2, 2, 1), t + 1, np.uint8), reset=reset)
        assert out.dtype == jnp.uint8
        np.testing.assert_array_equal(out[:, 0], frames)
        np.testing.assert_array_equal(out[:, 1], frames)


def test_frames_of_vectors_are_concatenated():
    connector = FrameStackingEnvToModule(gym.spaces.Box(1.0, 2.0, (2,), np.float32), num_frames=2)
    state, _ = apply(connector, connector.init(1), np.array([[1.0, 2.0]], np.float32), reset=[True])
    _, out = apply(connector, state, np.array([[3.0, 4.0]], np.float32))
    np.testing.assert_array_equal(out, [[1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(connector.observation_space.low, np.zeros(4))  # zero frames lie outside [1, 2]


def test_the_final_observation_is_stacked_with_the_frames_before_the_reset():
    connector = FrameStackingEnvToModule(gym.spaces.Box(-9, 9, (1,), np.float32), num_frames=2)
    state, _ = apply(connector, connector.init(1), np.array([[1.0]], np.float32), reset=[True])
    _, final = apply(connector, state, np.array([[2.0]], np.float32), update_statistics=False)
    _, first = apply(connector, state, np.array([[7.0]], np.float32), reset=[True])
    np.testing.assert_array_equal(final, [[1.0, 2.0]])
    np.testing.assert_array_equal(first, [[0.0, 7.0]])


def test_fresh_environments_get_fresh_frames():
    connector = FrameStackingEnvToModule(BOX, num_frames=2)
    state, _ = apply(connector, connector.init(1), np.ones((1, 2), np.float32), reset=[True])
    assert connector.rebatch(state, 3)[DEFAULT_MODULE_ID].shape == (3, 2)
    assert not np.any(connector.rebatch(state, 3)[DEFAULT_MODULE_ID])


def test_one_frame_changes_nothing():
    connector = FrameStackingEnvToModule(BOX)
    obs = np.ones((3, 2), np.float32)
    state, out = apply(connector, connector.init(3), obs)
    assert state == () and connector.observation_space == BOX
    np.testing.assert_array_equal(out, obs)


@pytest.mark.parametrize("num_frames", [0, 2.0, True])
def test_a_wrong_number_of_frames_is_refused(num_frames):
    with pytest.raises(ValueError, match="int of 1 or more"):
        FrameStackingEnvToModule(BOX, num_frames=num_frames)


@pytest.mark.parametrize("space", [NESTED, gym.spaces.Discrete(3), gym.spaces.Box(0, 1, ())])
def test_spaces_without_an_axis_to_stack_along_are_refused_with_a_remedy(space):
    with pytest.raises(ValueError, match="FlattenObservations"):
        _ = FrameStackingEnvToModule(space, num_frames=2).observation_space


# PrevActionsPrevRewards


def test_previous_actions_and_rewards_are_those_of_this_episode():
    actions = gym.spaces.Discrete(3, start=5)  # the module counts from 0
    connector = PrevActionsPrevRewards(BOX, actions, n_prev_actions=2, n_prev_rewards=3)
    state, obs = connector.init(2), np.zeros((2, 2), np.float32)
    steps = [  # action, reward, reset
        ([0, 0], [9.0, 9.0], [True, True]),
        ([0, 2], [1.0, 10.0], [False, False]),
        ([1, 0], [2.0, 20.0], [False, True]),
        ([2, 1], [3.0, 30.0], [False, False]),
    ]
    for action, reward, reset in steps:
        state, out = apply(
            connector,
            state,
            obs,
            reset=reset,
            prev_actions={DEFAULT_MODULE_ID: np.array(action)},
            prev_rewards={DEFAULT_MODULE_ID: np.array(reward, np.float32)},
        )
    np.testing.assert_array_equal(out["prev_n_rewards"], [[1.0, 2.0, 3.0], [0.0, 0.0, 30.0]])
    np.testing.assert_array_equal(out["prev_n_actions"], [[0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(out["_orig_obs"], obs)
    space = connector.observation_space
    assert list(space) == ["_orig_obs", "prev_n_actions", "prev_n_rewards"]
    assert space.contains(jax.tree.map(lambda leaf: np.asarray(leaf[0]), out))


def test_an_action_zero_is_no_action_after_a_reset():
    connector = PrevActionsPrevRewards(BOX, gym.spaces.Discrete(2))
    _, out = apply(
        connector,
        connector.init(1),
        np.zeros((1, 2), np.float32),
        reset=[True],
        prev_actions={DEFAULT_MODULE_ID: np.zeros(1, np.int32)},
        prev_rewards={DEFAULT_MODULE_ID: np.zeros(1, np.float32)},
    )
    np.testing.assert_array_equal(out["prev_n_actions"], [[0.0, 0.0]])


def test_previous_actions_of_any_space_and_module_name():
    actions = gym.spaces.Dict({"move": gym.spaces.Box(0, 9, (2,)), "kind": gym.spaces.MultiDiscrete([2, 2])})
    connector = PrevActionsPrevRewards(BOX, actions, n_prev_rewards=0)
    previous = {"move": np.array([[-0.5, 0.5]], np.float32), "kind": np.array([[1, 0]])}
    state, out = apply(
        connector, connector.init(1), np.zeros((1, 2), np.float32), module_id="p0", prev_actions={"p0": previous}
    )
    np.testing.assert_array_equal(out["prev_n_actions"], [[0, 1, 1, 0, -0.5, 0.5]])
    assert list(out) == ["_orig_obs", "prev_n_actions"]
    assert state == {DEFAULT_MODULE_ID: {}}


@pytest.mark.parametrize("numbers", [(0, 0), (-1, 1)])
def test_wrong_numbers_of_previous_steps_are_refused(numbers):
    with pytest.raises(ValueError, match="not both 0"):
        PrevActionsPrevRewards(BOX, BOX, n_prev_actions=numbers[0], n_prev_rewards=numbers[1])


def test_the_action_space_is_asked_for_by_name():
    with pytest.raises(ValueError, match="needs the action space.*`input_action_space` is None"):
        PrevActionsPrevRewards(BOX).init(1)


# ObservationPreprocessor


class Polar(ObservationPreprocessor):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-4.0, 4.0, (2,), np.float32)

    def preprocess(self, observation):
        assert observation.shape == (2,)  # one environment at a time
        return jnp.stack([jnp.hypot(observation[0], observation[1]), jnp.arctan2(observation[1], observation[0])])


class WithEpisode(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        return observation * episode.custom_data["factor"]


def test_preprocess_sees_one_observation_at_a_time():
    obs = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)
    _, out = apply(Polar(BOX), (), obs)
    np.testing.assert_allclose(out, [[5.0, np.arctan2(4, 3)], [1.0, np.pi / 2]], rtol=1e-6)


def test_what_preprocess_returns_must_fit_the_declared_space():
    class Wrong(ObservationPreprocessor):
        def preprocess(self, observation):
            return jnp.sum(observation)

    with pytest.raises(ValueError, match="does not fit the declared output space.*recompute_output_observation"):
        apply(Wrong(BOX), (), np.zeros((3, 2), np.float32))


def test_the_form_with_an_episode_is_a_host_connector():
    pipeline = EnvToModulePipeline(BOX, BOX, connectors=[WithEpisode()])
    assert list(pipeline.host_connectors) == ["WithEpisode"]
    with pytest.raises(TypeError, match="'WithEpisode'"):
        pipeline.check_pure()
    with pytest.raises(TypeError, match=r"def preprocess\(self, observation\)"):
        WithEpisode(BOX).apply((), {}, ConnectorContext())
    episodes = [SingleAgentEpisode(observations=[np.ones(2)], len_lookback_buffer=0) for _ in range(2)]
    for factor, episode in enumerate(episodes, start=2):
        episode.custom_data["factor"] = factor
    out = pipeline(batch={}, episodes=episodes, rl_module=None)
    np.testing.assert_array_equal(out["obs"], [[2.0, 2.0], [3.0, 3.0]])
    np.testing.assert_array_equal(episodes[1].get_observations(-1), [3.0, 3.0])
    assert WithEpisode(BOX)(batch={}, episodes=episodes) == {}
    np.testing.assert_array_equal(episodes[1].get_observations(-1), [9.0, 9.0])


def test_an_episode_with_a_default_leaves_the_connector_pure():
    class Optional(ObservationPreprocessor):
        def preprocess(self, observation, episode=None):
            return -observation

    connector = Optional(BOX)
    assert not connector.is_host_connector
    np.testing.assert_array_equal(apply(connector, (), np.ones((1, 2), np.float32))[1], [[-1.0, -1.0]])


# Whole pipelines


def test_a_pipeline_starts_from_episodes():
    class Episode:
        def __init__(self, observations, actions, rewards):
            self.observations, self.actions, self.rewards = observations, actions, rewards
            self.t = len(actions)

        def get_observations(self, index):
            return self.observations[index]

        def get_actions(self, index):
            return self.actions[index]

        def get_rewards(self, index):
            return self.rewards[index]

    pipeline = EnvToModulePipeline(
        BOX, gym.spaces.Discrete(2), connectors=[PrevActionsPrevRewards(), FlattenObservations()]
    )
    episodes = [
        Episode([np.zeros(2, np.float32)], [], []),
        Episode([np.zeros(2, np.float32), np.ones(2, np.float32)], [1], [0.5]),
    ]
    out = pipeline(episodes=episodes, rl_module=None, explore=False, shared_data={})
    np.testing.assert_array_equal(out["obs"], [[0, 0, 0, 0, 0], [1, 1, 0, 1, 0.5]])


def test_what_episodes_tell_belongs_to_the_module_of_the_batch():
    class Nothing(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return batch

    episode = SingleAgentEpisode(
        observations=[np.zeros(2), np.ones(2)], actions=[1], rewards=[0.5], len_lookback_buffer=0
    )
    connectors = [Nothing(), PrevActionsPrevRewards(), FlattenObservations()]
    pipeline = EnvToModulePipeline(BOX, gym.spaces.Discrete(2), connectors=connectors)
    out = pipeline(batch={"p": {"obs": np.ones((1, 2), np.float32)}}, episodes=[episode])
    np.testing.assert_array_equal(out["p"]["obs"], [[1, 1, 0, 1, 0.5]])


def test_statistics_frames_and_history_work_together_under_strict_promotion():
    pipeline = EnvToModulePipeline(
        NESTED,
        gym.spaces.Discrete(2),
        connectors=[
            MeanStdFilter(),
            PrevActionsPrevRewards(n_prev_actions=2),
            FlattenObservations(),
            FrameStackingEnvToModule(num_frames=2),
        ],
    )
    obs = {"a": np.ones((4, 2), np.float32), "b": (np.ones(4, np.int32), np.ones((4, 2), np.float32))}

    def step(state, reset):
        ctx = ConnectorContext(
            reset=reset,
            prev_actions={DEFAULT_MODULE_ID: jnp.zeros(4, jnp.int32)},
            prev_rewards={DEFAULT_MODULE_ID: jnp.zeros(4, jnp.float32)},
        )
        state, batch = pipeline.apply(state, {DEFAULT_MODULE_ID: {"obs": obs}}, ctx)
        return state, batch[DEFAULT_MODULE_ID]["obs"]

    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        state, out = jax.lax.scan(step, pipeline.init(4), jnp.zeros((3, 4), bool).at[0].set(True))
        state = pipeline.merge(state, None)
    assert out.shape == (3, 4, *pipeline.observation_space.shape)
    assert state["MeanStdFilter"][DEFAULT_MODULE_ID]["base"]["obs/a"].count[1] == 12


def test_codes_become_planes_and_all_else_stays():
    space = gym.spaces.Dict(
        {
            "grid": GRID,
            "bits": gym.spaces.Box(0, 1, (3,), np.int8),
            "bytes": gym.spaces.Box(0, 255, (4,), np.uint8),
            "float": BOX,
        }
    )
    connector = OneHotIntegers(space)
    grid = np.array([[[[-1, -1], [3, 1]], [[0, 0], [2, -1]]]], np.int8)
    obs = {"grid": grid, **{key: np.asarray(space[key].sample())[None] for key in ("bits", "bytes", "float")}}
    out = jax.jit(connector.apply)((), {DEFAULT_MODULE_ID: {"obs": obs}}, ConnectorContext())[1]
    out = jax.device_get(out[DEFAULT_MODULE_ID]["obs"])
    assert connector.observation_space["grid"] == gym.spaces.Box(0, 1, (2, 2, 5 + 3), np.uint8)
    assert connector.observation_space.contains(jax.tree.map(lambda x: x[0], out))
    np.testing.assert_array_equal(out["grid"].nonzero()[3], [0, 5, 4, 7, 1, 6, 3, 5])
    for key in ("bits", "bytes", "float"):
        np.testing.assert_array_equal(out[key], obs[key])
    with pytest.raises(ValueError, match=r"OneHotIntegers\(max_values=32\) finds no bounded Box of integers"):
        OneHotIntegers(BOX).recompute_output_observation_space(BOX, None)


def test_images_get_another_size_and_all_else_stays():
    image = gym.spaces.Box(0, 255, (6, 4, 3), np.uint8)
    space = gym.spaces.Dict(
        {"image": image, "gray": gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32), "fits": IMAGE_3_BY_8, "vector": BOX}
    )
    connector = ResizeImages(space, height=3, width=8)
    rng = np.random.default_rng(0)
    obs = {key: np.stack([np.asarray(part.sample()) for _ in range(2)]) for key, part in space.items()}
    obs["image"] = rng.integers(0, 256, (2, 6, 4, 3), np.uint8)
    _, out = apply(connector, (), obs)
    assert connector.observation_space["image"] == gym.spaces.Box(0, 255, (3, 8, 3), np.uint8)
    assert connector.observation_space["gray"] == gym.spaces.Box(-1.0, 1.0, (3, 8), np.float32)
    assert connector.observation_space.contains(jax.tree.map(lambda x: np.asarray(x[1]), out))
    # The filter is that of another library.
    for new, old in zip(np.asarray(out["image"]), obs["image"], strict=True):
        expected = PIL.Image.fromarray(old).resize((8, 3), PIL.Image.Resampling.BILINEAR)
        assert np.abs(new.astype(int) - np.asarray(expected)).max() <= 1
    for key in ("fits", "vector"):
        np.testing.assert_array_equal(out[key], obs[key])
    with pytest.raises(ValueError, match=r"ResizeImages finds no image in the observation space"):
        ResizeImages(BOX, height=3, width=8).recompute_output_observation_space(BOX, None)
    with pytest.raises(ValueError, match=r"height=0.*1 or more"):
        ResizeImages(height=0, width=8)
