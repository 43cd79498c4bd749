"""What training reads and what evaluation steps are chosen apart: every pair of sources builds, runs and goes on."""

from __future__ import annotations

import json
import sys

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack import cli
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.execution.on_policy import OnPolicyStep
from jaxrl_stack.execution.training_step import Draws, TrainingStep
from jaxrl_stack.policy import Policy
from jaxrl_stack.policy.policy import has_connectors
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.devices import place_sharded
from jaxrl_stack.utils.resources import resource_bundles
from jaxrl_stack.utils.seeds import generator_state, set_generator_state
from tests.pickled_by_value import pickled_by_value

ON_DEVICE, ON_HOST = "gymnax/CartPole-v1", "CartPole-v1"
NUM_ROWS = 16
OBS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
DATA = {Columns.OBS: OBS, Columns.ACTIONS: (OBS[:, 2] > 0).astype(np.int32)}
HELD_OUT = {name: x[::-4].copy() for name, x in DATA.items()}


class IdleStep(TrainingStep):
    """Reads nothing and learns nothing."""

    needs_env = False
    num_updates = 0

    def plan(self, driver):
        self.rows_per_update = self.config.total_train_batch_size

    def __call__(self, state, place):
        return state, None

    def num_env_steps_trained(self, driver):
        return driver.num_updates * self.rows_per_update


class CloningStep(IdleStep):
    """Learns from the rows of `DATA`, which are on every device."""

    num_updates = 1

    def plan(self, driver):
        super().plan(driver)
        self._learner = driver.learner
        rows = self.rows_per_update // driver.learner.num_devices
        self.draws = {"rows": Draws(1, lambda key: jax.random.randint(key, (rows,), 0, len(OBS)), rows)}

    def init_kept(self):
        copies = {name: np.stack([x] * self._learner.num_devices) for name, x in DATA.items()}
        return place_sharded(copies, self._learner.devices)

    def __call__(self, state, place):
        state, index = place.draw(state, "rows")
        rows = {name: column[index] for name, column in state.kept.items()}
        state, learned, _ = place.update_rows(state, Experience.of_rows({DEFAULT_MODULE_ID: rows}))
        return state, learned


class FedStep(IdleStep):
    """Learns from the rows of `DATA`, which stay in the host's memory."""

    num_updates = 1
    reads_on_host = True

    def plan(self, driver):
        super().plan(driver)
        self._generator = np.random.default_rng(self.config.root_seed)

    def __call__(self, state, place):
        index = self._generator.integers(len(OBS), size=self.rows_per_update)
        rows = {name: column[index] for name, column in DATA.items()}
        state, learned, _ = place.update_rows(state, Experience.of_rows({DEFAULT_MODULE_ID: rows}))
        return place.publish(state), learned

    def get_state(self):
        return {"generator": generator_state(self._generator)}

    def set_state(self, state):
        set_generator_state(self._generator, state["generator"])


class HoldsOut(TrainingStep):
    """Evaluates on the rows of `HELD_OUT`."""

    def held_out_rows(self):
        return Experience.of_rows({"default_policy": HELD_OUT})


class SamplingAndHoldingOut(HoldsOut, OnPolicyStep):
    pass


class CloningAndHoldingOut(HoldsOut, CloningStep):
    pass


class FedAndHoldingOut(HoldsOut, FedStep):
    pass


class IdleAndHoldingOut(HoldsOut, IdleStep):
    pass


