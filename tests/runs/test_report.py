"""The report of a run: one file that says all of it and asks the network for nothing."""

from __future__ import annotations

import html.parser
import json
import os
import pathlib

import pytest

from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.report import write_report
from jaxrl_stack.runs.run import Run, find_runs
from tests import programs

ENV = "gymnax/CartPole-v1"


def table(top: float) -> History:
    history = History()
    for i in range(12):
        history.append(
            {
                "env_runners": {"episode_return_mean": top * i},
                "learners": {"default_policy": {"clip_fraction": 0.6, "entropy": 0.5}},
                "num_env_steps_sampled_lifetime": 100.0 * (i + 1),
                "time_total_s": 0.5 * (i + 1),
                "timers": {"compile_s": 2.0 if i == 0 else 0.0, "device_s": 0.5, "host_s": 0.25, "training_step": 0.1},
            }
        )
    return history


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """A run as it lies on the disk, with two videos."""
    folder = tmp_path / "PPO_gymnax-CartPole-v1_today"
    (folder / "videos").mkdir(parents=True)
    table(10.0).to_csv(folder / "progress.csv")
    (folder / "params.json").write_text(json.dumps({"env": ENV, "lr": 0.5, "seed": 3, "note": "<b>&"}))
    origin = {
        "command": "jaxrl train PPO gymnax/CartPole-v1 --set lr=0.5",
        "started": "2026-01-01T10:00:00+00:00",
        "versions": {"jax": "0.10.2"},
        "git": {"jaxrl_stack": {"commit": "abc123", "dirty": True}, "working_directory": None},
    }
    (folder / "run.json").write_text(json.dumps(origin))
    for age, name in enumerate(("new.gif", "old.mp4")):
        path = folder / "videos" / name
        path.write_bytes(name.encode())
        os.utime(path, (1e9 - age, 1e9 - age))
    return folder


class Page(html.parser.HTMLParser):
    """The elements of a page: all are closed, and nothing comes from elsewhere."""

    VOID = {"meta", "img", "br"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        assert tag not in ("script", "link", "iframe")
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("data:", "#")), value

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def test_a_report_says_all_of_a_run_in_one_file(folder, tmp_path):
    path = write_report(folder, tmp_path / "made" / "report.html", defaults={"env": None, "lr": 0.1, "note": "<b>&"})
    assert path == tmp_path / "made" / "report.html"
    page = Page(path.read_text())
    for words in (
        f"PPO on {ENV}",
        "mean episode return",
        "Much of every batch is clipped",
        "60%",
        "jaxrl train PPO gymnax/CartPole-v1 --set lr=0.5",
        "0.10.2",
        "abc123, with changes that are not committed",
        "compiling: 2 s (18%)",
        "on the device: 6 s (55%)",
    ):
        assert words in page.text, words
    # Return, clip fraction and entropy, and the newest of the videos.
    assert page.seen.count("svg") == 3 and page.seen.count("img") == 1 and "video" not in page.seen
    rows = page.text[page.text.index("Settings") : page.text.index("All settings")]
    assert "lr" in rows and "0.5" in rows and "0.1" in rows and "note" not in rows and "seed" not in rows


def test_seeds_are_drawn_together_with_a_band(tmp_path):
    runs = [Run(f"seed {seed}", table(10.0 + seed), {"env": ENV, "seed": seed}) for seed in range(3)]
    text = write_report(runs, tmp_path / "report.html", title="Three <seeds>").read_text()
    assert "<h1>Three &lt;seeds&gt;</h1>" in text
    assert "FillBetweenPolyCollection" in text
    page = Page(text).text
    assert "121return at the end, interquartile mean of 3 seeds" in page and "110 … 132" in page
    assert "Problem in 3 of 3 runs: Much of every batch is clipped." in page


def test_a_report_says_whether_runs_were_members_of_one_program(tmp_path):
    def text(*numbers):
        runs = [
            Run(f"seed {i}", table(1.0), {"env": ENV}, {"num_members": n} if n else {}) for i, n in enumerate(numbers)
        ]
        return write_report(runs, tmp_path / "report.html").read_text()

    assert "one of 8 members of one program" in text(8)
    assert "2 runs trained as members of populations, each of these one program<" in text(8, 8)
    assert "1 run trained as members of populations, each of these one program; 1 run trained alone" in text(8, 0)
    assert "each run trained alone" in text(0, 0) and "alone" not in text(0)


def test_an_algorithm_reports_itself_and_finds_the_files_of_its_run(tmp_path):
    algo = programs.run(results_dir=str(tmp_path / "run")).build_algo()
    algo.train()
    (tmp_path / "run" / "episode.gif").write_bytes(b"gif")
    page = Page(algo.report(tmp_path / "report.html").read_text())
    algo.stop()
    assert f"PPO on {ENV}" in page.text and "jaxlib" in page.text and "img" in page.seen
    rows = page.text[page.text.index("Settings") : page.text.index("All settings")]
    assert "minibatch_size64128" in rows and "num_epochs130" in rows and "gamma" not in rows


def test_a_video_that_is_too_large_is_named_and_left_out(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxrl_stack.runs.report._MAX_VIDEO_BYTES", 1)
    page = Page(write_report(folder, tmp_path / "report.html").read_text())
    assert "img" not in page.seen and "videos/new.gif" in page.text


def test_what_is_not_known_is_left_out(tmp_path):
    history = History()
    history.append({"training_iteration": 1})
    page = Page(write_report(Run("bare", history), tmp_path / "report.html").read_text())
    assert "bare" in page.text and "svg" not in page.seen
    for heading in ("Learning", "Video", "Settings", "Where the time went"):
        assert heading not in page.text


def test_several_places_are_one_report(folder, tmp_path):
    assert len(find_runs([folder])) == 1
    text = write_report([folder, Run("more", table(20.0))], tmp_path / "report.html").read_text()
    assert "2runs, of several kinds" in Page(text).text


def test_a_report_is_html(folder, tmp_path):
    with pytest.raises(ValueError, match="report.pdf must end in .html"):
        write_report(folder, tmp_path / "report.pdf")
    with pytest.raises(FileNotFoundError, match="contains no run"):
        write_report(tmp_path / "nothing", tmp_path / "report.html")
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
