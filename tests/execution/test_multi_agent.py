"""Several agents in a JAX environment: who acts with what, when a step is complete, what is trained and reported."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.agent_mapping import module_map_of
from jaxrl_stack.env.drawings import side_by_side
from jaxrl_stack.env.module_pipelines import make_rollout, pure_pipelines
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule, StatefulRandomRLModule
from jaxrl_stack.examples.rl_modules.classes.rock_paper_scissors_heuristic_rlm import (
    AlwaysSameHeuristicRLM,
    BeatLastHeuristicRLM,
)
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.utils import counters, notices
from jaxrl_stack.utils.policy_spec import PolicySpec

NUM_ENVS = 4
ENVS = {
    "cart_poles": (multi_agent.MultiAgentCartPole, {"num_agents": 2, "max_steps": 20}),
    "rock_paper_scissors": (multi_agent.RockPaperScissors, {}),
    "tic_tac_toe": (multi_agent.TicTacToe, {}),
    "come_and_go": (multi_agent.ComeAndGo, {"num_agents": 3}),
}


def alternating(agent_id, episode, **kwargs):
    return f"p{int(str(agent_id)[-1]) % 2}"


def shared(agent_id, episode, **kwargs):
    return "p0"


def config_of(env, env_config=None, mapping=alternating, policies=("p0", "p1"), **model):
    return (
        PPOConfig()
        .environment(env, env_config=env_config or {})
        .multi_agent(policies=set(policies), policy_mapping_fn=mapping)
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=8 * NUM_ENVS, minibatch_size=8, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [8], **model})
    )


def rollout_of(config):
    env = config.env(config.env_config)
    pipelines = pure_pipelines(config, env, module_map_of(config, env))
    spec = config.get_multi_rl_module_spec(spaces=pipelines.spaces)
    pure = PureModule(spec.build(seed=0).as_multi_rl_module())
    return make_rollout(config, env, pipelines, pure, window_size=16)


def unrolling(config, num_steps):
    """``(rollout, state, key) -> (state, record)``, compiled, of whole blocks."""
    rollout = rollout_of(config)
    pure, none = rollout.pure, {mid: {} for mid in rollout.modules}

    @jax.jit
    def unroll(state):
        context = rollout.context(pure.params, pure.rest, none, counters.zero(), explore=True)
        return rollout.unroll(state, context, num_steps=num_steps)

    return rollout, jax.jit(functools.partial(rollout.init, num_envs=NUM_ENVS)), unroll


def steps_of_a_loop(env, state, key, actions, num_steps):
    """Steps that agents complete in one environment, by a loop over plain Python objects.

    Args:
        env: The environment.
        state: Of all copies, before the first step; see `MultiAgentJaxEnv.step_batch`.
        key: Keys of the steps, ``[T, B]``.
        actions: By agent, one list of its actions per copy, in the order of its acts.
        num_steps: ``T``.

    Returns:
        By agent and copy: ``[(t, reward, terminated, truncated, final observation)]``.
    """
    step, who = jax.jit(env.step_batch), jax.jit(jax.vmap(env.who_acts))
    done = {agent: [[] for _ in range(NUM_ENVS)] for agent in env.possible_agents}
    held = {agent: [None] * NUM_ENVS for agent in env.possible_agents}
    for t in range(num_steps):
        acts, chosen = jax.device_get(who(state)), {}
        for agent in env.possible_agents:
            chosen[agent] = np.zeros(NUM_ENVS, np.int32)
            for b in np.flatnonzero(acts[agent]):
                assert held[agent][b] is None, "an agent that waits does not act"
                held[agent][b] = 0.0
                chosen[agent][b] = actions[agent][b].pop(0)
        after = jax.device_get(step(key[t], state, chosen, env.params))
        over = after.terminated | after.truncated
        for agent in env.possible_agents:
            for b in range(NUM_ENVS):
                if held[agent][b] is None:
                    continue
                held[agent][b] += float(after.reward[agent][b])
                ends = after.terminateds[agent][b], after.truncateds[agent][b]
                if any(ends) or over[b] or after.acts[agent][b]:
                    done[agent][b].append((t, held[agent][b], *map(bool, ends), after.final_obs[agent][b]))
                    held[agent][b] = None
        state = after.state
    return done


@pytest.mark.parametrize("name", ENVS)
def test_steps_are_recorded_when_they_are_complete(name):
    env_class, env_config = ENVS[name]
    num_steps, num_blocks = 6, 6
    rollout, init, unroll = unrolling(config_of(env_class, env_config), num_steps)
    state = init(jax.random.key(0))
    first, records, keys = state.env_state, [], []
    for _ in range(num_blocks):
        own = jax.random.split(state.key)[1]
        keys.append(jax.random.split(own, (num_steps, 1 + NUM_ENVS))[:, 1:])
        state, record, _ = unroll(state)
        records.append(jax.device_get(record.columns))
    columns = jax.tree.map(lambda *parts: np.concatenate(parts), *records)
    of_agents = rollout.module_map.by_agent(columns, axis=1)

    def mask_of(own):
        return own.get(Columns.LOSS_MASK, np.ones(own[Columns.REWARDS].shape, bool))

    actions = {
        agent: [own[Columns.ACTIONS][mask_of(own)[:, b], b].tolist() for b in range(NUM_ENVS)]
        for agent, own in of_agents.items()
    }
    for agent, held in rollout.module_map.by_agent(state.held).items() if state.held else ():
        for b in np.flatnonzero(held.is_held):
            actions[agent][b].append(int(held.columns[Columns.ACTIONS][b]))
    expected = steps_of_a_loop(rollout.env, first, jnp.concatenate(keys), actions, num_steps * num_blocks)
    ends = set()
    for agent, own in of_agents.items():
        for b in range(NUM_ENVS):
            rows = np.flatnonzero(mask_of(own)[:, b])
            assert [t for t, *_ in expected[agent][b]] == rows.tolist()
            for t, (_, reward, terminated, truncated, final_obs) in zip(rows, expected[agent][b], strict=True):
                assert own[Columns.REWARDS][t, b] == pytest.approx(reward)
                assert (own[Columns.TERMINATEDS][t, b], own[Columns.TRUNCATEDS][t, b]) == (terminated, truncated)
                size = own[Columns.FINAL_OBS].shape[-1]
                np.testing.assert_allclose(
                    own[Columns.FINAL_OBS][t, b], as_input(final_obs, size), rtol=1e-5, atol=1e-6
                )
                ends.add((terminated, truncated))
            follows = rows[1:][~(own[Columns.TERMINATEDS] | own[Columns.TRUNCATEDS])[rows[:-1], b]]
            before = rows[:-1][~(own[Columns.TERMINATEDS] | own[Columns.TRUNCATEDS])[rows[:-1], b]]
            np.testing.assert_array_equal(own[Columns.OBS][follows, b], own[Columns.FINAL_OBS][before, b])
    assert (
        (True, False) in ends and (False, False) in ends and (Columns.LOSS_MASK in columns["p0"]) == bool(rollout.held)
    )


def test_a_ring_holds_the_steps_that_agents_complete():
    """Next observations are the same whether each step keeps its own or it is read from the agent's next step."""
    _, init, unroll = unrolling(config_of(multi_agent.ComeAndGo, {"num_agents": 4}), 6)
    state, kept = init(jax.random.key(0)), {}
    rings = [
        DeviceReplay(capacity=20 * 2 * NUM_ENVS, num_envs=2 * NUM_ENVS, batch_size=400, n_step=3, num_final_obs=slots)
        for slots in (None, 20 * NUM_ENVS)
    ]
    add, num_steps = [jax.jit(ring.add) for ring in rings], 0
    for _ in range(3):
        state, record, _ = unroll(state)
        columns = record.columns["p0"]
        num_steps += int(columns[Columns.LOSS_MASK].sum())
        for i, ring in enumerate(rings):
            kept[i] = add[i](kept.get(i, ring.init(columns)), columns)
    assert [int(ring.num_steps(kept[i])) for i, ring in enumerate(rings)] == [num_steps] * 2
    drawn = [jax.jit(ring.sample)(kept[i], jax.random.key(1)) for i, ring in enumerate(rings)]
    jax.tree.map(np.testing.assert_array_equal, *drawn)
    assert set(np.unique(drawn[0][0]["n_step"])) == {1, 2, 3}


