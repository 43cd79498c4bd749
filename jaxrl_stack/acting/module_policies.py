"""Policies of all modules of a host EnvRunner.

Each module has one jitted call per vector step (a step of all environments). All policies share one copy of the
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import HostPolicy
from jaxrl_stack.core.module_map import ByModule, ModuleMap


class ModulePolicies(ByModule[HostPolicy]):
    """Policies of all modules, ``{module_id: HostPolicy}``, with methods that call every policy.

    Args:
        of: The policies; all have the same device and the same MultiRLModule.
        module_map: Mapping from agents to modules. It derives the seeds of the modules and the form of their states.
    """

    def __init__(self, of: Mapping[str, HostPolicy], module_map: ModuleMap):
        super().__init__(of)
        self._module_map = module_map
        self._first = next(iter(self._of.values()))

    @property
    def sharding(self) -> Any:
        """Sharding of all arguments of the compiled policy programs: one device."""
        return self._first.sharding

    @property
    def refs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names (refs) of the modules' arrays, as two tuples ``(params, rest)``; see `HostPolicy.refs`."""
        return self._first.refs

    @property
    def modules(self) -> Any:
        """MultiRLModule with its initial weights."""
        return self._first.modules

    @property
    def module(self) -> Any:
        """MultiRLModule with the current weights."""
        return self._first.current_modules

    def module_of(self, module_id: str) -> Any:
        """Returns the acting module `module_id` with the current weights, see `HostPolicy.module_of`."""
        return self._first.module_of(module_id)

    def reseed(self, seed: int) -> None:
        """Restarts the random number generators of all modules' policies from a seed, see `ModuleMap.seed_of`.

        Args:
            seed: Seed of the runner's policies.
        """
        for mid, policy in self._of.items():
            policy.reseed(self._module_map.seed_of(mid, seed))

    def get_random_state(self) -> dict[str, Any]:
        """Returns the random states of the policies, ``{module_id: state}``; for a single agent, one state without the
        dict.
        """
        return self._module_map.unwrapped({mid: policy.get_random_state() for mid, policy in self._of.items()})

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Sets the policies' random states to a result of `get_random_state`. Modules without an entry keep their
        random states.
        """
        given = self._module_map.by_module(state)
        for mid in given.keys() & self._of.keys():
            self._of[mid].set_random_state(given[mid])

    def numbers_of(self, random: Mapping[str, Any]) -> list[int]:
        """Converts random states (a result of `get_random_state`) to a list of integers, from which seeds can be
        derived.
        """
        given = self._module_map.by_module(random)
        return [number for mid in sorted(given) for number in HostPolicy.numbers_of(given[mid])]

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the values of settings that are arguments of the compiled programs, such as ``epsilon``, in all
        policies.
        """
        for policy in self._of.values():
            policy.set_settings(settings)

    def adopt_weights(self, params: Mapping[str, jax.Array], rest: Mapping[str, jax.Array]) -> None:
        """Uses the given arrays as weights of all policies, without a copy; see `HostPolicy.adopt_weights`."""
        for policy in self._of.values():
            policy.adopt_weights(params, rest)

    def set_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Copies weights to the device once; all policies use these copies. See `HostPolicy.set_weights`."""
        self._first.set_weights(params, rest)
        given = self._first.current_weights
        for policy in self._of.values():
            if policy is not self._first:
                policy.adopt_weights(*given)

    def get_weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the current weights ``(params, rest)``, two dicts ``{array name: NumPy array}``: the modules'
        parameters, and the modules' other arrays except random streams.
        """
        return self._first.get_weights()
