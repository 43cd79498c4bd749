"""The kit that measures accelerators (`bench.gpu`): its environments, loops, lines and tables."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import device_busy, gpu, gpu_page, gpu_parts, harness
from bench.baselines import recurrent_loop, tight_loop, vtrace_loop
from bench.baselines.environments import make_environment
from bench.baselines.item_ring import make_item_ring
from bench.baselines.pqn_loop import Transition, lambda_returns
from bench.jax_envs import CartPoles, Catch
from bench.peers import protocol
from jaxrl_stack.env.jax_env import check_jax_env

ROOT = Path(__file__).parents[1]
MACHINE = {"device": "GPU X", "python": "3.12", "versions": {"jax": "1.0"}}


@pytest.mark.parametrize("name", ["CartPole", "Pendulum"])
def test_plain_environments_have_the_dynamics_of_gymnax(name: str):
    theirs, params = gymnax.make(f"{name}-v1")
    ours, own_params = make_environment(f"plain/{name}")
    key = jax.random.key(0)
    _, state = theirs.reset_env(key, params)
    own_state: Any
    if name == "CartPole":
        own_state = jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot]), jnp.int32(0)
    else:
        own_state = state.theta, state.theta_dot, jnp.int32(0)
    for action in [0, 1, 1, 0] if name == "CartPole" else [np.array([a]) for a in (0.5, -3.0, 1.0)]:
        obs, state, reward, terminated, _ = theirs.step_env(key, state, action, params)
        own_obs, own_state, own_reward, own_terminated, _ = ours.step_env(key, own_state, action, own_params)
        np.testing.assert_allclose(own_obs, obs, atol=1e-6)
        assert (float(own_reward), bool(own_terminated)) == (pytest.approx(float(reward)), bool(terminated))


def test_a_catch_pays_and_a_miss_ends_the_episode():
    check_jax_env(Catch())
    env, params = make_environment("plain/Catch")
    key = jax.random.key(0)
    # The ball falls straight down, from the row above the paddle's.
    for column, caught in ((5, True), (6, True), (7, False)):
        state = jnp.array([5, 8, column, 0]), jnp.int32(0)
        obs, _, reward, terminated, _ = env.step_env(key, state, jnp.int32(0), params)
        assert (float(reward), bool(terminated)) == (float(caught), not caught)
        assert obs.shape == (10, 10, 4) and obs[9, 5, 0] == 1.0


def test_both_agents_act_until_the_first_pole_falls():
    env = CartPoles()
    check_jax_env(env)
    key = jax.random.key(0)
    _, state = env.reset_env(key, env.params)
    state = state._replace(poles=jnp.zeros((2, 4)))
    _, after, _, terminateds, truncateds, _ = env.step_env(key, state, {0: 0, 1: 1}, env.params)
    assert env.everybody_acts and not terminateds["__all__"] and not truncateds["__all__"]
    fallen = state._replace(poles=jnp.array([[0.0, 0.0, 0.2094, 9.0], [0.0] * 4]))
    _, _, rewards, terminateds, _, _ = env.step_env(key, fallen, {0: 0, 1: 1}, env.params)
    assert terminateds["__all__"] and rewards == {0: 1.0, 1: 1.0}
    late = after._replace(t=jnp.int32(499))
    _, _, _, terminateds, truncateds, _ = env.step_env(key, late, {0: 0, 1: 1}, env.params)
    assert truncateds["__all__"] and not terminateds["__all__"]


def test_an_unknown_plain_environment_is_refused():
    with pytest.raises(ValueError, match=r"'plain/Chess'.*Use one of plain/CartPole, plain/Pendulum, plain/Catch"):
        make_environment("plain/Chess")


def test_an_item_ring_overwrites_the_oldest_rows_and_draws_written_ones():
    ring = make_item_ring(max_length=4, min_length=3, sample_batch_size=64)
    state = ring.init({"x": jnp.float32(0)})
    state = ring.add(state, {"x": jnp.array([1.0, 2.0])})
    assert not ring.can_sample(state)
    assert set(np.asarray(ring.sample(state, jax.random.key(0)).experience["x"])) == {1.0, 2.0}
    for rows in ([3.0, 4.0], [5.0, 6.0]):
        state = ring.add(state, {"x": jnp.array(rows)})
    assert ring.can_sample(state)
    assert set(np.asarray(ring.sample(state, jax.random.key(0)).experience["x"])) == {3.0, 4.0, 5.0, 6.0}
    with pytest.raises(ValueError, match="max_length=4 must be a multiple of the 3 rows"):
        ring.add(state, {"x": jnp.zeros(3)})


def test_lambda_returns_bootstrap_from_greedy_values():
    column = jnp.array([[1.0], [2.0]])
    batch = Transition(column, column, value=jnp.array([[5.0], [6.0]]), reward=column, ended=jnp.zeros((2, 1)))
    # G[1] = 2 + 0.5 * 8 = 6; G[0] = 1 + 0.5 * (0.75 * 6 + 0.25 * 6) = 4.
    found = lambda_returns(batch, jnp.array([8.0]), gamma=0.5, lambda_=0.25)
    np.testing.assert_allclose(found[:, 0], [4.0, 6.0])
    ended = lambda_returns(batch._replace(ended=jnp.array([[1.0], [0.0]])), jnp.array([8.0]), gamma=0.5, lambda_=0.25)
    np.testing.assert_allclose(ended[:, 0], [1.0, 6.0])


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(tight_loop.make_loop, 2, 4, 1, 2, (4,)),
        functools.partial(recurrent_loop.make_loop, 2, 4, 1, 2, 4),
        functools.partial(vtrace_loop.make_loop, 2, 4, (4,), num_updates=2),
    ],
    ids=["tight", "recurrent", "vtrace"],
)
def test_several_iterations_of_a_loop_fit_into_one_call(make):
    one, two = (make(env_name="plain/CartPole", num_iterations=number) for number in (1, 2))
    one.step()
    expected, got = one.step(), two.step()
    assert two.steps_per_iteration == 2 * one.steps_per_iteration == 16
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_tight_loop_of_accelerators_has_no_branches(monkeypatch):
    make = functools.partial(tight_loop.make_loop, 2, 32, 1, 2, (4,), env_name="plain/CartPole")
    on_cpu = make()
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(jax.lax, "cond", None)
    on_gpu = make()
    expected, got = on_cpu.step(), on_gpu.step()
    assert expected["num_episodes"] > 0
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_minibatches_of_images_stay_below_the_limit_of_32_bits():
    numbers = {n: gpu_parts.num_minibatches_of("cnn", 2**n) for n in range(10, 17)}
    assert numbers == {**dict.fromkeys(range(10, 16), 4), 16: 8}
    assert gpu_parts.num_minibatches_of("mlp", 2**16) == 4


def test_the_loop_of_appo_trains_as_often_as_appo():
    config = gpu_parts.vtrace_config("appo", {"num_envs": 4, "training_steps": 1})
    assert config.updates_per_train_batch == gpu_parts.UPDATES["appo"] == 2
    assert gpu_parts.UPDATES["impala"] == 1


def test_overlapping_kernels_count_once_and_copies_and_other_lines_do_not_count():
    def line(name: str, *spans: tuple[str, float, float]) -> Any:
        events = [SimpleNamespace(name=own, start_ns=start, duration_ns=end - start) for own, start, end in spans]
        return SimpleNamespace(name=name, events=events)

    streams = [
        line("Stream #1(Compute,MemcpyD2D)", ("fusion", 0, 2e9), ("MemcpyD2D", 3e9, 4e9), ("gemm", 5e9, 6e9)),
        line("Stream #2(Compute)", ("fusion_1", 1e9, 2.5e9)),
        line("Stream #3(MemcpyD2H)", ("MemcpyD2H", 1e9, 9e9)),
    ]
    planes = [
        SimpleNamespace(name="/device:GPU:0", lines=[*streams, line("XLA Modules", ("jit_f", 0, 9e9))]),
        SimpleNamespace(name="/device:GPU:1", lines=[line("Stream #3(MemcpyH2D)", ("MemcpyH2D", 0, 1e9))]),
        SimpleNamespace(name="/host:CPU", lines=[line("Stream", ("f", 0, 9e9))]),
    ]
    assert list(device_busy.busy_seconds(planes)) == [3.5]


def test_equal_arrays_have_equal_digests():
    state = {"w": jnp.arange(3.0), "key": jax.random.key(1)}
    assert gpu_parts.digest(state) == gpu_parts.digest(dict(state))
    assert gpu_parts.digest(state) != gpu_parts.digest({**state, "key": jax.random.key(2)})


class _Peer:
    """Worker that answers at once; IMPALA fails, and APPO ends its process."""

    def __init__(self, environ, *, patience):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request):
        if request["part"] == "facts":
            return {"measured": MACHINE}
        if request["part"] == "impala":
            return {"error": "XlaRuntimeError: out of memory"}
        if request["part"] == "appo":
            raise RuntimeError("ended early")
        return {"measured": {"unit": "env steps", "steps_per_s": 5.0, "loops": {}}}


def test_a_failed_size_gets_an_error_line_and_finished_sizes_are_skipped(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "worker", _Peer)
    file = tmp_path / "lines.jsonl"
    command = ["--only", "impala,appo,pqn", "--json", str(file), "--commit", "abc"]
    assert gpu.main(command) == 1
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    assert [(line["run"]["part"], "error" in line) for line in lines] == [
        *[("impala", True)] * 2,
        *[("appo", True)] * 2,
        *[("pqn", False)] * 2,
    ]
    assert lines[-1]["commit"] == "abc" and lines[-1]["machine"] == MACHINE
    assert "appo num_envs=2048: failed" in capsys.readouterr().out
    # Errors are measured again, numbers are not; those of another commit are.
    assert gpu.main(command) == 1 and len(file.read_text().splitlines()) == 10
    assert gpu.main([*command[:-1], "def", "--only", "pqn"]) == 0 and len(file.read_text().splitlines()) == 12


class _Repeats(_Peer):
    """Worker that repeats runs, without success if XLA has the flag; notes its flags and requests."""

    seen: list[tuple[str, Any]] = []

    def __init__(self, environ, *, patience):
        self._flags = environ.get("XLA_FLAGS")

    def ask(self, request):
        if request["part"] == "facts":
            return {"measured": MACHINE}
        self.seen.append((self._flags, request))
        if self._flags.endswith("=true"):
            return {"error": "XlaRuntimeError: no deterministic kernel"}
        return {"measured": {"digests": ["a", "a"], "steps_per_s": 8.0, "compile_s": 1.0}}


def test_a_setting_of_the_flag_that_fails_keeps_the_answer_of_the_other(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "worker", _Repeats)
    monkeypatch.setattr(_Repeats, "seen", [])
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_gpu_deterministic_ops=true")
    file = tmp_path / "lines.jsonl"
    assert gpu.main(["--only", "determinism_dqn", "--json", str(file), "--commit", "abc"]) == 0
    line, large = [json.loads(text) for text in file.read_text().splitlines()]
    assert line["measured"]["without_flag"]["equal_in_all"] and line["measured"]["without_flag"]["num_processes"] == 2
    assert "no deterministic kernel" in line["measured"]["with_flag"]["error"]
    flags = [seen for seen, _ in _Repeats.seen[:3]]
    assert flags == [f"--xla_a=1 --xla_gpu_deterministic_ops={value}" for value in ("false", "false", "true")]
    request = _Repeats.seen[0][1]
    assert request["part"] == "dqn" and request["repeat"] and request["size"] == gpu_parts.PARTS["dqn"].sizes[0]
    _, rows = gpu_page.determinism_rows([line, large])
    assert rows[0] == ["DQN", "10 envs, 128 rows", "yes", "failed", "–", "abc"]
    assert [row[1] for row in rows] == ["10 envs, 128 rows", "1,024 envs, 8,192 rows"]


def test_a_repeated_run_that_takes_too_long_is_ended(monkeypatch, capsys):
    workers: list[Any] = []

    def slow(environ, *, patience):
        if "XLA_FLAGS" not in environ:
            return _Peer(environ, patience=patience)
        workers.append(protocol.Peer([sys.executable, "-c", "import time; time.sleep(60)"], {}, patience=0.1))
        return workers[-1]

    monkeypatch.setattr(gpu, "worker", slow)
    monkeypatch.setattr(protocol, "GRACE", 0.1)
    assert gpu.main(["--only", "determinism_pqn", "--commit", "abc"]) == 1
    assert "sent no reply within 0.1 s" in capsys.readouterr().out
    assert len(workers) == 4 and all(own._process.poll() is not None for own in workers)


def test_repeated_runs_that_all_fail_are_an_error():
    def fail(flag: bool) -> Any:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="RuntimeError: out of memory"):
        gpu_parts.determinism(fail)


@pytest.mark.parametrize("error", [json.JSONDecodeError("no reply", "", 0), KeyError("measured")])
def test_errors_of_all_kinds_get_a_line_and_the_next_size_runs(error: Exception, monkeypatch, capsys):
    class Broken(_Peer):
        def ask(self, request):
            if request["part"] == "pqn":
                raise error
            return super().ask(request)

    monkeypatch.setattr(gpu, "worker", Broken)
    assert gpu.main(["--only", "pqn,two_agents", "--commit", "abc"]) == 1
    output = capsys.readouterr().out
    assert f"pqn num_envs=1024: failed after 0 s: {type(error).__name__}" in output
    assert "two_agents num_envs=8192: 5 env steps/s" in output


def test_missing_lines_are_a_failure(monkeypatch):
    monkeypatch.setattr(gpu, "worker", _Peer)
    monkeypatch.setattr(gpu, "run_all", lambda cases, lines, machine, args: None)
    assert gpu.main(["--only", "pqn", "--commit", "abc"]) == 1


def test_an_error_keeps_its_cause_and_its_end():
    found = gpu_parts.shortened("RESOURCE_EXHAUSTED: cause\n" + "x" * 5000 + " the end")
    assert found.startswith("RESOURCE_EXHAUSTED: cause\n") and found.endswith(" the end") and len(found) < 2100
    assert gpu_parts.shortened("short") == "short"
    run = gpu._progress("dqn", {}, {"error": "cause\ndump"}, 1.0)
    assert run == "dqn: failed after 1 s: cause"


def test_lines_of_unknown_and_dirty_commits_are_measured_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(gpu, "worker", _Peer)
    file = tmp_path / "lines.jsonl"
    for commit in (None, "abc-dirty"):
        monkeypatch.setattr(gpu, "_commit", lambda commit=commit: commit)
        for _ in range(2):
            assert gpu.main(["--only", "pqn", "--json", str(file)]) == 0
    assert [json.loads(text)["commit"] for text in file.read_text().splitlines()] == [*[None] * 4, *["abc-dirty"] * 4]
    assert [gpu_page.commit_text(name) for name in (None, "0123456789ab-dirty")] == ["unknown", "01234567-dirty"]


def test_written_numbers_do_not_make_a_checkout_dirty(tmp_path: Path):
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    files = [tmp_path / name for name in ("bench/gpu.jsonl", "docs/measured.md", "bench/gpu.py")]
    git("init")
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("old")
    git("add", ".")
    git("commit", "-m", "a")
    found = git("rev-parse", "--short=12", "HEAD")
    files[0].write_text("new")
    files[1].write_text("new")
    assert harness._commit_of(tmp_path) == found
    files[2].write_text("new")
    assert harness._commit_of(tmp_path) == f"{found}-dirty"


def test_parts_without_their_packages_are_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "worker", _Peer)
    monkeypatch.setattr(gpu, "missing_packages", lambda name: ["ale_py"])
    assert gpu.main(["--only", "atari", "--commit", "abc"]) == 0
    assert "atari: skipped, ale_py is not installed" in capsys.readouterr().out


def test_unknown_parts_are_named(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--only", "ppo_*,chess"])
    assert "--only chess: no such part. Use some of ppo_mlp" in capsys.readouterr().err


def _line(part: str, size: dict[str, Any], commit: str = "abc", **measured: Any) -> dict[str, Any]:
    numbers = {"unit": "env steps", "steps_per_s": 2e6, "compile_s": 3.0, "busy_share": 0.97}
    loops = {"sorting": {"steps_per_s": 1e6, "ratio": 2.0}, "tight": {"error": "out of memory"}}
    memory = {"measured_bytes": 2.5e9, "estimated_bytes": 1e9, "source": "device peak"}
    run = {"part": part, "size": size, "device": "GPU X", "toy": False}
    return {
        "commit": commit,
        "run": run,
        "machine": MACHINE,
        "measured": {**numbers, "loops": loops, "memory": memory, **measured},
    }


def test_the_newest_line_of_each_size_is_a_row_of_its_device():
    equal = {"equal_in_process": True, "equal_in_all": False, "num_processes": 2}
    flags = {"without_flag": equal, "with_flag": {**equal, "equal_in_all": True}, "cost_of_flag": 0.25}
    toy = _line("pqn", {"num_envs": 4})
    toy["run"]["toy"] = True
    lines = [
        _line("ppo_mlp", {"num_envs": 2048}, training_steps=8),
        _line("ppo_mlp", {"num_envs": 1024}, "old", steps_per_s=1.0),
        _line("ppo_mlp", {"num_envs": 1024}),
        {"commit": "abc", "run": {"part": "sac", "size": {}, "device": "GPU X", "toy": False}, "error": "no"},
        toy,
        {**_line("determinism_dqn", {"part": "dqn", "num_envs": 10}), "measured": flags},
    ]
    text = gpu_page.section(lines).splitlines()
    start = "**GPU X**"
    assert text[0] == start and "Failed: sac {}." in text
    rows = [line for line in text if line.startswith("| PPO") or line.startswith("| DQN")]
    assert rows == [
        "| PPO | 1,024 envs | 2M | 2.00 (sorting)<br>tight failed | 97 % | 3.0 | 2.5 / 1 GB | abc |",
        "| PPO | 2,048 envs, 8 at once | 2M | 2.00 (sorting)<br>tight failed | 97 % | 3.0 | 2.5 / 1 GB | abc |",
        "| DQN | 10 envs | in a process | yes | 25 % of the speed | abc |",
    ]


def test_a_loop_that_is_not_comparable_has_no_ratio():
    old = _line("impala", {"num_envs": 2048}, loops={"vtrace": {"steps_per_s": 1e6, "note": "replaced"}})
    assert gpu_page.speed_rows([old])[1][0][3] == "–"


def test_the_tables_of_accelerators_are_up_to_date():
    assert gpu.main(["page", "--check"]) == 0


def test_every_part_is_measured_or_repeated():
    assert {name for name in gpu_parts.PARTS if not name.startswith("determinism_")} == {
        *("ppo_mlp", "ppo_cnn", "ppo_lstm", "impala", "appo", "dqn", "sac", "pqn"),
        *("two_agents", "population", "dreamer", "bc", "atari"),
    }
    assert all(len(part.sizes) == 2 for part in gpu_parts.PARTS.values() if part.repeats)
    assert [size["num_envs"] for size in gpu_parts.PARTS["ppo_cnn"].sizes] == [2**n for n in range(10, 17)]


REFUSED = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "gymnax", "flashbax", "torch"):
            raise ImportError(f"refused {name}")
sys.meta_path.insert(0, Refused())
"""


