"""Storage of env runner states that an `EnvRunnerGroup` has sent to its actors, or will send with their next calls."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from jaxrl_stack.core import COMPONENT_RL_MODULE


class _Sent(NamedTuple):
    parts: frozenset[tuple[str, ...]]
    ref: Any


class SentStates:
    """Stores the env runner states that each actor has received or will receive with its next call, oldest first.

    Discards a state if a newer state replaces it.

    A state replaces an older one if it has all components of the older one, and all arrays of the older one's modules.
    Thus weights of some modules replace only older weights of these modules.
    """

    def __init__(self) -> None:
        self._of: dict[int, list[_Sent]] = collections.defaultdict(list)
        self._waiting: dict[int, list[_Sent]] = collections.defaultdict(list)

    def add(self, actor_ids: Iterable[int], state: Mapping[str, Any], ref: Any) -> None:
        """Adds an env runner state that is sent with the next call of each actor in `actor_ids`.

        Args:
            actor_ids: Ids of the actors.
            state: The state.
            ref: Argument of the call: the state itself, or a reference to it.
        """
        new = _Sent(_parts_of(state), ref)
        for actor_id in actor_ids:
            for sent in (self._of[actor_id], self._waiting[actor_id]):
                sent[:] = [*(old for old in sent if not old.parts <= new.parts), new]

    def take_waiting(self, actor_id: int) -> dict[str, Any]:
        """Returns and removes the waiting states of an actor: the env runner states to send with its next call.

        The states are keyword arguments of `set_states`, oldest first. A later call does not return these states again.
        """
        return _numbered(self._waiting.pop(actor_id, []))

    def all_of(self, actor_id: int) -> dict[str, Any]:
        """Returns all stored env runner states of an actor, to restore the actor after a restart.

        The states are keyword arguments of `set_states`, oldest first. Also removes the actor's waiting states (states
        to send with its next call), so that `take_waiting` does not return these states again.
        """
        self._waiting.pop(actor_id, None)
        return _numbered(self._of[actor_id])

    def clear_waiting(self) -> None:
        """Removes the waiting states of all actors: the env runner states to send with the actors' next calls.

        The states that `all_of` returns for restarted actors do not change.
        """
        self._waiting.clear()

    def keep(self, actor_ids: Collection[int]) -> None:
        """Removes the states of dropped actors, that is, of all actors that are not in `actor_ids`."""
        for states in (self._of, self._waiting):
            for actor_id in states.keys() - set(actor_ids):
                del states[actor_id]

    def clear(self) -> None:
        """Removes the states of all actors."""
        self._of.clear()
        self._waiting.clear()


def set_states(runner: Any, *, num_pulled: int = 0, **states: Any) -> None:
    """Sets the states of an env runner, one after the other.

    Each state is a separate argument, because Ray replaces a reference by its value only if the reference itself is an
    argument.

    Args:
        runner: The env runner.
        num_pulled: Number of first states that the runner may have fetched from the state server. They are set only if
            their weights are newer than the runner's.
        **states: The states, in their order.
    """
    for number, state in enumerate(states.values()):
        if number >= num_pulled or state["weights_seq_no"] > runner.weights_seq_no:
            runner.set_state(state)


def replaces(state: Mapping[str, Any], older: Mapping[str, Any]) -> bool:
    """Whether the env runner state `state` contains everything that the older state `older` sets.

    Everything means all components (top-level keys) of `older`, and all weight arrays of the modules in `older`. If so,
    no env runner needs `older` any more.
    """
    return _parts_of(older) <= _parts_of(state)


def _parts_of(state: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """Returns the names of an env runner state's components (top-level keys), each as a tuple.

    For the component "rl_module", returns ``("rl_module", array name)`` for each weight array instead.
    """
    components = {(name,) for name in state if name != COMPONENT_RL_MODULE}
    arrays = state.get(COMPONENT_RL_MODULE, {}).values()
    return frozenset(components | {(COMPONENT_RL_MODULE, ref) for refs in arrays for ref in refs})


def _numbered(sent: Iterable[_Sent]) -> dict[str, Any]:
    return {f"state_{number}": ref for number, (_, ref) in enumerate(sent)}
