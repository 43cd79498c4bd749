"""Videos of an algorithm and of a policy: which episodes they show, and what of them."""

from __future__ import annotations

import pathlib
import re

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.utils.env_checker import check_env
from PIL import Image, ImageSequence

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.env import drawings
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.utils import notices
from jaxrl_stack.videos import record_checkpoint

MOST = 12
"""Steps of the longest episode."""


class Walk(ConfiguredEnv):
    """Its frames are 20 times as bright as many steps were taken; keys and actions decide on rewards and the end."""

    defaults = {"draws": True}
    render_fps = 7.0

    @property
    def observation_space(self):
        return Box(-20, 20, (3,), np.float32)

    @property
    def action_space(self):
        return Discrete(2)

    def reset_env(self, key, params):
        return jax.random.normal(key, (3,)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        obs, time = 3 * jax.random.normal(key, (3,)), state + 1
        return obs, time, obs[0] + action, obs[1] > 2, time == MOST, {}

    def render(self, state):
        return np.full((8, 240, 3), 20 * int(state), np.uint8) if self.settings["draws"] else None


register_env("walk-on-host", lambda config: GymnasiumFromJax(Walk, config))


def config(env, **env_config):
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=3,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .training(train_batch_size_per_learner=48, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .evaluation(evaluation_interval=1, evaluation_duration=5, evaluation_config={"explore": True})
        .debugging(seed=3)
    )


@pytest.fixture(scope="module", params=[Walk, "walk-on-host"], ids=["device", "host"])
def trained(request):
    """An algorithm after one iteration, and its result."""
    algo = config(request.param).build_algo()
    yield algo, algo.train()
    algo.stop()


def brightness(path):
    """Of the frames of a gif, one after the other, repeated ones once."""
    with Image.open(path) as image:
        values = [np.asarray(frame.convert("RGB"))[2, 2, 0] for frame in ImageSequence.Iterator(image)]
    return [int(value) for value, before in zip(values, [None, *values[:-1]], strict=True) if value != before]


def test_a_recording_shows_the_episodes_of_the_evaluation(trained, tmp_path):
    algo, result = trained
    expected = result["evaluation"]["env_runners"]
    before = algo.get_state(["evaluation", "training_iteration"])
    video = algo.record(tmp_path / "x.gif", 5)
    assert sorted(video.returns)[::4] == pytest.approx([expected["episode_return_min"], expected["episode_return_max"]])
    assert np.mean(video.returns) == pytest.approx(expected["episode_return_mean"], rel=1e-6)
    assert sum(video.lengths) == expected["num_env_steps_sampled"] and len(set(video.lengths)) > 1
    # Again, fewer of them: of each environment the first ones.
    fewer = algo.record(tmp_path / "y.gif", 3).returns
    assert fewer == tuple(np.array(video.returns)[[0, 2, 4]])
    assert algo.record(tmp_path / "y.gif", 3, seed=1).returns != fewer
    assert algo.get_state(["evaluation", "training_iteration"]) == before


def test_a_recording_shows_first_and_final_states(trained, tmp_path):
    video = trained[0].record(tmp_path / "x.gif", 2)
    assert video.fps == 7 and video.note is None
    shown = [20 * step for length in video.lengths for step in range(length + 1)]
    # A frame of the same brightness as the one before it is not seen.
    assert brightness(video.path) == [
        value for value, before in zip(shown, [None, *shown], strict=False) if value != before
    ]


def test_a_checkpoint_is_recorded_as_its_algorithm_is(trained, tmp_path):
    algo, _ = trained
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    video = record_checkpoint(path, tmp_path / "x.gif", 2, config=algo.config)
    assert video.returns == algo.record(tmp_path / "y.gif", 2).returns


@pytest.mark.parametrize("env", [Walk, "walk-on-host"], ids=["device", "host"])
def test_environments_without_frames_show_their_observations(env, tmp_path):
    algo = config(env, draws=False).build_algo()
    video = algo.record(tmp_path / "x.gif")
    algo.stop()
    assert video.note == ("drawn from the observations" if env is Walk else None)
    with Image.open(video.path) as image:
        assert image.size[0] == 320  # of bars


def test_actions_stand_below_observations_of_device_environments_and_not_below_frames(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr("jaxrl_stack.algorithms.recording.make_video", lambda episodes, *rest: made.extend(episodes))
    for draws in (False, True):
        algo = config(Walk, draws=draws).build_algo()
        algo.record(tmp_path / "x.gif", 2)
        algo.stop()
    for episode in made[:2]:
        observed = np.array([moment.obs[0] for moment in episode.frames.moments[1:]])
        np.testing.assert_allclose(observed + np.array(episode.actions), episode.rewards, rtol=1e-5)
    assert len(made) == 4 and [len(episode.actions) for episode in made[2:]] == [0, 0]


class Blind(gym.Env):
    """Gives no frames."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, config=None):
        self._time = 0

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self._time += 1
        return np.ones(2, np.float32), 1.0, self._time == 4, False, {}


def test_gymnasium_environments_without_frames_say_what_to_do(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(notices, "_given", set())
    algo = config(Blind).build_algo()
    video = algo.record(tmp_path / "x.gif")
    algo.stop()
    assert (video.returns, video.note) == ((4.0,), "drawn from the observations")
    assert "Blind' gives no frames (its render_mode is None)" in caplog.text
    assert "metadata = {'render_modes': ['rgb_array']}" in caplog.text


PLACES = {
    "multi": (MultiDiscrete([[6, 2]]), lambda t: np.array([[t, 1]])),
    "nested": (Dict(a=Tuple([Discrete(6), Box(0, 5, (1,))])), lambda t: {"a": (t, np.array([t], np.float32))}),
}


class Counting(Blind):
    """Gives no frames, and returns the time in observations of a space that is no Box."""

    def __init__(self, config):
        super().__init__()
        self.observation_space, self._observed = PLACES[config["place"]]

    def reset(self, *, seed=None, options=None):
        super().reset()
        return self._observed(0), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self._observed(self._time), *rest


@pytest.mark.parametrize("place", PLACES)
def test_observations_that_are_no_boxes_are_drawn_as_the_policy_sees_them(place):
    algo = config(Counting, place=place).env_runners(env_to_module_connector=None).build_algo()
    evaluation = algo.config.get_evaluation_config_object()
    (episode,), _ = record_on_host(evaluation, algo.driver.evaluation.send_to, seed=0, num_episodes=1)
    algo.stop()
    space, observed = PLACES[place]
    frames = [drawings.observation(observed(t), space) for t in range(5)]
    np.testing.assert_array_equal(np.stack(list(episode.frames)), np.stack(frames))
    assert len(episode.actions) == 4 and {int(action) for action in episode.actions} <= {0, 1}


class Mute(SingleAgentEnvRunner):
    """Calls no callbacks."""

    def sample(self, **kwargs):
        return []


def test_runners_that_call_no_callbacks_have_no_frames(tmp_path):
    algo = config(Blind).env_runners(env_runner_cls=Mute).build_algo()
    with pytest.raises(ValueError, match="episode callbacks, but .*Mute.* calls none"):
        algo.record(tmp_path / "x.gif")
    algo.stop()


def test_arguments_that_do_not_fit(trained, tmp_path):
    algo, _ = trained
    with pytest.raises(ValueError, match=r"record\(episodes=0\): give an integer of at least 1"):
        algo.record(tmp_path / "x.gif", 0)
    with pytest.raises(ValueError, match=r"has to end in \.mp4"):
        algo.record(tmp_path / "x.txt")
    with pytest.raises(ValueError, match=r"against='random'\): environment.* is not a JAX environment of several"):
        algo.record(tmp_path / "x.gif", against="random")
    with pytest.raises(ValueError, match=r"record\(seat=0\): applies only to games.* Add against='random'"):
        algo.record(tmp_path / "x.gif", seat=0)
    policy = algo.get_policy()
    with pytest.raises(ValueError, match=r"gives no frames \(render_mode=None\). Make it with render_mode='rgb_array'"):
        policy.record(tmp_path / "x.gif", GymnasiumFromJax(Walk))
    with pytest.raises(ValueError, match="GymnasiumFromJax\\('gymnax/CartPole-v1', render_mode='rgb_array'\\)"):
        policy.record(tmp_path / "x.gif", "gymnax/CartPole-v1")


def test_a_policy_is_recorded_in_an_environment_of_ones_choice(trained, tmp_path):
    policy = trained[0].get_policy()
    env = GymnasiumFromJax(Walk, render_mode="rgb_array")
    video = policy.record(tmp_path / "x.gif", env, 2, seed=5)
    returns, (obs, _) = [], env.reset(seed=5)
    for _ in range(2):
        total, state, is_over = 0.0, None, False
        while not is_over:
            action, state, _ = policy.compute_single_action(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, is_over = total + reward, terminated or truncated
        returns.append(total)
        obs, _ = env.reset()
    assert video.returns == pytest.approx(returns) and video.fps == 7
    # Sampled actions follow from the seed.
    sampled = [policy.record(tmp_path / "x.gif", env, seed=seed, explore=True).returns for seed in (6, 6, 7)]
    assert sampled[0] == sampled[1] != sampled[2]


# ------------------------------------------------------------------------------------------------- GymnasiumFromJax


def test_jax_environments_draw_themselves_for_gymnasium(tmp_path):
    env = GymnasiumFromJax(Walk, render_mode="rgb_array")
    assert (
        env.metadata == {"render_modes": ["rgb_array"], "render_fps": 7.0} and GymnasiumFromJax(Walk).render() is None
    )
    with pytest.raises(RuntimeError, match="call reset\\(\\) before render"):
        env.render()
    shown = []
    env.reset(seed=1)
    for _ in range(2 * MOST):
        shown.append(int(env.render()[0, 0, 0]))
        *_, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            shown.append(int(env.render()[0, 0, 0]))
            env.reset()
    ends = [i for i, value in enumerate(shown) if value == 0]
    assert len(ends) > 1 and ends[0] == 0
    for start, end in zip(ends, [*ends[1:], len(shown)], strict=True):
        assert shown[start:end] == [20 * i for i in range(end - start)]
    with pytest.raises(ValueError, match="render_mode='human'"):
        GymnasiumFromJax(Walk, render_mode="human")


def test_gymnasiums_own_check_of_rendering():
    gym.register("Walk-v0", entry_point=lambda **kwargs: GymnasiumFromJax(Walk, **kwargs))
    try:
        check_env(gym.make("Walk-v0", render_mode="rgb_array").unwrapped)
    finally:
        del gym.registry["Walk-v0"]


def test_states_before_a_reset_are_known_of_environments_that_reset_themselves():
    env = Walk()
    key = jax.random.key(0)
    for time in range(MOST):
        state = jax.jit(env.last_state)(jax.random.fold_in(key, time), jnp.int32(time), jnp.int32(0), None)
        assert int(state) == time + 1


def test_evaluations_are_recorded_every_so_many_iterations(tmp_path):
    with pytest.raises(ValueError, match=r"evaluation\(evaluation_video_interval=2\) needs a folder"):
        config(Walk).evaluation(evaluation_video_interval=2).validate()
    folder = tmp_path / "videos"
    own = config(Walk).evaluation(evaluation_video_interval=2, evaluation_video_dir=str(folder))
    algo = own.build_algo()
    for _ in range(4):
        algo.train()
    algo.stop()
    assert sorted(path.name for path in folder.iterdir()) == ["iteration_000002.mp4", "iteration_000004.mp4"]


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (pathlib.Path(__file__).parents[1] / "docs" / "videos.md").read_text()
    first, interval, drawn = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    small = ".training(train_batch_size_per_learner=128, num_epochs=1, minibatch_size=None).build_algo()"
    names: dict = {}
    exec(first.replace(".build_algo()", small).replace("range(5)", "range(1)"), names)
    assert (tmp_path / "cartpole.mp4").stat().st_size > 0 and len(names["video"].returns) == 2
    exec(interval + drawn, names)
    assert names["config"].evaluation_video_interval == 10
    assert names["Corridor"].render(None, np.int32(3))[5, 65].tolist() == [52, 101, 164]