class CloningLearner(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls()
        actions = distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return -jnp.mean(actions.logp(batch[Columns.ACTIONS]))


class Cloning(PPO):
    training_step_class = CloningStep


class Fed(PPO):
    training_step_class = FedStep


class Idle(PPO):
    training_step_class = IdleStep


class SamplingEvaluatedOnData(PPO):
    training_step_class = SamplingAndHoldingOut


class CloningEvaluatedOnData(PPO):
    training_step_class = CloningAndHoldingOut


class FedEvaluatedOnData(PPO):
    training_step_class = FedAndHoldingOut


class IdleEvaluatedOnData(PPO):
    training_step_class = IdleAndHoldingOut


ON_DATA = {Cloning: CloningEvaluatedOnData, Fed: FedEvaluatedOnData, Idle: IdleEvaluatedOnData}


def config(training, evaluation=None, *, on_data=False, **evaluation_config):
    """`training` is the id of an environment, or the class of an algorithm that needs none."""
    needs_env = isinstance(training, str)
    algo_class = PPO if needs_env else training
    if on_data:
        algo_class = ON_DATA.get(training, SamplingEvaluatedOnData)
    own = PPOConfig(algo_class=algo_class)
    if needs_env:
        own.environment(training).env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    else:
        # Other bounds than CartPole's.
        space = gym.spaces.Box(-np.inf, np.inf, (4,))
        own.environment(observation_space=space, action_space=gym.spaces.Discrete(2))
        own.env_runners(num_envs_per_env_runner=4)
    if not needs_env or on_data:
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


SOURCES = {"device": ON_DEVICE, "host": ON_HOST, "data": Cloning, "host_data": Fed, "none": Idle}
EVERY_TRAINING = pytest.mark.parametrize("training", SOURCES.values(), ids=SOURCES)
EVERY_WITHOUT_ENV = pytest.mark.parametrize("training", [Cloning, Fed, Idle], ids=["data", "host_data", "none"])
DATA_EVALUATED = pytest.mark.parametrize(
    ("training", "evaluation"), [(Cloning, ON_HOST), (Fed, ON_DEVICE)], ids=["data-on_host", "host_data-on_device"]
)
BOTH_DATA = pytest.mark.parametrize("training", [Cloning, Fed], ids=["data", "host_data"])


def returns(result):
    results = result["env_runners"]
    return {name: results[name] for name in results if name.startswith(("episode_return", "episode_len"))}


# Of training in an environment with both kinds, the other ones with one each.
@pytest.mark.parametrize(
    ("training", "evaluation"),
    [
        (ON_DEVICE, ON_DEVICE),
        (ON_DEVICE, ON_HOST),
        (ON_HOST, ON_DEVICE),
        (ON_HOST, ON_HOST),
        (Cloning, ON_HOST),
        (Fed, ON_DEVICE),
        (Idle, ON_HOST),
    ],
)
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
    # Without an environment these are the connectors that policies act with.
    assert (tmp_path / "saved" / "eval_env_runner").exists() == (not isinstance(training, str))
    weights = algo.train() and algo.get_weights()
    algo.restore_from_path(path)
    algo.train()
    if training != ON_HOST:  # its environments start with new episodes
        jax.tree.map(np.testing.assert_array_equal, weights, algo.get_weights())
    assert algo.memory_estimate()["train_batch"]["num_rows"] == NUM_ROWS
    algo.stop()


@EVERY_WITHOUT_ENV
def test_without_any_environment_it_acts_by_spaces_and_says_where_one_can_be_set(training, tmp_path):
    algo = config(training).build_algo()
    with pytest.raises(ValueError, match=r"needs an environment.*environment\(...\), or evaluation\(evaluation_c"):
        algo.evaluate()
    algo.train()
    expected = np.argmax(algo.get_module().forward_inference({"obs": OBS[:8]})["action_dist_inputs"], axis=-1)
    assert [algo.compute_single_action(obs, explore=False) for obs in OBS[:8]] == expected.tolist()
    path = algo.save_to_path(tmp_path / "saved")
    for policy in (algo.get_policy(), Policy.from_checkpoint(path)):
        assert policy.compute_actions(OBS[:8])[0].tolist() == expected.tolist()
    restored = type(algo).from_checkpoint(path, config=config(training))
    assert restored.get_policy().compute_single_action(OBS[0])[0] == expected[0]
    restored.stop()
    assert algo.eval_env_runner is None and algo.driver.env_to_module_state() == {}
    assert algo.env_runner is None and algo.env_runner_group.num_healthy_env_runners() == 0
    own = config(training).evaluation(custom_evaluation_function=lambda algorithm, group: ({"on data": 1.0}, 0, 0))
    algo.stop()
    algo = own.build_algo()
    assert algo.evaluate()["env_runners"]["on data"] == 1.0
    algo.stop()


def test_connectors_that_need_an_environment_say_so():
    of_env = lambda env, spaces, device: FrameStackingEnvToModule(num_frames=env.num_frames)  # noqa: E731
    with pytest.raises(ValueError, match="Without an environment, the connectors.*num_frames.*environment\\(...\\)"):
        config(Cloning).env_runners(env_to_module_connector=of_env).build_algo()


def test_a_run_whose_module_cannot_act_by_spaces_says_that_its_checkpoints_hold_no_policy(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(notices, "_given", set())
    algo = config(Cloning).build_algo()

    def refuse(self):
        raise ValueError("no module")

    monkeypatch.setattr(type(algo.driver.evaluation), "_make_runner", refuse)
    with caplog.at_level("WARNING"):
        path = algo.save_to_path(tmp_path / "saved")
    assert "Policy.from_checkpoint() cannot load the checkpoints of this run" in caplog.text
    with pytest.raises(ValueError, match="has no connectors: its run had no environment"):
        Policy.from_checkpoint(path)
    assert not has_connectors(path), "its module is evaluated on data"
    algo.restore_from_path(path)
    algo.stop()


def test_a_state_of_training_on_data_goes_on_with_another_number_of_devices(tmp_path):
    algo, other = (config(Cloning).learners(num_cpus_per_learner=n).build_algo() for n in (1, 2))
    algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    results = []
    for _ in range(2):
        other.restore_from_path(path)
        jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), other.get_weights())
        results.append(other.train()["learners"]["default_policy"]["total_loss"])
    assert results[0] == results[1]
    algo.stop()
    other.stop()


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
        own._iterations.done = 1
    results = [own.evaluate() for own in (algo, other)]
    assert returns(results[0]) == returns(results[1])
    assert results[0].keys() == results[1].keys()
    assert results[0]["env_runners"].keys() == results[1]["env_runners"].keys()
    algo.stop()
    other.stop()


