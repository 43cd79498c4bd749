"""Tuned settings of all algorithms: that they are settings, and that what is said of them was measured."""

from __future__ import annotations

import json
import pathlib

import gymnasium as gym
import pytest

from jaxrl_stack import cli
from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_config_class, tuned_evidence, tuned_settings
from jaxrl_stack.algorithms.tuned_records import Evaluated, FromLiterature, Held, Measured, Scored

BENCH = pathlib.Path(__file__).parents[2] / "bench"
ENTRIES = [(name, env, evidence) for name in sorted(ALGORITHMS) for env, evidence in tuned_evidence(name).items()]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_tuned_settings_are_settings(name):
    config_class = get_algorithm_config_class(name)
    for env, settings in tuned_settings(name).items():
        config = config_class.tuned(env)
        if "/" not in env and ":" not in env and env not in gym.registry:
            # Another release of gymnasium has another version of it.
            assert any(known.startswith(env.rpartition("-v")[0] + "-v") for known in gym.registry), env
            config.environment("gymnax/Pendulum-v1")
        try:
            config.validate()
        except ImportError:  # the suite is not here
            config.environment("gymnax/Pendulum-v1").validate()
        assert settings.keys() <= config.explicitly_set | {"model_config"}, env
    assert tuned_settings(name).keys() == tuned_evidence(name).keys()


def test_what_is_measured_stands_in_the_runs():
    runs = lines_of("learning.jsonl")
    steps: dict[tuple, dict[int, int | None]] = {}
    held: dict[tuple, dict[int, bool]] = {}
    for done in runs:
        run, measured = done["run"], done["measured"]
        of = (run["algorithm"], run["env"])
        if "hold" in run:
            held.setdefault((*of, run["hold"], run["from"], run["until"]), {})[run["seed"]] = measured["held"]
        else:
            key = (*of, run["target"], run["within"], run.get("standard_error"))
            steps.setdefault(key, {})[run["seed"]] = measured["env_steps"] if measured["reached"] else None
    measured = {(name, env): of for name, env, of in ENTRIES if isinstance(of, Measured)}
    assert steps == {
        (*key, of.target, of.within, of.standard_error): dict(enumerate(of.steps)) for key, of in measured.items()
    }
    assert held == {
        (*key, of.held.mean, of.held.first, of.held.until): dict(enumerate(of.held.seeds))
        for key, of in measured.items()
        if of.held is not None
    }


def test_what_is_evaluated_stands_in_the_runs():
    runs = lines_of("dreamer.jsonl")
    evaluated = [(name, env, of) for name, env, of in ENTRIES if isinstance(of, Evaluated)]
    assert len(evaluated) == 3
    for name, env, evidence in evaluated:
        settings = tuned_settings(name)[env]
        same = {"algorithm": name, "env": env, "target": evidence.target, "within": evidence.within}
        steps = {
            done["run"]["seed"]: done["measured"]["reached"]
            for done in runs
            if same.items() <= done["run"].items() and settings_of(done["run"]) == settings
        }
        assert steps == dict(enumerate(evidence.steps)), env


def test_final_scores_stand_in_the_runs():
    runs = [done for done in lines_of("scores.jsonl") if "changed" not in done["run"]]
    for name, env, evidence in ENTRIES:
        if not isinstance(evidence, Scored):
            continue
        same = {"algorithm": name, "env": env, "steps": evidence.steps}
        own = [done for done in runs if same.items() <= done["run"].items()]
        scores = {done["run"]["seed"]: done["measured"]["score"] for done in own}
        assert scores == dict(enumerate(evidence.scores)), env


def settings_of(run: dict) -> dict:
    """Those of a line of dreamer.jsonl."""
    return {"model_size": run["size"], "training_ratio": run["ratio"], **run.get("training", {})}


def lines_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (BENCH / name).read_text().splitlines()]


def test_most_seeds_of_what_is_measured_reach_the_target():
    for name, env, evidence in ENTRIES:
        if is_measured(evidence):
            assert len(evidence.steps) >= 3 and evidence.steps.count(None) <= 1, (name, env)
            held = evidence.held if isinstance(evidence, Measured) else None
            assert held is None or held.seeds.count(False) <= 1, (name, env)


def test_the_list_says_what_is_measured_and_what_was_read(capsys):
    assert cli.main(["list", "tuned"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"  {name} {env}  {evidence}" for name, env, evidence in sorted(ENTRIES, key=lambda one: one[:2])]
    assert any(line.endswith(" of 5 seeds") for line in lines)


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (Measured(-90.0, 500_000, (352_256, 229_376)), "a mean return of -90 after 229k to 352k steps, 2 of 2 seeds"),
        (Measured(0.7, 9_000, (8_100, None, 7_900)), "a mean return of 0.7 after 8k steps, 2 of 3 seeds"),
        (Measured(0.7, 9_000, (None,)), "a mean return of 0.7 within 9,000 steps, 0 of 1 seeds"),
        (
            Measured(450.0, 200_000, (80_000,), held=Held(400.0, 150_000, 400_000, (True, False))),
            "a mean return of 450 after 80k steps, 1 of 1 seeds; never below 400 from 150k to 400k, 1 of 2 seeds",
        ),
    ],
)
def test_how_a_result_reads(evidence, text):
    assert str(evidence) == f"measured: {text}"
    assert str(Evaluated(9.0, 40_000, (9_000,))) == (
        "measured: a mean return of 9 after 9k steps, 1 of 1 seeds, 20 greedy episodes"
    )
    assert str(Scored(1_000_000, (2382.9, 963.09, 1500.0))) == (
        "measured: final scores of 963.1 to 2,383 after 1,000k steps, 3 seeds"
    )
    assert str(FromLiterature("a paper")) == "from the literature, not run: a paper"


def is_measured(evidence: object) -> bool:
    return isinstance(evidence, Measured | Evaluated)
