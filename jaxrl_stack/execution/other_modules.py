"""What a driver with other modules takes over, and whether it could train with another config's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import COMPONENT_ENV_RUNNER
from jaxrl_stack.env.agent_mapping import AgentSpaces, HostMapping, module_map_of
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.module_pipelines import spaces_of_modules
from jaxrl_stack.env.training_shards import ROLLOUT, ROLLOUT_OF_OTHER_MODULES

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


def state_for_modules(state: dict[str, Any], before: ModuleMap, after: ModuleMap) -> dict[str, Any]:
    """The state of a driver for one that has other modules, whose learners' state is that of the latter already.

    Whatever is of a module that both have, or of none, is kept bit for bit. Where agents have other modules, running
    episodes of JAX environments are given up.

    Args:
        state: What its `get_state` returned.
        before: Which module acted for which agent there.
        after: Which one does now.
    """
    runner = state[COMPONENT_ENV_RUNNER]
    if before == after or ROLLOUT not in runner:
        return state
    runner = {ROLLOUT_OF_OTHER_MODULES if name == ROLLOUT else name: own for name, own in runner.items()}
    return {**state, COMPONENT_ENV_RUNNER: runner, "driver": {**state["driver"], "running_episodes": {}}}
