"""Marks are those of what a test uses, directly or through helpers, fixtures and parameters."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench import harness, learning
from tests.conftest import COLLECTED, leave_slow_ones_out
from tests.marks import ROOT, SLOW, Slow, is_slow, marks_of


def plain(size=3):
    return [size] * 2


def starts_a_process():
    return subprocess.run([sys.executable], check=False)


def imports_inside():
    import multiprocessing

    return multiprocessing.get_context("spawn")


def builds(config):
    return [one.build_algo() for one in (config, config)]


class Helper:
    config = None

    @property
    def algo(self):
        return builds(self.config)


def uses_helpers():
    return Helper().algo, plain()


def builds_in_the_benchmarks():
    return learning.compare_drivers(1, {}, 512, None)


def starts_a_benchmark():
    return harness.report_of("bench.throughput")


def closure():
    algo = uses_helpers
    return lambda: algo


@pytest.mark.parametrize(
    ("code", "marks"),
    [
        (plain, {"fast"}),
        (starts_a_process, {"process"}),
        (imports_inside, {"process"}),
        (builds, {"trains"}),
        (uses_helpers, {"trains"}),
        (builds_in_the_benchmarks, {"trains"}),
        (starts_a_benchmark, {"process"}),
        (closure(), {"trains"}),
        ({"call": (functools.partial(builds, None),)}, {"trains"}),
        ([Helper, {"then": starts_a_process}], {"process", "trains"}),
    ],
)
def test_marks_follow_the_code(code, marks):
    assert marks_of("test_any.py", ["tmp_path"], [code]) == marks
    assert marks_of("test_any.py", ["ray_session"], [code]) == marks - {"fast"} | {"ray"}
    assert marks_of("checkpoints/test_kills.py", [], [code]) == marks - {"fast"} | {"hostile"}


def test_every_test_has_the_marks_of_what_it_uses(request):
    assert [mark.name for mark in request.node.own_markers] == ["fast"]


@functools.cache
def written_tests(file):
    """``file::name`` of the functions and methods in a file that are tests, without their cases."""
    tree = ast.parse((pathlib.Path(ROOT) / file).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    places = [("", tree.body), *((f"{node.name}::", node.body) for node in classes)]
    return {
        f"{file}::{place}{node.name}"
        for place, body in places
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.file)
def test_what_is_slow_is_kept_by_a_test_of_the_default_set(slow, request):
    listed = slow.tests()
    assert {name.partition("[")[0] for name in [*listed, slow.kept_by]} <= {
        *written_tests(slow.file),
        *written_tests(slow.kept_by.partition("::")[0]),
    }
    assert not is_slow(slow.kept_by) and slow.reason
    if any("::" in argument for argument in request.config.args):
        return  # files are not collected as a whole
    collected = request.config.stash[COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    for name in listed if slow.file in files else []:
        assert any(test == name or test.startswith((f"{name}[", f"{name}::")) for test in collected), name
    if slow.kept_by.partition("::")[0] in files:
        keepers = [test for test in collected if test == slow.kept_by or test.startswith(f"{slow.kept_by}[")]
        assert any(not is_slow(test) for test in keepers), slow.kept_by


def test_cases_of_a_test_are_slow_alone_and_the_tests_of_a_file_together():
    some = (Slow("a.py", "test_x[1]\n  TestY", "b.py::test_z", "it is the same"),)
    assert is_slow("a.py::test_x[1]", some) and is_slow("a.py::TestY::test_z[3]", some)
    others = ["a.py::test_x", "a.py::test_x[12]", "a.py::TestYes::test_z", "b.py::test_x[1]"]
    assert not any(is_slow(other, some) for other in others)
    whole = (Slow("a.py", "", "b.py::test_z", "it is the same"),)
    assert is_slow("a.py::test_x[12]", whole) and not is_slow("a.pyi::test_x", whole)


@pytest.mark.parametrize(
    ("expression", "arguments", "run"),
    [
        ("", ["tests"], ["other"]),
        ("not ray", ["tests"], ["other"]),
        ("slow", ["tests"], ["slow", "other"]),  # -m chooses between them
        ("not fast and not slow", ["tests"], ["slow", "other"]),
        ("", ["tests/test_marks.py"], ["slow", "other"]),
        ("", ["tests/test_marks.py::test_one", "tests/env"], ["slow", "other"]),
        ("", ["tests/test_costs.py"], ["other"]),
    ],
)
def test_slow_tests_run_where_they_or_their_file_are_asked_for(expression, arguments, run):
    left_out = []
    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr=expression),
        args=arguments,
        invocation_params=SimpleNamespace(dir=pathlib.Path(ROOT).parent),
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    marks = {"slow": {"slow"}, "other": set()}
    made: Any = [
        SimpleNamespace(name=name, path=pathlib.Path(__file__), get_closest_marker=lambda mark, own=own: mark in own)
        for name, own in marks.items()
    ]
    items = made.copy()
    leave_slow_ones_out(config, items)
    assert [item.name for item in items] == run and [*left_out, *items] == made
