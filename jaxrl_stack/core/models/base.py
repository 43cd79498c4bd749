"""Keys of encoder outputs."""

from __future__ import annotations

ENCODER_OUT = "encoder_out"
ACTOR = "actor"
CRITIC = "critic"
