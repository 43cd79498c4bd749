"""Gymnasium environments that fail on purpose, for tests of fault tolerance."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

HOW_TO_CRASH = ("raise", "exit", "kill")


class FaultyEnvError(Exception):
    """Error that `CrashingEnv` raises on purpose."""


class FaultyEnv(gym.Env):
    """Base of environments that fail in certain steps or at random; subclasses define the fault.

    An observation is ``[steps of the episode, steps of this object]``, a reward is 1, an episode ends after `length`
    steps. The settings `after`, `every` and `probability` select the steps with a fault (counted over the life of the
    object, from 1). The other settings limit the faults to some environments, or to a single fault in all processes.

    Settings (``env_config``):
        length (10): Steps of an episode; the last one terminates it.
        after (None): The fault happens in this step; 0: in ``reset()``.
        every (None): The fault happens in every step whose number this divides.
        probability (0.0): The fault happens in every step with this probability.
        worker_index (None): Only in environments of this env runner, or of these (a list).
        vector_index (None): Only in this copy of a runner's environments, or in these (a list).
        recreated (None): Only in runners that were restarted (True), or that were not (False).
        marker (None): Path of a file. The fault happens once, in all processes together: if the file is not there, it
            is made, and the fault happens.
        seconds (0.0): Every ``step()`` sleeps for this time (a slow environment).

    Args:
        config: The settings; an `EnvContext` also contains the index of the EnvRunner and of the environment.

    Attributes:
        steps: Steps of this object so far.
        seeds: The seeds that ``reset()`` got.

    Raises:
        ValueError: For an unknown setting.
    """

    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    defaults: Mapping[str, Any] = {
        "length": 10,
        "after": None,
        "every": None,
        "probability": 0.0,
        "worker_index": None,
        "vector_index": None,
        "recreated": None,
        "marker": None,
        "seconds": 0.0,
    }

    def __init__(self, config: Mapping[str, Any] | None = None):
        given = dict(config or {})
        unknown = sorted(set(given) - set(self.defaults))
        if unknown:
            raise ValueError(f"{type(self).__name__} has no settings {unknown}; it has {', '.join(self.defaults)}.")
        self.settings = {**self.defaults, **given}
        place = {"worker_index": getattr(config, "worker_index", 0), "vector_index": getattr(config, "vector_index", 0)}
        self.place = place
        recreated = self.settings["recreated"]
        self._is_faulty = all(_fits(self.settings[name], index) for name, index in place.items()) and (
            recreated is None or recreated == getattr(config, "recreated_worker", False)
        )
        self.steps = self.t = 0
        self.seeds: list[int] = []

    def fault(self) -> None:
        """Causes the fault of a subclass; called in `step` or `reset`, before the observation is returned."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seeds.append(seed)
        self.t = 0
        if self.settings["after"] == 0 and self._may_fail():
            self.fault()
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.steps += 1
        if self.settings["seconds"]:
            time.sleep(self.settings["seconds"])
        if self._is_due() and self._may_fail():
            self.fault()
        return self.observation(), self.reward(), self.t >= self.settings["length"], False, {}

    def observation(self) -> np.ndarray:
        """Current observation, float32 ``[2]``."""
        return np.array([self.t, self.steps], np.float32)

    def reward(self) -> float:
        """Reward of the current step."""
        return 1.0

    def _is_due(self) -> bool:
        after, every, probability = (self.settings[name] for name in ("after", "every", "probability"))
        return (
            (after is not None and self.steps == after)
            or (every is not None and self.steps % every == 0)
            or (probability > 0.0 and self.np_random.random() < probability)
        )

    def _may_fail(self) -> bool:
        if not self._is_faulty:
            return False
        if self.settings["marker"] is None:
            return True
        try:
            os.close(os.open(self.settings["marker"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class CrashingEnv(FaultyEnv):
    """Environment that raises an error, or ends its process.

    Settings: those of `FaultyEnv`; `how` ("raise"): "raise" a `FaultyEnvError`, "exit" the process at once
    (``os._exit``), or "kill" it with SIGKILL. The last two are for separate processes: actors, or environments in
    "async" mode.
    """

    defaults = {**FaultyEnv.defaults, "how": "raise"}

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        if self.settings["how"] not in HOW_TO_CRASH:
            raise ValueError(f"CrashingEnv(how={self.settings['how']!r}): must be one of {', '.join(HOW_TO_CRASH)}.")

    def fault(self) -> None:
        if self.settings["how"] == "exit":
            os._exit(1)
        if self.settings["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise FaultyEnvError(f"crashed on purpose: step {self.steps}, {self.place}")


class StallingEnv(FaultyEnv):
    """Environment that sleeps for a long time in a faulty step.

    Settings: those of `FaultyEnv`; `stall` (60.0): seconds of sleep.
    """

    defaults = {**FaultyEnv.defaults, "stall": 60.0}

    def fault(self) -> None:
        time.sleep(self.settings["stall"])


class NanEnv(FaultyEnv):
    """Environment that returns NaN or infinity in an observation or reward.

    Settings: those of `FaultyEnv`; `where` ("observation"): or "reward"; `value` (nan): or inf.
    """

    defaults = {**FaultyEnv.defaults, "where": "observation", "value": float("nan")}

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        if self.settings["where"] not in ("observation", "reward"):
            raise ValueError(f"NanEnv(where={self.settings['where']!r}): must be 'observation' or 'reward'.")
        self._is_due_now = ""

    def fault(self) -> None:
        self._is_due_now = self.settings["where"]

    def observation(self) -> np.ndarray:
        observation = super().observation()
        if self._is_due_now == "observation":
            observation[0], self._is_due_now = self.settings["value"], ""
        return observation

    def reward(self) -> float:
        if self._is_due_now == "reward":
            self._is_due_now = ""
            return self.settings["value"]
        return super().reward()


def _fits(wanted: int | list[int] | None, index: int) -> bool:
    return wanted is None or index in (wanted if isinstance(wanted, list | tuple) else [wanted])
