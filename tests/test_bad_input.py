# ruff: noqa: E501 - the tables read best with one case a line
"""Wrong input, case by case: each gives an error that names the setting or argument, the value, and what to do.

Errors of settings are raised when they are set or validated, everything else by ``build_algo()`` at the latest; only what
depends on data waits for the call that gets the data.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import warnings

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete

from jaxrl_stack import cli
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter, PrevActionsPrevRewards
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.opponents import Snapshots
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, JaxEnv, JaxStep
from jaxrl_stack.env.observation_watch import ObservationWatch
from jaxrl_stack.env.registry import UnknownEnvironmentError, register_env
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.runs.result import Result, ResultPart
from jaxrl_stack.runs.stop import StopCriteria, StopError
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import empty_result

CARTPOLE = "gymnax/CartPole-v1"
OBS_SPACE = Box(-1, 1, (2,), np.float32)
POLICY = "default_policy"

# ------------------------------------------------------------------------------------------------------ what is wrong


def tiny(env=CARTPOLE, **environment):
    """A PPO that is built in a moment."""
    return (
        PPOConfig()
        .environment(env, **environment)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
    )


def privileged(**evaluation):
    """`tiny` with privileged parameters in training, and overrides for evaluation."""
    config = tiny(randomized_params={"length": (0.5, 1.0)}, privileged_params=True)
    return config.evaluation(evaluation_config=evaluation)


def against(opponents, policies=("main",), **agents):
    """Set wrong values of a game against snapshots, and validate."""
    agents = {"policies": set(policies), "opponents": opponents, **agents}
    return lambda: tiny(RockPaperScissors).multi_agent(**agents).validate()


def build(config):
    config.build_algo().stop()


def train(config):
    algo = config.build_algo()
    try:
        algo.train()
    finally:
        algo.stop()


def evaluate(config):
    algo = config.build_algo()
    try:
        algo.evaluate()
    finally:
        algo.stop()


def setting(section, env=CARTPOLE, **values):
    """Set wrong values, and validate."""
    return lambda: getattr(tiny(env), section)(**values).validate()


def changed(change, *, then=build):
    """Build (or train) a tiny config after a change."""
    return lambda: then(change(tiny()))


def with_100_devices(config):
    """Asks for more devices than the backend runs with: it runs from here on, wherever this test comes."""
    jax.devices()
    return config.learners(num_cpus_per_learner=100)


def frozen(change):
    def call():
        config = tiny()
        config.freeze()
        change(config)

    return call


def host_env(**members):
    """A gymnasium environment, right but for `members`."""
    defaults = {
        "observation_space": OBS_SPACE,
        "action_space": Discrete(2),
        "__init__": lambda self, config=None: None,
        "reset": lambda self, *, seed=None, options=None: (np.zeros(2, np.float32), {}),
        "step": lambda self, action: (np.zeros(2, np.float32), 0.0, False, False, {}),
    }
    present = {name: member for name, member in (defaults | members).items() if member is not NotImplemented}
    return type("HostEnv", (gym.Env,), present)


def host(*, then=build, **members):
    return lambda: then(tiny(host_env(**members)))


def host_reset(outcome):
    return host(then=train, reset=lambda self, *, seed=None, options=None: outcome)


def host_step(outcome, **members):
    return host(then=train, step=lambda self, action: outcome, **members)


class CountingEnv(AutoResetJaxEnv):
    observation_space = OBS_SPACE
    action_space = Discrete(2)

    def reset_env(self, key, params):
        return jnp.zeros(2, jnp.float32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros(2, jnp.float32), state + 1, 1.0, False, state > 5, {}


def jax_env(base=CountingEnv, **members):
    return lambda: build(tiny(type("MyJaxEnv", (base,), members)))


def jax_step(outcome):
    return jax_env(step_env=lambda self, key, state, action, params: outcome(state, action))


class RawEnv(JaxEnv):
    observation_space = OBS_SPACE
    action_space = Discrete(2)

    def reset(self, key, params):
        return jnp.zeros(2, jnp.float32), jnp.int32(0)

    def step(self, key, state, action, params):
        obs = jnp.zeros(2, jnp.float32)
        return JaxStep(obs, state, jnp.float32(1), jnp.bool_(False), jnp.bool_(False), obs, {})


def registered(name, creator):
    def call():
        register_env(name, creator)
        build(tiny(name))

    return call


def replayable_vector_env():
    register_env("bad_input_vector", lambda config: gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4))
    build(tiny("bad_input_vector").env_runners(replayable_episodes=True))


def unknown_registered_name():
    register_env("bad_input_maze", lambda config: host_env()())
    build(tiny("bad_input_mase"))


NAN_BOX = Box(-1, 1, (2,), np.float32)
NAN_BOX.low[0] = np.nan
NO_CHOICE = Discrete(2)
NO_CHOICE.n = np.int64(0)


class GoodModule(RLModule, ValueFunctionAPI):
    def setup(self):
        self.pi = nnx.Linear(4, 2, rngs=self.rngs)
        self.v = nnx.Linear(4, 1, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.v(batch[Columns.OBS])[..., 0]


class NoValues(RLModule):
    def setup(self):
        self.pi = nnx.Linear(4, 2, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])}


class NoForward(RLModule, ValueFunctionAPI):
    def setup(self):
        self.v = nnx.Linear(4, 1, rngs=self.rngs)

    def compute_values(self, batch, embeddings=None):
        return self.v(batch[Columns.OBS])[..., 0]


def spec(*args, **fields):
    return lambda: build(tiny().rl_module(rl_module_spec=RLModuleSpec(*args, **fields)))


def module(**members):
    return spec(module_class=type("MyModule", (GoodModule,), members))


def outputs(make):
    return module(_forward=lambda self, batch, **kwargs: make(self, batch))


def model_config(**values):
    return setting("rl_module", model_config=values)


def connector(**members):
    return type("MyConnector", (ConnectorV2,), members)()


def env_to_module(function):
    return changed(lambda config: config.env_runners(env_to_module_connector=function))


def sampling_connector(**members):
    return env_to_module(lambda env, spaces, device: connector(**members))


def host_connector(call):
    """A connector of RLlib's form in a host environment."""
    made = connector(__call__=call)
    return lambda: train(tiny(host_env()).env_runners(env_to_module_connector=lambda env, spaces, device: made))


def applied(function, **members):
    """A connector with that `apply`."""
    return sampling_connector(apply=lambda self, state, batch, ctx: function(state, batch), **members)


def unchanged(self, state, batch, ctx):
    return state, batch


def pipeline():
    return ConnectorPipelineV2(connectors=[connector(apply=unchanged)])


def twice_in_a_pipeline():
    one = connector(apply=unchanged)
    ConnectorPipelineV2(connectors=[one, one])


@pytest.fixture(scope="module")
def learner():
    return tiny().build_learner(spaces={POLICY: (Box(-1, 1, (4,), np.float32), Discrete(2))})


NUM_ROWS = 8


def batch(**changes):
    columns = {
        "obs": np.zeros((NUM_ROWS, 4), np.float32),
        "actions": np.zeros(NUM_ROWS, np.int32),
        "action_logp": np.zeros(NUM_ROWS, np.float32),
        "advantages": np.zeros(NUM_ROWS, np.float32),
        "value_targets": np.zeros(NUM_ROWS, np.float32),
        "action_dist_inputs": np.zeros((NUM_ROWS, 2), np.float32),
    } | changes
    return {name: column for name, column in columns.items() if column is not None}


def update(**arguments):
    return lambda learner: learner.update(**arguments)


def loss(function, **settings):
    """A learner whose loss is ``function(batch)``."""

    def call():
        members = {"compute_loss_for_module": lambda self, *, batch, **kwargs: function(batch)}
        config = tiny().learners(learner_class=type("MyLearner", (PPOLearner,), members))
        algo = config.debugging(**settings).build_algo()
        algo.train()

    return call


def learner_with(**members):
    """A learner with other methods."""
    return changed(lambda config: config.learners(learner_class=type("MyLearner", (PPOLearner,), members)), then=train)


def optimizer(**arguments):
    def configure(self, module_id, config=None):
        parameters = self.get_parameters(self.module[module_id])
        given = {"optimizer": optax.adam, "params": parameters, "lr_or_lr_schedule": 0.1}
        self.register_optimizer(module_id=module_id, **given | arguments)

    members = {"configure_optimizers_for_module": configure}
    return changed(lambda config: config.learners(learner_class=type("MyLearner", (PPOLearner,), members)))


RESULT = Result(empty_result(), env_runners=ResultPart("env_runners"))
RESULT["env_runners"].update(empty_result()["env_runners"])


class NoArgumentsCallback(RLlibCallback):
    def __init__(self, path):
        self.path = path


def callback_class(**methods):
    return lambda: build(tiny().callbacks(type("MyCallback", (RLlibCallback,), methods)))


@pytest.fixture(scope="module")
def algo():
    algo = tiny().build_algo()
    yield algo
    algo.stop()


def act(observation, **arguments):
    return lambda algo: algo.compute_single_action(observation, **arguments)


# -------------------------------------------------------------------------------------------------------- the table


def case(id_, call, error, *parts):
    """One wrong input.

    Args:
        id_: Says what is wrong.
        call: Makes the mistake. A parameter called `learner` or `algo` gets one that is built once for all.
        error: The exact type of the exception.
        *parts: What the message, or a note beside it, has to contain: name, value, remedy.
    """
    assert len(parts) >= 3, f"{id_}: a message has a name, a value and a remedy"
    return pytest.param(call, error, parts, id=id_)


