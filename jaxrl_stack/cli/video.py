"""``jaxrl video``: records a video of a checkpoint's policy."""

from __future__ import annotations

import argparse
import pathlib

from jaxrl_stack.cli.common import wrong_input
from jaxrl_stack.cli.experiment import config_for_checkpoint


def run(arguments: argparse.Namespace) -> int:
    """Records a video of episodes of a checkpoint's policy, and prints the path of the file.

    Raises:
        CliError: If there is no checkpoint, or its environment cannot be drawn.
    """
    from jaxrl_stack.videos import record_checkpoint

    checkpoint = pathlib.Path(arguments.checkpoint)
    out = arguments.out or checkpoint.with_name(f"{checkpoint.name}.mp4")
    config = config_for_checkpoint(arguments.checkpoint, arguments)
    with wrong_input(f"CHECKPOINT {checkpoint}"):
        if arguments.env is not None:
            config.environment(arguments.env)
        video = record_checkpoint(
            checkpoint, out, arguments.episodes, against=arguments.against, seed=arguments.seed, config=config
        )
    print(f"Video: {video}")
    return 0
