"""States of a module's connector pipelines: running statistics, which env runners merge, and per-environment states
such as frame stacks, which they do not merge.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.connectors.states import per_env_leaves

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline


class ConnectorStates:
    """Env-to-module pipeline and module-to-env pipeline of one module, with the current states of both; for an env
    runner that steps environments in Python.

    Args:
        env_to_module: The whole pipeline; its host connectors keep their own states.
        module_to_env: A pure pipeline.
        num_envs: ``B``, rows of the module.

    Attributes:
        env_to_module: The constructor argument.
        module_to_env: The constructor argument.
        pure: Compiled parts of both pipelines, ``(env-to-module, module-to-env)``.
        value: States of both pipelines, which a policy takes and returns.
    """

    def __init__(self, env_to_module: EnvToModulePipeline, module_to_env: ModuleToEnvPipeline, num_envs: int):
        module_to_env.check_pure()
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        self.pure = (env_to_module.pure_part(), module_to_env.pure_part())
        self.init(num_envs)

    def init(self, num_envs: int) -> None:
        """Sets the states of the env-to-module and module-to-env pipelines to their initial values for `num_envs`
        environments.
        """
        first, second = self.pure
        self.value: tuple[Any, Any] = (first.init(num_envs), second.init(num_envs))

    def reset(self, num_envs: int) -> None:
        """Resets the per-environment states, such as frame stacks, of the env-to-module and module-to-env pipelines;
        keeps their running statistics.
        """
        first, second = self.pure
        self.value = (first.rebatch(self.value[0], num_envs), second.rebatch(self.value[1], num_envs))

    @functools.cached_property
    def has_host_connectors(self) -> bool:
        """Whether the env-to-module pipeline has host connectors: connectors that override RLlib's ``__call__`` and run
        in Python, outside jit.
        """
        return bool(self.env_to_module.checked_host_connectors())

    def compiled_state(self) -> dict[str, Any]:
        """Returns the env-to-module pipeline's state as NumPy data by connector name; {} if no connector that runs
        inside jit has a state.
        """
        if not jax.tree.leaves(self.value[0]):
            return {}
        return state_of(self.env_to_module, self.value[0])

    def get_env_to_module(self) -> dict[str, Any]:
        """Returns the env-to-module pipeline's state by connector name, including the states of connectors that run in
        Python, outside jit.
        """
        return self.compiled_state() or (self.env_to_module.get_state() if self.has_host_connectors else {})

    def get_module_to_env(self) -> dict[str, Any]:
        """Returns the module-to-env pipeline's state as NumPy data by connector name."""
        return state_of(self.module_to_env, self.value[1])

    def set_env_to_module(self, state: Mapping[str, Any], *, keeps_histories: bool, from_training: bool) -> None:
        """Loads a saved state into the env-to-module pipeline. With `keeps_histories`, loads only the running
        statistics; the pipeline's present per-environment states, such as frame stacks, stay.

        Args:
            state: Result of `get_env_to_module`.
            keeps_histories: Load only running statistics; per-environment states stay.
            from_training: Whether `state` comes from the training pipeline, whose connectors may differ
                (``evaluation_config``): then states of unknown connectors, and of connectors without statistics, are
                ignored.
        """
        if state and from_training:
            state = known_statistics(self.env_to_module.names, self._histories, state)
        if not state:
            return
        present = self.env_to_module.state = jax.device_get(self.value[0])
        self.env_to_module.set_state(dict(state))
        given = self.env_to_module.state
        if keeps_histories:
            given = with_statistics(present, given, self._histories)
        self.value = (given, self.value[1])

    def set_module_to_env(self, state: dict[str, Any]) -> None:
        """Restores the state of the module-to-env pipeline from `state`, a result of `get_module_to_env`. An empty
        `state` changes nothing.
        """
        if state:
            self.module_to_env.state = jax.device_get(self.value[1])
            self.module_to_env.set_state(state)
            self.value = (self.value[0], self.module_to_env.state)

    def merge_deltas(self) -> None:
        """Updates the running totals of the env-to-module pipeline: merges the statistics that the pipeline has
        collected since the previous merge.
        """
        self.value = (jax.device_get(self.pure[0].merge(self.value[0], None)), self.value[1])

    @functools.cached_property
    def _histories(self) -> Any:
        return per_env_leaves(self.pure[0].init)


def state_of(pipeline: Any, state: Any) -> dict[str, Any]:
    """Converts a state of `pipeline` to NumPy data by connector name: stores `state` in the pipeline, then returns
    ``pipeline.get_state()``.
    """
    pipeline.state = jax.device_get(state)
    return pipeline.get_state()


def known_statistics(names: Sequence[str], is_history: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of another pipeline's saved state for the connectors in `names`.

    The saved state `state` has the form ``{connector name: connector state}``. Leaves out connectors that have only
    per-environment states, such as frame stacks.

    Args:
        names: Names of the pipeline's connectors.
        is_history: The `per_env_leaves` of its state; connectors that run on the host are not in it.
        state: Result of the other pipeline's `get_state`, ``{connector name: its state}``.
    """
    own_only = {name for name, masks in is_history.items() if all(jax.tree.leaves(masks))}
    return {name: given for name, given in state.items() if name in names and name not in own_only}


def with_statistics(present: Any, given: Any, is_history: Any) -> Any:
    """Combines two states of a pipeline: returns the running statistics of `given` with the per-environment states,
    such as frame stacks, of `present`.

    Args:
        present: State whose per-environment parts stay; its leaves may have further leading axes.
        given: State with the new statistics, for any number of environments.
        is_history: The `per_env_leaves` of these states.
    """
    return jax.tree.map(
        lambda mine, theirs, mask: mine if mask else np.broadcast_to(np.asarray(theirs), np.shape(mine)),
        present,
        given,
        is_history,
    )
