"""SingleAgentEnvRunner: what it records of gymnasium environments, and the episodes that come out."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.acting import live_episodes
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.seeds import derived_seed


class Ids(gym.Env):
    """Observation ``[number of the environment, episode, step]``, so that every row says where it comes from.

    Episodes of the even environments end by a terminal state, of the odd ones by a time limit. The reward is the
    step's number; the action is not looked at.
    """

    observation_space = gym.spaces.Box(-1.0, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, config):
        self.index = config.vector_index
        self.length = config.get("length", 4) + self.index
        self.context = config
        self.episode, self.t = -1, 0
        self.actions = []

    def _obs(self):
        return np.array([self.index, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t, self.seed_given = self.episode + 1, 0, seed
        return self._obs(), {"start": self.episode}

    def step(self, action):
        self.actions.append(action)
        self.t += 1
        ended = self.t >= self.length
        is_even = self.index % 2 == 0
        return self._obs(), float(self.t), ended and is_even, ended and not is_even, {"t": self.t}


class Target(gym.Env):
    """A Box action in odd bounds; pays what the action is."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(np.array([2.0, -3.0], np.float32), np.array([4.0, 5.0], np.float32))

    def __init__(self, config):
        self.config = config

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action in self.action_space, action
        return np.ones(2, np.float32), float(action[0]), False, False, {}


def config_for(env=Ids, num_envs=2, **env_runners):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, **env_runners)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=3)
    )


@pytest.fixture(scope="module")
def runner():
    runner = SingleAgentEnvRunner(config=config_for())
    yield runner
    runner.stop()


