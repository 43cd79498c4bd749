"""``jaxrl new``: writes the skeleton of a training program to a new Python file."""

from __future__ import annotations

import argparse
import importlib.resources
import keyword
import pathlib
import re

from jaxrl_stack.cli.common import CliError

KINDS = {"env": "SkeletonEnv", "module": "SkeletonModule", "algo": "SkeletonPPO"}
"""What can be made -> what its class is called in ``skeletons/``."""


def run(arguments: argparse.Namespace) -> int:
    """Writes the skeleton of a program to a new Python file and prints the command that trains with this file.

    Raises:
        CliError: If the name is not a class name, or the file exists.
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", arguments.name)
    name = arguments.name if arguments.name[:1].isupper() else "".join(word.capitalize() for word in words)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CliError(f"NAME {arguments.name!r}: must be the name of a class, such as MyMaze or my_maze.")
    path = pathlib.Path("_".join(words).lower() + ".py")
    skeleton = importlib.resources.files(f"{__package__}.skeletons").joinpath(f"{arguments.kind}.py")
    text = skeleton.read_text(encoding="utf-8").replace(KINDS[arguments.kind], name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace("skeleton.py", path.name))
    except OSError as error:
        raise CliError(
            f"NAME {arguments.name}: {path} cannot be written ({error.strerror}). Choose another NAME or another "
            "directory."
        ) from error
    print(f"{path} holds {name}. Train it: jaxrl train file {path}")
    return 0
