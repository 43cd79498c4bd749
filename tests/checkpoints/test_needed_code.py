"""Code that checkpoints need from their reader: tables in place of functions, and one error for all that is missing."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap

import pytest

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.stored_run import config_to_store
from jaxrl_stack.checkpoints import needed_code
from jaxrl_stack.checkpoints.needed_code import NeededCode, code_in
from jaxrl_stack.checkpoints.plain_data import Decoder, Encoder
from jaxrl_stack.core.module_map import ModuleMap, PolicyTable
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.utils.class_paths import ClassLoader

GIVEN_BY_ID = {"player1": "first", "player2": "second"}


def two_policies(mapping, **env):
    return (
        PPOConfig()
        .environment(RockPaperScissors, **env)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .multi_agent(policies={"first", "second"}, policy_mapping_fn=mapping)
    )


@pytest.fixture(autouse=True)
def another_process(monkeypatch):
    """A process that has written no checkpoint."""
    monkeypatch.setattr(needed_code, "_written_here", {})


def test_a_constant_mapping_is_restored_by_the_path_alone(tmp_path):
    algo = two_policies(lambda agent_id, episode, **kwargs: GIVEN_BY_ID[agent_id]).build_algo()
    path = algo.save_to_path(tmp_path / "saved")
    algo.stop()
    restored = Algorithm.from_checkpoint(path)
    assert isinstance(restored.config.policy_mapping_fn, PolicyTable)
    assert {agent: restored.config.policy_mapping_fn(agent, None) for agent in GIVEN_BY_ID} == GIVEN_BY_ID
    restored.train()
    again = Algorithm.from_checkpoint(restored.save_to_path(tmp_path / "again"))
    assert again.driver.module_map.module_of == GIVEN_BY_ID
    for one in (restored, again):
        one.stop()


def test_a_mapping_that_draws_is_asked_for(tmp_path):
    mapping = lambda agent_id, episode: random.choice(["first", "second"])  # noqa: E731
    algo = two_policies(mapping).build_algo()
    path = algo.save_to_path(tmp_path / "saved")
    algo.stop()
    message = (
        r"policy_mapping_fn \(a lambda of test_needed_code.py:\d+\)\.\nIf.*from_checkpoint\('.*', policy_mapping_fn="
    )
    with pytest.raises(ValueError, match=message):
        Algorithm.from_checkpoint(path)
    restored = Algorithm.from_checkpoint(path, policy_mapping_fn=mapping)
    restored.stop()


def test_the_table_is_of_the_agents_that_were_there():
    table = PolicyTable({"a": "p", 3: "q"})
    assert (table("a"), table(3, None, worker=None)) == ("p", "q")
    with pytest.raises(ValueError, match=r"no policy for agent 'b'.*policy_mapping_fn=\.\.\."):
        table("b", None)
    node = Encoder().encode(table)
    assert Decoder(ClassLoader()).decode(node)(3) == "q"


def test_other_mappings_are_stored_as_they_are():
    module_map = ModuleMap(GIVEN_BY_ID, is_multi_agent=True)
    config = two_policies(lambda agent_id, episode: "first")
    stored = config_to_store(config, module_map)
    assert isinstance(stored.policy_mapping_fn, PolicyTable) and not isinstance(config.policy_mapping_fn, PolicyTable)
    by_episode = ModuleMap(GIVEN_BY_ID, True, slots={"first": ("player1", "player2")})
    elsewhere = two_policies(lambda agent_id, episode: "first").evaluation(evaluation_config={"env_config": {"x": 1}})
    for own, agents in ((config, by_episode), (elsewhere, module_map), (PPOConfig(), module_map)):
        assert config_to_store(own, agents) is own


def test_all_code_of_a_node_is_found():
    class Hidden:
        pass

    node = Encoder(leave_out=True).encode(
        {
            "callbacks_class": [Algorithm],
            "deep": {"x": (PolicyTable({}), {3: NeededCode})},
            "h": Hidden,
            "f": subprocess.run,
        }
    )
    assert {path.partition(":")[2]: bases for path, bases in code_in(node)} == {
        "Algorithm": ("jaxrl_stack.callbacks.callbacks:RLlibCallback",),
        "PolicyTable": ("jaxrl_stack.checkpoints.plain_data:Plain",),
        "NeededCode": (),
        "run": (),
    }


def test_names_of_a_damaged_checkpoint_do_not_write_the_line():
    needed = NeededCode(ClassLoader())
    needed.add_arguments({"x=__import__('os').system('true')#": "a lambda", "env": "a\nlambda" + "." * 200})
    needed.add_class("os:system); import evil", Algorithm)
    with pytest.raises(ValueError, match="needs code outside of jaxrl_stack") as caught:
        needed.check("saved", "Algorithm.from_checkpoint")
    first, second = str(caught.value).splitlines()
    assert second == "If you trust this code: Algorithm.from_checkpoint('saved', env=...)" and len(first) < 250


SCRIPT = """
    import sys
    import gymnasium as gym
    from jaxrl_stack import PPOConfig
    from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
    from jaxrl_stack.callbacks.callbacks import RLlibCallback
    from jaxrl_stack.core.rl_module import RLModuleSpec
    from jaxrl_stack.envs_of_a_user import Made

    class Env(Made): pass
    class Module(DefaultPPORLModule): pass
    class Callbacks(RLlibCallback): pass
    def evaluate(algorithm, group): return {}, 0, 0

    config = PPOConfig().environment(Env).env_runners(num_env_runners=0).callbacks(Callbacks)
    config.training(train_batch_size_per_learner=8, minibatch_size=8)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Module, model_config={"fcnet_hiddens": [4]}))
    config.evaluation(custom_evaluation_function=evaluate)
    config.callbacks(Callbacks)
    algo = config.build_algo()
    algo.save_to_path(sys.argv[1])
    from jaxrl_stack.algorithms.algorithm import Algorithm
    Algorithm.from_checkpoint(sys.argv[1]).stop()
"""


def test_a_checkpoint_of_a_script_is_loaded_by_the_line_of_its_error(tmp_path, monkeypatch):
    """Its classes were in ``__main__``, and are in a module now."""
    (tmp_path / "their_env.py").write_text(
        textwrap.dedent(
            """
            import gymnasium as gym

            class Made(gym.Env):
                observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
                def __init__(self, config=None): pass
                def reset(self, *, seed=None, options=None): return self.observation_space.sample() * 0, {}
                def step(self, action): return self.observation_space.sample() * 0, 0.0, True, False, {}
            """
        )
    )
    script = textwrap.dedent(SCRIPT).replace("jaxrl_stack.envs_of_a_user", "their_env")
    (tmp_path / "train.py").write_text(script)
    path = tmp_path / "saved"
    subprocess.run([sys.executable, tmp_path / "train.py", path], check=True, capture_output=True)
    with pytest.raises(ValueError, match="'__main__:Env'.*'__main__:Module'") as caught:
        Algorithm.from_checkpoint(path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "moved.py").write_text(script.partition("config =")[0])
    scope = {"Algorithm": Algorithm}
    exec("from moved import *", scope)
    line = str(caught.value).partition("If you trust this code: ")[2]
    algo = eval(line.partition("; ")[2] or line, scope)
    assert type(algo.get_module()).__module__ == "moved"
    algo.stop()
