"""``jaxrl tournament``: plays games between the policies of checkpoints."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import config_for_checkpoint


def run(arguments: argparse.Namespace) -> int:
    """Plays games between the policies of checkpoints and prints the table of results; ``--out`` also writes a page or
    a figure.

    Raises:
        CliError: If a checkpoint or an option is invalid.
    """
    from jaxrl_stack.algorithms.games import RANDOM
    from jaxrl_stack.algorithms.tournament import names_of_paths, run_tournament
    from jaxrl_stack.runs.figures import checked_figure_path

    out = None if arguments.out is None else pathlib.Path(arguments.out)
    with wrong_input("--out"):
        if out is not None and out.suffix != ".html":
            checked_figure_path(out)
    with wrong_input("CHECKPOINT"):
        paths = names_of_paths(arguments.checkpoints)
    players, env, env_config = {}, arguments.env, None
    for name, path in paths.items():
        if path == RANDOM:
            players[name] = path
            continue
        players[name], config = policy_of_checkpoint(path, arguments)
        if env is None and config is not None:
            env, env_config = config.env, config.env_config
    if env is None:
        raise CliError(
            "The game is unknown, because checkpoints of policies do not name it. Add it: --env pgx_multi/connect_four."
        )
    with wrong_input():
        results = run_tournament(
            players, env, env_config=env_config, games=arguments.games, seed=arguments.seed, explore=arguments.explore
        )
    print(results.table(arguments.format))
    if out is not None and out.suffix == ".html":
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(results.to_html("Tournament"), encoding="utf-8")
    elif out is not None:
        results.plot(out)
    if out is not None:
        print(f"Written:    {out}")
    return 0


def policy_of_checkpoint(path: str, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Loads the policy of a checkpoint, and the config of its algorithm; None instead of the config for a policy's
    checkpoint.

    Args:
        path: The checkpoint, of an Algorithm or of a Policy.
        arguments: ``config_file``, ``env`` and ``module``.

    Raises:
        CliError: If there is no checkpoint, or its code or module is not named.
    """
    from jaxrl_stack.algorithms.games import is_policy, load_policy
    from jaxrl_stack.policy.policy import Policy

    where = f"CHECKPOINT {path}"
    if is_policy(path):
        with wrong_input(where):
            return Policy.from_checkpoint(path), None
    config = config_for_checkpoint(path, arguments)
    with wrong_input():
        return load_policy(where, path, config, arguments.module, choice="--module {}")
