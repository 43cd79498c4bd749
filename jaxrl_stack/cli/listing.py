"""``jaxrl list``: what there is to train, and where."""

from __future__ import annotations

import argparse


def run(arguments: argparse.Namespace) -> int:
    """Prints the algorithms, the environments, or both; or what is tuned for what."""
    from jaxrl_stack.algorithms.registry import ALGORITHMS, tuned_settings

    what = arguments.what
    if what == "tuned":
        for name in sorted(ALGORITHMS):
            for env in sorted(tuned_settings(name)):
                print(f"  {name} {env}")
        return 0
    if what != "envs":
        if what is None:
            print("algorithms")
        for name in sorted(ALGORITHMS):
            print(f"  {name}")
    if what != "algorithms":
        from jaxrl_stack.env.jax_env import GYMNAX_PREFIX
        from jaxrl_stack.env.registry import GYMNAX_IDS

        if what is None:
            print("environments")
        for name in GYMNAX_IDS:
            print(f"  {GYMNAX_PREFIX}{name}")
        print("  package.module:Class, a JAX environment of your own")
    return 0
