"""Drawing of video frames (uint8 RGB) for environments without a renderer. Needs no window and no plotting library.

Frames show the states of gymnax's classic control environments and of MuJoCo models. For other environments, they show
the observations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.utils.images import pillow

_SIZE = (400, 260)
"""Width and height of drawn scenes, in pixels."""
_FINE = 2
"""How many times finer lines are drawn than they are shown."""
_INK, _BLUE, _ORANGE, _GREEN, _GREY = (40, 44, 52), (52, 101, 164), (221, 119, 34), (68, 145, 72), (176, 180, 187)
_PALETTE = np.array(
    [_BLUE, _ORANGE, _GREEN, (190, 60, 60), (130, 90, 170), (120, 84, 70), (214, 112, 172), (150, 150, 40),
     (40, 160, 170), (110, 110, 120)],
    np.uint8,
)  # fmt: skip
"""Colours of the channels of a grid."""

Point = tuple[float, float]


class _Scene:
    """Canvas of one frame: white, with coordinates x to the right and y upward, the same scale on both axes.

    Args:
        centre: Point in the middle of the image.
        width: Visible width, from left to right.
    """

    def __init__(self, centre: Point, width: float):
        self._pil = pillow()
        self._scale = _SIZE[0] * _FINE / width
        self._origin = (_SIZE[0] * _FINE / 2 - centre[0] * self._scale, _SIZE[1] * _FINE / 2 + centre[1] * self._scale)
        self._image = self._pil.Image.new("RGB", (_SIZE[0] * _FINE, _SIZE[1] * _FINE), "white")
        self._draw = self._pil.ImageDraw.Draw(self._image)

    def _pixels(self, points: Sequence[Point]) -> list[Point]:
        return [(self._origin[0] + x * self._scale, self._origin[1] - y * self._scale) for x, y in points]

    def polygon(self, points: Sequence[Point], colour: Any) -> None:
        self._draw.polygon(self._pixels(points), fill=colour)

    def line(self, points: Sequence[Point], colour: Any, pixels: float = 2) -> None:
        self._draw.line(self._pixels(points), fill=colour, width=round(pixels * _FINE), joint="curve")

    def rod(self, start: Point, end: Point, thickness: float, colour: Any) -> None:
        """Draws a bar with round ends; `thickness` is in the units of the scene's coordinates."""
        self.line([start, end], colour, thickness * self._scale / _FINE)
        for point in (start, end):
            self.disc(point, thickness / 2, colour)

    def disc(self, centre: Point, radius: float, colour: Any) -> None:
        ((x, y),) = self._pixels([centre])
        r = radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def frame(self) -> np.ndarray:
        return np.asarray(self._image.resize(_SIZE, self._pil.Image.Resampling.BOX))


def cartpole(state: Any, params: Any) -> np.ndarray:
    """Draws the cart, the pole, and the track between the position limits."""
    x, theta, limit = float(state.x), float(state.theta), float(params.x_threshold)
    scene = _Scene((0.0, 0.55), 2.4 * limit)
    scene.line([(-1.2 * limit, 0.0), (1.2 * limit, 0.0)], _GREY)
    for side in (-limit, limit):
        scene.line([(side, -0.12), (side, 0.12)], _GREY)
    scene.polygon([(x - 0.3, -0.15), (x + 0.3, -0.15), (x + 0.3, 0.15), (x - 0.3, 0.15)], _INK)
    length = 2 * float(params.length)
    scene.rod((x, 0.15), (x + length * np.sin(theta), 0.15 + length * np.cos(theta)), 0.1, _ORANGE)
    scene.disc((x, 0.15), 0.05, _BLUE)
    return scene.frame()


def acrobot(state: Any, params: Any) -> np.ndarray:
    """Draws both links and the target height."""
    first, second = float(params.link_length_1), float(params.link_length_2)
    whole = first + second
    angle, bend = float(state.joint_angle1), float(state.joint_angle2)
    elbow = (first * np.sin(angle), -first * np.cos(angle))
    tip = (elbow[0] + second * np.sin(angle + bend), elbow[1] - second * np.cos(angle + bend))
    scene = _Scene((0.0, 0.0), 3.4 * whole)
    scene.line([(-whole, 1.0), (whole, 1.0)], _GREY)  # gymnax ends an episode at this height
    scene.rod((0.0, 0.0), elbow, 0.12 * whole / 2, _BLUE)
    scene.rod(elbow, tip, 0.12 * whole / 2, _ORANGE)
    scene.disc((0.0, 0.0), 0.05 * whole / 2, _INK)
    scene.disc(elbow, 0.05 * whole / 2, _INK)
    return scene.frame()


