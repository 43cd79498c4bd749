"""The Python examples of docs/curves.md run as they stand there, with fewer steps."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest

from jaxrl_stack.runs import diagnoses
from jaxrl_stack.runs.writers import ResultWriter

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "curves.md").read_text()
SMALLER = {"config, 8,": "config, 2,", "300_000": "8_192", "seeds=3": "seeds=1"}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    """Where a reader works: there are results of a run."""
    monkeypatch.chdir(tmp_path)
    with ResultWriter(tmp_path / "results" / "PPO_gymnax-CartPole-v1", {"lr": 0.1}, tensorboard=False) as writer:
        for i in range(5):
            writer.write(
                {
                    "env_runners": {"episode_return_mean": 10.0 * i},
                    "learners": {"default_policy": {"entropy": 0.5}},
                    "num_env_steps_sampled_lifetime": 100 * i,
                    "time_total_s": float(i),
                }
            )
    return tmp_path


def test_the_examples_run(folder, capsys):
    blocks = re.findall(r"<!-- run -->\n```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == PAGE.count("```python") == 5
    script = "\n".join(blocks)
    for text, smaller in SMALLER.items():
        assert text in script
        script = script.replace(text, smaller)
    exec(compile(script, "docs/curves.md", "exec"), {"__name__": "__main__"})
    made = {path.name for path in folder.iterdir()}
    assert {"return.png", "entropy.svg", "cartpole.png", "sweep.png", "map.png", "all.svg", "report.html"} <= made
    assert "▁▃▅▆█" in capsys.readouterr().out


def test_the_page_names_every_finding():
    titles = re.findall(r'^@rule\("\w+", "(.+)"\)$', inspect.getsource(diagnoses), flags=re.MULTILINE)
    table = re.findall(r"^\| ([A-Z][^|]*?) \|", PAGE, flags=re.MULTILINE)
    assert len(table) == len(diagnoses.RULES) and set(table) == set(titles)
