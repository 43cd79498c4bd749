"""``jaxrl completion``: prints shell code for tab completion of this command line."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def run(arguments: argparse.Namespace) -> int:
    """Prints the shell code for tab completion."""
    print(shellcode(["jaxrl"], shell=arguments.shell))
    return 0
