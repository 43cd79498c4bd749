"""Compares hashes of the weights that small runs learn at an older commit and now, on this machine.

    python bench/digests.py --old v0.3
    python bench/digests.py --old HEAD~5 --only dqn-lstm,ppo-cnn

A run is three iterations of an algorithm with toy networks; its hash is one over all parameters, and the returns and
counters of the three results. Runs are named ALGORITHM-VARIANT-PLACE-DEVICES, such as ``ppo-lstm-host-2``; ``--only``
takes parts of names. Algorithms that learn from recorded steps have the places ``resident`` and ``streamed``. Hashes
depend on the processor, so none is kept: both commits run here. Exits with 1 if any differ, or if one has none because
it raised.

The file is run by its path: ``PYTHONPATH`` decides which commit's package it imports.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

ALGORITHMS = ("ppo", "impala", "appo", "pqn", "dqn", "sac", "td3", "tqc")
"""IMPALA and APPO where sampling and learning take turns: with actors, results depend on how fast these are."""
VARIANTS = ("mlp", "cnn", "lstm", "masks", "connectors")
LEFT_OUT = {
    ("td3", "masks"),
    ("tqc", "masks"),
    ("pqn", "cnn"),
    ("pqn", "connectors"),
    *itertools.product(("impala", "appo"), VARIANTS[1:]),
}
PLACES = ("device", "host")
RECORDED = {"bc": ("mlp", "lstm"), "marwil": ("mlp", "lstm"), "cql": ("mlp",), "iql": ("mlp",)}
"""Algorithms that learn from recorded steps, and their variants."""
RECORDED_PLACES = ("resident", "streamed")
MORE = (
    *(
        "-".join(each)
        for each in itertools.product(("dqn-recorded", "dreamerv3-mlp", "ppo-agents", "ppo-turns"), PLACES)
    ),
    "ppo-population-device",
    "dqn-population-device",
)
"""Replay with a share of recorded steps, world models, agents that all act and that take turns, populations of four."""
NUM_DEVICES = (1, 2)
NUM_ITERATIONS, NUM_ENVS = 3, 4
RAISED = "raised "


def names() -> list[str]:
    """Returns the names of all runs. TD3 and TQC have no action masks (Box actions); IMPALA and APPO run only with
    MLPs, because their networks are PPO's.
    """
    every: list[tuple[str, ...]] = list(itertools.product(ALGORITHMS, VARIANTS, PLACES))
    runs = [each for each in every if each[:2] not in LEFT_OUT]
    for algorithm, variants in RECORDED.items():
        runs += itertools.product((algorithm,), variants, RECORDED_PLACES)
    return [f"{run}-{num}" for run in (*map("-".join, runs), *MORE) for num in NUM_DEVICES]


# --------------------------------------------------------------------------------------------------------------- runs


def make_env(algorithm: str, variant: str) -> Any:
    """Creates gymnax's CartPole or Pendulum, with images as observations for convolutions, or with an action mask."""
    import gymnasium as gym
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv

    is_discrete = algorithm not in ("sac", "td3", "tqc") or variant == "masks"

    class Shown(AutoResetJaxEnv):
        """Environment of gymnax whose observations are converted by the function `show`."""

        def __init__(self, space: gym.Space, show: Callable[[Any], Any]):
            self.env = GymnaxEnv("CartPole-v1" if is_discrete else "Pendulum-v1")
            self.observation_space, self.action_space, self.show = space, self.env.action_space, show

        @property
        def params(self) -> Any:
            return self.env.params

        def reset_env(self, key: Any, params: Any) -> tuple[Any, Any]:
            obs, state = self.env.reset_env(key, params)
            return self.show(obs), state

        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
            obs, *outcome = self.env.step_env(key, state, action, params)
            return (self.show(obs), *outcome)

    size = 4 if is_discrete else 3
    if variant == "cnn":
        ramp = jnp.linspace(-1.0, 1.0, 8)
        return Shown(
            gym.spaces.Box(-np.inf, np.inf, (8, size, 1), np.float32), lambda obs: ramp[:, None, None] * obs[:, None]
        )
    if variant == "masks":
        mask, seen = gym.spaces.Box(0.0, 1.0, (2,), np.float32), gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        return Shown(
            gym.spaces.Dict(action_mask=mask, observations=seen),
            # Left of the middle the cart may not be pushed further left.
            lambda obs: {"action_mask": jnp.array([obs[0] > -0.02, True]).astype(jnp.float32), "observations": obs},
        )
    return GymnaxEnv("CartPole-v1" if is_discrete else "Pendulum-v1")