SETTINGS = [
    # Numbers and schedules.
    case("lr-text", setting("training", lr="fast"), ValueError, "training(lr=", "'fast'", "must be a finite number"),
    case("lr-negative", setting("training", lr=-0.1), ValueError, "training(lr=", "-0.1", "at least 0"),
    case("lr-none", setting("training", lr=None), ValueError, "training(lr=", "None", "or a schedule"),
    case("lr-infinite", setting("training", lr=np.inf), ValueError, "training(lr=", "inf", "finite number"),
    case("lr-function", setting("training", lr=lambda t: 0.1), ValueError, "training(lr=", "<lambda>", "schedule"),
    case("schedule-of-one-point", setting("training", lr=[[0, 0.1]]), ValueError, "lr=[[0, 0.1]]", "fewer than 2", "[[0,"),
    case(
        "schedule-starts-late",
        setting("training", lr=[[5, 0.1], [9, 0]]),
        ValueError,
        "lr=[[5, 0.1], [9, 0]]",
        "starts at timestep 5",
        "[[0, value]",
    ),
    case(
        "schedule-goes-back",
        setting("training", lr=[[0, 0.1], [9, 0.1], [5, 0]]),
        ValueError,
        "lr=[[0, 0.1], [9, 0.1], [5, 0]]",
        "decrease at point 2",
        "[timestep, value]",
    ),
    case(
        "schedule-of-numbers",
        setting("training", lr=[0.1, 0.01]),
        ValueError,
        "lr=[0.1, 0.01]",
        "point 0",
        "not a [timestep, value] pair",
    ),
    case(
        "schedule-with-text",
        setting("training", entropy_coeff=[[0, "a"], [9, 0.1]]),
        ValueError,
        "entropy_coeff=[[0, 'a'], [9, 0.1]]",
        "point 0",
        "pair of numbers",
    ),
    case(
        "schedule-out-of-range",
        setting("training", entropy_coeff=[[0, -1], [9, 0.1]]),
        ValueError,
        "entropy_coeff=[[0, -1], [9, 0.1]]",
        "each a finite number",
        "at least 0",
    ),
    case(
        "schedule-where-there-is-none",
        setting("training", gamma=[[0, 0.9], [9, 0.99]]),
        ValueError,
        "gamma=[[0, 0.9], [9, 0.99]]",
        "must be a number",
        "at most 1",
    ),
    case("gamma-above-one", setting("training", gamma=1.5), ValueError, "training(gamma=", "1.5", "at most 1"),
    case("gamma-nan", setting("training", gamma=np.nan), ValueError, "training(gamma=", "nan", "must be a number"),
    case("lambda-above-one", setting("training", lambda_=1.1), ValueError, "lambda_=", "1.1", "at most 1"),
    case("clip-param-none", setting("training", clip_param=None), ValueError, "clip_param=", "None", "must be a number"),
    case("grad-clip-negative", setting("training", grad_clip=-1), ValueError, "grad_clip=", "-1", "at least 0"),
    case("grad-clip-by-typo", setting("training", grad_clip_by="globl"), ValueError, "grad_clip_by=", "'globl'", "'global_norm'"),
    case("epochs-zero", setting("training", num_epochs=0), ValueError, "num_epochs=", "0", "integer of at least 1"),
    case("epochs-fraction", setting("training", num_epochs=2.5), ValueError, "num_epochs=", "2.5", "an integer"),
    case("epochs-bool", setting("training", num_epochs=True), ValueError, "num_epochs=", "True", "an integer"),
    case("shuffle-text", setting("training", shuffle_batch_per_epoch="yes"), ValueError, "shuffle_batch_per_epoch=", "'yes'", "True or False"),
    case("use-critic-none", setting("training", use_critic=None), ValueError, "use_critic=", "None", "True or False"),
    case("no-gae", setting("training", use_gae=False), ValueError, "use_gae=False", "not implemented", "lambda_=1.0"),
    case("seed-negative", setting("debugging", seed=-1), ValueError, "debugging(seed=", "-1", "at least 0"),
    case("seed-too-large", setting("debugging", seed=2**40), ValueError, "seed=", str(2**40), "at most 4294967295"),
    case("log-level", setting("debugging", log_level="LOUD"), ValueError, "log_level=", "'LOUD'", "'WARN'"),
    case("window-zero", setting("reporting", metrics_num_episodes_for_smoothing=0), ValueError, "metrics_num_episodes_for_smoothing=", "0", "at least 1"),
    case("stats-class", setting("reporting", custom_stats_cls_lookup={"mode": dict}), ValueError, "custom_stats_cls_lookup=", "'mode'", "subclass of StatsBase"),
    case("resources-text", setting("env_runners", custom_resources_per_env_runner={"slots": "two"}), ValueError, "custom_resources_per_env_runner=", "'two'", "to a number"),
    case("cache-dir-number", setting("resources", compilation_cache_dir=3), ValueError, "compilation_cache_dir=", "3", "a path or 'auto'"),
    case("placement-typo", setting("resources", placement_strategy="pack"), ValueError, "placement_strategy=", "'pack'", "'PACK'"),
    case("tensorflow", setting("framework", framework="tf2"), ValueError, "framework=", "'tf2'", "'jax'"),
    case("old-api-stack", setting("api_stack", enable_rl_module_and_learner=False), ValueError, "enable_rl_module_and_learner=", "False", "Leave api_stack() out"),
    # Sampling.
    case("runners-negative", setting("env_runners", num_env_runners=-1), ValueError, "num_env_runners=", "-1", "at least 0"),
    case("envs-zero", setting("env_runners", num_envs_per_env_runner=0), ValueError, "num_envs_per_env_runner=", "0", "at least 1"),
    case("fragment-typo", setting("env_runners", rollout_fragment_length="Auto"), ValueError, "rollout_fragment_length=", "'Auto'", "or 'auto'"),
    case("fragment-too-long", setting("env_runners", rollout_fragment_length=900), ValueError, "rollout_fragment_length=900", "3600 steps", "Use rollout_fragment_length=8"),
    case("batch-mode-typo", setting("env_runners", batch_mode="complete"), ValueError, "batch_mode=", "'complete'", "'complete_episodes'"),
    case("whole-episodes-on-device", setting("env_runners", batch_mode="complete_episodes"), ValueError, "batch_mode=", "'complete_episodes'", "Use batch_mode='truncate_episodes'"),
    case("vectorize-mode-typo", setting("env_runners", gym_env_vectorize_mode="parallel"), ValueError, "gym_env_vectorize_mode=", "'parallel'", "'async'"),
    case("explore-number", setting("env_runners", explore=1), ValueError, "explore=", "1", "True or False"),
    case("merge-states-typo", setting("env_runners", merge_env_runner_states="always"), ValueError, "merge_env_runner_states=", "'always'", "'training_only'"),
    case("env-runner-class", setting("env_runners", env_runner_cls=dict), ValueError, "env_runner_cls=", "dict", "subclass of EnvRunner"),
    case("clip-rewards-negative", setting("environment", clip_rewards=-1), ValueError, "clip_rewards=", "-1", "positive number"),
    case("env-config-list", setting("environment", env_config=[1]), ValueError, "env_config=", "[1]", "a dict"),
    # Learners, devices, batches.
    case("learners-text", setting("learners", num_learners="auto"), ValueError, "num_learners=", "'auto'", "an integer"),
    case("eager-learner-actors-on-device", changed(lambda c: c.debugging(disable_jit=True).learners(num_learners=2)), ValueError, "disable_jit=True", "num_learners=2", CARTPOLE, "Set num_learners=0"),
    case("eval-function-of-learner-actors", changed(lambda c: c.evaluation(custom_evaluation_function=lambda algo, group: ({}, 0, 0)).learners(num_learners=2)), ValueError, "custom_evaluation_function=", "num_learners=2", CARTPOLE, "Set num_learners=0"),
    case("learner-class", setting("learners", learner_class=GoodModule), ValueError, "learner_class=", "GoodModule", "subclass of Learner"),
    case("no-accelerator", changed(lambda c: c.learners(num_gpus_per_learner=1)), ValueError, "num_gpus_per_learner=1", "JAX sees 0", "Lower num_gpus_per_learner"),
    case("too-many-devices", changed(with_100_devices), RuntimeError, "use_cpu_devices(100)", "already with 8", "JAX_NUM_CPU_DEVICES=100"),
    case("envs-over-devices", changed(lambda c: c.env_runners(num_envs_per_env_runner=3).learners(num_cpus_per_learner=2)), ValueError, "num_envs_per_env_runner=3", "2 devices", "Use 4"),
    case("minibatch-over-devices", changed(lambda c: c.training(minibatch_size=5).learners(num_cpus_per_learner=2)), ValueError, "minibatch_size=5", "multiple of 2, the number of shuffle shards", "Use minibatch_size=4"),
    case("shards-over-devices", changed(lambda c: c.learners(num_shuffle_shards=3, num_cpus_per_learner=2)), ValueError, "num_shuffle_shards=3", "number of devices, 2", "multiple"),
    case("shards-over-columns", changed(lambda c: c.training(minibatch_size=None).learners(num_shuffle_shards=3)), ValueError, "num_shuffle_shards=3", "must divide 4, the number of rollout fragments", "to a divisor of 4"),
    case("minibatch-above-batch", setting("training", minibatch_size=1000), ValueError, "minibatch_size=1000", "train batch of 32", "Lower it"),
    case("minibatch-zero", setting("training", minibatch_size=0), ValueError, "minibatch_size=", "0", "or None"),
    case("batch-size-text", setting("training", train_batch_size_per_learner="auto"), ValueError, "train_batch_size_per_learner=", "'auto'", "an integer"),
    case("eager-on-two-devices", changed(lambda c: c.debugging(disable_jit=True).learners(num_cpus_per_learner=2)), ValueError, "disable_jit=True", "uses 2", "num_cpus_per_learner=1"),
    case("static-setting-typo", setting("experimental", _static_settings=["gama"]), ValueError, "_static_settings=", "'gama'", "gamma"),
    case("static-schedule", lambda: tiny().training(lr=[[0, 0.1], [9, 0]]).experimental(_static_settings=["lr"]).validate(), ValueError, "lr=[[0, 0.1], [9, 0]]", "_static_settings", "use a number"),
    # Evaluation.
    case("interval-negative", setting("evaluation", evaluation_interval=-1), ValueError, "evaluation_interval=", "-1", "at least 0"),
    case("duration-zero", setting("evaluation", evaluation_duration=0), ValueError, "evaluation_duration=", "0", "at least 1"),
    case("duration-unit", setting("evaluation", evaluation_duration_unit="steps"), ValueError, "evaluation_duration_unit=", "'steps'", "'timesteps'"),
    case("duration-auto-alone", setting("evaluation", evaluation_duration="auto"), ValueError, "evaluation_duration='auto'", "evaluation_parallel_to_training=True", "a number of episodes"),
    case("duration-auto-bounds", setting("evaluation", evaluation_auto_duration_min_env_steps_per_sample=5000), ValueError, "min_env_steps_per_sample=5000", "max_env_steps_per_sample=2000", "Lower the first"),
    case("parallel-without-runners", setting("evaluation", evaluation_parallel_to_training=True), ValueError, "evaluation_parallel_to_training=True", "evaluation_num_env_runners", "at least 1"),
    case("eval-config-typo", setting("evaluation", evaluation_config={"explor": False}), ValueError, "evaluation_config", "'explor'", "explore=..."),
    case("eval-config-value", setting("evaluation", evaluation_config={"gamma": 2}), ValueError, "evaluation_config", "gamma=2", "at most 1"),
    case("eval-config-lazy-value", setting("evaluation", evaluation_config={"lr": "x"}), ValueError, "evaluation_config", "lr='x'", "finite number"),
    case("eval-config-class", setting("evaluation", evaluation_config=PPOConfig), ValueError, "evaluation_config=", "PPOConfig", "a dict of settings"),
    case("duration-auto-on-device", setting("evaluation", evaluation_duration="auto", evaluation_parallel_to_training=True, evaluation_num_env_runners=1), ValueError, "evaluation_duration='auto'", "JAX environment", "Use a number"),
    case("eval-env-of-other-spaces", changed(lambda c: c.evaluation(evaluation_config={"env": "gymnax/Pendulum-v1"})), ValueError, "observation_space is", "(3,)", "with the same spaces"),
    case("eval-function", setting("evaluation", custom_evaluation_function=3), ValueError, "custom_evaluation_function=", "3", "a function"),
    case("eval-function-result", changed(lambda c: c.evaluation(custom_evaluation_function=lambda algo, group: {"x": 1}), then=evaluate), ValueError, "custom_evaluation_function=", "returned {'x': 1}", "tuple (dict of results"),
    # Modules and policies.
    case("two-policies", changed(lambda c: c.multi_agent(policies={"a", "b"})), ValueError, "policies=", "['a', 'b']", "Leave multi_agent() out"),
    case("policies-empty", setting("multi_agent", policies={}), ValueError, "policies=", "{}", "a dict from id to PolicySpec"),
    case("snapshots-size", lambda: Snapshots(of="main", size=0), ValueError, "Snapshots(size=0)", "at least 1", "Leave size out for 8"),
    case("snapshots-share", lambda: Snapshots(of="main", share_of_self_play=1.0), ValueError, "Snapshots(share_of_self_play=1.0)", "[0, 1)", "Leave share_of_self_play out for 0.5"),
    case("snapshots-draw", lambda: Snapshots(of="main", draw="best"), ValueError, "Snapshots(draw='best')", "'uniform', 'hard' or a function", "Leave draw out for 'uniform'"),
    case("snapshots-draw-arguments", lambda: Snapshots(of="main", draw=lambda records: 0), ValueError, "Snapshots(draw=", "draw(records, key)", "Leave draw out"),
    case("snapshots-replace", lambda: Snapshots(of="main", replace="newest"), ValueError, "Snapshots(replace='newest')", "'oldest' or 'weakest'", "Leave replace out"),
    case("opponents-no-snapshots", against("main"), ValueError, "opponents=", "'main'", "Snapshots(of='main')"),
    case("opponents-of-no-policy", against(Snapshots(of="p")), ValueError, "opponents=Snapshots(of='p')", "policies=['main']", "policies={'p'}"),
    case("opponents-other-policies", against(Snapshots(of="main"), policies={"main", "snapshot_0"}), ValueError, "opponents=Snapshots(of='main')", "policies=['main', 'snapshot_0']", "Set policies={'main'}"),
    case("opponents-named-like-one", against(Snapshots(of="snapshot_3"), policies={"snapshot_3"}), ValueError, "opponents=Snapshots(of='snapshot_3')", "snapshots have names such as", "Rename the policy: policies={'main'}"),
    case("opponents-trained", against(Snapshots(of="main"), policies_to_train=["main", "snapshot_0"]), ValueError, "policies_to_train=['main', 'snapshot_0']", "snapshots never are", "Set policies_to_train=['main']"),
    case("opponents-mapping", against(Snapshots(of="main"), policy_mapping_fn=lambda agent, episode, **kwargs: "main"), ValueError, "opponents=Snapshots(of='main')", "policy_mapping_fn=", "Leave policy_mapping_fn out"),
    case("opponents-agent-steps", against(Snapshots(of="main"), count_steps_by="agent_steps"), ValueError, "opponents=Snapshots(of='main')", "count_steps_by='agent_steps'", "Use count_steps_by='env_steps'"),
    case("opponents-host", lambda: tiny(MultiAgentCartPole).multi_agent(policies={"main"}, opponents=Snapshots(of="main")).validate(), ValueError, "opponents=Snapshots(of='main')", "is a host environment", "Use a JAX environment"),
    case("opponents-one-agent", lambda: build(tiny().multi_agent(policies={"main"}, opponents=Snapshots(of="main"))), ValueError, "CartPole", "no game of several agents", "Pass a MultiAgentJaxEnv"),
    case("opponents-divide", lambda: build(tiny(RockPaperScissors).multi_agent(policies={"main"}, opponents=Snapshots(of="main", size=3))), ValueError, "size=3, share_of_self_play=0.5", "num_envs_per_env_runner=4", "Use num_envs_per_env_runner=6"),
    case("opponents-learner-actors", lambda: tiny(RockPaperScissors).multi_agent(policies={"main"}, opponents=Snapshots(of="main")).learners(num_learners=2).validate(), ValueError, "opponents=Snapshots(of='main')", "one process", "Leave learners(num_learners=2) out"),
    case("opponents-population", lambda: tiny(RockPaperScissors).multi_agent(policies={"main"}, opponents=Snapshots(of="main")).build_population(2), ValueError, "One compiled program cannot train several members", "multi_agent(opponents=...)", "Use run_seeds()"),
    case("opponents-replay", lambda: DQNConfig().environment(RockPaperScissors).multi_agent(policies={"main"}, opponents=Snapshots(of="main")).validate(), ValueError, "opponents=Snapshots(of='main')", "DQN learns from replay", "Use PPO, IMPALA, APPO or PQN"),
    case("train-unknown-policy", setting("multi_agent", policies_to_train=["p1"]), ValueError, "policies_to_train", "['p1']", POLICY),
    case("best-number", setting("reporting", results_dir="x", keep_best=3), ValueError, "keep_best=", "3", "the path of a number in results"),
    case("checkpoints-never", setting("reporting", results_dir="x", checkpoint_frequency=0), ValueError, "checkpoint_frequency=", "0", "an integer of at least 1"),
    case("checkpoints-without-folder", setting("reporting", checkpoint_frequency=10), ValueError, "reporting(checkpoint_frequency=10)", "needs a folder", "reporting(results_dir='results/first')"),
    case("checkpoints-kept-none", setting("reporting", results_dir="x", checkpoint_frequency=1, num_to_keep=-1), ValueError, "num_to_keep=", "-1", "an integer of at least 1, 'sparse', or None"),
    case("checkpoints-kept-typo", setting("reporting", results_dir="x", checkpoint_frequency=1, num_to_keep="sprase"), ValueError, "num_to_keep=", "'sprase'", "'sparse'"),
    case("checkpoints-without-unit", setting("reporting", results_dir="x", checkpoint_frequency=1, checkpoint_max_bytes="20"), ValueError, "checkpoint_max_bytes=", "'20'", "a size with a unit, such as '20 GB'"),
    case("checkpoints-no-bytes", setting("reporting", results_dir="x", checkpoint_frequency=1, checkpoint_max_bytes="0 GB"), ValueError, "checkpoint_max_bytes=", "0", "at least 1"),
    case("checkpoints-limit-alone", setting("reporting", results_dir="x", num_to_keep=3), ValueError, "reporting(num_to_keep=3)", "the run stores none", "reporting(checkpoint_frequency=10)"),
    case("best-without-evaluations", setting("reporting", results_dir="x", keep_best="evaluation/env_runners/episode_return_mean"), ValueError, "keep_best=", "'evaluation/env_runners/episode_return_mean'", "evaluation(evaluation_interval=10)"),
    case("mapping-arguments", setting("multi_agent", policy_mapping_fn=lambda agent: "p"), ValueError, "multi_agent(policy_mapping_fn=", "called as f(agent_id, episode)", "too many positional arguments"),
    case("train-function-arguments", setting("multi_agent", policies_to_train=lambda module: True), ValueError, "multi_agent(policies_to_train=", "called as f(module_id, batch)", "too many positional arguments"),
    case("eval-function-arguments", setting("evaluation", custom_evaluation_function=lambda algo: {}), ValueError, "evaluation(custom_evaluation_function=", "f(algorithm, eval_env_runner_group)", "too many positional arguments"),
    case("offline-loss-arguments", setting("evaluation", offline_loss_for_module_fn=lambda learner, batch: 0), ValueError, "offline_loss_for_module_fn=", "f(learner, *, module_id, config, batch, fwd_out)", "unexpected keyword argument 'module_id'"),
    case("action-of-no-policy", lambda algo: algo.compute_single_action(np.zeros(4), policy_id="p1"), KeyError, "'p1'", POLICY, "compute_single_action(observation, policy_id='default_policy')"),
    case("mapping-text", setting("multi_agent", policy_mapping_fn="p"), ValueError, "policy_mapping_fn=", "'p'", "a function"),
    case("overrides-unknown-module", setting("rl_module", algorithm_config_overrides_per_module={"p1": {"lr": 1}}), ValueError, "algorithm_config_overrides_per_module", "'p1'", POLICY),
    case("overrides-typo", setting("rl_module", algorithm_config_overrides_per_module={POLICY: {"lrr": 1}}), ValueError, "overrides 'lrr'", POLICY, "training(lr=...)"),
    case("overrides-of-all", setting("rl_module", algorithm_config_overrides_per_module={POLICY: {"num_epochs": 1}}), ValueError, "'num_epochs'", "same for all modules", "Settings that can differ: "),
    case("overrides-value", setting("rl_module", algorithm_config_overrides_per_module={POLICY: {"lr": -1}}), ValueError, "algorithm_config_overrides_per_module", "lr=-1", "at least 0"),
    case("offline-data", setting("offline_data", input_={"data.parquet": 0.0}), ValueError, "input_=", "'data.parquet'", "weight above 0"),
]  # fmt: skip

