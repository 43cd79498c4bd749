"""``jaxrl tournament``: plays games between the policies of checkpoints."""

from __future__ import annotations

import argparse
import pathlib

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import load_checkpoint_player


def run(arguments: argparse.Namespace) -> int:
    """Plays games between the policies of checkpoints and prints the table of results; ``--out`` also writes a page or
    a figure.

    Raises:
        CliError: If a checkpoint or an option is invalid.
    """
    from jaxrl_stack.algorithms.games import RANDOM, LoadedPlayer, Player, game_config
    from jaxrl_stack.algorithms.tournament import names_of_paths, run_tournament
    from jaxrl_stack.runs.figures import checked_figure_path

    out = None if arguments.out is None else pathlib.Path(arguments.out)
    with wrong_input("--out"):
        if out is not None and out.suffix != ".html":
            checked_figure_path(out)
    with wrong_input("CHECKPOINT"):
        paths = names_of_paths(arguments.checkpoints)
    players: dict[str, Player] = {
        name: RANDOM if path == RANDOM else load_checkpoint_player(path, arguments) for name, path in paths.items()
    }
    configs = [own.config for own in players.values() if isinstance(own, LoadedPlayer)]
    if game_config(arguments.env, None, configs) is None:
        raise CliError("None of the checkpoints names its game. Add it: --env pgx_multi/connect_four.")
    with wrong_input():
        results = run_tournament(
            players, arguments.env, games=arguments.games, seed=arguments.seed, explore=arguments.explore
        )
    print(results.table(arguments.format))
    if out is not None and out.suffix == ".html":
        results.to_html(out, title="Tournament")
    elif out is not None:
        results.plot(out)
    if out is not None:
        print(f"Written:    {out}")
    return 0
