"""``jaxrl migrate``: what becomes of scripts for RLlib, and how files that are no scripts are answered."""

from __future__ import annotations

import functools
import importlib
import pathlib
import re
import textwrap

import gymnasium as gym
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxrl_stack import cli
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.migration import migrate
from jaxrl_stack.migration.names import table, why_not
from tests.migrate.run_cases import read_cases, reported_lines

ROOT = pathlib.Path(__file__).parents[2]

SCRIPT = '''\
# My first agent.
import numpy as np  # arrays
from ray.rllib.algorithms.ppo import PPOConfig   # two spaces more
from ray.rllib.algorithms.callbacks import DefaultCallbacks
from ray import tune


class Log(DefaultCallbacks):
    """Unchanged."""


config = (
    PPOConfig()
    # the environment
    .environment("CartPole-v1")
    .rollouts(num_rollout_workers=0, num_envs_per_worker=4)
    .training(train_batch_size=512, sgd_minibatch_size=128, num_sgd_iter=2, lr=3e-4)
    .callbacks(Log)
)
algo = config.build()
'''

MODULE = """\
import torch
from torch import nn

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule


class Net(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2),  # to 3 x 3
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(in_features=36, out_features=8, bias=False),
            nn.LayerNorm(8),
            nn.Tanh(),
        )
        self.pi = nn.Linear(8, 2)
        self.vf = nn.Linear(8, 1)

    def _forward(self, batch, **kwargs):
        x = self.trunk(batch[Columns.OBS].float())
        return {Columns.ACTION_DIST_INPUTS: self.pi(x), Columns.EMBEDDINGS: torch.cat([x, x], dim=-1)}

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.trunk(batch[Columns.OBS].float())).squeeze(-1)
"""

LOSS = """\
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner


class Mine(PPOTorchLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        extra = torch.distributions.Categorical(logits=fwd_out["x"]).entropy()
        return loss + torch.mean(extra)
"""


def after(text: str) -> str:
    """The new script, without the comments on what to do."""
    return migrate(textwrap.dedent(text)).after


def changes(text: str) -> dict[int, str]:
    """Number of a line in a script that stays as long as it is → its new text, of those that change."""
    old, new = text.splitlines(), after(text).splitlines()
    assert len(old) == len(new)
    return {number: line for number, (before, line) in enumerate(zip(old, new, strict=True), 1) if before != line}


def test_only_lines_of_rllib_change():
    assert changes(SCRIPT) == {
        3: "from jaxrl_stack.algorithms.ppo import PPOConfig   # two spaces more",
        4: "from jaxrl_stack.callbacks.callbacks import RLlibCallback",
        8: "class Log(RLlibCallback):",
        16: "    .env_runners(num_env_runners=0, num_envs_per_env_runner=4)",
        17: "    .training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=2, lr=3e-4)",
        20: "algo = config.build_algo()",
    }


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("import ray.rllib.algorithms.ppo as ppo", "import jaxrl_stack.algorithms.ppo as ppo"),
        ("from ray import rllib", "import jaxrl_stack as rllib"),
        ("from ray import rllib, tune", "from ray import tune\nimport jaxrl_stack as rllib"),
        (
            "import ray.rllib\nc = ray.rllib.algorithms.ppo.PPOConfig()",
            "import jaxrl_stack\nc = jaxrl_stack.algorithms.ppo.PPOConfig()",
        ),
        ("import ray.rllib\nray.init()", "import ray\nimport jaxrl_stack\nray.init()"),
        ("from ray.tune.registry import register_env", "from jaxrl_stack.tune.registry import register_env"),
        (
            "from ray.rllib.core.rl_module.torch import TorchRLModule as Base\nclass A(Base): ...",
            "from jaxrl_stack.core.rl_module import RLModule as Base\nclass A(Base): ...",
        ),
        (
            "def f():\n\tfrom ray import rllib, tune\n\treturn 1",
            "def f():\n\tfrom ray import tune\n\timport jaxrl_stack as rllib\n\treturn 1",
        ),
        ("x = 1; from ray import rllib, tune", "x = 1; from ray import tune; import jaxrl_stack as rllib"),
        ("import os; import torch", "import os; pass"),
        ("import torch, os\nx = torch.zeros(2, 3)", "import jax.numpy as jnp\nimport os\nx = jnp.zeros((2, 3))"),
        ('path = "ray.rllib.algorithms.ppo.PPO"', 'path = "jaxrl_stack.algorithms.ppo.PPO"'),
    ],
)
def test_imports_and_their_aliases(before, now):
    assert after(before) == now


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("torch.max(x, y)", "jnp.maximum(x, y)"),
        ("x.size(-1) + x.size()[0]", "x.shape[-1] + x.shape[0]"),
        ("x.detach().cpu().numpy()", "np.asarray(jax.lax.stop_gradient(x))"),
        ("x.unsqueeze(0).mean(dim=1, keepdim=True)", "jnp.expand_dims(x, 0).mean(axis=1, keepdims=True)"),
        ("torch.nn.functional.one_hot(x.long(), 3)", "jax.nn.one_hot(x.astype(jnp.int32), 3)"),
        ("torch.nn.functional.mse_loss(x, y)", "jnp.mean(jnp.square(x - y))"),
        ("torch.nn.GELU()", "lambda x: nnx.gelu(x, approximate=False)"),
    ],
)
def test_arithmetic_of_tensors(before, now):
    assert after(f"import torch\na = {before}").splitlines()[-1] == f"a = {now}"