NAMES = [
    case("argument-typo", lambda: tiny().training(clip_parm=0.1), TypeError, "training()", "'clip_parm'", "training(clip_param=...)"),
    case("argument-of-other-library", lambda: tiny().training(learning_rate=0.1), TypeError, "training()", "'learning_rate'", "training(lr=...)"),
    case("argument-of-other-section", lambda: tiny().training(num_learners=1), TypeError, "'num_learners'", "belongs to learners()", "learners(num_learners=...)"),
    case("argument-of-the-model", lambda: tiny().training(fcnet_hiddens=[4]), TypeError, "'fcnet_hiddens'", "setting of the network", "DefaultModelConfig(fcnet_hiddens=...)"),
    case("argument-by-position", lambda: tiny().training(0.1), TypeError, "training()", "0 positional", "by keyword"),
    case("attribute-typo", lambda: setattr(tiny(), "gama", 0.9), AttributeError, "PPOConfig", "'gama'", "training(gamma=...)"),
    case("read-typo", lambda: tiny().gama, AttributeError, "PPOConfig", "'gama'", "training(gamma=...)"),
    case("item-typo", lambda: tiny()["gama"], KeyError, "PPOConfig", "'gama'", "training(gamma=...)"),
    case("dict-typo", lambda: PPOConfig.from_dict({"gama": 0.9}), ValueError, "PPOConfig", "'gama'", "training(gamma=...)"),
    case("overrides-call-typo", lambda: PPOConfig.overrides(gama=0.9), KeyError, "PPOConfig", "'gama'", "training(gamma=...)"),
    case("removed-argument", lambda: tiny().training(sgd_minibatch_size=4), ValueError, "training(sgd_minibatch_size=4)", "is gone", "training(minibatch_size=...)"),
    case("removed-model", lambda: tiny().training(model={"custom_model": "mine"}), ValueError, "training(model=", "custom_model", "is gone", "DefaultModelConfig"),
    case("removed-without-successor", lambda: tiny().debugging(log_sys_usage=False), ValueError, "'log_sys_usage'", "no replacement", "Leave it out"),
    case("removed-attribute", lambda: setattr(tiny(), "num_gpus", 1), ValueError, "config.num_gpus", "is gone", "num_gpus_per_learner"),
    case("removed-method", lambda: tiny().rollouts(num_rollout_workers=1), ValueError, "rollouts(...)", "is gone", "env_runners(...)"),
    case("frozen-method", frozen(lambda c: c.training(lr=1)), AttributeError, "PPOConfig.training()", "is frozen", "copy_frozen=False"),
    case("frozen-attribute", frozen(lambda c: setattr(c, "lr", 1)), AttributeError, "'lr'", "is frozen", "copy_frozen=False"),
    case("frozen-dict", frozen(lambda c: c.update_from_dict({"lr": 1})), AttributeError, "update_from_dict()", "is frozen", "copy_frozen=False"),
    case("search-space-left", lambda: tiny().training(lr={"grid_search": [0.1, 0.2]}).build_algo(), ValueError, "lr=", "'grid_search'", "set one value"),
    case("config-of-no-algorithm", lambda: AlgorithmConfig().environment(CARTPOLE).build_algo(), ValueError, "AlgorithmConfig()", "no algorithm", "PPOConfig()"),
    case("algorithm-typo", lambda: AlgorithmConfig(algo_class="PPPO").environment(CARTPOLE).build_algo(), ValueError, "no algorithm", "'PPPO'", "'PPO'"),
    case("algorithm-argument", lambda: PPO(config=tiny(), logger_creator=print), TypeError, "PPO()", "logger_creator", "config and env"),
    case("algorithm-config", lambda: PPO(config="PPO"), TypeError, "PPO(config=", "'PPO'", "PPOConfig()"),
    case("model-config-typo", lambda: DefaultModelConfig(fcnet_hidden=[4]), TypeError, "DefaultModelConfig", "'fcnet_hidden'", "'fcnet_hiddens'"),
    case("module-spec-renamed", lambda: RLModuleSpec(model_config_dict={}), ValueError, "RLModuleSpec", "model_config_dict", "Use model_config="),
    case("get-module-typo", lambda algo: algo.get_module("p1"), KeyError, "No module", "'p1'", POLICY),
    case("old-member", lambda algo: algo.workers, AttributeError, "PPO.workers", "is gone", "env_runner_group"),
]  # fmt: skip

SPACES = [
    *(
        case(f"observations-{type(space).__name__}", jax_env(observation_space=space), TypeError, "MyJaxEnv.observation_space", repr(space)[:20], "Supported are")
        for space in (spaces.Text(5), spaces.Graph(OBS_SPACE, Discrete(2)), spaces.OneOf([Discrete(2), Discrete(3)]))
    ),
    case("actions-Sequence", jax_env(action_space=spaces.Sequence(Discrete(2))), TypeError, "MyJaxEnv.action_space", "Sequence", "Supported are"),
    case("text-in-dict", jax_env(observation_space=Dict({"a": OBS_SPACE, "b": spaces.Text(5)})), TypeError, "observation_space['b']", "Text", "Supported are"),
    case("shape-instead-of-space", jax_env(observation_space=(4,)), TypeError, "observation_space", "(4,)", "Supported are"),
    case("class-instead-of-space", jax_env(action_space=Discrete), TypeError, "action_space", "Discrete", "Supported are"),
    case("empty-dict", jax_env(observation_space=Dict({})), ValueError, "observation_space", "Dict()", "at least one part"),
    case("no-numbers", jax_env(observation_space=Box(-1, 1, (0,))), ValueError, "observation_space", "(0,)", "remove this space"),
    case("no-choice", jax_env(action_space=NO_CHOICE), ValueError, "action_space", "Discrete(0)", "at least 1"),
    case("nan-bounds", jax_env(observation_space=NAN_BOX), ValueError, "observation_space", "nan", "use -inf and inf"),
    case("integer-box-actions", jax_env(action_space=Box(0, 5, (1,), np.int32)), ValueError, "Action space", "int32", "Use Discrete"),
    case("override-of-other-shape", lambda: build(tiny(observation_space=Box(-1, 1, (3,)))), ValueError, "environment(observation_space=", "(3,)", "Leave observation_space out"),
    case("override-of-other-actions", lambda: build(tiny(action_space=Discrete(5))), ValueError, "environment(action_space=", "Discrete(5)", "Leave action_space out"),
    case("override-no-space", setting("environment", observation_space=(4,)), ValueError, "observation_space=", "(4,)", "a gymnasium space"),
    case("act-wrong-shape", act(np.zeros(3, np.float32)), ValueError, "observation has shape", "(3,)", "Pass an array of that shape"),
    case("act-with-batch-axis", act(np.zeros((1, 4), np.float32)), ValueError, "observation has shape", "(1, 4)", "0 batch axes"),
    case("act-dict", act({"obs": np.zeros(4)}), ValueError, "observation", "is a dict", "needs an array"),
    case("act-text", act("left"), ValueError, "observation", "'left'", "array of numbers"),
    case("act-unknown-policy", act(np.zeros(4, np.float32), policy_id="p1"), KeyError, "No module", "'p1'", POLICY),
    case("predict", lambda algo: algo.predict(np.zeros(4)), AttributeError, "PPO has no predict", "compute_single_action(obs, explore=False)", "get_policy()"),
    case("total-timesteps", lambda algo: algo.learn(total_timesteps=1000), TypeError, "PPO.learn()", "total_timesteps", "learn({'num_env_steps_sampled_lifetime': 1000})"),
    case("train-number", lambda algo: algo.train(100), TypeError, "PPO.train(100)", "one iteration", "algo.learn(100)"),
    case("train-iterations", lambda algo: algo.train(num_iterations=5), TypeError, "PPO.train(num_iterations=5)", "one iteration", "algo.learn(5)"),
    case("train-timesteps", lambda algo: algo.train(total_timesteps=1000), TypeError, "PPO.train()", "total_timesteps", "learn({'num_env_steps_sampled_lifetime': 1000})"),
    case("learn-typo", lambda algo: algo.learn(util=3), TypeError, "PPO.learn()", "'util'", "takes until, plateau, progress and after_iteration"),
    case("history-before-training", lambda: PPO(tiny()).history["reward"], KeyError, "'reward'", "first train()", "'env_runners/episode_return_mean'"),
    case("act-with-state", act(np.zeros(4, np.float32), state={"h": 1}), ValueError, "state=", "{'h': 1}", "no recurrent state"),
]  # fmt: skip

