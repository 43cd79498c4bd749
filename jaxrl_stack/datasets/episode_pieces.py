"""Assignment of recorded chunks of episodes to their episodes. Chunks of one episode may be anywhere in a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def episode_of_pieces(ids: Sequence[str], begin: np.ndarray, end: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Returns the index of the episode to which each chunk belongs; episodes are numbered in order of appearance.

    Chunks with one id belong to one episode if each begins where, or after, the chunk before it ends, and that chunk
    has not ended the episode. Files of other programs count episodes from 0 each, so one id may stand for many
    episodes.

    Args:
        ids: Episode id of each of the P chunks.
        begin: int ``[P]``, number of its first step.
        end: int ``[P]``, number of the step after its last one.
        ended: bool ``[P]``, whether its last step ends the episode.

    Returns:
        int64 ``[P]``.
    """
    numbers = np.full(len(ids), -1, np.int64)
    by_id: dict[str, list[int]] = {}
    for piece, name in enumerate(ids):
        by_id.setdefault(name, []).append(piece)
    first_piece = np.arange(len(ids))
    for pieces in by_id.values():
        if len(pieces) > 1:
            for piece, first in _linked(pieces, begin, end, ended):
                first_piece[piece] = first
    _, numbers = np.unique(first_piece, return_inverse=True)
    return numbers.astype(np.int64)


def _linked(pieces: Sequence[int], begin: np.ndarray, end: np.ndarray, ended: np.ndarray) -> list[tuple[int, int]]:
    """Finds the episode of each chunk in `pieces`, a list of chunks with the same episode id.

    The chunks may belong to several episodes. Returns a pair ``(chunk index, lowest index of a chunk in the same
    episode)`` for each chunk.
    """
    found: list[tuple[int, int]] = []
    open_: list[tuple[int, int]] = []  # last and first piece of episodes that have not ended
    for piece in sorted(pieces, key=lambda piece: (begin[piece], piece)):
        fitting = [own for own in open_ if end[own[0]] <= begin[piece]]
        # The piece that ends where this one begins, and of these the nearest one before it.
        best = max(fitting, key=lambda own: (end[own[0]], own[0] < piece, own[0]), default=None)
        if best is not None:
            open_.remove(best)
        first = piece if best is None else best[1]
        found.append((piece, first))
        if not ended[piece]:
            open_.append((piece, first))
    earliest: dict[int, int] = {}
    for piece, first in found:
        earliest[first] = min(earliest.get(first, piece), piece)
    return [(piece, earliest[first]) for piece, first in found]
