"""TD3 and TD3+BC: losses against second formulations, the delay, exploration, both drivers, exact resume, bad input."""

from __future__ import annotations

import dataclasses
import functools
import types

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxrl_stack.algorithms.sac.default_sac_rl_module import batched_initial_state
from jaxrl_stack.algorithms.td3 import TD3, TD3BCLearner, TD3Config, TD3Learner
from jaxrl_stack.algorithms.td3.default_td3_rl_module import DefaultTD3RLModule, smoothed_actions
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.policy import Policy
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.members import member_axes, stacked
from tests.drawn_rows import RecordsRows, assert_same_updates_on_the_host, learned, recorded_iteration
from tests.execution.test_offline_step import InMemory, recorded

OBS, BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
PENDULUM, ON_THE_HOST = "gymnax/Pendulum-v1", "short_pendulum_on_the_host"
SMALL = {"fcnet_hiddens": [4], "fusionnet_hiddens": None}
MODULE, NUM_ROWS = DEFAULT_MODULE_ID, 6
RNG = np.random.default_rng(0)
DRAWS = RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32)
ROWS = {
    "obs": RNG.normal(size=(NUM_ROWS, 3)).astype(np.float32),
    "new_obs": RNG.normal(size=(NUM_ROWS, 3)).astype(np.float32),
    "actions": RNG.uniform(-1, 1, (NUM_ROWS, 2)).astype(np.float32),
    "rewards": RNG.normal(size=NUM_ROWS).astype(np.float32),
    "terminateds": np.array([False, True, False, False, True, False]),
    "truncateds": np.zeros(NUM_ROWS, bool),
    "n_step": np.array([1, 1, 2, 3, 2, 1], np.float32),
    "weights": np.array([1.0, 0.5, 0.25, 1.0, 0.75, 0.1], np.float32),
}


class KnownDraws(DefaultTD3RLModule):
    """Adds the same noise to the target policy's actions in each update."""

    rows_are_independent = True

    def _smoothed(self, actions, target_noise, target_noise_clip):
        if target_noise is None:
            return actions
        return smoothed_actions(actions, jnp.asarray(DRAWS), target_noise, target_noise_clip)


class WithState(KnownDraws):
    """A policy with batch normalisation and dropout before its last layer."""

    def setup(self):
        super().setup()
        norm = nnx.BatchNorm(4, momentum=0.5, rngs=self.rngs)
        self.pi = nnx.Sequential(norm, nnx.Dropout(0.5, rngs=self.rngs), self.pi)


class CountsMasks(TD3Learner):
    """Logs the number of masks that the policy's dropout drew in an update."""

    def compute_loss_for_module(self, *, module_id, **kwargs):
        losses = super().compute_loss_for_module(module_id=module_id, **kwargs)
        count = self.module[module_id].pi.layers[1].rngs.count[...]
        self.metrics.log_value((module_id, "num_masks"), count.astype(jnp.float32), window=1)
        return losses


def with_descent(learner_class):
    """A learner class with plain gradient descent in place of Adam."""

    class Descent(learner_class):
        def register_optimizer(self, *, optimizer, **kwargs):
            super().register_optimizer(optimizer=optax.sgd, **kwargs)

    return Descent


