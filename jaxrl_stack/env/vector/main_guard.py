"""Check for ``if __name__ == "__main__":``, which scripts need before they start processes of environments."""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from types import CodeType


def require_main_guard(what: str) -> None:
    """Raises RuntimeError if the running script lacks ``if __name__ == "__main__":``, because each child process would
    then start processes again.

    Processes that do not fork import the main script. Without the guard, each of them would run it from the beginning.

    Args:
        what: Name of the code that starts processes.

    Raises:
        RuntimeError: If the main script is running an unguarded statement at its top level.
    """
    line = _unguarded_line()
    if line is not None:
        raise RuntimeError(
            f"{what} starts processes, and each of them imports {sys.modules['__main__'].__file__}: write "
            f'`if __name__ == "__main__":` above line {line} there, and indent what follows.'
        )


def _unguarded_line() -> int | None:
    """Returns the line number of the main script's running top-level statement if no main guard protects the statement.

    This is the line at which the statement begins. A main guard is ``if __name__ == "__main__":``. Returns None if a
    guard protects the statement, or if child processes do not import the script.
    """
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if spec is not None and spec.name.endswith("__main__"):
        return None  # ``python -m package``: processes do not import it.
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    running = None
    while path is not None and frame is not None:
        if frame.f_globals is vars(main) and _is_top_level(frame.f_code):
            running = frame.f_lineno
        frame = frame.f_back
    if path is None or running is None:
        return None
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # no source
        return None
    for statement in statements:
        if isinstance(statement, ast.If) and _mentions_name(statement.test):
            return None  # The guard, or another condition with the same effect.
        if statement.lineno <= running <= (statement.end_lineno or statement.lineno):
            return statement.lineno
    return None


def _is_top_level(code: CodeType) -> bool:
    return code.co_name == "<module>"


def _mentions_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