ENVS = [
    case("no-env", lambda: PPOConfig().build_algo(), ValueError, "environment", "no environment is set", "config.environment("),
    case("gymnasium-typo", setting("environment", env="CartPol-v1"), UnknownEnvironmentError, "unknown environment", "'CartPol-v1'", "Did you mean 'gymnax/CartPole-v1'"),
    case("gymnasium-other-version", setting("environment", env="Taxi-v2"), UnknownEnvironmentError, "unknown environment", "'Taxi-v2'", f"Did you mean {next(i for i in gym.registry if i.startswith('Taxi-'))!r}? "),
    case("gymnasium-version-to-come", setting("environment", env="Ant-v99"), UnknownEnvironmentError, "unknown environment", "'Ant-v99'", "Did you mean 'Ant-v5'? "),
    case("gymnax-typo", setting("environment", env="gymnax/Cartpole-v1"), ValueError, "gymnax has no environment", "'Cartpole-v1'", "Did you mean 'gymnax/CartPole-v1'"),
    case("registered-typo", unknown_registered_name, UnknownEnvironmentError, "unknown environment", "'bad_input_mase'", "'bad_input_maze'"),
    case("module-does-not-import", setting("environment", env="no_such_module:Env"), ImportError, "environment(", "'no_such_module'", "folder to sys.path"),
    case("no-class-in-module", setting("environment", env="gymnasium:Maze"), ValueError, "environment('gymnasium:Maze')", "'Maze'", "no class"),
    case("randomized-list", setting("environment", randomized_params=["m"]), ValueError, "environment(randomized_params=['m'])", "a dict from the name", "(low, high)"),
    case("randomized-empty", setting("environment", randomized_params={}), ValueError, "environment(randomized_params={})", "a dict from the name", "(low, high)"),
    case("randomized-number", setting("environment", randomized_params={"length": 2.0}), ValueError, "randomized_params={'length': 2.0}", "(low, high), ('log', low, high) or [values]", "is 2.0"),
    case("randomized-reversed", setting("environment", randomized_params={"length": (2.0, 0.5)}), ValueError, "(2.0, 0.5)", "low <= high for 'length'", "{'length': (0.5, 2.0)}"),
    case("randomized-log-of-zero", setting("environment", randomized_params={"length": ("log", 0.0, 2.0)}), ValueError, "('log', 0.0, 2.0)", "low > 0 for 'length'", "{'length': ('log', 0.1, 10.0)}"),
    case("randomized-no-values", setting("environment", randomized_params={"length": []}), ValueError, "{'length': []}", "at least one value for 'length'", "[0.5, 1.0]"),
    case("randomized-text", setting("environment", randomized_params={"length": ("a", 1.0)}), ValueError, "('a', 1.0)", "for 'length'", "(low, high)"),
    case("randomized-nan", setting("environment", randomized_params={"length": (0.0, np.nan)}), ValueError, "nan", "finite numbers", "'length'"),
    case("randomized-function", setting("environment", randomized_params=lambda key: key), ValueError, "randomized_params=", "<lambda>", "f(key, params)"),
    case("randomized-unknown", lambda: build(tiny(randomized_params={"lenght": (0.5, 1.0)})), ValueError, "{'lenght': (0.5, 1.0)}", "has no parameter 'lenght'", "Did you mean 'length'?", "It has max_steps_in_episode, gravity"),
    case("randomized-without-params", lambda: build(tiny(CountingEnv, randomized_params={"m": (0.5, 1.0)})), ValueError, "{'m': (0.5, 1.0)}", "CountingEnv has no parameters", "a property `params`"),
    case("randomized-on-the-host", setting("environment", "CartPole-v1", randomized_params={"length": (0.5, 1.0)}), ValueError, "{'length': (0.5, 1.0)}", "'CartPole-v1' runs on the host", "draw the parameters in reset()"),
    case("randomized-twice", setting("environment", randomized_params={"length": (0.5, 1.0)}, env_config={"length": 0.7}), ValueError, "{'length': (0.5, 1.0)}", "{'length': 0.7}", "Leave one of them out"),
    case("randomized-agents", lambda: tiny(randomized_params={"length": (0.5, 1.0)}).multi_agent(policies={"p"}).validate(), ValueError, "{'length': (0.5, 1.0)}", "several agents", "draw the parameters in reset_env()"),
    case("randomized-in-evaluation", lambda: tiny().evaluation(evaluation_config={"randomized_params": {"length": (1.0, 0.5)}}).validate(), ValueError, "evaluation_config=...", "(1.0, 0.5)", "{'length': (0.5, 1.0)}"),
    case("privileged-without-ranges", setting("environment", privileged_params=True), ValueError, "privileged_params=True", "needs parameters", "randomized_params={name: (low, high)}"),
    case("privileged-function", setting("environment", privileged_params=True, randomized_params=lambda key, params: params), ValueError, "privileged_params=True", "is a function", "randomized_params={name: (low, high)}"),
    case("privileged-in-evaluation", lambda: tiny().evaluation(evaluation_config={"privileged_params": True, "randomized_params": {"length": (0.5, 1.0)}}).validate(), ValueError, "evaluation_config=...", "privileged_params=True differs from training's privileged_params=False", "Set environment(privileged_params=True, randomized_params="),
    case("privileged-in-training", privileged(privileged_params=False).validate, ValueError, "evaluation_config=...", "privileged_params=False differs from training's privileged_params=True", "Leave it out of evaluation_config"),
    case("privileged-on-the-host", privileged(env="CartPole-v1").validate, ValueError, "evaluation_config=...", "'CartPole-v1' runs on the host", "Use a JAX environment for evaluation"),
    case("env-number", setting("environment", env=3), TypeError, "environment(env=3)", "is no environment", "register_env"),
    case("env-function", setting("environment", env=lambda config: None), TypeError, "environment(env=", "<function", "register_env(name, function)"),
    case("env-instance", lambda: build(tiny(host_env()())), TypeError, "environment(env=", "an instance of a gymnasium", "Give its class"),
    case("class-no-env", setting("environment", env=dict), TypeError, "environment(env=", "dict", "gymnasium.Env"),
    case("gymnax-setting-typo", lambda: build(tiny(env_config={"max_step": 3})), ValueError, "env_config['max_step']", "=3", "Its parameters: max_steps_in_episode"),
    case("gymnax-setting-type", lambda: build(tiny(env_config={"max_steps_in_episode": "many"})), ValueError, "env_config['max_steps_in_episode']", "'many'", "must be an integer"),
    case("gymnasium-setting-typo", lambda: build(tiny("CartPole-v1", env_config={"render_mod": None})), ValueError, "env_config['render_mod']", "None", "Did you mean 'render_mode'"),
    case("jax-setting-not-taken", lambda: build(tiny(CountingEnv, env_config={"size": 3})), ValueError, "env_config", "{'size': 3}", "leave `env_config` empty"),
    case("jax-setting-of-instance", lambda: build(tiny(CountingEnv(), env_config={"size": 3})), ValueError, "env_config", "{'size': 3}", "Pass its class"),
    case("register-no-function", lambda: register_env("maze", 3), TypeError, "register_env('maze'", "3", "callable with one argument"),
    case("register-function-without-argument", lambda: register_env("maze", lambda: None), TypeError, "register_env('maze'", "too many", "callable with one argument"),
    case("register-name", lambda: register_env(3, lambda config: None), TypeError, "register_env(name=3)", "name", "non-empty string"),
    case("register-reserved-name", lambda: register_env("gymnax/maze", lambda config: None), ValueError, "register_env(", "'gymnax/maze'", "Choose another name"),
    case("creator-returns-none", registered("bad_input_none", lambda config: None), TypeError, "'bad_input_none'", "returned None", "gymnasium.Env"),
    case("creator-fails", registered("bad_input_fails", lambda config: config["size"]), KeyError, "'size'", "'bad_input_fails'", "env_config={}"),
    case("no-vector-version", lambda: build(tiny(host_env()).env_runners(gym_env_vectorize_mode="vector_entry_point")), ValueError, "gym_env_vectorize_mode='vector_entry_point'", "'HostEnv'", "Use 'sync'"),
    case("replayable-actors", setting("env_runners", "CartPole-v1", replayable_episodes=True, num_env_runners=2), ValueError, "replayable_episodes=True", "num_env_runners=2", "Set env_runners(num_env_runners=0)"),
    case("replayable-async", setting("env_runners", "CartPole-v1", replayable_episodes=True, gym_env_vectorize_mode="async"), ValueError, "replayable_episodes=True", "gym_env_vectorize_mode='async'", "gym_env_vectorize_mode='sync'"),
    case("replayable-agents", lambda: tiny("CartPole-v1").env_runners(replayable_episodes=True).multi_agent(policies={"p"}).validate(), ValueError, "replayable_episodes=True", "several agents", "replayable_episodes=False"),
    case("replayable-runner", setting("env_runners", "CartPole-v1", replayable_episodes=True, env_runner_cls=DeviceEnvRunner), ValueError, "replayable_episodes=True", "env_runner_cls=DeviceEnvRunner", "SingleAgentEnvRunner"),
    case("replayable-vector", replayable_vector_env, ValueError, "replayable_episodes=True", "'bad_input_vector'", "SyncVectorEnv", "gymnasium.Env"),
    # Host environments: their class, spaces, resets, steps.
    case("host-without-config", host(__init__=lambda self: None), TypeError, "environment(env=", "HostEnv", "def __init__(self, config=None)"),
    case("host-reset-without-seed", host(reset=lambda self: (0, {})), TypeError, "HostEnv.reset", "'seed'", "def reset(self, *, seed=None"),
    case("host-without-observation-space", host(observation_space=NotImplemented), TypeError, "environment('HostEnv')", "no observation_space", "Set self.observation_space"),
    case("host-without-action-space", host(action_space=NotImplemented), TypeError, "environment('HostEnv')", "no action_space", "Set self.action_space"),
    case("host-without-step", host(step=NotImplemented), TypeError, "environment('HostEnv')", "does not define step", "Add step to the class"),
    case("host-text-observations", host(observation_space=Dict({"a": spaces.Text(5)})), TypeError, "environment('HostEnv')", "observation_space['a']", "Supported are"),
    case("host-nan-bounds", host(observation_space=NAN_BOX), ValueError, "environment('HostEnv')", "nan", "use -inf and inf"),
    case("host-reset-observation-only", host_reset(np.zeros(2, np.float32)), ValueError, "environment('HostEnv')", "reset of copy 0 in EnvRunner 0 returned a ndarray", "(obs, info)"),
    case("host-reset-wrong-shape", host_reset((np.zeros(3, np.float32), {})), ValueError, "environment('HostEnv')", "has shape (3,)", "or give observation_space another one"),
    case("host-reset-text", host_reset((np.array(["a", "b"]), {})), ValueError, "environment('HostEnv')", "['a', 'b']", "numbers as an array"),
    case("host-reset-no-info", host_reset((np.zeros(2, np.float32), None)), ValueError, "environment('HostEnv')", "info None", "Return a dict"),
    case("host-step-of-old-gym", host_step((np.zeros(2, np.float32), 0.0, False, {})), ValueError, "environment('HostEnv')", "step 1 of copy 0 in EnvRunner 0 returned 4 values", "(obs, reward, terminated, truncated, info)"),
    case("host-step-wrong-shape", host_step((np.zeros(1, np.float32), 0.0, False, False, {})), ValueError, "environment('HostEnv')", "the observation of step 1 of copy 0 in EnvRunner 0 has shape (1,)", "observation_space"),
    case("host-step-reward-array", host_step((np.zeros(2, np.float32), np.zeros(1), False, False, {})), ValueError, "environment('HostEnv')", "reward array([0.])", "Return one number"),
    case("host-choice-out-of-space", host_step((7, 0.0, False, False, {}), observation_space=Discrete(3), reset=lambda self, *, seed=None, options=None: (0, {})), ValueError, "environment('HostEnv')", "is 7, outside of Discrete(3)", "as many choices"),
    case("host-observation-tuple", host_reset(((np.zeros(2, np.float32), {}), {})), ValueError, "environment('HostEnv')", "a tuple of 2", "Return only the observation"),
    case("host-step-no-reward", host_step((np.zeros(2, np.float32), None, False, False, {})), ValueError, "environment('HostEnv')", "reward None", "Return one number"),
    case("host-step-flag-text", host_step((np.zeros(2, np.float32), 0.0, "no", False, {})), ValueError, "environment('HostEnv')", "terminated='no'", "True or False"),
    case(
        "host-step-part-missing",
        host_step(({"a": 0}, 0.0, False, False, {}), observation_space=Dict({"a": Discrete(2), "b": Discrete(2)}), reset=lambda self, *, seed=None, options=None: ({"a": 0, "b": 0}, {})),
        ValueError, "environment('HostEnv')", "lacks ['b']", "the keys ['a', 'b']",
    ),
    # JAX environments.
    case("jax-abstract", jax_env(AutoResetJaxEnv, action_space=Discrete(2)), TypeError, "MyJaxEnv", "reset_env, step_env", "Add reset_env, step_env to the class"),
    case("jax-without-config", jax_env(__init__=lambda self: None), TypeError, "MyJaxEnv", "too many positional", "def __init__(self, config=None)"),
    case("jax-reset-observation-only", jax_env(reset_env=lambda self, key, params: jnp.zeros(2)), ValueError, "MyJaxEnv.reset_env", "returned a", "(obs, state)"),
    case("jax-reset-wrong-shape", jax_env(reset_env=lambda self, key, params: (jnp.zeros(3), jnp.int32(0))), ValueError, "MyJaxEnv's observation", "(3,)", "the space"),
    case("jax-step-five-values", jax_step(lambda state, action: (jnp.zeros(2), state, 1.0, False, {})), ValueError, "MyJaxEnv.step_env", "returned 5 values", "truncated, info)"),
    case("jax-step-state-dtype", jax_step(lambda state, action: (jnp.zeros(2), state * 1.5, 1.0, False, False, {})), ValueError, "MyJaxEnv: step's state", "float32[]", "should be int32[]"),
    case("jax-step-state-structure", jax_step(lambda state, action: (jnp.zeros(2), (state, state), 1.0, False, False, {})), ValueError, "MyJaxEnv: step's state", "structure", "in every step"),
    case("jax-step-reward-shape", jax_step(lambda state, action: (jnp.zeros(2), state, jnp.zeros(2), False, False, {})), ValueError, "MyJaxEnv: reward", "(2,)", "scalar"),
    case("jax-step-no-reward", jax_step(lambda state, action: (jnp.zeros(2), state, None, False, False, {})), ValueError, "MyJaxEnv: reward", "None", "a number"),
    case("jax-step-python-if", jax_step(lambda state, action: (jnp.zeros(2), state, 1.0 if action else 0.0, False, False, {})), TypeError, "MyJaxEnv.step", "TracerBoolConversionError", "use jnp.where"),
    case("jax-step-of-gymnasium", jax_env(step_env=lambda self, action: None), TypeError, "MyJaxEnv.step_env(action)", "too many positional", "def step_env(self, key, state, action, params)"),
    case("jax-reset-without-params", jax_env(reset_env=lambda self, key: None), TypeError, "MyJaxEnv.reset_env(key)", "too many positional", "def reset_env(self, key, params)"),
    case("jax-info-text", jax_step(lambda state, action: (jnp.zeros(2), state, 1.0, False, False, {"why": "fell"})), TypeError, "'fell' is a str", "Remove it", "MyJaxEnv.step"),
    case("jax-state-object", jax_env(reset_env=lambda self, key, params: (jnp.zeros(2), CountingEnv())), TypeError, "is a CountingEnv", "only arrays and numbers", "@flax.struct.dataclass"),
    case("jax-raw-step-tuple", jax_env(RawEnv, step=lambda self, key, state, action, params: (jnp.zeros(2), state)), ValueError, "MyJaxEnv.step", "returned a tuple", "Return a JaxStep, or derive"),
    case("jax-raw-observation-dtype", jax_env(RawEnv, reset=lambda self, key, params: (jnp.zeros(2, jnp.int32), jnp.int32(0))), ValueError, "MyJaxEnv: reset's obs", "int32[2]", "should be float32[2]"),
]  # fmt: skip

