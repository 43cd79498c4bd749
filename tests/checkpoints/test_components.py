"""Parts of an algorithm's checkpoint: its layout, one part of it alone, and classes of the user's own."""

from __future__ import annotations

import copy
import functools
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import resume_cases as cases
from flax import nnx
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints import needed_code
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.checkpoints import Checkpointable

MODULE = "learner_group/learner/rl_module/default_policy"
OBSERVATION = np.float32([3.0, 1.0])


def small(**env_runners) -> PPOConfig:
    return cases.on_host(num_envs_per_env_runner=2, **env_runners).callbacks(RLlibCallback)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An algorithm that has trained, and its checkpoint."""
    algo = small().build_algo()
    algo.train()
    path = Path(algo.save_to_path(tmp_path_factory.mktemp("algo") / "checkpoint"))
    yield types.SimpleNamespace(algo=algo, path=path, state=cases.stored(path))
    algo.stop()


def moved(algo):
    """Other weights than any that were saved."""
    algo.set_weights({m: {n: x + 1.0 for n, x in w.items()} for m, w in algo.get_weights().items()})


def module_state(state):
    for name in MODULE.split("/"):
        state = state[name]
    return state


# ------------------------------------------------------------------------------------------------------------- layout

LAYOUT = {
    "": "rllib_checkpoint.json class_and_ctor_args.json algorithm_state.json",
    "learner_group": "metadata.json class_and_ctor_args.json state.json",
    "learner_group/learner": "metadata.json class_and_ctor_args.json state.json",
    "learner_group/learner/rl_module": "metadata.json class_and_ctor_args.json module_state.json",
    "learner_group/learner/rl_module/default_policy": "metadata.json class_and_ctor_args.json module_state.json",
    "env_runner": "metadata.json class_and_ctor_args.json state.json",
    "env_runner/env_to_module_connector": "metadata.json class_and_ctor_args.json state.json",
    "env_runner/env_to_module_connector/MeanStdFilter": "metadata.json class_and_ctor_args.json state.json",
    "env_runner/module_to_env_connector": "metadata.json class_and_ctor_args.json state.json",
}
"""RLlib's folders and files, with JSON in place of its pickles."""


def layout_of(path: Path) -> dict[str, set[str]]:
    """``{folder: its files}``, without the arrays."""
    folders = [path, *(p for p in path.rglob("*") if p.is_dir())]
    return {
        "" if folder == path else folder.relative_to(path).as_posix(): (
            {p.name for p in folder.iterdir() if p.is_file()} - {"arrays.safetensors"}
        )
        for folder in folders
    }


@pytest.mark.parametrize(("config", "evaluates"), [(small, True), (cases.on_device, False)])
def test_folders_and_files_are_those_of_rllib(config, evaluates, tmp_path):
    config = config()
    expected = {folder: set(files.split()) for folder, files in LAYOUT.items()}
    if evaluates:
        config.evaluation(evaluation_interval=1)
        own = [folder for folder in expected if folder.startswith("env_runner")]
        expected |= {f"eval_{folder}": expected[folder] for folder in own}
    algo = config.build_algo()
    if evaluates:
        algo.evaluate()
    path = Path(algo.save_to_path(tmp_path / "algo"))
    algo.stop()
    assert layout_of(path) == expected


# ------------------------------------------------------------------------------------------------------ parts of states


