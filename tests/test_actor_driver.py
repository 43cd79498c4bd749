"""Training on gymnasium environments: sampling, updates, evaluation, callbacks and checkpoints of the actor driver."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import ClassVar

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import LostExperienceError
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.rollout_ops import synchronous_parallel_sample
from jaxrl_stack.utils.results import flatten_result
from tests import programs

BATCH, NUM_ENVS = 64, 4


def config(**env_runners):
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(**{"num_env_runners": 0, "num_envs_per_env_runner": NUM_ENVS, **env_runners})
        .training(train_batch_size_per_learner=BATCH, minibatch_size=32, num_epochs=2, lr=0.003)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=1)
    )


@pytest.fixture(scope="module")
def algo():
    algo = config().evaluation(evaluation_duration=5).build_algo()
    yield algo
    algo.stop()


class Lengths(gym.Env):
    """Episodes of the lengths that the config lists, over and over; each step pays 1."""

    observation_space = gym.spaces.Box(-1.0, 1000.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.lengths = config["lengths"]
        self.episode, self.t = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        ended = self.t == self.lengths[self.episode % len(self.lengths)]
        return np.full(1, self.t, np.float32), 1.0, ended, False, {}


# ------------------------------------------------------------------------------------------------------------ training


def test_results_have_the_keys_of_the_device_driver_and_steps_are_counted(algo):
    result = algo.train()
    device = config().environment("gymnax/CartPole-v1").build_algo()
    expected = flatten_result(device.train())
    missing = {key for key in expected if not key.startswith("config")} - set(flatten_result(result))
    assert not missing
    device.stop()
    runners = result["env_runners"]
    assert runners["num_env_steps_sampled"] == BATCH
    assert runners["num_env_steps_sampled_lifetime"] == result["num_env_steps_sampled_lifetime"]
    assert runners["episode_return_mean"] == runners["episode_len_mean"] > 1
    assert runners["episode_duration_sec_mean"] > 0
    for timer in ("env_runner_sampling_timer", "learner_update_timer", "synch_weights", "training_step"):
        assert result["timers"][timer] > 0, timer
    assert runners["env_step_timer"] > 0 and runners["rlmodule_inference_timer"] > 0 and runners["sample"] > 0
    learned = result["learners"]["default_policy"]
    assert learned["num_module_steps_trained"] == 2 * BATCH and np.isfinite(learned["total_loss"])
    assert runners["weights_seq_no"] == learned["weights_seq_no"] == algo.learner.num_updates


def test_nothing_compiles_from_the_second_iteration_on(algo):
    algo.train()
    assert [algo.train()["timers"]["compile_s"] for _ in range(3)] == [0, 0, 0]


def test_the_runner_acts_with_the_learners_weights(algo):
    algo.train()
    own = algo.env_runner.get_state()
    assert own["weights_seq_no"] == algo.learner.num_updates
    learned, acting = algo.learner.get_weights(), own["rl_module"]["params"]
    assert learned.keys() - acting.keys() == {ref for ref in learned if "critic" in ref or "/vf/" in ref}
    for ref, value in acting.items():
        np.testing.assert_array_equal(value, learned[ref])
    weights = algo.get_weights()
    changed = jax.tree.map(lambda x: x + 0.25, weights)
    algo.set_weights(changed)
    observation = np.array([0.1, 0.0, -0.1, 0.0], np.float32)
    expected = algo.get_module().forward_inference({Columns.OBS: observation[None]})[Columns.ACTION_DIST_INPUTS][0]
    _, _, outputs = algo.compute_single_action(observation, explore=False, full_fetch=True)
    np.testing.assert_allclose(outputs[Columns.ACTION_DIST_INPUTS], expected, atol=1e-5)
    algo.set_weights(weights)


def test_the_same_seed_gives_the_same_run():
    algo, other = config().build_algo(), config().build_algo()
    results = []
    for each in (algo, other, other):
        if len(results) == 2:
            assert other.reset(config().debugging(seed=2))
        returns = [each.train()["env_runners"]["episode_return_mean"] for _ in range(2)]
        results.append((returns, each.learner.get_weights()))
    algo.stop()
    other.stop()
    assert results[0][0] == results[1][0] != results[2][0]
    jax.tree.map(np.testing.assert_array_equal, results[0][1], results[1][1])


def test_a_fragment_that_is_shorter_than_the_batch_is_sampled_several_times():
    algo = config(rollout_fragment_length=4).build_algo()
    assert algo.train()["env_runners"]["num_env_steps_sampled"] == BATCH
    algo.stop()


def test_whole_episodes():
    algo = config(batch_mode="complete_episodes").environment(Lengths, env_config={"lengths": [5, 9]}).build_algo()
    for _ in range(2):
        result = algo.train()
        runners = result["env_runners"]
        # Each sample() is one episode of every environment, of 5 steps: they are reset before.
        assert runners["num_env_steps_sampled"] >= BATCH
        assert runners["num_env_steps_sampled"] == runners["num_episodes"] * runners["episode_len_mean"]
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    algo.stop()


def test_rows_in_which_an_environment_was_only_reset_do_not_count():
    batch = 4 * BATCH
    algo = config(gym_env_vectorize_mode="vector_entry_point").training(train_batch_size_per_learner=batch).build_algo()
    result = algo.train()
    sampled = result["env_runners"]["num_env_steps_sampled"]
    ended = result["env_runners"]["num_episodes"]
    # After every end but those in the last row there is one such row per environment.
    assert batch - ended <= sampled < batch
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    algo.stop()


def test_a_training_step_of_ones_own_from_the_public_parts():
    class Own(PPO):
        def training_step(self):
            episodes, metrics = synchronous_parallel_sample(
                worker_set=self.env_runner_group, max_env_steps=40, _return_metrics=True
            )
            self.metrics.aggregate(metrics, key="sampled")
            results = self.learner_group.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 40})
            self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group)
            self.metrics.log_value("my_loss", results[0]["default_policy"]["total_loss"], window=1)

    own = config()
    own.algo_class = Own
    algo = own.build_algo()
    result = algo.train()
    assert np.isfinite(result["my_loss"]) and result["sampled"]["env_step_timer"] > 0
    assert algo.env_runner.get_state("weights_seq_no") == {"weights_seq_no": 1}
    algo.stop()


# ---------------------------------------------------------------------------------------------- connectors, both sides


def test_a_filter_learns_from_training_only_and_evaluation_starts_from_it():
    algo = (
        config(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
        .evaluation(evaluation_duration=3)
        .build_algo()
    )
    algo.train()

    def statistics(runner):
        state = runner.get_state("env_to_module_connector")["env_to_module_connector"]
        return state["MeanStdFilter"]["default_policy"]["base"]["obs"]

    base = statistics(algo.env_runner)
    assert np.asarray(base["count"])[-1] == BATCH
    algo.evaluate()
    after = statistics(algo.env_runner)
    jax.tree.map(np.testing.assert_array_equal, base, after)
    np.testing.assert_array_equal(statistics(algo.eval_env_runner)["mean"], base["mean"])
    algo.train()
    assert np.asarray(statistics(algo.env_runner)["count"])[-1] == 2 * BATCH
    algo.stop()


class HalvedRewards(ConnectorV2):
    """A host connector of the learner pipeline that rewrites episodes."""

    seen = 0

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            type(self).seen += len(episode)
            episode.set_rewards(new_data=episode.get_rewards() * 0.5)
        return batch


def test_host_connectors_of_the_learner_pipeline_see_the_episodes():
    HalvedRewards.seen = 0
    algo = config().learners(learner_connector=lambda obs_space, act_space: HalvedRewards()).build_algo()
    result = algo.train()
    assert HalvedRewards.seen == BATCH and np.isfinite(result["learners"]["default_policy"]["total_loss"])
    algo.stop()


# ---------------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_counts_exactly_n_episodes_without_a_preference_for_short_ones():
    algo = (
        config()
        .environment(Lengths, env_config={"lengths": [2, 30]})
        .evaluation(evaluation_interval=1, evaluation_duration=6, evaluation_config={"num_envs_per_env_runner": 2})
        .build_algo()
    )
    runners = algo.train()["evaluation"]["env_runners"]
    # Three episodes of each of two environments, which start with a short one after their reset.
    assert runners["num_episodes"] == 6 and runners["episode_len_mean"] == pytest.approx((2 + 30 + 2) / 3)
    assert runners["num_env_steps_sampled"] == 2 * 34
    again = algo.train()["evaluation"]["env_runners"]
    assert again["num_episodes"] == 6 and again["num_episodes_lifetime"] == 12
    assert again["num_env_steps_sampled_lifetime"] == 68 + again["num_env_steps_sampled"]
    algo.stop()


def test_evaluation_leaves_no_trace_and_has_seeds_of_its_own():
    algo = config().evaluation(evaluation_duration=3).build_algo()

    def run(evaluates):
        values = []
        for _ in range(2):
            algo.train()
            if evaluates:
                values.append(algo.evaluate()["env_runners"]["episode_return_mean"])
        weights = algo.learner.get_weights()
        assert algo.reset(algo.config)
        return weights, values

    (a, values), (b, same), (c, _) = run(True), run(True), run(False)
    algo.stop()
    jax.tree.map(np.testing.assert_array_equal, a, c)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert values == same


class Seeded(Lengths):
    """Writes down the seeds that it gets."""

    given: ClassVar[list[int]] = []

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.given.append(seed)
        return super().reset(seed=seed, options=options)


def test_no_two_environments_share_a_seed_and_all_are_int32_however_long_a_run_is():
    Seeded.given.clear()
    for seed in (0, 1):
        algo = config().environment(Seeded, env_config={"lengths": [2]}).debugging(seed=seed).build_algo()
        algo.env_runner.sample(num_timesteps=4)
        for iteration in (0, 1, 21_464, 10**9):
            algo.driver.evaluate(iteration)
        algo.stop()
    assert len(set(Seeded.given)) == len(Seeded.given) == 2 * (4 + 4 * 4)
    assert all(0 <= seed < 2**31 for seed in Seeded.given)


def test_evaluation_in_timesteps_and_with_a_function_of_ones_own(algo):
    by_steps = config().evaluation(evaluation_duration=50, evaluation_duration_unit="timesteps").build_algo()
    assert by_steps.evaluate()["env_runners"]["num_env_steps_sampled"] == 52  # whole vector steps of 4
    by_steps.stop()

    def own(algorithm, group):
        returns = group.foreach_env_runner(lambda runner: runner.sample(num_episodes=2)[0].get_return())
        return {"first": returns[0]}, 17, 17

    custom = config().evaluation(custom_evaluation_function=own).build_algo()
    metrics = custom.evaluate()["env_runners"]
    assert metrics["first"] >= 1 and metrics["num_env_steps_sampled"] == 17
    custom.stop()


def test_greedy_evaluation():
    algo = config().evaluation(evaluation_duration=2, evaluation_config={"explore": False}).build_algo()
    algo.evaluate()
    assert algo.eval_env_runner.config.explore is False and algo.eval_env_runner.config.in_evaluation
    episode = algo.eval_env_runner.sample(num_episodes=1)[0]
    np.testing.assert_array_equal(
        episode.get_actions(), episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS).argmax(-1)
    )
    algo.stop()


# ----------------------------------------------------------------------------------------------------------- callbacks


def test_callbacks_log_into_the_result():
    calls = []

    def on_episode_end(*, episode, metrics_logger, prev_episode_chunks, **kwargs):
        length = sum(map(len, [*prev_episode_chunks, episode]))
        metrics_logger.log_value("longest", length, reduce="max")

    algo = (
        config()
        .callbacks(
            on_algorithm_init=lambda *, algorithm, **kwargs: calls.append("init"),
            on_episode_end=on_episode_end,
            on_sample_end=lambda *, samples, **kwargs: calls.append(("sampled", sum(map(len, samples)))),
            on_train_result=lambda *, result, **kwargs: result.update(mine=1),
            on_evaluate_start=lambda **kwargs: calls.append("evaluates"),
            on_evaluate_end=lambda *, evaluation_metrics, **kwargs: evaluation_metrics.update(seen=True),
        )
        .evaluation(evaluation_interval=1, evaluation_duration=1)
        .build_algo()
    )
    result = algo.train()
    assert calls[0] == "init" and ("sampled", BATCH) in calls and "evaluates" in calls
    assert result["mine"] == 1 and result["evaluation"]["seen"]
    assert result["env_runners"]["longest"] == result["env_runners"]["episode_len_max"]
    algo.stop()


# --------------------------------------------------------------------------------------------------------- checkpoints


def test_a_restored_algorithm_goes_on_with_weights_optimizer_filter_and_counters(tmp_path):
    filtered = config(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    algo = filtered.build_algo()
    for _ in range(2):
        algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    other = filtered.build_algo()
    other.restore_from_path(path)
    assert other.iteration == 2 and other.learner.num_updates == 2
    jax.tree.map(np.testing.assert_array_equal, algo.learner.get_state(), other.learner.get_state())
    for name in ("rl_module", "env_to_module_connector", "weights_seq_no"):
        jax.tree.map(np.testing.assert_array_equal, algo.env_runner.get_state(name), other.env_runner.get_state(name))
    result = other.train()
    assert result["num_env_steps_sampled_lifetime"] == 3 * BATCH and result["training_iteration"] == 3
    with pytest.raises(ValueError, match="steps environments on the host, .* on the device"):
        config().environment("gymnax/CartPole-v1").build_algo().restore_from_path(path)
    algo.stop()
    other.stop()


# ----------------------------------------------------------------------------------------------------------------- Ray


def test_runners_and_learners_as_actors(ray_session):
    del ray_session
    algo = (
        config(num_env_runners=2, num_envs_per_env_runner=2)
        .learners(num_learners=1)
        .evaluation(
            evaluation_interval=1,
            evaluation_num_env_runners=1,
            evaluation_parallel_to_training=True,
            evaluation_duration="auto",
            evaluation_auto_duration_min_env_steps_per_sample=30,
        )
        .build_algo()
    )
    try:
        result = algo.train()
        assert result["env_runners"]["num_env_steps_sampled"] == BATCH
        assert result["fault_tolerance"]["num_healthy_workers"] == 2
        assert result["evaluation"]["env_runners"]["num_env_steps_sampled"] >= 30
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
        second = algo.train()
        assert second["timers"]["compile_s"] == 0
        indices = algo.env_runner_group.foreach_env_runner(
            lambda runner: (runner.worker_index, runner.num_envs, runner.env is None)
        )
        assert indices == [(0, 0, True), (1, 2, False), (2, 2, False)]
        weights = algo.learner_group.get_weights()["default_policy"]
        states = algo.env_runner_group.foreach_env_runner("get_state", kwargs={"components": "rl_module"})
        assert len(states) == 3
        for state in states:
            for name, value in weights.items():
                if f"default_policy/{name}" in state["rl_module"]["params"]:
                    np.testing.assert_array_equal(state["rl_module"]["params"][f"default_policy/{name}"], value)
        assert algo.learner is None and len(algo.learner_group) == 1
        assert algo.compute_single_action(np.zeros(4, np.float32)) in (0, 1)
        assert "2 env runners, 1 learner" in repr(algo)
    finally:
        algo.stop()


def lost_reference(ray, value):
    """A reference of an object that is gone with the process that owned it."""

    class Owner:
        def put(self):
            import ray

            return [ray.put(value)]

    owner = ray.remote(num_cpus=0)(Owner).remote()
    (reference,) = ray.get(owner.put.remote())
    ray.kill(owner)
    while True:
        try:
            ray.get(reference)
            time.sleep(0.1)
        except ray.exceptions.OwnerDiedError:
            return reference


def test_blocks_that_are_lost_on_their_way_to_the_learners_are_sampled_anew(ray_session, monkeypatch):
    # Of the one environment's steps each learner gets half. The one that has its block all the same waits for none.
    algo = config(num_env_runners=1, num_envs_per_env_runner=1).learners(num_learners=2).build_algo()
    try:
        algo.train()
        group = algo.env_runner_group
        sample, calls = group.sample, []

        def with_a_lost_one(*args, **kwargs):
            blocks = sample(*args, **kwargs)
            calls.append(len(blocks))
            if len(calls) == 1:
                lost = lost_reference(ray_session, ray_session.get(blocks[0].part.reference))
                blocks[0] = blocks[0].kept_at(lost)
            return blocks

        monkeypatch.setattr(group, "sample", with_a_lost_one)
        result = algo.train()
        assert calls == [2, 2] and algo.learner_group.num_updates == 2
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
        # Both batches were sampled, one of them was learned from.
        assert result["num_env_steps_sampled_lifetime"] == 3 * 2 * BATCH
        assert algo.learner_group.get_stats()["num_learner_restarts"] == 0
    finally:
        algo.stop()


@pytest.mark.usefixtures("fake_ray")
def test_several_blocks_of_one_runner_count_in_its_filter_once():
    algo = config(
        num_env_runners=1,
        rollout_fragment_length=4,
        env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
    ).build_algo()
    try:
        for iteration in (1, 2):
            assert algo.train()["env_runners"]["num_env_steps_sampled"] == BATCH  # four blocks
            state = algo.env_runner.get_state("env_to_module_connector")["env_to_module_connector"]
            counted = state["MeanStdFilter"]["default_policy"]["base"]["obs"]["count"]
            assert np.asarray(counted)[-1] == iteration * BATCH
    finally:
        algo.stop()


def test_without_a_number_of_env_runners_this_process_samples_and_ray_is_not_imported():
    code = (
        "import sys\n"
        "from jaxrl_stack.algorithms.ppo import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1').rl_module(model_config={'fcnet_hiddens': [4]})\n"
        "algo = config.training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1).build_algo()\n"
        "assert algo.train()['num_env_steps_sampled_lifetime'] == 64 and algo.env_runner.num_workers == 0\n"
        "assert algo.config.to_dict()['num_env_runners'] == 2 and 'local env runner' in repr(algo)\n"
        "algo.stop()\n"
        "assert 'ray' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert ran.stderr.count("num_env_runners=2") == 1


class LosesBatches(PPOLearner):
    """Cannot read its first two train batches, as if their node was lost."""

    num_lost = 0

    def update_block(self, *args, **kwargs):
        if self.num_lost < 2:
            self.num_lost += 1
            raise LostExperienceError("their node is gone")
        return super().update_block(*args, **kwargs)


@pytest.mark.usefixtures("fake_ray")
def test_steps_that_are_lost_with_a_node_are_counted_and_sampled_again(monkeypatch):
    own = programs.ppo("CartPole-v1").env_runners(num_env_runners=1).learners(learner_class=LosesBatches)
    algo = own.build_algo()
    result = algo.train()
    batch = programs.BATCH
    assert (result["num_env_steps_sampled_lifetime"], result["num_env_steps_lost_lifetime"]) == (3 * batch, 2 * batch)
    assert algo.driver.num_env_steps_trained == algo.driver.num_updates * batch == batch
    other = own.build_algo()
    other.set_state(algo.get_state())
    assert other.driver.num_env_steps_lost == 2 * batch
    assert other.driver.num_env_steps_trained == batch
    # Steps that an update has read are not lost if the next update of the call cannot read them.
    make_step, failed = OnPolicyStep.__call__, []

    def fails_once_after_its_update(step, state, place):
        outcome = make_step(step, state, place)
        if not failed:
            failed.append(True)
            raise LostExperienceError("their node is gone")
        return outcome

    monkeypatch.setattr(OnPolicyStep, "__call__", fails_once_after_its_update)
    result = algo.train()
    assert (result["num_env_steps_sampled_lifetime"], result["num_env_steps_lost_lifetime"]) == (5 * batch, 2 * batch)
    assert algo.driver.num_env_steps_trained == algo.driver.num_updates * batch == 3 * batch
    algo.stop()
    other.stop()
