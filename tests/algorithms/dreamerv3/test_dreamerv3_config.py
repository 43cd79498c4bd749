"""DreamerV3Config: RLlib's settings and defaults, what it builds, and what it refuses."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import jaxrl_stack
from jaxrl_stack.algorithms.dreamerv3 import (
    DreamerV3,
    DreamerV3Config,
    DreamerV3Learner,
    DreamerV3RLModule,
    networks_memory,
)
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import MODULE_SETTINGS
from jaxrl_stack.algorithms.registry import get_algorithm_class, get_algorithm_config_class
from jaxrl_stack.utils import notices

FACTS = json.loads((Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())["algorithms"]["DreamerV3"]
VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
OWN_SETTINGS = {"gru_blocks", "optimizer", "replay_latents", "actor_gradient"}


@pytest.fixture
def said(monkeypatch):
    """What notices say, those that were given before included."""
    given = set()
    monkeypatch.setattr(notices, "_given", given)
    return given


def config(**training):
    return DreamerV3Config().environment("gymnax/CartPole-v1").training(**{"model_size": "nano"} | training)


def test_settings_and_defaults_are_rllibs():
    made, parameters = DreamerV3Config(), inspect.signature(DreamerV3Config.training).parameters
    for name, fact in FACTS["training"].items():
        assert name in parameters and repr(made[name]) == fact["default"], name
    for name, default in FACTS["overridden_base_defaults"].items():
        if name != "use_worker_filter_stats":  # which belongs to RLlib's old stack
            assert repr(made[name]) == default, name
    for name in ("report_individual_batch_item_stats", "report_dream_data", "report_images_and_videos"):
        assert name in inspect.signature(DreamerV3Config.reporting).parameters and made[name] is False
    own = {setting.name for section in DreamerV3Config._sections for setting in section.settings}
    assert own - set(FACTS["own_attributes"]) == OWN_SETTINGS


def test_it_is_registered_under_rllibs_names():
    assert get_algorithm_class("DreamerV3") is jaxrl_stack.DreamerV3 is DreamerV3
    assert get_algorithm_config_class("DreamerV3") is jaxrl_stack.DreamerV3Config is DreamerV3Config
    made = DreamerV3Config()
    assert made.algo_class is DreamerV3 and DreamerV3.get_default_config().algo_class is DreamerV3
    assert made.learner_class is DreamerV3Learner
    assert made.get_default_rl_module_spec().module_class is DreamerV3RLModule
    assert tuple(made.model_config) == MODULE_SETTINGS
    assert (made.items_per_update, made.num_prefilled_steps, made.get_rollout_fragment_length()) == (1024, 1024, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_size": "tiny"}, r"model_size='tiny'.*one of 'nano'"),
        ({"training_ratio": 0}, r"training_ratio=0.*above 0"),
        ({"batch_length_T": 1}, r"batch_length_T=1.*at least 2"),
        ({"horizon_H": 0}, r"horizon_H=0.*at least 1"),
        ({"lr": 1e-3}, r"lr=0.001.*world_model_lr, actor_lr and critic_lr"),
        ({"gru_blocks": 3}, r"gru_blocks=3\) must divide the 16 units.*model_size='nano'"),
        ({"n_step": 3}, r"n_step=3\) would have no effect: returns are those of imagined rollouts"),
        ({"burn_in_len": 3}, r"burn_in_len=3\) would have no effect: windows start"),
        ({"training_intensity": 2}, r"training_intensity=2\) would have no effect: set training_ratio"),
        ({"num_steps_sampled_before_learning_starts": 5}, r"begin after batch_size_B \* batch_length_T random"),
        ({"train_batch_size_per_learner": 64}, "set batch_size_B and batch_length_T"),
        ({"grad_clip": 40.0}, "limits of their own, such as actor_grad_clip_by_global_norm"),
        ({"minibatch_size": 16}, r"minibatch_size=16\): an update from replay is one gradient step"),
        ({"replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer"}}, "needs a uniform replay buffer"),
        ({"replay_buffer_config": {"zero_init_states": True}}, "replay buffer without states"),
        (
            {"replay_buffer_config": {"capacity": 1000}},
            r"holds 1000 steps per environment.*1024 in total \(batch_size_B \* batch_length_T\)",
        ),
    ],
)
def test_what_cannot_be_right(settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings).validate()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.env_runners(num_env_runners=2), ValueError, r"num_env_runners=2\) must be 0"),
        (
            lambda c: c.environment("CartPole-v1").env_runners(batch_mode="complete_episodes"),
            ValueError,
            "training_ratio needs rounds of a fixed number",
        ),
        (
            lambda c: c.env_runners(num_envs_per_env_runner=40).training(replay_buffer_config={"capacity": 2000}),
            ValueError,
            r"holds 50 steps per environment \(num_envs_per_env_runner=40\).*batch_length_T=64 per environment",
        ),
        (lambda c: c.learners(num_learners=3), ValueError, r"batch_size_B=16\) must be a multiple of num_learners=3"),
        (
            lambda c: c.multi_agent(policies={"a", "b"}),
            NotImplementedError,
            "DreamerV3 does not support several policies",
        ),
        (lambda c: c.offline_data(input_=["data"]), ValueError, "DreamerV3 learns from sampled steps only"),
        (
            lambda c: c.reporting(report_images_and_videos=True),
            NotImplementedError,
            "report_images_and_videos.*imagine",
        ),
        (lambda c: c.reporting(report_dream_data=True), NotImplementedError, "report_dream_data.*imagine"),
        (
            lambda c: c.environment(action_space=gym.spaces.MultiDiscrete([2, 2])),
            ValueError,
            "supports the action spaces Discrete",
        ),
        (lambda c: c.environment(observation_space=gym.spaces.Discrete(4)), ValueError, "Discrete.*vectors.*images"),
    ],
)
def test_what_it_does_not_do_is_refused_when_it_is_validated(change, error, message):
    with pytest.raises(error, match=message):
        change(config()).validate()


@pytest.mark.parametrize(
    ("model_config", "spaces", "message"),
    [
        ({"fcnet_hiddens": [4]}, (VECTOR, BOX), r"fcnet_hiddens.*training\(model_size=...\)"),
        ({}, (gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), BOX), "images of 64 x 64 pixels.*FlattenObservations"),
        ({}, (gym.spaces.Dict({"a": VECTOR, "b": gym.spaces.Discrete(2)}), BOX), r"its part 'b'"),
        (
            {},
            (VECTOR, gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32)),
            r"supports the action spaces Discrete and Box\(shape=",
        ),
        ({}, (VECTOR, gym.spaces.Box(0, 9, (2,), np.int32)), r"supports the action spaces Discrete and Box\(shape="),
    ],
)
def test_networks_and_spaces_that_do_not_go(model_config, spaces, message):
    made = config().rl_module(model_config=model_config)
    with pytest.raises(ValueError, match=message):
        made.get_multi_rl_module_spec(spaces={"default_policy": spaces}).build(seed=0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda c: c.training(use_curiosity=True), "use_curiosity=True.* has no effect: RLlib's new stack"),
        (lambda c: c.training(intrinsic_rewards_scale=0.3), "intrinsic_rewards_scale=0.3.* has no effect"),
        (
            lambda c: c.reporting(report_individual_batch_item_stats=True),
            "report_individual_batch_item_stats.*no effect",
        ),
        (
            lambda c: c.training(optimizer="laprop", actor_grad_clip_by_global_norm=1.0),
            "actor_grad_clip_by_global_norm=1.0.* has no effect: optimizer='laprop'",
        ),
        (
            lambda c: c.training(actor_gradient="dynamics").environment(action_space=gym.spaces.Discrete(2)),
            "actor_gradient='dynamics'.*straight-through",
        ),
    ],
)
def test_settings_without_effect_say_so(change, line, said):
    change(config()).validate()
    assert any(re.search(line, each) for each in said), said


@pytest.mark.parametrize(
    ("space", "names", "shapes"),
    [
        (gym.spaces.Box(0, 255, (84, 96, 3), np.uint8), ["ResizeImages"], [(64, 64, 3)]),
        (gym.spaces.Box(0, 255, (64, 64), np.uint8), [], [(64, 64)]),
        (gym.spaces.Dict(a=VECTOR, b=gym.spaces.Box(0, 255, (8, 8), np.uint8)), ["ResizeImages"], [(3,), (64, 64)]),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)),
            ["ResizeImages", "DefaultObservations"],
            [(3,), (64, 64, 1)],
        ),
        (gym.spaces.Discrete(3), ["FlattenObservations"], [(3,)]),
    ],
)
def test_images_are_resized_and_all_else_is_flattened(space, names, shapes, said):
    pipeline = config().build_env_to_module_connector(spaces={"__env_single__": (space, BOX)})
    assert pipeline.names == names
    out = pipeline.observation_space
    parts = out.spaces.values() if isinstance(out, gym.spaces.Dict) else [out]
    assert [part.shape for part in parts] == shapes
    assert any("pixels are resized to 64 x 64" in line for line in said) == ("ResizeImages" in names)
    assert all(part.dtype == np.uint8 for part in parts if len(part.shape) > 1)


def test_memory_of_the_largest_networks_is_known_without_making_them(monkeypatch):
    image = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    estimate = DreamerV3Config().training(model_size="XL").networks_memory(image, gym.spaces.Discrete(18))
    # The paper's table of sizes has 200 million parameters.
    assert abs(estimate.counts["parameters"] / 200e6 - 1) < 0.02
    assert estimate.num_bytes == 16 * estimate.counts["parameters"] + 4 * 16 * 1024 * (4096 + 1024)
    monkeypatch.setattr(networks_memory, "available_memory", lambda device: 10**9)
    build = config(model_size="XL").environment("CartPole-v1").build_learner_group
    with pytest.raises(ValueError, match=r"networks of model_size='XL'.*cannot fit.*model_size='XL'.*batch_size_B=16"):
        build(spaces={"__env_single__": (VECTOR, BOX), "default_policy": (VECTOR, BOX)})


def test_which_settings_recompile():
    made = config()
    same = {"gamma": 0.9, "gae_lambda": 0.5, "entropy_scale": 1.0, "actor_lr": [[0, 1.0], [9, 0.0]], "tau": 0.5}
    assert config(**same, return_normalization_decay=0.5).differs_in_traced_settings_only(made)
    for changed in ({"horizon_H": 3}, {"batch_size_B": 4}, {"train_actor": False}, {"use_float16": True}):
        assert not config(**changed).differs_in_traced_settings_only(made)


def test_settings_survive_a_round_trip():
    made = config(training_ratio=64, optimizer="laprop", actor_gradient="dynamics", symlog_obs=False, gru_blocks=8)
    again = DreamerV3Config.from_dict(made.to_dict())
    assert again.to_dict() == made.to_dict() and (again.gru_blocks, again.symlog_obs) == (8, False)


def test_the_papers_last_form_is_four_settings():
    made = DreamerV3Config().paper()
    assert {name: made[name] for name in OWN_SETTINGS} == {
        **{"gru_blocks": 8, "optimizer": "laprop", "replay_latents": True, "actor_gradient": "reinforce"}
    }
    assert all(DreamerV3Config()[name] != made[name] for name in OWN_SETTINGS)


def test_how_the_actor_learns_follows_from_the_actions():
    made = DreamerV3Config()
    assert made.differentiates_dreams(BOX) and not made.differentiates_dreams(gym.spaces.Discrete(2))
    assert not made.training(actor_gradient="reinforce").differentiates_dreams(BOX)
    assert made.training(actor_gradient="dynamics").differentiates_dreams(gym.spaces.Discrete(2))
