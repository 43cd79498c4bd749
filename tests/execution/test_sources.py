"""What training reads and what evaluation steps are chosen apart: every pair of sources builds, runs and goes on."""

from __future__ import annotations

import json
import os
import sys

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack import cli
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.execution.training_step import Draws, TrainingStep
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.devices import place_sharded

ON_DEVICE, ON_HOST = "gymnax/CartPole-v1", "CartPole-v1"
NUM_ROWS = 16
OBS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
DATA = {Columns.OBS: OBS, Columns.ACTIONS: (OBS[:, 2] > 0).astype(np.int32)}


class IdleStep(TrainingStep):
    """Reads nothing and learns nothing."""

    needs_env = False
    num_updates = 0

    def plan(self, driver):
        self.rows_per_update = NUM_ROWS

    def __call__(self, state, place):
        return state, None

    def num_env_steps_trained(self, driver):
        return driver.num_updates * NUM_ROWS


class CloningStep(IdleStep):
    """Learns from the rows of `DATA`."""

    num_updates = 1

    def plan(self, driver):
        super().plan(driver)
        self._devices = driver.learner.devices
        self.draws = {"rows": Draws(1, lambda key: jax.random.randint(key, (NUM_ROWS,), 0, len(OBS)), NUM_ROWS)}

    def init_kept(self):
        return place_sharded({name: x[None] for name, x in DATA.items()}, self._devices)

    def __call__(self, state, place):
        state, index = place.draw(state, "rows")
        rows = {name: column[index] for name, column in state.kept.items()}
        state, learned, _ = place.update_rows(state, Experience.of_rows({place.module_id: rows}))
        return state, learned