def test_a_block_holds_what_happened(runner):
    runner.reseed(0)
    block = runner.sample_block(num_steps=12)
    columns = block.experience.modules[DEFAULT_MODULE_ID]
    obs, final = columns[Columns.OBS], columns[Columns.FINAL_OBS]
    assert obs.shape == (12, 2, 3) and columns[Columns.REWARDS].shape == (12, 2)
    # Environment 0 has episodes of 4 steps, environment 1 of 5; both were reset an unknown number of times before.
    first = obs[0, :, 1]
    np.testing.assert_array_equal(obs[:, 0, 2], np.arange(12) % 4)
    np.testing.assert_array_equal(obs[:, 0, 1] - first[0], np.arange(12) // 4)
    np.testing.assert_array_equal(obs[:, 1, 2], np.arange(12) % 5)
    np.testing.assert_array_equal(columns[Columns.REWARDS], obs[:, :, 2] + 1)
    np.testing.assert_array_equal(columns[Columns.TERMINATEDS][:, 0], np.arange(12) % 4 == 3)
    np.testing.assert_array_equal(columns[Columns.TRUNCATEDS][:, 1], np.arange(12) % 5 == 4)
    assert not columns[Columns.TERMINATEDS][:, 1].any() and not columns[Columns.TRUNCATEDS][:, 0].any()
    # After a truncation and after the last row there is the observation of before any reset.
    np.testing.assert_array_equal(final[4, 1], [1, first[1], 5])
    np.testing.assert_array_equal(final[11], [[0, first[0] + 2, 4], [1, first[1] + 2, 2]])
    assert Columns.LOSS_MASK not in columns and block.num_env_steps == 24
    assert block.report.episodes.lengths.tolist() == [4, 5, 4, 5, 4]
    assert block.report.episodes.returns.tolist() == [10.0, 15.0, 10.0, 15.0, 10.0]
    assert (block.report.episodes.durations > 0).all() and block.report.connector_state is None


def test_the_recorded_probabilities_are_those_of_the_module(runner):
    columns = runner.sample_block(num_steps=5).experience.modules[DEFAULT_MODULE_ID]
    module = runner.module
    out = module.forward_exploration({Columns.OBS: columns[Columns.OBS].reshape(-1, 3)})
    inputs = np.asarray(out[Columns.ACTION_DIST_INPUTS])
    np.testing.assert_allclose(columns[Columns.ACTION_DIST_INPUTS].reshape(-1, 3), inputs, atol=1e-5)
    distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
    logp = np.asarray(distribution.logp(columns[Columns.ACTIONS].reshape(-1)))
    np.testing.assert_allclose(columns[Columns.ACTION_LOGP].reshape(-1), logp, atol=1e-5)


def test_the_environments_get_the_recorded_actions(runner):
    before = [len(env.unwrapped.actions) for env in runner.env.envs]
    columns = runner.sample_block(num_steps=6).experience.modules[DEFAULT_MODULE_ID]
    for index, env in enumerate(runner.env.envs):
        assert env.unwrapped.actions[before[index] :] == columns[Columns.ACTIONS][:, index].tolist()


def test_same_seed_same_rows_and_other_runners_other_seeds():
    def rows(index):
        runner = SingleAgentEnvRunner(config=config_for("CartPole-v1"), worker_index=index, num_workers=0)
        columns = runner.sample_block(num_steps=20).experience.modules[DEFAULT_MODULE_ID]
        runner.stop()
        return columns

    a, b, c = rows(1), rows(1), rows(2)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    # No environment of one runner repeats one of another.
    starts = np.concatenate([a[Columns.OBS][0], c[Columns.OBS][0]])
    assert len(np.unique(starts, axis=0)) == 4


def test_exactly_n_episodes_without_a_preference_for_short_ones(runner):
    episodes = runner.sample(num_episodes=5)
    assert [len(episode) for episode in episodes] == [4, 4, 4, 5, 5]
    assert [episode.is_terminated for episode in episodes] == [True] * 3 + [False] * 2
    assert [episode.is_truncated for episode in episodes] == [False] * 3 + [True] * 2
    assert [episode.get_return() for episode in episodes] == [10.0] * 3 + [15.0] * 2
    episode = episodes[-1]
    np.testing.assert_array_equal(episode.get_observations()[:, 2], np.arange(6))
    assert episode.get_infos(0).keys() == {"start"} and episode.get_infos(-1) == {"t": 5}
    assert episode.get_extra_model_outputs("weights_seq_no").tolist() == [0] * 5
    assert episode.is_numpy
    # The next call starts anew.
    assert all(episode.t_started == 0 for episode in runner.sample(num_timesteps=2))


def test_running_episodes_go_on_in_the_next_call(runner):
    runner.sample(num_episodes=1)
    first = runner.sample(num_timesteps=6)
    assert [(len(e), e.t_started, e.is_done) for e in first] == [(3, 0, False)] * 2
    second = runner.sample(num_timesteps=6)
    by_id = {e.id_: e for e in second}
    ended, other = by_id[first[0].id_], by_id[first[1].id_]
    assert (len(ended), ended.t_started, ended.is_terminated) == (1, 3, True)
    assert (len(other), other.t_started, other.is_truncated) == (2, 3, True)
    # One step of look-back, as episode_lookback_horizon says.
    assert ended.get_rewards(-1, neg_index_as_lookback=True) == 3.0
    np.testing.assert_array_equal(first[0].get_observations(-1), ended.get_observations(0))
    assert sorted((len(e), e.t_started) for e in second if not e.is_done) == [(1, 0), (2, 0)]


def test_whole_episodes_in_complete_episodes_mode():
    runner = SingleAgentEnvRunner(config=config_for(batch_mode="complete_episodes"))
    assert [(len(e), e.is_done) for e in runner.sample()] == [(4, True), (5, True)]
    runner.stop()


def test_greedy_and_random_actions(runner):
    greedy = runner.sample(num_timesteps=8, explore=False)
    for episode in greedy:
        inputs = episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS)
        np.testing.assert_array_equal(episode.get_actions(), inputs.argmax(-1))
        assert Columns.ACTION_LOGP not in episode.extra_model_outputs
    drawn = np.concatenate([e.get_actions() for e in runner.sample(num_timesteps=120, random_actions=True)])
    counts = np.bincount(drawn, minlength=3)
    assert len(drawn) == 120 and counts.min() > 20


