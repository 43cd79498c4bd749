"""What files of tests cost is read as it was written, and says in which order they run."""

from __future__ import annotations

import itertools
import math

import pytest

from tests import costs


def test_seconds_are_those_of_the_table():
    files = {
        "core/test_a.py": [30.0, 1.0, 2.0, 3.04, 1.0, 0.5, 4.5, 1.5],
        "test_b.py": [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1234.5, 0.0],
    }
    page = f"# Page\n\n{costs.table(files)}\n| other.py | 7 |\n"
    assert costs.wall_seconds(page) == {"core/test_a.py": 4.5, "test_b.py": 1234.5}
    assert costs.column(page, "slow") == {"core/test_a.py": 2.0, "test_b.py": 0.0}


def test_files_that_are_not_measured_keep_their_rows():
    old = {"test_costs.py": [1.0] * 8, "test_marks.py": [2.0] * 8, "test_deleted.py": [3.0] * 8}
    new = {"test_marks.py": [4.0] * 8, "test_docs.py": [5.0] * 8}
    assert costs.merged(costs.table(old), new) == {"test_costs.py": [1.0] * 8, **new}


def test_what_takes_long_is_listed_until_it_takes_little(tmp_path):
    tests = [
        ("test_a[1]", "fast parametrize", 0.3),
        ("test_b", "fast", 0.2),
        ("test_c", "long", 0.2),
        ("test_d", "long", 0.05),
        ("test_e", "trains", 3.0),
        ("test_f", "long slow", 3.0),
    ]
    cases = [
        f'<testcase classname="tests.ops.test_scans" name="{name}" time="1"><properties>'
        f'<property name="cpu_s" value="{cpu}"/><property name="marks" value="{marks}"/></properties></testcase>'
        for name, marks, cpu in tests
    ]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    assert costs.long_ones(report) == ["ops/test_scans.py::test_a[1]", "ops/test_scans.py::test_c"]
    listed = "core/test_checks.py::test_x\nops/test_scans.py::test_d\n"
    expected = ["core/test_checks.py::test_x", "ops/test_scans.py::test_a[1]", "ops/test_scans.py::test_c"]
    assert costs.merged_long_tests(listed, report) == expected
    ((file, row),) = costs.rows(report).items()
    assert file == "ops/test_scans.py" and row == pytest.approx([6, 2, 1, 6.75, 0.5, 3.0, 6.0, 1.0])


def test_files_with_actors_come_first_and_long_ones_before_short_ones(request):
    seconds = costs.wall_seconds(costs.PAGE.read_text())
    assert max(seconds.values()) > 1.0, "read nothing"
    files = [path for path, _ in itertools.groupby(request.session.items, lambda item: item.path)]
    # Whether a file has actors is known by its text: what was deselected may be all that it has of Ray.
    ranks = [("ray_session" in path.read_text(), seconds.get(_name(path), math.inf)) for path in files]
    assert ranks == sorted(ranks, reverse=True)


def _name(file):
    return file.relative_to(costs.ROOT).as_posix()
