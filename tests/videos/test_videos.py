"""Frames to files: captions, formats, the player; and the frames that are drawn here."""

from __future__ import annotations

import base64
import dataclasses
import re
import sys

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence
from PIL import Image, ImageSequence

from jaxrl_stack.env import drawings
from jaxrl_stack.env.jax_env import GymnaxEnv, JaxEnv
from jaxrl_stack.utils import notices
from jaxrl_stack.videos import RecordedEpisode, Video, make_video
from jaxrl_stack.videos.encoding import write_video
from jaxrl_stack.videos.episodes import PackedFrames, action_text, captioned

RED, BLUE = (np.broadcast_to(np.array(colour, np.uint8), (30, 241, 3)) for colour in ((255, 0, 0), (0, 0, 255)))


def episodes():
    return [
        RecordedEpisode(PackedFrames([RED, BLUE, RED]), np.array([1.0, 0.5])),
        RecordedEpisode([BLUE[:15, :120], RED[:15, :120]], np.array([-1.0]), note="drawn"),
    ]


def gif_frames(path):
    with Image.open(path) as image:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


def test_frames_get_captions_and_one_even_size():
    frames = list(captioned(episodes()[:1], fps=4))
    assert len(frames) == 3 + 2  # the last one stands for half a second
    assert {frame.shape for frame in frames} == {(30 + 20, 242, 3)} and frames[0].dtype == np.uint8
    np.testing.assert_array_equal(frames[1][:30, :241], BLUE)
    caption = [frame[30:].tobytes() for frame in frames]
    assert caption[3] == caption[4] == caption[2] and len(set(caption)) == 3
    # Small frames are enlarged, and have room for the note.
    assert next(captioned(episodes()[1:], fps=4)).shape == (30 + 36, 240, 3)


def test_captions_name_the_agents(tmp_path):
    of_agents = {f"a{i}": np.array([1.0, -1.0]) for i in range(3)}
    shown = [RecordedEpisode([RED] * 3, np.zeros(2), agent_rewards=own) for own in (of_agents, {"a0": np.ones(2)})]
    frames = list(captioned(shown, fps=4))
    # One line for step and return, and as many as three names need, in episodes without some of them, too.
    assert {frame.shape[0] for frame in frames} == {30 + 4 + 3 * 16}
    second_line = [frame[50:66].tobytes() for frame in frames[:3]]
    assert second_line[0] == second_line[2] != second_line[1]
    many = RecordedEpisode([RED], np.zeros(0), agent_rewards={str(i): np.zeros(0) for i in range(9)})
    assert next(captioned([many], fps=4)).shape[0] == 30 + 20
    video = make_video(shown, tmp_path / "x.gif")
    assert video.agent_returns == ({"a0": 0.0, "a1": 0.0, "a2": 0.0}, {"a0": 2.0})
    assert "return 0 (a0: 0, a1: 0, a2: 0) in 2 steps, 0 (a0: 2) in 2 steps" in str(video)
    assert make_video(episodes()[:1], tmp_path / "x.gif").agent_returns == ()


