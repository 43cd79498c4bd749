"""``jaxrl migrate``: rewrites RLlib scripts so that they use this package."""

from __future__ import annotations

import argparse
import io
import pathlib
import shutil
import sys
import tokenize
from typing import NamedTuple

from jaxrl_stack.cli.common import CliError
from jaxrl_stack.migration import Migration, migrate


class _Script(NamedTuple):
    """Script to migrate: path, encoding and result of the migration."""

    path: pathlib.Path
    encoding: str
    done: Migration

    @property
    def backup(self) -> pathlib.Path:
        return self.path.with_name(f"{self.path.name}.bak")


def run(arguments: argparse.Namespace) -> int:
    """Prints the diffs of the migrated scripts; with ``--write``, writes the scripts instead.

    Then prints a report on each script: without ``--write`` to stderr, so that the diffs can be redirected to a file.

    Returns:
        1 if a script could not be rewritten and did not change, else 0.

    Raises:
        CliError: If a script cannot be read or written, or is not Python. Then no script is written.
    """
    scripts = [_read(name) for name in arguments.scripts]
    if arguments.write:
        changed = [script for script in scripts if script.done.after != script.done.before]
        _refuse_backups(changed)
        for script in changed:
            _write(script)
    else:
        for script in scripts:
            print(script.done.diff(), end="")
    for script in scripts:
        print(script.done.report(), file=sys.stdout if arguments.write else sys.stderr)
    return int(any(script.done.is_refused for script in scripts))


def _read(name: str) -> _Script:
    path = pathlib.Path(name)
    if path.is_dir():
        raise CliError(f"SCRIPT {name}: is a folder. Name the files in it, such as {path / '*.py'}.")
    if path.suffix == ".ipynb":
        raise CliError(f"SCRIPT {name}: is a notebook. Convert it to a script: jupyter nbconvert --to script {name}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CliError(f"SCRIPT {name}: cannot be read ({error.strerror}). Name an existing script.") from error
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CliError(
            f"SCRIPT {name}: cannot be decoded with the encoding that it declares, or UTF-8 if it declares none "
            f"({error}). Save it as UTF-8, or declare its encoding in the first line: # -*- coding: latin-1 -*-"
        ) from error
    try:
        return _Script(path, encoding, migrate(text, name))
    except SyntaxError as error:
        place = f"SCRIPT {name}, line {error.lineno}" if error.lineno else f"SCRIPT {name}"
        raise CliError(f"{place}: is not valid Python ({error.msg}). Correct it first.") from error
    except ValueError as error:  # a NUL byte
        raise CliError(f"SCRIPT {name}: is not valid Python ({error}). Correct it first.") from error


def _refuse_backups(scripts: list[_Script]) -> None:
    for script in scripts:
        if script.backup.exists():
            raise CliError(f"--write: {script.backup} exists, from an earlier migration. Move it away first.")


def _write(script: _Script) -> None:
    try:
        shutil.copy2(script.path, script.backup)
        script.path.write_bytes(script.done.after.encode(script.encoding))
    except OSError as error:
        raise CliError(
            f"--write: {script.path} cannot be written ({error.strerror}). Make the file and its folder writable."
        ) from error
