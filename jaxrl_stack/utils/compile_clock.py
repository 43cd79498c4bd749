"""Seconds that JAX spends on tracing, lowering and compiling, and how often its backend compiles."""

from __future__ import annotations

import threading

import jax.monitoring

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_EVENTS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", _COMPILE_EVENT)


class _Totals(threading.local):
    def __init__(self) -> None:
        self.seconds = 0.0
        self.compiles = 0


_totals = _Totals()
_is_listening = False


def _listen(event: str, duration_secs: float, **kwargs: object) -> None:
    if event in _EVENTS:
        _totals.seconds += duration_secs
        _totals.compiles += event == _COMPILE_EVENT


class CompileClock:
    """Measures the compilation in this thread since the last `reset`: seconds, and number of compiled programs.

    Traces nest (a jitted function inside another one is counted in both), so `seconds` is an upper bound.
    """

    def __init__(self) -> None:
        global _is_listening
        if not _is_listening:
            _is_listening = True
            jax.monitoring.register_event_duration_secs_listener(_listen)
        self.reset()

    def reset(self) -> None:
        """Sets the measured `seconds` and `compiles` to 0."""
        self._seconds, self._compiles = _totals.seconds, _totals.compiles

    @property
    def seconds(self) -> float:
        """Seconds that JAX spent on tracing, lowering and compiling since the last `reset`."""
        return _totals.seconds - self._seconds

    @property
    def compiles(self) -> int:
        """Number of programs that JAX compiled, or loaded from the persistent cache, since the last `reset`."""
        return _totals.compiles - self._compiles