MODULES = [
    case("no-forward", spec(module_class=NoForward), NotImplementedError, "NoForward", "no forward pass", "Override _forward(batch)"),
    case("no-value-function", spec(module_class=NoValues), ValueError, "ValueFunctionAPI", "NoValues", "Write class NoValues(RLModule, ValueFunctionAPI)"),
    case("value-function-not-written", spec(module_class=type("Abstract", (NoValues, ValueFunctionAPI), {})), ValueError, "module_class", "Abstract does not", "compute_values()"),
    case("wrong-key", outputs(lambda self, batch: {"logits": self.pi(batch["obs"])}), ValueError, "MyModule", "['logits']", "Return {Columns.ACTION_DIST_INPUTS: ...}"),
    case("array-instead-of-dict", outputs(lambda self, batch: self.pi(batch["obs"])), ValueError, "MyModule", "expected a dict", "Return {Columns.ACTION_DIST_INPUTS: ...}"),
    case("wrong-width", outputs(lambda self, batch: {"action_dist_inputs": jnp.zeros((*batch["obs"].shape[:-1], 5))}), ValueError, "action_dist_inputs", "got 5", "Give the last layer 2 outputs"),
    case("no-batch-axis", outputs(lambda self, batch: {"action_dist_inputs": jnp.zeros(2)}), ValueError, "action_dist_inputs", "(2,)", "Keep the batch axes"),
    case("integer-logits", outputs(lambda self, batch: {"action_dist_inputs": jnp.zeros((*batch["obs"].shape[:-1], 2), int)}), ValueError, "action_dist_inputs", "int32", ".astype(jnp.float32)"),
    case("values-with-axis", module(compute_values=lambda self, batch, embeddings=None: self.v(batch["obs"])), ValueError, "compute_values()", "(7, 1)", "Drop the last axis"),
    case("unknown-column", outputs(lambda self, batch: {"action_dist_inputs": self.pi(batch["observation"])}), ValueError, "_forward_inference()", "'observation'", "Read one of these columns"),
    case("other-input-width", module(setup=lambda self: (setattr(self, "pi", nnx.Linear(3, 2, rngs=self.rngs)), setattr(self, "v", nnx.Linear(4, 1, rngs=self.rngs)))), ValueError, "_forward_inference()", "(7, 4)", "observation space"),
    case("layers-in-a-list", module(setup=lambda self: setattr(self, "layers", [nnx.Linear(4, 2, rngs=self.rngs)])), ValueError, "MyModule", "JAX does not find", "nnx.List"),
    case("layers-of-linen", outputs(lambda self, batch: {"action_dist_inputs": linen.Dense(2)(batch["obs"])}), ValueError, "MyModule", "CallCompactUnboundModuleError", "nnx.Linear(4, 2, rngs=self.rngs)"),
    case("layer-without-rngs", module(setup=lambda self: setattr(self, "pi", nnx.Linear(4, 2))), TypeError, "'rngs'", "MyModule.setup()", "rngs=self.rngs"),
    case("layer-as-of-torch", module(setup=lambda self: setattr(self, "pi", nnx.Linear(4, 2, bias=False, rngs=self.rngs))), TypeError, "'bias'", "MyModule.setup()", "use_bias=False"),
    case("method-of-torch", outputs(lambda self, batch: {"action_dist_inputs": self.pi(batch["obs"].unsqueeze(0))}), ValueError, "MyModule", "unsqueeze", "jnp.expand_dims(x, axis)"),
    case("view-of-torch", outputs(lambda self, batch: {"action_dist_inputs": self.pi(batch["obs"].view(-1, 4))}), ValueError, "MyModule", ".view()", "x.reshape(shape)"),
    case("forward-python-if", outputs(lambda self, batch: {"action_dist_inputs": self.pi(batch["obs"]) if batch["obs"].sum() > 0 else 0}), ValueError, "MyModule", "TracerBoolConversionError", "use jnp.where"),
    case("batch-instead-of-column", outputs(lambda self, batch: {"action_dist_inputs": self.pi(batch)}), ValueError, "MyModule", "A batch is a dict", "read batch[Columns.OBS]"),
    case("module-config-attribute", module(setup=lambda self: self.config), AttributeError, "MyModule", "'config'", "Use self.model_config"),
    case("module-space-attribute", module(setup=lambda self: self.obs_space), AttributeError, "MyModule", "'obs_space'", "Use self.observation_space"),
    case("rngs-in-forward", outputs(lambda self, batch: nnx.Linear(4, 2, rngs=self.rngs)(batch["obs"])), ValueError, "MyModule.rngs", "while the module is built", "Create layers in setup()"),
    case("constructor-without-super", spec(module_class=type("Lonely", (GoodModule,), {"__init__": lambda self, **kwargs: None})), TypeError, "Lonely.__init__()", "super().__init__()", "Build the networks in setup()"),
    case("constructor-without-arguments", spec(module_class=type("Narrow", (GoodModule,), {"__init__": lambda self: None})), ValueError, "module_class", "Narrow()", "Build the networks in setup()"),
    case("constructor-of-the-past", lambda: GoodModule({}), ValueError, "GoodModule(config=...)", "is gone", "keyword arguments"),
    case("class-instead-of-spec", setting("rl_module", rl_module_spec=GoodModule), ValueError, "rl_module_spec=", "GoodModule", "an RLModuleSpec"),
    case("instance-instead-of-class", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(module_class=GoodModule(observation_space=OBS_SPACE, action_space=Discrete(2)))), ValueError, "rl_module_spec=", "not GoodModule", "subclass of RLModule"),
    case("layer-instead-of-module", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(module_class=nnx.Linear)), ValueError, "module_class", "not Linear", "subclass of RLModule"),
    case("spec-catalog", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(catalog_class=dict)), ValueError, "catalog_class", "not dict", "subclass of Catalog"),
    case("spec-space", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(observation_space=(4,))), ValueError, "observation_space", "not (4,)", "a gymnasium space"),
    case("spec-space-of-other-shape", spec(observation_space=Box(-1, 1, (3,))), ValueError, "RLModuleSpec(observation_space=", "(3,)", "Leave observation_space out"),
    case("spec-model-config", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(model_config=[1])), ValueError, "model_config", "not [1]", "a DefaultModelConfig"),
    case("spec-flag", lambda: tiny().rl_module(rl_module_spec=RLModuleSpec(inference_only="no")), ValueError, "inference_only", "not 'no'", "True or False"),
    case("spec-cannot-train", spec(inference_only=True), ValueError, "inference_only=True", POLICY, "Leave inference_only out"),
    case("spec-cannot-act", spec(learner_only=True), ValueError, "learner_only=True", POLICY, "Leave learner_only out"),
    case("multi-spec-list", lambda: MultiRLModuleSpec(rl_module_specs=[RLModuleSpec()]), ValueError, "rl_module_specs=", "[RLModuleSpec", "must be a dict"),
    case("multi-spec-class", lambda: tiny().rl_module(rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=dict)), ValueError, "multi_rl_module_class", "not dict", "subclass of MultiRLModule"),
    case("multi-spec-other-ids", setting("rl_module", rl_module_spec=MultiRLModuleSpec(rl_module_specs={"p1": RLModuleSpec()})), ValueError, "rl_module_specs", "['p1']", f"Rename one to one of ['{POLICY}']"),
    case("model-config-text", setting("rl_module", model_config="mlp"), ValueError, "model_config=", "'mlp'", "a DefaultModelConfig"),
    case("model-key-typo", changed(lambda c: c.rl_module(model_config={"fcnet_hidden": [4]})), ValueError, "model_config", "'fcnet_hidden'", "'fcnet_hiddens'"),
    case("attention", changed(lambda c: c.rl_module(model_config={"use_attention": True})), ValueError, "'use_attention'", "use_lstm=True", "GTrXL"),
    case("attention-as-field", lambda: DefaultModelConfig(use_attention=False), TypeError, "'use_attention'", "use_lstm=True", "GTrXL"),
    case("model-key-number", setting("rl_module", model_config={3: 4}), ValueError, "model_config", "the key 3", "the name of a setting, such as"),
    case("activation-typo", model_config(fcnet_activation="rleu"), ValueError, "fcnet_activation=", "'rleu'", "'relu'"),
    case("activation-number", model_config(head_fcnet_activation=3), ValueError, "head_fcnet_activation=", "3", "the name of an activation"),
    case("hidden-number", model_config(fcnet_hiddens=64), ValueError, "fcnet_hiddens=", "64", "a list of integers"),
    case("hidden-fraction", model_config(fcnet_hiddens=[64.5]), ValueError, "fcnet_hiddens=", "[64.5]", "a list of integers"),
    case("hidden-zero", model_config(head_fcnet_hiddens=[0]), ValueError, "head_fcnet_hiddens=", "[0]", "at least 1"),
    case("initializer-typo", model_config(fcnet_kernel_initializer="glorot"), ValueError, "fcnet_kernel_initializer=", "'glorot'", "'glorot_uniform'"),
    case("initializer-argument", model_config(fcnet_bias_initializer="zeros", fcnet_bias_initializer_kwargs={"gain": 2}), ValueError, "fcnet_bias_initializer_kwargs=", "{'gain': 2}", "it takes"),
    case("initializer-number", model_config(fcnet_kernel_initializer=3), ValueError, "fcnet_kernel_initializer=", "3", "the name of an initializer"),
    case("shared-layers-text", model_config(vf_share_layers="yes"), ValueError, "vf_share_layers=", "'yes'", "True or False"),
    case("log-std-clip", model_config(log_std_clip_param=-1), ValueError, "log_std_clip_param=", "-1", "at least 0"),
    case("log-std-of-choices", changed(lambda c: c.rl_module(model_config={"free_log_std": True})), ValueError, "free_log_std=True", "Discrete(2)", "Set free_log_std=False"),
    case("lstm-width", model_config(lstm_cell_size=0), ValueError, "lstm_cell_size", "=0", "at least 1"),
    case("obs-key-number", model_config(policy_obs_key=3), ValueError, "policy_obs_key=", "3", "a key of the observations, such as 'state'"),
    case("obs-keys-twice", model_config(value_obs_key=["state", "state"]), ValueError, "value_obs_key=", "['state', 'state']", "a list of different keys"),
    case("obs-keys-shared", model_config(policy_obs_key="state", vf_share_layers=True), ValueError, "policy_obs_key='state'", "value_obs_key=None", "'vf_share_layers': False"),
    case("obs-key-of-vectors", changed(lambda c: c.rl_module(model_config={"policy_obs_key": "state"})), ValueError, "policy_obs_key='state'", "Box(", "Remove the setting"),
    case("obs-key-of-dqn", lambda: DQNConfig().environment("CartPole-v1").rl_module(model_config={"policy_obs_key": "state"}).validate(), ValueError, "policy_obs_key='state'", "DQNConfig", "Leave it out"),
    case("value-key-of-bc", lambda: BCConfig().rl_module(model_config={"value_obs_key": "state"}).validate(), ValueError, "value_obs_key='state'", "BCConfig", "Leave it out"),
    case("lstm-prev-action", model_config(lstm_use_prev_action=True), ValueError, "lstm_use_prev_action", ": True", "PrevActionsPrevRewards"),
]  # fmt: skip

