"""CQL and IQL: settings, values worked out by hand, and training on recorded steps."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_stack
from jaxrl_stack.algorithms.cql import CQL, CQLConfig, CQLLearner
from jaxrl_stack.algorithms.cql.cql_learner import NUM_CQL_UPDATES
from jaxrl_stack.algorithms.cql.default_cql_rl_module import DefaultCQLRLModule
from jaxrl_stack.algorithms.iql import IQL, IQLConfig, IQLLearner
from jaxrl_stack.algorithms.iql.default_iql_rl_module import DefaultIQLRLModule
from jaxrl_stack.algorithms.iql.iql_learner import VF_LOSS
from jaxrl_stack.algorithms.marwil import MARWILConfig
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.ops import q_learning
from jaxrl_stack.utils import counters
from tests.execution.test_offline_step import InMemory, recorded
from tests.pickled_by_value import pickled_by_value

FACTS = json.loads((Path(__file__).parents[1] / "reference" / "rllib_api.json").read_text())["algorithms"]
OBS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
BOX, DISCRETE = gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)
SMALL = {"fcnet_hiddens": [8], "fusionnet_hiddens": None}
MODULE, NUM_ROWS = "default_policy", 8
BOTH = pytest.mark.parametrize("config_class", [CQLConfig, IQLConfig], ids=["cql", "iql"])


class Numbers(OfflineData):
    """`recorded`, with a choice of two actions."""

    def open(self, columns=None):
        return InMemory([recorded()])


class Torques(OfflineData):
    """`recorded`, with actions in [-1, 1]."""

    def open(self, columns=None):
        steps = recorded()
        actions = np.tanh(steps.columns[Columns.OBS][:, 2:3])
        return InMemory([steps.map_columns(lambda name, own: actions if name == Columns.ACTIONS else own)])


def config_of(config_class, action_space=BOX, data=None, learner_class=None, **training) -> Any:
    own = {"num_actions": 2, "bc_iters": 0} if config_class is CQLConfig else {}
    config = (
        config_class()
        .environment(observation_space=OBS, action_space=action_space)
        .training(**{"train_batch_size_per_learner": 16, **own, **training})
        .rl_module(model_config=dict(SMALL))
        .offline_data(
            offline_data_class=data or (Torques if action_space is BOX else Numbers), dataset_num_iters_per_learner=3
        )
        .reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0)
        .debugging(seed=3)
    )
    return config if learner_class is None else config.learners(learner_class=learner_class)


# ----------------------------------------------------------------------------------------------------------- settings


@BOTH
def test_settings_and_defaults_are_rllibs(config_class):
    facts = FACTS[config_class.__name__.removesuffix("Config")]
    config = config_class()
    for name, fact in facts["training"].items():
        assert repr(getattr(config, name)) == fact["default"], name
    for name in (*facts["training"], *facts["training_inherited"]):
        assert config.training(**{name: getattr(config, name)}) is config, name
    assert config.is_offline and config.lr is None
    assert repr(config.train_batch_size) == facts["overridden_base_defaults"]["train_batch_size"]
    assert facts["model_config_auto_includes"].items() <= {k: repr(v) for k, v in config.model_config.items()}.items()


def test_rates_that_cql_has_of_its_own():
    config, own = CQLConfig(), FACTS["CQL"]["own_attributes"]
    for name in ("actor_lr", "critic_lr", "alpha_lr", "tau", "target_network_update_freq", "n_step"):
        assert repr(getattr(config, name)) == own[name], name
    with pytest.raises(ValueError, match=r"timesteps_per_iteration.*min_train_timesteps_per_iteration"):
        config.update_from_dict({"timesteps_per_iteration": 5})


@pytest.mark.parametrize(
    ("name", "config_class", "base", "classes"),
    [
        ("CQL", CQLConfig, SACConfig, (CQL, CQLLearner, DefaultCQLRLModule)),
        ("IQL", IQLConfig, MARWILConfig, (IQL, IQLLearner, DefaultIQLRLModule)),
    ],
)
def test_names_and_classes_are_rllibs(name, config_class, base, classes):
    algorithm, learner_class, module_class = classes
    assert getattr(jaxrl_stack, name) is algorithm is get_algorithm_class(name)
    assert getattr(jaxrl_stack, f"{name}Config") is config_class and issubclass(config_class, base)
    path = f"jaxrl_stack.algorithms.{name.lower()}.{name.lower()}"
    assert getattr(importlib.import_module(path), f"{name}Config") is config_class
    assert algorithm.get_default_config().learner_class is learner_class
    spec = config_class().get_default_rl_module_spec()
    assert (spec.module_class, spec.catalog_class) == (module_class, SACCatalog)
    assert IQLLearner.__module__.endswith("iql_learner") and VF_LOSS == "value_loss"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (CQLConfig().training(lr=1e-3), r"lr=0.001.*actor_lr, critic_lr and alpha_lr"),
        (IQLConfig().training(lr=1e-3), r"lr=0.001.*actor_lr, critic_lr and value_lr"),
        (CQLConfig().training(n_step=3), r"n_step=3.*one-step targets"),
        (IQLConfig().rl_module(model_config={"twin_q": False}), r"twin_q.*only with training\(\)"),
    ],
)
def test_what_does_not_fit_is_refused(config, match):
    with pytest.raises(ValueError, match=match):
        config.environment(observation_space=OBS, action_space=BOX).offline_data(input_=["data"]).validate()


@pytest.mark.parametrize(
    ("config_class", "setting"),
    [
        (CQLConfig, {"num_actions": 0}),
        (CQLConfig, {"temperature": 0.0}),
        (CQLConfig, {"bc_iters": -1}),
        (CQLConfig, {"min_q_weight": -1.0}),
        (IQLConfig, {"expectile": 1.0}),
        (IQLConfig, {"expectile": 0.0}),
        (IQLConfig, {"beta": 0.0}),
    ],
)
def test_values_out_of_range_are_refused(config_class, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        config_class().training(**setting)


def test_a_weight_of_advantages_may_be_above_one():
    assert IQLConfig().training(beta=10.0).beta == 10.0
    with pytest.raises(ValueError, match="beta"):
        MARWILConfig().training(beta=10.0)


@pytest.mark.parametrize(
    ("config_class", "traced", "static"),
    [
        (
            CQLConfig,
            {"bc_iters": 3, "temperature": 0.5, "min_q_weight": 1.0, "lagrangian_thresh": 1.0, "actor_lr": 1.0},
            [{"num_actions": 3}, {"lagrangian": True}, {"deterministic_backup": False}],
        ),
        (IQLConfig, {"expectile": 0.7, "beta": 3.0, "tau": 0.5, "value_lr": 1.0}, [{"twin_q": False}]),
    ],
)
def test_which_settings_recompile(config_class, traced, static):
    assert config_class().training(**traced).differs_in_traced_settings_only(config_class())
    for changed in static:
        assert not config_class().training(**changed).differs_in_traced_settings_only(config_class())


@BOTH
def test_a_recurrent_network_is_refused(config_class):
    config = config_of(config_class).rl_module(model_config={**SMALL, "use_lstm": True, "fusionnet_hiddens": [8]})
    with pytest.raises(ValueError, match=r"use_lstm.*single steps.*recurrent modules.*BC or MARWIL"):
        config.build_algo()


def test_cql_has_no_discrete_actions():
    with pytest.raises(ValueError, match=r"CQL supports.*not Discrete\(2\).*IQL"):
        config_of(CQLConfig, DISCRETE).build_algo()


# --------------------------------------------------------------------------------------------------- worked out by hand


def test_how_far_values_exceed_by_hand():
    """Q-values 1 and 2 of actions with densities 1/2 and 1/4: log(2 e^0.5 ... ) of Q / temperature."""
    q_repeat, logps = jnp.array([[1.0, 2.0]]), jnp.log(jnp.array([[0.5, 0.25]]))
    rows = jax.jit(q_learning.conservative_rows)
    found = rows(q=jnp.array([3.0]), q_repeat=q_repeat, logps=logps, temperature=1.0)
    np.testing.assert_allclose(found, np.log(2 * np.e + 4 * np.e**2) - 3.0, rtol=1e-6)
    found = rows(q=jnp.array([3.0]), q_repeat=q_repeat, logps=logps, temperature=0.5)
    np.testing.assert_allclose(found, 0.5 * np.log(4 * np.e**2 + 16 * np.e**4) - 3.0, rtol=1e-6)


def test_expectiles_by_hand():
    found = jax.jit(q_learning.expectile_rows)(jnp.array([2.0, -2.0, 0.0]), 0.8)
    np.testing.assert_allclose(found, [0.8 * 4, 0.2 * 4, 0.0], rtol=1e-6)
    # The value that this loss is least for lies where 0.8 of the mass of distances is below.
    targets, values = jnp.array([0.0, 1.0]), jnp.linspace(0, 1, 101)
    losses = jax.vmap(lambda value: q_learning.expectile_rows(targets - value, 0.8).sum())(values)
    assert float(values[jnp.argmin(losses)]) == pytest.approx(0.8)


class Updates:
    """A learner and its compiled update, on a batch of its own; always with the same draws."""

    def __init__(self, config_class, action_space=BOX, **training):
        self.learner = config_of(config_class, action_space, **training).build_learner()
        self.start = jax.device_get(self.learner.state)
        self.update = jax.jit(functools.partial(self.learner.pure_update.step, axis_name=None))
        rng = np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (NUM_ROWS, 1)).astype(np.float32)
        self.batch = {
            "obs": rng.normal(size=(NUM_ROWS, 4)).astype(np.float32),
            "new_obs": rng.normal(size=(NUM_ROWS, 4)).astype(np.float32),
            "actions": actions if action_space is BOX else (actions[:, 0] > 0).astype(np.int32),
            "rewards": rng.normal(size=NUM_ROWS).astype(np.float32),
            "terminateds": np.zeros(NUM_ROWS, bool),
            # Of all rows: a batch without it would be another program.
            "loss_mask": np.ones(NUM_ROWS, bool),
        }

    def __call__(self, settings_of=None, start=None, timesteps=100, **columns):
        settings = (settings_of or self.learner).settings()
        batch, start = {MODULE: {**self.batch, **columns}}, self.start if start is None else start
        state, metrics, _ = self.update(start, batch, settings, counters.from_int(timesteps))
        return state, {k: np.asarray(v).item() for k, v in nest_metrics(jax.device_get(metrics))[MODULE].items()}


def other(config_class, **training):
    """A learner with other traced settings, whose update is the same program."""
    return config_of(config_class, **training).build_learner()


@pytest.fixture(scope="module")
def cql():
    return Updates(CQLConfig)


@pytest.fixture(scope="module")
def iql():
    return Updates(IQLConfig)


def test_the_actor_clones_for_the_first_updates(cql):
    settings_of = other(CQLConfig, bc_iters=2)
    state, losses = cql.start, []
    for _ in range(3):
        state, metrics = cql(settings_of, start=state)
        losses.append(metrics["policy_loss"])
    assert state.extra[NUM_CQL_UPDATES][MODULE] == 3
    module, batch = cql.learner.module[MODULE], cql.batch
    inputs = module.forward_inference({"obs": batch["obs"]})[Columns.ACTION_DIST_INPUTS]
    logp = module.get_train_action_dist_cls().from_logits(inputs).logp(batch["actions"])
    _, of_values = cql()
    cloned = of_values["policy_loss"] - losses[0]
    out = module.forward_train(batch)  # the critics' values do not depend on the draw alone: compare means roughly
    assert cloned == pytest.approx(float(jnp.mean(logp) - jnp.mean(out["q_curr"])), abs=0.5)
    late = jax.tree.map(lambda x: x, cql.start)
    late.extra[NUM_CQL_UPDATES][MODULE] = np.uint32(2)
    _, third = cql(settings_of, start=late)
    late.extra[NUM_CQL_UPDATES][MODULE] = np.uint32(0)
    assert third["policy_loss"] == of_values["policy_loss"] != losses[0]


def test_the_weight_of_the_conservative_term(cql):
    _, one = cql(other(CQLConfig, min_q_weight=1.0))
    _, two = cql(other(CQLConfig, min_q_weight=2.0))
    _, none = cql(other(CQLConfig, min_q_weight=0.0))
    assert two["cql_loss"] == pytest.approx(2 * one["cql_loss"], rel=1e-5) and none["cql_loss"] == 0.0
    assert one["qf_loss"] - none["qf_loss"] == pytest.approx(one["cql_loss"], rel=1e-4)


def test_errors_of_values_are_squared_or_hubers(cql):
    far = {"rewards": np.full(NUM_ROWS, 100.0, np.float32), "terminateds": np.ones(NUM_ROWS, bool)}
    distance = 100.0 - np.asarray(cql.learner.module[MODULE].forward_train(cql.batch)["qf_preds"])
    _, squared = cql(other(CQLConfig, min_q_weight=0.0), **far)
    assert squared["qf_loss"] == pytest.approx(np.mean(distance**2), rel=1e-5)
    _, huber = Updates(CQLConfig, td_error_loss_fn="huber", min_q_weight=0.0)(**far)
    assert huber["qf_loss"] == pytest.approx(np.mean(np.abs(distance) - 0.5), rel=1e-5)


def test_a_multiplier_by_hand(cql):
    """It starts at 1, and follows how far both terms are above the threshold."""
    own = Updates(CQLConfig, lagrangian=True)
    state, metrics = own()
    assert metrics["alpha_prime_value"] == 1.0 and "alpha_prime" in state.optimizers[MODULE]
    _, plain = cql()
    assert metrics["cql_loss"] == pytest.approx(plain["cql_loss"] - 5.0, abs=1e-3)
    twin_term = metrics["qf_twin_loss"] - plain["qf_twin_loss"] + 5.0
    assert abs(twin_term) < 1e-3
    moved = float(state.params[f"{MODULE}/log_alpha_prime"])
    assert np.sign(moved) == np.sign(-metrics["alpha_prime_loss"])
    _, far = own(other(CQLConfig, lagrangian=True, lagrangian_thresh=100.0))
    assert far["alpha_prime_loss"] - metrics["alpha_prime_loss"] == pytest.approx(95.0, rel=1e-4)


@pytest.mark.parametrize("name", ["cql", "iql"])
def test_terminated_rows_do_not_bootstrap(name, request):
    """And truncated ones, whose flag is in no batch, do."""
    own = request.getfixturevalue(name)
    ends = np.ones(NUM_ROWS, bool)
    _, ended = own(terminateds=ends)
    out = own.learner.module[MODULE].forward_train(own.batch)
    distance = [np.abs(out[key] - own.batch["rewards"]) for key in ("qf_preds", "qf_twin_preds")]
    assert ended["td_error_mean"] == pytest.approx(float(np.mean(distance)), rel=1e-4)
    assert own()[1]["td_error_mean"] != ended["td_error_mean"]


@pytest.mark.parametrize("name", ["cql", "iql"])
def test_rows_that_do_not_count_change_nothing(name, request):
    own = request.getfixturevalue(name)
    mask = np.arange(NUM_ROWS) % 2 == 0
    rewards = np.where(mask, own.batch["rewards"], 1e6).astype(np.float32)
    assert own(loss_mask=mask)[1] == own(loss_mask=mask, rewards=rewards)[1]


def test_iql_by_hand(iql):
    out = jax.device_get(iql.learner.module[MODULE].forward_train(iql.batch))
    _, found = iql(other(IQLConfig, beta=2.0, expectile=0.7, max_advantage_weight=1.0, gamma=0.5))
    advantages = out["qf_target_preds"] - out["vf_preds"]
    module = iql.learner.module[MODULE]
    dist = module.get_train_action_dist_cls().from_logits(out[Columns.ACTION_DIST_INPUTS])
    logp, weights = np.asarray(dist.logp(iql.batch["actions"])), np.minimum(np.exp(2.0 * advantages), 1.0)
    targets = iql.batch["rewards"] + 0.5 * out["vf_preds_next"]
    expected = {
        "policy_loss": -np.mean(weights * logp),
        "value_loss": np.mean(np.where(advantages > 0, 0.7, 0.3) * advantages**2),
        "qf_loss": 0.5 * np.mean((out["qf_preds"] - targets) ** 2),
        "qf_twin_loss": 0.5 * np.mean((out["qf_twin_preds"] - targets) ** 2),
        "advantage_weight_max": np.max(weights),
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(float(value), rel=1e-4), key
    assert found["total_loss"] == pytest.approx(sum(v for k, v in expected.items() if k.endswith("loss")), rel=1e-4)


@pytest.mark.parametrize(
    ("config_class", "still", "parts"),
    [
        (CQLConfig, "critic_lr", ("qf",)),
        (CQLConfig, "actor_lr", ("pi",)),
        (IQLConfig, "value_lr", ("vf",)),
        (IQLConfig, "critic_lr", ("qf",)),
    ],
)
def test_every_optimizer_moves_its_own_part(config_class, still, parts, request):
    own = request.getfixturevalue(config_class.__name__[:3].lower())
    state, _ = own(other(config_class, **{still: 0.0}))
    for ref in state.params:
        name = ref.split("/")[1]
        moves = not name.startswith(parts) and not (config_class is IQLConfig and name == "log_alpha")
        assert np.array_equal(state.params[ref], own.start.params[ref]) != moves, ref


def test_targets_follow_by_tau_and_by_trained_rows(iql):
    """By every update, or when so many rows were trained on."""
    ref = f"{MODULE}/target_qf_encoder/dense_0/kernel"
    state, metrics = iql(other(IQLConfig, tau=0.25))
    new = np.asarray(state.params[ref.replace("target_", "")])
    np.testing.assert_allclose(state.rest[ref], 0.75 * iql.start.rest[ref] + 0.25 * new, rtol=1e-5, atol=1e-7)
    assert metrics["num_target_updates"] == 1
    rare = Updates(IQLConfig, target_network_update_freq=32)
    state, _ = rare(timesteps=16)
    np.testing.assert_array_equal(state.rest[ref], rare.start.rest[ref])
    state, metrics = rare(timesteps=32)
    assert metrics["num_target_updates"] == 1 and not np.array_equal(state.rest[ref], rare.start.rest[ref])


def test_an_image_is_encoded_once_beside_all_its_actions():
    space = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    spec = RLModuleSpec(
        module_class=DefaultCQLRLModule,
        observation_space=space,
        action_space=BOX,
        model_config={"conv_filters": [[4, 4, 2]], "fcnet_hiddens": [8], "fusionnet_hiddens": [8], "num_actions": 3},
    )
    module = spec.build(seed=0)
    obs = np.random.default_rng(0).integers(0, 255, (5, 12, 12, 1)).astype(np.uint8)
    out = module.forward_train({"obs": obs, "new_obs": obs[::-1], "actions": np.zeros((5, 1), np.float32)})
    assert out["q_repeat"].shape == out["logps_repeat"].shape == (5, 9)
    for k in (0, 8):
        alone = module.forward_train({"obs": obs, "new_obs": obs, "actions": out["actions_repeat"][:, k]})["qf_preds"]
        np.testing.assert_allclose(out["q_repeat"][:, k], alone, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ training


class Images(OfflineData):
    """`recorded`, with an image that is as bright as the observation says, and actions in [-1, 1]."""

    def open(self, columns=None):
        steps = recorded()
        obs = steps.columns[Columns.OBS]
        images = np.broadcast_to(np.uint8(128 + 100 * np.tanh(obs[:, :1, None, None])), (len(obs), 12, 12, 1)).copy()
        own = {Columns.OBS: images, Columns.ACTIONS: np.tanh(obs[:, 2:3])}
        return InMemory([steps.map_columns(lambda name, column: own.get(name, column))])


@BOTH
def test_it_learns_from_images(config_class):
    space = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    config = config_of(config_class, data=Images).environment(observation_space=space)
    model = {"conv_filters": [[4, 4, 2]], "fcnet_hiddens": [8], "fusionnet_hiddens": [8]}
    algo = config.rl_module(model_config=model).build_algo()
    before = jax.device_get(algo.driver.learner.state.params)
    assert np.isfinite(algo.train()["learners"][MODULE]["total_loss"])
    after = algo.driver.learner.state.params
    convolutions = [ref for ref in before if "conv" in ref and "pi" in ref]
    assert convolutions and all(not np.array_equal(before[ref], after[ref]) for ref in convolutions), list(before)
    algo.stop()


@pytest.mark.parametrize(
    ("config_class", "action_space"), [(CQLConfig, BOX), (IQLConfig, BOX), (IQLConfig, DISCRETE)], ids=str
)
def test_it_learns_what_was_recorded_and_goes_on_exactly(config_class, action_space, tmp_path):
    own = {"bc_iters": 1000} if config_class is CQLConfig else {"twin_q": False}
    rate = [[0, 3e-3], [480, 1e-3]]
    algo = config_of(config_class, action_space, actor_lr=rate, **own).build_algo()
    results = [algo.train()["learners"][MODULE] for _ in range(8)]
    assert results[-1]["policy_loss"] < results[0]["policy_loss"]
    # Schedules advance with the rows that were trained on.
    assert results[-1]["policy_learning_rate"] == pytest.approx(3e-3 - 2e-3 * (8 * 48 - 16) / 480, rel=1e-3)
    path = algo.save_to_path(tmp_path / "saved")
    after = [algo.train()["learners"][MODULE]["total_loss"] for _ in range(2)]
    algo.restore_from_path(path)
    assert [algo.train()["learners"][MODULE]["total_loss"] for _ in range(2)] == after
    if config_class is CQLConfig:
        assert algo.driver.learner.state.extra[NUM_CQL_UPDATES][MODULE] == 30
    algo.stop()


@BOTH
def test_streamed_data_is_the_same_to_it(config_class, tmp_path):
    algo = config_of(config_class, clip_actions=False) if config_class is CQLConfig else config_of(config_class)
    algo = algo.offline_data(keep_resident=False, normalize_observations=True, normalize_rewards=True).build_algo()
    first = algo.train()["learners"][MODULE]
    path = algo.save_to_path(tmp_path / "saved")
    second = algo.train()["learners"][MODULE]
    assert np.isfinite(first["total_loss"]) and first["total_loss"] != second["total_loss"]
    assert algo.driver.num_updates == 6
    algo.restore_from_path(path)
    assert algo.train()["learners"][MODULE]["total_loss"] == second["total_loss"]
    algo.stop()


@BOTH
def test_two_devices_share_a_batch(config_class):
    """Each draws actions of its own; with the same data and no draws they would be one device's update."""
    algo = config_of(config_class).learners(num_cpus_per_learner=2).build_algo()
    assert not algo.driver.step.reads_on_host and algo.driver.learner.num_devices == 2
    losses = [algo.train()["learners"][MODULE]["total_loss"] for _ in range(2)]
    assert np.all(np.isfinite(losses)) and losses[0] != losses[1]
    params = algo.driver.learner.state.params
    for ref, value in params.items():
        own = [np.asarray(shard.data) for shard in value.addressable_shards]
        assert all(np.array_equal(own[0], other) for other in own[1:]), ref
    algo.stop()


