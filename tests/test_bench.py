"""The benchmarks' own parts: what is timed does the work that its docstring claims."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import (
    cluster,
    commits,
    digests,
    dreamer,
    dreamer_throughput,
    first_hour,
    games,
    harness,
    host_throughput,
    journal,
    killed_benchmark,
    learning,
    off_policy_throughput,
    pong,
    privileged_critic,
    randomized_params,
    recurrent_layer,
    recurrent_learning,
    scaling_table,
    score_page,
    scores,
    throughput,
)
from bench.baselines import dqn_loop, recurrent_loop, sac_loop, sorting_loop, tight_loop, vtrace_loop
from bench.checkouts import checkout
from bench.masked_env import MaskedEnv
from bench.peers import jaxrl_off_policy, jaxrl_ppo, loop_off_policy, new_stack, protocol
from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.ops.vtrace import vtrace
from jaxrl_stack.runs.benchmark import write_content
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.run import Run

BASELINES = Path(sorting_loop.__file__).parent
PEERS = Path(protocol.__file__).parent
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_epochs": 2, "num_minibatches": 2, "hiddens": (8, 8)}


def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    return imported


@pytest.mark.parametrize("path", sorted(BASELINES.glob("*.py")), ids=lambda path: path.name)
def test_baselines_import_nothing_of_the_package(path: Path):
    imported = {name.split(".")[0] for name in imports_of(path)}
    assert "jaxrl_stack" not in imported
    libraries = {"jax", "flax", "flashbax", "numpy", "optax", "gymnax", "jaxmarl"}
    assert imported - {"bench"} <= set(sys.stdlib_module_names) | libraries
    ours = {name for name in imports_of(path) if name.startswith("bench")}
    assert all(name.startswith("bench.baselines.") for name in ours)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("protocol", set()),
        ("new_stack", {"gymnasium", "numpy"}),
        ("rllib_ppo", {"ray", "torch"}),
        ("rllib_atari", {"ray", "ale_py", "gymnasium"}),
        ("ale_vector", {"ale_py", "numpy"}),
        ("sb3_ppo", {"stable_baselines3", "torch"}),
        ("off_policy", set()),
        ("rllib_off_policy", {"ray", "torch"}),
        ("rejax_off_policy", {"rejax", "jax", "flax", "gymnax"}),
        ("rejax_ppo", {"rejax", "jax"}),
        ("sb3_off_policy", {"stable_baselines3", "torch"}),
        ("sbx_off_policy", {"sbx", "torch"}),
    ],
)
def test_peers_import_nothing_of_the_package(name: str, allowed: set[str]):
    imported = imports_of(PEERS / f"{name}.py")
    ours = {module for module in imported if module.split(".")[0] in ("bench", "jaxrl_stack")}
    assert ours <= {"bench.peers", "bench.peers.protocol"}
    assert {module.split(".")[0] for module in imported - ours} <= set(sys.stdlib_module_names) | allowed


@pytest.mark.parametrize("num_rows", [1, 3, 128, 1000])
def test_permute_is_a_permutation_that_its_keys_change(num_rows: int):
    position = np.arange(num_rows, dtype=np.uint32)
    permute = jax.jit(lambda seed: tight_loop.permute(position, num_rows, jax.random.bits(jax.random.key(seed), (4,))))
    first, second = np.asarray(permute(0)), np.asarray(permute(1))
    assert sorted(first) == sorted(second) == list(range(num_rows))
    assert num_rows < 8 or (first != second).any()


@pytest.mark.parametrize(("num_in", "num_out"), [(4, 64), (64, 1)])
def test_cpu_dense_has_the_gradient_of_a_dense_layer(num_in: int, num_out: int):
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, b = (
        jax.random.normal(k, s) for k, s in zip(keys, [(32, num_in), (num_in, num_out), (num_out,)], strict=True)
    )
    ours, autodiff = (
        jax.jit(jax.value_and_grad(lambda x, w, b, f=f: jnp.sum(jnp.sin(f(x, w, b))), argnums=(0, 1, 2)))(x, w, b)
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


def test_the_sorting_loop_trains_on_images():
    def seen(state):
        return jnp.broadcast_to(state[:, None, None, None], (4, 5, 5, 1)) > 2

    def step(key, state, action):
        state = jnp.where(state > 4, 0, state + 1)
        return seen(state), state, action.astype(jnp.float32), state == 0

    environments = sorting_loop.Environments(2, lambda key: (seen(jnp.zeros(4)), jnp.zeros(4)), step)
    loop = sorting_loop.make_loop(**SMALL, environments=environments, filters=((2, 3, 2),))
    first, *_, last = (loop.step() for _ in range(6))
    assert all(map(math.isfinite, (last["policy_loss"], last["vf_loss"]))) and last["entropy"] != first["entropy"]


def test_the_vtrace_loop_makes_the_librarys_update():
    """Its V-trace is the one of `ops`, and its chunks do not change the gradient."""
    rng = np.random.default_rng(0)
    log_rhos, rewards, values = rng.normal(size=(3, 6, 4)).astype(np.float32)
    terminateds, last_value = rng.random((6, 4)) < 0.2, np.ones(4, np.float32)
    targets, advantages = jax.jit(vtrace_loop.vtrace)(log_rhos, 0.9 * ~terminateds, rewards, values, last_value)
    found = jax.jit(vtrace)(
        log_rhos=log_rhos,
        rewards=rewards,
        values=values,
        terminateds=terminateds,
        truncateds=np.zeros_like(terminateds),
        truncation_values=np.zeros_like(values),
        bootstrap_value=last_value,
        gamma=0.9,
    )
    np.testing.assert_allclose(targets, found.targets, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(advantages, found.advantages, rtol=1e-5, atol=1e-5)
    whole, chunked = (vtrace_loop.make_loop(4, 8, (8, 8), rows_per_chunk=rows) for rows in (32, 8))
    for _ in range(3):
        expected, got = whole.step(), chunked.step()
    for name in ("policy_loss", "vf_loss", "entropy"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_vtrace_throughput_writes_a_report():
    arguments = "--contenders vtrace,impala_single --envs 2 --devices 1 --rounds 1 --seconds 0 --warmup 0"
    loop, ours = harness.report_of("bench.vtrace_throughput", *arguments.split())["results"]
    assert (loop["contender"], ours["contender"]) == ("vtrace", "impala_single")
    assert loop["ratio_to_vtrace"] == 1.0 and ours["ratio_to_vtrace"] > 0 and ours["ratio_to_ppo"] is None


def test_a_recurrent_layer_is_timed_beside_the_librarys_cell(capsys):
    recurrent_layer.main(["--shapes", "2x3", "--rounds", "1", "--seconds", "0"])
    rows = [line for line in capsys.readouterr().out.splitlines() if "2x3" in line]
    assert len(rows) == 3
    assert all(name in row for name, row in zip(("this layer", "library cell", "unrolled"), rows, strict=True))


def test_masks_that_are_measured_change_nothing_else():
    masked, plain = (MaskedEnv({"env": "CartPole-v1", "has_mask": has_mask}) for has_mask in (True, False))
    check_jax_env(masked)
    key = jax.random.key(0)
    obs, state = jax.jit(masked.reset)(key, masked.params)
    seen, same, expected = jax.jit(
        lambda key, state: [env.step(key, state, 1, masked.params).obs for env in (masked, masked, plain)]
    )(key, state)
    np.testing.assert_array_equal(seen["observations"], expected)
    np.testing.assert_array_equal([obs["action_mask"], same["action_mask"]], np.ones((2, 2), np.float32))


def test_loops_refuse_what_they_cannot_run():
    with pytest.raises(ValueError, match="num_minibatches=3 does not divide the 4 environments"):
        recurrent_loop.make_loop(4, num_minibatches=3)
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


def test_unknown_contenders_are_named(capsys):
    for arguments, message in (
        (["--contenders", "quick"], "unknown contender 'quick'"),
        (["--contenders", "tight", "--env", "Breakout-MinAtar"], "'tight' does not train on images"),
    ):
        with pytest.raises(SystemExit) as caught:
            throughput.main(arguments)
        assert caught.value.code == 2 and message in capsys.readouterr().err


def test_report_can_be_written_to_a_file(tmp_path: Path):
    path = tmp_path / "report.json"
    harness.write_json(str(path), {"results": []})
    assert json.loads(path.read_text())["results"] == []


# A peer that answers by the book, with times that are made up.
FAKE_PEER = """
import json, sys
settings = json.loads(sys.argv[1])
print(json.dumps({"versions": {"fake": settings["job"]}}), flush=True)
parts, result = {"sample": SECONDS / 2}, None
if settings["job"] == "wall_clock":
    parts, result = {"until_target": SECONDS, "build": 0.1, "first_train": 0.1}, {"reached": settings["seed"] == 0}
