"""Inspections of iterations: numbers of minibatches worked out by hand, and training that they leave as it was."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack import cli
from jaxrl_stack.algorithms.ppo import PPO
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.minibatch_records import STEP, _norms
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.rewind.inspection import Inspection, MinibatchNumbers, inspect
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.tables import Table
from tests import programs
from tests.execution import test_finite_check

HALF = programs.BATCH // 2


class ValuesOnly(PPOLearner):
    """Squared errors of the values."""

    loss_is_linear_in_means = True

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        values = self.module[module_id].compute_values(batch)
        return self.masked_mean(jnp.square(values - batch[Columns.VALUE_TARGETS]), batch)


class Nonlinear(ValuesOnly):
    loss_is_linear_in_means = False


class PlainMean(ValuesOnly):
    """A loss whose second term is not one of `masked_mean`s, whatever the class says."""

    loss_is_linear_in_means = True

    def compute_loss_for_module(self, *, batch, **kwargs):
        loss = super().compute_loss_for_module(batch=batch, **kwargs)
        return loss + jnp.mean(jnp.square(batch[Columns.VALUE_TARGETS]))


class NegativeNaN(ValuesOnly):
    """A loss of ``inf - inf`` in rows whose cart is not in the center: NaN with a sign bit on x86."""

    loss_is_linear_in_means = True

    def compute_loss_for_module(self, *, batch, **kwargs):
        loss = super().compute_loss_for_module(batch=batch, **kwargs)
        position, velocity = batch[Columns.OBS][:, 0], batch[Columns.OBS][:, 1]
        # The compiler would replace inf - inf by a constant NaN without a sign bit.
        size = jnp.where(jnp.abs(position) > 0.02, jnp.inf, 1.0) * jnp.exp(velocity)
        return loss + self.masked_mean(size - size, batch)


class UpdateTwice(OnPolicyStep):
    def __call__(self, state, place):
        state, experience = place.sample(state, self._samples)
        state, _ = place.update(state, experience, self._plan)
        state, learned = place.update(state, experience, self._plan)
        return place.publish(state), learned


class TwicePPO(PPO):
    training_step_class = UpdateTwice


def two_agents():
    config = programs.ppo(multi_agent.MultiAgentCartPole)
    config.environment(env_config={"num_agents": 2, "max_steps": 20})
    return config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, *_, **__: f"p{agent_id}"[-2:])


def weights_of(algo):
    return jax.tree.map(np.asarray, algo.get_weights())


def assert_same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, weights_of(one), weights_of(other))


def test_losses_and_gradients_are_those_worked_out_by_hand():
    config = programs.ppo().learners(learner_class=ValuesOnly).training(grad_clip=0.5)
    algo = config.build_algo()
    algo.train()
    pure, learner = algo.driver.learner.pure, algo.driver.learner
    before = jax.tree.map(jnp.copy, (learner.state, algo.driver.shards.state))
    params, rest = before[0].params, before[0].rest

    inspection = inspect(algo, num_rows=HALF)
    first, block = inspection.minibatch(0), algo.driver.sampled_again(learner.placed_settings(), before)
    assert len(first.rows) == HALF and first.epoch == 0 and inspection.minibatch(3).epoch == 1

    def errors(params, rows):
        module = pure.bind(params, rest)[DEFAULT_MODULE_ID]
        obs = jnp.stack([row["obs"] for row in rows])
        targets = jnp.stack([row["value_targets"] for row in rows])
        return jnp.square(module.compute_values({Columns.OBS: obs}) - targets)

    losses = [row["loss"] for row in first.rows]
    np.testing.assert_allclose(losses, errors(params, first.rows), rtol=1e-5)
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(np.mean(losses), first.metrics[DEFAULT_MODULE_ID]["total_loss"], rtol=1e-6)
    gradients = jax.grad(lambda params: jnp.mean(errors(params, first.rows)))(params)
    norms = {row["layer"]: row["gradient_norm"] for row in first.layers}
    for layer, norm in norms.items():
        own = [g for ref, g in gradients.items() if ref.rpartition("/")[0] == layer]
        np.testing.assert_allclose(norm, math.sqrt(sum(float(jnp.sum(g * g)) for g in own)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(first.gradient_norm, math.hypot(*norms.values()), rtol=1e-5)
    assert first.gradient_norm > 0.5 and first.applied_gradient_norm == pytest.approx(0.5, rel=1e-5)
    # Adam's first steps move each number by at most lr.
    assert all(0 <= row["relative_step"] < 0.01 for row in first.layers)
    for row in first.rows:
        np.testing.assert_array_equal(row["obs"], block[DEFAULT_MODULE_ID][Columns.OBS][0, row["step"], row["env"]])


LSTM = {"use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: programs.ppo("CartPole-v1"), id="ppo on the host"),
        pytest.param(lambda: programs.ppo(**LSTM), id="lstm"),
        pytest.param(programs.dqn, id="dqn"),
        pytest.param(two_agents, id="two agents"),
    ],
)
def test_an_inspected_iteration_trains_like_any_other(make):
    algo, other = make().build_algo(), make().build_algo()
    for one in (algo, other):
        one.train()
    inspection, result = inspect(algo, num_rows=2 * programs.BATCH), other.train()
    assert_same_bits(algo, other)
    assert not inspection.notes and algo.iteration == inspection.iteration == 2
    assert len(inspection.episodes) == result["env_runners"]["num_episodes"]
    last = inspection.minibatch(len(inspection.minibatches) - 1)
    for mid, metrics in last.metrics.items():
        own = [row["loss"] for row in last.rows if row["module"] == mid]
        assert metrics["total_loss"] == pytest.approx(result["learners"][mid]["total_loss"], rel=1e-5)
        assert np.mean(own) == pytest.approx(metrics["total_loss"], rel=1e-4)


@pytest.mark.parametrize(("learner", "words"), [(Nonlinear, "= False"), (PlainMean, "leave")])
def test_a_loss_without_shares_of_rows_is_named(learner, words):
    algo = programs.ppo("CartPole-v1").learners(learner_class=learner).build_algo()
    inspection = inspect(algo)
    (note,) = inspection.notes
    assert words in note and learner.__name__ in note
    assert (len(inspection.rows()) == 0) == (learner is Nonlinear) and len(inspection.minibatches) == 4


def test_rows_whose_loss_is_not_a_number_are_found():
    algo = programs.ppo().learners(learner_class=NegativeNaN).build_algo()
    inspection = inspect(algo, num_rows=3)
    first = inspection.minibatch(0)
    assert len(first.rows) == 3 and all(math.isnan(row["loss"]) and abs(row["obs"][0]) > 0.02 for row in first.rows)
    (note,) = inspection.notes
    assert "NaN, first in minibatch 0" in note


@pytest.mark.parametrize("env", [programs.CARTPOLE, "CartPole-v1"])
def test_a_diverged_iteration_that_stops_is_shown(env):
    algo = programs.ppo(env).learners(learner_class=NegativeNaN).debugging(check_nans=True).build_algo()
    inspection = inspect(algo, num_rows=3)
    assert inspection.iteration == 1 and len(inspection.minibatches) == 4 and math.isnan(inspection.rows()[0]["loss"])
    assert inspection.notes[0].startswith("The iteration stopped: Non-finite loss in module 'default_policy'")


def test_an_iteration_that_a_reward_stops_contains_only_its_own_minibatches():
    # The message repeats the calls since the last snapshot, which belong to earlier iterations.
    algo = test_finite_check.ppo("reward", 20).build_algo()
    for _ in range(2):
        algo.train()
    inspection = inspect(algo)
    assert inspection.iteration == 3 and len(inspection.minibatches) == 1
    assert inspection.notes[0].startswith("The iteration stopped: Environment 0 of 2 (Counts) returned a reward")


def test_an_iteration_without_updates_says_so():
    algo = programs.dqn("CartPole-v1").training(num_steps_sampled_before_learning_starts=10_000).build_algo()
    inspection = inspect(algo)
    assert len(inspection.minibatches) == len(inspection.rows()) == 0 and "only sampled" in str(inspection)
    with pytest.raises(IndexError, match="made no update"):
        inspection.minibatch(0)


def test_an_iteration_of_a_run_is_inspected_by_its_number(tmp_path, capsys):
    folder = tmp_path / "run"
    algo = programs.ppo().reporting(results_dir=str(folder)).build_algo()
    for _ in range(3):
        algo.train()
    algo.save_to_path(folder / "checkpoint_000003")
    algo.stop()
    run = Run.read(folder)
    inspection = run.inspect(2)
    assert inspection.minibatch(3).metrics[DEFAULT_MODULE_ID]["total_loss"] == pytest.approx(
        run.history["learners/default_policy/total_loss"][1], rel=1e-6
    )
    assert inspection.frames(0)[0].shape == (260, 400, 3)
    words = ["inspect", str(folder), "--iteration"]
    printed = json.loads(inspection.to_json())
    assert len(printed["minibatches"]) == 4 and len(printed["rows"]) == 20 and printed["episodes"]
    assert cli.main([*words, "2", "--rows", "3", "--out", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert "<h2>Layers</h2>" in page and "data:image/gif" in page
    assert cli.main([*words, "7"]) == 2 and "iteration 7 is not recorded" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- without training


def numbers(minibatch, *losses, step=0):
    rows = [
        {"module": "m", "minibatch": minibatch, "loss": loss, "env": i, "step": step} for i, loss in enumerate(losses)
    ]
    return MinibatchNumbers(minibatch, 0, minibatch, {"m": {"total_loss": 1.0}}, 2.0, 1.0, Table([]), Table(rows))


@pytest.mark.parametrize("size", [1e30, 1.0, 1e-30])
def test_norms_of_large_and_small_numbers_are_finite(size):
    norms = _norms(STEP, {"w": jnp.float32(size) * jnp.array([3.0, -4.0]), "empty": jnp.zeros(0)})
    np.testing.assert_allclose(norms[STEP, "w"], 5 * size, rtol=1e-6)
    assert norms[STEP, "empty"] == 0
    infinite = _norms(STEP, {"inf": jnp.array([jnp.inf, 1.0]), "nan": jnp.array([jnp.nan, 1.0])})
    assert math.isinf(infinite[STEP, "inf"]) and math.isnan(infinite[STEP, "nan"])


def test_each_row_is_listed_once_with_its_largest_loss():
    inspection = Inspection(4, "PPO <1>", [numbers(0, 3.0, 1.0), numbers(1, 2.0, 5.0)], [], 2, ["A note."])
    assert [(row["env"], row["minibatch"], row["loss"]) for row in inspection.rows()[:2]] == [(1, 1, 5.0), (0, 0, 3.0)]
    with pytest.raises(ValueError, match=r"num_rows=50"):
        inspection.rows(50)
    with pytest.raises(IndexError, match="0 to 1"):
        inspection.minibatch(2)
    assert "PPO &lt;1&gt;" in inspection._repr_html_() and "A note." in str(inspection)


def test_a_loss_that_is_not_a_number_comes_first():
    inspection = Inspection(1, "PPO", [numbers(0, 3.0, math.nan)], [], 2, [])
    assert inspection.rows(1)[0]["env"] == 1 and json.loads(inspection.to_json())["rows"][0]["loss"] is None
    assert "gradient norm nan, 1 after" in str(dataclasses.replace(numbers(0), gradient_norm=math.nan))


def test_a_page_does_not_hide_that_render_fails():
    def frames_of(index):
        raise ValueError("no image")

    inspection = Inspection(1, "Run", [], [{"return": 1.0}], 5, [], frames_of)
    with pytest.raises(ValueError, match="no image"):
        inspection.to_html()


def test_more_updates_than_planned_are_refused_by_name():
    config = programs.ppo()
    config.algo_class = TwicePPO
    with pytest.raises(
        ValueError, match=r"num_updates=1 .* made 2\. Set self\.num_updates = 2 in TrainingStep\.plan\(\)"
    ):
        inspect(config.build_algo())


def test_what_cannot_be_recorded_is_refused_by_name(fake_ray):
    with pytest.raises(ValueError, match="one of 8 members of a population.*debugging"):
        Run("seed_3", History(), origin={"num_members": 8}).inspect(1)
    with pytest.raises(TypeError, match="not a Inspection"):
        inspect(Inspection(1, "PPO", [], [], 1, []))
    algo = programs.ppo("CartPole-v1").env_runners(num_env_runners=1).build_algo()
    with pytest.raises(ValueError, match=r"num_env_runners=1.*env_runners\(num_env_runners=0\)"):
        inspect(algo)
    algo.stop()
