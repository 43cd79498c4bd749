"""Memory: estimates before any allocation, refusals of what cannot fit, and runs that do not grow."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import logging
import math
import os
import re
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from jaxrl_stack.acting.recorded_step import RecordedStep
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig, PPOLearner
from jaxrl_stack.connectors.env_to_module import PrevActionsPrevRewards
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils.memory import (
    HostMemory,
    MemoryEstimate,
    available_host_bytes,
    available_memory,
    format_bytes,
    host_memory,
    require_memory,
    space_bytes,
)
from jaxrl_stack.utils.spaces import zeros

GIB = 1024**3
FRAME = Box(0, 255, (84, 84, 4), np.uint8)
VECTOR = Box(-1, 1, (3,), np.float32)
BEYOND = {"num_envs_per_env_runner": 10**8, "train_batch_size_per_learner": 10**12}


def config(env, *, num_envs=4, batch=64, **env_runners):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=num_envs, num_env_runners=0, **env_runners)
        .training(train_batch_size_per_learner=batch, minibatch_size=min(batch, 256), num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=0)
    )


def nbytes(columns) -> dict[str, int]:
    return {
        name: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(column))
        for name, column in columns.items()
    }


# --------------------------------------------------------------------------------------------------------- estimates


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (FRAME, 84 * 84 * 4),
        (VECTOR, 12),
        (Box(-1, 1, (2,), np.float64), 8),
        (Box(-1, 1, (2,), np.float16), 4),
        (Discrete(5), 4),
        (MultiDiscrete([2, 3, 4]), 12),
        (MultiBinary(7), 7),
        (Box(0, 1, ()), 4),
        (Dict(a=VECTOR, b=Tuple([Discrete(2), FRAME])), 12 + 4 + 84 * 84 * 4),
    ],
)
def test_bytes_of_an_element_are_those_of_a_jax_array_of_it(space, size):
    assert space_bytes(space) == size
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(zeros(space))) == size


def test_a_space_without_a_fixed_shape_has_no_size():
    with pytest.raises(TypeError, match="no fixed shape"):
        space_bytes(Dict(a=VECTOR, b=Text(5)))


def shapes(num_rows, **columns):
    return {name: jax.ShapeDtypeStruct((num_rows, *shape), dtype) for name, (shape, dtype) in columns.items()}


def test_an_estimate_is_the_bytes_of_its_arrays():
    columns = shapes(10**6, obs=((84, 84, 4), np.uint8), actions=((), np.int32), terminateds=((), bool))
    estimate = MemoryEstimate.of_shapes("replay buffer", {"envs": 100, "steps": 10**4}, columns)
    frame = 84 * 84 * 4
    assert estimate.num_rows == 10**6 and estimate.bytes_per_row == frame + 5
    assert estimate.num_bytes == 10**6 * (frame + 5)
    numbers = estimate.to_dict()
    assert numbers["num_bytes"] == sum(numbers["columns"].values()) == estimate.num_bytes
    assert numbers["counts"] == {"envs": 100, "steps": 10**4}
    text = "replay buffer: 26.3 GiB = 100 envs x 10,000 steps x 27.6 KiB (obs 27.6 KiB, actions 4 B, terminateds 1 B)"
    assert str(estimate) == text
    of_rows = {"obs": frame, "actions": 4, "terminateds": 1}
    assert MemoryEstimate.of_rows("replay buffer", estimate.counts, of_rows) == estimate


def test_what_there_is_once_for_several_rows_counts_once():
    columns = shapes(100, rewards=((), np.float32)) | shapes(7, state_in=((3,), np.float32))
    estimate = MemoryEstimate.of_shapes("train batch", {"envs": 1, "steps": 100}, columns, is_complete=False)
    assert estimate.num_bytes == 400 + 84 and estimate.bytes_per_row == 5
    assert str(estimate) == "train batch: at least 484 B = 1 envs x 100 steps x 5 B (rewards 4 B)"
    assert MemoryEstimate("rollout", {"envs": 0, "steps": 0}, {}).to_dict()["bytes_per_row"] == 0


def test_parts_are_rounded_up():
    whole = MemoryEstimate("replay buffer", {"envs": 5, "steps": 2}, {"obs": 41})
    part = whole.part("part of it", 1, 2)
    assert (part.what, part.counts, part.columns) == ("part of it", {"envs": 3, "steps": 2}, {"obs": 21})


def test_a_recorded_step_tells_what_blocks_of_it_take():
    recorded = RecordedStep.of_spaces(FRAME, Discrete(6))
    block = recorded.block(128, 512)
    assert not recorded.is_complete and block["obs"].shape == block["final_obs"].shape == (128, 512, 84, 84, 4)
    assert nbytes(block)["actions"] == 4 * nbytes(block)["truncateds"] == 4 * 128 * 512
    columns = {**recorded.columns, "state_in": {"h": jax.ShapeDtypeStruct((1, 1, 8), np.float32)}}
    columns["state_out"] = columns["state_in"]
    recurrent = RecordedStep(columns)
    assert recurrent.block(10, 3)["state_out"]["h"].shape == (10, 3, 8)
    chunks = recurrent.block(10, 3, Layout(4, num_frames=4))
    assert chunks["state_in"]["h"].shape == (3, 3, 8) and "state_out" not in chunks
    assert chunks["obs"].shape == (10, 3, 84, 84, 1) and chunks[FRAMES_BEFORE].shape == (1, 3, 3, 84, 84, 1)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (54, "54 B"),
        (1023, "0.999 KiB"),
        (1536, "1.5 KiB"),
        (GIB, "1 GiB"),
        (int(1.234 * GIB), "1.23 GiB"),
        (2**60 * 5000, "5,000 EiB"),
    ],
)
def test_sizes_are_readable(size, text):
    assert format_bytes(size) == text


def test_what_fits_or_may_fit_is_not_refused():
    estimate = MemoryEstimate("train batch", {"envs": 1, "steps": 10}, {"obs": 400, "rewards": 300})
    require_memory(estimate, estimate.num_bytes, where="are free", remedy="Lower n=1.")
    require_memory(estimate, None, where="are free", remedy="Lower n=1.")
    with pytest.raises(ValueError, match=r"train batch: 700 B = 1 envs x 10 steps .* 699 B are free\. Lower n=1\."):
        require_memory(estimate, estimate.num_bytes - 1, where="are free", remedy="Lower n=1.")


# --------------------------------------------------------------------------------------------------- what there is


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


MEMINFO = {"proc/meminfo": f"MemTotal: {64 * 1024**2} kB\nMemFree: 7 kB\nMemAvailable: {32 * 1024**2} kB\n"}
V1 = "sys/fs/cgroup/memory/"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (64, 32)),
        ({"proc/self/cgroup": "0::/\n"}, (64, 32)),
        # Version 2, as a container sees itself; caches that give way are no use of memory.
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
                "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            },
            (8, 5),
        ),
        # Version 2, the limit on the group around the own one.
        (
            {
                "proc/self/cgroup": "0::/user.slice/run.scope\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{16 * GIB}\n",
                "sys/fs/cgroup/user.slice/memory.current": f"{15 * GIB}\n",
                "sys/fs/cgroup/user.slice/memory.stat": "inactive_file 0\n",
                "sys/fs/cgroup/user.slice/run.scope/memory.max": "max\n",
            },
            (16, 1),
        ),
        # Version 1 beside an empty version 2; the path is that of outside.
        (
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n",
                f"{V1}memory.limit_in_bytes": f"{4 * GIB}\n",
                f"{V1}memory.usage_in_bytes": f"{3 * GIB}\n",
                f"{V1}memory.stat": f"cache 1\ntotal_inactive_file {GIB}\n",
            },
            (4, 2),
        ),
        # Version 1 without a limit, which is a huge number there.
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                f"{V1}memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}memory.usage_in_bytes": f"{3 * GIB}\n",
                f"{V1}memory.stat": "total_inactive_file 0\n",
            },
            (64, 32),
        ),
        # More in use than allowed.
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
            },
            (1, 0),
        ),
    ],
)
def test_memory_of_machine_or_container(tmp_path, files, expected):
    write(tmp_path, MEMINFO | files)
    assert host_memory(tmp_path) == HostMemory(expected[0] * GIB, expected[1] * GIB)


def test_unknown_memory_is_none(tmp_path):
    assert host_memory(tmp_path) is None
    write(tmp_path, {"proc/meminfo": "MemTotal: 7 kB\n"})
    assert host_memory(tmp_path) is None


def test_memory_of_this_machine():
    host, available = host_memory(), available_host_bytes()
    assert host is not None and available is not None
    assert 0 < host.available <= host.total
    assert available_memory(jax.local_devices(backend="cpu")[0]) == pytest.approx(available, abs=4 * GIB)


def accelerator(**stats: int):
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats or None, __str__=lambda: "cuda:0")


def test_memory_of_an_accelerator():
    assert available_memory(accelerator(bytes_limit=80 * GIB, bytes_in_use=GIB)) == 79 * GIB
    assert available_memory(accelerator(bytes_limit=GIB, bytes_in_use=2 * GIB)) == 0
    assert available_memory(accelerator(bytes_in_use=2 * GIB)) is None
    assert available_memory(accelerator()) is None


# ---------------------------------------------------------------------------------------------------------- drivers


@pytest.fixture(scope="module")
def device_algo():
    algo = config("gymnax/CartPole-v1", rollout_fragment_length=8).build_algo()
    yield algo
    algo.stop()


def test_estimate_is_what_the_device_samples(device_algo):
    driver = device_algo.driver
    runner = jax.tree.map(lambda x: x[0], driver.shards.state)
    place = dataclasses.replace(driver.program, settings=driver.learner.settings())

    def sample(learner, runner, timesteps):
        state = TrainState(learner, place.started(runner, learner), timesteps=timesteps)
        return place.sample(state, driver.plan_samples(8, num_shares=2))[1].modules

    columns = jax.eval_shape(sample, driver.learner.state, runner, driver.timesteps)[DEFAULT_MODULE_ID]
    estimate = device_algo.memory_estimate()["train_batch"]
    assert estimate["columns"] == nbytes(columns)
    assert estimate["num_rows"] == 64 and estimate["counts"] == {"envs": 8, "steps": 8}


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("CartPole-v1", {"env_to_module_connector": lambda env, spaces, device: PrevActionsPrevRewards()}),
    ],
)
def test_estimate_is_what_a_runner_records(env, more):
    algo = config(env, num_envs=3, rollout_fragment_length=7, batch=42, **more).build_algo()
    block = algo.env_runner.sample_block()
    estimate = algo.memory_estimate()
    recorded = nbytes(block.experience.modules[DEFAULT_MODULE_ID])
    assert estimate["rollout"]["columns"] == recorded
    assert estimate["rollout"]["num_bytes"] == 21 * estimate["rollout"]["bytes_per_row"] == sum(recorded.values())
    assert estimate["train_batch"]["num_bytes"] == 2 * estimate["rollout"]["num_bytes"]
    algo.stop()


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_estimate_is_what_is_drawn_from_replay(env):
    asked = DQNConfig().environment(env).env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
    asked.training(train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=0)
    algo = asked.rl_module(model_config={"head_fcnet_hiddens": [8]}).learners(num_cpus_per_learner=1).build_algo()
    replay, kept = algo.driver.step.replays[DEFAULT_MODULE_ID], algo.driver.kept[DEFAULT_MODULE_ID]
    estimate = algo.memory_estimate()
    if algo.driver.is_on_device:
        ring, kept = replay.ring, jax.tree.map(lambda x: x[0], kept)

        def draw(kept, key):
            return ring.sample(kept, ring.random_numbers(key), beta=0.4, gamma=0.99)[0]

        drawn = jax.eval_shape(draw, kept, jax.random.key(0))
        assert estimate["replay"]["num_bytes"] == sum(nbytes({"kept": algo.driver.kept}).values())
    else:
        algo.train()
        drawn = replay.draw(kept, TrainState(), None)[-1][DEFAULT_MODULE_ID].columns
        drawn = {**drawn, "batch_indexes": np.zeros(16, np.int64)}
    assert estimate["train_batch"]["columns"] == nbytes(drawn)
    assert estimate["train_batch"]["counts"] == {"rows": 16}
    # It has the columns that its module puts out while it acts, no others.
    assert "action_dist_inputs" not in estimate["rollout"]["columns"]
    algo.stop()


def test_estimate_is_logged(caplog):
    caplog.set_level(logging.INFO, "jaxrl_stack")
    algo = config("CartPole-v1").debugging(log_level="INFO").build_algo()
    available = algo.memory_estimate()["available_bytes"]
    expected = f"train batch: 3.38 KiB = 4 envs x 16 steps x 54 B .*; {format_bytes(available)} are free\\."
    assert caplog.text.count("train batch: ") == 1
    assert next(r for r in caplog.records if "train batch: " in r.message).name.startswith("jaxrl_stack.")
    assert "rollout: " not in caplog.text  # it is the train batch here
    assert re.search(expected, caplog.text)
    algo.stop()


@pytest.mark.parametrize(
    ("env", "sizes", "message"),
    [
        (
            "gymnax/CartPole-v1",
            BEYOND,
            r"rollout: at least 5\.46 TiB = 100,000,000 envs x 10,000 steps x 6 B .*iB are free on this machine",
        ),
        ("gymnax/CartPole-v1", {"train_batch_size_per_learner": 10**13}, r"54\.6 TiB"),
        ("gymnax/CartPole-v1", {"rollout_fragment_length": 10**12, "num_envs_per_env_runner": 1}, r"5\.46 TiB"),
        ("CartPole-v1", BEYOND, r"rollout: at least 5\.46 TiB = 100,000,000 envs x 10,000 steps x 6 B"),
        ("CartPole-v1", {"train_batch_size_per_learner": 10**13}, r"54\.6 TiB"),
        ("CartPole-v1", {"num_envs_per_env_runner": 10**12}, r"5\.46 TiB = 1,000,000,000,000 envs x 1 steps"),
    ],
)
def test_what_cannot_fit_is_refused_at_once(device_algo, env, sizes, message):
    del device_algo  # what starting the backend costs is not measured
    asked = config(env)
    for name, value in sizes.items():
        (asked.training if name.startswith("train") else asked.env_runners)(**{name: value})
    if "rollout_fragment_length" in sizes:
        asked.training(train_batch_size_per_learner=sizes["rollout_fragment_length"])
    started = time.process_time()  # the machine may be loaded
    with pytest.raises(ValueError, match=message) as caught:
        asked.build_algo()
    assert time.process_time() - started < 1.0
    for name, value in sizes.items():
        assert f"{name}={value!r}" in str(caught.value)


def test_too_many_environments_are_refused_before_the_first_is_made(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 64 * GIB)
    asked = config("CartPole-v1", num_envs=10**9)
    with pytest.raises(ValueError, match=r"environments: at least 954 GiB = 1 env runner\(s\) x 1,000,000,000 envs"):
        asked.build_algo()


def test_a_batch_that_only_the_observations_make_too_large_is_refused_on_the_device(monkeypatch):
    asked = config("gymnax/CartPole-v1")
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_memory", lambda device: 4000)
    asked.copy().build_algo().stop()
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_memory", lambda device: 3000)
    says = r"train batch: 3.38 KiB = 4 envs x 16 steps x 54 B .* cannot fit, because 2.93 KiB are free on this machine"
    with pytest.raises(ValueError, match=says):
        asked.build_algo()


def test_a_batch_that_only_the_observations_make_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 2000)
    config("CartPole-v1", num_envs=1, batch=32).build_algo().stop()
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 1500)
    with pytest.raises(ValueError, match=r"1.69 KiB = 1 envs x 32 steps x 54 B .* cannot fit, because 1.46 KiB"):
        config("CartPole-v1", num_envs=1, batch=32).build_algo()


HALF = 1728  # bytes of half a train batch, which is 4 x 16 steps of 54 B
BATCH = MemoryEstimate("train batch", {"envs": 4, "steps": 16}, {"obs": 2 * HALF})


@pytest.mark.parametrize("limits", [(HALF, HALF), (2 * HALF,)])
def test_accelerators_that_hold_their_parts(limits):
    require_device_memory([accelerator(bytes_limit=limit) for limit in limits], BATCH, "Lower n.")
    require_device_memory([accelerator()], BATCH, "Lower n.")  # which do not say what they hold


def test_each_accelerator_has_to_hold_its_part():
    devices = [accelerator(bytes_limit=limit) for limit in (2 * HALF, HALF - 1)]
    says = r"part of the train batch on .*: 1.69 KiB = 2 envs x 16 steps .* 1.69 KiB are free there. Lower n."
    with pytest.raises(ValueError, match=says):
        require_device_memory(devices, BATCH, "Lower n.")


class ItFitsError(Exception):
    """Memory was found to do, and weights are handed out."""


@pytest.mark.parametrize(
    ("num_devices", "error", "says"),
    [(2, ItFitsError, None), (1, ValueError, r"train batch.*3.38 KiB .* cannot fit, because 1.69 KiB are free there")],
)
def test_accelerators_of_a_learner_beside_host_environments(num_devices, error, says):
    class OnAccelerators(PPOLearner):
        def build(self):
            super().build()
            self.devices = [accelerator(bytes_limit=HALF)] * num_devices

        def weights_for_runners(self, *args, **kwargs):
            raise ItFitsError

    with pytest.raises(error, match=says):
        config("CartPole-v1").learners(learner_class=OnAccelerators).build_algo()


# ------------------------------------------------------------------------------------------------------------- soak


def growth(step, *, warm_up: int, calls: int, mib_of_noise: float) -> tuple[float, int, int]:
    """``(MiB of resident memory, JAX arrays, Python containers)`` that came between the warm-up and the last call.

    Where that is more memory than noise, as many calls are made again: a leak grows in these, too, and pages that the
    allocator could not give back do not.
    """
    gc.collect()
    gc.freeze()  # what other tests have left is not walked through again with every count
    for i in range(1, warm_up + 1):
        step(i)
    found = (0.0, 0, 0)
    for first in (warm_up + 1, calls + 1):
        before = held()
        for i in range(first, first + calls - warm_up):
            step(i)
        mib, arrays, containers = (now - then for now, then in zip(held(), before, strict=True))
        found = (mib, int(arrays), int(containers))
        if mib <= mib_of_noise:
            break
    return found


def held() -> tuple[float, int, int]:
    gc.collect()
    # Free memory that the allocator keeps goes back: a leak could fill it unseen.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(jax.live_arrays()), len(gc.get_objects())


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_memory_stays_flat_in_training(env):
    # A train batch has 54 KiB: one in four of them kept would be seen.
    algo = config(env, num_envs=32, batch=1024).build_algo()
    mib, arrays, containers = growth(lambda i: algo.train(), warm_up=60, calls=140, mib_of_noise=1.0)
    algo.stop()
    assert mib <= 1.0
    assert arrays <= 0
    assert containers < 80, "one per iteration"


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_memory_stays_flat_in_training_from_replay(env):
    # Far more steps than the buffer holds: it is full before the warm-up ends, and rows go on being replaced. So it is
    # with the windows of episodes that results are means of, which fill more slowly.
    algo = (
        DQNConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=8)
        .training(
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 2000},
            num_steps_sampled_before_learning_starts=64,
        )
        .reporting(min_sample_timesteps_per_iteration=128)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=0)
        .build_algo()
    )
    mib, arrays, containers = growth(lambda i: algo.train(), warm_up=60, calls=140, mib_of_noise=1.0)
    algo.stop()
    assert mib <= 1.0
    assert arrays <= 0
    assert containers < 80, "one per iteration"


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_memory_stays_flat_in_saving(env, tmp_path):
    # A state has 1.6 MiB: if every fifth one were kept, it would be seen. Less is noise.
    algo = config(env).rl_module(model_config={"fcnet_hiddens": [256, 256]}).build_algo()

    def step(i):
        algo.train()
        algo.save_to_path(str(tmp_path / "checkpoint"))

    mib, arrays, containers = growth(step, warm_up=5, calls=25, mib_of_noise=8.0)
    algo.stop()
    assert mib <= 8.0
    assert arrays <= 0
    assert containers < 20, "one per save"


def num_maps() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_an_algorithm_without_references_is_gone_with_its_programs(env, forget_loaded_programs):
    maps = []
    for num_envs in (3, 5):
        algo = config(env, num_envs=num_envs, batch=30).build_algo()
        algo.train()
        parts = [weakref.ref(part) for part in (algo, algo.driver, algo.learner)]
        with_programs = num_maps()
        # Not stopped: forgotten, as in a notebook whose cell runs again.
        del algo
        forget_loaded_programs()
        gc.collect()
        assert [part() for part in parts] == [None, None, None]
        maps.append((with_programs, num_maps()))
    given_back = maps[1][0] - maps[1][1]
    assert given_back > 50, "programs take memory maps"
    # JAX keeps a few small programs of operations on their own shapes.
    assert maps[1][1] - maps[0][1] < min(100, given_back / 2), maps


def test_leaks_would_be_seen():
    kept: list[object] = []

    def step(i):
        kept.append(np.full(2**12, float(i), np.float64))
        kept.append([jax.device_put(np.zeros(1, np.float32))])

    mib, arrays, containers = growth(step, warm_up=60, calls=140, mib_of_noise=1.0)
    assert mib > 1.0
    assert arrays == 80
    assert containers >= 80