each = {"seconds": SECONDS, "cores": 1.0 if SECONDS < 1 else 0.5, "steps": 8000, "parts": parts, "result": result}
for line in sys.stdin:
    print(json.dumps([each] * json.loads(line)["iterations"]), flush=True)
"""
NOISY_PEER = """
import os
from pathlib import Path
from types import SimpleNamespace
from bench.peers import protocol

def make(settings):
    print("a library says hello")
    os.write(1, b"and so does its C code\\n")
    ran = []
    def iterate():
        ran.append("iterate")
        return protocol.Iteration(settings["steps"], {}, {"ran": list(ran)})
    return protocol.Work(iterate, lambda: ran.append("prepare"), Path(settings["closed"]).touch)

protocol.serve(make, ["numpy"])
"""


def fake_peer(seconds: float) -> list[str]:
    return [sys.executable, "-c", FAKE_PEER.replace("SECONDS", str(seconds))]


def test_contenders_answer_in_turn_whatever_libraries_print(tmp_path: Path):
    settings = {"warmup": 1, "steps": 5, "closed": str(tmp_path / "closed")}
    with protocol.Peer([sys.executable, "-c", NOISY_PEER], settings) as peer:
        assert peer.versions == {"numpy": np.__version__}
        first, second = peer.measure(seconds=0.0, iterations=2)
        assert not (tmp_path / "closed").exists()
    assert first["steps"] == 5 and first["seconds"] > 0
    # The warm-up came before.
    assert second["result"]["ran"] == ["prepare", "iterate"] * 3
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no such environment')", "ended early:\nno such environment"),
        ("import time; time.sleep(60)", "sent no reply within 0.2 s"),
        ("print('{\"versions\": {}}', flush=True); raise SystemExit('out of memory')", "out of memory"),
    ],
    ids=["fails at once", "hangs", "fails later"],
)
def test_a_peer_that_fails_is_reported_with_what_it_printed(code: str, message: str, monkeypatch):
    peer = protocol.Peer([sys.executable, "-c", code], {}, patience=0.2 if "sleep" in code else 60.0)
    monkeypatch.setattr(protocol, "GRACE", 0.2)
    with pytest.raises(RuntimeError, match=message), peer:
        peer.measure(seconds=0.0)


def test_ratios_bars_and_parts_come_from_the_peers_answers(capsys):
    arguments = ["--configs", "0x8,2x8/1024", "--wall-clock", "2x1", "--rounds", "2", "--seconds", "0"]
    args = host_throughput.parse(arguments)
    peers = {name: fake_peer(s) for name, s in (("jaxrl", 0.5), ("rllib", 5.5), ("sb3", 1.0))}
    rows = host_throughput.measure(peers, args)
    found = {(row.what, row.size, row.contender): row for row in rows}
    assert len(found) == len(rows) == (3 + 2) + 2 * 2 + 2
    rllib = found["train", "0x8", "rllib"]
    assert rllib.rate == 8000 / 5.5 and rllib.ratio == pytest.approx(11.0) and rllib.met is True
    # The others have half a core only.
    assert rllib.cores == 0.5 and rllib.ratio_per_core == pytest.approx(5.5)
    assert rllib.parts == {"sample": pytest.approx(5.5 / 4)} and rllib.versions == {"fake": "train"}
    # A size without a bar, a bar that is missed, and the contender that the others are compared with.
    assert found["train", "2x8/1024", "rllib"].met is None
    assert found["train", "2x8/1024", "rllib"].ratio_per_core is None
    assert found["rows", "0x8", "rllib"].met is False
    assert found["train", "0x8", "jaxrl"].ratio is None
    trained = found["wall_clock", "2x1", "rllib"]
    assert trained.ratio == pytest.approx(11.0) and trained.results == [{"reached": True}, {"reached": False}]

    host_throughput.print_rows(rows, args)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("met", "missed", "1 of 2", "0x8", "2x8/1024"))


def test_pong_is_trained_on_with_equal_settings_by_those_that_there_are():
    args = pong.parse(["--batch", "64", "--python", "mine"])
    assert list(pong.commands(args)) == [pong.VECTOR, pong.WRAPPED, pong.BARE]
    args = pong.parse(["--batch", "64", "--rllib-python", "theirs"])
    assert pong.commands(args)[pong.RLLIB] == ["theirs", "-m", "bench.peers.rllib_atari"]
    vector, wrapped, rllib = (pong.settings_of(name, args) for name in (pong.VECTOR, pong.WRAPPED, pong.RLLIB))
    assert wrapped == rllib and {key for key in vector if vector[key] != rllib[key]} == {
        "env",
        "environment",
        "env_runners",
    }
    assert vector["training"]["minibatch_size"] == 16


def test_host_throughput_names_what_it_cannot_run(capsys):
    for arguments, message in (
        (["--configs", "8"], "invalid sizes value: '8'"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
    ):
        with pytest.raises(SystemExit):
            host_throughput.parse(arguments)
        assert message in capsys.readouterr().err


def settings_of(job: str) -> dict[str, Any]:
    """A contender's settings, small; every training reaches the target."""
    return {
        "job": job,
        "env": "CartPole-v1",
        "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 4},
        "training": {"train_batch_size_per_learner": 256, "minibatch_size": 128, "num_epochs": 2, "lr": 1e-3},
        "reporting": {"metrics_num_episodes_for_smoothing": 10},
        "model": {"fcnet_hiddens": [8], "fcnet_activation": "tanh", "vf_share_layers": False},
        "seed": 0,
        "target": 5.0,
        "within": 1000,
    }


