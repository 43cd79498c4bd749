"""What a driver with other modules takes over, and whether it could train with another config's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import COMPONENT_ENV_RUNNER, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.env.agent_mapping import AgentSpaces, HostMapping, module_map_of
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.module_pipelines import spaces_of_modules
from jaxrl_stack.env.training_shards import ROLLOUT, ROLLOUT_OF_OTHER_MODULES
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.execution.driver import Driver


class AtWork:
    """What the driver's thread, and one that evaluates beside it, are at."""

    def __init__(self) -> None:
        self._running: list[str] = []

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Around it."""
        self._running.append(what)
        try:
            yield
        finally:
            self._running.remove(what)

    def check_is_idle(self, called: str) -> None:
        """Refuse a call that changes what is running.

        Args:
            called: The call, for the message.

        Raises:
            RuntimeError: In the middle of an iteration or an evaluation.
        """
        if self._running:
            raise RuntimeError(
                f"{called} was called while {self._running[-1]} runs. Call it between two iterations: after train(), "
                f"or in the callback on_train_result."
            )


def check_mapping(driver: Driver, config: AlgorithmConfig) -> None:
    """Raise a ValueError if agents of a driver's environment cannot have the policies that a config gives them."""
    if driver.jax_env is not None:
        spaces_of_modules(driver.jax_env, module_map_of(config, driver.jax_env))
    else:
        agents = agent_preprocessing(config, AgentSpaces(*driver.spaces["__env_single__"])).spaces
        spaces_of_modules(agents, HostMapping(config, agents, f"environment({config.env!r})").module_map)


def state_for_modules(
    state: dict[str, Any], before: ModuleMap, after: ModuleMap, *, is_on_device: bool
) -> dict[str, Any]:
    """The state of a driver for one that has other modules, whose learners' state is that of the latter already.

    Whatever is of a module that both have, or of none, is kept bit for bit. Where agents have other modules, running
    episodes of JAX environments are given up, as is the replay on the device of modules that act for other agents now.

    Args:
        state: Result of its `get_state`, with the state of its replay buffer if it has one.
        before: Which module acted for which agent there.
        after: Which one does now.
        is_on_device: Whether environments are stepped on the device.
    """
    if is_on_device and COMPONENT_REPLAY_BUFFER in state:
        state = {**state, COMPONENT_REPLAY_BUFFER: _replay_of_same(state[COMPONENT_REPLAY_BUFFER], before, after)}
    runner = state[COMPONENT_ENV_RUNNER]
    if before == after or ROLLOUT not in runner:
        return state
    runner = {ROLLOUT_OF_OTHER_MODULES if name == ROLLOUT else name: own for name, own in runner.items()}
    return {**state, COMPONENT_ENV_RUNNER: runner, "driver": {**state["driver"], "running_episodes": {}}}


def _replay_of_same(replay: dict[str, Any], before: ModuleMap, after: ModuleMap) -> dict[str, Any]:
    """The replay of modules that act for the same agents; a notice names the others that had some."""
    same = {mid: own for mid, own in replay.items() if before.agents_of.get(mid) == after.agents_of.get(mid)}
    changed = sorted(mid for mid in replay.keys() - same.keys() if mid in after.agents_of)
    if changed:
        notice_once(
            f"The modules {changed} act for other agents now: their replay buffers begin empty, as those on the device "
            f"have a column for each agent."
        )
    return same
