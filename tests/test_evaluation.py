"""Evaluation on both kinds of environments: fresh episodes in every call, and settings of its own."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_config_class
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.checks import check_module_outputs
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole as HostCartPoles
from jaxrl_stack.examples.envs.multi_agent import MultiAgentCartPole as DeviceCartPoles
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.results import flatten_result
from tests import programs

LENGTH = 4


class Inspector(ConfiguredEnv):
    """Four steps of observation 100; pays how far an action is outside of its bounds, and 10 for a zero."""

    defaults = {"bonus": 0.0}

    @property
    def observation_space(self):
        return Box(0.0, 200.0, (1,), np.float32)

    @property
    def action_space(self):
        return Box(-0.25, 0.25, (1,), np.float32)

    def reset_env(self, key, params):
        return jnp.full((1,), 100.0), jnp.int32(0)

    def step_env(self, key, state, action, params):
        outside = jnp.maximum(jnp.abs(action[0]) - 0.25, 0.0) + jnp.where(action[0] == 0.0, 10.0, 0.0)
        return jnp.full((1,), 100.0), state + 1, outside + self.settings["bonus"], state + 1 == LENGTH, False, {}


register_env("inspector-on-host", lambda config: GymnasiumFromJax(Inspector, config))
BOTH = pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
INSPECTED = pytest.mark.parametrize("env", [Inspector, "inspector-on-host"], ids=["device", "host"])


def config(env, **evaluation_config):
    return (
        programs.ppo(env)
        .environment(normalize_actions=False)
        .evaluation(evaluation_duration=20, evaluation_config=evaluation_config or None)
        .debugging(seed=2)
    )


def evaluated(config):
    algo = config.build_algo()
    try:
        return algo.evaluate()["env_runners"]
    finally:
        algo.stop()


def statistics(result):
    return {name: value for name, value in result["env_runners"].items() if name.startswith("episode_len")}


# -------------------------------------------------------------------------------------------------------------- seeds


@BOTH
def test_results_keep_the_last_evaluation_and_the_config(env):
    algo = config(env).evaluation(evaluation_interval=2).build_algo()
    results = [algo.train() for _ in range(4)]
    first, second, third, fourth = (result.get("evaluation") for result in results)
    assert first is None and second is not None and third == second
    assert fourth["env_runners"]["num_episodes_lifetime"] == 2 * second["env_runners"]["num_episodes_lifetime"]
    assert results[0]["config"]["num_envs_per_env_runner"] == 4
    assert results[0]["config"].keys() == algo.config.to_dict().keys()
    algo.stop()


@BOTH
def test_every_evaluation_has_other_episodes_also_within_an_iteration(env, tmp_path):
    algo = config(env).build_algo()
    first = statistics(algo.evaluate())
    algo.save_to_path(tmp_path / "saved")
    second = statistics(algo.evaluate())
    assert first != second
    algo.train()
    later = statistics(algo.evaluate())
    # Their number is a part of the state, and an algorithm that starts anew starts with the first ones.
    assert algo.reset(config(env))
    assert statistics(algo.evaluate()) == first
    # It counts from the last iteration: what was evaluated before makes no difference later.
    algo.train()
    assert statistics(algo.evaluate()) == later
    algo.restore_from_path(tmp_path / "saved")
    assert statistics(algo.evaluate()) == second
    algo.stop()


# ------------------------------------------------------------------------------------------------ settings of its own


class Zero(ConnectorV2):
    """After the module: the environments get zeros."""

    def apply(self, state, batch, ctx):
        actions = {mid: jax.tree.map(jnp.zeros_like, own[Columns.ACTIONS]) for mid, own in batch.items()}
        return state, {mid: {**own, Columns.ACTIONS_FOR_ENV: actions[mid]} for mid, own in batch.items()}


@BOTH
def test_traced_settings(env):
    base = programs.dqn(env).training(epsilon=0.0, num_steps_sampled_before_learning_starts=1000).debugging(seed=2)

    def algorithm(**evaluation_config):
        own = {"explore": True, **evaluation_config}
        return base.copy().evaluation(evaluation_duration=40, evaluation_config=own).build_algo()

    greedy, random = algorithm(explore=False), algorithm(epsilon=1.0)
    # By a schedule that is read at the steps that were sampled, also while nothing was learned from them.
    later = algorithm(epsilon=[[0, 1.0], [8, 0.0]])
    before = [statistics(algo.evaluate()) for algo in (greedy, random, later)]
    assert before[0] != before[1] == before[2]
    for algo in (greedy, later):
        assert algo.train()["num_env_steps_sampled_lifetime"] >= 8
    assert statistics(greedy.evaluate()) == statistics(later.evaluate())
    for algo in (greedy, random, later):
        algo.stop()


@INSPECTED
def test_actions(env):
    # An untrained policy has a standard deviation of one.
    assert evaluated(config(env))["episode_return_mean"] > 0.1
    assert evaluated(config(env, clip_actions=True))["episode_return_mean"] == 0.0
    assert evaluated(config(env, normalize_actions=True))["episode_return_mean"] == 0.0


@INSPECTED
def test_connectors_and_the_environment(env):
    zeros = config(env, module_to_env_connector=lambda *args: Zero())
    assert evaluated(zeros)["episode_return_mean"] == 10.0 * LENGTH
    bonus = zeros.evaluation(evaluation_config={"env_config": {"bonus": 1.0}})
    assert evaluated(bonus)["episode_return_mean"] == 11.0 * LENGTH


@INSPECTED
def test_statistics_of_training_find_their_connector_by_name(env):
    connectors = (FrameStackingEnvToModule(num_frames=1), MeanStdFilter())
    training = config(env, env_to_module_connector=lambda *args: list(connectors))
    training.env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
    algo = training.build_algo()
    algo.train()
    algo.evaluate()
    state = algo.eval_env_runner.get_state("env_to_module_connector")["env_to_module_connector"]
    assert list(state) == ["FrameStacking", "MeanStdFilter"]
    assert to_int(state["MeanStdFilter"]["default_policy"]["base"]["obs"]["count"]) == 32
    algo.stop()
    without = config(env, env_to_module_connector=lambda *args: [])
    without.env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
    assert evaluated(without)["num_episodes"] == 20


class Watching(RLlibCallback):
    """Logs what it sees of episodes."""

    def on_environment_created(self, *, env_runner, metrics_logger, env, env_context, **kwargs):
        metrics_logger.log_value("worker", env_context.worker_index, reduce="max")
        assert env is env_runner.env

    def on_episode_end(self, *, episode, metrics_logger, env_runner, **kwargs):
        assert env_runner.config.in_evaluation and len(episode) == LENGTH
        metrics_logger.log_value("seen", 1, reduce="sum")

    def on_sample_end(self, *, samples, metrics_logger, **kwargs):
        metrics_logger.log_value("highest", max(episode.get_return() for episode in samples), reduce="max")
        metrics_logger.log_value("sampled", sum(episode.is_done for episode in samples), reduce="sum")


@INSPECTED
def test_callbacks(env):
    algo = config(env, callbacks=Watching).build_algo()
    assert "highest" not in algo.train()["env_runners"]
    result = algo.evaluate()["env_runners"]
    assert result["highest"] == pytest.approx(result["episode_return_max"], rel=1e-5)
    assert result["sampled"] == 20 <= result["seen"] and result["worker"] == 0
    again = algo.evaluate()["env_runners"]
    assert again["sampled"] == 20 and again["highest"] != result["highest"]
    algo.stop()


@INSPECTED
def test_callbacks_of_a_function_of_ones_own_that_samples(env):
    def sample(algorithm, group):
        (episodes,) = group.foreach_env_runner("sample", kwargs={"num_episodes": 6})
        (metrics,) = group.foreach_env_runner(lambda runner: runner.metrics.reduce())
        return {name: metrics[name].peek() for name in ("seen", "sampled", "worker")}, sum(map(len, episodes)), 0

    result = evaluated(config(env, callbacks=Watching).evaluation(custom_evaluation_function=sample))
    assert result["sampled"] == 6 <= result["seen"] and result["num_env_steps_sampled"] == 6 * LENGTH


@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_callbacks_on_the_device_see_what_counts_and_nothing_else(unit):
    seen = []
    algo = (
        config(Inspector, callbacks_on_episode_step=lambda *, env_index, **kwargs: seen.append(env_index))
        .evaluation(evaluation_duration=6, evaluation_duration_unit=unit)
        .build_algo()
    )
    result = algo.evaluate()["env_runners"]
    expected = [2 * LENGTH, 2 * LENGTH, LENGTH, LENGTH] if unit == "episodes" else [2] * 4
    assert np.bincount(seen).tolist() == expected and result["num_env_steps_sampled"] == len(seen)
    algo.stop()


def test_networks_of_its_own_with_the_weights_of_training():
    env = "inspector-on-host"

    def returns(activation):
        network = {"fcnet_hiddens": [4], "fcnet_activation": activation}
        return evaluated(config(env, model_config=network))["episode_return_mean"]

    trained = config(env).rl_module(model_config={"fcnet_hiddens": [4], "fcnet_activation": "tanh"})
    assert returns("tanh") == evaluated(trained)["episode_return_mean"]
    # Observations are 100.
    assert returns("linear") != returns("tanh")
    with pytest.raises(ValueError, match=r"evaluation_config=...\) changes the networks .*do not fit.*dense_1"):
        evaluated(config(env, model_config={"fcnet_hiddens": [4, 4]}))


@INSPECTED
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evaluation_interval", 3),
        ("evaluation_num_env_runners", 1),
        ("evaluation_parallel_to_training", True),
        ("evaluation_error_after_n_consecutive_skips", 2),
        ("custom_evaluation_function", lambda algorithm, group: ({}, 0, 0)),
    ],
)
def test_what_is_no_setting_of_a_runner_is_refused_by_name(env, name, value):
    with pytest.raises(ValueError, match=rf"evaluation_config=\{{'{name}': .*evaluation\({name}=...\)"):
        config(env, **{name: value}).validate()


def test_a_runner_class_is_for_host_environments():
    with pytest.raises(ValueError, match=r"evaluation_config=\{'env_runner_cls': .*needs a host environment"):
        config(Inspector, env_runner_cls=SingleAgentEnvRunner).validate()


# ------------------------------------------------------------------------------------- numbers that RLlib has, too


def of_two_agents(env):
    agents = {str(agent): f"p{i}" for i, agent in enumerate(env({}).possible_agents)}
    own = config(env).multi_agent(
        policies=set(agents.values()), policy_mapping_fn=lambda agent, episode, **kwargs: agents[str(agent)]
    )
    return own, agents


NOT_KNOWN = {
    "learner_connector_sum_episodes_length_in",
    "learner_connector_sum_episodes_length_out",
    *("cpu_util_percent", "ram_util_percent"),  # without psutil
}
NOT_ON_THE_DEVICE = {
    "connector_pipeline_timer",
    "env_reset_timer",
    "env_step_timer",
    "env_to_module_sum_episodes_length_in",
    "env_to_module_sum_episodes_length_out",
    "rlmodule_inference_timer",
    "sample",
    "time_between_sampling",
    *("env_runner_sampling_timer", "learner_update_timer", "restore_env_runners", "synch_env_connectors"),
    "synch_weights",
}


@pytest.mark.parametrize(
    ("env", "is_on_device"),
    [("CartPole-v1", False), ("gymnax/CartPole-v1", True), (HostCartPoles, False), (DeviceCartPoles, True)],
    ids=["host", "device", "host-agents", "device-agents"],
)
def test_results_have_the_numbers_of_agents_modules_and_throughputs(env, is_on_device):
    """All keys are there from the start; those that RLlib has numbers for have numbers after two iterations."""
    is_multi = not isinstance(env, str)
    own, agents = of_two_agents(env) if is_multi else (config(env), {"default_agent": "default_policy"})
    own.evaluation(evaluation_interval=1, evaluation_duration=4)
    algo = own.training(train_batch_size_per_learner=512, minibatch_size=16, num_epochs=1).build_algo()
    first, second = algo.train(), algo.train()
    algo.stop()
    unknown = {name.split("/")[-1] for name, number in flatten_result(second).items() if number != number}
    assert unknown <= NOT_KNOWN | (NOT_ON_THE_DEVICE if is_on_device else set())

    sampled = second["evaluation"]["env_runners"]
    assert set(sampled["num_agent_steps_sampled"]) == set(agents) == set(sampled["agent_episode_returns_mean"])
    for agent, module in agents.items():
        steps = sampled["num_agent_steps_sampled"][agent]
        before = first["evaluation"]["env_runners"]["num_agent_steps_sampled"][agent]
        assert 0 < steps == sampled["num_module_steps_sampled"][module] <= sampled["num_env_steps_sampled"]
        for count, of in (("num_agent_steps_sampled", agent), ("num_module_steps_sampled", module)):
            assert sampled[f"{count}_lifetime"][of] == before + steps
        for name in ("episode_return_mean", "episode_returns_mean"):
            assert sampled[f"agent_{name}"][agent] == sampled[f"module_{name}"][module] > 0
    total = sum(sampled["agent_episode_returns_mean"].values())
    assert total == pytest.approx(sampled["episode_return_mean"])
    assert (sampled["weights_seq_no"], second["evaluation"]["num_healthy_workers"]) == (2, 0)

    for module in agents.values():
        learned = second["learners"][module]
        assert learned["module_train_batch_size_mean"] == 16
    everything = second["learners"]["__all_modules__"]
    for kind in ("env", "module"):
        rates = everything[f"num_{kind}_steps_trained_lifetime_throughput"]
        assert everything[f"num_{kind}_steps_trained_throughput"] == rates["throughput_since_last_reduce"] > 0
        assert 0 < rates["throughput_since_last_restore"] < rates["throughput_since_last_reduce"]
    assert second["timers"]["evaluation_iteration"] > 0


# ---------------------------------------------------------------------------------------------- every algorithm


class TwoSteps(gym.Env):
    """Episodes of two steps that pay 1 each."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, config):
        self.action_space = config["action_space"]

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return np.full(3, 0.5, np.float32), 1.0, self.t == 2, False, {}


