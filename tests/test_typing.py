"""What editors and type checkers know of configs: names and types of settings, after any number of chained calls."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import subprocess
import sys

import jedi
import pytest

from jaxrl_stack.algorithms import DQNConfig, PPOConfig, SACConfig, TQCConfig

ROOT = pathlib.Path(__file__).parents[1]
FACTS = json.loads((ROOT / "tests" / "reference" / "rllib_api.json").read_text())

USE = """
from typing import assert_type

import jaxrl_stack
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig


class MyModule(jaxrl_stack.RLModule, jaxrl_stack.ValueFunctionAPI):
    def setup(self):
        assert_type(self.inference_only, bool)


class MyConfig(PPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class)
        self.bonus = 0.0

    def training(self, *, bonus: float | None = None, **kwargs):
        super().training(**kwargs)
        if bonus is not None:
            self.bonus = bonus
        return self


config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=[[0, 1e-3], [1000, 1e-4]], clip_param=0.2)
assert_type(config, PPOConfig)
assert_type(config.copy(), PPOConfig)
assert_type(jaxrl_stack.PPOConfig().training(lr=0.1), PPOConfig)
assert_type(config.clip_param, float)
assert_type(config.num_epochs, int)
assert_type(DQNConfig().env_runners(num_env_runners=2).training(n_step=(1, 5), dueling=False).num_atoms, int)
assert_type(SACConfig().training(actor_lr=3e-4).training(tau=0.01, lr=None).twin_q, bool)
assert_type(TQCConfig().training(n_quantiles=9).training(actor_lr=3e-4, gamma=0.9).n_critics, int)
assert_type(MyConfig().training(bonus=0.5, lr=0.1).environment("gymnax/CartPole-v1").bonus, float)
config.clip_param = 0.3
config.train_batch_size_per_learner = 500
config.algo_class, config.in_evaluation, config.on_train_result, config.is_frozen
config.training(gamma=1).build_algo().train()

PPOConfig().training(clip_parm=0.2)  # reportCallIssue
PPOConfig().training(num_epochs="4")  # reportArgumentType
PPOConfig().environment("gymnax/CartPole-v1").env_runners(num_envs=3)  # reportCallIssue
DQNConfig().training(clip_param=0.2)  # reportCallIssue
DQNConfig().training(num_atoms=[51])  # reportArgumentType
DQNConfig().training(td_error_loss_fn="l1")  # reportArgumentType
SACConfig().training(epsilon=0.1)  # reportCallIssue
SACConfig().training(tau="low")  # reportArgumentType
SACConfig().training(n_critics=3)  # reportCallIssue
TQCConfig().training(n_critics="three")  # reportArgumentType
MyConfig().training(bonus="much")  # reportArgumentType
config.clip_param = "0.2"  # reportAttributeAccessIssue
config.clip_parm  # reportArgumentType
config.clip_parm = 0.2  # reportArgumentType
DQNConfig().training(lr=0.1).double  # reportArgumentType
SACConfig().epsilon  # reportArgumentType
DQNConfig().num_atoms.units  # reportAttributeAccessIssue
SACConfig().debugging(seed=0).initial_alpha.units  # reportAttributeAccessIssue
"""


def test_pyright_knows_names_and_types(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    project = {"extraPaths": [str(ROOT)], "reportUnusedExpression": False, "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(project))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    answer = subprocess.run([*command, "-p", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(answer.stdout)
    found = {(d["range"]["start"]["line"], d.get("rule")): d["message"] for d in report["generalDiagnostics"]}
    lines = enumerate(USE.splitlines())
    wanted = {(number, rule[1]) for number, line in lines if (rule := re.search(r"# (report\w+)", line))}
    assert found.keys() == wanted, found


@pytest.mark.parametrize(
    ("start", "written", "offered"),
    [
        ("PPOConfig().env_runners(num_env_runners=0).training(lr=0.1", ", clip", "clip_param="),
        ("DQNConfig().env_runners(num_env_runners=0).training(lr=0.1", ", duel", "dueling="),
        ("SACConfig().env_runners(num_env_runners=0).training(tau=0.1", ", actor", "actor_lr="),
        ("PPOConfig().training(lr=0.1).environment('CartPole-v1')", ".clip_p", "clip_param"),
        ("DQNConfig().training(lr=0.1).environment('CartPole-v1')", ".num_at", "num_atoms"),
        ("SACConfig().training(tau=0.1).environment('CartPole-v1')", ".twin", "twin_q"),
        ("TQCConfig().training(tau=0.1).environment('CartPole-v1')", ".n_quan", "n_quantiles"),
    ],
)
def test_jedi_completes_after_chained_calls(start, written, offered):
    name = start[:3]
    source = f"from jaxrl_stack.algorithms.{name.lower()} import {name}Config\n{start}{written}"
    script = jedi.Script(source, project=jedi.Project(ROOT))
    assert offered in [completion.name for completion in script.complete()]


def test_jedi_completes_the_names_at_the_top():
    completions = jedi.Script("from jaxrl_stack import RLM", project=jedi.Project(ROOT)).complete()
    assert [completion.name for completion in completions] == ["RLModule", "RLModuleSpec"]


@pytest.mark.parametrize("config_class", [PPOConfig, DQNConfig, SACConfig, TQCConfig])
def test_signatures_have_rllibs_names(config_class):
    parameters = inspect.signature(config_class.training).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[1:])
    facts = FACTS["algorithms"][config_class.__name__.removesuffix("Config")]["training"]
    names = {name for name, fact in facts.items() if not fact.get("deprecated")}
    assert names and names <= parameters.keys()
    assert inspect.signature(config_class.environment) == inspect.signature(PPOConfig.environment)


def test_settings_of_a_subclass_come_in_by_its_own_method():
    class MyConfig(PPOConfig):
        def __init__(self, algo_class=None):
            super().__init__(algo_class)
            self.bonus = 0.0

        def training(self, *, bonus=None, **kwargs):
            super().training(**kwargs)
            self.bonus = bonus if bonus is not None else self.bonus
            return self

    config = MyConfig().training(bonus=0.5, lr=0.1)
    assert (config.bonus, config.lr, config.to_dict()["bonus"]) == (0.5, 0.1, 0.5)
    with pytest.raises(TypeError, match=r"clip_parm.*clip_param"):
        config.training(bonus=1.0, clip_parm=0.2)
