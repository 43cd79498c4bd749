"""Maps a driver's state onto a changed set of modules, and checks whether a driver can train with another config."""

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
    """Register of a driver's running operations, such as an iteration or a concurrent evaluation. `check_is_idle`
    refuses calls that would disturb these operations.
    """

    def __init__(self) -> None:
        self._running: list[str] = []

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Context manager that registers the operation `what` as running, so that `check_is_idle` refuses calls that
        would disturb this operation.
        """
        self._running.append(what)
        try:
            yield
        finally:
            self._running.remove(what)

    def check_is_idle(self, called: str) -> None:
        """Raises RuntimeError if an operation of the driver, such as an iteration, is running. Methods that would
        disturb this operation call `check_is_idle` first.

        Args:
            called: The call, for the message.

        Raises:
            RuntimeError: During an iteration or an evaluation.
        """
        if self._running:
            raise RuntimeError(
                f"{called} was called while {self._running[-1]} runs. Call it between two iterations: after train(), "
                f"or in the callback on_train_result."
            )


def check_mapping(driver: Driver, config: AlgorithmConfig) -> None:
    """Raises a ValueError if a config's mapping from agents to policies does not fit the agents and spaces of a
    driver's environment.
    """
    if driver.jax_env is not None:
        spaces_of_modules(driver.jax_env, module_map_of(config, driver.jax_env))
    else:
        agents = agent_preprocessing(config, AgentSpaces(*driver.spaces["__env_single__"])).spaces
        spaces_of_modules(agents, HostMapping(config, agents, f"environment({config.env!r})").module_map)


def state_for_modules(
    state: dict[str, Any], before: ModuleMap, after: ModuleMap, *, is_on_device: bool
) -> dict[str, Any]:
    """Converts the saved state of a driver so that a driver with other modules can restore the state.

    A driver runs the training of one algorithm. Does not convert the learners' state in `state`, which the caller has
    already converted.

    State of common modules, and state without module, is kept bit for bit. If agents get other modules, unfinished
    episodes of JAX environments are dropped, as are device replays of modules that now act for other agents.

    Args:
        state: Result of the former driver's `get_state`, with the state of its replay buffer if it has one.
        before: Former map from agents to modules.
        after: New map from agents to modules.
        is_on_device: Whether environments run on the device.
    """
    if is_on_device and COMPONENT_REPLAY_BUFFER in state:
        state = {**state, COMPONENT_REPLAY_BUFFER: _replay_of_same(state[COMPONENT_REPLAY_BUFFER], before, after)}
    runner = state[COMPONENT_ENV_RUNNER]
    if before == after or ROLLOUT not in runner:
        return state
    runner = {ROLLOUT_OF_OTHER_MODULES if name == ROLLOUT else name: own for name, own in runner.items()}
    return {**state, COMPONENT_ENV_RUNNER: runner, "driver": {**state["driver"], "running_episodes": {}}}


def _replay_of_same(replay: dict[str, Any], before: ModuleMap, after: ModuleMap) -> dict[str, Any]:
    """Returns the saved replay buffers of the modules that act for the same agents as before. Prints a notice that
    names the modules whose buffers start empty.
    """
    same = {mid: own for mid, own in replay.items() if before.agents_of.get(mid) == after.agents_of.get(mid)}
    changed = sorted(mid for mid in replay.keys() - same.keys() if mid in after.agents_of)
    if changed:
        notice_once(
            f"The modules {changed} act for other agents now. Their replay on the device starts empty, as it has a "
            f"column for each agent."
        )
    return same
