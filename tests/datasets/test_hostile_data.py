"""Damaged files of every format give rows or one error that names the file; `mutations.py` reads thousands."""

from __future__ import annotations

import pytest

from tests.datasets.mutations import FORMATS, outcomes


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_files_give_rows_or_one_error(tmp_path, form):
    found = list(outcomes(form, tmp_path, count=25, seed=11))
    assert len(found) == 25 and "error" in found and set(found) <= {"error", "rows"}
