"""Names of RLlib that this package does not support. Scripts can import and subclass these names; a call raises an
error that names the replacement.
"""

from __future__ import annotations

import abc
import functools
import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from jaxrl_stack.compat.near_names import NearNameError

_PACKAGE = __name__.partition(".")[0]

_OF_CONTINUOUS_ACTIONS = ("SAC", "or TQC, for continuous actions")
_DDPG = ("TD3", "with policy_delay=1, twin_q=False, smooth_target_policy=False")
_OF_DISCRETE_ACTIONS = ("DQN", "whose settings include all parts of Rainbow")
_ON_POLICY = ("PPO", "which is A2C with num_epochs=1 and minibatch_size=None")
NEAREST = {
    "A2C": _ON_POLICY,
    "A3C": _ON_POLICY,
    "ApexDDPG": _DDPG,
    "ApexDQN": ("DQN", "with several env runners"),
    "CrossQ": _OF_CONTINUOUS_ACTIONS,
    "DDPG": _DDPG,
    "ES": ("PPO", "which uses gradients"),
    "ARS": ("PPO", "which uses gradients"),
    "MaskablePPO": ("PPO", "whose default networks apply action masks in dict observations"),
    "PG": _ON_POLICY,
    "QRDQN": _OF_DISCRETE_ACTIONS,
    "R2D2": ("DQN", "with model_config={'use_lstm': True}"),
    "Rainbow": _OF_DISCRETE_ACTIONS,
    "RecurrentPPO": ("PPO", "with model_config={'use_lstm': True}"),
    "REDQ": _OF_CONTINUOUS_ACTIONS,
    "SimpleQ": _OF_DISCRETE_ACTIONS,
    "TRPO": _ON_POLICY,
}
"""Algorithm of RLlib's past or of other packages -> ``(the nearest one here, a remark)``."""


def nearest_algorithm(name: str) -> str | None:
    """Sentence about the algorithm of this package that is most similar to an unsupported one; None for an unknown
    name.

    Args:
        name: An algorithm, its config, or its module, such as "DDPG", "DDPGConfig" or "apex_dqn".
    """
    plain = name.replace("_", "").casefold().removesuffix("config")
    found = next((known for known in NEAREST if known.casefold() == plain), None)
    if found is None:
        return None
    nearest, remark = NEAREST[found]
    module = f"{_PACKAGE}.algorithms.{nearest.lower()}"
    return f"There is no {found} here. Use the nearest, {nearest}, {remark} (from {module} import {nearest}Config)."


class Unsupported(NamedTuple):
    """Group of unsupported names that share one error message.

    Attributes:
        instead: Rest of a sentence that begins with the name: that it is unsupported, and the replacement.
        modules: Modules below the package, in one text -> the names in each of them, in one text.
    """

    instead: str
    modules: dict[str, str]


_OTHER_ENV = "is not supported yet. Write a MultiAgentEnv (from jaxrl_stack.env.multi_agent_env import MultiAgentEnv)"
_OFFLINE = "is not supported yet. Override OfflineData or OfflinePreLearner (jaxrl_stack.offline)"

# fmt: off
UNSUPPORTED = (
    Unsupported(_OFFLINE, {
        "examples.offline_rl.classes.image_offline_data": "ImageOfflineData",
        "examples.offline_rl.classes.image_offline_prelearner": "ImageOfflinePreLearner",
    }),
    Unsupported(_OTHER_ENV, {
        "env.external_multi_agent_env": "ExternalMultiAgentEnv",
        "env.wrappers.multi_agent_env_compatibility": "MultiAgentEnvCompatibility",
        "examples.envs.classes.debug_counter_env": "MultiAgentDebugCounterEnv",
        "examples.envs.classes.random_env": "RandomMultiAgentEnv",
    }),
    Unsupported("is not supported yet. Write a gymnasium.Env whose reset() and step() talk to the other process", {
        "env.external.env_runner_server_for_external_inference": "EnvRunnerServerForExternalInference",
        "examples.envs.classes.utils.dummy_external_client": "_dummy_external_client",
        "env.external env.external.rllink": "RLlink get_rllink_message send_rllink_message",
    }),
    Unsupported(
        "has no counterpart. Write inner updates with jax.grad in compute_loss_for_module() of a Learner "
        "(jaxrl_stack.core.learner.learner)", {
        "algorithms.algorithm_config": "DifferentiableAlgorithmConfig",
        "core.learner.differentiable_learner": "DifferentiableLearner",
        "core.learner.differentiable_learner_config": "DifferentiableLearnerConfig",
    }),
)
# fmt: on

PLACES = [
    (f"{_PACKAGE}.{module}", name, unsupported)
    for unsupported in UNSUPPORTED
    for modules, names in unsupported.modules.items()
    for module in modules.split()
    for name in names.split() or [""]
]
"""``(module, name, its Unsupported)``; the name is "" where a module is listed without names."""


class _StandIn(abc.ABCMeta):
    """Metaclass of placeholder classes: calling, indexing or iterating over a class raises NotImplementedError."""

    comes_later: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        subclass = "" if "comes_later" in vars(cls) else f"{cls.__name__}(...): "
        raise NotImplementedError(f"{subclass}{cls.comes_later}")

    # Some of them are functions, dicts and texts at RLlib.
    def __getitem__(cls, key: Any) -> Any:
        cls()

    def __iter__(cls) -> Any:
        cls()

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(f"{cls.__name__}.{name}: {cls.comes_later}")