@pytest.mark.parametrize(
    ("job", "steps"), [("train", 256), ("rows", 8000), ("trajectories", 8000), ("wall_clock", 256)]
)
def test_this_project_is_a_contender(job: str, steps: int):
    work = jaxrl_ppo.make(settings_of(job))
    try:
        (first, second) = protocol.measure(work, seconds=0.0, iterations=2)
    finally:
        work.close()
    assert first["steps"] == second["steps"] == steps and second["seconds"] > 0
    parts = second["parts"]
    if job == "train":
        # The connectors are compiled into the policy's step.
        assert set(parts) == set(host_throughput.PARTS) and parts.pop("connectors") == 0.0
        assert all(value > 0 for value in parts.values())
        assert parts["env"] + parts["policy"] <= parts["sample"]
        assert parts["sample"] + parts["update"] + parts["sync"] <= second["seconds"]
    if job == "wall_clock":
        assert second["result"]["reached"] and parts["build"] + parts["first_train"] <= parts["until_target"]


def test_made_up_rows_and_episodes_are_the_same_data():
    env = gym.make("CartPole-v1")
    data = new_stack.trajectories(env.observation_space, env.action_space, seed=0)
    api = new_stack.Api(dict, dict, SingleAgentEpisode, print, None, print)
    episodes = new_stack.episodes_of(api, data, env)
    rows = new_stack.rows_of(data)
    assert sum(map(len, episodes)) == len(rows["obs"]) == new_stack.NUM_ROWS
    np.testing.assert_array_equal(episodes[3].get_observations()[:-1], data["obs"][:, 3])
    np.testing.assert_array_equal(episodes[3].get_observations(-1), data["final_obs"][-1, 3])
    assert all(episode.is_terminated for episode in episodes) and data["terminateds"].sum() == len(episodes)


# Learning starts in the second call; small in every other respect.
SMALL_OFF_POLICY: dict[str, Any] = {"hiddens": (8, 8), "batch_size": 16, "capacity": 128, "learning_starts": 64}


@pytest.mark.parametrize(
    ("module", "num_envs", "num_steps"), [(dqn_loop, 4, 64), (sac_loop, 2, 64)], ids=["dqn", "sac"]
)
def test_off_policy_loops_fill_a_buffer_then_learn(module: Any, num_envs: int, num_steps: int):
    loop = module.make_loop(num_envs, num_steps, **SMALL_OFF_POLICY)
    assert (loop.steps_per_iteration, loop.updates_per_iteration) == (num_steps, num_steps // num_envs)
    first, *later = [loop.step() for _ in range(8)]
    assert first["loss"] == 0.0
    assert all(math.isfinite(each["loss"]) and each["loss"] > 0.0 for each in later)
    # Pendulum's episodes have 200 steps, and an untrained policy holds CartPole's pole for some twenty.
    lowest, highest = (10, 60) if module is dqn_loop else (-2000, -100)
    ended = [each for each in later if each["num_episodes"]]
    assert ended and all(lowest < each["episode_return_mean"] < highest for each in ended)


def test_off_policy_loops_refuse_a_part_of_a_step():
    for module in (dqn_loop, sac_loop):
        with pytest.raises(ValueError, match="num_steps=9 must be a multiple of num_envs=2"):
            module.make_loop(2, 9)


FAKE_OFF_POLICY_PEER = """
import json, sys
settings = json.loads(sys.argv[1])
steps = settings["reporting"]["min_sample_timesteps_per_iteration"]
print(json.dumps({"versions": {"fake": settings["algorithm"]}}), flush=True)
each = {"seconds": SECONDS, "cores": 1.0, "steps": steps, "parts": {"update": SECONDS / 2},
        "result": {"steps": steps, "updates": steps / 5}}
for line in sys.stdin:
    print(json.dumps([each] * json.loads(line)["iterations"]), flush=True)
"""


def test_off_policy_ratios_and_bars_come_from_the_peers_answers(capsys):
    arguments = ["--only", "device-sac,host-dqn", "--rounds", "2", "--seconds", "0", "--steps", "2000"]
    args = off_policy_throughput.parse(arguments)
    peers = {
        name: [sys.executable, "-c", FAKE_OFF_POLICY_PEER.replace("SECONDS", str(seconds))]
        for name, seconds in (("jaxrl", 0.5), ("loop", 0.7), ("sbx", 1.0), ("rllib", 11.0))
    }
    rows = off_policy_throughput.measure(peers, args)
    found = {(row.table, row.contender): row for row in rows}
    # Each comparison has the contenders that it is about, and only those that there is an interpreter for.
    assert set(found) == {
        *(("device-sac", name) for name in ("jaxrl", "loop", "sbx")),
        *(("host-dqn", name) for name in ("jaxrl", "rllib")),
    }
    ours, loop, sbx = (found["device-sac", name] for name in ("jaxrl", "loop", "sbx"))
    assert (ours.rate, ours.ratio, ours.met) == (4000.0, None, None)
    assert loop.ratio == pytest.approx(1.4) and loop.met is False
    assert sbx.ratio == pytest.approx(2.0) and sbx.met is True
    rllib = found["host-dqn", "rllib"]
    assert rllib.ratio == pytest.approx(22.0) and rllib.met is True and rllib.versions == {"fake": "DQN"}
    # Of 1,000 of the 2,000 steps.
    assert rllib.parts == {"update": pytest.approx(11.0 / 4)}
    assert off_policy_throughput.updates_per_step(rllib) == pytest.approx(0.2)

    off_policy_throughput.print_rows(rows, args)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("device-sac", "host-dqn", "met", "missed", "updates/s"))