def test_the_first_act_of_an_agent_in_an_episode_is_told_from_its_others():
    """Also where it waits for others first."""
    lstm = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    rollout, init, unroll = unrolling(config_of(multi_agent.TicTacToe, **lstm), 24)
    _, record, _ = unroll(init(jax.random.key(0)))
    episode = np.cumsum(record.ended, axis=0) - record.ended
    assert episode.max() > 0
    for own in rollout.module_map.by_agent(record.columns, axis=1).values():
        for b in range(NUM_ENVS):
            rows = np.flatnonzero(own[Columns.LOSS_MASK][:, b])
            is_first = np.diff(episode[rows, b], prepend=-1) > 0
            np.testing.assert_array_equal(own[Columns.RESETS][rows, b], is_first)


def as_input(obs, size):
    return obs if np.ndim(obs) else np.eye(size)[int(obs)]


class Crowd(MultiAgentJaxEnv):
    """Everybody sees the same, and gets its number for action 1; episodes have 3 steps."""

    def __init__(self, config: Any):
        self.possible_agents = tuple(range(config.get("num_agents", 2)))
        self.observation_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(4))

    def reset_env(self, key, params):
        return dict.fromkeys(self.possible_agents, jnp.ones(2)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        rewards = {agent: agent * (action[agent] == 1) for agent in self.possible_agents}
        return dict.fromkeys(self.possible_agents, jnp.ones(2)), state + 1, rewards, {"__all__": state >= 2}, {}, {}


def test_another_module_leaves_the_draws_of_a_module_alone():
    actions = []
    for num_agents in (1, 2):
        config = config_of(Crowd, {"num_agents": num_agents}, policies=("p0", "p1")[:num_agents])
        _, init, unroll = unrolling(config, 16)
        _, record, _ = unroll(init(jax.random.key(3)))
        actions.append(np.asarray(record.columns["p0"][Columns.ACTIONS]))
    np.testing.assert_array_equal(*actions)
    assert len(np.unique(actions[0])) > 1


def test_agents_of_one_module_have_rows_of_their_own():
    _, init, unroll = unrolling(config_of(Crowd, {"num_agents": 3}, shared, ["p0"]), 6)
    _, record, ended = unroll(init(jax.random.key(0)))
    (columns,) = record.columns.values()
    rewards = np.asarray(columns[Columns.REWARDS]).reshape(6, 3, NUM_ENVS)
    actions = np.asarray(columns[Columns.ACTIONS]).reshape(6, 3, NUM_ENVS)
    np.testing.assert_array_equal(rewards, (actions == 1) * np.arange(3.0)[:, None])
    np.testing.assert_array_equal(ended.ended, [[t % 3 == 2] * NUM_ENVS for t in range(6)])
    for agent in range(3):
        np.testing.assert_array_equal(ended.agent_returns[agent][2], rewards[:3, agent].sum(axis=0))
    np.testing.assert_array_equal(ended.returns[5], rewards[3:].sum(axis=(0, 1)))


def changed(algo, before):
    after = algo.get_weights()
    return {mid: any((after[mid][name] != own[name]).any() for name in own) for mid, own in before.items()}


NUM_STEPS_PER_CALL = 3
"""Training steps of `Trained.algo` in one call of its program."""


class Trained(NamedTuple):
    """An algorithm of two devices after two iterations, with its weights at first, and its checkpoint between them."""

    algo: Algorithm
    before: dict[str, Any]
    path: str
    results: list[dict[str, Any]]


def stacked_and_filtered(*args):
    return [FrameStackingEnvToModule(num_frames=2), MeanStdFilter()]


def own_return(name):
    return f"env_runners/agent_episode_returns_mean/{'a0' if name == 'come_and_go' else 0}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function of a game's name and of settings of its networks."""
    made = {}

    def of(name, **settings):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            env = {**ENVS, "short_cart_poles": (multi_agent.MultiAgentCartPole, {"max_steps": 7})}[name]
            config = config_of(*env, **settings).evaluation(evaluation_interval=1, evaluation_duration=4)
            config.training(num_epochs=1, minibatch_size=None).learners(num_cpus_per_learner=2)
            config.env_runners(env_to_module_connector=stacked_and_filtered)
            config.reporting(
                results_dir=folder,
                keep_best=own_return(name),
                min_sample_timesteps_per_iteration=NUM_STEPS_PER_CALL * 8 * NUM_ENVS,
            )
            algo = config.build_algo()
            before, first = algo.get_weights(), algo.train()
            path = algo.save_to_path(folder / "checkpoint")
            made[name] = Trained(algo, before, path, [first, algo.train()])
        return made[name]

    yield of
    for each in made.values():
        each.algo.stop()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("short_cart_poles", {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}), ("come_and_go", {})],
)
def test_both_policies_are_trained_and_reported(trained, name, settings):
    algo, before, _, (_, result) = trained(name, **settings)
    own = own_return(name)
    assert changed(algo, before) == {"p0": True, "p1": True}
    assert algo.best.value == algo.history[own].max() and algo.best.path is not None
    assert algo.learn({own: -1e9}, progress=False) is result and algo.iteration == 2
    agents = [str(agent) for agent in algo.driver.rollout.agents]
    found = result["env_runners"]
    returns = found["agent_episode_returns_mean"]
    assert list(returns) == agents
    assert sum(returns.values()) == pytest.approx(found["episode_return_mean"], abs=1e-5)
    of_modules = {f"p{i}": sum(x for a, x in returns.items() if int(a[-1]) % 2 == i) for i in (0, 1)}
    assert found["module_episode_returns_mean"] == pytest.approx(of_modules)
    steps = found["num_agent_steps_sampled_lifetime"]
    assert set(steps) == set(agents)
    assert all(0 < n <= 2 * NUM_STEPS_PER_CALL * 8 * NUM_ENVS for n in steps.values())
    assert sum(found["num_module_steps_sampled_lifetime"].values()) == sum(steps.values())
    assert set(result["learners"]) == {"p0", "p1", "__all_modules__"}
    evaluated = result["evaluation"]["env_runners"]
    assert sum(evaluated["agent_episode_returns_mean"].values()) == pytest.approx(
        evaluated["episode_return_mean"], abs=1e-5
    )
    assert "frame" not in str(algo.memory_estimate()) and algo.driver.rollout_memory.num_bytes > 0


