"""Compares recorded sequences (windows) with a world model's predictions, as arrays or as a video. The model gets only
the first observations, and all actions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.world_model import parts_of
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.replay.arithmetic import IS_FIRST
from jaxrl_stack.utils.images import pillow
from jaxrl_stack.videos.encoding import write_video
from jaxrl_stack.videos.video import Video

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import DreamerV3RLModule

_GIVEN, _IMAGINED, _TRUTH = (68, 145, 72), (221, 119, 34), (40, 44, 52)
_PANEL, _BAR, _GAP = 192, 6, 4


class Comparison(NamedTuple):
    """Sequences of recorded steps (windows) from the replay buffer, and the world model's predictions of their
    observations and rewards.

    Attributes:
        observed: ``{part of observations: [N, T, ...]}``, the module's inputs; the part of a space without parts is
            "obs".
        imagined: Same form, float32: observations decoded from the states of given steps, then imagined with the
            recorded actions.
        rewards: float32 ``[N, T]``, rewards of the items.
        imagined_rewards: float32 ``[N, T]``, predicted rewards.
        given: Number of given steps.
    """

    observed: dict[str, np.ndarray]
    imagined: dict[str, np.ndarray]
    rewards: np.ndarray
    imagined_rewards: np.ndarray
    given: int

    @property
    def num_steps(self) -> int:
        """Number of steps T of each compared sequence."""
        return self.rewards.shape[1]


def compare(module: DreamerV3RLModule, columns: Mapping[str, Any], given: int) -> Comparison:
    """Predicts the later observations and rewards of recorded sequences (windows) from the first `given` observations
    and all recorded actions, with the most likely latent states.

    Args:
        module: The module.
        columns: Windows ``[N, T, ...]`` from replay of consecutive items, each of one episode, with ``STATE_IN`` ``[N,
            ...]``.
        given: Steps whose observations the model gets, from 1 to T - 1.
    """
    obs = columns[Columns.OBS]
    imagined, rewards = _imagined(module, dict(columns), given)
    return Comparison(
        jax.tree.map(np.asarray, dict(obs) if module.world_model.is_dict else {"obs": obs}),
        jax.tree.map(np.asarray, imagined),
        np.asarray(columns[Columns.REWARDS]),
        np.asarray(rewards),
        given,
    )


@nnx.jit(static_argnames="given")
def _imagined(module: DreamerV3RLModule, columns: dict[str, Any], given: int) -> tuple[dict[str, jax.Array], jax.Array]:
    model, state = module.world_model, columns[Columns.STATE_IN]
    actions = module.actions_for_model(columns[Columns.ACTIONS])
    known = {name: x[:, :given] for name, x in model.normalised(columns[Columns.OBS]).items()}
    before = module.state_before(state)
    observed = model.observe(known, actions[:, :given], columns[IS_FIRST][:, :given], None, before).states

    def step(state: Any, actions: jax.Array) -> tuple[Any, Any]:
        state = model.imagine_step(state, actions, None)
        return state, state

    last = jax.tree.map(lambda x: x[:, -1], observed)
    # An action leads to the item after its own.
    _, rest = jax.lax.scan(step, last, jnp.swapaxes(actions[:, given - 1 : -1], 0, 1))
    rest = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rest)
    features = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), observed, rest).features
    return model.denormalised(model.decode(features)), model.reward_of(features)


def longest_in_an_episode(columns: dict[str, Any], number: int, least: int) -> dict[str, Any]:
    """Selects the `number` recorded sequences that begin with the most items of a single episode, and cuts them to one
    length.

    An item is a step or a final observation. The sequences (windows) are cut to the longest common length at which each
    sequence contains items of one episode only.

    Args:
        columns: Windows ``[M, T, ...]``.
        number: N, at most M.
        least: Minimum of the length after the cut.

    Raises:
        ValueError: If this length would be below `least`.
    """
    first = np.asarray(columns[IS_FIRST])[:, 1:]
    lengths = np.where(first.any(axis=1), first.argmax(axis=1) + 1, first.shape[1] + 1)
    chosen = np.argsort(-lengths, kind="stable")[:number]
    length = int(lengths[chosen].min())
    if length < least:
        raise ValueError(
            f"windows={number}: imagine_video() and compare_with_replay() need {number} recorded sequences with at "
            f"least {least} steps of one episode (given + 1). In a sample from the replay buffer, the "
            f"shortest of the {number} longest sequences has only {length} such steps. Lower given= or windows=, or "
            f"train until episodes are longer."
        )

    def of(name: str, x: Any) -> Any:
        return np.asarray(x)[chosen] if name == Columns.STATE_IN else np.asarray(x)[chosen, :length]

    return {name: jax.tree.map(lambda x, name=name: of(name, x), column) for name, column in columns.items()}


def write_comparison(
    comparison: Comparison, space: gym.Space | None, path: str | os.PathLike[str], fps: float
) -> Video:
    """Writes a video that compares recorded sequences (windows) with the world model's predictions.

    The video shows the sequences side by side: images as observation, prediction and difference; vectors as curves of
    all entries, with observed values dark and predicted values orange. The bar above a sequence is green while the
    model gets observations, and orange afterwards.

    Args:
        comparison: From `compare`.
        space: The module's observation space.
        path: See `write_video`.
        fps: Frames per second.
    """
    lengths = (comparison.num_steps,) * len(comparison.rewards)
    returns = tuple(float(x) for x in comparison.rewards.sum(axis=1))
    written = write_video(_frames(comparison, space), path, fps)
    note = f"{comparison.given} steps are given, the others imagined"
    return Video(written, returns, lengths, fps, note)


def _frames(comparison: Comparison, space: gym.Space | None) -> Iterator[np.ndarray]:
    parts = parts_of(space)
    images = {name: _as_bytes(comparison, name, part) for name, part in parts.items() if len(part.shape) > 1}
    vectors = [name for name, part in parts.items() if len(part.shape) == 1]
    for t in range(comparison.num_steps):
        columns = []
        for n in range(len(comparison.rewards)):
            bar = np.full((_BAR, _PANEL, 3), _GIVEN if t < comparison.given else _IMAGINED, np.uint8)
            panels = [bar]
            for truth, model in images.values():
                error = (model[n, t].astype(np.int16) - truth[n, t]) // 2 + 128
                panels += [_panel(x) for x in (truth[n, t], model[n, t], error.astype(np.uint8))]
            panels += [_curves(comparison, name, n, t) for name in vectors]
            columns += [np.concatenate(panels), np.full((sum(map(len, panels)), _GAP, 3), 255, np.uint8)]
        frame = np.concatenate(columns[:-1], axis=1)
        # Codecs want even sizes.
        yield np.ascontiguousarray(frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2])


def _as_bytes(comparison: Comparison, name: str, part: gym.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Converts observed and imagined images to uint8 ``[N, T, H, W, 3]``, and returns both arrays.

    The images are one part of the observation, in N sequences of T steps.
    """
    truth, model = comparison.observed[name], comparison.imagined[name]
    low, high = (0.0, 255.0) if part.dtype == np.uint8 else (float(truth.min()), float(truth.max()))

    def scaled(x: np.ndarray) -> np.ndarray:
        x = np.clip((x - low) / max(high - low, 1e-6), 0.0, 1.0) * 255
        x = x if x.ndim == 5 else x[..., None]
        # Of other numbers of channels the last one, which of stacked frames is the newest.
        return (x if x.shape[-1] == 3 else np.repeat(x[..., -1:], 3, axis=-1)).astype(np.uint8)

    return scaled(truth), scaled(model)