class CloningLearner(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls()
        actions = distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return -jnp.mean(actions.logp(batch[Columns.ACTIONS]))


class Cloning(PPO):
    training_step_class = CloningStep


class Idle(PPO):
    training_step_class = IdleStep


def config(training, evaluation=None, **evaluation_config):
    """`training` is the id of an environment, or the class of an algorithm that needs none."""
    needs_env = isinstance(training, str)
    own = PPOConfig() if needs_env else PPOConfig(algo_class=training)
    if needs_env:
        own.environment(training).env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    else:
        # Other bounds than CartPole's.
        space = gym.spaces.Box(-np.inf, np.inf, (4,))
        own.environment(observation_space=space, action_space=gym.spaces.Discrete(2))
        own.env_runners(num_envs_per_env_runner=4)
        own.learners(learner_class=CloningLearner, add_default_connectors_to_learner_pipeline=False)
    if evaluation is not None:
        evaluation_config = {"env": evaluation, **evaluation_config}
    return (
        own.training(train_batch_size_per_learner=NUM_ROWS, minibatch_size=None, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .evaluation(evaluation_duration=6, evaluation_config=evaluation_config or None)
        .debugging(seed=3)
    )


SOURCES = {"device": ON_DEVICE, "host": ON_HOST, "data": Cloning, "none": Idle}
EVERY_TRAINING = pytest.mark.parametrize("training", SOURCES.values(), ids=SOURCES)
BOTH_EVALUATIONS = pytest.mark.parametrize("evaluation", [ON_DEVICE, ON_HOST], ids=["on_device", "on_host"])
BOTH_WITHOUT_ENV = pytest.mark.parametrize("training", [Cloning, Idle], ids=["data", "none"])


def returns(result):
    results = result["env_runners"]
    return {name: results[name] for name in results if name.startswith(("episode_return", "episode_len"))}


@EVERY_TRAINING
@BOTH_EVALUATIONS
def test_it_trains_evaluates_and_goes_on(training, evaluation, tmp_path):
    asked = config(training, evaluation).evaluation(evaluation_interval=1)
    algo = asked.build_algo()
    result = algo.train()
    evaluated = result["evaluation"]["env_runners"]
    assert evaluated["num_episodes"] == 6 <= evaluated["num_env_steps_sampled"]
    assert 8 <= evaluated["episode_len_min"] <= evaluated["episode_return_mean"] <= evaluated["episode_return_max"]
    updates = {Idle: 0}.get(training, 1)
    assert algo.driver.num_updates == updates
    assert result["num_env_steps_sampled_lifetime"] == (NUM_ROWS if isinstance(training, str) else 0)
    path = algo.save_to_path(tmp_path / "saved")
    assert (tmp_path / "saved" / "eval_env_runner").is_dir()
    restored = type(algo).from_checkpoint(path, config=asked)
    assert returns(restored.evaluate()) == returns(algo.evaluate())
    jax.tree.map(np.testing.assert_array_equal, restored.get_weights(), algo.get_weights())
    algo.stop()
    restored.stop()


@EVERY_TRAINING
def test_it_trains_without_evaluation(training, tmp_path):
    algo = config(training).build_algo()
    assert "evaluation" not in algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    assert not (tmp_path / "saved" / "eval_env_runner").exists()
    algo.restore_from_path(path)
    algo.stop()


@BOTH_WITHOUT_ENV
def test_without_any_environment_it_says_where_one_can_be_set(training):
    algo = config(training).build_algo()
    for call in (algo.evaluate, algo.get_policy, lambda: algo.compute_single_action(OBS[0])):
        with pytest.raises(ValueError, match=r"needs an environment.*environment\(...\), or evaluation\(evaluation_c"):
            call()
    assert algo.eval_env_runner is None and algo.driver.env_to_module_state() == {}
    own = config(training).evaluation(custom_evaluation_function=lambda algorithm, group: ({"on data": 1.0}, 0, 0))
    algo.stop()
    algo = own.build_algo()
    assert algo.evaluate()["env_runners"]["on data"] == 1.0
    algo.stop()


# --------------------------------------------------------------------------------------------- the same as of one kind


@pytest.mark.parametrize(("training", "evaluation"), [(ON_DEVICE, ON_HOST), (ON_HOST, ON_DEVICE)])
def test_the_same_weights_are_evaluated_as_where_training_has_that_environment(training, evaluation):
    """One seed makes the same episodes, whatever the weights were trained in."""
    algo, other = config(training, evaluation).build_algo(), config(evaluation).build_algo()
    algo.train()
    weights = algo.get_weights()
    other.set_weights(weights)
    for own in (algo, other):
        # As if both had trained as long.
        own._iteration = 1
    results = [own.evaluate() for own in (algo, other)]
    assert returns(results[0]) == returns(results[1])
    assert results[0].keys() == results[1].keys()
    assert results[0]["env_runners"].keys() == results[1]["env_runners"].keys()
    algo.stop()
    other.stop()


@BOTH_EVALUATIONS
def test_what_was_cloned_acts(evaluation):
    """Data in which the pole is followed; an evaluation sees what it has taught, and so does who serves it."""
    asked = config(Cloning, evaluation, explore=False).reporting(min_train_timesteps_per_iteration=NUM_ROWS * 100)
    algo = asked.build_algo()
    before = algo.evaluate()["env_runners"]["episode_return_mean"]
    algo.train()
    assert algo.evaluate()["env_runners"]["episode_return_mean"] > max(35.0, before)
    policy = algo.get_policy()
    clear = np.flatnonzero(np.abs(OBS[:, 2]) > 0.5)[:5]
    for obs, action in zip(OBS[clear], DATA[Columns.ACTIONS][clear], strict=True):
        assert algo.compute_single_action(obs, explore=False) == action
        assert policy.compute_single_action(obs)[0] == action
    algo.stop()


@pytest.mark.parametrize(("training", "evaluation"), [(ON_DEVICE, ON_HOST), (ON_HOST, ON_DEVICE)])
def test_statistics_of_training_are_those_of_evaluation(training, evaluation):
    algo = (
        config(training, evaluation).env_runners(env_to_module_connector=lambda *args: [MeanStdFilter()]).build_algo()
    )
    algo.train()
    algo.evaluate()
    state = algo.eval_env_runner.get_state("env_to_module_connector")["env_to_module_connector"]
    of_training = algo.driver.env_to_module_state()["MeanStdFilter"]["default_policy"]["base"]["obs"]
    of_evaluation = state["MeanStdFilter"]["default_policy"]["base"]["obs"]
    assert to_int(of_evaluation["count"]) == NUM_ROWS
    np.testing.assert_array_equal(of_evaluation["mean"], of_training["mean"])
    algo.stop()


@BOTH_EVALUATIONS
def test_over_data_evaluation_has_pipelines_of_its_own(evaluation):
    connectors = lambda *args: [MeanStdFilter(), FrameStackingEnvToModule(num_frames=1)]  # noqa: E731
    algo = config(Cloning, evaluation, env_to_module_connector=connectors).build_algo()
    algo.train()
    assert algo.evaluate()["env_runners"]["num_episodes"] == 6
    assert "env_to_module=['MeanStdFilter', 'FrameStacking']" in repr(algo.get_policy())
    algo.stop()


@BOTH_EVALUATIONS
def test_an_environment_beside_the_data_is_for_evaluation_and_for_its_spaces(evaluation):
    own = config(Cloning).environment(evaluation, observation_space=None, action_space=None)
    algo, other = own.build_algo(), config(Cloning, evaluation).build_algo()
    assert algo.train()["num_env_steps_sampled_lifetime"] == 0
    other.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), other.get_weights())
    assert returns(algo.evaluate()) == returns(other.evaluate())
    algo.stop()
    other.stop()