def against(module_class):
    """Rock-paper-scissors against a module without parameters, as player1."""
    spec = MultiRLModuleSpec(rl_module_specs={"p0": RLModuleSpec(), "p1": RLModuleSpec(module_class=module_class)})
    return config_of(multi_agent.RockPaperScissors).rl_module(rl_module_spec=spec).multi_agent(policies_to_train=["p0"])


@pytest.mark.parametrize("opponent", [StatefulRandomRLModule, BeatLastHeuristicRLM])
def test_a_policy_is_trained_against_one_that_learns_nothing(opponent):
    algo = against(opponent).build_algo()
    before = algo.get_weights()
    result = algo.train()
    assert changed(algo, before)["p0"] and not before["p1"]
    losses = [result["learners"][mid]["total_loss"] for mid in ("p0", "p1")]
    assert np.isfinite(losses).tolist() == [True, False]
    with pytest.raises(NotImplementedError, match=r"has no parameters to train.*policies_to_train"):
        algo.get_module("p1").forward_train({Columns.OBS: jnp.zeros((2, 3))})
    algo.stop()


@pytest.mark.parametrize("env", [multi_agent.MultiAgentCartPole, MultiAgentCartPole])
def test_policies_without_agents_have_their_spaces_and_a_run_may_train_nothing(env):
    config = config_of(env, {"num_agents": 2}, policies=("p0", "p1", "spare")).env_runners(num_env_runners=0)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: FrameStackingEnvToModule(num_frames=2))
    algo = config.multi_agent(policies_to_train=[]).build_algo()
    before = algo.get_weights()
    result = algo.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), before)
    assert result["env_runners"]["num_module_steps_sampled"] == {"p0": 32, "p1": 32}
    assert result["learners"]["__all_modules__"]["num_env_steps_trained"] == 0
    assert {algo.get_module(mid).observation_space.shape for mid in ("p0", "p1", "spare")} == {(8,)}
    algo.stop()


