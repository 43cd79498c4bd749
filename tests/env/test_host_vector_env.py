"""Host environments stepped together: every kind of vector, what a step says, and what goes wrong."""

from __future__ import annotations

import re
import runpy
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env import registry
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.registry import register_env, resolve_env
from jaxrl_stack.env.vector import suites
from jaxrl_stack.env.vector.host_vector_env import VectorStep, make_vector_env
from jaxrl_stack.env.vector.main_guard import require_main_guard
from jaxrl_stack.env.vector.rows import InfoRows, row_splitter, row_writer
from jaxrl_stack.env.vector.sub_env import made_to_close_quietly
from jaxrl_stack.env.vector.vector_env_adapter import VectorEnvAdapter


def settings(env, num_envs=2, mode="sync", env_config=None, **others):
    """What `make_vector_env` reads of a config."""
    return types.SimpleNamespace(
        env=env,
        env_config=env_config or {},
        is_multi_agent=False,
        num_envs_per_env_runner=num_envs,
        gym_env_vectorize_mode=mode,
        **{"disable_env_checking": False, "seed": 3, "render_env": False, "in_evaluation": False, **others},
    )


@pytest.fixture(autouse=True)
def _creators(monkeypatch):
    """Undoes registrations."""
    monkeypatch.setattr(registry, "_creators", {})