def test_weights_of_another_runner(runner):
    other = SingleAgentEnvRunner(config=config_for().debugging(seed=11))
    state = other.get_state(["rl_module"])
    mine = runner.get_state("rl_module")["rl_module"]["params"]
    assert any((mine[ref] != value).any() for ref, value in state["rl_module"]["params"].items())
    runner.set_state({**state, "weights_seq_no": 7})
    jax.tree.map(np.testing.assert_array_equal, runner.get_state("rl_module"), state)
    block = runner.sample_block(num_steps=2)
    assert block.experience.versions == (7, 7)
    inputs = other.module.forward_exploration(
        {Columns.OBS: block.experience.modules[DEFAULT_MODULE_ID][Columns.OBS][0]}
    )
    np.testing.assert_allclose(
        block.experience.modules[DEFAULT_MODULE_ID][Columns.ACTION_DIST_INPUTS][0],
        inputs[Columns.ACTION_DIST_INPUTS],
        atol=1e-5,
    )
    other.stop()
    runner.set_state({"rl_module": {"params": mine}, "weights_seq_no": 0})


def test_a_filter_sees_every_observation_once_and_the_module_gets_what_is_recorded():
    config = config_for(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    runner = SingleAgentEnvRunner(config=config)
    blocks = [runner.sample_block(num_steps=5) for _ in range(2)]
    raw = np.concatenate([[[0, t // 4, t % 4], [1, t // 5, t % 5]] for t in range(10)]).astype(np.float64)
    state = blocks[-1].report.connector_state["MeanStdFilter"]["default_policy"]["delta"]["obs"]
    np.testing.assert_allclose(state["mean"], raw.mean(0), rtol=1e-5)
    last = blocks[-1].experience.modules[DEFAULT_MODULE_ID]
    out = runner.module.forward_exploration({Columns.OBS: last[Columns.OBS][-1]})
    np.testing.assert_allclose(last[Columns.ACTION_DIST_INPUTS][-1], out[Columns.ACTION_DIST_INPUTS], atol=1e-5)
    assert np.abs(last[Columns.OBS]).max() < 5 and np.isfinite(last[Columns.FINAL_OBS]).all()
    # Merged statistics come back as a base; the history of unfinished episodes continues.
    merged = runner.acting_parts()[1].merge_states([blocks[-1].report.connector_state])
    runner.set_state({"env_to_module_connector": merged})
    base = runner.get_state("env_to_module_connector")["env_to_module_connector"]
    np.testing.assert_allclose(base["MeanStdFilter"]["default_policy"]["base"]["obs"]["mean"], raw.mean(0), rtol=1e-5)
    episodes = runner.sample(num_timesteps=12)
    assert sum(len(e) for e in episodes) == 12
    runner.stop()


def test_frame_stacks_are_reset_with_their_environment_and_reach_behind_the_end():
    class Flat(gym.ObservationWrapper):
        def __init__(self, config):
            super().__init__(Ids(config))
            self.observation_space = gym.spaces.Box(-1.0, 1e6, (1,), np.float32)

        def observation(self, observation):
            return observation[2:]

    def stack(env, spaces, device):
        return FrameStackingEnvToModule(num_frames=2)

    config = config_for(Flat, env_to_module_connector=stack)
    runner = SingleAgentEnvRunner(config=config)
    columns = runner.sample_block(num_steps=6).experience.modules[DEFAULT_MODULE_ID]
    expected = [[0, 0], [0, 1], [1, 2], [2, 3], [0, 0], [0, 1]]
    np.testing.assert_array_equal(columns[Columns.OBS][:, 0], expected)
    np.testing.assert_array_equal(columns[Columns.FINAL_OBS][4, 1], [4, 5])  # truncated there
    np.testing.assert_array_equal(columns[Columns.FINAL_OBS][5], [[1, 2], [0, 1]])
    # The same as episodes, whose last observation is of before the reset.
    episode = runner.sample(num_episodes=1)[0]
    np.testing.assert_array_equal(episode.get_observations(), [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]])
    runner.stop()


class WhatCameBefore(ConnectorV2):
    """Observations are the last reward and the last action."""

    def apply(self, state, batch, ctx):
        ((mid, columns),) = batch.items()
        before = [ctx.prev_rewards[mid], ctx.prev_actions[mid].astype(np.float32), 0.0 * ctx.prev_rewards[mid]]
        return state, {mid: {**columns, Columns.OBS: jax.numpy.stack(before, axis=-1)}}


def test_connectors_get_no_reward_and_no_action_of_the_episode_before():
    runner = SingleAgentEnvRunner(config=config_for(env_to_module_connector=lambda *_: WhatCameBefore()))
    columns = runner.sample_block(num_steps=12).experience.modules[DEFAULT_MODULE_ID]
    obs, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
    for index, length in enumerate((4, 5)):
        t = np.arange(12) % length
        np.testing.assert_array_equal(obs[:, index, 0], t)
        np.testing.assert_array_equal(obs[:, index, 1], np.where(t > 0, np.roll(actions[:, index], 1), 0))
    runner.stop()


def test_actions_reach_the_bounds_of_the_space():
    runner = SingleAgentEnvRunner(config=config_for(Target))
    columns = runner.sample_block(num_steps=50).experience.modules[DEFAULT_MODULE_ID]
    actions = columns[Columns.ACTIONS]
    np.testing.assert_allclose(columns[Columns.REWARDS], np.clip(2 + (actions[..., 0] + 1), 2, 4), rtol=1e-5)
    assert np.abs(actions).max() > 1  # recorded as the module gave them
    runner.stop()


def test_clipped_rewards_are_for_the_learner_only():
    runner = SingleAgentEnvRunner(config=config_for().environment(clip_rewards=2.0))
    block = runner.sample_block(num_steps=4)
    np.testing.assert_array_equal(block.experience.modules[DEFAULT_MODULE_ID][Columns.REWARDS][:, 0], [1, 2, 3, 4])
    assert block.report.episodes.returns.tolist() == [10.0]
    runner.stop()


def test_the_environments_know_their_place():
    config = config_for(num_envs=2).environment(env_config={"length": 7})
    runner = SingleAgentEnvRunner(config=config, worker_index=2, num_workers=3)
    contexts = [env.unwrapped.context for env in runner.env.envs]
    assert [(c.worker_index, c.vector_index, c.num_workers, c.remote, c["length"]) for c in contexts] == [
        (2, 0, 3, False, 7),
        (2, 1, 3, False, 7),
    ]
    runner.sample_block(num_steps=1)
    given = [env.unwrapped.seed_given for env in runner.env.envs]
    assert given == [derived_seed("environment", 3, 2, 0, 0, env) for env in range(2)]
    runner.stop()


def test_environments_that_are_made_anew_have_other_seeds_and_a_reset_takes_their_config_back():
    config = config_for(num_envs=1)
    runner = SingleAgentEnvRunner(config=config)
    runner.sample_block(num_steps=1)
    runner.config.environment(env_config={"length": 9})
    runner.make_env()
    runner.sample_block(num_steps=1)
    (anew,) = (env.unwrapped for env in runner.env.envs)
    assert (anew.length, anew.seed_given) == (9, derived_seed("environment", 3, 0, 0, 1, 0))
    runner.reset(config)
    runner.sample_block(num_steps=1)
    (first,) = (env.unwrapped for env in runner.env.envs)
    assert (first.length, first.seed_given) == (4, derived_seed("environment", 3, 0, 0, 0, 0))
    runner.stop()


class WithoutState(MeanStdFilter):
    """Keeps its statistics to itself."""

    def get_state(self, *args, **kwargs):
        return {}


def test_a_connector_whose_state_is_empty_is_not_sent_to_the_learner():
    filtered = {"env_to_module_connector": lambda env, spaces, device: WithoutState()}
    runner = SingleAgentEnvRunner(config=config_for(**filtered))
    assert runner.sample_block(num_steps=3).report.connector_state is None
    runner.stop()


class Doubled(ConnectorV2):
    """A host connector: doubles the newest observation of every episode, in place."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1) * 2, at_indices=-1)
        return batch


def test_host_connectors_run_once_per_observation_and_before_the_pure_ones():
    def connectors(env, spaces, device):
        return [Doubled(), MeanStdFilter()]

    runner = SingleAgentEnvRunner(config=config_for(env_to_module_connector=connectors))
    runner.sample_block(num_steps=3)
    state = runner.sample_block(num_steps=3).report.connector_state
    doubled = 2 * np.concatenate([[[0, t // 4, t % 4], [1, t // 5, t % 5]] for t in range(6)])
    statistics = state["MeanStdFilter"]["default_policy"]["delta"]["obs"]
    np.testing.assert_allclose(statistics["mean"], doubled.mean(0), rtol=1e-5)
    plain = SingleAgentEnvRunner(config=config_for(env_to_module_connector=lambda env, spaces, device: Doubled()))
    columns = plain.sample_block(num_steps=6).experience.modules[DEFAULT_MODULE_ID]
    np.testing.assert_array_equal(columns[Columns.OBS][:, 0, 2], [0, 2, 4, 6, 0, 2])
    np.testing.assert_array_equal(columns[Columns.FINAL_OBS][4, 1], [2, 0, 10])
    np.testing.assert_array_equal(columns[Columns.FINAL_OBS][5], [[0, 2, 4], [2, 2, 2]])
    action = plain.act(
        np.array([0, 0, 1], np.float32), module_id=DEFAULT_MODULE_ID, explore=False, key=jax.random.key(0)
    )
    expected = plain.module.forward_inference({Columns.OBS: np.array([[0, 0, 2]], np.float32)})
    np.testing.assert_allclose(action[Columns.ACTION_DIST_INPUTS], expected[Columns.ACTION_DIST_INPUTS][0], atol=1e-5)
    episodes = plain.sample(num_episodes=2)
    np.testing.assert_array_equal(episodes[0].get_observations()[:, 2], [0, 2, 4, 6, 8])
    runner.stop()
    plain.stop()


class Tenfold(ConnectorV2):
    """A host connector: ten copies of the newest observation in the place of one."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1.0, 1e6, (30,), np.float32)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            assert np.shape(episode.get_observations(-1)) == (3,), "an observation came twice"
            episode.set_observations(new_data=np.tile(episode.get_observations(-1), 10), at_indices=-1)
        return batch


def resets_in_the_next_step(context):
    """Two `Ids`, as gymnasium's own vector entry points have them: an ended episode is reset by the next step."""
    makers = [lambda i=i: Ids(context.copy_with_overrides(vector_index=i)) for i in range(2)]
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)


def next_step_config(**env_runners):
    register_env("resets_in_the_next_step", resets_in_the_next_step)
    return config_for("resets_in_the_next_step", gym_env_vectorize_mode="vector_entry_point", **env_runners)


@pytest.mark.parametrize(("connector", "factor"), [(Doubled, 2), (Tenfold, 1)])
def test_host_connectors_pass_over_rows_that_only_reset(connector, factor):
    runner = SingleAgentEnvRunner(
        config=next_step_config(env_to_module_connector=lambda env, spaces, device: connector())
    )
    # The 5th row of environment 0 only resets it, the 6th row of environment 1; a block ends with one of them.
    columns = {}
    for number_of_steps in (5, 6):
        block = runner.sample_block(num_steps=number_of_steps).experience.modules[DEFAULT_MODULE_ID]
        columns = {n: np.concatenate([columns[n], c]) if n in columns else c for n, c in block.items()}
    valid = columns[Columns.LOSS_MASK]
    np.testing.assert_array_equal(np.flatnonzero(~valid[:, 0]), [4, 9])
    np.testing.assert_array_equal(np.flatnonzero(~valid[:, 1]), [5])
    obs, final = columns[Columns.OBS], columns[Columns.FINAL_OBS]
    np.testing.assert_array_equal(obs[:, 0, 2][valid[:, 0]], factor * np.array([0, 1, 2, 3, 0, 1, 2, 3, 0]))
    np.testing.assert_array_equal(final[4, 1][:3], factor * np.array([1, 0, 5]))  # truncated there
    episodes = runner.sample(num_episodes=4)
    for episode in episodes:
        np.testing.assert_array_equal(episode.get_observations()[:, 2], factor * np.arange(len(episode) + 1))
    runner.stop()


def test_a_filter_does_not_count_rows_that_only_reset():
    runner = SingleAgentEnvRunner(
        config=next_step_config(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    )
    blocks = [runner.sample_block(num_steps=num_steps) for num_steps in (4, 1, 3, 5)]
    state = blocks[-1].report.connector_state["MeanStdFilter"]["default_policy"]["delta"]["obs"]
    assert to_int(state["count"]) == sum(block.num_env_steps for block in blocks) == 2 * 13 - 2 - 2
    steps = [[0, t // 5, t % 5] for t in range(13) if t % 5 < 4] + [[1, t // 6, t % 6] for t in range(13) if t % 6 < 5]
    np.testing.assert_allclose(state["mean"], np.mean(steps, axis=0), rtol=1e-5)
    runner.stop()


def test_live_episodes_are_those_that_are_built_from_the_arrays():
    seen = []
    watched_config = config_for().callbacks(on_episode_step=lambda *, episode, **kwargs: seen.append(len(episode)))
    watched, plain = SingleAgentEnvRunner(config=watched_config), SingleAgentEnvRunner(config=config_for())
    for amounts in ({"num_timesteps": 6}, {"num_timesteps": 14}, {"num_episodes": 3}):
        a, b = watched.sample(**amounts), plain.sample(**amounts)
        key = lambda e: (e.get_observations(0)[0], e.get_observations(0)[1], e.t_started)  # noqa: E731
        for one, other in zip(sorted(a, key=key), sorted(b, key=key), strict=True):
            assert one.t_started == other.t_started and one.is_done == other.is_done
            assert one.is_truncated == other.is_truncated
            np.testing.assert_array_equal(one.get_observations(), other.get_observations())
            np.testing.assert_array_equal(one.get_actions(), other.get_actions())
            np.testing.assert_array_equal(one.get_rewards(), other.get_rewards())
            assert one.get_infos() == other.get_infos()
            assert one.extra_model_outputs.keys() == other.extra_model_outputs.keys()
            for name in one.extra_model_outputs:
                np.testing.assert_allclose(
                    one.get_extra_model_outputs(name), other.get_extra_model_outputs(name), atol=1e-6
                )
    assert seen[:2] == [1, 1]
    watched.stop()
    plain.stop()


def test_hooks_come_in_order_with_their_arguments():
    calls = []

    def note(name):
        def hook(**kwargs):
            calls.append((name, kwargs))

        return hook

    names = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
    config = config_for(num_envs=1).callbacks(
        **{name: note(name) for name in names},
        on_environment_created=note("on_environment_created"),
        on_sample_end=note("on_sample_end"),
    )
    runner = SingleAgentEnvRunner(config=config)
    runner.sample(num_timesteps=3)
    runner.sample(num_timesteps=2)
    order = [name for name, _ in calls]
    assert order == [
        "on_environment_created",
        "on_episode_created",
        "on_episode_start",
        *["on_episode_step"] * 3,
        "on_sample_end",
        "on_episode_step",
        "on_episode_end",
        "on_episode_created",
        "on_episode_start",
        "on_episode_step",
        "on_sample_end",
    ]
    by_name = {name: kwargs for name, kwargs in calls}
    assert by_name["on_environment_created"]["env_context"].worker_index == 0
    for name in names:
        given = by_name[name]
        assert given["env_runner"] is runner and given["env"] is runner.env and given["env_index"] == 0
        assert given["rl_module"] is not None and given["metrics_logger"] is runner.metrics
    chunks = by_name["on_episode_end"]["prev_episode_chunks"]
    assert [len(chunk) for chunk in chunks] == [3] and len(by_name["on_episode_end"]["episode"]) == 1
    samples = by_name["on_sample_end"]["samples"]
    assert [(len(e), e.is_done) for e in samples] == [(1, True), (1, False)]
    runner.stop()


def test_an_episode_without_end_does_not_grow_with_every_block(monkeypatch):
    monkeypatch.setattr(live_episodes, "MOST_EARLIER_STEPS", 30)
    monkeypatch.setattr(live_episodes, "JOINED_STEPS", 8)
    ended = []

    def on_episode_end(*, episode, prev_episode_chunks, **kwargs):
        ended.append([*prev_episode_chunks, episode])

    alive: set[int] = set()
    initialize = SingleAgentEpisode.__init__

    def noted(self, *args, **kwargs):
        initialize(self, *args, **kwargs)
        alive.add(id(self))

    monkeypatch.setattr(SingleAgentEpisode, "__init__", noted)
    monkeypatch.setattr(SingleAgentEpisode, "__del__", lambda self: alive.discard(id(self)), raising=False)
    for hooks in ({"on_episode_step": lambda **kwargs: None}, {"on_episode_end": on_episode_end}):
        endless = config_for(num_envs=1).environment(env_config={"length": 10**6}).callbacks(**hooks)
        runner = SingleAgentEnvRunner(config=endless)
        for _ in range(60):
            runner.sample_block(num_steps=1)
        most = 2 + (30 // 8 + 1 if "on_episode_end" in hooks else 0)
        assert 1 <= len(alive) <= most
        runner.stop()
        del runner
    # Chunks are joined, and nothing is lost of an episode of common length.
    monkeypatch.setattr(live_episodes, "MOST_EARLIER_STEPS", 100)
    monkeypatch.setattr(live_episodes, "JOINED_STEPS", 32)
    runner = SingleAgentEnvRunner(
        config=config_for(num_envs=1).environment(env_config={"length": 100}).callbacks(on_episode_end=on_episode_end)
    )
    for _ in range(34):
        runner.sample_block(num_steps=3)
    (chunks,) = ended
    assert [len(chunk) for chunk in chunks] == [30, 30, 30, 9, 1]
    np.testing.assert_array_equal(np.concatenate([chunk.get_rewards() for chunk in chunks]), np.arange(1, 101))
    for chunk in chunks:
        steps = np.asarray(chunk.get_observations())[:, 2]
        np.testing.assert_array_equal(steps, chunk.t_started + np.arange(len(chunk) + 1))
    runner.stop()


class Remembers(RLlibCallback):
    def __init__(self):
        self.environments, self.lengths = 0, []

    def on_environment_created(self, **kwargs):
        self.environments += 1

    def on_episode_end(self, *, episode, **kwargs):
        self.lengths.append(len(episode))


def test_a_reset_starts_with_new_callbacks():
    algo = config_for().callbacks(Remembers).training(train_batch_size_per_learner=32, minibatch_size=8).build_algo()
    algo.train()
    (before,) = algo.env_runner.callbacks.callbacks
    assert before.lengths
    noted = list(before.lengths)
    assert algo.reset(algo.config.copy(copy_frozen=False).training(lr=0.5))
    (after,) = algo.env_runner.callbacks.callbacks
    assert after is not before and after.lengths == [] and after.environments == 1
    algo.train()
    assert after.lengths == noted and before.lengths == noted
    algo.stop()


def test_a_reset_with_another_seed_is_the_run_of_that_seed():
    def config(seed):
        sizes = {"train_batch_size_per_learner": 32, "minibatch_size": 8}
        return config_for("CartPole-v1").debugging(seed=seed).training(**sizes)

    def returns_and_weights(algo):
        algo.train()
        return algo.train()["env_runners"]["episode_return_mean"], jax.tree.leaves(algo.get_weights())

    fresh = config(9).build_algo()
    expected = returns_and_weights(fresh)
    fresh.stop()
    algo = config(3).build_algo()
    assert not np.array_equal(returns_and_weights(algo)[1][0], expected[1][0])
    assert algo.reset(config(9))
    (mean, weights), compiled = returns_and_weights(algo), algo.history["timers/compile_s"]
    algo.stop()
    assert mean == expected[0] and not compiled.any()
    for leaf, other in zip(weights, expected[1], strict=True):
        np.testing.assert_array_equal(leaf, other)


class DrawnAtSetup(DefaultPPORLModule):
    """A module with a constant of its seed, which programs hold."""

    def setup(self):
        super().setup()
        self.constant = np.asarray(jax.random.normal(self.rngs.params(), (2,)))


def test_a_reset_with_another_seed_is_refused_where_programs_hold_what_is_of_the_seed():
    config = config_for().rl_module(rl_module_spec=RLModuleSpec(module_class=DrawnAtSetup, model_config={}))
    config.training(train_batch_size_per_learner=32, minibatch_size=8)
    algo = config.build_algo()
    before = jax.tree.leaves(algo.get_weights())
    assert algo.reset(config.copy().training(lr=0.5))
    assert not algo.reset(config.copy().debugging(seed=9)) and algo.config.seed == 3
    for leaf, other in zip(jax.tree.leaves(algo.get_weights()), before, strict=True):
        np.testing.assert_array_equal(leaf, other)
    algo.stop()


def test_metrics_of_the_runner(runner):
    runner.get_metrics()
    runner.sample(num_episodes=4)
    metrics = {name: stats.peek() for name, stats in runner.get_metrics().items()}
    assert metrics["num_episodes"] >= 4 and metrics["episode_len_max"] == 5 and metrics["episode_return_min"] == 10
    assert metrics["num_env_steps_sampled"] > 0 and metrics["env_step_timer"] > 0


def test_metrics_have_all_steps_though_the_lifetime_is_told_in_between(runner):
    runner.get_metrics()
    for _ in range(2):
        num_steps = sum(map(len, runner.sample(num_timesteps=6)))
        runner.set_state({"num_env_steps_sampled_lifetime": 100})
        assert runner.get_metrics()["num_env_steps_sampled"].peek() == num_steps


def test_weights_of_what_does_not_act_are_left_aside():
    runner = SingleAgentEnvRunner(config=config_for())
    state = runner.get_state()
    params = state["rl_module"]["params"]
    critic = {f"{DEFAULT_MODULE_ID}/critic/kernel": np.ones((2, 2), np.float32)}
    for given in ({**params, **critic}, params):
        runner.set_state({**state, "rl_module": {**state["rl_module"], "params": given}})
        runner.sample_block(num_steps=2)
    assert runner.get_state()["rl_module"]["params"].keys() == params.keys()
    runner.stop()


def test_wrong_calls_are_explained(runner):
    with pytest.raises(ValueError, match="num_timesteps=1, num_episodes=1.*not both"):
        runner.sample(num_timesteps=1, num_episodes=1)
    with pytest.raises(ValueError, match="num_episodes=0.*at least 1"):
        runner.sample(num_episodes=0)
    with pytest.raises(ValueError, match="Unknown components.*'weights'"):
        runner.get_state("weights")
    with pytest.raises(ValueError, match="Unknown components.*'weights'"):
        runner.set_state({"weights": {}})
    with pytest.raises(TypeError, match="unknown arguments.*'num_cpus'"):
        SingleAgentEnvRunner(config=config_for(), num_cpus=1)
    with pytest.raises(ValueError, match="creates no environments.*spaces="):
        SingleAgentEnvRunner(config=config_for(), worker_index=0, num_workers=2)
    idle = SingleAgentEnvRunner(config=config_for(), worker_index=0, num_workers=2, spaces=runner.get_spaces())
    with pytest.raises(ValueError, match="create_env_on_local_worker=True"):
        idle.sample()
    assert idle.env is None and idle.get_spaces()["default_policy"] == runner.get_spaces()["default_policy"]
    assert runner.get_spaces()["__env_single__"] == (
        runner.env.single_observation_space,
        runner.env.single_action_space,
    )
    stopped = SingleAgentEnvRunner(config=config_for())
    stopped.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        stopped.assert_healthy()