CONNECTORS = [
    case("instance-instead-of-function", setting("env_runners", env_to_module_connector=MeanStdFilter()), ValueError, "env_to_module_connector=", "MeanStdFilter()", "a function that returns"),
    case("text-instead-of-function", setting("learners", learner_connector="gae"), ValueError, "learner_connector=", "'gae'", "a function that returns"),
    case("returns-class", env_to_module(lambda env, spaces, device: MeanStdFilter), ValueError, "env_to_module_connector", "returned MeanStdFilter", "must return a ConnectorV2"),
    case("returns-none", env_to_module(lambda env, spaces, device: None), ValueError, "env_to_module_connector", "returned None", "must return a ConnectorV2"),
    case("returns-list-with-text", env_to_module(lambda env, spaces, device: [MeanStdFilter(), "x"]), ValueError, "env_to_module_connector", "returned 'x'", "a list"),
    case("too-many-arguments", env_to_module(lambda env, spaces, device, seed: MeanStdFilter()), ValueError, "env_to_module_connector", "has 4 required arguments", "env, spaces, device"),
    case("too-many-arguments-to-env", changed(lambda c: c.env_runners(module_to_env_connector=lambda env, spaces, device: connector(apply=unchanged))), ValueError, "module_to_env_connector", "has 3 required arguments", "env, spaces."),
    case("keyword-only", env_to_module(lambda *, env: MeanStdFilter()), ValueError, "env_to_module_connector", "keyword-only argument 'env'", "before the *"),
    case("function-fails", env_to_module(lambda env, spaces, device: spaces["observation"]), KeyError, "'observation'", "Raised by the function of", "env_to_module_connector"),
    case("no-apply", sampling_connector(), TypeError, "'MyConnector'", "neither `apply` nor `__call__`", "def apply(self, state, batch, ctx)"),
    case("apply-without-context", sampling_connector(apply=lambda self, state, batch: (state, batch)), TypeError, "'MyConnector': apply", "too many positional", "def apply(self, state, batch, ctx)"),
    case("init-without-number", sampling_connector(init=lambda self: (), apply=unchanged), TypeError, "'MyConnector': init", "too many positional", "def init(self, num_envs: int)"),
    case("apply-returns-batch", applied(lambda state, batch: batch), TypeError, "MyConnector", "got dict", "must return the tuple (state, batch)"),
    case("apply-returns-columns", applied(lambda state, batch: (state, batch[POLICY])), TypeError, "MyConnector", "{'obs'", "{module_id: {column: arrays}}"),
    case("state-changes-dtype", applied(lambda state, batch: (state + 0.5, batch), init=lambda self, num_envs: jnp.int32(0)), TypeError, "MyConnector", "got float32[]", "expected int32[]"),
    case("state-changes-structure", applied(lambda state, batch: ((state,), batch), init=lambda self, num_envs: jnp.int32(0)), TypeError, "MyConnector", "the structure", "that `init` made"),
    case("state-text", applied(lambda state, batch: (state, batch), init=lambda self, num_envs: {"mode": "train"}), TypeError, "'MyConnector'", "'train'", "may hold only arrays"),
    case("removes-observations", applied(lambda state, batch: (state, {POLICY: {}})), ValueError, "MyConnector", "reads 'obs'", "Keep this column"),
    case("renames-module", applied(lambda state, batch: (state, {"p1": batch[POLICY]})), ValueError, "MyConnector", "['p1']", f"Return {{'{POLICY}': columns}}"),
    case("changes-shape-silently", applied(lambda state, batch: (state, {POLICY: {"obs": batch[POLICY]["obs"][:, :2]}})), ValueError, "MyConnector", "(7, 2)", "recompute_output_observation_space()"),
    case("declares-no-space", sampling_connector(apply=unchanged, recompute_output_observation_space=lambda self, observation_space, action_space: (4,)), TypeError, "MyConnector", "(4,)", "Supported are"),
    case("python-if", applied(lambda state, batch: (state, batch if batch[POLICY]["obs"].sum() > 0 else {})), TypeError, "MyConnector", "TracerBoolConversionError", "use jnp.where"),
    case("host-connector-on-device", sampling_connector(__call__=lambda self, **kwargs: kwargs["batch"]), TypeError, "'MyConnector'", "`__call__`", "With host environments"),
    case("host-connector-to-env", changed(lambda c: c.env_runners(module_to_env_connector=lambda: connector(__call__=lambda self, **kwargs: {}))), TypeError, "'MyConnector'", "ModuleToEnvPipeline", "pure functions"),
    case("host-connector-of-learner-on-device", changed(lambda c: c.learners(learner_connector=lambda: connector(__call__=lambda self, **kwargs: {}))), TypeError, "'MyConnector'", "LearnerConnectorPipeline", "pure functions"),
    case("host-connector-arguments", host_connector(lambda self, batch: batch), TypeError, "'episodes'", "MyConnector", "def __call__(self, *, rl_module, batch, episodes, **kwargs)"),
    case("learner-connector-without-apply", changed(lambda c: c.learners(learner_connector=lambda: connector())), TypeError, "'MyConnector'", "neither `apply`", "def apply(self, state, batch, ctx)"),
    case("actions-are-not-made", setting("env_runners", add_default_connectors_to_module_to_env_pipeline=False), ValueError, "add_default_connectors_to_module_to_env_pipeline=False", "into actions", "module_to_env_connector="),
    case("advantages-are-not-made", changed(lambda c: c.learners(add_default_connectors_to_learner_pipeline=False), then=train), ValueError, "PPOLearner", "'advantages'", "Add the column in a learner connector"),
    case("remove-unknown", lambda: pipeline().remove("MeanStdFilter"), ValueError, "No connector", "'MeanStdFilter'", "['MyConnector']"),
    case("insert-at-unknown-class", lambda: pipeline().insert_after(MeanStdFilter, connector(apply=unchanged)), ValueError, "No connector", "'MeanStdFilter'", "it has ["),
    case("remove-number", lambda: pipeline().remove(0), TypeError, "0", "not the name or class", "['MyConnector']"),
    case("append-class", lambda: pipeline().append(MeanStdFilter), TypeError, "MeanStdFilter", "is a class", "MeanStdFilter()"),
    case("append-text", lambda: pipeline().append("MeanStdFilter"), TypeError, "is not a connector", "'MeanStdFilter'", "Add a ConnectorV2 object"),
    case("same-object-twice", twice_in_a_pipeline, ValueError, "MyConnector", "already", "Add a new one"),
    case("connector-argument-typo", lambda: MeanStdFilter(clip_by_vale=3), TypeError, "MeanStdFilter", "clip_by_vale", "clip_by_value"),
    case("filter-clip-negative", lambda: MeanStdFilter(clip_by_value=-1), ValueError, "clip_by_value=", "-1", "a positive number"),
    case("stack-of-none", lambda: FrameStackingEnvToModule(num_frames=0), ValueError, "num_frames=", "0", "1 or more"),
    case("previous-actions-negative", lambda: PrevActionsPrevRewards(n_prev_actions=-1), ValueError, "n_prev_actions=", "-1", "0 or more"),
]  # fmt: skip

LEARNERS = [
    case("loss-per-row", loss(lambda batch: batch["advantages"]), ValueError, "The loss of module", "MyLearner has the shape", "must be a scalar"),
    case("loss-none", loss(lambda batch: None), ValueError, "The loss of module", "MyLearner is None", "Return a float32 scalar"),
    case("loss-integer", loss(lambda batch: jnp.int32(0)), ValueError, "The loss of module", "int32", "Return a float32 scalar"),
    case("loss-of-three", loss(lambda batch: (jnp.float32(0), {}, 1)), ValueError, "The loss of module", "a tuple of 3", "Return the loss, or the pair"),
    case("loss-unknown-column", loss(lambda batch: batch["advantage"].mean()), ValueError, "MyLearner", "'advantage'", "'advantages'"),
    case("loss-dict", loss(lambda batch: {"loss": jnp.float32(0)}), KeyError, POLICY, "no optimizer 'loss'", "A loss is a scalar"),
    case("loss-number", loss(lambda batch: float(batch["advantages"].mean())), TypeError, "test_bad_input.py", "float(batch", "use jnp.where"),
    case("loss-numpy", loss(lambda batch: np.mean(np.asarray(batch["advantages"]))), TypeError, "test_bad_input.py", "np.mean(", "and jnp"),
    case("loss-detach", loss(lambda batch: batch["advantages"].detach().mean()), AttributeError, "detach", ".detach()", "jax.lax.stop_gradient(x)"),
    case("loss-arguments", learner_with(compute_loss_for_module=lambda self, batch, fwd_out: 0), TypeError, "MyLearner.compute_loss_for_module()", "'module_id'", "def compute_loss_for_module(self, *, module_id, config, batch, fwd_out)"),
    case("metric-key-second", learner_with(compute_loss_for_module=lambda self, *, module_id, config, batch, fwd_out: self.metrics.log_value(1.0, "x")), TypeError, "log_value(", "1.0, 'x'", "log_value(name, value)"),
    case("loss-nan", loss(lambda batch: jnp.float32(jnp.nan), check_nans=True), FloatingPointError, "loss", POLICY, "lower lr"),
    case("metric-per-row", loss(lambda batch: (jnp.float32(0), {"adv": batch["advantages"]})), ValueError, "log_value(", "'adv'", "Log its mean"),
    case("no-optimizer", changed(lambda c: c.learners(learner_class=type("MyLearner", (PPOLearner,), {"configure_optimizers_for_module": lambda self, module_id, config=None: None}))), ValueError, "configure_optimizers_for_module", POLICY, "call self.register_optimizer"),
    case("optimizer-name", optimizer(optimizer="adam"), TypeError, "optimizer=", "'adam'", "optax.adam"),
    case("optimizer-returns-none", optimizer(optimizer=lambda lr: None), TypeError, "optimizer=", "returned None", "an optax.GradientTransformation"),
    case("optimizer-with-own-rate", optimizer(optimizer=optax.adam(0.1)), ValueError, "lr_or_lr_schedule=0.1", "no effect", "lr_or_lr_schedule=None"),
    case("optimizer-rate-text", optimizer(lr_or_lr_schedule="fast"), ValueError, "lr_or_lr_schedule=", "'fast'", "Use a number"),
    case("optimizer-rate-missing", optimizer(lr_or_lr_schedule=None), ValueError, "lr_or_lr_schedule", POLICY, "config.training(lr=...)"),
    case("optimizer-unknown-parameter", optimizer(params=["nope/kernel"]), ValueError, "params=...", "'nope/kernel'", "self.get_parameters"),
    case("optimizer-parameter-number", optimizer(params=[3]), TypeError, "params=...", "3 is not a parameter", "self.get_parameters"),
    case("optimizer-no-parameters", optimizer(params=[]), ValueError, "params=...", "params=[]", "self.get_parameters"),
    case("no-data", update(), ValueError, "exactly one data argument", "none", "'batch'"),
    case("two-data-arguments", update(batch=batch(), episodes=[]), ValueError, "exactly one data argument", "['batch', 'episodes']", "out of"),
    case("two-in-training-data", update(training_data=TrainingData(batch=batch(), episodes=[])), ValueError, "exactly one data argument", "['batch', 'episodes']", "out of"),
    case("training-data-dict", update(training_data={"batch": batch()}), TypeError, "training_data=...", "a dict", "update(batch=...)"),
    case("no-episodes", update(episodes=[]), ValueError, "update(episodes=...)", "0 episodes", "a step to learn from"),
    case("episodes-of-numbers", update(episodes=[3]), TypeError, "update(episodes=...)", "entry 0 is 3", "SingleAgentEpisodes"),
    case("batch-list", update(batch=[batch()]), TypeError, "A batch is a dict", "got a list", "update(batches=[...])"),
    case("batches-dict", update(batches=batch()), ValueError, "update(batches=...)", "a dict of 6", "update(batch=...)"),
    case("batches-empty", update(batches=[]), ValueError, "update(batches=...)", "a list of 0", "at least one batch"),
    case("batch-empty", update(batch={}), ValueError, "All columns of a batch", "{}", "rows, at least 1"),
    case("batch-without-rows", update(batch={name: column[:0] for name, column in batch().items()}), ValueError, "All columns of a batch", "(0,)", "rows, at least 1"),
    case("batch-uneven", update(batch=batch(advantages=np.zeros(3, np.float32))), ValueError, "'advantages'", "(3,)", "the same number of rows"),
    case("batch-unknown-module", update(batch={POLICY: batch(), "p1": batch()}), ValueError, "modules", "['p1']", POLICY),
    case("batch-missing-column", update(batch=batch(advantages=None)), ValueError, "PPOLearner", "'advantages'", "Add the column in a learner connector"),
    case("batch-observation-shape", update(batch=batch(obs=np.zeros((NUM_ROWS, 3), np.float32))), ValueError, "column 'obs'", "(8, 3)", "Pass an array of that shape, or change the space"),
    case("batch-action-shape", update(batch=batch(actions=np.zeros((NUM_ROWS, 3), np.int32))), ValueError, "'actions'", "(8, 3)", "batch"),
    case("batch-text", update(batch=batch(actions=np.array(["left"] * NUM_ROWS))), ValueError, "'actions'", "<U4", "Pass arrays of numbers"),
    case("minibatch-of-zero", update(batch=batch(), minibatch_size=0), ValueError, "minibatch_size=0", "must be a positive multiple", "Use minibatch_size=1"),
    case("no-epochs", update(batch=batch(), num_epochs=0), ValueError, "num_epochs", "=0", "at least 1"),
    case("timesteps-text", update(batch=batch(), timesteps="many"), TypeError, "timesteps=", "'many'", "a number of env steps"),
    case("too-few-rows-to-deal-out", lambda: TrainingData(batch={POLICY: {"obs": np.zeros((1, 4))}}).shard(2), ValueError, f"rows of '{POLICY}'", "1", "lower num_learners"),
    case("weights-of-unknown-module", lambda learner: learner.set_weights({"p1": {}}), KeyError, "No module", "'p1'", POLICY),
    case("weights-of-unknown-name", lambda learner: learner.set_weights({POLICY: {"pi/nope": np.zeros(1)}}), ValueError, "set_state()", "'pi/nope'", "the same spaces and model config"),
    case("component-typo", lambda learner: learner.get_state("rl_modul"), ValueError, "components", "'rl_modul'", "'rl_module'"),
    case("no-spaces", lambda: PPOConfig().build_learner(), ValueError, "observation_space", POLICY, "environment(observation_space=...)"),
]  # fmt: skip