class Unequal(MultiAgentEnv):
    """Its agents have spaces of their own."""

    def __init__(self):
        super().__init__()
        self.possible_agents = self.agents = [0, 1]
        self.observation_spaces = {i: gym.spaces.Box(0.0, 1.0, (2 + i,), np.float32) for i in (0, 1)}
        self.action_spaces = dict.fromkeys([0, 1], gym.spaces.Discrete(2))


def test_a_learner_group_takes_the_spaces_of_an_environment():
    def shapes(env, *policies):
        setup, _ = config_of(None, policies=policies).get_multi_agent_setup(env=env)
        return {mid: spec.observation_space.shape for mid, spec in setup.items()}

    cart_poles = [make({"num_agents": 2}) for make in (multi_agent.MultiAgentCartPole, MultiAgentCartPole)]
    for env in cart_poles:
        # Agent 1 has a policy that comes later.
        assert shapes(env, "p0") == {"p0": (4,)} and shapes(env, "p1", "spare") == {"p1": (4,), "spare": (4,)}
    assert shapes(Unequal(), "p0", "p1") == {"p0": (2,), "p1": (3,)}
    group = config_of(None, policies=["p0"]).learners(num_learners=0).build_learner_group(env=cart_poles[1])
    assert list(group.get_weights()) == ["p0"]
    with pytest.raises(
        ValueError, match=r"no agent uses the policy 'spare'.*different observation_spaces.*PolicySpec\("
    ):
        shapes(Unequal(), "p0", "p1", "spare")
    own = {"p0": None, "p1": None, "spare": PolicySpec(observation_space=gym.spaces.Box(0.0, 1.0, (9,)))}
    setup, _ = config_of(None).multi_agent(policies=own).get_multi_agent_setup(env=Unequal())
    assert (setup["spare"].observation_space.shape, setup["spare"].action_space) == ((9,), gym.spaces.Discrete(2))