@pytest.mark.parametrize(
    "code",
    [
        "torch.max(x, 1)",
        "torch.randn(3)",
        "torch.nn.LSTM(3, 4)",
        "torch.nn.LeakyReLU(0.3)",
        "torch.optim.Adam(p)",
        "x.std()",
    ],
)
def test_what_is_not_certain_is_left_to_do(code):
    done = migrate(f"import torch\n\n\na = {code}\n")
    assert 4 in [item.line for item in done.to_do] and "# TODO(jaxrl): " in done.after
    compile(done.after, "script", "exec")


def test_a_network_becomes_one_of_nnx():
    done = migrate(MODULE)
    assert done.to_do == [] and "torch" not in done.after and "# to 3 x 3" in done.after
    names: dict = {}
    exec(compile(done.after, "module.py", "exec"), names)
    module = names["Net"](
        observation_space=gym.spaces.Box(-1, 1, (8, 8, 3)), action_space=gym.spaces.Discrete(2), model_config={}
    )
    batch = {Columns.OBS: jnp.ones((5, 8, 8, 3))}
    out = jax.eval_shape(lambda: (module._forward(batch), module.compute_values(batch)))
    assert out[0][Columns.ACTION_DIST_INPUTS].shape == (5, 2) and out[1].shape == (5,)
    assert module.trunk.layers[4].epsilon == 1e-5 and module.trunk.layers[3].bias is None


def test_a_network_outside_of_modules_takes_its_random_keys():
    text = """\
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width=4, *args):
                super().__init__()
                self.layer = nn.Linear(3, width)

            def forward(self, x):
                return self.layer(x)

        net = Net(8)
        """
    names: dict = {}
    exec(compile(after(text), "net.py", "exec"), names)
    assert names["net"].layer.kernel.shape == (3, 8)
    assert jax.eval_shape(names["net"], jnp.ones((2, 3))).shape == (2, 8)


def test_losses_are_left_to_do_with_the_page_that_shows_how():
    done = migrate(LOSS, "mine.py")
    assert "class Mine(PPOLearner):" in done.after and "jnp.mean(extra)" in done.after
    assert {item.line for item in done.to_do} == {1, 6, 8}
    lines = done.after.splitlines()
    for item in done.to_do:
        original = LOSS.splitlines()[item.line - 1]
        assert lines[item.new_line - 1] == original and "TODO(jaxrl)" in done.after.split(original)[0]
        assert f"line {item.line} (new: {item.new_lines}): {item.message} {item.page}" in done.report()
    assert reported_lines(done.report()) == [(item.new_line, item.new_last_line) for item in done.to_do]


def test_names_of_the_future_are_noted_where_they_are_used():
    done = migrate("from ray.rllib.algorithms.dreamerv3 import DreamerV3Config\n\nconfig = DreamerV3Config()\n")
    if why_not("jaxrl_stack.algorithms.dreamerv3", "DreamerV3Config"):
        assert [item.line for item in done.to_do] == [1, 3]
    else:
        assert done.to_do == []


