"""Connectors written for RLlib's ``__call__`` before compiled ones."""

from __future__ import annotations

import json
import struct

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import (
    EnvToModulePipeline,
    FrameStackingEnvToModule,
    MeanStdFilter,
    PrevActionsPrevRewards,
    SingleAgentObservationPreprocessor,
)
from jaxrl_stack.connectors.host_connectors import (
    columns_of_episodes,
    run_host_connectors,
    run_host_connectors_of_learner,
    snake_case,
)
from jaxrl_stack.connectors.learner import ComputeReturnsToGo, LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.episodes_to_batch import episodes_to_batch
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

MESSAGE = gym.spaces.Text(64)
PHYSICS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


class MessageEnv(gym.Env):
    """A point on a line that reports itself as text: packed floats (``hex``) or JSON."""

    observation_space, action_space = MESSAGE, ACTIONS

    def __init__(self, limit, start):
        self.limit, self.start = limit, start

    def reset(self, *, seed=None, options=None):
        self.position, self.speed, self.t = self.start, 0.0, 0
        return self._message(), {}

    def step(self, action):
        self.speed += 0.1 if action else -0.1
        self.position += self.speed
        self.t += 1
        return self._message(), -abs(self.position), False, self.t == self.limit, {}

    def _message(self):
        return struct.pack("<2f", self.position, self.speed).hex()