@DATA_EVALUATED
def test_what_was_cloned_acts(training, evaluation):
    """Data in which the pole is followed; an evaluation sees what it has taught, and so does a policy that serves."""
    asked = config(training, evaluation, explore=False).reporting(min_train_timesteps_per_iteration=NUM_ROWS * 100)
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


def test_over_data_evaluation_has_pipelines_of_its_own():
    connectors = lambda *args: [MeanStdFilter(), FrameStackingEnvToModule(num_frames=1)]  # noqa: E731
    algo = config(Cloning, ON_DEVICE, env_to_module_connector=connectors).build_algo()
    algo.train()
    assert algo.evaluate()["env_runners"]["num_episodes"] == 6
    assert "env_to_module=['MeanStdFilter', 'FrameStacking']" in repr(algo.get_policy())
    algo.stop()


@DATA_EVALUATED
def test_an_environment_beside_the_data_is_for_evaluation_and_for_its_spaces(training, evaluation):
    own = config(training).environment(evaluation, observation_space=None, action_space=None)
    algo, other = own.build_algo(), config(training, evaluation).build_algo()
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

    assert "env_step_timer" in evaluated()["env_runners"]
    assert "env_step_timer" not in evaluated("--env", ON_DEVICE)["env_runners"]


# ----------------------------------------------------------------------------------------------------------- on data


def loss_of_cloning(algo):
    """The negative log-likelihood of the actions of `HELD_OUT`, by hand."""
    logits = np.asarray(algo.get_module().forward_inference({Columns.OBS: HELD_OUT[Columns.OBS]})["action_dist_inputs"])
    chosen = logits[np.arange(len(logits)), HELD_OUT[Columns.ACTIONS]]
    return float(np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen))


def on_data(evaluated):
    return evaluated["offline_eval_runners"]["default_policy"]["total_eval_loss"]


