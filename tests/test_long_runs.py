"""What results say after days of training: counts beyond 2**32 and 2**24, and long sums of small numbers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.acting.episode_window import EpisodeWindow, num_episodes, redistributed
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.learner.target_networks import LAST_TARGET_UPDATE, TARGET_UPDATES
from jaxrl_stack.core.learner.traced_metrics import Metrics
from jaxrl_stack.utils import counters

EPISODES, RETURN, STEPS, TARGETS = 2**32 - 1, 2.0**24, 3 * 2**33 + 8, 2**24 + 1


def test_results_of_an_old_run_are_exact():
    algo = (
        DQNConfig()
        .environment("gymnax/CartPole-v1", env_config={"max_steps_in_episode": 13})
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=8, n_step=1)
        .training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 400}, target_network_update_freq=4)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": [4]})
        .reporting(min_sample_timesteps_per_iteration=400)
        .learners(num_cpus_per_learner=1)
        .build_algo()
    )
    learner, state = algo.learner, algo.get_state()
    rollout = state["env_runner"]["rollout"]
    rollout["window/num_episodes"] = counters.from_int(EPISODES)[None]
    rollout["episodes/episode_return"] = np.full_like(rollout["episodes/episode_return"], RETURN)
    state["driver"] |= {"num_env_steps_sampled_lifetime": STEPS, "timesteps": STEPS}
    algo.set_state(state)
    extra = {
        LAST_TARGET_UPDATE: {DEFAULT_MODULE_ID: counters.from_int(STEPS)},
        TARGET_UPDATES: {DEFAULT_MODULE_ID: np.uint32(TARGETS)},
    }
    learner.place(dataclasses.replace(learner.state, extra=extra, timesteps=counters.from_int(STEPS)))
    result = algo.train()
    episodes, learned = result["env_runners"], result["learners"][DEFAULT_MODULE_ID]
    assert 400 / 13 <= episodes["num_episodes"] < 100
    assert episodes["num_episodes_lifetime"] == EPISODES + episodes["num_episodes"]
    # 2**24 + 1 + 1 + ... stays 2**24 in float32; every episode takes at least 8 steps.
    assert RETURN + 7 <= episodes["episode_return_max"] <= RETURN + 14
    assert learned["last_target_update_ts"] == STEPS + 400
    assert learned["num_target_updates"] == TARGETS + learned["weights_seq_no"]
    algo.stop()


def test_episodes_of_several_devices_are_counted_beyond_32_bits():
    extend, window = jax.jit(EpisodeWindow.extend), EpisodeWindow.empty(2)
    window = dataclasses.replace(window, num_episodes=jnp.asarray(counters.from_int(EPISODES)))
    window = extend(window, jnp.ones((3, 2), bool), jnp.ones((3, 2)), jnp.ones((3, 2), jnp.int32))
    two = EpisodeWindow.unpacked(np.stack([window.packed()] * 2)).window
    assert num_episodes(two) == 2 * (EPISODES + 6)
    assert num_episodes(redistributed(two, 3, 4)) == 2 * (EPISODES + 6)


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_reductions_over_many_minibatches_do_not_drift(how):
    path, number = ("m", "x"), 1_000_000
    one = Metrics.of({path: (how, jnp.float32(0.1))})

    @jax.jit
    def reduced():
        add = lambda _, reduced: Metrics.with_minibatch(reduced, one)  # noqa: E731
        return jax.lax.fori_loop(0, number, add, one.before_minibatches())

    result = Metrics.after_minibatches(reduced(), jnp.uint32(number)).values()[path]
    assert result == pytest.approx(1e5 if how == "sum" else 0.1, rel=1e-6)
