"""Settings for the whole test session; they must stand before JAX starts."""

from __future__ import annotations

import os

# Eight CPU devices stand for a machine with several accelerators.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