@pytest.mark.parametrize(
    ("training", "evaluation"),
    [(ON_DEVICE, ON_HOST), (ON_HOST, None), (Cloning, ON_HOST), (Fed, None), (Idle, None)],
    ids=["device-data+host", "host-data", "data-data+host", "host_data-data", "none-data"],
)
def test_an_evaluation_on_data_is_the_loss_of_rows_that_are_held_out(training, evaluation, tmp_path):
    asked = config(training, evaluation, on_data=True).evaluation(evaluation_interval=1)
    algo = asked.build_algo()
    evaluated = algo.train()["evaluation"]
    assert on_data(evaluated) == pytest.approx(loss_of_cloning(algo), rel=1e-5)
    result = algo.train()
    assert result["timers"]["compile_s"] == 0.0
    evaluated = result["evaluation"]
    assert on_data(evaluated) == pytest.approx(loss_of_cloning(algo), rel=1e-5)
    of_data, num_rows, updates = evaluated["offline_eval_runners"], len(HELD_OUT[Columns.OBS]), algo.driver.num_updates
    assert of_data["default_policy"]["num_module_steps_sampled"] == num_rows
    assert of_data["default_policy"]["weights_seq_no"] == of_data["weights_seq_no"] == updates
    assert of_data["__all_modules__"]["num_env_steps_sampled_lifetime"] == 2 * num_rows
    assert of_data["__all_modules__"]["dataset_num_iters_evaluated_lifetime"] == 2
    if evaluation is not None:
        assert evaluated["env_runners"]["num_episodes"] == 6
    path = algo.save_to_path(tmp_path / "saved")
    restored = type(algo).from_checkpoint(path, config=asked)
    assert restored.evaluate()["offline_eval_runners"] == algo.evaluate()["offline_eval_runners"]
    # An environment to train on is evaluated in, too.
    assert ("env_runners" in algo.evaluate()) == (evaluation is not None or isinstance(training, str))
    algo.stop()
    restored.stop()


@pytest.mark.parametrize("training", [ON_DEVICE, Fed], ids=["device", "host_data"])
def test_an_evaluation_on_data_leaves_training_as_it_is(training):
    evaluated = config(training, on_data=True).evaluation(evaluation_interval=1).build_algo()
    other = config(training, on_data=True).build_algo()
    for _ in range(2):
        results = evaluated.train(), other.train()
        learned = [result["learners"]["default_policy"].get("total_loss") for result in results]
        np.testing.assert_equal(*learned)
        before = evaluated.learner.state
        evaluated.evaluate()
        assert evaluated.learner.state is before
    jax.tree.map(np.testing.assert_array_equal, evaluated.get_weights(), other.get_weights())
    evaluated.stop()
    other.stop()


class LoggingLearner(CloningLearner):
    def compute_losses(self, *, fwd_out, batch):
        losses = super().compute_losses(fwd_out=fwd_out, batch=batch)
        logits = fwd_out["default_policy"][Columns.ACTION_DIST_INPUTS]
        self.metrics.log_value(("default_policy", "largest"), logits.max(), reduce="max")
        self.metrics.log_value(("__all_modules__", "num_rows"), len(logits), reduce="sum")
        return losses


@BOTH_DATA
def test_what_the_loss_logs_is_beside_it(training):
    algo = config(training, on_data=True).learners(learner_class=LoggingLearner, num_cpus_per_learner=2).build_algo()
    evaluated = algo.evaluate()
    of_data = evaluated["offline_eval_runners"]
    logits = algo.get_module().forward_inference({Columns.OBS: HELD_OUT[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
    assert of_data["default_policy"]["largest"] == pytest.approx(float(np.max(logits)), rel=1e-5)
    assert on_data(evaluated) == pytest.approx(loss_of_cloning(algo), rel=1e-5)
    counts = {"num_rows": 16, "num_env_steps_sampled": 16, "dataset_num_iters_evaluated": 1}
    assert counts.items() <= of_data["__all_modules__"].items()
    algo.stop()


class Dropping(DefaultPPORLModule):
    """Drops half of its inputs at random while it is trained."""

    def setup(self):
        super().setup()
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)

    def _forward_train(self, batch, **kwargs):
        return super()._forward_train({**batch, Columns.OBS: self.dropout(batch[Columns.OBS])}, **kwargs)


def test_random_layers_draw_from_a_seed_of_the_evaluation():
    asked = config(Cloning, on_data=True).rl_module(rl_module_spec=RLModuleSpec(module_class=Dropping))
    algo, other = asked.build_algo(), asked.build_algo()
    losses = [on_data(algo.evaluate()) for _ in range(2)]
    assert losses[0] != losses[1] and on_data(other.evaluate()) == losses[0]
    algo.train()
    other.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), other.get_weights())
    algo.stop()
    other.stop()


