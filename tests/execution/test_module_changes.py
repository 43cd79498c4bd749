"""Modules that come and go while an Algorithm trains, on both drivers."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from jaxrl_stack.utils.compile_clock import CompileClock

ENVS = {"device": multi_agent.MultiAgentCartPole, "host": MultiAgentCartPole}


def filtered(*args):
    return MeanStdFilter()


def by_number(agent_id, episode, **kwargs):
    return f"p{agent_id}"


def with_p2(agent_id, episode, **kwargs):
    return "p0" if agent_id == 0 else "p2"


def by_player(agent_id, episode, **kwargs):
    return {"player1": "p0", "player2": "p1"}[agent_id]


def by_player_with_p2(agent_id, episode, **kwargs):
    return {"player1": "p0", "player2": "p2"}[agent_id]


def config_of(env):
    return (
        PPOConfig()
        .environment(env, env_config={"num_agents": 2})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_number)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=4, rollout_fragment_length=8, env_to_module_connector=filtered
        )
        .training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1, grad_clip=0.5)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def learned(algo, module_id):
    """What the learner has of one module."""
    learner = algo.get_state("learner_group")["learner_group"]["learner"]
    rates = {name: of_modules.get(module_id) for name, of_modules in learner["extra"].items()}
    return learner["rl_module"][module_id], learner["optimizer"].get(module_id), rates


def statistics(algo, module_id):
    return algo.driver.env_to_module_state()[module_id]


def everything(algo, module_ids):
    return [(learned(algo, mid), statistics(algo, mid)) for mid in module_ids]


@pytest.fixture(scope="module", params=ENVS)
def run(request):
    """An algorithm of two modules after an iteration; tests leave it with the same modules."""
    algo = config_of(ENVS[request.param]).build_algo()
    algo.train()
    yield request.param, algo
    algo.stop()


def test_what_does_not_fit_is_refused_and_changes_nothing(run):
    _, algo = run
    driver, config = algo.driver, algo.config
    spec = RLModuleSpec()
    for call, message in (
        (lambda: algo.add_module("p1", spec), "this module exists already.*remove_module"),
        (lambda: algo.add_module("p2", PPOConfig), "module_spec=.*must be an RLModuleSpec"),
        (lambda: algo.add_module("p/2", spec), "p/2"),
        (lambda: algo.add_module("p2", spec, add_to_learners=False), "=False.*Leave add_to_learners out"),
        (lambda: algo.add_module("p2", spec, config_overrides={"lrr": 1.0}), "'lrr', which is not a setting"),
        (
            lambda: algo.add_module("p2", spec, new_agent_to_module_mapping_fn=lambda aid, eps, **kw: "p3"),
            "returns 'p3' for the agent 0",
        ),
        (lambda: algo.add_module("p2", spec, new_should_module_be_updated=["p3"]), r"names unknown modules \['p3'\]"),
        (lambda: algo.remove_module("p2"), "'p2'.*an unknown module"),
        (lambda: algo.remove_module("p1"), "returns 'p1' for the agent 1"),
        (lambda: algo.remove_module("p1", remove_from_learners=False), "remove_from_learners=False"),
        (lambda: algo.change_mapping(with_p2), "returns 'p2' for the agent 1"),
        (lambda: algo.change_mapping(policies_to_train=["p3"]), r"names unknown modules \['p3'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert algo.driver is driver and algo.config is config


def test_another_module_changes_nothing_of_the_others(run):
    """Not even what they draw, nor, in a JAX environment, the unfinished episodes."""
    driver, algo = run
    other = config_of(ENVS[driver]).build_algo()
    other.set_state(algo.get_state())
    before = everything(algo, ("p0", "p1"))
    steps, updates = algo.num_env_steps_sampled_lifetime, algo.driver.num_updates
    spec = algo.add_module("p2", RLModuleSpec())
    assert set(spec.rl_module_specs) == {"p0", "p1", "p2"} == set(algo.config.policies)
    assert_equal(everything(algo, ("p0", "p1")), before)
    assert (algo.num_env_steps_sampled_lifetime, algo.driver.num_updates) == (steps, updates)
    algo.train(), other.train()
    assert_equal(everything(algo, ("p0", "p1")), everything(other, ("p0", "p1")))
    algo.remove_module("p2")
    assert_equal(everything(algo, ("p0", "p1")), everything(other, ("p0", "p1")))
    other.stop()


def test_a_module_takes_the_place_of_another_one(run, tmp_path):
    _, algo = run
    weights, before = algo.get_weights(), everything(algo, ["p0"])
    algo.add_module(
        "p2",
        RLModuleSpec.from_module(algo.get_module("p1")),
        config_overrides=PPOConfig.overrides(lr=1e-2),
        new_agent_to_module_mapping_fn=with_p2,
        new_should_module_be_updated=["p2"],
    )
    algo.set_weights({"p2": weights["p1"]})
    assert_equal(algo.get_weights(), weights | {"p2": weights["p1"]})
    assert_equal(everything(algo, ["p0"]), before)

    result = algo.train()
    assert result["learners"]["p2"]["default_optimizer_learning_rate"] == pytest.approx(1e-2)
    clock = CompileClock()
    assert set(algo.train()["env_runners"]["num_module_steps_sampled"]) == {"p0", "p2"}
    assert clock.compiles == 0
    own = algo.get_weights()
    assert_equal([own[mid] for mid in ("p0", "p1")], [weights[mid] for mid in ("p0", "p1")])
    assert any((own["p2"][name] != weights["p1"][name]).any() for name in own["p2"])

    path = algo.save_to_path(tmp_path / "checkpoint")
    again = Algorithm.from_checkpoint(path, config=algo.config)
    assert_equal(everything(again, ["p0", "p2"]), everything(algo, ["p0", "p2"]))
    again.stop()
    # With the config that the run began with, it has all policies, and others can be added.
    again = Algorithm.from_checkpoint(path, config=config_of(algo.config.env))
    again.add_module("p3", RLModuleSpec())
    assert again.config.get_config_for_module("p2").lr == 1e-2 and set(again.config.policies) == {
        "p0",
        "p1",
        "p2",
        "p3",
    }
    assert_equal(
        [learned(again, mid) for mid in ("p0", "p1", "p2")], [learned(algo, mid) for mid in ("p0", "p1", "p2")]
    )
    again.stop()

    # One that has not added it, and maps no agent to it.
    fresh = config_of(algo.config.env).build_algo()
    fresh.restore_from_path(path)
    assert fresh.config.get_config_for_module("p2").lr == 1e-2 and fresh.training_iteration == algo.training_iteration
    assert_equal(
        [learned(fresh, mid) for mid in ("p0", "p1", "p2")], [learned(algo, mid) for mid in ("p0", "p1", "p2")]
    )
    assert set(fresh.train()["env_runners"]["num_module_steps_sampled"]) == {"p0", "p1"}
    fresh.add_module("p3", RLModuleSpec())
    with pytest.raises(ValueError, match=r"this run also has \['p3'\]. Call algo.remove_module\('p3'"):
        fresh.restore_from_path(path)
    fresh.stop()

    stored = RLModuleSpec(load_state_path=f"{path}/learner_group/learner/rl_module/p2")
    algo.add_module("p3", stored)
    assert_equal(algo.get_weights(["p3"])["p3"], own["p2"])
    algo.remove_module("p3")
    algo.remove_module("p2", new_agent_to_module_mapping_fn=by_number, new_should_module_be_updated=["p0", "p1"])
    assert not algo.config.algorithm_config_overrides_per_module
    assert {"p0", "p1"} <= set(algo.train()["learners"])


def swapped(agent_id, episode, *, modulo, **kwargs):
    return f"p{(agent_id + 1) % modulo}"


@pytest.fixture
def builds(monkeypatch):
    """Configs of the drivers that algorithms build in the test."""
    configs, make = [], Algorithm._make_driver
    monkeypatch.setattr(Algorithm, "_make_driver", lambda self, config: configs.append(config) or make(self, config))
    return configs


def test_a_mapping_changes_without_a_change_of_modules(run, builds):
    _, algo = run
    before = everything(algo, ("p0", "p1"))
    algo.change_mapping(functools.partial(swapped, modulo=2), policies_to_train=["p1"])
    assert_equal(everything(algo, ("p0", "p1"))[1], before[1])
    weights = algo.get_weights()
    algo.change_mapping(functools.partial(swapped, modulo=2), policies_to_train=["p1"])
    assert len(builds) == 1, "values in use need no other programs"
    algo.train()
    assert algo.driver.module_map.agents_of == {"p0": (1,), "p1": (0,)}
    assert_equal(algo.get_weights()["p0"], weights["p0"])
    assert any((algo.get_weights()["p1"][name] != weights["p1"][name]).any() for name in weights["p1"])
    algo.change_mapping(by_number, policies_to_train=["p0", "p1"])
    assert {"p0", "p1"} <= set(algo.train()["learners"])


class Unequal(MultiAgentEnv):
    """Three agents; observations of the last one have another length."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = [0, 1, 2]
        lengths = {0: 2, 1: 2, 2: 3}
        self.observation_spaces = {i: Box(0.0, 1.0, (length,), np.float32) for i, length in lengths.items()}
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))

    def observations(self):
        return {i: np.zeros(space.shape, np.float32) for i, space in self.observation_spaces.items()}

    def reset(self, *, seed=None, options=None):
        return self.observations(), {}

    def step(self, actions):
        return self.observations(), dict.fromkeys(self.agents, 1.0), {"__all__": True}, {"__all__": False}, {}


