"""Migration of one script from RLlib to this package: all steps, the diff and the report."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from typing import NamedTuple

from jaxrl_stack.migration.bindings import Bindings
from jaxrl_stack.migration.imports import rewrite_imports
from jaxrl_stack.migration.names import PAGE
from jaxrl_stack.migration.settings import rewrite_settings
from jaxrl_stack.migration.source import Finding, SourceCode
from jaxrl_stack.migration.torch_code import rewrite_torch


class ToDo(NamedTuple):
    """Task in a migrated script that the user must do by hand.

    Attributes:
        line: First line in the original script, from 1.
        new_line: First line in the new script.
        new_last_line: Last line in the new script.
        message: Description of the task.
        page: Address of the documentation's section about it.
    """

    line: int
    new_line: int
    new_last_line: int
    message: str
    page: str

    @property
    def new_lines(self) -> str:
        """Line numbers in the new script to which this task refers, such as "14" or "14-16"."""
        more = f"-{self.new_last_line}" if self.new_last_line > self.new_line else ""
        return f"{self.new_line}{more}"


class Migration(NamedTuple):
    """Result of a script's migration: the old script, the new script, and the tasks that the user must do by hand.

    Attributes:
        path: Path of the script.
        before: Text of the script.
        after: Text of the new script.
        to_do: Remaining tasks, in the order of lines.
        is_refused: Whether the new script would be invalid Python, so that `after` is the old one.
    """

    path: str
    before: str
    after: str
    to_do: list[ToDo]
    is_refused: bool = False

    def diff(self) -> str:
        """The changes to the script as a unified diff; empty if nothing changed."""
        name = self.path.lstrip("/")
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def report(self) -> str:
        """Returns a report of the migration as text: the number of rewritten lines, and all tasks that the user must do
        by hand, with lines and reasons.
        """
        if self.before == self.after and not self.to_do:
            return f"{self.path}: nothing of RLlib's or PyTorch's in it"
        changed = difflib.unified_diff(_lines(self.before), _lines(self.after), n=0)
        rewritten = sum(line.startswith("-") for line in list(changed)[2:])
        head = f"{self.path}: {rewritten} lines rewritten, {len(self.to_do)} to do by hand"
        lines = [f"  line {item.line} (new: {item.new_lines}): {item.message} {item.page}" for item in self.to_do]
        return "\n".join([head, *lines])


def _lines(text: str) -> list[str]:
    """Splits a text into lines at newline characters only, as the program `patch` does; each line keeps its newline."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def migrate(text: str, path: str = "<script>") -> Migration:
    """Rewrites a script written for RLlib. The script is parsed, never run.

    Args:
        text: Text of the script.
        path: Path of the script, for the diff and the report.

    Returns:
        The migration. If the new script would be invalid Python, it has the old script, and the invalid line is the
        first task.

    Raises:
        SyntaxError: If the script is not Python.
    """
    source = SourceCode(text, path)
    bindings = Bindings(source.tree)
    rewrite_imports(source, bindings)
    rewrite_settings(source)
    rewrite_torch(source, bindings)
    after, moved = source.result()
    findings = sorted(source.findings, key=lambda finding: (finding.line, finding.message))
    if error := _new_error(text, after):
        line = max((old for old, new in moved.items() if new <= (error.lineno or 1)), default=1)
        message = (
            f"nothing was rewritten: this statement would become no Python ({error.msg}). Write it in another way."
        )
        return Migration(path, text, text, [ToDo(line, line, line, message, PAGE), *_not_moved(findings)], True)
    to_do = [ToDo(item.line, moved[item.line], moved[item.last_line], item.message, item.page) for item in findings]
    return Migration(path, text, after, to_do)


def _not_moved(findings: list[Finding]) -> list[ToDo]:
    return [ToDo(item.line, item.line, item.last_line, item.message, item.page) for item in findings]


def _new_error(before: str, after: str) -> SyntaxError | None:
    """Finds a syntax error that the migration introduced; None without one. Runs neither the old nor the new script."""
    for flags in (0, ast.PyCF_ONLY_AST):  # some scripts can be parsed only: with `await` outside of functions
        if _error(before, flags) is None:
            return _error(after, flags)
    return None


def _error(text: str, flags: int) -> SyntaxError | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as SyntaxWarning: invalid escape sequence
        try:
            compile(text, "<script>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return error
    return None