def run_kit(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Numbers of each part and the output of the kit, with processes that refuse packages."""
    (folder / "sitecustomize.py").write_text(REFUSED)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    file = folder / "lines.jsonl"
    command = [sys.executable, "-m", "bench.gpu", "--toy", "--json", str(file), *arguments]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["run"]["part"]: line["measured"] for line in lines}, done.stdout


def check_numbers(measured: dict[str, Any]) -> None:
    assert measured["steps_per_s"] > 0 and 0 < measured["busy_share"] <= 1
    assert all(loop["ratio"] > 0 for loop in measured["loops"].values()) and measured["loops"]
    assert measured["memory"]["measured_bytes"] > 0 and measured["memory"]["estimated_bytes"] > 0


def test_a_part_needs_neither_ray_nor_gymnax_nor_flashbax(tmp_path: Path):
    found, output = run_kit(tmp_path, "--only", "dqn")
    check_numbers(found["dqn"])
    assert set(found["dqn"]["loops"]) == {"dqn"} and "Training on" in output


def test_the_toy_sizes_write_a_line_for_each_part(tmp_path: Path):
    found, output = run_kit(tmp_path)
    skipped = {line.split(":")[0] for line in output.splitlines() if "skipped" in line}
    assert set(found) | skipped == {name for name, part in gpu_parts.PARTS.items() if part.toy_sizes}
    for name, measured in found.items():
        if not name.startswith("determinism_"):
            check_numbers(measured)
    # On a CPU, equal runs have equal bits.
    repeated = found["determinism_ppo_mlp"]
    assert repeated["without_flag"]["equal_in_all"] and repeated["with_flag"]["equal_in_all"]