class Updates:
    """A learner and its compiled update on `ROWS`; `states[i]` is the state after i updates."""

    def __init__(self, num_updates, learner_class=TD3Learner, module_class=KnownDraws, **training):
        data = {"offline_data_class": OfflineData, "input_": ["data"]} if "bc_alpha" in training else {}
        config = (
            TD3Config()
            .environment(observation_space=OBS, action_space=BOX)
            .training(**{"gamma": 0.9, "actor_lr": 1.0, "critic_lr": 1.0, "target_noise_clip": 0.2, **training})
            .learners(learner_class=with_descent(learner_class))
            .rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, model_config=SMALL))
            .offline_data(**data)
            .debugging(seed=1)
        )
        self.learner = config.build_learner()
        # Target networks that differ from the networks.
        rest = {
            ref: leaf + 0.1 if "/target_" in ref and "/rngs/" not in ref else leaf
            for ref, leaf in jax.device_get(self.learner.state.rest).items()
        }
        self.learner.state = self.learner.state.replace(rest=rest)
        self.update = jax.jit(functools.partial(self.learner.pure_update.step, axis_name=None))
        self.states, self.metrics, self.rows = [jax.device_get(self.learner.state)], [], []
        for i in range(num_updates):
            after, metrics, rows = jax.device_get(
                self.update(self.states[-1], {MODULE: ROWS}, self.learner.settings(), counters.from_int(i + 1))
            )
            self.states.append(after)
            self.rows.append(rows)
            self.metrics.append(nest_metrics(metrics)[MODULE])

    def module(self, i=0, **params):
        """The module after i updates."""
        state = self.states[i]
        return self.learner.pure.bind({**state.params, **params}, state.rest)[MODULE]

    def moved(self, i):
        """Parts that update i moves, the first one is 1."""
        before, after = self.states[i - 1], self.states[i]
        leaves = [(before.params, after.params), (before.rest, after.rest)]
        refs = {ref for b, a in leaves for ref in a if "noise" not in ref and "stream" not in ref}
        old, new = ({**state.params, **state.rest} for state in (before, after))
        return {ref.split("/")[1].removesuffix("_encoder") for ref in refs if not np.array_equal(old[ref], new[ref])}


CRITICS, ALL = {"qf", "qf_twin"}, {"qf", "qf_twin", "pi", "target_qf", "target_qf_twin", "target_pi"}


@pytest.fixture(scope="module")
def updates():
    return Updates(3)


def targets_by_hand(module, gamma, noise, clip):
    """``R + gamma^n (1 - terminated) min_i Q_i(s', clip(pi(s') + clip(noise, -c, c)))`` of target networks."""
    actions = np.asarray(module.compute_actions({"obs": ROWS["new_obs"]}, "target_")[0])
    actions = np.clip(actions + np.clip(noise * DRAWS, -clip, clip), -1.0, 1.0)
    values = module._values({"obs": ROWS["new_obs"], "actions": actions}, True, "target_")
    value = np.min([np.asarray(own) for own in values], axis=0)
    return ROWS["rewards"] + gamma ** ROWS["n_step"] * np.where(ROWS["terminateds"], 0.0, value)


def test_the_noise_on_target_actions_by_hand():
    found = smoothed_actions(jnp.array([0.0, 0.5, -0.95]), jnp.array([1.0, 4.0, -1.0]), 0.2, 0.5)
    np.testing.assert_allclose(found, [0.2, 1.0, -1.0])


def test_critic_losses_and_priorities_follow_the_paper(updates):
    module, metrics = updates.module(), updates.metrics[0]
    targets = targets_by_hand(module, 0.9, 0.2, 0.2)
    assert (np.abs(0.2 * DRAWS) > 0.2).any() and (np.abs(0.2 * DRAWS) < 0.2).any()
    q_values = [np.asarray(own) for own in module._values(ROWS, True)]
    for name, own in zip(("qf_loss", "qf_twin_loss"), q_values, strict=True):
        np.testing.assert_allclose(metrics[name], np.mean(ROWS["weights"] * np.square(own - targets)), rtol=1e-5)
    errors = np.mean([np.abs(own - targets) for own in q_values], axis=0)
    np.testing.assert_allclose(metrics["td_error_mean"], errors.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["qf_mean"], q_values[0].mean(), rtol=1e-5)
    np.testing.assert_allclose(updates.rows[0][MODULE, "td_error"], errors, rtol=1e-5)


def test_each_second_update_moves_policy_and_target_networks(updates):
    assert [updates.moved(i) for i in (1, 2, 3)] == [CRITICS, ALL, CRITICS]
    assert [own["num_target_updates"] for own in updates.metrics] == [0, 1, 1]
    before, after = updates.states[1:3]
    for name in ("qf/dense_0/kernel", "qf_twin/dense_0/kernel", "pi/dense_0/kernel"):
        target, main = f"{MODULE}/target_{name}", f"{MODULE}/{name}"
        expected = 0.005 * after.params[main] + 0.995 * before.rest[target]
        np.testing.assert_allclose(after.rest[target], expected, rtol=1e-5, atol=1e-7)