@BOTH_DATA
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (HELD_OUT, TypeError, r"held_out_rows\(\) returned dict.*Return Experience.of_rows\("),
        (Experience.of_steps({"default_policy": {"obs": OBS[None]}}), TypeError, "Return Experience.of_rows"),
        (
            Experience.of_rows({"default_policy": {"obs": OBS[:0]}}),
            ValueError,
            "Return at least one row for each module in the result, or None",
        ),
        (
            Experience.of_rows({"other": HELD_OUT}),
            ValueError,
            r"rows of unknown modules \['other'\]. Return rows of \['default_po",
        ),
        (
            Experience.of_rows({"default_policy": {"obs": OBS[:7]}}),
            ValueError,
            "7.*multiple of .* 2 devices.*Return a multiple of 2",
        ),
    ],
    ids=["dict", "steps", "none", "other_module", "odd"],
)
def test_what_cannot_be_evaluated_on_is_refused_when_it_is_built(training, rows, error, message, monkeypatch):
    monkeypatch.setattr(HoldsOut, "held_out_rows", lambda self: rows)
    with pytest.raises(error, match=message):
        config(training, on_data=True).learners(num_cpus_per_learner=2).build_algo()


# ---------------------------------------------------------------------------------------------------------- refusals


@EVERY_WITHOUT_ENV
def test_an_interval_of_evaluations_needs_something_to_evaluate_on(training):
    with pytest.raises(
        ValueError, match=r"evaluation\(evaluation_interval=2\) needs an environment.*held_out_rows\(\)"
    ):
        config(training).evaluation(evaluation_interval=2).build_algo()


def test_settings_of_sampling_are_named_where_nothing_is_sampled(caplog):
    beside = {"observation_space": None, "action_space": None}
    asked = config(Cloning).environment(ON_HOST, **beside).evaluation(evaluation_num_env_runners=1)
    asked.env_runners(num_env_runners=2, rollout_fragment_length=3, batch_mode="complete_episodes")
    asked.reporting(min_sample_timesteps_per_iteration=100).learners(num_learners=1).validate()
    for name in ("num_env_runners=2", "rollout_fragment_length=3", "batch_mode='complete_episodes'", "min_sample_time"):
        assert f"{name}" in caplog.text
    assert caplog.text.count("has no effect: training reads data, and samples nothing.") == 4
    assert asked.num_sampling_actors == 0 and asked.num_evaluation_actors == 1 and asked.is_offline
    assert len(resource_bundles(asked, main_process=False)[0]) == 2  # evaluation's and the learner's
    caplog.clear()
    config(Fed).evaluation(evaluation_num_env_runners=2).validate()
    assert "evaluation_num_env_runners=2) has no effect: there is no environment to evaluate in" in caplog.text


@BOTH_DATA
def test_an_iteration_over_data_does_not_wait_for_samples(training, caplog):
    algo = config(training).reporting(min_sample_timesteps_per_iteration=5).build_algo()
    algo.train()
    assert algo.driver.num_updates == 1 and "is sampled in this process" not in caplog.text
    algo.stop()


@BOTH_DATA
def test_a_step_without_environments_plans_no_samples(training, monkeypatch):
    monkeypatch.setattr(IdleStep, "plan", lambda self, driver: driver.plan_samples(4))
    with pytest.raises(ValueError, match=r"Step.plan\(\) calls plan_samples\(\), but .*needs_env is False"):
        config(training).build_algo()


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
    with pytest.raises(ValueError, match=r"observation_space is Box\(.*\(3,\).* \(4,\).* in training"):
        config(training, evaluation).evaluation(evaluation_interval=1).build_algo()


def test_a_duration_of_auto_needs_a_host_environment():
    wanted = {"evaluation_parallel_to_training": True, "evaluation_num_env_runners": 1, "evaluation_duration": "auto"}
    config(ON_DEVICE, ON_HOST).evaluation(**wanted).validate()
    for training in (ON_DEVICE, ON_HOST):
        with pytest.raises(ValueError, match="evaluation_duration='auto'.*'gymnax/CartPole-v1'.*Use a number"):
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
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