def moves_of(opponent, num_steps=20):
    """``(moves of the opponent, of the other player, where episodes begin)``, ``[T, B]``."""
    _, init, unroll = unrolling(against(opponent), num_steps)
    _, record, ended = unroll(init(jax.random.key(1)))
    first, second = (np.asarray(record.columns[mid][Columns.ACTIONS]) for mid in ("p1", "p0"))
    return first, second, np.concatenate([np.ones((1, NUM_ENVS), bool), np.asarray(ended.ended)[:-1]])


def test_opponents_play_as_they_say():
    moves, _, _ = moves_of(RandomRLModule)
    assert set(moves.ravel()) == {0, 1, 2}
    moves, _, begins = moves_of(AlwaysSameHeuristicRLM)
    assert begins.sum() == 2 * NUM_ENVS and len(set(moves[begins])) > 1
    assert (moves[1:] == moves[:-1])[~begins[1:]].all()
    moves, seen, begins = moves_of(BeatLastHeuristicRLM)
    assert (moves[1:] == (seen[:-1] + 1) % 3)[~begins[1:]].all() and (moves[begins] == 1).all()


def only_p0(module_id, batch):
    assert batch is None
    return module_id == "p0"


def those_with_rows(module_id, batch):
    return len(batch[module_id]["obs"]) > 3


def by_chance(module_id, batch):
    return _RNG.random() < 0.5


@pytest.mark.parametrize("env", [multi_agent.MultiAgentCartPole, MultiAgentCartPole])
def test_each_policy_has_its_own_statistics_and_those_are_trained_that_a_function_names(env):
    config = config_of(env, {"num_agents": 2}).env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
    algo = config.env_runners(num_env_runners=0).multi_agent(policies_to_train=only_p0).build_algo()
    before = algo.get_weights()
    algo.train()
    assert changed(algo, before) == {"p0": True, "p1": False}
    states = algo.driver.env_to_module_state()
    means = {mid: jax.tree.leaves(states[mid]) for mid in ("p0", "p1")}
    assert any((a != b).any() for a, b in zip(means["p0"], means["p1"], strict=True))
    obs = np.ones(4, np.float32)
    for mid in ("p0", "p1"):
        actions, *_ = algo.get_policy(mid).compute_actions(obs[None])
        assert actions[0] == algo.compute_single_action(obs, policy_id=mid, explore=False)
    algo.stop()
    for wanted, what in (
        (those_with_rows, r"those_with_rows\) raises TypeError .*'p[01]', None\)"),
        (by_chance, r"by_chance\) returns both True and False for module 'p[01]'"),
    ):
        refused = config_of(env, {"num_agents": 2}).multi_agent(policies_to_train=wanted)
        with pytest.raises(ValueError, match=f"policies_to_train={what}.*pass a list of ids"):
            refused.env_runners(num_env_runners=0).build_algo()


def leaves(algo):
    driver = algo.driver
    return jax.tree.leaves(
        jax.device_get((driver.learner.state.params, driver.shards.state.obs, driver.shards.state.held))
    )


def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(trained):
    algo, _, path, (_, result) = trained("come_and_go")
    restored = Algorithm.from_checkpoint(path, config=algo.config)
    again = restored.train()
    jax.tree.map(np.testing.assert_array_equal, leaves(algo), leaves(restored))
    for name in ("episode_return_mean", "agent_episode_returns_mean", "num_agent_steps_sampled_lifetime"):
        assert result["env_runners"][name] == again["env_runners"][name]
    restored.stop()


def looks_at_the_episode(agent_id, episode, **kwargs):
    return "p0" if episode.id_ else "p1"


_RNG = np.random.default_rng(0)


def draws_one(agent_id, episode, **kwargs):
    return f"p{_RNG.integers(2)}"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mapping": looks_at_the_episode}, ValueError, r"looks_at_the_episode.*agent 0.*reads episode\.id_.*host"),
        ({"mapping": draws_one}, ValueError, "draws_one.*another policy in other calls"),
        ({"policies": ["p0", "p7"]}, ValueError, r"alternating.*returns 'p1'.*the policies are \['p0', 'p7'\]"),
        ({"policies": ["default_policy"]}, ValueError, r"has the agents \[0, 1\].*multi_agent\(policies=\{'shared'\}"),
        ({"env": "gymnax/CartPole-v1"}, ValueError, "CartPole-v1 has one.*MultiAgentJaxEnv"),
    ],
)
def test_what_cannot_be_mapped_is_refused(change, error, message):
    arguments = {"env": multi_agent.MultiAgentCartPole, **change}
    with pytest.raises(error, match=message):
        config_of(**arguments).build_algo()


