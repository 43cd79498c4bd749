"""Reports about actors that wait for resources: lines in the log every ten seconds, and the live display."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from jaxrl_stack.runs.progress import LiveDisplay
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.utils.waiting import WaitingReport, waiting_lines, waiting_text
from tests.fake_actors import FakeActors


@pytest.mark.parametrize(
    ("number", "resources", "line"),
    [
        (3, {"CPU": 1.0}, "3 EnvRunner actors for 20 s: they need CPU: 1 each; the cluster has 0.5 of 2 CPU free."),
        (
            1,
            {"CPU": 0.5, "GPU": 1.0},
            "1 EnvRunner actor for 20 s: it needs CPU: 0.5, GPU: 1; the cluster has 0 of 0 GPU free.",
        ),
        (2, {"CPU": 0.5}, "2 EnvRunner actors for 20 s: the cluster has the resources, and the processes start."),
    ],
)
def test_the_line_names_the_resource_that_is_missing(number, resources, line):
    assert waiting_text("EnvRunner", number, 20.0, resources, {"CPU": 0.5}, {"CPU": 2.0}) == f"Waiting for {line}"


def test_a_wait_is_logged_every_ten_seconds_and_displayed_until_it_ends(caplog):
    fake = FakeActors()
    fake.free = {"CPU": 0.0}
    report = WaitingReport("Learner", lambda: {"CPU": 1.0}, fake)
    for _ in range(50):
        report.note(1)
        fake.sleep(0.5)
    need = "it needs CPU: 1; the cluster has 0 of 8 CPU free."
    assert caplog.messages == [f"Waiting for 1 Learner actor for {seconds} s: {need}" for seconds in (10, 20)]
    assert waiting_lines() == caplog.messages[1:]
    display = LiveDisplay(Console(file=io.StringIO(), width=200), StopCriteria(None))
    with display._console.capture() as capture:
        display._console.print(display._render())
    assert caplog.messages[1] in capture.get()
    report.note(0)
    assert waiting_lines() == []


def test_actors_whose_group_has_its_resources_only_have_to_start(caplog):
    fake = FakeActors()
    fake.free = {"CPU": 0.0}
    report = WaitingReport("Learner", lambda: {"CPU": 1.0}, fake, group="reserved")
    report.note(1)
    fake.sleep(10.0)
    report.note(1)
    report.end()
    assert caplog.messages[0].endswith("for 10 s: the cluster has the resources, and the process starts.")
