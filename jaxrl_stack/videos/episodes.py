"""Contents of a video: an episode's frames, and the text below them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.utils.images import pillow

_LINE = 16
"""Height of a line of text, in pixels."""
_WIDTH = 240
"""Of the narrowest video; smaller frames are enlarged by a whole number."""
_CHARACTER = 6
"""Width of a character, in pixels."""
_MOST_AGENTS = 8
"""Of more agents, videos show the sum of the returns only."""
_HOLD_S = 0.5
"""How long the last frame of an episode stands."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """Episode recorded for a video: its frames, rewards and actions.

    Attributes:
        frames: uint8 ``[H, W, 3]`` each: of the first state, then after every step. May be drawn while it is iterated.
        rewards: float ``[T]``, the environment's.
        note: Remark on the frames for viewers; None if there is nothing.
        agent_rewards: float ``[T]`` by the name of each of several agents; empty for one.
        actions: Action of each step, for frames that do not show what it does; empty for no such line.
    """

    frames: Iterable[np.ndarray]
    rewards: np.ndarray
    note: str | None = None
    agent_rewards: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    actions: Sequence[Any] = ()


class PackedFrames:
    """Frames of an episode, uint8 ``[H, W, 3]``, compressed in memory; without compression, the frames of ten thousand
    steps would take 7 GB.

    Args:
        frames: The first frames of the episode.
    """

    def __init__(self, frames: Iterable[object] = ()):
        self._packed: list[tuple[tuple[int, ...], bytes]] = []
        for frame in frames:
            self.append(frame)

    def append(self, frame: object) -> None:
        """Compresses a frame and appends it to the frames of the episode."""
        array = checked_frame(frame)
        self._packed.append((array.shape, zlib.compress(array.tobytes(), 1)))

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape) for shape, data in self._packed)


def captioned(episodes: Sequence[RecordedEpisode], fps: float) -> Iterator[np.ndarray]:
    """Yields the frames of all episodes, one after the other, with text below each frame.

    The text contains the number of the episode, the step, the return so far, the action before the frame (if episodes
    have actions), and the return of each of several agents.

    Args:
        episodes: At least one; frames of others than the first are fitted to its size.
        fps: Frames per second, for how often the last frame of an episode is repeated.

    Yields:
        uint8 ``[H, W, 3]``, all of one size, both sides even.

    Raises:
        ValueError: For frames that are no images.
        ImportError: Pillow is not installed.
    """
    size: tuple[int, int] | None = None
    # Of all episodes, so that all frames have as many lines.
    names = dict.fromkeys(name for episode in episodes for name in episode.agent_rewards)
    has_actions = any(len(episode.actions) for episode in episodes)
    for number, episode in enumerate(episodes, start=1):
        title = f"episode {number} of {len(episodes)}   " if len(episodes) > 1 else ""
        returns = _so_far(episode.rewards)
        of_agents = {name: _so_far(episode.agent_rewards.get(name, 0.0 * episode.rewards)) for name in names}
        frame = None
        for step, drawn in enumerate(episode.frames):
            picture = _enlarged(checked_frame(drawn))
            size = size or picture.shape[:2]
            lines = [f"{title}step {step}   return {returns[step]:.6g}"]
            if has_actions:
                text = action_text(episode.actions[step - 1]) if 0 < step <= len(episode.actions) else "–"
                lines.append(_cut(f"action {text}", size[1]))
            lines += _lines_of_agents({name: float(own[step]) for name, own in of_agents.items()}, size[1])
            frame = _with_text(_fitted(picture, *size), lines + ([episode.note] if episode.note else []))
            yield frame
        if frame is not None:
            yield from [frame] * round(_HOLD_S * fps)


def action_text(action: Any) -> str:
    """Formats an action as text: ``"1"``, ``"0.5, -0.25"``, ``"jump: 1, turn: 0.5"``."""
    if isinstance(action, Mapping):
        return ", ".join(f"{key}: {action_text(part)}" for key, part in action.items())
    if isinstance(action, tuple):
        return ", ".join(map(action_text, action))
    return ", ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in np.ravel(action).tolist())


def _cut(text: str, width: int) -> str:
    """Shortens a text that is wider than `width` pixels; the last character is then "…"."""
    most = max(1, (width - 8) // _CHARACTER)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _so_far(rewards: np.ndarray) -> np.ndarray:
    """Cumulative sums of an episode's T rewards, float64 ``[T + 1]``: entry t is the sum of the first t rewards, and
    entry 0 is 0.
    """
    return np.concatenate([[0.0], np.cumsum(rewards, dtype=np.float64)])


def _lines_of_agents(returns: Mapping[str, float], width: int) -> list[str]:
    """Formats the returns of several agents as lines of text for a video.

    A line is at most `width` pixels wide, or contains only one agent. The number of lines does not depend on the values
    of the returns. Returns [] for more than `_MOST_AGENTS` agents.
    """
    if len(returns) > _MOST_AGENTS:
        return []
    cell = max(map(len, returns), default=0) + len(": -1.23457e-08   ")
    per_line = max(1, width // (_CHARACTER * cell))
    texts = [f"{name}: {value:.6g}" for name, value in returns.items()]
    return ["   ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]


def check_num_episodes(episodes: object) -> None:
    """Raises ValueError unless the number of episodes is an int of at least 1."""
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"record(episodes={episodes!r}): give an integer of at least 1.")


def checked_frame(frame: object) -> np.ndarray:
    """Checks that a rendered frame is uint8 ``[H, W, 3]``, and returns it as a NumPy array.

    Raises:
        ValueError: It is something else.
    """
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or not array.size:
        raise ValueError(
            f"render() returned {array.dtype}{list(array.shape)}. Return a frame uint8 [height, width, 3] from "
            "render(): red, green and blue from 0 to 255."
        )
    return array


def _enlarged(frame: np.ndarray) -> np.ndarray:
    factor = -(-_WIDTH // frame.shape[1])
    return frame.repeat(factor, 0).repeat(factor, 1) if factor > 1 else frame


def _fitted(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    if frame.shape[:2] == (height, width):
        return frame
    return np.asarray(pillow().Image.fromarray(frame).resize((width, height)))


def _with_text(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """Draws lines of text below a video frame. Width and height become even, as video codecs require."""
    pil = pillow()
    height, width = frame.shape[:2]
    picture = pil.Image.new("RGB", (width + width % 2, height + height % 2 + _LINE * len(lines) + 4), "white")
    picture.paste(pil.Image.fromarray(frame))
    draw = pil.ImageDraw.Draw(picture)
    for i, line in enumerate(lines):
        draw.text((4, height + 2 + i * _LINE), line, fill=(60, 60, 60), font=pil.ImageFont.load_default(11))
    return np.asarray(picture)
