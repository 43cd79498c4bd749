"""Exported policies: the same actions from a folder of data, and clear errors for damaged ones."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tracemalloc

import gymnasium as gym
import jax
import numpy as np
import policy_cases as cases
import pytest

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.policy import load_exported

LOGITS = Columns.ACTION_DIST_INPUTS


@pytest.fixture(scope="module")
def policy():
    return cases.policy(action_space=gym.spaces.Box(-2.0, 4.0, (2,), np.float32))


@pytest.fixture(scope="module")
def folder(policy, tmp_path_factory):
    return policy.export(tmp_path_factory.mktemp("exported") / "policy")


@pytest.fixture(scope="module")
def exported(folder):
    return load_exported(folder)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_episode_with_history_is_the_same(policy, exported, num_envs):
    rows = cases.observations(12, num_envs)
    resets = np.random.default_rng(1).random((12, num_envs)) < 0.2
    states = [None, None]
    for t in range(12):
        results = []
        for i, one in enumerate((policy, exported)):
            actions, states[i], outputs = one.compute_actions(
                rows[t], states[i], prev_rewards=np.full(num_envs, 0.1 * t), reset=resets[t]
            )
            results.append({**outputs, "for_env": actions})
        assert set(results[0]) == set(results[1])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), *results)
    singles = [one.compute_single_action(rows[0, 0], prev_reward=1.0) for one in (policy, exported)]
    np.testing.assert_allclose(singles[0][0], singles[1][0], atol=1e-6)
    assert singles[1][0].shape == (2,)
    assert resets[1:].any()


def test_a_recurrent_state_is_part_of_it(tmp_path):
    policy = cases.policy(cases.Memory, connectors=[])
    exported = load_exported(policy.export(tmp_path / "policy"))
    rows = np.ones((2, 3), np.float32)
    _, state, outputs = exported.compute_actions(rows)
    np.testing.assert_array_equal(outputs[Columns.STATE_OUT]["sum"], np.full((2, 3), 1.5))
    _, state, outputs = exported.compute_actions(rows, state, reset=[False, True])
    np.testing.assert_array_equal(outputs[Columns.STATE_OUT]["sum"], [[2.5] * 3, [1.5] * 3])


def test_nested_spaces_are_the_same(tmp_path):
    space = gym.spaces.Dict(
        {"move": gym.spaces.Discrete(3, start=2), "at": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}
    )
    policy = cases.policy(cases.Nested, action_space=space, connectors=[])
    exported = load_exported(policy.export(tmp_path / "policy"))
    rows = cases.observations(1, 4)[0]
    expected, actions = policy.compute_actions(rows)[0], exported.compute_actions(rows)[0]
    assert set(actions) == {"move", "at"} and exported.action_space == space
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actions, expected)
    assert all(space.contains(jax.tree.map(lambda x, i=i: x[i], actions)) for i in range(4))


def test_exploring_programs_take_keys(policy, tmp_path):
    exported = load_exported(policy.export(tmp_path / "policy", explore=True, platforms=["cpu"]))
    assert exported.platforms == ("cpu",) and exported.explore
    rows = cases.observations(1, 8)[0]
    first, second = (exported.compute_actions(rows)[0] for _ in range(2))
    assert (first != second).any()
    key = jax.random.key(3)
    np.testing.assert_allclose(
        exported.compute_actions(rows, key=key)[0], policy.compute_actions(rows, explore=True, key=key)[0], atol=1e-6
    )
    with pytest.raises(ValueError, match=r"explore=False: this policy was exported with explore=True"):
        exported.compute_actions(rows, explore=False)


@pytest.mark.parametrize(("noisy", "masked"), [(True, False), (False, True)])
def test_exploring_q_networks_draw_the_same_for_any_number_of_environments(noisy, masked, tmp_path):
    """Epsilon-greedy, and with noise for each row."""
    space = gym.spaces.Box(-2.0, 2.0, (3,), np.float32)
    if masked:
        space = gym.spaces.Dict(action_mask=gym.spaces.Box(0, 1, (4,), np.int8), observations=space)
    module = functools.partial(DefaultDQNRLModule, model_config={"fcnet_hiddens": [4], "noisy": noisy})
    settings = {"default_policy": {"epsilon": np.float32(0.6)}}
    policy = cases.policy(module, gym.spaces.Discrete(4), [], observation_space=space, settings=settings)
    exported = load_exported(policy.export(tmp_path / "policy", explore=True, platforms=["cpu"]))
    for num_envs in (1, 2, 5):
        rows = cases.observations(1, num_envs)[0]
        if masked:
            rows = {"action_mask": np.tile(np.int8([0, 1, 1, 0]), (num_envs, 1)), "observations": rows}
        for key in jax.random.split(jax.random.key(num_envs), 6):
            actions = exported.compute_actions(rows, key=key)[0]
            np.testing.assert_array_equal(actions, policy.compute_actions(rows, explore=True, key=key)[0])


def test_an_export_of_before_there_were_checksums_is_read(folder, exported, tmp_path):
    shutil.copytree(folder, tmp_path / "policy")
    file = tmp_path / "policy" / "policy.json"
    about = json.loads(file.read_text())
    assert about.pop("program_sha256")
    file.write_text(json.dumps(about))
    rows = cases.observations(1, 2)[0]
    actions = load_exported(tmp_path / "policy").compute_actions(rows)[0]
    np.testing.assert_array_equal(actions, exported.compute_actions(rows)[0])


def test_a_fixed_batch_size(tmp_path):
    policy = cases.policy(cases.KnowsItsBatch, connectors=[])
    with pytest.raises(Exception) as error:  # noqa: PT011 - whatever JAX raises: the note is what matters
        policy.export(tmp_path / "policy")
    assert "policy.export(path, batch_size=1)" in "".join(error.value.__notes__)
    exported = load_exported(policy.export(tmp_path / "policy", batch_size=2))
    assert exported.batch_size == 2
    exported.compute_actions(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"acts for exactly 2 environment\(s\) .*at a time, got 3"):
        exported.compute_actions(np.zeros((3, 3)))


def test_only_what_acting_reads_is_written(tmp_path):
    policy = cases.policy(cases.WithCritic, connectors=[])
    policy.export(tmp_path / "policy")
    about = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert [weight["name"] for weight in about["weights"]] == [
        "params/default_policy/head/bias",
        "params/default_policy/head/kernel",
    ]
    assert about["explore"] is False and about["platforms"] == ["cpu", "cuda", "tpu"]


def test_running_it_needs_nothing_of_the_policy(folder):
    code = f"""
