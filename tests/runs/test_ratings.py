"""Elo from games: hand-computed values, a second formulation, and tables."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from jaxrl_stack.runs.ratings import GameResults, elo_ratings


def results_of(wins, draws=None, names="abc"):
    wins = np.array(wins)
    return GameResults(tuple(names[: len(wins)]), wins, np.zeros_like(wins) if draws is None else np.array(draws))


CYCLE = results_of([[0, 8, 2], [2, 0, 8], [8, 2, 0]])


def test_two_players_have_the_closed_form():
    """Three of four points, with half a point and a game of the virtual draw: p / (1 - p) = 3.5 / 1.5."""
    results = results_of([[0, 1], [2, 0]], [[0, 1], [1, 0]])
    assert results.elo() == pytest.approx([0.0, 400 * np.log10(3.0 / 2.0)])
    assert results.win_rates()[1, 0] == pytest.approx(2.5 / 4)


def test_a_player_that_never_lost_has_a_finite_rating():
    assert results_of([[0, 0], [50, 0]]).elo()[1] == pytest.approx(400 * np.log10(50.5 / 0.5))


def test_ratings_maximise_the_likelihood():
    wins, draws = np.array([[0, 30, 3], [1, 0, 7], [5, 2, 0]]), np.array([[0, 0, 1], [0, 0, 2], [1, 2, 0]])
    points = wins + draws / 2 + 0.5 * (1 - np.eye(3))

    def minus_log_likelihood(free):
        strength = np.array([0.0, *free])
        return (points * np.log1p(np.exp(strength[None] - strength[:, None]))).sum()

    best = minimize(minus_log_likelihood, np.zeros(2), tol=1e-12).x
    assert results_of(wins, draws).elo()[1:] == pytest.approx(best * 400 / np.log(10), abs=1e-2)


def test_ratings_of_players_far_apart_converge():
    """A chain of players that each beat the one before: full Newton steps from zero overshoot here."""
    wins = np.diag([10_000] * 5, k=-1)
    step = 400 * np.log10(10_000.5 / 0.5)
    ratings = elo_ratings(wins.astype(float), (wins + wins.T).astype(float), virtual_draws=1e-9)
    assert np.isfinite(ratings).all() and (np.diff(ratings) > step).all()


def test_equal_strength_hides_a_cycle_that_the_win_rates_show():
    assert CYCLE.elo() == pytest.approx([0, 0, 0], abs=1e-6)
    assert CYCLE.win_rates()[0].tolist()[1:] == [0.8, 0.2]


def test_intervals_contain_the_rating_shrink_with_games_and_repeat():
    few, many = results_of([[0, 3], [7, 0]]), results_of([[0, 300], [700, 0]])
    (low, high), (low_many, high_many) = few.elo_intervals(), many.elo_intervals()
    assert low[1] < few.elo()[1] < high[1] and low_many[1] < many.elo()[1] < high_many[1]
    assert high_many[1] - low_many[1] < (high[1] - low[1]) / 5
    assert np.array_equal(few.elo_intervals(), (low, high))


def test_table_has_the_best_player_first_and_json_has_all_counts():
    results = results_of([[0, 1, 0], [3, 0, 0], [0, 0, 0]])
    lines = results.table().splitlines()
    assert lines[1].startswith("b ") and "75%" in lines[1] and "–" in lines[1]
    plain = json.loads(results.table("json"))
    assert plain["wins"][1] == [3, 0, 0] and plain["win_rates"][0] == [None, 0.25, None]


def test_a_page_is_returned_and_written(tmp_path):
    page = CYCLE.to_html(tmp_path / "new" / "games.html", title="<games>")
    assert (tmp_path / "new" / "games.html").read_text() == page
    assert "<svg" in page and "<h1>&lt;games&gt;</h1>" in page and "<th>player</th>" in page


def test_figures_are_written(tmp_path):
    CYCLE.plot(tmp_path / "elo.png", title="rock, paper, scissors")
    assert (tmp_path / "elo.png").stat().st_size > 1000


@pytest.mark.parametrize(("names", "what"), [("aab", "two names are equal"), ("ab", "shape")])
def test_refuses(names, what):
    with pytest.raises(ValueError, match=what):
        GameResults(tuple(names), np.zeros((3, 3), int), np.zeros((3, 3), int))
