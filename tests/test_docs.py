"""Pages of docs/ whose examples go on from each other: they run as they stand."""

from __future__ import annotations

import math
import pathlib
import re

import numpy as np

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
    # Without memory it cannot be above 0.5 in the mean.
    assert names["answered"]["env_runners"]["episode_return_mean"] > 0.9


def test_every_class_at_the_top_that_is_made_to_be_subclassed_has_its_place():
    page = (DOCS / "extending.md").read_text()
    used_as_they_are = {"Columns", "DefaultModelConfig", "Policy", "RLModuleSpec", "SingleAgentEpisode"}
    for name in set(jaxrl_stack.__all__) - used_as_they_are:
        if isinstance(getattr(jaxrl_stack, name), type) and not re.match("DQN|SAC|TQC", name):
            assert f"`{name}`" in page, name


def test_examples_of_modules_run_as_the_page_shows_them():
    page = (DOCS / "module_examples.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks)
    shorter = {
        "range(150)": "range(2)",
        "range(5)": "range(1)",
        '"plain": plain, "curious": curious, ': "",  # the last one is compiled like them
        "minibatch_size=128, num_epochs=4, lr=0.003": "minibatch_size=512, num_epochs=1",
    }
    for long, short in shorter.items():
        assert long in code
        code = code.replace(long, short)
    names = {"__name__": "__main__"}  # a dataclass looks its module up
    exec(compile(code, "module_examples.md", "exec"), names)
    # One gradient step on all rows: the policy of the loss is the one that acted.
    assert abs(names["result"]["learners"]["default_policy"]["mean_kl_loss"]) < 1e-6
    trained, tuned = (names[name].get_module().get_state() for name in ("algo", "tuned"))
    assert "encoder/actor/directions/kernel" in trained
    for ref, value in trained.items():
        np.testing.assert_array_equal(tuned[ref], value, err_msg=ref)
    # Returns are those of 17 steps back at most: the last cell is not found yet. The rewards of the model, about
    # 1 in every step once they are scaled, are none of them; they shrink.
    first, second = names["results"]
    assert all(0.0 < result["env_runners"]["episode_return_max"] < 0.0171 for result in (first, second))
    surprises = [result["learners"]["rnd"]["mean_intrinsic_rewards"] for result in (first, second)]
    assert surprises[0] > surprises[1] > 0.0
    assert names["run"].get_module("rnd").learner_only
