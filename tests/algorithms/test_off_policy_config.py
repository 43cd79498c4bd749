"""Settings that the off-policy algorithms share: replay, n-step returns, the ratio of training to sampling."""

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQN, DQNConfig
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from jaxrl_stack.utils.class_paths import ClassLoader


class MyBuffer(EpisodeReplayBuffer):
    """With a setting of its own."""

    def __init__(self, capacity: int = 10, *, fraction: float = 0.5):
        super().__init__(capacity)
        self.fraction = fraction


def config_of(**training):
    spaces = {"observation_space": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "action_space": gym.spaces.Discrete(2)}
    return DQNConfig().environment("CartPole-v1", **spaces).training(**training)


def refused(match, **training):
    config = DQNConfig().environment("CartPole-v1")
    with pytest.raises((ValueError, NotImplementedError), match=match):
        config.training(**training).validate()


# ---------------------------------------------------------------------------------------------------------- replay


def test_replay_settings_are_merged_unless_the_type_changes():
    config = config_of(replay_buffer_config={"capacity": 100})
    assert config.replay_buffer_config == {
        "type": "PrioritizedEpisodeReplayBuffer",
        "capacity": 100,
        "alpha": 0.6,
        "beta": 0.4,
    }
    assert (config.replay_capacity, config.replay_alpha, config.replay_beta) == (100, 0.6, 0.4)
    assert config.uses_priorities and config.replay_buffer_class is PrioritizedEpisodeReplayBuffer
    assert config.replay_buffer_kwargs == {"capacity": 100, "alpha": 0.6}
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer"})
    assert config.replay_buffer_config == {"type": "EpisodeReplayBuffer"}
    # What is left out is the buffer's own default.
    assert (config.replay_capacity, config.replay_alpha, config.replay_beta) == (10_000, 0.0, 0.0)
    assert not config.uses_priorities
    config.validate()
    assert DQNConfig().replay_buffer_config["capacity"] == 50_000


@pytest.mark.parametrize("kind", [MyBuffer, f"{__name__}.MyBuffer", f"{__name__}:MyBuffer"])
def test_buffers_of_your_own(kind):
    config = config_of(replay_buffer_config={"type": kind, "capacity": 20, "fraction": 0.25})
    assert config.replay_buffer_class is MyBuffer
    buffer = config.replay_buffer_class(**config.replay_buffer_kwargs)
    assert (buffer.capacity, buffer.fraction) == (20, 0.25)
    with pytest.raises(ValueError, match=r"without 'alpha': MyBuffer takes 'capacity', 'fraction'"):
        config.training(replay_buffer_config={"alpha": 0.5}).validate()
    with pytest.raises(ValueError, match=r"needs a host environment.*'EpisodeReplayBuffer'"):
        config_of(replay_buffer_config={"type": kind}).environment("gymnax/CartPole-v1").validate()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (7, "a dict such as"),
        ({"type": "ReplayBufer!"}, "'type' is one of 'EpisodeReplayBuffer'"),
        ({"type": int}, "a subclass of EpisodeReplayBuffer"),
        ({"type": "MultiAgentReplayBuffer"}, "'type' is one of 'EpisodeReplayBuffer'"),
        ({"type": "no_such.Module"}, "cannot be imported: No module named 'no_such'"),
        ({"type": "math.sin"}, "the type is sin, not a replay buffer class"),
        ({"capacity": 0}, "'capacity' is an integer of at least 1"),
        ({"alpha": -0.5}, "'alpha' is a finite number at least 0"),
        ({"beta": float("inf")}, "'beta' is a finite number"),
        ({"buffer_size": 10}, r"without 'buffer_size' \(instead of it: 'capacity'\)"),
        ({"batch_size_B": 10}, r"instead of it: training\(train_batch_size_per_learner=...\)"),
        ({"type": "EpisodeReplayBuffer", "beta": 0.4}, "without 'beta': EpisodeReplayBuffer takes"),
    ],
)
def test_replay_settings_that_cannot_be_right(settings, match):
    refused(match, replay_buffer_config=settings)


