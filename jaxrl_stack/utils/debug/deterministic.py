"""Seeding of Python's and NumPy's global random number generators."""

from __future__ import annotations

import random

import numpy as np

from jaxrl_stack.utils.framework import check_framework


def update_global_seed_if_necessary(framework: str | None = None, seed: int | None = None) -> None:
    """Seeds Python's and NumPy's global generators, for environments that use them.

    JAX has no global generator: ``config.debugging(seed=...)`` seeds modules, learners, runners and environments.

    Args:
        framework: "jax"; "torch" and None stand for it.
        seed: Below 2**32; None: do nothing.

    Raises:
        ValueError: Another framework is asked for, or NumPy does not take the seed.
    """
    check_framework("update_global_seed_if_necessary", framework)
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