def test_parts_of_a_state(saved):
    algo = saved.algo
    whole = algo.get_state()
    assert list(algo.get_state("learner_group")) == ["learner_group"]
    assert set(algo.get_state(["learner_group", "env_runner"])) == {"learner_group", "env_runner"}
    assert set(algo.get_state(not_components="env_runner")) == set(whole) - {"env_runner"}
    assert set(algo.get_state(["driver", "env_runner"], not_components=["driver"])) == {"env_runner"}
    group = algo.learner_group
    assert list(group.get_state("learner/rl_module")["learner"]) == ["rl_module"]
    assert "optimizer" not in group.get_state(not_components="learner/optimizer")["learner"]
    assert set(algo.learner.get_state(["extra", "counters"])) == {"extra", "counters"}
    assert "rl_module" not in algo.learner.get_state(not_components=["rl_module"])
    modules = algo.learner.module
    assert list(modules.get_state("default_policy")) == ["default_policy"]
    assert modules.get_state(not_components="default_policy") == {}
    assert list(algo.env_runner.get_state("env_to_module_connector")) == ["env_to_module_connector"]
    pipeline = EnvToModulePipeline(
        algo.spaces["__env_single__"][0], algo.spaces["__env_single__"][1], connectors=[MeanStdFilter(), Plus()]
    )
    assert list(pipeline.get_state("MeanStdFilter")) == ["MeanStdFilter"]
    assert list(pipeline.get_state(not_components=["MeanStdFilter"])) == ["Plus"]
    for owner in (algo, algo.learner, algo.env_runner, modules, pipeline):
        with pytest.raises((ValueError, KeyError), match="nothing"):
            owner.get_state("nothing")


def test_a_part_of_a_state_changes_nothing_else(saved):
    algo = saved.algo
    moved(algo)
    before = algo.get_state(not_components=["learner_group", "env_runner"])
    other = algo.learner.get_state(not_components="rl_module")
    algo.set_state({"learner_group": {"learner": {"rl_module": saved.state["learner_group"]["learner"]["rl_module"]}}})
    cases.assert_same(algo.get_weights()["default_policy"], module_state(saved.state))
    cases.assert_same(algo.get_state(not_components=["learner_group", "env_runner"]), before)
    cases.assert_same(algo.learner.get_state(not_components="rl_module"), other)


@pytest.mark.parametrize("where", ["algorithm", "module"])
def test_one_module_out_of_a_checkpoint(saved, where):
    algo = saved.algo
    moved(algo)
    others = algo.learner.get_state(not_components="rl_module")
    algo.restore_from_path(saved.path if where == "algorithm" else saved.path / MODULE, component=MODULE)
    cases.assert_same(algo.get_weights()["default_policy"], module_state(saved.state))
    cases.assert_same(algo.learner.get_state(not_components="rl_module"), others)
    # The runner acts with it at once.
    own = algo.env_runner.get_state("rl_module")["rl_module"]["params"]
    for name, value in module_state(saved.state).items():
        if f"default_policy/{name}" in own:
            np.testing.assert_array_equal(own[f"default_policy/{name}"], value)


def test_a_module_takes_the_attributes_that_both_have(saved, tmp_path, monkeypatch, caplog):
    """As RLlib's example does, which tunes a cloned policy: that one has no value function."""
    algo = saved.algo
    monkeypatch.setattr(notices, "_given", set())
    present, whole = algo.get_weights()["default_policy"], algo.get_module()
    spaces = {"observation_space": whole.observation_space, "action_space": whole.action_space}
    cloned: Any = RLModuleSpec(DefaultPPORLModule, **spaces, model_config=whole.model_config).build(seed=7)
    del cloned.vf
    cloned.beliefs = nnx.Param(np.ones(2, np.float32))
    taken = {name: value for name, value in cloned.get_state().items() if name != "beliefs"}
    assert taken and taken.keys() < present.keys()
    algo.restore_from_path(cloned.save_to_path(tmp_path / "cloned"), component=MODULE)
    cases.assert_same(algo.get_weights()["default_policy"], {**present, **taken})
    assert "Module 'default_policy' keeps its initial ['vf']" in caplog.text
    assert "Module 'default_policy' has no ['beliefs']" in caplog.text


def test_a_module_that_shares_nothing_is_refused(saved, tmp_path):
    algo = saved.algo
    before = algo.get_weights()
    stored = RLModuleSpec(
        module_class=DefaultDQNRLModule, observation_space=Box(-1, 1, (2,)), action_space=Discrete(2)
    ).build()
    with pytest.raises(ValueError, match="lacks"):
        algo.restore_from_path(stored.save_to_path(tmp_path / "other"), component=MODULE)
    cases.assert_same(algo.get_weights(), before)


