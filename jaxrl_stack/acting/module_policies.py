"""How several modules act on a host runner: one jitted call per module and vector step, with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import HostPolicy
from jaxrl_stack.core.module_map import ByModule
from jaxrl_stack.utils.seeds import derived_seed


class ModulePolicies(ByModule[HostPolicy]):
    """``{module_id: HostPolicy}``; what is said to all of them at once.

    Args:
        of: The policies, of one device and of the same MultiRLModule.
    """

    def __init__(self, of: Mapping[str, HostPolicy]):
        super().__init__(of)
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

    def reseed(self, *seeds: int) -> None:
        """Start the random numbers anew: those of a module follow from its name, whichever others there are."""
        for mid, policy in self._of.items():
            policy.reseed(derived_seed(f"policy of module/{mid}", *seeds))

    def get_random_state(self) -> dict[str, Any]:
        """``{module_id: see HostPolicy.get_random_state}``."""
        return {mid: policy.get_random_state() for mid, policy in self._of.items()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_random_state` returned; modules that it does not have go on as they are."""
        for mid in state.keys() & self._of.keys():
            self._of[mid].set_random_state(state[mid])

    @staticmethod
    def numbers_of(random: Mapping[str, Any]) -> list[int]:
        """See `HostPolicy.numbers_of`."""
        return [number for mid in sorted(random) for number in HostPolicy.numbers_of(random[mid])]

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

    def act_once(self, env_to_module: Mapping[str, Any], *args: Any, module_id: str, **kwargs: Any) -> dict[str, Any]:
        """See `HostPolicy.act_once`; a module without agents acts with the pipelines of the first one.

        Args:
            env_to_module: ``{module_id: state of that pipeline}``.
            *args: See there.
            module_id: The module that acts.
            **kwargs: See there.
        """
        acting = module_id if module_id in self._of else next(iter(self._of))
        return self._of[acting].act_once(env_to_module[acting], *args, module_id=module_id, **kwargs)