def without_p1(agent_id, episode, **kwargs):
    return "p2" if agent_id == 2 else "p0"


def test_a_policy_can_lose_its_agents_if_the_others_have_different_spaces():
    config = config_of(Unequal).environment(env_config={})
    algo = config.multi_agent(policies={"p0", "p1", "p2"}).build_algo()
    before = everything(algo, ("p0", "p2")), learned(algo, "p1")
    algo.change_mapping(without_p1)
    assert algo.driver.module_map.agents_of == {"p0": (0, 1), "p2": (2,)}
    assert_equal((everything(algo, ("p0", "p2")), learned(algo, "p1")), before)
    algo.change_mapping(by_number)
    assert algo.driver.module_map.agents_of == {"p0": (0,), "p1": (1,), "p2": (2,)}
    assert_equal((everything(algo, ("p0", "p2")), learned(algo, "p1")), before)
    algo.stop()


def fail(state):
    raise ZeroDivisionError("broken")


def test_a_restored_run_gets_all_added_policies_at_once(builds, tmp_path, monkeypatch):
    config = config_of(ENVS["device"]).multi_agent(policies_to_train=["p0"])
    algo = config.build_algo()
    for name, lr in (("p2", 1e-2), ("p3", 1e-3)):
        algo.add_module(name, RLModuleSpec.from_module(algo.get_module("p0")), config_overrides={"lr": lr})
    path = algo.save_to_path(tmp_path / "checkpoint")
    fresh = config_of(ENVS["device"]).multi_agent(policies_to_train=["p0"]).build_algo()
    builds.clear()
    with monkeypatch.context() as broken:
        broken.setattr(fresh.metrics, "set_state", fail)
        with pytest.raises(ZeroDivisionError):
            fresh.restore_from_path(path)
    assert set(fresh.config.policies) == {"p0", "p1"} == set(fresh.get_weights()) and len(builds) == 2
    fresh.restore_from_path(path)
    assert_equal(fresh.get_weights(), algo.get_weights())
    assert [fresh.config.get_config_for_module(name).lr for name in ("p2", "p3")] == [1e-2, 1e-3]
    fresh.stop()
    algo.stop()


