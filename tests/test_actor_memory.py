"""Memory that actors need, held against what the machine has."""

from __future__ import annotations

import pytest

from jaxrl_stack.utils.memory import HostMemory
from tests.test_memory import GIB, config


def test_actors_are_held_against_the_whole_machine(ray_session, monkeypatch):
    assert ray_session.is_initialized()
    monkeypatch.setattr("jaxrl_stack.execution.memory.host_memory", lambda: HostMemory(64 * GIB, 0))
    asked = config("CartPole-v1").env_runners(num_env_runners=2).learners(num_learners=1)
    with pytest.raises(ValueError, match=r"batch: at least .* because 64 GiB are all that this machine has"):
        asked.copy().training(train_batch_size_per_learner=10**12).build_algo()
    with pytest.raises(ValueError, match=r"environments: .* 2 env runner\(s\) .* or num_env_runners=2\."):
        asked.copy().env_runners(num_envs_per_env_runner=10**9).build_algo()
