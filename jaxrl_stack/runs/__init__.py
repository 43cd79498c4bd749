"""Records of a run, and ways to show them: table of results, curves, figures, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.runs.benchmark import Benchmark
    from jaxrl_stack.runs.history import History
    from jaxrl_stack.runs.plots import compare, plot_runs
    from jaxrl_stack.runs.report import write_report
    from jaxrl_stack.runs.seeds import run_seeds
    from jaxrl_stack.runs.stop import Plateau
    from jaxrl_stack.runs.sweep import run_sweep

__all__ = ["Benchmark", "History", "Plateau", "compare", "plot_runs", "run_seeds", "run_sweep", "write_report"]

_MODULES = {
    "benchmark": ("Benchmark",),
    "history": ("History",),
    "plots": ("compare", "plot_runs"),
    "report": ("write_report",),
    "seeds": ("run_seeds",),
    "stop": ("Plateau",),
    "sweep": ("run_sweep",),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
