"""Conversion of episodes to padded blocks (batches ``[T, B, ...]`` with one episode per index on axis B), for
``Learner.update(episodes=...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import full_sequence_length, layout_of
from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.core.rl_module.rl_module import RLModule


class EpisodesAsBlocks(NamedTuple):
    """Result of `episodes_to_batch`: the episodes of each module as one padded batch ``[T, B, ...]``, split over
    devices.

    Attributes:
        blocks: Blocks by module, split over devices, ``[D, T, B / D, ...]``. Their columns are obs, actions, rewards,
            terminateds, truncateds, final_obs, loss_mask, all extra model outputs and the given columns; for modules
            with a recurrent state also resets and state_in.
        rows: For each module, the indices of the valid rows in the flattened block ``[D * T * B / D]``, episode by
            episode.
    """

    blocks: dict[str, Block]
    rows: dict[str, np.ndarray]


def episodes_to_batch(
    episodes: Sequence[SingleAgentEpisode],
    modules: MultiRLModule,
    *,
    columns: Sequence[dict[str, Any]] | None = None,
    num_devices: int = 1,
    common_sizes: Callable[[dict[str, int]], dict[str, int]] | None = None,
) -> EpisodesAsBlocks:
    """Converts episodes to padded batches ``[T, B, ...]`` with one episode per index on axis B, and splits axis B over
    devices.

    T, and B per device, are padded to powers of two, so that few shapes are compiled; padded rows have ``LOSS_MASK``
    False. A chunk of an unfinished episode counts as truncated at its end.

    Args:
        episodes: Episodes, finalized or not; their look-back is ignored.
        modules: The learner's modules, by id.
        columns: For each episode further columns, ``{column: arrays [len(episode), ...]}``; they replace columns of the
            episode with the same name.
        num_devices: ``D``; B is a multiple of D.
        common_sizes: Function from sizes by name to the sizes that all joined learners use, which are at least as
            large.

    Raises:
        ValueError: If no episode has a step, an episode's module is unknown, or an episode names no module and the
            learner has several, none of which is "default_policy".
        TypeError: If an entry is not a SingleAgentEpisode.
    """
    by_module: dict[str, list[dict[str, Any]]] = {}
    for i, episode in enumerate(episodes):
        if not isinstance(episode, SingleAgentEpisode):
            raise TypeError(f"update(episodes=...): entry {i} is {episode!r}. Pass a list of SingleAgentEpisodes.")
        module_id = episode.module_id or single_agent(modules, "episodes with a module_id").module_id
        if module_id not in modules:
            raise ValueError(
                f"Episode {episode.id_!r} belongs to module {module_id!r}, which the learner does not have. Set "
                f"episode.module_id to one of {list(modules)}."
            )
        if len(episode):
            own = _columns(episode) | (columns[i] if columns is not None else {})
            if modules[module_id].is_stateful():
                own = _with_states(own, episode, modules[module_id])
            by_module.setdefault(module_id, []).append(own)
    if not by_module:
        raise ValueError(
            f"update(episodes=...): none of the {len(episodes)} episodes has a step to learn from. Pass at least one "
            "episode with len(episode) > 0."
        )
    sizes = {}
    for module_id, own in by_module.items():
        longest = max(len(c[Columns.REWARDS]) for c in own)
        # At least a whole chunk: a shorter one would be a different program.
        longest = max(longest, full_sequence_length(modules[module_id]) or 1)
        sizes[f"{module_id}/steps"] = _power_of_two(longest)
        sizes[f"{module_id}/columns"] = num_devices * _power_of_two(-(-len(own) // num_devices))
    if common_sizes is not None:
        sizes = common_sizes(sizes)
    blocks, rows = {}, {}
    for module_id, own in by_module.items():
        shape = (sizes[f"{module_id}/steps"], sizes[f"{module_id}/columns"])
        columns_of_block, rows[module_id] = _side_by_side(own, shape, num_devices)
        layout = layout_of(modules[module_id], shape[0], is_masked=True)
        blocks[module_id] = Block.of_recording(columns_of_block, layout).deal_out(num_devices)
    return EpisodesAsBlocks(blocks, rows)


def _columns(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Returns the columns (observations, actions, rewards, ...) of one episode as arrays ``[len, ...]``."""
    length = len(episode)
    observations = _stacked(episode.get_observations(slice(0, length + 1)))
    flags = np.zeros((2, length), bool)
    flags[0, -1] = episode.is_terminated
    flags[1, -1] = not episode.is_terminated
    columns = {
        Columns.OBS: jax.tree.map(lambda x: x[:-1], observations),
        # Only the last row's entry is read: within an episode the next observation is the next row's.
        Columns.FINAL_OBS: jax.tree.map(lambda x: x[1:], observations),
        Columns.ACTIONS: _stacked(episode.get_actions(slice(0, length))),
        Columns.REWARDS: np.asarray(episode.get_rewards(slice(0, length)), np.float32),
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        Columns.LOSS_MASK: np.ones(length, bool),
    }
    for key in episode.extra_model_outputs:
        if key != "weights_seq_no":
            columns[key] = _stacked(episode.get_extra_model_outputs(key, slice(0, length)))
    return columns