@pytest.mark.parametrize(
    "frame", [np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2, 3)), None], ids=["rgba", "float", "none"]
)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(ValueError, match=re.escape("render() returned") + ".*uint8 \\[height, width, 3\\]"):
        list(captioned([RecordedEpisode([frame], np.zeros(0))], 30))


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_videos_hold_every_frame(tmp_path, suffix):
    import av

    video = make_video(episodes()[:1], tmp_path / "folder" / f"x.{suffix}", fps=10)
    with av.open(str(video.path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 10
    assert len(frames) == 3 + 5 and frames[0].shape == (50, 242, 3)
    for frame, expected in zip(frames, (RED, BLUE, RED), strict=False):
        np.testing.assert_allclose(frame[5:25, 5:236].mean((0, 1)), expected[0, 0], atol=12)
    assert [path.name for path in video.path.parent.iterdir()] == [f"x.{suffix}"]
    assert (
        f'src="data:video/{suffix};base64,{base64.b64encode(video.path.read_bytes()).decode()}"' in video._repr_html_()
    )


def test_gifs_need_no_encoder(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(notices, "_given", set())
    video = make_video(episodes(), tmp_path / "x.mp4", fps=20)
    assert video == Video(tmp_path / "x.gif", (1.5, -1.0), (2, 1), 20, "drawn")
    assert "pip install 'jaxrl-stack[video]'" in caplog.text and "A .gif is written instead" in caplog.text
    frames = gif_frames(video.path)
    assert [tuple(frame[5, 5]) for frame in frames[:3]] == [(255, 0, 0), (0, 0, 255), (255, 0, 0)]
    assert {frame.shape for frame in frames} == {frames[0].shape}
    assert "<img" in video._repr_html_() and "x.gif: 2 episode(s), return 1.5 in 2 steps, -1 in 1 steps" in str(video)


def test_a_video_that_fails_leaves_nothing_behind(tmp_path):
    def breaking():
        yield RED
        raise RuntimeError("broken")

    (tmp_path / "x.gif").write_bytes(b"before")
    with pytest.raises(RuntimeError, match="broken"):
        make_video([RecordedEpisode(breaking(), np.ones(1))], tmp_path / "x.gif")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_paths_and_rates_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"x\.avi', has to end in \.mp4, \.webm or \.gif"):
        write_video([RED], tmp_path / "x.avi")
    with pytest.raises(ValueError, match="fps=0 has to be positive"):
        write_video([RED], tmp_path / "x.gif", 0)
    with pytest.raises(ValueError, match="There are no frames"):
        write_video([], tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------------ drawings


def moments(env):
    """Two states, of zeros and of ones or half-ones, NumPy."""
    _, state = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    return (
        jax.tree.map(lambda leaf, value=value: np.full(leaf.shape, value).astype(leaf.dtype), state)
        for value in (0.0, 0.5 if env.name.removeprefix("gymnax/") in drawings.SCENES else 1.0)
    )


@pytest.mark.parametrize("name", [*drawings.SCENES, "Breakout-MinAtar"])
def test_gymnaxs_classics_are_drawn_from_their_states(name):
    env = GymnaxEnv(name)
    first, second = (env.render(state) for state in moments(env))
    assert first.dtype == np.uint8 and first.shape == second.shape and first.shape[2] == 3
    assert not np.array_equal(first, second) and len(np.unique(first.reshape(-1, 3), axis=0)) > 2


def test_a_cart_is_drawn_where_it_is_and_a_pole_as_it_leans():
    env = GymnaxEnv("CartPole-v1")
    state, _ = moments(env)

    def centre(colour, **changes):
        frame = env.render(state.replace(x=0.0, theta=0.0).replace(**changes)).astype(int)
        return np.argwhere(np.abs(frame - np.array(colour)).sum(-1) < 30).mean(0)

    middle = drawings._SIZE[0] / 2
    assert centre(drawings._INK)[1] == pytest.approx(middle, abs=2)
    assert centre(drawings._INK, x=1.2)[1] > middle + 50
    assert centre(drawings._ORANGE, theta=0.2)[1] > middle + 5 > middle - 5 > centre(drawings._ORANGE, theta=-0.2)[1]


def test_a_class_of_ones_own_draws_itself_or_shows_its_observations():
    from gymnax.environments.classic_control.cartpole import CartPole

    class Drawn(CartPole):
        def render(self, state, params):
            return np.full((4, 4, 3), int(state.time), np.uint8)

    state, _ = moments(GymnaxEnv("CartPole-v1"))
    assert GymnaxEnv(Drawn).render(state).max() == 0 and GymnaxEnv(Drawn).render_fps == JaxEnv.render_fps
    # It may mean something else by its state.
    assert GymnaxEnv(type("Other", (CartPole,), {})).render(state) is None


def test_observations_are_drawn_by_their_spaces():
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    frame = drawings.observation(pixels, Box(0, 255, (4, 5, 3), np.uint8))
    np.testing.assert_array_equal(frame[24::48, 24::48], pixels)
    stack = np.stack([np.full((84, 84), i, np.uint8) for i in range(4)], -1)
    assert drawings.observation(stack, Box(0, 255, (84, 84, 4), np.uint8)).max() == 3
    grid = np.zeros((10, 10, 6), np.float32)
    grid[2, 3, 1] = grid[5, 5, 4] = 1.0
    frame = drawings.observation(grid, Box(0, 1, (10, 10, 6)))
    assert {tuple(frame[24 * r + 12, 24 * c + 12]) for r, c in ((2, 3), (5, 5), (0, 0))} == {
        tuple(drawings._PALETTE[1]), tuple(drawings._PALETTE[4]), (245, 246, 248)
    }  # fmt: skip
    # Bars: to the bounds where there are any.
    space = Dict({"a": Box(-2, 2, (2,)), "b": Discrete(2), "c": Box(-np.inf, np.inf, ())})
    frame = drawings.observation({"a": np.array([2.0, -1.0]), "b": 1, "c": np.array(1.0)}, space)
    blue, orange = ((frame == np.array(colour)).all(-1).sum(0) for colour in (drawings._BLUE, drawings._ORANGE))
    heights = [int((blue - orange)[8 + 61 * i + 20]) for i in range(5)]
    assert heights == pytest.approx([72, -36, 0, 72, 36], abs=2)
    assert frame.shape == (176, 320, 3)
    with pytest.raises(ValueError, match="Observations of Sequence.*cannot be shown as images. Define render\\(\\)"):
        drawings.observation((0, 1), Sequence(Discrete(2)))


def names_below(space) -> np.ndarray:
    """bool ``[320]``, pixels below the bars of an observation that are not white in some row."""
    frame = drawings.observation(space.sample(), space)
    return (frame[160:] < 200).any((0, 2))


def test_parts_of_observations_have_their_names_below_their_bars():
    shown = names_below(Dict(speed=Box(-1, 1, (6,)), door=Discrete(2)))  # bars from 8 and from 236 on
    assert shown[8:45].any() and not shown[60:230].any() and shown[236:265].any() and not shown[280:].any()
    few, many = names_below(Box(-1, 1, (4,))), names_below(Box(-1, 1, (300,)))
    assert all(few[8 + 76 * i : 24 + 76 * i].any() for i in range(4)) and not few[30:80].any()
    assert many.sum() < 200 and many[:40].any() and many[250:].any()  # as many as fit


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (np.int32(1), "1"),
        (np.array([0.5, -0.25], np.float32), "0.5, -0.25"),
        ({"turn": np.array([0.125], np.float32), "jump": 1}, "turn: 0.125, jump: 1"),
        ((np.array([1, 2]), 0), "1, 2, 0"),
    ],
)
def test_actions_are_texts(action, text):
    assert action_text(action) == text


def test_frames_with_actions_have_a_line_for_them():
    plain = RecordedEpisode([RED] * 3, np.zeros(2))
    acting = [dataclasses.replace(plain, actions=[own, 1]) for own in (0, 5)]
    (without, *_), (start, one, two, *_), (_, other, same, *_) = (list(captioned([own], 2)) for own in (plain, *acting))
    assert start.shape[0] == without.shape[0] + 16
    assert (one != other).any() and (two == same).all()
    wide = dataclasses.replace(plain, actions=[np.linspace(0, 1, 99)] * 2)
    assert next(iter(captioned([wide], 2))).shape == start.shape
