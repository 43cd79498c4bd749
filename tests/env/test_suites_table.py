"""Prefixes of suites: what they mean, what others bring, and what is said where a suite or an id is missing."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack import cli
from jaxrl_stack.env import suites
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, check_jax_env
from jaxrl_stack.env.quiet import WARP, without_lines
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.suites import SUITES, Suite

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The page's own suite as an installed package, beside two whose entry points name no suite."""
    (source,) = re.findall(r"```python\n(# my_suite.py\n.*?)```", PAGE, re.S)
    (entry,) = re.findall(r"```toml\n\[project.entry-points.\"jaxrl_stack.environments\"\]\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_suite.py").write_text(source)
    (tmp_path / "not_a_suite.py").write_text("import json\nMyEnv = dict\n")
    info = tmp_path / "my_suite-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-suite\nVersion: 1.2\n")
    names = entry.replace('"', "") + "wrong = not_a_suite:MyEnv\ngone = not_there_at_all:MyEnv\n"
    (info / "entry_points.txt").write_text(f"[{suites.ENTRY_POINTS}]\n{names}")
    monkeypatch.syspath_prepend(str(tmp_path))
    suites.all_suites.cache_clear()
    yield
    suites.all_suites.cache_clear()
    for module in ("my_suite", "not_a_suite"):
        sys.modules.pop(module, None)


