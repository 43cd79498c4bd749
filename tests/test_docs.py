"""Pages of docs/ whose examples go on from each other: they run as they stand."""

from __future__ import annotations

import math
import pathlib
import re

import jaxrl_stack

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def test_what_is_subclassed_runs_as_the_page_shows_it():
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "extending.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {"__name__": "extending"}
    exec(compile("\n".join(blocks), "extending.md", "exec"), names)
    result = names["result"]
    assert result["updates_of_step"] == 2 and 0.0 <= result["env_runners"]["right"] <= 1.0
    assert math.isfinite(result["learners"]["default_policy"]["logit_penalty"])
    assert names["module"].log_std.shape == (2,) and names["runner"].num_made == 1


def test_what_remembers_runs_as_the_page_shows_it():
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "memory.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {"__name__": "memory"}
    exec(compile("\n".join(blocks), "memory.md", "exec"), names)
    for result in (names["result"], names["own_result"]):
        # Two chunks of 20 steps and 4 environments: of 8 of them, in minibatches of 4, each is in one of two, twice.
        assert result["learners"]["default_policy"]["num_module_steps_trained"] == 320
    assert names["state"]["critic"]["c"].shape == (1, 8)


def test_every_class_at_the_top_that_is_made_to_be_subclassed_has_its_place():
    page = (DOCS / "extending.md").read_text()
    used_as_they_are = {"Columns", "DefaultModelConfig", "Policy", "RLModuleSpec", "SingleAgentEpisode"}
    for name in set(jaxrl_stack.__all__) - used_as_they_are:
        if isinstance(getattr(jaxrl_stack, name), type) and not re.match("DQN|SAC|TQC", name):
            assert f"`{name}`" in page, name
