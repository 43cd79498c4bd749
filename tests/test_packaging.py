"""What is shipped, what an import costs, and which module may import which."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import pytest
from hatchling.builders.wheel import WheelBuilder

import jaxrl_stack

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "jaxrl_stack"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MAP = (ROOT / PACKAGE / "README.md").read_text()

# Files that keep RLlib's import paths alive: imports and `__all__`, and no module here imports them.
FACADES = {
    "algorithms.appo.utils",
    "connectors.common.add_observations_from_episodes_to_batch",
    "connectors.common.add_states_from_episodes_to_batch",
    "connectors.common.add_time_dim_to_batch_and_zero_pad",
    "connectors.common.batch_individual_items",
    "connectors.common.numpy_to_tensor",
    "connectors.common.tensor_to_numpy",
    "connectors.env_to_module.flatten_observations",
    "connectors.env_to_module.frame_stacking",
    "connectors.learner.add_columns_from_episodes_to_train_batch",
    "connectors.learner.add_one_ts_to_episodes_and_truncate",
    "connectors.module_to_env.listify_data_for_vector_env",
    "connectors.module_to_env.remove_single_ts_time_rank_from_batch",
    "connectors.module_to_env.unbatch_to_individual_items",
    "core.learner.utils",
    "env.multi_agent_episode",
    "env.single_agent_episode",
    "env.utils.infinite_lookback_buffer",
    "env.wrappers.group_agents_wrapper",
    "utils.checkpoints",
    "utils.pre_checks.env",
    "utils.replay_buffers",
    "utils.replay_buffers.episode_replay_buffer",
    "utils.replay_buffers.multi_agent_episode_buffer",
    "utils.replay_buffers.multi_agent_prioritized_episode_buffer",
    "utils.replay_buffers.prioritized_episode_buffer",
    "utils.schedules.constant_schedule",
    "utils.schedules.exponential_schedule",
    "utils.schedules.linear_schedule",
    "utils.schedules.piecewise_schedule",
    "utils.schedules.polynomial_schedule",
    "utils.schedules.scheduler",
}


# ---------------------------------------------------------------------------------------------------------- the wheel


def test_the_wheel_holds_the_package_and_nothing_else():
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {path.split("/")[0] for path in shipped} == {PACKAGE}
    assert f"{PACKAGE}/py.typed" in shipped
    sources = {
        str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*.py*") if path.suffix in (".py", ".pyi")
    }
    assert sources <= shipped
    assert any(path.endswith(".pyi") for path in shipped)


SCRIPT = """
import sys, jaxrl_stack
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import Columns, DEFAULT_MODULE_ID
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.env.wrappers.atari_wrappers import is_atari
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.random_env import RandomEnv
from jaxrl_stack.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment
from jaxrl_stack.policy.policy import PolicySpec
from jaxrl_stack.policy.sample_batch import DEFAULT_POLICY_ID
from jaxrl_stack.tune.registry import get_trainable_cls
from jaxrl_stack.utils import images, serialization
from jaxrl_stack.utils.annotations import override
from jaxrl_stack.utils.error import EnvError
from jaxrl_stack.utils.framework import try_import_torch
from jaxrl_stack.utils.from_config import from_config
from jaxrl_stack.utils.numpy import softmax
from jaxrl_stack.utils.spaces.space_utils import batch, flatten_space
from jaxrl_stack.utils.test_utils import check
from jaxrl_stack.utils.typing import EpisodeType, ModuleID, TensorType

class MyModule(RLModule):
    @override(RLModule)
    def setup(self):
        pass

