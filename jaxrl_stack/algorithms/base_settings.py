"""The settings that every algorithm has, and the names of the past.

Pure data; see `settings.py` for what follows from it. RLlib's names, defaults and order of sections.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.algorithms.settings import (
    OldName,
    Section,
    Setting,
    amounts,
    boolean,
    function,
    functions,
    instance,
    integer,
    number,
    one_of,
    short,
    subclass_of,
)
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.env_runner import EnvRunner
from jaxrl_stack.utils.class_paths import register_class
from jaxrl_stack.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.signatures import call_problem

MAX_SEED = 2**32 - 1
"""JAX makes keys of the lower 32 bits of a seed: larger ones would repeat smaller ones."""

NUMBER_OR_SCHEDULE = "float | list[list[float]] | list[tuple[int, float]] | None"

dictionary = instance(dict, what="a dict")
dictionary_or_none = instance(dict, what="a dict", also=(None,))
string = instance(str, what="a string")
name_list = instance(list, tuple, what="a list of column names")
is_class = instance(type, what="a class")
space = instance(gym.Space, what="a gymnasium space")


# -------------------------------------------------------------------------------------- checks of one setting


def _rollout_fragment_length(value: Any) -> str | None:
    return integer(1, also=("auto",))(value)


def _vectorize_mode(value: Any) -> str | None:
    modes = [mode.value for mode in gym.VectorizeMode]
    is_mode = isinstance(value, gym.VectorizeMode) or (isinstance(value, str) and value in modes)
    return None if is_mode else "one of " + ", ".join(repr(mode) for mode in modes)


def _callback_class(value: Any) -> str | None:
    classes = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, type) and issubclass(item, RLlibCallback) for item in classes):
        return "a subclass of jaxrl_stack.callbacks.callbacks.RLlibCallback, or a list of such classes"
    for item in classes:
        problem = call_problem(item)
        if problem is not None:
            return (
                f"a class that can be made without arguments; {item.__name__}() cannot ({problem}). Bind them with a "
                f"subclass"
            )
    return None


def _policies(value: Any) -> str | None:
    wanted = "a set, list or tuple of policy ids, or a dict from id to PolicySpec, 4-tuple or None"
    if not isinstance(value, (dict, set, frozenset, list, tuple)) or not value:
        return wanted
    for policy_id in value:
        problem = _policy_id(policy_id)
        if problem:
            return problem
    if isinstance(value, dict):
        for spec in value.values():
            if not (
                spec is None or isinstance(spec, PolicySpec) or (isinstance(spec, tuple) and len(spec) == 4)
            ):
                return wanted
    return None


def _policy_id(value: Any) -> str | None:
    # Ids are names of folders in checkpoints.
    if not isinstance(value, str) or not value:
        return f"made of ids that are non-empty strings, not {value!r}"
    if any(c in value for c in '<>:"/\\|?') or value[-1] in ". ":
        return f'made of ids without any of <>:"/\\|? and without a dot or blank at the end, not {value!r}'
    return None


def _policies_to_train(value: Any) -> str | None:
    if value is None or callable(value) or isinstance(value, (set, frozenset, list, tuple, dict)):
        return None
    return "a collection of policy ids, a function f(module_id, batch) -> bool, or None for all"


def _model_config(value: Any) -> str | None:
    return None if isinstance(value, (dict, DefaultModelConfig)) else "a dict or a DefaultModelConfig"


def _rl_module_spec(value: Any) -> str | None:
    if isinstance(value, MultiRLModuleSpec) and not isinstance(value.rl_module_specs, dict):
        return "a MultiRLModuleSpec whose rl_module_specs is a dict from module id to RLModuleSpec"
    if isinstance(value, RLModuleSpec):
        return _problem_with_spec(value)
    if not isinstance(value, MultiRLModuleSpec):
        return "an RLModuleSpec or a MultiRLModuleSpec"
    if subclass_of(MultiRLModule, "")(value.multi_rl_module_class) is not None:
        return (
            "a MultiRLModuleSpec whose multi_rl_module_class is a subclass of MultiRLModule, not "
            f"{short(value.multi_rl_module_class)}"
        )
    for module_id, spec in (value.rl_module_specs or {}).items():
        problem = _problem_with_spec(spec)
        if problem is not None:
            return f"a MultiRLModuleSpec whose module {module_id!r} has {problem}"
    return None


_MODULE_ARGUMENTS = dict.fromkeys(
    ("observation_space", "action_space", "inference_only", "learner_only", "model_config", "catalog_class", "rngs")
)


def _problem_with_spec(spec: RLModuleSpec) -> str | None:
    """What a spec must be; None if it is fine."""
    cls = spec.module_class
    if cls is not None:
        if subclass_of(RLModule, "")(cls) is not None:
            return f"an RLModuleSpec whose module_class is a subclass of RLModule, not {short(cls)}"
        if inspect.isabstract(cls):
            missing = ", ".join(f"{name}()" for name in sorted(cls.__abstractmethods__))
            return f"an RLModuleSpec whose module_class defines {missing}, which {cls.__name__} does not"
        problem = call_problem(cls.__init__, None, **_MODULE_ARGUMENTS)
        if problem is not None:
            return (
                f"an RLModuleSpec whose module_class takes the keyword arguments {', '.join(_MODULE_ARGUMENTS)}; "
                f"{cls.__name__}() does not ({problem}). Build the networks in setup() and leave the constructor alone"
            )
    if spec.catalog_class is not None and subclass_of(Catalog, "")(spec.catalog_class) is not None:
        return f"an RLModuleSpec whose catalog_class is a subclass of Catalog, not {short(spec.catalog_class)}"
    for name in ("observation_space", "action_space"):
        value = getattr(spec, name)
        if not (value is None or isinstance(value, gym.Space)):
            return f"an RLModuleSpec whose {name} is a gymnasium space or None, not {short(value)}"
    for name in ("inference_only", "learner_only"):
        value = getattr(spec, name)
        if not (value is None or boolean(value) is None):
            return f"an RLModuleSpec whose {name} is True or False, not {short(value)}"
    if not (spec.model_config is None or isinstance(spec.model_config, (Mapping, DefaultModelConfig))):
        return f"an RLModuleSpec whose model_config is a dict or a DefaultModelConfig, not {short(spec.model_config)}"
    return None


def _stats_classes(value: Any) -> str | None:
    is_stats = subclass_of(StatsBase, "")
    if isinstance(value, dict) and all(isinstance(k, str) and is_stats(v) is None for k, v in value.items()):
        return None
    return "a dict from the name of a reduction to a subclass of StatsBase"


def _overrides_per_module(value: Any) -> str | None:
    if isinstance(value, dict) and all(isinstance(overrides, dict) for overrides in value.values()):
        return None
    return "a dict from module id to a dict of settings, such as {'p0': PPOConfig.overrides(lr=0.001)}"


def _evaluation_config(value: Any) -> str | None:
    is_config = any(base.__name__ == "AlgorithmConfig" for base in type(value).__mro__)
    return None if isinstance(value, dict) or is_config else "a dict of settings or an AlgorithmConfig"


def _framework(value: Any) -> str | None:
    if value in ("tf", "tf2", "tfe"):
        return "'jax': there is no TensorFlow here; networks are Flax NNX modules"
    return one_of("jax", "torch")(value)


def _as_jax(value: str) -> str:
    if value == "torch":
        notice_once("framework('torch'): networks and learners are JAX here; the setting stands for 'jax'.")
    return "jax"


def _on_only(value: Any) -> str | None:
    return None if value is True else "True: the old API stack does not exist here. Leave api_stack() out"


def _connector(value: Any) -> str | None:
    if callable(value) and not isinstance(value, ConnectorV2):
        return None
    return (
        "a function that returns a connector piece or a list of pieces, such as "
        "lambda env, spaces, device: MeanStdFilter()"
    )


def _clip_rewards(value: Any) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    return (
        None
        if number(above=0)(value) is None
        else "None, False, True (sign) or a positive number (clip to ±)"
    )


def _static_names(value: Any) -> str | None:
    is_names = isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(name, str) for name in value
    )
    return None if is_names else "a list of names of traced settings"


@register_class
def default_policy_mapping_fn(aid: Any, episode: Any = None, worker: Any = None, **kwargs: Any) -> str:
    """Maps every agent to the module "default_policy"."""
    return DEFAULT_POLICY_ID


ACTORS = "actors"
OFFLINE = "offline data is not supported yet, leave it out."
NO_TORCH = "programs are always compiled by XLA; leave it out."


def _torch(name: str, default: Any, doc: str, type_: str, instead: str = NO_TORCH) -> Setting:
    return Setting(name, default, doc, type_, "inert", instead=instead)


def _offline(
    name: str, default: Any, doc: str, type_: str = "Any", check: Any = None, attribute: str = ""
) -> Setting:
    return Setting(name, default, doc, type_, "later", attribute=attribute, check=check, instead=OFFLINE)


def _fault(name: str, default: Any, doc: str, type_: str, check: Any) -> Setting:
    return Setting(name, default, doc, type_, "host", check=check, read_by=ACTORS)


def _callback(name: str, doc: str) -> Setting:
    return Setting(
        name,
        None,
        f"Function, or list of functions, called {doc}",
        "Callable[..., Any] | list[Callable[..., Any]] | None",
        "host",
        attribute=f"callbacks_{name}",
        check=functions,
        read_by="algorithm",
    )


BASE_SECTIONS: tuple[Section, ...] = (
    Section(
        "python_environment",
        "Sets the Python environment of the processes.",
        (
            Setting(
                "extra_python_environs_for_driver",
                {},
                "Environment variables of the main process.",
                "dict[str, str]",
                "inert",
                check=dictionary,
                instead="set os.environ before jax is imported.",
            ),
            Setting(
                "extra_python_environs_for_worker",
                {},
                "Environment variables of the actors.",
                "dict[str, str]",
                "inert",
                check=dictionary,
                instead="use ray.init(runtime_env={'env_vars': ...}).",
            ),
        ),
    ),
    Section(
        "resources",
        "Sets what the main process may use.",
        (
            Setting(
                "num_cpus_for_main_process",
                1,
                "CPUs that a tuner reserves for the main process of a trial.",
                "int",
                "host",
                check=integer(0),
                read_by=ACTORS,
            ),
            Setting(
                "custom_resources_for_main_process",
                {},
                "Ray resources that a tuner reserves for the main process of a trial.",
                "dict[str, float]",
                "host",
                check=amounts,
                read_by=ACTORS,
            ),
            Setting(
                "placement_strategy",
                "PACK",
                "Strategy of the Ray placement group.",
                "str",
                "host",
                check=one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
                read_by=ACTORS,
            ),
            Setting(
                "compilation_cache_dir",
                "auto",
                "Folder in which compiled programs outlive the process; 'auto' is one in the user's cache "
                "folder, None or False none.",
                "str | Literal[False] | None",
                "host",
                check=instance(str, what="a path or 'auto'", also=(None, False)),
                convert=lambda value: None if value is False else value,
                read_by="algorithm",
            ),
        ),
    ),
    Section(
        "framework",
        "Sets the framework; there is one.",
        (
            Setting(
                "framework",
                "jax",
                "'jax'. 'torch' is understood as 'jax', with a notice.",
                "str",
                "host",
                attribute="framework_str",
                check=_framework,
                convert=_as_jax,
                positional=True,
            ),
            _torch("torch_compile_learner", False, "Compile in the Learner.", "bool"),
            _torch("torch_compile_learner_what_to_compile", "forward_train", "What to compile.", "str"),
            _torch("torch_compile_learner_dynamo_mode", None, "Compiler mode.", "str | None"),
            _torch("torch_compile_learner_dynamo_backend", "inductor", "Compiler backend.", "str"),
            _torch(
                "torch_ddp_kwargs",
                {},
                "Options of torch's data-parallel wrapper.",
                "dict[str, Any]",
                "gradients are averaged over devices by XLA; leave it out.",
            ),
            Setting(
                "torch_skip_nan_gradients",
                False,
                "Skip an optimizer step whose gradients are not all finite (False: non-finite entries become "
                "finite numbers).",
                "bool",
                check=boolean,
                read_by="learner",
            ),
        ),
    ),
    Section(
        "api_stack",
        "Chooses the API stack; there is one.",
        (
            Setting(
                "enable_rl_module_and_learner",
                True,
                "RLModules and Learners.",
                "bool",
                "host",
                check=_on_only,
                positional=True,
            ),
            Setting(
                "enable_env_runner_and_connector_v2",
                True,
                "EnvRunners and ConnectorV2s.",
                "bool",
                "host",
                check=_on_only,
                positional=True,
            ),
        ),
    ),
    Section(
        "environment",
        "Sets the environment.",
        (
            Setting(
                "env",
                None,
                "Name ('gymnax/CartPole-v1', a gymnasium id, a registered name), class, or object.",
                "str | Any | None",
                positional=True,
                read_by="runner",
            ),
            Setting(
                "env_config",
                {},
                "Arguments of the environment. Merged into the present ones.",
                "dict[str, Any]",
                check=dictionary,
                merge=True,
                read_by="runner",
            ),
            Setting(
                "observation_space",
                None,
                "Observation space of one environment, if not the environment's own.",
                "gym.Space | None",
                check=space,
            ),
            Setting(
                "action_space",
                None,
                "Action space of one environment, if not the environment's own.",
                "gym.Space | None",
                check=space,
            ),
            Setting(
                "render_env",
                False,
                "Show the environments while training.",
                "bool",
                "inert",
                check=boolean,
                instead="render from an on_episode_step callback, or play the trained policy.",
            ),
            Setting(
                "clip_rewards",
                None,
                "Rewards that the learner sees: None or False as they are, True their sign, a number clips "
                "them to ± that number. Episodes, callbacks, replay buffers and statistics have the environment's.",
                "bool | float | None",
                check=_clip_rewards,
                read_by="learner",
            ),
            Setting(
                "normalize_actions",
                True,
                "The policy acts in [-1, 1]; a connector maps that to the bounds of Box action spaces.",
                "bool",
                check=boolean,
            ),
            Setting(
                "clip_actions",
                False,
                "Clip actions to the bounds of Box action spaces (if they are not normalized).",
                "bool",
                check=boolean,
            ),
            Setting(
                "disable_env_checking",
                False,
                "Skip the check of the environment's interface.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "is_atari",
                None,
                "Whether it is an Atari environment; None decides by its name.",
                "bool | None",
                attribute="_is_atari",
                check=boolean,
            ),
            Setting(
                "action_mask_key",
                "action_mask",
                "Key of the action mask in Dict observations.",
                "str",
                "inert",
                check=string,
                instead="read the mask from batch['obs'] in an RLModule of your own.",
            ),
        ),
    ),
    Section(
        "env_runners",
        "Sets how experience is sampled.",
        (
            Setting(
                "env_runner_cls",
                None,
                "EnvRunner class; None takes the single- or multi-agent one.",
                "type | None",
                "host",
                check=subclass_of(EnvRunner, "a subclass of EnvRunner, such as SingleAgentEnvRunner"),
                read_by="runner",
            ),
            Setting(
                "num_env_runners",
                0,
                "EnvRunner actors; 0 samples in the main process. Counts as 0 where the environment runs on "
                "the device.",
                "int",
                "host",
                check=integer(0),
                read_by=ACTORS,
            ),
            Setting(
                "create_local_env_runner",
                True,
                "Keep an EnvRunner in the main process beside the actors.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "create_env_on_local_worker",
                False,
                "Give that local EnvRunner environments, too.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "num_envs_per_env_runner",
                1,
                "Environments that are stepped together. On the device driver: all of them, over all "
                "devices.",
                "int",
                check=integer(1),
                read_by="runner",
            ),
            Setting(
                "gym_env_vectorize_mode",
                "sync",
                "How gymnasium environments are stepped together: 'sync', 'async' or 'vector_entry_point'.",
                "str | gym.VectorizeMode",
                "host",
                check=_vectorize_mode,
                check_when_set=False,
                read_by=ACTORS,
            ),
            Setting(
                "num_cpus_per_env_runner",
                1,
                "CPUs of each EnvRunner actor.",
                "int | float",
                "host",
                check=number(0),
                read_by=ACTORS,
            ),
            Setting(
                "num_gpus_per_env_runner",
                0,
                "GPUs of each EnvRunner actor; above 0 its policy runs there.",
                "int | float",
                "host",
                check=number(0),
                read_by=ACTORS,
            ),
            Setting(
                "custom_resources_per_env_runner",
                {},
                "Ray resources of each EnvRunner actor.",
                "dict[str, float]",
                "host",
                check=amounts,
                read_by=ACTORS,
            ),
            Setting(
                "validate_env_runners_after_construction",
                True,
                "Wait until all EnvRunner actors answer before training starts.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "sample_timeout_s",
                60.0,
                "Longest wait for the actors in one synchronous round of sampling, in seconds.",
                "float | None",
                "host",
                check=number(0, also=(None,)),
                read_by=ACTORS,
            ),
            Setting(
                "max_requests_in_flight_per_env_runner",
                1,
                "Pending sample requests per actor (asynchronous algorithms).",
                "int",
                "host",
                check=integer(1),
                read_by=ACTORS,
            ),
            Setting(
                "env_to_module_connector",
                None,
                "Function (env, spaces, device), or of the first two, one or none of these, that returns a "
                "connector piece or a list of pieces to put in front of the default ones.",
                "Callable[..., Any] | None",
                attribute="_env_to_module_connector",
                check=_connector,
            ),
            Setting(
                "module_to_env_connector",
                None,
                "Function (env, spaces), or of fewer, that returns a connector piece or a list of pieces; "
                "they run before actions are normalized and clipped.",
                "Callable[..., Any] | None",
                attribute="_module_to_env_connector",
                check=_connector,
            ),
            Setting(
                "add_default_connectors_to_env_to_module_pipeline",
                True,
                "Append the default env-to-module pieces.",
                "bool",
                check=boolean,
            ),
            Setting(
                "add_default_connectors_to_module_to_env_pipeline",
                True,
                "Add the default module-to-env pieces.",
                "bool",
                check=boolean,
            ),
            Setting(
                "episode_lookback_horizon",
                1,
                "Steps of the previous chunk that a chunk of an episode keeps.",
                "int",
                "host",
                check=integer(0),
                read_by="runner",
            ),
            Setting(
                "merge_env_runner_states",
                "training_only",
                "Merge the connector states of the actors: True, False or 'training_only'.",
                "bool | str",
                "host",
                check=one_of(True, False, "training_only"),
                read_by=ACTORS,
            ),
            Setting(
                "broadcast_env_runner_states",
                True,
                "Send the merged states back to the actors.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "use_env_runner_state_server",
                False,
                "Let the actors pull states from one actor (asynchronous algorithms).",
                "bool",
                "later",
                check=boolean,
                instead="actors get new states with every update; leave it out.",
            ),
            Setting(
                "env_runner_state_server_max_concurrency",
                16,
                "Requests that the state actor serves at a time.",
                "int",
                "later",
                check=integer(1),
                instead="there is no state server; leave it out.",
            ),
            Setting(
                "rollout_fragment_length",
                200,
                "Steps per environment and sampling round; 'auto' fits the train batch.",
                "int | str",
                check=_rollout_fragment_length,
                read_by="runner",
            ),
            Setting(
                "batch_mode",
                "truncate_episodes",
                "'truncate_episodes' samples fixed numbers of steps, 'complete_episodes' whole episodes "
                "(host environments only).",
                "str",
                check=one_of("truncate_episodes", "complete_episodes"),
                read_by="runner",
            ),
            Setting(
                "explore",
                True,
                "Sample actions (True) or take the greedy ones.",
                "bool",
                check=boolean,
                read_by="runner",
            ),
            Setting(
                "episodes_to_numpy",
                True,
                "Turn the episodes that sample() returns into arrays.",
                "bool",
                "host",
                check=boolean,
                read_by="runner",
            ),
        ),
    ),
    Section(
        "learners",
        "Sets where and how the learner runs.",
        (
            Setting(
                "num_learners",
                0,
                "Learner actors; 0 learns in the main process. Several update together, as one.",
                "int",
                check=integer(0),
                read_by="learner",
            ),
            Setting(
                "learner_snapshot_interval",
                10,
                "Updates (calls of the compiled program, on JAX environments) between two copies of the training "
                "state: as many are lost at most when a Learner actor dies, or when an update fails while it runs. "
                "In this process copies take 1 % of the time at most: fast updates are copied more seldom.",
                "int",
                "host",
                check=integer(1),
                read_by="learner",
            ),
            Setting(
                "num_cpus_per_learner",
                "auto",
                "CPU devices of a learner on a machine without accelerator; 'auto' is one.",
                "str | int | float",
                check=number(0, also=("auto",)),
                read_by="learner",
            ),
            Setting(
                "num_gpus_per_learner",
                0,
                "Accelerators of a learner. Unless it is set, all local ones are used; an explicit 0 means "
                "the CPU.",
                "int | float",
                check=number(0),
                read_by="learner",
            ),
            Setting(
                "custom_resources_per_learner",
                {},
                "Ray resources of each Learner actor.",
                "dict[str, float]",
                "host",
                check=amounts,
                read_by=ACTORS,
            ),
            Setting(
                "num_aggregator_actors_per_learner",
                0,
                "Actors that run the learner connector (IMPALA, APPO).",
                "int",
                "later",
                check=integer(0),
                instead="learners run their connectors themselves; leave it out.",
            ),
            Setting(
                "max_requests_in_flight_per_aggregator_actor",
                3,
                "Pending requests per aggregator actor (IMPALA, APPO).",
                "int | float",
                "host",
                check=number(1),
                read_by=ACTORS,
            ),
            Setting(
                "local_gpu_idx",
                0,
                "First accelerator that the learner of the main process takes.",
                "int",
                check=integer(0),
                read_by="learner",
            ),
            Setting(
                "max_requests_in_flight_per_learner",
                3,
                "Pending updates per Learner (IMPALA, APPO).",
                "int",
                "host",
                check=integer(1),
                read_by=ACTORS,
            ),
            Setting(
                "learner_class",
                None,
                "Learner class; None takes the algorithm's own.",
                "type[Learner] | None",
                attribute="_learner_class",
                check=subclass_of(Learner, "a subclass of Learner, such as PPOLearner"),
                read_by="learner",
            ),
            Setting(
                "learner_connector",
                None,
                "Function (observation_space, action_space), or of fewer, that returns a connector piece or "
                "a list of pieces to put in front of the default ones.",
                "Callable[..., Any] | None",
                attribute="_learner_connector",
                check=_connector,
            ),
            Setting(
                "add_default_connectors_to_learner_pipeline",
                True,
                "Append the algorithm's own learner pieces (PPO: advantages and value targets).",
                "bool",
                check=boolean,
            ),
            Setting(
                "learner_config_dict",
                {},
                "Free settings for a Learner of your own. Merged into the present ones.",
                "dict[str, Any]",
                check=dictionary,
                merge=True,
                per_module=True,
                read_by="learner",
            ),
            Setting(
                "num_shuffle_shards",
                None,
                "Parts of a train batch that are shuffled on their own; None is one per device. Equal "
                "numbers of shards give equal updates on any number of devices.",
                "int | None",
                check=integer(1),
                read_by="learner",
            ),
        ),
    ),
    Section(
        "training",
        "Sets how the policy is trained.",
        (
            Setting(
                "gamma",
                0.99,
                "Discount factor of the returns.",
                "float",
                "traced",
                check=number(0, 1),
                read_by="learner",
            ),
            Setting(
                "lr",
                0.001,
                "Learning rate.",
                NUMBER_OR_SCHEDULE,
                "traced",
                schedulable=True,
                check=number(0, or_schedule=True, finite=True),
                check_when_set=False,
                read_by="learner",
            ),
            Setting(
                "grad_clip",
                None,
                "Threshold of gradient clipping; None and 0 switch it off.",
                "float | None",
                "traced",
                off=(None, 0),
                check=number(0),
                read_by="learner",
            ),
            Setting(
                "grad_clip_by",
                "global_norm",
                "What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's "
                "gradients).",
                "str",
                check=one_of("value", "norm", "global_norm"),
                per_module=True,
                read_by="learner",
            ),
            Setting(
                "train_batch_size",
                32,
                "Env steps per update over all learners, where train_batch_size_per_learner is None.",
                "int",
                hidden=True,
                check=integer(1),
            ),
            Setting(
                "train_batch_size_per_learner",
                None,
                "Env steps per update and learner; None takes the algorithm's default.",
                "int | None",
                attribute="_train_batch_size_per_learner",
                check=integer(1),
                read_by="runner",
            ),
            Setting(
                "num_epochs",
                1,
                "Passes over the train batch per update.",
                "int",
                check=integer(1),
                read_by="learner",
            ),
            Setting(
                "minibatch_size",
                None,
                "Rows per gradient step and learner; None takes the whole batch.",
                "int | None",
                check=integer(1, also=(None,)),
                read_by="learner",
            ),
            Setting(
                "shuffle_batch_per_epoch",
                False,
                "Shuffle the rows in every epoch (with more than one epoch).",
                "bool",
                check=boolean,
                read_by="learner",
            ),
        ),
    ),
    Section(
        "callbacks",
        "Sets what is called when something happens.",
        (
            Setting(
                "callbacks_class",
                RLlibCallback,
                "Subclass of RLlibCallback, or a list of subclasses.",
                "type[RLlibCallback] | list[type[RLlibCallback]]",
                "host",
                check=_callback_class,
                positional=True,
                read_by="algorithm",
            ),
            _callback("on_algorithm_init", "once the algorithm is built."),
            _callback("on_train_result", "after each iteration; it may edit the result."),
            _callback("on_evaluate_start", "before each evaluation."),
            _callback("on_evaluate_end", "after each evaluation."),
            _callback("on_evaluate_offline_start", "before each offline evaluation."),
            _callback("on_evaluate_offline_end", "after each offline evaluation."),
            _callback("on_env_runners_recreated", "after EnvRunner actors were restarted."),
            _callback("on_offline_eval_runners_recreated", "after offline evaluation actors were restarted."),
            _callback("on_checkpoint_loaded", "after a checkpoint was loaded."),
            _callback("on_environment_created", "when environments have been made."),
            _callback("on_episode_created", "before an environment is reset."),
            _callback("on_episode_start", "after an environment was reset."),
            _callback("on_episode_step", "after each step."),
            _callback("on_episode_end", "when an episode is over."),
            _callback("on_sample_end", "at the end of sample()."),
        ),
    ),
    Section(
        "evaluation",
        "Sets how the policy is evaluated.",
        (
            Setting(
                "evaluation_interval",
                None,
                "Evaluate every that many iterations; None or 0 never.",
                "int | None",
                "host",
                check=integer(0),
                read_by="evaluation",
            ),
            Setting(
                "evaluation_duration",
                10,
                "How much one evaluation samples, in evaluation_duration_unit.",
                "int | str",
                check=integer(1, also=("auto",)),
                check_when_set=False,
                read_by="evaluation",
            ),
            Setting(
                "evaluation_duration_unit",
                "episodes",
                "'episodes' or 'timesteps'.",
                "str",
                check=one_of("episodes", "timesteps"),
                read_by="evaluation",
            ),
            Setting(
                "evaluation_auto_duration_min_env_steps_per_sample",
                100,
                "Fewest steps per round with evaluation_duration='auto'.",
                "int",
                "host",
                check=integer(1),
                read_by=ACTORS,
            ),
            Setting(
                "evaluation_auto_duration_max_env_steps_per_sample",
                2000,
                "Most steps per round with evaluation_duration='auto'.",
                "int",
                "host",
                check=integer(1),
                read_by=ACTORS,
            ),
            Setting(
                "evaluation_sample_timeout_s",
                120.0,
                "Longest duration of one evaluation, in seconds.",
                "float | None",
                "host",
                check=number(0, also=(None,)),
                read_by="evaluation",
            ),
            Setting(
                "evaluation_parallel_to_training",
                False,
                "Evaluate while training goes on, with the weights of before the iteration. Needs "
                "evaluation_num_env_runners > 0.",
                "bool",
                "host",
                check=boolean,
                read_by=ACTORS,
            ),
            Setting(
                "evaluation_unhealthy_workers_timeout_s",
                0.0,
                "Wait for a healthy evaluation actor before an evaluation is skipped, in seconds.",
                "float",
                "host",
                check=number(0),
                read_by=ACTORS,
            ),
            Setting(
                "evaluation_error_after_n_consecutive_skips",
                None,
                "Most evaluations that may be skipped in a row; one more raises. None: any number.",
                "int | None",
                "host",
                check=integer(0, also=(None,)),
                read_by=ACTORS,
            ),
            Setting(
                "evaluation_force_reset_envs_before_iteration",
                True,
                "Reset all environments at the start of each evaluation.",
                "bool",
                check=boolean,
                read_by="evaluation",
            ),
            Setting(
                "evaluation_config",
                None,
                "Settings that differ in evaluation, such as {'explore': False}. Merged into the present "
                "ones.",
                "AlgorithmConfig | dict[str, Any] | None",
                check=_evaluation_config,
                merge=True,
                read_by="evaluation",
            ),
            Setting(
                "evaluation_num_env_runners",
                0,
                "EnvRunner actors for evaluation; 0 evaluates in the main process.",
                "int",
                "host",
                check=integer(0),
                read_by=ACTORS,
            ),
            Setting(
                "custom_evaluation_function",
                None,
                "f(algorithm, eval_env_runner_group) -> (results, env_steps, agent_steps) in place of the "
                "evaluation.",
                "Callable[..., Any] | None",
                "host",
                check=function,
                read_by="evaluation",
            ),
            _offline(
                "offline_evaluation_interval",
                None,
                "Evaluate on recorded data every N iterations.",
                "int | None",
            ),
            _offline("num_offline_eval_runners", 0, "Actors for offline evaluation.", "int", integer(0)),
            _offline(
                "offline_evaluation_type",
                "eval_loss",
                "'eval_loss', 'is' or 'pdis'.",
                "str",
                one_of("eval_loss", "is", "pdis"),
            ),
            _offline("offline_eval_runner_class", None, "Runner class.", "type | None", is_class),
            _offline(
                "offline_loss_for_module_fn",
                None,
                "Loss for 'eval_loss'.",
                "Callable[..., Any] | None",
                function,
            ),
            _offline("offline_eval_batch_size_per_runner", 256, "Rows per batch.", "int", integer(1)),
            _offline(
                "dataset_num_iters_per_offline_eval_runner",
                1,
                "Batches per call.",
                "int",
                integer(1),
                "dataset_num_iters_per_eval_runner",
            ),
            _offline(
                "offline_eval_rl_module_inference_only", False, "Inference-only module.", "bool", boolean
            ),
            _offline("num_cpus_per_offline_eval_runner", 1, "CPUs per actor.", "int | float", number(0)),
            _offline("num_gpus_per_offline_eval_runner", 0, "GPUs per actor.", "int | float", number(0)),
            _offline(
                "custom_resources_per_offline_eval_runner", {}, "Ray resources per actor.", "dict", amounts
            ),
            _offline(
                "offline_evaluation_duration", 1, "Batches, or 'auto'.", "int | str", integer(1, ("auto",))
            ),
            _offline("offline_evaluation_parallel_to_training", False, "Beside training.", "bool", boolean),
            _offline("offline_evaluation_timeout_s", 120.0, "Longest wait, in seconds.", "float", number(0)),
            _offline(
                "max_requests_in_flight_per_offline_eval_runner", 1, "Pending requests.", "int", integer(1)
            ),
            _offline("broadcast_offline_eval_runner_states", False, "Send states back.", "bool", boolean),
            _offline(
                "validate_offline_eval_runners_after_construction", True, "Ping actors.", "bool", boolean
            ),
            _offline("restart_failed_offline_eval_runners", True, "Restart lost actors.", "bool", boolean),
            _offline(
                "ignore_offline_eval_runner_failures", False, "Go on without lost actors.", "bool", boolean
            ),
            _offline("max_num_offline_eval_runner_restarts", 1000, "Restarts per actor.", "int", integer(0)),
            _offline("offline_eval_runner_health_probe_timeout_s", 30.0, "Ping timeout.", "float", number(0)),
            _offline("offline_eval_runner_restore_timeout_s", 1800.0, "Restore timeout.", "float", number(0)),
        ),
    ),
    Section(
        "offline_data",
        "Sets reading and writing of recorded experience.",
        (
            _offline(
                "input_",
                "sampler",
                "Path or list of paths of recorded data; 'sampler' is none.",
                "str | list[str]",
            ),
            _offline("offline_data_class", None, "OfflineData subclass.", "type | None", is_class),
            _offline("input_read_method", "read_parquet", "Reader of ray.data.", "str | Callable[..., Any]"),
            _offline(
                "input_read_method_kwargs", {}, "Arguments of the reader.", "dict[str, Any]", dictionary
            ),
            _offline(
                "input_read_schema", {}, "Column name → name in the data.", "dict[str, str]", dictionary
            ),
            _offline("input_read_episodes", False, "Rows are packed episodes.", "bool", boolean),
            _offline("input_read_sample_batches", False, "Rows are old sample batches.", "bool", boolean),
            _offline("input_read_batch_size", None, "Rows per map call.", "int | None", integer(1)),
            _offline("input_filesystem", None, "'gcs', 's3', 'abs' or a file system.", "str | Any | None"),
            _offline(
                "input_filesystem_kwargs", {}, "Arguments of the file system.", "dict[str, Any]", dictionary
            ),
            _offline("input_compress_columns", ["obs", "new_obs"], "Packed columns.", "list[str]", name_list),
            _offline("materialize_data", False, "Keep the raw data in memory.", "bool", boolean),
            _offline("materialize_mapped_data", True, "Keep the prepared data in memory.", "bool", boolean),
            _offline("map_batches_kwargs", {}, "Arguments of map_batches.", "dict[str, Any]", dictionary),
            _offline("iter_batches_kwargs", {}, "Arguments of iter_batches.", "dict[str, Any]", dictionary),
            _offline(
                "ignore_final_observation", False, "Zeros in place of next observations.", "bool", boolean
            ),
            _offline("prelearner_class", None, "OfflinePreLearner subclass.", "type | None", is_class),
            _offline(
                "prelearner_buffer_class", None, "Buffer between data and learner.", "type | None", is_class
            ),
            _offline(
                "prelearner_buffer_kwargs", {}, "Arguments of that buffer.", "dict[str, Any]", dictionary
            ),
            _offline(
                "prelearner_use_recorded_module_states", False, "Keep recorded states.", "bool", boolean
            ),
            _offline(
                "dataset_num_iters_per_learner", None, "Batches per training step.", "int | None", integer(1)
            ),
            _offline("output", None, "Folder to record experience in.", "str | None"),
            _offline(
                "output_compress_columns", ["obs", "new_obs"], "Columns to pack.", "list[str]", name_list
            ),
            _offline("output_max_rows_per_file", None, "Rows per file.", "int | None", integer(1)),
            _offline("output_write_remaining_data", False, "Write the rest at the end.", "bool", boolean),
            _offline("output_write_method", "write_parquet", "Writer of ray.data.", "str"),
            _offline(
                "output_write_method_kwargs", {}, "Arguments of the writer.", "dict[str, Any]", dictionary
            ),
            _offline("output_filesystem", None, "File system of the output.", "str | Any | None"),
            _offline(
                "output_filesystem_kwargs", {}, "Arguments of that file system.", "dict[str, Any]", dictionary
            ),
            _offline(
                "output_write_episodes", True, "Record episodes, else one row per step.", "bool", boolean
            ),
        ),
    ),
    Section(
        "multi_agent",
        "Sets which agents use which policies.",
        (
            Setting(
                "policies",
                {DEFAULT_POLICY_ID: PolicySpec()},
                "Policy (module) ids, or a dict from id to PolicySpec.",
                "Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None]",
                check=_policies,
                read_by="algorithm",
            ),
            Setting(
                "policy_mapping_fn",
                default_policy_mapping_fn,
                "f(agent_id, episode, **kwargs) -> policy id.",
                "Callable[..., str]",
                check=function,
                read_by="runner",
            ),
            Setting(
                "policies_to_train",
                None,
                "Ids of the policies to update, or f(module_id, batch) -> bool; None updates all.",
                "Collection[str] | Callable[..., bool] | None",
                check=_policies_to_train,
                read_by="learner",
            ),
            Setting(
                "count_steps_by",
                "env_steps",
                "Unit of batch sizes and counters: 'env_steps' or 'agent_steps'.",
                "str",
                check=one_of("env_steps", "agent_steps"),
                read_by="runner",
            ),
        ),
    ),
    Section(
        "reporting",
        "Sets what an iteration is and what its result holds.",
        (
            Setting(
                "metrics_num_episodes_for_smoothing",
                100,
                "Last episodes over which episode statistics are taken.",
                "int",
                check=integer(1),
                read_by="runner",
            ),
            Setting(
                "min_time_s_per_iteration",
                None,
                "Least duration of an iteration, in seconds.",
                "float | None",
                "host",
                check=number(0),
                read_by="algorithm",
            ),
            Setting(
                "min_train_timesteps_per_iteration",
                0,
                "Fewest trained env steps in an iteration.",
                "int | None",
                check=integer(0, also=(None,)),
                read_by="algorithm",
            ),
            Setting(
                "min_sample_timesteps_per_iteration",
                0,
                "Fewest sampled env steps in an iteration.",
                "int | None",
                check=integer(0, also=(None,)),
                read_by="algorithm",
            ),
            Setting(
                "log_gradients",
                False,
                "Report the norms of the gradients before clipping.",
                "bool",
                "inert",
                check=boolean,
                instead="they are always reported; leave it out.",
            ),
            Setting(
                "custom_stats_cls_lookup",
                DEFAULT_STATS_CLS_LOOKUP,
                "Name of a reduction → class of statistics that does it. Merged into the built-in ones.",
                "dict[str, type[StatsBase]]",
                "host",
                attribute="stats_cls_lookup",
                check=_stats_classes,
                merge=True,
                read_by="algorithm",
            ),
        ),
    ),
    Section("checkpointing", "Takes no settings any more; checkpoints hold the whole state."),
    Section(
        "debugging",
        "Sets seeds, logging and help with errors.",
        (
            Setting(
                "log_level",
                "WARN",
                "Level of the logger 'jaxrl_stack'.",
                "str",
                "host",
                check=one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"),
                read_by="algorithm",
            ),
            Setting(
                "seed",
                None,
                "Seed of everything that is random; None is 0.",
                "int | None",
                "host",
                check=integer(0, maximum=MAX_SEED),
                read_by="algorithm",
            ),
            Setting(
                "disable_jit",
                False,
                "Run the same code eagerly, operation by operation: slow, but print and debuggers work in "
                "it.",
                "bool",
                check=boolean,
                read_by="algorithm",
            ),
            Setting(
                "check_nans",
                False,
                "Raise at the first loss or gradient that is not finite, naming iteration, module and "
                "tensor.",
                "bool",
                check=boolean,
                read_by="learner",
            ),
        ),
    ),
    Section(
        "fault_tolerance",
        "Sets what happens when actors or environments fail.",
        (
            _fault(
                "restart_failed_env_runners",
                True,
                "Restart EnvRunner actors that are lost, or whose environments fail.",
                "bool",
                boolean,
            ),
            _fault(
                "ignore_env_runner_failures",
                False,
                "Go on without such actors where they are not restarted.",
                "bool",
                boolean,
            ),
            _fault("max_num_env_runner_restarts", 1000, "Restarts per actor.", "int", integer(0)),
            _fault(
                "delay_between_env_runner_restarts_s",
                60.0,
                "Least time between two restarts of an actor whose environments fail, in seconds. The first restart "
                "and those of lost processes are immediate.",
                "float",
                number(0),
            ),
            _fault(
                "restart_failed_sub_environments",
                False,
                "Make an environment anew that raises, or returns NaN or infinity, and leave its episode out.",
                "bool",
                boolean,
            ),
            _fault(
                "num_consecutive_env_runner_failures_tolerance",
                100,
                "Failures of actors or environments in a row, without a successful sample, before an error is "
                "raised.",
                "int",
                integer(0),
            ),
            _fault(
                "env_runner_health_probe_timeout_s",
                30.0,
                "Longest wait for a sign of life.",
                "float",
                number(0),
            ),
            _fault(
                "env_runner_restore_timeout_s",
                1800.0,
                "Longest wait for a restored state.",
                "float",
                number(0),
            ),
        ),
    ),
    Section(
        "rl_module",
        "Sets the networks.",
        (
            Setting(
                "model_config",
                {},
                "Settings of the default networks: a DefaultModelConfig, or a dict that is free for "
                "RLModules of your own.",
                "dict[str, Any] | DefaultModelConfig",
                attribute="_model_config",
                check=_model_config,
                per_module=True,
            ),
            Setting(
                "rl_module_spec",
                None,
                "RLModuleSpec or MultiRLModuleSpec; None takes the algorithm's default module.",
                "RLModuleSpec | MultiRLModuleSpec | None",
                attribute="_rl_module_spec",
                check=_rl_module_spec,
            ),
            Setting(
                "algorithm_config_overrides_per_module",
                {},
                "Module id → settings that differ for that module; make them with overrides(...).",
                "dict[str, dict[str, Any]]",
                check=_overrides_per_module,
            ),
        ),
    ),
    Section(
        "experimental",
        "Sets what may change without notice.",
        (
            Setting(
                "_validate_config",
                True,
                "Whether validate() raises; a call of experimental() without it switches it on again.",
                "bool",
                "host",
                check=boolean,
                when_omitted=True,
            ),
            Setting(
                "_use_msgpack_checkpoints",
                False,
                "Write state files as msgpack.",
                "bool",
                "inert",
                check=boolean,
                instead="states are stored as arrays; leave it out.",
            ),
            _torch(
                "_torch_grad_scaler_class",
                None,
                "Loss scaling for half precision.",
                "type | None",
                "chain optax transformations in Learner.configure_optimizers_for_module().",
            ),
            _torch(
                "_torch_lr_scheduler_classes",
                None,
                "Learning rate schedulers.",
                "list | dict | None",
                "use lr=[[0, v0], [t1, v1], ...].",
            ),
            Setting(
                "_static_settings",
                (),
                "Traced settings to bake into the program as Python numbers, so that Python code can branch "
                "on them; each value then compiles its own program.",
                "Collection[str]",
                check=_static_names,
                convert=tuple,
            ),
        ),
    ),
)


_V = OldName


def _maps(name: str, target: str, instead: str, *sections: str, only_as_key: bool = False) -> OldName:
    return OldName(name, instead, maps_to=target, sections=sections, only_as_key=only_as_key)


_MODEL = "rl_module(model_config=DefaultModelConfig(...)) or rl_module(rl_module_spec=RLModuleSpec(...))"
_ENV_TO_MODULE = "connector pieces, env_runners(env_to_module_connector=...),"
_REPLAY = "training(replay_buffer_config={...})"

OLD_NAMES: tuple[OldName, ...] = (
    # Renamed, mapped with a warning.
    _maps("num_workers", "num_env_runners", "env_runners(num_env_runners=...)", only_as_key=True),
    _maps(
        "num_cpus_for_driver",
        "num_cpus_for_main_process",
        "resources(num_cpus_for_main_process=...)",
        only_as_key=True,
    ),
    _maps(
        "num_cpus_for_local_worker", "num_cpus_for_main_process", "resources(num_cpus_for_main_process=...)"
    ),
    _maps("num_cpus_per_worker", "num_cpus_per_env_runner", "env_runners(num_cpus_per_env_runner=...)"),
    _maps("num_gpus_per_worker", "num_gpus_per_env_runner", "env_runners(num_gpus_per_env_runner=...)"),
    _maps(
        "custom_resources_per_worker",
        "custom_resources_per_env_runner",
        "env_runners(custom_resources_per_env_runner=...)",
    ),
    _maps("num_learner_workers", "num_learners", "learners(num_learners=...)"),
    _maps("num_cpus_per_learner_worker", "num_cpus_per_learner", "learners(num_cpus_per_learner=...)"),
    _maps("num_gpus_per_learner_worker", "num_gpus_per_learner", "learners(num_gpus_per_learner=...)"),
    _maps(
        "evaluation_num_workers", "evaluation_num_env_runners", "evaluation(evaluation_num_env_runners=...)"
    ),
    _maps(
        "max_requests_in_flight_per_sampler_worker",
        "max_requests_in_flight_per_env_runner",
        "env_runners(max_requests_in_flight_per_env_runner=...)",
    ),
    _maps("num_sgd_iter", "num_epochs", "training(num_epochs=...)"),
    _maps("model_config_dict", "model_config", "rl_module(model_config=...)"),
    _maps(
        "algorithm_config_overrides_per_module",
        "algorithm_config_overrides_per_module",
        "rl_module(algorithm_config_overrides_per_module=...)",
        "multi_agent",
    ),
    _maps("local_gpu_idx", "local_gpu_idx", "learners(local_gpu_idx=...)", "resources"),
    *(
        _maps(name, name, f"learners({name}=...)", "training")
        for name in (
            "learner_class",
            "learner_connector",
            "add_default_connectors_to_learner_pipeline",
            "learner_config_dict",
            "num_aggregator_actors_per_learner",
            "max_requests_in_flight_per_aggregator_actor",
        )
    ),
    # Gone; the message says what to write.
    _V("train_batch_size", "training(train_batch_size_per_learner=...)"),
    _V("sgd_minibatch_size", "training(minibatch_size=...)"),
    _V("lr_schedule", "training(lr=[[0, v0], [t1, v1], ...])"),
    _V("entropy_coeff_schedule", "training(entropy_coeff=[[0, v0], [t1, v1], ...])"),
    _V("model", _MODEL),
    _V("vf_share_layers", "rl_module(model_config={'vf_share_layers': ...})"),
    _V("optimizer", "Learner.configure_optimizers_for_module() with optax"),
    _V("opt_type", "Learner.configure_optimizers_for_module() with optax"),
    _V("decay", "Learner.configure_optimizers_for_module() with optax"),
    _V("momentum", "Learner.configure_optimizers_for_module() with optax"),
    _V("adam_epsilon", "Learner.configure_optimizers_for_module() with optax"),
    _V("grad_norm_clipping", "training(grad_clip=...)"),
    _V("num_rollout_workers", "env_runners(num_env_runners=...)"),
    _V("num_envs_per_worker", "env_runners(num_envs_per_env_runner=...)"),
    _V("validate_workers_after_construction", "env_runners(validate_env_runners_after_construction=...)"),
    _V("num_gpus", "learners(num_learners=..., num_gpus_per_learner=...)"),
    _V("_fake_gpus", "learners(num_learners=..., num_gpus_per_learner=...)"),
    _V("evaluation_num_episodes", "evaluation(evaluation_duration=..., evaluation_duration_unit='episodes')"),
    _V(
        "always_attach_evaluation_results",
        "result.get('evaluation'), which exists in iterations that evaluate,",
    ),
    _V("enable_async_evaluation", "evaluation(evaluation_parallel_to_training=...)"),
    _V("custom_async_evaluation_function", "evaluation(custom_evaluation_function=...)"),
    _V("_run_training_always_in_thread"),
    _V("_evaluation_parallel_to_training_wo_thread"),
    _V("recreate_failed_workers", "fault_tolerance(restart_failed_env_runners=...)"),
    _V("recreate_failed_env_runners", "fault_tolerance(restart_failed_env_runners=...)"),
    _V("ignore_worker_failures", "fault_tolerance(ignore_env_runner_failures=...)"),
    _V("max_num_worker_restarts", "fault_tolerance(max_num_env_runner_restarts=...)"),
    _V("delay_between_worker_restarts_s", "fault_tolerance(delay_between_env_runner_restarts_s=...)"),
    _V(
        "num_consecutive_worker_failures_tolerance",
        "fault_tolerance(num_consecutive_env_runner_failures_tolerance=...)",
    ),
    _V("worker_health_probe_timeout_s", "fault_tolerance(env_runner_health_probe_timeout_s=...)"),
    _V("worker_restore_timeout_s", "fault_tolerance(env_runner_restore_timeout_s=...)"),
    _V("num_aggregation_workers", "learners(num_aggregator_actors_per_learner=...)"),
    _V(
        "max_requests_in_flight_per_aggregator_worker",
        "learners(max_requests_in_flight_per_aggregator_actor=...)",
    ),
    _V("exploration_config", "RLModule._forward_exploration() (DQN: training(epsilon=...))"),
    _V(
        "observation_filter",
        "env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())",
    ),
    _V("preprocessor_pref", _ENV_TO_MODULE),
    _V("_disable_preprocessor_api", _ENV_TO_MODULE),
    _V("_disable_action_flattening", _ENV_TO_MODULE),
    _V("_disable_initialize_loss_from_dummy_batch"),
    _V("compress_observations"),
    _V("observation_fn", _ENV_TO_MODULE),
    _V("observation_function", _ENV_TO_MODULE),
    _V("sample_collector", "episodes (SingleAgentEpisode) and connectors"),
    _V("use_worker_filter_stats", "env_runners(broadcast_env_runner_states=...)"),
    _V("update_worker_filter_stats", "env_runners(merge_env_runner_states=...)"),
    _V("synchronize_filter", "env_runners(merge_env_runner_states=..., broadcast_env_runner_states=...)"),
    _V("synchronize_filters", "env_runners(merge_env_runner_states=..., broadcast_env_runner_states=...)"),
    _V("enable_connectors"),
    _V("remote_worker_envs", "env_runners(gym_env_vectorize_mode='async')"),
    _V("remote_env_batch_wait_ms", "env_runners(gym_env_vectorize_mode='async')"),
    _V("env_task_fn", "an on_train_result callback that calls env_runner_group.foreach_env_runner(...)"),
    _V("auto_wrap_old_gym_envs", "a gymnasium environment"),
    _V("policy_map_capacity"),
    _V("policy_states_are_swappable"),
    _V("policy_map_cache"),
    _V("replay_mode", _REPLAY),
    _V("buffer_size", _REPLAY),
    _V("prioritized_replay", _REPLAY),
    _V("prioritized_replay_alpha", _REPLAY),
    _V("prioritized_replay_beta", _REPLAY),
    _V("prioritized_replay_eps", _REPLAY),
    _V("replay_batch_size", _REPLAY),
    _V("learning_starts", "training(num_steps_sampled_before_learning_starts=...)"),
    _V("_enable_rl_module_api"),
    _V("_enable_learner_api"),
    _V("_enable_new_api_stack"),
    _V("uses_new_env_runners"),
    _V("logger_creator", "tune.RunConfig(storage_path=..., name=...) or an on_train_result callback"),
    _V("logger_config", "tune.RunConfig(storage_path=..., name=...) or an on_train_result callback"),
    _V("log_sys_usage"),
    _V("fake_sampler"),
    _V("export_native_model_files", "RLModule.save_to_path()"),
    _V("checkpoint_trainable_policies_only"),
    _V("keep_per_episode_custom_metrics", "metrics_logger.log_value() in a callback"),
    _V("metrics_episode_collection_timeout_s", "env_runners(sample_timeout_s=...)"),
    _V("sampler_perf_stats_ema_coef", "metrics_logger.log_value(ema_coeff=...) in a callback"),
    _V("input_evaluation", "evaluation(offline_evaluation_type=...)"),
    _V("off_policy_estimation_methods", "evaluation(offline_evaluation_type=...)"),
    _V("ope_split_batch_by_episode"),
    _V("prelearner_module_synch_period"),
    _V("input_config", "offline_data(input_read_method_kwargs=...)"),
    _V("shuffle_buffer_size", "offline_data(map_batches_kwargs=..., iter_batches_kwargs=...)"),
    _V("actions_in_input_normalized", "learners(learner_connector=...)"),
    _V("postprocess_inputs", "learners(learner_connector=...)"),
    _V("output_config", "offline_data(output_write_method_kwargs=...)"),
    _V("output_max_file_size", "offline_data(output_max_rows_per_file=...)"),
    _V("offline_sampling"),
    _V("eager_tracing"),
    _V("eager_max_retraces"),
    _V("tf_session_args"),
    _V("local_tf_session_args"),
    _V("enable_tf1_exec_eagerly"),
    _V("_eager_traced"),
    _V("_tf_policy_handles_more_than_one_loss"),
    _V("torch_compile_worker"),
    _V("torch_compile_worker_dynamo_backend"),
    _V("torch_compile_worker_dynamo_mode"),
    _V("_torch_lr_schedule_classes", "training(lr=[[0, v0], [t1, v1], ...])"),
    _V("timesteps_per_iteration", "reporting(min_sample_timesteps_per_iteration=...)"),
    _V("min_iter_time_s", "reporting(min_time_s_per_iteration=...)"),
    _V("min_time_s_per_reporting", "reporting(min_time_s_per_iteration=...)"),
    _V("min_train_timesteps_per_reporting", "reporting(min_train_timesteps_per_iteration=...)"),
    _V("min_sample_timesteps_per_reporting", "reporting(min_sample_timesteps_per_iteration=...)"),
    _V("metrics_smoothing_episodes", "reporting(metrics_num_episodes_for_smoothing=...)"),
    _V("collect_metrics_timeout", "env_runners(sample_timeout_s=...)"),
    _V("worker_cls", "env_runners(env_runner_cls=...)"),
    _V("monitor", "gymnasium.wrappers.RecordVideo around the environment"),
    _V("simple_optimizer"),
    _V("_disable_execution_plan_api"),
)