def _panel(image: np.ndarray) -> np.ndarray:
    scale = max(1, _PANEL // image.shape[1])
    return np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)


def _curves(comparison: Comparison, name: str, window: int, t: int) -> np.ndarray:
    """Draws curves of all entries of a vector up to step `t`, as an image uint8 ``[height, width, 3]``."""
    pil = pillow()
    truth, model = comparison.observed[name][window], comparison.imagined[name][window]
    low, high = truth.min(axis=0), truth.max(axis=0)
    picture = pil.Image.new("RGB", (_PANEL, _PANEL), "white")
    draw = pil.ImageDraw.Draw(picture)
    height, step = _PANEL / truth.shape[1], (_PANEL - 1) / (comparison.num_steps - 1)
    for entry in range(truth.shape[1]):
        for values, colour in ((truth, _TRUTH), (model, _IMAGINED)):
            y = (values[: t + 1, entry] - low[entry]) / max(high[entry] - low[entry], 1e-6)
            y = height * (entry + 0.9 - 0.8 * np.clip(y, -0.125, 1.125))
            draw.line([(step * i, float(value)) for i, value in enumerate(y)], fill=colour, width=2)
    draw.line([(step * (comparison.given - 1), 0), (step * (comparison.given - 1), _PANEL)], fill=_GIVEN)
    return np.asarray(picture)
