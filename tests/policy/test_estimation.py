"""What a policy is worth, from recorded episodes: against exact values, and what is refused."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bench import off_policy_estimates as chain
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FlattenObservations, RecordedMeanStdFilter
from jaxrl_stack.connectors.module_to_env import GetActions, ModuleToEnvPipeline
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.offline.estimators import DoublyRobust, ImportanceSampling
from jaxrl_stack.offline.normalization import DataNormalization
from jaxrl_stack.policy import Policy
from jaxrl_stack.policy.estimation import METHODS, estimate
from jaxrl_stack.policy.recorded_actions import ActingBy, action_probabilities
from jaxrl_stack.policy.recorded_episodes import whole_episodes

Q_MODEL = {**chain.Q_MODEL, "num_updates": 600}


@pytest.fixture(scope="module")
def recorded():
    return chain.recorded(1000, seed=0)


@pytest.fixture(scope="module")
def estimates(recorded):
    return estimate(chain.module(), recorded, gamma=chain.GAMMA, num_resamples=300, q_model_config=Q_MODEL)


def test_the_chain_is_as_it_says():
    assert 5 < chain.largest_product() <= 20
    assert abs(chain.exact_value(chain.behavior()) / chain.exact_value(chain.TARGET) - 1) > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_near_the_exact_value(estimates, method):
    truth, own = chain.exact_value(chain.TARGET), estimates[method]
    assert abs(own.value / truth - 1) < (0.03 if method in ("dm", "dr") else 0.08)
    assert own.is_reliable
    if method != "dm":
        assert own.low < truth < own.high


def test_what_was_recorded_is_reported_beside_them(estimates):
    assert estimates.behavior.low < chain.exact_value(chain.behavior()) < estimates.behavior.high
    assert (estimates.num_episodes, estimates.num_left_out, estimates.num_steps) == (1000, 0, 5000)
    assert list(estimates.as_json()["wis"]) == ["value", "low", "high", "effective_sample_size", "problem"]
    assert "effective episodes" in str(estimates)


def test_the_policy_that_recorded_is_worth_what_it_got(recorded):
    """Its ratios are 1, whatever the method."""
    greedy = chain.module()
    greedy.log_probs = np.log(np.eye(2)[chain.GREEDY] + 1e-30).astype(np.float32)
    found = estimate(greedy, recorded, gamma=0.95, methods=("is", "pdis", "wis"), acting=ActingBy(False, chain.EPSILON))
    for own in found.values():
        assert np.isclose(own.value, found.behavior.value, rtol=1e-5)
        assert np.isclose(own.effective_sample_size, 1000)


def test_an_estimate_of_few_episodes_worth_says_so(recorded):
    few = recorded.rows(0, 6 * 5)
    found = estimate(chain.module(), few, gamma=0.95, methods="wis")
    assert not found["wis"].is_reliable
    assert "5 episodes count as only" in found["wis"].problem


def test_a_policy_that_never_does_what_was_recorded(recorded):
    other = chain.module()
    other.log_probs = np.array([[0.0, -1e9]] * 3, np.float32)
    only_ones = recorded.map_columns(lambda name, x: np.ones_like(x) if name == Columns.ACTIONS else x)
    assert "would not choose the recorded actions" in estimate(other, only_ones, methods="is")["is"].problem


def test_estimators_have_rllibs_names(recorded, estimates):
    found = ImportanceSampling(chain.module(), gamma=chain.GAMMA, num_resamples=300).estimate(recorded)
    assert np.isclose(found["v_target"], estimates["is"].value)
    assert np.isclose(found["v_delta"], found["v_target"] - found["v_behavior"])
    own = DoublyRobust(chain.module(), chain.GAMMA, q_model_config=Q_MODEL, num_resamples=300).estimate(recorded)
    assert np.isclose(own["v_target"], estimates["dr"].value)


# ------------------------------------------------------------------------------------------------------ whole episodes


def reordered(steps: Steps, order: np.ndarray) -> Steps:
    columns = {name: x[order] for name, x in steps.columns.items()}
    return Steps(columns, steps.is_final[order], steps.episode[order], steps.t[order], steps.episode_ids)


def test_pieces_of_an_episode_may_lie_apart(recorded):
    few = recorded.rows(0, 12)
    # Episode 0 is cut behind its second step: what follows is a piece behind episode 1.
    order = np.array([0, 1, 2, 6, 7, 8, 9, 10, 11, 2, 3, 4, 5])
    is_final = np.zeros(13, bool)
    is_final[[2, 8, 12]] = True
    cut = dataclasses.replace(reordered(few, order), is_final=is_final)
    episodes = whole_episodes(cut)
    assert episodes.rows.tolist() == [[0, 1, 9, 10, 11], [3, 4, 5, 6, 7]]
    assert episodes.final_rows.tolist() == [12, 8]


def test_episodes_that_are_not_whole_are_left_out(recorded):
    steps = recorded.rows(0, 18)
    ends = np.asarray(steps.columns[Columns.TERMINATEDS]).copy()
    ends[4] = False
    t = steps.t.copy()
    t[6:12] += 1
    broken = dataclasses.replace(steps, columns={**steps.columns, Columns.TERMINATEDS: ends}, t=t)
    episodes = whole_episodes(broken)
    assert (episodes.num_left_out, episodes.rows.tolist()) == (2, [[12, 13, 14, 15, 16]])


# ------------------------------------------------------------------------------------------------------ other policies

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


def steps_with(actions, lengths=(4, 2), truncated=True):
    n = sum(lengths) + len(lengths)
    is_final = np.zeros(n, bool)
    is_final[np.cumsum([length + 1 for length in lengths]) - 1] = True
    last, zeros = np.roll(is_final, -1) & ~is_final, np.zeros(n, bool)
    rng = np.random.default_rng(3)
    columns = {
        Columns.OBS: rng.uniform(-1, 1, (n, 3)).astype(np.float32),
        Columns.ACTIONS: actions(rng, n),
        Columns.REWARDS: np.ones(n, np.float32),
        Columns.TERMINATEDS: zeros if truncated else last,
        Columns.TRUNCATEDS: last if truncated else zeros,
        Columns.ACTION_LOGP: np.full(n, -1.0, np.float32),
    }
    t = np.concatenate([np.arange(length + 1) for length in lengths]).astype(np.int32)
    episode = np.repeat(np.arange(len(lengths)), [length + 1 for length in lengths]).astype(np.int32)
    return Steps(columns, is_final, episode, t, [str(i) for i in range(len(lengths))])


def ppo_module(action_space, **model):
    config = DefaultModelConfig(fcnet_hiddens=[8], **model)
    return RLModuleSpec(
        module_class=DefaultPPORLModule,
        observation_space=OBSERVATIONS,
        action_space=action_space,
        model_config=config,
        catalog_class=PPOCatalog,
    ).build()


BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.fixture(scope="module")
def continuous():
    return ppo_module(BOX), steps_with(lambda rng, n: rng.uniform(-1, 1, (n, 2)).astype(np.float32))


def test_densities_of_continuous_actions_are_those_of_the_module(continuous):
    module, steps = continuous
    found = action_probabilities(module, dict(steps.columns), whole_episodes(steps), ActingBy(), num_samples=3)
    inputs = module.forward_exploration({Columns.OBS: steps.columns[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
    expected = module.get_exploration_action_dist_cls().from_logits(inputs).logp(steps.columns[Columns.ACTIONS])
    np.testing.assert_allclose(found.log_probs, expected, rtol=1e-5)
    assert found.samples.shape == (8, 3, 2)


def test_fitted_q_of_continuous_actions_knows_constant_rewards(continuous):
    """Without an end, rewards of 1 are worth ``1 / (1 - gamma)``."""
    q_model = {"fcnet_hiddens": (32, 32), "num_updates": 400, "minibatch_size": 128, "num_action_samples": 4}
    # Actions as the policy, a wide Gaussian, draws them.
    steps = steps_with(lambda rng, n: rng.normal(size=(n, 2)).astype(np.float32), lengths=(150, 150))
    found = estimate(continuous[0], steps, methods=("dm",), gamma=0.5, q_model_config=q_model, num_resamples=10)
    assert np.isclose(found["dm"].value, 2.0, rtol=0.05)


def test_recurrent_modules_run_over_whole_episodes():
    module = ppo_module(gym.spaces.Discrete(2), use_lstm=True, lstm_cell_size=4, max_seq_len=8)
    steps = steps_with(lambda rng, n: rng.integers(0, 2, n).astype(np.int32))
    found = action_probabilities(module, dict(steps.columns), whole_episodes(steps), ActingBy())
    state = {name: np.zeros((1, *np.shape(x)), np.float32) for name, x in module.get_initial_state().items()}
    for rows in (slice(0, 5), slice(5, 8)):
        batch = {Columns.OBS: steps.columns[Columns.OBS][None, rows], Columns.STATE_IN: state}
        logits = module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS][0]
        expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(found.probs[rows], expected, rtol=1e-5)
    assert list(estimate(module, steps, num_resamples=5)) == ["is", "pdis", "wis"]
    with pytest.raises(ValueError, match="recurrent state"):
        estimate(module, steps, methods=("dr",))


def test_a_policy_sees_recorded_observations_as_it_was_trained(continuous):
    module, steps = continuous
    normalization = DataNormalization([steps], (OBSERVATIONS, BOX), observations=True, gamma=None)
    env_to_module = EnvToModulePipeline(OBSERVATIONS, BOX, connectors=[RecordedMeanStdFilter()])
    env_to_module.set_state(normalization.env_to_module_state())
    policy = Policy(module, env_to_module, ModuleToEnvPipeline(OBSERVATIONS, BOX, connectors=[GetActions()]))
    own = policy.estimate(steps, ("pdis",), num_resamples=5)["pdis"].value
    seen = normalization.apply_to_observations(steps)
    assert np.isclose(own, estimate(module, seen, methods="pdis", num_resamples=5)["pdis"].value)
    assert not np.isclose(own, estimate(module, steps, methods="pdis", num_resamples=5)["pdis"].value)


def test_observations_of_the_environment_pass_the_connectors_of_a_policy(tmp_path):
    rng, space, actions = np.random.default_rng(0), gym.spaces.Discrete(3), gym.spaces.Discrete(2)
    env_to_module = EnvToModulePipeline(space, actions, connectors=[FlattenObservations()])
    seen: Any = env_to_module.observation_space
    module = RLModuleSpec(
        DefaultPPORLModule, seen, actions, model_config=DefaultModelConfig(fcnet_hiddens=[4]), catalog_class=PPOCatalog
    ).build(seed=0)
    policy = Policy(module, env_to_module, ModuleToEnvPipeline(space, actions, connectors=[GetActions()]))
    states, ends = rng.integers(0, 3, 40), np.arange(40) % 4 == 3
    recorded = {"actions": rng.integers(0, 2, 40), "rewards": rng.normal(size=40), "terminateds": ends}
    recorded |= {"eps_id": np.arange(40) // 4, "action_logp": np.full(40, np.log(0.5))}
    for name, obs in (("states", {"s": states}), ("seen", {"obs": np.eye(3, dtype=np.float32)[states]})):
        np.savez(tmp_path / f"{name}.npz", **recorded, **obs)
    expected = policy.estimate(tmp_path / "seen.npz", "wis", num_resamples=5)["wis"].value
    options = {"input_read_schema": {"obs": "s"}}
    found = policy.estimate(tmp_path / "states.npz", "wis", num_resamples=5, data_options=options)["wis"].value
    assert found == expected
    with pytest.raises(
        ValueError, match=r"data_options has the unknown names \['schema'\]. Valid are \['input_read_schema'"
    ):
        policy.estimate(tmp_path / "states.npz", "wis", data_options={"schema": {}})
    np.savez(tmp_path / "odd.npz", **{**recorded, "actions": np.full(40, 2)}, obs=states)
    with pytest.raises(ValueError, match=r"odd.npz, row 0: The action 2 is not in Discrete\(2\)"):
        policy.estimate(tmp_path / "odd.npz", "wis")


# ------------------------------------------------------------------------------------------------------------- refusals


def without(steps, name):
    return dataclasses.replace(steps, columns={n: x for n, x in steps.columns.items() if n != name})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"methods": ("wsi",)}, r"methods=\('wsi',\): choose from"),
        ({"confidence": 1.5}, "confidence=1.5"),
        ({"acting": ActingBy(True, 0.5)}, "epsilon_greedy=0.5 is only for Discrete actions"),
        ({"acting": ActingBy(False)}, "explore=False: a greedy policy over Box"),
        ({"methods": ("dm",), "gamma": 1.0}, "gamma=1.0: 'dm' and 'dr' estimate values"),
        ({"q_model_config": {"layers": 3}}, r"q_model_config has no entry \['layers'\]"),
        ({"q_model_config": {"tau": 2.0}}, "'tau': 2.0"),
    ],
)
def test_bad_arguments_are_named(continuous, settings, says):
    with pytest.raises(ValueError, match=says):
        estimate(*continuous, **settings)


@pytest.mark.parametrize(
    ("method", "acting", "says"),
    [
        ("forward_exploration", ActingBy(), r"forward_exploration\(\) of .* returns no 'action_dist_inputs'"),
        ("forward_inference", ActingBy(False), r"forward_inference\(\) of .* returns neither 'actions' nor"),
    ],
)
def test_a_module_without_distribution_is_named_with_its_method(monkeypatch, method, acting, says):
    module = ppo_module(gym.spaces.Discrete(2))
    monkeypatch.setattr(type(module), method, lambda self, batch: {})
    steps = steps_with(lambda rng, n: rng.integers(0, 2, n).astype(np.int32))
    with pytest.raises(ValueError, match=says):
        action_probabilities(module, dict(steps.columns), whole_episodes(steps), acting)


def test_data_without_log_probabilities_says_how_to_record_them(continuous):
    module, steps = continuous
    steps = without(steps, Columns.ACTION_LOGP)
    with pytest.raises(ValueError, match=r"record this column with `jaxrl record"):
        estimate(module, steps, methods=("is",))
    probs = {**steps.columns, Columns.ACTION_PROB: np.full(steps.num_rows, 0.5, np.float32)}
    found = estimate(module, dataclasses.replace(steps, columns=probs), methods=("is",), num_resamples=5)
    assert found["is"].effective_sample_size > 0


def test_data_without_whole_episodes_is_refused(continuous):
    module, steps = continuous
    with pytest.raises(ValueError, match="None of the 2 episodes is complete"):
        estimate(module, dataclasses.replace(steps, t=steps.t + 1))
