"""npz files, HDF5 files in D4RL's layout, and data sets that Minari writes."""

from __future__ import annotations

import gc
import warnings

import gymnasium as gym
import h5py
import numpy as np
import pytest

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions


def read(*inputs, **options):
    return open_dataset([str(own) for own in inputs], options=ReadOptions(**options)).read_all()


def columns(**changes):
    """Three steps and a terminal end, two steps and a time limit, two steps without an end; observations count."""
    made = {
        "observations": np.arange(14.0).reshape(7, 2),
        "actions": np.linspace(-2, 2, 7)[:, None].astype(np.float32),
        "rewards": np.arange(7.0),
        "terminals": np.array([0, 0, 1, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 1, 0, 0], bool),
    }
    return {name: own for name, own in {**made, **changes}.items() if own is not None}


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, own in arrays.items():
            file.create_dataset(name, data=own)
    return path


FORMATS = pytest.mark.parametrize("form", [npz, hdf5])


@FORMATS
def test_a_step_whose_next_observation_is_not_known_is_the_final_row(tmp_path, form):
    steps = read(form(tmp_path / f"d.{form.__name__}", **columns()))
    assert steps.columns["obs"][:, 0].tolist() == [0, 2, 4, 4, 6, 8, 10, 12]
    assert steps.is_final.tolist() == [False, False, False, True, False, True, False, True]
    assert steps.columns["terminateds"].tolist() == [False, False, True] + [False] * 5
    assert steps.columns["truncateds"].tolist() == [False] * 4 + [True] + [False] * 3
    assert steps.columns["rewards"].tolist() == [0, 1, 2, 0, 3, 0, 5, 0]


@FORMATS
def test_next_observations_are_those_of_final_rows(tmp_path, form):
    after = columns()["observations"] + 2
    after[[2, 4, 6]] = 100
    steps = read(form(tmp_path / f"d.{form.__name__}", **columns(next_observations=after)))
    assert steps.num_steps == 7
    assert steps.columns["obs"][:, 0].tolist() == [0, 2, 4, 100, 6, 8, 100, 10, 12, 100]


def test_actions_of_environments_are_mapped_to_those_of_modules(tmp_path):
    file = hdf5(tmp_path / "d.hdf5", **columns())
    space = gym.spaces.Box(-2, 2, (1,))
    expected = columns()["actions"][[0, 1, 2]] / 2
    np.testing.assert_allclose(read(file, action_space=space).columns["actions"][:3], expected)
    as_they_are = read(file, action_space=space, normalize_actions=False).columns["actions"][:3]
    np.testing.assert_array_equal(as_they_are, expected * 2)
    with pytest.raises(BadDataError, match=r"row 0: The action \[-2.0\] is outside of Box"):
        read(file, action_space=gym.spaces.Box(-1, 1, (1,)))
    # npz files hold the module's, as tables do.
    with pytest.raises(
        BadDataError, match=r"row 0: The action \[-2.0\] is outside of \[-1, 1\].*normalize_actions=False"
    ):
        read(npz(tmp_path / "d.npz", **columns()), action_space=space)
    kept = read(npz(tmp_path / "d.npz", **columns()), action_space=space, normalize_actions=False)
    np.testing.assert_array_equal(kept.columns["actions"][:3], expected * 2)


def test_npz_has_columns_of_any_name_and_structure(tmp_path):
    arrays = {
        "obs/a": np.arange(6.0).reshape(3, 2),
        "obs/b/c": np.arange(3),
        "act": np.array([0, 1, 0]),
        "rewards": np.ones(3, np.float32),
        "terminateds": np.array([False, False, True]),
        "eps_id": np.array(["x", "x", "x"]),
        "logp": np.zeros(3),
    }
    steps = read(npz(tmp_path / "d.npz", **arrays), schema={"actions": "act"})
    assert steps.columns["obs"]["a"].shape == (4, 2) and steps.columns["obs"]["b"]["c"].tolist() == [0, 1, 2, 2]
    assert steps.episode_ids == ["x"] and steps.columns["logp"].dtype == np.float32
    with pytest.raises(BadDataError, match=r"\['actions'\] are missing"):
        read(tmp_path)


