"""The Python examples of the README and of the guide run, one after the other, as a reader would run them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import types

import pytest

from jaxrl_stack import PPOConfig

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/guide.md").read_text()

# Same code, toy sizes.
SMALLER = {
    'learn({"env_runners/episode_return_mean": 475})': "learn(2, progress=False)",
    'learn({"env_runners/episode_return_mean": -12})': "learn(1, progress=False)",
    'PPOConfig.tuned("gymnax/CartPole-v1")\n': (
        'PPOConfig.tuned("gymnax/CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})'
        ".env_runners(num_envs_per_env_runner=4)"
        ".training(train_batch_size_per_learner=32, minibatch_size=16)\n"
    ),
    "num_epochs=4": "num_epochs=1",
    "evaluation_interval=10": "evaluation_interval=2",
    "evaluation_duration=20": "evaluation_duration=2",
    "range(50)": "range(2)",
    # Actors are slow to start, and a second one shows nothing new.
    "num_env_runners=2": "num_env_runners=1",
    "num_learners=2": "num_learners=0",
    "train_batch_size_per_learner=1024": "train_batch_size_per_learner=256",
    "minibatch_size=256": "minibatch_size=128",
    "num_epochs=6": "num_epochs=1",
    "grid_search([1e-4, 1e-3])": "grid_search([1e-4])",
    '"training_iteration": 100': '"training_iteration": 1',
    "fcnet_hiddens=[256]": "fcnet_hiddens=[4]",  # the head's, too
    "fusionnet_hiddens=[64, 64]": "fusionnet_hiddens=[4]",
    "range(3)": "range(2)",  # the first one only fills the buffer
    "min_sample_timesteps_per_iteration=500": "min_sample_timesteps_per_iteration=300",
}


def blocks(language: str, page: str = f"{README}\n{GUIDE}") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def as_script(page: str, smaller: dict[str, str]) -> str:
    """Python blocks of a page as one script; a block that says ``# raises X`` must raise X in its last statement."""
    parts = []
    for number, block in enumerate(blocks("python", page), 1):
        raises = re.search(r"# raises (\w+)$", block, flags=re.MULTILINE)
        if raises:
            block = (
                f"try:\n{textwrap.indent(block, '    ')}"
                f"except {raises.group(1)} as error:\n    print(error)\n"
                f"else:\n    raise AssertionError('block {number} should raise')\n"
            )
        parts.append(f"{block}print('block {number} ran', flush=True)\n")
    script = "\n".join(parts)
    for original, toy in smaller.items():
        assert original in script, f"{original!r} is not on these pages any more: update SMALLER"
        script = script.replace(original, toy)
    return script


def run_as_script(page: str, smaller: dict[str, str], folder: pathlib.Path, **environment: str) -> None:
    # A process of its own: two CPU devices, files of its own.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_NUM_CPU_DEVICES": "2",
        "XDG_CACHE_HOME": str(folder),
        "TMPDIR": str(folder),
        "TEST_TMPDIR": str(folder),  # where Tune puts its results
        **environment,
    }
    script = folder / "readme.py"
    script.write_text(as_script(page, smaller))
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ran\n") == len(blocks("python", page)), run.stdout


def test_the_example_of_the_readme_runs(tmp_path):
    run_as_script(README, {text: toy for text, toy in SMALLER.items() if text in README}, tmp_path)
    assert {"curve.png", "cartpole.gif", "report.html"} <= {path.name for path in tmp_path.iterdir()}


def test_python_examples_run(tmp_path, ray_session):
    # Their cluster is this session's Ray.
    run_as_script(f"{README}\n{GUIDE}", SMALLER, tmp_path, RAY_ADDRESS=ray_session.get_runtime_context().gcs_address)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide.md",
        "docs/progress.md",
        "docs/videos.md",
        "docs/curves.md",
        "notebooks/01_quickstart.ipynb",
    ],
)
def test_what_is_copied_first_trains_many_environments_at_a_time(page):
    text = (ROOT / page).read_text()
    if page.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    first = re.search(r'PPOConfig[\w.()]*\("gymnax/CartPole-v1"\)', text)
    assert first is not None and not eval(first[0], {"PPOConfig": PPOConfig}).sampling_hints()


PAGES = ["README.md", "CONTRIBUTING.md", "jaxrl_stack/README.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))]
PAGES += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("jaxrl_stack/*/**/README.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_rows_and_items_of_pages_have_lines_of_their_own():
    """Each row of a table is one line with as many cells as the header, and each list item begins a line."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"`[^`]*`|\$[^$\n]*\$|\\\|", "-", text)
        for table in re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE):
            rows = table.strip().splitlines()
            wrong += [(page, row) for row in rows if not row.endswith("|") or row.count("|") != rows[0].count("|")]
        wrong += [(page, item) for item in re.findall(r"^.*[.:;] \* .*$", text, re.MULTILINE)]
    assert not wrong


@pytest.mark.parametrize("page", ["README.md", "docs/command_line.md"])
def test_commands_parse(page, monkeypatch):
    """Every `jaxrl` command of a page is one that the command line knows."""
    import shlex

    from jaxrl_stack import cli

    commands = [
        re.split(r"; done|\)\"", line[line.index("jaxrl ") :])[0]
        for block in blocks("bash", (ROOT / page).read_text())
        for line in block.splitlines()
        if "jaxrl " in line
    ]
    assert len(commands) >= 3
    parsed = []
    noted = types.SimpleNamespace(run=lambda arguments: parsed.append(arguments.command) or 0)
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: noted)
    for command in commands:
        words = shlex.split(command.replace("$seed", "0"))
        assert cli.main(words[1:]) == 0, command
    assert len(parsed) == len(commands)


@pytest.mark.parametrize("page", ["jaxrl_stack/README.md", "docs/code_tour.md"])
def test_the_map_names_what_exists(page):
    """`file.py: Class.method` and `Class.method` of the package's map and tour are in the source."""
    package = ROOT / "jaxrl_stack"
    text = (ROOT / page).read_text()
    sources = [path.read_text() for path in sorted(package.rglob("*.py"))]
    classes, functions = (
        {name for source in sources for name in re.findall(rf"\b{word} (\w+)", source)} for word in ("class", "def")
    )
    in_files = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(in_files) >= 5
    for file, name in in_files:
        assert re.search(rf"(def|class) {name.split('.')[0]}\b", (package / file).read_text()), (file, name)
    for file in re.findall(r"`([\w]+/[\w/]+\.py)`", text):
        assert (package / file).exists() or (ROOT / file).exists(), file
    for cls, member in re.findall(r"`(?:[\w/]+\.py: )?([A-Z]\w+)\.(\w+)`", text):
        assert cls in classes, cls
        assert member in functions, member