def test_the_policy_ascends_the_first_critic(updates):
    before, after = updates.states[1:3]
    names = [ref for ref in before.params if ref.split("/")[1].startswith("pi")]

    def loss(params):
        return -jnp.mean(updates.module(1, **params).compute_policy_values(ROWS)[1])

    value, gradients = jax.value_and_grad(loss)({ref: before.params[ref] for ref in names})
    np.testing.assert_allclose(updates.metrics[1]["policy_loss"], value, rtol=1e-5)
    for ref in names:
        np.testing.assert_allclose(after.params[ref], before.params[ref] - gradients[ref], rtol=1e-4, atol=1e-6)
    # Updates without the policy repeat its metrics; before its first update there are none.
    first, second, third = (own["policy_loss"] for own in updates.metrics)
    assert np.isnan(first) and second == third


def test_layers_with_state_change_as_without_a_delay_but_only_in_updates_of_the_policy():
    delayed = Updates(3, CountsMasks, module_class=WithState)
    undelayed = Updates(0, CountsMasks, module_class=WithState, policy_delay=1)
    mean = f"{MODULE}/pi/layers/0/mean"
    means = [state.rest[mean] for state in delayed.states]
    features = np.asarray(delayed.module(1).pi_encoder({"obs": ROWS["obs"]})["encoder_out"])
    expected = 0.5 * features.mean(axis=0)
    np.testing.assert_allclose(means, [0 * expected, 0 * expected, expected, expected], rtol=1e-5, atol=1e-7)
    assert [own["num_masks"] for own in delayed.metrics] == [0, 1, 0]
    # Gradients flow through the branch, with the same masks.
    arguments = {MODULE: ROWS}, undelayed.learner.settings(), counters.from_int(2)
    expected = jax.device_get(undelayed.update(delayed.states[1], *arguments))[0]
    before, after = delayed.states[1:3]
    for ref, value in expected.params.items():
        np.testing.assert_allclose(after.params[ref], value, rtol=1e-5, atol=1e-7, err_msg=ref)
        assert "/pi" not in ref or (value != before.params[ref]).any(), ref
    np.testing.assert_allclose(after.rest[mean], expected.rest[mean], rtol=1e-5, atol=1e-7)


def test_settings_for_ddpg_update_everything_without_noise():
    ddpg = Updates(2, policy_delay=1, twin_q=False, smooth_target_policy=False)
    parts = {"qf", "pi", "target_qf", "target_pi"}
    assert ddpg.moved(1) == ddpg.moved(2) == parts
    module = ddpg.module()
    targets = targets_by_hand(module, 0.9, 0.0, 0.0)
    (q_values,) = (np.asarray(own) for own in module._values(ROWS, True))
    np.testing.assert_allclose(
        ddpg.metrics[0]["qf_loss"], np.mean(ROWS["weights"] * np.square(q_values - targets)), rtol=1e-5
    )


def test_a_population_skips_the_policy_by_a_branch(updates):
    """A `cond` with a scalar of each member would be a select, which computes both sides."""
    state, axes = updates.states[0], member_axes(updates.learner.state)
    extra = {name: None if name in updates.learner.shared_extra else own for name, own in axes.extra.items()}
    axes = dataclasses.replace(axes, extra=extra)
    members = stacked(axes, [state, state])
    update = functools.partial(updates.learner.pure_update.step, axis_name=None)
    arguments = {MODULE: ROWS}, updates.learner.settings(), counters.from_int(1)

    def num_branches(function, *args):
        return str(jax.make_jaxpr(function)(*args)).count("cond[")

    alone = num_branches(update, state, *arguments)
    assert alone == num_branches(jax.vmap(update, in_axes=(axes, None, None, None)), members, *arguments)


# ------------------------------------------------------------------------------------------------------------ TD3+BC


@pytest.fixture(scope="module")
def cloning():
    return Updates(2, TD3BCLearner, bc_alpha=2.5)