ACTION_SPACES = {"discrete": Discrete(3), "box": Box(-1.0, 1.0, (2,), np.float32)}
ONE_KIND = {"CQL": "box", "DQN": "discrete", "PQN": "discrete", "TD3": "box", "TQC": "box"}
HAVE_LSTM = {"APPO", "BC", "DQN", "IMPALA", "MARWIL", "PPO", "PQN", "SAC", "TD3"}
MODULES = [
    (name, kind, use_lstm)
    for name in sorted(ALGORITHMS)
    for kind in ACTION_SPACES
    for use_lstm in (False, True)
    if ONE_KIND.get(name, kind) == kind and (not use_lstm or name in HAVE_LSTM)
]


def config_of_algorithm(name, kind, **model):
    config = get_algorithm_config_class(name)().environment(
        TwoSteps, env_config={"action_space": ACTION_SPACES[kind]}, disable_env_checking=True
    )
    config.env_runners(num_env_runners=0)
    if name == "DreamerV3":
        return config.training(model_size="nano")
    return config.rl_module(model_config={"fcnet_hiddens": [4], "fusionnet_hiddens": [4], **model})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_acts_in_a_gymnasium_environment_without_what_only_training_needs(name):
    runner = SingleAgentEnvRunner(config=config_of_algorithm(name, ONE_KIND.get(name, "discrete")))
    (episode,) = runner.sample(num_episodes=1, explore=False)
    assert episode.get_return() == 2.0 and runner.module.inference_only
    runner.stop()


@pytest.mark.parametrize(("name", "kind", "use_lstm"), MODULES)
def test_inference_only_modules_have_what_acting_needs_and_nothing_else(name, kind, use_lstm):
    spaces = {DEFAULT_MODULE_ID: (TwoSteps.observation_space, ACTION_SPACES[kind])}
    config = config_of_algorithm(name, kind, **({"use_lstm": True, "lstm_cell_size": 4} if use_lstm else {}))
    small = config.get_rl_module_spec(spaces=spaces, inference_only=True).build(seed=0)
    full = config.get_rl_module_spec(spaces=spaces).build(seed=0)
    check_module_outputs(small)
    names = small.get_state().keys()
    assert names == full.get_state(inference_only=True).keys()
    if isinstance(full, InferenceOnlyAPI):
        assert len(names) < len(full.get_state())
