"""What happens when environments, runners and evaluations fail: nothing is lost, counted twice or hidden."""

from __future__ import annotations

import logging
import types

import numpy as np
import pytest

from envs import faulty
from envs.faulty import CrashingEnv, FaultyEnvError, NanEnv, StallingEnv
from jaxrl_stack.acting.recording import newest_connector_states
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import RecordingId
from jaxrl_stack.core.layouts import Layout, Layouts
from jaxrl_stack.env.env_runner import NUM_ENV_STEP_FAILURES_LIFETIME, ConsecutiveFailuresError
from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.replay import EpisodeReplayBuffer
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.seeds import derived_seed
from tests.toy_runners import change


def mean_std_filter(env, spaces, device):
    return MeanStdFilter()


def config(env=CrashingEnv, fault_tolerance=None, env_runners=None, **env_config):
    runners = {"num_env_runners": 0, "num_envs_per_env_runner": 2, "rollout_fragment_length": 10}
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(**{**runners, "env_to_module_connector": mean_std_filter, **(env_runners or {})})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .fault_tolerance(**(fault_tolerance or {}))
        .debugging(seed=3)
    )


def runner_of(*args, **kwargs):
    return SingleAgentEnvRunner(config=config(*args, **kwargs))


def filter_count(runner):
    """Number of observations that the runner's filter has seen."""
    state = runner.get_state("env_to_module_connector")["env_to_module_connector"]["MeanStdFilter"]["default_policy"]
    return to_int(state["base"]["obs"]["count"]) + to_int(state["delta"]["obs"]["count"])


RESTARTS = {"restart_failed_sub_environments": True}


# ------------------------------------------------------------------------------- environments that raise, in a runner


@pytest.mark.parametrize("watched", [False, True])
def test_a_failed_environment_is_made_anew_and_only_its_episode_is_left_out(caplog, watched):
    asked, ended = config(after=25, vector_index=1, fault_tolerance=RESTARTS), []
    if watched:
        asked.callbacks(on_episode_end=lambda *, env_index, **kwargs: ended.append(env_index))
    runner = SingleAgentEnvRunner(config=asked)
    blocks = [runner.sample_block() for _ in range(2)]
    kept, failed = runner.env.envs
    with caplog.at_level(logging.ERROR):
        blocks.append(runner.sample_block())
    blocks.append(runner.sample_block())
    assert "FaultyEnvError: crashed on purpose: step 25" in caplog.text and "in step" in caplog.text
    # Only the one that failed.
    assert runner.env.envs[0] is kept and runner.env.envs[1] is not failed
    # The fifth row of the third block failed; the four before it were of the same episode.
    assert [block.num_env_steps for block in blocks] == [20, 20, 15, 20]
    valid = blocks[2].experience.modules[DEFAULT_MODULE_ID]["loss_mask"]
    assert valid[:, 0].all() and valid[:, 1].tolist() == [False] * 5 + [True] * 5
    np.testing.assert_array_equal(blocks[2].experience.modules[DEFAULT_MODULE_ID]["rewards"][valid], 1.0)
    assert runner.get_state("num_env_steps_sampled_lifetime") == {"num_env_steps_sampled_lifetime": 75}
    assert [block.report.episodes.lengths.tolist() for block in blocks] == [[10, 10], [10, 10], [10], [10, 10]]
    assert ended == ([0, 1, 0, 1, 0, 1, 0] if watched else [])
    assert blocks[2].report.metrics[NUM_ENV_STEP_FAILURES_LIFETIME].peek() == 1 and filter_count(runner) == 80
    # A seed that follows from the config's, and was not used before; the other environment was not reset.
    assert kept.seeds == [derived_seed("environment", 3, 0, 0, 0, 0)]
    assert runner.env.envs[1].seeds == [derived_seed("environment", 3, 0, 0, 1, 1)]
    # Replay goes on with the other environment's episodes, and has nothing of what failed.
    replay = EpisodeReplayBuffer(1000)
    for block in blocks:
        columns, starts = block.experience.modules[DEFAULT_MODULE_ID], block.part.starts[DEFAULT_MODULE_ID]
        replay.add_block(columns, serial=block.part.source.serial, starts=starts)
    lengths = sorted((len(episode), episode.is_done) for episode in replay.episodes)
    assert lengths == [(5, False), *[(10, True)] * 7]
    runner.stop()