def test_other_parts_out_of_a_checkpoint(saved):
    algo = saved.algo
    algo.train()
    pipeline = "env_runner/env_to_module_connector"
    for component in ("learner_group/learner/optimizer", "learner_group", pipeline, f"{pipeline}/MeanStdFilter"):
        if component.endswith("optimizer"):
            with pytest.raises(ValueError, match="learner_group/learner has no component 'optimizer'; it has .*rl_mod"):
                algo.restore_from_path(saved.path, component=component)
            continue
        algo.restore_from_path(saved.path, component=component)
        given, wanted = algo.get_state(), saved.state
        for name in component.split("/"):
            given, wanted = given[name], wanted[name]
        cases.assert_same(given, wanted)
        assert algo.iteration > 1


# -------------------------------------------------------------------------------------------------- one part, as object


def test_every_part_is_a_checkpoint_of_its_own(saved):
    expected = module_state(saved.state)
    module = RLModule.from_checkpoint(saved.path / "learner_group" / "learner" / "rl_module" / "default_policy")
    cases.assert_same(module.get_state(), expected)
    outputs = module.forward_inference({"obs": OBSERVATION[None]})["action_dist_inputs"]
    assert np.isfinite(outputs).all()
    several = MultiRLModule.from_checkpoint(saved.path / "learner_group" / "learner" / "rl_module")
    cases.assert_same(several.get_state()["default_policy"], expected)
    for cls in (PPOLearner, Checkpointable):
        learner = cls.from_checkpoint(saved.path / "learner_group" / "learner", allow=cases.ALLOWED)
        assert type(learner) is PPOLearner
        cases.assert_same(learner.get_state(), saved.state["learner_group"]["learner"])
    group = LearnerGroup.from_checkpoint(saved.path / "learner_group", allow=cases.ALLOWED)
    cases.assert_same(group.get_state(), saved.state["learner_group"])
    group.shutdown()
    runner = SingleAgentEnvRunner.from_checkpoint(saved.path / "env_runner", allow=cases.ALLOWED)
    cases.assert_same(
        runner.get_state("env_to_module_connector"),
        {"env_to_module_connector": saved.state["env_runner"]["env_to_module_connector"]},
    )
    assert len(runner.sample(num_episodes=2)) == 2
    runner.stop()
    pipeline = EnvToModulePipeline.from_checkpoint(saved.path / "env_runner" / "env_to_module_connector")
    cases.assert_same(pipeline.get_state(), saved.state["env_runner"]["env_to_module_connector"])
    with pytest.raises(ValueError, match="was saved by PPOLearner, not by PPO"):
        PPO.from_checkpoint(saved.path / "learner_group" / "learner", allow=cases.ALLOWED)


def test_specs_that_start_from_a_checkpoint(saved):
    expected = module_state(saved.state)
    present = RLModuleSpec.from_module(saved.algo.get_module())
    one = RLModuleSpec(**vars(present) | {"load_state_path": str(saved.path / MODULE)})
    cases.assert_same(one.build(seed=5).get_state(), expected)

    def several(**kwargs):
        return MultiRLModuleSpec(
            rl_module_specs={"default_policy": present, "fresh": present},
            load_state_path=str(saved.path / MODULE.rpartition("/")[0]),
            **kwargs,
        ).build(seed=5)

    for modules in (several(modules_to_load={"default_policy"}), several()):
        cases.assert_same(modules["default_policy"].get_state(), expected)
        with pytest.raises(AssertionError):
            cases.assert_same(modules["fresh"].get_state(), expected)
    with pytest.raises(ValueError, match="has no component 'fresh'; it has \\['default_policy'\\]"):
        several(modules_to_load={"fresh"})
    # In an algorithm: its first weights.
    algo = small().rl_module(rl_module_spec=RLModuleSpec(load_state_path=str(saved.path / MODULE))).build_algo()
    cases.assert_same(algo.get_weights()["default_policy"], expected)
    algo.stop()