@pytest.fixture
def own_classes(ray_session):
    """Actors get the classes of this file and of the one that it takes its data from by value."""
    with pickled_by_value(ray_session, sys.modules[__name__], sys.modules[InMemory.__module__]):
        yield


@pytest.mark.usefixtures("own_classes")
@BOTH
def test_two_learner_actors_train_it(config_class, tmp_path):
    algo = config_of(config_class).learners(num_learners=2).build_algo()
    first = algo.train()["learners"][MODULE]
    path = algo.save_to_path(tmp_path / "saved")
    second = algo.train()["learners"][MODULE]
    assert np.isfinite(first["total_loss"]) and first["total_loss"] != second["total_loss"]
    algo.restore_from_path(path)
    assert algo.train()["learners"][MODULE]["total_loss"] == second["total_loss"]
    algo.stop()


def test_rewards_are_clipped(iql):
    class Seen(IQLLearner):
        def compute_loss_for_module(self, *, batch, **kwargs):
            self.metrics.log_value((MODULE, "largest"), jnp.max(jnp.abs(batch[Columns.REWARDS])), reduce="max")
            return super().compute_loss_for_module(batch=batch, **kwargs)

    algo = config_of(IQLConfig, learner_class=Seen).environment(clip_rewards=0.25).build_algo()
    assert algo.train()["learners"][MODULE]["largest"] == pytest.approx(0.25)
    algo.stop()