@pytest.mark.parametrize("watched", [False, True])
def test_episodes_of_a_failed_environment_do_not_go_on_in_another_one(watched):
    asked = config(after=25, vector_index=1, fault_tolerance=RESTARTS)
    if watched:
        asked.callbacks(on_episode_step=lambda **kwargs: None)
    runner = SingleAgentEnvRunner(config=asked)
    parts = [episode for _ in range(10) for episode in runner.sample(num_timesteps=8)]
    by_id = {}
    for part in parts:
        by_id.setdefault(part.id_, []).append(part)
    steps = [np.concatenate([np.asarray(part.get_rewards()) for part in own]) for own in by_id.values()]
    assert all(own[0].t_started == 0 for own in by_id.values())
    done = [own[-1].is_done for own in by_id.values()]
    # Of environment 1: two episodes, four steps of which only a part was handed out before the failure, then new ones.
    assert sorted(map(len, steps)) == [4, 5, *[10] * 7] and sum(done) == 7
    runner.stop()


def test_a_recurrent_state_ends_with_the_episode_of_a_failed_environment():
    asked = config(after=25, vector_index=1, fault_tolerance=RESTARTS)
    asked.rl_module(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 2})
    runner = SingleAgentEnvRunner(config=asked)
    block = [runner.sample_block(layouts=Layouts({DEFAULT_MODULE_ID: Layout()})) for _ in range(3)][-1]
    columns = block.experience.modules[DEFAULT_MODULE_ID]
    # The fifth row failed, and the sixth is the first one of another episode; the other environment goes on.
    starts = columns["resets"]
    assert [np.flatnonzero(starts[:, i]).tolist() for i in range(2)] == [[0], [0, 5]]
    is_initial = [np.abs(state["h"]).sum(axis=(2, 3)) == 0 for state in columns["state_in"].values()]
    np.testing.assert_array_equal(is_initial, [starts, starts])
    runner.stop()


def test_without_restarts_the_exception_is_raised_and_the_next_sample_starts_with_a_reset():
    runner = runner_of(after=25, vector_index=1)
    for _ in range(2):
        runner.sample_block()
    with pytest.raises(FaultyEnvError, match="step 25"):
        runner.sample_block()
    assert filter_count(runner) == 40
    block = runner.sample_block()
    assert block.report.episodes.lengths.tolist() == [10, 10] and filter_count(runner) == 60
    runner.stop()


class InterruptedEnv(CrashingEnv):
    """Ctrl-C comes in the middle of a step."""

    def step(self, action):
        try:
            return super().step(action)
        except FaultyEnvError:
            raise KeyboardInterrupt from None


def test_an_environment_that_was_interrupted_in_a_step_is_made_anew():
    runner = runner_of(InterruptedEnv, after=25, vector_index=1)
    for _ in range(2):
        runner.sample_block()
    kept, interrupted = runner.env.envs
    with pytest.raises(KeyboardInterrupt):
        runner.sample_block()
    # What was being recorded is dropped.
    assert filter_count(runner) == 40
    block = runner.sample_block()
    assert runner.env.envs[0] is kept and runner.env.envs[1] is not interrupted
    assert block.report.episodes.lengths.tolist() == [10, 10] and filter_count(runner) == 60
    assert runner.get_state("num_env_steps_sampled_lifetime") == {"num_env_steps_sampled_lifetime": 60}
    runner.stop()


