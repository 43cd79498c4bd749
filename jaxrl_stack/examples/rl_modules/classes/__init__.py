"""RLModules that RLlib's example scripts import."""

from __future__ import annotations

from jaxrl_stack.examples.rl_modules.classes.rock_paper_scissors_heuristic_rlm import (
    AlwaysSameHeuristicRLM,
    BeatLastHeuristicRLM,
)

__all__ = ["AlwaysSameHeuristicRLM", "BeatLastHeuristicRLM"]
