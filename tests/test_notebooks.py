"""The notebooks run from top to bottom, at toy size, and show what they promise."""

from __future__ import annotations

import pathlib

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The executed notebook."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXRL_NOTEBOOK_TOY", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # Compiling is most of the time at this size.
        patch.setenv(
            "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        )
        notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    return notebook


def outputs(notebook, cell_id):
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return cell.outputs


def data(notebook, cell_id, mime):
    return [out.data[mime] for out in outputs(notebook, cell_id) if mime in out.get("data", {})]


def test_it_is_stored_without_outputs():
    notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)


def test_the_config_is_shown_as_a_table(quickstart):
    (html,) = data(quickstart, "config", "text/html")
    assert "<table>" in html
    assert "gymnax/CartPole-v1" in html


def test_the_curve_is_one_picture_that_is_updated(quickstart):
    # Not one picture per iteration: updates replace it.
    assert len(data(quickstart, "train", "image/png")) == 1


def test_evaluation_and_animation(quickstart):
    text = "".join(out.text for out in outputs(quickstart, "evaluate") if "text" in out)
    assert text.startswith("10 episodes, mean return ")
    (animation,) = data(quickstart, "render", "text/html")
    assert "frames[0]" in animation
    assert len(animation) < 2_000_000


def test_the_custom_module_trains_too(quickstart):
    text = "".join(out.text for out in outputs(quickstart, "custom") if "text" in out)
    assert "Residual" in text
    assert "hidden/kernel" in text
    assert len(data(quickstart, "compare", "image/png")) == 1