def test_an_asynchronous_algorithm_goes_on_with_other_modules():
    algo = (
        APPOConfig()
        .environment(multi_agent.RockPaperScissors)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_player)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=32)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=32)
        .build_algo()
    )
    algo.train()
    algo.add_module("p2", RLModuleSpec(), new_agent_to_module_mapping_fn=by_player_with_p2)
    before = algo.get_weights()
    algo.train()
    weights = algo.get_weights()
    assert_equal(weights["p1"], before["p1"])
    assert any((weights["p2"][name] != before["p2"][name]).any() for name in before["p2"])
    algo.remove_module("p2", new_agent_to_module_mapping_fn=by_player)
    assert {"p0", "p1"} <= set(algo.train()["learners"])
    algo.stop()


def test_one_policy_of_the_default_name_stays_alone():
    algo = PPOConfig().environment("envs.probes:ConstantValueProbe").build_algo()
    with pytest.raises(RuntimeError, match=r"add_module\('p2'\) needs named policies.*multi_agent\(policies="):
        algo.add_module("p2", RLModuleSpec())
    algo.stop()


class Interferes(RLlibCallback):
    """The second environment cannot be made; then it adds a module in the middle of an iteration."""

    num_created = 0
    algorithm = None

    def on_environment_created(self, **kwargs):
        self.num_created += 1
        if self.num_created == 2:
            raise ZeroDivisionError("no second one")

    def on_algorithm_init(self, *, algorithm, **kwargs):
        self.algorithm = algorithm

    def on_sample_end(self, **kwargs):
        assert self.algorithm is not None
        self.algorithm.add_module("p2", RLModuleSpec())