def test_settings_without_a_counterpart_are_left_to_do():
    done = migrate('config.exploration(exploration_config={"type": "EpsilonGreedy"})\nconfig.framework("torch")\n')
    assert [item.line for item in done.to_do] == [1] and 'config.framework("jax")' in done.after


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            'c.rl_module(model_config={"post_fcnet_hiddens": [8]})',
            'c.rl_module(model_config={"head_fcnet_hiddens": [8]})',
        ),
        (
            "c.evaluation(evaluation_config=C.overrides(exploration=False))",
            "c.evaluation(evaluation_config=C.overrides(explore=False))",
        ),
        ("args.local_mode = True", "args.local_mode = False"),
        (
            "logger.log_value('a', x, reduce=None, percentiles=[5])",
            "logger.log_value('a', x, reduce=\"percentiles\", percentiles=[5])",
        ),
        ("logger.log_value('a', x, reduce=None)", "logger.log_value('a', x, reduce=\"item_series\")"),
        (
            "logger.log_value('a', x, reduce='mean', ema_coeff=0.1)",
            "logger.log_value('a', x, reduce=\"ema\", ema_coeff=0.1)",
        ),
        ("c.training(train_batch_size=3).build()", "c.training(train_batch_size_per_learner=3).build_algo()"),
        ("net.rollouts(3); wheel.build()", "net.rollouts(3); wheel.build()"),
    ],
)
def test_settings_that_have_another_name(before, now):
    assert after(before) == now


def test_the_old_stack_is_left_to_do():
    done = migrate("c = PPOConfig().api_stack(\n    enable_rl_module_and_learner=False,\n)\n")
    assert [item.line for item in done.to_do] == [2]


def test_names_of_the_old_stack_are_none():
    old = "from ray.rllib.examples._old_api_stack.policy.random_policy import RandomPolicy\n"
    in_branch = "x = RandomPolicy if args.old else 0"
    done = migrate(f"{old}{in_branch}\n")
    assert [item.line for item in done.to_do] == [1]
    assert done.after.splitlines()[-2:] == ["RandomPolicy = None", in_branch]
    assert migrate(done.after).after == done.after


def test_names_of_the_old_stack_that_a_script_uses_are_not_replaced():
    old = "from ray.rllib.examples._old_api_stack.policy.random_policy import RandomPolicy\n"
    done = migrate(f"{old}class Mine(RandomPolicy): ...\n")
    assert [item.line for item in done.to_do] == [1, 2] and "= None" not in done.after and old in done.after
    assert migrate(done.after).after == done.after
    decorated = "from ray.rllib.utils.annotations import OldAPIStack\n@OldAPIStack\nclass Mine: ...\n"
    done = migrate(decorated)
    assert done.after == decorated.replace("ray.rllib", "jaxrl_stack") and done.to_do == []


def test_a_name_to_come_is_named_where_a_config_refuses_it():
    text = "from ray.rllib.env.wrappers.multi_agent_env_compatibility import MultiAgentEnvCompatibility as E\n"
    text += "c = (\n    PPOConfig()\n    .environment(\n        functools.partial(\n            E, 1)\n    )\n)\n"
    done = migrate(text)
    assert [item.line for item in done.to_do] == [1, 4]


def test_methods_of_modules_that_are_pytorchs_are_left_to_do():
    done = migrate("from ray.rllib import algorithms\nw = module.parameters()\n")
    assert [item.line for item in done.to_do] == [2]


@pytest.mark.parametrize("text", [SCRIPT, MODULE, LOSS], ids=["script", "module", "loss"])
def test_a_second_migration_changes_nothing(text):
    once = migrate(text)
    assert migrate(once.after).after == once.after


@pytest.mark.parametrize("text", [SCRIPT, MODULE, LOSS], ids=["script", "module", "loss"])
def test_line_ends_stay(text):
    assert migrate(text.replace("\n", "\r\n")).after == migrate(text).after.replace("\n", "\r\n")
    assert migrate(text.rstrip("\n")).after == migrate(text).after.rstrip("\n")


def test_comments_stand_in_no_string():
    done = migrate('import torch\nx = f"""\n{torch.randn(3)}\n"""\n')
    assert "# TODO" in done.after.split('x = f"""')[0]
    compile(done.after, "script", "exec")


def test_a_diff_ends_as_patch_expects_it():
    diff = migrate("x = 1\nimport ray.rllib", "mine.py").diff()
    assert diff == (
        "--- a/mine.py\n+++ b/mine.py\n@@ -1,2 +1,2 @@\n x = 1\n-import ray.rllib\n\\ No newline at end of file\n"
        "+import jaxrl_stack\n\\ No newline at end of file\n"
    )