class CountingEnv(gym.Env):
    """Observation ``[episode, t]``; terminates at t = ``ends[vector_index]``, truncates at ``cut_at``."""

    def __init__(self, config):
        self.context = config
        self.length = config.get("ends", [10])[config.vector_index % len(config.get("ends", [10]))]
        self.observation_space = Box(0, 100, config.get("shape", (2,)), np.float32)
        self.action_space = Discrete(config.get("actions", 3))
        self.episode, self.t = -1, 0
        self._array = np.zeros(2, np.float32)
        self.seeds, self.actions, self.closed = [], [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {"first": self.episode, **(options or {})} if self.context.get("infos") else {}

    def step(self, action):
        self.t += 1
        self.actions.append(action)
        info = {"t": self.t} if self.context.get("infos") else {}
        terminated = self.t == self.length
        truncated = self.t == self.context.get("cut_at")
        return self._obs(), 10.0 * self.episode + self.t, terminated, truncated, info

    def _obs(self):
        # One array that every step changes: it must not be kept.
        self._array[:] = self.episode, self.t
        return self._array.copy() if self.context.get("copies") else self._array

    def close(self):
        self.closed += 1


ZEROS = np.zeros(2, np.int64)


# ----------------------------------------------------------------------------------------------------- one by one


def test_sync_steps_reset_in_the_step_that_ends_an_episode():
    vector = make_vector_env(settings(CountingEnv, env_config={"ends": [2, 9], "cut_at": 3}))
    assert isinstance(vector.env, SyncVectorEnv) and vector.num_envs == 2
    assert vector.single_observation_space == Box(0, 100, (2,), np.float32)
    assert vector.observation_space == batch_space(vector.single_observation_space, 2)
    assert vector.single_action_space == Discrete(3) and vector.action_space == MultiDiscrete([3, 3])
    obs, infos = vector.reset()
    assert obs.dtype == np.float32 and obs.tolist() == [[0, 0], [0, 0]] and infos == [{}, {}]

    first = vector.step(ZEROS)
    assert isinstance(first, VectorStep)
    assert first.obs.tolist() == [[0, 1], [0, 1]] and first.rewards.tolist() == [1, 1]
    assert not first.resets.any() and first.valid is None and first.final_obs is None
    assert list(first.infos) == [{}, {}] and first.reset_infos is None

    second = vector.step(ZEROS)
    assert second.terminateds.tolist() == [True, False] and second.truncateds.tolist() == [False, False]
    assert second.resets.tolist() == [True, False] and second.valid is None
    assert second.obs.tolist() == [[1, 0], [0, 2]] and second.final_obs[0].tolist() == [0, 2]
    assert second.rewards.tolist() == [2, 2] and second.rewards.dtype == np.float64
    assert second.reset_infos == [{}, {}]

    third = vector.step(ZEROS)
    assert third.terminateds.tolist() == [False, False] and third.truncateds.tolist() == [False, True]
    assert third.obs.tolist() == [[1, 1], [1, 0]] and third.final_obs[1].tolist() == [0, 3]
    # What an earlier step said stays.
    assert second.final_obs[0].tolist() == [0, 2] and second.rewards.tolist() == [2, 2]
    assert second.resets.tolist() == [True, False]


def test_sync_infos_belong_to_the_step_and_to_the_reset():
    vector = make_vector_env(settings(CountingEnv, env_config={"ends": [2, 9], "infos": True}))
    _, infos = vector.reset(options={"level": 7})
    assert infos == [{"first": 0, "level": 7}] * 2
    assert list(vector.step(ZEROS).infos) == [{"t": 1}, {"t": 1}]
    step = vector.step(ZEROS)
    assert list(step.infos) == [{"t": 2}, {"t": 2}] and step.reset_infos == [{"first": 1}, {}]


def test_sync_seeds_and_contexts():
    config = settings(CountingEnv, num_envs=5, env_config={"nested": {"a": [1]}})
    vector = make_vector_env(config, worker_index=2, num_workers=4, recreated_worker=True, num_envs=3)
    envs = [env.unwrapped for env in vector.env.envs]
    assert [env.context.vector_index for env in envs] == [0, 1, 2]
    for env in envs:
        context = env.context
        assert (context.worker_index, context.num_workers) == (2, 4)
        assert context.recreated_worker and not context.remote and context == {"nested": {"a": [1]}}
    envs[0].context["nested"]["a"].append(2)
    assert envs[1].context["nested"]["a"] == [1] and config.env_config["nested"]["a"] == [1]

    vector.reset(seed=np.int64(11))
    vector.reset()
    assert [env.seeds for env in envs] == [[11, None], [12, None], [13, None]]
    assert type(envs[0].seeds[0]) is int
    vector.reset(seed=[7, 2**31 - 1, np.int64(9)])
    assert [env.seeds[2:] for env in envs] == [[7], [2**31 - 1], [9]]
    vector.close()
    vector.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def test_sync_environments_with_the_same_seed_repeat_themselves():
    def trajectory():
        vector = make_vector_env(settings("CartPole-v1", num_envs=3))
        obs = [vector.reset(seed=4)[0].copy()]
        obs += [vector.step(np.array([0, 1, t % 2])).obs.copy() for t in range(30)]
        vector.close()
        return np.stack(obs)

    first = trajectory()
    np.testing.assert_array_equal(first, trajectory())
    assert not np.array_equal(first[0, 0], first[0, 1])


def test_sync_agrees_with_gymnasium():
    vector = make_vector_env(settings("CartPole-v1", num_envs=3, env_config={"max_episode_steps": 9}))
    other = SyncVectorEnv(
        [lambda: gym.make("CartPole-v1", max_episode_steps=9)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    np.testing.assert_array_equal(vector.reset(seed=0)[0], other.reset(seed=0)[0])
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(60):
        actions = rng.integers(0, 2, 3)
        step, (obs, rewards, terminateds, truncateds, infos) = vector.step(actions), other.step(actions)
        np.testing.assert_array_equal(step.obs, obs)
        np.testing.assert_array_equal(step.rewards, rewards)
        np.testing.assert_array_equal(step.terminateds, terminateds)
        np.testing.assert_array_equal(step.truncateds, truncateds)
        for i in np.flatnonzero(step.resets):
            np.testing.assert_array_equal(step.final_obs[i], infos["final_obs"][i])
            ends += 1
        assert (step.final_obs is None) == (not step.resets.any())
    assert ends > 9
    # What users do with `env_runner.env` goes on working.
    assert len(vector.env.envs) == 3 and vector.env.unwrapped is vector.env
    assert vector.env.call("spec")[0].id == "CartPole-v1"
    assert vector.env.step(np.array([0, 1, 0]))[0].shape == (3, 4)


def test_only_the_first_of_a_registered_kind_is_checked_by_gymnasium():
    def checkers(config):
        vector = make_vector_env(config)
        return ["PassiveEnvChecker" in str(env) for env in vector.env.envs]

    assert checkers(settings("CartPole-v1", num_envs=3)) == [True, False, False]
    assert checkers(settings("CartPole-v1", num_envs=2, disable_env_checking=True)) == [False, False]
    # The user's own word counts more.
    assert checkers(settings("CartPole-v1", env_config={"disable_env_checker": True})) == [False, False]


class NestedEnv(gym.Env):
    """Nested spaces; the observation tells what the action was."""

    observation_space = Dict(
        {
            "box": Box(-1, 1, (2,), np.float32),
            "pair": Tuple((Discrete(9), MultiBinary(2))),
            "gears": MultiDiscrete([5, 5]),
        }
    )
    action_space = Dict({"move": Discrete(9), "arms": Tuple((Box(-1, 1, (2,), np.float32), MultiDiscrete([5, 5])))})

    def __init__(self, config):
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._obs(0, np.zeros(2, np.float32), np.zeros(2, np.int64)), {}

    def step(self, action):
        self.t += 1
        assert action in self.action_space
        obs = self._obs(action["move"], action["arms"][0].copy(), action["arms"][1].copy())
        # An environment may use its action as it likes.
        action["arms"][0][:] = 99
        return obs, 1.0, self.t == 2, False, {}

    def _obs(self, move, reach, grip):
        return {"box": reach, "pair": (np.int64(move), np.array([1, self.t % 2], np.int8)), "gears": grip}


def nested_actions():
    return {
        "move": np.array([3, 4], np.int32),
        "arms": (np.array([[0.5, 0.25], [-1, 1]], np.float32), np.array([[1, 2], [3, 4]], np.int32)),
    }


def test_sync_nested_spaces():
    vector = make_vector_env(settings(NestedEnv))
    obs, _ = vector.reset(seed=0)
    assert obs["box"].shape == (2, 2) and isinstance(obs["pair"], tuple)
    actions = nested_actions()
    step = vector.step(actions)
    np.testing.assert_array_equal(step.obs["box"], [[0.5, 0.25], [-1, 1]])
    np.testing.assert_array_equal(step.obs["pair"][0], [3, 4])
    np.testing.assert_array_equal(step.obs["pair"][1], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(step.obs["gears"], [[1, 2], [3, 4]])
    # The batch of actions is the caller's.
    np.testing.assert_array_equal(actions["arms"][0], nested_actions()["arms"][0])
    last = vector.step(actions)
    assert last.resets.all() and last.obs["pair"][0].tolist() == [0, 0]
    np.testing.assert_array_equal(last.final_obs["pair"][0], [3, 4])
    np.testing.assert_array_equal(last.final_obs["gears"], [[1, 2], [3, 4]])
    assert list(vector.single_observation_space.spaces) == list(last.final_obs)


def test_box_actions_have_the_dtype_of_the_space():
    seen = []

    class Environment(CountingEnv):
        def __init__(self, config):
            super().__init__(config)
            self.action_space = Box(-1, 1, (2,), np.float32)

        def step(self, action):
            seen.append(action)
            return super().step(action)

    vector = make_vector_env(settings(Environment))
    vector.reset()
    batch = np.array([[0.5, 1], [0, -1]])
    batch.flags.writeable = False
    vector.step(batch)
    assert [a.dtype for a in seen] == [np.float32] * 2
    assert seen[0].tolist() == [0.5, 1] and seen[0].flags.writeable


def test_rows_of_nested_spaces_keep_their_structure():
    space = NestedEnv.action_space
    rows = row_splitter(space)(nested_actions())
    assert [row["move"] for row in rows] == [3, 4] and type(rows[0]["move"]) is int
    assert all(row in space for row in rows)
    buffers = batch_space(space, 2)
    target = buffers.sample()
    write = row_writer(space, target)
    for i, row in enumerate(rows):
        write(i, row)
    np.testing.assert_array_equal(target["arms"][1], [[1, 2], [3, 4]])


# ------------------------------------------------------------------------------------------------- own processes


def test_async_says_the_same_as_sync():
    config = {"max_episode_steps": 3}
    results = {}
    for mode in ("sync", "async"):
        vector = make_vector_env(settings("CartPole-v1", mode=mode, env_config=config))
        assert isinstance(vector.env, AsyncVectorEnv if mode == "async" else SyncVectorEnv)
        steps = [vector.reset(seed=[5, 11])[0].copy()]
        for _ in range(7):
            step = vector.step(np.array([1, 0]))
            assert (step.reset_infos is None) == (not step.resets.any()) and step.valid is None
            final = None if step.final_obs is None else step.final_obs[step.resets]
            steps.append((step.obs.copy(), step.rewards, step.terminateds, step.truncateds, final))
        results[mode] = steps
        vector.close()
        vector.close()
    assert results["sync"][3][3].all()
    for one, other in zip(results["sync"], results["async"], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_async_copies_are_told_that_they_are_remote_and_run_nested_spaces():
    register_env("nested", NestedReport)
    vector = make_vector_env(settings("nested", mode="async"), worker_index=3, num_workers=4)
    try:
        vector.reset(seed=0)
        assert vector.env.get_attr("place") == ((3, 0, True, 4), (3, 1, True, 4))
        for t in (1, 2):
            step = vector.step(nested_actions())
            np.testing.assert_array_equal((step.final_obs if t == 2 else step.obs)["gears"], [[1, 2], [3, 4]])
        assert step.resets.all() and step.obs["gears"].tolist() == [[0, 0], [0, 0]]
        assert list(step.infos) == [{"t": 2}, {"t": 2}] and list(step.reset_infos) == [{"new": 0}, {"new": 1}]
    finally:
        vector.close()


class NestedReport(NestedEnv):
    """`NestedEnv` that tells its place and has infos."""

    def __init__(self, config):
        super().__init__(config)
        self.place = (config.worker_index, config.vector_index, config.remote, config.num_workers)

    def reset(self, *, seed=None, options=None):
        return super().reset()[0], {"new": self.place[1]}

    def step(self, action):
        obs, *rest, _ = super().step(action)
        return obs, *rest, {"t": self.t}


def test_an_async_vector_that_cannot_start_names_the_setting():
    register_env("unequal", UnequalEnv)
    with pytest.raises(RuntimeError, match="observation spaces are not equivalent") as caught:
        make_vector_env(settings("unequal", mode="async"))
    assert "gym_env_vectorize_mode='async'" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("def main():\n    start()\n\nmain()\n", 4),
        ("x = 1\nfor _ in range(x):\n    start()\n", 2),
        ('def main():\n    start()\n\nif __name__ == "__main__":\n    main()\n', None),
        ('import sys\n\nif __name__ != "__main__":\n    sys.exit()\nstart()\n', None),
    ],
)
def test_a_script_without_the_guard_is_told_its_line_before_any_process_starts(script, line, tmp_path):
    path, started = tmp_path / "script.py", []
    path.write_text(script)

    def start():
        require_main_guard("It")
        started.append(True)

    if line is None:
        runpy.run_path(str(path), {"start": start}, "__main__")
        assert started
        return
    for function in (start, lambda: make_vector_env(settings("CartPole-v1", mode="async"))):
        with pytest.raises(RuntimeError, match=rf"script\.py: write `if __name__ .* above line {line} there") as caught:
            runpy.run_path(str(path), {"start": function}, "__main__")
        assert len(str(caught.value).splitlines()) == 1


def raises_in_close(config):
    env = CountingEnv(config)

    def close():
        closed.append(True)
        raise ConnectionError("the simulator is gone")

    env.close = close
    return env


closed: list[bool] = []


def raises_in_close_as_vector(config):
    vector = SyncVectorEnv([lambda: CountingEnv(config)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    vector.close = raises_in_close(config).close
    return vector


@pytest.mark.parametrize(
    ("mode", "creator"), [("sync", raises_in_close), ("vector_entry_point", raises_in_close_as_vector)]
)
def test_what_environments_raise_when_they_are_closed_is_a_warning(mode, creator, caplog):
    register_env("raises in close", creator)
    closed.clear()
    vector = make_vector_env(settings("raises in close", mode=mode))
    vector.close()
    vector.close()
    assert len(closed) == (2 if mode == "sync" else 1)
    # gymnasium closes those of asynchronous vectors.
    made_to_close_quietly(lambda: raises_in_close(EnvContext({}, 0))).close()
    assert caplog.text.count("raised ConnectionError: the simulator is gone") == len(closed)


class UnequalEnv(CountingEnv):
    """Copies with observation spaces of their own."""

    def __init__(self, config):
        super().__init__(config)
        self.observation_space = Box(0, 100 + config.vector_index, (2,), np.float32)


# -------------------------------------------------------------------------------------- vectors of their own kind


class PoolEnv(gym.vector.VectorEnv):
    """Observation ``[episode, t]`` of every copy; copy i ends at t = ends[i]. Resets as `mode` says."""

    mode: AutoresetMode | str | None = AutoresetMode.NEXT_STEP
    closings = 0  # a vector of gymnasium 1.2 that failed in its constructor closes when it is deleted, too

    def __init__(self, config):
        self.num_envs = config["num_envs"]
        self.context = config
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = Box(0, 100, (2,), np.float32)
        # As envpool has it: the space of one copy.
        self.observation_space = self.single_observation_space
        self.single_action_space = Discrete(3)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.ends = np.array(config.get("ends", [2, 4]))[: self.num_envs]
        self.cuts = config.get("cuts", False)
        self.state = np.zeros((self.num_envs, 2), np.float32)
        self.over = np.zeros(self.num_envs, bool)
        self.seeds, self.dtypes = [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.state[:, 1] = 0
        self.over[:] = False
        return self.state, {"t": self.state[:, 1].astype(np.int32)}

    def step(self, actions):
        self.dtypes.append(actions.dtype)
        over = self.over.copy() if self.mode != AutoresetMode.SAME_STEP else np.zeros_like(self.over)
        self.state[:, 1] += 1
        self.state[over, 0] += 1
        self.state[over, 1] = 0
        self.over = ended = (self.state[:, 1] == self.ends) & ~over
        # In its reset step it says nonsense, which must not count.
        flags = (np.zeros_like(ended) | over, ended) if self.cuts else (ended | over, np.zeros_like(ended))
        infos = {"t": self.state[:, 1].astype(np.int32)}
        if self.mode == AutoresetMode.SAME_STEP and ended.any() and not self.context.get("forgets"):
            infos = {**infos, "final_obs": self.state}
            self.state = self.state.copy()
            self.state[ended, 0] += 1
            self.state[ended, 1] = 0
            infos["t"] = self.state[:, 1].astype(np.int32)
        return self.state, np.full(self.num_envs, 7, np.int32), *flags, infos

    def close_extras(self, **kwargs):
        self.closings += 1


class SameStepPool(PoolEnv):
    """Resets in the step that ends an episode; says so in words."""

    mode = "SameStep"

    def step(self, actions):
        self.mode = AutoresetMode.SAME_STEP
        return super().step(actions)


@pytest.mark.parametrize("cuts", [False, True])
def test_a_next_step_vector_has_a_row_that_only_resets(cuts):
    vector = make_vector_env(settings(PoolEnv, env_config={"cuts": cuts, "ends": [2, 4]}), worker_index=1)
    pool = vector.env
    assert isinstance(pool, PoolEnv) and pool.context["num_envs"] == 2 and pool.context.worker_index == 1
    assert vector.observation_space == batch_space(pool.single_observation_space, 2)
    obs, infos = vector.reset(seed=np.int64(5))
    assert obs.tolist() == [[0, 0], [0, 0]] and list(infos) == [{"t": 0}, {"t": 0}]
    assert pool.seeds == [5] and type(pool.seeds[0]) is int

    step = vector.step(np.zeros(2, np.int32))
    assert pool.dtypes == [np.int64]
    assert step.rewards.tolist() == [7, 7] and step.rewards.dtype == np.float64
    assert step.valid is None and not step.resets.any()
    assert step.final_obs is None and step.reset_infos is None

    ending = vector.step(ZEROS)
    assert (ending.truncateds if cuts else ending.terminateds).tolist() == [True, False]
    assert not (ending.terminateds if cuts else ending.truncateds).any()
    assert ending.obs[0].tolist() == [0, 2] and ending.final_obs[0].tolist() == [0, 2]
    assert not ending.resets.any() and ending.valid is None and ending.reset_infos is None

    reset = vector.step(ZEROS)
    assert reset.valid.tolist() == [False, True] and reset.resets.tolist() == [True, False]
    assert reset.rewards.tolist() == [0, 7] and reset.obs.tolist() == [[1, 0], [0, 3]]
    assert not reset.terminateds.any() and not reset.truncateds.any() and reset.final_obs is None
    assert list(reset.infos) == [{}, {"t": 3}] and list(reset.reset_infos) == [{"t": 0}, {}]
    # The vector wrote into its own arrays again; the final observation is a copy.
    assert ending.final_obs[0].tolist() == [0, 2]

    both = vector.step(ZEROS)
    assert both.obs[0].tolist() == [1, 1] and both.valid is None
    assert (both.truncateds | both.terminateds).tolist() == [False, True]
    # A reset of all of them forgets the one that is due.
    vector.reset()
    step = vector.step(ZEROS)
    assert step.valid is None and not step.resets.any() and step.rewards.tolist() == [7, 7]
    vector.close()
    vector.close()
    assert pool.closings == 1


def test_a_same_step_vector_gives_final_observations_as_one_array():
    vector = make_vector_env(settings(SameStepPool))
    vector.reset()
    assert vector.step(ZEROS).final_obs is None
    step = vector.step(ZEROS)
    assert step.terminateds.tolist() == [True, False] and step.resets.tolist() == [True, False]
    assert step.valid is None and step.rewards.tolist() == [7, 7]
    assert step.obs.tolist() == [[1, 0], [0, 2]] and step.final_obs[0].tolist() == [0, 2]
    assert list(step.infos) == [{}, {"t": 2}] and list(step.reset_infos) == [{"t": 0}, {}]
    final = step.final_obs
    vector.step(ZEROS)
    assert final[0].tolist() == [0, 2]


def test_gymnasiums_own_vectors_of_both_modes_work_when_a_creator_makes_them():
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):

        def creator(config, mode=mode):
            # gymnasium's vector keeps the final observation itself.
            context = EnvContext({"ends": [2], "infos": True, "copies": True}, 0)
            return SyncVectorEnv([lambda: CountingEnv(context)] * config["num_envs"], autoreset_mode=mode)

        register_env("own", creator)
        vector = make_vector_env(settings("own", mode="vector_entry_point"))
        vector.reset()
        vector.step(ZEROS)
        step = vector.step(ZEROS)
        assert step.terminateds.all() and step.final_obs.tolist() == [[0, 2], [0, 2]]
        assert list(step.infos) == [{"t": 2}, {"t": 2}]
        if mode is AutoresetMode.SAME_STEP:
            assert step.resets.all() and step.obs.tolist() == [[1, 0], [1, 0]]
            assert list(step.reset_infos) == [{"first": 1}, {"first": 1}]
        else:
            assert not step.resets.any() and vector.step(ZEROS).resets.all()


def test_a_vector_entry_point_of_gymnasium_keeps_its_autoreset_mode():
    vector = make_vector_env(
        settings("CartPole-v1", mode=gym.VectorizeMode.VECTOR_ENTRY_POINT, env_config={"max_episode_steps": 2})
    )
    assert type(vector.env).__name__ == "CartPoleVectorEnv"
    vector.reset(seed=0)
    vector.step(ZEROS)
    ending = vector.step(ZEROS)
    assert ending.truncateds.all() and not ending.resets.any()
    np.testing.assert_array_equal(ending.final_obs, ending.obs)
    reset = vector.step(ZEROS)
    assert not reset.valid.any() and reset.resets.all() and reset.rewards.tolist() == [0, 0]
    assert reset.rewards.dtype == np.float32
    vector.close()


def test_a_vector_whose_seed_is_fixed_is_made_again_for_another_seed():
    made = []

    def rebuild(seed):
        made.append((seed, PoolEnv(EnvContext({"num_envs": 2}, 0))))
        return made[-1][1]

    vector = VectorEnvAdapter(rebuild(4), "pool", 2, rebuild=rebuild, seed=4)
    vector.reset(seed=4)
    assert [seed for seed, _ in made] == [4] and made[0][1].seeds == [None]
    vector.reset()
    assert len(made) == 1
    # It has been used: the same seed starts the same again only in a new one.
    vector.reset(seed=4)
    assert [seed for seed, _ in made] == [4, 4] and made[0][1].closings == 1 and vector.env is made[1][1]
    vector.reset(seed=9)
    assert made[-1][0] == 9


def test_infos_are_taken_apart_per_environment():
    infos = {
        "score": np.array([1.5, 2.5]),
        "_score": np.array([True, False]),
        "_own": np.array([3, 4]),
        "deep": {"x": np.array(["a", "b"], object), "_x": np.array([False, True])},
        "_deep": np.array([True, True]),
        "image": np.zeros((2, 3)),
        "version": "1",
        "levels": (1, 2),
    }
    rows = InfoRows(infos, 2)
    assert len(rows) == 2 and [row.get("score") for row in rows] == [1.5, None]
    assert rows[0]["_own"] == 3 and rows[0]["deep"] == {} and rows[1]["deep"] == {"x": "b"}
    assert rows[-1]["image"].shape == (3,) and rows[0]["version"] == "1" and rows[0]["levels"] == (1, 2)
    assert [row["_own"] for row in rows[:]] == [3, 4]
    with pytest.raises(IndexError):
        rows[2]
    chosen = InfoRows({"a": np.array([1, 2])}, 2, np.array([True, False]), {"b": np.array([3, 4])})
    assert list(chosen) == [{"a": 1}, {"b": 4}]


# ------------------------------------------------------------------------------------------------------- mistakes


def test_copies_with_different_spaces():
    made = []

    class Environment(UnequalEnv):
        def __init__(self, config):
            super().__init__(config)
            made.append(self)

    with pytest.raises(ValueError, match="vector_index=1 has the observation_space .* env_runners"):
        make_vector_env(settings(Environment, num_envs=3))
    assert [env.closed for env in made] == [1, 1]

    def actions(config):
        return CountingEnv(EnvContext({"actions": 3 + config.vector_index}, 0))

    register_env("actions", actions)
    with pytest.raises(ValueError, match="vector_index=1 has the action_space Discrete\\(4\\)"):
        make_vector_env(settings("actions"))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_creator_that_makes_no_environment(mode):
    register_env("none", lambda config: None)
    with pytest.raises(TypeError, match="environment\\('none'\\): its creator returned None .* gymnasium.Env"):
        make_vector_env(settings("none", mode=mode))


def test_a_creator_that_fails_tells_which_copy_it_was():
    def creator(config):
        if config.vector_index == 1:
            raise OSError("no screen")
        return CountingEnv(config)

    register_env("fails", creator)
    with pytest.raises(OSError, match="no screen") as caught:
        make_vector_env(settings("fails"))
    assert "vector_index=1" in caught.value.__notes__[0] and "'fails'" in caught.value.__notes__[0]


def test_a_creator_is_called_once_per_environment():
    contexts = []

    def creator(config):
        contexts.append((config.vector_index, "num_envs" in config))
        return CountingEnv(config)

    register_env("counted", creator)
    make_vector_env(settings("counted", num_envs=3))
    assert contexts == [(0, False), (1, False), (2, False)]


def test_vector_entry_point_needs_a_vector():
    register_env("single", CountingEnv)
    with pytest.raises(TypeError, match="vector_entry_point.*'single'.*VectorEnv.*'sync'"):
        make_vector_env(settings("single", mode="vector_entry_point"))
    with pytest.raises(ValueError, match="vector_entry_point.*CountingEnv.*no vector version"):
        make_vector_env(settings(CountingEnv, mode="vector_entry_point"))
    with pytest.raises(ValueError, match="'Acrobot-v1'.*no vector version"):
        make_vector_env(settings("Acrobot-v1", mode="vector_entry_point"))


def test_a_vector_of_another_size_is_refused_and_closed():
    pools = []

    def creator(config):
        pools.append(PoolEnv(EnvContext({"num_envs": 2}, 0)))
        return pools[-1]

    register_env("pool", creator)
    with pytest.raises(ValueError, match="num_envs_per_env_runner=3.*env_config\\['num_envs'\\]"):
        make_vector_env(settings("pool", num_envs=3))
    assert pools[0].closings == 1


@pytest.mark.parametrize("mode", [None, AutoresetMode.DISABLED])
def test_a_vector_that_does_not_say_when_it_resets(mode):
    class Silent(PoolEnv):
        pass

    Silent.mode = mode
    with pytest.raises(ValueError, match="Silent.metadata\\['autoreset_mode'\\] is .*SAME_STEP"):
        make_vector_env(settings(Silent))


def test_a_same_step_vector_without_final_observations():
    vector = make_vector_env(settings(SameStepPool, env_config={"forgets": True}))
    vector.reset()
    vector.step(ZEROS)
    with pytest.raises(ValueError, match="SameStepPool.*infos\\['final_obs'\\]"):
        vector.step(ZEROS)


class MisdeclaredPoolEnv(PoolEnv):
    def __init__(self, config):
        super().__init__(config)
        self.single_observation_space = Box(0, 100, (3,), np.float32)


def test_observations_that_are_not_of_their_space():
    for env in (CountingEnv, MisdeclaredPoolEnv):
        config = settings(env, env_config={"shape": (3,)})
        with pytest.raises(ValueError, match=f"environment\\('{env.__name__}'\\): the .*observations? of reset"):
            make_vector_env(config).reset()
    config.disable_env_checking = True
    assert make_vector_env(config).reset()[0].shape == (2, 2)


def test_spaces_without_a_fixed_shape_are_refused():
    class Talking(CountingEnv):
        def __init__(self, config):
            super().__init__(config)
            self.observation_space = Text(5)

    with pytest.raises(TypeError, match="Text"):
        make_vector_env(settings(Talking))


def test_a_jax_environment_belongs_to_the_device():
    with pytest.raises(ValueError, match="CounterEnv.*sampled on the device.*GymnasiumFromJax"):
        make_vector_env(settings(CounterEnv))


# ------------------------------------------------------------------------------------------ names and suites


def test_what_resolves_to_a_vector():
    resolved = resolve_env(PoolEnv, {"ends": [1, 1]})
    assert resolved.is_vector and not resolved.is_jax and not resolved.seeded_when_made
    assert resolved.make().num_envs == 1 and resolved.make_vector(3).num_envs == 3
    register_env("pool", PoolEnv)
    resolved = resolve_env("pool")
    assert resolved.is_vector and resolved.make().num_envs == 1 and resolved.make_vector(2).num_envs == 2
    register_env("else", lambda config: config["else"])
    with pytest.raises(KeyError, match="else"):
        resolve_env("else")
    register_env("wrong", lambda config: PoolEnv(config) if config["num_envs"] == 1 else 3)
    with pytest.raises(TypeError, match="'wrong'.*returned 3. Let it return a gymnasium.vector.VectorEnv"):
        resolve_env("wrong").make_vector(2)
    with pytest.raises(TypeError, match="an instance of a gymnasium"):
        resolve_env(PoolEnv({"num_envs": 1}))
    with pytest.raises(TypeError, match="int.*is no environment.*gymnasium.vector.VectorEnv"):
        resolve_env(int)


def test_gymnasium_ids_keep_their_hint_and_bring_their_spec():
    resolved = resolve_env("CartPole-v1")
    assert resolved.hint == (
        "'CartPole-v1' is gymnasium's environment and runs on the host; use 'gymnax/CartPole-v1' to sample "
        "on the device."
    )
    assert resolved.spec.id == "CartPole-v1" and not resolved.is_vector
    assert resolve_env("Blackjack-v1").hint is None


class FakeEnvpool(types.ModuleType):
    """envpool's two functions, over `PoolEnv`."""

    def __init__(self):
        super().__init__("envpool")
        self.calls = []

    def list_all_envs(self):
        return ["Pool-v0"]

    def make(self, task, *, env_type, num_envs, seed, **arguments):
        self.calls.append((task, env_type, num_envs, seed, arguments))
        return PoolEnv(EnvContext({"num_envs": num_envs}, 0))


def test_envpool_names(monkeypatch):
    fake = FakeEnvpool()
    monkeypatch.setitem(sys.modules, "envpool", fake)
    monkeypatch.setattr(suites, "available_cores", lambda: 1)
    resolved = resolve_env("envpool/Pool-v0")
    assert resolved.is_vector and resolved.seeded_when_made and fake.calls == []
    assert resolved.make().num_envs == 1
    vector = make_vector_env(settings("envpool/Pool-v0", env_config={"max_episode_steps": 5}), seed=5)
    assert fake.calls[1:] == [("Pool-v0", "gymnasium", 2, 5, {"num_threads": 1, "max_episode_steps": 5})]
    vector.reset(seed=[5, 77])
    assert len(fake.calls) == 2
    vector.reset(seed=8)
    assert fake.calls[2][3] == 8 and len(fake.calls) == 3
    make_vector_env(settings("envpool/Pool-v0", seed=None, env_config={"num_threads": 2}))
    assert 0 <= fake.calls[3][3] < 2**31 and fake.calls[3][4] == {"num_threads": 2}
    with pytest.raises(ValueError, match="envpool has no task 'Pol-v0'"):
        make_vector_env(settings("envpool/Pol-v0"))
    with pytest.raises(ValueError, match="belong to envpool"):
        register_env("envpool/mine", CountingEnv)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("envpool/CartPole-v1", "envpool", "jaxrl-stack[envpool]"),
        ("ALE/Pong-v5", "ale_py", "jaxrl-stack[atari]"),
        ("LunarLander-v3", "Box2D", "gymnasium[box2d]"),
        ("Ant-v5", "mujoco", "gymnasium[mujoco]"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("dm_control/cartpole-swingup-v0", "shimmy", "shimmy[dm-control]"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(f"pip install '{package}'.")) as caught:
        resolve_env(name)
    assert str(caught.value).startswith(f"environment({name!r}) needs {module} (")


def test_a_missing_package_is_found_before_actors_are_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(ImportError, match=r"pip install 'gymnasium\[box2d\]'"):
        PPOConfig().environment("LunarLander-v3").env_runners(num_env_runners=2).build_algo()


def test_available_cores_follow_the_grant(monkeypatch):
    monkeypatch.setenv("NPROC", "3")
    assert suites.available_cores() == 3
    monkeypatch.delenv("NPROC")
    assert suites.available_cores() >= 1


class ImagePool(gym.vector.VectorEnv):
    """Images ``[S, H, W]`` or ``[S, H, W, 3]`` that tell their first and last axis."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, shape):
        self.num_envs = 2
        self.single_observation_space = Box(0, 255, shape, np.uint8)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        frames = 10 * np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        colours = np.arange(shape[3]) if len(shape) == 4 else 0
        self.images = np.broadcast_to(frames + colours, (2, *shape)).astype(np.uint8)
        self.seeds = []

    def reset(self, **arguments):
        self.seeds.append(arguments)
        return self.images, {}

    def step(self, actions):
        ended = np.ones(2, bool)
        return self.images, np.zeros(2), ended, ~ended, {"final_obs": self.images + np.uint8(1)}


@pytest.mark.parametrize(
    ("shape", "moved", "pixel"),
    [((4, 8, 9), (8, 9, 4), [0, 10, 20, 30]), ((2, 8, 9, 3), (8, 9, 6), [0, 1, 2, 10, 11, 12])],
)
def test_images_of_suites_have_their_channels_last(shape, moved, pixel):
    pool = ImagePool(shape)
    env = suites.channels_last(pool)
    assert env.single_observation_space == Box(0, 255, moved, np.uint8)
    assert env.observation_space == Box(0, 255, (2, *moved), np.uint8)
    vector = VectorEnvAdapter(env, "images", 2)
    obs, _ = vector.reset(seed=3)
    vector.reset()
    assert pool.seeds == [{"seed": 3, "options": None}, {"options": None}]
    assert obs.shape == (2, *moved) and obs[1, 5, 6].tolist() == pixel
    step = vector.step(ZEROS)
    assert step.final_obs[0, 1, 1].tolist() == [x + 1 for x in pixel] and step.obs[0, 1, 1].tolist() == pixel


def test_what_has_no_leading_channels_stays_as_it_is():
    for env in (ImagePool((7, 7, 3)), PoolEnv(EnvContext({"num_envs": 2}, 0))):
        assert suites.channels_last(env) is env


def test_one_environment_of_training_is_shown_if_that_is_asked_for():
    class Shown(CountingEnv):
        metadata = {"render_modes": ["human"], "render_fps": 1}

        def __init__(self, render_mode=None):
            super().__init__(EnvContext({}, 0))
            self.render_mode = render_mode

    gym.register("ShownForTest-v0", entry_point=Shown)
    try:

        def modes(**others):
            place = {name: others.pop(name) for name in ("worker_index", "num_workers") if name in others}
            vector = make_vector_env(settings("ShownForTest-v0", **{"render_env": True, **others}), **place)
            try:
                return [env.render_mode for env in vector.env.envs]
            finally:
                vector.close()

        assert modes() == modes(worker_index=1, num_workers=2) == ["human", None]
        assert (
            modes(worker_index=2, num_workers=2) == modes(in_evaluation=True) == modes(render_env=False) == [None, None]
        )
    finally:
        del gym.registry["ShownForTest-v0"]
