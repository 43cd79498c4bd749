"""Makes the picture of the README: PPO's learning curves on four environments, eight seeds each.

``python -m bench.readme_picture [--seeds 8] [--out docs/pictures/learning_curves.svg]`` takes 110
seconds of CPU time; nothing in the picture is edited by hand.
"""

from __future__ import annotations

import argparse
from typing import Any

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.tuned import TUNED
from jaxrl_stack.runs.curves import STEPS, Band, axis_label
from jaxrl_stack.runs.figures import RunFigure, draw
from jaxrl_stack.runs.seeds import run_seeds

CARTPOLE, PENDULUM = (TUNED[f"gymnax/{name}"] for name in ("CartPole-v1", "Pendulum-v1"))
PANELS: dict[str, tuple[dict[str, Any], int]] = {
    "CartPole-v1": (CARTPOLE, 300_000),
    "Pendulum-v1": (PENDULUM, 300_000),
    "Acrobot-v1": ({**CARTPOLE, "lr": 2.5e-3}, 300_000),
    "Breakout-MinAtar": ({**CARTPOLE, "lr": 2.5e-3}, 400_000),
}
"""Environment of gymnax -> settings of PPO, and steps."""


def bands(num_seeds: int) -> dict[str, Band]:
    """The interquartile mean of some seeds in each environment."""
    found = {}
    for name, (settings, num_steps) in PANELS.items():
        print(name, flush=True)
        config = PPOConfig().environment(f"gymnax/{name}").update_from_dict(settings)
        found[name] = run_seeds(config, num_seeds, until={STEPS: num_steps}).band()
    return found


def picture(found: dict[str, Band]) -> RunFigure:
    """A panel for each environment, two in a row: readable at half the width of a page."""
    figure = RunFigure(figsize=(8.0, 5.0), layout="constrained")
    for place, (name, band) in enumerate(found.items()):
        axes = figure.add_subplot(2, 2, place + 1)
        x_label = axis_label(STEPS) if place >= 2 else ""
        draw([band], x_label=x_label, y_label="return" if place % 2 == 0 else "", title=name, ax=axes)
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