@functools.cache
def stand_in(name: str) -> Any:
    """Returns a placeholder class for an unsupported name: it can be imported, subclassed and used in ``isinstance``,
    but not instantiated.

    It and its subclasses raise a NotImplementedError when called or read like a dict, and an AttributeError for other
    attributes. Their attribute ``comes_later`` is the message.

    Args:
        name: A name in the table. All its paths give the same class.
    """
    home, _, unsupported = next(place for place in PLACES if place[1] == name)
    message = f"{name} {unsupported.instead}."
    fields = {"__module__": home, "__doc__": f"Not here yet. {message}", "comes_later": message}
    return _StandIn(name, (), fields)


_MANY_ENVS = "env_runners(num_envs_per_env_runner=...) makes copies of the environment"
_NORMALISED = "env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())"
_CONFIG = "a new config has the defaults: PPOConfig().to_dict()"
OTHER_NAMES = {
    "evaluate_policy": "use algorithm.evaluate()",
    "make_vec_env": _MANY_ENVS,
    "SubprocVecEnv": f"{_MANY_ENVS}, and gym_env_vectorize_mode='async' runs each in a process",
    "DummyVecEnv": _MANY_ENVS,
    "VecNormalize": f"observations are normalised by {_NORMALISED}",
    "VecFrameStack": "use the connector FrameStackingEnvToModule (from jaxrl_stack.connectors.env_to_module)",
    "Monitor": "every result has the returns and lengths of episodes",
    "BaseCallback": "use RLlibCallback (from jaxrl_stack.callbacks.callbacks import RLlibCallback)",
    "make_train": "PPOConfig().environment(env).build_algo().train() runs an iteration, compiled as a whole",
    "DEFAULT_CONFIG": _CONFIG,
    "PPOTorchPolicy": "use an RLModule and a Learner (from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner)",
    "make": "config.environment('gymnax/CartPole-v1') takes the name",
}
"""Name of other packages, or of RLlib's past -> what to use."""


def _answer(package: str, name: str, known: Sequence[str]) -> str | None:
    """Error message for an import of a name that a package does not have; None if nothing is known about the name."""
    if name in OTHER_NAMES:
        return f"There is no {name} in {package}: {OTHER_NAMES[name]}."
    today = f"{name.removesuffix('Trainer')}Config"
    if name.endswith("Trainer") and today in known:
        return f"{name} is gone: {today}().environment(env).build_algo() (from {package} import {today})."
    same = next((one for one in known if one.casefold() == name.casefold()), None)
    return None if same is None else f"There is no {name} in {package}: it is {same} (from {package} import {same})."


def name_elsewhere(package: str, name: str, known: Sequence[str] = ()) -> Any:
    """Returns the placeholder class of an unsupported RLlib name. The ``__getattr__`` of a package calls this for names
    that the package does not define.

    Args:
        package: The ``__name__`` of the package.
        name: The requested name.
        known: Names of the package.

    Raises:
        ImportError: For an unsupported algorithm, a name of other packages, or a name with other capitals; names the
            replacement.
        AttributeError: For any other name.
    """
    if any(place[1] == name for place in PLACES):
        return stand_in(name)
    sentence = nearest_algorithm(name)
    # A submodule is imported after this has said that it is no attribute.
    if sentence is None and not name.startswith("_") and not _is_module(f"{package}.{name}"):
        sentence = _answer(package, name, known)
    if sentence is not None:
        raise ImportError(sentence)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except NearNameError:  # That is for an import of it.
        return False


def stand_ins(module: str) -> Callable[[str], Any]:
    """Creates the `__getattr__` of a module, a function that returns placeholder classes for unsupported names of
    RLlib.

    Args:
        module: The ``__name__`` of the module.
    """

    def get(name: str) -> Any:
        if any(place[:2] == (module, name) for place in PLACES):
            return stand_in(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


class UnsupportedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder, after the standard ones, for modules that contain only unsupported names of RLlib. It creates
    these modules.

    They are packages without a folder, so that Python searches for an unlisted name as a module in them.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Returns the spec of a module with unsupported names, or of a package that contains such a module; otherwise
        None.

        Raises:
            ImportError: If a module of the table has no such name, or belongs to an algorithm that is not planned;
                names the replacement.
        """
        in_algorithms = fullname.partition(f"{_PACKAGE}.algorithms.")[2]
        sentence = nearest_algorithm(in_algorithms.partition(".")[0])
        if sentence is not None:
            raise ImportError(sentence, name=fullname)
        is_below = fullname.startswith(f"{_PACKAGE}.")
        if is_below and any(f"{module}.".startswith(f"{fullname}.") for module, _, _ in PLACES):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        for module, _, unsupported in PLACES:
            if path == [] and fullname.startswith(f"{module}."):
                raise ImportError(f"{fullname} {unsupported.instead}.", name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fills the imported module: adds a ``__getattr__`` that returns placeholder classes for unsupported names of
        RLlib.
        """
        module.__doc__ = "RLlib's path to names that are not here yet."
        vars(module)["__getattr__"] = stand_ins(module.__name__)
        vars(module)["__all__"] = [name for place, name, _ in PLACES if name and place == module.__name__]