args = add_rllib_example_script_args().parse_args([])
config = get_trainable_cls(args.algo).get_default_config().environment(RandomEnv)
check(batch([softmax([0.0, 0.0])]), [[0.5, 0.5]])
print(jaxrl_stack.__file__)
"""


def test_a_script_of_rllibs_runs_from_the_wheel_outside_of_the_checkout(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(tmp_path / "installed" / PACKAGE / "__init__.py")


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in (ROOT / PACKAGE).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_version_is_declared_once_and_well_formed():
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == f"{PACKAGE}/__init__.py"
    assert WheelBuilder(str(ROOT)).metadata.version == jaxrl_stack.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", jaxrl_stack.__version__)


def test_the_command_is_installed_and_the_licence_is_apache():
    assert PROJECT["project"]["scripts"] == {"jaxrl": "jaxrl_stack.cli:main"}
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()


def test_every_extra_is_named_where_it_is_needed():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / PACKAGE).rglob("*.py")]
    text = "\n".join(page.read_text() for page in pages)
    extras = PROJECT["project"]["optional-dependencies"]
    assert [extra for extra in extras if not re.search(rf"[\[,]{extra}[\],]", text)] == []


def test_ci_runs_the_tests_as_the_readme_does_those_that_answer_soon_first():
    commands = re.findall(r"^python -m pytest.*", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    (default,) = re.findall(r"\.venv/bin/(python -m pytest.*)\n", (ROOT / "README.md").read_text())
    parts = [command.removeprefix(default).partition(" --junitxml")[0] for command in commands]
    assert parts == [" -m fast --every-file", ' -m "not fast and not slow"', " -m slow"]


# ------------------------------------------------------------------------------------------------------------ imports


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has imported after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_the_package_imports_nothing_heavy():
    assert modules_after("import jaxrl_stack") & {"jax", "flax", "numpy", "gymnax", "gymnasium", "ray"} == set()


def test_importing_modules_starts_no_backend_and_imports_no_ray():
    """One after the other in one interpreter: none of them takes back what another one has done."""
    modules = [
        "jaxrl_stack.algorithms.ppo",
        "jaxrl_stack.env.jax_env",
        "jaxrl_stack.cli.train",
        "jaxrl_stack.distributed",
    ]
    # gymnax starts the backend at import; after that the number of CPU devices is fixed.
    check = "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    assert modules_after(f"import {', '.join(modules)}; {check}") & {"ray", "gymnax", "tensorboardX", "torch"} == set()


def test_gymnax_is_imported_without_what_draws_its_environments():
    code = """
from jaxrl_stack.env.registry import resolve_env
env = resolve_env("gymnax/Pong-misc").make()
assert not {"matplotlib", "seaborn", "scipy.stats", "pandas"} & set(sys.modules), "imported to draw"
import gymnax, matplotlib.pyplot as plt
from gymnax.environments.misc import pong
assert type(env.env) is type(gymnax.make("Pong-misc")[0]) is pong.Pong
assert pong.plt.figure is plt.figure and pong.colors.ListedColormap is plt.matplotlib.colors.ListedColormap
"""
    assert "seaborn" not in modules_after(f"exec({code!r})")


def test_public_names_are_there_without_being_imported_first():
    from jaxrl_stack import algorithms

    assert callable(jaxrl_stack.use_cpu_devices) and callable(jaxrl_stack.distributed.initialize)
    for module in (jaxrl_stack, algorithms):
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            assert getattr(module, name) is not None
    assert jaxrl_stack.PPO is algorithms.PPO is sys.modules["jaxrl_stack.algorithms.ppo.ppo"].PPO
    for module in (jaxrl_stack, algorithms):
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
            _ = module.nothing


# ------------------------------------------------------------------------------------------------------------- layers


@functools.cache
def sources() -> dict[str, pathlib.Path]:
    """Name of every module of the package, without the package's own → its file."""
    found = {}
    for path in (ROOT / PACKAGE).rglob("*.py"):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]
    return found


@functools.cache
def rooms() -> dict[str, int]:
    """Name of every room → its row in the map's table."""
    rows = re.findall(r"^\| (\[.*?) \|", MAP, flags=re.MULTILINE)
    return {
        path.replace("/", "."): row
        for row, cell in enumerate(rows)
        for path in re.findall(r"\[([\w/]+)/\]\(\1/\)", cell)
    }


@functools.cache
def row_of(module: str) -> int:
    """Row of a module's room; the longest name that fits counts."""
    fits = [(len(name), row) for name, row in rooms().items() if f"{module}.".startswith(f"{name}.")]
    assert fits, f"{module} is in no room of the map"
    return max(fits)[1]


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, functions' bodies included and ``if TYPE_CHECKING:`` left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", getattr(child.test, "attr", "")) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from run_time_nodes(other)
            continue
        yield child
        yield from run_time_nodes(child)


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module's file."""
    return ast.parse(sources()[module].read_text())


@functools.cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """Absolute names that a module imports, wherever in it, with the line."""
    found = []
    for node in run_time_nodes(tree_of(module)):
        if isinstance(node, ast.Import):
            found += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix(f"{PACKAGE}.") in sources()
                found.append((full if is_module else str(node.module), node.lineno))
    return found


@functools.cache
def own_imports_of(module: str) -> list[tuple[str, int]]:
    """What of it is in the package, without the package's name."""
    prefix = f"{PACKAGE}."
    return [(name.removeprefix(prefix), line) for name, line in imports_of(module) if name.startswith(prefix)]


def test_imports_go_upward_in_the_table_of_the_map():
    wrong = [
        f"{module}, line {line}: imports {imported}, which is below it"
        for module in sorted(sources().keys() - FACADES)
        for imported, line in own_imports_of(module)
        if row_of(imported) > row_of(module)
    ]
    assert wrong == []