CALLBACKS = [
    case("no-callback-class", setting("callbacks", callbacks_class=dict), ValueError, "callbacks_class=", "dict", "a subclass of"),
    case("callback-instance", setting("callbacks", callbacks_class=[RLlibCallback()]), ValueError, "callbacks_class=", "RLlibCallback object", "a subclass of"),
    case("callback-with-arguments", setting("callbacks", callbacks_class=NoArgumentsCallback), ValueError, "callbacks_class=", "NoArgumentsCallback() cannot", "without arguments"),
    case("hook-text", setting("callbacks", on_train_result=["f"]), ValueError, "on_train_result=", "['f']", "a list of functions"),
    case("unknown-hook", lambda: tiny().callbacks(on_episode_finish=print), TypeError, "callbacks()", "'on_episode_finish'", "callbacks(on_episode_end=...)"),
    case("old-hook", callback_class(on_learn_on_batch=lambda self, **kwargs: None), TypeError, "MyCallback.on_learn_on_batch()", "never be called", "before_gradient_based_update()"),
    case("hook-signature", changed(lambda c: c.callbacks(on_train_result=lambda result: None)), TypeError, "on_train_result", "'algorithm'", "add **kwargs"),
    case("hook-method-signature", callback_class(on_episode_step=lambda self, episode: None), TypeError, "MyCallback.on_episode_step()", "'env_runner'", "add **kwargs"),
    case("hook-logs-unknown-reduction", changed(lambda c: c.callbacks(on_algorithm_init=lambda metrics_logger, **kwargs: metrics_logger.log_value("x", 1, reduce="men"))), ValueError, "reduce=", "'men'", "'mean'"),
]  # fmt: skip

OTHER_PACKAGES = [
    # Stable-Baselines3.
    case("sb3-policy-first", lambda: PPO("MlpPolicy", "CartPole-v1"), TypeError, "PPO(config=", "'MlpPolicy'", "PPOConfig().environment('CartPole-v1').build_algo()"),
    case("sb3-environment-only", lambda: PPO("CartPole-v1"), TypeError, "PPO(config=", "'CartPole-v1'", "PPOConfig().environment('CartPole-v1').build_algo()"),
    case("sb3-environment-by-keyword", lambda: PPO(env="CartPole-v1"), TypeError, "PPO(config=", "None", "PPOConfig().environment('CartPole-v1').build_algo()"),
    case("sb3-verbose-algorithm", lambda: PPO(tiny(), verbose=1), TypeError, "PPO()", "'verbose'", "progress=False"),
    case("settings-in-constructor", lambda: PPOConfig(lr=0.1), TypeError, "PPOConfig(lr=...)", "arguments of methods", "PPOConfig().training(lr=...)"),
    case("environment-in-constructor", lambda: build(PPOConfig("CartPole-v1")), ValueError, "'CartPole-v1'", "looks like an environment", "config.environment('CartPole-v1')"),
    case("sb3-n-steps", lambda: tiny().training(n_steps=8), TypeError, "training()", "'n_steps'", "env_runners(rollout_fragment_length=...)"),
    case("sb3-ent-coef", lambda: tiny().training(ent_coef=0.1), TypeError, "training()", "'ent_coef'", "training(entropy_coeff=...)"),
    case("sb3-ent-coef-of-sac", lambda: SACConfig().training(ent_coef="auto"), TypeError, "training()", "'ent_coef'", "training(initial_alpha=...)"),
    case("sb3-learning-rate-of-sac", lambda: SACConfig().training(learning_rate=0.1), TypeError, "'learning_rate'", "training(actor_lr=...)", "training(critic_lr=...)"),
    case("sb3-verbose", lambda: tiny().training(verbose=1), TypeError, "training()", "'verbose'", "progress=False"),
    case("sb3-policy-kwargs", lambda: tiny().training(policy_kwargs={}), TypeError, "training()", "'policy_kwargs'", "rl_module(model_config={'fcnet_hiddens'"),
    case("sb3-net-arch", changed(lambda c: c.rl_module(model_config={"net_arch": [64]})), ValueError, "model_config", "'net_arch'", "'fcnet_hiddens'"),
    case("sb3-activation", changed(lambda c: c.rl_module(model_config={"activation_fn": "relu"})), ValueError, "model_config", "'activation_fn'", "'fcnet_activation'"),
    case("sb3-tensorboard", lambda: tiny().debugging(tensorboard_log="runs"), TypeError, "debugging()", "'tensorboard_log'", "reporting(results_dir='results')"),
    case("sb3-total-timesteps", lambda: tiny().training(total_timesteps=9), TypeError, "training()", "'total_timesteps'", "algo.learn({'num_env_steps_sampled_lifetime'"),
    case("sb3-exploration", lambda: DQNConfig().training(exploration_fraction=0.1), TypeError, "training()", "'exploration_fraction'", "training(epsilon=...)"),
    case("sb3-train-freq", lambda: DQNConfig().training(train_freq=4), TypeError, "training()", "'train_freq'", "training(training_intensity=...)"),
    case("sb3-eval-episodes", lambda: tiny().evaluation(n_eval_episodes=4), TypeError, "evaluation()", "'n_eval_episodes'", "evaluation(evaluation_duration=...)"),
    case("sb3-device", lambda: tiny().training(device="cuda"), TypeError, "training()", "'device'", "learners(num_gpus_per_learner=...)"),
    case("sb3-get-env", lambda algo: algo.get_env(), AttributeError, "PPO has no get_env", "config.environment(env)", "build_algo()"),
    case("sb3-policy", lambda algo: algo.policy, AttributeError, "PPO has no policy", "algorithm.get_policy()", "algorithm.get_module()"),
    case("sb3-load", lambda: PPO.load("model.zip"), AttributeError, "PPO has no load", "save_to_path(path)", "from_checkpoint(path)"),
    case("sb3-load-of-object", lambda algo: algo.load("model.zip"), AttributeError, "PPO has no load", "save_to_path(path)", "from_checkpoint(path)"),
    case("sb3-learn-callback", lambda algo: algo.learn(3, callback=print), TypeError, "PPO.learn()", "callback", "config.callbacks(on_train_result=...)"),
    case("sb3-learn-log-interval", lambda algo: algo.learn(log_interval=4, total_timesteps=100), TypeError, "PPO.learn()", "total_timesteps", "learn({'num_env_steps_sampled_lifetime': 100})"),
    case("sb3-evaluate", lambda algo: algo.evaluate(n_eval_episodes=5), TypeError, "PPO.evaluate()", "n_eval_episodes", "evaluation(evaluation_duration=5)"),
    case("evaluate-typo", lambda algo: algo.evaluate(episodes=5), TypeError, "PPO.evaluate()", "'episodes'", "takes parallel_train_future"),
    case("sb3-deterministic", act(np.zeros(4, np.float32), deterministic=True), TypeError, "PPO.compute_single_action()", "deterministic", "explore=False"),
    case("act-typo", act(np.zeros(4, np.float32), greedy=True), TypeError, "PPO.compute_single_action()", "'greedy'", "takes observation, state, explore"),
    case("sb3-deepcopy", lambda algo: copy.deepcopy(algo), TypeError, "A PPO cannot be", "pickled or copied", "from_checkpoint(path)"),
    case("act-on-what-reset-returns", act((np.zeros(4, np.float32), {})), ValueError, "observation is the tuple", "(float32[4], {})", "obs, info = env.reset()"),
    # CleanRL, PureJaxRL, gymnax.
    case("cleanrl-minibatches", lambda: tiny().training(num_minibatches=4), TypeError, "training()", "'num_minibatches'", "training(minibatch_size=...)"),
    case("cleanrl-anneal-lr", lambda: tiny().training(anneal_lr=True), TypeError, "training()", "'anneal_lr'", "training(lr=[[0, "),
    case("cleanrl-norm-adv", lambda: tiny().training(norm_adv=True), TypeError, "training()", "'norm_adv'", "leave it out"),
    case("cleanrl-clip-vloss", lambda: tiny().training(clip_vloss=True), TypeError, "training()", "'clip_vloss'", "training(vf_clip_param=...)"),
    case("cleanrl-video", lambda: tiny().debugging(capture_video=True), TypeError, "debugging()", "'capture_video'", "algo.record('video.mp4')"),
    case("cleanrl-track", lambda: tiny().reporting(track=True), TypeError, "reporting()", "'track'", "reporting(loggers=...)"),
    case("purejaxrl-clip-eps", lambda: PPOConfig.from_dict({"CLIP_EPS": 0.2}), ValueError, "PPOConfig", "'CLIP_EPS'", "training(clip_param=...)"),
    case("purejaxrl-env-name", lambda: PPOConfig.from_dict({"ENV_NAME": "CartPole-v1"}), ValueError, "PPOConfig", "'ENV_NAME'", "environment(env=...)"),
    case("purejaxrl-timesteps", lambda: PPOConfig.from_dict({"TOTAL_TIMESTEPS": 5e5}), ValueError, "PPOConfig", "'TOTAL_TIMESTEPS'", "algo.learn({'num_env_steps"),
    case("gymnax-params", lambda: tiny().environment(CARTPOLE, env_params={}), TypeError, "environment()", "'env_params'", "environment(env_config=...)"),
    case("gymnax-colon", lambda: build(tiny("gymnax:CartPole-v1")), ValueError, "environment(", "'gymnax:CartPole-v1'", "write 'gymnax/CartPole-v1'"),
    case("setting-of-evaluation", lambda: tiny().evaluation(explore=False), TypeError, "evaluation()", "'explore'", "evaluation(evaluation_config={'explore': ...})"),
    case("setting-like-no-other", lambda: tiny().training(zzzz=1), TypeError, "training()", "'zzzz'", "help(config.training)"),
    # RLlib's past.
    case("rllib-compute-action", lambda algo: algo.compute_action(np.zeros(4)), AttributeError, "PPO has no compute_action", "compute_single_action(obs, explore=False)", "get_policy()"),
    case("rllib-local-worker", lambda algo: algo.env_runner_group.local_worker(), AttributeError, "EnvRunnerGroup.local_worker", "is gone", "Use local_env_runner"),
    case("train-a-config", lambda: tiny().train(), AttributeError, "PPOConfig", "'train'", "algo = config.build_algo()"),
    case("learn-function-without-argument", lambda algo: algo.learn(lambda: True), StopError, "until=", "cannot be called with the result", "lambda result:"),
    case("episode-total-reward", lambda: SingleAgentEpisode().total_reward, AttributeError, "SingleAgentEpisode.total_reward", "is gone", "get_return()"),
    case("episode-custom-metrics", lambda: SingleAgentEpisode().custom_metrics, AttributeError, "SingleAgentEpisode.custom_metrics", "is gone", "metrics_logger.log_value("),
    case("logger-log", lambda: MetricsLogger().log("x", 1), AttributeError, "MetricsLogger has no log", "Use", "log_value(name, value)"),
    case("policy-predict", lambda: object.__new__(Policy).predict(0), AttributeError, "Policy has no predict", "compute_single_action(obs)", "compute_actions(obs_batch, state)"),
    *(
        case(f"result-{key}", lambda key=key: RESULT[key], KeyError, "has no", repr(key), f"Did you mean result{read}?")
        for key, read in {
            "episode_reward_mean": "['env_runners']['episode_return_mean']",
            "episode_return_mean": "['env_runners']['episode_return_mean']",
            "env_runners/episode_return_mean": "['env_runners']['episode_return_mean']",
            "timesteps_total": "['num_env_steps_sampled_lifetime']",
            "info": "['learners']",
        }.items()
    ),
    case("result-part", lambda: RESULT["env_runners"]["episode_reward_mean"], KeyError, "result['env_runners'] has no", "'episode_reward_mean'", "result['env_runners']['episode_return_mean']"),
    case("result-evaluation", lambda: RESULT["evaluation"], KeyError, "The result", "'evaluation'", "evaluation(evaluation_interval=1)"),
    case("result-custom-metrics", lambda: RESULT["custom_metrics"], KeyError, "The result", "'custom_metrics'", "metrics_logger.log_value(name, value)"),
    case("result-unlike-any", lambda: RESULT["zzzz"], KeyError, "The result", "'zzzz'", "Its keys are ["),
]  # fmt: skip