def pendulum(state: Any, params: Any) -> np.ndarray:
    """Draws the rod (upright at angle 0), and below the rod a horizontal line. The length and direction of this
    line show the applied torque.
    """
    theta, torque, most = float(state.theta), float(np.ravel(state.last_u)[0]), float(params.max_torque)
    tip = (float(params.l) * -np.sin(theta), float(params.l) * np.cos(theta))
    scene = _Scene((0.0, -0.1), 4.4 * float(params.l))
    scene.rod((0.0, 0.0), tip, 0.16, _ORANGE)
    scene.disc((0.0, 0.0), 0.05, _INK)
    scene.line([(-1.0, -1.3), (1.0, -1.3)], _GREY, 1)
    scene.line([(0.0, -1.3), (torque / most, -1.3)], _BLUE, 5)
    return scene.frame()


def mountain_car(state: Any, params: Any) -> np.ndarray:
    """Draws the hill, the car and the flag."""
    left, right = float(params.min_position), float(params.max_position)
    scene = _Scene(((left + right) / 2, 0.6), 1.3 * (right - left))

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    ground = np.linspace(left - 0.3, right + 0.3, 100)
    scene.polygon([(ground[0], -1.0), *zip(ground, height(ground), strict=True), (ground[-1], -1.0)], (228, 232, 222))
    scene.line(list(zip(ground, height(ground), strict=True)), _GREY)
    goal = float(params.goal_position)
    scene.line([(goal, height(goal)), (goal, height(goal) + 0.2)], _INK)
    scene.polygon(
        [(goal, height(goal) + 0.2), (goal + 0.09, height(goal) + 0.165), (goal, height(goal) + 0.13)], _GREEN
    )
    x = float(state.position)
    slope = np.arctan(1.35 * np.cos(3 * x))
    turn = np.array([[np.cos(slope), -np.sin(slope)], [np.sin(slope), np.cos(slope)]])

    def on_car(along: float, above: float) -> Point:
        return tuple(np.array([x, height(x)]) + turn @ np.array([along, above]))

    scene.polygon([on_car(*p) for p in ((-0.07, 0.025), (0.07, 0.025), (0.05, 0.075), (-0.05, 0.075))], _ORANGE)
    for along in (-0.04, 0.04):
        scene.disc(on_car(along, 0.025), 0.025, _INK)
    return scene.frame()


def bodies(model: Any, positions: Any) -> np.ndarray | None:
    """Draws a MuJoCo model from the side, each geom as a bar along its longest axis; None if all geoms are meshes.

    Args:
        model: A ``mujoco.MjModel``.
        positions: Generalized positions of the model, ``[nq]``.
    """
    import mujoco  # pyright: ignore[reportMissingImports]

    sphere, capsule, ellipsoid, cylinder, box = (
        int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
    )
    solid = (sphere, capsule, ellipsoid, cylinder, box)
    shown = [i for i in range(model.ngeom) if int(model.geom_type[i]) in solid]
    if not shown:
        return None

    def seen(point: np.ndarray) -> Point:
        return float(point[0] + 0.3 * point[1]), float(point[2] + 0.3 * point[1])

    # As large as the bodies are at first, and where they are now.
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    moving = [i for i in shown if model.geom_bodyid[i]] or shown
    reaches = model.geom_size[moving].max(1, keepdims=True)
    width = 2.4 * np.ptp([data.geom_xpos[moving] - reaches, data.geom_xpos[moving] + reaches], (0, 1)).max()
    data.qpos[:] = positions
    mujoco.mj_kinematics(model, data)
    scene = _Scene(seen(data.geom_xpos[moving].mean(0)), width)
    for i in sorted(shown, key=lambda i: -data.geom_xpos[i][1]):  # from the farthest to the nearest
        (a, b, c), kind = model.geom_size[i], int(model.geom_type[i])
        half = np.array([a, a, a] if kind == sphere else [a, a, b] if kind in (capsule, cylinder) else [a, b, c])
        axis, radius = int(half.argmax()), np.sort(half)[1]
        reach = half[axis] if kind in (capsule, cylinder) else half[axis] - radius
        along = reach * data.geom_xmat[i].reshape(3, 3)[:, axis]
        ends = (seen(data.geom_xpos[i] - along), seen(data.geom_xpos[i] + along))
        colour = tuple(int(255 * x) for x in model.geom_rgba[i][:3])
        scene.rod(*ends, 2 * radius, _GREY if min(colour) > 220 else colour)
    return scene.frame()


