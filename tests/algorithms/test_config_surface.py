"""The settings against RLlib's own: names, sections, defaults, old names."""

from __future__ import annotations

import inspect
import json
import pathlib
from typing import Any

import pytest

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.config_store import Settings
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.setting_values import as_dict

FACTS = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "rllib_api.json").read_text())
GROUPS = FACTS["config"]["groups"]
PPO = FACTS["algorithms"]["PPO"]

# Settings whose default differs on purpose: RLlib's repr → ours, with the reason.
OTHER_DEFAULTS = {
    "framework": "jax",  # the only framework
    "torch_compile_learner_what_to_compile": "forward_train",  # an enum there
    "output_max_rows_per_file": 100_000,  # without a limit every row is written again and again there
    "output_write_remaining_data": True,  # False loses what is left there
}

CURRENT = [
    (section, name)
    for section, settings in GROUPS.items()
    for name, fact in settings.items()
    if not fact.get("deprecated")
]
OLD = [
    (section, name) for section, settings in GROUPS.items() for name, fact in settings.items() if fact.get("deprecated")
]


@pytest.mark.parametrize("section", GROUPS)
def test_every_section_exists_and_chains(section):
    config = AlgorithmConfig()
    assert getattr(config, section)() is config


def test_every_current_setting_is_in_its_section():
    for section, name in CURRENT:
        parameters = inspect.signature(getattr(AlgorithmConfig, section)).parameters
        assert name in parameters, f"{section}({name}=)"
        is_positional = parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert is_positional == GROUPS[section][name].get("kind", "").startswith("positional"), name


def test_defaults_are_rllibs():
    for section, name in CURRENT:
        fact = GROUPS[section][name]
        attribute = fact.get("attribute", name)
        value = AlgorithmConfig().__dict__[attribute]
        if name == "policies":
            assert list(value) == ["default_policy"]
            assert set(as_dict(value["default_policy"]).values()) == {None}
        elif name == "policy_mapping_fn":
            assert value("agent", None) == "default_policy"
        elif name == "callbacks_class":
            assert (value.__name__, value.__module__) == ("RLlibCallback", "jaxrl_stack.callbacks.callbacks")
        elif name == "custom_stats_cls_lookup":
            names = {key: cls.__name__ for key, cls in value.items()}
            assert all(f"'{key}': ray.rllib" in fact["default"] for key in names)
            assert all(f".{cls}" in fact["default"] for cls in names.values())
            assert len(names) == fact["default"].count("ray.rllib")
        elif name in OTHER_DEFAULTS:
            assert value == OTHER_DEFAULTS[name], name
        else:
            assert repr(value) == fact["default"], name


def test_ppo_settings_and_defaults_are_rllibs():
    config = PPOConfig()
    for name, fact in PPO["training"].items():
        if fact.get("deprecated"):
            with pytest.raises(ValueError, match=name):
                config.training(**{name: 1})
        else:
            assert name in inspect.signature(PPOConfig.training).parameters
            assert repr(getattr(config, name)) == fact["default"], name
    for name, changed in PPO["overridden_base_defaults"].items():
        if name not in ("model", "_prior_exploration_config"):
            default = changed["default"] if isinstance(changed, dict) else changed
            assert repr(config[name]) == default, name
    assert {k: repr(v) for k, v in config.model_config.items()} == PPO["model_config_auto_includes"]


@pytest.mark.parametrize(("section", "name"), OLD)
def test_old_settings_never_pass_in_silence(section, name, monkeypatch):
    """Each raises with a sentence about it, maps with a warning, or says that it has no effect."""
    config = PPOConfig()
    setting = config._declarations.by_name.get(name)
    if setting is not None and config._declarations.section_of[name] == section:
        # Here, it is a setting: live, or one that says once that it has no effect.
        assert setting.kind == "inert" or setting.read_by in ("config", "runner", "learner", "actors", "evaluation")
        return
    # What is taken of the old "model" are the settings that today's default networks have.
    value: Any = {"vf_share_layers": True} if name == "model" else 1
    old = config._declarations.old_name(name, section)
    if old is None:
        with pytest.raises(TypeError, match="belongs to"):
            getattr(config, section)(**{name: value})
    elif old.maps_to:
        # Whatever the value: only the way is tested.
        monkeypatch.setattr(Settings, "_checked", lambda self, setting, value: value)
        with pytest.warns(DeprecationWarning, match=name):
            getattr(config, section)(**{name: value})
    else:
        with pytest.raises(ValueError, match=name):
            getattr(config, section)(**{name: value})


def test_old_attributes_name_their_replacement():
    config = AlgorithmConfig()
    names = [*FACTS["config"]["deprecated_attribute_aliases"], *FACTS["config"]["removed_attributes_with_sentinel"]]
    for name in names:
        with pytest.raises(AttributeError, match="is gone"):
            getattr(config, name)
        old = config._declarations.old[name]
        if not old.maps_to:
            with pytest.raises(ValueError, match=name):
                config.update_from_dict({name: 3})


def test_methods_and_properties_exist_with_rllibs_arguments():
    absent = {"get_torch_compile_worker_config"}  # nothing to compile in a worker
    for name, parameters in FACTS["config"]["methods"].items():
        if name in absent:
            continue
        ours = inspect.signature(getattr(PPOConfig, name)).parameters
        wanted = [p.split("=")[0] for p in parameters if not p.startswith("*")]
        names = [p for p in ours if p != "self"]
        if name == "DEFAULT_POLICY_MAPPING_FN":
            wanted = wanted[:2]
        assert names[: len(wanted)] == wanted, name
    for name in FACTS["config"]["properties"]:
        assert isinstance(inspect.getattr_static(PPOConfig, name), property), name


def test_every_setting_of_our_own_is_known():
    """What is here and not in RLlib; a new entry belongs in this list and in the docs."""
    theirs = {name for settings in GROUPS.values() for name in settings}
    # Two settings that RLlib has as attributes only.
    theirs |= {"offline_evaluation_duration", "offline_evaluation_parallel_to_training"}
    ours = set(AlgorithmConfig._declarations.by_name) - theirs
    assert ours == {
        "compilation_cache_dir",
        "num_shuffle_shards",
        "learner_snapshot_interval",
        "disable_jit",
        "check_nans",
        "results_dir",
        "keep_best",
        "checkpoint_frequency",
        "num_to_keep",
        "checkpoint_max_bytes",
        "loggers",
        "evaluation_video_interval",
        "evaluation_video_dir",
        "profile_iterations",
        "_static_settings",
        "keep_resident",
        "max_resident_bytes",
        "normalize_observations",
        "normalize_rewards",
        "output_format",
        "output_write_infos",
        "randomized_params",
        "privileged_params",
        "replayable_episodes",
        "opponents",
    }