def test_whole_episodes_are_as_many_as_wanted_although_an_environment_fails(tmp_path):
    def on_episode_end(*, metrics_logger, **kwargs):
        metrics_logger.log_value("ended", 1, reduce="sum")

    # Fails in the second chunk of recorded steps, when some episodes of the first one are complete.
    runner = SingleAgentEnvRunner(
        config=config(after=70, length=30, marker=str(tmp_path / "failed"), fault_tolerance=RESTARTS).callbacks(
            on_episode_end=on_episode_end
        )
    )
    runner.sample(num_timesteps=2)
    assert runner.take_ended_episodes().lengths.tolist() == []
    episodes = runner.sample(num_episodes=6)
    assert [len(episode) for episode in episodes] == [30] * 6 and (tmp_path / "failed").exists()
    assert runner.take_ended_episodes().lengths.tolist() == [30] * 6
    # Two chunks of 64 steps, in which one environment finishes 4 episodes, and the one that failed 3.
    assert runner.metrics.reduce()["ended"].peek() == 7
    # Steps that count are those of the episodes that are returned.
    assert runner.get_state("num_env_steps_sampled_lifetime")["num_env_steps_sampled_lifetime"] == 2 + 6 * 30
    runner.stop()


class BrokenForSomeTime(CrashingEnv):
    """Raises in every step while `is_broken`."""

    is_broken = False

    def step(self, action):
        if self.is_broken and self._is_faulty:
            self.fault()
        return super().step(action)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_too_many_failures_in_a_row_are_an_error_that_names_setting_count_and_cause(monkeypatch, num_envs):
    tolerant = {**RESTARTS, "num_consecutive_env_runner_failures_tolerance": 3}
    runner = runner_of(
        BrokenForSomeTime, vector_index=0, fault_tolerance=tolerant, env_runners={"num_envs_per_env_runner": num_envs}
    )
    runner.sample_block()
    monkeypatch.setattr(BrokenForSomeTime, "is_broken", True)
    # With another one that is well, every block has something to learn from.
    for _ in range(3 if num_envs > 1 else 0):
        assert runner.sample_block(num_steps=1).num_env_steps == 1
    with pytest.raises(ConsecutiveFailuresError, match="4 failures in a row") as caught:
        runner.sample_block(num_steps=1)
    assert "num_consecutive_env_runner_failures_tolerance=3" in str(caught.value)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value.__cause__, FaultyEnvError)
    # With a success in between none of these failures is one too many.
    for _ in range(6):
        monkeypatch.setattr(BrokenForSomeTime, "is_broken", False)
        assert runner.sample_block(num_steps=1).num_env_steps == num_envs
        if num_envs > 1:
            monkeypatch.setattr(BrokenForSomeTime, "is_broken", True)
            assert runner.sample_block(num_steps=1).num_env_steps == 1
    runner.stop()


@pytest.mark.parametrize(("after", "env"), [(0, CrashingEnv), (1, CrashingEnv), (1, NanEnv)])
def test_a_failure_in_the_first_reset_or_step_is_a_mistake_and_raised_whatever_is_set(after, env):
    runner = runner_of(env, after=after, fault_tolerance=RESTARTS)
    # In a second try, too: there was no step in between.
    for _ in range(2):
        with pytest.raises((FaultyEnvError, ValueError), match=f"step {after}|an observation .* step 1 of") as caught:
            runner.sample_block()
        (note,) = caught.value.__notes__
        assert "restart_failed_sub_environments=True) does not apply to the first reset() or step()" in note
    runner.stop()


@pytest.mark.parametrize("how", ["steps", "watched", "nan", "episodes", "agents"])
def test_a_failure_later_in_the_first_rollout_is_tolerated(how, tmp_path):
    env = {"nan": NanEnv, "agents": make_multi_agent(CrashingEnv)}.get(how, CrashingEnv)
    failing = {"after": 3, "vector_index": 1, "marker": str(tmp_path / "failed")}
    asked = config(env, fault_tolerance=RESTARTS, **failing)
    if how == "watched":
        asked.callbacks(on_episode_step=lambda **kwargs: None)
    runner_class = SingleAgentEnvRunner
    if how == "agents":
        asked.multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
        runner_class = MultiAgentEnvRunner
    runner = runner_class(config=asked)
    if how == "episodes":
        assert [len(episode) for episode in runner.sample(num_episodes=2)] == [10, 10]
    else:
        # Of the second environment three rows are left out; what is not finite costs a whole rollout.
        assert runner.sample_block().num_env_steps == {"nan": 20}.get(how, 17)
    assert (tmp_path / "failed").exists()
    runner.stop()