def test_behaviour_cloning_by_hand(cloning):
    metrics, module = cloning.metrics[1], cloning.module(1)
    actions, values = (np.asarray(own) for own in module.compute_policy_values(ROWS))
    weight, squares = 2.5 / np.abs(values).mean(), np.square(actions - ROWS["actions"]).mean()
    np.testing.assert_allclose(metrics["bc_q_weight"], weight, rtol=1e-5)
    np.testing.assert_allclose(metrics["bc_loss"], squares, rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], squares - weight * values.mean(), rtol=1e-5)


def test_the_weight_of_values_has_no_gradient(cloning):
    before, after = cloning.states[1:]
    names = [ref for ref in before.params if ref.split("/")[1].startswith("pi")]
    weight = cloning.metrics[1]["bc_q_weight"]

    def loss(params):
        actions, values = cloning.module(1, **params).compute_policy_values(ROWS)
        return jnp.mean(jnp.square(actions - ROWS["actions"])) - weight * jnp.mean(values)

    gradients = jax.grad(loss)({ref: before.params[ref] for ref in names})
    for ref in names:
        np.testing.assert_allclose(after.params[ref], before.params[ref] - gradients[ref], rtol=1e-4, atol=1e-6)


def test_an_online_run_takes_the_networks_of_behaviour_cloning():
    cloned, online = Updates(0, TD3BCLearner, bc_alpha=2.5).learner, Updates(0).learner
    cloned.set_weights({ref: value + 0.5 for ref, value in cloned.get_weights().items()})
    networks = cloned.get_state()["rl_module"]
    online.set_state({"rl_module": networks})
    jax.tree.map(np.testing.assert_array_equal, online.get_state()["rl_module"], networks)


class Torques(OfflineData):
    """Recorded steps with actions up to 1.5."""

    def open(self, columns=None):
        steps = recorded()
        actions = 1.5 * np.tanh(steps.columns[Columns.OBS][:, 2:3])
        return InMemory([steps.map_columns(lambda name, own: actions if name == Columns.ACTIONS else own)])


def of_records(**offline_data):
    return (
        TD3Config()
        .environment(
            observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            action_space=gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
        )
        .training(train_batch_size_per_learner=16, bc_alpha=2.5, exploration_noise=0.01)
        .rl_module(model_config=SMALL)
        .offline_data(offline_data_class=Torques, dataset_num_iters_per_learner=3, **offline_data)
        .reporting(min_time_s_per_iteration=None)
        .debugging(seed=3)
    )


def test_recorded_data_trains_and_continues_exactly(tmp_path):
    algo = of_records(normalize_observations=True).build_algo()
    assert isinstance(algo.learner, TD3BCLearner)
    before, result = algo.learner.get_weights(), learned(algo.train())
    moved = {ref.split("/")[1] for ref, own in algo.learner.get_weights().items() if (own != before[ref]).any()}
    assert {"pi", "qf", "qf_twin"} <= moved
    assert {"bc_loss", "bc_q_weight", "qf_loss", "policy_loss"} <= result.keys()
    # No action is uniformly random, though fewer steps than random_timesteps have been trained on.
    policy, observations = algo.get_policy(), np.zeros((8, 4), np.float32)
    explored, greedy = (policy.compute_actions(observations, explore=explore)[0] for explore in (True, False))
    assert 0.0 < np.abs(explored - greedy).max() < 0.05
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = learned(algo.train())
    restored = TD3.from_checkpoint(path)
    assert learned(restored.train()) == expected
    jax.tree.map(np.testing.assert_array_equal, algo.learner.get_state(), restored.learner.get_state())
    algo.stop()
    restored.stop()


# --------------------------------------------------------------------------------------------- exploration, sequences


def module_of(**settings):
    return DefaultTD3RLModule(observation_space=OBS, action_space=BOX, model_config={**SMALL, **settings}, rngs=0)


