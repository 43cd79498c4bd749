"""The notice about environments whose steps take most of the time."""

from __future__ import annotations

import pytest

from envs.faulty import CrashingEnv
from jaxrl_stack.acting.recording import StepTimes
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.execution.slow_steps import note_slow_steps
from jaxrl_stack.utils import notices


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(notices, "_given", set())


def config(num_envs=8, num_runners=0, **more):
    runners = {"num_envs_per_env_runner": num_envs, "num_env_runners": num_runners}
    return PPOConfig().environment("CartPole-v1").env_runners(**runners, **more)


def test_it_comes_once_and_has_the_numbers(caplog):
    for seconds in (0.96, 0.98):
        note_slow_steps(config(), StepTimes(seconds, num_steps=50), 1.0)
    (message,) = caplog.messages
    # 50 steps of 8 environments.
    assert "take 96% of the time, 2.4 ms each" in message and "gym_env_vectorize_mode='async'" in message
    assert '`if __name__ == "__main__":`' in message and "num_env_runners=4" in message


def test_its_remedy_is_one_that_there_is(caplog):
    note_slow_steps(config(num_envs=1), StepTimes(0.9, 100), 1.0)
    assert "env_runners(num_envs_per_env_runner=8, gym_env_vectorize_mode='async')" in caplog.text
    notices._given.clear()
    caplog.clear()
    # Two runners have sampled side by side.
    several = config(num_runners=2).multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
    note_slow_steps(several, StepTimes(1.8, 100), 1.0)
    assert "take 90% of the time" in caplog.text and "num_env_runners=4" in caplog.text
    assert "async" not in caplog.text


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (StepTimes(0.9, 200), 1.0),  # 0.6 ms a step
        (StepTimes(0.9, 50), 1.5),  # 60 %
        (StepTimes(0.9, 3), 1.0),  # one of these may have been slow by chance
        (StepTimes(0.0, 0), 1.0),  # environments that step themselves
    ],
)
def test_there_is_none_for_others(times, seconds, caplog):
    note_slow_steps(config(), times, seconds)
    assert not caplog.messages


@pytest.mark.parametrize("has_several", [False, True])
def test_training_measures_the_steps(has_several, caplog):
    asked = PPOConfig().environment(CrashingEnv, env_config={"seconds": 0.03})
    if has_several:
        asked.environment(make_multi_agent(CrashingEnv))
        asked.multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
    asked.env_runners(num_env_runners=0)
    asked.training(train_batch_size_per_learner=20, minibatch_size=20, num_epochs=1)
    algo = asked.rl_module(model_config={"fcnet_hiddens": [4]}).build_algo()
    # The first iteration compiles; beside other processes another one may take long, too.
    for _ in range(6):
        timer = algo.train()["env_runners"]["env_step_timer"]
        if "Steps of the environment take" in caplog.text:
            break
    algo.train()
    algo.stop()
    assert 0.03 <= timer < 0.3
    assert caplog.text.count("Steps of the environment take") == 1
