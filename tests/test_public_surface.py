"""The public surface against RLlib's: what is absent is known by name, with a reason (`website/parity_tables.py`)."""

from __future__ import annotations

import fnmatch

import pytest

from website.links import ROOT
from website.parity_tables import KNOWN, MARK, TABLES, absent, resolve, surface, with_tables


def test_what_is_absent_is_known_by_name():
    """A name that is absent without a reason, or present in spite of one, fails."""
    found = absent()
    known = [name for names in KNOWN["absent"].values() for name in names]
    present = [path for rows in surface().values() for path, missing in rows.items() if missing != [""]]
    print(*found, sep="\n")
    unexplained = [name for name in found if not any(fnmatch.fnmatchcase(name, pattern) for pattern in known)]
    assert not unexplained, "absent: give the reason in tests/reference/absent.json"
    stale = [pattern for pattern in known if not fnmatch.filter(found, pattern) or fnmatch.filter(present, pattern)]
    assert not stale, "(partly) present: take it out of tests/reference/absent.json"


def test_renamed_classes_are_here_under_their_own_name_only():
    for theirs, ours in KNOWN["renamed"].items():
        assert resolve(ours) is not None, ours
        module, _, name = theirs.rpartition(".")
        with pytest.raises(ImportError):
            exec(f"from jaxrl_stack.{module} import {name}", {})


def test_the_parity_page_has_a_place_for_each_table():
    page = (ROOT / "docs" / "parity.md").read_text()
    assert MARK.findall(page) == list(TABLES)
    shown = with_tables(page)
    assert not MARK.findall(shown)
    assert "| `training()` |" in shown and "| RLModules |" in shown and "**PyTorch's own" in shown