def test_off_policy_throughput_names_what_it_cannot_run(capsys):
    for arguments, message in (
        (["--only", "device-ddpg"], "unknown comparison 'device-ddpg'"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--devices", "0"], "--devices 0: at least 1"),
    ):
        with pytest.raises(SystemExit):
            off_policy_throughput.parse(arguments)
        assert message in capsys.readouterr().err


def small_off_policy_settings(job: str) -> dict[str, Any]:
    """A comparison's settings, small."""
    settings = off_policy_throughput.settings_of(job, off_policy_throughput.parse(["--steps", "40"]))
    settings["training"] |= {
        "train_batch_size_per_learner": 8,
        "replay_buffer_config": {**settings["training"]["replay_buffer_config"], "capacity": 200},
    }
    settings["model"] |= {"fcnet_hiddens": [8]}
    if settings["model"]["head_fcnet_hiddens"]:
        settings["model"]["head_fcnet_hiddens"] = [8]
    if settings["model"].get("fusionnet_hiddens"):
        settings["model"]["fusionnet_hiddens"] = [8]
    return settings


@pytest.mark.parametrize(("job", "per_step"), [("host-dqn", 0.2), ("device-sac", 1.0)])
def test_this_project_is_an_off_policy_contender(job: str, per_step: float):
    work = jaxrl_off_policy.make(small_off_policy_settings(job))
    try:
        first, *_, last = protocol.measure(work, seconds=0.0, iterations=3)
    finally:
        work.close()
    assert first["steps"] == last["steps"] == last["result"]["steps"] == 40
    # Every step trains once learning has begun: the ratio that the comparison is about.
    assert last["result"]["updates"] == pytest.approx(40 * per_step)
    # On the device all parts are one program.
    assert set(last["parts"]) == (set(jaxrl_off_policy.TIMERS) if job.startswith("host") else set())
    assert sum(last["parts"].values()) <= last["seconds"]


def test_the_loops_are_contenders_with_the_same_settings(monkeypatch):
    given: dict[str, Any] = {}
    make_loop_of = {module: module.make_loop for module in (dqn_loop, sac_loop)}

    def make_loop(**kwargs: Any) -> dqn_loop.Loop:
        given.update(kwargs)
        return dqn_loop.Loop(lambda: {}, kwargs["num_steps"], kwargs["num_steps"] // kwargs["num_envs"], 0.0)

    common = {"num_steps": 40, "hiddens": (8,), "seed": 0, "gamma": 0.99, "batch_size": 8, "capacity": 200}
    for job, module, updates, expected in (
        ("device-dqn", dqn_loop, 4, {"env_name": "CartPole-v1", "num_envs": 10, "lr": 2.5e-4}),
        ("device-sac", sac_loop, 40, {"env_name": "Pendulum-v1", "num_envs": 1, "lr": 3e-4, "tau": 0.005}),
    ):
        given.clear()
        monkeypatch.setattr(module, "make_loop", make_loop)
        (each,) = protocol.measure(loop_off_policy.make(small_off_policy_settings(job)), seconds=0.0)
        assert each["steps"] == 40 and each["result"] == {"steps": 40, "updates": updates}
        assert {name: given[name] for name in common | expected} == common | expected
        assert set(given) <= set(inspect.signature(make_loop_of[module]).parameters)


def test_area_under_a_learning_curve():
    # Level 10 up to 100 steps, then a line to 30 at 300; cut at 200, where it is at 20.
    assert learning.area([(100, 10.0), (300, 30.0)], within=200) == pytest.approx((1000 + 1500) / 200)
    assert learning.area([(50, 7.0), (100, 7.0)], within=100) == 7.0
    with pytest.raises(ValueError, match="within=100: the curve ends after 50 steps"):
        learning.area([(50, 7.0)], within=100)


def test_both_drivers_learning_curves_are_compared(capsys):
    settings = {
        "num_env_runners": 0,
        "num_envs_per_env_runner": 4,
        "train_batch_size_per_learner": 256,
        "num_epochs": 1,
        "model_config": {"fcnet_hiddens": [8]},
    }
    report = learning.compare_drivers(1, settings, 512, journal.Journal())
    (device,), (host,) = report["areas"].values()
    # An untrained policy holds the pole for some twenty steps.
    assert 10 < device < 50 and 10 < host < 50
    assert report["difference"] == pytest.approx(abs(host - device) / device)
    assert "gymnax/CartPole-v1" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "status", "passed"), [(5.0, 0, 1), (501.0, 1, 0)])
def test_learning_judges_seeds_by_target_and_limit(tmp_path: Path, target: float, status: int, passed: int):
    path = tmp_path / "report.json"
    arguments = f"--rllib-settings --env CartPole-v1 --env-runners 0 --envs 8 --seeds 1 --within 4000 --json {path}"
    assert learning.main([*arguments.split(), "--target", str(target)]) == status
    (line,) = path.read_text().splitlines()
    measured = json.loads(line)["measured"]
    assert measured["reached"] == bool(passed) and measured["env_steps"] >= 4000


def test_returns_of_episodes_are_those_of_all_their_chunks():
    """The comparison with RLlib of what is learned with an LSTM; a fragment has 8 steps here."""
    settings = recurrent_learning.settings_of("jaxrl", 0, {"train_batch_size_per_learner": 16, "num_epochs": 1})
    settings["training"] |= {"minibatch_size": 16}
    settings["env_runners"] |= {"num_envs_per_env_runner": 2}
    settings["model"] |= {"fcnet_hiddens": [4], "lstm_cell_size": 4, "max_seq_len": 8}
    iterations = protocol.measure(jaxrl_ppo.make(settings), seconds=0.0, iterations=16)
    returns = [value for each in iterations for value in each["result"]["returns"]]
    # CartPole pays 1 a step: all but the unfinished episodes make up the steps.
    assert [each["steps"] for each in iterations] == list(range(16, 257, 16))
    assert max(returns) > 8 and 128 < sum(returns) <= 256