def test_what_a_callback_raises_is_no_failure_of_an_environment():
    def on_episode_step(*, episode, **kwargs):
        if len(episode) == 5:
            raise LookupError("a mistake in a callback")

    runner = SingleAgentEnvRunner(config=config(fault_tolerance=RESTARTS).callbacks(on_episode_step=on_episode_step))
    runner.sample_block(num_steps=2)
    env = runner.env.envs[0]
    with pytest.raises(LookupError, match="a mistake in a callback"):
        runner.sample_block()
    assert runner.env.envs[0] is env
    runner.stop()


def test_a_lost_process_of_an_async_vector_is_replaced(tmp_path):
    once = {"after": 5, "vector_index": 1, "marker": str(tmp_path / "lost")}
    vectors = {"gym_env_vectorize_mode": "async"}
    runner = runner_of(how="exit", **once, fault_tolerance=RESTARTS, env_runners=vectors)
    before = [process.pid for process in runner.env.processes]
    block = runner.sample_block()
    assert block.num_env_steps == 20 and filter_count(runner) == 20
    assert set(before).isdisjoint(process.pid for process in runner.env.processes)
    runner.stop()


# ------------------------------------------------------------------------------------------------------- NaN, infinity


@pytest.mark.parametrize(("pipeline", "value"), [(None, float("nan")), (mean_std_filter, float("inf"))])
def test_an_observation_that_is_not_finite_is_an_error_that_says_where(pipeline, value):
    runners = {"env_to_module_connector": pipeline}
    runner = runner_of(NanEnv, after=17, vector_index=1, value=value, env_runners=runners)
    runner.sample_block()
    with pytest.raises(ValueError, match="Environment 1 of EnvRunner 0 .* an observation .* not finite, in step") as e:
        runner.sample_block()
    # After the 7th step of this block, before the 8th.
    assert "in step 7 of the 10" in str(e.value) and "restart_failed_sub_environments=True" in str(e.value)
    block = runner.sample_block()
    assert np.isfinite(block.experience.modules[DEFAULT_MODULE_ID]["obs"]).all()
    if pipeline is not None:
        assert filter_count(runner) == 40
    runner.stop()


def test_the_last_observation_of_a_block_is_looked_at_too():
    runner = runner_of(NanEnv, after=10, length=100)
    with pytest.raises(ValueError, match="Environment 0 of EnvRunner 0 .* an observation .* in step 9 of the 10"):
        runner.sample_block()
    runner.stop()


def test_a_reward_that_is_not_finite_is_a_failure_like_others(caplog):
    runner = runner_of(NanEnv, after=17, where="reward", vector_index=1)
    runner.sample_block()
    with pytest.raises(ValueError, match=r"Environment 1 .* a reward \(nan\) .* in step 6 of the 10"):
        runner.sample_block()
    runner.stop()
    runner = runner_of(NanEnv, after=17, where="reward", vector_index=1, fault_tolerance=RESTARTS)
    runner.sample_block()
    kept, failed = runner.env.envs
    with caplog.at_level(logging.ERROR):
        block = runner.sample_block()
    assert np.isfinite(block.experience.modules[DEFAULT_MODULE_ID]["rewards"]).all() and "a reward (nan)" in caplog.text
    assert runner.env.envs[0] is kept and runner.env.envs[1] is not failed
    runner.stop()


# ------------------------------------------------------------------------------------------------------ lost EnvRunners


def test_what_a_lost_runner_and_its_successor_have_counted_is_both_counted():
    sources = [
        RecordingId(1, 0, 8),
        RecordingId(2, 0, 8),
        RecordingId(2, 0, 7),
        RecordingId(2, 1, 0),
        RecordingId(1, 0, 9),
    ]
    states = newest_connector_states([(source, {"of": source}) for source in sources])
    assert [state["of"] for state in states] == [(1, 0, 9), (2, 0, 8), (2, 1, 0)]


