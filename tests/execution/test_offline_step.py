"""Training on recorded steps: every step once per pass, exactly resumed, on the devices and streamed."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.execution.streamed_data import StreamedInput
from jaxrl_stack.offline.offline_data import OfflineData
from tests.interrupted import at_every_line
from tests.pickled_by_value import pickled_by_value

BATCH = 16


def recorded(lengths=(5, 9, 1, 12, 7, 6), seed=0):
    """Pieces of so many steps: observation 0 is the number of the step among all, action whether 2 is positive."""
    n = sum(lengths) + len(lengths)
    ends = np.cumsum([length + 1 for length in lengths]) - 1
    is_final = np.zeros(n, bool)
    is_final[ends] = True
    obs = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    obs[:, 0] = 0
    obs[~is_final, 0] = np.arange(n - len(lengths))
    terminated = np.zeros(n, bool)
    terminated[ends[::2] - 1] = True
    columns = {
        Columns.OBS: obs,
        Columns.ACTIONS: ((obs[:, 2] > 0) & ~is_final).astype(np.int32),
        Columns.REWARDS: np.where(is_final, 0, obs[:, 1]).astype(np.float32),
        Columns.TERMINATEDS: terminated,
        Columns.TRUNCATEDS: np.zeros(n, bool),
    }
    episode = np.repeat(np.arange(len(lengths)), [length + 1 for length in lengths]).astype(np.int32)
    t = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    return Steps(columns, is_final, episode, t, [str(i) for i in range(len(lengths))])


class Piece(NamedTuple):
    number: int
    num_rows: int
    num_steps: int
    input: int


class InMemory:
    """A data set whose pieces are there already; every read is noted."""

    def __init__(self, *inputs, weights=None):
        self.parts = [part for own in inputs for part in own]
        of_input = [i for i, own in enumerate(inputs) for _ in own]
        named = zip(self.parts, of_input, strict=True)
        self.pieces = [Piece(n, part.num_rows, part.num_steps, i) for n, (part, i) in enumerate(named)]
        self.weights = weights
        self.read_pieces = []

    def read(self, piece):
        self.read_pieces.append(piece.number)
        return self.parts[piece.number]


ONE = [recorded()]
PARTS = [ONE[0].rows(0, 6), ONE[0].rows(6, 18), ONE[0].rows(18, 31), ONE[0].rows(31, 46)]


class Given(OfflineData):
    """Opens what the class is told to."""

    dataset = InMemory(PARTS)

    def open(self, columns=None):
        return self.dataset


class Cloning(Learner):
    learns_from_sequences = True

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls()
        actions = distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = actions.logp(batch[Columns.ACTIONS])
        # How often each step was drawn.
        seen = jax.nn.one_hot(batch[Columns.OBS][..., 0].astype(int), NUM_STEPS)
        if Columns.LOSS_MASK in batch:
            seen = jnp.where(batch[Columns.LOSS_MASK][..., None], seen, 0)
        for i, number in enumerate(seen.reshape(-1, NUM_STEPS).sum(0)):
            self.metrics.log_value((module_id, f"seen_{i}"), number, reduce="sum")
        return -self.masked_mean(logp, batch)


NUM_STEPS = 40


class CloningStep(OfflineStep):
    pass


class Preparing(OfflineStep):
    columns = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
    prepared_from = (Columns.OBS, Columns.REWARDS)

    def prepare(self, module, columns, is_final, values):
        probe = jnp.ones((1, 4))
        now = module.forward_train({Columns.OBS: probe})[Columns.ACTION_DIST_INPUTS].sum()
        number = columns[Columns.OBS][:, 0]
        return {"number": jnp.where(is_final, 0, number), "weights": jnp.broadcast_to(now, number.shape)}


class CheckingLearner(Cloning):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        off = jnp.abs(batch["number"] - batch[Columns.OBS][..., 0]).max()
        self.metrics.log_value((module_id, "off"), off, reduce="max")
        self.metrics.log_value((module_id, "weights"), batch["weights"][0])
        following = batch[Columns.NEXT_OBS][..., 0]
        is_next = (following == batch[Columns.OBS][..., 0] + 1) | (following == 0)
        self.metrics.log_value((module_id, "next"), is_next.all().astype(float), reduce="min")
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class CloningAlgorithm(PPO):
    training_step_class = CloningStep


class PreparingAlgorithm(PPO):
    training_step_class = Preparing


def config(algo_class=CloningAlgorithm, **data):
    space = gym.spaces.Box(-np.inf, np.inf, (4,))
    learner_class = CheckingLearner if algo_class is PreparingAlgorithm else Cloning
    return (
        PPOConfig(algo_class=algo_class)
        .environment(observation_space=space, action_space=gym.spaces.Discrete(2))
        .learners(learner_class=learner_class, add_default_connectors_to_learner_pipeline=False)
        .training(train_batch_size_per_learner=BATCH, minibatch_size=None, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .offline_data(**{"offline_data_class": Given, "dataset_num_iters_per_learner": 1, **data})
        .debugging(seed=3)
    )


def seen(result):
    """How often each step was in the minibatch."""
    learned = result["learners"]["default_policy"]
    return np.array([learned[f"seen_{i}"] for i in range(NUM_STEPS)])


BOTH = pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])


@BOTH
def test_every_step_comes_once_per_pass_also_after_a_resume_in_the_middle(resident, tmp_path):
    # Windows of two pieces, of which one is ended by the end of a pass.
    asked = config(PreparingAlgorithm, keep_resident=resident, max_resident_bytes=1600)
    algo = asked.build_algo()
    counts, weights = [], []
    for i in range(5):
        result = algo.train()
        counts.append(seen(result))
        weights.append(result["learners"]["default_policy"]["weights"])
        assert result["learners"]["default_policy"]["off"] == 0.0
        assert result["learners"]["default_policy"]["next"] == 1.0
        assert result["num_env_steps_sampled_lifetime"] == BATCH * (i + 1)
        if i == 0:
            path = algo.save_to_path(tmp_path / "saved")
    # 80 steps are two passes over 40; the third minibatch has the last steps of the first pass.
    np.testing.assert_array_equal(sum(counts), 2)
    assert max(sum(counts[:2])) == 1
    if resident:
        assert weights[0] == weights[1] == weights[2] != weights[3] == weights[4]
    restored = PreparingAlgorithm.from_checkpoint(path, config=asked)
    for expected, of_weights in zip(counts[1:], weights[1:], strict=True):
        result = restored.train()
        np.testing.assert_array_equal(seen(result), expected)
        assert result["learners"]["default_policy"]["weights"] == of_weights
    jax.tree.map(np.testing.assert_array_equal, restored.get_weights(), algo.get_weights())
    assert algo.driver.num_updates == 5
    algo.stop()
    restored.stop()


@BOTH
def test_a_training_step_is_a_pass_unless_it_is_told_otherwise(resident):
    algo = config(keep_resident=resident, dataset_num_iters_per_learner=None).training(lr=0.05).build_algo()
    losses = [algo.train()["learners"]["default_policy"]["total_loss"] for _ in range(20)]
    # 40 steps in minibatches of 16: the third one ends the pass and begins the next.
    assert algo.driver.num_updates == (60 if resident else 50)
    assert losses[-1] < 0.3 < losses[0]
    algo.stop()


@BOTH
def test_a_place_in_other_data_is_refused_and_the_other_path_unless_it_is_asked_for(resident, tmp_path, monkeypatch):
    algo = config(keep_resident=resident).build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    algo.stop()
    other = config(keep_resident=not resident).build_algo()
    other.restore_from_path(path)
    assert seen(other.train()).sum() == BATCH  # a new pass, as it was asked for
    other.stop()
    other = config().build_algo()
    if not resident:
        with pytest.raises(
            ValueError, match="data is resident now, but was streamed.*keep_resident=True to start a new pass"
        ):
            other.restore_from_path(path)
    monkeypatch.setattr(Given, "dataset", InMemory(PARTS[:1]))
    smaller = config(keep_resident=resident).build_algo()
    with pytest.raises(
        ValueError, match=r"offline_data\(input_=...\)( has 5| has no such position).*component='learner_group'"
    ):
        smaller.restore_from_path(path)
    for own in (other, smaller):
        own.stop()


@BOTH
def test_sequences_for_a_recurrent_module(resident):
    model = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    asked = config(keep_resident=resident, dataset_num_iters_per_learner=1).rl_module(model_config=model)
    # 40 steps in sequences of at most 4: 13 of them, in 4 a minibatch.
    algo = asked.build_algo()
    counts = sum(seen(algo.train()) for _ in range(13))
    np.testing.assert_array_equal(counts, 4)
    algo.stop()


@BOTH
def test_several_inputs_are_drawn_by_weight(resident, monkeypatch):
    two = InMemory(PARTS[:2], PARTS[2:], weights=[0.25, 0.75])
    monkeypatch.setattr(Given, "dataset", two)
    algo = config(keep_resident=resident).build_algo()
    counts = [seen(algo.train()) for _ in range(30)]
    of_first = sum(own[:15].sum() for own in counts) / (30 * BATCH)
    assert 0.19 < of_first < 0.31
    assert all(own.sum() == BATCH for own in counts)
    total = sum(counts)
    # Of each input every step as often as any other of it.
    assert total[:15].max() - total[:15].min() <= 1 >= total[15:].max() - total[15:].min()
    algo.stop()


@pytest.mark.parametrize("budget", [None, 1500], ids=["replicated", "divided"])
def test_two_devices_see_every_step_once(budget, tmp_path):
    asked = config(PreparingAlgorithm, keep_resident=True, max_resident_bytes=budget).learners(num_cpus_per_learner=2)
    algo = asked.training(train_batch_size_per_learner=20).build_algo()
    assert algo.driver.step.source.is_divided == (budget is not None)
    first = algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    second = algo.train()
    assert second["learners"]["default_policy"]["off"] == 0.0
    if budget is None:
        np.testing.assert_array_equal(seen(first) + seen(second), 1)
    algo.restore_from_path(path)
    np.testing.assert_array_equal(seen(algo.train()), seen(second))
    algo.stop()


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        ((2, 1500), (2, None), "divided among 2 devices, but here the data is copied as a whole to 2 devices. Set off"),
        ((2, 1500), (1, None), "divided among 2 devices, but here the data is copied as a whole to 1 device. Use 2 de"),
        ((2, None), (2, 1500), "copied as a whole to 2 devices, but here the data is divided among 2 devices. Set off"),
        ((2, 1000), (3, 1000), "divided among 2 devices, but here the data is divided among 3 devices. Use 2 devices,"),
    ],
    ids=["other-budget", "other-budget-and-devices", "to-copy", "other-devices"],
)
def test_the_error_about_divided_data_names_the_settings_that_restore_its_state(saved, here, words):
    def built(num_devices, **data):
        asked = config(**{"keep_resident": True, **data}).learners(num_cpus_per_learner=num_devices)
        return asked.training(train_batch_size_per_learner=12).build_algo()

    first, second = (built(number, max_resident_bytes=budget) for number, budget in (saved, here))
    state = first.driver.step.get_state()
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        second.driver.step.set_state(state)
    remedy = str(error.value).split(". ")[1]
    devices = re.search(r"Use (\d) devices", remedy)
    settings = dict(re.findall(r"(\w+)=(\w+)", remedy.partition(" or restore")[0]))
    budget = int(settings.get("max_resident_bytes", here[1] or 0))
    third = built(int(devices[1]) if devices else here[0], max_resident_bytes=budget)
    third.driver.step.set_state(state)
    for algo in (first, second, third):
        algo.stop()


@pytest.fixture
def own_classes(ray_session):
    """Actors get the classes of this file by value."""
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


@pytest.mark.usefixtures("own_classes")
@BOTH
def test_two_learner_actors_learn_from_every_step_once(resident, tmp_path):
    asked = config(keep_resident=resident).training(train_batch_size_per_learner=10).learners(num_learners=2)
    algo = asked.build_algo()
    first = algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    second = algo.train()
    np.testing.assert_array_equal(seen(first) + seen(second), 1)
    algo.restore_from_path(path)
    np.testing.assert_array_equal(seen(algo.train()), seen(second))
    assert algo.num_env_steps_sampled_lifetime == 40
    algo.stop()


def test_members_of_a_population_share_the_data(tmp_path):
    asked = config(PreparingAlgorithm, keep_resident=True, dataset_num_iters_per_learner=2)
    asked.evaluation(evaluation_interval=2, evaluation_config={"env": "gymnax/CartPole-v1"})
    members = [{"seed": seed, "settings": {"lr": lr}} for seed, lr in ((3, 0.01), (3, 0.1), (5, 0.01))]
    # Members in two blocks: the data is on the device once.
    population = asked.build_population(members=members, members_at_once=2)
    alone = [asked.copy().training(lr=lr).debugging(seed=n) for n, lr in ((3, 0.01), (3, 0.1), (5, 0.01))]
    for _ in range(2):
        results = population.train()["members"]
    algo, expected = alone[0].build_algo(), []
    for own in alone:
        assert algo.reset(own)
        expected.append([algo.train() for _ in range(2)][-1])
    for result, own in zip(results, expected, strict=True):
        for name in ("total_loss", "weights"):
            learned = [r["learners"]["default_policy"][name] for r in (result, own)]
            assert learned[0] == pytest.approx(learned[1], rel=1e-4)
        assert result["evaluation"]["env_runners"]["num_episodes"] == 10
        np.testing.assert_array_equal(seen(result), seen(own))
        assert result["num_env_steps_sampled_lifetime"] == 4 * BATCH
    assert (
        results[0]["learners"]["default_policy"]["total_loss"] != results[2]["learners"]["default_policy"]["total_loss"]
    )
    orders = [seen(result).tolist() for result in results]
    assert orders[0] == orders[1] != orders[2]
    path = population.save_to_path(tmp_path / "saved")
    assert population.driver.states().kept.columns is None  # the data is in no checkpoint
    after = seen(population.train()["members"][0])
    population.restore_from_path(path)
    np.testing.assert_array_equal(seen(population.train()["members"][0]), after)
    population.driver.copy([2], [0])
    copied = population.train()["members"]
    assert seen(copied[0]).tolist() != seen(copied[2]).tolist()
    one = population.member(1)
    assert seen(one.train()).sum() == BATCH
    for own in (population, one, algo):
        own.stop()
    with pytest.raises(ValueError, match=r"this data is streamed. Set offline_data\(keep_resident=True\)"):
        asked.offline_data(keep_resident=False).build_population(members=members)


# -------------------------------------------------------------------------------------------------------- Ctrl-C


def streamed():
    """Windows of a piece each, of 5 steps."""
    items = ItemForm((Columns.OBS,), None, 0, None)
    pieces = [recorded((5,), seed) for seed in range(4)]
    return StreamedInput(pieces, lambda piece: piece, items, window_bytes=1, seed=3, number=0)


def with_targets(steps):
    return {"targets": steps.columns[Columns.OBS][:, 1].copy()}


def test_ctrl_c_while_a_window_is_read_or_prepared_loses_a_minibatch_at_most():
    def begun():
        source = streamed()
        list(source.draw(4, with_targets))
        return source

    # This minibatch begins in the first window and ends in the second one.
    for source in at_every_line(begun, lambda own: list(own.draw(4, with_targets)), "execution/streamed_data.py"):
        restored = streamed()
        restored.set_state(source.get_state())
        for own in (source, restored):
            num_items = 4
            while own.passes == 0:
                parts = list(own.draw(2, with_targets))
                for part in parts:
                    np.testing.assert_array_equal(part["targets"], part[Columns.OBS][:, 1])
                num_items += sum(len(part["targets"]) for part in parts)
            assert num_items >= 20 - 4
            own.stop()