class DecodeMessage(ConnectorV2):
    """As one writes it for RLlib."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return PHYSICS

    def __init__(self, input_observation_space=None, input_action_space=None, *, multi_agent=False, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._multi_agent = multi_agent

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes=episodes, agents_that_stepped_only=True):
            message = bytes.fromhex(sa_episode.get_observations(-1))
            observation = np.array(struct.unpack("<2f", message), np.float32)
            sa_episode.set_observations(new_data=observation, at_indices=-1)
            self.add_batch_item(
                batch=batch, column=Columns.OBS, item_to_add=observation, single_agent_episode=sa_episode
            )
        return batch


class DecodeInPlace(SingleAgentObservationPreprocessor):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return PHYSICS

    def preprocess(self, observation, episode):
        return np.array(struct.unpack("<2f", bytes.fromhex(observation)), np.float32)


class Unpacked(gym.ObservationWrapper):
    observation_space = PHYSICS

    def observation(self, observation):
        return np.array(struct.unpack("<2f", bytes.fromhex(observation)), np.float32)


class HostOnly(ConnectorV2):
    """Does what it is told."""

    def __init__(self, function, space=None, **kwargs):
        super().__init__(**kwargs)
        self.function, self.space = function, space

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return input_observation_space if self.space is None else self.space

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return self.function(batch, episodes)


def running(*observations, space=PHYSICS):
    episodes = [SingleAgentEpisode(observation_space=space) for _ in observations]
    for episode, observation in zip(episodes, observations, strict=True):
        episode.add_env_reset(observation)
    return episodes


def rollout(envs, pipeline, num_steps):
    """Module inputs ``[T, B, ...]`` of a fixed sequence of actions, as a runner makes them."""
    pure = pipeline.pure_part()
    state, step = pure.init(len(envs)), jax.jit(pure.apply)
    episodes = running(*[env.reset()[0] for env in envs], space=None)
    actions, rewards = np.zeros(len(envs), np.int32), np.zeros(len(envs), np.float32)
    inputs = []
    for t in range(num_steps):
        columns = run_host_connectors(pipeline, episodes=episodes, rl_module=None, explore=True)
        ctx = ConnectorContext(
            reset=np.array([len(episode) == 0 for episode in episodes]),
            prev_actions={DEFAULT_MODULE_ID: actions},
            prev_rewards={DEFAULT_MODULE_ID: rewards},
        )
        state, batch = step(state, {DEFAULT_MODULE_ID: columns}, ctx)
        inputs.append(jax.tree.map(np.asarray, batch[DEFAULT_MODULE_ID][Columns.OBS]))
        for i, env in enumerate(envs):
            action = (t // 2 + i) % 2
            observation, reward, terminated, truncated, _ = env.step(action)
            episodes[i].add_env_step(observation, action, reward, terminated=terminated, truncated=truncated)
            actions[i], rewards[i] = action, reward
            if truncated:
                episodes[i] = running(env.reset()[0])[0]
                actions[i], rewards[i] = 0, 0.0
    pipeline.state = state
    return inputs, episodes


# The example: observations that no compiled code can read


@pytest.mark.parametrize("decoder", [DecodeMessage, DecodeInPlace])
def test_decoding_first_equals_an_environment_that_needs_none(decoder):
    def connectors():
        return [PrevActionsPrevRewards(n_prev_actions=2), MeanStdFilter()]

    decoded = EnvToModulePipeline(MESSAGE, ACTIONS, connectors=[decoder(), *connectors()])
    plain = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=connectors())
    assert decoded.observation_space == plain.observation_space
    envs = [MessageEnv(3, 1.0), MessageEnv(5, -2.0)]
    got, episodes = rollout(envs, decoded, 8)
    expected, _ = rollout([Unpacked(env) for env in envs], plain, 8)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    # All but the newest observation, which no pipeline has seen yet, are decoded in the episodes.
    assert all(o.shape == (2,) for episode in episodes for o in episode.get_observations()[:-1])
    names = [decoder.__name__, "PrevActionsPrevRewards", "MeanStdFilter"]
    state = decoded.get_state()
    assert list(state) == names and state[decoder.__name__] == {}
    jax.tree.map(np.testing.assert_array_equal, {n: state[n] for n in names[1:]}, plain.get_state())


def test_the_whole_pipeline_can_be_called_like_any_other():
    decoded = EnvToModulePipeline(
        MESSAGE, ACTIONS, connectors=[DecodeMessage(), FrameStackingEnvToModule(num_frames=2), MeanStdFilter()]
    )
    plain = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[FrameStackingEnvToModule(num_frames=2), MeanStdFilter()])
    env = MessageEnv(4, 1.0)
    texts, arrays = running(env.reset()[0]), running(Unpacked(env).observation(env.reset()[0]))
    for _ in range(3):
        got, expected = (
            pipeline(batch={}, episodes=episodes, rl_module=None, explore=False, shared_data={})
            for pipeline, episodes in ((decoded, texts), (plain, arrays))
        )
        np.testing.assert_array_equal(got["obs"], expected["obs"])
        observation, reward, *_ = env.step(1)
        texts[0].add_env_step(observation, 1, reward)
        arrays[0].add_env_step(Unpacked(env).observation(observation), 1, reward)


# What reaches the module


def test_other_columns_become_columns_of_the_batch():
    def add(batch, episodes):
        for i, episode in enumerate(episodes):
            ConnectorV2.add_batch_item(batch, "goal", {"x": np.full(2, i), "y": i}, episode)
            ConnectorV2.add_batch_item(batch, "listed", i)
        batch["array"] = np.zeros((2, 3))
        return batch

    pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(add)])
    out = run_host_connectors(pipeline, episodes=running(np.zeros(2), np.ones(2)))
    assert out["obs"].dtype == np.float32
    np.testing.assert_array_equal(out["obs"], [[0, 0], [1, 1]])
    np.testing.assert_array_equal(out["goal"]["x"], [[0, 0], [1, 1]])
    np.testing.assert_array_equal(out["goal"]["y"], [0, 1])
    np.testing.assert_array_equal(out["listed"], [0, 1])
    assert out["array"].shape == (2, 3)


def test_an_observation_column_wins_over_the_episode():
    def add(batch, episodes):
        for episode in reversed(episodes):
            ConnectorV2.add_batch_item(batch, "obs", episode.get_observations(-1) * 10, episode)
        return batch

    pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(add)])
    out = run_host_connectors(pipeline, episodes=running(np.zeros(2), np.ones(2)))
    np.testing.assert_array_equal(out["obs"], [[0, 0], [10, 10]])


def test_connectors_share_a_dict_and_get_the_arguments():
    seen = []

    class Reader(ConnectorV2):
        def __call__(self, **arguments):
            seen.append(arguments)
            arguments["shared_data"]["count"] = len(seen)
            return arguments["batch"]

    metrics = MetricsLogger()
    pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[Reader(), Reader(), MeanStdFilter()])
    episodes = running(np.zeros(2))
    run_host_connectors(
        pipeline, episodes=episodes, rl_module="m", explore=False, metrics=metrics, metrics_prefix_key=("e",), x=1
    )
    first, second = seen
    assert first["shared_data"] is second["shared_data"] and first["shared_data"] == {"count": 2}
    assert first["episodes"] is episodes and first["metrics"] is metrics and first["batch"] == {}
    assert (first["rl_module"], first["explore"], first["x"]) == ("m", False, 1)
    timers = metrics.peek(("e", "timers", "connectors"))
    assert set(timers) == {"reader", "reader_1"} and min(timers.values()) > 0.0
    run_host_connectors(pipeline, episodes=episodes, metrics=metrics)
    assert metrics.peek(("timers", "connectors", "reader")) > 0.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MeanStdFilter", "mean_std_filter"),
        ("HTTPConnector2D", "http_connector2_d"),
        ("Mean_StdFilterV2", "mean_std_filter_v2"),
    ],
)
def test_names_of_timers(name, expected):
    assert snake_case(name) == expected


# Errors


def wrong_observation(batch, episodes):
    episodes[0].set_observations(at_indices=-1, new_data=np.zeros(3))
    return batch


def wrong_for_all(batch, episodes):
    for episode in episodes:
        episode.set_observations(at_indices=-1, new_data=np.zeros(3))
    return batch


def text(batch, episodes):
    for episode in episodes:
        episode.set_observations(at_indices=-1, new_data=json.dumps([1, 2]))
    return batch


def wrong_column(batch, episodes):
    batch["obs"] = np.zeros((2, 3), np.float32)
    return batch


@pytest.mark.parametrize("function", [wrong_observation, wrong_for_all, text, wrong_column])
def test_observations_that_do_not_fit_name_the_connector_and_the_remedy(function):
    def nothing(batch, episodes):
        return batch

    connectors = [HostOnly(nothing), HostOnly(function, PHYSICS), HostOnly(nothing)]
    pipeline = EnvToModulePipeline(MESSAGE, ACTIONS, connectors=connectors)
    with pytest.raises(
        ValueError, match="(?s)^Host connector 'HostOnly_1' produced observations.*recompute_output_observation_space"
    ):
        run_host_connectors(pipeline, episodes=running(np.zeros(2), np.zeros(2)))


def test_a_connector_that_changes_the_observation_without_declaring_it_is_named():
    pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(wrong_for_all)])
    with pytest.raises(ValueError, match="Host connector 'HostOnly' produced observations that do not fit"):
        run_host_connectors(pipeline, episodes=running(np.zeros(2)))


def test_columns_need_one_item_per_episode():
    def twice(batch, episodes):
        for episode in [*episodes, episodes[1]]:
            ConnectorV2.add_batch_item(batch, "goal", 1, episode)
        return batch

    def three_rows(batch, episodes):
        return {**batch, "goal": np.zeros(3)}

    episodes = running(np.zeros(2), np.zeros(2))
    for function, message in ((twice, "exactly one item per unfinished episode"), (three_rows, r"\(3,\)")):
        pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(function)])
        with pytest.raises(ValueError, match=f"Host connector 'HostOnly' gave column 'goal'.*{message}"):
            run_host_connectors(pipeline, episodes=episodes)


def test_failing_connectors_are_named():
    broken = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(lambda batch, episodes: batch["no"])])
    with pytest.raises(KeyError, match="no") as error:
        run_host_connectors(broken, episodes=running(np.zeros(2)))
    assert error.value.__notes__ == ["In host connector 'HostOnly' of EnvToModulePipeline."]
    silent = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[HostOnly(lambda batch, episodes: None)])
    with pytest.raises(TypeError, match="'HostOnly' returned NoneType instead of a dict.*return batch"):
        run_host_connectors(silent, episodes=running(np.zeros(2)))
    with pytest.raises(TypeError, match="Multi-agent episodes are not supported"):
        run_host_connectors(silent, episodes=[object()])
    with pytest.raises(ValueError, match="need the unfinished episodes"):
        EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[DecodeMessage()])(batch={})


def test_a_host_connector_behind_a_pure_one_is_refused_by_name():
    inner = ConnectorPipelineV2(connectors=[DecodeMessage()])
    for misplaced, name in ((DecodeMessage(), "DecodeMessage"), (inner, "ConnectorPipelineV2/DecodeMessage")):
        pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[MeanStdFilter(), misplaced])
        for call in (
            pipeline.checked_host_connectors,
            pipeline.pure_part,
            lambda p=pipeline: run_host_connectors(p, episodes=[]),
            lambda p=pipeline: p(batch={}, episodes=running(np.zeros(2))),
        ):
            with pytest.raises(TypeError, match=f"'{name}' comes after 'MeanStdFilter'.*prepend") as error:
                call()
            assert "def apply(self, state, batch, ctx)" in str(error.value)


def test_pipelines_that_take_no_host_connectors_say_so():
    class Overridden(EnvToModulePipeline):
        def __call__(self, **kwargs):
            return super().__call__(**kwargs)

    with pytest.raises(TypeError, match="Overridden overrides `__call__`, which compiled code does not call"):
        Overridden(PHYSICS, ACTIONS).checked_host_connectors()
    to_env = ModuleToEnvPipeline(PHYSICS, ACTIONS, connectors=[DecodeMessage(), GetActions()])
    with pytest.raises(TypeError, match="'DecodeMessage'.*In the module-to-env pipeline"):
        to_env.pure_part()
    assert ModuleToEnvPipeline(PHYSICS, ACTIONS, connectors=[GetActions()]).checked_host_connectors() == []


# The pure part


def test_the_pure_part_shares_names_and_states():
    pipeline = EnvToModulePipeline(
        MESSAGE,
        ACTIONS,
        connectors=[
            ConnectorPipelineV2(connectors=[DecodeMessage(), FrameStackingEnvToModule(num_frames=2)]),
            MeanStdFilter(),
            MeanStdFilter(),
        ],
    )
    assert [name for name, _ in pipeline.checked_host_connectors()] == ["ConnectorPipelineV2/DecodeMessage"]
    pure = pipeline.pure_part()
    assert pure.names == pipeline.names and dict(pure.members)["ConnectorPipelineV2"].names == ["FrameStacking"]
    assert pure.input_observation_space == PHYSICS and pure.observation_space == pipeline.observation_space
    assert len(pipeline["ConnectorPipelineV2"]) == 2  # the whole pipeline is as it was
    state = pure.init(3)
    state, _ = jax.jit(pure.apply)(
        state,
        {DEFAULT_MODULE_ID: {"obs": jnp.ones((3, 2))}},
        ConnectorContext(reset=jnp.ones(3, bool), key=jax.random.key(0)),
    )
    pipeline.state = state
    saved = pipeline.get_state()
    np.testing.assert_array_equal(saved["MeanStdFilter"][DEFAULT_MODULE_ID]["delta"]["obs"]["count"], np.array([0, 3]))
    twin = EnvToModulePipeline(
        MESSAGE,
        ACTIONS,
        connectors=[
            ConnectorPipelineV2(connectors=[DecodeMessage(), FrameStackingEnvToModule(num_frames=2)]),
            MeanStdFilter(),
            MeanStdFilter(),
        ],
    )
    twin.set_state(saved)
    jax.tree.map(np.testing.assert_array_equal, twin.state, jax.tree.map(np.asarray, state))


def test_a_host_connectors_own_state_is_kept():
    class Counts(HostOnly):
        count = 0

        def get_state(self, components=None, *, not_components=None, **kwargs):
            return {"count": self.count}

        def set_state(self, state):
            self.count = state["count"]

    def make():
        return EnvToModulePipeline(
            PHYSICS, ACTIONS, connectors=[Counts(lambda batch, episodes: batch), MeanStdFilter()]
        )

    pipeline, twin = make(), make()
    pipeline["Counts"].count = 3
    twin.set_state(pipeline.get_state())
    assert twin["Counts"].count == 3
    # What runners share leaves out what only one of them knows.
    merged = pipeline.merge_states([pipeline.get_state(), twin.get_state()])
    assert list(merged) == ["MeanStdFilter"]
    twin.set_state(merged)
    assert twin["Counts"].count == 3


# Learner pipelines


class AddIndex(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, "index", np.arange(len(episode)), len(episode), episode)
            self.add_n_batch_items(batch, "text", [{"n": k} for k in range(len(episode))], len(episode), episode)
            episode.set_rewards(new_data=[2.0 * reward for reward in episode.get_rewards()])
        return batch


def chunk(id_, num_steps, t_started=0):
    return SingleAgentEpisode(
        id_,
        observations=[np.full(2, t_started + t, np.float32) for t in range(num_steps + 1)],
        actions=[0] * num_steps,
        rewards=[1.0] * num_steps,
        t_started=t_started,
        len_lookback_buffer=0,
    )


def test_a_learner_host_connector_adds_a_column_and_rewrites_episodes():
    pipeline = LearnerConnectorPipeline(PHYSICS, ACTIONS, connectors=[AddIndex(), ComputeReturnsToGo(gamma=0.5)])
    assert pipeline.pure_part().names == ["ComputeReturnsToGo"]
    # Two chunks of one episode share a key, in the order in which they come.
    episodes = [chunk("a", 2), chunk("b", 3), chunk("a", 1, t_started=2), chunk("c", 0)]
    metrics = MetricsLogger()
    columns = run_host_connectors_of_learner(pipeline, episodes=episodes, metrics=metrics)
    assert set(columns) == {"index", "text"} and set(columns["text"]) == {("a",), ("b",)}
    assert metrics.peek(("timers", "connectors", "add_index")) > 0.0
    rows = columns_of_episodes(columns, episodes)
    assert [row["index"].tolist() for row in rows[:3]] == [[0, 1], [0, 1, 2], [0]]
    assert rows[1]["text"]["n"].tolist() == [0, 1, 2] and not any(map(len, rows[3].values()))
    assert episodes[1].get_rewards() == [2.0, 2.0, 2.0]
    without = LearnerConnectorPipeline(PHYSICS, ACTIONS, connectors=[ComputeReturnsToGo(gamma=0.5)])
    assert run_host_connectors_of_learner(without, episodes=episodes) == {}
    with pytest.raises(ValueError, match=r"add the columns \['index', 'text'\].*Learner.update\(episodes="):
        pipeline(batch={"rewards": np.zeros((2, 1), np.float32)}, episodes=episodes)


def test_new_observations_of_a_learner_connector_include_the_last():
    def add(batch, episodes, extra):
        for episode in episodes:
            new = np.arange(len(episode) + extra, dtype=np.float32)
            ConnectorV2.add_n_batch_items(batch, "obs", new, len(new), episode)
        return batch

    episodes = [chunk("a", 2), chunk("b", 1)]
    first, second = columns_of_episodes(add({}, episodes, 1), episodes)
    assert (first["obs"].tolist(), first["final_obs"].tolist()) == ([0.0, 1.0], [1.0, 2.0])
    assert (second["obs"].tolist(), second["final_obs"].tolist()) == ([0.0], [1.0])
    with pytest.raises(ValueError, match="needs 3: one per step.*bootstrap.*set_observations"):
        columns_of_episodes(add({}, episodes, 0), episodes)


def test_chunks_without_items_keep_their_values():
    episodes = [chunk("a", 2), chunk("b", 3), chunk("a", 1, t_started=2), chunk("c", 1)]

    def columns_of(add):
        pipeline = LearnerConnectorPipeline(PHYSICS, ACTIONS, connectors=[HostOnly(add)])
        return columns_of_episodes(run_host_connectors_of_learner(pipeline, episodes=episodes), episodes)

    def some(batch, episodes):
        # In another order than the chunks have, and of one episode the second chunk only.
        for i, worth in ((2, 5.0), (1, 7.0)):
            ConnectorV2.add_n_batch_items(batch, "rewards", [worth] * len(episodes[i]), len(episodes[i]), episodes[i])
        batch["actions"] = {("c",): []}
        return batch

    rows = columns_of(some)
    assert [{name: column.tolist() for name, column in own.items()} for own in rows] == [
        {},
        {"rewards": [7.0] * 3},
        {"rewards": [5.0]},
        {},
    ]

    def backwards(batch, episodes):
        for episode in episodes[::-1]:
            ConnectorV2.add_n_batch_items(
                batch, "t", np.arange(len(episode)) + episode.t_started, len(episode), episode
            )
        return batch

    assert [own["t"].tolist() for own in columns_of(backwards)] == [[0, 1], [0, 1, 2], [2], [0]]

    def new(batch, episodes):
        ConnectorV2.add_n_batch_items(batch, "bonus", [1.0], 1, episodes[3])
        return batch

    message = r"column 'bonus' to some episode chunks, but not to a chunk of 2 steps of episode \('a',\)"
    with pytest.raises(ValueError, match=message):
        columns_of(new)


def test_a_learner_takes_columns_that_only_some_chunks_have():
    class Bonus(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            self.add_n_batch_items(batch, "rewards", [5.5] * len(episodes[1]), len(episodes[1]), episodes[1])
            return batch

    episodes = [chunk("a", 2), chunk("b", 1)]
    for episode in episodes:
        episode.set_rewards(new_data=np.ones(len(episode), np.int32))
    pipeline = LearnerConnectorPipeline(PHYSICS, ACTIONS, connectors=[Bonus()])
    module = RLModule(observation_space=PHYSICS, action_space=ACTIONS).as_multi_rl_module()
    columns = pipeline.columns_from_host_connectors(episodes)
    block = episodes_to_batch(episodes, module, columns=columns).blocks[DEFAULT_MODULE_ID].columns
    assert sorted(block["rewards"][block["loss_mask"]].tolist()) == [1.0, 1.0, 5.5]


def test_environments_without_an_item_keep_their_observation():
    class Second(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            self.add_batch_item(batch, "obs", np.full(2, 9.0, np.float32), episodes[1])
            return batch

    pipeline = EnvToModulePipeline(PHYSICS, ACTIONS, connectors=[Second()])
    columns = run_host_connectors(pipeline, episodes=[chunk("a", 1), chunk("b", 2), chunk("c", 3)])
    np.testing.assert_array_equal(columns["obs"][:, 0], [1.0, 9.0, 3.0])


def test_learner_columns_must_say_where_they_belong():
    def listed(batch, episodes):
        ConnectorV2.add_n_batch_items(batch, "c", [1, 2], 2)
        return batch

    pipeline = LearnerConnectorPipeline(PHYSICS, ACTIONS, connectors=[HostOnly(listed)])
    with pytest.raises(ValueError, match="'HostOnly' added the column 'c' without the episodes"):
        run_host_connectors_of_learner(pipeline, episodes=[chunk("a", 2)])
    with pytest.raises(
        ValueError, match=r"column 'c' 1 item\(s\) for the episode \('a',\), which needs 2: one per step, or"
    ):
        columns_of_episodes({"c": {("a",): [1]}}, [chunk("a", 2)])
    with pytest.raises(ValueError, match=r"1 item\(s\) for the episode \('z',\), which needs 0"):
        columns_of_episodes({"c": {("a",): [1], ("z",): [1]}}, [chunk("a", 1)])