def test_agents_of_one_module_have_the_same_spaces():
    class Unlike(Crowd):
        def __init__(self, config):
            super().__init__(config)
            self.action_spaces[1] = gym.spaces.Discrete(5)

    with pytest.raises(ValueError, match=r"agents 0 and 1 to the module 'p0'.*action_spaces are .* and Discrete\(5\)"):
        config_of(Unlike, None, shared, ["p0"]).build_algo()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            DQNConfig().offline_data(input_=["steps"]),
            r"offline_data\(input_=\['steps'\]\) is not supported for several agents",
        ),
        (PPOConfig().learners(num_learners=2), r"learners\(num_learners=2\) is not supported"),
    ],
)
def test_what_several_agents_do_not_have_is_refused(config, message):
    config.environment(multi_agent.RockPaperScissors).multi_agent(policies={"p0", "p1"})
    with pytest.raises(NotImplementedError, match=message):
        config.validate()


@pytest.mark.parametrize("env", [multi_agent.RockPaperScissors, RockPaperScissors])
def test_steps_of_agents_are_counted_if_asked_for(env):
    """Rock-paper-scissors with both players in every step: half as many env steps, on the device and on the host."""
    config = config_of(env).multi_agent(count_steps_by="agent_steps").env_runners(rollout_fragment_length="auto")
    algo = config.training(num_epochs=1).reporting(min_sample_timesteps_per_iteration=2 * 8 * NUM_ENVS).build_algo()
    found = algo.train()["env_runners"]
    assert found["num_env_steps_sampled"] == 8 * NUM_ENVS
    assert found["num_agent_steps_sampled"] == dict.fromkeys(["player1", "player2"], 8 * NUM_ENVS)
    episodes = algo.env_runner.sample(num_timesteps=4 * NUM_ENVS)
    assert sum(episode.agent_steps() for episode in episodes) == 4 * NUM_ENVS
    algo.stop()


def test_steps_of_agents_that_wait_are_not_counted_on_the_device():
    config = config_of(*ENVS["tic_tac_toe"]).multi_agent(count_steps_by="agent_steps")
    with pytest.raises(
        NotImplementedError, match=r"count_steps_by='agent_steps'\) is not supported for .*TicTacToe.*acts"
    ):
        config.build_algo()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"rewards": 1.0}, "rewards is a float, but has to be a dict"),
        ({"rewards": {7: 1.0}}, r"rewards has \[7\], which are not among possible_agents=\[0, 1\]"),
        ({"terminateds": {"all": True}}, r"terminateds has \['all'\]"),
        ({"rewards": {0: jnp.ones(2)}}, "reward has shape"),
    ],
)
def test_what_an_environment_returns_is_checked(outcome, message):
    class Wrong(Crowd):
        def step_env(self, key, state, action, params):
            obs, state, *signals = super().step_env(key, state, action, params)
            named = dict(zip(("rewards", "terminateds", "truncateds", "infos"), signals, strict=True))
            return obs, state, *{**named, **outcome}.values()

    with pytest.raises(ValueError, match=message):
        config_of(Wrong).build_algo()


def test_without_a_word_on_all_an_episode_ends_with_its_last_agent():
    class Each(Crowd):
        def acts(self, state):
            return {0: state < 2, 1: state < 3}

        def step_env(self, key, state, action, params):
            obs, after, rewards, *_ = super().step_env(key, state, action, params)
            return obs, after, rewards, {0: after == 2}, {1: after == 3}, {}

    env: Any = Each({})
    state, found = env.reset(jax.random.key(0), None)[1], []
    for _ in range(3):
        step = env.step(jax.random.key(0), state, {0: jnp.int32(0), 1: jnp.int32(0)}, None)
        found.append((bool(step.terminated), bool(step.truncated), bool(step.terminateds[0]), bool(step.truncateds[1])))
        state = step.state
    assert found == [(False, False, False, False), (False, False, True, False), (False, True, False, True)]


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_episode_that_ends_with_its_last_agent_ends_for_those_that_wait(is_cut):
    """In turns, where the one that moves is the only one whose end is reported."""

    class Turns(Crowd):
        def acts(self, state):
            return {0: (state % 2 == 0) & (state < 4), 1: (state % 2 == 1) & (state < 4)}

        def step_env(self, key, state, action, params):
            obs, after, rewards, *_ = super().step_env(key, state, action, params)
            ends = {1: after == 4}
            return obs, after, rewards, {} if is_cut else ends, ends if is_cut else {}, {}

    env: Any = Turns({})
    state, found = env.reset(jax.random.key(0), None)[1], []
    for _ in range(4):
        step = env.step(jax.random.key(0), state, {0: jnp.int32(0), 1: jnp.int32(0)}, None)
        found.append([bool(flags[agent]) for flags in (step.terminateds, step.truncateds) for agent in (0, 1)])
        state = step.state
    assert found == [[False] * 4] * 3 + [[not is_cut] * 2 + [is_cut] * 2]


