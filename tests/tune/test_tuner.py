"""Ray Tune for real: trials in processes of their own, as in RLlib's documentation."""

from __future__ import annotations

import pathlib
import sys

import pytest
from ray import cloudpickle, tune

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.env.jax_env import GymnaxEnv
from jaxrl_stack.tune.registry import register_env
from jaxrl_stack.utils.compile_clock import CompileClock

pytestmark = pytest.mark.usefixtures("ray_session")

# Trials run in processes that cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RETURN = "env_runners/episode_return_mean"


def tiny(**training) -> PPOConfig:
    return (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(**{"train_batch_size_per_learner": 64, "minibatch_size": 64, "num_epochs": 1, **training})
        .rl_module(model_config={"fcnet_hiddens": [8]})
    )


def fit(trainable, config, tmp_path, *, stop, tune_config=None, checkpoints=None):
    tuner = tune.Tuner(
        trainable,
        param_space=config,
        tune_config=tune_config,
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(tmp_path),
            stop=stop,
            verbose=0,
            checkpoint_config=checkpoints or tune.CheckpointConfig(),
        ),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    return results


class CountCompilations(RLlibCallback):
    """Reports what this process has compiled since its first iteration ended."""

    clock: CompileClock | None = None

    def on_train_result(self, *, algorithm, result, **kwargs):
        cls = type(self)
        if cls.clock is None:
            cls.clock = CompileClock()
        result["compiled"] = cls.clock.compiles
        result["clip_param"] = algorithm.config.clip_param


def test_a_name_a_config_with_a_grid_a_stop_on_a_nested_key_and_the_best_checkpoint(tmp_path):
    # Registered here, in the process that asks; used in the processes of the trials.
    register_env("short_cartpole", lambda config: GymnaxEnv("CartPole-v1", config))
    config = tiny(lr=tune.grid_search([0.0, 0.01])).environment(
        "short_cartpole", env_config={"max_steps_in_episode": 12}
    )
    config.debugging(seed=3)
    # No episode ends within the first iterations; then their mean is not a number.
    config.training(train_batch_size_per_learner=16, minibatch_size=16)
    results = fit("PPO", config, tmp_path, stop={RETURN: 5.0, "training_iteration": 20})

    assert len(results) == 2
    for result in results:
        metrics = result.metrics
        assert 5.0 <= metrics["env_runners"]["episode_return_mean"] <= 12 and metrics["done"] is True
        assert 1 < metrics["training_iteration"] < 20
        assert metrics["num_env_steps_sampled_lifetime"] == 16 * metrics["training_iteration"]
        assert metrics["trial_id"] in str(result.path) and metrics["config"]["seed"] == 3
        assert {"timers", "time_total_s", "hostname", "node_ip", "pid"} <= metrics.keys()
        assert {"result.json", "progress.csv", "params.json"} <= {p.name for p in pathlib.Path(result.path).iterdir()}
        history = result.metrics_dataframe
        assert history[RETURN].isna().iloc[0] and history["training_iteration"].tolist()[0] == 1
    assert [r.metrics["learners"]["default_policy"]["default_optimizer_learning_rate"] for r in results] == [
        0.0,
        pytest.approx(0.01),
    ]
    best = results.get_best_result(RETURN, mode="max")
    algo = PPO.from_checkpoint(best.checkpoint.path)
    assert algo.config.lr == best.config["lr"] and algo.iteration == best.metrics["training_iteration"]
    assert algo.train()["training_iteration"] == best.metrics["training_iteration"] + 1
    algo.stop()


def test_population_based_training_changes_traced_settings_without_compiling(tmp_path):
    config = tiny(clip_param=tune.grid_search([0.1, 0.3]), lr=tune.uniform(1e-4, 1e-3))
    config.callbacks(CountCompilations)
    mutations = {"clip_param": tune.uniform(0.05, 0.5), "lr": tune.uniform(1e-4, 1e-2), "entropy_coeff": [0.0, 0.1]}
    scheduler = tune.schedulers.PopulationBasedTraining(
        metric=RETURN,
        mode="max",
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations=mutations,
        quantile_fraction=0.5,
        resample_probability=1.0,
        synch=True,
    )
    results = fit(
        PPO,
        config,
        tmp_path,
        stop={"training_iteration": 4},
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
    )
    clip_params = set()
    for result in results:
        history = result.metrics_dataframe
        assert history["training_iteration"].is_monotonic_increasing
        assert (history["compiled"] == 0).all()
        clip_params |= set(history["clip_param"])
        assert result.metrics["clip_param"] == pytest.approx(result.config["clip_param"])
    assert clip_params - {0.1, 0.3}, "at least one trial took over another's weights with settings of its own"


class HalfwayPPO(PPO):
    """Fails once, in the middle of its training."""

    def training_step(self):
        marker = pathlib.Path(self.config.env_config["marker"])
        if self.iteration == 2 and not marker.exists():
            marker.touch()
            raise RuntimeError("interrupted")
        super().training_step()


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(tmp_path):
    config = tiny().environment("marked_cartpole", env_config={"marker": str(tmp_path / "marker")})
    register_env("marked_cartpole", lambda config: GymnaxEnv("CartPole-v1"))
    tuner = tune.Tuner(
        HalfwayPPO,
        param_space=config,
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(tmp_path),
            stop={"training_iteration": 4},
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    )
    (first,) = tuner.fit()
    assert "interrupted" in str(first.error) and first.metrics["training_iteration"] == 2

    restored = tune.Tuner.restore(str(tmp_path / "run"), trainable=HalfwayPPO, resume_errored=True)
    (result,) = restored.fit()
    assert result.error is None
    history = result.metrics_dataframe
    assert history["training_iteration"].tolist() == [1, 2, 3, 4]
    assert history["num_env_steps_sampled_lifetime"].tolist() == [64, 128, 192, 256]
    assert history["iterations_since_restore"].tolist() == [1, 2, 1, 2]


def test_successive_halving_stops_trials_and_reuses_their_processes(tmp_path):
    config = tiny(lr=tune.grid_search([1e-3, 1e-2, 1e-4])).callbacks(CountCompilations)
    scheduler = tune.schedulers.ASHAScheduler(metric=RETURN, mode="max", grace_period=1, max_t=4, reduction_factor=2)
    results = fit(
        "PPO",
        config,
        tmp_path,
        stop={"training_iteration": 4},
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True, max_concurrent_trials=1),
    )
    iterations = [result.metrics["training_iteration"] for result in results]
    assert max(iterations) == 4 and all(1 <= iteration <= 4 for iteration in iterations)
    assert len({result.metrics["pid"] for result in results}) == 1
    assert all((result.metrics_dataframe["compiled"] == 0).all() for result in results)
    assert all(result.metrics_dataframe["training_iteration"].iloc[0] == 1 for result in results)
