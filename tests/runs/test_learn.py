"""Training until a goal is reached: `Algorithm.learn`, its files and its trackers."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import types

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.runs.displays import make_display
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.notebook import NotebookDisplay, curve_svg
from jaxrl_stack.runs.origin import read_origin
from jaxrl_stack.runs.output import RunOutput
from jaxrl_stack.runs.progress import Silence
from jaxrl_stack.runs.report import write_report
from jaxrl_stack.runs.result import Result
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import StopCriteria, StopError
from tests import programs

STEPS, RETURN = "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"


@pytest.fixture(scope="module")
def algo():
    algo = programs.run().build_algo()
    yield algo
    algo.stop()


def test_it_trains_until_the_first_goal_is_reached(algo, capsys):
    start = algo.iteration
    result = algo.learn({"env_runners": {STEPS: 128 * (start + 2)}, "time_total_s": 3600})
    assert type(result) is Result and result["training_iteration"] == start + 2 and result["done"] is True
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PPO in 'gymnax/CartPole-v1', until env_runners/num_env_steps") and "..." in lines[1]
    assert f"Stopped:    env_runners/{STEPS} = {128 * (start + 2)} has reached {128 * (start + 2)}" in lines
    # It is there already.
    assert algo.learn({STEPS: 128}) is result and algo.iteration == start + 2
    assert algo.learn(2, progress=False)["training_iteration"] == start + 4
    seen = []
    assert algo.learn(lambda result: seen.append(result) or True, progress=False) is seen[-1]
    # Asked of the last result, and then once in each iteration.
    asked, before = [], algo.iteration
    algo.learn(lambda result: asked.append(result["training_iteration"]) or len(asked) > 2, progress=False)
    assert asked == [before, before + 1, before + 2]
    assert capsys.readouterr().out == "" and algo.stop_criteria is None
    assert algo.train()["done"] is False
    assert algo.history["training_iteration"].tolist()[start:] == [*range(start + 1, algo.iteration + 1)]


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ({"env_runners/episode_reward_mean": 475}, "until: .*Near matches: 'env_runners/episode_return_mean'"),
        ({"training_iteration": "9"}, "'training_iteration' has the bound '9', which must be a number"),
        ({("evaluation", "env_runners", "episode_return_mean"): 9}, r"Set evaluation\(evaluation_interval=10\)"),
        (475.0, r"until=475.0: must be a dict \{path in the result: value\}, a number of iterations, or a function"),
        (True, "until=True: must be a dict"),
    ],
)
def test_a_goal_that_cannot_be_is_refused_before_training(algo, until, message):
    before = algo.iteration
    with pytest.raises(StopError, match=message):
        algo.learn(until)
    assert algo.iteration == before


def test_ctrl_c_ends_it_after_the_iteration_and_a_second_one_at_once(capsys):
    presses = {2: 1, 3: 2}

    def press(*, result, **kwargs):
        for _ in range(presses.get(result["training_iteration"], 0)):
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    algo = programs.run().callbacks(on_train_result=press).build_algo()
    # A number of a callback's own may be a goal: names are checked by the first result.
    with pytest.raises(StopError, match="'mine'"):
        algo.learn({"mine": 1}, progress=False)
    result = algo.learn()
    assert result["training_iteration"] == 2 and result["done"] is False
    captured = capsys.readouterr()
    assert "Stopped:    Ctrl-C" in captured.out and "stopping after this iteration" in captured.err
    with pytest.raises(KeyboardInterrupt):
        algo.learn(progress=False)
    assert algo.train()["training_iteration"] == 4 and signal.getsignal(signal.SIGINT) is handler
    algo.stop()


def test_a_callback_ends_it_as_with_tune(capsys):
    algo = programs.run().callbacks(on_train_result=lambda *, result, **kwargs: result.update(done=True)).build_algo()
    assert algo.learn(5)["training_iteration"] == 1
    assert "Stopped:    a callback has set result['done']" in capsys.readouterr().out
    algo.stop()


def test_the_history_is_part_of_checkpoints(algo, tmp_path):
    algo.learn(1, progress=False)
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = PPO.from_checkpoint(path)
    assert isinstance(restored.history, History) and restored.history.columns == algo.history.columns
    assert restored.history[STEPS].tolist() == algo.history[STEPS].tolist()
    assert restored.learn(1, progress=False)["training_iteration"] == algo.iteration + 1
    assert len(restored.history) == len(algo.history) + 1
    restored.stop()
    # A state of before there was a history.
    algo.set_state({name: value for name, value in algo.get_state().items() if name != "history"})
    assert len(algo.history) == 0 and algo.train()["training_iteration"] == algo.iteration


def test_one_setting_writes_files(tmp_path):
    directories, handlers = [], list(logging.getLogger("jaxrl_stack").handlers)
    for _ in range(2):  # as a notebook's cell that is run twice
        algo = programs.run(results_dir=tmp_path / "run").build_algo()
        logging.getLogger("jaxrl_stack").warning("before the first result")
        assert not (tmp_path / "run_2").exists()  # what writes nothing leaves nothing
        algo.learn(2, progress=False)
        directories.append(tmp_path / ("run" if not directories else "run_2"))
        algo.stop()
    for directory in directories:
        results = [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]
        assert [result["done"] for result in results] == [False, True]
        assert "env_step_timer" not in results[1]["env_runners"]  # a timer of the host
        assert len(History.read(directory)) == 2 and len(list(directory.glob("events.out.tfevents.*"))) == 1
        assert json.loads((directory / "params.json").read_text())["env"] == "gymnax/CartPole-v1"
        log = (directory / "log.txt").read_text()
        assert "before the first result" in log and "training_iteration = 2 has reached 2" in log
        assert read_origin(directory)["algorithm"] == "PPO"
    assert logging.getLogger("jaxrl_stack").handlers == handlers


class Scripted(RLlibCallback):
    """Reports returns that are written down."""

    returns = (1.0, 5.0, 3.0, 7.0, 7.0, 2.0)
    where = "env_runners"

    def on_train_result(self, *, algorithm, result, **kwargs):
        place = result if self.where == "env_runners" else result.get(self.where)
        if place is not None:
            place["env_runners"]["episode_return_mean"] = self.returns[algorithm.iteration - 1]


class ScriptedEvaluation(Scripted):
    returns = (9.0, 1.0, 8.0, 6.0)
    where = "evaluation"


def test_the_best_state_is_kept(tmp_path, capsys):
    algo = programs.run(results_dir=tmp_path / "run", keep_best=True).callbacks(Scripted).build_algo()
    assert algo.best.path is None
    kept, weights = [], []
    for _ in range(6):
        algo.train()
        kept.append((algo.best.value, algo.best.iteration))
        weights.append(jax.tree.leaves(algo.get_weights())[0].copy())
    assert kept == [(1.0, 1), (5.0, 2), (5.0, 2), (7.0, 4), (7.0, 4), (7.0, 4)]
    assert algo.best.path == str(tmp_path / "run" / "best")
    best = PPO.from_checkpoint(algo.best.path, allow=[Scripted])
    assert best.iteration == 4 and not best.config.keep_best
    np.testing.assert_array_equal(jax.tree.leaves(best.get_weights())[0], weights[3])
    best.stop()
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.is_dir() and path.name != "best"]
    assert algo.reset(algo.config)
    assert (algo.best.value, algo.best.path) == (-math.inf, None)
    algo.learn(2)
    line = f"Best:       {tmp_path}/run_2/best ({RETURN} = 5 after iteration 2)"
    assert line in capsys.readouterr().out.splitlines() and line in (tmp_path / "run_2" / "log.txt").read_text()
    algo.stop()


def test_the_best_state_is_that_of_evaluations_where_there_are_any(tmp_path):
    evaluated = programs.run(results_dir=tmp_path / "run", keep_best=True).evaluation(
        evaluation_interval=2, evaluation_duration=1
    )
    algo = evaluated.callbacks(ScriptedEvaluation).build_algo()
    kept = []
    for _ in range(4):
        algo.train()
        kept.append((algo.best.value, algo.best.iteration))
    assert algo.best.metric == f"evaluation/{RETURN}"
    # The first iteration has no evaluation, whatever its return is; the third has that of the second.
    assert kept[0] == (-math.inf, 0) and kept[1] == (1.0, 2) and kept[3][0] >= 6.0
    algo.stop()
    with pytest.raises(
        ValueError, match=r"reporting\(keep_best=True\) needs a folder for the checkpoint.*results_dir="
    ):
        programs.run(keep_best=True).validate()


@pytest.fixture(scope="module")
def scripted():
    algo = programs.run().callbacks(Scripted).build_algo()
    yield algo
    algo.stop()


def test_a_plateau_ends_it_and_is_no_goal(scripted, tmp_path, capsys):
    algo = scripted
    assert algo.reset(programs.run(results_dir=tmp_path / "run").callbacks(Scripted))
    # Best in iteration 4, after which two pass.
    result = algo.learn(100, plateau={"patience": 2, "x": "iterations"})
    assert result["training_iteration"] == 6 and result["done"] is True
    reason = f"{RETURN} has not improved over 2 iterations, since 7"
    assert f"Stopped:    {reason}" in capsys.readouterr().out
    assert read_origin(tmp_path / "run")["stopped"] == {"reason": reason, "is_goal": False}
    assert not Run.read(tmp_path / "run").has_reached_goal and not Run.of(algo).has_reached_goal


def test_a_run_that_reached_its_goal_says_so_in_its_report(scripted, tmp_path):
    assert scripted.reset(programs.run(results_dir=tmp_path / "run").callbacks(Scripted))
    scripted.learn({RETURN: 5.0}, progress=False)
    assert Run.of(scripted).has_reached_goal
    assert scripted.reset(programs.run().callbacks(Scripted))  # which ends the run
    run = Run.read(tmp_path / "run")
    assert run.has_reached_goal and run.origin["algorithm"] == "PPO"
    assert f"stopped: {RETURN} = 5 has reached 5" in write_report(run, tmp_path / "report.html").read_text()


def fake(monkeypatch, name, **members):
    package = types.ModuleType(name)
    package.__spec__ = types.SimpleNamespace(name=name)
    for member, value in members.items():
        setattr(package, member, value)
    monkeypatch.setitem(sys.modules, name, package)


class FakeRun:
    """A run in a tracker: keeps the calls."""

    def __init__(self, **options):
        self.options, self.logged, self.finished = options, [], 0

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished += 1


def iteration(number: int) -> dict:
    return {"training_iteration": number, STEPS: 128 * number, "unknown": math.nan, "config": {"lr": 0.1}}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_results_go_to_a_tracker_by_its_name(monkeypatch, name):
    runs = []
    fake(monkeypatch, name, init=lambda **options: runs.append(FakeRun(**options)) or runs[-1])
    output = RunOutput("PPO", "CartPole", {"lr": 0.1}, loggers={name: {"project": "mine"}})
    assert runs == []
    output.write(iteration(1))
    output.write(iteration(2))
    output.close()
    (run,) = runs
    assert run.options["project"] == "mine" and run.options["name"].startswith("PPO CartPole 2")
    assert run.options["config"] == {"lr": 0.1} and run.finished == 1
    assert run.logged == [(128 * i, {"training_iteration": i, STEPS: 128 * i}) for i in (1, 2)]


def test_mlflow_gets_batches_through_a_client_of_its_own(monkeypatch):
    calls = []

    class Client:
        def __init__(self, tracking_uri):
            calls.append(("uri", tracking_uri))

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return f"id of {name}"

        def create_run(self, experiment, run_name):
            calls.append((experiment, run_name[:3]))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))

        def log_dict(self, run, values, file):
            calls.append((run, file, values))

        def log_batch(self, run, metrics):
            calls.append((run, {name: (value, step) for name, value, _, step in metrics}))

        def set_terminated(self, run):
            calls.append(("end", run))

    fake(monkeypatch, "mlflow", MlflowClient=Client)
    fake(monkeypatch, "mlflow.entities", Metric=lambda *values: values)
    output = RunOutput("PPO", "CartPole", {"lr": 0.1}, loggers={"mlflow": {"tracking_uri": "here"}})
    output.write(iteration(1))
    output.close()
    begin = [("uri", "here"), ("id of jaxrl", "PPO"), ("7", "params.json", {"lr": 0.1})]
    assert calls == [*begin, ("7", {"training_iteration": (1, 128), STEPS: (128, 128)}), ("end", "7")]


def test_trackers_that_are_unknown_or_absent_are_one_sentence(monkeypatch):
    with pytest.raises(ValueError, match=r"loggers=\['wandbb'\].*'mlflow', 'trackio', 'wandb'"):
        programs.run(loggers=["wandbb"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"reporting\(loggers=\['wandb'\]\) needs wandb .*: pip install 'wandb'."):
        programs.run(loggers=["wandb"]).build_algo()


# ------------------------------------------------------------------------------------------------------- notebooks


def test_a_notebook_shows_a_curve_that_grows(algo, monkeypatch):
    pages = []
    handle = types.SimpleNamespace(update=pages.append)
    show = lambda page, display_id: pages.append(page) or handle  # noqa: E731
    fake(monkeypatch, "IPython", get_ipython=lambda: types.SimpleNamespace(kernel=True))
    fake(monkeypatch, "IPython.display", HTML=str, display=show)
    monkeypatch.setattr("jaxrl_stack.runs.notebook._DRAW_EVERY", 0.0)
    algo.learn(3)
    assert "training …" in pages[0] or "compiling" in pages[0]
    assert "PPO in &#x27;gymnax/CartPole-v1&#x27;, until training_iteration reaches" in pages[0]
    assert len(pages) == 1 + 3 and f"iteration {algo.iteration:,}" in pages[-1] and 'value="1.000"' in pages[-1]
    points = [page.partition('points="')[2].partition('"')[0].split() for page in pages]
    assert len(points[-1]) == len(points[-2]) + 1 > 2
    assert isinstance(make_display(StopCriteria(None)), NotebookDisplay)
    assert type(make_display(StopCriteria(None), is_quiet=True)) is Silence


def test_a_long_curve_is_thinned_and_keeps_its_end():
    x = [float(i) for i in range(10_000)]
    svg = curve_svg(np.array(x), np.array(x), label="a<b")
    points = svg.partition('points="')[2].partition('"')[0].split()
    assert len(points) == 400 and "9,999.0 now" in svg and "a&lt;b" in svg