def test_actors_evaluate_beside_training_on_the_device(fake_ray):
    actors = {"evaluation_num_env_runners": 1, "evaluation_interval": 1, "evaluation_parallel_to_training": True}
    asked = config(ON_DEVICE, ON_HOST).evaluation(**actors, evaluation_unhealthy_workers_timeout_s=60.0)
    asked.callbacks(Recreated)
    algo, local = asked.build_algo(), config(ON_DEVICE, ON_HOST).build_algo()
    assert algo.eval_env_runner is None and algo.eval_env_runner_group.num_remote_env_runners() == 1
    # With the weights from before the iteration.
    beside = algo.train()["evaluation"]
    assert beside["num_healthy_workers"] == 1
    assert returns(beside) == returns(local.evaluate())
    # One that is lost comes back.
    fake_ray.lose(fake_ray.handles[0])
    Recreated.seen.clear()
    evaluations = [algo.train()["evaluation"] for _ in range(3)]
    assert Recreated.seen == [True] and evaluations[-1]["num_remote_worker_restarts"] == 1
    algo.stop()
    local.stop()


@pytest.mark.usefixtures("fake_ray")
def test_what_learner_actors_learn_is_evaluated_in_this_process(tmp_path):
    """Their weights are fetched for it: it is the evaluation of a learner that is here."""
    local = config(ON_DEVICE, ON_HOST, on_data=True).evaluation(evaluation_interval=1)
    asked = local.copy().learners(num_learners=1)
    algo, other = asked.build_algo(), local.build_algo()
    results = [own.train()["evaluation"] for own in (algo, other)]
    assert returns(results[0]) == returns(results[1])
    assert results[0]["env_runners"].keys() == results[1]["env_runners"].keys()
    assert results[0]["offline_eval_runners"] == results[1]["offline_eval_runners"]
    assert on_data(results[0]) == pytest.approx(loss_of_cloning(algo), rel=1e-5)
    action = [own.compute_single_action(OBS[0], explore=False) for own in (algo, other)]
    assert action[0] == action[1] == algo.get_policy().compute_single_action(OBS[0])[0]
    algo.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    assert (tmp_path / "saved" / "eval_env_runner").is_dir()
    assert returns(algo.evaluate()) == returns(other.evaluate())
    algo.stop()
    other.stop()


@pytest.mark.usefixtures("own_classes")
@BOTH_DATA
def test_two_learner_actors_learn_from_data_and_evaluate_on_it_as_one_learner_of_two_devices(training, tmp_path):
    asked = config(training, on_data=True).evaluation(evaluation_interval=1)
    joined = asked.copy().training(train_batch_size_per_learner=NUM_ROWS // 2).learners(num_learners=2)
    algo, other = joined.build_algo(), asked.learners(num_cpus_per_learner=2).build_algo()
    results = [own.train() for own in (algo, other)]
    losses = [on_data(result["evaluation"]) for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == pytest.approx(loss_of_cloning(other), rel=1e-5)
    counts = [result["evaluation"]["offline_eval_runners"]["__all_modules__"] for result in results]
    assert counts[0] == counts[1]
    trained = [result["learners"]["default_policy"]["num_module_steps_trained"] for result in results]
    assert trained == [NUM_ROWS, NUM_ROWS]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), algo.get_weights(), other.get_weights()
    )
    algo.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    assert on_data(algo.evaluate()) == losses[0]
    algo.stop()
    other.stop()


@pytest.mark.usefixtures("fake_ray")
def test_beside_training_the_weights_from_before_it_are_evaluated_on_data():
    actors = {"evaluation_num_env_runners": 1, "evaluation_interval": 1, "evaluation_parallel_to_training": True}
    algo = config(Fed, ON_HOST, on_data=True).evaluation(**actors).build_algo()
    before = loss_of_cloning(algo)
    evaluated = algo.train()["evaluation"]
    assert evaluated["env_runners"]["num_episodes"] == 6
    assert on_data(evaluated) == pytest.approx(before, rel=1e-5) != pytest.approx(loss_of_cloning(algo), rel=1e-5)
    algo.stop()


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
