"""Policies of the modules of a host runner: one jitted call per module and vector step, with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import HostPolicy
from jaxrl_stack.core.module_map import ByModule, ModuleMap


class ModulePolicies(ByModule[HostPolicy]):
    """``{module_id: HostPolicy}``, with calls for all of them at once.

    Args:
        of: The policies, of one device and of the same MultiRLModule.
        module_map: Which module acts for which agent. It gives the seeds of the modules and the form of their states.
    """

    def __init__(self, of: Mapping[str, HostPolicy], module_map: ModuleMap):
        super().__init__(of)
        self._module_map = module_map
        self._first = next(iter(self._of.values()))

    @property
    def sharding(self) -> Any:
        """See `HostPolicy`."""
        return self._first.sharding

    @property
    def refs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `HostPolicy.refs`."""
        return self._first.refs

    @property
    def modules(self) -> Any:
        """The MultiRLModule with the weights that it was built with."""
        return self._first.modules

    @property
    def module(self) -> Any:
        """The MultiRLModule with the current weights."""
        return self._first.current_modules

    def module_of(self, module_id: str) -> Any:
        """See `HostPolicy.module_of`."""
        return self._first.module_of(module_id)

    def reseed(self, seed: int) -> None:
        """Start the random numbers again, see `ModuleMap.seed_of`.

        Args:
            seed: Seed of the runner's policies.
        """
        for mid, policy in self._of.items():
            policy.reseed(self._module_map.seed_of(mid, seed))

    def get_random_state(self) -> dict[str, Any]:
        """States of `HostPolicy.get_random_state`, see `ModuleMap.unwrapped`."""
        return self._module_map.unwrapped({mid: policy.get_random_state() for mid, policy in self._of.items()})

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_random_state` returned; modules that it does not have continue as they are."""
        given = self._module_map.by_module(state)
        for mid in given.keys() & self._of.keys():
            self._of[mid].set_random_state(given[mid])

    def numbers_of(self, random: Mapping[str, Any]) -> list[int]:
        """The result of `get_random_state` as integers, from which seeds may follow."""
        given = self._module_map.by_module(random)
        return [number for mid in sorted(given) for number in HostPolicy.numbers_of(given[mid])]

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """See `HostPolicy.set_settings`."""
        for policy in self._of.values():
            policy.set_settings(settings)

    def adopt_weights(self, params: Mapping[str, jax.Array], rest: Mapping[str, jax.Array]) -> None:
        """See `HostPolicy.adopt_weights`."""
        for policy in self._of.values():
            policy.adopt_weights(params, rest)

    def set_weights(self, params: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """See `HostPolicy.set_weights`; all policies have the same copies."""
        self._first.set_weights(params, rest)
        given = self._first.current_weights
        for policy in self._of.values():
            if policy is not self._first:
                policy.adopt_weights(*given)

    def get_weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """See `HostPolicy.get_weights`."""
        return self._first.get_weights()
