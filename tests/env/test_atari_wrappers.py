"""Preprocessing of Atari games, on a game made for it."""

from __future__ import annotations

import logging

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.wrappers.atari_wrappers import (
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    GrayScaleAndResize,
    MaxAndSkipEnv,
    NoopResetEnv,
    NormalizedImageEnv,
    WarpFrame,
    area_mean,
    wrap_atari_for_new_api_stack,
)
from jaxrl_stack.utils import notices

NOOP, FIRE, UP = 0, 1, 2


class Console:
    """What the wrappers ask of the emulator."""

    def __init__(self):
        self.left = 3

    def lives(self):
        return self.left


class Game(gym.Env):
    """Every pixel of frame t is t. Action 3 loses a life; without lives, and at frame `ends`, the game is over."""

    def __init__(self, meanings=("NOOP", "FIRE", "UP", "DIE"), ends=None, shape=(20, 16, 3)):
        self.meanings, self.ends = meanings, ends
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(4)
        self.ale = Console()
        self.calls = []

    def get_action_meanings(self):
        return list(self.meanings)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.calls.append("reset")
        self.t, self.ale.left = 0, 3
        return self._frame(), {"t": 0}

    def step(self, action):
        self.calls.append(int(action))
        self.t += 1
        if action == 3:
            self.ale.left -= 1
        over = self.ale.left == 0 or self.t == self.ends
        return self._frame(), 1.0, over, False, {"t": self.t}

    def _frame(self):
        return np.full(self.observation_space.shape, self.t, np.uint8)


def test_the_maximum_of_the_last_two_frames():
    game = Game(ends=6)
    frames = iter([5, 9, 1, 7, 200, 3])
    game._frame = lambda: np.full(game.observation_space.shape, next(frames, 0), np.uint8)
    env = MaxAndSkipEnv(game, 4)
    game.t = 0
    obs, reward, terminated, _, info = env.step(NOOP)
    assert obs.max() == 7 and reward == 4 and not terminated and info == {"t": 4}
    # It ends after two more frames: these are the last ones.
    obs, reward, terminated, _, _ = env.step(NOOP)
    assert obs.max() == 200 and reward == 2 and terminated and game.calls == [NOOP] * 6


def test_an_episode_of_one_frame_shows_that_frame():
    env = MaxAndSkipEnv(Game(ends=1), 4)
    env.reset()
    obs, reward, terminated, _, _ = env.step(NOOP)
    assert obs.max() == 1 and reward == 1 and terminated


def test_means_over_areas():
    def mean(pixels, dim):
        return area_mean(np.array(pixels, np.float32), dim, 0)

    np.testing.assert_allclose(mean([1, 3, 5, 9], 2), [2, 7])
    np.testing.assert_allclose(mean([1, 2, 6], 2), [4 / 3, 14 / 3], rtol=1e-6)
    np.testing.assert_allclose(mean([4, 8], 4), [4, 4, 8, 8])
    np.testing.assert_allclose(mean([4, 8, 9], 3), [4, 8, 9])
    image = np.random.default_rng(0).integers(0, 256, (210, 160, 3)).astype(np.float32)
    for axis, dim in ((0, 64), (1, 84)):
        # The same as repeating every pixel `dim` times and averaging `size` neighbours.
        size = image.shape[axis]
        shape = [*image.shape[:axis], dim, size, *image.shape[axis + 1 :]]
        expected = np.repeat(image, dim, axis).reshape(shape).mean(axis + 1)
        small = area_mean(image, dim, axis)
        assert small.dtype == np.float32
        np.testing.assert_allclose(small, expected, atol=0.02)


def test_images_are_shrunk_gray_and_scaled():
    image = np.zeros((4, 8, 3), np.uint8)
    image[:2, :4] = [255, 0, 0]
    image[2:, 4:] = [10, 20, 30]
    env = GrayScaleAndResize(Game(shape=image.shape), 2, grayscale=True)
    small = env.observation(image)
    assert small in env.observation_space and small.shape == (2, 2, 1) and small.dtype == np.uint8
    luma = [[0.299 * 255, 0], [0, 0.299 * 10 + 0.587 * 20 + 0.114 * 30]]
    np.testing.assert_array_equal(small[..., 0], np.rint(luma))
    colours = WarpFrame(Game(shape=image.shape), 2, grayscale=False)
    small = colours.observation(image)
    assert small in colours.observation_space and small.shape == (2, 2, 3) and small[1, 1].tolist() == [10, 20, 30]
    gray = GrayScaleAndResize(Game(shape=(4, 8)), 2)
    assert gray.observation(image[..., 0])[0, 0].tolist() == [255]
    scaled = NormalizedImageEnv(colours)
    assert scaled.observation_space == Box(-1, 1, (2, 2, 3), np.float32)
    image[:] = 255
    obs = scaled.observation(colours.observation(image))
    assert obs in scaled.observation_space
    np.testing.assert_allclose(obs, 255 / 128 - 1, rtol=1e-6)


def test_clipped_rewards():
    env = ClipRewardEnv(Game())
    assert [env.reward(r) for r in (-7.0, 0.0, 0.5)] == [-1, 0, 1]


def test_no_ops_behind_a_reset():
    game = Game()
    env = NoopResetEnv(game, 5)
    counts = set()
    for seed in range(30):
        game.calls.clear()
        obs, info = env.reset(seed=seed)
        assert game.calls[0] == "reset" and set(game.calls[1:]) == {NOOP}
        counts.add(len(game.calls) - 1)
        assert info["t"] == obs.max() == len(game.calls) - 1
    assert counts == {1, 2, 3, 4, 5}
    env.reset(seed=7)
    assert game.calls.count("reset") == 2
    # A game that is over by then starts once more.
    short = Game(ends=1)
    obs, info = NoopResetEnv(short, 1).reset(seed=0)
    assert short.calls == ["reset", NOOP, "reset"] and info == {"t": 0} and obs.max() == 0


