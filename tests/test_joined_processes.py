"""Several processes that train as one: two of them, with a device each, against one process with two devices."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pickle
import random
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxrl_stack
from jaxrl_stack.utils.named_leaves import is_key
from tests.joined_processes import ALGORITHMS, NUM_ENVS, config_of, on_data, raised, trained

ROOT = pathlib.Path(__file__).parents[1]
LAUNCHERS = ("SLURM_", "OMPI_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JOB_COMPLETION_INDEX")
NUM_PROCESSES = 2
TIMES = ("duration", "throughput", "sample")
"""Parts of the names of results that say how long something took."""


def free_port() -> int:
    """Port below those that outgoing connections of other processes take meanwhile."""
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 20000 and 32767")


def start(*arguments: str, folder: pathlib.Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    """A process in this folder, with one CPU device and these variables of a launcher."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**own, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What processes have printed, all of which have to succeed."""
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        # Those that wait for each other forever.
        for process in processes:
            process.kill()
            process.communicate()
    assert not any(process.returncode for process in processes), "\n".join(outputs)
    return outputs


def of_slurm(process: int, port: int) -> dict[str, str]:
    """What srun tells the tasks of a job on this machine."""
    return {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": str(NUM_PROCESSES),
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
        "JAX_COORDINATOR_PORT": str(port),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("joined")


@pytest.fixture(scope="module")
def joined(request, folder):
    """Findings of each process; they train the algorithms that tests of this session ask for."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {found["algorithm"] for found in parameters if found.get("algorithm") in ALGORITHMS}
    arguments = ("-m", "tests.joined_processes", str(folder), *sorted(asked))
    port = free_port()
    processes = [start(*arguments, **of_slurm(i, port)) for i in range(NUM_PROCESSES)]
    finished(processes)
    return [pickle.loads((folder / f"{i}.pickle").read_bytes()) for i in range(NUM_PROCESSES)]


@pytest.fixture(scope="module", params=ALGORITHMS)
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def alone(algorithm, folder):
    return trained(algorithm, NUM_PROCESSES, str(folder / f"{algorithm}_alone"))


def assert_close(weights, others, tolerance=1e-5):
    leaves, of_others = jax.tree.leaves_with_path(weights), jax.tree.leaves_with_path(others)
    assert len(leaves) == len(of_others)
    for (path, leaf), (other_path, other) in zip(leaves, of_others, strict=True):
        assert path == other_path
        if is_key(leaf):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_allclose(leaf, other, rtol=0.0, atol=tolerance, err_msg=jax.tree_util.keystr(path))


def numbers_of(result):
    """What a result says of sampling and learning, without times."""
    kept = {name: result[name] for name in ("env_runners", "learners", "replay_buffer") if name in result}
    named = ((jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(kept))
    return {name: leaf for name, leaf in named if not any(time in name for time in TIMES)}


def test_two_processes_train_as_two_devices_of_one(joined, alone, algorithm):
    first, second = (found[algorithm] for found in joined)
    assert_close(first["weights"], second["weights"], tolerance=0.0)
    assert_close(first["weights"], alone["weights"])
    assert_close(first["later"], alone["later"])
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), first["weights"], first["later"])
    assert max(jax.tree.leaves(moved)) > 1e-3
    assert first["stats"]["num_devices"] == 2 and "2 cpu device(s)" in first["repr"]


def test_every_process_reports_what_all_have_done(joined, alone, algorithm):
    for found in joined:
        for ours, expected in zip(found[algorithm]["results"], alone["results"], strict=True):
            numbers, others = numbers_of(ours), numbers_of(expected)
            assert numbers.keys() == others.keys()
            for name, number in numbers.items():
                np.testing.assert_allclose(number, others[name], rtol=1e-4, atol=1e-6, err_msg=name)
    last = alone["results"][-1]["env_runners"]
    assert last["num_episodes"] > 0 and np.isfinite(last["episode_return_mean"])


def test_every_process_evaluates_alike(joined, alone, algorithm):
    for found in joined:
        assert numbers_of(found[algorithm]["evaluation"]) == numbers_of(alone["evaluation"])


def test_a_checkpoint_of_several_processes_goes_on_in_them_and_in_one(joined, alone, algorithm):
    first, second = (found[algorithm] for found in joined)
    assert first["path"] == second["path"]
    for found in (first, second):
        assert_close(found["restored"], found["later"], tolerance=0.0)
    algo = config_of(algorithm, NUM_PROCESSES).build_algo()
    algo.restore_from_path(first["path"])
    algo.train()
    assert_close(algo.get_weights(), first["later"])
    # What the other process's environments and replay memory held is in it, too.
    algo.restore_from_path(first["path"])
    states = [algo.get_state()]
    algo.restore_from_path(alone["path"])
    states.append(algo.get_state())
    for name in ("env_runner", "replay_buffer"):
        assert_close(*(state.get(name, {}) for state in states))
    algo.stop()


def test_callbacks_see_the_environments_of_their_process(joined):
    results = [[result["env_runners"] for result in found["watched"]["results"]] for found in joined]
    for first, second in zip(*results, strict=True):
        assert first["seen"] + second["seen"] == first["num_episodes"] == second["num_episodes"]
        half = NUM_ENVS // 2
        assert 0 <= first["min_env_index"] < first["max_env_index"] < half
        assert half <= second["min_env_index"] < second["max_env_index"] < NUM_ENVS


def test_two_processes_learn_from_data_and_evaluate_on_it_as_two_devices_of_one(joined):
    expected = on_data(NUM_PROCESSES)
    for found in joined:
        assert found["on_data"] == pytest.approx(expected, rel=1e-5)


def test_iterations_end_by_one_clock(joined):
    calls = [[r["num_training_step_calls_per_iteration"] for r in found["watched"]["results"]] for found in joined]
    assert calls[0] == calls[1] and max(calls[0]) > 1


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("twice", "RuntimeError: distributed.initialize.*connected with others already. Call initialize.. only once"),
        ("envs", "ValueError: num_envs_per_env_runner=15 must be a multiple of the learner's 2 devices.*Use 16"),
        (
            "capacity",
            "ValueError: The value 513 of training.*'capacity'.* must be a multiple of the learner's 2 devices",
        ),
        ("minibatch", "ValueError: minibatch_size=33 must be a positive multiple of 2, the number of shuffle shards"),
        ("seeds", r"ValueError: The joined processes have different settings \(seed\).*the same config"),
        ("host", "ValueError: environment.'CartPole-v1'. is a host environment.*Leave distributed.initialize.. out"),
        ("learners", "ValueError: learners.num_learners=2. with distributed.initialize.*Leave num_learners"),
        ("rows", "ValueError: This learner runs on 2 devices of several processes.*learners.num_learners"),
    ],
)
def test_every_process_hears_what_joined_processes_cannot_do(joined, what, message):
    for found in joined:
        assert re.match(message, found["refused"][what]), found["refused"][what]


def test_what_the_first_process_cannot_do_fails_in_all(joined):
    for what in ("first", "stored"):  # a save in the background, too
        first, second = (found["refused"][what] for found in joined)
        assert first == "OSError: no space left"
        own = "RuntimeError: The first of the joined processes raised an error; correct the cause of that error: "
        assert second == f"{own}OSError: no space left"


# ------------------------------------------------------------------------------------------------------------- joining


INITIALIZE = """
import json, os, sys
import jax, jaxrl_stack
from tests.joined_processes import raised
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    print(raised(jaxrl_stack.distributed.initialize), jax.distributed.is_initialized(), sep=chr(31), end=chr(30))
    for name in variables:
        del os.environ[name]
print(jax.process_count(), jax.process_index(), len(jax.local_devices()), end="")
"""
UNJOINED = {
    "no_launcher": {"JAX_NUM_PROCESSES": "2"},
    "no_number": {"JAX_PROCESS_ID": "first"},
    "pod": {"JAX_NUM_PROCESSES": "1", "JOB_COMPLETION_INDEX": "0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
}
"""Variables that one process tries in turn, of which the last ones are enough."""


@pytest.fixture(scope="module")
def initialized():
    """``{what: [error, whether the process is joined]}``, and ranks and devices of the last one."""
    asked = {**UNJOINED, "pod": {**UNJOINED["pod"], "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}}
    (output,) = finished([start("-c", INITIALIZE, json.dumps(list(asked.values())))])
    *tries, last = output.split(chr(30))
    return dict(zip(asked, [each.split(chr(31)) for each in tries], strict=True)), last


def test_a_pod_is_numbered_by_its_job(initialized):
    tries, last = initialized
    error, joined = tries["pod"]
    assert error.endswith("nothing") and joined == "True" and last.endswith("1 0 1")


def test_without_a_launcher_nothing_is_joined(initialized):
    error, joined = initialized[0]["no_launcher"]
    assert re.search(
        "ValueError: distributed.initialize.. cannot find the other processes.*coordinator_address=None, "
        "num_processes=2, process_id=None.*environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, "
        "JAX_PROCESS_ID.*remove this call",
        error,
    )
    assert joined == "False"


def test_variables_hold_numbers(initialized):
    error, joined = initialized[0]["no_number"]
    assert "ValueError: distributed.initialize(): JAX_PROCESS_ID or JOB_COMPLETION_INDEX='first'" in error
    assert joined == "False"


def test_processes_are_joined_before_the_backend_starts():
    jax.devices()
    message = raised(lambda: jaxrl_stack.distributed.initialize("127.0.0.1:1", 1, 0))
    assert re.match("RuntimeError: distributed.initialize.. *: the JAX backend runs already.*before the first", message)
    assert not jax.distributed.is_initialized()


SMALLER = {
    "num_envs_per_env_runner=4096": "num_envs_per_env_runner=4",
    "train_batch_size_per_learner=131_072": "train_batch_size_per_learner=64",
    "minibatch_size=32_768": "minibatch_size=32",
    "range(50)": "range(1)",
}


def test_the_script_of_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "several_processes.md").read_text()
    (script,) = re.findall(r"^```python\n(import.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    for original, toy in SMALLER.items():
        assert original in script, f"{original!r} is not in the page any more: update SMALLER"
        script = script.replace(original, toy)
    (tmp_path / "train.py").write_text(script)
    of_all = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(NUM_PROCESSES)}
    processes = [start("train.py", folder=tmp_path, JAX_PROCESS_ID=str(i), **of_all) for i in range(NUM_PROCESSES)]
    first, second = finished(processes)
    printed = [[line for line in out.splitlines() if re.fullmatch(r"nan|[\d.]+", line)] for out in (first, second)]
    assert len(printed[0]) == 1 and not printed[1]
    assert (tmp_path / "shared" / "checkpoint").is_dir()