# --------------------------------------------------------------------------------------------- modules that come and go


def test_modules_that_came_and_went_before_the_save(tmp_path):
    algo = small().build_algo()
    spec = RLModuleSpec.from_module(algo.get_module())
    for name in ("kept", "gone"):
        algo.learner_group.add_module(module_id=name, module_spec=spec)
    algo.learner_group.remove_module("gone")
    path = Path(algo.save_to_path(tmp_path / "checkpoint"))
    assert {p.name for p in (path / MODULE).parent.iterdir() if p.is_dir()} == {"default_policy", "kept"}
    restored = PPO.from_checkpoint(path, allow=cases.ALLOWED)
    assert set(restored.get_weights()) == {"default_policy", "kept"}
    cases.assert_same(restored.get_state(), cases.stored(path))
    cases.assert_same(restored.get_module("kept").get_state(), algo.get_module("kept").get_state())
    restored.stop()
    algo.stop()


# -------------------------------------------------------------------------------------------------- classes of the user


class OwnPPO(PPO):
    @classmethod
    def get_default_config(cls):
        return OwnConfig(algo_class=cls)


class OwnConfig(PPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class or OwnPPO)
        self.own_setting = 1


class OwnLearner(PPOLearner):
    pass


class OwnCallbacks(RLlibCallback):
    pass


class Plus(ConnectorV2):
    """Adds a number to observations."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, number=0.0):
        super().__init__(input_observation_space, input_action_space)
        self.number = number

    def apply(self, state, batch, ctx):
        return state, {m: {**c, "obs": c["obs"] + self.number} for m, c in batch.items()}

    def get_ctor_args_and_kwargs(self):
        return (), {"number": self.number}


class Holding(ConnectorV2):
    """Holds a function, and does nothing."""

    def __init__(self, function):
        super().__init__()

    def apply(self, state, batch, ctx):
        return state, batch


def plus_two(env, spaces, device):
    return Plus(number=2.0)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The checkpoint of an algorithm in which much is the user's own."""
    config = OwnConfig().update_from_dict(small().to_dict())
    config.own_setting = 7
    config.algo_class = OwnPPO
    config.env_runners(env_to_module_connector=plus_two)
    config.learners(learner_class=OwnLearner).callbacks(OwnCallbacks)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=cases.Noisy))
    algo = config.build_algo()
    assert type(algo) is OwnPPO
    path = Path(algo.save_to_path(tmp_path_factory.mktemp("own") / "checkpoint"))
    restored = PPO.from_checkpoint(path)
    assert type(restored) is OwnPPO, "what this process has written, it may read"
    restored.stop()
    algo.stop()
    return path


@pytest.fixture
def another_process(monkeypatch):
    """A process that has written no checkpoint."""
    monkeypatch.setattr(needed_code, "_written_here", {})


OWN = (OwnPPO, OwnConfig, OwnLearner, OwnCallbacks, cases.Noisy, plus_two, cases.Marching)


def test_own_classes_are_found_where_the_caller_names_them(own):
    for cls, allow in ((PPO, OWN), (OwnPPO, OWN[1:])):
        algo = cls.from_checkpoint(own, allow=allow)
        assert (type(algo), type(algo.config), type(algo.learner)) == (OwnPPO, OwnConfig, OwnLearner)
        assert algo.config.own_setting == 7 and type(algo.get_module()) is cases.Noisy
        assert "Plus" in repr(algo.config.build_env_to_module_connector(spaces=algo.spaces))
        algo.stop()


@pytest.mark.parametrize("left_out", OWN)
def test_own_classes_are_refused_otherwise(own, left_out, another_process):
    line = rf"not import: '\w+:{left_out.__name__}'\.\nIf you .*allow=\[.*\.{left_out.__name__}\]\)$"
    with pytest.raises(ValueError, match=line):
        PPO.from_checkpoint(own, allow=[thing for thing in OWN if thing is not left_out])