MODELS: Mapping[str, dict[str, Any]] = {
    "cnn": {"conv_filters": [[4, 3, 1]], "head_fcnet_hiddens": [8]},
    "lstm": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4},
}
PPO_TRAINING = {"train_batch_size_per_learner": 128, "minibatch_size": 32, "num_epochs": 2, "lr": 1e-3}
V_TRACE_TRAINING = {"train_batch_size_per_learner": 128, "lr": 1e-3}
DREAMER_TRAINING = {"model_size": "nano", "batch_size_B": 2, "batch_length_T": 8, "horizon_H": 3, "training_ratio": 2}
REPLAY_TRAINING = {
    "train_batch_size_per_learner": 16,
    "num_steps_sampled_before_learning_starts": 64,
    "replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 512},
}


def config_of(name: str) -> AlgorithmConfig:
    """Returns the config of a run."""
    from jaxrl_stack import algorithms
    from jaxrl_stack.connectors.env_to_module import FrameStacking, MeanStdFilter
    from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
    from jaxrl_stack.env.registry import register_env

    algorithm, variant, place, num_devices = name.split("-")
    config = getattr(algorithms, "DreamerV3Config" if algorithm == "dreamerv3" else f"{algorithm.upper()}Config")()
    config.learners(num_cpus_per_learner=int(num_devices)).debugging(seed=0)
    if algorithm in RECORDED:
        return _learning_from_records(config, algorithm, variant, place)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
    config.reporting(min_sample_timesteps_per_iteration=128, min_time_s_per_iteration=0)
    if variant in ("agents", "turns"):
        return _with_agents(config, variant, place).training(**PPO_TRAINING)
    jax_env = make_env(algorithm, variant)
    register_env(name, lambda context: jax_env if place == "device" else GymnasiumFromJax(jax_env))
    config.environment(name)
    if algorithm == "dreamerv3":
        return config.training(**DREAMER_TRAINING)
    if algorithm in ("impala", "appo"):
        config.env_runners(rollout_fragment_length=16)
    if algorithm == "sac":
        config.training(target_entropy=-1.0)
    if algorithm == "td3":
        config.training(random_timesteps=64)
    if variant == "connectors":
        stack = FrameStacking(num_frames=2)
        config.env_runners(env_to_module_connector=lambda *_, **__: [MeanStdFilter(), stack])
    training = {"ppo": PPO_TRAINING, "pqn": PPO_TRAINING, "impala": V_TRACE_TRAINING, "appo": V_TRACE_TRAINING}.get(
        algorithm, REPLAY_TRAINING
    )
    config.training(**training).rl_module(model_config=MODELS.get(variant, {"fcnet_hiddens": [8]}))
    if variant == "recorded":
        config.training(recorded_share=0.25).offline_data(input_=[_recorded_steps(is_discrete=True)])
    return config


def _with_agents(config: AlgorithmConfig, variant: str, place: str) -> AlgorithmConfig:
    """Sets an environment with several agents and two policies in a config."""
    from envs import multi_agent_host
    from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole

    try:
        from jaxrl_stack.examples.envs import multi_agent
    except ImportError:  # where older commits have it
        multi_agent = importlib.import_module("envs.multi_agent")

    if variant == "agents":
        env, settings = multi_agent.MultiAgentCartPole if place == "device" else MultiAgentCartPole, {"num_agents": 2}
    else:
        env, settings = multi_agent.ComeAndGo if place == "device" else multi_agent_host.ComeAndGo, {"num_agents": 3}
    config.environment(env, env_config=settings).rl_module(model_config={"fcnet_hiddens": [8]})
    return config.multi_agent(
        policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, *_, **__: f"p{int(str(agent_id)[-1]) % 2}"
    )


def _learning_from_records(config: AlgorithmConfig, algorithm: str, variant: str, place: str) -> AlgorithmConfig:
    import gymnasium as gym
    import numpy as np

    is_discrete = algorithm in ("bc", "marwil")
    config.environment(
        observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=gym.spaces.Discrete(2) if is_discrete else gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
    )
    config.offline_data(
        input_=[_recorded_steps(is_discrete)], keep_resident=place == "resident", dataset_num_iters_per_learner=5
    )
    # An iteration of CQL lasts a second, by default, whatever it learns in that time.
    config.reporting(min_time_s_per_iteration=None)
    return config.training(train_batch_size_per_learner=32).rl_module(
        model_config=MODELS.get(variant, {"fcnet_hiddens": [8]})
    )