def test_areas_are_compared_by_the_standard_error_of_their_difference():
    difference, error = recurrent_learning.compare({"jaxrl": [1.0, 3.0], "rllib": [4.0, 4.0]})
    assert difference == -2.0 and error == pytest.approx(1.0)


@pytest.mark.parametrize(("randomized", "fixed", "status"), [(23, 5, 0), (22, 5, 1), (23, 4, 1)])
def test_randomized_parameters_are_judged_by_the_pairs_of_both_contenders(
    monkeypatch, tmp_path, randomized, fixed, status
):
    counts = {"randomized": randomized, "fixed": fixed}

    def run_seed(contender, **settings):
        assert settings == {"seed": 0, "within": 300_000, "episodes": 20, "low": 0.5, "high": 1.5}
        return {"returns": [[0.0]], "at_least_400": counts[contender], "at_most_300": counts[contender]}

    monkeypatch.setattr(randomized_params, "run_seed", run_seed)
    path = tmp_path / "runs.jsonl"
    assert randomized_params.main(["--seeds", "1", "--json", str(path)]) == status
    assert [json.loads(line)["run"]["contender"] for line in path.read_text().splitlines()] == ["randomized", "fixed"]


def test_the_interval_of_a_difference_contains_it_and_shrinks_to_it_without_spread():
    assert privileged_critic.difference_interval([3.0, 3.0], [1.0, 1.0, 1.0]) == (2.0, 2.0, 2.0)
    difference, low, high = privileged_critic.difference_interval([0.0, 4.0], [1.0])
    assert (difference, low, high) == (1.0, -1.0, 3.0)  # a quarter of the resamples has only 0, a quarter only 4


class Evaluated:
    """Stands for an algorithm whose evaluations have a mean of 1 and this spread."""

    def __init__(self, spread: float):
        self.spread, self.number = spread, 0

    def evaluate(self) -> dict[str, Any]:
        self.number += 1
        return {"env_runners": {"episode_return_mean": 1.0 + self.spread * (-1) ** self.number}}


def test_a_noisy_mean_is_evaluated_until_it_is_known():
    known, noisy = Evaluated(0.0), Evaluated(0.3)
    assert learning.evaluated_mean(known, 0.02) == 1.0
    assert learning.evaluated_mean(noisy, 0.02) == pytest.approx(1.0, abs=0.02)
    # The standard error of n of them is 0.3 over the root of n.
    assert known.number == 8 and noisy.number == pytest.approx(225, abs=2)


def test_a_target_that_the_last_episodes_reach_by_luck_is_not_reached(monkeypatch):
    """A guess is right in half of the episodes of UmbrellaChain, which return 0 in the mean and differ by 3."""
    settings = {"num_envs_per_env_runner": 8, "train_batch_size_per_learner": 80, "minibatch_size": 80, "lr": 0.0}
    settings |= {"num_epochs": 1, "model_config": {"fcnet_hiddens": [4]}, "metrics_num_episodes_for_smoothing": 8}
    config = learning.config_of("gymnax/UmbrellaChain-bsuite", settings)
    (by_luck,) = learning.Criterion(0.7, 2000).train(config, [0])
    assert by_luck["reached"]
    monkeypatch.setitem(learning.EVALUATION, "evaluation_duration", 200)
    (known,) = learning.Criterion(0.7, 2000, standard_error=0.1).train(config, [0])
    assert not known["reached"] and known["best_return"] < 0.7 and known["env_steps"] == 2000


@pytest.mark.parametrize(("hold", "status"), [(5.0, 0), (501.0, 1)])
def test_learning_judges_seeds_by_what_holds(tmp_path: Path, hold: float, status: int):
    path = tmp_path / "report.json"
    arguments = f"--rllib-settings --env CartPole-v1 --env-runners 0 --envs 8 --seeds 1 --hold {hold} --json {path}"
    assert learning.main([*arguments.split(), "--from", "4000", "--until", "5000"]) == status
    done = json.loads(path.read_text())
    assert {name: done["run"][name] for name in ("hold", "from", "until")} == {
        "hold": hold,
        "from": 4000,
        "until": 5000,
    }
    assert done["measured"]["held"] == (status == 0) and done["measured"]["env_steps"] >= 5000
    assert 5 < done["measured"]["least_return"] < 500
    with pytest.raises(SystemExit, match=r"--hold 50?1?: give --from and --until"):
        learning.main([*arguments.split(), "--from", "4000"])


def test_a_journal_tells_which_runs_are_finished(tmp_path: Path):
    measured: list[int] = []

    def measure() -> dict[str, Any]:
        measured.append(1)
        return {"reached": True}

    first = journal.Journal(tmp_path / "runs" / "ppo.jsonl", "abc")
    later = journal.Journal(tmp_path / "runs" / "ppo.jsonl", "def")
    assert first.once({"seed": 0}, measure) == {"seed": 0, "reached": True, "commit": "abc"}
    assert later.once({"seed": 0}, measure) == {"seed": 0, "reached": True, "commit": "abc"}
    assert later.once({"seed": 1}, measure) == {"seed": 1, "reached": True, "commit": "def"}
    assert len(measured) == 2
    journal.Journal().once({"seed": 0}, measure)
    assert len(measured) == 3


def test_missing_runs_of_a_journal_are_made_together_or_one_by_one(tmp_path: Path):
    runs = [{"seed": seed} for seed in range(4)]
    for together, wanted in ((True, [[0, 2, 3]]), (False, [[0], [2], [3]])):
        kept = journal.Journal(tmp_path / f"{together}.jsonl", "abc")
        kept.append(runs[1], {"x": 10})
        groups: list[list[int]] = []

        def measure(chosen: list[int], groups: list[list[int]] = groups) -> list[dict[str, int]]:
            groups.append(chosen)
            return [{"x": i} for i in chosen]

        for _ in range(2):
            assert [line["x"] for line in kept.once_each(runs, measure, together=together)] == [0, 10, 2, 3]
        assert groups == wanted


def run_with(**columns: list[float]) -> Run:
    """A finished run with 100 env steps and 2 seconds per iteration and these columns."""
    history = History()
    for i in range(len(next(iter(columns.values())))):
        row: dict[str, Any] = {"num_env_steps_sampled_lifetime": 100 * (i + 1), "time_total_s": 2.0 * (i + 1)}
        row["env_runners"] = {"episode_return_mean": columns["mean"][i]}
        if "greedy" in columns:
            row["evaluation"] = {"env_runners": {"episode_return_mean": columns["greedy"][i]}}
        history.append(row)
    return Run("seed 0", history)