def test_all_that_is_needed_is_in_one_line_to_paste(own, another_process):
    with pytest.raises(ValueError, match="needs code outside of jaxrl_stack") as caught:
        PPO.from_checkpoint(own)
    first, second = str(caught.value).splitlines()
    assert all(f":{thing.__name__}'" in first for thing in OWN)
    imports, _, call = second.removeprefix("If you trust this code: ").partition("; ")
    scope = {"PPO": PPO}
    exec(imports, scope)
    algo = eval(call, scope)
    assert type(algo) is OwnPPO
    algo.stop()


def test_a_class_that_was_moved_is_found_by_its_name(own, another_process):
    moved_classes = [type(cls.__name__, (cls,), {"__module__": "elsewhere"}) for cls in (OwnLearner, OwnCallbacks)]
    others = [thing for thing in OWN if thing not in (OwnLearner, OwnCallbacks)]
    algo = PPO.from_checkpoint(own, allow=[*others, *moved_classes])
    assert type(algo.learner) is moved_classes[0]
    algo.stop()
    twins = [type("OwnLearner", (cls,), {"__module__": "there"}) for cls in (OwnLearner,)]
    with pytest.raises(ValueError, match="OwnLearner"):
        PPO.from_checkpoint(own, allow=[*others, *moved_classes, *twins])


def test_what_was_written_here_is_known_by_its_content(own, tmp_path):
    """A copy elsewhere is as good; one in which another class is named is not."""
    copied = tmp_path / "copied"
    shutil.copytree(own, copied)
    algo = PPO.from_checkpoint(copied)
    algo.stop()
    described = copied / "class_and_ctor_args.json"
    described.write_text(described.read_text().replace(":OwnCallbacks", ":Plus"))
    with pytest.raises(ValueError, match="needs code outside of jaxrl_stack"):
        PPO.from_checkpoint(copied)


def test_an_own_module_by_its_own_method(own, another_process):
    folder = own / MODULE
    with pytest.raises(ValueError, match="Noisy"):
        RLModule.from_checkpoint(folder)
    assert type(cases.Noisy.from_checkpoint(folder)) is cases.Noisy
    assert type(RLModule.from_checkpoint(folder, allow=cases.Noisy)) is cases.Noisy


def test_own_connectors_of_pipelines(own, another_process):
    folder = own / "env_runner" / "env_to_module_connector"
    with pytest.raises(ValueError, match="Plus"):
        EnvToModulePipeline.from_checkpoint(folder)
    pipeline = EnvToModulePipeline.from_checkpoint(folder, allow=Plus)
    assert pipeline["Plus"].number == 2.0


# ------------------------------------------------------------------------------------------------- what is not data


def with_connector_lambdas(config: PPOConfig) -> PPOConfig:
    """All three settings as functions without a name, and connectors whose constructors differ."""
    return config.env_runners(
        env_to_module_connector=lambda env, spaces, device: [FrameStackingEnvToModule(num_frames=2), MeanStdFilter()],
        module_to_env_connector=lambda env, spaces: cases.CountsSteps(),
    ).learners(learner_connector=functools.partial(scaled, 0.5))


def scaled(factor, observation_space, action_space):
    return [Scaled(factor)]


