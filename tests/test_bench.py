"""The benchmarks' own parts: what is timed does the work that its docstring claims."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import harness
from bench.baselines import sorting_loop, tight_loop

BASELINES = Path(sorting_loop.__file__).parent
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 8,
    "num_epochs": 2,
    "num_minibatches": 2,
    "hiddens": (8, 8),
}


@pytest.mark.parametrize("path", sorted(BASELINES.glob("*.py")), ids=lambda path: path.name)
def test_baselines_import_nothing_of_the_package(path: Path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {"jax", "flax", "optax", "gymnax"}


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 100, 128, 1000])
def test_permute_is_a_permutation_that_its_keys_change(num_rows: int):
    position = jnp.arange(num_rows, dtype=jnp.uint32)
    first, second = (
        np.asarray(tight_loop.permute(position, num_rows, jax.random.bits(jax.random.key(seed), (4,))))
        for seed in (0, 1)
    )
    assert sorted(first) == sorted(second) == list(range(num_rows))
    assert num_rows < 8 or (first != second).any()


@pytest.mark.parametrize(("num_in", "num_out"), [(4, 64), (64, 64), (64, 2), (64, 1)])
def test_cpu_dense_has_the_gradient_of_a_dense_layer(num_in: int, num_out: int):
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, b = (
        jax.random.normal(k, s)
        for k, s in zip(keys, [(32, num_in), (num_in, num_out), (num_out,)], strict=True)
    )
    ours, autodiff = (
        jax.jit(jax.value_and_grad(lambda x, w, b, f=f: jnp.sum(jnp.sin(f(x, w, b))), argnums=(0, 1, 2)))(
            x, w, b
        )
        for f in (tight_loop.cpu_dense, lambda x, w, b: x @ w + b)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, autodiff)


def test_chunks_do_not_change_the_update():
    whole, chunked = (tight_loop.make_loop(**SMALL, rows_per_chunk=rows) for rows in (16, 4))
    for _ in range(3):
        expected, got = whole.step(), chunked.step()
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert math.isclose(got[name], value, rel_tol=1e-3, abs_tol=1e-5) or math.isnan(value), name


@pytest.mark.parametrize("module", [sorting_loop, tight_loop], ids=["sorting", "tight"])
def test_loops_run_and_time_every_stage(module):
    loops = {until: module.make_loop(**SMALL, until=until) for until in module.STAGES}
    timings = harness.interleave(loops, rounds=2, seconds=0.0)
    assert all(len(timing.rates) == 2 and timing.rate > 0 for timing in timings.values())
    assert timings["update"].ratio_to(timings["update"]) == 1.0
    losses = [loops["update"].step()["vf_loss"] for _ in range(30)]
    assert all(map(math.isfinite, losses)) and loops["update"].steps_per_iteration == 32


def test_loops_refuse_what_they_cannot_run():
    with pytest.raises(ValueError, match="num_devices=2.*one device"):
        sorting_loop.make_loop(4, num_devices=2)
    with pytest.raises(ValueError, match="num_devices=99: the backend has"):
        tight_loop.make_loop(99, num_devices=99)
    with pytest.raises(ValueError, match="num_minibatches=3 does not divide"):
        tight_loop.make_loop(4, num_minibatches=3)
    with pytest.raises(ValueError, match="until='learn'"):
        tight_loop.make_loop(4, until="learn")


def test_throughput_writes_a_report():
    arguments = "--contenders tight --envs 2 --devices 2 --rounds 1 --seconds 0"
    report = harness.report_of("bench.throughput", *arguments.split())
    (row,) = report["results"]
    assert (row["contender"], row["num_envs"], row["num_devices"]) == ("tight", 2, 2)
    assert row["steps_per_s"] > 0 and row["ratio_to_tight"] == 1.0 and row["ratio_to_sorting"] is None
    assert set(row["stages_ms"]) == set(tight_loop.STAGES) and report["host_peak_bytes"] > 0


def test_unknown_contenders_are_named():
    command = [sys.executable, "-m", "bench.throughput", "--contenders", "quick"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "unknown contender 'quick'" in result.stderr


def test_report_can_be_written_to_a_file(tmp_path: Path):
    path = tmp_path / "report.json"
    harness.write_json(str(path), {"results": []})
    assert json.loads(path.read_text())["results"] == []
