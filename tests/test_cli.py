"""The command line: what runs write and print, how they stop, and how wrong input is answered."""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import types

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from jaxrl_stack import __version__, cli
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.ppo.tuned import RECORDS, TUNED
from jaxrl_stack.algorithms.result_names import known_result
from jaxrl_stack.checkpoints.newest import newest_checkpoint
from jaxrl_stack.cli.common import CliError
from jaxrl_stack.cli.experiment import experiment
from jaxrl_stack.cli.new import KINDS
from jaxrl_stack.cli.sweep import _scheduler
from jaxrl_stack.cli.train import _require_actors, joined_cluster
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.table_writer import TableWriter
from jaxrl_stack.runs.curves import STEPS
from jaxrl_stack.runs.halving import Halving
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.origin import git_state, read_origin
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.results import flatten_result
from tests import programs

ROOT = pathlib.Path(__file__).parents[1]
SMALL = {**programs.RUN, "evaluation_duration": 4}
TRAIN = ["train", "ppo", "gymnax/CartPole-v1"]
ASHA = ["sweep", *TRAIN[1:], "--set", "lr=1,2", "--scheduler", "asha"]


def train(*arguments: str, command: str = "train") -> int:
    return cli.main([command, *arguments])


def closing_line(output: str, name: str) -> str:
    return re.findall(rf"^{name}: +(.*)$", output, re.MULTILINE)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Results directory and output of a run of two iterations, as a user starts it: from elsewhere, no terminal."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    options = ["--config", json.dumps(SMALL), "--results-dir", str(directory), "--seed", "7"]
    options += ["--stop", '{"env_runners": {"num_env_steps_sampled_lifetime": 200}}']
    options += ["--checkpoint-freq", "1", "--evaluation-interval", "2", "--keep-best"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_stack.cli", *TRAIN, *options],
        capture_output=True,
        text=True,
        cwd=directory.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory, done.stdout


def test_a_run_leaves_results_and_checkpoints(trained):
    directory, _ = trained
    params = json.loads((directory / "params.json").read_text())
    assert params["env"] == "gymnax/CartPole-v1" and params["minibatch_size"] == 64 and params["seed"] == 7
    results = [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]
    assert [r["training_iteration"] for r in results] == [1, 2]
    assert [r["done"] for r in results] == [False, True]
    assert "evaluation" not in results[0] and results[1]["evaluation"]["env_runners"]["num_episodes"] == 4
    rows = list(csv.DictReader((directory / "progress.csv").read_text().splitlines()))
    assert [row["num_env_steps_sampled_lifetime"] for row in rows] == ["128", "256"]
    assert [row["evaluation/env_runners/num_episodes"] for row in rows] == ["", "4"]
    assert len(list(directory.glob("events.out.tfevents.*"))) == 1
    assert sorted(p.name for p in directory.glob("checkpoint_*")) == ["checkpoint_000001", "checkpoint_000002"]


def test_a_run_says_where_it_comes_from(trained):
    directory, _ = trained
    origin = read_origin(directory)
    words = shlex.split(origin["command"])
    assert words[:4] == ["jaxrl", *TRAIN] and words[words.index("--seed") + 1] == "7"
    assert origin["working_directory"] == str(directory.parent.resolve())
    assert origin["versions"]["jaxrl_stack"] == __version__ and origin["versions"]["jax"] == jax.__version__
    assert read_origin(directory.parent) == {}


def test_the_state_of_a_repository_is_its_commit_and_whether_it_was_changed(tmp_path):
    def git(*words: str) -> str:
        own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
        return subprocess.run(["git", *own, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "--quiet")
    assert git_state(str(tmp_path)) is None  # no commit yet
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "--quiet", "--message", "x")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "new").write_text("untracked")
    commit = git("rev-parse", "HEAD").strip()
    assert git_state(str(tmp_path / "results")) == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("b")
    assert git_state(str(tmp_path)) == {"commit": commit, "dirty": True}


def test_a_run_that_fails_before_its_first_result_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "fails.py").write_text(
        "from jaxrl_stack import PPOConfig\n"
        f"config = PPOConfig().environment('gymnax/CartPole-v1').update_from_dict({SMALL!r})\n"
        "def fail(*, algorithm, **kwargs):\n"
        "    raise RuntimeError('broken')\n"
        "config.callbacks(on_algorithm_init=fail)\n"
    )
    assert train("file", "fails.py") == 1
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert train("file", "fails.py", "--results-dir", "mine") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["fails.py", "mine"]
    assert not list((tmp_path / "mine").iterdir())
    capsys.readouterr()
    assert train("file", "fails.py", "--results-dir", "fails.py/below") == 2
    assert "--results-dir fails.py/below: cannot be written" in capsys.readouterr().err