def test_noise_and_random_steps_of_exploration():
    module, batch = module_of(), {"obs": np.zeros((4000, 3), np.float32)}
    greedy = np.asarray(module.forward_inference(batch)["actions"])

    def explored(**settings):
        return np.asarray(module.forward_exploration(batch, **settings)["actions"])

    noise = explored(t=100, exploration_noise=0.1, random_timesteps=100) - greedy
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 0.1], atol=0.005)
    random = explored(t=99, exploration_noise=0.1, random_timesteps=100)
    np.testing.assert_allclose([random.mean(), random.std()], [0.0, 3**-0.5], atol=0.02)
    assert np.abs(explored(exploration_noise=2.0)).max() == 1.0
    np.testing.assert_array_equal(explored(exploration_noise=0.0), greedy)


class OwnNetworks(DefaultTD3RLModule):
    """Networks of its own, without the default ones of `setup`."""

    def setup(self):
        self.twin_q, self.burn_in_len = False, 0
        self.pi_encoder = self.catalog.build_encoder(rngs=self.rngs)
        self.pi = self.catalog.build_pi_head(rngs=self.rngs)
        self.qf_encoder = self.catalog.build_qf_encoder(rngs=self.rngs)
        self.qf = self.catalog.build_qf_head(rngs=self.rngs)


def test_a_module_with_networks_of_its_own_explores():
    module = OwnNetworks(observation_space=OBS, action_space=BOX, model_config=SMALL, rngs=0)
    first, second = (module.forward_exploration({"obs": ROWS["obs"]}, exploration_noise=0.1) for _ in range(2))
    assert (first["actions"] != second["actions"]).all()