@pytest.mark.parametrize("name", sorted(set(table("names").values())))
def test_every_new_name_is_there(name):
    assert why_not(*name.rsplit(".", 1)) == ""


def test_every_function_of_arrays_is_there():
    rooms = {"jnp": jnp, "jax": jax, "nnx": nnx}
    for name in {*table("torch").values(), *table("activations").values()}:
        first, *path = name.split(".")
        if not name.startswith("lambda"):
            functools.reduce(getattr, path, rooms[first])


def test_the_page_shows_what_the_tool_writes():
    page = (ROOT / "docs" / "coming_from_rllib.md").read_text()
    before = re.findall(r"^```py\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)[0]
    now = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)[0]
    done = migrate(before)
    (item,) = done.to_do
    written = re.sub(r"^ *# TODO\(jaxrl\).*\n(^ *#   .*\n)*", "", done.after, flags=re.MULTILINE).splitlines()
    shown = now.splitlines()
    different = [n for n, (line, other) in enumerate(zip(written, shown, strict=True)) if line != other]
    assert [written[n].strip() for n in different] == [
        before.splitlines()[item.line + 1].strip().replace("torch", "jnp")
    ]


def test_every_page_of_a_finding_has_its_section():
    page = (ROOT / "docs" / "coming_from_rllib.md").read_text()
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for name in ("imports", "item_assignment", "settings", "tensor_methods", "torch_code", "torch_layers"):
        module = importlib.import_module(f"jaxrl_stack.migration.{name}")
        text = pathlib.Path(str(module.__file__)).read_text()
        for anchor in re.findall(r"\{PAGE\}#([\w-]+)", text):
            assert anchor in anchors, anchor


# ------------------------------------------------------------------------------------------------------- command line


def test_the_diff_goes_to_one_stream_and_the_report_to_the_other(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("import does_not_exist\nimport ray.rllib\nraise SystemExit(3)\n")
    assert cli.main(["migrate", str(path)]) == 0
    captured = capsys.readouterr()
    assert "+import jaxrl_stack\n" in captured.out and "1 lines rewritten, 0 to do by hand" in captured.err
    assert "import ray.rllib" in path.read_text()


def test_written_scripts_leave_the_old_ones_beside_them(tmp_path, capsys):
    path = tmp_path / "train.py"
    before = b"\xef\xbb\xbf# \xc3\xa9\r\nimport ray.rllib\r\n"
    path.write_bytes(before)
    assert cli.main(["migrate", "--write", str(path)]) == 0
    assert path.read_bytes() == before.replace(b"ray.rllib", b"jaxrl_stack")
    assert (tmp_path / "train.py.bak").read_bytes() == before
    assert cli.main(["migrate", "--write", str(path)]) == 0
    assert "nothing of RLlib's or PyTorch's in it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "cannot be read (No such file or directory)"),
        ("broken.py", b"x = 1\nimport (\n", "line 2: is not valid Python"),
        ("latin.py", b"# \xe9\nimport ray.rllib\n", "Save it as UTF-8"),
        ("nul.py", b"x = '\0'\n", "is not valid Python"),
        ("notes.ipynb", b"{}", "jupyter nbconvert --to script"),
        ("folder", "folder", "is a folder"),
    ],
)
def test_what_is_no_script_is_refused_and_nothing_is_written(name, content, message, tmp_path, capsys):
    good, bad = tmp_path / "good.py", tmp_path / name
    good.write_text("import ray.rllib\n")
    if content == "folder":
        bad.mkdir()
    elif content is not None:
        bad.write_bytes(content)
    assert cli.main(["migrate", "--write", str(good), str(bad)]) != 0
    error = capsys.readouterr().err
    assert message in error and str(bad) in error
    assert good.read_text() == "import ray.rllib\n"


def test_an_older_backup_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("import ray.rllib\n")
    (tmp_path / "train.py.bak").write_text("mine")
    assert cli.main(["migrate", "--write", str(path)]) != 0
    assert "exists, from an earlier migration" in capsys.readouterr().err and path.read_text() == "import ray.rllib\n"


# -------------------------------------------------------------------------------------------------------------- cases


def test_cases_are_runnable_or_say_why_not():
    cases = read_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert bool(case.arguments) != bool(case.absent), case