def test_a_package_brings_its_own_prefix(installed, capsys):
    resolved = resolve_env("lines/short", {"max_steps": 2})
    assert resolved.is_jax and resolved.name == "lines/short"
    env = resolved.make()
    assert env.name == "lines/short" and env.source == "lines/short (my-suite 1.2)"
    _, state = env.reset(jax.random.key(0), None)
    state = (jnp.int32(0), state[1])
    step = env.step(jax.random.key(1), state, jnp.int32(0), None)
    assert step.final_obs == 0.0 and step.reward == -1.0 and not step.terminated and not step.truncated
    step = env.step(jax.random.key(1), step.state, jnp.int32(1), None)
    assert step.final_obs == 1.0 and step.truncated and not step.terminated
    assert cli.main(["list", "--envs", "lines"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lines/short  Box(0.0, 3.0, (1,), float32)  Discrete(2)",
        "lines/long  Box(0.0, 10.0, (1,), float32)  Discrete(2)",
    ]
    assert cli.main(["list", "envs"]) == 0
    assert "  lines/..., jaxrl list --envs lines" in capsys.readouterr().out.splitlines()


def test_unknown_ids_settings_and_prefixes_are_told_what_there_is(installed):
    with pytest.raises(ValueError, match="my-suite 1.2 has no environment 'lnog'. Did you mean 'lines/long'"):
        resolve_env("lines/lnog").make()
    with pytest.raises(ValueError, match="lines/long has no such setting. Did you mean 'max_steps'") as error:
        resolve_env("lines/long", {"max_step": 3}).make()
    assert error.value.__notes__ == ["Raised while lines/long (my-suite 1.2) was made."]
    with pytest.raises(ValueError, match="unknown environment 'line/long'. Did you mean 'lines/long'"):
        resolve_env("line/long")
    with pytest.raises(ValueError, match="Did you mean 'brax/ant'"):
        resolve_env("brx/ant")
    with pytest.raises(TypeError, match="entry point 'wrong' .* 'not_a_suite:MyEnv'.*Set the entry point to"):
        resolve_env("wrong/x").make()
    with pytest.raises(ModuleNotFoundError) as error:
        resolve_env("gone/x").make()
    assert error.value.__notes__ == ["Raised while not_there_at_all:MyEnv of the prefix 'gone/' was imported."]


def test_errors_inside_of_a_suite_name_suite_and_version(installed, capsys, monkeypatch):
    env = resolve_env("lines/long").make()

    def broken(key, state, action, params):
        raise KeyError("wheel")

    monkeypatch.setattr(type(env), "step_env", staticmethod(broken))
    with pytest.raises(KeyError, match="wheel") as error:
        check_jax_env(env)
    assert any("Raised while lines/long (my-suite 1.2).step was traced" in note for note in error.value.__notes__)
    assert cli.main(["train", "--algo", "PPO", "--env", "lines/long"]) != 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert "wheel" in said and "lines/long (my-suite 1.2).step" in said


def test_a_missing_suite_is_one_sentence_with_the_line_that_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(SUITES, "lacking", Suite("lacking", "x:Y", "there_is_no_such_module", "lacking"))
    suites.all_suites.cache_clear()
    words = (
        "environments whose names start with 'lacking/' need there_is_no_such_module, which is not installed: "
        "pip install 'jaxrl-stack[lacking]'"
    )
    try:
        with pytest.raises(ImportError) as error:
            resolve_env("lacking/x")
        assert str(error.value) == words
        assert cli.main(["train", "--algo", "PPO", "--env", "lacking/x"]) == 2
        assert words in capsys.readouterr().err
        assert cli.main(["list", "--envs", "lacking"]) == 2
        assert words in capsys.readouterr().err
        assert cli.main(["list", "--envs", "lackin"]) == 2
        assert "--envs lackin: no suite of environments has this name. Suites are brax, " in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        suites.all_suites.cache_clear()


def test_every_suite_has_an_extra_a_file_and_a_row_in_the_page():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    job = (ROOT / ".ci" / "suites").read_text()
    for prefix, suite in SUITES.items():
        assert suite.extra in extras and suite.pip_line in PAGE and f"| `{prefix}/" in PAGE
        module, _, class_name = suite.env_class.partition(":")
        source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        assert f"class {class_name}(" in source and source.count("\n") <= 120
        assert re.search(rf"[\[,]{suite.extra}[\],]", job)


def test_resolving_a_suites_name_imports_no_suite_and_starts_no_backend():
    program = """
import sys
from jaxrl_stack.env.registry import resolve_env
for name in ("brax/ant", "pgx/2048"):
    try:
        assert resolve_env(name).is_jax
    except ImportError as error:
        assert "pip install" in str(error)
assert not {"brax", "pgx", "gymnax", "ray"} & set(sys.modules)
import jax
assert not jax._src.xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


class CostlyWalk(AutoResetJaxEnv):
    """Ends after some steps, a random number of them; its spaces depend on its config."""

    reset_is_cheap = False

    def __init__(self, config=None):
        super().__init__()
        self.observation_space = Box(0.0, 9.0, ((config or {}).get("size", 2),))
        self.action_space = Discrete(2)

    def reset_env(self, key, params):
        length = jax.random.randint(key, (), 1, 5)
        return jnp.full(self.observation_space.shape, length), (length, key)

    def step_env(self, key, state, action, params):
        left = state[0] - 1
        return jnp.full(self.observation_space.shape, left), (left, key), 1.0, left == 0, False, {}


@pytest.mark.parametrize("num_envs", [1, 20, 64])
def test_resets_of_those_that_ended_are_the_resets_of_all(num_envs):
    env = CostlyWalk()
    first, *keys = jax.random.split(jax.random.key(num_envs), 13)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(first, num_envs), None)
    together = jax.jit(env.step_batch)
    apart = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
    action, ended = jnp.zeros(num_envs, jnp.int32), []
    for key in keys:
        key = jax.random.split(key, num_envs)
        one, other = together(key, state, action, None), apart(key, state, action, None)
        numbers = [
            jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.extended) else x, step)
            for step in (one, other)
        ]
        jax.tree.map(np.testing.assert_array_equal, *numbers)
        state = one.state
        ended.append(int(one.terminated.sum()))
    assert sum(ended) >= 2 * num_envs
    assert num_envs == 1 or len(set(ended)) > 1


def test_spaces_may_depend_on_the_config():
    env = resolve_env(CostlyWalk, {"size": 5}).make()
    assert env.observation_space.shape == (5,)

    class Spaceless(CostlyWalk):
        def __init__(self, config=None):
            self.action_space = Discrete(2)

    with pytest.raises(TypeError, match="Spaceless does not define observation_space. Set self.observation_space in"):
        resolve_env(Spaceless).make()


def test_lines_that_say_nothing_are_left_out_and_all_others_are_printed(capsys):
    def fails():
        with without_lines(*WARP):
            print("Failed to import warp: No module named 'warp'")
            print("Failed to import brax\nleft: Failed to import warp:")
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fails()
    assert capsys.readouterr().out == "Failed to import brax\nleft: Failed to import warp:\n"
