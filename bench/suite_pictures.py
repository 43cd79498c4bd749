"""Makes the pictures of docs/environments.md: a frame of each suite, after random steps where the first is dull.

    python -m bench.suite_pictures [--envs pgx/2048,brax/ant] [--out docs/pictures]

Needs the suites (`.ci/suites`); ``JAX_DISABLE_MOST_OPTIMIZATIONS=1`` before it saves time, since programs run once.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import jax

STEPS = {
    "brax/ant": 0,
    "craftax/Craftax-Classic-Symbolic-v1": 0,
    "jumanji/Game2048-v1": 40,
    "navix/Navix-DoorKey-8x8-v0": 1,
    "octax/brix": 60,
    "pgx/2048": 40,
    "playground/CartpoleBalance": 10,
    "xminigrid/MiniGrid-DoorKey-8x8": 1,
}
"""Environment -> random steps before the picture."""
HEIGHT = 160


def picture(name: str, out: Path) -> Path:
    """One frame as a PNG of few colours."""
    from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
    from jaxrl_stack.utils.images import pillow

    host = GymnasiumFromJax(name, render_mode="rgb_array")
    host.reset(seed=0)
    host.action_space.seed(0)
    for _ in range(STEPS.get(name, 0)):
        _, _, terminated, truncated, _ = host.step(host.action_space.sample())
        if terminated or truncated:
            break
    image = pillow().Image.fromarray(host.render())
    image = image.resize((round(image.width * HEIGHT / image.height), HEIGHT))
    path = out / f"suite_{name.partition('/')[0]}.png"
    image.quantize(64).save(path, optimize=True)
    jax.clear_caches()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default=",".join(STEPS), help="comma-separated")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.envs.split(","):
        path = picture(name, arguments.out)
        print(path, path.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
