"""Reports about actors that wait for resources: lines in the log every ten seconds, and the live display."""

from __future__ import annotations

import gc
import io
import sys
import types

import pytest
from rich.console import Console

from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.notebook import NotebookDisplay
from jaxrl_stack.runs.progress import LiveDisplay, PlainLines
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


def test_actors_that_get_their_resources_all_at_once_are_summed():
    def text(number, needed, free):
        return waiting_text("EnvRunner", number, 20.0, {"CPU": needed}, {"CPU": free}, {"CPU": 4.0}, together=True)

    assert text(3, 3.0, 2.0).endswith("they need CPU: 3 together; the cluster has 2 of 4 CPU free.")
    assert text(3, 3.0, 4.0).endswith("has 4 of 4 CPU free, but not on nodes that can hold them.")
    assert text(1, 4.0, 4.0).endswith("it needs CPU: 4; the cluster has 4 of 4 CPU free, but not on one node.")


def test_a_line_does_not_outlive_the_object_that_waits():
    fake = FakeActors()
    report = WaitingReport("Learner", lambda: {"CPU": 1.0}, fake)
    report.note(1)
    fake.sleep(10.0)
    report.note(1)
    assert len(waiting_lines()) == 1
    del report
    gc.collect()
    assert waiting_lines() == []


def test_displays_show_a_line_during_the_wait_but_not_at_the_end(monkeypatch, capsys):
    fake, pages = FakeActors(), []
    handle = types.SimpleNamespace(update=pages.append)
    show = types.SimpleNamespace(HTML=str, display=lambda page, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", show)
    report = WaitingReport("Learner", lambda: {"CPU": 1.0}, fake)
    notebook = NotebookDisplay(StopCriteria(None))
    with PlainLines(StopCriteria(None)), notebook:
        notebook.begin(History(), "training")
        report.note(1)
        fake.sleep(10.0)
        report.note(1)
        assert "Waiting for 1 Learner actor for 10 s" in capsys.readouterr().out and "for 10 s" in pages[-1]
        notebook._redraw(is_last=True)
        assert "for 10 s" not in pages[-1]
    fake.sleep(10.0)
    report.note(1)
    assert len(pages) == 2 and capsys.readouterr().out == ""


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
