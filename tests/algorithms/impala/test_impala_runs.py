"""Training with IMPALA and APPO where sampling and learning take turns: on the device, and on the host."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.examples.envs.multi_agent import ComeAndGo
from tests.core.test_losses_over_time import Pictures
from tests.test_action_masks import Legal

NUM_ENVS, NUM_STEPS, UPDATES = 4, 10, 3
MODELS = {
    "mlp": {},
    "lstm": {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4},
    "cnn": {"conv_filters": [[4, 3, 2]], "head_fcnet_hiddens": [8]},
    "masks": {},
}
ENVS = {"mlp": "gymnax/CartPole-v1", "lstm": "gymnax/CartPole-v1", "cnn": "pictures", "masks": Legal}
register_env("pictures", Pictures)
register_env("pictures-host", lambda config: GymnasiumFromJax(Pictures))
ON_HOST = {"gymnax/CartPole-v1": "CartPole-v1", "pictures": "pictures-host", Legal: "legal-host"}


def config_of(config_class, variant="mlp", place="device", **training):
    env = ENVS[variant] if place == "device" else ON_HOST[ENVS[variant]]
    if config_class is APPOConfig:
        training = {"circular_buffer_iterations_per_batch": UPDATES, "use_kl_loss": True} | training
    return (
        config_class()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, lr=0.01, **training)
        .rl_module(model_config={"fcnet_hiddens": [8], **MODELS[variant]})
        .reporting(min_time_s_per_iteration=0)
        .learners(num_cpus_per_learner=1)
        .debugging(seed=2)
    )


def weights(algo):
    return jax.tree.leaves(algo.get_weights())


@pytest.mark.parametrize(
    ("config_class", "place", "variant"),
    [
        (IMPALAConfig, "host", "lstm"),
        (IMPALAConfig, "host", "masks"),
        (APPOConfig, "device", "lstm"),
        (APPOConfig, "device", "cnn"),
    ],
)
def test_it_trains(config_class, place, variant):
    algo = config_of(config_class, variant, place).build_algo()
    before = weights(algo)
    result = algo.train()
    learner = result["learners"]["default_policy"]
    assert np.isfinite([learner["total_loss"], learner["entropy"], learner["vf_loss"]]).all()
    assert result["num_env_steps_sampled_lifetime"] == NUM_ENVS * NUM_STEPS
    assert algo.driver.num_updates == (UPDATES if config_class is APPOConfig else 1)
    assert algo.driver.num_env_steps_trained == algo.driver.num_updates * NUM_ENVS * NUM_STEPS
    assert any(not np.array_equal(a, b) for a, b in zip(before, weights(algo), strict=True))
    algo.stop()


class Run:
    """Two iterations of APPO, with the states after both and a checkpoint between them; and the algorithm."""

    def __init__(self, place, folder):
        self.algo = config_of(APPOConfig, place=place).build_algo()
        self.algo.train()
        self.num_updates = self.algo.driver.num_updates
        self.path, self.states = self.algo.save_to_path(folder / "checkpoint"), [self.state()]
        self.algo.train()
        self.states.append(self.state())

    def state(self):
        """Weights, and whatever else the learner keeps, as averages of weights and coefficients."""
        return weights(self.algo), jax.device_get(self.algo.driver.learner.state.extra)

    def starts_again(self):
        assert self.algo.reset(self.algo.config)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that gives the `Run` of a place, which it makes once."""
    made = {}

    def run(place):
        if place not in made:
            made[place] = Run(place, tmp_path_factory.mktemp("appo"))
        return made[place]

    yield run
    for one in made.values():
        one.algo.stop()


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_run_is_the_same_again_and_goes_on_from_its_checkpoint_bit_for_bit(place, runs):
    run = runs(place)
    run.starts_again()
    for wanted in run.states:
        run.algo.train()
        jax.tree.map(np.testing.assert_array_equal, run.state(), wanted)
    if place == "device":  # environments of the host begin new episodes
        run.starts_again()
        run.algo.restore_from_path(run.path)
        jax.tree.map(np.testing.assert_array_equal, run.state(), run.states[0])
        run.algo.train()
        jax.tree.map(np.testing.assert_array_equal, run.state(), run.states[1])


@pytest.fixture(scope="module")
def three_steps_of_two_devices():
    """An algorithm whose calls have three training steps, after the first one, and its result."""
    config = config_of(APPOConfig).reporting(min_sample_timesteps_per_iteration=3 * NUM_ENVS * NUM_STEPS)
    algo = config.learners(num_cpus_per_learner=2).build_algo()
    yield algo, algo.train()
    algo.stop()


def test_several_training_steps_are_one_call_of_the_program(three_steps_of_two_devices):
    algo, result = three_steps_of_two_devices
    assert algo.driver.num_training_steps_per_call == 3
    assert algo.driver.num_updates == 3 * UPDATES
    assert result["learners"]["default_policy"]["num_module_steps_trained"] == 3 * UPDATES * NUM_ENVS * NUM_STEPS


def test_a_batch_that_is_used_once_and_one_that_is_used_again_are_other_runs(runs):
    reused = runs("device")
    found = [(reused.num_updates, np.concatenate([leaf.ravel() for leaf in reused.states[0][0]]))]
    for training in ({"use_circular_buffer": False}, {"circular_buffer_iterations_per_batch": 1}):
        algo = config_of(APPOConfig, **training).build_algo()
        algo.train()
        found.append((algo.driver.num_updates, np.concatenate([leaf.ravel() for leaf in weights(algo)])))
        algo.stop()
    assert [number for number, _ in found] == [UPDATES, 1, 1]
    np.testing.assert_array_equal(found[1][1], found[2][1])
    assert not np.array_equal(found[0][1], found[1][1])


def test_two_devices_hold_the_same_parameters(three_steps_of_two_devices):
    algo, _ = three_steps_of_two_devices
    for leaf in jax.tree.leaves(algo.driver.learner.state.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("config_class", [IMPALAConfig, APPOConfig])
def test_several_policies_of_agents_that_wait_for_each_other(config_class):
    algo = (
        config_of(config_class)
        .environment(ComeAndGo, env_config={"num_agents": 3})
        .multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=lambda agent, episode, **kwargs: f"p{int(str(agent)[-1]) % 2}"
        )
        .build_algo()
    )
    before = algo.get_weights()
    result = algo.train()
    for mid in ("p0", "p1"):
        assert np.isfinite(result["learners"][mid]["total_loss"])
        pairs = zip(jax.tree.leaves(before[mid]), jax.tree.leaves(algo.get_weights()[mid]), strict=True)
        assert any(not np.array_equal(a, b) for a, b in pairs)
    algo.stop()
