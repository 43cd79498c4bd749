"""Video file as an object: its path, content and notebook player."""

from __future__ import annotations

import base64
import dataclasses
import html
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from jaxrl_stack.videos.encoding import write_video
from jaxrl_stack.videos.episodes import RecordedEpisode, captioned

_MOST_BYTES = 30_000_000
"""A notebook that holds more than this becomes slow to save and to open."""


@dataclasses.dataclass(frozen=True)
class Video:
    """Video of episodes. In a notebook it appears as a player that contains the file and needs no server.

    Attributes:
        path: The file.
        returns: Sum of the environment's rewards, of every episode.
        lengths: Steps of every episode.
        fps: Frames per second.
        note: Remark on the frames for viewers; None if there is nothing.
        agent_returns: Return of each agent by its name, for every episode; empty with one agent.
    """

    path: pathlib.Path
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    fps: float
    note: str | None = None
    agent_returns: tuple[dict[str, float], ...] = ()

    def __str__(self) -> str:
        of_agents = self.agent_returns or [{}] * len(self.returns)
        texts = []
        for value, length, own in zip(self.returns, self.lengths, of_agents, strict=True):
            parts = ", ".join(f"{name}: {part:.6g}" for name, part in own.items())
            texts.append(f"{value:.6g}{f' ({parts})' if parts else ''} in {length} steps")
        shown = ", ".join(texts)
        return f"{self.path}: {len(self.returns)} episode(s), return {shown}"

    def _repr_html_(self) -> str:
        """Returns an HTML player that contains the video file.

        For a file of more than `_MOST_BYTES` bytes, returns only text: the path, the returns and lengths of the
        episodes, and the file size.
        """
        size, text = self.path.stat().st_size, html.escape(str(self))
        if size > _MOST_BYTES:
            return f"<p>{text} ({size / 1e6:.0f} MB, too large for a notebook)</p>"
        return player(self.path, str(self))


def player(path: pathlib.Path, text: str) -> str:
    """Returns HTML that contains a video's file and plays it.

    Args:
        path: The file, .mp4, .webm or .gif.
        text: Description, for those who cannot see it.
    """
    data, kind, text = base64.b64encode(path.read_bytes()).decode(), path.suffix.lower()[1:], html.escape(text)
    style = "max-width: 100%; height: auto"
    if kind == "gif":
        return f'<img style="{style}" alt="{text}" src="data:image/gif;base64,{data}">'
    shows = f'style="{style}" src="data:video/{kind};base64,{data}"'
    return f"<video controls autoplay muted loop playsinline {shows}>{text}</video>"


def make_video(episodes: Sequence[RecordedEpisode], path: str | os.PathLike[str], fps: float = 30.0) -> Video:
    """Writes one or more recorded episodes, one after the other, to a video file.

    Returns a `Video` object with the file's path and the returns and lengths of the episodes.

    Args:
        episodes: At least one.
        path: See `write_video`.
        fps: Frames per second.

    Raises:
        ValueError: No episodes, another suffix, frames that are no images, or `fps` is not positive.
        ImportError: Pillow is not installed.
    """
    rewards = [np.asarray(episode.rewards, np.float64) for episode in episodes]
    of_agents = [{name: float(own.sum()) for name, own in one.agent_rewards.items()} for one in episodes]
    written = write_video(captioned(episodes, fps), path, fps)
    return Video(
        path=written,
        returns=tuple(float(own.sum()) for own in rewards),
        lengths=tuple(map(len, rewards)),
        fps=fps,
        note=next((episode.note for episode in episodes if episode.note), None),
        agent_returns=tuple(of_agents) if any(of_agents) else (),
    )