def test_iterations_have_no_samples_as_long_as_all_runners_are_being_restarted(fake_ray, caplog):
    algo = config(env_runners={"num_env_runners": 2, "num_envs_per_env_runner": 1}).build_algo()
    algo.train()
    change(algo.env_runner_group, env_runner_health_probe_timeout_s=0.0)
    for handle in fake_ray.handles:
        fake_ray.lose(handle)
    result = algo.train()
    assert result["training_iteration"] == 2 and "A training step of iteration 2 had no samples" in caplog.text
    assert result["env_runners"]["num_env_steps_sampled"] == 0 and result["num_env_steps_sampled_lifetime"] == 40
    change(algo.env_runner_group, env_runner_health_probe_timeout_s=60.0)
    assert algo.train()["num_env_steps_sampled_lifetime"] == filter_count(algo.env_runner) == 80
    algo.stop()


def test_an_evaluation_without_healthy_actors_is_skipped_or_waits_or_is_an_error(fake_ray, caplog):
    asked = config().evaluation(
        evaluation_num_env_runners=1,
        evaluation_duration=2,
        evaluation_config={"num_cpus_per_env_runner": 0.25},
        evaluation_error_after_n_consecutive_skips=1,
    )
    fake_ray.restart_s = 50.0
    algo = asked.build_algo()
    group = algo.eval_env_runner_group
    assert algo.evaluate()["env_runners"]["episode_len_mean"] == 10
    (actor,) = fake_ray.handles
    fake_ray.lose(actor)
    group.foreach_env_runner("ping")
    assert not group.num_healthy_remote_env_runners()
    caplog.clear()
    skipped = algo.evaluate()
    assert skipped["num_healthy_workers"] == 0 and skipped["env_runners"]["num_env_steps_sampled"] == 0
    assert np.isnan(skipped["env_runners"]["episode_return_mean"])
    assert "Evaluation after iteration 0 skipped" in caplog.text
    with pytest.raises(RuntimeError, match="2 evaluations in a row .*evaluation_error_after_n_consecutive_skips=1"):
        algo.evaluate()
    group.config = group.config.copy(copy_frozen=False).evaluation(evaluation_unhealthy_workers_timeout_s=60.0)
    result = algo.evaluate()
    assert result["num_healthy_workers"] == 1 and result["num_remote_worker_restarts"] == 1
    assert result["env_runners"]["episode_len_mean"] == 10
    algo.stop()


# ----------------------------------------------------------------------------------------- the environments themselves


def over_and_over(function):
    for _ in range(600):
        function()


def test_faults_happen_when_and_where_they_are_asked_for(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no settings .*'afer'"):
        CrashingEnv({"afer": 3})
    with pytest.raises(ValueError, match="how='loudly'"):
        CrashingEnv({"how": "loudly"})
    env = StallingEnv({"every": 2, "stall": 0.2, "marker": str(tmp_path / "stalled")})
    env.reset(seed=1)
    asleep: list[float] = []
    monkeypatch.setattr(faulty, "time", types.SimpleNamespace(sleep=asleep.append))
    numbers = []
    for _ in range(4):
        env.step(0)
        numbers.append(len(asleep))
    assert numbers == [0, 1, 1, 1] and asleep == [0.2]
    slow = StallingEnv({"seconds": 0.05})
    slow.reset()
    slow.step(0)
    assert asleep == [0.2, 0.05]
    rare = CrashingEnv({"probability": 0.2})
    lengths = []
    for seed in (1, 1, 2, 3, 4):
        rare.reset(seed=seed)
        rare.steps = 0
        with pytest.raises(FaultyEnvError):
            over_and_over(lambda: rare.step(0))
        lengths.append(rare.steps)
    assert lengths[0] == lengths[1] and len(set(lengths)) > 1