def test_a_change_that_fails_is_taken_back():
    # Trains nothing, so that no update is compiled.
    config = config_of(ENVS["device"]).multi_agent(policies_to_train=[])
    algo = config.callbacks(callbacks_class=Interferes).build_algo()
    config, weights = algo.config, algo.get_weights()
    with pytest.raises(ZeroDivisionError, match="no second one"):
        algo.add_module("p2", RLModuleSpec(), new_agent_to_module_mapping_fn=with_p2)
    assert algo.config is config
    assert_equal(algo.get_weights(), weights)
    with pytest.raises(RuntimeError, match="called while an iteration runs. Call it between two iterations"):
        algo.train()
    assert algo.config is config and set(algo.get_weights()) == {"p0", "p1"}
    algo.stop()


class SelfPlay(RLlibCallback):
    """As RLlib's self-play scripts: a snapshot of "main" becomes an opponent after every iteration."""

    def __init__(self):
        super().__init__()
        self.snapshots = []

    def on_train_result(self, *, algorithm, result, **kwargs):
        self.snapshots.append(name := f"main_v{len(self.snapshots) + 1}")
        opponents = list(self.snapshots)

        def mapping(agent_id, episode, **kwargs):
            is_main = hash(episode.id_) % 2 == int(agent_id[-1]) - 1
            return "main" if is_main else np.random.choice(opponents)

        main = algorithm.get_module("main")
        algorithm.add_module(
            module_id=name, module_spec=RLModuleSpec.from_module(main), new_agent_to_module_mapping_fn=mapping
        )
        algorithm.set_state({"learner_group": {"learner": {"rl_module": {name: main.get_state()}}}})
        result["league_size"] = len(opponents) + 1


def main_against_random(agent_id, episode, **kwargs):
    return "main" if hash(episode.id_) % 2 == int(agent_id[-1]) - 1 else "first"


def test_a_league_grows_by_a_callback():
    config = config_of(TicTacToe).environment(env_config={}).callbacks(callbacks_class=SelfPlay)
    config.multi_agent(policies={"main", "first"}, policy_mapping_fn=main_against_random, policies_to_train=["main"])
    algo = config.build_algo()
    first = algo.train()
    main = algo.get_weights(["main"])["main"]
    assert_equal(algo.get_weights(["main_v1"])["main_v1"], main)
    algo.train()
    weights = algo.get_weights()
    assert first["league_size"] == 2 and set(weights) == {"main", "first", "main_v1", "main_v2"}
    assert_equal(weights["main_v1"], main)
    assert_equal(weights["main_v2"], weights["main"])
    assert any((weights["main"][name] != main[name]).any() for name in main)
    algo.stop()