VISITS = [
    {"a": (1, 3), "b": (4, 5)},  # Nobody acts on the first state, nor on states 3 and 5.
    {"a": (0, 2), "b": (0, 2)},  # All agents end before the episode.
]


class Visits(MultiAgentJaxEnv):
    """Agents are there for some states of an episode of 8 steps; "a" terminates, "b" is cut off."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, 9.0, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))
    length = 8

    def __init__(self, config):
        self.visits = config["visits"]

    def reset_env(self, key, params):
        return self.seen(jnp.int32(0)), jnp.int32(0)

    def acts(self, state):
        return {agent: (comes <= state) & (state < goes) for agent, (comes, goes) in self.visits.items()}

    def step_env(self, key, state, action, params):
        after, rewards = state + 1, dict.fromkeys(self.possible_agents, 1.0)
        ends = {"a": after == self.visits["a"][1], "__all__": after == self.length}
        return self.seen(after), after, rewards, ends, {"b": after == self.visits["b"][1]}, {}

    def seen(self, t):
        return dict.fromkeys(self.possible_agents, jnp.atleast_1d(t * 1.0))


class HostVisits(MultiAgentEnv):
    """The same on the host."""

    def __init__(self, config):
        super().__init__()
        self.visits, self.agents = config["visits"], list(config["visits"])
        self.possible_agents = self.agents
        self.observation_spaces, self.action_spaces = Visits.observation_spaces, Visits.action_spaces

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.seen(), {}

    def step(self, action_dict):
        assert action_dict.keys() == {a for a, (comes, goes) in self.visits.items() if comes <= self.t < goes}
        rewards = dict.fromkeys(action_dict, 1.0)
        self.t += 1
        ends = {"a": self.t == self.visits["a"][1], "__all__": self.t == Visits.length}
        return self.seen(), rewards, ends, {"b": self.t == self.visits["b"][1]}, {}

    def seen(self):
        seen = np.array([self.t], np.float32)
        return {agent: seen for agent, (comes, goes) in self.visits.items() if comes <= self.t <= goes}


class NoteEpisodes(RLlibCallback):
    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("ended", len(episode) * 100 + episode.get_return(), reduce="max")


@pytest.mark.parametrize("visits", VISITS)
def test_drivers_agree_on_steps_in_which_nobody_acts(visits, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    found = []
    for env in (Visits, HostVisits):
        config = config_of(env, {"visits": visits}, shared, ["p0"]).env_runners(num_env_runners=0)
        config.training(train_batch_size_per_learner=48, minibatch_size=None, num_epochs=1).callbacks(NoteEpisodes)
        algo = config.env_runners(rollout_fragment_length=12).build_algo()
        results = algo.train()["env_runners"]
        episodes = algo.env_runner.sample(num_episodes=2)
        chunks = algo.env_runner.sample(num_timesteps=NUM_ENVS * 3)
        algo.stop()
        agents = [
            {a: (np.ravel(own.get_observations()).tolist(), own.is_terminated) for a, own in one.agent_episodes.items()}
            for one in episodes
        ]
        names = ("episode_return_mean", "episode_len_mean", "agent_episode_returns_mean", "num_agent_steps_sampled")
        found.append(
            ({name: results[name] for name in (*names, "ended")}, agents, [one.get_return() for one in chunks])
        )
    assert found[0] == found[1]
    num_acts = {agent: goes - comes for agent, (comes, goes) in visits.items()}
    results, agents, _ = found[0]
    assert results["agent_episode_returns_mean"] == num_acts and results["episode_len_mean"] == 8
    assert results["ended"] == 800 + sum(num_acts.values())
    assert agents[0]["a"] == ([float(t) for t in range(visits["a"][0], visits["a"][1] + 1)], True)
    # The JAX environment pays agents that are not there, too.
    told = [record.getMessage() for record in caplog.records if "rewards of agent" in record.getMessage()]
    assert [message.partition(" before its first")[0] for message in told] == [
        f"environment('Visits'): rewards of agent {agent!r}" for agent in "ab"
    ]


def test_a_map_of_agents():
    many = ModuleMap({"a": "p", "b": "q", "c": "p"}, is_multi_agent=True)
    assert many.agents_of == {"p": ("a", "c"), "q": ("b",)} and many.num_slots == {"p": 2, "q": 1}
    of_agents = {agent: jnp.full((3, 2), i) for i, agent in enumerate("abc")}
    rows = many.rows(of_agents)
    np.testing.assert_array_equal(rows["p"][:, 0], [0, 0, 0, 2, 2, 2])
    assert rows["q"] is of_agents["b"]
    jax.tree.map(np.testing.assert_array_equal, many.by_agent(rows), of_agents)
    jax.tree.map(np.testing.assert_array_equal, many.by_agent(many.rows(of_agents, axis=1), axis=1), of_agents)
    assert many.numbers("{}_steps", {"a": 1, "b": 2, "c": 3}) == {
        "agent_steps": {"a": 1, "b": 2, "c": 3},
        "module_steps": {"p": 4, "q": 2},
    }
    with pytest.raises(ValueError, match=r"several modules act: \['p', 'q'\]"):
        _ = many.module_id


def test_steps_trained_are_those_of_all_training_steps_of_a_call(trained):
    """Agents come and go: how many steps of theirs a training step has differs from one to the next."""
    algo, _, _, results = trained("come_and_go")
    assert algo.driver.num_training_steps_per_call == NUM_STEPS_PER_CALL
    numbers = [[result["learners"][mid]["num_module_steps_trained"] for mid in ("p0", "p1")] for result in results]
    sampled = [list(result["env_runners"]["num_module_steps_sampled"].values()) for result in results]
    assert numbers == sampled and len({tuple(own) for own in sampled}) > 1
    totals = np.sum(sampled, axis=0)
    learners = results[-1]["learners"]
    assert [learners[mid]["num_module_steps_trained_lifetime"] for mid in ("p0", "p1")] == totals.tolist()
    assert learners["__all_modules__"]["num_module_steps_trained_lifetime"] == totals.sum()


@pytest.mark.parametrize("name", ["rock_paper_scissors", "tic_tac_toe"])
def test_episodes_of_several_agents_are_filmed(name, tmp_path):
    algo = config_of(*ENVS[name]).build_algo()
    driver = algo.driver
    for part in (driver, driver.program, driver.rollout, driver.env_runner):
        assert not hasattr(part, "module_id")
    video = algo.record(tmp_path / "played.gif", episodes=2)
    assert (tmp_path / "played.gif").stat().st_size > 0 and len(video.returns) == 2 and min(video.lengths) > 3
    agents = driver.jax_env.possible_agents
    assert [sum(own.values()) for own in video.agent_returns] == pytest.approx(video.returns)
    assert all(list(own) == [str(agent) for agent in agents] for own in video.agent_returns)
    algo.stop()


class Drawn(RockPaperScissors):
    """Draws itself without a render_mode, as RLlib's environments do; both players earn 0.5 in each step."""

    def render(self):
        return np.full((8, 240, 3), 120, np.uint8)

    def step(self, action_dict):
        obs, rewards, *rest = super().step(action_dict)
        return obs, dict.fromkeys(rewards, 0.5), *rest