def test_sequences_have_the_values_of_their_steps():
    recurrent = {"fusionnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 3, "head_fcnet_hiddens": []}
    module, length = module_of(**recurrent), 4
    for _, target in module.get_target_network_pairs():
        nnx.update(target, jax.tree.map(lambda x: x + 0.1, nnx.state(target)))
    line = RNG.normal(size=(2, length + 1, 3)).astype(np.float32)
    state = batched_initial_state(module.pi_encoder, 2)
    batch = {
        "obs": line[:, :-1],
        "new_obs": line[:, 1:],
        "actions": RNG.uniform(-1, 1, (2, length, 2)).astype(np.float32),
    }
    actions, values = module.compute_policy_values({**batch, "state_in": state})
    targets = module.compute_target_values({**batch, "state_in": state})
    # One pass over each sequence from the initial states, of all networks.
    for prefix, own in (("", line[:, :-1]), ("target_", line)):
        columns = {"obs": own, "state_in": state}
        columns["actions"] = module.compute_actions(columns, prefix)[0]
        states = [
            jax.tree.map(lambda x: jnp.zeros((2, *x.shape)), e.get_initial_state())
            for e in module._critic_encoders(prefix)
        ]
        found = module._values({**columns, "state_in": states}, True, prefix)
        if prefix:
            np.testing.assert_allclose(targets, jnp.minimum(*found)[:, 1:], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_allclose(actions, columns["actions"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(values, found[0], rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(autouse=True)
def pendulum_on_the_host():
    register_env(ON_THE_HOST, lambda context: GymnasiumFromJax(PENDULUM, {"max_steps_in_episode": 10}))


def config(env, learner_class=TD3Learner, **model):
    """Priorities, windows of random length."""
    asked = (
        TD3Config()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(
            train_batch_size_per_learner=8,
            num_steps_sampled_before_learning_starts=20,
            random_timesteps=20,
            n_step=(1, 3),
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 200},
        )
        .reporting(min_sample_timesteps_per_iteration=36, min_time_s_per_iteration=0)
        .rl_module(model_config={**SMALL, **model})
        .learners(num_cpus_per_learner=1, learner_class=learner_class)
        .debugging(seed=2)
    )
    return asked.environment(env_config={"max_steps_in_episode": 10}) if env == PENDULUM else asked


class LearnerThatRecordsRows(TD3Learner):
    update_class = RecordsRows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two iterations, the first of them with its batches, their checkpoint, and one more."""
    algo = config(PENDULUM, LearnerThatRecordsRows).build_algo()
    first = recorded_iteration(algo)
    algo.train()
    path = algo.save_to_path(tmp_path_factory.mktemp("td3") / "checkpoint")
    after = learned(algo.train())
    state = algo.learner.get_state()
    yield types.SimpleNamespace(algo=algo, first=first, path=path, after=after, state=state)
    algo.stop()


def test_what_the_device_draws_makes_the_same_update_on_the_host(run):
    assert len(run.first.drawn) // 2 == run.first.result["learners"][MODULE]["num_target_updates"] > 0
    names = ("qf_loss", "policy_loss", "td_error_mean")
    assert_same_updates_on_the_host(config(ON_THE_HOST).build_algo(), run.first, names)


def test_a_run_continues_exactly(run):
    algo = run.algo
    assert algo.reset(algo.config)
    algo.restore_from_path(run.path)
    assert "policy_loss" in run.after and learned(algo.train()) == run.after
    jax.tree.map(np.testing.assert_array_equal, run.state, algo.learner.get_state())


def test_a_policy_serves_greedy_actions_in_the_bounds_of_the_space(run):
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    expected = 2.0 * np.asarray(run.algo.get_module().compute_actions({"obs": observations})[0])
    served = Policy.from_checkpoint(run.path).compute_actions(observations, explore=False)[0]
    assert served.shape == expected.shape and (np.abs(served) <= 2.0).all()
    served = run.algo.get_policy().compute_actions(observations, explore=False)[0]
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


def test_an_lstm_trains_on_gymnasium_environments():
    recurrent = {"fusionnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    algo = config(ON_THE_HOST, **recurrent).training(burn_in_len=1).build_algo()
    before = algo.learner.get_weights()
    result = algo.train()["learners"][MODULE]
    assert np.isfinite(result["qf_loss"]) and np.isfinite(result["policy_loss"])
    moved = {ref.split("/")[1] for ref, value in algo.learner.get_weights().items() if (value != before[ref]).any()}
    assert {"pi_encoder", "pi", "qf_encoder", "qf", "qf_twin"} <= moved and result["num_target_updates"] > 0
    algo.stop()


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_delay": 0}, r"policy_delay=0.*at least 1"),
        ({"target_noise": -0.1}, r"target_noise=-0.1.*at least 0"),
        ({"target_noise_clip": -0.1}, r"target_noise_clip=-0.1.*at least 0"),
        ({"exploration_noise": -0.1}, r"exploration_noise=-0.1.*at least 0"),
        ({"random_timesteps": -1}, r"random_timesteps=-1.*at least 0"),
        ({"bc_alpha": 0.0}, r"bc_alpha=0.0.*above 0"),
        ({"bc_alpha": 2.5}, r"bc_alpha=2.5.*recorded data only.*offline_data\(input_="),
        ({"lr": 1e-3}, r"lr=0.001.*actor_lr and critic_lr"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TD3Config().environment(PENDULUM).training(**settings).validate()


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [({"n_step": 3}, {}, r"n_step=3.*one-step targets"), ({}, {"use_lstm": True}, r"use_lstm.*single steps")],
)
def test_recorded_data_needs_single_steps(settings, model, message):
    with pytest.raises(ValueError, match=message):
        of_records().training(**settings).rl_module(model_config={**SMALL, **model}).validate()


def test_recorded_data_without_an_environment_names_both_ways():
    with pytest.raises(ValueError, match=r"config.environment\(.*or training\(bc_alpha=2.5\) for TD3\+BC"):
        TD3Config().offline_data(input_=["data"]).build_algo()


def test_discrete_actions_are_refused_with_the_algorithms_for_them():
    with pytest.raises(ValueError, match=r"TD3 supports.*not Discrete\(2\).*Use DQN or PQN"):
        TD3Config().environment("gymnax/CartPole-v1").env_runners(num_envs_per_env_runner=2).build_algo()


def test_which_settings_recompile():
    traced = {"target_noise": 0.1, "target_noise_clip": 0.2, "exploration_noise": 0.3, "random_timesteps": 5}
    assert TD3Config().training(**traced, actor_lr=1.0).differs_in_traced_settings_only(TD3Config())
    for changed in ({"policy_delay": 3}, {"twin_q": False}, {"smooth_target_policy": False}, {"bc_alpha": 1.0}):
        assert not TD3Config().training(**changed).differs_in_traced_settings_only(TD3Config())
