"""Runs of several agents: their returns in figures, reports, displays, findings and goals."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from jaxrl_stack.runs.agent_returns import SUM, columns_of_agents
from jaxrl_stack.runs.best import Best
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.diagnoses import diagnoses
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.notebook import NotebookDisplay
from jaxrl_stack.runs.plots import bands_by_agent, plot_runs, runs_as_text
from jaxrl_stack.runs.progress import LiveDisplay, PlainLines
from jaxrl_stack.runs.report import report_html
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.statistics import RunStatistics
from jaxrl_stack.runs.stop import Plateau, StopCriteria

AGENT = "env_runners/agent_episode_returns_mean"
NUM_ITERATIONS = 24


def results(num_agents=2, num_policies=2):
    """The return of agent k is k + 1 times as high, with the other sign for odd ones."""
    for i in range(NUM_ITERATIONS):
        agents = {f"a{k}": (k + 1.0) * i * (-1) ** k for k in range(num_agents)}
        policies = {f"p{p}": sum(list(agents.values())[p::num_policies]) for p in range(num_policies)}
        yield {
            "training_iteration": i + 1,
            "num_env_steps_sampled_lifetime": 100 * (i + 1),
            "time_total_s": i + 1.0,
            "time_this_iter_s": 1.0,
            "timers": {"compile_s": 0.1},
            "env_runners": {
                "episode_return_mean": sum(agents.values()),
                "agent_episode_returns_mean": agents,
                "module_episode_returns_mean": policies,
            },
            "learners": {"__all_modules__": {"n": 1}, **{mid: {"total_loss": 1.0} for mid in policies}},
        }


def run_of(*sizes, seed=0, lr=0.1):
    history = History()
    for result in results(*sizes):
        history.append(result)
    return Run(f"seed {seed}", history, {"env": "Game", "seed": seed, "lr": lr}, {"algorithm": "PPO"})


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_")}


@pytest.mark.parametrize(
    ("sizes", "names"),
    [((1, 1), []), ((2, 1), ["a0", "a1"]), ((9, 3), ["p0", "p1", "p2"]), ((9, 1), []), ((20, 17), [])],
)
def test_returns_are_shown_of_agents_or_of_the_policies_of_many(sizes, names):
    history = run_of(*sizes).history
    assert list(columns_of_agents(history.columns)) == names and not columns_of_agents(history.columns, "seconds")
    figure = history.plot()
    assert list(lines_of(figure)) == ([*names, SUM] if names else ["env_runners/episode_return_mean"])


def test_figures_have_a_line_per_agent_and_a_thin_sum(tmp_path):
    runs = [run_of(seed=0), run_of(seed=1)]
    figure = plot_runs(runs, out=tmp_path / "runs.png")
    lines = lines_of(figure)
    assert list(lines) == ["a0", "a1", SUM] and (tmp_path / "runs.png").stat().st_size > 0
    assert lines[SUM].get_linewidth() < lines["a0"].get_linewidth()
    np.testing.assert_allclose(lines["a1"].get_ydata()[-1], -2.0 * (NUM_ITERATIONS - 1))
    assert figure.axes[0].get_title("left") == "PPO on Game"
    assert list(lines_of(run_of().history.plot(label="mine"))) == ["mine"]
    # Of several groups the sums are compared.
    assert len(bands_by_agent([run_of(), run_of(lr=0.2)])) == 2
    assert re.findall(r"^(a0|a1|sum.*)$", runs_as_text(runs), re.MULTILINE) == ["a0", "a1", SUM]


def test_reports_name_the_agents():
    page = report_html([run_of()])
    assert "mean return of all agents at the end" in page and "mean return of a1 at the end" in page
    assert ">a0<" in page and f">{SUM}<" in page  # the legend
    assert "return of a1 at the end, interquartile mean" in report_html([run_of(seed=0), run_of(seed=1)])
    assert 'aria-label="mean episode return of a1"' in report_html([run_of(), run_of(lr=0.2)])


def test_displays_show_the_returns_of_agents(capsys):
    statistics, history = RunStatistics(), run_of().history
    *_, last = results()
    statistics.update(last)
    PlainLines(StopCriteria(None)).iteration(last, statistics, is_last=True)
    assert "return -23.0 (a0: 23.0, a1: -46.0)" in capsys.readouterr().out
    console = Console(file=io.StringIO(), width=120)
    live = LiveDisplay(console, StopCriteria(None))
    live.begin(history, "")
    live.iteration(last, statistics, is_last=True)
    console.print(live._render())
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["a0", "a1", "sum"]
    notebook = NotebookDisplay(StopCriteria(None))
    notebook._history = history
    assert notebook._curve().count("<polyline") == 3 and "■ a1" in notebook._curve()


def test_findings_are_those_of_the_policies():
    history = run_of().history
    found = {finding.title: finding for finding in diagnoses(history)}
    assert "The return is still rising (p0)" in found and not any(
        RETURN in finding.columns for finding in found.values()
    )
    # One that is not trained learns nothing.
    others = History()
    for result in results():
        del result["learners"]["p1"]["total_loss"]
        others.append({**result, "learners": {**result["learners"], "p1": {"n": 1.0}}})
    assert not any("(p1)" in finding.title for finding in diagnoses(others))


def test_goals_and_the_best_state_are_those_of_an_agent():
    best, rises = Best(evaluates=False, keeps=f"{AGENT}/a0"), Best(evaluates=True)
    *_, last = results()
    assert [best.is_beaten_by(result) for result in results()] == [True] * NUM_ITERATIONS and best.value == 23.0
    assert rises.metric == f"evaluation/{RETURN}" and not rises.is_beaten_by(last)
    with pytest.raises(ValueError, match=r"reporting\(keep_best='.*/a7'\): .*a0"):
        Best(evaluates=False, keeps=f"{AGENT}/a7").is_beaten_by(last)
    reason = StopCriteria({f"{AGENT}/a0": 20.0}).reached(last)
    assert reason == f"{AGENT}/a0 = 23 has reached 20" and reason.is_goal
    criteria = StopCriteria(None, plateau=Plateau(patience=5, x="iterations", metric=f"{AGENT}/a1"))
    assert [bool(criteria.reached(result)) for result in results()].index(True) == 5
