"""Encoding of frames to a video file: mp4 and webm with PyAV, gif with Pillow."""

from __future__ import annotations

import importlib
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from jaxrl_stack.utils.images import pillow
from jaxrl_stack.utils.notices import notice_once

_CODECS = {
    ".mp4": ("libx264", {"crf": "20", "preset": "veryfast"}, {"movflags": "faststart"}),
    ".webm": ("libvpx-vp9", {"crf": "32", "b:v": "0", "deadline": "realtime", "cpu-used": "8"}, {}),
}
"""Suffix -> codec, its options, those of the container."""
_GIF_FPS = 50
"""Browsers play faster gifs slowly."""


def checked_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Checks that the path of a video file ends in .mp4, .webm or .gif, and returns the path as a `pathlib.Path`.

    The folder of the path need not exist.

    Raises:
        ValueError: It does not end in .mp4, .webm or .gif.
    """
    path = pathlib.Path(path)
    if path.suffix.lower() not in (*_CODECS, ".gif"):
        raise ValueError(f"The path of a video, {str(path)!r}, has to end in .mp4, .webm or .gif.")
    return path


def write_video(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0) -> pathlib.Path:
    """Writes frames to a video file, one frame at a time; creates missing folders.

    Args:
        frames: uint8 ``[H, W, 3]``, all of one size, both sides even.
        path: Ends in .mp4 (H.264), .webm (VP9) or .gif. Where PyAV is not installed, .gif is written instead of the
            first two, with a notice.
        fps: Frames per second.

    Returns:
        The path that was written.

    Raises:
        ValueError: No frames, another suffix, or `fps` is not positive.
        ImportError: Pillow is not installed, and a gif is to be written.
    """
    path = checked_path(path)
    if not fps > 0:
        raise ValueError(f"fps={fps!r} has to be positive.")
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError(f"There are no frames to write to {str(path)!r}. Pass at least one.")
    frames = itertools.chain([first], frames)
    av = None
    if path.suffix.lower() != ".gif":
        try:
            av = importlib.import_module("av")
        except ImportError as error:
            notice_once(
                f"{path.suffix} needs PyAV ({error}): pip install 'jaxrl-stack[video]'. A .gif is written instead."
            )
            path = path.with_suffix(".gif")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: who looks at a folder of videos meanwhile finds none that is cut off.
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        if av is None:
            _write_gif(frames, unfinished, fps)
        else:
            _encode(av, frames, unfinished, fps)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _encode(av: Any, frames: Iterator[np.ndarray], path: pathlib.Path, fps: float) -> None:
    codec, options, container_options = _CODECS[path.suffix.lower()]
    with av.open(str(path), "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=options)
        for number, frame in enumerate(frames):
            if not number:
                stream.height, stream.width = frame.shape[:2]
                stream.pix_fmt = "yuv420p"  # all that browsers and QuickTime show
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def _write_gif(frames: Iterator[np.ndarray], path: pathlib.Path, fps: float) -> None:
    """Writes frames as a GIF with a colour palette for each frame. Above 50 frames per second, frames are skipped."""
    image = pillow().Image
    every = max(1, -(-int(fps) // _GIF_FPS))
    pictures = (image.fromarray(frame).quantize(dither=0) for frame in itertools.islice(frames, 0, None, every))
    first = next(pictures)
    first.save(path, save_all=True, append_images=pictures, duration=round(1000 * every / fps), loop=0)