def test_a_run_ends_at_its_target_also_if_it_trains_on():
    nan = math.nan
    run = run_with(mean=[nan, 5.0, 10.0, 30.0])
    reached = learning.Criterion(10.0, 400).end_of(run, num_runs=2)
    assert reached == {"reached": True, "best_return": 10.0, "env_steps": 300, "seconds": 3.0}
    # The last iteration exceeds the limit.
    late = learning.Criterion(20.0, 350).end_of(run)
    assert late == {"reached": False, "best_return": 30.0, "env_steps": 400, "seconds": 8.0}
    assert learning.Criterion(20.0, 200).end_of(run)["best_return"] == 5.0
    # A member that has diverged ends before the limit.
    assert learning.Criterion(99.0, 9000).end_of(run)["env_steps"] == 400
    held = learning.Hold(5.0, 200, 400).end_of(run)
    assert held == {"held": True, "least_return": 5.0, "env_steps": 400, "seconds": 8.0}
    assert not learning.Hold(5.0, 100, 400).end_of(run)["held"]


def test_results_of_a_killed_benchmark_are_compared_except_times(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        write_content(folder, [0], {"training_iteration": 1}, "curve", [], [])
        (folder / "seed_0").mkdir()
        (folder / "seed_0" / "progress.csv").write_text("training_iteration,time_total_s\n1,2.0\n")
        (folder / "seed_0" / "result.json").write_text('{"env_runners": {"x": NaN}, "pid": 7}\n')
    (killed / "seed_0" / "progress.csv").write_text("training_iteration,time_total_s\n1,9.0\n")
    (killed / "seed_0" / "result.json").write_text('{"env_runners": {"x": NaN}, "pid": 8}\n')
    assert killed_benchmark.differences(whole, killed) == []
    (killed / "seed_0" / "result.json").write_text('{"env_runners": {"x": 0.5}}\n')
    (killed / "seed_0" / "progress.csv").write_text("training_iteration\n1\n1\n")
    (killed / "seed_0_2").mkdir()
    assert killed_benchmark.differences(whole, killed) == [
        "seed_0_2: only in one folder",
        "seed_0/progress.csv: training_iteration",
        "seed_0/result.json: env_runners/x",
    ]


def line_of_score(seed: int, score: float, **changed: Any) -> dict[str, Any]:
    """A line of scores.jsonl for PPO on Hopper."""
    run = {"algorithm": "PPO", "env": "Hopper-v5", "seed": seed, "steps": 1_000_000, **changed}
    measured = {"score": score, "end_of_curve": 2000.0, "best_of_curve": 2500.0 - 500.0 * seed, "cpu_seconds": 90.0}
    return {"commit": "0123456789ab", "run": run, "measured": {**measured, "versions": {"jax": "0.1"}}}


def test_the_page_of_scores_shows_runs_beside_published_scores():
    lines = [line_of_score(1, 2000.0), line_of_score(0, 1000.0), line_of_score(0, 9.0, changed="another setting")]
    text = score_page.section(lines)
    row = next(line for line in text.splitlines() if line.startswith("| Hopper-v5 | [PPO]"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "Hopper-v5",
        "[PPO](../jaxrl_stack/algorithms/ppo/tuned.py)",
        "1500 [1000, 2000]",
        "1000, 2000",
        "2383 ± 271.7 (Hopper-v4, CleanRL)<br>2410 ± 10.03 (Hopper-v3, RL Zoo)",
        "1M",
        "80 %",
        "1.5",
        "01234567",
    ]
    assert "| Hopper-v5 | PPO | A | 2 of 3 | 1M | 6 |" in text and "Versions: jax 0.1." in text
    assert score_page.factor_section(
        [*lines, line_of_score(0, 7.0, changed="gradients are not clipped")]
    ).splitlines() == [
        "| changed setting | HalfCheetah-v5 | Hopper-v5 |",
        "| --- | --- | --- |",
        "| none | – | 1000 |",
        *(f"| {name} | – | {'7' if name == 'gradients are not clipped' else '–'} |" for name in scores.FACTORS),
    ]
    page = f"before\n{score_page.BEGIN}\nold\n{score_page.END}\nafter"
    assert score_page.with_section(page, "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="needs <!-- scores: begin"):
        score_page.with_section("", "new")


def test_the_page_of_scores_is_up_to_date():
    assert score_page.main(["--check"]) == 0


def test_scores_are_trained_once_and_have_their_numbers(tmp_path: Path):
    cell = scores.Cell("PPO", "CartPole-v1", 2048, 1, 1.0)
    for _ in range(2):
        scores.run_cell(cell, tmp_path / "results", journal.Journal(tmp_path / "runs.jsonl", "abc"))
    (line,) = (json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines())
    assert line["run"] == {"algorithm": "PPO", "env": "CartPole-v1", "seed": 0, "steps": 2048}
    measured = line["measured"]
    assert measured["env_steps"] == 2048 and 9 < measured["score"] < 500 and measured["cpu_seconds"] > 0
    assert measured["end_of_curve"] == measured["best_of_curve"]


def test_a_cell_of_scores_without_a_name_is_refused():
    with pytest.raises(SystemExit, match="--only PPO:Nothing: choose from PPO:HalfCheetah-v5"):
        scores.main(["run", "--only", "PPO:Nothing"])


def test_learning_knows_the_criteria_of_every_algorithm(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    arguments = f"--only PPO:CartPole-v1,DQN:gymnax/CartPole-v1 --seeds 1 --within 3000 --target 5 --json {path}"
    assert learning.main(arguments.split()) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["run"]["algorithm"], each["run"]["env"], each["measured"]["reached"]) for each in lines] == [
        ("PPO", "CartPole-v1", True),
        ("DQN", "gymnax/CartPole-v1", True),
    ]
    assert "DQN on gymnax/CartPole-v1: 1 of 1 seeds reach 5 within 3,000 steps" in capsys.readouterr().out
    for algorithm, criteria in learning.CRITERIA.items():
        for env in criteria:
            assert learning.settings_of(env, algorithm)
    assert all(learning.settings_of(env, rllib=True) for env in learning.RLLIB_CRITERIA)
    with pytest.raises(SystemExit):
        learning.main(["--only", "DQN:Pendulum-v1"])
    assert "no criterion 'DQN:Pendulum-v1'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ the first hour

PAGE = """
```bash
pip install . && echo jaxrl train PPO
pip install '.[test]' && pytest
# a remark
echo jaxrl plot \\
  results/RUN
```

```python
import time
x = 1
```
```python
class Maze(MyEnv): pass
x += 1; assert x == 2
```
"""


def test_the_commands_of_a_page_run_in_order_and_are_timed(tmp_path):
    page = PAGE.replace("MyEnv", "type('MyEnv', (), {})")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    steps = first_hour.run_page(page, tmp_path, environment, install=False)
    sources = [" ".join(step.source.split()) for step in steps]
    assert sources[:4] == ["echo jaxrl train PPO", "echo jaxrl plot results/RUN", "import time", "x = 1"]
    assert [step.block for step in steps] == [0, 0, 1, 1, 2, 2, 2]
    assert all(0.0 <= step.seconds < 60.0 for step in steps) and steps[2].seconds > 0.01  # with the start of Python
    with pytest.raises(RuntimeError, match=r"(?s)ends with 1.*AssertionError"):
        first_hour.run_page(page.replace("x == 2", "x == 3"), tmp_path, environment, install=False)


def test_milestones_are_what_reaches_them_first():
    steps = [
        first_hour.Step("python3 -m venv .venv", 1.0, 0),
        first_hour.Step("pip install .", 2.0, 0),
        first_hour.Step("jaxrl train PPO x", 4.0, 0),
        first_hour.Step("algo.train()", 8.0, 1),
        first_hour.Step("algo.history.plot('x.png')", 16.0, 1),
        first_hour.Step("class Maze(AutoResetJaxEnv): pass", 32.0, 2),
        first_hour.Step("algo.train()", 64.0, 2),
    ]
    milestones = first_hour.reached(steps)
    assert (milestones["install"], milestones["first result"], milestones["first plot"]) == (3.0, 4.0, 16.0)
    assert milestones["own environment"] == 96.0 and math.isnan(milestones["report"])


@pytest.mark.parametrize("name", [name for name in digests.names() if name.endswith("-1")])
def test_every_run_that_digests_compare_has_valid_settings(name: str):
    config = digests.config_of(name)
    config.validate()
    assert config.num_cpus_per_learner == 1


def test_only_equal_hashes_of_runs_count_as_equal(monkeypatch, capsys):
    hashes = {"a": "1", "b": "2", "c": "raised ValueError: no"}
    now = iter([hashes, {**hashes, "b": "3"}])
    monkeypatch.setattr(digests, "digests", lambda folder, runs: next(now).items())
    assert digests.compare(".", ["a", "b", "c"]) == ["b", "c"]
    assert "1 of 3 have equal bits." in capsys.readouterr().out


def test_a_commit_that_git_does_not_know_is_named():
    with pytest.raises(ValueError, match="--old 'no-such-commit': git cannot check it out"), checkout("no-such-commit"):
        pass


@pytest.mark.parametrize("arguments", [["--only", "ppo"], ["--pairs", "0"], ["--processes", "0"]])
def test_comparing_commits_refuses(arguments: list[str], capsys):
    with pytest.raises(SystemExit):
        commits.parse(["--old", "HEAD", *arguments])
    assert f"{arguments[0]} {arguments[1]}" in capsys.readouterr().err


def test_ratios_of_commits_are_new_by_old_whichever_runs_first(monkeypatch):
    class Process:
        def __init__(self, command, settings, *, folder):
            self.rate = {"old": 2.0, "new": 3.0}[folder]

        __enter__ = __exit__ = lambda self, *_: self

        def measure(self, seconds):
            return [{"steps": self.rate * 5, "seconds": 5.0}]

    monkeypatch.setattr(commits, "Peer", Process)
    assert list(commits.ratios(commits.JOBS["dqn-device"], ("old", "new"), 2, 3, 1.0)) == [1.5] * 6


def runs_of_dreamer(monkeypatch, file: Path, *command: str, greedy: list[list[float]]) -> list[dict[str, Any]]:
    """Lines of the journal after a command whose seeds have these greedy returns."""
    trained = [run_with(greedy=own, mean=[each / 2 for each in own]) for own in greedy]
    monkeypatch.setattr(dreamer, "train_seeds", lambda config, seeds, until, path: [trained[seed] for seed in seeds])
    assert dreamer.main([*command, "--json", str(file)]) == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_dreamer_run_ends_at_its_bar(tmp_path, monkeypatch):
    command = ["--env", "CartPole-v1", "--seeds", "1"]
    greedy = [[100.0, 200.0, 300.0, 400.0]]
    (run,) = runs_of_dreamer(monkeypatch, tmp_path / "runs.jsonl", *command, greedy=greedy)
    curve = [[100 * i, 100.0 * i, 50.0 * i, 2.0 * i] for i in range(1, 5)]
    assert run["measured"] == {"reached": 400, "seconds": 8.0, "first": 2.0, "curve": curve}
    # The journal contains the run, so it is not repeated.
    assert len(runs_of_dreamer(monkeypatch, tmp_path / "runs.jsonl", *command, greedy=[])) == 1


def test_dreamers_seeds_of_one_program_end_at_their_own_bars(tmp_path, monkeypatch):
    command = ["--env", "gymnax/CartPole-v1", "--seeds", "2", "--together"]
    greedy = [[300.0, 400.0, 0.0], [0.0, 300.0, 400.0]]
    runs = runs_of_dreamer(monkeypatch, tmp_path / "runs.jsonl", *command, greedy=greedy)
    assert [run["run"]["seed"] for run in runs] == [0, 1]
    assert [run["measured"]["reached"] for run in runs] == [200, 300]
    assert [len(run["measured"]["curve"]) for run in runs] == [2, 3] and runs[0]["measured"]["together"] == 2


def test_a_dreamer_run_that_holds_trains_on_and_reports_its_lowest_return(tmp_path, monkeypatch):
    greedy = [[100.0, 450.0, 500.0, 380.0, 500.0]]
    (run,) = runs_of_dreamer(
        monkeypatch, tmp_path / "runs.jsonl", "--env", "CartPole-v1", "--seeds", "1", "--hold", greedy=greedy
    )
    assert (run["measured"]["reached"], run["measured"]["lowest"]) == (200, 380.0)
    assert len(run["measured"]["curve"]) == 5 and run["run"]["holds"]


def test_a_dreamer_run_may_need_several_evaluations_in_a_row(tmp_path, monkeypatch):
    monkeypatch.setitem(dreamer.BARS, "CartPole-v1", dreamer.Bar(400.0, 40_000, evaluations=3))
    greedy = [[500.0, 0.0, 400.0, 500.0, 600.0, 700.0]]
    (run,) = runs_of_dreamer(
        monkeypatch, tmp_path / "runs.jsonl", "--env", "CartPole-v1", "--seeds", "1", greedy=greedy
    )
    assert run["measured"]["reached"] == 500 and run["run"]["evaluations"] == 3


def test_operations_of_a_program_count_those_of_loops_as_often_as_they_run():
    def program(x, kernel, image):
        out, _ = jax.lax.scan(lambda x, _: (x @ kernel, None), x, length=7)
        convolved = jax.jit(lambda y: jax.lax.conv(y, jnp.ones((5, 2, 3, 3)), (1, 1), "SAME"))(image)
        return out, convolved

    args = jnp.ones((3, 4)), jnp.ones((4, 4)), jnp.ones((1, 2, 6, 6))
    found = dreamer_throughput.operations(jax.make_jaxpr(program)(*args).jaxpr)
    assert found == 7 * 2 * 3 * 4 * 4 + 2 * (5 * 6 * 6) * (2 * 3 * 3)


@pytest.mark.parametrize(("own", "branches"), [(True, 1), (False, 3)])
def test_operations_of_other_platforms_do_not_count(own, branches):
    def once(x):
        return x @ x.T

    def three_times(x):
        return x @ x.T @ x @ x.T

    platforms = {jax.default_backend() if own else "rocm": once}

    def program(x):
        chosen = jax.lax.platform_dependent(x, **platforms, default=three_times)
        return chosen, jax.lax.cond(x[0, 0] > 0, once, three_times, x)

    # Of what an argument chooses, the largest.
    found = dreamer_throughput.operations(jax.make_jaxpr(program)(jnp.ones((3, 4))).jaxpr)
    assert found == (branches + 3) * (2 * 3 * 4 * 3)


def test_operations_of_loops_without_a_length_are_refused():
    def program(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 3, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="54 operations are in a loop that ends by a condition"):
        dreamer_throughput.operations(jax.make_jaxpr(program)(jnp.ones((3, 3))).jaxpr)


def test_dreamers_contenders_make_an_update_per_step():
    args = dreamer_throughput.parser().parse_args(["--toy", "--steps", "8"])
    for table in ("rllib", "loop"):
        settings = dreamer_throughput.settings_of(table, "nano", args)
        training = settings["training"]
        assert training["training_ratio"] == training["batch_size_B"] * training["batch_length_T"] == 16
        assert settings["reporting"]["min_sample_timesteps_per_iteration"] == 8


def test_minimax_solves_tic_tac_toe():
    """Known facts: 5,478 positions, value 0; the centre answers a corner, and a corner answers the centre."""
    assert len(games.positions()) == 5478 and games.minimax_value((0,) * 9) == 0
    best = games.best_moves()

    def moves(text):
        return set(np.flatnonzero(best[sum(".xo".index(mark) * 3**i for i, mark in enumerate(text))]))

    assert moves(".........") == {*range(9)}
    assert moves("o........") == {4} and moves("....o....") == {0, 2, 6, 8}
    assert moves("xx.oo....") == {2}, "wins instead of preventing the loss"
    assert moves("oo..x....") == {2}, "prevents the loss"


def test_games_count_for_the_player_who_begins():
    """The first of two players who take the first free cell gets the cells 2, 4, 6. Minimax never loses."""
    env = resolve_env("pgx_multi/tic_tac_toe").make()
    first_free = games.Player(lambda weights, obs, key: jnp.argmax(obs["action_mask"], axis=-1))
    assert games.play_both(env, first_free, first_free, jax.random.key(0), 4, 10) == ((1, 0, 0), (0, 0, 1))
    first, second = games.play_both(env, games.minimax(), games.RANDOM, jax.random.key(0), 200, 10)
    assert first.losses == second.losses == 0 and first.wins > second.wins > 0.5


def test_a_course_of_policies_counts_rounds():
    course = games.Course.of(np.eye(3)[[0, 0, 1, 2, 0]])
    assert course == ([0.6, 0.2, 0.2], 0.267, 0.667, 1.0)
    assert games.Course.of(np.full((5, 3), 1 / 3)) == ([0.333] * 3, 0.0, 0.0, 0.0)


def test_bars_of_games_need_three_of_four_seeds(tmp_path, monkeypatch):
    """Exits with 1 if a bar is missed. Finished runs are not repeated."""
    table = {"curve": [{"greedy": [1, 1]}], "not_lost": [1, 1]}
    rest = iter([{**table, "is_met": is_met} for is_met in (False, True, True, True, False, False)])
    monkeypatch.setattr(games, "against_minimax", lambda seed: next(rest))
    own, other = (["--only", "tic_tac_toe", "--json", str(tmp_path / name)] for name in ("a.jsonl", "b.jsonl"))
    assert games.main(own) == 0
    assert games.main(own) == 0
    assert games.main([*other, "--seeds", "2"]) == 1
    assert next(rest, None) is None


def test_a_board_game_is_measured_against_the_policy_of_half_of_the_steps():
    small = {"conv_filters": [[2, 3, 1, "valid"]], "head_fcnet_hiddens": [4]}
    toy = dataclasses.replace(games.TIC_TAC_TOE, steps=256, size=2, num_envs=4, model=small)
    measured = games.against_half(0, toy, games=20, parts=2)
    assert [point["steps"] for point in measured["curve"]] == [128, 256]
    assert "half" not in measured["curve"][0]
    assert all(0 <= wins <= 1 - draws for wins, draws in zip(measured["half"], measured["half_draws"], strict=True))
    assert not measured["is_met"]


# ---------------------------------------------------------------------------------------------------------- clusters


def test_a_rehearsal_names_the_bars_that_it_misses():
    good = {"recovery_s": 8.0, "join_to_use_s": 30.0, "new_node_has_runner": True, "is_placed_well": True}
    assert cluster.missed_bars({**good, "inexact_results": 0}) == []
    bad = {**good, "recovery_s": 8.1, "is_placed_well": False, "inexact_results": 2}
    assert len(cluster.missed_bars(bad)) == 3


def test_rates_by_runners_and_environments_are_a_table():
    def row(runners, envs, rate):
        return {"environment": "CartPole", "algorithm": "PPO", "runners": runners, "envs": envs, "steps_per_s": rate}

    lines = scaling_table.table([row(0, 1, 1000), row(0, 64, 20_000), row(2, 64, 30_000)]).splitlines()
    assert lines[0] == "| environment | algorithm | EnvRunners | 1 env | 64 envs |"
    assert lines[2:] == ["| CartPole | PPO | 0 | 1,000 | 20,000 |", "| CartPole | PPO | 2 | – | 30,000 |"]
