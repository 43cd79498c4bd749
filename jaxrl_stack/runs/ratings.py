"""Ratings of players from the results of their games: Elo as the maximum likelihood of the Bradley–Terry model.

The model says that player i beats player j with probability ``p_i / (p_i + p_j)``; Elo is ``400 log10(p_i)``. A draw
counts as half a win for both. Sources: Bradley and Terry, "Rank analysis of incomplete block designs", Biometrika 1952;
Hunter, "MM algorithms for generalized Bradley–Terry models", Annals of Statistics 2004, for the likelihood.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.runs.html_pages import html_page, html_section, write_text
from jaxrl_stack.runs.score_statistics import NUM_RESAMPLES
from jaxrl_stack.runs.tables import check_format, formatted_table

if TYPE_CHECKING:
    from jaxrl_stack.runs.figures import RunFigure

_ELO = 400.0 / np.log(10.0)
_MAX_NEWTON_STEPS = 100
_TOLERANCE = 1e-10


def elo_ratings(points: np.ndarray, num_games: np.ndarray, virtual_draws: float = 1.0) -> np.ndarray:
    """Computes maximum-likelihood Elo ratings of n players; the first player's rating is 0.

    Args:
        points: ``float64[..., n, n]``, points of player i against player j: wins + draws / 2. The diagonal is ignored.
        num_games: ``float64[..., n, n]``, symmetric.
        virtual_draws: Draws that are added to each pair, so that the rating of an unbeaten player is finite.

    Returns:
        ``float64[..., n]``.
    """
    size = points.shape[-1]
    off_diagonal = 1.0 - np.eye(size)
    games = (np.asarray(num_games, np.float64) + virtual_draws) * off_diagonal
    total = ((np.asarray(points, np.float64) + virtual_draws / 2.0) * off_diagonal).sum(-1)
    strength = np.zeros((*points.shape[:-2], size))  # log p
    if size == 1:
        return strength
    for _ in range(_MAX_NEWTON_STEPS):
        win = 1.0 / (1.0 + np.exp(strength[..., None, :] - strength[..., :, None]))
        gradient = total - (games * win).sum(-1)
        weight = games * win * (1.0 - win)
        # The first player is fixed: the likelihood depends on differences only.
        information = (np.eye(size) * weight.sum(-1)[..., None, :] - weight)[..., 1:, 1:]
        step = np.linalg.solve(information, gradient[..., 1:, None])[..., 0]
        # Far from the maximum a full Newton step can overshoot.
        strength[..., 1:] += step / np.maximum(1.0, np.abs(step).max(-1, keepdims=True))
        if np.abs(step).max() < _TOLERANCE:
            break
    return _ELO * strength


@dataclasses.dataclass(frozen=True)
class GameResults:
    """Numbers of games won and drawn between each pair of players, and ratings computed from them.

    Elo orders players on one line. If A beats B, B beats C and C beats A, it says little: look at the win rates, too.

    Args:
        players: Names of the ``n`` players.
        wins: int ``[n, n]``, games that player i won against player j.
        draws: int ``[n, n]``, symmetric.

    Raises:
        ValueError: If names are not unique, or the shapes differ from ``[n, n]``.
    """

    players: tuple[str, ...]
    wins: np.ndarray
    draws: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.players), len(self.players))
        if len(set(self.players)) < len(self.players):
            raise ValueError(
                f"players={list(self.players)}: two names are equal. Pass a different name for each player."
            )
        if self.wins.shape != shape or self.draws.shape != shape:
            raise ValueError(
                f"wins has shape {self.wins.shape} and draws {self.draws.shape}. Pass matrices of shape {shape}: a row "
                f"and a column for each player."
            )

    @property
    def num_games(self) -> np.ndarray:
        """Number of games between each pair of n players, int ``[n, n]``."""
        return self.wins + self.wins.T + self.draws

    def win_rates(self) -> np.ndarray:
        """Points of player i per game against player j (win 1, draw 0.5), float64 ``[n, n]``; NaN for pairs without
        games.
        """
        games = self.num_games
        points = self.wins + self.draws / 2.0
        return np.where(games > 0, points / np.maximum(games, 1), np.nan)

    def elo(self) -> np.ndarray:
        """Elo rating of each player, float64 ``[n]``; the first player's rating is 0. See `elo_ratings`."""
        return elo_ratings(self.wins + self.draws / 2.0, self.num_games)

    def elo_intervals(
        self, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes confidence intervals of the ratings by a percentile bootstrap, which resamples the games of each
        pair of players.

        Args:
            confidence: Share of the resamples between the ends of the interval.
            num_resamples: Number of resamples.

        Returns:
            ``(low, high)``, float64 ``[n]`` each. The same results always have the same interval.
        """
        rng, size = np.random.default_rng(0), len(self.players)
        points, games = np.zeros((num_resamples, size, size)), np.zeros((size, size))
        for i in range(size):
            for j in range(i + 1, size):
                outcomes = np.array([self.wins[i, j], self.draws[i, j], self.wins[j, i]], np.float64)
                number = int(outcomes.sum())
                if not number:
                    continue
                won, drawn, lost = rng.multinomial(number, outcomes / number, size=num_resamples).T
                points[:, i, j], points[:, j, i] = won + drawn / 2.0, lost + drawn / 2.0
                games[i, j] = games[j, i] = number
        ratings = elo_ratings(points, np.broadcast_to(games, points.shape))
        rest = (1.0 - confidence) / 2.0
        low, high = np.quantile(ratings, (rest, 1.0 - rest), axis=0)
        return low, high

    def table(self, format: str = "text") -> str:
        """Formats a table with each player's rating, confidence interval and win rates against the other players; the
        highest rating comes first.

        Args:
            format: "text", "md", "html", "latex" or "json".

        Raises:
            ValueError: If the format is unknown.
        """
        check_format(format)
        if format == "json":
            return json.dumps(self.to_dict(), indent=2)
        ratings, (low, high), rates = self.elo(), self.elo_intervals(), self.win_rates()
        order = np.argsort(-ratings, kind="stable")
        header = ["player", "Elo", "95 %", "games", *(f"vs {self.players[j]}" for j in order)]
        rows = [
            [
                self.players[i],
                f"{ratings[i]:.0f}",
                f"{low[i]:.0f} to {high[i]:.0f}",
                str(int(self.num_games[i].sum())),
                *("–" if i == j or np.isnan(rates[i, j]) else f"{rates[i, j]:.0%}" for j in order),
            ]
            for i in order
        ]
        notes = [
            f"Elo: Bradley–Terry model, {self.players[0]} at 0, a virtual draw per pair; bootstrap over games.",
            "Elo misleads where A beats B, B beats C and C beats A: compare the win rates (a draw is half a win).",
        ]
        return formatted_table(header, rows, format, notes)

    def to_dict(self) -> dict[str, Any]:
        """Returns players, wins, draws, win rates and Elo ratings with 95 % intervals as a dict of lists.

        A win rate is None if the two players have played no game against each other.
        """
        low, high = self.elo_intervals()
        rates = [[None if np.isnan(rate) else rate for rate in row] for row in self.win_rates().tolist()]
        return {
            "players": list(self.players),
            "wins": self.wins.tolist(),
            "draws": self.draws.tolist(),
            "win_rates": rates,
            "elo": self.elo().tolist(),
            "elo_95_low": low.tolist(),
            "elo_95_high": high.tolist(),
        }

    def plot(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> RunFigure:
        """Draws the ratings with their confidence intervals, and next to them the matrix of win rates.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            title: Title of the figure.

        Returns:
            The figure, which notebooks display.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            ValueError: If `path` has another ending.
        """
        from jaxrl_stack.runs.figures import draw_ratings

        return draw_ratings(self, title=title, path=path)

    def to_html(self, path: str | os.PathLike[str] | None = None, *, title: str = "Games") -> str:
        """Returns an HTML page with the table and the figure of the ratings and win rates. If `path` is given, also
        writes the page to this file.

        Args:
            path: File to write; missing folders are created. None writes none.
            title: Title of the page.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
        """
        table = f'<div class="table">{self.table("html")}</div>'
        figure = f"<figure>{self.plot().to_svg()}</figure>"
        body = f"{html_section('Ratings and win rates', table)}\n{html_section('Figure', figure)}"
        return write_text(html_page(title, body), path)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return self.table("html")
