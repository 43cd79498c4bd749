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

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig, PPOLearner
from jaxrl_stack.connectors.env_to_module import PrevActionsPrevRewards
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.distribution import get_action_dist_cls_for_space
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils.memory import (
    HostMemory,
    available_host_bytes,
    available_memory,
    format_bytes,
    host_memory,
    replay_memory,
    require_memory,
    space_bytes,
    train_batch_memory,
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


@pytest.mark.parametrize(
    "space", [Discrete(5), MultiDiscrete([2, 3]), VECTOR, Dict(a=VECTOR, b=Discrete(4)), Tuple([VECTOR, VECTOR])]
)
def test_inputs_of_the_distribution_are_as_many_as_it_takes(space):
    distribution = get_action_dist_cls_for_space(space)
    estimate = train_batch_memory(VECTOR, space, num_envs=1, num_steps=1)
    assert estimate.columns["action_dist_inputs"] == 4 * distribution.required_input_dim(space)


def test_train_batch_of_frames():
    estimate = train_batch_memory(FRAME, Discrete(6), num_envs=512, num_steps=128)
    frame, rest = 84 * 84 * 4, 4 + 6 * 4 + 4 + 4 + 1 + 1
    assert estimate.bytes_per_row == 2 * frame + rest
    assert estimate.num_rows == 512 * 128
    assert estimate.num_bytes == 512 * 128 * (2 * frame + rest)
    numbers = estimate.to_dict()
    assert numbers["num_bytes"] == sum(numbers["columns"].values()) == estimate.num_bytes
    assert numbers["counts"] == {"envs": 512, "steps": 128}
    assert str(estimate).startswith(
        "train batch: 3.45 GiB = 512 envs x 128 steps x 55.2 KiB (obs 27.6 KiB, final_obs 27.6 KiB, "
    )


def test_train_batch_of_unknown_spaces_is_a_lower_bound():
    least = train_batch_memory(None, None, num_envs=10, num_steps=10)
    assert least.num_bytes == 600
    assert not least.is_complete and "at least 600 B" in str(least)
    assert train_batch_memory(VECTOR, Discrete(2), num_envs=10, num_steps=10).is_complete


def test_replay_buffer():
    million = replay_memory(FRAME, Discrete(6), capacity=10**6)
    frame, rest = 84 * 84 * 4, 4 + 4 + 1 + 1
    assert million.num_bytes == 10**6 * (2 * frame + rest)
    assert str(million).startswith("replay buffer: 52.6 GiB = 1,000,000 transitions x 55.1 KiB (")
    shared = replay_memory(FRAME, Discrete(6), capacity=10**6, shares_next_obs=True, extra={"priorities": 4})
    assert shared.num_bytes == 10**6 * (frame + rest + 4)
    as_floats = replay_memory(Box(0, 1, FRAME.shape, np.float32), Discrete(6), capacity=10**6)
    assert as_floats.num_bytes == 10**6 * (8 * frame + rest)


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
    estimate = train_batch_memory(VECTOR, VECTOR, num_envs=1, num_steps=10)
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
            r"train batch: 49\.1 TiB = 100,000,000 envs x 10,000 steps x 54 B .*iB are free on this machine",
        ),
        ("gymnax/CartPole-v1", {"train_batch_size_per_learner": 10**13}, r"491 TiB"),
        ("gymnax/CartPole-v1", {"rollout_fragment_length": 10**12, "num_envs_per_env_runner": 1}, r"49\.1 TiB"),
        ("CartPole-v1", BEYOND, r"train batch: at least 5\.46 TiB = 100,000,000 envs x 10,000 steps"),
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
    started = time.perf_counter()
    with pytest.raises(ValueError, match=message) as caught:
        asked.build_algo()
    assert time.perf_counter() - started < 1.0
    for name, value in sizes.items():
        assert f"{name}={value!r}" in str(caught.value)


def test_too_many_environments_are_refused_before_the_first_is_made(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 64 * GIB)
    asked = config("CartPole-v1", num_envs=10**9)
    with pytest.raises(ValueError, match=r"environments: at least 954 GiB = 1 env runner\(s\) x 1,000,000,000 envs"):
        asked.build_algo()


def test_a_batch_that_only_the_observations_make_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 2000)
    config("CartPole-v1", num_envs=1, batch=32).build_algo().stop()
    monkeypatch.setattr("jaxrl_stack.execution.memory.available_host_bytes", lambda: 1500)
    with pytest.raises(ValueError, match=r"1.69 KiB = 1 envs x 32 steps x 54 B .* cannot fit: 1.46 KiB are free"):
        config("CartPole-v1", num_envs=1, batch=32).build_algo()


class ItFitsError(Exception):
    """Memory was found to do, and the learner is made."""


def learner_on(*bytes_limits):
    """A learner on accelerators of these sizes, which is never made."""

    class OnAccelerators(PPOLearner):
        def __init__(self, **kwargs):
            raise ItFitsError

        @classmethod
        def devices_of(cls, config):
            return [accelerator(**({} if limit is None else {"bytes_limit": limit})) for limit in bytes_limits]

    return OnAccelerators


HALF = 1728  # bytes of a train batch, which is 4 x 16 steps of 54 B


@pytest.mark.parametrize(
    ("limits", "says"), [((HALF, HALF), r"x 54 B [^;]*; 3\.38 KiB are free\."), ((None,), r"x 54 B [^;]*\.")]
)
def test_accelerators_that_hold_their_parts(limits, says, caplog):
    caplog.set_level(logging.INFO, "jaxrl_stack")
    asked = config("gymnax/CartPole-v1").learners(learner_class=learner_on(*limits)).debugging(log_level="INFO")
    with pytest.raises(ItFitsError):
        asked.build_algo()
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("train batch: ")]
    assert re.search(f"{says}$", line)


def test_each_accelerator_has_to_hold_its_part():
    asked = config("gymnax/CartPole-v1").learners(learner_class=learner_on(2 * HALF, HALF - 1))
    with pytest.raises(ValueError, match="part of the train batch on .* cannot fit: 1.69 KiB are free there"):
        asked.build_algo()


@pytest.mark.parametrize(
    ("num_devices", "error", "says"),
    [(2, ItFitsError, None), (1, ValueError, r"train batch.*3.38 KiB = .* cannot fit: 1.69 KiB are free there")],
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
    # A train batch has 54 KiB: one in six of them kept would be seen.
    algo = config(env, num_envs=32, batch=1024).build_algo()
    mib, arrays, containers = growth(lambda i: algo.train(), warm_up=60, calls=200, mib_of_noise=1.0)
    algo.stop()
    assert mib <= 1.0
    assert arrays <= 0
    assert containers < 140, "one per iteration"


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
    mib, arrays, containers = growth(lambda i: algo.train(), warm_up=60, calls=200, mib_of_noise=1.0)
    algo.stop()
    assert mib <= 1.0
    assert arrays <= 0
    assert containers < 140, "one per iteration"


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
def test_an_algorithm_without_references_is_gone_with_its_programs(env):
    maps = []
    for num_envs in (3, 5):
        algo = config(env, num_envs=num_envs, batch=30).build_algo()
        algo.train()
        parts = [weakref.ref(part) for part in (algo, algo.driver, algo.learner)]
        with_programs = num_maps()
        # Not stopped: forgotten, as in a notebook whose cell runs again.
        del algo
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

    mib, arrays, containers = growth(step, warm_up=60, calls=200, mib_of_noise=1.0)
    assert mib > 1.0
    assert arrays == 140
    assert containers >= 140