def test_members_of_a_population_train_beside_each_other():
    population = config_of(IQLConfig).build_population(
        members=[{"seed": 0, "settings": {"beta": 0.5}}, {"seed": 1, "settings": {"beta": 1.0}}]
    )
    losses = [float(own["learners"][MODULE]["total_loss"]) for own in population.train()["members"]]
    assert np.all(np.isfinite(losses)) and losses[0] != losses[1]
    population.stop()


@BOTH
def test_sac_continues_with_the_data_beside_fresh_experience(config_class, tmp_path):
    """Weights of another seed stand for learned ones: a new run would not have them."""
    config = config_of(config_class).environment("gymnax/Pendulum-v1", observation_space=None, action_space=None)

    class Swings(OfflineData):
        def open(self, columns=None):
            steps = recorded()
            obs = steps.columns[Columns.OBS]
            return InMemory(
                [
                    steps.map_columns(
                        lambda name, own: {Columns.OBS: obs[:, :3], Columns.ACTIONS: np.tanh(obs[:, 3:])}.get(name, own)
                    )
                ]
            )

    algo = config.offline_data(offline_data_class=Swings).debugging(seed=17).build_algo()
    path = Path(algo.save_to_path(tmp_path / "offline"))
    obs = {Columns.OBS: np.eye(3, dtype=np.float32)}
    inputs = algo.get_module().forward_inference(obs)[Columns.ACTION_DIST_INPUTS]
    algo.stop()
    state = path / "learner_group" / "learner" / "rl_module" / MODULE
    online = (
        SACConfig()
        .environment("gymnax/Pendulum-v1")
        .training(
            train_batch_size_per_learner=16,
            num_steps_sampled_before_learning_starts=0,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 200},
        )
        .rl_module(
            model_config=dict(SMALL),
            rl_module_spec=RLModuleSpec(module_class=SACConfig._default_module_class, load_state_path=state),
        )
        .offline_data(input_=["data"], offline_data_class=Swings)
        .reporting(min_time_s_per_iteration=None, min_sample_timesteps_per_iteration=0)
    )
    algo = online.build_algo()
    found = algo.get_module().forward_inference(obs)[Columns.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(found, inputs, rtol=1e-5, atol=1e-6)
    assert np.isfinite(algo.train()["learners"][MODULE]["qf_loss"])
    algo.stop()
