"""What users may override of how recorded data is read, and every setting of it."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.datasets.table_view import TableView
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.offline.offline_prelearner import SCHEMA, OfflinePreLearner, rows_of

SPACES = (gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Discrete(2))


class Piece(NamedTuple):
    number: int
    num_rows: int
    num_steps: int
    input: int = 0


def steps(number, lengths=(3, 2)):
    n = sum(lengths) + len(lengths)
    is_final = np.zeros(n, bool)
    is_final[np.cumsum([length + 1 for length in lengths]) - 1] = True
    obs = np.stack([np.full(n, number), np.arange(n)], axis=-1).astype(np.float32)
    ends = np.roll(is_final, -1)
    columns = {
        Columns.OBS: obs,
        Columns.ACTIONS: np.zeros(n, np.int32),
        Columns.REWARDS: np.where(is_final, 0, 1).astype(np.float32),
        Columns.TERMINATEDS: ends,
        Columns.TRUNCATEDS: np.zeros(n, bool),
        Columns.ACTION_LOGP: np.where(is_final, 0, -0.5).astype(np.float32),
    }
    episode = np.repeat(np.arange(len(lengths)), [length + 1 for length in lengths]).astype(np.int32)
    t = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    return Steps(columns, is_final, episode, t, [f"{number}-{i}" for i in range(len(lengths))])


class InMemory:
    weights = None

    def __init__(self, number=3):
        self.parts = [steps(i) for i in range(number)]
        self.pieces = [Piece(i, part.num_rows, part.num_steps) for i, part in enumerate(self.parts)]
        self.num_reads = 0

    def read(self, piece):
        self.num_reads += 1
        return self.parts[piece.number]


class Given(OfflineData):
    def open(self, columns=None):
        return InMemory()


class Cloning(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.metrics.log_value((module_id, "second"), batch[Columns.OBS][:, 1].mean())
        logp = self.module[module_id].get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return -logp.logp(batch[Columns.ACTIONS]).mean()


class CloningAlgorithm(PPO):
    training_step_class = OfflineStep


def config(**data):
    return (
        PPOConfig(algo_class=CloningAlgorithm)
        .environment(observation_space=SPACES[0], action_space=SPACES[1])
        .learners(learner_class=Cloning, add_default_connectors_to_learner_pipeline=False)
        .training(train_batch_size_per_learner=5, minibatch_size=None, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .offline_data(**{"offline_data_class": Given, **data})
    )


def test_rows_become_the_episodes_that_they_are_of():
    rows = rows_of(steps(0), SCHEMA)
    np.testing.assert_array_equal(rows[Columns.NEXT_OBS][:, 1], [1, 2, 3, 5, 6])
    prelearner = OfflinePreLearner(config=config(), spaces=SPACES)
    first, second = prelearner._map_to_episodes(rows)["episodes"]
    assert (len(first), len(second), first.id_, second.id_) == (3, 2, "0-0", "0-1")
    assert first.is_terminated and first.get_extra_model_outputs(Columns.ACTION_LOGP)[0] == -0.5
    again = prelearner.steps(rows)
    for name, column in steps(0).columns.items():
        np.testing.assert_array_equal(again.columns[name], column)
    np.testing.assert_array_equal(again.is_final, steps(0).is_final)
    # Without ids every row is of an episode of its own; a batch is ready for a learner.
    assert prelearner._map_to_episodes({n: x for n, x in rows.items() if n != Columns.T})["episodes"][0].id_ == "0-0"
    batch = prelearner(rows)
    assert batch["default_policy/obs"].shape == (5, 2) and batch["default_policy/actions"].shape == (5,)


def test_a_data_set_is_looked_at_as_a_table():
    class Table(TableView, InMemory):
        def read(self, piece):
            return InMemory.read(self, piece)

    table = Table()
    table.pieces[1] = table.pieces[1]._replace(num_steps=None)
    assert (table.count(), table.num_reads) == (15, 1)
    rows = table.take_batch(7)
    assert {len(column) for column in rows.values()} == {7} and table.num_reads == 3
    np.testing.assert_array_equal(rows[Columns.OBS][:, 0], [0] * 5 + [1] * 2)
    np.testing.assert_array_equal(rows[Columns.T], [0, 1, 2, 0, 1, 0, 1])
    assert len(table.take_batch(100)[Columns.T]) == 15
    assert table.columns() == list(rows) == table.schema().names
    assert table.schema().field(Columns.OBS).type == pa.list_(pa.float32())
    assert table.schema().field(Columns.EPS_ID).type == pa.string()
    with pytest.raises(ValueError, match="at least one row"):
        table.take_batch(0)


def test_other_names_and_single_rows():
    schema = {Columns.OBS: "o_t", Columns.NEXT_OBS: "o_tp1"}
    prelearner = OfflinePreLearner(config=config(input_read_schema=schema), spaces=SPACES)
    rows = rows_of(steps(0), SCHEMA | schema)
    del rows[Columns.EPS_ID]
    episodes = prelearner._map_to_episodes(rows)["episodes"]
    assert [len(episode) for episode in episodes] == [1] * 5
    assert [episode.is_terminated for episode in episodes] == [False, False, True, False, True]


def test_batches_come_in_order_and_again():
    data = Given(config())
    firsts = [data.sample(4)["default_policy"][Columns.OBS] for _ in range(8)]
    np.testing.assert_array_equal(np.concatenate(firsts)[:15, 0], np.repeat([0, 1, 2], 5))
    np.testing.assert_array_equal(np.concatenate(firsts)[15:20, 0], 0)
    even, odd = data.sample(4, return_iterator=True, num_shards=2)
    np.testing.assert_array_equal(next(even)["default_policy"][Columns.OBS], firsts[0])
    np.testing.assert_array_equal(next(odd)["default_policy"][Columns.OBS], firsts[1])


class Shifting(OfflinePreLearner):
    """Adds 100 to what it sees, and notes how many rows that is at a time."""

    sizes: list[int] = []

    def _map_to_episodes(self, batch, to_numpy=False, **kwargs):
        self.sizes.append(len(batch[Columns.REWARDS]))
        shifted = {name: batch[name] + 100 for name in (Columns.OBS, Columns.NEXT_OBS)}
        return super()._map_to_episodes({**batch, **shifted}, to_numpy, **kwargs)


def second(result):
    return result["learners"]["default_policy"]["second"]


@pytest.mark.parametrize(
    ("more", "sizes"),
    [({}, [5, 5, 5]), ({"input_read_batch_size": 2}, [3, 2] * 3), ({"input_read_sample_batches": True}, [5, 5, 5])],
)
def test_all_data_passes_a_prelearner_of_ones_own(more, sizes):
    Shifting.sizes.clear()
    algo = config(prelearner_class=Shifting, **more).build_algo()
    assert Shifting.sizes == sizes
    assert second(algo.train()) > 100
    algo.stop()


def test_with_materialize_mapped_data_false_every_pass_maps_anew():
    Shifting.sizes.clear()
    algo = config(prelearner_class=Shifting, materialize_mapped_data=False).build_algo()
    for _ in range(3):
        assert second(algo.train()) > 100
    algo.stop()
    assert len(Shifting.sizes) >= 9


def test_subclasses_set_attributes_themselves():
    class OfImages(OfflineData):
        def __init__(self, config):
            self.config, self.path, self.data = config, config.input_, InMemory()
            self.data_is_mapped = False

    class OfPixels(OfflinePreLearner):
        def __init__(self, config, learner, spaces, module_spec, **kwargs):
            self.config, (self.observation_space, self.action_space) = config, spaces

    assert OfImages(config()).num_steps == 15
    prelearner = OfPixels(config=config(), learner=None, spaces=SPACES, module_spec=None)
    assert prelearner(rows_of(steps(0), SCHEMA))["default_policy/obs"].shape == (5, 2)


class Buffer:
    """Draws the first episode, over and over."""

    def __init__(self, capacity, batch_size_B, times=1):
        self.arguments, self.times, self.episodes = (capacity, batch_size_B), times, []

    def add(self, episodes):
        self.episodes += episodes

    def sample(self, num_items, **kwargs):
        return self.episodes[:1] * self.times


def test_a_buffer_between_data_and_learner_draws_what_is_trained_on():
    asked = config(prelearner_class=OfflinePreLearner, prelearner_buffer_class=Buffer)
    data = Given(asked.offline_data(prelearner_buffer_kwargs={"times": 2}))
    (drawn,), _ = data.steps((Columns.OBS,), SPACES)
    assert drawn.num_pieces == 6 and drawn.num_steps == 18


class OwnSamples(Given):
    def sample(self, num_samples, **kwargs):
        obs = np.full((num_samples, 2), 7, np.float32)
        return {"default_policy": {Columns.OBS: obs, Columns.ACTIONS: np.ones(num_samples, np.int32)}}


def test_updates_are_made_from_what_an_own_sample_returns():
    algo = config(offline_data_class=OwnSamples).build_algo()
    assert second(algo.train()) == 7 and algo.driver.num_updates == 1
    algo.stop()


def test_materialized_data_is_read_once():
    counts = []
    for materialize in (False, True):
        asked = config(keep_resident=False, max_resident_bytes=1, materialize_data=materialize)
        algo = asked.build_algo()
        for _ in range(4):
            algo.train()
        algo.stop()
        counts.append(algo.driver.step.data.data.num_reads)
    assert counts[0] >= 12 and counts[1] == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"offline_data_class": None}, r"offline_data\(input_='sampler'\) names no data. Set input_ to a path"),
        ({"prelearner_class": type("Own", (OfflinePreLearner,), {"__call__": dict})}, r"Override _map_to_episodes\(\)"),
        ({"prelearner_class": type("No", (OfflinePreLearner,), {"steps": lambda *_: steps(0).rows(0, 0)})}, "no steps"),
    ],
    ids=["none", "call", "empty"],
)
def test_what_cannot_be_trained_on_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        config(keep_resident=True, **data).build_algo()


def test_missing_columns_and_other_shapes_are_named():
    data = Given(config())
    with pytest.raises(ValueError, match=r"needs \['vf_preds'\].*offline_data\(input_read_schema="):
        data.read(data.data.pieces[0], (Columns.OBS, Columns.VF_PREDS), SPACES)
    with pytest.raises(ValueError, match=r"'obs' has values of shape \(2,\).*environment\(observation_space"):
        data.read(data.data.pieces[0], (Columns.OBS,), (gym.spaces.Box(-1, 1, (3,)), SPACES[1]))