def test_schedules_are_read_at_the_steps_of_training():
    base = (
        DQNConfig()
        .environment(ON_DEVICE)
        .env_runners(num_envs_per_env_runner=4)
        .training(epsilon=0.0, num_steps_sampled_before_learning_starts=1000)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []})
        .learners(num_cpus_per_learner=1)
        .reporting(min_sample_timesteps_per_iteration=8)
        .debugging(seed=2)
    )

    def algorithm(epsilon):
        own = {"env": ON_HOST, "explore": True, "epsilon": epsilon}
        return base.copy().evaluation(evaluation_duration=20, evaluation_config=own).build_algo()

    greedy, later = algorithm(0.0), algorithm([[0, 1.0], [8, 0.0]])
    assert returns(greedy.evaluate()) != returns(later.evaluate())
    for algo in (greedy, later):
        algo.train()
    assert returns(greedy.evaluate()) == returns(later.evaluate())
    greedy.stop()
    later.stop()


@pytest.mark.parametrize(("training", "evaluation"), [(ON_DEVICE, ON_HOST), (ON_HOST, ON_DEVICE)])
def test_a_reset_starts_evaluation_anew(training, evaluation):
    algo = config(training, evaluation).build_algo()
    first = returns(algo.evaluate())
    algo.train()
    assert returns(algo.evaluate()) != first
    assert algo.reset(config(training, evaluation).training(lr=0.02))
    assert returns(algo.evaluate()) == first
    algo.stop()


def test_a_video_of_a_host_environment_beside_training_on_the_device(tmp_path):
    algo = config(ON_DEVICE, ON_HOST).build_algo()
    episodes, fps = algo.driver.record(0, 0, 2)
    evaluated = algo.evaluate()["env_runners"]
    assert fps == 50.0 and len(episodes) == 2
    assert all(len(episode.rewards) <= evaluated["episode_len_max"] for episode in episodes)
    algo.stop()


@pytest.mark.parametrize(("training", "name"), [(ON_DEVICE, "ON_DEVICE"), (Cloning, "Cloning")], ids=["device", "data"])
def test_the_command_line_evaluates_in_the_environment_that_it_names(training, name, tmp_path, capsys):
    algo = config(training, ON_HOST).build_algo()
    path = algo.save_to_path(tmp_path / "saved")
    algo.stop()
    file = tmp_path / "experiment.py"
    file.write_text(f"import sys\nhere = sys.modules[{__name__!r}]\nconfig = here.config(here.{name}, here.ON_HOST)\n")

    def evaluated(*more):
        assert cli.main(["evaluate", path, "--episodes", "3", "--json", "--config-file", str(file), *more]) == 0
        return json.loads(capsys.readouterr().out)

    assert "num_healthy_workers" in evaluated()
    assert "num_healthy_workers" not in evaluated("--env", ON_DEVICE)


# ---------------------------------------------------------------------------------------------------------- refusals