@FORMATS
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": None}, r"\['actions'\] are missing"),
        ({"rewards": np.zeros(6)}, "rewards has 6 entries, but the data has 7 steps"),
        (
            {"rewards": np.array([0, 1, 2, np.nan, 4, 5, 6])},
            "row 3: The column rewards has numbers that are not finite",
        ),
        ({"actions": np.array([b"a"] * 7)}, r"actions has dtype \|S1"),
        ({name: own[:0] for name, own in columns().items()}, "the files are empty"),
    ],
)
def test_bad_arrays_are_named(tmp_path, form, changes, message):
    file = form(tmp_path / f"d.{form.__name__}", **columns(**changes))
    with pytest.raises(BadDataError, match=message):
        read(file)


def test_no_objects_are_unpickled(tmp_path):
    with pytest.raises(BadDataError, match=r"object|O"):
        read(npz(tmp_path / "d.npz", **columns(rewards=np.array([None] * 7))))


def test_no_other_file_is_read(tmp_path):
    other = hdf5(tmp_path / "other.hdf5", **columns())
    file = hdf5(tmp_path / "d.hdf5", **columns(rewards=None))
    with h5py.File(file, "a") as target:
        target["rewards"] = h5py.ExternalLink(str(other), "rewards")
    with pytest.raises(BadDataError, match="rewards is missing, or stored in another file"):
        read(file)
    with h5py.File(file, "a") as target:
        del target["rewards"]
        target.create_dataset("rewards", (7,), "f8", external=[(str(other), 0, 56)])
    with pytest.raises(BadDataError, match="stored in another file"):
        read(file)


def test_an_array_that_is_not_there_takes_no_memory(tmp_path):
    file = hdf5(tmp_path / "d.hdf5", **columns(observations=None))
    with h5py.File(file, "a") as target:
        target.create_dataset("observations", (7, 1 << 28), "f8", chunks=(1, 1 << 10))
    with pytest.raises(BadDataError, match="needs .* bytes, but 0 are stored"):
        read(file)


# -------------------------------------------------------------------------------------------------------------- minari


class Odd(gym.Env):
    """Observations count in a dict and a tuple; actions are in a Box from 0 to 4."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(-99, 99, (2,)), "b": gym.spaces.Tuple((gym.spaces.Discrete(99), gym.spaces.Box(0, 9, ())))}
    )
    action_space = gym.spaces.Box(0, 4, (2,))
    spec = gym.envs.registration.EnvSpec("Odd-v0", entry_point="nowhere:Odd")

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), float(self.t), self.t == 3, False, {}

    def _obs(self):
        return {"a": np.full(2, self.t, np.float32), "b": (self.t, np.float32(0.5))}


@pytest.fixture
def minari_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import minari

        env = minari.DataCollector(Odd())
        for _ in range(2):
            env.reset()
            for t in range(3):
                env.step(np.full(2, t + 1, np.float32))
        env.create_dataset("toy/odd-v0", algorithm_name="counting", eval_env=gym.make("CartPole-v1").spec)
        env.close()
        del env
        gc.collect()  # its temporary folder goes with it, and it warns of that
    return tmp_path / "toy" / "odd-v0"


def test_a_data_set_of_minari_is_read(minari_set):
    data = open_dataset(str(minari_set), options=ReadOptions())
    assert (data.num_rows, data.num_steps) == (8, 6)
    assert data.info.observation_space == Odd.observation_space and data.info.action_space == Odd.action_space
    assert data.info.more == {"dataset_id": "toy/odd-v0"} and data.info.env_id == "Odd-v0"
    steps = data.read_all()
    assert steps.num_pieces == 2 and steps.columns["obs"]["a"][:, 0].tolist() == [0, 1, 2, 3] * 2
    assert steps.columns["obs"]["b"][0].tolist() == [0, 1, 2, 3] * 2
    assert steps.columns["actions"][:, 0].tolist() == [-0.5, 0, 0.5, 0] * 2
    assert steps.columns["terminateds"].tolist() == [False, False, True, False] * 2


def test_a_minari_set_that_contradicts_itself_is_refused(minari_set):
    with h5py.File(minari_set / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/terminations"][0] = True
    with pytest.raises(BadDataError, match="episode_1 terminates or is truncated in step 0, but has steps after it"):
        read(minari_set)
    with h5py.File(minari_set / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/actions"]
    with pytest.raises(BadDataError, match="episode_0/actions is missing"):
        read(minari_set)