IMPORTS = {
    "from jaxrl_stack import evaluate_policy": "use algorithm.evaluate()",
    "from jaxrl_stack import make_vec_env": r"env_runners\(num_envs_per_env_runner=...\)",
    "from jaxrl_stack import VecNormalize": "MeanStdFilter",
    "from jaxrl_stack.algorithms.ppo import make_train": r"build_algo\(\)",
    "from jaxrl_stack.algorithms.ppo import PPOTrainer": r"PPOConfig\(\)\.environment\(env\)\.build_algo\(\)",
    "from jaxrl_stack.algorithms.dqn import DEFAULT_CONFIG": "a new config",
    "from jaxrl_stack.algorithms.ppo import PPOconfig": "it is PPOConfig",
    "from jaxrl_stack import PPOConfg": r"no PPOConfg in jaxrl_stack: did you mean PPOConfig \(from jaxrl_stack import PPOC",
    "from jaxrl_stack.connectors.env_to_module import MeanStdFiltr": "did you mean MeanStdFilter",
    "import jaxrl_stack.algorithm.ppo": "no algorithm in jaxrl_stack: did you mean [aA]lgorithm",
    "from jaxrl_stack.agents.ppo import PPOTrainer": "from jaxrl_stack.algorithms.ppo import PPOConfig",
    "import jaxrl_stack.contrib": "registry.ALGORITHMS",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_imports_of_other_packages_are_answered(line):
    with pytest.raises(ImportError, match=IMPORTS[line]):
        exec(line, {})
    assert not hasattr(importlib.import_module("jaxrl_stack.algorithms.ppo"), "PPOConfigs")
    assert not hasattr(importlib.import_module("jaxrl_stack"), "PPOConfg")
    with pytest.raises(ImportError, match="cannot import name 'Unlike'"):
        exec("from jaxrl_stack import Unlike", {})


def test_what_may_be_meant_so_is_only_noted(caplog):
    array = {"setup": lambda self: (GoodModule.setup(self), setattr(self, "scale", jnp.ones(4)))[0]}
    type("Scaled", (GoodModule,), array)(observation_space=Box(-1, 1, (4,)), action_space=Discrete(2))
    assert (
        "Scaled.scale is a JAX array, which training does not change. Use self.scale = nnx.Param(array)" in caplog.text
    )
    watch = ObservationWatch(OBS_SPACE, 1, "FarOff", lambda row: f"copy {row}")
    watch.add(0, np.full((1, 2), 5, np.float32))
    assert not watch.found()
    assert "environment('FarOff'): an observation is outside of its space Box(" in caplog.text
    assert StopCriteria(10_000).targets == {"training_iteration": 10_000}
    assert "until=10000 means iterations" in caplog.text
    assert "use until={'num_env_steps_sampled_lifetime': 10000}" in caplog.text


TABLE = [*SETTINGS, *NAMES, *SPACES, *ENVS, *MODULES, *CONNECTORS, *LEARNERS, *CALLBACKS, *OTHER_PACKAGES]


@pytest.mark.parametrize(("call", "error", "parts"), TABLE)
def test_wrong_input_is_answered(call, error, parts, request):
    shared = {name: request.getfixturevalue(name) for name in ("learner", "algo") if takes(call, name)}
    with warnings.catch_warnings():
        # Of gymnasium and NumPy, about what is wrong on purpose.
        warnings.simplefilter("ignore")
        with pytest.raises(error) as caught:
            call(**shared)
    assert type(caught.value) is error
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"


def takes(call, name):
    return name in call.__code__.co_varnames[: call.__code__.co_argcount]


def test_the_table_has_no_case_twice():
    ids = [param.id for param in [*TABLE, *COMMAND_LINES]]
    assert len(ids) == len(set(ids)) and len(ids) >= 250


# --------------------------------------------------------------------------------------------------- the command line

SMALL = json.dumps(
    {"train_batch_size_per_learner": 32, "minibatch_size": 16, "num_epochs": 1, "num_envs_per_env_runner": 4}
)
RUN = ["train", "--algo", "PPO", "--env", CARTPOLE, "--quiet"]
FILES = {
    "text.json": "{'algo': 'PPO'}",
    "list.json": "[1]",
    "key.json": '{"algo": "PPO", "lr": 0.1}',
    "type.json": '{"algo": "PPO", "config": 3}',
    "fails.py": "\n1 / 0\n",
    "nothing.py": "lr = 0.1\n",
    "stop.py": (
        "from jaxrl_stack.algorithms.ppo import PPOConfig\n"
        f"config = PPOConfig().environment('{CARTPOLE}')\n"
        "stop = 475\n"
    ),
    "run.yaml": "algo: PPO\n",
    "used/old.json": "{}",
}
"""Written into the directory that the commands run in."""


def command(id_, argv, *parts):
    assert len(parts) >= 3, f"{id_}: a message has an option, a value and a remedy"
    return pytest.param(argv, parts, id=id_)


COMMAND_LINES = [
    command("no-algo", ["train", "--env", CARTPOLE], "--algo", "missing", "--algo PPO"),
    command("algo-typo", ["train", "--algo", "PPPO", "--env", CARTPOLE], "--algo", "'PPPO'", "Did you mean 'PPO'"),
    command("no-environment", ["train", "--algo", "PPO"], "--env", "missing", "--env gymnax/CartPole-v1"),
    command("cleanrl-env-id", ["train", "--algo", "PPO", "--env-id", "CartPole-v1"], "--env-id", "no option", "--env CartPole-v1"),
    command("cleanrl-timesteps", [*RUN, "--total-timesteps", "1000"], "--total-timesteps", "no option", "--stop '{\"num_env_steps_sampled_lifetime\": 1000}'"),
    command("environment-typo", ["train", "--algo", "PPO", "--env", "CartPol-v1"], "environment", "'CartPol-v1'", "Did you mean 'gymnax/CartPole-v1'"),
    command("record-epsilon", ["record", "x", "--out", "y", "--epsilon", "half"], "--epsilon", "invalid number value", "'half'"),
    command("stop-no-json", [*RUN, "--stop", "{return: 475}"], "--stop", "{return: 475}", "double quotes inside"),
    command("stop-list", [*RUN, "--stop", "[475]"], "--stop", "[475]", "a JSON object"),
    command("stop-text", [*RUN, "--stop", '{"training_iteration": "3"}'], "--stop", "'3'", "must be a number"),
    command("stop-unknown", [*RUN, "--config", SMALL, "--stop", '{"episode_reward_mean": 3}'], "--stop", "'episode_reward_mean'", "'env_runners/episode_return_mean'"),
    command("stop-without-evaluation", [*RUN, "--stop", '{"evaluation/env_runners/episode_return_mean": 3}'], "--stop", "'evaluation/", "--evaluation-interval"),
    command("config-no-json", [*RUN, "--config", "lr=3"], "--config", "'lr=3'", "double quotes inside"),
    command("config-typo", [*RUN, "--config", '{"lrr": 3}'], "--config", "'lrr'", "training(lr=...)"),
    command("config-value", [*RUN, "--config", '{"num_epochs": 0}'], "--config", "num_epochs=0", "at least 1"),
    command("config-lazy-value", [*RUN, "--config", '{"lr": "x"}'], "training(lr=", "'x'", "finite number"),
    command("config-removed", [*RUN, "--config", '{"sgd_minibatch_size": 4}'], "--config", "'sgd_minibatch_size'", "training(minibatch_size=...)"),
    command("config-devices", [*RUN, "--config", '{"num_cpus_per_learner": 3, "num_envs_per_env_runner": 4}'], "num_envs_per_env_runner=4", "3 devices", "Use 6"),
    command("iterations-negative", [*RUN, "--num-iterations", "-1"], "--num-iterations", "'-1'", "at least 1"),
    command("iterations-fraction", [*RUN, "--num-iterations", "1.5"], "--num-iterations", "'1.5'", "--help"),
    command("num-to-keep-zero", [*RUN, "--num-to-keep", "0"], "--num-to-keep", "'0'", "an integer of at least 1, or 'sparse'"),
    command("checkpoint-freq-zero", [*RUN, "--checkpoint-freq", "0"], "--checkpoint-freq", "'0'", "at least 1"),
    command("seed-text", [*RUN, "--seed", "x"], "--seed", "'x'", "--help"),
    command("seed-negative-option", [*RUN, "--seed", "-1"], "--seed", "-1", "at least 0"),
    command("option-typo", [*RUN, "--num-iteration-s", "3"], "unrecognized arguments", "--num-iteration-s", "--help"),
    command("command-typo", ["trian"], "COMMAND", "'trian'", "'train'"),
    command("list-typo", ["list", "algos"], "invalid choice", "'algos'", "'algorithms'"),
    command("results-dir-used", [*RUN, "--results-dir", "used"], "--results-dir", "used", "Name a new directory"),
    command("file-missing", ["train", "file", "nope.py"], "--config-file", "nope.py", "Name an existing file"),
    command("file-of-other-kind", ["train", "file", "run.yaml"], "--config-file", "run.yaml", "a .py or a .json file"),
    command("file-no-json", ["train", "file", "text.json"], "--config-file", "text.json", "in double quotes"),
    command("file-list", ["train", "file", "list.json"], "--config-file", "[1]", "a JSON object"),
    command("file-unknown-key", ["train", "file", "key.json"], "--config-file", "'lr'", 'Put settings into "config"'),
    command("file-wrong-type", ["train", "file", "type.json"], "--config-file", "'config' must be an object", "not 3"),
    command("file-no-text", ["train", "file", "binary.json"], "--config-file", "binary.json", "Name a .py or a .json file"),
    command("file-fails", ["train", "file", "fails.py"], "--config-file", "line 2", "ZeroDivisionError"),
    command("file-without-config", ["train", "file", "nothing.py"], "--config-file", "is None", "must define `config`"),
    command("file-stop", ["train", "file", "stop.py"], "--config-file", "475", "must be a dict. Define stop = {"),
    command("evaluate-nothing", ["evaluate"], "arguments are required", "CHECKPOINT", "--help"),
    command("evaluate-missing", ["evaluate", "nope"], "CHECKPOINT nope", "No checkpoint", "Pass the path that `jaxrl train` printed"),
    command("evaluate-no-episodes", ["evaluate", "nope", "--episodes", "0"], "--episodes", "'0'", "at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "parts"), COMMAND_LINES)
def test_wrong_command_lines_are_answered_in_one_line(argv, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    assert code == 2 and out.getvalue() == ""
    line, rest = err.getvalue().split("\n", 1)
    assert rest == "" and "Traceback" not in line
    assert [part for part in parts if part not in line] == [], line


# ------------------------------------------------------------------------------------------------------- every setting

LIVE = [setting for setting in PPOConfig._declarations.by_name.values() if setting.kind != "inert"]


def set_one(setting, value):
    config = PPOConfig().environment(CARTPOLE)
    getattr(config, PPOConfig._declarations.section_of[setting.name])(**{setting.name: value})
    config.validate()


@pytest.mark.parametrize("declared", LIVE, ids=lambda declared: declared.name)
def test_every_setting_refuses_what_it_cannot_be(declared):
    values = [object()]
    if not declared.takes_none and "None" not in declared.type and declared.kind != "later":
        values.append(None)
    for value in values:
        with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
            set_one(declared, value)
        message = str(caught.value)
        assert declared.name in message and repr(value)[:15] in message, message
