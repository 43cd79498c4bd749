"""Whose "PPO" Ray Tune trains: this package's, in whatever order things are imported."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(code: str) -> list[str]:
    """What a fresh interpreter prints; warnings are errors in it."""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# RLlib registers its algorithms when a name is asked for that is not registered.
FAKE_RLLIB = """
import sys, types
rllib = types.ModuleType("ray.rllib")
def _register_all():
    from ray import tune
    class PPO(tune.Trainable):
        pass
    tune.register_trainable("PPO", PPO)
    tune.register_trainable("SlateQ", PPO)
rllib._register_all = _register_all
sys.modules["ray.rllib"] = rllib
"""
WHOSE = """
from ray.tune.registry import get_trainable_cls
def whose():
    return get_trainable_cls("PPO").__module__
"""
IS_OURS = """
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from ray.tune.tune import _Config
assert get_trainable_cls("PPO").algorithm_class() is PPO
assert isinstance(PPOConfig(), _Config), "param_space= takes it"
import ray
assert not ray.is_initialized()
"""


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("from ray import tune; import jaxrl_stack", id="tune, package"),
        pytest.param(
            "from jaxrl_stack.algorithms.ppo import PPOConfig; config = PPOConfig(); from ray import tune",
            id="config, tune",
        ),
        pytest.param(
            """
            import ray
            from jaxrl_stack.algorithms.ppo import PPOConfig
            def main():
                config = PPOConfig().environment("gymnax/CartPole-v1")
                assert "ray.tune" not in sys.modules
                from ray.tune import Tuner
            main()
            """,
            id="in a function",
        ),
    ],
)
def test_the_name_means_this_packages_class_in_every_order_of_imports(imports):
    code = textwrap.dedent(imports)
    assert run(FAKE_RLLIB + code + WHOSE + IS_OURS + "print(whose())") == ["jaxrl_stack.tune.trainables"]


def test_the_package_alone_imports_neither_ray_nor_anything_heavy():
    code = "import sys, jaxrl_stack, jaxrl_stack.tune; print({'ray', 'jax', 'numpy'} & set(sys.modules))"
    assert run(code) == ["set()"]


def test_without_ray_the_package_is_there_and_tune_says_what_is_missing():
    code = """
    import sys
    sys.modules["ray"] = None
    from jaxrl_stack.tune import register, trainable
    from jaxrl_stack.tune.registry import register_env
    try:
        register()
    except ModuleNotFoundError as error:
        print(error.name)
    """
    assert run(code)[0].startswith("ray")


def test_the_name_survives_what_unregisters_or_takes_it():
    code = """
    import jaxrl_stack
    from ray import tune
    import ray.tune.registry
    # As after ray.shutdown(): the registrations of a session end with it.
    ray.tune.registry._global_registry._to_flush.clear()
    print(whose())
    _register_all()
    print(whose())
    jaxrl_stack.tune.register()
    print(whose())
    # RLlib's other algorithms are RLlib's, without these becoming so, too.
    print(get_trainable_cls("SlateQ").__module__, whose())
    # A trainable of that name that was registered by hand stays.
    class Mine(tune.Trainable):
        pass
    tune.register_trainable("PPO", Mine)
    print(whose())
    """
    ours, theirs = "jaxrl_stack.tune.trainables", "__main__"
    assert run(FAKE_RLLIB + WHOSE + textwrap.dedent(code)) == [ours, theirs, ours, theirs, ours, theirs]


def test_a_version_of_tune_that_is_too_different_can_still_be_imported():
    code = """
    import sys, types, warnings
    import ray
    tune = types.ModuleType("ray.tune")
    from importlib.machinery import ModuleSpec
    import importlib.abc
    class Loader(importlib.abc.Loader):
        def create_module(self, spec):
            return tune
        def exec_module(self, module):
            module.is_there = True
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            return ModuleSpec(name, Loader()) if name == "ray.tune" else None
    sys.meta_path.insert(0, Finder())
    import jaxrl_stack
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import ray.tune
    print(ray.tune.is_there, len(caught), "jaxrl_stack.tune.trainable('PPO')" in str(caught[0].message))
    """
    assert run(code) == ["True", "1", "True"]
