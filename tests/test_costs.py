"""What files of tests cost is read as it was written, and says in which order they run."""

from __future__ import annotations

import itertools

from tests import costs


def test_seconds_are_those_of_the_table():
    files = {
        "core/test_a.py": [30.0, 1.0, 2.0, 3.04, 1.0, 0.5, 4.5, 1.5],
        "test_b.py": [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1234.5, 0.0],
    }
    page = f"# Page\n\n{costs.table(files)}\n| other.py | 7 |\n"
    assert costs.wall_seconds(page) == {"core/test_a.py": 4.5, "test_b.py": 1234.5}
    assert costs.column(page, "slow") == {"core/test_a.py": 2.0, "test_b.py": 0.0}


def test_files_with_actors_come_first_and_long_ones_before_short_ones(request):
    seconds = costs.wall_seconds(costs.PAGE.read_text())
    assert max(seconds.values()) > 1.0, "read nothing"
    files = [path for path, _ in itertools.groupby(request.session.items, lambda item: item.path)]
    # Whether a file has actors is known by its text: what was deselected may be all that it has of Ray.
    ranks = [("ray_session" in path.read_text(), seconds.get(_name(path), 0.0)) for path in files]
    assert ranks == sorted(ranks, reverse=True)


def _name(file):
    return file.relative_to(costs.ROOT).as_posix()
