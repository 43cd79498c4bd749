"""Shapes of training steps that are not the library's: each is one class, and both drivers run them unchanged."""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.training_step import TrainingStep
from jaxrl_stack.utils.devices import all_shards
from jaxrl_stack.utils.memory import train_batch_memory

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
    """Learns from what has come in, `LAG` training steps late; what is older than `MOST_UPDATES` is dropped."""

    LAG, MOST_UPDATES = 2, 2

    def memory_estimates(self, driver, *spaces):
        estimate = train_batch_memory(*spaces, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
        return estimate, estimate

    def plan(self, driver):
        self.num_env_steps = self.rows_per_update = NUM_STEPS * NUM_ENVS
        self.num_trained = self.num_dropped = 0
        self.lags = []
        self._plan = driver.plan_update(NUM_ENVS, num_epochs=1, minibatch_size=8, shuffle_batch_per_epoch=True)

    def init_kept(self):
        return collections.deque()

    def __call__(self, state, place):
        state = place.request(state, num_steps=NUM_STEPS)
        state, shares = place.collect(state, timeout_seconds=1.0)
        state.kept.append(shares)
        learned = None
        for share in state.kept.popleft() if len(state.kept) > self.LAG else ():
            lag = place.num_updates - share.weights_seq_no
            if lag > self.MOST_UPDATES:
                self.num_dropped += share.num_env_steps
                continue
            state, learned = place.update(state, [share], self._plan)
            self.lags.append(lag)
            self.num_trained += share.num_env_steps
        return place.publish(state), learned

    def num_env_steps_trained(self, driver):
        return self.num_trained

    def results(self, driver):
        return {"num_env_steps_dropped": self.num_dropped}


class Lagging(PPO):
    training_step_class = LaggingStep


@pytest.fixture
def own_classes(ray_session):
    """Actors get the classes of this file by value."""
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray_session.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("own_classes")
def test_a_step_that_learns_late_runs_on_two_runners():
    asked = config(Lagging).env_runners(num_env_runners=2, rollout_fragment_length="auto")
    algo = asked.reporting(min_train_timesteps_per_iteration=20 * NUM_STEPS * NUM_ENVS).build_algo()
    before = algo.get_weights()
    for _ in range(20):
        result = algo.train()
        if result["num_env_steps_dropped"]:
            break
    step = algo.driver.step
    assert step.num_trained >= 20 * NUM_STEPS * NUM_ENVS and step.num_dropped > 0
    assert step.num_trained == algo.driver.num_updates * NUM_STEPS * NUM_ENVS
    assert result["num_env_steps_sampled_lifetime"] >= step.num_trained + step.num_dropped
    assert 0 < max(step.lags) <= LaggingStep.MOST_UPDATES
    assert set(algo.env_runner_group.foreach_env_runner("get_state", kwargs={"components": "weights_seq_no"})[0]) == {
        "weights_seq_no"
    }
    changed = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, algo.get_weights())
    assert max(jax.tree.leaves(changed)) > 0
    algo.stop()


def test_it_runs_without_actors_too():
    algo = config(Lagging).build_algo()
    for _ in range(5):
        result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 5 * NUM_STEPS * NUM_ENVS
    assert algo.driver.step.lags == [0, 1, 2] and algo.driver.num_updates == 3
    algo.stop()


class EpisodesStep(OnPolicyStep):
    """Learns from all that has come in since the last time, whatever runners give."""

    def __call__(self, state, place):
        state, nothing = place.collect(state, timeout_seconds=1.0) if not place.num_env_steps else (state, [])
        assert len(nothing) == 0
        state = place.request(state, num_steps=NUM_STEPS)
        state, sampled = place.collect(state, timeout_seconds=1.0)
        state, learned = place.update(state, sampled, self._plan)
        return place.publish(state), learned


class FromEpisodes(PPO):
    training_step_class = EpisodesStep


def test_runners_that_give_episodes_are_asked_for_these():
    algo = config(FromEpisodes).env_runners(batch_mode="complete_episodes").build_algo()
    result = algo.train()
    assert result["env_runners"]["num_episodes"] == NUM_ENVS and algo.driver.num_updates == 1
    algo.stop()


# ------------------------------------------------------------------------------------------------------------ offline

PAGE = Path(__file__).parents[2] / "docs" / "training_steps.md"


@pytest.fixture(scope="module")
def page():
    """What the example of the page defines, after it has run."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
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


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_step_over_a_data_set_trains_on_the_device_without_an_environment(page, num_devices, tmp_path):
    algo = offline(page, num_devices).build_algo()
    assert algo.env_runner is None
    losses = []
    for _ in range(4):
        result = algo.train()
        losses.append(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
    assert result["num_training_step_calls_per_iteration"] == 20 and algo.driver.num_updates == 80
    assert result["num_env_steps_sampled_lifetime"] == 0
    assert losses[-1] < 0.5 * losses[0]
    outputs = algo.get_module().forward_inference({Columns.OBS: page.OBS})
    actions = np.argmax(outputs[Columns.ACTION_DIST_INPUTS], axis=-1)
    assert np.mean(actions == page.DATA[Columns.ACTIONS]) > 0.9
    # It goes on from a checkpoint as without one.
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.train()
    restored = page.Cloning.from_checkpoint(path, config=offline(page, num_devices))
    restored.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), restored.get_weights())
    with pytest.raises(ValueError, match=r"An evaluation needs an environment.*Set environment"):
        algo.evaluate()
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


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_a_step_may_repeat_another_one_on_both_drivers(env):
    algo = config(Twice, env).build_algo()
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