class Scaled(ConnectorV2):
    """Its constructor takes no spaces."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def apply(self, state, batch, ctx):
        return state, {m: {**c, "rewards": c["rewards"] * self.factor} for m, c in batch.items()}


def test_connectors_of_lambdas_are_made_again(tmp_path, caplog, monkeypatch):
    # Another test of this process may have been told the same.
    monkeypatch.setattr(notices, "_given", set())
    algo = with_connector_lambdas(cases.on_device()).build_algo()
    for _ in range(2):
        algo.train()
    with caplog.at_level("WARNING"):
        first = algo.save_to_path(tmp_path / "first")
    assert not [r.message for r in caplog.records if "does not contain" in r.message]
    # What was built from a checkpoint is saved and built in the same way.
    allowed = [*cases.ALLOWED, Scaled]
    restored = PPO.from_checkpoint(first, allow=allowed)
    second = restored.save_to_path(tmp_path / "second")
    restored.stop()
    restored = PPO.from_checkpoint(second, allow=allowed)
    cases.assert_same(restored.get_state(), cases.stored(first))
    for _ in range(2):
        assert cases.learned(restored.train()) == cases.learned(algo.train())
    cases.assert_same(restored.get_state(), algo.get_state())
    names = restored.learner.config.build_learner_connector(*restored.spaces["default_policy"]).names
    assert names == algo.learner.config.build_learner_connector(*algo.spaces["default_policy"]).names
    assert names[0] == "Scaled"
    restored.stop()
    algo.stop()
    group = LearnerGroup.from_checkpoint(f"{second}/learner_group", allow=allowed)
    cases.assert_same(group.get_state(), cases.stored(second)["learner_group"])
    group.shutdown()


@pytest.mark.parametrize(
    ("connector", "what"),
    [
        (Plus(number=1.0), r"test_components:Plus'.*\n.*allow=\[.*test_components.Plus\]"),
        (Holding(lambda: 1), r"env_to_module_connector \(a lambda of .*:\d+\).*\n.*env_to_module_connector=\.\.\."),
    ],
)
def test_connectors_with_code_have_to_be_passed_again(connector, what, tmp_path, monkeypatch):
    function = lambda env, spaces, device: copy.deepcopy(connector)  # noqa: E731
    algo = small(env_to_module_connector=function).build_algo()
    result = algo.save(tmp_path / "checkpoint")
    monkeypatch.setattr(needed_code, "_written_here", {})
    with pytest.raises(ValueError, match=what):
        PPO.from_checkpoint(result.checkpoint.path, allow=cases.ALLOWED)
    again = PPO.from_checkpoint(result.checkpoint.path, allow=cases.ALLOWED, env_to_module_connector=function)
    cases.assert_same(again.get_state(), algo.get_state())
    again.train()
    again.restore(result)
    cases.assert_same(again.get_state(), algo.get_state())
    again.stop()
    algo.stop()


def test_other_lambdas_are_named_and_have_to_be_passed_again(tmp_path, caplog, monkeypatch):
    # Another test of this process may have been told the same.
    monkeypatch.setattr(notices, "_given", set())
    function = lambda algorithm, runners: ({"score": 1.0}, 0, 0)  # noqa: E731
    algo = small().evaluation(custom_evaluation_function=function).build_algo()
    with caplog.at_level("WARNING"):
        path = algo.save(tmp_path / "checkpoint").checkpoint.path
    algo.stop()
    assert path == str(tmp_path / "checkpoint")
    told = [r.message for r in caplog.records if "does not contain" in r.message]
    assert (
        len(told) == 1
        and "config/custom_evaluation_function (a lambda of test_components.py:" in told[0]
        and "Pass it as a keyword" in told[0]
    )
    with pytest.raises(
        ValueError, match=r"custom_evaluation_function \(a lambda of .*\n.*custom_evaluation_function=\.\.\."
    ):
        PPO.from_checkpoint(path, allow=cases.ALLOWED)
    again = PPO.from_checkpoint(path, allow=cases.ALLOWED, custom_evaluation_function=function)
    assert again.evaluate()["env_runners"]["score"] == 1.0
    again.stop()


def test_arrays_of_every_size_come_back(tmp_path):
    """The store keeps large arrays in other files than small ones."""
    algo = small().rl_module(model_config={"fcnet_hiddens": [256]}).build_algo()
    path = algo.save_to_path(tmp_path / "checkpoint")
    cases.assert_same(cases.stored(path), algo.get_state())
    assert max(x.size for x in algo.get_weights()["default_policy"].values()) >= 512
    algo.stop()
