"""What RLlib's own tests ask of modules, configs and checkpoints of several agents."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.test_utils import check

ENV = make_multi_agent("CartPole-v1")({"num_agents": 2})


def spec_of(size: int, **more) -> RLModuleSpec:
    return RLModuleSpec(
        module_class=DefaultPPORLModule,
        observation_space=ENV.get_observation_space(0),
        action_space=ENV.get_action_space(0),
        model_config=DefaultModelConfig(fcnet_hiddens=[size]),
        catalog_class=PPOCatalog,
        **more,
    )


def test_a_multi_module_is_made_of_specs():
    multi = MultiRLModule(rl_module_specs={"module1": spec_of(2), "module2": spec_of(2)})
    assert list(multi.keys()) == ["module1", "module2"]
    assert all(isinstance(module, DefaultPPORLModule) for module in multi.values())


def test_states_go_from_one_multi_module_to_another():
    first, other = (spec_of(2).build(seed=seed).as_multi_rl_module() for seed in (0, 1))
    state = first.get_state()
    assert (
        set(state) == set(first.keys())
        and state[DEFAULT_MODULE_ID].keys() == first["default_policy"].get_state().keys()
    )
    with pytest.raises(AssertionError):
        check(state, other.get_state())
    other.set_state(state)
    check(state, other.get_state())


def test_checkpoints_follow_modules_that_come_and_go(tmp_path):
    multi = spec_of(2).build(seed=0).as_multi_rl_module()

    def saved_ids():
        multi.save_to_path(tmp_path)
        again = MultiRLModule.from_checkpoint(tmp_path)
        check(multi.get_state(), again.get_state())
        return set(again.keys())

    multi.add_module("test", spec_of(2).build(seed=1))
    multi.add_module("test2", spec_of(3).build(seed=2))
    assert saved_ids() == {DEFAULT_MODULE_ID, "test", "test2"}
    multi.remove_module("test")
    assert saved_ids() == {DEFAULT_MODULE_ID, "test2"}
    multi.add_module("test3", spec_of(4).build(seed=3))
    multi.add_module(DEFAULT_MODULE_ID, spec_of(5).build(seed=4), override=True)
    assert saved_ids() == {DEFAULT_MODULE_ID, "test2", "test3"}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"policies": {"p0"}, "wrong_key": 1}, TypeError, "has no setting 'wrong_key'"),
        ({"policies": {1, "good_id"}}, ValueError, "ids that are non-empty strings, not 1"),
        ({"count_steps_by": "invalid_value"}, ValueError, "must be one of 'env_steps', 'agent_steps'"),
        ({"policies": {"a": (None, None, None, {"lr": 0.1})}}, ValueError, "algorithm_config_overrides_per_module"),
        ({"policies": {"a": PolicySpec(config={"lr": 0.1})}}, ValueError, "algorithm_config_overrides_per_module"),
    ],
)
def test_settings_of_several_agents_are_checked(settings, error, message):
    with pytest.raises(error, match=message):
        PPOConfig().multi_agent(**settings)


def test_the_old_key_of_several_agents_sets_what_it_says():
    config: Any = PPOConfig()
    config["multiagent"] = {"policies": {"p0"}, "count_steps_by": "agent_steps"}
    assert set(config.policies) == {"p0"} and config.count_steps_by == "agent_steps"


def config_of(num_agents: int) -> PPOConfig:
    policies = {f"policy_{i}" for i in range(num_agents)}
    return (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": num_agents})
        .env_runners(rollout_fragment_length=4)
        .training(num_epochs=1, train_batch_size_per_learner=8, minibatch_size=8)
        .multi_agent(policies=policies, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"policy_{agent_id}")
    )


def weights_of(config: PPOConfig, specs: MultiRLModuleSpec, *, trains: bool) -> dict:
    algo = config.rl_module(rl_module_spec=specs).build_algo()
    weights = algo.learner_group.get_weights()
    if trains:
        assert np.isfinite(algo.train()["learners"]["policy_0"]["policy_loss"])
    algo.stop()
    return weights


def test_modules_start_from_a_checkpoint_of_all_of_them(tmp_path):
    specs = {f"policy_{i}": spec_of(2 * (i + 1)) for i in range(2)}
    stored = MultiRLModuleSpec(rl_module_specs=specs).build()
    stored.save_to_path(tmp_path)
    again = MultiRLModuleSpec(rl_module_specs=specs, load_state_path=str(tmp_path))
    check(weights_of(config_of(2), again, trains=False), stored.get_state())


def test_modules_start_from_checkpoints_of_several_and_of_one(tmp_path):
    specs = {f"policy_{i}": spec_of(2 * (i + 1)) for i in range(3)}
    stored = MultiRLModuleSpec(rl_module_specs=specs).build()
    stored.save_to_path(tmp_path / "all")
    swapped_in = spec_of(3).build()
    swapped_in.save_to_path(tmp_path / "one")
    specs["policy_1"] = spec_of(3, load_state_path=str(tmp_path / "one"))
    some = MultiRLModuleSpec(rl_module_specs=specs, load_state_path=str(tmp_path / "all"), modules_to_load={"policy_0"})
    weights = weights_of(config_of(3), some, trains=True)
    check(weights["policy_0"], stored["policy_0"].get_state())
    check(weights["policy_1"], swapped_in.get_state())
    kernels = [jax.tree.leaves(own)[1] for own in (weights["policy_2"], stored["policy_2"].get_state())]
    assert np.abs(kernels[0] - kernels[1]).max() > 0
    everything = MultiRLModuleSpec(rl_module_specs=specs, load_state_path=str(tmp_path / "all")).build().get_state()
    check(everything, stored.get_state() | {"policy_1": swapped_in.get_state()})