@pytest.mark.parametrize(("env", "width", "earned"), [(Drawn, 240, 10.0), (RockPaperScissors, 656, 0.0)])
def test_agents_on_the_host_are_filmed_by_frames_or_observations(env, width, earned, tmp_path):
    config = config_of(env, mapping=lambda agent, episode, **kwargs: {"player1": "p0", "player2": "p1"}[agent])
    algo = config.env_runners(num_env_runners=0, num_envs_per_env_runner=2).build_algo()
    video = algo.record(tmp_path / "played.gif", episodes=2)
    assert video.lengths == (10, 10) and video.returns == (earned, earned)
    assert {tuple(own) for own in video.agent_returns} == {("player1", "player2")}
    assert [sum(own.values()) for own in video.agent_returns] == [earned, earned]
    with Image.open(tmp_path / "played.gif") as image:
        assert abs(image.width - width) <= 16
    algo.stop()


def test_copies_draw_themselves_side_by_side():
    env = MultiAgentCartPole({"num_agents": 2})
    assert "rgb_array" in env.metadata["render_modes"] and env.render_mode is None
    env.render_mode = "rgb_array"
    assert [copy.render_mode for copy in env.envs] == ["rgb_array"] * 2
    for value, copy in enumerate(env.envs):
        copy.render = lambda value=value: np.full((2, 3, 3), value, np.uint8)
    np.testing.assert_array_equal(env.render()[..., 0], [[0, 0, 0, 1, 1, 1]] * 2)


def test_agents_that_wait_keep_their_last_drawing():
    a, b = (np.full((height, 4, 3), value, np.uint8) for height, value in ((2, 10), (3, 20)))
    first, second = side_by_side([{"a": a}, {"b": b}], ["b", "never", "a"])
    assert first.shape == second.shape == (16 + 3, 24, 3)
    first, second, names = first[16:], second[16:], first[:16]
    assert (first[:, :12] == 255).all() and (first[:2, 12:16] == 10).all()
    assert (second[:, :4] == 20).all() and (second[:2, 12:16] == 10).all()
    assert all((part < 255).any() for part in (names[:, :12], names[:, 12:]))
