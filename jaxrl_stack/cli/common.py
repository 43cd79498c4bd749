"""Shared functions of the commands: the error class, and JSON from the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from typing import Any

CHECKPOINT_OPTIONS = ("checkpoint", "checkpoints", "restore")
"""Options of commands that name checkpoints, such as ``RUN@35``."""


class CliError(Exception):
    """Error about wrong input. The user sees only its message, which names option, value and remedy."""


def one_line(text: str) -> str:
    """Replaces line breaks and repeated whitespace by single spaces."""
    return " ".join(text.split())


def with_notes(error: BaseException, message: str) -> str:
    """Returns `message`, followed by the one-line notes of `error`. These notes name the code that raised the error."""
    # JAX notes, in several lines, how to see more of a traceback: there is none here.
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    return " ".join([message, *notes])


@contextlib.contextmanager
def wrong_input(option: str = "") -> Iterator[None]:
    """Context manager that converts errors about wrong values in configs and environments to a `CliError`.

    Args:
        option: Option of the value, put before the message.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, ImportError, FileNotFoundError, NotImplementedError) as error:
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        message = with_notes(error, message)
        raise CliError(f"{option}: {message}" if option else message) from error


def json_object(
    option: str, text: str, is_file: bool = False, file_example: str = '{"algo": "PPO", ...}'
) -> dict[str, Any]:
    """Parses the JSON in an option's value, or in the file that the option names.

    Args:
        option: Name of the option.
        text: The value or content.
        is_file: Whether the text is the content of a file.
        file_example: Example content of such a file, for messages.

    Raises:
        CliError: If it is not a JSON object.
    """
    what, example = f"{option} {text!r}", f"""{option} '{{"name": value}}'"""
    if is_file:
        what, example = f"{option}: the file", file_example
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        quotes = "double quotes inside" if is_file else "double quotes inside and, in a shell, single quotes around"
        raise CliError(
            f"{what} is not JSON ({error.msg}, line {error.lineno}, character {error.colno}). Write it like {example}, "
            f"with {quotes}."
        ) from error
    if not isinstance(value, dict):
        if is_file:
            what = f"{option}: what the file holds, {value!r},"
        raise CliError(f"{what} must be a JSON object: {example}.")
    return value


def reading_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts the options about reading recorded steps to settings of `AlgorithmConfig.offline_data`, ``{setting:
    value}``.

    Raises:
        CliError: If a column has no name.
    """
    names = (
        "input_read_schema",
        "input_read_episodes",
        "input_read_sample_batches",
        "input_compress_columns",
        "ignore_final_observation",
    )
    found = {name: value for name in names if (value := getattr(arguments, name))}
    if "input_read_schema" in found:
        pairs = [text.partition("=") for text in found["input_read_schema"]]
        odd = [column for column, is_named, _ in pairs if not is_named]
        if odd:
            raise CliError(
                f"--input-read-schema {odd[0]}: lacks the name of this column in the files. Write {odd[0]}=NAME."
            )
        found["input_read_schema"] = {column: name for column, _, name in pairs}
    return found
