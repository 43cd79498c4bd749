"""The command line, ``jaxrl``.

Each command has a file, and all options are in ``parser.py``. Slow imports wait until a command needs them, so that
``jaxrl --help`` answers immediately.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from jaxrl_stack.cli.common import CHECKPOINT_OPTIONS, CliError, one_line, with_notes
from jaxrl_stack.cli.parser import make_parser, what_is_unknown

__all__ = ["main"]

_FILES = {"list": "listing", "compare": "plot", "verify": "rewind", "diff": "rewind"}
"""Of commands that have not a file of their own name; imported when they are asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the ``jaxrl`` command that the command-line arguments name, and returns the exit code.

    Args:
        argv: Arguments after the program's name; None for the process's arguments.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong input, 130 stopped by Ctrl-C.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:2] == ["train", "file"]:
        # RLlib's form; the same as the option.
        argv[1] = "--config-file"
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how a word may end
        import argcomplete

        argcomplete.autocomplete(parser, validator=lambda name, typed: name.casefold().startswith(typed.casefold()))
    try:
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            parser.error(what_is_unknown(argv, arguments, unknown))
    except SystemExit as end:  # argparse has printed help or an error
        return end.code if isinstance(end.code, int) else 2
    if arguments.version:
        from jaxrl_stack import __version__

        print(f"jaxrl {__version__}")
        return 0
    if arguments.command is None:
        parser.print_help()
        return 0
    arguments.words = ["jaxrl", *argv]
    name = f"jaxrl {arguments.command}"
    # As `python -m` does: module:Class is found in the working directory.
    sys.path.insert(0, os.getcwd())
    try:
        if any("@" in str(getattr(arguments, name, "")) for name in CHECKPOINT_OPTIONS):
            importlib.import_module(f"{__name__}.rewind").resolve_iterations(arguments)
        return importlib.import_module(f"{__name__}.{_FILES.get(arguments.command, arguments.command)}").run(arguments)
    except KeyboardInterrupt:
        print(f"{name}: aborted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, CliError):
            print(f"{name}: error: {one_line(str(error))}", file=sys.stderr)
            return 2
        message = one_line(with_notes(error, f"{type(error).__name__}: {error}"))
        print(f"{name}: failed: {message} (--debug shows where)", file=sys.stderr)
        return 1
