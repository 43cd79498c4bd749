"""The compile clock counts programs, wherever they come from."""

from __future__ import annotations

import jax
import jax.monitoring
import numpy as np

from jaxrl_stack.utils.compile_clock import CompileClock


def test_compiled_and_loaded_programs_count_and_repeated_calls_do_not():
    hits = []
    jax.monitoring.register_event_listener(lambda event, **kwargs: hits.append(event.endswith("/cache_hits")))
    x = np.arange(7.0, dtype=np.float32)

    def program():
        return jax.jit(lambda x: x * 3.25 + 17.0)

    clock = CompileClock()
    first, again = program(), program()
    first(x)
    assert clock.compiles == 1 and clock.seconds > 0.0
    first(x + 1.0)
    assert clock.compiles == 1
    # The same program under another name comes out of the session's cache, and counts as one more.
    hits.clear()
    again(x)
    assert clock.compiles == 2 and sum(hits) == 1
    first(x[:3])
    assert clock.compiles == 3
    clock.reset()
    first(x)
    assert clock.compiles == 0 and clock.seconds == 0.0