def test_plot_draws_a_run_in_characters_and_as_a_figure(trained, tmp_path, capsys):
    directory, _ = trained
    assert cli.main(["plot", str(directory), "--key", "learners/default_policy/entropy", "--x", "iterations"]) == 0
    assert "iterations" in capsys.readouterr().out
    assert cli.main(["compare", str(directory), str(directory / "result.json"), "--out", str(tmp_path / "x.svg")]) == 0
    output = capsys.readouterr().out.splitlines()
    assert re.match(r"run +seeds +last 10 % +95 % interval +whole curve", output[0]) and len(output) == 3
    assert output[-1] == f"Figure: {tmp_path / 'x.svg'}" and (tmp_path / "x.svg").read_text().startswith("<?xml")
    options = ["--out", str(tmp_path / "y.svg"), "--ylim", "-1", "5.5", "--xscale", "log"]
    assert cli.main(["plot", str(directory), *options]) == 0
    assert (tmp_path / "y.svg").is_file() and capsys.readouterr().out == f"Figure: {tmp_path / 'y.svg'}\n"
    for options, message in (
        ([str(tmp_path / "nothing")], "contains no run"),
        (
            [str(directory), "--ylim", "0", "1"],
            "--ylim: applies to figures only. Also name the file: --out curves.png.",
        ),
        (
            [str(directory), "--out", str(tmp_path / "x.svg"), "--ylim", "1", "0"],
            "ylim=[1.0, 0.0]: must be (low, high)",
        ),
        ([str(directory), "--key", "entropy"], "'learners/default_policy/entropy'"),
        ([str(directory), "--out", str(tmp_path / "x.doc")], "x.doc"),
        ([str(directory), "--x", "stpes"], "stpes"),
        ([str(directory), "--band", "2"], "argument --band: '2' must be above 0 and below 1"),
    ):
        assert cli.main(["plot", *options]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_seeds_are_trained_as_one_program_into_a_folder_each(tmp_path, capsys):
    directory = tmp_path / "seeds"
    # As many members as the sweep below has, which are the same program.
    options = ["--config", json.dumps(SMALL), "--seeds", "4", "--num-iterations", "2"]
    assert train(*TRAIN[1:], *options, "--results-dir", str(directory)) == 0
    output = capsys.readouterr().out
    assert "4 runs as members of one program." in output and f"Results in {directory}." in output
    assert closing_line(output, "Finished") == "4 of 4 seeds"
    assert closing_line(output, "Curves") == f"jaxrl plot {directory}"
    assert sorted(path.name for path in directory.iterdir()) == [f"seed_{seed}" for seed in range(4)]
    assert json.loads((directory / "seed_1" / "params.json").read_text())["seed"] == 1
    assert cli.main(["plot", str(directory)]) == 0
    assert "(4 seeds)" in capsys.readouterr().out


def test_a_sweep_trains_every_combination_and_prints_a_table(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assignments = ["--set", "lr=1e-3,1e-2", "--set", "gamma=0.9"]
    options = ["--config", json.dumps(SMALL), "--seeds", "2", "--num-iterations", "1", "--out", "curves.svg"]
    assert train(*TRAIN[1:], *assignments, *options, command="sweep") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Changed: gamma=0.9." in lines[0] and lines[1].startswith("Each until training_iteration reaches 1. Results")
    assert lines[2] == "4 runs as members of one program."
    assert lines[-6].split()[:2] == ["lr", "seeds"] and {line.split()[0] for line in lines[-5:-3]} == {"0.001", "0.01"}
    (directory,) = (tmp_path / "results").iterdir()
    assert lines[-2] == f"Curves:     jaxrl plot results/{directory.name}" and (tmp_path / "curves.svg").is_file()
    assert directory.name.startswith("sweep_PPO_gymnax-CartPole-v1_")
    names = [f"lr={lr}_seed={seed}" for lr in (0.001, 0.01) for seed in (0, 1)]
    assert sorted(path.name for path in directory.iterdir()) == names
    assert cli.main(["compare", str(directory)]) == 0
    assert "lr=0.001 (2 seeds)" in capsys.readouterr().out


def test_a_sweep_goes_over_numbers_of_the_environment(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--set", "env_config.gravity=9.8,5.0", "--config", json.dumps(SMALL), "--num-iterations", "1"]
    assert train(*TRAIN[1:], *options, command="sweep") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "2 runs as members of one program." and lines[-4].split()[0] in ("9.8", "5.0")
    (directory,) = (tmp_path / "results").iterdir()
    found = {path.name: json.loads((path / "params.json").read_text())["env_config"] for path in directory.iterdir()}
    assert found == {f"env_config_gravity={g}_seed=0": {"gravity": g} for g in (9.8, 5.0)}


@pytest.mark.parametrize(
    ("targets", "halving"),
    [
        ({"training_iteration": 160.0}, Halving(160, 10)),
        ({STEPS: 20_000.0}, Halving(20_000, 1250, time_attr=STEPS)),
        ({STEPS: 20_000.0, "training_iteration": 8}, Halving(8, 1)),
    ],
)
def test_rungs_of_a_sweep_follow_the_goal(targets, halving):
    options = argparse.Namespace(scheduler="asha", grace_period=None, perturbation_interval=None)
    assert _scheduler(options, {}, StopCriteria(targets)) == halving


def test_a_sweep_passes_its_budget_on(tmp_path, monkeypatch):
    budgets = []

    def asked(config, space, *, budget, **how):
        budgets.append(budget)
        raise ValueError("enough")

    monkeypatch.setattr("jaxrl_stack.runs.sweep.run_sweep", asked)
    options = ["--set", "lr=loguniform(1e-4,1e-2)", "--num-iterations", "8", "--results-dir", str(tmp_path)]
    for text in ("5 min", "90", json.dumps({STEPS: 5000})):
        assert train(*TRAIN[1:], *options, "--budget", text, command="sweep") == 2
    assert budgets == ["5 min", 90, {STEPS: 5000}]


def test_a_sweep_samples_values_and_has_a_scheduler(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--set", "lr=loguniform(1e-4,1e-2)", "--num-samples", "4", "--config", json.dumps(SMALL)]
    options += ["--num-iterations", "3", "--out", "curves.svg"]
    assert train(*TRAIN[1:], *options, "--scheduler", "pbt", "--perturbation-interval", "1", command="sweep") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("Lineage:    2 members were replaced: results/sweep_PPO_")
    (directory,) = (tmp_path / "results").iterdir()
    rates = [float(line.split()[0]) for line in lines if line.split()[:1] and line[0].isdigit()]
    assert len(rates) == 4 and (directory / "lineage.jsonl").is_file()


def test_a_run_is_filmed_and_has_a_report(trained, tmp_path, capsys):
    directory, _ = trained
    assert cli.main(["video", str(directory), "--episodes", "1", "--out", str(tmp_path / "x.gif")]) == 0
    assert "x.gif: 1 episode" in capsys.readouterr().out and (tmp_path / "x.gif").read_bytes().startswith(b"GIF")
    assert cli.main(["video", str(directory), "--out", str(tmp_path / "x.avi")]) == 2
    assert "has to end in .mp4, .webm or .gif" in capsys.readouterr().err
    assert cli.main(["report", str(directory), "--out", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'x.html'}\n"
    page = (tmp_path / "x.html").read_text()
    assert "jaxrl train ppo gymnax/CartPole-v1" in page and "minibatch_size" in page
    assert cli.main(["report", str(tmp_path / "nothing")]) == 2
    assert "contains no run" in capsys.readouterr().err


def test_a_run_without_a_terminal_prints_plain_lines(trained):
    directory, output = trained
    assert "\x1b" not in output
    assert "Until env_runners/num_env_steps_sampled_lifetime reaches 200" in output
    assert re.search(r"^iteration +2  steps +256 .* steps/s  return .* compile \d+\.\d s  ETA 0\.0 s$", output, re.M)
    assert closing_line(output, "Stopped") == "env_runners/num_env_steps_sampled_lifetime = 256 has reached 200"
    assert closing_line(output, "Trained").startswith("256 steps in 2 iterations, return ")
    assert closing_line(output, "Results") == str(directory)
    best = rf"{directory}/best \(evaluation/env_runners/episode_return_mean = [\d.]+ after iteration 2\)"
    assert re.fullmatch(best, closing_line(output, "Best"))
    assert closing_line(output, "Curves") == f"tensorboard --logdir {directory}"
    assert closing_line(output, "Evaluate") == f"jaxrl evaluate {closing_line(output, 'Checkpoint')}"


def test_evaluate_runs_the_printed_checkpoint(trained, capsys):
    checkpoint = closing_line(trained[1], "Checkpoint")
    assert cli.main(["evaluate", checkpoint, "--episodes", "5", "--no-explore", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["env_runners"]
    assert values["num_episodes"] == 5
    assert values["episode_return_min"] <= values["episode_return_mean"] <= values["episode_return_max"]


def test_a_checkpoints_episodes_are_recorded_and_looked_at(trained, tmp_path, capsys):
    directory, _ = trained
    out, figure = str(tmp_path / "data"), tmp_path / "data.svg"
    assert cli.main(["record", str(directory), "--episodes", "5", "--epsilon", "0.5", "--out", out]) == 0
    assert "5 episodes" in capsys.readouterr().out
    assert cli.main(["data", out, "--out", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert "1 file:" in printed and "5 episodes" in printed and "gymnax/CartPole-v1" in printed
    assert "episode return" in figure.read_text()
    assert cli.main(["data", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_episodes"] == 5 and found["num_cut"] == 0
    assert sum(found["actions"][0]["counts"]) == found["num_steps"] == found["num_rows"] - 5
    # Draws of actions leave no probabilities of those that the policy drew.
    assert "action_logp" not in found["columns"]
    assert cli.main(["evaluate", str(directory), "--data", out, "--method", "is"]) == 2
    assert "no 'action_logp'" in capsys.readouterr().err


def test_a_policy_is_estimated_from_episodes_that_it_recorded(trained, tmp_path, capsys):
    directory, _ = trained
    out = str(tmp_path / "data")
    assert cli.main(["record", str(directory), "--episodes", "20", "--explore", "--out", out]) == 0
    arguments = ["evaluate", str(directory), "--data", out, "--method", "wis", "--method", "pdis", "--gamma", "1"]
    capsys.readouterr()
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Its own ratios are 1.
    assert found["wis"]["value"] == pytest.approx(found["behavior"]["value"], rel=1e-4)
    assert found["pdis"]["effective_sample_size"] == pytest.approx(20, rel=1e-4)
    assert cli.main(arguments) == 0
    assert "20 episodes" in capsys.readouterr().out
    # The same as a table of somebody else's, with the options of offline_data().
    others = tmp_path / "others"
    writer = TableWriter(others, "rows", about=DatasetInfo(), packs_episodes=False)
    writer.add(open_dataset(out).read_all())
    writer.close()
    [path] = others.iterdir()
    pq.write_table(pq.read_table(path).rename_columns({"obs": "o"}), path)
    reading = ["--input-read-schema", "obs=o"]
    assert cli.main(["data", str(others)]) == 2 and "input_read_schema={'obs': ...}" in capsys.readouterr().err
    assert cli.main(["data", str(others), *reading, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_episodes"] == 20
    arguments[arguments.index(out)] = str(others)
    assert cli.main([*arguments, *reading, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wis"] == found["wis"]
    assert cli.main(["data", str(others), "--input-read-schema", "obs"]) == 2
    assert "obs=NAME" in capsys.readouterr().err


def test_recorded_observations_are_estimated_with_the_policys_connectors(tmp_path, capsys):
    """The environment's integers, for a module that sees them as one-hot vectors."""
    algo = programs.ppo("FrozenLake-v1").build_algo()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    policy = algo.get_policy()
    algo.stop()
    rows = np.arange(40)
    table = {
        "eps_id": [str(row // 4) for row in rows],
        "obs": rows % 16,
        "new_obs": (rows + 1) % 16,
        "actions": rows % 4,
        "rewards": np.ones(40, np.float32),
        "terminateds": rows % 4 == 3,
        "truncateds": np.zeros(40, bool),
        "action_logp": np.full(40, np.log(0.25), np.float32),
    }
    data = str(tmp_path / "steps.parquet")
    pq.write_table(pa.table(table), data)
    expected = policy.estimate(data, "is")["is"].value
    of_policy = policy.save_to_path(str(tmp_path / "policy"))
    for checkpoint in (path, of_policy):
        assert cli.main(["evaluate", checkpoint, "--data", data, "--method", "is", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["is"]["value"] == pytest.approx(expected)
    assert cli.main(["evaluate", path, "--data", data, "--module", "other"]) == 2
    assert "has no module 'other'" in capsys.readouterr().err
    assert cli.main(["evaluate", path, "--module", "other"]) == 2
    assert "--module other: applies only to recorded episodes" in capsys.readouterr().err


def test_data_that_is_not_there_is_named(tmp_path, capsys):
    assert cli.main(["data", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_evaluate_refuses_an_environment_that_the_weights_do_not_fit(trained, capsys):
    # Acrobot's observation is of another shape than CartPole's.
    checkpoint = closing_line(trained[1], "Checkpoint")
    assert cli.main(["evaluate", checkpoint, "--env", "gymnax/Acrobot-v1"]) == 2
    assert "jaxrl evaluate: error: --env gymnax/Acrobot-v1: " in capsys.readouterr().err


def test_ctrl_c_stops_after_the_iteration_and_keeps_its_state(tmp_path, capsys):
    file = tmp_path / "experiment.py"
    file.write_text(
        "import signal\n"
        "from jaxrl_stack.algorithms.ppo import PPOConfig\n"
        f"config = PPOConfig().environment('gymnax/CartPole-v1').update_from_dict({SMALL!r})\n"
        "def press(*, result, **kwargs):\n"
        "    for _ in range(result['training_iteration'] - 1):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "config.callbacks(on_train_result=press)\n"
        "stop = {'training_iteration': 9}\n"
    )
    directory = tmp_path / "run"
    assert train("file", str(file), "--results-dir", str(directory), "--no-checkpoint-at-end") == 130
    captured = capsys.readouterr()
    assert closing_line(captured.out, "Stopped") == "Ctrl-C"
    assert closing_line(captured.out, "Checkpoint") == str(directory / "checkpoint_000002")
    assert "stopping after this iteration" in captured.err
    assert len((directory / "result.json").read_text().splitlines()) == 2
    # The callback is a function of the file, which loading a checkpoint does not import.
    checkpoint = closing_line(captured.out, "Checkpoint")
    assert closing_line(captured.out, "Evaluate") == f"jaxrl evaluate {checkpoint} --config-file {file}"
    assert cli.main(["evaluate", checkpoint]) == 2
    error = capsys.readouterr().err
    assert "needs '__jaxrl_train__:press', which is not part of jaxrl_stack" in error
    assert "name the Python file that defines the run's `config`: --config-file PATH" in error
    assert cli.main(["evaluate", checkpoint, "--config-file", str(file)]) == 0
    assert f"{checkpoint}: 4 episodes" in capsys.readouterr().out


def test_a_run_goes_on_from_its_checkpoint(trained, tmp_path, capsys):
    checkpoint = closing_line(trained[1], "Checkpoint")
    directory = tmp_path / "on"
    options = ["--num-iterations", "4", "--quiet", "--results-dir", str(directory)]
    assert train("--restore", checkpoint, *options, "--config", '{"lr": 0.125}') == 0
    closing_line(capsys.readouterr().out, "Checkpoint")
    results = [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]
    assert [result["training_iteration"] for result in results] == [3, 4]
    assert results[0]["learners"]["default_policy"]["default_optimizer_learning_rate"] == 0.125
    assert cli.main(["train", "--restore", str(tmp_path / "nothing"), *options]) == 2
    assert "jaxrl train: error: --restore" in capsys.readouterr().err


def test_the_directory_of_a_run_means_its_newest_checkpoint(trained, tmp_path, capsys):
    directory, _ = trained
    assert newest_checkpoint(str(directory)) == str(directory / "checkpoint_000002")
    assert cli.main(["evaluate", str(directory), "--episodes", "1"]) == 0
    assert "checkpoint_000002: 1 episodes" in capsys.readouterr().out
    for other in (str(directory / "checkpoint_000001"), str(tmp_path), "s3://bucket/run"):
        assert newest_checkpoint(other) == other
    (tmp_path / "checkpoint_000009").mkdir()  # nothing is in it yet
    for number in (2, 10):
        (tmp_path / f"checkpoint_{number}").mkdir()
        (tmp_path / f"checkpoint_{number}" / "rllib_checkpoint.json").touch()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint_10")


def test_set_changes_single_settings_of_what_is_used_otherwise():
    def settings(*assignments: str, **more):
        options = {"config": None, "stop": None, "config_file": None, "restore": None, "seed": None}
        options |= {
            "plateau": None,
            "evaluation_interval": None,
            "num_iterations": None,
            "algo": "ppo",
            "env": "gymnax/CartPole-v1",
        }
        return experiment(argparse.Namespace(**options, **more, assignments=list(assignments)))

    texts = ["lr=1e-4", "use_kl_loss=True", "model_config.fcnet_hiddens=(8, 8)", "env_config.max_steps_in_episode=9"]
    config, _, origin = settings(*texts, "log_level=ERROR", "grad_clip=None")
    assert (config.lr, config.use_kl_loss, config.log_level, config.grad_clip) == (1e-4, True, "ERROR", None)
    tuned = TUNED["gymnax/CartPole-v1"]
    assert config.stored_value("model_config") == {**tuned["model_config"], "fcnet_hiddens": (8, 8)}
    assert config.env_config == {"max_steps_in_episode": 9} and config.num_epochs == tuned["num_epochs"]
    assert origin.endswith("Changed: lr=1e-4, " + ", ".join([*texts[1:], "log_level=ERROR", "grad_clip=None."]))


def test_an_environment_in_the_working_directory_is_trained_evaluated_and_gone_on_with(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # restores sys.path, which the command changes
    assert cli.main(["new", "env", "TinyMaze"]) == 0
    options = ["--config", json.dumps(SMALL), "--num-iterations", "1", "--quiet", "--results-dir"]
    assert train("ppo", "tiny_maze:TinyMaze", *options, "run") == 0
    command = shlex.split(closing_line(capsys.readouterr().out, "Evaluate"))
    assert command[-2:] == ["--env", "tiny_maze:TinyMaze"]
    assert cli.main(["evaluate", "run"]) == 2
    error = capsys.readouterr().err
    assert "If the environment is your own, add --env module:Class" in error and error.count("\n") == 1
    assert cli.main(command[1:]) == 0 and "4 episodes" in capsys.readouterr().out
    assert train("--restore", "run", "--env", "tiny_maze:TinyMaze", *options[:-1], "--results-dir", "on") == 0


def test_who_has_given_no_number_of_environments_is_told_once_what_64_bring(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    small = {"train_batch_size_per_learner": 32, "minibatch_size": None, "num_epochs": 1}
    small["model_config"] = {"fcnet_hiddens": [8]}
    options = [*TRAIN[1:], "--num-iterations", "1", "--quiet", "--results-dir"]
    assert train(*options, str(tmp_path / "one"), "--config", json.dumps(small)) == 0
    assert [record.getMessage().count("num_envs_per_env_runner=64") for record in caplog.records] == [1]
    asked = small | {"num_envs_per_env_runner": 1}
    monkeypatch.setattr(notices, "_given", set())
    caplog.clear()
    assert train(*options, str(tmp_path / "asked"), "--config", json.dumps(asked)) == 0
    assert not caplog.records


def test_a_second_ctrl_c_aborts(tmp_path, capsys):
    file = tmp_path / "experiment.py"
    file.write_text(
        "import signal\n"
        "from jaxrl_stack.algorithms.ppo import PPOConfig\n"
        f"config = PPOConfig().environment('gymnax/CartPole-v1').update_from_dict({SMALL!r})\n"
        "def press(**kwargs):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "config.callbacks(on_train_result=press)\n"
    )
    assert train("file", str(file), "--results-dir", str(tmp_path / "run"), "--quiet") == 130
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "jaxrl train: aborted"
    assert captured.out == "" and not list((tmp_path / "run").glob("checkpoint_*"))


def test_a_stop_path_that_leads_nowhere_ends_the_run_with_a_near_match(tmp_path, capsys):
    stop = json.dumps({"env_runners/episode_reward_mean": 475})
    options = ["--config", json.dumps(SMALL), "--stop", stop, "--results-dir", str(tmp_path / "run"), "--quiet"]
    assert train(*TRAIN[1:], *options) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("jaxrl train: error: --stop: ") and "'env_runners/episode_return_mean'" in error
    assert not list(tmp_path.iterdir())


def test_what_a_result_holds_is_known_before(trained):
    directory, _ = trained
    config = PPOConfig().environment("gymnax/CartPole-v1").update_from_dict({**SMALL, "evaluation_interval": 2})
    config.reporting(results_dir=directory)
    result = json.loads((directory / "result.json").read_text().splitlines()[-1])
    names = [name for name, value in flatten_result(result).items() if value is None or type(value) in (int, float)]
    StopCriteria(dict.fromkeys(names, 1e300)).check_names(known_result(config))


def test_numbers_that_own_code_may_report_are_not_refused():
    config = PPOConfig().environment("gymnax/CartPole-v1")
    assert known_result(config) is not None
    assert known_result(config.copy().callbacks(on_train_result=lambda **kwargs: None)) is None
    assert known_result(config.copy().learners(learner_class=type("Mine", (PPOLearner,), {}))) is None
    assert known_result(config.copy().rl_module(rl_module_spec=RLModuleSpec())) is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--env", "gymnax/CartPole-v1"], "--algo is missing. Name an algorithm: --algo PPO"),
        (["train", "--algo", "PPOO", "--env", "x"], "--algo: There is no algorithm 'PPOO'. Did you mean 'PPO'?"),
        (["train", "--algo", "PPO"], "--env is missing. Name an environment: --env gymnax/CartPole-v1"),
        (["train", "pp", "x"], "--algo: There is no algorithm 'pp'. Did you mean 'PPO'?"),
        ([*TRAIN, "--set", "lr"], "--set 'lr': must be name=value, such as --set lr=0.001."),
        ([*TRAIN, "--set", "lrr=0.1"], "--set lrr=0.1: PPOConfig has no setting 'lrr'. Did you mean training(lr=...)?"),
        ([*TRAIN, "--set", "modl.width=8"], "--set modl.width=8: PPOConfig has no setting 'modl'"),
        (
            [*TRAIN, "--set", "gamma.x=1"],
            "'gamma' is 0.99, which has no entry 'x'. Set the whole setting: --set gamma=VALUE",
        ),
        ([*TRAIN, "--set", "clip_param=wide"], "training(clip_param='wide'): must be a number at least 0"),
        ([*TRAIN, "--stop", '{"episode_reward_mean": 9}'], "Near matches: 'env_runners/episode_return_mean'"),
        ([*TRAIN, "--stop", '{"learners/default_policy/entrpy": 9}'], "'learners/default_policy/entropy'"),
        ([*TRAIN, "--stop", '{"env_runners": 9}'], "The value of 'env_runners' is a dict"),
        ([*TRAIN, "--stop", "{475}"], "--stop '{475}' is not JSON"),
        ([*TRAIN, "--stop", "475"], "--stop '475' must be a JSON object"),
        ([*TRAIN, "--stop", '{"training_iteration": "9"}'], "'training_iteration' has the bound '9', which must be a"),
        (
            [*TRAIN, "--stop", '{"evaluation/env_runners/episode_return_mean": 475}'],
            "needs evaluations, and the config has none. Add --evaluation-interval 10.",
        ),
        ([*TRAIN, "--plateau", '{"min_delta": 1}'], "a dict with patience"),
        ([*TRAIN, "--plateau", '{"patience": 9, "metric": "retrun"}'], "'retrun'"),
        ([*TRAIN, "--config", '{"lrr": 0.1}'], "--config: PPOConfig has no setting 'lrr'. Did you mean"),
        ([*TRAIN, "--config", '{"num_rollout_workers": 2}'], "num_env_runners"),
        ([*TRAIN, "--config", '{"gamma": "high"}'], "gamma='high'"),
        ([*TRAIN, "--num-iterations", "0"], "argument --num-iterations/--max-iterations: '0' must be an integer of"),
        ([*TRAIN, "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        ([*TRAIN, "--seeds", "0"], "argument --seeds: '0' must be an integer of at least 1"),
        ([*TRAIN, "--seeds", "2"], "--stop is missing. Say when the run of each seed ends"),
        (
            [*TRAIN, "--seeds", "2", "--seed", "0"],
            "--seed: sets one seed, but --seeds N trains the seeds 0 to N - 1. Leave it out",
        ),
        ([*TRAIN, "--seeds", "2", "--checkpoint-freq", "1"], "--checkpoint-freq: applies to a single run"),
        ([*TRAIN, "--seeds", "2", "--num-to-keep", "1"], "--num-to-keep: applies to a single run"),
        ([*TRAIN, "--num-to-keep", "2"], "--checkpoint-freq, which is missing. Add --checkpoint-freq 10."),
        ([*TRAIN, "--seeds", "2", "--plateau", '{"patience": 9}'], "--plateau: ends a run early"),
        ([*TRAIN, "--results-dir", str(ROOT)], "exists and is not empty. Name a new directory."),
        ([*TRAIN, "--lr", "0.1"], "--lr is a setting, no option: write --set lr=0.1"),
        (["train", "--lr=0.1", "dqn", "x"], "--lr is a setting, no option: write --set lr=0.1"),
        (["train", "dqn", "x", "--n-step", "3"], "--n-step is a setting, no option: write --set n_step=3"),
        ([*TRAIN, "--fcnet-hiddens", "[8]"], "write --set model_config.fcnet_hiddens=[8]"),
        ([*TRAIN, "--learning-rate", "1"], "--learning-rate is no option. Did you mean training(lr=...)?"),
        ([*TRAIN, "--xyzzy", "1"], "unrecognized arguments: --xyzzy 1"),
        (["evaluate", "--lr", "0.1", "x"], "unrecognized arguments: --lr"),
        (["train", "DDPG", "x"], "--algo: There is no DDPG here. Use the nearest, TD3"),
        (["train", "file", "nowhere.py"], "--config-file nowhere.py: cannot be read"),
        (["train", "file", "nowhere.json"], "--config-file nowhere.json: cannot be read"),
        (
            ["sweep", *TRAIN[1:], "--num-iterations", "1"],
            "--set with several values is missing. List the values to try: --set lr",
        ),
        (["sweep", *TRAIN[1:], "--set", "lr=1,2"], "--stop is missing. Say when each run ends"),
        (
            ["sweep", *TRAIN[1:], "--set", "lr=uniform(2,1)"],
            "--set lr=uniform(2,1): must have two bounds, the lower one",
        ),
        (
            ["sweep", *TRAIN[1:], "--set", "lr=1,2", "--num-iterations", "9", "--grace-period", "3"],
            "--grace-period belongs to --scheduler asha.",
        ),
        (
            [*ASHA, "--stop", '{"env_runners/episode_return_mean": 9}'],
            "--scheduler asha needs a limit on the length of a run, but --stop has none. Add --num-iterations 100.",
        ),
        (
            ["sweep", *TRAIN[1:], "--set", "lr=uniform(0,1)", "--num-iterations", "9", "--budget", "soon"],
            "--budget soon: run_sweep(budget='soon'): must be a number above 0 in one of these forms: seconds",
        ),
        (["sweep", *TRAIN[1:], "--set", "lrr=1,2", "--num-iterations", "1"], "PPOConfig has no setting 'lrr'. Did you"),
        (
            ["sweep", *TRAIN[1:], "--set", "model_config.a=1,2", "--num-iterations", "1"],
            "List whole dicts: model_config={...}",
        ),
        (
            ["sweep", *TRAIN[1:], "--set", "lr=1,2", "--num-iterations", "1", "--out", "x.doc"],
            "--out: The file name x.doc must end in",
        ),
        (["evaluate", "nowhere"], "CHECKPOINT nowhere: "),
        (
            ["evaluate", "nowhere", "--gamma", "0.9"],
            "--gamma 0.9: applies only to recorded episodes. Leave it out, or add --data PATH.",
        ),
        (["evaluate", "nowhere", "--data", "x", "--episodes", "3"], "--episodes 3: has no effect with --data"),
        (["tarin"], "invalid choice: 'tarin'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.err.startswith("jaxrl") and "Traceback" not in captured.err
    assert captured.out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        ["--checkpoint-freq", "2", "--set", 'checkpoint_max_bytes="20 GB"', "--set", "num_to_keep=2"],
        ["--set", "checkpoint_frequency=2"],
        ["--config", '{"checkpoint_frequency": 2}'],
        ["--seeds", "2", "--set", "keep_best=True"],
    ],
)
def test_settings_of_checkpoints_are_in_all_options(options, tmp_path, monkeypatch, capsys):
    def begin(config, *args, **kwargs):
        assert config.results_dir == str(tmp_path) and (config.keep_best or config.checkpoint_frequency == 2)
        raise ValueError("begins")

    monkeypatch.setattr(PPOConfig, "build_algo", begin)
    monkeypatch.setattr("jaxrl_stack.runs.seeds.run_seeds", begin)
    assert train(*TRAIN[1:], *options, "--num-iterations", "1", "--results-dir", str(tmp_path)) == 2
    assert "begins" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys):
    assert cli.main([*TRAIN, "--config", '{"lrr": 0.1}', "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.py", "x = 1\nraise RuntimeError('broken')\n", ", line 2: RuntimeError: broken"),
        ("b.py", "config = {'lr': 1}\n", "must define `config`"),
        ("c.json", '{"lr": 0.1}', "unknown key 'lr'; keys are algo, env, config, stop. Put settings into \"config\""),
        ("d.json", '{"algo": "PPO", "config": []}', "'config' must be an object, not []"),
        ("e.json", '{"algo": "PPO", "env": "gymnax/CartPole-v1", "stop": {"x": null}}', "stop in "),
        ("f.yaml", "", "must be a .py or a .json file"),
    ],
)
def test_wrong_config_files_are_named(name, content, message, capsys, tmp_path):
    (tmp_path / name).write_text(content)
    assert cli.main(["train", "file", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / name) in error and message in error and error.count("\n") == 1


def test_options_overrule_the_config_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = {
        "algo": "PPO",
        "env": "gymnax/CartPole-v1",
        "config": {**SMALL, "lr": 0.5},
        "stop": {"time_total_s": 3600},
    }
    (tmp_path / "experiment.json").write_text(json.dumps(experiment))
    options = ["--config", '{"lr": 0.125}', "--num-iterations", "1", "--quiet", "--no-checkpoint-at-end"]
    assert train("file", "experiment.json", *options) == 0
    output = capsys.readouterr().out
    (directory,) = (tmp_path / "results").iterdir()
    assert re.fullmatch(r"PPO_gymnax-CartPole-v1_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", directory.name)
    assert json.loads((directory / "params.json").read_text())["lr"] == 0.125
    assert closing_line(output, "Stopped") == "training_iteration = 1 has reached 1"
    assert "Checkpoint" not in output and len(output.splitlines()) == 4


PLAYERS = """
from jaxrl_stack import PPOConfig


def policy_of(agent_id, episode, **kwargs):
    return {"player1": "p0", "player2": "p1"}[agent_id]


config = (
    PPOConfig()
    .environment("jaxrl_stack.examples.envs.multi_agent:RockPaperScissors")
    .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=policy_of)
    .env_runners(num_envs_per_env_runner=4)
    .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    .rl_module(model_config={"fcnet_hiddens": [4]})
)
"""


def test_a_run_of_several_agents_is_trained_drawn_and_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "players.py").write_text(PLAYERS)
    assert train("file", "players.py", "--num-iterations", "2", "--results-dir", "run") == 0
    output = capsys.readouterr().out
    assert closing_line(output, "Evaluate").endswith("--config-file players.py")
    history = History.read("run")
    for mid, agent in (("p0", "player1"), ("p1", "player2")):
        returns = history[f"env_runners/module_episode_returns_mean/{mid}"]
        assert returns.shape == (2,) and abs(returns[-1]) <= 10.0
        assert (returns == history[f"env_runners/agent_episode_returns_mean/{agent}"]).all()
        assert f"learners/{mid}/entropy" in history.to_pandas()
        (line,) = history.plot(f"env_runners/module_episode_returns_mean/{mid}").axes[0].lines
        assert list(line.get_ydata()) == list(returns)
        assert cli.main(["plot", "run", "--key", f"learners/{mid}/entropy"]) == 0
    both = history.plot([f"env_runners/module_episode_returns_mean/{mid}" for mid in ("p0", "p1")])
    assert [line.get_label() for line in both.axes[0].lines] == ["p0", "p1"]
    assert train("run", "--episodes", "5", "--config-file", "players.py", command="evaluate") == 0
    output = capsys.readouterr().out
    assert "5 episodes, 50 steps" in output and "return of p0" in output and "return of p1" in output
    assert train("run", "--episodes", "1", "--config-file", "players.py", "--out", "game.gif", command="video") == 0
    said = capsys.readouterr().out
    assert re.search(r"1 episode\(s\), return 0 \(player1: -?\d+, player2: -?\d+\) in 10 steps", said), said
    assert train("file", "players.py", "--restore", "run", "--num-iterations", "1", "--quiet") == 0


def test_a_run_with_tuned_settings_evaluates_without_a_file(tmp_path, capsys, monkeypatch):
    small = {**TUNED["gymnax/Pendulum-v1"], **SMALL}
    assert callable(small["env_to_module_connector"])
    monkeypatch.setitem(TUNED, "gymnax/Pendulum-v1", small)
    pendulum = ["--algo", "PPO", "--env", "gymnax/Pendulum-v1", "--num-iterations", "1", "--quiet"]
    assert train(*pendulum, "--results-dir", str(tmp_path / "run")) == 0
    checkpoint = closing_line(capsys.readouterr().out, "Checkpoint")
    assert cli.main(["evaluate", checkpoint]) == 0
    assert f"{checkpoint}: 4 episodes, 800 steps" in capsys.readouterr().out


@pytest.mark.parametrize("env", ["gymnax/Pendulum-v1", "FrozenLake-v1"])
def test_tuned_settings_and_how_they_are_known_are_shown(env, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxrl_stack.cli.train._train", lambda algo, *rest: ([repr(algo.config.minibatch_size)], False))
    assert cli.main(["train", "--algo", "PPO", "--env", env]) == 0
    output = capsys.readouterr().out
    name, value = next(iter(TUNED[env].items()))
    assert f"tuned example settings {name}={value}, " in output
    assert f" ({RECORDS[env].evidence}; --config '{{}}' starts from PPO's defaults instead)." in output
    assert output.splitlines()[-1] == str(TUNED[env]["minibatch_size"])


def test_settings_that_were_not_run_are_announced_as_such(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxrl_stack.cli.train._train", lambda *rest: ([], False))
    cli.main(["train", "--algo", "PQN", "--env", "gymnax/Freeway-MinAtar"])
    assert " (from the literature, not run: mttga/purejaxql, " in capsys.readouterr().out


def test_list_names_algorithms_and_environments(capsys):
    assert cli.main(["list"]) == 0
    assert {"  PPO", "  gymnax/CartPole-v1"} <= set(capsys.readouterr().out.splitlines())
    assert cli.main(["list", "tuned"]) == 0
    assert "  PPO gymnax/CartPole-v1  measured: a mean return of 475 after " in capsys.readouterr().out
    assert cli.main(["list", "algorithms"]) == 0
    assert "gymnax" not in capsys.readouterr().out


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxrl {__version__}\n"
    assert cli.main(["train", "--help"]) == 0
    assert "jaxrl train PPO gymnax/CartPole-v1 --stop" in capsys.readouterr().out
    assert cli.main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_a_run_joins_a_cluster_and_leaves_it(tmp_path, monkeypatch, capsys):
    calls, asked = [], []
    server = types.SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: asked.append((place, timeout)) or server)
    monkeypatch.setattr(ray, "init", lambda **kwargs: calls.append(kwargs["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("left"))
    on_device = [*TRAIN, "--results-dir", str(tmp_path / "a"), "--num-iterations", "1"]
    assert cli.main([*on_device, "--address", "10.0.0.1:6379"]) == 2
    assert calls == ["10.0.0.1:6379", "left"]
    assert "--address 10.0.0.1:6379: this run starts no actor" in capsys.readouterr().err
    assert asked == [(("10.0.0.1", 6379), 5.0)]
    _require_actors(
        PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2, num_cpus_per_env_runner=0), "auto"
    )

    def fail(**kwargs):
        raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to.")

    monkeypatch.setattr(ray, "init", fail)
    assert cli.main([*on_device, "--address", "auto"]) == 2
    message = "--address auto: no Ray cluster answers (Could not find any running Ray instance). Start a cluster with: "
    assert message in capsys.readouterr().err and calls[2:] == []


def test_a_cluster_that_cannot_be_joined_is_an_error_at_once(monkeypatch):
    def init(**kwargs):
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\nThis process with: 2.60.0"
        )

    monkeypatch.setattr(ray, "init", init)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # Nothing listens yet: Ray would try for minutes.
        with pytest.raises(CliError, match=r"no Ray cluster answers \(.*refused.*\). Start a cluster"):
            joined_cluster(address).__enter__()
        server.listen()
        with pytest.raises(
            CliError, match=r"cannot join .*\(Version mismatch.* Ray: 2\.59\.0.*same versions of Python"
        ):
            joined_cluster(address).__enter__()
    with pytest.raises(CliError, match="'70000' is no port"):
        joined_cluster("127.0.0.1:70000").__enter__()


@pytest.mark.parametrize("kind", KINDS)
def test_what_new_writes_is_clean(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", kind, "MyPPOThing2"]) == 0
    assert capsys.readouterr().out.endswith("Train it: jaxrl train file my_ppo_thing2.py\n")
    text = (tmp_path / "my_ppo_thing2.py").read_text()
    assert "class MyPPOThing2" in text and "keleton" not in text
    for check in (["check"], ["format", "--check"]):
        # By the rules of this project, as if it stood here.
        command = [sys.executable, "-m", "ruff", *check, "--stdin-filename", "jaxrl_stack/cli/skeletons/x.py", "-"]
        subprocess.run(command, input=text, cwd=ROOT, text=True, check=True, capture_output=True)
    assert cli.main(["new", kind, "MyPPOThing2"]) == 2
    assert "my_ppo_thing2.py cannot be written (File exists)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["module", "algo"])  # an environment is trained above
def test_what_new_writes_trains(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", kind, "Mine"]) == 0
    small = ["--set", "train_batch_size_per_learner=128", "--set", "minibatch_size=64", "--set", "num_epochs=1"]
    assert train("file", "mine.py", *small, "--num-iterations", "1", "--quiet", "--results-dir", "run") == 0


@pytest.mark.parametrize(("given", "name", "file"), [("maze", "Maze", "maze.py"), ("my-maze", "MyMaze", "my_maze.py")])
def test_new_makes_a_name_of_a_class_and_of_a_file(given, name, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "env", given]) == 0
    assert f"class {name}(" in (tmp_path / file).read_text()


def test_bash_completes_what_is_typed(tmp_path):
    command = tmp_path / "jaxrl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m jaxrl_stack.cli "$@"\n')
    command.chmod(0o755)
    offered = {
        "jaxrl comp": "compare completion",
        "jaxrl train pp": "PPO",
        "jaxrl train PPO gymnax/Pend": "gymnax/Pendulum-v1",
        "jaxrl train TQC --set n_q": "n_quantiles=",
    }
    script = ['eval "$(jaxrl completion bash)"']
    for line in offered:
        script.append(f"COMP_LINE='{line}' COMP_POINT={len(line)} COMPREPLY=()")
        script.append("COMP_TYPE=9 _python_argcomplete jaxrl; echo ${COMPREPLY[@]}")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert run.stdout.splitlines() == list(offered.values()), run.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_what_a_shell_evaluates(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    assert "jaxrl" in capsys.readouterr().out
