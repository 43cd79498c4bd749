"""Pages of docs/ whose examples go on from each other: they run as they stand."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_stack
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.env.jax_env import check_jax_env

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
READMES = sorted(ROOT.glob("jaxrl_stack/algorithms/*/README.md"))
WITH_EXAMPLES = [
    path for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *READMES] if "```python" in path.read_text()
]
FOR_USERS = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *READMES, *sorted(ROOT.glob("notebooks/*.ipynb"))]
GOES_ON_FROM = {"guide.md": ROOT / "README.md"}


def examples(path):
    """The Python blocks of a page, as one script."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", path.read_text(), flags=re.DOTALL | re.MULTILINE))


def names_without_origin(code):
    """Names that a script reads, and that it neither imports nor makes anywhere."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(dir(builtins))
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    imports = [name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names]
    made |= {(name.asname or name.name).partition(".")[0] for name in imports}
    made |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    return {node.id for node in names} - made


def test_the_commands_of_pages_exist():
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *READMES, ROOT / "tests" / "README.md"]
    named = {
        name
        for path in pages
        for name in re.findall(r"python -m ((?:bench|website|jaxrl_stack)[\w.]*)", path.read_text())
    }
    assert len(named) > 20
    assert not {name for name in named if importlib.util.find_spec(name) is None}


def _code_of_page(path):
    """Blocks and inline code of a page, or the cells of a notebook."""
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    return "\n".join(re.findall(r"^```.*?^```$|`[^`\n]+`", path.read_text(), flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("path", FOR_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_what_the_wheel_has(path):
    code = _code_of_page(path)
    folders = "|".join(sorted({init.parent.name for init in ROOT.glob("*/__init__.py")} - {"jaxrl_stack"}))
    assert "envs" in folders
    assert re.findall(rf"^ *(?:from|import) (?:{folders})\b.*", code, flags=re.MULTILINE) == []
    assert re.findall(rf"(?<![\w./])(?:{folders})[.\w]*:\w+", code) == []  # "envs.counter:CounterEnv"
    if re.search(rf"python -m (?:{folders})\b|python (?:{folders})/", code):
        assert "checkout" in path.read_text()


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_copied_from_a_page_has_its_imports(path):
    before = GOES_ON_FROM.get(path.name)
    assert names_without_origin((examples(before) if before else "") + examples(path)) == set()


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_the_configs_of_an_algorithms_page_are_valid(path):
    names: dict = {}
    exec(compile(examples(path), str(path), "exec"), names)
    config = names["config"]
    config.validate()
    assert config.algo_class.__name__.lower() == path.parent.name and config.env is not None


def test_the_examples_of_progress_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = examples(DOCS / "progress.md")
    smaller = {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1)",
        '{"env_runners/episode_return_mean": 475, "time_total_s": 60}': "1, progress=False",
    }
    for long, short in smaller.items():
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(compile(code, "progress.md", "exec"), names)
    names["algo"].stop()
    assert names["result"]["training_iteration"] == 1 and names["config"].loggers == {"wandb": {}}


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
    assert names["state"]["c"].shape == (1, 8)
    # Without memory it cannot be above 0.5 in the mean.
    assert names["answered"]["env_runners"]["episode_return_mean"] > 0.9


def test_every_class_at_the_top_that_is_made_to_be_subclassed_has_its_place():
    page = (DOCS / "extending.md").read_text()
    used_as_they_are = {"Columns", "DefaultModelConfig", "Policy", "RLModuleSpec", "SingleAgentEpisode", "Snapshots"}
    for name in set(jaxrl_stack.__all__) - used_as_they_are:
        if isinstance(getattr(jaxrl_stack, name), type) and not re.match(
            "DQN|PQN|SAC|TD3|TQC|IMPALA|APPO|BC|MARWIL|CQL|IQL|DreamerV3", name
        ):
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


def test_recorded_steps_are_learned_from_as_the_page_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = examples(DOCS / "offline.md")
    smaller = {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=512, '
        "minibatch_size=512, num_epochs=1).env_runners(num_envs_per_env_runner=4)"
        '.rl_module(model_config={"fcnet_hiddens": [4]})',
        "lr=1e-3)": 'lr=1e-3).rl_module(model_config={"fcnet_hiddens": [4]})',
        "evaluation_duration=20": "evaluation_duration=1",
        '"num_updates": 1000': '"num_updates": 20',
    }
    for long, short in smaller.items():
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(compile(code, "offline.md", "exec"), names)
    assert names["summary"].num_steps == 512
    assert names["result"]["learners"]["default_policy"]["num_module_steps_trained"] == 200 * 256
    for later in ("marwil", "dqn"):
        names[later].validate()


def test_populations_train_as_the_page_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = examples(DOCS / "populations.md")
    smaller = {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1).env_runners(num_envs_per_env_runner=4)"
        '.rl_module(model_config={"fcnet_hiddens": [4]})',
        "seeds=8": "seeds=4",
        "300_000}": "256}, progress=False",
        "learn(20)": "learn(1, progress=False)",
    }
    for long, short in smaller.items():
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(compile(code, "populations.md", "exec"), names)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"seeds.png", "rates.png", "rates.csv", "best.gif", "population"}
    rows = (tmp_path / "rates.csv").read_text().splitlines()
    assert rows[0].startswith("member,lr,env_config/gravity,seed,") and len(rows) == 1 + 12
    assert len(names["again"]) == 2 and names["again"].members[1].settings == {"lr": 2e-3, "gamma": 0.98}


def test_the_examples_of_several_agents_run():
    code = examples(DOCS / "multi_agent.md")
    smaller = {
        "num_envs_per_env_runner=64": "num_envs_per_env_runner=4",
        "batch_size_per_learner=4096, minibatch_size=512": "batch_size_per_learner=64, minibatch_size=32, num_epochs=1",
    }
    for long, short in smaller.items():
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(compile(code, "multi_agent.md", "exec"), names)
    assert set(names["result"]["env_runners"]["module_episode_returns_mean"]) == {"p0", "p1"}
    names["config"].validate()  # of rock-paper-scissors
    race = names["Race"]()
    check_jax_env(race)
    check_jax_env(names["InTurns"]())
    step = race.step(jax.random.key(0), jnp.array([9.0, 8.0]), {"left": jnp.int32(1), "right": jnp.int32(2)}, None)
    assert bool(step.terminated) and {agent: float(own) for agent, own in step.reward.items()} == {
        "left": 0,
        "right": 0,
    }


TUTORIALS: dict[str, dict[str, str]] = {
    "asked_for": {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1).env_runners(num_envs_per_env_runner=4)"
        '.rl_module(model_config={"fcnet_hiddens": [4]})',
        "learn(20)": "learn(1, progress=False)",
        "learn(2)": "learn(1, progress=False)",
    },
    "benchmarks": {
        ".training(lr=1e-3)": ".training(train_batch_size_per_learner=128, minibatch_size=128, num_epochs=1)"
        '.env_runners(num_envs_per_env_runner=8).rl_module(model_config={"fcnet_hiddens": [4]})',
        '"PPO": None, "mine": my_config': '"PPO": my_config',
        '["gymnax/CartPole-v1", "gymnax/Acrobot-v1"]': '["gymnax/CartPole-v1"]',
        "seeds=5": "seeds=1",
        '"num_env_steps_sampled_lifetime": 300_000': '"training_iteration": 1',
    },
    "checkpoints": {
        'environment("CartPole-v1")': 'environment("CartPole-v1").training(train_batch_size_per_learner=32, '
        'minibatch_size=32, num_epochs=1).rl_module(model_config={"fcnet_hiddens": [4]})'
    },
    "first_agent": {
        "num_envs_per_env_runner=64": "num_envs_per_env_runner=4",
        "train_batch_size_per_learner=4096, minibatch_size=512, num_epochs=10": "train_batch_size_per_learner=64, "
        "minibatch_size=64, num_epochs=1",
        "range(10)": "range(2)",
        ".debugging(seed=0)": ".debugging(seed=0).evaluation(evaluation_duration=1)"
        '.rl_module(model_config={"fcnet_hiddens": [4]})',
    },
    "your_environment": {
        "num_envs_per_env_runner=64": "num_envs_per_env_runner=2",
        "num_envs_per_env_runner=8": "num_envs_per_env_runner=2",
        "train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=5": "train_batch_size_per_learner=128, "
        "minibatch_size=128, num_epochs=1",
        "train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=5": "train_batch_size_per_learner=128, "
        "minibatch_size=128, num_epochs=1",
        "learn(10,": "learn(1,",
        'tuned("gymnax/Pendulum-v1")': 'tuned("gymnax/Pendulum-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1).env_runners(num_envs_per_env_runner=2)"
        '.rl_module(model_config={"fcnet_hiddens": [4]}).evaluation(evaluation_duration=1)',
    },
    "your_parts": {
        "num_envs_per_env_runner=64": "num_envs_per_env_runner=4",
        "train_batch_size_per_learner=4096, minibatch_size=512": "train_batch_size_per_learner=64, minibatch_size=64, "
        "num_epochs=1",
    },
    "images": {
        "num_envs_per_env_runner=64": "num_envs_per_env_runner=4",
        "train_batch_size_per_learner=4096, minibatch_size=512, num_epochs=4": "train_batch_size_per_learner=32, "
        "minibatch_size=32, num_epochs=1",
        "conv_filters=[[16, 3, 1]], head_fcnet_hiddens=[128]": "conv_filters=[[2, 3, 1]], head_fcnet_hiddens=[4]",
        "train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4": "train_batch_size_per_learner=64, "
        "minibatch_size=64, num_epochs=1",
    },
    "questions": {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1).env_runners(num_envs_per_env_runner=4)"
        '.rl_module(model_config={"fcnet_hiddens": [4]}).evaluation(evaluation_duration=1)',
        "learn(20)": "learn(1, progress=False)",
        "learn(10)": "learn(1, progress=False)",
        'algo.record("agent.gif", episodes=1)': "algo.record",  # as in first_agent.md
        "algo.learn(goal, ": 'algo.learn({"training_iteration": 1}, ',
        '{"lr": [3e-4, 1e-3]}, seeds=2, until={"num_env_steps_sampled_lifetime": 200_000}': '{"lr": [3e-4]}, '
        'seeds=1, until={"training_iteration": 1}, one_program=False',
        'run_seeds(config, 2, until={"num_env_steps_sampled_lifetime": 200_000}': "run_seeds(config, 1, "
        'until={"training_iteration": 1}, one_program=False',
    },
    "scaling": {
        "jaxrl_stack.use_cpu_devices(2)": "",  # this process has them
        "sweep = run_sweep(wide,": "wide.training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1)\n"
        'wide.env_runners(num_envs_per_env_runner=4).rl_module(model_config={"fcnet_hiddens": [4]})\n'
        "sweep = run_sweep(wide,",
    },
    "self_play": {
        "runner=64, rollout_fragment_length=16": "runner=2, rollout_fragment_length=4",
        "train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=4": "train_batch_size_per_learner=8, "
        "minibatch_size=8, num_epochs=1",
        "range(3)": "range(1)",
        "games=100": "games=4",
    },
    "tuning": {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        "minibatch_size=128, num_epochs=1).env_runners(num_envs_per_env_runner=8)"
        '.rl_module(model_config={"fcnet_hiddens": [4]})',
        "grace_period=10, max_t=160": "grace_period=1, max_t=3",
        "num_samples=64": "num_samples=4",
        "num_samples=32": "num_samples=4",
        "perturbation_interval=5": "perturbation_interval=1",
        "until=160": "until=3, progress=False",
        "num_samples=48": "num_samples=4",
        "until=40": "until=1, progress=False",
        'budget="60 s"': 'budget="1 s"',
    },
    "serving": {
        'tuned("gymnax/CartPole-v1")': 'tuned("gymnax/CartPole-v1").training(train_batch_size_per_learner=128, '
        'minibatch_size=128, num_epochs=1).rl_module(model_config={"fcnet_hiddens": [4]})',
        'learn({"env_runners/episode_return_mean": 475})': "learn(1, progress=False)",
    },
}
"""The same code, toy sizes."""


@pytest.mark.parametrize("page", TUTORIALS)
def test_tutorials_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = examples(DOCS / f"{page}.md")
    for long, short in TUTORIALS[page].items():
        assert long in code, long
        code = code.replace(long, short)
    names = {"__name__": page}
    exec(compile(code, f"{page}.md", "exec"), names)
    for value in names.values():
        if isinstance(value, AlgorithmConfig):
            value.validate()
        elif isinstance(value, Algorithm):
            value.stop()


def test_wishes_name_tests_and_issues_that_can_be_looked_up():
    page = (DOCS / "asked_for.md").read_text()
    for section in page.split("\n## ")[1:]:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
        assert tests and [name for path, name in tests if f"\ndef {name}(" not in (ROOT / path).read_text()] == []
        issues = re.findall(r"\[([\w/-]+)#(\d+)\]\((\S+)\)", section)
        assert issues and all(url == f"https://github.com/{name}/issues/{number}" for name, number, url in issues)


def test_every_page_with_examples_is_run_by_a_test():
    tests = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("site_tests/*.py")]
    text = "\n".join(path.read_text() for path in tests)
    pages = [path for path in WITH_EXAMPLES if path not in READMES]
    assert [path.name for path in pages if f"{path.name}" not in text and f'"{path.stem}"' not in text] == []