def holds_imports_only(module: str) -> bool:
    """Whether a file holds nothing but imports, `__all__` and its docstring."""
    body = tree_of(module).body
    code = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)]
    return len(code) == 1 and ast.unparse(code[0]).split(" = ")[0] == "__all__"


def test_facades_are_listed_and_imported_by_no_room():
    # A package may be one; that it lists what is in it makes it none.
    packages = {module for module, path in sources().items() if path.name == "__init__.py"} - FACADES
    assert {module for module in sources() if holds_imports_only(module)} - packages == FACADES
    wrong = [
        f"{module}, line {line}: imports the façade {imported}"
        for module in sorted(sources())
        for imported, line in own_imports_of(module)
        if imported in FACADES
    ]
    assert wrong == []


def test_imports_make_no_cycle():
    graph = {module: {name for name, _ in own_imports_of(module) if name in sources()} for module in sources()}
    # A module never leads back to itself; modules that lead nowhere are taken away until only cycles are left.
    while leaves := {module for module, imported in graph.items() if not imported}:
        graph = {module: imported - leaves for module, imported in graph.items() if module not in leaves}
    while roots := graph.keys() - {name for imported in graph.values() for name in imported}:
        graph = {module: imported for module, imported in graph.items() if module not in roots}
    assert {module: sorted(imported) for module, imported in graph.items()} == {}


def test_ops_import_jax_only():
    allowed = {"jax", "chex", PACKAGE, *sys.stdlib_module_names}
    wrong = [
        f"{module}, line {line}: {name}"
        for module in sources()
        if module.split(".")[0] == "ops"
        for name, line in imports_of(module)
        if name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_no_module_of_the_package_imports_top_level_folders():
    outside = {"envs", "bench", "tests", "notebooks"}
    wrong = [
        f"{m}, line {line}: {name}" for m in sources() for name, line in imports_of(m) if name.split(".")[0] in outside
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("core.rl_module.torch.torch_rl_module", "core.rl_module.rl_module.RLModule"),
        ("core.learner.torch.torch_learner", "core.learner.learner.Learner"),
        ("algorithms.ppo.torch.ppo_torch_learner", "PPOLearner"),
        ("algorithms.ppo.torch.default_ppo_torch_rl_module", "DefaultPPORLModule"),
        ("algorithms.sac.torch.sac_torch_learner", "SACLearner"),
        ("algorithms.tqc.torch.tqc_torch_learner", "TQCLearner"),
        ("algorithms.tqc.torch.default_tqc_torch_rl_module", "DefaultTQCRLModule"),
        ("core.distribution.torch.torch_distribution", "jax_distribution"),
        ("utils.torch_utils", "utils.numpy"),
        ("policy.torch_policy_v2", "Flax NNX modules"),
        ("env.vector_env", "gymnasium.vector.VectorEnv"),
        ("evaluation.rollout_worker", "EnvRunnerGroup"),
        ("models.modelv2", "RLModule"),
        ("models.torch.torch_action_dist", "jax_distribution.Categorical"),
        ("models.torch.torch_distributions", "jaxrl_stack.core.distribution"),
        ("models.catalog", "core.models.catalog.Catalog"),
        ("connectors.agent", "env_to_module"),
        ("core.rl_module.marl_module", "MultiRLModuleSpec"),
        ("core.testing.bc_algorithm", "RLModule of your own"),
        ("utils.nested_dict", "nested dicts, with jax.tree"),
        ("policy.view_requirement", "connector"),
        ("policy.eager_tf_policy_v2", "Flax NNX modules"),
        ("algorithms.ppo.ppo_torch_policy", "PPOLearner"),
        ("utils.tf_utils", "JAX"),
        ("algorithms.appo.torch.appo_torch_learner", "APPOLearner"),
        ("algorithms.marwil.torch.marwil_torch_learner", "MARWILLearner"),
        ("algorithms.bc.torch.default_bc_torch_rl_module", "DefaultBCRLModule"),
        ("algorithms.impala.vtrace_torch", "jaxrl_stack.ops.vtrace"),
        ("offline.json_reader", "offline_data(input_=...)"),
        ("env.wrappers.recsim", "a gymnasium.Env of your own"),
        ("utils.debug.memory", "debugging(seed=...)"),
    ],
)
def test_import_paths_that_do_not_exist_here_name_what_to_use(path, instead):
    with pytest.raises(ImportError, match=re.escape(instead)):
        importlib.import_module(f"jaxrl_stack.{path}")