SCENES: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "CartPole-v1": cartpole,
    "Acrobot-v1": acrobot,
    "Pendulum-v1": pendulum,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
}
"""gymnax's name of an environment -> ``(state, params) -> frame``."""
GRIDS = ("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar")
"""Environments whose observation is the whole picture: one channel per kind of object."""
FPS: Mapping[str, float] = {
    **{"CartPole-v1": 50.0, "Acrobot-v1": 15.0, "Pendulum-v1": 20.0},
    **dict.fromkeys(GRIDS, 12.0),
}
"""gymnax's name of an environment -> frames per second at which it looks as it is meant to; others: 30."""
NOTE = "drawn from the observations"
"""Stands below frames of `observation`."""


def observation(obs: Any, space: gym.Space, named_by: gym.Space | None = None) -> np.ndarray:
    """Draws an observation as a frame, uint8 ``[H, W, 3]``: an image or a bar chart.

    A Box of rank 2 or 3 with at least 2 rows and 2 columns is drawn as an image (see `grid`). Any other observation is
    drawn as a bar chart with one bar per number.

    Args:
        obs: One observation, NumPy.
        space: Space of the observation. If a bound is infinite, a bar shows ``x / (1 + |x|)``.
        named_by: Space whose parts name the bars, if it flattens to as many numbers; None for `space`. It is the
            environment's if connectors have made a vector of its Dict.

    Raises:
        ValueError: The space contains sequences or graphs, which cannot be drawn.
    """
    if isinstance(space, gym.spaces.Box) and len(space.shape) in (2, 3) and min(space.shape[:2]) > 1:
        return grid(np.asarray(obs), space)
    flat = gym.spaces.flatten_space(space)
    if not isinstance(flat, gym.spaces.Box):
        raise ValueError(
            f"Observations of {space} cannot be shown as images. Define render() in the environment (render(state) for "
            "a JaxEnv) and return a frame, uint8 [H, W, 3]."
        )
    return bars(
        np.asarray(gym.spaces.flatten(space, obs), np.float64),
        flat,
        _parts(space if named_by is None else named_by, space),
    )


def _parts(named_by: gym.Space, space: gym.Space) -> tuple[tuple[str, int], ...]:
    """Returns the groups of bars in the bar chart of an observation, as pairs ``(name, number of bars)``.

    If the space `named_by` is a Dict or Tuple with as many numbers as the observation's `space`, each key or entry of
    `named_by` is a group. Otherwise, each bar is a group, named by the index of the bar.
    """
    num_bars = gym.spaces.flatdim(space)
    parts: dict[str, gym.Space] = {}
    if isinstance(named_by, gym.spaces.Dict):
        parts = {str(key): part for key, part in named_by.spaces.items()}
    elif isinstance(named_by, gym.spaces.Tuple):
        parts = {str(index): part for index, part in enumerate(named_by.spaces)}
    if parts and named_by.is_np_flattenable and gym.spaces.flatdim(named_by) == num_bars:
        return tuple((name, gym.spaces.flatdim(part)) for name, part in parts.items())
    return tuple((str(index), 1) for index in range(num_bars))


