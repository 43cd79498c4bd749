"""Makes the picture of the README: PPO's learning curves with tuned settings on four environments, eight seeds each.

``python -m bench.readme_picture [--seeds 8] [--out docs/pictures/learning_curves.svg]`` trains on one device, and
nothing in the picture is edited by hand.
"""

from __future__ import annotations

import argparse

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.runs.curves import STEPS, Band, axis_label
from jaxrl_stack.runs.figures import RunFigure, draw
from jaxrl_stack.runs.seeds import run_seeds

PANELS = {"CartPole-v1": 300_000, "Acrobot-v1": 500_000, "Reacher-misc": 1_500_000, "Catch-bsuite": 200_000}
"""Environment of gymnax -> steps."""


def bands(num_seeds: int) -> dict[str, Band]:
    """The interquartile mean of some seeds in each environment."""
    found = {}
    for name, num_steps in PANELS.items():
        print(name, flush=True)
        found[name] = run_seeds(PPOConfig.tuned(f"gymnax/{name}"), num_seeds, until={STEPS: num_steps}).band()
    return found


def picture(found: dict[str, Band]) -> RunFigure:
    """A panel for each environment, two in a row: readable at half the width of a page."""
    figure = RunFigure(figsize=(8.0, 5.0), layout="constrained")
    for place, (name, band) in enumerate(found.items()):
        axes = figure.add_subplot(2, 2, place + 1)
        x_label = axis_label(STEPS) if place >= 2 else ""
        y_label = "mean return" if place % 2 == 0 else ""
        draw([band], x_label=x_label, y_label=y_label, title=name, ax=axes, has_legend=False)
    return figure


def main() -> None:
    """Trains, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", default="docs/pictures/learning_curves.svg")
    arguments = parser.parse_args()
    picture(bands(arguments.seeds)).save(arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