def _with_states(columns: dict[str, Any], episode: SingleAgentEpisode, module: RLModule) -> dict[str, Any]:
    """Returns the columns of one episode, with the recurrent states ``STATE_IN`` and the episode starts ``RESETS``
    added.

    ``STATE_IN`` is the recurrent state before every step. ``RESETS`` is bool, True only in the first step of the whole
    episode. If `episode` is a later chunk of an episode, ``RESETS`` is False everywhere. Leaves out ``STATE_OUT``.

    The state before a step is its recorded ``STATE_IN``, or else ``STATE_OUT`` of the step before. If ``STATE_IN`` is
    missing, the first state is the initial state at the start of an episode, else ``STATE_OUT`` of the last look-back
    step. Only the first state is needed if the steps fit into one chunk.

    Raises:
        ValueError: If these states are missing.
    """
    columns = dict(columns)
    after = columns.pop(Columns.STATE_OUT, None)
    if Columns.STATE_IN not in columns:
        first = module.get_initial_state() if episode.t_started == 0 else None
        if first is None and after is not None and episode.observations.lookback:
            first = episode.get_extra_model_outputs(Columns.STATE_OUT, -1, neg_index_as_lookback=True)
        length = full_sequence_length(module)
        is_one_chunk = length is None or len(episode) <= length
        if first is None or (after is None and not is_one_chunk):
            raise ValueError(
                f"update(episodes=...): episode {episode.id_!r} has no recurrent states for a {type(module).__name__}. "
                f"Sample it with this module, or add the extra model output {Columns.STATE_IN!r} (state before each "
                f"step) or {Columns.STATE_OUT!r} (state after each step; an episode chunk that starts after t=0 then "
                "needs one look-back step)."
            )
        if after is None:  # only the first state is read
            after = jax.tree.map(lambda start: np.repeat(np.asarray(start)[None], len(episode), axis=0), first)
        columns[Columns.STATE_IN] = jax.tree.map(
            lambda start, later: np.concatenate([np.asarray(start)[None], later[:-1]]), first, after
        )
    resets = np.zeros(len(episode), bool)
    resets[0] = episode.t_started == 0
    return {**columns, Columns.RESETS: resets}


def _stacked(items: Any) -> Any:
    """Stacks a list of pytrees of equal structure, one per step, to a pytree of arrays; a pytree of arrays is returned
    unchanged.
    """
    if isinstance(items, list):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *items)
    return items


def _side_by_side(
    columns: list[dict[str, Any]], shape: tuple[int, int], num_devices: int
) -> tuple[dict[str, Any], np.ndarray]:
    """Stacks the columns of episodes to arrays ``[T, B, ...]``, with one episode per index on axis B.

    The arrays are padded with zeros; `shape` is ``(T, B)``. Also returns the flat indices of the steps that are not
    padding. The indices refer to the flattened block ``[D, T, B / D]``, episode by episode.
    """
    num_steps, num_columns = shape
    per_device = num_columns // num_devices
    lengths = [len(c[Columns.REWARDS]) for c in columns]

    def lay_out(*leaves: np.ndarray) -> np.ndarray:
        dtype = np.result_type(*{np.asarray(leaf).dtype for leaf in leaves})
        out = np.zeros((num_steps, num_columns, *np.shape(leaves[0])[1:]), dtype)
        for i, leaf in enumerate(leaves):
            out[: len(leaf), i] = leaf
        return out

    names = set(columns[0])
    for i, other in enumerate(columns):
        if set(other) != names:
            raise ValueError(
                f"The columns of episodes differ: {sorted(names)} in episode 0, {sorted(other)} in episode {i}. Pass "
                "only episodes with the same extra model outputs. Host connectors (they override `__call__`) must add "
                "the same columns to all episodes."
            )
    block = {name: jax.tree.map(lay_out, *[c[name] for c in columns]) for name in columns[0]}
    rows = [
        (i // per_device * num_steps + np.arange(n, dtype=np.int64)) * per_device + i % per_device
        for i, n in enumerate(lengths)
    ]
    return block, np.concatenate(rows)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
