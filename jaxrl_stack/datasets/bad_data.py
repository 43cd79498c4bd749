"""Error about unusable recorded data, which names the location, the problem and the remedy."""

from __future__ import annotations


class BadDataError(ValueError):
    """Raised if recorded data cannot be read, is inconsistent, or does not fit its declared spaces or columns.

    Args:
        what: Problem and remedy, in whole sentences.
        path: The file.
        row: The row in the file, from 0; None if it is not about one.
    """

    def __init__(self, what: str, *, path: str | None = None, row: int | None = None):
        place = "" if path is None else f"{path}, row {row:,}: " if row is not None else f"{path}: "
        super().__init__(f"{place}{what}")
        self.what = what
        self.path = path
        self.row = row

    def __reduce__(self):
        return _made_again, (type(self), self.what, self.path, self.row)


def _made_again(cls: type[BadDataError], what: str, path: str | None, row: int | None) -> BadDataError:
    return cls(what, path=path, row=row)