def test_a_life_is_an_episode():
    game = Game()
    env = EpisodicLifeEnv(gym.wrappers.TimeLimit(game, 8))
    env.reset(seed=0)
    assert env.step(NOOP)[2:4] == (False, False)
    assert env.step(3)[2:4] == (True, False) and game.ale.left == 2
    # The game goes on.
    obs, info = env.reset()
    assert game.calls == ["reset", NOOP, 3, NOOP] and info == {"t": 3} and obs.max() == 3
    assert env.step(3)[2] and game.ale.left == 1
    # A seed asks for a new game.
    env.reset(seed=1)
    assert game.calls[-1] == "reset" and game.ale.left == 3
    for life in (2, 1):
        assert env.step(3)[2] and game.ale.left == life
        env.reset()
    assert env.step(3)[2] and game.ale.left == 0
    env.reset()
    assert game.calls[-1] == "reset"
    # Cut by the time limit: a new game, although it was not over, and also with a life lost in that step.
    for last in (NOOP, 3):
        for _ in range(7):
            assert env.step(NOOP)[2:4] == (False, False)
        assert env.step(last)[3]
        env.reset()
        assert game.calls[-2:] == [last, "reset"]


def test_a_game_may_show_no_lives_before_it_is_over():
    game = Game()
    env = EpisodicLifeEnv(game)
    env.reset()
    game.ale.left = 0
    game.step = lambda action: (game._frame(), 0.0, False, False, {})
    assert not env.step(NOOP)[2]


def test_a_reset_that_ends_the_game_resets_again():
    game = Game(ends=2)
    env = EpisodicLifeEnv(game)
    env.reset()
    env.step(3)
    _, info = env.reset()
    assert game.calls == ["reset", 3, NOOP, "reset"] and info == {"t": 0}


def test_fire_and_up_behind_a_reset():
    game = Game()
    _, info = FireResetEnv(game).reset(seed=0)
    assert game.calls == ["reset", FIRE, UP] and info == {"t": 2}
    short = Game(ends=2)
    _, info = FireResetEnv(short).reset()
    assert short.calls == ["reset", FIRE, UP, "reset"] and info == {"t": 0}


def test_all_of_them_together():
    game = Game()
    env = wrap_atari_for_new_api_stack(game, dim=8, framestack=3)
    assert env.observation_space == Box(-1, 1, (8, 8, 3), np.float32)
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space and len(np.unique(obs)) == 1
    # Every action counts four times.
    assert (len(game.calls) - 1) % 4 == 0 and game.calls[-8:] == [FIRE] * 4 + [UP] * 4
    t = game.t
    obs, reward, terminated, truncated, _ = env.step(NOOP)
    assert reward == 4 and not terminated and not truncated
    expected = np.array([t, t, t + 4]) / 128 - 1
    np.testing.assert_allclose(obs[3, 5], expected, rtol=1e-5)
    limit = env
    while not isinstance(limit, gym.wrappers.TimeLimit):
        limit = limit.env
    assert limit._max_episode_steps == 108_000


def test_its_settings():
    game = Game(meanings=("NOOP", "LEFT", "RIGHT", "DIE"))
    env = wrap_atari_for_new_api_stack(game, dim=8, frameskip=1, grayscale=False)
    assert env.observation_space == Box(-1, 1, (8, 8, 3), np.float32)
    env.reset(seed=0)
    assert FIRE not in game.calls
    assert env.step(NOOP)[1] == 1
    assert wrap_atari_for_new_api_stack(Game(), framestack=1).observation_space.shape == (64, 64, 1)
    stacked = wrap_atari_for_new_api_stack(Game(), dim=8, framestack=2, grayscale=False)
    assert stacked.observation_space.shape == (8, 8, 6) == stacked.reset(seed=1)[0].shape


@pytest.mark.parametrize("setting", ["dim", "frameskip", "framestack"])
def test_settings_below_one(setting):
    with pytest.raises(ValueError, match=f"{setting}=-1\\): must be at least 1"):
        wrap_atari_for_new_api_stack(Game(), **{setting: -1})


def test_observations_that_are_no_images():
    game = Game()
    game.observation_space = Box(0, 255, (128,), np.uint8)
    with pytest.raises(ValueError, match="obs_type"):
        wrap_atari_for_new_api_stack(game)
    with pytest.raises(ValueError, match="grayscale=False"):
        wrap_atari_for_new_api_stack(Game(shape=(20, 16)), grayscale=False)


def test_frames_that_the_game_skips_itself(monkeypatch, caplog):
    monkeypatch.setattr(notices, "_given", set())

    class Skipping(Game):
        def __init__(self, frameskip=4):
            super().__init__()

    gym.register("Skipping-v0", entry_point=Skipping)
    try:
        with caplog.at_level(logging.WARNING):
            wrap_atari_for_new_api_stack(gym.make("Skipping-v0", frameskip=1))
            wrap_atari_for_new_api_stack(gym.make("Skipping-v0", frameskip=4), frameskip=1)
            assert caplog.messages == []
            wrap_atari_for_new_api_stack(gym.make("Skipping-v0", frameskip=4))
    finally:
        del gym.registry["Skipping-v0"]
    assert len(caplog.messages) == 1 and "env_config={'frameskip': 1}" in caplog.messages[0]
