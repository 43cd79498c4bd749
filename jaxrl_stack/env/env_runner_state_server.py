"""EnvRunnerStateServer: actor from which runners fetch the newest weights."""

from __future__ import annotations

import threading
from typing import Any


class EnvRunnerStateServer:
    """Ray actor that stores the newest env runner state (weights and more) until env runners fetch it.

    The algorithm's process pushes states, env runners pull them between two samples. So neither waits for the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: dict[str, Any] | None = None

    def push(self, state: dict[str, Any]) -> None:
        """Replaces the stored env runner state by `state`, unless `state` has older weights.

        Args:
            state: State for `EnvRunner.set_state`, with the key "weights_seq_no".

        Raises:
            ValueError: If this key is missing.
        """
        if "weights_seq_no" not in state:
            raise ValueError(
                f"push(state) needs 'weights_seq_no' in the state, which has only {sorted(state)}. Pass a result of "
                "EnvRunner.get_state()."
            )
        with self._lock:
            # Concurrent calls may overtake each other.
            if self._state is None or state["weights_seq_no"] >= self._state["weights_seq_no"]:
                self._state = state

    def clear(self) -> None:
        """Removes the stored env runner state: runners fetch nothing until the next `push`.

        This `push` may have older weights than the removed state. `EnvRunnerGroup` calls this method when it sends
        another state to the runners directly.
        """
        with self._lock:
            self._state = None

    def pull(self) -> dict[str, Any] | None:
        """Returns the newest env runner state; None before the first push."""
        with self._lock:
            return self._state

    def pull_if_newer(self, weights_seq_no: int) -> dict[str, Any] | None:
        """Returns the newest env runner state if its `weights_seq_no` is higher than the given one, else None."""
        state = self.pull()
        return None if state is None or state["weights_seq_no"] <= weights_seq_no else state

    def get_version(self) -> int:
        """Returns the ``weights_seq_no`` of the newest env runner state; -1 before the first push."""
        state = self.pull()
        return -1 if state is None else int(state["weights_seq_no"])

    def ping(self) -> str:
        """Returns "pong": the actor is alive."""
        return "pong"