def test_search_spaces_in_the_replay_settings():
    config = config_of(replay_buffer_config={"capacity": {"grid_search": [10, 20]}})
    with pytest.raises(ValueError, match="'capacity'.* is still a search space"):
        config.validate()


def test_a_checkpoint_imports_no_buffer_that_was_not_named():
    config = config_of(replay_buffer_config={"type": f"{__name__}.MyBuffer"})
    data = {"replay_buffer_config": config.to_plain()["replay_buffer_config"]}
    with pytest.raises(ValueError, match="needs the replay buffer .*MyBuffer.*allow="):
        DQNConfig.from_plain(data, ClassLoader())
    loaded = DQNConfig.from_plain(data, ClassLoader([f"{__name__}.MyBuffer"]))
    assert loaded.replay_buffer_class is MyBuffer
    DQNConfig.from_plain({"replay_buffer_config": {"type": "EpisodeReplayBuffer"}}, ClassLoader())


# ----------------------------------------------------------------------------------------------- rounds and n-step


@pytest.mark.parametrize(("n_step", "length", "largest"), [(1, 1, 1), (3, 3, 3), ((2, 5), 5, 4), ([2, 5], 5, 4)])
def test_fragments_are_as_long_as_the_returns(n_step, length, largest):
    config = config_of(n_step=n_step)
    assert (config.get_rollout_fragment_length(), config.max_n_step) == (length, largest)
    # Returns reach over fragments: shorter ones are fine, too.
    config.env_runners(rollout_fragment_length=1).validate()
    assert config.get_rollout_fragment_length() == 1


def test_the_ratio_of_training_to_sampling_is_rllibs():
    """Numbers of RLlib's `calculate_rr_weights`."""
    assert config_of().rounds_per_training_step == (1, 1)
    for intensity, expected in ((32, (1, 1)), (64, (1, 2)), (80, (1, 2)), (1, (32, 1)), (0.1, (320, 1))):
        assert config_of(training_intensity=intensity).rounds_per_training_step == expected, intensity
    config = config_of(training_intensity=32, n_step=2, train_batch_size_per_learner=64)
    config.env_runners(num_env_runners=3, num_envs_per_env_runner=4)
    # 64 rows for 2 * 4 * (3 + 1) steps: twice the natural ratio of 2 is 16 of them.
    assert config.rounds_per_training_step == (1, 16)
    # With a JAX environment there are no runners: 64 rows for 8 steps.
    assert config.copy().environment("gymnax/CartPole-v1").rounds_per_training_step == (1, 4)
    two = config.copy().learners(num_learners=2)
    assert two.rounds_per_training_step == (1, 8)


@pytest.mark.parametrize(
    ("training", "match"),
    [
        ({"n_step": 0}, r"an integer of at least 1, or a range \(lo, hi\)"),
        ({"n_step": (3, 3)}, "1 <= lo < hi"),
        ({"n_step": (1, 2, 3)}, "1 <= lo < hi"),
        ({"training_intensity": 0}, "above 0"),
        ({"tau": 1.5}, "at most 1"),
        ({"target_network_update_freq": -1}, "at least 0"),
        ({"num_steps_sampled_before_learning_starts": -1}, "at least 0"),
        ({"store_buffer_in_checkpoints": 1}, "True or False"),
        (
            {"num_epochs": 2},
            r"num_epochs=2\): an update from replay is one gradient step.*train_batch_size_per_learner=32",
        ),
        ({"minibatch_size": 16}, r"minibatch_size=16\): an update from replay"),
        ({"shuffle_batch_per_epoch": True}, "raise training_intensity"),
    ],
)
def test_values_that_cannot_be_right(training, match):
    refused(match, **training)


def test_what_derives_from_it():
    assert issubclass(DQNConfig, OffPolicyConfig) and issubclass(DQN, OffPolicyAlgorithm)
    assert DQN.training_step_class is OffPolicyStep
    assert DQN.get_default_config().algo_class is DQN
