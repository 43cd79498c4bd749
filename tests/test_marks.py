"""Marks are those of what a test uses, directly or through helpers, fixtures and parameters."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from bench import harness, learning
from tests.marks import marks_of


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
    return learning.compare_drivers(1, {}, within=512)


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
