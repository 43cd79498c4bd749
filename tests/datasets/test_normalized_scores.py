import pytest

from jaxrl_stack.offline import normalized_score


@pytest.mark.parametrize(
    ("env", "episode_return", "score"),
    [
        ("halfcheetah-medium-v2", 12135.0, 100.0),
        ("hopper-random-v0", -20.272305, 0.0),
        ("walker2d-full-replay-v1", (4592.3 + 1.629008) / 2, 50.0),
        ("Ant-v5", 3879.7, 100.0),
        ("hopper", 3234.3, 100.0),
        ("antmaze-large-play-v2", 0.7, 70.0),
    ],
)
def test_scores_are_0_for_a_random_policy_and_100_for_an_expert(env, episode_return, score):
    assert normalized_score(env, episode_return) == pytest.approx(score)


@pytest.mark.parametrize("env", ["CartPole-v1", "hopper-best-v2", "antmaze-medium-v2", "kitchen-partial-v0", ""])
def test_what_d4rl_does_not_publish_is_refused(env):
    with pytest.raises(ValueError, match="needs one of D4RL's environments"):
        normalized_score(env, 1.0)
