"""Shapes of training steps that are not the library's: each is one class, and both drivers run them unchanged."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layouts
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.plans import SampledUpdate, SamplePlan, plan_of
from jaxrl_stack.execution.training_step import TrainingStep
from jaxrl_stack.utils.devices import all_shards
from tests.pickled_by_value import pickled_by_value

NUM_STEPS, NUM_ENVS = 8, 2


def config(algo_class, env="CartPole-v1"):
    return (
        PPOConfig(algo_class=algo_class)
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .training(train_batch_size_per_learner=NUM_STEPS * NUM_ENVS, minibatch_size=8, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=1)
    )


# ------------------------------------------------------------------------------------------------------- asynchronous


class LaggingStep(TrainingStep):
    """Learns from what came in `LAG` training steps ago; what was sampled by weights too old is dropped."""

    LAG, MOST_UPDATES, MOST_LAGS = 2, 2, 400

    def plan(self, driver):
        self.num_env_steps = self.rows_per_update = NUM_STEPS * NUM_ENVS
        self._samples = driver.plan_samples(NUM_STEPS)
        sizes = {"num_epochs": 1, "minibatch_size": 8, "shuffle_batch_per_epoch": True}
        self._plan = driver.plan_update(self._samples, **sizes)

    def init_kept(self):
        # What came in lately, oldest first; on one device, steps that were dropped, and lags of what was learned from.
        lags = np.full((1, self.MOST_LAGS), -1, np.int32)
        return {"recent": (Experience(),) * self.LAG, "num_dropped": np.zeros(1, np.int32), "lags": lags}

    def __call__(self, state, place):
        state = place.request(state, self._samples)
        state, new = place.collect(state, self._samples, timeout_seconds=1.0)
        oldest, *others = state.kept["recent"]
        state = dataclasses.replace(state, kept={**state.kept, "recent": (*others, new)})
        learned = None
        for part in oldest.parts:
            experience = Experience((part,))
            lag = place.num_updates(state) - experience.versions.lowest
            is_fresh = lag <= self.MOST_UPDATES
            lags, num_dropped = state.kept["lags"], state.kept["num_dropped"]
            is_next = np.arange(self.MOST_LAGS) == (lags >= 0).sum()
            kept = {**state.kept, "lags": is_next * lag + ~is_next * lags}
            kept["num_dropped"] = num_dropped + (1 - is_fresh) * experience.num_agent_steps
            state = dataclasses.replace(state, kept=kept)
            learn = functools.partial(place.update, experience=experience, plan=self._plan)
            state, learned = place.repeat(learn, state, is_fresh * 1)
        return place.publish(state), learned

    def lags(self, algo):
        return [lag for lag in np.ravel(algo.driver.kept["lags"]).tolist() if lag >= 0]


class Lagging(PPO):
    training_step_class = LaggingStep


@pytest.fixture
def own_classes(ray_session):
    """Actors get the classes of this file by value."""
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


class SlowCartPole(CartPoleEnv):
    """In the second runner it sleeps at every step."""

    def __init__(self, config):
        super().__init__()
        self.is_slow = config.worker_index == 2

    def step(self, action):
        if self.is_slow:
            time.sleep(0.02)
        return super().step(action)


@pytest.mark.usefixtures("own_classes")
def test_a_step_that_learns_late_runs_on_two_runners_of_which_one_is_slow():
    asked = config(Lagging, SlowCartPole).env_runners(num_env_runners=2, rollout_fragment_length="auto")
    algo = asked.reporting(min_train_timesteps_per_iteration=0).build_algo()
    before, step = algo.get_weights(), algo.driver.step
    for _ in range(200):
        algo.train()
        num_dropped = int(algo.driver.kept["num_dropped"][0])
        if num_dropped and len(step.lags(algo)) >= 20:
            break
    lags = step.lags(algo)
    num_fresh = sum(lag <= step.MOST_UPDATES for lag in lags)
    # The fast one's steps are learned from; those of the slow one are too old when they come.
    assert num_dropped == NUM_STEPS * NUM_ENVS * (len(lags) - num_fresh) > 0
    assert algo.driver.num_updates == num_fresh > len(lags) // 2
    assert algo.driver.num_env_steps >= NUM_STEPS * NUM_ENVS * len(lags)
    changed = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, algo.get_weights())
    assert max(jax.tree.leaves(changed)) > 0
    algo.stop()


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_it_runs_unchanged_on_both_places_and_drops_what_is_too_old(env, monkeypatch):
    monkeypatch.setattr(LaggingStep, "MOST_UPDATES", 1)
    algo = config(Lagging, env).reporting(min_sample_timesteps_per_iteration=0).build_algo()
    for i in range(7):
        result = algo.train()
        assert result["num_env_steps_sampled_lifetime"] == (i + 1) * NUM_STEPS * NUM_ENVS
    lags = algo.driver.step.lags(algo)
    # 0, 1, and then one update in every two: the second one of each pair of samples is two updates old.
    assert lags == [0, 1, 2, 1, 1]
    assert algo.driver.num_updates == 4
    assert np.asarray(algo.driver.kept["num_dropped"]).item() == NUM_STEPS * NUM_ENVS
    # Its plan says what memory it takes.
    (sampled,) = {part.num_env_steps for experience in algo.driver.kept["recent"] for part in experience.parts}
    estimates = algo.memory_estimate()
    for what in ("rollout", "train_batch"):
        assert estimates[what]["num_rows"] == sampled == NUM_STEPS * NUM_ENVS
        assert estimates[what]["columns"]["obs"] == estimates[what]["columns"]["final_obs"] == 16 * sampled
    algo.stop()


class EpisodesStep(OnPolicyStep):
    """Learns from all that has come in since the last time, whatever runners give."""

    def __call__(self, state, place):
        if not place.num_updates(state):
            state, nothing = place.collect(state, self._samples, timeout_seconds=1.0)
            assert nothing.parts == () and nothing.num_env_steps == 0 and nothing.modules == {}
        state = place.request(state, self._samples)
        state, sampled = place.collect(state, self._samples, timeout_seconds=1.0)
        with pytest.raises(ValueError, match="episodes instead of columns"):
            _ = sampled.modules
        assert sum(map(len, sampled.episodes)) == sampled.num_env_steps
        state, learned = place.update(state, sampled, self._plan)
        return place.publish(state), learned


class FromEpisodes(PPO):
    training_step_class = EpisodesStep


def test_runners_that_give_episodes_are_asked_for_these():
    algo = config(FromEpisodes).env_runners(batch_mode="complete_episodes").build_algo()
    result = algo.train()
    assert result["env_runners"]["num_episodes"] == NUM_ENVS and algo.driver.num_updates == 1
    algo.stop()


class LearnsFromRowsStep(OnPolicyStep):
    """Passes rows where steps belong."""

    def __call__(self, state, place):
        state = place.request(state, self._samples)
        state, sampled = place.collect(state, self._samples, timeout_seconds=1.0)
        rows = {
            mid: {name: own.reshape(-1, *own.shape[2:]) for name, own in columns.items()}
            for mid, columns in sampled.modules.items()
        }
        state, learned = place.update(state, Experience.of_rows(rows), self._plan)
        return place.publish(state), learned


class LearnsFromRows(PPO):
    training_step_class = LearnsFromRowsStep


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_rows_are_no_steps_to_learn_from_on_both_places(env):
    algo = config(LearnsFromRows, env).build_algo()
    with pytest.raises(TypeError, match=r"Create it with Experience.of_steps"):
        algo.train()
    algo.stop()


# ------------------------------------------------------------------------------------------------------------ offline

PAGE = Path(__file__).parents[2] / "docs" / "training_steps.md"


@pytest.fixture(scope="module")
def page():
    """What the example of the page defines, after it has run."""
    example, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {"__name__": "example"}
    exec(compile(example, PAGE.name, "exec"), names)
    yield types.SimpleNamespace(**names)
    names["algo"].stop()


def offline(page, num_devices):
    return (
        page.config.copy(copy_frozen=False)
        .training(train_batch_size_per_learner=16, lr=0.02)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=num_devices)
        .reporting(min_train_timesteps_per_iteration=20 * 16)
    )


def test_a_step_over_a_data_set_trains_on_the_device_without_an_environment(page, tmp_path):
    algo = offline(page, 2).build_algo()
    assert algo.env_runner is None
    estimates = algo.memory_estimate()
    assert estimates["rollout"]["num_bytes"] == 0
    assert estimates["train_batch"]["columns"] == {"obs": 16 * 16, "actions": 4 * 16}
    losses = []
    for _ in range(4):
        result = algo.train()
        losses.append(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
    assert result["num_training_step_calls_per_iteration"] == 20 and algo.driver.num_updates == 80
    assert result["num_env_steps_sampled_lifetime"] == 0
    assert losses[-1] < 0.5 * losses[0]
    outputs = algo.get_module().forward_inference({Columns.OBS: page.OBS})
    actions = np.argmax(outputs[Columns.ACTION_DIST_INPUTS], axis=-1)
    assert np.mean(actions == page.COLUMNS[Columns.ACTIONS]) > 0.9
    # It goes on from a checkpoint as without one.
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.train()
    restored = page.Cloning.from_checkpoint(path, config=offline(page, 2))
    restored.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), restored.get_weights())
    held_out = algo.evaluate()["offline_eval_runners"][DEFAULT_MODULE_ID]
    assert held_out["total_eval_loss"] < 0.7 * losses[0] and held_out["num_module_steps_sampled"] == 24
    algo.stop()
    restored.stop()


def test_without_an_environment_the_spaces_have_to_be_set(page):
    with pytest.raises(ValueError, match=r"environment\(observation_space=..., action_space=...\)"):
        config(page.Cloning, env=None).learners(learner_class=page.CloningLearner).build_algo()


# -------------------------------------------------------------------------------------------------- several at a time


class TwiceStep(OnPolicyStep):
    """Two rounds of sampling and learning in one training step, which are counted in what it keeps."""

    def plan(self, driver):
        super().plan(driver)
        self.num_env_steps, self.num_updates = 2 * self.num_env_steps, 2

    def __call__(self, state, place):
        once = super().__call__

        def counted(state):
            state, learned = once(state, place)
            return dataclasses.replace(state, kept=state.kept + 1), learned

        return place.repeat(counted, state, 2)

    def init_kept(self):
        return np.zeros(1, np.int32)  # one device


class Twice(PPO):
    training_step_class = TwiceStep


@dataclasses.dataclass(frozen=True)
class FewFacts:
    """Facts of a driver of 4 environments."""

    config: Any

    def plan_samples(self, num_steps):
        return SamplePlan(num_steps, Layouts({}), num_shares=3)

    def plan_update(self, samples):
        return SampledUpdate(samples, {})


class WithoutRows(OnPolicyStep):
    """Sets no rows of an update, which follow from its samples."""

    def plan(self, driver):
        driver.plan_update(driver.plan_samples(NUM_STEPS))


class WithoutUpdate(OnPolicyStep):
    def plan(self, driver):
        driver.plan_samples(NUM_STEPS)


class OfItsDriver(OnPolicyStep):
    def plan(self, driver):
        self.where = driver.is_on_device


def test_a_step_that_returns_no_plan_is_told_what_is_missing():
    facts = FewFacts(types.SimpleNamespace(num_envs_per_env_runner=4))
    assert plan_of(WithoutRows(PPOConfig()), facts).rows_per_update == 4 * 3 * NUM_STEPS
    with pytest.raises(ValueError, match=r"WithoutUpdate.plan\(\) sets no rows_per_update.*Plan\(rows_per_update"):
        plan_of(WithoutUpdate(PPOConfig()), facts)
    with pytest.raises(AttributeError, match=r"has no attribute 'is_on_device', only \['config'\]"):
        plan_of(OfItsDriver(PPOConfig()), facts)


class TwicePlannedStep(TwiceStep):
    """As `TwiceStep`, but its plan is returned and not set."""

    def plan(self, facts):
        plan = OnPolicyStep.plan(self, facts)
        return dataclasses.replace(plan, num_env_steps=2 * plan.num_env_steps, num_updates=2)


class TwicePlanned(PPO):
    training_step_class = TwicePlannedStep


@pytest.mark.parametrize("algo_class", [Twice, TwicePlanned])
@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_a_step_may_repeat_another_one_on_both_drivers(env, algo_class):
    algo = config(algo_class, env).build_algo()
    plan = algo.driver.plan
    assert (plan.num_env_steps, plan.num_updates) == (2 * plan.rows_per_update, 2)
    assert [plan.update.samples] == list(plan.samples) and plan.rows_per_update == NUM_STEPS * NUM_ENVS
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 2 * NUM_STEPS * NUM_ENVS and algo.driver.num_updates == 2
    algo.train()
    assert np.asarray(algo.driver.kept).tolist() == [4]
    algo.stop()


def test_several_training_steps_run_in_one_call_while_nothing_looks():
    """Four of them, and what the learner and the environments have then is on the device."""
    asked = config(PPO, "gymnax/CartPole-v1").reporting(min_sample_timesteps_per_iteration=4 * NUM_STEPS * NUM_ENVS)
    algo = asked.build_algo()
    result = algo.train()
    assert algo.driver.num_training_steps_per_call == result["num_training_step_calls_per_iteration"] == 4
    assert result["num_env_steps_sampled_lifetime"] == 4 * NUM_STEPS * NUM_ENVS and algo.driver.num_updates == 4
    lengths = all_shards(algo.driver.shards.state.episodes.episode_length)
    ended = algo.driver.episode_statistics(1.0)
    assert ended.lengths.sum() + lengths.sum() == 4 * NUM_STEPS * NUM_ENVS
    assert result["env_runners"]["num_episodes"] == len(ended.lengths)
    algo.stop()