import sys
import numpy as np
from jaxrl_stack.policy.export import load_exported
policy = load_exported({folder!r})
action, state, _ = policy.compute_single_action(np.zeros(3))
policy.compute_single_action(np.ones(3), state, prev_reward=1.0)
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert loaded & {"ray", "gymnax", "flax", "optax", "orbax", "chex", "jaxrl_stack.core", "jaxrl_stack.env"} == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(format="onnx"), "export(format='onnx'): unknown format. Choose from ['stablehlo']."),
        (dict(format="pickle"), "Choose from ['stablehlo']"),
    ],
)
def test_other_formats_are_refused(policy, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.export(tmp_path / "policy", **arguments)
    assert not (tmp_path / "policy").exists()


def test_exports_replace_exports_and_nothing_else(policy, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no exported policy"):
        policy.export(tmp_path / "mine")
    path = policy.export(tmp_path / "policy", platforms=["cpu"], batch_size=1)
    assert policy.export(tmp_path / "policy", platforms=["cpu"], batch_size=2) == path
    assert load_exported(path).batch_size == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "policy"]


def test_states_and_shapes_are_checked(exported):
    with pytest.raises(ValueError, match=r"observations has shape \(2, 4\)"):
        exported.compute_actions(np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"1 observation\(s\) and a state of 2"):
        exported.compute_actions(np.zeros((1, 3)), exported.initial_state(2))
    with pytest.raises(ValueError, match="1 or more environments"):
        exported.initial_state(0)
    assert "ExportedPolicy(Policy(Net" in repr(exported)


def damaged(name):
    def change(folder):
        file = folder / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return change


def flipped(name, position):
    def change(folder):
        content = bytearray((folder / name).read_bytes())
        content[position] ^= 1
        (folder / name).write_bytes(content)

    return change


def rewritten(**values):
    def change(folder):
        file = folder / "policy.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def compressed(folder):
    with np.load(folder / "arrays.npz") as stored:
        arrays = dict(stored)
    np.savez_compressed(folder / "arrays.npz", **arrays)


HUGE = {
    **{"type": "Box", "low": 0.0, "high": 1.0, "shape": [4096, 4097], "dtype": "float32"},
    **{"bounded_below": True, "bounded_above": True},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged("policy.json"), "policy.json is damaged"),
        (damaged("program.jax_export"), "checksum of program.jax_export differs"),
        (flipped("program.jax_export", 100), "checksum of program.jax_export differs"),
        (flipped("program.jax_export", -9), "checksum of program.jax_export differs"),
        (rewritten(program_sha256="0"), "checksum of program.jax_export differs"),
        (damaged("arrays.npz"), "is damaged"),
        (rewritten(format_version="9"), "has version '9'; this release reads '1.0'"),
        (rewritten(weights=[]), "the stored weights do not match the arguments of program.jax_export in"),
        (rewritten(state=[]), "the stored states do not match the arguments of program.jax_export in"),
        (rewritten(state=[{"shape": [10**9], "dtype": "float32", "is_batched": True}]), "is damaged"),
        (rewritten(observation_space={"type": "os.system"}), "is damaged"),
        (lambda folder: (folder / "arrays.npz").unlink(), "is damaged"),
        (lambda folder: (folder / "policy.json").write_text("[" * 100_000), "policy.json is damaged"),
        (rewritten(observation_space=HUGE), "the arrays of the spaces in policy.json have 16,7"),
        (
            rewritten(action_space={"type": "Tuple", "spaces": [HUGE] * 100}),
            "the arrays of the spaces in policy.json have 1,678,",
        ),
        (
            rewritten(action_space={"type": "MultiBinary", "n": -1}),
            "has the shape -1. Use an integer or a list of integers of at least 0. Export",
        ),
        (compressed, "but export() compresses no array"),
    ],
)
def test_damaged_folders_are_named(folder, tmp_path, change, message):
    shutil.copytree(folder, tmp_path / "policy")
    change(tmp_path / "policy")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=re.escape(message)):
            load_exported(tmp_path / "policy")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_pickles_are_not_read(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "policy")
    with np.load(tmp_path / "policy" / "arrays.npz") as stored:
        arrays = {name: np.array([print], object) for name in stored.files}
    np.savez(tmp_path / "policy" / "arrays.npz", **arrays)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_exported(tmp_path / "policy")
    with pytest.raises(FileNotFoundError, match="No exported policy at"):
        load_exported(tmp_path)