def _recorded_steps(is_discrete: bool) -> str:
    """Writes a table of 60 random episodes of 5 to 24 steps from a fixed seed; returns its path."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    rows: dict[str, list] = {name: [] for name in ("eps_id", "t", "obs", "new_obs", "actions", "rewards")}
    rows |= {"terminateds": [], "truncateds": []}
    for episode in range(60):
        length = int(rng.integers(5, 25))
        obs = rng.normal(size=(length + 1, 4)).astype(np.float32)
        actions = (
            rng.integers(2, size=length) if is_discrete else rng.uniform(-0.9, 0.9, (length, 2)).astype(np.float32)
        )
        rows["eps_id"] += [f"e{episode}"] * length
        rows["t"] += range(length)
        rows["obs"] += obs[:-1].tolist()
        rows["new_obs"] += obs[1:].tolist()
        rows["actions"] += actions.tolist()
        rows["rewards"] += rng.normal(size=length).tolist()
        rows["terminateds"] += [False] * (length - 1) + [episode % 2 == 0]
        rows["truncateds"] += [False] * (length - 1) + [episode % 2 == 1]
    path = os.path.join(tempfile.mkdtemp(), "steps.parquet")
    pq.write_table(pa.table(rows), path)
    return path


def digest_of(name: str) -> str:
    """Computes the hash of a run: trains some iterations, and hashes results and weights."""
    import jax
    import numpy as np

    is_population = "-population-" in name
    config = config_of(name)
    algo: Any = config.build_population(seeds=4) if is_population else config.build_algo()
    digest = hashlib.sha256()
    try:
        for _ in range(NUM_ITERATIONS):
            result = algo.train()
            sampled = result.get("env_runners", {})
            seen = [sampled.get("episode_return_mean", np.nan), result.get("num_env_steps_sampled_lifetime", 0)]
            digest.update(np.asarray(seen, np.float64).tobytes())
        for member in map(algo.member, range(4)) if is_population else (algo,):
            for path, leaf in jax.tree_util.tree_leaves_with_path(member.get_weights()):
                digest.update(jax.tree_util.keystr(path).encode())
                digest.update(np.asarray(leaf).tobytes())
    finally:
        algo.stop()
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------------ commits


def digests(folder: Path, runs: list[str]) -> Iterator[tuple[str, str]]:
    """Yields name and hash (or error) of each run, computed in a separate process with the package in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_NUM_CPU_DEVICES": str(max(NUM_DEVICES))}
    # Without -P this file's folder would come before PYTHONPATH.
    command = [sys.executable, "-P", __file__, "--hash", ",".join(runs)]
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, value = json.loads(line)
            yield name, value
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} in {folder} ended with {process.returncode}.")


def compare(old: str, runs: list[str]) -> list[str]:
    """Prints both hashes of each run; returns the names of the runs whose hashes differ."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from bench.checkouts import checkout

    with checkout(old) as before, checkout(".") as now, concurrent.futures.ThreadPoolExecutor(2) as pool:
        of_both = pool.map(lambda folder: dict(digests(folder, runs)), (before, now))
        then, today = of_both
    equal = {name: then[name] == today[name] and not then[name].startswith(RAISED) for name in runs}
    for name in runs:
        print(f"{name:28} {then[name]:18} {today[name]:18} {'equal' if equal[name] else 'DIFFERENT'}")
    differ = [name for name in runs if not equal[name]]
    print(f"{len(runs) - len(differ)} of {len(runs)} have equal bits.")
    return differ


def print_hashes(runs: list[str]) -> None:
    """Prints a line of JSON per run: its name, and its hash or error."""
    for name in runs:
        try:
            value = digest_of(name)
        except Exception as error:  # the other runs are compared all the same
            value = f"{RAISED}{type(error).__name__}: {error}"
        print(json.dumps([name, value]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="commit to compare with")
    parser.add_argument("--only", default="", help="comma-separated parts of names: runs with any of them")
    parser.add_argument("--hash", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hash is not None:
        print_hashes(arguments.hash.split(","))
        return
    if arguments.old is None:
        parser.error("--old COMMIT: say which commit to compare with.")
    wanted = arguments.only.split(",")
    runs = [name for name in names() if any(part in name for part in wanted)]
    if not runs:
        parser.error(f"--only {arguments.only}: no run is named so; there are {', '.join(names())}.")
    sys.exit(1 if compare(arguments.old, runs) else 0)


if __name__ == "__main__":
    main()
