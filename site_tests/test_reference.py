"""Examples of pages that compile whole algorithms: those of the reference and of the first page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    "page", ["reference/algorithms.md", "reference/runs.md", "index.md", "start.md", "troubleshooting.md"]
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE))
    code = code.replace('learn({"env_runners/episode_return_mean": 475})', "learn(2, progress=False)")
    exec(compile(code, page, "exec"), {"__name__": "page"})
