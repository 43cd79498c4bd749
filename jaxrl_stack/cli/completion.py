"""``jaxrl completion``: code that makes a shell complete words of this command line."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def run(arguments: argparse.Namespace) -> int:
    """Prints the code."""
    print(shellcode(["jaxrl"], shell=arguments.shell))
    return 0