class Elsewhere(gym.Env):
    """Three numbers in place of four."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


@EVERY_TRAINING
@pytest.mark.parametrize("evaluation", ["gymnax/Pendulum-v1", Elsewhere])
def test_other_spaces_are_refused_by_both_names(training, evaluation):
    with pytest.raises(ValueError, match=r"observation_space is Box\(.*\(3,\).* in training it is Box\(.*\(4,\).*"):
        config(training, evaluation).evaluation(evaluation_interval=1).build_algo()


def test_a_duration_of_auto_needs_a_host_environment():
    wanted = {"evaluation_parallel_to_training": True, "evaluation_num_env_runners": 1, "evaluation_duration": "auto"}
    config(ON_DEVICE, ON_HOST).evaluation(**wanted).validate()
    for training in (ON_DEVICE, ON_HOST):
        with pytest.raises(ValueError, match="evaluation_duration='auto'.*'gymnax/CartPole-v1'.*give the number"):
            config(training, ON_DEVICE).evaluation(**wanted).validate()


def test_a_runner_class_of_training_is_not_one_of_a_jax_evaluation():
    class Own(SingleAgentEnvRunner):
        pass

    own = config(ON_HOST, ON_DEVICE).env_runners(env_runner_cls=Own)
    own.validate()
    with pytest.raises(ValueError, match=r"evaluation_config=\{'env_runner_cls'.*needs a host environment"):
        config(ON_DEVICE, ON_DEVICE, env_runner_cls=Own).validate()
    config(ON_DEVICE, ON_HOST, env_runner_cls=Own).validate()


def test_settings_that_nothing_reads_are_named(caplog):
    config(ON_HOST, ON_DEVICE).evaluation(evaluation_num_env_runners=3).env_runners(sample_timeout_s=5.0).validate()
    assert "evaluation_num_env_runners=3) has no effect" in caplog.text and "sample_timeout_s" not in caplog.text
    caplog.clear()
    other = config(ON_DEVICE, ON_HOST).evaluation(evaluation_num_env_runners=4)
    other.env_runners(sample_timeout_s=6.0, num_cpus_per_env_runner=0.5).validate()
    assert "sample_timeout_s=6.0) has no effect" in caplog.text
    assert "evaluation_num_env_runners" not in caplog.text and "num_cpus_per_env_runner" not in caplog.text


# ------------------------------------------------------------------------------------------------------------- actors


class Recreated(RLlibCallback):
    """Which groups have taken actors back."""

    seen: list[bool] = []

    def on_env_runners_recreated(self, *, env_runner_group, is_evaluation, **kwargs):
        assert isinstance(env_runner_group, EnvRunnerGroup)
        self.seen.append(is_evaluation)


@pytest.fixture
def own_classes(ray_session):
    """Actors get the classes of this file by value."""
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray_session.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("own_classes")
@pytest.mark.parametrize("training", [ON_DEVICE, Cloning], ids=["device", "data"])
def test_actors_evaluate_beside_training_on_the_device(training):
    actors = {"evaluation_num_env_runners": 1, "evaluation_interval": 1, "evaluation_parallel_to_training": True}
    asked = config(training, ON_HOST).evaluation(**actors, evaluation_unhealthy_workers_timeout_s=60.0)
    asked.callbacks(Recreated)
    algo, local = asked.build_algo(), config(training, ON_HOST).build_algo()
    assert algo.eval_env_runner is None and algo.eval_env_runner_group.num_remote_env_runners() == 1
    # With the weights from before the iteration.
    beside = algo.train()["evaluation"]
    assert beside["num_healthy_workers"] == 1
    assert returns(beside) == returns(local.evaluate())
    # One that is lost comes back.
    algo.eval_env_runner_group.foreach_env_runner(lambda runner: os._exit(1), timeout_seconds=0.0)
    Recreated.seen.clear()
    evaluations = [algo.train()["evaluation"] for _ in range(3)]
    assert Recreated.seen == [True] and evaluations[-1]["num_remote_worker_restarts"] == 1
    algo.stop()
    local.stop()


@pytest.mark.usefixtures("own_classes")
@pytest.mark.parametrize(
    ("training", "evaluation"),
    [(ON_HOST, ON_DEVICE), (ON_DEVICE, ON_HOST), (Cloning, ON_HOST)],
    ids=["host-on_device", "device-on_host", "data-on_host"],
)
def test_what_learner_actors_learn_is_evaluated_in_this_process(training, evaluation, tmp_path):
    """Their weights are fetched for it: it is the evaluation of a learner that is here."""
    local = config(training, evaluation).evaluation(evaluation_interval=1)
    asked = local.copy().learners(num_learners=1)
    algo, other = asked.build_algo(), local.build_algo()
    results = [own.train()["evaluation"] for own in (algo, other)]
    assert returns(results[0]) == returns(results[1])
    assert results[0]["env_runners"].keys() == results[1]["env_runners"].keys()
    action = [own.compute_single_action(OBS[0], explore=False) for own in (algo, other)]
    assert action[0] == action[1] == algo.get_policy().compute_single_action(OBS[0])[0]
    algo.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    assert (tmp_path / "saved" / "eval_env_runner").is_dir()
    assert returns(algo.evaluate()) == returns(other.evaluate())
    algo.stop()
    other.stop()


def test_a_registered_environment_is_asked_once_what_it_is():
    made = []

    def make(context):
        made.append(context)
        return gym.make("CartPole-v1")

    register_env("only-evaluated", make)
    asked = config(Cloning, "only-evaluated")
    for _ in range(2):
        asked.validate()
    assert not asked.get_evaluation_config_object().samples_on_device and len(made) == 1
    algo = asked.build_algo()
    assert algo.evaluate()["env_runners"]["num_episodes"] == 6
    algo.stop()
