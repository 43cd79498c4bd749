"""Text of a script to migrate, its syntax tree, and the edits to make."""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import re
import sys
import textwrap
import tokenize
from typing import Any, NamedTuple

_WIDTH = 100


class Edit(NamedTuple):
    """Replacement of a range of bytes in a script.

    Attributes:
        start: First byte, from the beginning of the text.
        end: Byte after the last one; equal to `start` for an insertion.
        text: The new text.
    """

    start: int
    end: int
    text: str


class Finding(NamedTuple):
    """Task for the user: the text of a to-do comment, and the lines of the original script that need the comment.

    Attributes:
        line: First line in the original script, from 1.
        last_line: Last line in the original script.
        message: Description of the task.
        page: Address of the documentation's section about it.
    """

    line: int
    last_line: int
    message: str
    page: str


class Token(NamedTuple):
    """A token of a script that is neither a comment nor a line end.

    Attributes:
        start: First byte.
        end: Byte after the last one.
        text: The token.
    """

    start: int
    end: int
    text: str


class SourceCode:
    """Script to migrate, and the edits collected for it.

    Args:
        text: Text of the script. New lines have the line end of the first line.
        path: Path of the script, for the message of a syntax error.

    Raises:
        SyntaxError: If the script is not Python.
    """

    def __init__(self, text: str, path: str = "<script>"):
        self.tree = ast.parse(text, path)
        self.edits: list[Edit] = []
        self.findings: list[Finding] = []
        self._new_lines: list[Edit] = []
        self._bytes = text.encode()
        self._newline = "\r\n" if "\r\n" in text[: text.find("\n") + 1] else "\n"
        self._starts = [0, *itertools.accumulate(len(line) for line in self._bytes.splitlines(keepends=True))]
        self._inside = _lines_that_begin_inside(text)
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self._tokens, self._comments = self._read_tokens(text)

    def start(self, node: Any) -> int:
        """Byte position in the script where a syntax tree node begins."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        """Byte position in the script after the end of a syntax tree node."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, start: int, end: int) -> str:
        """Text of the script between two byte positions."""
        return self._bytes[start:end].decode()

    def code_of(self, node: ast.AST) -> str:
        """Text of the script that a syntax tree node covers."""
        return self.segment(self.start(node), self.end(node))

    def before(self, position: int) -> Token:
        """Finds the last token of the script that ends at or before a byte position."""
        return self._tokens[bisect.bisect_right(self._tokens, position, key=lambda token: token.end) - 1]

    def after(self, position: int) -> Token:
        """Finds the first token of the script that begins at or after a byte position."""
        return self._tokens[bisect.bisect_left(self._tokens, position, key=lambda token: token.start)]

    def dot_of(self, node: ast.Attribute) -> int:
        """Byte position of the dot before an attribute's name; skips parentheses, line ends and comments after the
        value.
        """
        return self.before(self.end(node) - len(node.attr)).start

    def arguments_start(self, node: ast.Call) -> int:
        """Byte position after the parenthesis that opens the arguments of a call."""
        token = self.after(self.end(node.func))
        while token.text == ")":  # closes around the function
            token = self.after(token.end)
        return token.end

    def span(self, node: ast.AST, start: int, end: int) -> tuple[int, int]:
        """Returns the byte range of a syntax tree node and of all parentheses directly around it that are between the
        byte positions `start` and `end`.
        """
        inner = (self.start(node), self.end(node))
        while True:
            left, right = self.before(inner[0]), self.after(inner[1])
            if left.text != "(" or right.text != ")" or left.start < start or right.end > end:
                return inner
            inner = (left.start, right.end)

    def end_of_parameters(self, node: ast.FunctionDef) -> int:
        """Byte position of the parenthesis that closes the parameters of a function."""
        depth, token = 0, self.after(self.start(node))
        while True:
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
            if token.text == ")" and not depth:
                return token.start
            token = self.after(token.end)

    def append(self, end: int, text: str) -> None:
        """Adds an argument to a call, or a parameter to a function, after the existing ones. `end` is the byte position
        of the closing parenthesis.
        """
        last = self.before(end)
        self.insert(last.end, {"(": text, ",": f" {text},"}.get(last.text, f", {text}"))

    def has_comment(self, start: int, end: int) -> bool:
        """Whether a comment begins between two byte positions."""
        return bisect.bisect_left(self._comments, start) < bisect.bisect_left(self._comments, end)

    def replace(self, node: ast.AST, text: str) -> None:
        """Replaces the text of a syntax tree node by `text`."""
        self.edits.append(Edit(self.start(node), self.end(node), text))

    def replace_statement(self, node: Any, statements: list[str]) -> None:
        """Replaces a statement by several statements: on separate lines if the old statement is the first on its line,
        else on one line, without comments.
        """
        is_first = not self.segment(self.line_start(node.lineno), self.start(node)).strip()
        if is_first:
            self.replace(node, f"\n{self.indentation(node.lineno)}".join(statements))
        else:
            self.replace(node, "; ".join(code for code in statements if not code.startswith("#")))

    def replace_span(self, start: int, end: int, text: str) -> None:
        """Replaces the bytes between two positions by `text`."""
        self.edits.append(Edit(start, end, text))

    def rename_attribute(self, node: ast.Attribute, name: str) -> None:
        """Renames the last attribute in an expression of the script, such as ``c`` in ``a.b.c``."""
        end = self.end(node)
        self.replace_span(end - len(node.attr), end, name)

    def rename_keyword(self, keyword: ast.keyword, name: str) -> None:
        """Renames a keyword argument of a call in the script."""
        start = self.start(keyword)
        self.replace_span(start, start + len(str(keyword.arg)), name)

    def insert(self, position: int, text: str) -> None:
        """Inserts `text` at a byte position of the script. Texts inserted at the same position keep the order of the
        calls.
        """
        self.edits.append(Edit(position, position, text))

    def insert_lines(self, line: int, text: str) -> None:
        """Inserts `text` as whole lines above a line of the script. If to-do comments are inserted above the same line,
        `text` precedes the comments.
        """
        self._new_lines.append(Edit(self.line_start(line), self.line_start(line), text))

    def line_start(self, line: int) -> int:
        """Byte position where a line of the script begins."""
        return self._starts[line - 1]

    def indentation(self, line: int) -> str:
        """Spaces and tabs at the beginning of a line."""
        content = self._line(line)
        return content[: len(content) - len(content.lstrip(" \t"))]

    def _read_tokens(self, text: str) -> tuple[list[Token], list[int]]:
        """Returns all tokens of the script in order, and the positions of its comments."""
        tokens, comments = _tokens_of(text, 0)
        if sys.version_info < (3, 12):  # there, an f-string is one token
            for node in ast.walk(self.tree):
                if isinstance(node, ast.FormattedValue):
                    # The parentheses let the expression have several lines.
                    inner, _ = _tokens_of(f"({self.code_of(node.value)})", self.start(node.value) - 1)
                    tokens += inner[1:-1]
            strings = [token for token in tokens if re.match(r"\w*[fF]\w*[\"']", token.text)]
            ends = [Token(token.end - 1, token.end, token.text[-1]) for token in strings]
            starts = [Token(token.start, token.start + 1, token.text[0]) for token in strings]
            tokens = [*(token for token in tokens if token not in strings), *starts, *ends]
        limits = [Token(0, 0, ""), Token(len(self._bytes), len(self._bytes), "")]
        return sorted([*tokens, *limits]), comments

    def _line(self, line: int) -> str:
        return self._bytes[self._starts[line - 1] : self._starts[line]].decode()

    def statement_of(self, node: ast.AST) -> ast.AST:
        """Returns the innermost statement that contains a syntax tree node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def is_alone(self, node: Any) -> bool:
        """Whether a statement is the only code on its lines; a comment may follow."""
        before = self.segment(self.line_start(node.lineno), self.start(node))
        after = self.segment(self.end(node), self._starts[node.end_lineno])
        return not before.strip() and (not after.strip() or after.lstrip().startswith("#"))

    def delete_statement(self, node: Any) -> None:
        """Deletes a statement with its lines. Replaces it by `pass` if it is the only statement of a block, or if other
        code is on its lines.
        """
        parent: Any = self.parents[node]
        blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
        if any(block == [node] for block in blocks) or not self.is_alone(node):
            self.replace(node, "pass")
            return
        self.edits.append(Edit(self.line_start(node.lineno), self._starts[node.end_lineno], ""))

    def to_do(self, node: Any, message: str, page: str) -> None:
        """Adds a to-do comment above the line of a syntax tree node; the same message only once per line."""
        finding = Finding(node.lineno, node.end_lineno or node.lineno, message, page)
        if not any(other.line == finding.line and other.message == message for other in self.findings):
            self.findings.append(finding)

    def result(self) -> tuple[str, dict[int, int]]:
        """Applies all edits and inserts all to-do comments; returns the new script, and a map from old to new line
        numbers.
        """
        edits = [*self._new_lines, *map(self._comment, self.findings), *self.edits]
        # What is inserted at a place stands before what takes the place of the text there.
        order = sorted(enumerate(edits), key=lambda item: (item[1].start, item[1].start < item[1].end, item[0]))
        pieces, position, shift, changes = [], 0, 0, []
        for _, edit in order:
            if edit.start < position:  # inside of what another edit has replaced as a whole
                continue
            new = edit.text.replace("\r\n", "\n").replace("\n", self._newline)
            pieces += (self._bytes[position : edit.start], new.encode())
            position = edit.end
            shift += edit.text.count("\n") - self._bytes[edit.start : edit.end].count(b"\n")
            changes.append((edit.end, shift))
        pieces.append(self._bytes[position:])
        ends = [end for end, _ in changes]
        moved = {}
        for line in range(1, len(self._starts)):
            before = bisect.bisect_right(ends, self.line_start(line))
            moved[line] = line + (changes[before - 1][1] if before else 0)
        return b"".join(pieces).decode(), moved

    def _comment(self, finding: Finding) -> Edit:
        """Creates the edit that inserts the to-do comment `finding` above the script line that needs this comment.

        The inserted text is empty if a to-do comment is already there, from an earlier migration.
        """
        line = finding.line
        while line in self._inside:
            line -= 1
        start = self.line_start(line)
        outer = [edit.start for edit in self.edits if edit.start < start < edit.end]
        if outer:
            line = bisect.bisect_right(self._starts, min(outer))
            start = self.line_start(line)
        indentation = self.indentation(line)
        comment = textwrap.fill(
            f"TODO(jaxrl): {finding.message} See {finding.page}",
            _WIDTH,
            initial_indent=f"{indentation}# ",
            subsequent_indent=f"{indentation}#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        return Edit(start, start, "" if "TODO(jaxrl):" in self._comments_above(line) else f"{comment}\n")

    def _comments_above(self, line: int) -> str:
        """Text of the comment lines directly above a line of the script."""
        first = line
        while first > 1 and self._line(first - 1).lstrip().startswith("#"):
            first -= 1
        return self.segment(self.line_start(first), self.line_start(line)).replace("\r\n", "\n")


def _tokens_of(text: str, first_byte: int) -> tuple[list[Token], list[int]]:
    """Splits a text, which begins at byte `first_byte` of the script, into tokens; returns the tokens, and the byte
    positions of the comments in the text.
    """
    lines = text.split("\n")
    starts = list(itertools.accumulate((len(line.encode()) + 1 for line in lines), initial=first_byte))
    tokens, comments = [], []

    def byte(place: tuple[int, int]) -> int:
        return starts[place[0] - 1] + len(lines[place[0] - 1][: place[1]].encode())

    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append(byte(token.start))
        elif token.string.strip() and token.type != tokenize.ENDMARKER:
            tokens.append(Token(byte(token.start), byte(token.end), token.string))
    return tokens, comments


def _lines_that_begin_inside(text: str) -> set[int]:
    """Numbers of the lines above which no comment can be inserted: they continue a string or follow a backslash."""
    inside = {number + 1 for number, line in enumerate(text.split("\n"), 1) if line.rstrip("\r").endswith("\\")}
    starts = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            starts.append(token.start[0])
        elif name == "FSTRING_END":
            inside.update(range(starts.pop() + 1, token.end[0] + 1))
        elif name == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
    return inside


def lines(first: int, last: int) -> ast.AST:
    """Creates a syntax tree node that covers a range of lines, to give `SourceCode.to_do` the position of a comment."""
    place = ast.Pass()
    place.lineno, place.end_lineno = first, last
    return place


def comments_between(text: str) -> list[str]:
    """Returns the comments inside the text of a statement."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