def grid(image: np.ndarray, space: gym.spaces.Box) -> np.ndarray:
    """Draws an image ``[H, W]`` or ``[H, W, C]`` as a frame.

    Enlarges the image by the largest integer factor with which the longer side has at most 240 pixels; larger images
    keep their size.

    One channel is drawn in grey. Three channels of a uint8 image are red, green and blue; four are a stack of frames,
    of which the last is drawn. In other images, channels are kinds of objects: each cell has the colour of its first
    channel > 0.
    """
    image = image[..., None] if image.ndim == 2 else image
    if space.dtype == np.uint8 and image.shape[-1] in (1, 3, 4):
        frame = image if image.shape[-1] == 3 else image[..., -1:].repeat(3, -1)
    elif image.shape[-1] == 1:
        low, high = float(image.min()), float(image.max())
        frame = (255 * (image - low) / max(high - low, 1e-9)).repeat(3, -1)
    else:
        colours = np.concatenate([_PALETTE[np.arange(image.shape[-1]) % len(_PALETTE)], [[245, 246, 248]]])
        first = np.where((image > 0).any(-1), (image > 0).argmax(-1), image.shape[-1])
        frame = colours[first]
    frame = frame.astype(np.uint8)
    cell = max(1, 240 // max(frame.shape[:2]))
    frame = frame.repeat(cell, 0).repeat(cell, 1)
    if cell >= 12:  # thin lines between cells
        frame[::cell], frame[:, ::cell] = 255, 255
    return frame


def bars(values: np.ndarray, space: gym.spaces.Box, parts: tuple[tuple[str, int], ...]) -> np.ndarray:
    """Draws numbers as a bar chart: one bar per number, up or down from the middle. A bar at the bound of the space has
    full height.

    Args:
        values: One number for each bar.
        space: Box of these numbers.
        parts: Names below the bars, each with its number of bars.
    """
    low, high = np.ravel(space.low).astype(np.float64), np.ravel(space.high).astype(np.float64)
    bound = np.maximum(np.abs(low), np.abs(high))
    is_bounded = np.isfinite(bound) & (bound > 0)
    share = np.where(is_bounded, values / np.where(is_bounded, bound, 1.0), values / (1 + np.abs(values)))
    frame = np.full((160, 320, 3), 255, np.uint8)
    frame[80] = _GREY
    edges = np.linspace(8, 312, len(share) + 1).astype(int)
    for left, right, height in zip(edges[:-1], edges[1:], np.clip(np.nan_to_num(share), -1, 1) * 72, strict=True):
        top, bottom = sorted((80, 80 - round(height)))
        frame[top : bottom + 1, left : max(left + 1, right - 1 - (right - left) // 6)] = (
            _BLUE if height >= 0 else _ORANGE
        )
    return np.concatenate([frame, _names_below(parts, tuple(edges.tolist()))])


@functools.lru_cache(maxsize=16)
def _names_below(parts: tuple[tuple[str, int], ...], edges: tuple[int, ...]) -> np.ndarray:
    """Draws the names below the bars of an observation, each below the first bar of its Dict key or Tuple entry: uint8
    ``[16, 320, 3]``.

    Names are cut to the width of their part. If each bar has a name, only names that fit completely are drawn.
    """
    line = np.full((16, 320, 3), 255, np.uint8)
    has_name_for_each = all(count == 1 for _, count in parts)
    first, next_free = 0, 0
    for name, count in parts:
        left, right = edges[first], edges[first + count]
        first += count
        own = _name(name, 8 + 7 * len(name))[:, 4:]
        if has_name_for_each:
            if left < next_free or left + own.shape[1] > 320:
                continue
            next_free = left + own.shape[1]
        else:
            own = own[:, : max(0, right - left - 2)]
        line[:, left : left + own.shape[1]] = own
    return line


def side_by_side(panels: Sequence[Mapping[Any, np.ndarray]], agents: Sequence[Any]) -> Iterator[np.ndarray]:
    """Draws the observations of several agents side by side, each below the agent's name.

    Args:
        panels: For each frame, drawings of the agents that observe, by agent. All drawings of an agent have one size.
        agents: Order of the agents from left to right. An agent that does not observe keeps its last drawing; before
            its first drawing, its place is blank. Agents that never observe are left out.
    """
    blank = {agent: np.full_like(own, 255) for moment in reversed(panels) for agent, own in moment.items()}
    height = max(own.shape[0] for own in blank.values())
    shown = {agent: blank[agent] for agent in agents if agent in blank}
    names = np.concatenate([_name(str(agent), own.shape[1] + 8) for agent, own in shown.items()], axis=1)
    for moment in panels:
        shown.update(moment)
        below = [np.pad(own, ((0, height - len(own)), (0, 8), (0, 0)), constant_values=255) for own in shown.values()]
        yield np.concatenate([names, np.concatenate(below, axis=1)])


def _name(text: str, width: int) -> np.ndarray:
    """Renders a line of text, uint8 ``[16, width, 3]``."""
    pil = pillow()
    line = pil.Image.new("RGB", (width, 16), "white")
    pil.ImageDraw.Draw(line).text((4, 1), text, fill=(60, 60, 60), font=pil.ImageFont.load_default(11))
    return np.asarray(line)
